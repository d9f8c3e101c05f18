"""The best schedule by trying all: every way of every task, every order, each task as early as it can be.

Written apart from the planner: time is looked at wherever something starts or ends, and nothing is shared but records.
``python -m tests.sharing.brute_force --first 1000 --problems 2000`` holds the planner against it on other problems.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from itertools import permutations, product

from astra.sharing.problem import GOALS, SchedulingProblem, Task, TaskWay
from astra.sharing.solve import solve


def best(problem: SchedulingProblem, goal: str) -> tuple[float, ...]:
    """The least costs there are, in the order of the goal."""
    found: tuple[float, ...] = (math.inf,)
    for ways in product(*(task.ways for task in problem.tasks)):
        for order in permutations(range(len(ways))):
            found = min(found, costs(problem, ways, earliest(problem, ways, order), goal))
    return found


def earliest(problem: SchedulingProblem, ways: tuple[TaskWay, ...], order: tuple[int, ...]) -> list[float]:
    starts = [math.nan] * len(ways)
    done: list[int] = []
    for number in order:
        moments = [problem.tasks[number].ready_s, *(starts[each] + ways[each].seconds for each in done)]
        for start_s in sorted(moments):
            starts[number] = start_s
            if start_s >= problem.tasks[number].ready_s and fits(problem, ways, starts, [*done, number]):
                break
        done.append(number)
    return starts


def fits(problem: SchedulingProblem, ways: tuple[TaskWay, ...], starts: list[float], which: list[int]) -> bool:
    """At every start, what runs has room."""
    for at_s in [starts[number] for number in which]:
        for pool, nodes in enumerate(problem.nodes):
            running = [number for number in which if starts[number] <= at_s < starts[number] + ways[number].seconds]
            if sum(ways[number].nodes for number in running if ways[number].pool == pool) > nodes:
                return False
    return True


def costs(problem: SchedulingProblem, ways: tuple[TaskWay, ...], starts: list[float], goal: str) -> tuple[float, ...]:
    ends = [start_s + way.seconds for start_s, way in zip(starts, ways, strict=True)]
    late = sum(task.weight * max(end - task.deadline_s, 0.0) for task, end in zip(problem.tasks, ends, strict=True))
    done = sum(task.weight * end for task, end in zip(problem.tasks, ends, strict=True))
    usd = sum(way.usd for way in ways)
    rounded = tuple(float(f"{each:.9g}") if each > 1e-6 else 0.0 for each in (late, usd, done))
    return rounded if goal == "dollars" else (rounded[0], rounded[2])


def drawn(draw: random.Random, tasks: int) -> SchedulingProblem:
    """A small problem: one or two pools, two or three ways for each task, some with deadlines."""
    nodes = tuple(draw.randint(2, 6) for _ in range(draw.randint(1, 2)))
    made = []
    for _ in range(tasks):
        work_s, ways = draw.uniform(2, 40) * 1e4, []
        for pool in range(len(nodes)):
            for held in draw.sample(range(1, nodes[pool] + 1), 2):
                seconds = work_s / held ** draw.uniform(0.6, 1.0) * (1 + pool)
                ways.append(TaskWay(pool, held, seconds, held * seconds * draw.uniform(1, 3) / 1e4))
        fastest_s = min(way.seconds for way in ways)
        deadline_s = fastest_s * draw.uniform(0.9, 4) if draw.random() < 0.5 else math.inf
        ready_s = draw.choice((0.0, 0.0, draw.uniform(0, 1e5)))
        made.append(Task(tuple(ways), draw.choice((1.0, 1.0, 3.0, 0.5)), deadline_s + ready_s, ready_s))
    return SchedulingProblem(tuple(made), nodes)


def worse(seed: int, tasks: int) -> list[str]:
    """The goals in which the planner's schedule of a problem is not the best, each with both."""
    problem, found = drawn(random.Random(seed), tasks), []
    for goal, kinds in GOALS.items():
        ours, least = solve(problem, kinds).values, best(problem, goal)
        if not all(
            math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-5) for one, other in zip(ours, least, strict=True)
        ):
            found.append(f"{seed} {goal}: {ours}, and the best is {least}")
    return found


def main() -> int:
    """Hold the planner against brute force; 1 if it is worse anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=3)
    args = parser.parse_args()
    found = [line for seed in range(args.first, args.first + args.problems) for line in worse(seed, args.tasks)]
    print(*found, f"{args.problems * len(GOALS):,} problems of {args.tasks} jobs, {len(found)} not the best", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
