"""What one pool's answer and a fleet's have in common: time by term and stage, memory, who lost, what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from astra.answer import Estimate, PlanSet, StageEstimate
from astra.report import drawing, explain
from astra.report.layout import Part, TextTable
from astra.report.terms import MEMORY_LABELS, words
from astra.units import show_bits

if TYPE_CHECKING:
    from astra.search.fleet.records import MixedPlanSet

_GROUP_STYLE: Final = {"compute": "green", "communication": "yellow", "idle": "red", "other": "blue"}
MOST_KINDS_NARROW: Final = 5
MOST_KINDS_WIDE: Final = 9


def where_time_goes(estimate: Estimate, width: int) -> list[Part]:
    """The step by term, with what dominates it and what would help."""
    rows = explain.shares(estimate)
    cells = min(40, max(8, width - 62))
    chart = drawing.table(("term", "left"), ("", "left"), ("time", "right"), ("share", "right"), ("known", "left"))
    largest = max((row.fraction for row in rows), default=1.0)
    for row in rows:
        drawn = drawing.text((drawing.bar(row.fraction / largest, cells), _GROUP_STYLE[row.group]))
        chart.add_row(row.label, drawn, explain.show_step(row.seconds), f"{row.fraction:.1%}", row.source)
    total = sum(row.seconds for row in rows)
    chart.add_row("step", "", explain.show_step(total), f"{sum(row.fraction for row in rows):.1%}", "", style="bold")
    return [
        drawing.blank(),
        drawing.heading(f"Where the {explain.show_step(estimate.step_s)} go"),
        chart,
        drawing.blank(),
        *drawing.bullets([explain.dominates(estimate), explain.helps_most(estimate)]),
    ]


def by_stage(estimate: Estimate, width: int) -> list[Part]:
    """Time of a step on one rank of every stage."""
    note = f"{time_unit(estimate)[0]} of a step on one rank; communication by kind, busy, then what is exposed"
    return [drawing.blank(), drawing.heading("Time per stage", note), time_table(estimate, width=width)]


def memory(estimate: Estimate, width: int) -> list[Part]:
    """GiB by kind and stage, with the fullest."""
    equal = all(stage.own_limit_gib is None for stage in estimate.stages)
    room = f"; usable {estimate.memory_usable_gib:.1f}, limit {estimate.memory_limit_gib:.1f}" if equal else ""
    return [
        drawing.blank(),
        drawing.heading("Memory", f"GiB per GPU at its worst moment{room}"),
        memory_table(estimate, width=width),
        drawing.blank(),
        *drawing.bullets([explain.memory_sentence(estimate)]),
    ]


def provenance(estimate: Estimate) -> list[Part]:
    """The source of each term."""
    if not estimate.provenance:
        return []
    rows = ((words(term).label, source) for term, source in estimate.provenance.items())
    out = drawing.table(("term", "left"), ("known", "left"), rows=rows)
    return [drawing.blank(), drawing.heading("How each term is known"), out]


def details(estimate: Estimate, width: int, *, by_stages: bool = True) -> list[Part]:
    """Time by term and stage, memory by kind and stage, and how sure it is; of a fleet, terms of its slowest group."""
    stages = by_stage(estimate, width) if by_stages else []
    sure = [drawing.blank(), drawing.prose(explain.certainty(estimate)), *provenance(estimate)]
    return [*where_time_goes(estimate, width), *stages, *memory(estimate, width), *sure]


def others(planset: PlanSet) -> list[Part]:
    """By how much each of the other plans lost, and on what."""
    sentences = explain.losses(planset)
    return [drawing.blank(), drawing.heading("Why the others lost"), *drawing.bullets(sentences)] if sentences else []


def ledger(planset: PlanSet, limit: int | None = None) -> list[Part]:
    """What the search did, and what it left out for which reason."""
    parts: list[Part] = [drawing.blank(), drawing.heading("The search")]
    parts.append(drawing.prose(explain.search_sentence(planset)))
    shown, reasons, strategies = explain.ranked_rejects(planset.rejects, limit)
    if not shown:
        return parts
    rows = ((f"{reject.strategies:,}", reject.sentence) for reject in shown)
    ledger = drawing.table(("strategies", "right"), ("left out because", "wrap"), rows=rows)
    if reasons:
        ledger.add_row(f"{strategies:,}", f"for {reasons} other reasons (--verbose lists them)", style="dim")
    return [*parts, drawing.blank(), ledger]


def memory_table(estimate: Estimate, *, width: int) -> TextTable:
    """GiB by kind for each stage, with the allocated and reserved peaks."""
    kinds = _kinds(estimate.stages, MOST_KINDS_WIDE if width >= 110 else MOST_KINDS_NARROW)
    headers = [MEMORY_LABELS.get(kind, kind.replace("_", " ")) for kind in kinds]
    hidden = sorted({kind for stage in estimate.stages for kind in stage.memory} - set(kinds))
    limited = any(stage.own_limit_gib is not None for stage in estimate.stages)
    alive = width >= 100 or not limited  # a narrow page has room for the pools or for what is in flight
    columns = ["layers", *["in flight"] * alive, *headers, *["other"] * bool(hidden), "allocated", "reserved"]
    columns += ["limit"] * limited
    out = _stage_table(estimate, columns, gap=1 if width < 110 and (limited or width < 100) else 2)
    for row in explain.memory_rows(estimate.stages):
        stage = row.stage
        cells = [f"{stage.memory.get(kind, 0.0):.1f}" for kind in kinds]
        if hidden:
            cells.append(f"{sum(stage.memory.get(kind, 0.0) for kind in hidden):.1f}")
        peaks = (f"{stage.peak_allocated_gib:.1f}", f"{'' if stage.fits else '! '}{stage.peak_reserved_gib:.1f}")
        limit = [f"{explain.limit_gib(estimate, stage):.1f}"] * limited
        style = "" if stage.fits else "red"
        names = [*_names(estimate, row), str(stage.layers), *[str(stage.in_flight)] * alive]
        out.add_row(*names, *cells, *peaks, *limit, style=style)
    return out


def time_unit(estimate: Estimate) -> tuple[str, float]:
    """The unit in which the stages' times read best, and its seconds."""
    return ("s", 1.0) if estimate.step_s >= 1.0 else ("ms", 1e-3)


