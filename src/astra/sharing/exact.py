"""The best of all schedules, where they can all be gone through: task after task by their starts, with a bound.

Each task is placed as early as there is room, not before the start of the last one: a schedule in which no task can be
moved forward alone is met in the order of its starts, and some such schedule is best in anything that gets no worse
when tasks end sooner (Kolisch 1996).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from astra.sharing.problem import Cost, Schedule, SchedulingProblem, Task, TaskRun, earliest, rank, rounded

MOST_PLACED: Final = 50_000  # tasks placed in all, in less than a second


def searched(problem: SchedulingProblem, known: Schedule, costs: Sequence[Cost], most: int) -> tuple[Schedule, bool]:
    """The best schedule met, at least as good as the known one, and whether none is better."""
    tree = _Tree(problem, known, costs, most)
    all_met = tree.grown({}, 0.0)
    return tree.best, all_met


class _Tree:
    """Schedules by the tasks they begin with."""

    def __init__(self, problem: SchedulingProblem, known: Schedule, costs: Sequence[Cost], most: int) -> None:
        self._problem, self._costs, self._left = problem, costs, most
        self.best, self._worth = known, rank(problem, known, costs)
        self._busy: list[list[tuple[float, float, int]]] = [[] for _ in problem.nodes]

    def grown(self, runs: dict[int, TaskRun], since_s: float) -> bool:
        """Go through all that begin with these runs; False where the effort ends before."""
        rest = [number for number in range(len(self._problem.tasks)) if number not in runs]
        if not rest:
            made = tuple(runs[number] for number in range(len(runs)))
            self.best, self._worth = made, rank(self._problem, made, self._costs)
            return True
        for number in rest:
            task = self._problem.tasks[number]
            for place, way in enumerate(task.ways):
                self._left -= 1
                if self._left < 0:
                    return False
                busy = self._busy[way.pool]
                start_s = earliest(busy, self._problem.nodes[way.pool], way, task.ready_s)
                more = runs | {number: TaskRun(place, start_s)}
                if start_s < since_s or self._least(more, start_s) >= self._worth:
                    continue
                busy.append((start_s, start_s + way.seconds, way.nodes))
                all_met = self.grown(more, start_s)
                busy.pop()
                if not all_met:
                    return False
        return True

    def _least(self, runs: dict[int, TaskRun], since_s: float) -> tuple[float, ...]:
        """No schedule that begins with these runs costs less, in any cost."""
        tasks = self._problem.tasks
        return tuple(
            rounded(
                math.fsum(
                    cost(task, task.ways[runs[number].way], runs[number].start_s)
                    if number in runs
                    else _alone(task, cost, since_s)
                    for number, task in enumerate(tasks)
                )
            )
            for cost in self._costs
        )


def _alone(task: Task, cost: Cost, since_s: float) -> float:
    """The least that a task costs which starts no sooner."""
    return min(cost(task, way, max(task.ready_s, since_s)) for way in task.ways)
