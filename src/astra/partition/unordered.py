"""The partition problem without the order of pools: quick, a lower bound, and often the optimum itself.

Left out are what only the order decides: activations in flight (every stage is taken as the last one) and which pools
are neighbours (every transfer between pools is taken as the shortest). Pools can then be visited one by one, each
unused, inside the pipeline, first, last or alone, with least sums over (ends placed, stages so far, layers so far). If
some order of the answer costs no more than the answer and fits, it is the optimum. Layers must be alike.
"""

from __future__ import annotations

import math
from itertools import islice, permutations
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from astra.partition.solve import Pipeline, Problem, StageChoice, StageRun, stage_times, value
from astra.provenance import Floats

_SLACK: Final = 1 + 1e-12
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


class _Way(NamedTuple):
    """A choice with a number of stages in a role."""

    choice: int
    role: int
    stages: int
    layer_s: float
    fixed_s: float
    room: tuple[int, ...]  # layers each stage can hold, in pipeline order


def units(problem: Problem) -> float:
    """The effort of ``least_sum``: its ways one by one, and the table that each number of stages is offered to."""
    depth = len(next(choice for pool in problem.pools for choice in pool).time_s)
    ways = sum(choice.stages for pool in problem.pools for choice in pool)
    offers = sum(max((choice.stages for choice in pool), default=0) if problem.stages else 1 for pool in problem.pools)
    return _CALL + ways * _WAY + offers * ((problem.stages or 0) + 1) * depth**2 / _CELLS


def least_sum(problem: Problem, bottleneck: float, budget: float) -> UnorderedBound | None:
    """The least sum with no stage above the bottleneck, in no order; None if it is not under the budget."""
    depth = len(next(choice for pool in problem.pools for choice in pool).time_s) - 1
    stages = problem.stages or 0
    table = np.full((4, stages + 1, depth + 1), np.inf)
    table[0, 0, 0] = 0.0
    hops = [
        [_least_hop(problem, pool, number) for number in range(len(ways))] for pool, ways in enumerate(problem.pools)
    ]
    steps: list[tuple[int, Floats, list[_Way]]] = []
    for pool, choices in enumerate(problem.pools):
        if not choices:
            continue
        ways = [way for number, hop_s in enumerate(hops[pool])
                for way in _ways(problem, choices, number, bottleneck, hop_s)]  # fmt: skip
        steps.append((pool, table, ways))
        needed = problem.every or problem.must >> pool & 1
        after = np.full_like(table, np.inf) if needed else table.copy()
        for (role, count), cost_s in _costs(ways, depth, counted=stages > 0).items():
            if count <= stages:
                _offer(after, table, role, count, cost_s)
        table = after
    total = float(table[_LAST | _FIRST, stages, depth])
    if not total < budget:
        return None
    return UnorderedBound(total, _traced(steps, stages, depth, total))


def _least_hop(problem: Problem, pool: int, number: int) -> float:
    """The shortest transfer between a choice and any other pool."""
    rows = [hop[number] for (here, _), hop in problem.hop_s.items() if here == pool]
    rows += [hop[:, number] for (_, there), hop in problem.hop_s.items() if there == pool]
    return min((float(row.min()) for row in rows if row.size), default=0.0)


def _ways(
    problem: Problem, choices: tuple[StageChoice, ...], number: int, bottleneck: float, hop_s: float
) -> list[_Way]:
    """A choice in every role with every number of stages; those between its first and its last are alike."""
    choice = choices[number]
    layer_s, alive = float(choice.time_s[1]), float(problem.in_flight[1])
    each = max(float(choice.stay_bytes[1] + choice.kept_bytes[1] * alive), 1e-300)
    most = min(choice.stages, len(problem.in_flight) - 1)

    def stage(before_s: float, behind_s: float, bits: int) -> tuple[float, int]:
        """Seconds of transfers or ends beside a stage, and the layers it has room for."""
        free = choice.limit_bytes - choice.fixed_bytes
        free -= (choice.first_bytes if bits & _FIRST else 0.0) + (choice.last_bytes if bits & _LAST else 0.0)
        by_time = math.floor((bottleneck * _SLACK - before_s - behind_s) / layer_s * _SLACK)
        room = min(by_time, math.floor(free / each * _SLACK), len(choice.time_s) - 1)
        return before_s + behind_s, room

    inner_s, inner = stage(choice.send_s, choice.send_s, 0)
    out = []
    for role in range(4):
        before_s = choice.first_s if role & _FIRST else hop_s
        behind_s = choice.last_s if role & _LAST else hop_s
        alone_s, alone = stage(before_s, behind_s, role)
        first_s, first = stage(before_s, choice.send_s, role & _FIRST)
        last_s, last = stage(choice.send_s, behind_s, role & _LAST)
        for count in range(choice.stages if problem.every else 1, most + 1):
            fixed_s = alone_s if count == 1 else first_s + last_s + (count - 2) * inner_s
            room = (alone,) if count == 1 else (first, *(inner,) * (count - 2), last)
            if min(room) >= problem.least_layers:
                out.append(_Way(number, role, count, layer_s, fixed_s, room))
    return out


def _costs(ways: list[_Way], depth: int, *, counted: bool) -> dict[tuple[int, int], Floats]:
    """By role and, where stages are counted, their number: the least sum of a pool that takes j layers."""
    out: dict[tuple[int, int], Floats] = {}
    layers = np.arange(depth + 1)
    for way in ways:
        taken = slice(way.stages, min(sum(way.room), depth) + 1)
        key = (way.role, way.stages if counted else 0)
        if key not in out:
            out[key] = np.full(depth + 1, np.inf)
        least_s = out[key][taken]
        np.minimum(least_s, way.layer_s * layers[taken] + way.fixed_s, out=least_s)
    return out


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


def _traced(
    steps: list[tuple[int, Floats, list[_Way]]], stages: int, layers: int, total: float
) -> tuple[StagePiece, ...]:
    """The pieces whose sums make the total."""
    pieces: list[StagePiece] = []
    flag = _LAST | _FIRST
    for pool, table, ways in reversed(steps):
        if abs(table[flag, stages, layers] - total) <= 1e-12 * total:
            continue
        for way in ways:
            before = flag & ~way.role
            count = way.stages if table.shape[1] > 1 else 0
            if flag & way.role != way.role or count > stages:
                continue
            taken = np.arange(way.stages, min(sum(way.room), layers) + 1)
            sums = table[before, stages - count, layers - taken] + taken * way.layer_s + way.fixed_s
            place = int(np.argmin(np.abs(sums - total))) if len(sums) else 0
            if len(sums) and abs(sums[place] - total) <= 1e-9 * total:
                number = int(taken[place])
                pieces.append(StagePiece(pool, way.choice, way.role, _dealt(way.room, number)))
                total = float(table[before, stages - count, layers - number])
                flag, stages, layers = before, stages - count, layers - number
                break
    return tuple(pieces)


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
        if sum(stage_s) <= answer.sum_s * (1 + 1e-9) and max(stage_s) <= bottleneck * _SLACK**2:
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
            by_time = np.floor((bottleneck * _SLACK - fixed_s) / choice.time_s[1] * _SLACK)
            room.append(int(min(by_time, np.floor(free / max(each, 1e-300) * _SLACK))))
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
            if need > choice.limit_bytes * _SLACK:
                return False
            place -= 1
    return True
