"""A shared fleet from its jobs to the schedule: plans, then the solver, then nodes; or what would have to change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import astra
from astra.answer import Range
from astra.errors import NoFeasiblePlan
from astra.questions.engines import Engine
from astra.sharing.advice import advice, late_jobs
from astra.sharing.curves import Curve, Curves, PlannedPoint, problem_of, request_of
from astra.sharing.declared import DeclaredSharing
from astra.sharing.problem import GOALS, SchedulingProblem, completion, dollars, lateness, nodes_of, total
from astra.sharing.records import CurvePoint, FleetReport, PoolUse, SharedJob
from astra.sharing.solve import CLOSE, Solved, solve, solver_version
from astra.units import show_seconds

_TOLD: Final = ("strategy", "step_s", "tokens_per_s", "mfu", "peak_reserved_gib", "memory_limit_gib", "runtime",
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
        solver=solver,
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
        **{name: point.plan[name] for name in _TOLD},
        asked=request_of(job, sharing.pools[point.pool], point.nodes).plain("plan"),
    )


def _busy(jobs: list[SharedJob], pool: str, gpu_s: float) -> float:
    return math.fsum(job.gpus * (job.end_s - job.start_s) for job in jobs if job.pool == pool) / gpu_s
