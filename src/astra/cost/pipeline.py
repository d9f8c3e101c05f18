"""Pipelines of many strategies: lower bounds of each, and the simulation that gives the number reported.

Bounds are of every combination of mesh, recompute and sharding; what is simulated goes virtual stage by virtual stage.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

import numpy as np

from astra.columns import code, distinct, largest
from astra.cost.between import p2p
from astra.cost.gathered import Layouts
from astra.cost.recompute import KeptActivations, Recomputes, offloaded_s, recompute_s, repeated_s
from astra.cost.stage import (
    Gathered,
    Meshes,
    StageCosts,
    StageMemory,
    StageTimes,
    StageWork,
    host_s_per_byte,
    stage_table,
    stage_work,
)
from astra.layers.split import stage_kind_of_rank
from astra.provenance import Bools, Floats, Ints
from astra.schedule.interleaved import group_size
from astra.schedule.registry import SPLITTING, find, legal
from astra.schedule.screen import Ends, Path, Ranks, interleaved_s, paths
from astra.schedule.simulator import StageSeconds
from astra.schedule.steady import steps_s
from astra.spec.job import Job
from astra.spec.strategy import usual_schedule
from astra.spec.strategy_fields import SCHEDULES

_FEW_KINDS: Final = (3, 5)  # kinds of rank that make meshes dearer to bound


def mesh_bound_s(meshes: Meshes, costs: StageWork | StageCosts) -> Floats:
    """A lower bound of each mesh's pipeline, whatever is recomputed or exchanged; infinite where it is not defined."""
    bound_s = largest(np.maximum.reduce([path.seconds for path in paths_of(meshes, costs)]))
    bound_s = np.maximum(bound_s, np.where(_looped(meshes), ends_bound_s(meshes, costs), 0.0))
    return np.where(_defined(meshes, costs), bound_s, np.inf)


def work_bound_s(job: Job, meshes: Meshes, gathered: Gathered) -> Floats:
    """The same of meshes whose costs nobody asks for; those with few kinds of rank apart, for theirs is less to do."""
    kinds = meshes.layouts.kinds_of_rank(job.model)[meshes.layout]
    bound_s = np.zeros(len(meshes))
    for rows in np.split(np.argsort(kinds, kind="stable"), np.searchsorted(np.sort(kinds), _FEW_KINDS)):
        if len(rows):
            some = meshes.take(rows)
            bound_s[rows] = mesh_bound_s(some, stage_work(job, some, gathered.take(rows)))
    return bound_s


def pipeline_bound_s(meshes: Meshes, costs: StageCosts, recomputes: Recomputes, exchanged_s: Floats) -> Floats:
    """A lower bound of the simulated pipeline, [mesh, recompute, sharding].

    ``exchanged_s`` is what replicas exchange in every micro-batch, [mesh, sharding, rank].
    """
    extras = _Extras(meshes, costs, recomputes, exchanged_s)
    through, *turning = paths_of(meshes, costs)
    bound_s = extras.longest_s(through, slice(None))
    alone = np.flatnonzero((meshes.columns["vp"] == 1) & (meshes.columns["pp"] > 1))
    for path in turning if len(alone) else ():
        bound_s[alone] = np.maximum(bound_s[alone], extras.longest_s(path, alone))
    chunked = np.flatnonzero(_looped(meshes))
    if len(chunked):
        ends_s = ends_bound_s(meshes, costs)[chunked]
        bound_s[chunked] = np.maximum(bound_s[chunked], ends_s[:, None, None] + extras.by_ends_s(chunked))
    return np.where(_defined(meshes, costs)[:, None, None], bound_s, np.inf)


