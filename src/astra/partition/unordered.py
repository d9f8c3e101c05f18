"""The partition problem without the order of pools: quick, a lower bound, and often the optimum itself.

Left out are what only the order decides: activations in flight (every stage is taken as the last one) and which pools
are neighbours (every transfer between pools is taken as the shortest). Pools can then be visited one by one, each
unused, inside the pipeline, first, last or alone, with least sums over (ends placed, stages so far, layers so far). If
some order of the answer costs no more than the answer and fits, it is the optimum. Layers must be alike.
"""

from __future__ import annotations

from itertools import islice, permutations
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from astra.partition.problem import SLACK, Pipeline, Problem, StageChoice, StageRun, stage_times, value
from astra.provenance import Floats, Ints

_LAST, _FIRST = 1, 2
_MOST_ORDERS: Final = 48
# Units of effort: of one call and of one way for a pool; cells of a table that are filled in a unit.
_CALL, _WAY, _CELLS = 18.0, 0.2, 11_000.0


class StagePiece(NamedTuple):
    """What one pool holds."""

    pool: int
    choice: int
    role: int  # bits: holds the pipeline's last stage, its first
    layers: tuple[int, ...]


class UnorderedBound(NamedTuple):
    """A lower bound of the sum, and what attains it."""

    sum_s: float
    pieces: tuple[StagePiece, ...]


class _Ways(NamedTuple):
    """The choices of a pool in each role, with any number of stages: [choice, role] columns, and [choice, 1].

    Stages between the first and the last of a choice are alike.
    """

    layer_s: Floats
    alone_s: Floats  # transfers or ends beside a single stage
    ends_s: Floats  # beside the first and the last of several
    inner_s: Floats
    alone: Floats  # layers that each has room for
    first: Floats
    last: Floats
    inner: Floats
    fewest: Ints  # stages
    most: Ints
    least_layers: int

    def sums(self, stages: Ints | int, layers: Ints) -> Floats:
        """Seconds of so many layers on so many stages, [choice, role, ...]; infinite where they have no room."""
        columns: Any = [*(np.asarray(column)[..., None] for column in self[:-1]), self.least_layers]
        wide = _Ways(*columns)
        single, pair, least = stages == 1, stages == 2, self.least_layers
        room = np.where(single, wide.alone, wide.first + wide.last + (stages - 2) * wide.inner)
        several = (np.minimum(wide.first, wide.last) >= least) & (pair | (wide.inner >= least))
        able = np.where(single, wide.alone >= least, several) & (stages >= wide.fewest) & (stages <= wide.most)
        fixed_s = np.where(single, wide.alone_s, wide.ends_s + (stages - 2) * wide.inner_s)
        return np.where(able & (stages <= layers) & (layers <= room), wide.layer_s * layers + fixed_s, np.inf)

    def several(self, layers: Ints) -> Ints:
        """The fewest stages, but for a single one, with room for so many layers; more of them never sum to less."""
        short = layers - (self.first + self.last)[..., None]
        needed = 2 + np.ceil(np.maximum(short, 0.0) / np.maximum(self.inner, 1.0)[..., None]).astype(np.int64)
        return np.maximum(needed, np.maximum(self.fewest, 2)[..., None])

    def room(self, choice: int, role: int, stages: int) -> tuple[int, ...]:
        """Layers each stage can hold, in pipeline order."""
        if stages == 1:
            return (int(self.alone[choice, role]),)
        inner = (int(self.inner[choice, 0]),) * (stages - 2)
        return (int(self.first[choice, role]), *inner, int(self.last[choice, role]))


def units(problem: Problem) -> float:
    """The effort of ``least_sum``: its ways one by one, and the table that each number of stages is offered to."""
    depth = len(next(choice for pool in problem.pools for choice in pool).time_s)
    ways = sum(choice.stages for pool in problem.pools for choice in pool)
    offers = sum(max((choice.stages for choice in pool), default=0) if problem.stages else 1 for pool in problem.pools)
    return _CALL + ways * _WAY + offers * ((problem.stages or 0) + 1) * depth**2 / _CELLS


def shortest_hops(problem: Problem) -> list[Floats]:
    """[choice] of each pool: the shortest transfer between it and any other pool."""
    found = []
    for pool, choices in enumerate(problem.pools):
        sides = [hop for (here, _), hop in problem.hop_s.items() if here == pool]
        sides += [hop.T for (_, there), hop in problem.hop_s.items() if there == pool]
        least = [side.min(axis=1) for side in sides if side.size]
        found.append(np.min(least, axis=0) if least else np.zeros(len(choices)))
    return found


