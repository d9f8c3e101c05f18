"""How the replicas of a small fleet share a batch when all of them cut the model alike, one stage each.

Such replicas reduce together, wherever they are, so that each may have a micro-batch and a number of them of its own.
In a small fleet one sample more or less on a GPU is much of a step, and the ways to deal samples to replicas are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from astra.search.fleet.frames import Counts, FrameShape
from astra.search.fleet.space import FrameSpace
from astra.spec.mixed import Group, Segment

FEW_GPUS: Final = 16
FEW_SAMPLES: Final = 64
KEPT: Final = 6  # ways to share the batch


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


class DealtAlike(NamedTuple):
    """Groups of replicas, and the seconds of the one that ends last."""

    seconds: float
    groups: tuple[Group, ...]


def small(space: FrameSpace, counts: Counts) -> bool:
    """Whether a fleet and its batch are so small that there is time to look at more plans."""
    return sum(counts) <= FEW_GPUS and space.batch <= FEW_SAMPLES


def dealt_alike(space: FrameSpace, counts: Counts, limit_s: float) -> list[DealtAlike]:
    """The best ways to share the batch below a time, best first, by what follows on the pool of each replica."""
    limits = space.limits
    allowed = not limits.unsearched and limits.allows("pp", 1) and limits.chunks(1)
    if not (allowed and space.uniform and small(space, counts)):
        return []
    found = [
        DealtAlike(max(share.done_s for share in shares), tuple(_group(space, share) for share in shares))
        for tp, ep in space.settings
        if ep == 1
        for replicas in range(2, sum(gpus // tp for gpus in counts) + 1)
        for (_, dealt, _), shares in _over_pools(space, counts, tp, replicas, limit_s).items()
        if dealt == replicas and len(shares) > 1
    ]
    return sorted(found, key=lambda one: one.seconds)[:KEPT]


def _group(space: FrameSpace, share: _Share) -> Group:
    """As part of a strategy."""
    segment = Segment(
        pool=space.fleet.names[share.pool], tp=share.shape.tp, pp=1, layers=(space.depth,),
        recompute=share.shape.recompute,  # type: ignore[arg-type]
    )  # fmt: skip
    return Group(dp=share.dp, mbs=share.mbs, microbatches=share.microbatches, segments=(segment,))


def _end_s(space: FrameSpace, pool: int, dp: int, row: int) -> float:
    """What follows a stage that holds the whole model, with so many replicas."""
    return float(space.after.tables(pool, dp, (row,))[row][3, -1])


def _over_pools(space: FrameSpace, counts: Counts, tp: int, replicas: int, limit_s: float) -> Best:
    """The best ways to deal the whole batch to at most so many replicas of one degree."""
    by_samples: dict[int, Best] = {0: {(0, 0, 0): ()}}
    for pool, gpus in enumerate(counts):
        options = _of_pool(space, pool, (gpus, tp, replicas), limit_s)
        wider = {samples: dict(best) for samples, best in by_samples.items()}
        for (before, best), (more, own) in product(by_samples.items(), options.items()):
            if before + more <= space.batch:
                for (here, shares), (there, others) in product(best.items(), own.items()):
                    if here[1] + there[1] <= replicas:
                        _keep(wider.setdefault(before + more, {}), shares + others)
        by_samples = wider
    return by_samples.get(space.batch, {})


def _of_pool(space: FrameSpace, pool: int, sizes: tuple[int, int, int], limit_s: float) -> dict[int, Best]:
    """By samples: the best groups on a pool, one or two; ``sizes`` are its GPUs, tp and the replicas of all pools."""
    gpus, tp, replicas = sizes
    most = min(gpus // tp, replicas)
    shares = [share for dp in range(1, most + 1) for share in _shares(space, pool, (dp, tp, replicas), limit_s)]
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


def _shares(space: FrameSpace, pool: int, degrees: tuple[int, int, int], limit_s: float) -> Iterator[_Share]:
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
            end_s = max(_end_s(space, pool, some, shape.row) for some in (dp, replicas))
            for m in range(1, space.batch // (dp * mbs) + 1):
                share = _Share(pool, dp, mbs, m, shape, float(m * each_s) + end_s)
                if share.done_s >= limit_s:
                    break
                if share.samples not in best or share.done_s < best[share.samples].done_s:
                    best[share.samples] = share
    yield from best.values()
