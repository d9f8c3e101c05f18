"""The pipelines of many strategies simulated, virtual stage by virtual stage: the number that is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from astra.columns import distinct
from astra.cost.between import p2p
from astra.cost.gathered import Layouts
from astra.cost.recompute import KeptActivations, Recomputes, offloaded_s, repeated_s
from astra.cost.stage import Gathered, Meshes, StageMemory, StageTimes, host_s_per_byte, stage_table
from astra.layers.split import stage_kind_of_rank
from astra.provenance import Floats, Ints
from astra.schedule import find, legal, steps_s
from astra.schedule.simulator import StageSeconds
from astra.spec.job import Job
from astra.spec.strategy import SCHEDULES, usual_schedule

_SHAPE: Final = ("schedule", "pp", "vp", "microbatches", "overlap_p2p")


def pipelines_s(job: Job, meshes: Meshes, gathered: Gathered, recomputes: Recomputes, exchanged_s: Floats) -> Floats:
    """Seconds of each pipeline; meshes, shardings and recomputes are of one strategy per row.

    ``exchanged_s`` is what replicas exchange in every micro-batch, [row, kind of stage].
    """
    seconds = np.zeros(len(meshes))
    for rows in alike_in_shape(job, meshes):
        some, parts = only_own_layouts(meshes.take(rows)), gathered.take(rows)
        stage_kinds = np.stack([stage_kind_of_rank(job.model, *layout) for layout in some.layouts])[some.layout]
        by_rank_s = np.take_along_axis(exchanged_s[rows], stage_kinds, axis=1)
        chosen = recomputes.take(rows)
        seconds[rows] = of_one_shape_s(job, some, virtual_stages(job, some, parts, chosen, by_rank_s).stages)
    return seconds


def alike_in_shape(job: Job, meshes: Meshes) -> Iterator[Ints]:
    """Rows whose pipelines have the same slots."""
    columns = {**meshes.columns, "microbatches": microbatches(job, meshes)}
    _, kind = distinct(*(columns[name] for name in _SHAPE))
    order = np.argsort(kind, kind="stable")
    if len(order):
        yield from np.split(order, np.flatnonzero(np.diff(kind[order])) + 1)


def only_own_layouts(meshes: Meshes) -> Meshes:
    """The same meshes without the layouts of others, whose stages would be worked out with theirs."""
    used, place = np.unique(meshes.layout, return_inverse=True)
    return Meshes(meshes.columns, place, Layouts(meshes.layouts[each] for each in used.tolist()))


def microbatches(job: Job, meshes: Meshes) -> Ints:
    """Of each pipeline and step; at least one, so that an impossible strategy can be told about."""
    return np.asarray(np.maximum(job.workload.global_batch // (meshes.columns["dp"] * meshes.columns["mbs"]), 1))


class Virtual(NamedTuple):
    """Virtual stages of several pipelines, [row, stage]."""

    stages: StageSeconds
    again_s: Floats  # of their backward: running layers' forward again


def virtual_stages(
    job: Job, meshes: Meshes, gathered: Gathered, recomputes: Recomputes, exchanged_s: Floats
) -> Virtual:
    """Times of every virtual stage, [row, stage], of meshes with the same number of stages and chunks."""
    pp, vp = int(meshes.columns["pp"][0]), int(meshes.columns["vp"][0])
    layers = np.array([layout.layers for layout in meshes.layouts])[meshes.layout]
    alone = Meshes(meshes.columns, meshes.layout, meshes.layouts.in_line())
    table = stage_table(job, alone, every_rank=True)
    times = StageTimes(job, gathered, table, meshes.columns)
    again_s = repeated_s(times.recompute, times.modules, layers, recomputes.along(2, 0))
    ranks = find(SCHEDULES[meshes.columns["schedule"][0]]).rank_of(pp, vp)
    if recomputes.offload_layers.any():
        memory = StageMemory(job, gathered, table)
        of_rank = np.stack([layers[:, ranks == rank].sum(axis=1) for rank in range(pp)], axis=1)
        kept = KeptActivations(
            memory.layers("whole"),
            memory.modules(job),
            memory.layers("checkpoint"),
            times.forward,
            times.backward,
        )
        again_s = again_s + offloaded_s(kept, of_rank[:, ranks], host_s_per_byte(job), recomputes.along(2, 0))
    ranks_apart = meshes.columns["tp"] * meshes.columns["cp"] * meshes.columns["dp"]
    send_s = np.zeros(len(meshes))
    if pp > 1:
        send_s, _ = p2p(job, gathered.shard.stream_tokens[gathered.place], ranks_apart, meshes.columns["pp"])
    backward_s = times.backward - times.weight + again_s + (exchanged_s / vp)[:, ranks]
    hops_s = np.repeat(send_s[:, None], pp * vp - 1, axis=1)
    return Virtual(StageSeconds(times.forward, backward_s, times.weight, hops_s), again_s)


def of_one_shape_s(job: Job, meshes: Meshes, stages: StageSeconds) -> Floats:
    """The simulated totals of pipelines with the same slots.

    Where the schedule is not defined for the pipeline (an illegal strategy), the usual one with the next number of
    micro-batches for which it is defined stands in, in proportion.
    """
    code, pp, vp, overlaps = (meshes.columns[name][0] for name in ("schedule", "pp", "vp", "overlap_p2p"))
    given = int(microbatches(job, meshes)[0])
    defined = bool(legal(code, p=pp, v=vp, m=given).all())
    count = given if defined else -(-given // int(pp)) * int(pp)
    schedule = SCHEDULES[code] if defined else usual_schedule(int(vp))
    total_s = steps_s(schedule, p=int(pp), v=int(vp), m=count, stages=stages, blocking_p2p=not overlaps)
    return total_s * (given / count)
