"""Plans over several pools as text: the pipelines drawn stage by stage, and what each pool is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from astra.answer import Estimate, Plan
from astra.report import drawing, explain, money, sections
from astra.report.layout import Part, Text
from astra.report.sections import line_sentences, lost_sentences
from astra.report.text import shortened
from astra.search.fleet.records import (
    GroupEstimate,
    MixedEstimate,
    MixedPlanSet,
    MixedStage,
    PoolChoice,
)
from astra.search.fleet.summary import STARTED_BY, targets_of
from astra.spec.mixed_text import short_form
from astra.units import show_count, show_slower

BAR: Final = 14
LEAST_BAR: Final = 5
UNSEEN: Final = 0.0005  # of the tokens per second: a gain this small is none
FIGURES: Final = 49  # columns of a stage's figures and the gaps, without the pool's name and the bars
MOST_ROWS: Final = 16
MORE: Final = (
    "-v: the pipelines drawn stage by stage, time and memory by stage, why the others lost, every plan, the bill, who "
    "can run it. --worth: what each pool brings. --report FILE.html: all of it as a page. astra explain PLAN.json: "
    "what would bring most."
)


class FleetStageRow(NamedTuple):
    """Consecutive stages that are alike."""

    first: int
    last: int
    stage: MixedStage

    @property
    def name(self) -> str:
        """``3`` or ``3-6``."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def stage_rows(stages: Sequence[MixedStage]) -> list[FleetStageRow]:
    """The stages of one group, equal neighbours together; the fullest of them stands for all."""
    out: list[FleetStageRow] = []
    for number, stage in enumerate(stages):
        if out and _reads_the_same(out[-1].stage, stage):
            fullest = max(out[-1].stage, stage, key=lambda one: one.peak_reserved_gib)
            out[-1] = FleetStageRow(out[-1].first, number, fullest)
        else:
            out.append(FleetStageRow(number, number, stage))
    return out


def _reads_the_same(one: MixedStage, other: MixedStage) -> bool:
    same = (one.pool, one.tp, one.layers, one.recompute) == (other.pool, other.tp, other.layers, other.recompute)
    return same and abs(one.microbatch_s - other.microbatch_s) <= 0.01 * other.microbatch_s


def comparison(planset: MixedPlanSet) -> list[str]:
    """The best plan against each pool alone and without each pool, as sentences."""
    best = planset.best.estimate
    assert isinstance(best, MixedEstimate)
    kind = "mixed" if len(best.used) > 1 else f"{next(iter(best.used))} alone"
    itself = str(planset.best.strategy)
    known = [each for each in planset.alone if each.times is not None and each.strategy != itself]
    sentences = []
    if known:
        parts = [f"{each.times:.2f}x of {each.pool} alone" for each in known]
        sentences.append(f"{kind}: {', '.join(parts)}.")
    sentences += [f"{each.pool} alone: {each.why}" for each in planset.alone if each.times is None]
    # Of two pools, the one that is alone is what is left without the other.
    left = planset.without or (planset.alone if len(planset.alone) == 2 else [])
    gone = [each.pool for each in (left if planset.without else reversed(left))]
    losses = [(pool, each.times) for pool, each in zip(gone, left, strict=True)]
    lost = [f"without {pool} you lose {1 - 1 / times:.0%}" for pool, times in losses if times and times > 1]
    if lost and (len(best.used) > 1 or planset.without):
        sentences.append("; ".join(lost)[:1].upper() + "; ".join(lost)[1:] + ".")
    return sentences


def marginal_sentences(planset: MixedPlanSet) -> list[str]:
    """What one more node of each pool would bring."""
    return [
        f"one more node of {each.pool} ({each.gpus} GPUs): "
        + (f"+{each.gain:.1%} tokens/s" if each.gain > UNSEEN else "nothing, no plan with it is faster")
        for each in planset.marginal
    ]


def worth_sentences(planset: MixedPlanSet) -> list[str]:
    """All that is told of what pools are worth."""
    return [*comparison(planset), *marginal_sentences(planset), *choice_sentences(planset)]


def choice_sentences(planset: MixedPlanSet) -> list[str]:
    """Which pool to return first and which node to rent next."""
    first, following = planset.return_first, planset.rent_next
    parts = [f"return first {_hired(first, -first.change)}"] if first is not None else []
    parts += [f"rent next {_hired(following, following.change)}"] if following is not None else []
    chosen = [choice for choice in (first, following) if choice is not None]
    by = "dollar" if all(choice.usd_per_h is not None for choice in chosen) else "GPU (not all pools have a price)"
    return [f"By what each {by} brings: {' and '.join(parts)}."] if parts else []


