"""Step time and peak memory of one strategy, restated in plain Python.

Letters: t, p, v, c, e, x, d are tp, pp, vp, cp, ep, etp, dp; b the micro-batch, m the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from astra.efficiency import collectives
from astra.families import weights as weights_of
from astra.schedule import makespan_s
from astra.space.names import ALIASES, DERIVED, facts_of, names
from astra.space.restrictions import Restrictions
from astra.space.rules import RULES, Rule
from astra.spec.job import Job
from astra.spec.strategy import METHODS, OFFLOADS, OVERLAPS, RECOMPUTES, SCHEDULES, Strategy
from astra.table import CHOICES, FIELDS
from tests.oracle.layers import Layers, Part, Shard, hidden

CPU_BYTES_PER_S = 28e9  # of the optimizer's update in host memory
STATE_BYTES = {"adam": 12, "sgd": 8}
UPDATE_BYTES = {"adam": 30, "sgd": 22}
SAVER = ("recompute", "method", "recompute_layers")
Row = dict[str, Any]


class Mesh(NamedTuple):
    """A strategy without its memory savers."""

    shard: Shard
    p: int
    d: int
    v: int
    schedule: str
    layers: tuple[int, ...]  # of each virtual stage
    on: frozenset[str]  # overlaps

    @property
    def replicas(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Ranks and stride of the groups that share a dense and an expert parameter."""
        s = self.shard
        return (self.d * s.c, s.t), (s.t * s.c * self.d // (s.e * s.x), s.e * s.x)


class Saver(NamedTuple):
    """Recompute."""

    recompute: str
    method: str
    n: int


class Holder(NamedTuple):
    """Where states are."""

    zero: int
    offload: str


class Rank(NamedTuple):
    """One rank of a pipeline: the parts it runs, chunk by chunk, and its parameters."""

    chunks: list[list[Part]]  # layers only
    ends: list[Part]  # embedding, head
    head: Part | None
    dense: float
    expert: float
    trained: tuple[float, float]
    in_flight: int

    @property
    def layers(self) -> list[Part]:
        return [part for chunk in self.chunks for part in chunk]

    def seconds(self, way: str, on: frozenset[str]) -> float:
        return sum(part.seconds(way, on) for part in (*self.layers, *self.ends))


class Exchange(NamedTuple):
    """Data-parallel communication that shows: once a step, and in every micro-batch."""

    once_s: float
    each_s: float


class Oracle(Layers):
    """Costs, legality and search for one job."""

    def __init__(self, job: Job, limits: Restrictions | None = None, user_rules: Sequence[Rule] = ()) -> None:
        super().__init__(job)
        self.limits = limits or Restrictions()
        self.facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
        self.rules: list[tuple[Rule, list[str], dict[Any, bool]]] = [
            (rule, _fields_of(rule), {}) for rule in (*RULES, *user_rules)
        ]
        self.spoken = {name for rule in user_rules for name in rule.needs}
        self.ranks, self.saved = lru_cache(None)(self._ranks), lru_cache(None)(self._saved)
        self.states, self.exchange = lru_cache(None)(self._states), lru_cache(None)(self._exchange)

    # One strategy.

    def microbatches(self, mesh: Mesh) -> int:
        return self.job.workload.global_batch // (mesh.d * mesh.shard.b)

    def step_s(self, mesh: Mesh, saver: Saver, holder: Holder) -> float:
        """Pipeline, then what data parallelism shows, the optimizer and the host."""
        ranks, exchange, updates = self.ranks(mesh), self.exchange(mesh, holder), self.states(mesh, holder)
        forward_s = [rank.seconds("forward", mesh.on) for rank in ranks]
        backward_s = [rank.seconds("backward", mesh.on) for rank in ranks]
        weight_s = sum(part.weight_s for rank in ranks for part in (*rank.layers, *rank.ends))
        slowest_s = max(
            f + b + again + shown.each_s
            for f, b, (_, again), shown in zip(forward_s, backward_s, self.saved(mesh, saver), exchange, strict=True)
        )
        again_s = self._all_again_s(mesh, saver) + mesh.p * max(shown.each_s for shown in exchange)
        pipeline_s = self._makespan_s(mesh, sum(forward_s), sum(backward_s) + again_s, weight_s, slowest_s)
        after_s = max(shown.once_s + update_s for shown, (_, update_s) in zip(exchange, updates, strict=True))
        return pipeline_s + after_s + self.job.runtime.step_host_s

    def peak_bytes(self, mesh: Mesh, saver: Saver, holder: Holder) -> float:
        """Allocated on the worst rank."""
        received = 4 * self.tokens(mesh.shard)[1] * self.job.model.hidden if mesh.p > 1 else 0.0
        both = zip(self.saved(mesh, saver), self.states(mesh, holder), strict=True)
        return max(active + static for (active, _), (static, _) in both) + received + self.job.runtime.workspace_bytes

    def fits(self, peak_bytes: float) -> bool:
        runtime = self.job.runtime
        return peak_bytes * runtime.reserved_ratio + runtime.reserved_bytes <= self.job.limit_bytes

    def _ranks(self, mesh: Mesh) -> list[Rank]:
        s, model, parts = mesh.shard, self.job.model, self.parts(mesh.shard)
        starts = [sum(mesh.layers[:k]) for k in range(mesh.p * mesh.v)]
        found = []
        for r in range(mesh.p):
            mine = [range(starts[k], starts[k] + mesh.layers[k]) for k in range(r, mesh.p * mesh.v, mesh.p)]
            first, last = r == 0, r == mesh.p - 1
            held = [weights_of.layer_weights(model, self.kinds[i]) for chunk in mine for i in chunk]
            held += [weights_of.embedding_weights(model)] * first + [weights_of.head_weights(model)] * last
            if last and mesh.p > 1 and model.tied_embeddings:
                held.append(weights_of.tied_head_weights(model))
            dense = sum(part.sharded / s.t + part.replicated for part in held)
            expert = sum(part.expert / (s.e * s.x) for part in held)
            chunks = [[parts[self.kinds[i]] for i in chunk] for chunk in mine]
            ends = [parts["embedding"]] * first + [parts["head"]] * last
            trained = (dense, expert)
            if self.job.workload.task == "lora":
                added = sum(part.adapters for part in (*sum(chunks, []), *ends))
                trained, dense = (added, 0.0), dense + added
            found.append(Rank(chunks, ends, parts["head"] if last else None, dense, expert, trained, self._in_flight(mesh, r)))
        return found

    def _in_flight(self, mesh: Mesh, r: int) -> int:
        """(micro-batch, chunk) pairs alive on rank r at the worst moment."""
        p, v, m = mesh.p, mesh.v, self.microbatches(mesh)
        # Micro-batches pass a chunk in groups of p; of more where that would leave a group shorter than p.
        group = next((g for g in range(p, m) if m % g == 0 or m % g >= p), max(p, m))
        ahead = {"1f1b": p - r, "interleaved": 2 * (p - r - 1) + (v - 1) * group + 1, "gpipe": m, "zb": p}
        return min(ahead[mesh.schedule], m * v)

    def _saved(self, mesh: Mesh, saver: Saver) -> list[tuple[float, float]]:
        """Of each rank: bytes kept and being worked on, and seconds to recompute one micro-batch."""
        found = []
        for rank in self.ranks(mesh):
            layers, v, n = rank.layers, mesh.v, saver.n
            chunk, count = max(len(c) for c in rank.chunks), max(len(layers), 1)
            whole, inputs = sum(part.whole for part in layers), sum(part.checkpoint for part in layers)
            all_s = sum(part.seconds("forward", mesh.on) for part in layers)
            kept, again_s, stretch = whole, 0.0, 0
            if saver.recompute == "selective":
                kept, again_s = sum(part.selective for part in layers), sum(part.attention_s for part in layers)
            elif saver.method == "uniform" and saver.recompute == "full":
                kept, again_s, stretch = min(ceil(chunk / n) * v / count, 1) * inputs, all_s, min(n, chunk)
            elif saver.recompute == "full":  # block: the first n layers of each chunk, one at a time
                share = min(n * v / count, 1)
                kept, again_s, stretch = share * inputs + (1 - share) * whole, share * all_s, 1
            largest = max((part.whole for part in layers), default=0.0)
            working = max((part.working for part in layers), default=0.0) + stretch * largest
            if rank.head is not None:
                working = max(working, rank.head.whole + rank.head.working)
            found.append((kept * rank.in_flight / v + working, again_s))
        return found

    def _all_again_s(self, mesh: Mesh, saver: Saver) -> float:
        """Recompute of one micro-batch over the whole pipeline; under block, the share of the fullest rank's chunks."""
        ranks = self.ranks(mesh)
        layers = [part for rank in ranks for part in rank.layers]
        if saver.recompute == "selective":
            return sum(part.attention_s for part in layers)
        if saver.recompute == "none":
            return 0.0
        fullest = max(max(len(rank.layers) / mesh.v for rank in ranks), 1)
        share = min(saver.n / fullest, 1) if saver.method == "block" else 1
        return share * sum(part.seconds("forward", mesh.on) for part in layers)

    def _makespan_s(self, mesh: Mesh, forward_s: float, backward_s: float, weight_s: float, slowest_s: float) -> float:
        """Every stage once and the slowest m - 1 times more; interleaving divides the bubble."""
        p, v, m, work_s = mesh.p, mesh.v, self.microbatches(mesh), forward_s + backward_s
        send_s = self.send_s("send_recv", 2 * self.tokens(mesh.shard)[1] * self.job.model.hidden, p, self._apart(mesh))
        send_s, blocking = (send_s if p > 1 else 0.0), "p2p" not in mesh.on
        if mesh.schedule == "1f1b":
            hops = 0 if p == 1 else m + 1 if p == 2 else 2 * (p - 1) if m == 1 else 2 * m + 2 * p - 5
            return work_s + (m - 1) * slowest_s + hops * send_s
        if mesh.schedule == "interleaved" and not blocking and m % p == 0:
            return m * slowest_s + (work_s - slowest_s) / v + 2 * (p - 1 + (v - 1) * p) * send_s
        code = SCHEDULES.index(mesh.schedule)  # the other forms have tests of their own
        return float(makespan_s(
            code, p=p, v=v, m=m, forward_s=forward_s, backward_s=backward_s - weight_s, weight_s=weight_s,
            slowest_s=slowest_s, send_s=send_s, blocking=blocking,
        ))  # fmt: skip

    def _apart(self, mesh: Mesh) -> int:
        return mesh.shard.t * mesh.shard.c * mesh.d

    def _states(self, mesh: Mesh, holder: Holder) -> list[tuple[float, float]]:
        """Of each rank: bytes of weights, gradients, optimizer and gathered layers; seconds of the update."""
        job, grad = self.job, self.job.runtime.gradient_bytes
        (ranks, _), (expert_ranks, _) = mesh.replicas
        found = []
        for rank in self.ranks(mesh):
            def owned(dense: float, expert: float, stage: int) -> float:
                return dense / ranks + expert / expert_ranks if holder.zero >= stage else dense + expert

            every, all_trained = rank.dense + rank.expert, sum(rank.trained)
            static = 2 * owned(rank.dense, rank.expert, 3) + (2 * every if job.workload.precision == "fp8" else 0)
            static += grad * owned(*rank.trained, 2)
            static += {0: 0, 1: 0, 2: 1, 3: 2}[holder.zero] * (2 + grad) * every / max(len(rank.layers), 1)
            mine = owned(*rank.trained, 1)
            moved = UPDATE_BYTES[job.workload.optimizer] * mine
            if holder.offload == "none":
                static += STATE_BYTES[job.workload.optimizer] * mine
                update_s = self.stream_s(8 * all_trained + moved, 20)
            else:
                trips = collectives.host_transfer_s(job.pool.device, np.array([(grad + 2) * mine]))
                update_s = float(trips.seconds[0]) + moved / CPU_BYTES_PER_S + self.stream_s(8 * all_trained, 4)
            found.append((static, update_s))
        return found

    def _exchange(self, mesh: Mesh, holder: Holder) -> list[Exchange]:
        """Gradients to their owners behind the last backward, weights back behind the first forward."""
        slow, grad = collectives.overlap_slowdown(self.job.pool, "cluster"), self.job.runtime.gradient_bytes
        found = []
        for rank in self.ranks(mesh):
            def shown_s(busy_s: float, window_s: float, overlap: str, layers: int = len(rank.layers)) -> float:
                window_s = max(window_s, 0.0)
                tail_s = max(busy_s - window_s, busy_s / max(layers, 1)) + slow * min(busy_s, window_s)
                return min(tail_s, busy_s) if overlap in mesh.on else busy_s

            groups = [(size, *group) for size, group in zip(rank.trained, mesh.replicas, strict=True) if size]
            op = "reduce_scatter" if holder.zero else "all_reduce"
            reduce_s = sum(self.send_s(op, grad * size, *group) for size, *group in groups)
            gather_s = sum(self.send_s("all_gather", 2 * size, *group) for size, *group in groups) if holder.zero else 0.0
            backward_s = rank.seconds("backward", mesh.on)
            gradients_s = shown_s(reduce_s, backward_s, "grad")
            weights_s = shown_s(gather_s, rank.seconds("forward", mesh.on), "param")
            again_s = shown_s(gather_s, backward_s - reduce_s, "param")
            found.append({
                0: Exchange(gradients_s, 0.0),
                1: Exchange(gradients_s + weights_s, 0.0),
                2: Exchange(weights_s, gradients_s),
                3: Exchange(0.0, gradients_s + weights_s + again_s),
            }[holder.zero])  # fmt: skip
        return found
