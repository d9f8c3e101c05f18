"""Costs of pipelines over several pools: columns of each pool's ways to hold layers, links and sums between pools.

A pool's columns are computed once for all shardings of interest, by the same parts and stages as everywhere else; a
pipeline over pools only adds them up. Arrays are [row, stage]: rows are shardings, stages are the kinds of layer, then
what the first stage adds (embedding), then what the last one adds (head and loss).

Groups may hold one copy of the state, in parts that may be unequal (``MixedStrategy.shares``). A rank holds its part
instead of one over the replicas of its group, and updates that much. Every layer is gathered from all replicas of all
groups, and its gradients go back to them, for each micro-batch: a ring through all of them, held to the slowest pool's
network and to the wire between pools. Its steps move one part each, so that the largest part decides: collectives, and
what is gathered, are as long as if all parts were that large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column
from astra.cost import effects
from astra.cost.between import Sync, sync
from astra.cost.stage import (
    Gathered,
    StageCosts,
    StageMemory,
    StageTimes,
    expert_groups,
    gather_parts,
    trained_parameters,
)
from astra.cost.state import Bytes, Held, Holding, Units, gradient_bytes, local, static_bytes
from astra.errors import InputError
from astra.layers import weights as weights_of
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.split import StageKinds, kinds
from astra.network import collectives
from astra.network.curves import load, ramped
from astra.provenance import Floats, Ints, Source, worst
from astra.spec.cluster import Cluster, Link, Pool
from astra.spec.job import Job, OtherGroups
from astra.spec.mixed import Group, MixedStrategy

_ONE = np.array(1)
GATHERS: Final = 2  # of a layer's weights for each micro-batch, where groups share a state: in forward and in backward
_LEAST: Final = 1e-12  # a part of a state that is nothing


class Shards(NamedTuple):
    """Shardings as columns."""

    tp: Ints
    cp: Ints
    ep: Ints
    mbs: Ints

    def row(self, *, tp: int, cp: int, ep: int, mbs: int) -> int | None:
        """Where a sharding is, if it is among them."""
        found = np.flatnonzero((self.tp == tp) & (self.cp == cp) & (self.ep == ep) & (self.mbs == mbs))
        return int(found[0]) if len(found) else None

    def expert_groups(self, dp: int) -> tuple[Ints, Ints]:
        """How many ranks an expert's parameters are replicated on with ``dp`` pipelines, and how far apart."""
        replicas, apart = expert_groups({"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": np.array(dp), "etp": _ONE})
        return np.maximum(replicas, 1), apart

    def columns(self, job: Job, overlap_tp: bool = True) -> dict[str, Column]:
        """The strategy columns that a layer's cost depends on; sequence parallelism wherever tp is above 1."""
        links = job.pool.node.links
        reach = min(links[0].reach, job.pool.gpus) if links else 1
        sp = self.tp > 1
        return {
            "tp": self.tp,
            "cp": self.cp,
            "ep": self.ep,
            "etp": np.ones_like(self.tp),
            "mbs": self.mbs,
            "sp": sp,
            "flash": np.ones(len(sp), bool),
            "overlap_tp": sp & (self.tp <= reach) & overlap_tp,
        }


class PoolColumns(NamedTuple):
    """What each sharding costs on one pool."""

    shards: Shards
    work_s: Floats  # forward and backward of one micro-batch with exposed communication
    forward_s: Floats  # of it
    again_s: Floats  # [row, rank] forward once more
    attention_s: Floats  # attention's forward once more
    whole: Floats  # activations kept without recompute
    selective: Floats
    checkpoint: Floats
    working: Floats  # [row] largest layer at work
    layer_whole: Floats  # [row] largest layer's activations
    head_bytes: Floats  # [row] at the loss
    ends_bytes: Floats  # [row] received activations and gradients
    stream_bytes: Floats  # [row] activation of one micro-batch on one rank, as sent
    held: Held
    gathered: Gathered  # the parts themselves, for plans in full


def pool_columns(job: Job, shards: Shards, *, overlap_tp: bool = True) -> PoolColumns:
    """Cost every sharding on one pool."""
    columns = shards.columns(job, overlap_tp)
    gathered = gather_parts(job, columns)
    table = _kinds_of_rank(job, len(shards.tp))
    times, memory = StageTimes(job, gathered, table, columns), StageMemory(job, gathered, table)
    stream_bytes = job.workload.element_bytes * gathered.shard.stream_tokens[gathered.place] * job.model.hidden
    return PoolColumns(
        shards,
        times.forward + times.backward,
        times.forward,
        times.recompute,
        times.modules[..., 0],
        memory.layers("whole"),
        memory.layers("selective"),
        memory.layers("checkpoint"),
        memory.largest("working").max(axis=1),
        memory.largest("whole").max(axis=1),
        memory.head()[:, -1],
        2 * stream_bytes,
        stream_bytes,
        _held(job, gathered),
        gathered,
    )