def _hired(choice: PoolChoice, change: float) -> str:
    usd = "" if choice.usd_per_h is None else f"${choice.usd_per_h:,.0f} an hour, "
    rate = f"{change:+.1%} tokens/s" if abs(change) > UNSEEN else "no change"
    return f"{choice.gpus} GPUs of {choice.pool} ({usd}{rate})"


def runs_sentence(estimate: MixedEstimate) -> str:
    """Which runtimes can execute a plan as it is."""
    names = ", ".join(estimate.runs_on)
    able = f"Runs as it is on {names}." if names else "No known runtime runs it as it is."
    lacking = "; ".join(f"{name} needs {what}" for name, what in estimate.needs.items())
    return f"{able} {lacking}." if lacking else able


def plans_parts(planset: MixedPlanSet, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """The ranked plans and what each pool is worth; ``full`` adds the best one drawn, its bill and who can run it."""
    if not (brief or full):
        return drawing.on_a_screen(lambda plans: _page(planset, plans, columns), len(planset.plans), columns)
    return _page(planset, len(planset.plans), columns, brief=brief, full=full)


def _page(planset: MixedPlanSet, plans: int, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """The same with some of the plans."""
    best = planset.best.estimate
    assert isinstance(best, MixedEstimate)
    request = planset.request
    work = request["workload"]
    facts = (
        f"batch {work['global_batch']:,} x {work['seq']:,} tokens = {show_count(work['global_batch'] * work['seq'])}"
    )
    parts: list[Part] = [
        drawing.text((f"{request['model']} on {request['gpu']}", "bold"), f" ({request['counts']})"),
        drawing.prose((f"{facts} per step, {work['precision']}, {request['runtime']}", "dim")),
        *drawing.remark(request.get("runtime_because")),
        *drawing.remark(to_start(planset)),
        drawing.blank(),
        _ranking(planset.plans[:plans]),
    ]
    parts += drawing.closing(explain.all_warnings(planset), [])
    parts += _runtimes(planset)
    if full:
        parts += [drawing.blank(), drawing.heading("The best plan"), drawing.text(best.strategy)]
        parts += [*picture(best, columns, every_stage=True), *sections.details(best, columns)]
        parts += sections.others(planset)
        parts += [drawing.blank(), drawing.heading("What each pool is worth")]
        parts += drawing.bullets([*worth_sentences(planset), *line_sentences(planset)])
        parts += drawing.bullets(lost_sentences(planset))
        parts += money.bill(planset)
        if planset.baseline is not None and best.cost is None:
            parts += [drawing.blank(), *drawing.bullets(money.saved_sentences(planset))]
        parts += _launch(planset)
        parts += [drawing.blank(), drawing.prose((search_words(planset), "dim"))]
        parts += drawing.bullets(planset.notes, mark="note:", style="dim")
    return parts if brief or full else [*parts, *_in_short(planset, best)]


def _in_short(planset: MixedPlanSet, best: MixedEstimate) -> list[Part]:
    """The best plan in a few sentences, what each pool is worth, and what more can be seen."""
    sentences = [explain.certainty(best), " ".join(comparison(planset)), "; ".join(marginal_sentences(planset))]
    sentences += [*choice_sentences(planset), *line_sentences(planset), *lost_sentences(planset)]
    sentences += [money.bill_in_short(best), *money.saved_sentences(planset)]
    sentences.append(_who_in_short(planset, best))
    return [drawing.blank(), *drawing.bullets(sentences), *shortened(planset.notes, MORE)]


def to_start(planset: MixedPlanSet) -> str | None:
    """What to start instead of a first plan that no target of astra export starts, and how; None if one does."""
    best, own = planset.best.estimate, planset.request["runtime"]
    able = [(plan, target) for plan in planset.plans if (target := _target(plan.estimate, own)) is not None]
    if not able or able[0][0] is planset.best:
        return None
    plan, target = able[0]
    slower = show_slower(plan.estimate.step_s, best.step_s)
    return (
        f"No target of astra export starts #1; one starts #{plan.rank}: "
        f"{explain.show_step(plan.estimate.step_s)}, {slower} (--to {target} --rank {plan.rank})."
    )


def _target(estimate: Estimate, runtime: str) -> str | None:
    """The target that starts a plan, the runtime's own if it does."""
    runs_on = estimate.runs_on if isinstance(estimate, MixedEstimate) else []
    able = targets_of(runs_on)
    return runtime if runtime in able else next(iter(able), None)


def _who_in_short(planset: MixedPlanSet, best: MixedEstimate) -> str:
    """Who runs the best plan, or which plan can be launched instead."""
    able, can = runs_sentence(best).partition(". ")[0].rstrip("."), planset.launchable
    if can is None or can.strategy == best.strategy:
        return f"{able}."
    ranks = [f"#{plan.rank}" for plan in planset.plans if plan.strategy == can.strategy]
    slower = show_slower(can.estimate.step_s, best.step_s)
    return f"{able}; {_started_by(can)} can run {(ranks or [can.strategy])[0]}, {slower}."


def _started_by(can: Plan) -> str:
    """Who runs a plan that can be launched, as astra export writes it."""
    runs_on = can.estimate.runs_on if isinstance(can.estimate, MixedEstimate) else []
    return next((name for name in STARTED_BY.values() if name in runs_on), "Megatron-LM")


def search_words(planset: MixedPlanSet) -> str:
    """What the search did."""
    counts = planset.search
    return f"{counts.considered:,} frames considered, {counts.evaluated:,} solved exactly, {counts.seconds:.2f} s."


def estimate_parts(estimate: MixedEstimate, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """One strategy over several pools."""
    verdict = [] if estimate.legal and estimate.fits else [*estimate.violations]
    if not estimate.fits:
        over = [stage for stage in estimate.stages if not stage.fits]
        verdict.append(f"{len(over)} of {len(estimate.stages)} stages need more memory than there is")
    parts: list[Part] = [
        drawing.text((f"{estimate.model} on {estimate.gpus}", "bold"), f", {estimate.runtime}"),
        drawing.text(("strategy  ", "dim"), estimate.strategy),
        *drawing.bullets(verdict, mark="!", style="red"),
        drawing.blank(),
        drawing.text(
            f"step {explain.show_step(estimate.step_s)} ±{explain.error_bar(estimate):.0%}, "
            f"{estimate.tokens_per_s:,.0f} tokens/s, MFU {estimate.mfu:.1%}"
        ),
    ]
    if brief:
        return parts
    parts += picture(estimate, columns, every_stage=full)
    if estimate.cost is not None:
        parts += [drawing.blank(), drawing.heading("The bill"), *drawing.bullets(money.bill_sentences(estimate))]
    sure = [drawing.blank(), drawing.prose(explain.certainty(estimate))]
    parts += sections.details(estimate, columns) if full else sure
    parts += [drawing.blank(), drawing.prose(runs_sentence(estimate))]
    return [*parts, *drawing.bullets(estimate.warnings, mark="note:", style="dim")]


def picture(estimate: MixedEstimate, width: int, *, every_stage: bool = False) -> list[Part]:
    """Every group as a row of pools and a table of its stages."""
    out: list[Part] = []
    stages = [stage for stage in estimate.stages if isinstance(stage, MixedStage)]
    slowest = max(map(shown_s, stages), default=1.0)
    for group in estimate.groups:
        own = [stage for stage in stages if stage.group == group.index]
        out += [drawing.blank(), drawing.text((group_line(group), "bold")), drawing.text(chain(own))]
        out.append(_table(own, slowest, width, every_stage=every_stage))
        if group.waits_s > 0.01 * group.pipeline_s:
            out.append(drawing.prose((f"waits {group.waits_s:.2f} s for the slowest group", "dim")))
    return out


def group_line(group: GroupEstimate) -> str:
    """What a group takes on."""
    pools = ", ".join(f"{count} {name}" for name, count in group.gpus.items())
    state = "" if group.state_share is None else f", {group.state_share:.0%} of one state that all groups share"
    return (
        f"{group.dp} pipelines on {pools}: {group.microbatches} micro-batches of {group.mbs} each, "
        f"{group.samples:,} samples, {group.pipeline_s:.2f} s{state}"
    )


def chain(stages: Sequence[MixedStage]) -> str:
    """``[H100 0-3] -> [A100 4-7]``: the pools in pipeline order with their stages and layers."""
    runs: list[tuple[str, int, int, int]] = []
    for number, stage in enumerate(stages):
        if runs and runs[-1][0] == stage.pool:
            pool, first, _, layers = runs[-1]
            runs[-1] = (pool, first, number, layers + stage.layers)
        else:
            runs.append((stage.pool, number, number, stage.layers))
    named = [(pool, f"stage {a}" if a == b else f"stages {a}-{b}", layers) for pool, a, b, layers in runs]
    return " ──▶ ".join(f"[{pool} {where}, {layers} layers]" for pool, where, layers in named)


def shown_s(stage: MixedStage) -> float:
    """A micro-batch on a stage, with its transfers where nothing hides them."""
    return stage.microbatch_s + (stage.transfer_s if "pp" in stage.exposed_s else 0.0)


def _table(stages: Sequence[MixedStage], slowest: float, width: int, *, every_stage: bool) -> Part:
    """One row per stage, equal neighbours together; bars as wide as the page leaves room for."""
    rows = [FleetStageRow(n, n, stage) for n, stage in enumerate(stages)] if every_stage else stage_rows(stages)
    shown = rows if every_stage or len(rows) <= MOST_ROWS else [*rows[: MOST_ROWS // 2], *rows[-MOST_ROWS // 2 :]]
    words = max(len(row.stage.pool) for row in rows)
    words += 11 if any(row.stage.recompute != "none" for row in rows) else 0
    cells = min(max((width - FIGURES - words) // 2, 0), BAR)
    drawn = cells >= LEAST_BAR
    columns = (
        [("stage", "left"), ("pool", "left"), ("GPUs", "right"), ("tp", "right"), ("layers", "right"), ("ms", "right")]
        + [("time", "left")] * drawn
        + [("GiB", "right")]
        + [("memory", "left")] * drawn
    )
    columns += [("recompute", "left")] * any(row.stage.recompute != "none" for row in rows)  # fmt: skip
    out = drawing.table(*columns)
    for row in shown:
        stage = row.stage
        full = stage.peak_reserved_gib / stage.memory_limit_gib
        bars = [drawing.text((drawing.bar(shown_s(stage) / slowest, cells), "green")),
                drawing.text((drawing.bar(full, cells), "yellow" if stage.fits else "red"))]  # fmt: skip
        gib = f"{'' if stage.fits else '! '}{stage.peak_reserved_gib:.1f}/{stage.memory_limit_gib:.1f}"
        entries: list[str | Text] = [row.name, stage.pool, str(stage.gpus), str(stage.tp), str(stage.layers)]
        entries += [f"{shown_s(stage) * 1e3:.1f}", *bars[:1] * drawn, gib, *bars[1:] * drawn]
        out.add_row(*entries, *[stage.recompute] * (len(columns) - len(entries)))
    return out


def _ranking(plans: Sequence[Plan]) -> Part:
    priced = any(plan.estimate.train_usd is not None for plan in plans)
    heads = ["step time", "tokens/s", "MFU", "bubble", *["days", "cost"] * priced]
    out = drawing.table(("#", "right"), ("strategy", "wrap"), ("GPUs", "right"), *((head, "right") for head in heads))
    for plan in plans:
        estimate = plan.estimate
        assert isinstance(estimate, MixedEstimate)
        groups = "\n".join(short_form(plan.strategy, estimate.as_usual)).replace("\n ", " ")  # each fills its lines
        cells, words = explain.ranking_cells(estimate), groups
        out.add_row(str(plan.rank), words, "+".join(map(str, estimate.used.values())), *(cells[head] for head in heads))
    return out


def _runtimes(planset: MixedPlanSet) -> list[Part]:
    """The best plan of each runtime, where that was asked."""
    if not planset.by_runtime:
        return []
    out = drawing.table(("runs on", "left"), ("best plan", "wrap"), ("step time", "right"), ("times", "right"),
                        ("export", "left"))  # fmt: skip
    for row in planset.by_runtime:
        if row.strategy is None or row.step_s is None or row.times is None:
            out.add_row(row.runs_on, row.why, "-", "-", row.target or "-")
            continue
        words = "\n".join(short_form(row.strategy))
        out.add_row(row.runs_on, words, explain.show_step(row.step_s), f"{row.times:.2f}", row.target or "nothing")
    remarks = [drawing.prose(f"{row.runs_on}: {row.why}.") for row in planset.by_runtime if row.strategy and row.why]
    return [drawing.blank(), drawing.heading("The best plan of each runtime"), out, *remarks]


def _launch(planset: MixedPlanSet) -> list[Part]:
    best, can = planset.best.estimate, planset.launchable
    assert isinstance(best, MixedEstimate)
    sentences = [runs_sentence(best)]
    if can is not None and can.strategy != planset.best.strategy:
        slower = show_slower(can.estimate.step_s, best.step_s)
        sentences.append(f"{_started_by(can)} can run, {slower}: {can.strategy}")
    if planset.conceivable.strategy != planset.best.strategy:
        faster = 1 - planset.conceivable.estimate.step_s / best.step_s
        sentences.append(f"The best conceivable plan is {faster:.1%} faster: {planset.conceivable.strategy}")
    return [drawing.blank(), drawing.heading("Who can run it"), *drawing.bullets(sentences)]
