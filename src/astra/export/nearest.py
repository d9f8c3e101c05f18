"""The closest plan a target can express: fewest and smallest changes first, then the fastest; always legal and fitting.

The distance counts a changed choice or switch as one step, and a degree by how many times it doubles or halves. What
decides the plan's identity (how work is split) weighs more than how it is tuned. Over several pools there is no small
step, one degree changed moves every split: the fastest other plan of the same file is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice, product
from math import log2
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from astra.answer import Estimate
from astra.catalog import runtimes
from astra.columns import Column, from_strategy
from astra.errors import AstraError
from astra.export.base import CannotExport, Exporter, Launch, limits_broken, refusals, runtime_of
from astra.export.reading import figure, from_record, launch_of, plan_of
from astra.rules.can import able_rules
from astra.rules.names import facts_of
from astra.rules.table import check
from astra.search.detail import estimate, layers_of, legality
from astra.spec.job import Job, fp8_attention
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import CHOICES, OFFLOADS, OVERLAPS, RECOMPUTES, RUNTIME_CHOICES

# Steps by which a change of a field moves a plan away from what was asked.
WEIGHTS: Final = {
    "tp": 4.0, "pp": 4.0, "cp": 4.0, "ep": 4.0, "dp": 1.0, "vp": 2.0, "etp": 2.0, "mbs": 1.5, "zero": 1.5,
    "recompute": 2.0, "sp": 0.5, "offload": 2.0, "schedule": 0.5, "method": 0.5, "recompute_layers": 0.25,
    "flash": 3.0, "overlap": 0.25, "layers": 1.0, "modules": 0.5, "offload_layers": 1.0, "dispatch": 0.5,
    "dispatch_fp8": 0.25, "graphs": 0.5, "moments": 0.5, "params": 0.5, "grads": 0.5, "reshard": 0.5, "shard": 1.0,
    "attention": 0.5,
}  # fmt: skip
_DEGREES: Final = ("tp", "pp", "cp", "ep", "dp", "vp", "etp", "mbs")
_LOOKED_AT: Final = 20_000  # strategies checked against the rules, nearest first
_TRIED: Final = 400  # of those, legal and expressible ones costed
_TOGETHER: Final = 16


class Nearest(NamedTuple):
    """What was found, with the job it was costed for."""

    launch: Launch
    before: Estimate  # the plan as asked, in the runtime it was planned for
    after: Estimate
    changed: dict[str, tuple[Any, Any]]


def distance(asked: Strategy, other: Strategy) -> float:
    """How far another strategy is from the one asked for."""
    total = 0.0
    for name, weight in WEIGHTS.items():
        mine, theirs = getattr(asked, name), getattr(other, name)
        if mine == theirs:
            continue
        if name in _DEGREES:
            total += weight * abs(log2(mine) - log2(theirs))
        elif name == "zero":
            total += weight * abs(mine - theirs)
        elif name == "overlap":
            total += weight * len(set(mine) ^ set(theirs))
        else:
            total += weight
    return total


def find(exporter: Exporter, launch: Launch, job: Job) -> Nearest:
    """The nearest plan; a CannotExport error where there is none."""
    target = job if exporter.runtime is None else _with_runtime(job, exporter.runtime)
    asked = launch.strategy
    before = estimate(job, [asked])[0]
    costed = 0
    batch: list[tuple[float, Launch]] = []
    for away, candidate in _expressible(exporter, launch, target):
        batch.append((away, candidate))
        if len(batch) == _TOGETHER:
            found = _best(target, batch)
            if found is not None:
                return _explained(launch, before, *found)
            costed, batch = costed + len(batch), []
            if costed >= _TRIED:
                break
    found = _best(target, batch) if batch else None
    if found is None:
        reasons = refusals(exporter, launch) or ["no strategy it can express is legal and fits in memory"]
        reasons = [*reasons, "no plan near this one is expressible, legal and fits in memory"]
        raise CannotExport(exporter.name, reasons, near=False)
    return _explained(launch, before, *found)


def in_target(exporter: Exporter, launch: Launch, job: Job) -> Estimate | None:
    """The plan as it is, costed with the runtime of the target; None if that is the one it was made for."""
    if exporter.runtime is None or exporter.runtime == job.runtime.name:
        return None
    return estimate(_with_runtime(job, exporter.runtime), [launch.strategy])[0]


def _with_runtime(job: Job, name: str) -> Job:
    return msgspec.structs.replace(job, runtime=runtimes.runtime(name))


def _expressible(exporter: Exporter, launch: Launch, job: Job) -> Iterator[tuple[float, Launch]]:
    """Legal strategies the exporter takes, nearest first."""
    asked = launch.strategy
    shapes, tunings = _shapes(asked, job), _tunings(asked)
    shapes, tunings = _taken(exporter, launch, shapes), _taken(exporter, launch, tunings)
    for shape, tuning in islice(_by_sum(shapes, tunings, asked), _LOOKED_AT):
        candidate = _worded(_made(asked, shape, tuning), job)
        if legality(job, candidate):
            continue
        made = launch_of(job, candidate, layers_of(job, candidate), launch.version, None)
        if not limits_broken(exporter, made):  # what the runtime can do is part of what is legal
            yield distance(asked, candidate), made


def _worded(strategy: Strategy, job: Job) -> Strategy:
    """The strategy with the words its runtime has: what it lacks becomes what is usual there."""
    can, usual = job.runtime.can, job.usual(strategy)
    fields: Fields = {
        name: usual[name] for name in RUNTIME_CHOICES if getattr(strategy, name) not in getattr(can, name)
    }
    if strategy.ep == 1 or fields.get("dispatch", strategy.dispatch) == "alltoall" or not can.dispatch_fp8:
        fields["dispatch_fp8"] = False
    if strategy.ep == 1:
        fields["dispatch"] = "alltoall"
    if strategy.zero < 3:
        fields["reshard"] = "always"
    if not can.shard or strategy.zero == 0 or (strategy.shard and strategy.dp % strategy.shard):
        fields["shard"] = 0
    if "activations" not in can.offload or strategy.pp > 1 or strategy.recompute != "none":
        fields["offload_layers"] = 0
    fields["modules"] = tuple(name for name in strategy.modules if name in can.modules)
    if fields.get("graphs", strategy.graphs) == "partial" and strategy.recompute == "full":
        fields["graphs"] = "none"  # graphs hold what is not recomputed in full
    if strategy.zero == 0:
        fields |= {"moments": "fp32", "params": "bf16"}
    if not fp8_attention(job.model, job.pool.device, job.workload):
        fields["attention"] = "bf16"
    return msgspec.structs.replace(strategy, **fields)


Fields = dict[str, Any]


def _shapes(asked: Strategy, job: Job) -> list[Fields]:
    """How work could be split instead, over the same GPUs and batch."""
    gpus, batch = job.pool.gpus, job.workload.global_batch
    found: list[Fields] = []
    for tp, pp, cp in product(_near(asked.tp), _near(asked.pp), _near(asked.cp)):
        if gpus % (tp * pp * cp):
            continue
        dp = gpus // (tp * pp * cp)
        for mbs, ep, vp in product(_near(asked.mbs, 1), _near(asked.ep), {asked.vp if pp == asked.pp else 1, 1}):
            if batch % (dp * mbs) == 0 and (tp * cp * dp) % ep == 0:
                found.append({"tp": tp, "pp": pp, "cp": cp, "dp": dp, "mbs": mbs, "ep": ep, "vp": vp})
    return found


def _near(degree: int, reach: int = 10) -> list[int]:
    """A degree, its halves down to one, and a few doublings."""
    halves = [degree // 2**step for step in range(1, reach + 1) if degree % 2**step == 0]
    return sorted({degree, 1, *halves, *(degree * 2**step for step in range(1, min(reach, 2) + 1))})


def _tunings(asked: Strategy) -> list[Fields]:
    """Everything but the split; what a split makes impossible is left to the rules."""
    again = [(asked.recompute, asked.method, asked.recompute_layers)]
    again += [(name, "uniform", 1) for name in RECOMPUTES]
    without_tp = tuple(name for name in asked.overlap if name != "tp")
    replicas = tuple(name for name in without_tp if name != "p2p")
    overlaps = {asked.overlap, without_tp, replicas, ("grad", "param"), ("grad",), ()}
    choices = product((True, False), range(4), dict.fromkeys(again), {asked.offload, *OFFLOADS}, {asked.etp, 1},
                      sorted(overlaps), {asked.flash, True}, {asked.schedule, "1f1b", "interleaved"})  # fmt: skip
    names = ("sp", "zero", "again", "offload", "etp", "overlap", "flash", "schedule")
    found = [dict(zip(names, choice, strict=True)) for choice in choices]
    for tuning in found:
        tuning["recompute"], tuning["method"], tuning["recompute_layers"] = tuning.pop("again")
    return found


# Rules may join two fields: an option is only left out if it breaks one beside every one of these.
_COMPANIONS: Final = tuple(
    Strategy(zero=zero, overlap=overlap, tp=degree, pp=degree, vp=vp, cp=degree, dp=degree)
    for zero in (0, 3)
    for overlap in ((), OVERLAPS)
    for degree, vp in ((1, 1), (2, 1), (2, 2))
)


def _taken(exporter: Exporter, launch: Launch, options: list[Fields]) -> list[Fields]:
    """Options whose own fields do not break a rule of the target's runtime whatever the rest of the strategy is."""
    runtime = runtime_of(exporter, launch)
    facts = facts_of(launch.model, launch.pool, launch.workload, runtime=runtime.framework)
    own = _columns(options)
    rules = [rule for rule in able_rules(runtime) if rule.needs & set(own)]
    taken = np.zeros(len(options), bool)
    for companion in _COMPANIONS:
        taken |= check({**from_strategy(companion), **own}, facts, rules).ok
    return [option for option, ok in zip(options, taken.tolist(), strict=True) if ok] or options