def _kinds_of_rank(job: Job, rows: int) -> StageKinds:
    """A table whose stages hold one layer of each kind, then nothing but the embedding, then the head."""
    count = len(kinds(job.model))
    stage_kinds = count + 2

    def wide(values: Column) -> Column:
        return np.broadcast_to(values, (rows, *values.shape))

    place = np.arange(stage_kinds)
    return StageKinds(
        rank=wide(place),
        counts=wide(np.eye(stage_kinds, count)),
        first=wide(place == count),
        last=wide(place == count + 1),
        sends=wide(np.zeros(stage_kinds, np.int64)),
        chunk_layers=wide(np.ones(stage_kinds, np.int64)),
        until=wide(place),
        before=wide(np.zeros((stage_kinds, count))),
        final=wide(np.zeros((stage_kinds, count))),
    )


def _held(job: Job, gathered: Gathered) -> Held:
    """Parameters of each kind; a tied head is a copy, because a pipeline of several pools separates it."""
    shard, model = gathered.shard, job.model
    by_part = [weights_of.layer_weights(model, kind) for kind in kinds(model)]
    head = weights_of.tied_head_weights(model) if model.tied_embeddings else weights_of.head_weights(model)
    by_part += [weights_of.embedding_weights(model), head]
    pairs = [local(part, shard.tp, shard.ep, shard.etp) for part in by_part]
    rows = len(shard.tp)
    dense, expert = (
        np.stack([np.broadcast_to(pair[which], rows)[gathered.place] for pair in pairs], axis=1) for which in (0, 1)
    )
    layers = (dense + expert) * (np.arange(len(pairs)) < len(pairs) - 2)
    if job.workload.task != "lora":
        return Held(dense, expert, dense, expert, layers)
    keys: list[LayerKind | str] = [*kinds(model), "embedding", "head"]
    trained = np.stack([gathered.parts[key].adapters[gathered.place] for key in keys], axis=1)
    return Held(dense + trained, expert, trained, np.zeros_like(expert), layers)


def resident_bytes(job: Job, columns: PoolColumns, dp: int, zero: int) -> Floats:
    """[row, rank] weights, gradients and optimizer state with ``dp`` replicas."""
    ranks = (dp * columns.shards.cp)[:, None]
    expert_ranks = columns.shards.expert_groups(dp)[0][:, None]
    how = Holding(np.array(zero), np.array(0), ranks, expert_ranks)
    static = static_bytes(job, columns.held, how, np.ones(1))
    return static.weights + static.gradients + static.optimizer


def from_the_end(job: Job, by_kind: Floats) -> Floats:
    """[row, L + 1] sums over the last 0, 1, ... L layers."""
    order = {kind: place for place, kind in enumerate(kinds(job.model))}
    places = [order[kind] for kind in reversed(layer_kinds(job.model))]
    sums = np.cumsum(by_kind[:, places], axis=1)
    return np.concatenate((np.zeros((len(sums), 1)), sums), axis=1)


class Wire(NamedTuple):
    """A link between pools as one GPU sees it, and what all of them have together where it is one line."""

    bytes_per_s: float
    latency_s: float
    source: Source
    total_bytes_per_s: float = np.inf

    def every(self, steps: int) -> Wire:
        """As seen by what is sent once in so many steps."""
        return self._replace(
            bytes_per_s=self.bytes_per_s * steps,
            latency_s=self.latency_s / steps,
            total_bytes_per_s=self.total_bytes_per_s * steps,
        )


def outer(pool: Pool) -> Link | None:
    """The tier that leaves a pool's servers."""
    return pool.node.links[-1] if pool.node.links else None


def wire(cluster: Cluster, here: int, there: int) -> Wire:
    """The slower of both pools' outer tiers and of the network between them."""
    ends = outer(cluster.pools[here]), outer(cluster.pools[there])
    links = [link for link in (*ends, cluster.joined_by(here, there)) if link]
    if not links:
        raise InputError("cluster.between", None, want="a link that joins the pools", fix="Add a [between] table.")
    fractions = load().rules.send_fraction
    rates = [fractions.get(link.kind, 0.8) * link.bytes_per_s / link.oversubscription for link in links]
    joint = cluster.joined_by(here, there)
    total = np.inf if joint is None or joint.total_bytes_per_s is None else joint.total_bytes_per_s
    total *= 1.0 if joint is None else fractions.get(joint.kind, 0.8)
    return Wire(min(rates), max(link.latency_s for link in links), Source.ASSUMED, total)