class _Extras:
    """What recompute and exchanges add to backwards: at least this much, where not every stage is known.

    Elsewhere than on the rank, stages repeat at least the share of the deepest chunk, and exchange at least what the
    quickest rank does.
    """

    def __init__(self, meshes: Meshes, costs: StageCosts, recomputes: Recomputes, exchanged_s: Floats) -> None:
        self._meshes, self._costs = meshes, costs
        self._recomputes, self._own_exchange_s = recomputes, exchanged_s
        self._deepest = costs.chunk_layers.max(axis=1, initial=0)[:, None, None]
        self._own_s = recompute_s(
            costs.recompute_s[:, None, :],
            costs.modules_s[:, None, :],
            costs.chunk_layers[:, None, :],
            recomputes,
        )
        if recomputes.offload_layers.any():
            self._own_s = self._own_s + _offloaded_s(costs, recomputes)
        self._least_s = exchanged_s.min(axis=2, keepdims=True)
        self._over_s = self._elsewhere_s(costs.over.recompute_s[:, None], costs.over.modules_s[:, None])

    def _elsewhere_s(self, all_s: Floats, modules_s: Floats, rows: slice | Ints = slice(None)) -> Floats:
        return recompute_s(all_s[:, None, :], modules_s[:, None, :], self._deepest[rows], self._recomputes)

    def longest_s(self, path: Path, rows: slice | Ints) -> Floats:
        """The longest of a path over the ranks, [mesh, recompute, sharding] of some meshes."""
        costs, over, least_s = self._costs, self._costs.over, self._least_s[rows]
        pp, vp = (self._meshes.columns[name][rows, None, None] for name in ("pp", "vp"))
        until, times = costs.until[rows, None, :], path.times[rows, None, :]
        again_s = times * self._own_s[rows] + path.over * self._over_s[rows]
        exchanged_s = times * self._own_exchange_s[rows] + path.over * pp * least_s
        before_s, before_modules_s = costs.before.recompute_s[rows], costs.before.modules_s[rows]
        if path.before.any():
            before = path.before[rows, None, :]
            again_s = again_s + before * self._elsewhere_s(before_s, before_modules_s, rows)
            exchanged_s = exchanged_s + before * (until / vp) * least_s
        if path.after:
            all_s = np.maximum(over.recompute_s[rows, None] - before_s - costs.recompute_s[rows], 0.0)
            modules_s = np.maximum(over.modules_s[rows, None] - before_modules_s - costs.modules_s[rows], 0.0)
            again_s = again_s + self._elsewhere_s(all_s, modules_s, rows)
            exchanged_s = exchanged_s + (pp - 1 - until) * least_s
        seconds = path.seconds[rows, None, None, :] + again_s[:, :, None, :]
        return largest(seconds + exchanged_s[:, None, :, :])

    def by_ends_s(self, rows: Ints) -> Floats:
        """What comes to the bound of interleaved pipelines by their last rank, [mesh, recompute, sharding]."""
        pp, m, at = self._meshes.columns["pp"][rows], self._costs.microbatches[rows], self._costs.on_last[rows]
        times = (m - group_size(pp, m))[:, None]
        again_s = self._over_s[rows, :, 0] + times * self._own_s[rows, :, at]
        exchanged_s = pp[:, None] * self._least_s[rows, :, 0] + times * self._own_exchange_s[rows, :, at]
        return np.asarray(again_s[:, :, None] + exchanged_s[:, None, :])


def _offloaded_s(costs: StageCosts, recomputes: Recomputes) -> Floats:
    """What shows of activations moved to host memory, [mesh, recompute, stage]; by chunks it is at least as much."""

    def wide(column: Floats) -> Floats:
        return column[:, None]

    kept = KeptActivations(
        wide(costs.kept_whole),
        wide(costs.kept_modules),
        wide(costs.kept_checkpoint),
        wide(costs.forward_s),
        wide(costs.backward_s),
    )
    return offloaded_s(kept, wide(costs.layers), costs.host_s_per_byte[:, None, None], recomputes.along(3, 1))


def paths_of(meshes: Meshes, costs: StageWork | StageCosts) -> tuple[Path, Path, Path]:
    """Paths through the pipeline by each kind of rank, without recompute and exchanges, [mesh, rank]."""
    columns, before, over = meshes.columns, costs.before, costs.over
    split = np.isin(columns["schedule"], SPLITTING)[:, None]
    p, v, m = columns["pp"][:, None], columns["vp"][:, None], costs.microbatches[:, None]
    over_s = over.forward_s + over.backward_s - np.where(split[:, 0], over.weight_s, 0.0)
    return paths(
        Ranks(
            p=p,
            v=v,
            m=m,
            rank=costs.until,
            sends=costs.sends,
            ahead=costs.ahead,
            forward_s=costs.forward_s,
            backward_s=costs.backward_s,
            weight_s=np.where(split, costs.weight_s, 0.0),
            before_forward_s=before.forward_s,
            before_backward_s=before.backward_s - np.where(split, before.weight_s, 0.0),
            over_s=over_s[:, None],
            send_s=costs.p2p_s[:, None],
            blocking=~columns["overlap_p2p"][:, None],
        )
    )


