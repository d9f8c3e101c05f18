"""What every pool of a fleet can do with a layer: its legal shardings, what they cost, and their rates for bounds."""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

import numpy as np

from astra.cost import mixed as cost
from astra.cost.constants import WORKSPACE_BYTES
from astra.cost.memory import room_bytes
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Floats
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.table import check
from astra.search.fleet.bounds import LONG, Rates
from astra.search.fleet.pools import Fleet, Limits
from astra.search.space import divisors
from astra.spec.job import Job
from astra.spec.strategy import RECOMPUTES

MOST_TOKENS: Final = 131_072  # of a micro-batch; beyond it activations fit no GPU
MOST_TP: Final = 64
LONG_SEQUENCE: Final = 16_384  # context parallelism is tried beyond
WORTH_SELECTIVE: Final = 0.97  # of the activations: fused attention leaves it nothing to save


class Way(NamedTuple):
    """The legal shardings of one pool."""

    job: Job
    columns: cost.PoolColumns
    layer_s: Floats  # [row] the cheapest layer, for bounds


class Shardings:
    """The shardings of every pool of a fleet."""

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self.fleet, self.limits, self.zero = fleet, limits, limits.zero
        self.model, self.batch = fleet.job.model, fleet.job.workload.global_batch
        self.depth = len(layer_kinds(self.model))
        self.uniform = len(kinds(self.model)) == 1  # layers are alike
        seq = fleet.job.workload.seq
        large = limits.names("mbs")
        self.mbs = limits.filter("mbs", [n for n in divisors(self.batch) if large or n == 1 or n * seq <= MOST_TOKENS])
        rings = seq > LONG_SEQUENCE or limits.names("cp")
        self.cp = limits.filter("cp", [n for n in (1, 2, 4, 8, 16, 32) if n == 1 or (rings and seq % (2 * n) == 0)])
        costed = fleet.columns or tuple(self._columns(job) for job in fleet.jobs)
        self.ways = [
            Way(job, columns, columns.work_s[:, : len(kinds(self.model))].min(axis=1))
            for job, columns in zip(fleet.jobs, costed, strict=True)
        ]
        allowed = limits.filter("recompute", RECOMPUTES)
        saved = any(_saves(way.columns) for way in self.ways)
        # Fused attention leaves selective recompute nothing to save, so that it is tried where it does or must be.
        self.recomputes = [name for name in allowed if name != "selective" or saved or "none" not in allowed]
        found = {pair for way in self.ways for pair in zip(*way.columns.shards[::2], strict=True)}
        self.settings = sorted((int(tp), int(ep)) for tp, ep in found)  # tp and ep of any pool
        self.rates = [self._rates(way) for way in self.ways]

    def _weights(self) -> Floats:
        """[kind] what a layer counts for in bounds, an average layer being 1.

        No sharding takes less time for a layer's weight than for that of the commonest kind: it makes the bound.
        """
        order = kinds(self.model)
        counts = np.array([sum(kind == other for other in layer_kinds(self.model)) for kind in order])
        common = int(counts.argmax())
        seconds = np.concatenate(
            [each[:, : len(order)] for way in self.ways
             for each in (way.columns.work_s, way.columns.work_s + way.columns.again_s)]
        )  # fmt: skip
        least = (seconds / seconds[:, common : common + 1]).min(axis=0) if len(seconds) else np.ones(len(order))
        return np.asarray(least * self.depth / (least * counts).sum())

    def _rates(self, way: Way) -> Rates:
        """A pool's ways to hold layers, for bounds."""
        rows = {pair: place for place, pair in enumerate(product(self.mbs, self.cp))}
        codes = [RECOMPUTES.index(name) for name in self.recomputes]
        ways = {(tp, ep, code): n for n, ((tp, ep), code) in enumerate(product(self.settings, codes))}
        job, columns, count = way.job, way.columns, len(kinds(self.model))
        shape = (len(rows), len(ways))
        layer_s, (head_s, stay, shared, kept, room) = np.full(shape, LONG), (np.zeros(shape) for _ in range(5))
        weights = self._weights()
        one, two = (cost.resident_bytes(job, columns, dp, self.zero)[:, :count] / weights for dp in (1, 2))
        limit = room_bytes(job)
        work = {code: columns.work_s + again_s(columns, name) for code, name in enumerate(RECOMPUTES)}
        for row, (tp, cp, ep, mbs) in enumerate(zip(*(column.tolist() for column in columns.shards), strict=True)):
            for code in codes:
                at = rows[mbs, cp], ways[tp, ep, code]
                layer_s[at] = (work[code][row, :count] / weights).min()
                head_s[at] = columns.work_s[row, count + 1]
                stay[at], shared[at] = (2 * two - one)[row].min(), 2 * (one - two)[row].min()
                least = columns.checkpoint if code == 2 else np.minimum(columns.whole, columns.selective)
                kept[at] = (least[row, :count] / weights).min()
                room[at] = limit - columns.working[row] - columns.ends_bytes[row] - WORKSPACE_BYTES
        settings = [self.settings.index((tp, ep)) for tp, ep, _ in ways]
        tps, coded = (np.array([key[place] for key in ways], np.int64) for place in (0, 2))
        lightest = 1.0 if self.uniform else float(weights.min())
        return Rates(layer_s, head_s, stay, shared, kept, room, tps, np.array(settings, np.int64), coded, lightest)

    def _columns(self, job: Job) -> cost.PoolColumns:
        """What the legal shardings of a pool cost."""
        links = job.pool.node.links
        reach = min(links[0].reach if links else 1, job.pool.gpus, MOST_TP)
        tp = self.limits.filter("tp", [n for n in divisors(self.model.heads) if n <= reach])
        experts = 1 if self.model.moe is None else self.model.moe.experts
        ep = self.limits.filter("ep", [n for n in divisors(experts) if n <= 64])
        rows = np.array(list(product(tp, self.cp, ep, self.mbs)), np.int64).reshape(-1, 4)
        sp = rows[:, 0] > 1
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        columns = dict(zip(("tp", "cp", "ep", "mbs"), rows.T, strict=True)) | {
            "sp": sp,
            "etp": np.ones_like(rows[:, 0]),
            "zero": np.full_like(rows[:, 0], self.zero),
        }
        legal = check(columns, facts, rules_of(job.runtime)).ok & self.limits.sequence_parallel(rows[:, 0])
        overlap_tp = "tp" in self.limits.overlap
        found = cost.pool_columns(job, cost.Shards(*rows[legal].T), overlap_tp=overlap_tp)
        if self.model.moe is not None and len(found.shards.tp):
            few = rows[legal][self._few_experts(job, found)]
            found = cost.pool_columns(job, cost.Shards(*few.T), overlap_tp=overlap_tp)
        return found

    def _few_experts(self, job: Job, columns: cost.PoolColumns) -> list[int]:
        """Rows with the expert degrees worth trying: of each sharding the fastest, the smallest and one between."""
        count = len(kinds(self.model))
        seconds = columns.work_s[:, :count].sum(axis=1)
        nbytes = cost.resident_bytes(job, columns, 1, self.zero)[:, :count].sum(axis=1)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for row, (tp, cp, _, mbs) in enumerate(zip(*(column.tolist() for column in columns.shards), strict=True)):
            by_shape.setdefault((tp, cp, mbs), []).append(row)
        kept: set[int] = set()
        for rows in by_shape.values():
            front = [a for a in rows if not any(seconds[b] <= seconds[a] and nbytes[b] < nbytes[a] for b in rows)]
            front.sort(key=lambda row: seconds[row])
            kept |= {front[0], front[len(front) // 2], front[-1]}
        return sorted(kept)


def _saves(columns: cost.PoolColumns) -> bool:
    """Whether selective recompute saves something worth it, with any sharding."""
    return bool((columns.selective < WORTH_SELECTIVE * columns.whole).any())


def again_s(columns: cost.PoolColumns, recompute: str) -> Floats:
    """What recompute adds to a micro-batch."""
    return {"none": 0.0 * columns.again_s, "selective": columns.attention_s, "full": columns.again_s}[recompute]
