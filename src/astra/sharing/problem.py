"""The problem without its names: tasks that may run in one of several ways, on pools of nodes.

A task runs once, without a break, from a start of its choice; a way takes some nodes of one pool for some time. The
nodes of a pool are alike, so a schedule that never needs more than there are can be given nodes that it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class TaskWay(NamedTuple):
    """One way to run a task."""

    pool: int
    nodes: int
    seconds: float
    usd: float = 0.0


class Task(NamedTuple):
    """One job."""

    ways: tuple[TaskWay, ...]
    weight: float = 1.0
    deadline_s: float = math.inf
    ready_s: float = 0.0  # not before


class SchedulingProblem(NamedTuple):
    """Tasks on pools of so many nodes."""

    tasks: tuple[Task, ...]
    nodes: tuple[int, ...]


class TaskRun(NamedTuple):
    """When a task runs, and how."""

    way: int
    start_s: float


Schedule = tuple[TaskRun, ...]  # by task
Cost = Callable[[Task, TaskWay, float], float]  # of a task that runs in a way from a start


def completion(task: Task, way: TaskWay, start_s: float) -> float:
    """Weighted seconds until it is done."""
    return task.weight * (start_s + way.seconds)


def lateness(task: Task, way: TaskWay, start_s: float) -> float:
    """Weighted seconds behind the deadline; those of rounding are none."""
    late_s = start_s + way.seconds - task.deadline_s
    return task.weight * late_s if late_s > 1e-6 else 0.0


def dollars(task: Task, way: TaskWay, start_s: float) -> float:
    """What it costs."""
    return way.usd


# What is best, in order: a later one only breaks ties of those before.
GOALS: dict[str, tuple[Cost, ...]] = {
    "completion": (lateness, completion),
    "dollars": (lateness, dollars, completion),
    "deadlines": (lateness, completion),
}


def total(problem: SchedulingProblem, schedule: Schedule, cost: Cost) -> float:
    """A cost over all tasks."""
    return math.fsum(
        cost(task, task.ways[run.way], run.start_s) for task, run in zip(problem.tasks, schedule, strict=True)
    )


def rank(problem: SchedulingProblem, schedule: Schedule, costs: Sequence[Cost]) -> tuple[float, ...]:
    """Costs in their order, rounded so that sums of the same numbers are the same."""
    return tuple(rounded(total(problem, schedule, cost)) for cost in costs)


def rounded(value: float) -> float:
    """A sum as it is compared."""
    return float(f"{value:.10g}")


def placed(problem: SchedulingProblem, ways: Sequence[int], order: Iterable[int]) -> Schedule:
    """Tasks one after another in an order, each as early as there is room for it.

    Some order gives a schedule that is best in anything that gets no worse when tasks end sooner (Kolisch 1996).
    """
    busy: list[list[tuple[float, float, int]]] = [[] for _ in problem.nodes]  # by pool: from, until, nodes
    runs: dict[int, TaskRun] = {}
    for number in order:
        task = problem.tasks[number]
        way = task.ways[ways[number]]
        start_s = earliest(busy[way.pool], problem.nodes[way.pool], way, task.ready_s)
        busy[way.pool].append((start_s, start_s + way.seconds, way.nodes))
        runs[number] = TaskRun(ways[number], start_s)
    return tuple(runs[number] for number in range(len(problem.tasks)))


def earliest(busy: list[tuple[float, float, int]], nodes: int, way: TaskWay, ready_s: float) -> float:
    """The first moment from which a way has room: when it is ready, or when something ends."""
    moments = sorted({ready_s, *(until for _, until, _ in busy if until > ready_s)})
    return next(start_s for start_s in moments if _room(busy, nodes, way, start_s))


def _room(busy: list[tuple[float, float, int]], nodes: int, way: TaskWay, start_s: float) -> bool:
    """Whether enough nodes are free all the time; that changes only where something starts."""
    end_s = start_s + way.seconds
    overlapping = [each for each in busy if each[0] < end_s and each[1] > start_s]
    return all(
        sum(held for begin, until, held in overlapping if begin <= at_s < until) + way.nodes <= nodes
        for at_s in (start_s, *(begin for begin, _, _ in overlapping if begin > start_s))
    )


def nodes_of(problem: SchedulingProblem, schedule: Schedule) -> list[list[int]]:
    """The nodes of each task, by their numbers in the pool: the lowest that are free for all of it."""
    given: list[list[int]] = [[] for _ in schedule]
    free_s = [[0.0] * count for count in problem.nodes]
    for number in sorted(range(len(schedule)), key=lambda each: schedule[each].start_s):
        run = schedule[number]
        way = problem.tasks[number].ways[run.way]
        free = [node for node, until in enumerate(free_s[way.pool]) if until <= run.start_s + 1e-9]
        given[number] = free[: way.nodes]
        assert len(given[number]) == way.nodes, "there is room, so there are nodes"
        for node in given[number]:
            free_s[way.pool][node] = run.start_s + way.seconds
    return given
