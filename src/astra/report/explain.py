"""What a result means, as numbers and sentences. Pure: records in, records out; drawing is done elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from astra.answer import Estimate, Plan, PlanSet, Reject, StageEstimate
from astra.provenance import Source
from astra.report.terms import OPERATORS, Group, canonical, words
from astra.spec.mixed_text import on_one_line
from astra.units import show_count, show_dollars, show_seconds

ROUNDING: Final = 1e-9  # of the step: less than this is left over from adding floats


class TimeShare(NamedTuple):
    """One term of the step."""

    term: str
    label: str
    group: Group
    seconds: float
    fraction: float  # of the step
    source: str  # how the figure is known; empty if the planner did not say


class Slower(NamedTuple):
    """Why a plan is slower than the best one."""

    rank: int
    seconds: float  # slower by this much per step
    fraction: float  # of the best plan's step
    term: str  # label of the term that costs it the most
    term_seconds: float
    gain: str  # label of the term where it wins the most back; empty if none
    gain_seconds: float  # negative, or zero
    within_error: bool  # the two error bars overlap


class StageRow(NamedTuple):
    """Consecutive stages that read the same as shown; ``stage`` is the first of them."""

    first: int
    last: int
    stage: StageEstimate

    @property
    def name(self) -> str:
        """``3`` or ``1-14``."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def shares(estimate: Estimate) -> list[TimeShare]:
    """The step by term, largest first; the seconds sum to the step time."""
    step_s = estimate.step_s or 1.0
    known = _known(estimate)
    rows = []
    for term, seconds in estimate.breakdown.items():
        if abs(seconds) > ROUNDING * step_s:
            label, group, _ = words(term)
            source = known.get(canonical(term), known["compute"] if group == "compute" else "")
            rows.append(TimeShare(term, label, group, seconds, seconds / step_s, source))
    return sorted(rows, key=lambda row: (-row.seconds, row.term))


def _known(estimate: Estimate) -> dict[str, str]:
    """How each term is known; compute as its least sure operator."""
    known = {canonical(term): source for term, source in estimate.provenance.items()}
    operators = [known[name] for name in OPERATORS if name in known]
    order = [source.word for source in Source]
    known.setdefault("compute", max(operators, key=lambda word: order.index(word) if word in order else -1, default=""))
    return known


def work_words(request: Mapping[str, Any]) -> str:
    """The workload of an answer and its runtime, in a line."""
    work: Mapping[str, Any] = request.get("workload", {})
    facts = []
    if "global_batch" in work and "seq" in work:
        tokens = show_count(work["global_batch"] * work["seq"])
        facts.append(f"batch {work['global_batch']:,} x {work['seq']:,} tokens = {tokens} per step")
    facts += [str(work[key]) for key in ("precision", "optimizer", "task") if work.get(key)]
    facts += [f"{show_count(work['tokens'])} tokens in all"] if work.get("tokens") else []
    return ", ".join([*facts, *([request["runtime"]] if request.get("runtime") else [])])


def dominates(estimate: Estimate) -> str:
    """What the step's time goes to, by group."""
    totals: dict[Group, float] = {}
    for row in shares(estimate):
        totals[row.group] = totals.get(row.group, 0.0) + row.fraction
    named = {"compute": "compute", "communication": "exposed communication", "idle": "waiting", "other": "the rest"}
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    parts = [f"{fraction:.0%} is {named[group]}" for group, fraction in ordered if fraction >= 0.005]
    return f"Of the step, {_listed(parts)}." if parts else ""


def helps_most(estimate: Estimate) -> str:
    """The largest loss: an upper bound on what removing it would gain, and what shrinks it."""
    losses = [row for row in shares(estimate) if words(row.term).advice and row.fraction >= 0.01]
    if not losses:
        return "Little is lost besides compute: only faster GPUs, fewer FLOPs or a lower precision would help much."
    worst, said = losses[0], [word for word in estimate.strategy.split() if word.startswith("overlap=")]
    hidden = {name for word in said for name in word.removeprefix("overlap=").split(",")}
    text = f"Most to gain: {worst.label}, at most {worst.fraction:.0%} of the step."
    advice = []
    for clause in words(worst.term).advice:
        wanted = clause.split(" ")[0].removeprefix("overlap=").split(",")
        if not (clause.startswith("overlap=") and {*wanted} <= hidden):  # else it is followed already
            advice.append(clause)
    return f"{text} What shrinks it: {_listed(advice, 'or')}." if advice else text


def show_share(fraction: float) -> str:
    """A fraction in percent with one decimal, without a sign on nothing."""
    return f"{fraction if abs(fraction) >= 0.0005 else 0.0:.1%}"


def show_step(step_s: float) -> str:
    """A step time with enough digits to tell plans apart."""
    return f"{step_s:.1f} s" if step_s >= 100 else show_seconds(step_s)


