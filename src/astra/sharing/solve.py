"""The best schedule: of all, where they are few; else starts on a grid of slots by HiGHS, and how far it is from best.

One binary variable says that a task starts in a slot in one of its ways. Two programs differ in how long a task holds
its nodes: rounded up, every answer is a schedule; rounded down, every schedule is an answer, because one that starts
later in a slot may be moved to the slot's beginning, where at the slot's end everything else is as it was. Both count
a task as done a whole real duration after its slot begins. So the first gives a schedule and the second a bound, and
where they meet the schedule is proven best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Final, NamedTuple

import numpy as np

from astra.errors import InputError
from astra.provenance import Floats
from astra.sharing.exact import MOST_PLACED, searched
from astra.sharing.problem import (
    Cost,
    Schedule,
    SchedulingProblem,
    Task,
    TaskRun,
    TaskWay,
    completion,
    lateness,
    placed,
    rank,
    total,
)

CLOSE: Final = 2e-3  # a proof that is close enough
MOST_VARIABLES: Final = {32: 6_000, 64: 2_000, 128: 600}  # of a grid of so many slots, finer while that proves more
_NODES: Final = 200  # of the solver's tree: effort is counted, so that answers are the same anywhere
_MOST_S: Final = 60.0  # for a program that is harder than any that was tried
_SAME: Final = 1e-9
_ORDERS: Final = 5  # tasks whose orders are all tried in real time


class Solved(NamedTuple):
    """A schedule, and how good it is proven to be."""

    schedule: Schedule
    values: tuple[float, ...]  # of each cost, in their order
    bounds: tuple[float, ...]  # no schedule that is as good in the costs before has less
    slots: int  # of the solver's grid; 0 where the schedules gone through and bounds prove it

    @property
    def proven(self) -> bool:
        """Whether nothing is better."""
        return all(value <= bound + CLOSE * abs(value) for value, bound in zip(self.values, self.bounds, strict=True))


class Cap(NamedTuple):
    """A cost that must not grow any more."""

    cost: Cost
    most: float


def solve(
    problem: SchedulingProblem, costs: Sequence[Cost], close: float = CLOSE, most_placed: int = MOST_PLACED
) -> Solved:
    """The schedule that is best in the first cost, among those in the next, and so on."""
    _solver()
    schedule, all_met = searched(problem, improved(problem, _greedy(problem, costs), costs), costs, most_placed)
    if all_met:
        values = tuple(total(problem, schedule, cost) for cost in costs)
        return Solved(schedule, values, values, 0)
    caps: list[Cap] = []
    bounds: list[float] = []
    used = 0
    for place, cost in enumerate(costs):
        # What only breaks ties is not worth a fine grid.
        grids = MOST_VARIABLES if place <= 1 else {32: MOST_VARIABLES[128]}
        schedule, bound, slots = _best(_OneCost(problem, cost, tuple(caps), costs, close), schedule, grids)
        bounds.append(bound)
        used = max(used, slots)
        caps.append(Cap(cost, total(problem, schedule, cost)))
    return Solved(schedule, tuple(total(problem, schedule, cost) for cost in costs), tuple(bounds), used)


class _OneCost(NamedTuple):
    """One cost to make small, within caps on those before it; ``costs`` are all of them."""

    problem: SchedulingProblem
    cost: Cost
    caps: tuple[Cap, ...]
    costs: Sequence[Cost]
    close: float

    @property
    def counted(self) -> list[int]:
        """The tasks that the cost is about.

        Where it does not count when tasks end, those without a deadline take the way that costs least and go behind all
        others, where there is room for them.
        """
        tasks = range(len(self.problem.tasks))
        if self.cost is completion:
            return list(tasks)
        return [number for number in tasks if math.isfinite(self.problem.tasks[number].deadline_s)]

    def least(self, task: Task) -> float:
        """The least that a task costs, were it alone."""
        return min(self.cost(task, way, task.ready_s) for way in task.ways)

    def near(self, value: float, bound: float) -> bool:
        """Whether a bound proves a value."""
        return value <= bound + self.close * abs(value)


def _best(stage: _OneCost, known: Schedule, grids: Mapping[int, int]) -> tuple[Schedule, float, int]:
    """A schedule that is best in one cost within caps, a bound on that, and the slots it took."""
    problem, counted = stage.problem, stage.counted
    bound, used = math.fsum(map(stage.least, problem.tasks)), 0
    value = total(problem, known, stage.cost)
    for slots, most in grids.items():
        if stage.near(value, bound) or not counted:
            break
        grid = _Slotted.of(stage, known, slots)
        if len(grid.variables) > most:
            break
        used = slots
        below, _ = grid.solved(up=False)
        bound = max(bound, min(below, value))
        if not stage.near(value, bound):
            _, found = grid.solved(up=True)
            known = known if found is None else _realised(stage, known, found)
            value = total(problem, known, stage.cost)
    return known, min(bound, value), used


def _realised(stage: _OneCost, known: Schedule, found: dict[int, TaskRun]) -> Schedule:
    """The better of a known schedule and the one that an answer of the grid is in real time."""
    problem = stage.problem
    ways = []
    for number, task in enumerate(problem.tasks):
        costs = [stage.cost(task, way, task.ready_s) for way in task.ways]
        ways.append(found[number].way if number in found else costs.index(min(costs)))
    order = sorted(range(len(ways)), key=lambda each: (found[each].start_s if each in found else math.inf, each))
    better = improved(problem, placed(problem, ways, order), stage.costs)
    return min((known, better), key=lambda each: rank(problem, each, stage.costs))


def _greedy(problem: SchedulingProblem, costs: Sequence[Cost]) -> Schedule:
    """A schedule to begin with: by several orders, each task in the way that is best when it is placed."""
    count = len(problem.tasks)
    shortest = [min(range(len(task.ways)), key=lambda way: task.ways[way].seconds) for task in problem.tasks]
    least = [min(range(len(task.ways)), key=lambda way: task.ways[way].nodes) for task in problem.tasks]
    orders = [
        sorted(range(count), key=lambda number: problem.tasks[number].deadline_s),
        sorted(range(count), key=lambda number: _smith(problem, number)),
    ]
    found = [placed(problem, ways, order) for order in orders for ways in (shortest, least)]
    return min(found, key=lambda schedule: rank(problem, schedule, costs))


def _smith(problem: SchedulingProblem, number: int) -> float:
    """Work over weight: the smallest first is best on one machine (Smith 1956)."""
    task = problem.tasks[number]
    return min(way.seconds * way.nodes for way in task.ways) / task.weight


def improved(problem: SchedulingProblem, schedule: Schedule, costs: Sequence[Cost]) -> Schedule:
    """The schedule in real time, and whatever moving or changing one task at a time makes better."""
    count = len(problem.tasks)
    ways = [run.way for run in schedule]
    order = sorted(range(count), key=lambda number: (schedule[number].start_s, number))
    best = min((schedule, placed(problem, ways, order)), key=lambda each: rank(problem, each, costs))
    worth = rank(problem, best, costs)
    going = True
    while going:
        going = False
        for changed, moved in _neighbours(problem, ways, order):
            found = placed(problem, changed, moved)
            value = rank(problem, found, costs)
            if value < worth:
                best, worth, ways, order, going = found, value, changed, moved, True
                break
    return best


def _neighbours(problem: SchedulingProblem, ways: list[int], order: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Schedules with one task in another way or at another place; all orders, where tasks are few."""
    for number in order:
        for way in range(len(problem.tasks[number].ways)):
            changed = [way if each == number else had for each, had in enumerate(ways)]
            for place in range(len(order)):
                rest = [each for each in order if each != number]
                yield changed, [*rest[:place], number, *rest[place:]]
    if len(order) <= _ORDERS:
        yield from ((ways, list(other)) for other in permutations(order))