def slowest(wires: Sequence[Wire]) -> Wire:
    """What a ring over several wires is held to: the least of each."""
    rates, latencies, sources, totals = zip(*wires, strict=True)
    return Wire(min(rates), max(latencies), max(sources), min(totals))


def slowest_between(cluster: Cluster, pools: Sequence[int]) -> Wire | None:
    """The slowest wire between any of some pools, or inside the only one; None if a single GPU has none."""
    pairs = [(a, b) for a in pools for b in pools if a < b or len(pools) == 1]
    wires = [wire(cluster, a, b) for a, b in pairs if outer(cluster.pools[a]) or a != b]
    return slowest(wires) if wires else None


def other_groups(job: Job, groups: int, way: Wire | None) -> OtherGroups | None:
    """The groups that a job's pipelines share a batch with.

    The parts of all ranks are the model once, whatever its shards: a line carries that for every neighbour in the ring.
    """
    if groups <= 1 or way is None:
        return None
    whole = 0.0 if np.isinf(way.total_bytes_per_s) else gradient_bytes(job) * trained_parameters(job)
    line_s = float(whole / way.total_bytes_per_s)
    return OtherGroups(groups=groups, bytes_per_s=way.bytes_per_s, latency_s=way.latency_s, line_s=line_s)


def held_up(cluster: Cluster, ends: tuple[int, int], nbytes: Floats | float, *ranks: Floats | float) -> Floats:
    """Bytes as they count on a GPU's part of its server's card, of which stages of few ranks have more than that.

    ``ends`` are two pools and ``ranks`` those of the stage on each side; the side with less for each rank decides.
    """
    shares = [
        collectives.card_share(collectives.tiers_of(cluster.pools[place]), np.asarray(count, np.float64))
        for place, count in zip(ends, ranks, strict=True)
    ]
    return np.asarray(nbytes / np.minimum(*shares), np.float64)


def hop_s(way: Wire, nbytes: Floats | float, together: float = 0.0) -> Floats:
    """One activation, or its gradient, between ranks of two pools.

    ``nbytes`` is what the side with fewer ranks sends or receives: it is the bottleneck. ``together`` is what all
    pipelines send at that moment, which is what a line carries.
    """
    size = np.asarray(nbytes, np.float64)
    moved_s = np.maximum(size / way.bytes_per_s, together / way.total_bytes_per_s)
    return ramped(np.full(size.shape, way.latency_s), moved_s, load().rules.send_ramp_far)


def p2p_s(job: Job, nbytes: Floats, apart: Ints, stages: int) -> Floats:
    """One activation to the neighbouring stage of the same pool, in a pipeline of so many."""
    ranks = np.full(nbytes.shape, stages)
    return collectives.collective(job.pool, "send_recv", nbytes=nbytes, ranks=ranks, stride=apart).seconds


