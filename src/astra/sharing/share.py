"""A shared fleet from its jobs to the schedule: plans, then the solver, then nodes; or what would have to change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

import astra
from astra.answer import Range
from astra.errors import NoFeasiblePlan
from astra.questions.engines import Engine
from astra.sharing.curves import Curve, Curves, PlannedPoint, problem_of, request_of
from astra.sharing.declared import DeclaredSharing
from astra.sharing.problem import GOALS, Schedule, SchedulingProblem, completion, dollars, lateness, nodes_of, total
from astra.sharing.records import CurvePoint, FleetReport, PoolUse, SharedJob
from astra.sharing.solve import CLOSE, Solved, solve, solver_version
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
        return [f"fewer tokens: not even {1 / _SHARES:.1%} of them would do"]
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


_OF_PLAN: Final = ("strategy", "step_s", "tokens_per_s", "mfu", "peak_reserved_gib", "memory_limit_gib", "runtime",
                "evidence", "warnings")  # fmt: skip


def share(
    sharing: DeclaredSharing, engine: Callable[[], Engine], progress: Callable[[float], None] = lambda fraction: None
) -> FleetReport:
    """The best schedule; NoFeasiblePlan where deadlines cannot be met, with what would make them possible."""
    solver = solver_version()  # missing, that is told before an hour of plans
    curve = Curve(sharing, engine, progress)
    curves = curve.points(sharing.pools)
    problem = problem_of(sharing, curves, sharing.pools)
    solved = solve(problem, GOALS[sharing.goal])
    late = late_jobs(sharing, problem, solved.schedule)
    if late and sharing.goal != "deadlines":
        raise NoFeasiblePlan(_refused(sharing, curve, curves, solved, late))
    return _report(sharing, curves, problem, solved, solver, curve.planned)


def _refused(sharing: DeclaredSharing, curve: Curve, curves: Curves, solved: Solved, late: dict[str, float]) -> str:
    sure = "no schedule meets" if solved.bounds[0] > 0 else "no schedule was found that meets"
    deadlines = {job.name: job.deadline_s for job in sharing.jobs}
    sentences = "; ".join(
        f"{name} would end after {show_seconds(end_s)}, {show_seconds(end_s - deadlines[name])} late"
        for name, end_s in late.items()
    )
    would = ". ".join(advice(sharing, curve, curves, late))
    goal = 'goal = "deadlines" gives the schedule that is least late.'
    return f"{sure} every deadline: {sentences}. Each of these alone would do: {would}. {goal}"


def _report(
    sharing: DeclaredSharing, curves: Curves, problem: SchedulingProblem, solved: Solved, solver: str, planned: int
) -> FleetReport:
    chosen = [curves.points[job.name][run.way] for job, run in zip(sharing.jobs, solved.schedule, strict=True)]
    nodes = nodes_of(problem, solved.schedule)
    jobs = [_job(sharing, place, point, solved, nodes[place]) for place, point in enumerate(chosen)]
    end_s, unpriced = max(job.end_s for job in jobs), [job.name for job in jobs if not job.usd]
    main = next(place for place, value in enumerate(solved.values) if value > 0 or place == len(solved.values) - 1)
    value, bound = solved.values[main], solved.bounds[main]
    gap = max((value - bound) / value, 0.0) if value else 0.0
    return FleetReport(
        version=astra.__version__,
        title=sharing.title,
        goal=sharing.goal,
        pools=[
            PoolUse(name=pool.name, gpu=pool.pool.device.name, gpus=pool.pool.gpus, node_gpus=pool.node_gpus,
                    busy=_busy(jobs, pool.name, pool.pool.gpus * end_s))
            for pool in sharing.pools.values()
        ],
        jobs=jobs,
        curves=[
            CurvePoint(job=point.job, pool=point.pool, gpus=point.gpus, seconds=point.seconds, usd=point.usd,
                       strategy=point.plan["strategy"], chosen=point in chosen)
            for points in curves.points.values() for point in points
        ],
        end_s=end_s,
        usd=total(problem, solved.schedule, dollars),
        late_s=total(problem, solved.schedule, lateness),
        weighted_completion_s=total(problem, solved.schedule, completion),
        gap=gap,
        proven=gap <= CLOSE,
        solver=solver if solved.slots else "branch and bound",
        planned=planned,
        notes=[f"no price is known for {', '.join(unpriced)}: its dollars count as none"] if unpriced else [],
    )  # fmt: skip


def _job(sharing: DeclaredSharing, place: int, point: PlannedPoint, solved: Solved, nodes: list[int]) -> SharedJob:
    job, start_s = sharing.jobs[place], solved.schedule[place].start_s
    end_s = start_s + point.seconds
    model = job.fields["model"]
    return SharedJob(
        name=job.name,
        model=model if isinstance(model, str) else model.name,
        tokens=job.tokens,
        weight=job.weight,
        deadline_s=job.deadline_s if math.isfinite(job.deadline_s) else None,
        ready_s=job.start_s,
        pool=point.pool,
        gpus=point.gpus,
        nodes=nodes,
        start_s=start_s,
        end_s=end_s,
        late_s=max(end_s - job.deadline_s, 0.0) if end_s > job.deadline_s + 1e-6 else 0.0,
        usd=point.usd,
        step_s_range=Range(low=point.plan["step_s_low"], high=point.plan["step_s_high"]),
        **{name: point.plan[name] for name in _OF_PLAN},
        asked=request_of(job, sharing.pools[point.pool], point.nodes).plain("plan"),
    )


def _busy(jobs: list[SharedJob], pool: str, gpu_s: float) -> float:
    return math.fsum(job.gpus * (job.end_s - job.start_s) for job in jobs if job.pool == pool) / gpu_s