def ends_bound_s(meshes: Meshes, costs: StageWork | StageCosts) -> Floats:
    """The bound of interleaved pipelines by their last rank, without recompute and exchanges, [mesh]."""
    mesh, at = np.arange(len(meshes)), costs.on_last
    ends = Ends(
        p=meshes.columns["pp"],
        v=meshes.columns["vp"],
        m=costs.microbatches,
        over_s=costs.over.forward_s + costs.over.backward_s,
        forward_s=costs.forward_s[mesh, at],
        backward_s=costs.backward_s[mesh, at],
        final_forward_s=costs.final.forward_s,
        final_backward_s=costs.final.backward_s,
        send_s=costs.p2p_s,
        blocking=~meshes.columns["overlap_p2p"],
    )
    return interleaved_s(ends)


def _looped(meshes: Meshes) -> Bools:
    """Which are interleaved, with several chunks."""
    interleaved = meshes.columns["schedule"] == code("schedule", "interleaved")
    return np.asarray(interleaved & (meshes.columns["vp"] > 1))


def _defined(meshes: Meshes, costs: StageWork | StageCosts) -> Bools:
    columns = meshes.columns
    return legal(columns["schedule"], p=columns["pp"], v=columns["vp"], m=costs.microbatches)


_SHAPE: Final = ("schedule", "pp", "vp", "microbatches", "overlap_p2p")


def pipelines_s(
    job: Job, meshes: Meshes, gathered: Gathered, recomputes: Recomputes, exchanged_s: Floats, send_s: Floats
) -> Floats:
    """Seconds of each pipeline; meshes, shardings and recomputes are of one strategy per row.

    ``exchanged_s`` is what replicas exchange in every micro-batch, [row, kind of stage]; ``send_s`` is one activation
    to the next stage, [row].
    """
    seconds = np.zeros(len(meshes))
    for rows in by_shape(job, meshes):
        some, parts = only_own_layouts(meshes.take(rows)), gathered.take(rows)
        stage_kinds = np.stack([stage_kind_of_rank(job.model, *layout) for layout in some.layouts])[some.layout]
        by_rank_s = np.take_along_axis(exchanged_s[rows], stage_kinds, axis=1)
        chosen = recomputes.take(rows)
        stages = virtual_stages(job, some, parts, chosen, by_rank_s, send_s[rows]).stages
        seconds[rows] = of_one_shape_s(job, some, stages, gathered.totals_s)
    return seconds


def by_shape(job: Job, meshes: Meshes) -> Iterator[Ints]:
    """Rows whose pipelines have the same slots."""
    if len(meshes) == 1:
        yield np.zeros(1, np.int64)
        return
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
    job: Job,
    meshes: Meshes,
    gathered: Gathered,
    recomputes: Recomputes,
    exchanged_s: Floats,
    send_s: Floats | None = None,
) -> Virtual:
    """Times of every virtual stage, [row, stage], of meshes with the same number of stages and chunks.

    ``send_s`` is one activation to the next stage, where that is known.
    """
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
    if pp == 1:
        send_s = np.zeros(len(meshes))
    elif send_s is None:
        send_s, _ = p2p(job, gathered.shard.stream_tokens[gathered.place], ranks_apart, meshes.columns["pp"])
    backward_s = times.backward - times.weight + again_s + (exchanged_s / vp)[:, ranks]
    hops_s = np.repeat(send_s[:, None], pp * vp - 1, axis=1)
    return Virtual(StageSeconds(times.forward, backward_s, times.weight, hops_s), again_s)


def of_one_shape_s(job: Job, meshes: Meshes, stages: StageSeconds, known_s: dict[Hashable, float]) -> Floats:
    """The simulated totals of pipelines with the same slots; one alone is remembered, for it may be shown later.

    Where the schedule is not defined for the pipeline (an illegal strategy), the usual one with the next number of
    micro-batches for which it is defined stands in, in proportion.
    """
    code, pp, vp, overlaps = (meshes.columns[name][0] for name in ("schedule", "pp", "vp", "overlap_p2p"))
    given = int(microbatches(job, meshes)[0])
    defined = bool(legal(code, p=pp, v=vp, m=given).all())
    count = given if defined else -(-given // int(pp)) * int(pp)
    schedule = SCHEDULES[code] if defined else usual_schedule(int(vp))
    key = (schedule, pp, vp, given, overlaps, *(times.tobytes() for times in stages))
    if key in known_s:
        return np.array([known_s[key]])
    total_s = steps_s(schedule, p=int(pp), v=int(vp), m=count, stages=stages, blocking_p2p=not overlaps)
    total_s = total_s * (given / count)
    if len(total_s) == 1:
        known_s[key] = float(total_s[0])
    return total_s
