"""Pipelines over pools moved a little, as long as the simulated step falls.

A frame's pipeline is the best by the closed form, which the simulator only comes below. With few micro-batches it comes
below by more or less as stages stand in another order or hold other layers; so the best ones found try that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, permutations
from typing import Final

from msgspec.structs import replace

from astra.spec.mixed import Group, MixedStrategy, Segment

FEW: Final = 6  # micro-batches for each stage: with more the closed form is the simulator's time
FEW_SEGMENTS: Final = 3  # up to here every order is tried
FEW_MOVES: Final = 20  # up to here the best of all moves is made, else the first that is better
MOST: Final = 60  # strategies that are tried

Timed = Callable[[MixedStrategy], float]  # seconds of a strategy; infinite where it is not legal or does not fit


def over_pools(strategy: MixedStrategy) -> bool:
    """Whether a strategy is one group of pipelines over several pools."""
    return len(strategy.groups) == 1 and len(strategy.groups[0].segments) > 1


def polished(strategy: MixedStrategy, step_s: float, timed: Timed, gpus: Mapping[str, int]) -> MixedStrategy:
    """The best strategy that single moves lead to; ``step_s`` is that of the first, ``gpus`` are those of each pool."""
    group = strategy.groups[0]
    if not over_pools(strategy) or group.microbatches > FEW * group.stages:
        return strategy
    known, moved = {str(strategy)}, True
    while moved and len(known) <= MOST:
        moved = False
        others = (replace(strategy, groups=(other,)) for other in _neighbours(strategy.groups[0], gpus))
        fresh = (one for one in others if str(one) not in known)
        first = list(islice(fresh, FEW_MOVES + 1))
        for tried in chain(first, fresh):
            if str(tried) in known or len(known) > MOST:
                continue
            known.add(str(tried))
            if (seconds := timed(tried)) < step_s:
                strategy, step_s, moved = tried, seconds, True
                if len(first) > FEW_MOVES:
                    break
    return strategy


def _neighbours(group: Group, gpus: Mapping[str, int]) -> Iterator[Group]:
    """Other orders of the segments, micro-batches, degrees of one segment, and a layer on another stage or pool."""
    segments = group.segments
    orders = list(permutations(segments) if len(segments) <= FEW_SEGMENTS else _swapped(segments))
    for order in orders:
        yield replace(group, segments=order)
    if group.vp > 1:
        return
    samples = group.mbs * group.microbatches
    for mbs in (group.mbs // 2, 2 * group.mbs):
        if mbs and samples % mbs == 0:
            yield replace(group, mbs=mbs, microbatches=samples // mbs)
    for place, segment in enumerate(segments):
        for other in _reshaped(segment, gpus[segment.pool] // (group.dp * group.cp)):
            yield replace(group, segments=(*segments[:place], other, *segments[place + 1 :]))
    for order in (segments, *orders):
        stages = [(place, at) for place, segment in enumerate(order) for at in range(segment.pp)]
        for giver, taker in permutations(stages, 2):
            if order[giver[0]].layers[giver[1]] > 1:
                yield replace(group, segments=tuple(_dealt(order, giver, taker)))
    for pool in sorted(gpus.keys() - {segment.pool for segment in segments}):
        if ranks := gpus[pool] // (group.dp * group.cp):
            yield from _with_another(group, pool, 1 << ranks.bit_length() - 1)


def _with_another(group: Group, pool: str, tp: int) -> Iterator[Group]:
    """A layer of any stage on a pool that has none, anywhere in the pipeline."""
    segments = group.segments
    for place, segment in enumerate(segments):
        for stage, layers in enumerate(segment.layers):
            if layers > 1:
                less = (*segment.layers[:stage], layers - 1, *segment.layers[stage + 1 :])
                rest = (*segments[:place], replace(segment, layers=less), *segments[place + 1 :])
                new = replace(segment, pool=pool, tp=tp, pp=1, layers=(1,))
                for at in range(len(segments) + 1):
                    yield replace(group, segments=(*rest[:at], new, *rest[at:]))


def _reshaped(segment: Segment, ranks: int) -> Iterator[Segment]:
    """Twice or half the tensor parallelism, in as many stages, and in as many as the same or all GPUs make."""
    layers = sum(segment.layers)
    for tp in (segment.tp // 2, 2 * segment.tp):
        for pp in sorted({segment.pp, segment.tp * segment.pp // max(tp, 1), ranks // max(tp, 1)}):
            if tp and 1 <= pp <= min(layers, ranks // tp):
                yield replace(segment, tp=tp, pp=pp, layers=tuple((layers + late) // pp for late in range(pp)))


def _swapped(segments: Sequence[Segment]) -> Iterator[tuple[Segment, ...]]:
    """Neighbours in each other's place."""
    for place in range(len(segments) - 1):
        here, there = segments[place : place + 2]
        yield (*segments[:place], there, here, *segments[place + 2 :])


def _dealt(segments: Sequence[Segment], giver: tuple[int, int], taker: tuple[int, int]) -> Iterator[Segment]:
    """The segments with a layer of one stage on another."""
    for place, segment in enumerate(segments):
        layers = list(segment.layers)
        for (at, stage), more in ((giver, -1), (taker, 1)):
            if at == place:
                layers[stage] += more
        yield replace(segment, layers=tuple(layers))