def compare(best: Estimate, other: Estimate, rank: int) -> Slower:
    """Term by term, what ``other`` loses against ``best``."""
    terms = sorted(set(best.breakdown) | set(other.breakdown))
    deltas = {term: other.breakdown.get(term, 0.0) - best.breakdown.get(term, 0.0) for term in terms}
    worst = max(deltas, key=lambda term: deltas[term], default="other")
    gain = min(deltas, key=lambda term: deltas[term], default="other")
    gained = min(deltas.get(gain, 0.0), 0.0)
    return Slower(
        rank=rank,
        seconds=other.step_s - best.step_s,
        fraction=(other.step_s - best.step_s) / best.step_s if best.step_s else 0.0,
        term=words(worst).label,
        term_seconds=deltas.get(worst, 0.0),
        gain=words(gain).label if gained < 0 else "",
        gain_seconds=gained,
        within_error=other.step_s_range.low <= best.step_s_range.high,
    )


def ranking_cells(one: Estimate) -> dict[str, str]:
    """What a table of plans says of one, by the heads of its columns."""
    days = one.train_days
    return {
        "step time": f"{show_step(one.step_s)} ±{error_bar(one):.0%}",
        "tokens/s": f"{one.tokens_per_s:,.0f}",
        "MFU": f"{one.mfu:.1%}",
        "peak GiB": f"{one.peak_reserved_gib:.1f}/{one.memory_usable_gib:.1f}",
        "bubble": show_share(one.bubble_fraction),
        "days": "-" if days is None else f"{days:.2f}" if days < 1 else f"{days:,.1f}",
        "cost": "-" if one.train_usd is None else show_dollars(one.train_usd),
    }


def why_lost(best: Plan, other: Plan) -> str:
    """A sentence: by how much the other plan lost, and on which term."""
    loss = compare(best.estimate, other.estimate, other.rank)
    name = f"#{other.rank}"
    if loss.fraction < -0.0005:
        high_s, best_high_s = other.estimate.step_s_range.high, best.estimate.step_s_range.high
        return (
            f"{name} is {_percent(-loss.fraction)} faster if it works, and less sure: up to {show_step(high_s)} per "
            f"step in four of five cases, #1 up to {show_step(best_high_s)}."
        )
    if loss.fraction < 0.0005:
        more = other.estimate.peak_reserved_gib - best.estimate.peak_reserved_gib
        needs = (
            f"{abs(more):.1f} GiB {'more' if more > 0 else 'less'} per GPU" if abs(more) >= 0.05 else "the same memory"
        )
        return f"{name} is as fast as #1 by this model. It needs {needs}."
    text = f"{name} is {_percent(loss.fraction)} slower (+{show_seconds(loss.seconds)} per step)"
    if loss.term_seconds > 0:
        text += f": {loss.term} costs {show_seconds(loss.term_seconds)} more"
        if -loss.gain_seconds > 0.1 * loss.term_seconds:
            text += f", {loss.gain} {show_seconds(-loss.gain_seconds)} less"
    return f"{text}; within the error bars." if loss.within_error else f"{text}."


def losses(planset: PlanSet) -> list[str]:
    """By how much each of the other plans lost, and on what; none of a front has lost."""
    return [] if planset.objective == "pareto" else [why_lost(planset.best, plan) for plan in planset.plans[1:]]


def headlines(planset: PlanSet) -> list[str]:
    """The plan to run and the fastest if it works, a sentence each; nothing where they are one."""
    daring = planset.daring
    if daring is None or not planset.plans:
        return []
    best, bold = planset.best.estimate, daring.estimate
    named = on_one_line(daring.strategy, bold.as_usual)
    return [
        f"The plan to run: #1, at most {show_step(best.step_s_range.high)} per step in four of five cases "
        f"({best.evidence}).",
        f"The fastest if it works: {named}, {show_step(bold.step_s)} expected, {_percent(daring.gain)} less "
        f"than #1; {daring.doubt}. What would settle it: {daring.settled_by}.",
    ]


def limit_gib(estimate: Estimate, stage: StageEstimate) -> float:
    """What a recommended plan may use on a stage: its own pool's limit, where stages live on several."""
    return stage.own_limit_gib or estimate.memory_limit_gib


def fullest(estimate: Estimate) -> StageEstimate:
    """The stage closest to its limit."""
    return max(estimate.stages, key=lambda stage: stage.peak_reserved_gib / limit_gib(estimate, stage))


