"""The exhaustive search: enumerate, refuse, bound, cost, rank, refine.

Exact: a mesh is left uncosted only if a lower bound of its step time, which ignores recompute, data-parallel
communication and the optimizer, is already above the best kept plans, or if it cannot fit with every saver at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from astra.cost.stage import Meshes, StageCosts, stage_costs
from astra.cost.state import static_bytes
from astra.cost.step import Evaluated, Holders, Savers, evaluate, makespan, reserved_bytes
from astra.families.split import even
from astra.provenance import Bools, Floats, Ints
from astra.space.enumerate import Space, enumerate_space
from astra.space.restrictions import Restrictions
from astra.space.rules import Rule
from astra.spec.job import Job
from astra.spec.strategy import OVERLAPS, Strategy
from astra.table import CHOICES

GROUP: Final = ("tp", "cp", "pp", "ep", "etp")  # plans that differ here are different plans; the rest are variants
FIRST_BLOCK: Final = 32  # meshes costed before the first look at the bound
CELLS: Final = 400_000  # entries of one block: large enough for NumPy, small enough for the cache

Progress = Callable[[float], None]


class Candidate(NamedTuple):
    """The best variant of one group, by the closed form."""

    strategy: Strategy
    step_s: float


class Found(NamedTuple):
    """What a search found, best first, and an account of every strategy considered."""

    candidates: list[Candidate]
    considered: int
    evaluated: int
    feasible: int
    seconds: float
    refused: dict[str, int]
    dominated: int
    too_large: int  # do not fit
    slower: int  # proven slower than the plans kept
    least_bytes: float  # the smallest reserved memory among legal strategies, for advice when nothing fits
    least: Strategy | None


def search(
    job: Job,
    restrictions: Restrictions,
    *,
    user_rules: Sequence[Rule] = (),
    keep: int,
    progress: Progress | None = None,
) -> Found:
    """The best ``keep`` groups of strategies."""
    started = time.perf_counter()
    space = enumerate_space(job, restrictions, user_rules)
    leaders = _Leaders(job, space, keep)
    if len(space.meshes):
        costs = stage_costs(job, space.meshes)
        order, possible = leaders.bound(costs)
        for block in _blocks(order, space, costs):
            if leaders.beyond(block):
                break
            leaders.offer(block, costs)
            if progress is not None:
                progress(leaders.done / max(int(possible.sum()), 1))
    return leaders.found(time.perf_counter() - started)


def _blocks(order: Ints, space: Space, costs: StageCosts) -> list[Ints]:
    """Meshes by rising bound, a few first and then as many as fit a block."""
    width = len(space.savers) * len(space.holders) * costs.forward_s.shape[1]
    size = max(CELLS // max(width, 1), 8)
    first = min(FIRST_BLOCK, size)
    starts = [0, *range(first, len(order), size)]
    return [order[start:stop] for start, stop in zip(starts, [*starts[1:], len(order)], strict=True) if stop > start]


class _Leaders:
    """The best plans so far and the ledger."""

    def __init__(self, job: Job, space: Space, keep: int) -> None:
        self.job, self.space, self.keep = job, space, keep
        self.best: dict[tuple[int, ...], tuple[float, int, int, int]] = {}  # group -> step, mesh, saver, holder
        self.bound_s: Floats = np.zeros(0)
        self.done = self.evaluated = self.feasible = 0
        self.too_large = 0.0
        self.reached = 0.0  # strategies of meshes costed
        self.unfit = 0.0  # strategies of meshes that cannot fit at all
        self.least: tuple[float, int, int, int] = (np.inf, -1, 0, 0)

    def bound(self, costs: StageCosts) -> tuple[Ints, Bools]:
        """Meshes that may fit, by a lower bound of their step time."""
        slowest = (costs.forward_s + costs.backward_s).max(axis=-1)[:, None, None]
        self.bound_s = makespan(self.space.meshes, costs, slowest, np.zeros((1, 1, 1)))[:, 0, 0] + self.job.runtime.step_host_s
        possible = reserved_bytes(self.job, self._least_bytes(costs)) <= self.job.limit_bytes
        self.unfit = float(self.space.strategies[~possible].sum())
        if not possible.any():
            possible = np.ones_like(possible)  # cost them all, to say what would be needed
            self.unfit = 0.0
        rows = np.flatnonzero(possible)
        return rows[np.argsort(self.bound_s[rows], kind="stable")], possible

    def _least_bytes(self, costs: StageCosts) -> Floats:
        """The least each mesh could need: all states sharded or offloaded, one checkpoint per chunk."""
        most = (np.array([self.space.holders.zero.max()]), np.array([self.space.holders.offload.max()]))
        static = static_bytes(
            self.job,
            costs.held,
            zero=most[0],
            offload=most[1],
            ranks=costs.replicas[:, None],
            expert_ranks=costs.expert_replicas[:, None],
            layers=costs.layers,
        )
        one_input = costs.kept_checkpoint / np.maximum(costs.layers, 1)
        working = np.maximum(costs.layer_working, costs.head_bytes)
        states = static.weights + static.gradients + static.optimizer
        least: Floats = (states + one_input * costs.in_flight + working).max(axis=-1)
        return least

    def beyond(self, block: Ints) -> bool:
        """Whether nothing in this block, or after it, can enter the leaders."""
        if len(self.best) < self.keep:
            return False
        worst = sorted(entry[0] for entry in self.best.values())[self.keep - 1]
        return bool(self.bound_s[block[0]] >= worst)

    def offer(self, block: Ints, costs: StageCosts) -> None:
        """Cost a block of meshes with every saver and holder and keep the best of each group."""
        meshes, space = self.space.meshes.take(block), self.space
        result = evaluate(self.job, meshes, _take(costs, block), space.savers, space.holders)
        reserved = reserved_bytes(self.job, result.peak_bytes)
        fits = result.known & (reserved <= self.job.limit_bytes)
        self.done += len(block)
        self.evaluated += int(result.known.sum())
        self.feasible += int(fits.sum())
        self.too_large += float((result.known & ~fits).sum())
        self.reached += float(space.strategies[block].sum())
        self._note_least(block, result, reserved)
        step = np.where(fits, result.step_s, np.inf).reshape(len(block), -1)
        choice = step.argmin(axis=1)
        best_s = step[np.arange(len(block)), choice]
        groups = np.stack([meshes.columns[name] for name in GROUP], axis=1)
        for row in np.flatnonzero(np.isfinite(best_s)):
            group = tuple(groups[row].tolist())
            saver, holder = divmod(int(choice[row]), len(space.holders))
            entry = (float(best_s[row]), int(block[row]), saver, holder)
            if entry < self.best.get(group, (np.inf,)):
                self.best[group] = entry

    def _note_least(self, block: Ints, result: Evaluated, reserved: Floats) -> None:
        smallest = np.where(result.known, reserved, np.inf).reshape(-1)
        place = int(smallest.argmin())
        mesh, saver, holder = (int(x) for x in np.unravel_index(place, result.peak_bytes.shape))
        self.least = min(self.least, (float(smallest[place]), int(block[mesh]), saver, holder))

    def found(self, seconds: float) -> Found:
        """The leaders as strategies, and the account."""
        ranked = sorted(self.best.values())[: self.keep]
        slower = float(self.space.strategies.sum()) - self.unfit - self.reached
        return Found(
            candidates=[Candidate(self.strategy(*entry[1:]), entry[0]) for entry in ranked],
            considered=self.space.considered,
            evaluated=self.evaluated,
            feasible=self.feasible,
            seconds=seconds,
            refused=self.space.refused,
            dominated=self.space.dominated,
            too_large=round(self.too_large + self.unfit),
            slower=round(max(slower, 0.0)),
            least_bytes=self.least[0],
            least=self.strategy(*self.least[1:]) if self.least[1] >= 0 else None,
        )

    def strategy(self, mesh: int, saver: int, holder: int) -> Strategy:
        """One cell of the search as a Strategy."""
        return to_strategy(self.space.meshes, self.space.savers, self.space.holders, mesh, saver, holder)


def to_strategy(meshes: Meshes, savers: Savers, holders: Holders, mesh: int, saver: int, holder: int) -> Strategy:
    """A mesh, a saver and a holder as a Strategy; switches that have nothing to switch are off."""
    columns = {name: column[mesh] for name, column in meshes.columns.items()}
    layout = meshes.layouts[int(meshes.layout[mesh])]
    zero = int(holders.zero[holder])
    overlap = tuple(name for name in OVERLAPS if columns[f"overlap_{name}"] and not (name == "param" and zero == 0))
    uneven = () if layout.layers == even(sum(layout.layers), layout.pp * layout.vp) else layout.layers
    degrees = {name: int(columns[name]) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs")}
    choices: dict[str, str] = {
        "recompute": CHOICES["recompute"][int(savers.recompute[saver])],
        "method": CHOICES["method"][int(savers.method[saver])],
        "offload": CHOICES["offload"][int(holders.offload[holder])],
        "schedule": CHOICES["schedule"][int(columns["schedule"])],
    }
    return Strategy(
        **degrees,
        **choices,  # type: ignore[arg-type]
        sp=bool(columns["sp"]),
        flash=bool(columns["flash"]),
        zero=zero,
        recompute_layers=int(savers.layers[saver]),
        overlap=overlap,
        layers=uneven,
    )


def _take(costs: StageCosts, rows: Ints) -> StageCosts:
    held = type(costs.held)(*(column[rows] for column in costs.held))
    columns = {name: getattr(costs, name)[rows] for name in costs._fields if name != "held"}
    return StageCosts(**columns, held=held)