class _Variable(NamedTuple):
    task: int
    way: int
    slot: int


class _Slotted(NamedTuple):
    """The program of a stage on a grid of slots."""

    stage: _OneCost
    slot_s: float
    slots: int
    variables: list[_Variable]

    @classmethod
    def of(cls, stage: _OneCost, known: Schedule, slots: int) -> _Slotted:
        """Every start that may be in a schedule no worse than the known one."""
        until_s = _latest(stage, known)
        last_s = max(until_s.values())
        slot_s = _slot(
            last_s / slots, [way.seconds for each in stage.counted for way in stage.problem.tasks[each].ways]
        )
        slots = math.ceil(last_s / slot_s)
        variables = []
        for number in stage.counted:
            task = stage.problem.tasks[number]
            for place, way in enumerate(task.ways):
                first = math.floor(task.ready_s / slot_s + _SAME)
                last = math.floor((until_s[number] - way.seconds) / slot_s + _SAME)
                if _within(stage, number, way):
                    variables += [_Variable(number, place, slot) for slot in range(first, min(last, slots) + 1)]
        return cls(stage, slot_s, slots, variables)

    def solved(self, *, up: bool) -> tuple[float, dict[int, TaskRun] | None]:
        """A bound on the stage's cost, and an answer; tasks hold nodes for their slots rounded ``up``, or down.

        Rounded up the bound says nothing of real schedules, rounded down the answer is none.
        """
        ready_s = [task.ready_s - _SAME * self.slot_s for task in self.stage.problem.tasks]
        variables = [each for each in self.variables if not up or each.slot * self.slot_s >= ready_s[each.task]]
        counted = self.stage.counted
        if {each.task for each in variables} != set(counted):
            return math.inf, None
        others = [task for number, task in enumerate(self.stage.problem.tasks) if number not in counted]
        bound, taken = _minimised(self._program(variables, up=up))
        bound += math.fsum(map(self.stage.least, others))
        if taken is None:
            return bound, None
        chosen = [variables[place] for place in taken]
        return bound, {each.task: TaskRun(each.way, each.slot * self.slot_s) for each in chosen}

    def _held(self, seconds: float, *, up: bool) -> int:
        """How many slots a task holds its nodes."""
        exact = seconds / self.slot_s
        return math.ceil(exact - _SAME) if up else math.floor(exact + _SAME)

    def _value(self, each: _Variable, cost: Cost) -> float:
        task = self.stage.problem.tasks[each.task]
        start_s = max(each.slot * self.slot_s, task.ready_s)
        return cost(task, task.ways[each.way], start_s)

    def _program(self, variables: list[_Variable], *, up: bool) -> _Program:
        """A row for each task, for the nodes of each pool in each slot, and for each cap."""
        problem, rows_of = self.stage.problem, {number: row for row, number in enumerate(self.stage.counted)}
        tasks, high = len(rows_of), self.slots + 1
        caps = [cap for cap in self.stage.caps if math.isfinite(cap.most)]
        first_cap = tasks + len(problem.nodes) * high
        starts, rows, values = [0], list[int](), list[float]()
        for each in variables:
            way = problem.tasks[each.task].ways[each.way]
            base, end = tasks + way.pool * high, min(each.slot + self._held(way.seconds, up=up), high)
            rows += [rows_of[each.task], *range(base + each.slot, base + end)]
            values += [1.0, *[float(way.nodes)] * (end - each.slot)]
            rows += range(first_cap, first_cap + len(caps))
            values += [self._value(each, cap.cost) for cap in caps]
            starts.append(len(rows))
        room = np.repeat(np.asarray(problem.nodes, np.float64), high)
        most = np.asarray([cap.most * (1 + 1e-7) + 1e-6 for cap in caps], np.float64)
        return _Program(
            costs=np.asarray([self._value(each, self.stage.cost) for each in variables]),
            lower=np.concatenate([np.ones(tasks), np.full(len(room) + len(most), -np.inf)]),
            upper=np.concatenate([np.ones(tasks), room, most]),
            starts=starts,
            rows=rows,
            values=values,
        )