def memory_sentence(estimate: Estimate) -> str:
    """Which stage is the fullest, and how much room it has left; nothing for an estimate without stages."""
    if not estimate.stages:
        return ""
    stage, stages = fullest(estimate), len(estimate.stages)
    reserved, limit = stage.peak_reserved_gib, limit_gib(estimate, stage)
    usable = estimate.memory_usable_gib * limit / estimate.memory_limit_gib
    largest = max(stage.memory, key=lambda kind: stage.memory[kind], default="")
    where = f"Stage {stage.index} of 0-{stages - 1} is the fullest" if stages > 1 else "A GPU's peak"
    text = (
        f"{where}: {reserved:.1f} of {usable:.1f} GiB usable"
        f", mostly {largest} ({stage.memory.get(largest, 0.0):.1f} GiB)"
    )
    if reserved > usable:
        return f"{text}. It is {reserved - usable:.1f} GiB too much."
    if reserved > limit:
        return f"{text}. It leaves less free than asked for: the limit is {limit:.1f} GiB."
    return f"{text}; {usable - reserved:.1f} GiB stay free."


def error_bar(estimate: Estimate) -> float:
    """Half the width of the step time's range, as a fraction of the step time."""
    return (estimate.step_s_range.high - estimate.step_s_range.low) / 2 / estimate.step_s if estimate.step_s else 0.0


def certainty(estimate: Estimate) -> str:
    """How far the figure can be trusted, and its weakest terms."""
    low, high = estimate.step_s_range.low, estimate.step_s_range.high
    evidence = f" ({estimate.evidence})" if estimate.evidence else ""
    text = f"Expect {show_step(low)} to {show_step(high)} per step{evidence}"
    weakest = [term for term, source in estimate.provenance.items() if source == estimate.provenance_worst]
    if not weakest:
        return f"{text}; the weakest figure is {estimate.provenance_worst}."
    # The weakest term that takes the most time matters most to the reader.
    seconds = {canonical(term): value for term, value in estimate.breakdown.items()}
    weakest.sort(key=lambda term: (-seconds.get(canonical(term), 0.0), term))
    labels = [words(term).label for term in weakest[:3]]
    labels += [f"{len(weakest) - 3} more"] if len(weakest) > 3 else []
    return f"{text}; {_listed(labels)} {'is' if len(labels) == 1 else 'are'} {estimate.provenance_worst}."


def memory_rows(stages: Sequence[StageEstimate]) -> list[StageRow]:
    """Stages in order, with neighbours whose memory reads the same joined."""

    def reads(stage: StageEstimate) -> Hashable:
        gib = (*stage.memory.values(), stage.peak_allocated_gib, stage.peak_reserved_gib)
        return (stage.layers, stage.place, stage.in_flight, stage.fits, *(f"{value:.1f}" for value in gib))

    return _joined(stages, reads)


def time_rows(stages: Sequence[StageEstimate]) -> list[StageRow]:
    """Stages in order, with neighbours whose times read the same joined."""

    def reads(stage: StageEstimate) -> Hashable:
        communication = (*stage.communication_s.values(), *stage.exposed_s.values())
        seconds = (stage.forward_s, stage.backward_s, stage.compute_s, stage.optimizer_s, *communication)
        return (stage.layers, stage.place, *(f"{value:.3g}" for value in seconds))

    return _joined(stages, reads)


def _joined(stages: Sequence[StageEstimate], reads: Callable[[StageEstimate], Hashable]) -> list[StageRow]:
    rows: list[StageRow] = []
    for stage in stages:
        if rows and reads(rows[-1].stage) == reads(stage):
            rows[-1] = rows[-1]._replace(last=stage.index)
        else:
            rows.append(StageRow(stage.index, stage.index, stage))
    return rows


def ranked_rejects(rejects: Sequence[Reject], limit: int | None) -> tuple[list[Reject], int, int]:
    """The rejects by count, the number of reasons left off and the strategies behind those."""
    ordered = sorted(rejects, key=lambda reject: (-reject.strategies, reject.reason))
    shown = ordered if limit is None else ordered[:limit]
    rest = ordered[len(shown) :]
    return shown, len(rest), sum(reject.strategies for reject in rest)


def search_sentence(planset: PlanSet) -> str:
    """What the search did and how fast."""
    search = planset.search
    return (
        f"Considered {search.considered:,} strategies in {show_seconds(search.seconds)} "
        f"({_rate(search.strategies_per_s)} per second): {search.evaluated:,} costed in full, "
        f"{search.feasible:,} of them legal and within memory."
    )


def all_warnings(planset: PlanSet) -> list[str]:
    """Every warning once with the plans it is about, the best plan's first."""
    ranks: dict[str, list[int]] = {}
    for plan in planset.plans:
        for warning in dict.fromkeys(plan.estimate.warnings):
            ranks.setdefault(warning, []).append(plan.rank)
    return [f"{', '.join(f'#{rank}' for rank in about)}: {warning}" for warning, about in ranks.items()]


def _percent(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.0995 else f"{fraction:.1%}"


def _rate(per_s: float) -> str:
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if per_s >= unit:
            return f"{per_s / unit:.1f} {name}"
    return f"{per_s:,.0f}"


def _listed(parts: Sequence[str], joint: str = "and") -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {joint} {parts[-1]}"