def _columns(options: list[Fields]) -> dict[str, Column]:
    """Options as columns, one row each."""
    found: dict[str, Column] = {}
    for name in options[0] if options else ():
        values = [option[name] for option in options]
        if name == "overlap":
            found |= {f"overlap_{way}": np.array([way in value for value in values]) for way in OVERLAPS}
        else:
            found[name] = np.array([CHOICES[name].index(value) for value in values] if name in CHOICES else values)
    return found


def _by_sum(shapes: list[Fields], tunings: list[Fields], asked: Strategy) -> Iterator[tuple[Fields, Fields]]:
    """Pairs in the order of the sum of their distances, without building them all."""
    rows = sorted(((distance(asked, _made(asked, shape, {})), at) for at, shape in enumerate(shapes)))
    columns = sorted(((distance(asked, _made(asked, {}, tuning)), at) for at, tuning in enumerate(tunings)))
    heap = [(rows[0][0] + columns[0][0], 0, 0)] if rows and columns else []
    while heap:
        _, row, column = heappop(heap)
        yield shapes[rows[row][1]], tunings[columns[column][1]]
        if column + 1 < len(columns):
            heappush(heap, (rows[row][0] + columns[column + 1][0], row, column + 1))
        if column == 0 and row + 1 < len(rows):
            heappush(heap, (rows[row + 1][0] + columns[0][0], row + 1, 0))


