"""Layers dealt over the chunks of a pipeline as people deal them: all alike but for the ends, and few of them.

A search finds splits that gain a part of a percent by chunks of several sizes, or by twice as many chunks. Nobody has
published how much either is worth, and each chunk more is sent and waited for, so that plans do without where they may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from astra.cost.stage import Gathered, parts_of
from astra.layers.kinds import layer_kinds
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.attempts import LEAST_BETTER
from astra.search.detail import as_row, layers_of, legality
from astra.search.splits import Split, Tried, simulated
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace


def is_plain(layers: Split) -> bool:
    """Whether all chunks between the first and the last have as many layers, and these no more."""
    first, *inner, last = layers
    return len({*inner}) <= 1 and max(first, last) <= max(inner, default=max(first, last))


class PlainDeals(NamedTuple):
    """What plain deals of a job's layers keep to; ``doubt`` is what unequal chunks are doubted by, of a step."""

    job: Job
    restrictions: Restrictions
    user_rules: Sequence[Rule]
    timed: Sequence[Gathered]
    doubt: float

    def of(self, strategy: Strategy, step_s: float) -> Strategy:
        """The strategy in the fewest plain chunks that are as good: itself, if none are."""
        said = self.job.saying(strategy)
        own = layers_of(said, strategy)
        if strategy.vp == 1 or (is_plain(own) and len({*own}) > 1):
            return strategy
        own_s, plain = self._doubted(step_s, own), is_plain(own)
        limit_s = own_s * (1 + (LEAST_BETTER if plain else max(self.doubt, LEAST_BETTER)))
        parts = parts_of(said, as_row(said, strategy).meshes.columns, self.timed if said is self.job else ())
        tries = [Tried(one, parts, deals, limit_s) for one, deals in self._deals(strategy, plain=plain)]
        found = [
            (replace(one, layers=() if len({*layers}) == 1 else layers), self._doubted(seconds, layers))
            for (one, *_), quicker in zip(tries, simulated(said, tries), strict=True)
            for seconds, layers in quicker
        ]
        least_s = min([own_s] * plain + [seconds for _, seconds in found], default=own_s)
        near = (one for one, seconds in found if seconds <= min(limit_s, least_s * (1 + LEAST_BETTER)))
        return next((one for one in near if not legality(said, one, self.user_rules)), strategy)

    def _doubted(self, step_s: float, layers: Split) -> float:
        return step_s * (1 + self.doubt * (len({*layers}) > 1))

    def _deals(self, strategy: Strategy, *, plain: bool) -> Iterator[tuple[Strategy, list[Split]]]:
        """No more chunks than it has, fewest first: equal ones, and plain ones for a strategy that is not plain."""
        depth = len(layer_kinds(self.job.model))
        for vp in self.restrictions.filter("vp", range(2, strategy.vp + (not plain))):
            deals = [layers for layers in _plain(depth, strategy.pp * vp) if len({*layers}) == 1 or not plain]
            if deals:
                yield replace(strategy, vp=vp, layers=()), deals


def _plain(depth: int, chunks: int) -> list[Split]:
    """Equal chunks, or what is missing for them left out of the last and the first, or of both alike."""
    each = -(-depth // chunks)
    missing = each * chunks - depth
    late, half = min(missing, each), missing - missing // 2
    ends = dict.fromkeys(((each - missing + late, each - late), (each - missing + half, each - half)))
    return [(first, *[each] * (chunks - 2), last) for first, last in ends if first > 0 and last >= 0]