def least_sum(problem: Problem, hops: list[Floats], bottleneck: float, budget: float) -> UnorderedBound | None:
    """The least sum with no stage above the bottleneck, in no order; None if it is not under the budget.

    ``hops`` are those of ``shortest_hops``.
    """
    depth = len(next(choice for pool in problem.pools for choice in pool).time_s) - 1
    stages = problem.stages or 0
    table = np.full((4, stages + 1, depth + 1), np.inf)
    table[0, 0, 0] = 0.0
    steps: list[_Step] = []
    for pool, choices in enumerate(problem.pools):
        if not choices:
            continue
        ways = _ways(problem, choices, bottleneck, hops[pool])
        costs_s = _costs(ways, depth, stages)
        steps.append(_Step(pool, table, ways, costs_s))
        needed = problem.every or problem.must >> pool & 1
        after = np.full_like(table, np.inf) if needed else table.copy()
        for (role, count), cost_s in costs_s.items():
            _offer(after, table, role, count, cost_s)
        table = after
    total = float(table[_LAST | _FIRST, stages, depth])
    if not total < budget:
        return None
    return UnorderedBound(total, _traced(steps, stages, depth, total))


class _Step(NamedTuple):
    """One pool: the least sums before it, its ways, and what they cost by role, stages and layers."""

    pool: int
    table: Floats
    ways: _Ways
    costs_s: dict[tuple[int, int], Floats]


def _ways(problem: Problem, choices: tuple[StageChoice, ...], bottleneck: float, hop_s: Floats) -> _Ways:
    """The choices of a pool in every role."""
    columns = ("first_s", "last_s", "send_s", "fixed_bytes", "first_bytes", "last_bytes", "limit_bytes")
    head_s, tail_s, send_s, fixed, head, tail, limit = (
        np.array([[getattr(choice, name)] for choice in choices]) for name in columns
    )
    layer_s = np.array([[choice.time_s[1]] for choice in choices])
    alive, depth = float(problem.in_flight[1]), len(choices[0].time_s) - 1
    each = np.array([[max(choice.stay_bytes[1] + choice.kept_bytes[1] * alive, 1e-300)] for choice in choices])
    roles = np.arange(4)
    is_first, is_last = roles & _FIRST > 0, roles & _LAST > 0
    before_s = np.where(is_first, head_s, hop_s[:, None])
    behind_s = np.where(is_last, tail_s, hop_s[:, None])

    def room(ahead_s: Floats, after_s: Floats, taken: Floats | float) -> Floats:
        """Layers that a stage with such transfers or ends has room for beside some bytes."""
        by_time = np.floor((bottleneck * SLACK - ahead_s - after_s) / layer_s * SLACK)
        by_memory = np.floor((limit - fixed - taken) / each * SLACK)
        return np.asarray(np.minimum(np.minimum(by_time, by_memory), depth))

    first_bytes, last_bytes = is_first * head, is_last * tail
    stages = np.array([[choice.stages] for choice in choices])
    return _Ways(
        layer_s=layer_s,
        alone_s=before_s + behind_s,
        ends_s=before_s + send_s + send_s + behind_s,
        inner_s=2 * send_s,
        alone=room(before_s, behind_s, first_bytes + last_bytes),
        first=room(before_s, send_s, first_bytes),
        last=room(send_s, behind_s, last_bytes),
        inner=room(send_s, send_s, 0.0),
        fewest=stages if problem.every else np.ones_like(stages),
        most=np.minimum(stages, len(problem.in_flight) - 1),
        least_layers=problem.least_layers,
    )


def _costs(ways: _Ways, depth: int, stages: int) -> dict[tuple[int, int], Floats]:
    """By role and, where stages are counted, their number: the least sum of a pool that takes j layers."""
    layers = np.arange(depth + 1)
    if not stages:
        least_s = np.minimum(ways.sums(1, layers), ways.sums(ways.several(layers), layers)).min(axis=0)
        return {(role, 0): least_s[role] for role in range(4)}
    most = min(int(ways.most.max()), stages)
    return {(role, count): least_s for count in range(1, most + 1)
            for role, least_s in enumerate(ways.sums(count, layers).min(axis=0))}  # fmt: skip


def _offer(after: Floats, table: Floats, role: int, stages: int, cost_s: Floats) -> None:
    """Least sums with a pool used in one role; ``cost_s`` is by the layers it takes."""
    possible = np.flatnonzero(np.isfinite(cost_s))
    if not len(possible):
        return
    least, most = int(possible[0]), int(possible[-1])
    flags = [flag for flag in range(4) if not flag & role]
    source = table[flags, : table.shape[1] - stages]
    padded = np.full((*source.shape[:2], most + source.shape[2]), np.inf)
    padded[:, :, most:] = source
    # Entry j of the result looks at j - most .. j - least layers placed before.
    shape = (*source.shape, most - least + 1)
    windows = as_strided(padded, shape, (*padded.strides, padded.strides[2]), writeable=False)
    sums = (windows + cost_s[least : most + 1][::-1]).min(axis=3)
    target = after[[flag | role for flag in flags], stages:]
    after[[flag | role for flag in flags], stages:] = np.minimum(target, sums)


