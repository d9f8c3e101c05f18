"""Strategies in the order of their bounds, simulated until none is left that could be better.

A bound never exceeds the simulated step, so a strategy whose bound is at or above what its group has reached cannot
win: it is dropped without being simulated. Of the strategies of one mesh and sharding only those that repeat the least
are entered, because whoever repeats more takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from astra.columns import Columns, distinct, unique
from astra.cost import step
from astra.cost.memory import Sharding
from astra.cost.pipeline import pipelines_s
from astra.cost.recompute import Recomputes, module_names
from astra.cost.stage import Gathered, Meshes, StageCosts, join_meshes
from astra.cost.step import Evaluated
from astra.layers.split import even
from astra.provenance import Bools, Floats, Ints
from astra.search.words import said
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import CHOICES, OVERLAPS

FIRST: Final = 4  # strategies simulated together at first; twice as many each time
MOST: Final = 512
WORTH: Final = 0.02  # by which a bound must be below what its group has reached, to be simulated before its turn

Limits = Callable[[Ints], Floats]  # groups -> the step that a strategy of each must beat


class Entries(NamedTuple):
    """Strategies that fit, one per row."""

    bound_s: Floats
    exchanged_s: Floats  # [row, kind of stage]
    after_s: Floats
    group: Ints
    waits: Floats  # time with waiting for the slowest node, over time without
    meshes: Meshes
    send_s: Floats  # one activation to the next stage
    place: Ints  # of the sharding among the parts
    recomputes: Recomputes
    shardings: Sharding

    @property
    def gpu_seconds(self) -> Floats:
        """The bound times the GPUs, by which strategies of several numbers of GPUs compare."""
        columns = self.meshes.columns
        return np.asarray(self.bound_s * columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"])

    def take(self, rows: Ints | Bools) -> Entries:
        """Some of them."""
        return Entries(
            self.bound_s[rows],
            self.exchanged_s[rows],
            self.after_s[rows],
            self.group[rows],
            self.waits[rows],
            self.meshes.take(rows),
            self.send_s[rows],
            self.place[rows],
            self.recomputes.take(rows),
            Sharding(*(column[rows] for column in self.shardings)),
        )


def join(several: list[Entries]) -> Entries:
    """All rows of several tables."""

    def column(name: str) -> Any:
        return np.concatenate([getattr(one, name) for one in several])

    recomputes, shardings = (
        [np.concatenate(parts) for parts in zip(*(getattr(one, name) for one in several), strict=True)]
        for name in ("recomputes", "shardings")
    )
    meshes = join_meshes([one.meshes for one in several])
    return Entries(
        column("bound_s"),
        column("exchanged_s"),
        column("after_s"),
        column("group"),
        column("waits"),
        meshes,
        column("send_s"),
        column("place"),
        Recomputes(*recomputes),
        Sharding(*shardings),
    )


def least_recomputes(result: Evaluated, recomputes: Recomputes, fits: Bools) -> tuple[Ints, Ints, Ints]:
    """Rows of (mesh, recompute, sharding) that fit and that no other recompute precedes at every stage."""
    bound_s = np.where(fits, result.bound_s, np.inf)
    found = []
    taken = np.zeros((len(bound_s), bound_s.shape[2]), bool)
    # None precedes all that keep as much on the GPU; of one kind, whoever repeats less at one stage does so at all.
    kinds, place = distinct(recomputes.recompute, recomputes.modules, recomputes.offload_layers)
    for number, (recompute, offloaded) in enumerate(
        zip(recomputes.recompute[kinds].tolist(), recomputes.offload_layers[kinds].tolist(), strict=True)
    ):
        some = np.flatnonzero(place == number)
        choice = bound_s[:, some].argmin(axis=1)
        best_s = np.take_along_axis(bound_s[:, some], choice[:, None, :], axis=1)[:, 0]
        mesh, sharding = np.nonzero(np.isfinite(best_s) & ~taken)
        found.append((mesh, some[choice[mesh, sharding]], sharding))
        taken |= np.isfinite(best_s) & (recompute == 0 and offloaded == 0)
    mesh, recompute, sharding = (np.concatenate(column) for column in zip(*found, strict=True))
    return mesh, recompute, sharding


def may_be_least(recomputes: Recomputes, fits: Bools) -> Ints:
    """The first recompute, and those that are the first of their method and modules to fit some mesh and sharding.

    Those of one method come in the order of their layers, so that the rest repeat more.
    """
    named = (recomputes.recompute, recomputes.method, recomputes.modules, recomputes.offload_layers)
    _, place = distinct(*named)
    found = np.arange(len(recomputes)) == 0
    for number in range(int(place.max()) + 1):
        some = np.flatnonzero(place == number)
        fitting = fits[:, some]
        found[some[fitting.argmax(axis=1)[fitting.any(axis=1)]]] = True
    return np.flatnonzero(found)


class Pending(NamedTuple):
    """Meshes that could be better with recompute."""

    meshes: Meshes
    costs: StageCosts
    parts: Gathered
    bound_s: Floats


class Contest:
    """The best strategy of each group by the simulated step."""

    def __init__(self, job: Job, limits: Limits, *, at_once: int) -> None:
        self.job, self._limits, self._at_once = job, limits, at_once
        self.best: dict[int, tuple[float, Strategy]] = {}  # the best step of each group so far, and its strategy
        self.simulated = 0
        self._waiting: list[tuple[Gathered, Entries]] = []

    def reached_s(self, groups: Ints) -> Floats:
        """The best step so far of each group; there are few, so that rows are looked up and not sorted."""
        known = np.array(sorted(self.best), np.int64)
        steps_s = np.array([*(self.best[group][0] for group in known.tolist()), np.inf])
        place = np.searchsorted(known, groups)
        return np.asarray(steps_s[np.where(np.append(known, -1)[place] == groups, place, len(known))])

    def enter(self, entries: Entries, parts: Gathered) -> None:
        """Add strategies; those that promise the most are simulated at once, so that limits fall early."""
        one = entries.meshes.columns["pp"] == 1  # the bound is the step
        for row in _first_of_each(entries, np.flatnonzero(one & (entries.bound_s < self._limits(entries.group)))):
            self._reach(entries, int(row), float(entries.bound_s[row]))
        entries = entries.take(~one & (entries.bound_s < self._limits(entries.group)))
        if not len(entries.bound_s):
            return
        first = _first_of_each(entries, np.arange(len(entries.bound_s)))
        first = first[entries.bound_s[first] < (1 - WORTH) * self.reached_s(entries.group[first])]
        first = first[np.argsort(entries.gpu_seconds[first], kind="stable")][: self._at_once]
        rest = np.ones(len(entries.bound_s), bool)
        for row in first[:, None]:
            if entries.bound_s[row] < self._limits(entries.group[row]):
                self._simulate(entries, parts, row)
                rest[row] = False
        self._waiting.append((parts, entries.take(rest)))

    def decide(self) -> None:
        """Simulate whatever could still win, the lowest bounds first."""
        waiting, self._waiting = self._waiting, []
        size = FIRST
        tables: list[tuple[Gathered, list[Entries]]] = []
        for parts, entries in waiting:
            known = next((some for other, some in tables if other.parts is parts.parts), None)
            if known is None:
                tables.append((parts, [entries]))
            else:
                known.append(entries)
        for parts, several in tables:
            entries = join(several)
            order = np.argsort(entries.gpu_seconds, kind="stable")
            while len(order):
                order = order[entries.bound_s[order] < self._limits(entries.group[order])]
                self._simulate(entries, parts, order[:size])
                order, size = order[size:], min(2 * size, MOST)

    def _simulate(self, entries: Entries, parts: Gathered, rows: Ints) -> None:
        if not len(rows):
            return
        some = entries.take(rows)
        own = parts._replace(place=some.place)
        pipeline_s = pipelines_s(self.job, some.meshes, own, some.recomputes, some.exchanged_s, some.send_s)
        step_s = step.seconds(self.job, pipeline_s, some.after_s, some.waits)
        self.simulated += len(rows)
        for row in np.argsort(step_s, kind="stable").tolist():
            self._reach(some, row, float(step_s[row]))

    def _reach(self, entries: Entries, row: int, step_s: float) -> None:
        group = int(entries.group[row])
        if step_s < self.best.get(group, (np.inf,))[0]:
            found = to_strategy(self.job, entries.meshes, entries.recomputes, entries.shardings, row, row, row)
            self.best[group] = (step_s, found)


def _first_of_each(entries: Entries, rows: Ints) -> Ints:
    """The row with the lowest bound of each group."""
    order = rows[np.lexsort((entries.bound_s[rows], entries.group[rows]))]
    return order[np.unique(entries.group[order], return_index=True)[1]]


def to_strategy(
    job: Job, meshes: Meshes, recomputes: Recomputes, shardings: Sharding, mesh: int, recompute: int, sharding: int
) -> Strategy:
    """A mesh, a recompute and a sharding as a Strategy; switches that have nothing to switch are off."""
    columns = {name: column[mesh] for name, column in meshes.columns.items()}
    layout = meshes.layouts[int(meshes.layout[mesh])]
    zero = int(shardings.zero[sharding])
    overlap = tuple(name for name in OVERLAPS if columns[f"overlap_{name}"] and not (name == "param" and zero == 0))
    uneven = () if layout.layers == even(sum(layout.layers), layout.pp * layout.vp) else layout.layers
    degrees: dict[str, Any] = {name: int(columns[name]) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs")}
    codes = {
        "recompute": recomputes.recompute[recompute],
        "method": recomputes.method[recompute],
        "schedule": columns["schedule"],
    }
    codes |= {name: getattr(shardings, name)[sharding] for name in ("offload", "moments", "reshard")}
    choices: dict[str, Any] = {name: CHOICES[name][int(value)] for name, value in codes.items()}
    return Strategy(
        **degrees,
        **choices,
        **said(job, degrees["ep"]),
        modules=module_names(job, int(recomputes.modules[recompute])),
        offload_layers=int(recomputes.offload_layers[recompute]),
        sp=bool(columns["sp"]),
        flash=bool(columns["flash"]),
        zero=zero,
        recompute_layers=int(recomputes.layers[recompute]),
        overlap=overlap,
        layers=uneven,
    )


GROUP: Final = ("tp", "pp", "ep")  # plans that differ here are different plans; the rest are variants of one
_FEWER: Final = 1_000_000  # than this many GPUs along one dimension
CELLS: Final = 200_000  # entries of one block: large enough for NumPy, small enough for the cache
FIRST_GRIDS: Final = 256
MOST_GRIDS: Final = 4096


def growing(order: Ints, first: int = FIRST_GRIDS) -> Iterator[Ints]:
    """Rows in blocks that double, so that an easy search stops early and a hard one runs at full width."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, min(2 * size, MOST_GRIDS)


