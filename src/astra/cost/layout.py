"""Pipelines as they lie on ranks: which rank holds which virtual stage, and the layers of each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from astra.layers.split import Place, StageKinds, stack, stages
from astra.schedule.registry import find
from astra.spec.model import ModelSpec


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
