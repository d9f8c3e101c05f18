"""A plan over several pools as a launch: one pipeline whose runs of stages live on different GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from astra.errors import InputError
from astra.export.base import CannotExport, Launch, Mesh
from astra.spec.cluster import Pool
from astra.spec.mixed import Group, MixedStrategy
from astra.spec.mixed_text import parse_mixed
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import OVERLAPS
from astra.spec.workload import Workload


def mixed_launch(text: str, pools: Mapping[str, Pool], model: ModelSpec, workload: Workload, *, place: str) -> Launch:
    """The launch of a mixed strategy; like groups are plain data parallelism, unlike ones are launches of their own."""
    mixed = parse_mixed(text)
    if mixed.local > 1:
        raise CannotExport(None, [f"its groups meet only every {mixed.local} steps"])
    for group in mixed.groups:
        if sum(group.layers) != model.layers or mixed.samples != workload.global_batch:
            want = f"{model.layers} layers and a batch of {workload.global_batch}: the plan was edited"
            raise InputError(f"{place}.strategy", text, want=want)
    launches = [_group_launch(mixed, group, pools, model, workload, place) for group in mixed.groups]
    if len(launches) == 1:
        return launches[0]
    if len(mixed.shapes) == 1 and not mixed.shares:
        return _side_by_side(launches, workload)
    meshes = tuple(mesh for launch in launches for mesh in launch.meshes)
    return launches[0]._replace(workload=workload, meshes=meshes, groups=tuple(launches), shares=mixed.shares)


def _group_launch(
    mixed: MixedStrategy, group: Group, pools: Mapping[str, Pool], model: ModelSpec, workload: Workload, place: str
) -> Launch:
    """One group by itself, with its samples."""
    return Launch(
        model=model,
        workload=replace(workload, global_batch=group.samples),
        strategy=_strategy(mixed, group),
        layers=group.layers,
        meshes=tuple(_mesh(group, index, pools, place) for index in range(len(group.segments))),
    )


def _side_by_side(launches: Sequence[Launch], workload: Workload) -> Launch:
    """Groups of one shape: every stage has the replicas of one, then those of the next."""
    first = launches[0]
    replicas = sum(launch.strategy.dp for launch in launches)
    stages = [[mesh._replace(pp=1) for mesh in launch.meshes for _ in range(mesh.pp)] for launch in launches]
    meshes = tuple(mesh for stage in zip(*stages, strict=True) for mesh in stage)
    strategy = replace(first.strategy, dp=replicas)
    return first._replace(workload=workload, strategy=strategy, meshes=meshes, by_replica=True)


def _strategy(mixed: MixedStrategy, group: Group) -> Strategy:
    """What all stages share, and the first segment's degrees where they differ."""
    if group.plain is not None:
        return group.plain
    first = group.segments[0]
    hidden = (*mixed.overlap, "p2p") if group.vp > 1 and group.stages > 1 else mixed.overlap
    overlap = tuple(name for name in OVERLAPS if name in hidden and (name != "p2p" or group.vp > 1))
    spread = any(segment.tp > 1 for segment in group.segments)
    fields: dict[str, Any] = {"recompute": first.recompute, "schedule": "interleaved" if group.vp > 1 else "1f1b"}
    return Strategy(
        tp=first.tp, pp=group.stages, vp=group.vp, cp=group.cp, ep=first.ep, dp=group.dp, mbs=group.mbs, sp=spread,
        zero=mixed.zero, overlap=overlap if spread else tuple(name for name in overlap if name != "tp"),
        layers=group.layers, **fields,
    )  # fmt: skip


def _mesh(group: Group, index: int, pools: Mapping[str, Pool], place: str) -> Mesh:
    segment = group.segments[index]
    if segment.pool not in pools:
        raise InputError(f"{place}.strategy", segment.pool, want=f"a pool of the request: {', '.join(pools)}")
    return Mesh(
        pools[segment.pool], segment.tp, group.cp, segment.ep, group.dp, segment.pp, recompute=segment.recompute
    )
