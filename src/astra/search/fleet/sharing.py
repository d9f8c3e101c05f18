"""Plans of several groups that share the batch: pools by themselves, cut in two, or joined to others in a pipeline.

A pool's groups come from the planner for one GPU type (``menus``), asked for the shares of the batch that fall to the
pool by its speed beside others. So it is for every set of fewer pools that could be quicker: another pool never takes a
plan away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from math import inf
from typing import Final

import numpy as np

from astra.columns import from_strategy
from astra.cost import mixed as cost
from astra.evidence.bars import Doubt
from astra.provenance import Floats
from astra.search.fleet.dealing import Dealer, OpenGroup, Sharing, Way, undominated
from astra.search.fleet.frames import Counts
from astra.search.fleet.menus import Asked, Menus, exact_shares, odd_part

FEW: Final = 2  # of those that are doubted least
TRUSTED: Final = 1.02  # doubted little more than the least
KEPT: Final = 3  # plans of several groups that are costed in full
SMOOTH: Final = 9  # a number of GPUs whose odd part is larger has few ways to be divided
FEW_GPUS: Final = 64  # a pool that may be cut over groups
MOST_SETS: Final = 16  # of pools that shares are asked for
LITTLE: Final = 0.005  # of a step
IMITATED: Final = 2  # groups of each pool whose shape is tried on the others
ROUNDS: Final = 3  # of looking for shares that come out more even
NEAREST: Final = 4  # shares of all pools together that are looked at in a round, and one more of each
LEAST_NEW: Final = 0.1  # rounds of micro-batches that a share must bring, as far as it is near
MOST_GRIDS: Final = 500_000  # of strategies that are searched: of few experts and few GPUs less than a second
MORE_GRIDS: Final = 250_000  # where that was not enough
PARTS: Final = 256  # of the batch, at most, by which sets of pools are ranked
SLACK: Final = 0.98  # of the time by rates: a share may run at a better rate than the whole batch


class GroupSearch:
    """The best groups of a fleet."""

    def __init__(self, menus: Menus) -> None:
        self.menus, self.fleet, self.batch = menus, menus.fleet, menus.batch
        self.wire = lru_cache(maxsize=256)(self._wire)
        self.left_open = False  # whether something was not looked at

    def best(self, counts: Counts, *, every: bool, limit: float) -> list[Sharing]:
        """The best ways to share the batch below a limit, best first.

        Once many grids of strategies were searched, nothing is asked for but each pool's share by rate.
        """
        self._until, self.left_open = self.menus.spent + MOST_GRIDS, False
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        if len(used) == 1 and not self._cuts(used[0], counts[used[0]]):  # nobody to share with
            for size in self._sizes(used[0], counts[used[0]], every=every):
                self._ask(Asked(used[0], size, self.batch))
            return self._polished(self.dealt(counts, (), every=every, limit=limit))
        rates = self.rates(counts, every=every)
        sets = [tuple(rates)] if every else by_rate(rates)[:MOST_SETS]
        found = self._shared_by(counts, rates, sets, (), every=every, limit=limit)
        if self.menus.spent >= self._until and not (every or self.menus.effort.late):
            # The full fleet took it all: now by the groups that are known, the sets first that end soonest with them.
            self._until = self.menus.spent + MORE_GRIDS
            below_s = min([limit, *(one.seconds for one in found[:1])])
            sets = self._by_time(counts, rates, below_s)
            found = self._shared_by(counts, rates, sets, found, every=every, limit=limit)
        return self._polished(found)

    def _shared_by(
        self,
        counts: Counts,
        rates: Mapping[int, float],
        sets: Iterable[tuple[int, ...]],
        known: Sequence[Sharing],
        *,
        every: bool,
        limit: float,
    ) -> list[Sharing]:
        """The best ways to share the batch that are found as the groups of each set of pools are asked for in turn."""
        found = list(known)
        for some in sets:
            own = {pool: rates[pool] for pool in some}
            if not own:
                break  # no pool has a strategy of its own
            if found and not self._may_ask:
                self.left_open = True
                break
            best_s = min([limit, *(one.seconds for one in found[:1])])
            if SLACK * self.batch / sum(own.values()) >= best_s:
                continue
            if self._look(counts, own, best_s, every=every) or not found:
                found = [*self.dealt(counts, (), every=every, limit=best_s), *found][:KEPT]
            for _ in range(ROUNDS if found else 0):
                if not self._look_near(counts, own, found[0].seconds):
                    break
                again = self.dealt(counts, (), every=every, limit=found[0].seconds)
                if not again:
                    break
                found = [*again, *found][:KEPT]
        return found

    def dealt(self, counts: Counts, blocks: Sequence[OpenGroup], *, every: bool, limit: float) -> list[Sharing]:
        """The best of all groups that are known, and of ``blocks``, which are groups over several pools."""
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        ways: list[Way] = [(block,) for block in blocks]
        ways += self._ways(counts, used, every=every)
        dealer = self.dealer(ways, limit)
        found = dealer.best(sum(1 << pool for pool in used) if every else 0)
        self.left_open |= dealer.left_open
        return found

    def dealer(self, ways: Sequence[Way], limit: float, keep: int = KEPT, *, together: bool = False) -> Dealer:
        """Who deals the batch to some ways to use pools; ``together``: as if groups had nothing to exchange."""
        return Dealer(ways, self.batch, (lambda _: None) if together else self.wire, keep=keep, below=limit)

    def of_part(self, pool: int, gpus: int, share: float, limit: float) -> list[OpenGroup]:
        """Groups of a part of a pool, also for about a share of the batch."""
        wire = self.wire((1 << len(self.fleet.jobs)) - 1)
        for near in self.menus.near(gpus, share):
            self._ask(self._asked(pool, gpus, near, wire), self._step_s(pool, gpus, limit))
        return undominated(self.menus.known(pool, gpus), self.menus.wires)

    def of_same_cut(self, counts: Counts) -> list[Sharing]:
        """The best groups that cut the model alike, as if they had nothing to exchange between pools.

        They reduce together, for which only the full estimate has a price.
        """
        shapes: dict[tuple[object, ...], list[OpenGroup]] = {}
        for group in [*self._known(counts), *self._imitated(counts)]:
            shapes.setdefault(_shape(group), []).append(group)
        found: list[Sharing] = []
        for groups in shapes.values():
            if len({group.pools for group in groups}) > 1:
                found += self.dealer([(group,) for group in groups], np.inf, 1, together=True).best()
        return sorted(found, key=lambda one: one.seconds)[:KEPT]

    def _known(self, counts: Counts) -> list[OpenGroup]:
        """The groups of whole pools."""
        return [group for pool, gpus in enumerate(counts) if gpus for group in self.menus.known(pool, gpus)]

    def _imitated(self, counts: Counts) -> list[OpenGroup]:
        """The quickest groups of each pool as the others would do them, where they do not."""
        known = self._known(counts)
        have = {(group.pools, _shape(group)) for group in known}
        able = {bit: max(group.share.samples / group.share.unit_s for group in known if group.pools == bit)
                for bit in {group.pools for group in known}}  # fmt: skip
        shares = {bit: self.batch * rate / sum(able.values()) for bit, rate in able.items()}
        found, wire = list[OpenGroup](), self.wire(sum(shares))
        for bit, share in shares.items():
            own = sorted(
                (group for group in known if group.pools == bit),
                key=lambda group: self.menus.step_s(group, share, wire),
            )
            for group in own[:IMITATED]:
                spared_s = group.end_s(2, wire) - group.end_s(1, None)  # at most, by groups that are alike
                if spared_s < LITTLE * self.menus.step_s(group, share, wire):
                    continue
                others = [other for other in shares if other != bit and (other, _shape(group)) not in have]
                for other in others:
                    pool = other.bit_length() - 1
                    found += self.menus.imitated(pool, counts[pool], group, shares[other])
        return found

    def trusted(self, counts: Counts, *, every: bool) -> list[Sharing]:
        """The best of the groups of each pool that are doubted least."""
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        ways: list[Way] = []
        for pool in used:
            groups = self.menus.known(pool, counts[pool])
            doubts = self._doubts(pool, groups)
            least = min(doubts, default=inf)
            trusted = [group for group, own in zip(groups, doubts, strict=True) if own <= TRUSTED * least]
            ways += [(group,) for group in undominated(trusted, self.menus.wires)]
        must = sum(1 << pool for pool in used) if every else 0
        return Dealer(ways, self.batch, self.wire, keep=FEW, below=inf).best(must)

    def _doubts(self, pool: int, groups: Sequence[OpenGroup]) -> list[float]:
        """What the step of each group is multiplied by for the upper end of its interval."""
        plain = [from_strategy(one) for group in groups if (one := group.group(group.round).plain) is not None]
        columns = {name: np.concatenate([one[name] for one in plain]) for name in plain[0]} if plain else {}
        found: list[float] = Doubt(self.fleet.jobs[pool]).of(columns).tolist() if plain else []
        return found

    def _look_near(self, counts: Counts, pools: Iterable[int], best_s: float) -> bool:
        """Ask for shares that let all pools end sooner than the best known, and say whether new groups were found.

        With more than a pool's groups can do in that time, or with less than the others leave, nothing ends sooner.
        """
        wire, wanted = self._wire_of(pools), list[Asked]()
        able = {pool: self._able(pool, counts[pool], best_s, wire) for pool in pools}
        most = {pool: min(int(samples / SLACK), self.batch) for pool, samples in able.items()}
        spare = sum(most.values()) - self.batch
        for pool, limit in most.items():
            if not limit:
                continue
            gpus = counts[pool]
            window, middle = np.arange(max(limit - spare, 1), limit + 1), limit * self.batch / sum(most.values())
            near = (1 - abs(window - middle) / (spare + 1)) * np.minimum(window / middle, middle / window)
            for _ in range(NEAREST // len(most) + 1):
                worth = near * self.menus.fresh(pool, gpus, window, wire, wanted)
                if worth.max(initial=0.0) < LEAST_NEW:
                    break
                wanted.append(self._asked(pool, gpus, int(window[worth.argmax()]), wire))
        return self._ask_all((), wanted, best_s)

    def _able(self, pool: int, gpus: int, seconds: float, wire: cost.Wire | None) -> float:
        """Samples that the known groups of a pool, or of the parts it is cut in, could do in time beside others."""
        able: dict[int, float] = {}
        for size in self.menus.sizes(pool, gpus):
            lines = [group.line(2, wire) for group in self.menus.known(pool, size)]
            able[size] = max((line.samples * (seconds - line.fixed_s) / line.unit_s for line in lines), default=0.0)
        cut = (sum(able.get(part, 0.0) for part in pair) for pair in self._cuts(pool, gpus))
        return max(0.0, *able.values(), *cut)

    def rates(self, counts: Counts, *, every: bool) -> dict[int, float]:
        """Samples per second of each pool that can train the model by itself, at best."""
        found, wire = {}, self._wire_of([pool for pool, gpus in enumerate(counts) if gpus])
        for pool, gpus in enumerate(counts):
            if not gpus:
                continue
            self._ask(Asked(pool, gpus, self.batch), needed=True)
            for size in self._sizes(pool, gpus, every=every) if self.batch % gpus else ():
                # A share that its GPUs divide may be all that runs, or run at a better rate.
                self._ask(self._asked(pool, size, max(self.menus.near(size, self.batch), default=self.batch), wire))
            known = [group for size in self.menus.sizes(pool, gpus) for group in self.menus.known(pool, size)]
            if known:
                found[pool] = self.batch / min(self.menus.step_s(group, self.batch, None) for group in known)
        return found

    def _by_time(self, counts: Counts, pools: Iterable[int], below_s: float) -> list[tuple[int, ...]]:
        """Sets of pools whose known groups could do the batch in time, the soonest first; of equals the smaller.

        As if a group could take any part of the batch: when as many parts are done, by all pools, as it has.
        """
        parts = min(self.batch, PARTS)
        done_s = lru_cache(maxsize=None)(lambda pool, wire: self._done_s(pool, counts[pool], wire, parts))
        pools, ranked = tuple(pools), list[tuple[float, int, tuple[int, ...]]]()
        for size in range(1, len(pools) + 1):
            for some in combinations(pools, size):
                wire = self._wire_of(some)
                each_s = np.concatenate([done_s(pool, wire) for pool in some])
                ranked.append((float(np.partition(each_s, parts - 1)[parts - 1]), size, some))
        return [some for seconds, _, some in sorted(ranked) if seconds < below_s]

    def _done_s(self, pool: int, gpus: int, wire: cost.Wire | None, parts: int) -> Floats:
        """When the known groups of a pool, or of the parts it is cut in, would be done with each part of the batch."""
        samples = np.arange(1, parts + 1) * (self.batch / parts)
        never, done = np.full(parts, inf), dict[int, Floats]()
        for size in self.menus.sizes(pool, gpus):
            lines = [group.line(1 if wire is None else 2, wire) for group in self.menus.known(pool, size)]
            each_s = (line.fixed_s + line.unit_s * (samples / line.samples) for line in lines)
            done[size] = np.min([never, *each_s], axis=0)
        cut = ([done.get(part, never) for part in pair] for pair in self._cuts(pool, gpus))
        together = (np.sort(np.concatenate(both))[:parts] for both in cut)
        soonest_s: Floats = np.min([never, *done.values(), *together], axis=0)
        return soonest_s

    def _step_s(self, pool: int, gpus: int, seconds: float) -> float:
        """The step of a group on some GPUs of a pool, with the host's work and stragglers."""
        host_s, waits = self.fleet.job.runtime.host.step_s, 1 + self.fleet.jobs[pool].straggling_on(gpus)
        return (seconds + host_s) * waits

    def _look(self, counts: Counts, rates: Mapping[int, float], limit: float, *, every: bool) -> bool:
        """Ask for the shares that fall to some pools, and say whether groups were found that were not known."""
        wanted = {pool: self.batch * rate / sum(rates.values()) for pool, rate in rates.items()}
        exact, wire = exact_shares(list(wanted.values()), self.batch), self._wire_of(rates)
        first = [self._asked(pool, counts[pool], part, wire) for pool, part in zip(wanted, exact, strict=True)]
        near = {(pool, gpus, share)
                for pool, whole in wanted.items()
                for gpus in self._sizes(pool, counts[pool], every=every)
                for share in self.menus.near(gpus, whole * gpus / counts[pool])}  # fmt: skip
        others = list[Asked]()
        for pool, gpus, share in sorted(near):
            if self.menus.fresh(pool, gpus, np.array([share]), wire, (*first, *others))[0] > 0:
                others.append(self._asked(pool, gpus, share, wire))
        every_pool = len(rates) == sum(gpus > 0 for gpus in counts)
        return self._ask_all(first if every_pool else (), others if every_pool else (*first, *others), limit)

    def _ask_all(self, needed: Sequence[Asked], wanted: Sequence[Asked], limit: float) -> bool:
        """Ask for groups that end in time, and say whether some were found that were not known."""
        before = self.menus.groups
        self.menus.prepare((*needed, *wanted), self._until - self.menus.spent)
        for asked in (*needed, *wanted):
            self._ask(asked, self._step_s(asked.pool, asked.gpus, limit), needed=asked in needed)
        return self.menus.groups > before

    @property
    def _may_ask(self) -> bool:
        """Whether the work allowed is not done yet."""
        return self.menus.spent < self._until and not self.menus.effort.late

    def _asked(self, pool: int, gpus: int, share: int, wire: cost.Wire | None) -> Asked:
        """A share; with the whole batch there is no other group."""
        return Asked(pool, gpus, share, wire if share < self.batch else None)

    def _ask(self, asked: Asked, below_s: float = np.inf, *, needed: bool = False) -> None:
        """Ask what a pool can do with a share of the batch, as far as the work allowed goes or where it is needed."""
        if self._may_ask or (needed and not self.menus.effort.late) or self.menus.met(asked):
            self.menus.look(asked, below_s)
        else:
            self.left_open = True

    def _sizes(self, pool: int, gpus: int, *, every: bool) -> list[int]:
        """Numbers of GPUs of a pool that groups are made of: all of it, fewer that divide better, and parts of it."""
        cut = {part for pair in self._cuts(pool, gpus) for part in pair}
        fewer: set[int] = set()
        if not every:
            for most in (SMOOTH, 1):
                if odd_part(gpus) > most:
                    fewer.add(next((n for n in reversed(self._some(pool, gpus)) if odd_part(n) <= most), gpus))
        return sorted({gpus} | fewer | cut, reverse=True)

    def _some(self, pool: int, gpus: int) -> range:
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
                ways += [(group,) for group in undominated(self.menus.known(pool, gpus), self.menus.wires)]
            for pair in self._cuts(pool, counts[pool]):
                parts = (self._quickest(pool, gpus) for gpus in pair)
                ways += list(product(*parts))
        return ways

    def _quickest(self, pool: int, gpus: int) -> list[OpenGroup]:
        """Of the groups of a part of a pool the quickest of each number of samples that they take at a time."""
        groups = undominated(self.menus.known(pool, gpus), self.menus.wires)
        ranked = sorted(groups, key=lambda group: -group.share.unit_s / group.share.samples)
        return list({group.share.samples: group for group in ranked}.values())

    def _wire_of(self, pools: Iterable[int]) -> cost.Wire | None:
        return self.wire(sum(1 << pool for pool in pools))

    def _wire(self, pools: int) -> cost.Wire | None:
        """The slowest wire that gradients of groups on some pools meet over."""
        return self.menus.between([n for n in range(len(self.fleet.jobs)) if pools >> n & 1])

    def _polished(self, found: list[Sharing]) -> list[Sharing]:
        """The best of them with better splits of the layers where there are any."""
        if not found:
            return []
        best, *rest = found
        improved = [(group, group.better(count)) for group, count in best.groups]
        if not any(better for _, better in improved):
            return found
        again: dict[int, list[Way]] = {
            group.pools: [(group,), *([(better,)] if better else [])] for group, better in improved
        }
        if len(again) < len(improved):  # a pool that is cut
            again = {0: [tuple(better or group for group, better in improved)]}
        ways = [way for some in again.values() for way in some]
        below = best.seconds * (1 + 1e-9)
        return (Dealer(ways, self.batch, self.wire, keep=1, below=below).best() or [best]) + rest


def _shape(group: OpenGroup) -> tuple[object, ...]:
    """How a group on one pool cuts the model."""
    one = group.group(group.round).plain
    assert one is not None
    return one.tp, one.cp, one.ep, one.etp, one.vp, one.layers


def by_rate(rates: Mapping[int, float]) -> list[tuple[int, ...]]:
    """Every set of some pools, the quickest first."""
    sets = [some for size in range(1, len(rates) + 1) for some in combinations(rates, size)]
    return sorted(sets, key=lambda some: -sum(rates[pool] for pool in some))
