"""How long each job takes on how many GPUs of which pool: one plan for each, made as ``astra plan`` makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import msgspec

from astra.errors import NoFeasiblePlan
from astra.questions.answering import PLANNED, StudyLine
from astra.questions.declared import Question, key_of
from astra.questions.engines import Engine
from astra.sharing.declared import DeclaredJob, DeclaredSharing, SharedPool
from astra.sharing.problem import SchedulingProblem, Task, TaskWay
from astra.spec.request import PlanRequest, as_meant
from astra.units import DAY_S

STEPS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # nodes
Asked = Callable[[Iterable[Question]], dict[str, StudyLine]]


class PlannedPoint(NamedTuple):
    """A job on so many GPUs of a pool."""

    job: str
    pool: str
    gpus: int
    nodes: int
    seconds: float
    startup_s: float  # of them, whatever the tokens
    usd: float
    plan: dict[str, Any]  # the row of the plan


class Curves(NamedTuple):
    """The points of every job, and why others are none."""

    points: dict[str, list[PlannedPoint]]
    missing: dict[str, str]  # by job: why the last of its counts has no plan


class Curve:
    """Plans jobs as they are asked for, each once."""

    def __init__(
        self, sharing: DeclaredSharing, engine: Callable[[], Engine], progress: Callable[[float], None]
    ) -> None:
        self._sharing, self._engine, self._progress = sharing, engine, progress
        self._known: dict[str, StudyLine] = {}

    def points(self, pools: dict[str, SharedPool]) -> Curves:
        """The points of every job on pools, which may be larger than those that there are."""
        places = [
            (job, pool, nodes, _question(job, pool, nodes))
            for job in self._sharing.jobs
            for pool in (pools[name] for name in job.pools)
            for nodes in counts(job, pool)
        ]
        self._ask([question for *_, question in places])
        found: dict[str, list[PlannedPoint]] = {job.name: [] for job in self._sharing.jobs}
        missing: dict[str, str] = {}
        for job, pool, nodes, question in places:
            answer = self._known[question.key].answer
            if answer.status == PLANNED and answer.plans[0].get("days") is not None:
                found[job.name].append(_point(job, pool, nodes, answer.plans[0]))
            else:
                missing[job.name] = f"{pool.gpu_text} x {nodes * pool.node_gpus}: {answer.error}"
        return Curves({name: list(_useful(points)) for name, points in found.items()}, missing)

    def _ask(self, questions: list[Question]) -> None:
        asked = {question.key: question for question in questions if question.key not in self._known}
        if not asked:
            return
        engine = self._engine()
        with closing(engine):
            for done, given in enumerate(engine.answers(iter(asked.values())), start=1):
                line = msgspec.json.decode(given.line, type=StudyLine)
                self._known[line.key] = line
                self._progress(done / len(asked))

    @property
    def planned(self) -> int:
        """How many plans were made."""
        return len(self._known)


def counts(job: DeclaredJob, pool: SharedPool) -> list[int]:
    """The numbers of nodes that a job may have of a pool."""
    each = pool.node_gpus
    steps = [count / each for count in job.counts] if job.counts else [*STEPS, pool.nodes]
    found = {int(nodes) for nodes in steps if nodes == int(nodes) and nodes <= pool.nodes}
    return sorted(nodes for nodes in found if job.min_gpus <= nodes * each <= job.max_gpus)


def request_of(job: DeclaredJob, pool: SharedPool, nodes: int) -> PlanRequest:
    """What is planned for a job on so many nodes of a pool."""
    gpus = nodes * pool.node_gpus
    money = {**job.fields.get("money", {}), **pool.money}
    fields = {**job.fields, "gpus": (f"{gpus}x{pool.gpu_text}",), "top": 1, **({"money": money} if money else {})}
    return PlanRequest(**as_meant(fields))


def _question(job: DeclaredJob, pool: SharedPool, nodes: int) -> Question:
    request, gpus = request_of(job, pool, nodes), nodes * pool.node_gpus
    return Question(0, {"job": job.name, "pool": pool.name, "gpus": str(gpus)}, request, key_of(request))


def _point(job: DeclaredJob, pool: SharedPool, nodes: int, plan: dict[str, Any]) -> PlannedPoint:
    expected = plan.get("expected_days") is not None
    days, usd = (plan["expected_days"], plan["expected_usd"]) if expected else (plan["days"], plan.get("usd") or 0.0)
    gpus, startup_s = nodes * pool.node_gpus, plan.get("startup_s") or 0.0
    return PlannedPoint(job.name, pool.name, gpus, nodes, days * DAY_S, startup_s, usd, plan)


def _useful(points: list[PlannedPoint]) -> Iterator[PlannedPoint]:
    """Points on which a job is done sooner, or for less, than on any with no more nodes of the same pool."""
    for point in points:
        others = [other for other in points if other is not point and other.pool == point.pool]
        if not any(
            other.nodes <= point.nodes and other.seconds <= point.seconds and other.usd <= point.usd for other in others
        ):
            yield point


def problem_of(
    sharing: DeclaredSharing, curves: Curves, pools: dict[str, SharedPool], tokens: dict[str, float] | None = None
) -> SchedulingProblem:
    """The problem that curves make up; ``tokens`` are shares of those that some jobs would train."""
    numbers = {name: number for number, name in enumerate(pools)}
    tasks = []
    for job in sharing.jobs:
        share = (tokens or {}).get(job.name, 1.0)
        ways = tuple(
            TaskWay(numbers[point.pool], point.nodes, point.startup_s + share * (point.seconds - point.startup_s),
                share * point.usd)
            for point in curves.points[job.name]
        )  # fmt: skip
        if not ways:
            raise NoFeasiblePlan(_why_none(job, curves, pools))
        tasks.append(Task(ways, job.weight, job.deadline_s, job.start_s))
    return SchedulingProblem(tuple(tasks), tuple(pool.nodes for pool in pools.values()))


def _why_none(job: DeclaredJob, curves: Curves, pools: dict[str, SharedPool]) -> str:
    """Why a job can run nowhere."""
    if job.name in curves.missing:
        return f"{job.name} has no plan on any of its pools. The last that was tried: {curves.missing[job.name]}"
    had = [f"{pool.nodes * pool.node_gpus} of {name} in servers of {pool.node_gpus}" for name, pool in pools.items()
           if name in job.pools]  # fmt: skip
    return f"{job.name} may have no number of GPUs: its min_gpus, max_gpus or counts leave none of {', '.join(had)}."