def _traced(steps: list[_Step], stages: int, layers: int, total: float) -> tuple[StagePiece, ...]:
    """The pieces whose sums make the total."""
    pieces: list[StagePiece] = []
    flag = _LAST | _FIRST
    for pool, table, ways, costs_s in reversed(steps):
        if abs(table[flag, stages, layers] - total) <= 1e-12 * total:
            continue
        for (role, count), cost_s in costs_s.items():
            if flag & role != role or count > stages:
                continue
            sums = table[flag & ~role, stages - count, layers::-1] + cost_s[: layers + 1]
            number = int(np.argmin(np.abs(sums - total)))
            if abs(sums[number] - total) <= 1e-9 * total:
                pieces.append(_piece(pool, ways, role, count, number))
                flag, stages, layers = flag & ~role, stages - count, layers - number
                total = float(table[flag, stages, layers])
                break
    return tuple(pieces)


def _piece(pool: int, ways: _Ways, role: int, count: int, number: int) -> StagePiece:
    """The choice of a pool that takes some layers in a role at the least sum, on so many stages if they are counted."""
    layers = np.array([number])
    several = ways.several(layers)
    tried = [np.full_like(several, count)] if count else [np.ones_like(several), several]
    sums = np.stack([ways.sums(stages, layers)[:, role, 0] for stages in tried])
    which, choice = np.unravel_index(int(sums.argmin()), sums.shape)
    room = ways.room(int(choice), role, int(tried[int(which)][choice, role, 0]))
    return StagePiece(pool, int(choice), role, _dealt(room, number))


def _dealt(room: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Layers for each stage within its room, the most even way."""
    out = [1] * len(room)
    for _ in range(layers - len(room)):
        place = min((n for n in range(len(room)) if out[n] < room[n]), key=lambda n: (out[n], -n))
        out[place] += 1
    return tuple(out)


def arranged(problem: Problem, answer: UnorderedBound, bottleneck: float) -> Pipeline | None:
    """The pieces in the best order found in which every stage fits; None if none does or there are too many stages."""
    if sum(len(piece.layers) for piece in answer.pieces) >= len(problem.in_flight):
        return None
    first = [piece for piece in answer.pieces if piece.role & _FIRST]
    last = [piece for piece in answer.pieces if piece.role & _LAST and not piece.role & _FIRST]
    inside = [piece for piece in answer.pieces if not piece.role]
    # The fuller a stage gets with each micro-batch in flight, the nearer the end it belongs.
    inside.sort(key=lambda piece: _fullness(problem, piece))
    best: Pipeline | None = None
    for order in islice(permutations(inside), _MOST_ORDERS):
        runs = _placed(problem, (*first, *order, *last), bottleneck)
        if runs is None:
            continue
        stage_s = stage_times(problem, runs)
        made = Pipeline(runs, stage_s, value(problem, stage_s))
        if best is None or made.value_s < best.value_s:
            best = made
        if sum(stage_s) <= answer.sum_s * (1 + 1e-9) and max(stage_s) <= bottleneck * SLACK**2:
            return made
    return best


def _placed(problem: Problem, pieces: tuple[StagePiece, ...], bottleneck: float) -> tuple[StageRun, ...] | None:
    """The layers of each piece dealt to its stages as their places allow; the sum does not depend on how."""
    place = sum(len(piece.layers) for piece in pieces)
    runs = []
    for number, piece in enumerate(pieces):
        choice = problem.pools[piece.pool][piece.choice]
        room = []
        for stage in range(len(piece.layers)):
            first, last = number == 0 and stage == 0, place == 1
            free = choice.limit_bytes - choice.fixed_bytes - first * choice.first_bytes - last * choice.last_bytes
            each = float(choice.stay_bytes[1] + choice.kept_bytes[1] * problem.in_flight[place])
            fixed_s = (choice.first_s if first else choice.send_s) + (choice.last_s if last else choice.send_s)
            by_time = np.floor((bottleneck * SLACK - fixed_s) / choice.time_s[1] * SLACK)
            room.append(int(min(by_time, np.floor(free / max(each, 1e-300) * SLACK))))
            place -= 1
        total = sum(piece.layers)
        if min(room) < 1 or sum(room) < total:
            return None
        runs.append(StageRun(piece.pool, piece.choice, _dealt(tuple(room), total)))
    return tuple(runs) if _fits(problem, tuple(runs)) else None


def _fullness(problem: Problem, piece: StagePiece) -> float:
    choice = problem.pools[piece.pool][piece.choice]
    return float(max(piece.layers) * choice.kept_bytes[1] / choice.limit_bytes)


def _fits(problem: Problem, runs: tuple[StageRun, ...]) -> bool:
    place = sum(len(run.layers) for run in runs)
    for number, run in enumerate(runs):
        choice = problem.pools[run.pool][run.choice]
        for stage, layers in enumerate(run.layers):
            need = layers * (choice.stay_bytes[1] + choice.kept_bytes[1] * problem.in_flight[place])
            need += choice.fixed_bytes + (choice.first_bytes if number == 0 and stage == 0 else 0.0)
            need += choice.last_bytes if place == 1 else 0.0
            if need > choice.limit_bytes * SLACK:
                return False
            place -= 1
    return True
