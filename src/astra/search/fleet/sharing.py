"""Plans of several groups that share the batch: pools by themselves, cut in two, or joined to others in a pipeline.

A pool's groups come from the planner for one GPU type (``menus``), asked for the shares of the batch that fall to the
pool by its speed beside others. So it is for every set of fewer pools that could be quicker: another pool never takes a
plan away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Final

import numpy as np

from astra.cost import mixed as cost
from astra.search.fleet.dealing import Dealer, OpenGroup, Sharing, Way
from astra.search.fleet.frames import Counts
from astra.search.fleet.menus import Found, Menus, exact_shares, odd_part

KEPT: Final = 3  # plans of several groups that are costed in full
SMOOTH: Final = 9  # a number of GPUs whose odd part is larger has few ways to be divided
FEW_GPUS: Final = 64  # a pool that may be cut over groups
CUT: Final = 3  # groups of each part of a pool that is cut
SLACK: Final = 0.98  # of the time by rates: a share may run at a better rate than the whole batch


class GroupSearch:
    """The best groups of a fleet."""

    def __init__(self, menus: Menus) -> None:
        self.menus, self.fleet, self.batch = menus, menus.fleet, menus.batch
        places = range(len(self.fleet.jobs))
        cluster = self.fleet.cluster
        self._wires = {(a, b): cost.wire(cluster, a, b) for a in places for b in places if cost.outer(cluster.pools[a])}

    def best(
        self, counts: Counts, *, every: bool, limit: float, blocks: Sequence[OpenGroup] = (), bounded: bool = False
    ) -> list[Sharing]:
        """The best ways to share the batch below a limit, best first; ``blocks`` are groups over several pools.

        ``bounded``: nothing is asked for once the effort is spent.
        """
        self._bounded = bounded
        rates = self.rates(counts)
        pools = tuple(rates)
        must = sum(1 << pool for pool, gpus in enumerate(counts) if gpus) if every else 0
        found: list[Sharing] = []
        for some in [pools] if every else by_rate(rates):
            least_s = self.batch / sum(rates[pool] for pool in some) if some else np.inf
            if SLACK * least_s >= min([limit, *(one.seconds for one in found[:1])]):
                break
            if self._look(counts, {pool: rates[pool] for pool in some}, every=every) or not found:
                ways = [(block,) for block in blocks] + self._ways(counts, pools, every=every)
                found = Dealer(ways, self.batch, self.wire, keep=KEPT, below=limit).best(must)
        return self._polished(found)

    def rates(self, counts: Counts) -> dict[int, float]:
        """Samples per second of each pool that can train the model by itself."""
        found = {}
        for pool, gpus in enumerate(counts):
            alone = self._asked(pool, gpus, self.batch) if gpus else None
            if alone is not None:
                found[pool] = self.batch / alone.candidates[0].step_s
        return found

    def _look(self, counts: Counts, rates: Mapping[int, float], *, every: bool) -> bool:
        """Ask for the shares that fall to some pools, and say whether any was new."""
        wanted = {pool: self.batch * rate / sum(rates.values()) for pool, rate in rates.items()}
        exact = exact_shares(list(wanted.values()), self.batch)
        asked = {(pool, counts[pool], share) for pool, share in zip(wanted, exact, strict=True)}
        for pool, share in wanted.items():
            for gpus in self._sizes(pool, counts[pool], every=every):
                part = share * gpus / counts[pool]
                asked |= {(pool, gpus, near) for near in self.menus.near(gpus, part)}
        new = [one for one in sorted(asked) if not self.menus.asked(*one)]
        for one in new:
            self._asked(*one)
        return bool(new)

    def _asked(self, pool: int, gpus: int, share: int) -> Found | None:
        """What a pool can do with a share of the batch."""
        if self._bounded and self.menus.effort.over and not self.menus.asked(pool, gpus, share):
            return None
        return self.menus.look(pool, gpus, share)

    def _sizes(self, pool: int, gpus: int, *, every: bool) -> list[int]:
        """Numbers of GPUs of a pool that groups are made of: all of it, fewer that divide better, and parts of it."""
        cut = {part for pair in self._cuts(pool, gpus) for part in pair}
        fewer: set[int] = set()
        if not every:
            for most in (SMOOTH, 1):
                if odd_part(gpus) > most:
                    fewer.add(max((n for n in self._some(pool, gpus) if odd_part(n) <= most), default=gpus))
        return sorted({gpus} | fewer | cut, reverse=True)

    def _some(self, pool: int, gpus: int) -> Iterable[int]:
        """Numbers of GPUs below one: whole nodes, or parts of one node."""
        node = self.fleet.cluster.pools[pool].node.gpus
        return range(1, gpus) if gpus <= node else range(node, gpus, node)

    def _cuts(self, pool: int, gpus: int) -> list[tuple[int, int]]:
        """Ways to cut a small pool in two: where its GPUs divide badly, or do not divide the batch."""
        if gpus > FEW_GPUS or gpus < 2:
            return []
        large = 1 << (gpus - 1).bit_length() - 1
        pairs = [(large, gpus - large)] if odd_part(gpus) > 1 or self.batch % gpus else []
        whole = set(self._some(pool, gpus))
        return [pair for pair in pairs if whole.issuperset(pair)]

    def _ways(self, counts: Counts, pools: Sequence[int], *, every: bool) -> list[Way]:
        """Every way to use one of the pools that is known."""
        ways: list[Way] = []
        for pool in pools:
            for gpus in [counts[pool]] if every else self.menus.sizes(pool, counts[pool]):
                ways += [(group,) for group in self.menus.known(pool, gpus)]
            for pair in self._cuts(pool, counts[pool]):
                parts = (self._quickest(pool, gpus) for gpus in pair)
                ways += list(product(*parts))
        return ways

    def _quickest(self, pool: int, gpus: int) -> list[OpenGroup]:
        """A few groups of a part of a pool."""
        groups = self.menus.known(pool, gpus)
        return sorted(groups, key=lambda group: group.share.unit_s / group.share.samples)[:CUT]

    def wire(self, pools: int) -> cost.Wire | None:
        """The slowest wire that gradients of groups on some pools meet over."""
        used = [place for place in range(len(self.fleet.jobs)) if pools >> place & 1]
        pairs = [(a, b) for a in used for b in used if a < b or len(used) == 1]
        return min((self._wires[pair] for pair in pairs if pair in self._wires), key=_rate, default=None)

    def _polished(self, found: list[Sharing]) -> list[Sharing]:
        """The best of them with better splits of the layers where there are any."""
        if not found:
            return []
        best, *rest = found
        improved = [(group, group.better(count)) for group, count in best.groups]
        if not any(better for _, better in improved):
            return found
        again = {group.pools: [(group,)] + ([(better,)] if better else []) for group, better in improved}
        if len(again) < len(improved):  # a pool that is cut
            again = {0: [tuple(better or group for group, better in improved)]}
        ways = [way for some in again.values() for way in some]
        below = best.seconds * (1 + 1e-9)
        return (Dealer(ways, self.batch, self.wire, keep=1, below=below).best() or [best]) + rest


def _rate(wire: cost.Wire) -> float:
    return wire.bytes_per_s


def by_rate(rates: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Every set of some pools, the quickest first."""
    sets = [some for size in range(1, len(rates) + 1) for some in combinations(rates, size)]
    return sorted(sets, key=lambda some: -sum(rates[pool] for pool in some))
