"""What is tried besides where a step has few micro-batches: moves by the simulator, and samples dealt to replicas.

A frame's pipeline is the best by the closed form, which the simulator only comes below. With few micro-batches it comes
below by more or less as stages stand in another order or hold other layers; so the best ones found try that.

In a small fleet one sample more or less on a GPU is much of a step, and the ways to deal samples to replicas are few.
Replicas that cut the model alike reduce together, wherever they are, so that each may have a micro-batch and a number
of them of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, permutations, product
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from astra.cost.mixed import Wire, slowest_between
from astra.provenance import Source
from astra.search.fleet.dealing import Dealt
from astra.search.fleet.frames import Counts, FrameShape
from astra.search.fleet.space import FrameSpace
from astra.spec.mixed import Group, MixedStrategy, Segment

if TYPE_CHECKING:
    from astra.search.fleet.search import Costed, Planner

POLISHED: Final = 2  # plans that are moved
FEW_SEGMENTS: Final = 3  # up to here every order is tried
FEW_MOVES: Final = 20  # up to here the best of all moves is made, else the first that is better
MOST: Final = 60  # strategies that are tried
SMALL: Final = 16  # GPUs


def polished(planner: Planner, counts: Counts, plans: Sequence[Costed]) -> list[Costed]:
    """The best pipelines over pools in a better order or split, where the simulator finds one."""
    gpus = dict(zip(planner.fleet.names, counts, strict=True))
    small = sum(counts) <= SMALL  # there is always time to move its plans

    def timed(strategy: MixedStrategy) -> float:
        """Infinite where it is not legal, does not fit or nothing may be spent any more."""
        (group,), limits = strategy.groups, planner.limits
        allowed = limits.allows("pp", group.stages) and all(limits.allows("tp", one.tp) for one in group.segments)
        spent = planner.effort.late if small else planner.effort.over
        if spent or not (allowed and limits.allows("mbs", group.mbs)):
            return inf
        result = planner.full_estimate(strategy).estimate
        return result.step_s if result.fits and result.legal else inf

    found = []
    for each in plans[:POLISHED]:
        assert isinstance(each.strategy, MixedStrategy)
        moved = _moved(each.strategy, each.estimate.step_s, timed, gpus)
        found += [planner.full_estimate(moved)] if moved != each.strategy else []
    return found


def _moved(
    strategy: MixedStrategy, step_s: float, timed: Callable[[MixedStrategy], float], gpus: Mapping[str, int]
) -> MixedStrategy:
    """The best strategy that single moves lead to; ``step_s`` is that of the first, ``gpus`` are those of each pool."""
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
    for order in (segments, *orders):
        for place, segment in enumerate(order):
            for other in _reshaped(segment, gpus[segment.pool] // (group.dp * group.cp)):
                yield replace(group, segments=(*order[:place], other, *order[place + 1 :]))
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


KEPT: Final = 6  # ways to share the batch
NO_WIRE: Final = Wire(inf, 0.0, Source.ASSUMED)  # of a single GPU, which is never the slowest


class _Share(NamedTuple):
    """What some replicas of a pool do, each the same."""

    pool: int
    dp: int
    mbs: int
    microbatches: int
    shape: FrameShape
    done_s: float  # with what follows, beside so many replicas in all

    @property
    def samples(self) -> int:
        """Of the batch."""
        return self.dp * self.mbs * self.microbatches


Shares = tuple[_Share, ...]
Best = dict[tuple[int, int, int], Shares]  # by pools that are used, replicas and groups


def dealt_together(space: FrameSpace, counts: Counts, limit_s: float) -> list[Dealt]:
    """The best ways to share the batch below a time, best first, by what follows on the pool of each replica."""
    limits = space.limits
    allowed = not limits.unsearched and limits.allows("pp", 1) and limits.chunks(1)
    if not (allowed and space.uniform):
        return []
    found = [
        (max(share.done_s for share in shares), tuple(_group(space, share) for share in shares))
        for some in _each_set([pool for pool, gpus in enumerate(counts) if gpus])
        for tp, ep in space.settings
        if ep == 1
        for replicas in range(2, sum(counts[pool] // tp for pool in some) + 1)
        for (used, dealt, _), shares in _over_pools(space, counts, some, (tp, replicas), limit_s).items()
        if dealt == replicas and len(shares) > 1 and used == sum(1 << pool for pool in some)
    ]
    return sorted(found, key=lambda one: one[0])[:KEPT]


def _each_set(pools: Sequence[int]) -> list[tuple[int, ...]]:
    """Every set of some pools: which wire its replicas reduce over depends on all of them."""
    return [some for size in range(1, len(pools) + 1) for some in combinations(pools, size)]


def _group(space: FrameSpace, share: _Share) -> Group:
    """As part of a strategy."""
    segment = Segment(
        pool=space.fleet.names[share.pool], tp=share.shape.tp, pp=1, layers=(space.depth,),
        recompute=share.shape.recompute,  # type: ignore[arg-type]
    )  # fmt: skip
    return Group(dp=share.dp, mbs=share.mbs, microbatches=share.microbatches, segments=(segment,))


def _over_pools(
    space: FrameSpace, counts: Counts, pools: Sequence[int], sizes: tuple[int, int], limit_s: float
) -> Best:
    """The best ways to deal the whole batch to replicas on some pools; ``sizes`` are tp and the most replicas."""
    way, replicas = slowest_between(space.fleet.cluster, pools) or NO_WIRE, sizes[1]
    by_samples: dict[int, Best] = {0: {(0, 0, 0): ()}}
    for pool in pools:
        options = _of_pool(space, pool, (counts[pool], *sizes), limit_s, way)
        wider = {samples: dict(best) for samples, best in by_samples.items()}
        for (before, best), (more, own) in product(by_samples.items(), options.items()):
            if before + more <= space.batch:
                for (here, shares), (there, others) in product(best.items(), own.items()):
                    if here[1] + there[1] <= replicas:
                        _keep(wider.setdefault(before + more, {}), shares + others)
        by_samples = wider
    return by_samples.get(space.batch, {})


def _of_pool(space: FrameSpace, pool: int, sizes: tuple[int, int, int], limit_s: float, way: Wire) -> dict[int, Best]:
    """By samples: the best groups on a pool, one or two; ``sizes`` are its GPUs, tp and the replicas of all pools."""
    gpus, tp, replicas = sizes
    most = min(gpus // tp, replicas)
    shares = [share for dp in range(1, most + 1) for share in _shares(space, pool, (dp, tp, replicas), limit_s, way)]
    best: dict[int, Best] = {}
    for share in shares:
        _keep(best.setdefault(share.samples, {}), (share,))
    for one, two in product(shares, shares):
        samples, unlike = one.samples + two.samples, one.samples * two.dp > two.samples * one.dp
        if unlike and (one.dp + two.dp) * tp <= gpus and samples <= space.batch:
            _keep(best.setdefault(samples, {}), (one, two))
    return best


def _keep(best: Best, shares: Shares) -> None:
    """Remember what ends sooner than others of its kind."""
    pools = sum({1 << share.pool for share in shares})
    key = (pools, sum(share.dp for share in shares), len(shares))
    if key not in best or max(one.done_s for one in shares) < max(one.done_s for one in best[key]):
        best[key] = shares


def _shares(space: FrameSpace, pool: int, degrees: tuple[int, int, int], limit_s: float, way: Wire) -> Iterator[_Share]:
    """What some replicas of a pool can do in time: each number of samples with its best micro-batch.

    Each reduces with those of all pools, and updates what its own group holds; ``degrees`` are dp, tp and all replicas.
    """
    dp, tp, replicas = degrees
    node = space.fleet.cluster.pools[pool].node.gpus
    if not space.limits.allows("dp", dp) or (dp * tp > node and dp * tp % node):
        return
    best: dict[int, _Share] = {}
    for mbs in space.mbs:
        for choice, shape in zip(*space.choices(pool, dp, mbs, 1, 1), strict=True):
            held = choice.stay_bytes[-1] + choice.kept_bytes[-1] + choice.fixed_bytes + choice.first_bytes
            if (shape.tp, shape.ep) != (tp, 1) or held + choice.last_bytes > choice.limit_bytes:
                continue
            each_s = choice.time_s[-1] + choice.first_s + choice.last_s
            end_s = float(space.after.tables(pool, dp, (shape.row,), 2, way, replicas)[shape.row][3, -1])
            for m in range(1, space.batch // (dp * mbs) + 1):
                share = _Share(pool, dp, mbs, m, shape, float(m * each_s) + end_s)
                if share.done_s >= limit_s:
                    break
                if share.samples not in best or share.done_s < best[share.samples].done_s:
                    best[share.samples] = share
    yield from best.values()
