"""What would make impossible deadlines possible, in numbers: later ones, more GPUs, fewer tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from astra.sharing.curves import Curve, Curves, problem_of
from astra.sharing.declared import DeclaredSharing
from astra.sharing.problem import Schedule, SchedulingProblem, lateness
from astra.sharing.solve import solve
from astra.units import show_count, show_seconds

MOST_TIMES: Final = 4  # the GPUs of a pool
_SHARES: Final = 64  # of tokens that are told apart


def late_jobs(sharing: DeclaredSharing, problem: SchedulingProblem, schedule: Schedule) -> dict[str, float]:
    """When each job ends that ends behind its deadline."""
    found = {}
    for job, task, run in zip(sharing.jobs, problem.tasks, schedule, strict=True):
        way = task.ways[run.way]
        if lateness(task, way, run.start_s) > 0:
            found[job.name] = run.start_s + way.seconds
    return found


def advice(sharing: DeclaredSharing, curve: Curve, curves: Curves, late: dict[str, float]) -> list[str]:
    """Sentences, each of which alone would do."""
    deadlines = {job.name: job.deadline_s for job in sharing.jobs}
    later = [f"{name} {show_seconds(end_s)} instead of {show_seconds(deadlines[name])}" for name, end_s in late.items()]
    said = f"later deadlines: {', '.join(later)}"
    return [said, *_more_gpus(sharing, curve, late), *_fewer_tokens(sharing, curves, late)]


def possible(problem: SchedulingProblem) -> bool:
    """Whether all deadlines can be met."""
    return solve(problem, (lateness,)).values[0] == 0.0


def _more_gpus(sharing: DeclaredSharing, curve: Curve, late: dict[str, float]) -> list[str]:
    """The fewest nodes more of each pool that would do."""
    found = []
    wanted = {name for job in sharing.jobs if job.name in late for name in job.pools}
    for name in (each for each in sharing.pools if each in wanted):
        pool = sharing.pools[name]

        def enough(nodes: int, name: str = name) -> bool:
            own = sharing.pools[name]
            larger = {**sharing.pools, name: own._replace(pool=replace(own.pool, gpus=nodes * own.node_gpus))}
            return possible(problem_of(sharing, curve.points(larger), larger))

        nodes = _least(pool.nodes + 1, MOST_TIMES * pool.nodes, enough)
        if nodes is not None:
            gpus = nodes * pool.node_gpus
            found.append(f"more GPUs: {gpus:,} in {name} instead of {pool.pool.gpus:,}")
    return found or [f"more GPUs: not even {MOST_TIMES} times as many in any one pool would do"]


def _least(low: int, high: int, enough: Callable[[int], bool]) -> int | None:
    """The least number that is enough, where more than enough is enough too; doubling steps, then halving."""
    tried, step = low, 1
    while not enough(tried):
        if tried >= high:
            return None
        low, tried, step = tried + 1, min(tried + step, high), 2 * step
    high = tried
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _fewer_tokens(sharing: DeclaredSharing, curves: Curves, late: dict[str, float]) -> list[str]:
    """The largest shares of the late jobs' tokens that would do: of all alike, then of one after another."""

    def enough(shares: dict[str, float]) -> bool:
        return possible(problem_of(sharing, curves, sharing.pools, shares))

    missing = _least(1, _SHARES - 1, lambda parts: enough(dict.fromkeys(late, 1 - parts / _SHARES)))
    if missing is None:
        return ["fewer tokens: no share of them would do"]
    shares = dict.fromkeys(late, 1 - missing / _SHARES)
    for name in late if len(late) > 1 else ():
        own = _least(0, missing, lambda parts, name=name: enough({**shares, name: 1 - parts / _SHARES}))  # type: ignore[misc]
        shares[name] = 1 - (missing if own is None else own) / _SHARES
    tokens = {job.name: job.tokens for job in sharing.jobs}
    fewer = ", ".join(
        f"{name} {show_count(_rounded(tokens[name] * share))} instead of {show_count(tokens[name])}"
        for name, share in shares.items()
        if share < 1
    )
    return [f"fewer tokens: {fewer}"]


def _rounded(tokens: float) -> float:
    """Three digits, rounded down, so that they would still do."""
    unit = 10.0 ** (math.floor(math.log10(tokens)) - 2)
    return math.floor(tokens / unit) * unit
