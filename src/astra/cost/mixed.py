"""Costs of pipelines over several pools: columns of each pool's ways to hold layers, links and sums between pools.

A pool's columns are computed once for all shardings of interest, by the same parts and stages as everywhere else; a
pipeline over pools only adds them up. Arrays are [row, stage]: rows are shardings, stages are the kinds of layer, then
what the first stage adds (embedding), then what the last one adds (head and loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from astra.columns import Column
from astra.cost.stage import Gathered, StageMemory, StageTimes, expert_groups, gather_parts
from astra.cost.state import Held, Holding, local, static_bytes
from astra.errors import InputError
from astra.layers import weights as weights_of
from astra.layers.kinds import LayerKind, layer_kinds
from astra.layers.split import StageKinds, kinds
from astra.network import collectives
from astra.network.curves import load, ramped
from astra.provenance import Floats, Ints, Source
from astra.spec.cluster import Cluster, Link, Pool
from astra.spec.job import Beside, Job

_ONE = np.array(1)


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
    again_s: Floats  # [row, sort] forward once more
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
    table = _sorts(job, len(shards.tp))
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


def _sorts(job: Job, rows: int) -> StageKinds:
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
    if job.workload.task != "lora":
        return Held(dense, expert, dense, expert, np.zeros_like(dense))
    keys: list[LayerKind | str] = [*kinds(model), "embedding", "head"]
    trained = np.stack([gathered.parts[key].adapters[gathered.place] for key in keys], axis=1)
    inner = np.arange(len(pairs)) < len(pairs) - 2
    return Held(dense + trained, expert, trained, np.zeros_like(expert), (dense + expert) * inner)


def resident_bytes(job: Job, columns: PoolColumns, dp: int, zero: int) -> Floats:
    """[row, sort] weights, gradients and optimizer state with ``dp`` replicas."""
    ranks = (dp * columns.shards.cp)[:, None]
    expert_ranks = columns.shards.expert_groups(dp)[0][:, None]
    how = Holding(np.array(zero), np.array(0), ranks, expert_ranks)
    static = static_bytes(job, columns.held, how, np.ones(1))
    return static.weights + static.gradients + static.optimizer


def from_the_end(job: Job, by_sort: Floats) -> Floats:
    """[row, L + 1] sums over the last 0, 1, ... L layers."""
    order = {kind: place for place, kind in enumerate(kinds(job.model))}
    places = [order[kind] for kind in reversed(layer_kinds(job.model))]
    sums = np.cumsum(by_sort[:, places], axis=1)
    return np.concatenate((np.zeros((len(sums), 1)), sums), axis=1)


class Wire(NamedTuple):
    """A link between pools as one GPU sees it."""

    bytes_per_s: float
    latency_s: float
    source: Source


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
    return Wire(min(rates), max(link.latency_s for link in links), Source.ASSUMED)


def slowest(cluster: Cluster, pools: Sequence[int]) -> Wire | None:
    """The slowest wire between any of some pools, or inside the only one; None if a single GPU has none."""
    pairs = [(a, b) for a in pools for b in pools if a < b or len(pools) == 1]
    wires = [wire(cluster, a, b) for a, b in pairs if outer(cluster.pools[a]) or a != b]
    return min(wires, key=lambda way: way.bytes_per_s, default=None)


def beside(groups: int, way: Wire | None) -> Beside | None:
    """What a job's pipelines have beside them where groups share a batch."""
    if groups <= 1 or way is None:
        return None
    return Beside(groups=groups, bytes_per_s=way.bytes_per_s, latency_s=way.latency_s)


def hop_s(way: Wire, nbytes: Floats | float) -> Floats:
    """One activation, or its gradient, between ranks of two pools.

    ``nbytes`` is what the side with fewer ranks sends or receives: it is the bottleneck.
    """
    size = np.asarray(nbytes, np.float64)
    return ramped(np.full(size.shape, way.latency_s), size / way.bytes_per_s, load().rules.send_ramp_far)


def p2p_s(job: Job, nbytes: Floats, apart: Ints, stages: int) -> Floats:
    """One activation to the neighbouring stage of the same pool, in a pipeline of so many."""
    ranks = np.full(nbytes.shape, stages)
    return collectives.collective(job.pool, "send_recv", nbytes=nbytes, ranks=ranks, stride=apart).seconds
