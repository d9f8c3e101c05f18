"""One copy of the state over all groups of a fleet, in parts that may be unequal (``spec.shares``).

A rank holds its part of the state instead of one over the replicas of its group, and updates that much. Every layer is
gathered from all replicas of all groups, and its gradients go back to them, for each micro-batch: a ring through all of
them, held to the slowest pool's network and to the wire between pools. Its steps move one part each, so that the
largest part decides: collectives, and what is gathered, are as long as if all parts were that large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from astra.cost import effects
from astra.cost.between import Sync, sync
from astra.cost.mixed import Wire
from astra.cost.stage import StageCosts
from astra.cost.state import Bytes, Held, Holding, Units, gradient_bytes, static_bytes
from astra.cost.trained import trained_parameters
from astra.layers.kinds import layer_kinds
from astra.provenance import Floats, worst
from astra.spec.job import Job
from astra.spec.mixed import Group, MixedStrategy

GATHERS: Final = 2  # of a layer's weights for each micro-batch: in forward and in backward
_LEAST: Final = 1e-12  # a part that is nothing


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

    def slowest(name: str) -> Floats:
        return np.asarray(padding * np.max([getattr(moved, name) for moved in found], axis=0))

    return found[0]._replace(
        all_reduce_s=slowest("all_reduce_s"),
        reduce_scatter_s=slowest("reduce_scatter_s"),
        all_gather_s=slowest("all_gather_s"),
        source=worst(*(moved.source for moved in found)),
    )


def _over_wire(job: Job, moved: Sync, held: Held, tp: int, replicas: int, way: Wire | None) -> Sync:
    """The same where it is held to the wire between pools, which a server's ranks leave by their own cards.

    Half of what an all-reduce sends, as in ``cost.mixed.with_like_groups``; a line carries it for all of them.
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