def _within(stage: _OneCost, number: int, way: TaskWay) -> bool:
    """Whether a way, at its earliest, leaves to the others the least that they cost within every cap."""
    tasks = stage.problem.tasks
    for cap in stage.caps:
        others = (task for place, task in enumerate(tasks) if place != number)
        least = math.fsum(min(cap.cost(task, each, task.ready_s) for each in task.ways) for task in others)
        if cap.cost(tasks[number], way, tasks[number].ready_s) + least > cap.most * (1 + 1e-7) + 1e-6:
            return False
    return True


def _slot(about_s: float, durations: list[float]) -> float:
    """A slot of about this length that durations fill best: what is cut off when they are rounded down is least."""
    fair = [seconds / max(math.floor(seconds / about_s), 1) for seconds in durations]
    close = [slot_s for slot_s in fair if slot_s <= 1.5 * about_s]

    def cut_off(slot_s: float) -> float:
        return math.fsum(1 - math.floor(seconds / slot_s + _SAME) * slot_s / seconds for seconds in durations)

    return min([about_s, *sorted(close)], key=lambda slot_s: (cut_off(slot_s), -slot_s))


def _latest(stage: _OneCost, known: Schedule) -> dict[int, float]:
    """When each counted task must be done in a schedule that is no worse than the known one.

    What one task may cost is what all may, less the least that the others cost; a cost that grows with the end of the
    task then says when that is. Where nothing says it, all work one after another is long enough.
    """
    tasks, counted = stage.problem.tasks, stage.counted
    longest_s = max(task.ready_s for task in tasks) + math.fsum(max(way.seconds for way in tasks[number].ways)
                                                                for number in counted)  # fmt: skip
    latest = dict.fromkeys(counted, longest_s)
    for cost, most in [(stage.cost, total(stage.problem, known, stage.cost)), *stage.caps]:
        least = [min(cost(task, way, task.ready_s) for way in task.ways) for task in tasks]
        for number in counted:
            task, left = tasks[number], most - (math.fsum(least) - least[number])
            if cost is completion:
                latest[number] = min(latest[number], left / task.weight)
            elif cost is lateness and math.isfinite(task.deadline_s):
                latest[number] = min(latest[number], task.deadline_s + max(left, 0.0) / task.weight)
    return {number: until_s * (1 + 1e-9) + 1e-6 for number, until_s in latest.items()}


