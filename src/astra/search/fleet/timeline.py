"""A step over several pools, span by span: the lanes of every group of pipelines."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from astra.errors import InputError
from astra.search.fleet.detail import costed_group, estimate, pipeline_of
from astra.search.fleet.plan import fleet_in
from astra.search.fleet.pools import Fleet, check_strategy, part_of
from astra.search.fleet.spread import read_alone
from astra.search.timeline import SimulatedPipeline, StepTimeline, on_one_pool, timeline_of_pipelines
from astra.search.world import World
from astra.spec.mixed import MixedStrategy
from astra.spec.mixed_text import on_one_pool as named_pool
from astra.spec.mixed_text import parse_mixed
from astra.units import GIB


def timeline_of_fleet(world: World, text: str) -> StepTimeline:
    """The step of a strategy over several pools, or of a plain one on one of them."""
    fleet, _ = fleet_in(world)
    named = named_pool(text)
    if named is not None:
        alone = read_alone(fleet, *named)
        job = part_of(fleet.jobs[fleet.place(alone.pool)], alone.strategy.gpus)
        return replace(on_one_pool(job, alone.strategy), strategy=text)
    strategy = parse_mixed(text)
    check_strategy(fleet, strategy)
    pipelines = [_pipeline(fleet, strategy, number) for number in range(len(strategy.groups))]
    return timeline_of_pipelines(estimate(fleet, strategy), pipelines, host_s=fleet.job.runtime.host.step_s)


def _pipeline(fleet: Fleet, strategy: MixedStrategy, number: int) -> SimulatedPipeline:
    group = strategy.groups[number]
    costed = costed_group(fleet, strategy, group, ())
    found = pipeline_of(fleet, group, costed)
    p, v, m = found.shape(group)
    if m != group.microbatches:
        want = f"micro-batches in whole groups of {p}, as the schedule {found.schedule} has them"
        raise InputError("strategy", str(group), want=want)
    records = [record for part in costed for record in part.stages]
    update_s = np.array([record.optimizer_s for record in records])
    after_s = np.concatenate([part.after_s for part in costed])
    limits = [part.job.limit_bytes / GIB for part in costed for _ in part.ranks]
    return SimulatedPipeline(
        found.schedule,
        p,
        v,
        m,
        found.stages,
        not group.overlaps_transfers,
        after_s - update_s,
        update_s,
        records,
        limits,
        number,
    )