def _made(asked: Strategy, shape: Fields, tuning: Fields) -> Strategy:
    whole = {**shape, **tuning}
    same = whole.get("pp", asked.pp) == asked.pp and whole.get("vp", asked.vp) == asked.vp
    return msgspec.structs.replace(asked, **whole, layers=asked.layers if same else ())


def _best(job: Job, batch: list[tuple[float, Launch]]) -> tuple[Launch, Estimate] | None:
    """The nearest of a batch that fits; the faster of equals."""
    try:
        results = estimate(job, [candidate.strategy for _, candidate in batch])
    except AstraError:
        return None
    fitting = [
        (away, result.step_s, place)
        for place, ((away, _), result) in enumerate(zip(batch, results, strict=True))
        if result.fits and result.legal
    ]
    if not fitting:
        return None
    place = min(fitting)[2]
    best = results[place]
    return batch[place][1]._replace(step_s=best.step_s, warnings=tuple(best.warnings)), best


def _explained(launch: Launch, before: Estimate, found: Launch, after: Estimate) -> Nearest:
    names = Strategy.__struct_fields__
    pairs = {name: (getattr(launch.strategy, name), getattr(found.strategy, name)) for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return Nearest(found, before, after, changed)


def nearest_of_file(
    record: Mapping[str, Any], rank: int, exporter: Exporter, *, where: str
) -> tuple[int, dict[str, Any] | None]:
    """The rank to export, and what it differs by; the rank asked for if the target can express it."""
    reasons = _reasons(record, rank, exporter, where)
    if not reasons:
        return rank, None
    ranks = [plan.get("rank") for plan in record["plans"] if isinstance(plan, dict)]
    for other in sorted(other for other in ranks if isinstance(other, int)):
        if other != rank and not _reasons(record, other, exporter, where):
            return other, _other_rank(reasons, plan_of(record, rank, where), plan_of(record, other, where))
    reasons = [*reasons, f"nor any other of the {len(ranks)} plans of the file (astra plan --top N writes more)"]
    raise CannotExport(exporter.name, reasons, near=False)


def _reasons(record: Mapping[str, Any], rank: int, exporter: Exporter, where: str) -> list[str]:
    try:
        launch, _ = from_record(record, rank, where=where)
    except CannotExport as error:
        return error.reasons
    return refusals(exporter, launch)


def _other_rank(
    reasons: list[str], asked: tuple[Mapping[str, Any], str], other: tuple[Mapping[str, Any], str]
) -> dict[str, Any]:
    (before, _), (after, _) = asked, other
    return {
        "reasons": reasons,
        "changed": {name: [before.get(name), after.get(name)] for name in ("rank", "strategy")},
        "asked_step_s": figure(before, "step_s", asked[1]),
        "exported_step_s": figure(after, "step_s", other[1]),
        "asked_peak_gib": figure(before, "peak_reserved_gib", asked[1]),
        "exported_peak_gib": figure(after, "peak_reserved_gib", other[1]),
        "asked_runtime": before["estimate"].get("runtime"),
        "exported_runtime": after["estimate"].get("runtime"),
    }