class _Program(NamedTuple):
    """Columns of binary variables; rows of limits."""

    costs: Floats
    lower: Floats
    upper: Floats
    starts: list[int]
    rows: list[int]
    values: list[float]


def _minimised(program: _Program) -> tuple[float, list[int] | None]:
    """The solver's bound, infinite where there is no answer, and the variables that are one in its best answer."""
    highspy = _solver()
    scale = max(float(np.max(np.abs(program.costs), initial=0.0)), 1e-30)
    count = len(program.costs)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, len(program.lower)
    model.col_cost_ = program.costs / scale
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    infinite = highspy.kHighsInf
    model.row_lower_ = np.where(np.isinf(program.lower), -infinite, program.lower)
    model.row_upper_ = program.upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.asarray(program.starts)
    model.a_matrix_.index_ = np.asarray(program.rows)
    model.a_matrix_.value_ = np.asarray(program.values)
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    solver = highspy.Highs()
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("mip_max_nodes", _NODES),
                        ("time_limit", _MOST_S),
                        ("mip_rel_gap", CLOSE / 10)):  # fmt: skip
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return math.inf, None
    bound = float(info.mip_dual_bound) * scale
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return bound, None
    chosen = np.flatnonzero(np.asarray(solver.getSolution().col_value) > 0.5)
    return bound, [int(place) for place in chosen]


def _solver() -> Any:
    try:
        import highspy  # noqa: PLC0415
    except ImportError:
        fix = "pip install 'astra-planner[fleet]' has it."
        raise InputError("astra fleet", None, want="HiGHS, which solves the schedule", fix=fix) from None
    return highspy


def solver_version() -> str:
    """The solver, with its version."""
    return f"HiGHS {_solver().Highs().version()}"