def group_of(columns: Columns) -> Ints:
    """A number for each group."""
    numbers = np.zeros(len(columns[GROUP[0]]), np.int64)
    for name in GROUP:
        numbers = numbers * _FEWER + columns[name]
    return numbers


def entries_of(
    result: Evaluated, fits: Bools, meshes: Meshes, send_s: Floats, parts: Gathered, recomputes: Recomputes,
    shardings: Sharding, group: Ints, waits: Floats, *, first: bool,
) -> Entries:  # fmt: skip
    """What fits and may win, as rows of the contest; the quickest recompute enters the first time only."""
    mesh, recompute, sharding = least_recomputes(result, recomputes, fits)
    if not first:
        mesh, recompute, sharding = (column[recompute > 0] for column in (mesh, recompute, sharding))
    return Entries(
        result.bound_s[mesh, recompute, sharding],
        result.exchanged_s[mesh, sharding],
        result.after_s[mesh, sharding],
        group[mesh],
        waits[mesh, sharding],
        meshes.take(mesh),
        send_s[mesh],
        parts.place[mesh],
        recomputes.take(recompute),
        Sharding(*(column[sharding] for column in shardings)),
    )


def join_parts(several: Sequence[Gathered]) -> Gathered:
    """The places of several tables that share their parts."""
    return several[0]._replace(place=np.concatenate([some.place for some in several]))


def blocks(rows: Ints, width: int) -> list[Ints]:
    """Rows in blocks whose arrays, ``width`` entries a row, have a good size."""
    size = max(CELLS // width, 8)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def by_depth(
    rows: Ints, costs: StageCosts, recomputes: Recomputes, shardings: int
) -> Iterator[tuple[Ints, Recomputes]]:
    """Blocks of rows and the recomputes that they have layers for.

    A shallow chunk has few to choose from, so that many rows are taken with others of like depth.
    """
    depth = costs.chunk_layers[rows].max(axis=1, initial=0)
    level = np.log2(np.maximum(depth, 1)).astype(np.int64) // 2
    width = shardings * costs.forward_s.shape[1]
    if len(rows) * len(recomputes.up_to(int(depth.max(initial=0)))) * width <= CELLS // 4:
        level[:] = 0
    for one in unique(level):
        some = recomputes.up_to(int(depth[level == one].max()))
        yield from ((block, some) for block in blocks(rows[level == one], len(some) * width))
