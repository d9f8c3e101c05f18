"""Layers dealt over the chunks of a pipeline as people deal them: all alike but for the ends, and few of them.

A search finds splits that gain a part of a percent by chunks of several sizes, or by twice as many chunks. Nobody has
published how much either is worth, and each chunk more is sent and waited for, so that plans do without where they may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
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


class _Dealing(NamedTuple):
    """A plan whose layers may be dealt more plainly: its own step as it is doubted, and the most of another's."""

    place: int
    job: Job
    own_s: float
    limit_s: float
    plain: bool
    tries: list[Tried]


class PlainDeals(NamedTuple):
    """What plain deals of a job's layers keep to; ``doubt`` is what unequal chunks are doubted by, of a step."""

    job: Job
    restrictions: Restrictions
    user_rules: Sequence[Rule]
    timed: Sequence[Gathered]
    doubt: float

    def of(self, plans: Sequence[tuple[Strategy, float]]) -> list[Strategy]:
        """Strategies with their steps in the fewest plain chunks that are as good: themselves, where none are."""
        chosen = [strategy for strategy, _ in plans]
        asked = [found for place, plan in enumerate(plans) for found in self._asked(place, *plan)]
        for parts in {id(one.tries[0].parts.parts): one.tries[0].parts.parts for one in asked}.values():
            some = [one for one in asked if one.tries[0].parts.parts is parts]  # costed together
            quicker = iter(simulated(some[0].job, [each for one in some for each in one.tries]))
            for one in some:
                chosen[one.place] = self._plainest(one, chosen[one.place], list(islice(quicker, len(one.tries))))
        return chosen

    def _asked(self, place: int, strategy: Strategy, step_s: float) -> Iterator[_Dealing]:
        said = self.job.saying(strategy)
        own = layers_of(said, strategy)
        if strategy.vp == 1 or (is_plain(own) and len({*own}) > 1):
            return
        own_s, plain = self._doubted(step_s, own), is_plain(own)
        limit_s = own_s * (1 + (LEAST_BETTER if plain else max(self.doubt, LEAST_BETTER)))
        parts = parts_of(said, as_row(said, strategy).meshes.columns, self.timed if said is self.job else ())
        tries = [Tried(one, parts, deals, limit_s) for one, deals in self._deals(strategy, plain=plain)]
        if tries:
            yield _Dealing(place, said, own_s, limit_s, plain, tries)

    def _plainest(self, asked: _Dealing, strategy: Strategy, quicker: Sequence[list[tuple[float, Split]]]) -> Strategy:
        found = [
            (replace(one.strategy, layers=() if len({*layers}) == 1 else layers), self._doubted(seconds, layers))
            for one, faster in zip(asked.tries, quicker, strict=True)
            for seconds, layers in faster
        ]
        least_s = min([asked.own_s] * asked.plain + [seconds for _, seconds in found], default=asked.own_s)
        near = (one for one, seconds in found if seconds <= min(asked.limit_s, least_s * (1 + LEAST_BETTER)))
        return next((one for one in near if not legality(asked.job, one, self.user_rules)), strategy)

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
