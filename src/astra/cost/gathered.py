"""Pipelines as they lie on ranks, and parts of unique shardings gathered to the stages that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from astra.axes import AXES
from astra.columns import Columns, each
from astra.cost.layers import EMBEDDING, HEAD, modules_in
from astra.cost.parts import Part
from astra.layers.kinds import LayerKind, layer_kinds
from astra.layers.operators import Shard
from astra.layers.split import Place, StageKinds, kinds, stack, stages
from astra.provenance import Floats, Ints
from astra.schedule.registry import find
from astra.spec.job import Job
from astra.spec.model import ModelSpec


class Gathered(NamedTuple):
    """Unique shardings, their parts, and where each mesh finds its own."""

    shard: Shard
    parts: Mapping[LayerKind | str, Part]
    place: Ints

    def take(self, rows: Ints) -> Gathered:
        """The same parts for some of the meshes."""
        return self._replace(place=self.place[rows])


def over_stages(table: StageKinds, columns: list[Floats]) -> Floats:
    """[mesh] columns of each kind, the embedding and the head, summed to [mesh, sort]."""
    *by_kind, first, last = columns
    total = table.first * first[:, None] + table.last * last[:, None]
    for place, column in enumerate(by_kind):
        total = total + table.counts[..., place] * column[:, None]
    return total


def over_layers(table: StageKinds, by_kind: Floats) -> Floats:
    """[mesh, kind, module] figures of layers, summed to [mesh, sort, module]."""
    return np.asarray(table.counts @ by_kind)


class StageMemory:
    """Activation bytes of stages from parts."""

    def __init__(self, job: Job, gathered: Gathered, table: StageKinds) -> None:
        self._gathered, self._table = gathered, table
        self._by_kind = [gathered.parts[kind] for kind in kinds(job.model)]

    def layers(self, field: str) -> Floats:
        """Summed over a rank's layers and its image encoder, for one micro-batch through all of them."""
        nothing = np.zeros(len(self._gathered.place))
        parts = [*self._by_kind, self._gathered.parts[EMBEDDING]]
        kept = [getattr(part.kept, field)[self._gathered.place] for part in parts]
        return over_stages(self._table, [*kept, nothing])

    def modules(self, job: Job) -> Floats:
        """[mesh, sort, module] of a rank's layers, what selective recompute of each module does not keep."""
        nothing = np.zeros(len(self._gathered.shard.tp))
        saved = [
            np.stack([part.modules[name].saved if name in part.modules else nothing for part in self._by_kind], axis=-1)
            for name in modules_in(job)
        ]
        return over_layers(self._table, np.stack(saved, axis=-1)[self._gathered.place])

    def largest(self, field: str) -> Floats:
        """Of the largest layer a rank holds."""
        kept = [
            np.where(self._table.counts[..., place] > 0, getattr(part.kept, field)[self._gathered.place][:, None], 0.0)
            for place, part in enumerate(self._by_kind)
        ]
        largest: Floats = np.max(kept, axis=0)
        return largest

    def head(self) -> Floats:
        """Kept and working bytes at the loss, on the rank that holds the last virtual stage."""
        head = self._gathered.parts[HEAD].kept
        return self._table.last * (head.whole + head.working)[self._gathered.place][:, None]


def over_all(job: Job, columns: list[Floats]) -> Floats:
    """[mesh] columns of each kind, the embedding and the head, summed over the whole model."""
    return over_stages(whole_model(job), columns)[:, 0]


def whole_model(job: Job) -> StageKinds:
    """All layers on one rank."""
    return each(stages(job.model, ((0,),), (len(layer_kinds(job.model)),)), lambda column: column[None])


def over_model(job: Job, gathered: Gathered, seconds: Callable[[Part], Floats]) -> Floats:
    """One figure of each part, summed over the whole model, [mesh]."""
    keys: list[LayerKind | str] = [*kinds(job.model), EMBEDDING, HEAD]
    return over_all(job, [seconds(gathered.parts[key]) for key in keys])[gathered.place]


def least_s(part: Part) -> Floats:
    """Forward and backward of a part with every overlap that helps."""
    total: Floats = np.zeros_like(part.weight_s)
    for direction in (part.forward, part.backward):
        total = total + direction.compute_s
        for axis in AXES:
            total = total + np.minimum(direction.exposed_s[axis.name], direction.overlapped_s[axis.name])
    return total


def temporary_bytes(columns: Columns, layer_bytes: Floats) -> Floats:
    """What hiding expert exchanges holds besides: a layer of a second micro-batch.

    One micro-batch goes forward through the layers while another goes back through them, so that as many are filled as
    are given back, but for the two at work.
    """
    return np.where(columns["overlap_ep"][:, None], layer_bytes, 0.0)


def graph_bytes(job: Job, inputs: Floats, in_flight: Floats) -> Floats:
    """What graphs of single layers hold besides: an input each of their own, for every micro-batch in flight.

    A graph is replayed on the tensors it was captured with. A graph of the whole step has its inputs within it.
    """
    return inputs * in_flight if job.words.graphs == "partial" else np.zeros_like(inputs)


class Layout(NamedTuple):
    """Layers on each virtual stage of a pipeline, and who holds it."""

    place: Place
    layers: tuple[int, ...]

    @property
    def pp(self) -> int:
        """Ranks."""
        return len(self.place[0])

    @property
    def vp(self) -> int:
        """Chunks of a rank."""
        return len(self.place)


def layout(schedule: str, pp: int, vp: int, layers: tuple[int, ...]) -> Layout:
    """The layout of a schedule's pipeline."""
    return Layout(_place(schedule, pp, vp), layers)


@lru_cache(maxsize=4096)
def _place(schedule: str, pp: int, vp: int) -> Place:
    return tuple(tuple(ranks) for ranks in find(schedule).place(pp, vp).tolist())


class Layouts(tuple[Layout, ...]):
    """The layouts of a space; their stages are worked out once."""

    _stages: dict[bool, StageKinds]

    def stages(self, model: ModelSpec, *, every_rank: bool) -> StageKinds:
        """The kinds of rank of every layout, [layout, sort]."""
        if not hasattr(self, "_stages"):
            self._stages = {}
        if every_rank not in self._stages:
            self._stages[every_rank] = stack([stages(model, *layout, every_rank) for layout in self])
        return self._stages[every_rank]

    def in_line(self) -> Layouts:
        """The same virtual stages, each on a rank of its own."""
        return Layouts(Layout((tuple(range(len(each.layers))),), each.layers) for each in self)