def time_table(estimate: Estimate, *, width: int) -> TextTable:
    """Times of a step on one rank of each stage; communication is busy time by kind, then what is not hidden."""
    kinds = sorted({kind for stage in estimate.stages for kind in stage.communication_s if stage.communication_s[kind]})
    roomy = width >= 100
    halves = ["forward", "backward"] if roomy else []
    columns = ["layers", *halves, "compute", "optimizer", *kinds]
    columns += ["exposed"] if kinds else []
    unit_s = time_unit(estimate)[1]
    out = _stage_table(estimate, columns, gap=2 if roomy else 1)
    for row in explain.time_rows(estimate.stages):
        stage = row.stage
        seconds = [stage.forward_s, stage.backward_s] if roomy else []
        seconds += [stage.compute_s, stage.optimizer_s, *(stage.communication_s.get(kind, 0.0) for kind in kinds)]
        seconds += [sum(stage.exposed_s.values())] if kinds else []
        out.add_row(*_names(estimate, row), str(stage.layers), *(f"{value / unit_s:.2f}" for value in seconds))
    return out


def _stage_table(estimate: Estimate, columns: Sequence[str], gap: int) -> TextTable:
    """A table of stages; what they run on stands beside them where that differs."""
    pools = [("pool", "left")] * _differ(estimate)
    return drawing.table(("stage", "left"), *pools, *((name, "right") for name in columns), gap=gap)


def _names(estimate: Estimate, row: explain.StageRow) -> list[str]:
    return [row.name, *[row.stage.place] * _differ(estimate)]


def _differ(estimate: Estimate) -> bool:
    return len({stage.place for stage in estimate.stages}) > 1


def _kinds(stages: Sequence[StageEstimate], most: int) -> list[str]:
    """The kinds of memory that get a column: the five everyone knows first, then the largest."""
    peak: dict[str, float] = {}
    for stage in stages:
        for kind, gib in stage.memory.items():
            peak[kind] = max(peak.get(kind, 0.0), gib)
    known = [kind for kind in MEMORY_LABELS if kind in peak]
    others = sorted((kind for kind in peak if kind not in MEMORY_LABELS), key=lambda kind: (-peak[kind], kind))
    return [*known, *others][:most]


def line_sentences(planset: MixedPlanSet) -> list[str]:
    """From which width lines between sites pay, and what local steps would bring."""
    sentences = []
    for line in planset.lines:
        pays, ends = line.pays_from_bytes_per_s, " and ".join(end for end in line.ends if end)
        where = f"The line between {ends}" if len([end for end in line.ends if end]) == 2 else "The line between pools"
        has = f"{where} has {show_bits(line.bytes_per_s)}"
        if pays is None:
            sentences.append(f"{has}: at no width is a plan over it the fastest.")
        else:
            sentences.append(f"{has}; a plan over it is the fastest from {show_bits(pays)} on.")
    local = planset.local_steps
    if local is not None:
        asked = any(plan.strategy == local.strategy for plan in planset.plans)
        sentences.append(
            f"Local steps (DiLoCo), {local.inner_steps} between meetings of the weights, "
            f"{'take' if asked else 'would take'} {explain.show_step(local.step_s)} a step, {local.times:.2f}x as fast "
            f"as the best plan without, but are another training: published runs with {local.workers} workers lost "
            f"{local.penalty} in loss ({local.source})."
            + ("" if asked else f" --local-steps {local.inner_steps} plans them.")
        )
    return sentences


def lost_sentences(planset: PlanSet) -> list[str]:
    """What happens if a node of a pool is lost."""
    sentences = []
    for loss in planset.lost:
        begins = f"If a node of {loss.pool} ({loss.gpus} GPUs) is lost"
        if loss.step_s is None or loss.times is None:
            sentences.append(f"{begins}, nothing can go on: {loss.why}")
            continue
        moves = ", ".join(f"{size:,.0f} GiB to {pool}" for pool, size in loss.moves_gib.items())
        again = f"{loss.from_checkpoint_gib:,.0f} GiB of state were only there, so that the run goes back to its last "
        sentences.append(
            f"{begins}, the next plan takes {explain.show_step(loss.step_s)} a step ({loss.times:.2f}x): "
            f"{loss.strategy}. {f'State to move between pools: {moves}' if moves else 'No state moves between pools'}, "
            "inside them it is dealt anew; "
            + (f"{again}checkpoint." if loss.from_checkpoint_gib else "all state is still there in another copy.")
        )
    return sentences
