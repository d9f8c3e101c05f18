"""A plan over several pools as a launch: one pipeline whose runs of stages live on different GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astra.errors import InputError
from astra.export.base import CannotExport, Launch, Mesh
from astra.spec.cluster import Pool
from astra.spec.mixed import Group, MixedStrategy, parse_mixed
from astra.spec.model import ModelSpec
from astra.spec.strategy import OVERLAPS, Strategy
from astra.spec.workload import Workload


def mixed_launch(text: str, pools: Mapping[str, Pool], model: ModelSpec, workload: Workload, *, place: str) -> Launch:
    """The launch of a mixed strategy; groups that share the batch unevenly are beyond every runtime we export to."""
    mixed = parse_mixed(text)
    if len(mixed.groups) > 1:
        raise CannotExport(None, ["its groups of pipelines take unequal shares of the batch"])
    group = mixed.groups[0]
    if sum(group.layers) != model.layers or group.samples != workload.global_batch:
        want = f"{model.layers} layers and a batch of {workload.global_batch}: the plan was edited"
        raise InputError(f"{place}.strategy", text, want=want)
    return Launch(
        model=model,
        workload=workload,
        strategy=_strategy(mixed, group),
        layers=group.layers,
        meshes=tuple(_mesh(group, index, pools, place) for index in range(len(group.segments))),
    )


def _strategy(mixed: MixedStrategy, group: Group) -> Strategy:
    """What all stages share, and the first segment's degrees where they differ."""
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
