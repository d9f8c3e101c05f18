"""Which groups share a batch: the best of every choice of one way for each pool."""

from __future__ import annotations

import random
from itertools import combinations, product
from math import inf

import pytest

from astra.cost.mixed import Wire
from astra.provenance import Source
from astra.search.fleet import dealing
from astra.search.fleet.dealing import BatchShare, Dealer, OpenGroup, Way, deal

POOLS, WAYS, BATCH = 4, 9, 240


def random_group(rng: random.Random, pool: int, part: float = 1.0) -> OpenGroup:
    """A group of some GPUs of a pool; pools differ in speed, groups in samples at a time."""
    samples, sent = rng.choice((1, 2, 3, 5, 8, 12, 20, 30)), rng.uniform(0.0, 0.3)
    unit_s = samples * rng.uniform(0.9, 1.1) / (part * (POOLS - pool))

    def end_s(groups: int, wire: Wire | None) -> float:
        return sent * (0.1 if wire is None else 0.1 + (groups - 1) / groups / wire.bytes_per_s)

    share = BatchShare(samples, rng.uniform(0.0, 2.0), unit_s)
    return OpenGroup(1 << pool, 1, share, end_s, lambda _: pytest.fail("not asked"), lambda _: None)


def wires(rng: random.Random) -> dict[int, Wire]:
    """The slowest wire between the pools of every set, by bits."""
    rates = {pair: rng.uniform(0.05, 1.0) for pair in combinations(range(POOLS), 2)}
    found = {}
    for bits in range(1 << POOLS):
        inside = [rate for pair, rate in rates.items() if all(bits >> pool & 1 for pool in pair)]
        found[bits] = Wire(min(inside, default=2.0), 0.0, Source.ASSUMED, inf)
    return found


def everything(ways: list[list[tuple[OpenGroup, ...]]], wire: dict[int, Wire], must: int) -> float:
    best_s = inf
    for chosen in product(*([(), *some] for some in ways)):
        groups = [group for way in chosen for group in way]
        bits = sum({group.pools for group in groups})
        if groups and not must & ~bits:
            between = wire[bits] if len(groups) > 1 else None
            dealt = deal([[group.line(len(groups), between)] for group in groups], BATCH, best_s)
            best_s = best_s if dealt is None else dealt[0]
    return best_s


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("must", [0, 0b1010])
def test_no_choice_of_ways_is_better(seed: int, must: int) -> None:
    rng = random.Random(seed)
    wire = wires(rng)
    ways: list[list[tuple[OpenGroup, ...]]] = [
        [
            *((random_group(rng, pool),) for _ in range(WAYS - 2)),
            *((random_group(rng, pool, 0.6), random_group(rng, pool, 0.4)) for _ in range(2)),  # the pool cut in two
        ]
        for pool in range(POOLS)
    ]
    menus: list[Way] = []
    for some in ways:
        menus.append((tuple(way[0] for way in some if len(way) == 1),))
        menus += [tuple((part,) for part in way) for way in some if len(way) == 2]
    dealer = Dealer(menus, BATCH, wire.__getitem__, keep=3, below=inf)
    best = dealer.best(must)[0]
    assert not dealer.left_open
    assert best.seconds == pytest.approx(everything(ways, wire, must), rel=1e-9)
    assert sum(group.share.samples * count for group, count in best.groups) == BATCH


def test_it_is_said_where_there_are_more_choices_than_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "MOST_DEALS", 5)
    rng = random.Random(1)
    ways: list[Way] = [((random_group(rng, pool),),) for pool in range(POOLS) for _ in range(WAYS)]
    dealer = Dealer(ways, BATCH, wires(rng).__getitem__, keep=3, below=inf)
    assert dealer.best()
    assert dealer.left_open
