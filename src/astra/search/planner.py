"""The exhaustive search: enumerate, refuse, bound, cost, rank, refine.

Best first, and exact. Three lower bounds of the step time, each tighter and dearer than the one before, decide what is
costed: of a core (compute spread evenly over the stages, no bubble), of a mesh (its slowest stage and its bubble), and
of a mesh with a ZeRO stage and offload that leave it room (no recompute). A strategy is left uncosted only if a bound
is already above the plans kept, or its mesh cannot fit with every saver at once, or its mesh has reached its own bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from astra.cost.stage import (
    Gathered,
    Meshes,
    StageCosts,
    gather_parts,
    join_meshes,
    least_s,
    over_model,
    stage_costs,
)
from astra.cost.state import static_bytes
from astra.cost.step import Evaluated, Holders, Savers, evaluate, least_bytes, makespan, reserved_bytes
from astra.families.split import even
from astra.provenance import Bools, Floats, Ints
from astra.space.enumerate import Space
from astra.space.restrictions import Restrictions
from astra.space.rules import Rule, check
from astra.spec.job import Job
from astra.spec.strategy import OVERLAPS, Strategy
from astra.table import CHOICES, joined, largest, take

GROUP: Final = ("tp", "pp", "ep")  # plans that differ here are different plans; the rest are variants of one
CELLS: Final = 200_000  # entries of one block: large enough for NumPy, small enough for the cache
FIRST_CORES: Final = 64
MOST_CORES: Final = 4096
FIRST_PENDING: Final = 512  # meshes put aside before the savers are tried on them; more once something fits
MOST_PENDING: Final = 8192
UNSAVED: Final = Savers(np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64))  # nothing recomputed

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
    space = Space(job, restrictions, user_rules)
    leaders = Leaders(job, space, keep)
    if len(space.strategies) and len(space.holders) and len(space.savers):
        gathered = gather_parts(job, space.cores | {"flash": space.flash})
        bound_s = core_bound_s(job, space, gathered)
        order = np.argsort(bound_s, kind="stable")
        for block in growing(order):
            if bound_s[block[0]] >= leaders.worst_s():
                break
            leaders.cost(block, gathered)
            if progress is not None:
                progress(leaders.cores / len(order))
        leaders.finish()
    return leaders.found(time.perf_counter() - started)


def core_bound_s(job: Job, space: Space, gathered: Gathered) -> Floats:
    """Compute and exposed communication of all micro-batches, spread evenly over the stages."""
    whole = over_model(job, gathered, least_s)
    microbatches = job.workload.global_batch // (space.cores["dp"] * space.cores["mbs"])
    return (microbatches * whole / space.cores["pp"] + job.runtime.step_host_s) * (1 + job.straggling)


def growing(order: Ints) -> Iterator[Ints]:
    """Rows in blocks that double, so that an easy search stops early and a hard one runs at full width."""
    start, size = 0, FIRST_CORES
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, min(2 * size, MOST_CORES)


class _Pending(NamedTuple):
    """Meshes that could be better with recompute."""

    meshes: Meshes
    costs: StageCosts
    bound_s: Floats


class Leaders:
    """The best plans so far and the ledger."""

    def __init__(self, job: Job, space: Space, keep: int) -> None:
        self.job, self.space, self.keep = job, space, keep
        self.best: dict[tuple[int, ...], tuple[float, Strategy]] = {}  # by group
        self._worst_s = np.inf
        self.quickest = space.savers.take(slice(0, 1))  # no recompute, unless that is restricted
        self.cores = self.evaluated = self.feasible = 0
        self.too_large = 0.0
        self.unfit = 0.0  # strategies of meshes that cannot fit at all
        self.least: tuple[float, Strategy | None] = (np.inf, None)
        self._pending: list[_Pending] = []

    def worst_s(self) -> float:
        """The step time a plan must beat to enter the leaders."""
        return self._worst_s

    def _enter(self, group: tuple[int, ...], step_s: float, strategy: Strategy) -> None:
        self.best[group] = (step_s, strategy)
        if len(self.best) >= self.keep:
            self._worst_s = sorted(entry[0] for entry in self.best.values())[self.keep - 1]

    def cost(self, cores: Ints, gathered: Gathered) -> None:
        """Expand cores to meshes and cost those that may enter the leaders, best first."""
        self.cores += len(cores)
        meshes, strategies, origin = self.space.expand(cores)
        if not len(meshes):
            return
        alike = bool((meshes.columns["flash"] == self.space.flash[origin]).all())
        parts = gathered.take(origin) if alike else gather_parts(self.job, meshes.columns)
        costs = stage_costs(self.job, meshes, parts)
        rows = self._possible(meshes, strategies, costs)
        held_s, reached_s = np.full((len(meshes), len(self.space.holders)), np.inf), np.full(len(meshes), np.inf)
        for block in blocks(rows, len(self.space.holders) * costs.forward_s.shape[1]):
            part = meshes.take(block), take(costs, block)
            held_s[block], reached_s[block] = self._offer(*part, self.quickest, first=True)
            if self.quickest.recompute[0]:  # no recompute bounds every saver, also where it is not allowed itself
                held_s[block] = evaluate(self.job, *part, UNSAVED, self.space.holders).step_s.min(axis=1)
        # A mesh that has reached its bound has nothing left to gain; the others may with recompute.
        limit_s = np.minimum(reached_s, self.worst_s())
        rows = rows[held_s.min(axis=1)[rows] < limit_s[rows]]
        bound_s = held_s[rows].min(axis=1)
        if self.best:  # as long as nothing fits, advice needs the smallest strategy of all
            room = self.room(meshes.take(rows), take(costs, rows))
            bound_s = np.where(room, held_s[rows], np.inf).min(axis=1)
            lost = bound_s >= limit_s[rows]
            savers = strategies[rows] / len(self.space.holders)
            self.unfit += float(((savers - 1) * (~room).sum(axis=1))[lost].sum())
            rows, bound_s = rows[~lost], bound_s[~lost]
        self._pending.append(_Pending(meshes.take(rows), take(costs, rows), bound_s))
        if sum(len(pending.bound_s) for pending in self._pending) > (MOST_PENDING if self.best else FIRST_PENDING):
            self.finish()

    def finish(self) -> None:
        """Try every saver on the meshes put aside, best first."""
        if not self._pending:
            return
        meshes = join_meshes([pending.meshes for pending in self._pending])
        costs = joined([pending.costs for pending in self._pending])
        bound_s = np.concatenate([pending.bound_s for pending in self._pending])
        self._pending.clear()
        order = np.argsort(bound_s, kind="stable")
        for some in growing(order):
            promising = some[bound_s[some] < self.worst_s()]
            for block in by_depth(promising, costs, len(self.space.holders)):
                deepest = int(costs.chunk_layers[block].max())
                self._offer(
                    meshes.take(block),
                    take(costs, block),
                    self.space.savers.up_to(deepest),
                    first=False,
                )

    def _possible(self, meshes: Meshes, strategies: Floats, costs: StageCosts) -> Ints:
        """Meshes that may fit and may enter the leaders, by bound; all that may enter if none has fitted yet."""
        slowest = largest(costs.forward_s + costs.backward_s)[:, None, None]
        pipeline_s = makespan(meshes, costs, slowest, np.zeros((1, 1, 1)))[:, 0, 0]
        bound_s = (pipeline_s + self.job.runtime.step_host_s) * (1 + self.job.straggling)
        fits = self.may_fit(costs)
        if fits.any() or self.best:
            self.unfit += float(strategies[~fits].sum())
        else:
            fits[:] = True
        rows = np.flatnonzero(fits & (bound_s < self.worst_s()))
        return rows[np.argsort(bound_s[rows], kind="stable")]

    def room(self, meshes: Meshes, costs: StageCosts) -> Bools:
        """[mesh, holder] whether some saver could make the mesh fit."""
        least = least_bytes(self.job, costs, meshes.columns["vp"], self.space.holders)
        return np.asarray(reserved_bytes(self.job, least) <= self.job.limit_bytes)

    def may_fit(self, costs: StageCosts) -> Bools:
        """Whether a mesh could fit: all states sharded or offloaded, one checkpoint per chunk."""
        holders = self.space.holders
        most = Holders(np.array([holders.zero.max()]), np.array([holders.offload.max()]))
        static = static_bytes(
            self.job,
            costs.held,
            zero=most.zero,
            offload=most.offload,
            ranks=costs.replicas[:, None],
            expert_ranks=costs.expert_replicas[:, None],
            layers=costs.layers,
        )
        one_input = costs.kept_checkpoint / np.maximum(costs.layers, 1)
        working = np.maximum(costs.layer_working, costs.head_bytes)
        states = static.weights + static.gradients + static.optimizer
        least = largest(states + one_input * costs.in_flight + working)
        return np.asarray(reserved_bytes(self.job, least) <= self.job.limit_bytes)

    def _offer(self, meshes: Meshes, costs: StageCosts, savers: Savers, *, first: bool) -> tuple[Floats, Floats]:
        """Cost meshes with some savers and every holder.

        The best step of each mesh by holder, and the best legal one of each mesh that fits.
        """
        holders = self.space.holders
        result = evaluate(self.job, meshes, costs, savers, holders)
        held_s = result.step_s.min(axis=1)  # before rules: what they refuse here may be legal with another saver
        if self.space.late_rules:
            result = self._without_refused(meshes, result, savers, first=first)
        reserved = reserved_bytes(self.job, result.peak_bytes)
        fits = result.known & (reserved <= self.job.limit_bytes)
        new = slice(0 if first else 1, None)  # the quickest saver comes first and is counted once
        self.evaluated += int(result.known[:, new].sum())
        self.feasible += int(fits[:, new].sum())
        self.too_large += float((result.known & ~fits)[:, new].sum())
        rows = np.arange(len(meshes))
        step = np.where(fits, result.step_s, np.inf).reshape(len(meshes), -1)
        choice = step.argmin(axis=1)
        best_s = step[rows, choice]
        if not np.isfinite(best_s).any():
            self._note_least(meshes, result, reserved, savers)
        for row in np.argsort(best_s, kind="stable")[: int(np.isfinite(best_s).sum())]:
            if best_s[row] > self.worst_s():  # and so are all that follow
                break
            group = tuple(int(meshes.columns[name][row]) for name in GROUP)
            if best_s[row] < self.best.get(group, (self.worst_s(),))[0]:
                saver, holder = divmod(int(choice[row]), len(holders))
                strategy = to_strategy(meshes, savers, holders, int(row), saver, holder)
                self._enter(group, float(best_s[row]), strategy)
        return held_s, best_s

    def _without_refused(self, meshes: Meshes, result: Evaluated, savers: Savers, *, first: bool) -> Evaluated:
        """Apply the rules that speak of recompute, ZeRO or offload."""
        shape = result.known.shape
        spoken = {name for rule in self.space.late_rules for name in rule.needs} | {"batch"}
        columns = {
            name: np.broadcast_to(column[:, None, None], shape).ravel() for name, column in meshes.columns.items()
        }
        late = {"recompute": savers.recompute, "method": savers.method, "recompute_layers": savers.layers}
        columns |= {n: np.broadcast_to(c[None, :, None], shape).ravel() for n, c in late.items() if n in spoken}
        held = {"zero": self.space.holders.zero, "offload": self.space.holders.offload}
        columns |= {n: np.broadcast_to(c[None, None, :], shape).ravel() for n, c in held.items() if n in spoken}
        new = result.known.copy()
        if not first:
            new[:, :1] = False
        verdict = check(columns, self.space.facts, self.space.late_rules, weights=new.ravel().astype(np.float64))
        for name, count in verdict.ledger.items():
            self.space.refused[name] = self.space.refused.get(name, 0) + count
        return result._replace(known=result.known & verdict.ok.reshape(shape))

    def _note_least(self, meshes: Meshes, result: Evaluated, reserved: Floats, savers: Savers) -> None:
        """Remember the smallest strategy seen, in case nothing fits."""
        smallest = np.where(result.known, reserved, np.inf)
        place = np.unravel_index(int(smallest.argmin()), smallest.shape)
        if float(smallest[place]) < self.least[0]:
            mesh, saver, holder = (int(x) for x in place)
            strategy = to_strategy(meshes, savers, self.space.holders, mesh, saver, holder)
            self.least = (float(smallest[place]), strategy)

    def found(self, seconds: float) -> Found:
        """The leaders as strategies, and the account."""
        space = self.space
        ranked = sorted(self.best.values(), key=lambda entry: entry[0])[: self.keep]
        turned_away = sum(space.refused.values()) + space.dominated
        slower = space.considered - turned_away - self.feasible - round(self.too_large + self.unfit)
        return Found(
            candidates=[Candidate(strategy, step_s) for step_s, strategy in ranked],
            considered=space.considered,
            evaluated=self.evaluated,
            feasible=self.feasible,
            seconds=seconds,
            refused=space.refused,
            dominated=space.dominated,
            too_large=round(self.too_large + self.unfit),
            slower=max(slower, 0),
            least_bytes=self.least[0],
            least=self.least[1],
        )


def blocks(rows: Ints, width: int) -> list[Ints]:
    """Rows in blocks whose arrays, ``width`` entries a row, have a good size."""
    size = max(CELLS // width, 8)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def by_depth(rows: Ints, costs: StageCosts, holders: int) -> Iterator[Ints]:
    """Rows with chunks of like depth together: a shallow chunk has few layers to choose for recompute."""
    depth = np.log2(np.maximum(costs.chunk_layers[rows].max(axis=1), 1)).astype(np.int64) // 2
    for level in np.unique(depth):
        savers = 2 + 2 * 4 ** (int(level) + 1)
        yield from blocks(rows[depth == level], savers * holders * costs.forward_s.shape[1])


def to_strategy(meshes: Meshes, savers: Savers, holders: Holders, mesh: int, saver: int, holder: int) -> Strategy:
    """A mesh, a saver and a holder as a Strategy; switches that have nothing to switch are off."""
    columns = {name: column[mesh] for name, column in meshes.columns.items()}
    layout = meshes.layouts[int(meshes.layout[mesh])]
    zero = int(holders.zero[holder])
    overlap = tuple(name for name in OVERLAPS if columns[f"overlap_{name}"] and not (name == "param" and zero == 0))
    uneven = () if layout.layers == even(sum(layout.layers), layout.pp * layout.vp) else layout.layers
    degrees: dict[str, Any] = {name: int(columns[name]) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs")}
    choices: dict[str, Any] = {
        "recompute": CHOICES["recompute"][int(savers.recompute[saver])],
        "method": CHOICES["method"][int(savers.method[saver])],
        "offload": CHOICES["offload"][int(holders.offload[holder])],
        "schedule": CHOICES["schedule"][int(columns["schedule"])],
    }
    return Strategy(
        **degrees,
        **choices,
        sp=bool(columns["sp"]),
        flash=bool(columns["flash"]),
        zero=zero,
        recompute_layers=int(savers.layers[saver]),
        overlap=overlap,
        layers=uneven,
    )
