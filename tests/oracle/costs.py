"""Step time and peak memory of one strategy, restated in plain Python.

Letters: t, p, v, c, e, x, d are tp, pp, vp, cp, ep, etp, dp; b the micro-batch, m the number of micro-batches.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, inf, log2
from typing import NamedTuple

import numpy as np

from astra.efficiency import collectives
from astra.families import weights as weights_of
from astra.schedule import Schedule, find
from astra.spec.job import Job
from astra.spec.strategy import OVERLAPS, Strategy
from tests.oracle.layers import Layers, Part, Shard

CPU_BYTES_PER_S = 28e9  # of the optimizer's update in host memory
STATE_BYTES = {"adam": 12, "sgd": 8}
UPDATE_BYTES = {"adam": 46, "sgd": 38}


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
        """Ranks and stride of the groups that share a dense and an expert parameter; one group without ep."""
        s, dense = self.shard, (self.d * self.shard.c, self.shard.t)
        return dense, dense if s.e == 1 else (s.t * s.c * self.d // (s.e * s.x), s.e * s.x)


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
    """One rank of a pipeline: the parts it runs and its parameters."""

    chunks: list[list[Part]]  # layers only
    ends: list[Part]  # embedding, head
    head: Part | None
    held: tuple[float, float]  # dense and expert parameters
    trained: tuple[float, float]
    frozen: float  # parameters of layers under LoRA
    in_flight: int  # (micro-batch, chunk) pairs alive at the worst moment
    collective_s: float  # more host time per tensor-parallel collective and member, in a pipeline across nodes

    @property
    def layers(self) -> list[Part]:
        """Of all chunks."""
        return [part for chunk in self.chunks for part in chunk]

    def seconds(self, way: str, on: frozenset[str]) -> float:
        """One micro-batch through everything the rank has."""
        return sum(part.seconds(way, on, self.collective_s) for part in (*self.layers, *self.ends))


class Exchange(NamedTuple):
    """Data-parallel communication that shows: once a step, and in every micro-batch."""

    once_s: float
    each_s: float


class Costs(Layers):
    """Costs of one job's strategies."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.ranks, self.passes = lru_cache(None)(self._ranks), lru_cache(None)(self._passes)
        self.saved, self.pipeline = lru_cache(None)(self._saved), lru_cache(None)(self._pipeline_s)
        self.states, self.exchange = lru_cache(None)(self._states), lru_cache(None)(self._exchange)
        self.send = lru_cache(None)(self._send)
        nodes = max(job.pool.gpus / job.pool.gpus_per_node, 1)
        self.grad = max(job.runtime.gradient_bytes, 2 * self.wide)
        self.straggling = job.runtime.straggling * log2(nodes)

    def step_s(self, mesh: Mesh, saver: Saver, holder: Holder) -> float:
        """Pipeline, then what data parallelism shows, the optimizer and the host."""
        exchange = self.exchange(mesh, holder)
        updates = zip(exchange, self.states(mesh, holder), strict=True)
        after_s = max(shown.once_s + update_s for shown, (_, update_s) in updates)
        pipeline_s = self.pipeline(mesh, saver, tuple(shown.each_s for shown in exchange))
        return (pipeline_s + after_s + self.job.runtime.step_host_s) * (1 + self.straggling)

    def peak_bytes(self, mesh: Mesh, saver: Saver, holder: Holder) -> float:
        """Allocated on the worst rank."""
        received = 4 * self.wide * self.tokens(mesh.shard)[1] * self.job.model.hidden if mesh.p > 1 else 0.0
        both = zip(self.saved(mesh, saver), self.states(mesh, holder), strict=True)
        return max(active + static for active, (static, _) in both) + received + self.job.runtime.workspace_bytes

    def fits(self, peak_bytes: float) -> bool:
        """Whether reserved memory stays below the limit."""
        runtime = self.job.runtime
        return peak_bytes * runtime.reserved_ratio + runtime.reserved_bytes <= self.job.limit_bytes

    def microbatches(self, mesh: Mesh) -> int:
        """Micro-batches per pipeline and step."""
        return self.job.workload.global_batch // (mesh.d * mesh.shard.b)

    def _ranks(self, mesh: Mesh) -> list[Rank]:
        s, model, parts = mesh.shard, self.job.model, self.parts(mesh.shard)
        across = mesh.p > 1 and s.t * s.c * mesh.d * mesh.p > self.job.pool.gpus_per_node
        collective_s = self.job.runtime.pipelined_collective_s if across else 0.0
        starts = [sum(mesh.layers[:k]) for k in range(mesh.p * mesh.v)]
        found = []
        for r in range(mesh.p):
            held = held_by(mesh.schedule, mesh.p, mesh.v, r)
            mine = [range(starts[k], starts[k] + mesh.layers[k]) for k in held]
            first, last = 0 in held, mesh.p * mesh.v - 1 in held
            tensors = [weights_of.layer_weights(model, self.kinds[i]) for chunk in mine for i in chunk]
            tensors += [weights_of.embedding_weights(model)] * first + [weights_of.head_weights(model)] * last
            if last and not first and model.tied_embeddings:
                tensors.append(weights_of.tied_head_weights(model))
            dense = sum(part.sharded / s.t + part.replicated for part in tensors)
            expert = sum(part.expert / (s.e * s.x) for part in tensors)
            chunks = [[parts[self.kinds[i]] for i in chunk] for chunk in mine]
            ends = [parts["embedding"]] * first + [parts["head"]] * last
            trained, frozen = (dense, expert), 0.0
            if self.job.workload.task == "lora":
                added = sum(part.adapters for chunk in (*chunks, ends) for part in chunk)
                layers = [weights_of.layer_weights(model, self.kinds[i]) for chunk in mine for i in chunk]
                frozen = sum(part.sharded / s.t + part.replicated + part.expert / (s.e * s.x) for part in layers)
                trained, dense = (added, 0.0), dense + added
            head = parts["head"] if last else None
            flight = self._in_flight(mesh, r)
            found.append(Rank(chunks, ends, head, (dense, expert), trained, frozen, flight, collective_s))
        return found

    def _in_flight(self, mesh: Mesh, r: int) -> int:
        p, v, m = mesh.p, mesh.v, self.microbatches(mesh)
        # Micro-batches pass a chunk in groups of p; of more where that would leave a group shorter than p.
        group = next((g for g in range(p, m) if m % g == 0 or m % g >= p), max(p, m))
        ahead = {"1f1b": p - r, "interleaved": 2 * (p - r - 1) + (v - 1) * group + 1, "gpipe": m, "zb": p}
        ahead["zbv"] = min(2 * p - r - 1, m) + min(r + 1, m)
        return min(ahead[mesh.schedule], m * v)

    def _passes(self, mesh: Mesh) -> list[tuple[float, float, float]]:
        """Forward, backward and, of that, weight gradients of one micro-batch on each rank."""
        return [
            (
                rank.seconds("forward", mesh.on),
                rank.seconds("backward", mesh.on),
                sum(part.weight_s for part in (*rank.layers, *rank.ends)),
            )
            for rank in self.ranks(mesh)
        ]

    def _saved(self, mesh: Mesh, saver: Saver) -> list[float]:
        """Of each rank: bytes kept and being worked on."""
        found = []
        for rank in self.ranks(mesh):
            layers, v, n = rank.layers, mesh.v, saver.n
            chunk, count = max(len(c) for c in rank.chunks), max(len(layers), 1)
            here = 1 - min(self.job.runtime.offloaded_layers / count, 1)
            queued = sum(self._queued(mesh, part, rank.collective_s) for part in layers)
            whole, inputs = (here * sum(getattr(part, name) for part in layers) for name in ("whole", "checkpoint"))
            whole += queued
            kept, stretch = whole, 0
            if saver.recompute == "selective":
                kept = here * sum(part.selective for part in layers) + queued
            elif saver.recompute == "full" and saver.method == "uniform":  # one input for every n layers
                kept, stretch = min(ceil(chunk / n) * v / count, 1) * inputs, min(n, chunk)
            elif saver.recompute == "full":  # block: the first n layers of each chunk, one at a time
                share = min(n * v / count, 1)
                kept = share * inputs + (1 - share) * whole
                stretch = int(len(layers) // v <= n)  # layers kept whole are gone by then
            largest = max((part.whole for part in layers), default=0.0)
            working = max((part.working for part in layers), default=0.0) + stretch * largest
            working += self.job.runtime.fresh_gradient_bytes * sum(rank.trained)
            if rank.head is not None:
                working = max(working, rank.head.whole + rank.head.working)
            found.append(kept * rank.in_flight / v + working)
        return found

    def _queued(self, mesh: Mesh, part: Part, collective_s: float) -> float:
        """Bytes of a layer that collectives keep reserved, as far as the GPU lags behind the host."""
        if mesh.shard.t == 1 or self.microbatches(mesh) == 1:
            return 0.0
        host_s = sum(part.host(way, collective_s) for way in ("forward", "backward"))
        lag = part.busy_s**4 / (part.busy_s**4 + host_s**4)
        copies = self.job.runtime.queued_activations * lag
        return copies * 2 * self.tokens(mesh.shard)[0] * self.job.model.hidden

    def _pipeline_s(self, mesh: Mesh, saver: Saver, exchanged_s: tuple[float, ...]) -> float:
        """One step of the pipeline, slot by slot; infinite where the schedule is not defined."""
        p, v, m, ranks = mesh.p, mesh.v, self.microbatches(mesh), self.ranks(mesh)
        schedule = find(mesh.schedule)
        if not schedule.legal(np.asarray(p), np.asarray(v), np.asarray(m)).all():
            return inf
        stages = [(0.0, 0.0, 0.0)] * (p * v)
        for r in range(p):
            for chunk, k in enumerate(held_by(mesh.schedule, p, v, r)):
                f, b, w = self._stage(mesh, saver, ranks[r], k, chunk)
                stages[k] = (f, b + exchanged_s[r] / v, w)
        return simulated_s(schedule, p, v, m, stages, self.send(mesh), blocking="p2p" not in mesh.on)

    def _stage(self, mesh: Mesh, saver: Saver, rank: Rank, k: int, chunk: int) -> tuple[float, float, float]:
        """Forward, backward but for weight gradients, and those, of virtual stage k."""
        layers = rank.chunks[chunk]
        parts = self.parts(mesh.shard)
        ends = [parts["embedding"]] * (k == 0) + [parts["head"]] * (k == mesh.p * mesh.v - 1)
        forward_s, backward_s = (
            sum(part.seconds(way, mesh.on, rank.collective_s) for part in (*layers, *ends))
            for way in ("forward", "backward")
        )
        weight_s = sum(part.weight_s for part in (*layers, *ends))
        again_s = 0.0
        if saver.recompute == "selective":
            again_s = sum(part.attention_s for part in layers)
        elif saver.recompute == "full":
            share = min(saver.n / max(len(layers), 1), 1) if saver.method == "block" else 1
            again_s = share * sum(part.seconds("forward", mesh.on, rank.collective_s) for part in layers)
        return forward_s, backward_s - weight_s + again_s, weight_s

    def _send(self, mesh: Mesh) -> float:
        """One activation to the next stage."""
        s, nbytes = mesh.shard, 2 * self.wide * self.tokens(mesh.shard)[1] * self.job.model.hidden
        return self.send_s("send_recv", nbytes, mesh.p, s.t * s.c * mesh.d) if mesh.p > 1 else 0.0

    def _states(self, mesh: Mesh, holder: Holder) -> list[tuple[float, float]]:
        """Of each rank: bytes of weights, gradients, optimizer and gathered layers; seconds of the update."""
        job, grad, weight = self.job, self.grad, 2 * self.wide
        fp32 = self.wide > 1  # no second fp32 weight, and no copy of it
        (ranks, _), (expert_ranks, _) = mesh.replicas

        def owned(pair: tuple[float, float], stage: int) -> float:
            return pair[0] / ranks + pair[1] / expert_ranks if holder.zero >= stage else sum(pair)

        found = []
        for rank in self.ranks(mesh):
            layer = sum(rank.held) / max(len(rank.layers), 1)
            instead, lora = job.runtime.fp8_weights == "instead", job.workload.task == "lora"
            copied = 0.0 if instead or lora else 2 * sum(rank.held)
            quantised = job.workload.precision == "fp8" and holder.zero < 3
            static = weight * owned(rank.held, 3) + (copied - (rank.frozen if instead else 0) if quantised else 0)
            static += grad * owned(rank.trained, 2) + {0: 0, 1: 0, 2: 1, 3: 2}[holder.zero] * (weight + grad) * layer
            mine, every = owned(rank.trained, 1), sum(rank.trained)
            moved = (job.runtime.update_bytes or UPDATE_BYTES[job.workload.optimizer] - 6 * fp32) * mine
            if holder.offload == "none":
                static += (STATE_BYTES[job.workload.optimizer] - 4 * fp32) * mine
                update_s = self.stream_s(4 * every + moved, 20)
            else:
                trips = collectives.host_transfer_s(job.pool.device, np.array([(grad + weight) * mine]))
                update_s = float(trips.seconds[0]) + moved / CPU_BYTES_PER_S + self.stream_s(4 * every, 4)
            if holder.zero == 1 and ranks > 1:  # cutting and copying every replica's piece of every layer
                update_s += job.runtime.gather_host_s * len(rank.layers) * ranks
            found.append((static, update_s))
        return found

    def _exchange(self, mesh: Mesh, holder: Holder) -> list[Exchange]:
        """Gradients to their owners behind the last backward, weights back behind the first forward."""
        slow, grad = collectives.overlap_slowdown(self.job.pool, "cluster"), self.grad

        def shown_s(busy_s: float, window_s: float, layers: int, overlap: str) -> float:
            if overlap not in mesh.on:
                return busy_s
            window_s = max(window_s, 0.0)
            return min(max(busy_s - window_s, busy_s / max(layers, 1)) + slow * min(busy_s, window_s), busy_s)

        found = []
        for rank, (forward_s, backward_s, _) in zip(self.ranks(mesh), self.passes(mesh), strict=True):
            groups = [(size, *group) for size, group in zip(rank.trained, mesh.replicas, strict=True) if size]
            layers = len(rank.layers)
            reduce_s = sum(self._reduce_s(grad * size, ranks, stride, holder.zero) for size, ranks, stride in groups)
            gather = [self.send_s("all_gather", 2 * self.wide * size, ranks, stride) for size, ranks, stride in groups]
            gather_s = sum(gather)
            gradients_s = shown_s(reduce_s, backward_s, layers, "grad")
            weights_s = shown_s(gather_s, forward_s, layers, "param")
            again_s = shown_s(gather_s, backward_s - reduce_s, layers, "param")
            by_stage = {
                0: Exchange(gradients_s, 0.0),
                1: Exchange(gradients_s + weights_s, 0.0),
                2: Exchange(weights_s, gradients_s),
                3: Exchange(0.0, gradients_s + weights_s + again_s),
            }
            found.append(by_stage[holder.zero])
        return found

    def _reduce_s(self, nbytes: float, ranks: int, stride: int, zero: int) -> float:
        """Gradients to their owners, or to all: in buckets without ZeRO, at once with it."""
        runtime = self.job.runtime
        if zero:
            whole = runtime.zero_reduces_whole
            return self.send_s("all_reduce" if whole else "reduce_scatter", nbytes, ranks, stride)
        pieces = max(nbytes / runtime.bucket_bytes, 1.0) if runtime.bucket_bytes else 1.0
        return pieces * self.send_s("all_reduce", nbytes / pieces, ranks, stride)


@lru_cache(1024)
def _slots(schedule: Schedule, p: int, v: int, m: int) -> list[list[tuple[int, int, int]]]:
    """The order of each rank: (kind, micro-batch, virtual stage)."""
    orders = [schedule.slots(p, v, m, rank).tolist() for rank in range(p)]
    held = [held_by(schedule.name, p, v, rank) for rank in range(p)]
    return [[(kind, j, held[rank][chunk]) for kind, j, chunk in order] for rank, order in enumerate(orders)]


def held_by(schedule: str, p: int, v: int, rank: int) -> list[int]:
    """Virtual stages of a rank: there and back again in a V, else round and round."""
    return [rank, 2 * p - 1 - rank] if schedule == "zbv" else [chunk * p + rank for chunk in range(v)]


def simulated_s(
    schedule: Schedule, p: int, v: int, m: int, stages: list[tuple[float, float, float]], send_s: float, blocking: bool
) -> float:
    """A rank takes its slots in order, each when its input is there: the definition."""
    last, split = p * v - 1, schedule.splits_backward
    made: list[dict[tuple[int, int], float]] = [{}, {}, {}]  # by kind: when (micro-batch, stage) frees its rank
    orders = _slots(schedule, p, v, m)
    turn = p - 1 if schedule.name == "zbv" else last  # the last rank of a V hands over to itself
    clocks, at, todo = [0.0] * p, [0] * p, True
    while todo:
        todo = False
        for rank, order in enumerate(orders):
            now_s, place = clocks[rank], at[rank]
            for kind, j, k in order[place:]:
                waits = None if kind == 0 and k == 0 else (0, k - 1) if kind == 0 else (1, k + 1)
                if kind == 1 and k == last:
                    waits = (0, k)
                elif kind == 2:
                    waits = (1, k)
                if waits is not None:
                    input_s = made[waits[0]].get((j, waits[1]))
                    if input_s is None:
                        break
                    hop = waits[1] != k and min(waits[1], k) != turn
                    now_s = max(now_s, input_s + (send_s if not blocking and hop else 0.0))
                now_s += stages[k][kind] + (stages[k][2] if kind == 1 and not split else 0.0)
                if blocking and ((kind == 0 and k not in (last, turn)) or (kind == 1 and k not in (0, turn + 1))):
                    now_s += send_s
                made[kind][j, k] = now_s
                place += 1
            todo |= place < len(order)
            clocks[rank], at[rank] = now_s, place
    return max(clocks)


def taken_apart(strategy: Strategy, layers: tuple[int, ...]) -> tuple[Mesh, Saver, Holder]:
    """A strategy as it is seen here; ``layers`` of each virtual stage."""
    s = strategy
    shard, on = Shard(s.mbs, s.tp, s.cp, s.ep, s.etp, s.sp, s.flash), frozenset(OVERLAPS) & frozenset(s.overlap)
    mesh = Mesh(shard, s.pp, s.dp, s.vp, s.schedule, layers, on)
    return mesh, Saver(s.recompute, s.method, s.recompute_layers), Holder(s.zero, s.offload)