def with_like_groups(job: Job, moved: Sync, held: Held, shards: Shards, ranks: int, way: Wire) -> Sync:
    """Gradients of groups that cut the model alike: ``ranks`` replicas in all, which reduce together.

    One ring runs through all of them, held to the slowest pool's network, for which the step waits, and to the wire
    between pools, which it leaves a server by through the cards of all its members there. Two servers exchange halves.
    ``moved`` is the way by groups, which is taken where it is shorter.
    """
    dense, expert = shards.cp * ranks, shards.expert_groups(ranks)
    together = sync(
        job, held, ranks=dense[:, None], stride=shards.tp[:, None],
        expert_ranks=expert[0][:, None], expert_stride=expert[1][:, None],
    )  # fmt: skip
    members = np.clip(job.pool.gpus_per_node // shards.tp, 1, ranks)[:, None]
    times = np.where(members * 2 >= ranks, 1.0, 2 * (ranks - 1) / ranks)
    owned = gradient_bytes(job) * (held.trained_dense + held.trained_expert)
    whole = 0.0 if np.isinf(way.total_bytes_per_s) else gradient_bytes(job) * trained_parameters(job)
    moved_s = np.maximum(owned / (members * way.bytes_per_s), whole / way.total_bytes_per_s)
    wired_s = 2 * (ranks - 1) * way.latency_s + times * moved_s
    scatter_s = np.maximum(together.reduce_scatter_s, wired_s / 2)
    # What was summed in parts, one of each replica in all groups, is gathered from all of them. A line also carries
    # the updated weights there and back.
    line_s = times / 2 * whole / way.total_bytes_per_s * job.workload.element_bytes / gradient_bytes(job)
    gather_s = np.maximum(together.all_gather_s, line_s)
    by_groups_s = moved.reduce_scatter_s + moved.across_s
    sooner = scatter_s + gather_s < by_groups_s + moved.all_gather_s
    return together._replace(
        all_reduce_s=np.minimum(moved.all_reduce_s + moved.across_s, np.maximum(together.all_reduce_s, wired_s)),
        reduce_scatter_s=np.where(sooner, scatter_s, by_groups_s),
        all_gather_s=np.where(sooner, gather_s, moved.all_gather_s),
        source=worst(together.source, way.source),
        tied_s=moved.tied_s,
    )


def with_shares(
    job: Job, costs: StageCosts, mixed: MixedStrategy, group: Group, jobs: Sequence[Job], way: Wire | None
) -> StageCosts:
    """A group's costs where its replicas hold their part of one state; ``jobs`` are those of all groups' pools."""
    replicas = sum(one.dp for one in mixed.groups)
    moved = shared_sync(jobs, costs.held, group.segments[0].tp, replicas, way, mixed.padding)
    part = mixed.held[mixed.groups.index(group)]
    ranks = np.full(costs.shards.shape, 1 / max(part, _LEAST))
    units = costs.units
    if effects.units(job.runtime):
        units = Units(*(mixed.padding * parameters for parameters in units))
    return costs._replace(shards=ranks, expert_shards=ranks, units=units, sync=moved)


def padded(job: Job, static: Bytes, padding: float) -> Bytes:
    """What is gathered, of runtimes whose gathered layers are not counted unit by unit."""
    if effects.units(job.runtime):
        return static
    return static._replace(gathered=padding * static.gathered, at_loss=padding * static.at_loss)


def shared_sync(jobs: Sequence[Job], held: Held, tp: int, replicas: int, way: Wire | None, padding: float) -> Sync:
    """Collectives of all replicas of all groups, as long as on the slowest of their pools."""
    ranks, apart = np.full((1, 1), replicas), np.full((1, 1), tp)
    found = [
        _over_wire(job, sync(job, held, ranks=ranks, stride=apart, expert_ranks=ranks, expert_stride=apart),
                   held, tp, replicas, way)
        for job in jobs
    ]  # fmt: skip

    def longest_s(name: str) -> Floats:
        return np.asarray(padding * np.max([getattr(moved, name) for moved in found], axis=0))

    return found[0]._replace(
        all_reduce_s=longest_s("all_reduce_s"),
        reduce_scatter_s=longest_s("reduce_scatter_s"),
        all_gather_s=longest_s("all_gather_s"),
        source=worst(*(moved.source for moved in found)),
    )


def _over_wire(job: Job, moved: Sync, held: Held, tp: int, replicas: int, way: Wire | None) -> Sync:
    """The same where it is held to the wire between pools, which a server's ranks leave by their own cards.

    Half of what an all-reduce sends, as in ``with_like_groups``; a line carries it for all of them.
    """
    if way is None:
        return moved
    members = min(max(job.pool.gpus_per_node // tp, 1), replicas)
    parameters, every = held.trained_dense + held.trained_expert, trained_parameters(job)
    share, waits_s = (replicas - 1) / replicas, (replicas - 1) * way.latency_s

    def wired_s(width: float) -> Floats:
        own_s, line_s = width * parameters / (members * way.bytes_per_s), width * every / way.total_bytes_per_s
        return waits_s + share * np.maximum(own_s, line_s)

    scatter_s, gather_s = wired_s(gradient_bytes(job)), wired_s(float(job.workload.element_bytes))
    return moved._replace(
        all_reduce_s=np.maximum(moved.all_reduce_s, 2 * scatter_s),
        reduce_scatter_s=np.maximum(moved.reduce_scatter_s, scatter_s),
        all_gather_s=np.maximum(moved.all_gather_s, gather_s),
        source=worst(moved.source, np.full(moved.source.shape, way.source, np.int8)),
    )


def state_bytes(job: Job) -> float:
    """All that is sharded, of the whole model; weights count where they are not the optimizer's own."""
    every, none, one = np.full(1, trained_parameters(job)), np.zeros(1), np.ones(1, np.int64)
    static = static_bytes(job, Held(every, none, every, none, none), Holding(3 * one, 0 * one, one, one), np.ones(1))
    weights = 0.0 if effects.units(job.runtime) else float(static.weights[0])
    return weights + float((static.gradients + static.optimizer)[0])


def gathered_bytes(job: Job) -> float:
    """What is gathered at least while an average layer is computed: its weights and the next one's, and gradients."""
    layer = trained_parameters(job) / len(layer_kinds(job.model))
    return layer * (2 * job.workload.element_bytes + gradient_bytes(job))


def crossing_bytes(job: Job, microbatches: int, padding: float) -> float:
    """What a ring through all groups carries over a link in a step, in one direction."""
    each = GATHERS * job.workload.element_bytes + gradient_bytes(job)
    return microbatches * padding * each * trained_parameters(job)
