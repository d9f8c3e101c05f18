"""The closest plan a target can express: fewest and smallest changes first, then the fastest; always legal and fitting.

The distance counts a changed choice or switch as one step, and a degree by how many times it doubles or halves. What
decides the plan's identity (how work is split) weighs more than how it is tuned.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import log2
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from astra.catalog import runtimes
from astra.errors import AstraError
from astra.export.base import CannotExport, Exporter, Launch, refusals
from astra.export.reading import launch_of
from astra.result import Estimate
from astra.search.detail import estimate, layers_of, legality
from astra.spec.job import Job
from astra.spec.strategy import Strategy

# Steps by which a change of a field moves a plan away from what was asked.
WEIGHTS: Final = {
    "tp": 4.0, "pp": 4.0, "cp": 4.0, "ep": 4.0, "dp": 1.0, "vp": 2.0, "etp": 2.0, "mbs": 1.5, "zero": 1.5,
    "recompute": 2.0, "sp": 0.5, "offload": 2.0, "schedule": 0.5, "method": 0.5, "recompute_layers": 0.25,
    "flash": 3.0, "overlap": 0.25, "layers": 1.0,
}  # fmt: skip
_DEGREES: Final = ("tp", "pp", "cp", "ep", "dp", "vp", "etp", "mbs")
_TRIED: Final = 400  # expressible and legal strategies costed, nearest first
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
                return _told(launch, before, *found)
            costed, batch = costed + len(batch), []
            if costed >= _TRIED:
                break
    found = _best(target, batch) if batch else None
    if found is None:
        reasons = refusals(exporter, launch) or ["no strategy it can express is legal and fits in memory"]
        raise CannotExport(exporter.name, [*reasons, "no plan near this one is expressible, legal and fits in memory"])
    return _told(launch, before, *found)


def _with_runtime(job: Job, name: str) -> Job:
    return msgspec.structs.replace(job, runtime=runtimes.runtime(name))


def _expressible(exporter: Exporter, launch: Launch, job: Job) -> Iterator[tuple[float, Launch]]:
    """Legal strategies the exporter takes, nearest first."""
    asked = launch.strategy
    candidates = list(_around(asked, job))
    order = np.argsort([distance(asked, candidate) for candidate in candidates], kind="stable")
    for place in order.tolist():
        candidate = candidates[place]
        if legality(job, candidate):
            continue
        made = launch_of(job, candidate, layers_of(job, candidate), launch.version, None)
        if not refusals(exporter, made):
            yield distance(asked, candidate), made


def _around(asked: Strategy, job: Job) -> Iterator[Strategy]:
    """Strategies that differ from the one asked for in degrees, sharding, recompute or tuning."""
    gpus, batch = job.pool.gpus, job.workload.global_batch
    for tp, pp, cp in product(_near(asked.tp), _near(asked.pp), _near(asked.cp)):
        if gpus % (tp * pp * cp):
            continue
        dp = gpus // (tp * pp * cp)
        for mbs, ep, vp in product(_near(asked.mbs, 1), _near(asked.ep), {asked.vp if pp == asked.pp else 1, 1}):
            if batch % (dp * mbs) or (tp * cp * dp) % ep:
                continue
            shape = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "mbs": mbs, "ep": ep, "vp": vp}
            yield from _tuned(asked, shape)


def _near(degree: int, reach: int = 10) -> list[int]:
    """A degree, its halves down to one, and a few doublings."""
    halves = [degree // 2**step for step in range(1, reach + 1) if degree % 2**step == 0]
    return sorted({degree, 1, *halves, *(degree * 2**step for step in range(1, min(reach, 2) + 1))})


def _tuned(asked: Strategy, shape: dict[str, int]) -> Iterator[Strategy]:
    same_pipeline = shape["pp"] == asked.pp and shape["vp"] == asked.vp
    sp = {asked.sp and shape["tp"] > 1, False, shape["tp"] > 1}
    zeros = {asked.zero, 0, 1, 2, 3}
    recomputes = {
        (asked.recompute, asked.method, asked.recompute_layers),
        ("full", "uniform", 1),
        ("selective", "uniform", 1),
        ("none", "uniform", 1),
    }
    schedule = asked.schedule if same_pipeline else "interleaved" if shape["vp"] > 1 else "1f1b"
    etps = {asked.etp, 1}
    overlaps = _overlaps(asked, shape)
    for spread, zero, again, offload, etp, overlap, flash in product(
        sp, zeros, recomputes, {asked.offload, "none"}, etps, overlaps, {asked.flash, True}
    ):
        recompute, method, layers = again
        fields: dict[str, Any] = {"recompute": recompute, "method": method, "recompute_layers": layers}
        yield msgspec.structs.replace(
            asked, **shape, **fields, sp=spread, zero=zero, offload=offload, etp=etp, overlap=overlap, flash=flash,
            schedule=schedule, layers=asked.layers if same_pipeline else (),
        )  # fmt: skip


def _overlaps(asked: Strategy, shape: dict[str, int]) -> set[tuple[str, ...]]:
    kept = tuple(name for name in asked.overlap if name != "p2p" or shape["vp"] > 1)
    without_tp = tuple(name for name in kept if name != "tp")
    return {kept, without_tp, ("grad", "param"), ("grad",), ()}


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
    return batch[place][1]._replace(step_s=results[place].step_s), results[place]


def _told(launch: Launch, before: Estimate, found: Launch, after: Estimate) -> Nearest:
    names = Strategy.__struct_fields__
    pairs = {name: (getattr(launch.strategy, name), getattr(found.strategy, name)) for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return Nearest(found, before, after, changed)
