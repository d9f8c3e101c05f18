"""Plans of several groups that share the batch: pools by themselves, cut in two, or joined to others in a pipeline.

A pool's groups come from the planner for one GPU type (``menus``), asked for all shares of the batch that the pool may
have in any plan, of any set of pools, that is quicker than the best known: another pool takes no group from the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, floor, inf
from typing import Final, NamedTuple

import numpy as np

from astra.columns import from_strategy
from astra.cost import mixed as cost
from astra.evidence.bars import Doubt
from astra.partition.problem import narrowed
from astra.provenance import Floats
from astra.search.fleet.dealing import Dealer, OpenGroup, Sharing, Way, undominated
from astra.search.fleet.frames import Counts
from astra.search.fleet.menus import Asked, Menus, exact_shares, odd_part
from astra.spec.strategy import replace

FEW: Final = 2  # of those that are doubted least
TRUSTED: Final = 1.02  # doubted little more than the least
KEPT: Final = 3  # plans of several groups that are costed in full
SMOOTH: Final = 9  # a number of GPUs whose odd part is larger has few ways to be divided
FEW_GPUS: Final = 64  # a pool that may be cut over groups
LITTLE: Final = 0.005  # of a step
IMITATED: Final = 2  # groups of each pool whose shape is tried on the others
RESIZED: Final = 3  # shapes of some GPUs of a pool
ROUNDS: Final = 2  # of asking
FURTHER: Final = 1.1  # times as long as the plans that were asked for before
NEAREST: Final = 4  # shares of all pools together that are looked at besides, and one more of each
MOST_SHARES: Final = 4096  # that these are chosen from
LEAST_NEW: Final = 0.1  # rounds of micro-batches that such a share must bring
COARSE: Final = 4  # parts of the most that a pool may do, of which the least are not asked for
FEW_ROUNDS: Final = 8  # of micro-batches: with more of them a group fills any time well
MOST_GRIDS: Final = 500_000  # of strategies that are searched: of few experts and few GPUs less than a second
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
        if not rates:  # no pool has a strategy of its own
            return []
        wires = self._wires_to_quickest(rates)
        wanted = [self.batch * rate / sum(rates.values()) for rate in rates.values()]
        exact = exact_shares(wanted, self.batch)
        asked = [self._asked(pool, counts[pool], part, wires[pool]) for pool, part in zip(rates, exact, strict=True)]
        self._ask_all(asked, ())
        slowest_s = self.batch / min(rates.values())
        found = self._dealt_all(counts, [], wires, every=every, limit=limit)
        for _ in range(ROUNDS):  # again where better groups were found, which are able to do more
            reach, before = 1.0, self.menus.groups
            while True:
                best_s = min([limit, slowest_s, *(one.seconds for one in found[:1])])
                least_s = SLACK * self._least_s(counts, wires, best_s)
                if reach * least_s >= best_s:
                    break
                if not self._may_ask:
                    self.left_open = True
                    break
                window_s = least_s * reach, min(least_s * reach * FURTHER, best_s)
                if self._ask_in_reach(counts, wires, window_s, every=every):
                    found = self._dealt_all(counts, found, wires, every=every, limit=limit)
                reach *= FURTHER
            if self.menus.groups == before:
                break
        return self._polished(found)

    def _dealt_all(
        self, counts: Counts, found: list[Sharing], wires: Mapping[int, cost.Wire | None], *, every: bool, limit: float
    ) -> list[Sharing]:
        """The best of all groups that are known, and then of the quickest in every size of micro-batch too."""
        for again in (False, True):
            best_s = min([limit, *(one.seconds for one in found[:1])])
            if not again or (not self.menus.effort.late and self._resize(counts, wires, best_s)):
                found = [*self.dealt(counts, (), every=every, limit=best_s), *found][:KEPT]
        return found

    def _wires_to_quickest(self, rates: Mapping[int, float]) -> dict[int, cost.Wire | None]:
        """The wire of each pool to the quickest other one, over which it meets nearly every plan."""
        order = sorted(rates, key=lambda pool: -rates[pool])
        others = {pool: next((other for other in order if other != pool), pool) for pool in rates}
        return {pool: self._wire_of({pool, other}) for pool, other in others.items()}

    def _ask_in_reach(
        self, counts: Counts, wires: Mapping[int, cost.Wire | None], window_s: tuple[float, float], *, every: bool
    ) -> bool:
        """Ask each pool for all that it may have of the batch in any plan, of any set of pools, of some time.

        No plan ends sooner than all pools together would if work could be divided at will, and groups end when their
        plan does: a pool's share is what it can do by then.
        """
        wanted = list[Asked]()
        for pool, wire in wires.items():
            able = self._able(pool, counts[pool], wire)
            few, most = np.minimum(able.samples(np.array(window_s)), self.batch).tolist()
            if most < 1:
                continue
            few = min(max(few, most / COARSE, 1.0), most)
            shares = np.geomspace(few, most, int(np.log(most / few) / np.log(FURTHER)) + 2)
            for gpus in self._sizes(pool, counts[pool], every=every):
                near = {share for one in shares.tolist() for share in self.menus.near(gpus, one * gpus / counts[pool])}
                for share in sorted(near):
                    if self.menus.fresh(pool, gpus, np.array([share]), wire, wanted)[0] > 0:
                        wanted.append(self._asked(pool, gpus, share, wire))
            step = 1 << max(int(most - few) // MOST_SHARES, 1).bit_length() - 1
            window = np.arange(ceil(few / step), floor(most / step) + 1) * step
            for _ in range(NEAREST // len(wires) + 1):  # so many that fewer or other numbers of pipelines divide
                worth = window / most * self.menus.fresh(pool, counts[pool], window, wire, wanted)
                if worth.max(initial=0.0) < LEAST_NEW:
                    break
                wanted.append(self._asked(pool, counts[pool], int(window[worth.argmax()]), wire))
        return self._ask_all((), wanted)

    def _resize(self, counts: Counts, wires: Mapping[int, cost.Wire | None], best_s: float) -> bool:
        """Know the quickest shapes of each pool with every size of micro-batch, where few fill a plan."""
        before = self.menus.groups
        for pool, wire in wires.items():
            for gpus in self.menus.sizes(pool, counts[pool]):
                variants: dict[str, list[tuple[float, OpenGroup]]] = {}
                for group in self.menus.known(pool, gpus):
                    line, plain = group.line(2, wire), group.group(group.round).plain
                    able = min(line.samples * (best_s - line.fixed_s) / line.unit_s, self.batch) / SLACK
                    if plain is not None and group.round == 1 and able > 0:
                        variants.setdefault(str(replace(plain, mbs=1)), []).append((able, group))
                ranked = sorted(variants.values(), key=lambda some: -max(able for able, _ in some))
                quickest = {_shape(some[0][1]): some for some in reversed(ranked)}
                for some in [some for some in ranked if some is quickest[_shape(some[0][1])]][:RESIZED]:
                    able, largest = max(some, key=lambda one: one[1].share.samples)
                    if able <= FEW_ROUNDS * largest.share.samples:
                        self.menus.resize(pool, gpus, largest, able / largest.share.samples)
        return self.menus.groups > before

    def _least_s(self, counts: Counts, wires: Mapping[int, cost.Wire | None], most_s: float) -> float:
        """The time in which all pools together could do the batch if each could do any part of it."""
        each = [self._able(pool, counts[pool], wire) for pool, wire in wires.items()]
        enough = lambda tried: np.sum([able.samples(tried) for able in each], axis=0) >= self.batch  # noqa: E731
        return narrowed(enough, 0.0, most_s, 3)[0]

    def _able(self, pool: int, gpus: int, wire: cost.Wire | None) -> _Able:
        """What the known groups of a pool, or of the parts it is cut in, could do beside others."""
        lines = {size: [group.line(2, wire) for group in self.menus.known(pool, size)]
                 for size in self.menus.sizes(pool, gpus)}  # fmt: skip
        return _Able({size: np.array(some) for size, some in lines.items() if some}, self._cuts(pool, gpus))

    def dealt(self, counts: Counts, blocks: Sequence[OpenGroup], *, every: bool, limit: float) -> list[Sharing]:
        """The best of all groups that are known, and of ``blocks``, which are groups over several pools."""
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        ways: list[Way] = [((block,),) for block in blocks]
        ways += self._ways(counts, used, every=every)
        dealer = self.dealer(ways, limit)
        found = dealer.best(sum(1 << pool for pool in used) if every else 0)
        self.left_open |= dealer.left_open
        return found

    def dealer(self, ways: Sequence[Way], limit: float, keep: int = KEPT) -> Dealer:
        """Who deals the batch to some ways to use pools."""
        return Dealer(ways, self.batch, self.wire, keep=keep, below=limit)

    def of_part(self, pool: int, gpus: int, share: float) -> list[OpenGroup]:
        """Groups of a part of a pool, also for about a share of the batch."""
        wire = self.wire((1 << len(self.fleet.jobs)) - 1)
        for near in self.menus.near(gpus, share):
            self._ask(self._asked(pool, gpus, near, wire))
        return undominated(self.menus.known(pool, gpus), self.menus.wires)

    def of_same_cut(self, counts: Counts) -> list[Sharing]:
        """The best groups that cut the model alike, which reduce together: as many replicas as there may be."""
        shapes: dict[tuple[object, ...], list[OpenGroup]] = {}
        for group in [*self._known(counts), *self._imitated(counts)]:
            shapes.setdefault(_shape(group), []).append(group)
        found: list[Sharing] = []
        for groups in shapes.values():
            replicas = dict[int, int]()
            for group in groups:
                replicas[group.pools] = max(replicas.get(group.pools, 0), group.group(group.round).dp)
            in_all = sum(replicas.values()) if self.menus.local == 1 else 0
            if len(replicas) > 1:
                found += self.dealer(_by_pools(group.with_same_cut(in_all) for group in groups), np.inf, 1).best()
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
            ways += _by_pools(undominated(trusted, self.menus.wires))
        must = sum(1 << pool for pool in used) if every else 0
        return Dealer(ways, self.batch, self.wire, keep=FEW, below=inf).best(must)

    def _doubts(self, pool: int, groups: Sequence[OpenGroup]) -> list[float]:
        """What the step of each group is multiplied by for the upper end of its interval."""
        plain = [from_strategy(one) for group in groups if (one := group.group(group.round).plain) is not None]
        columns = {name: np.concatenate([one[name] for one in plain]) for name in plain[0]} if plain else {}
        found: list[float] = Doubt(self.fleet.jobs[pool]).of(columns).tolist() if plain else []
        return found

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

    def _ask_all(self, needed: Sequence[Asked], wanted: Sequence[Asked]) -> bool:
        """Ask for groups, and say whether some were found that were not known.

        Those that end late by themselves too: beside others that cut the model alike they may end sooner.
        """
        before = self.menus.groups
        self.menus.prepare((*needed, *wanted), self._until - self.menus.spent)
        for asked in (*needed, *wanted):
            self._ask(asked, needed=asked in needed)
        return self.menus.groups > before

    @property
    def _may_ask(self) -> bool:
        """Whether the work allowed is not done yet."""
        return self.menus.spent < self._until and not self.menus.effort.late

    def _asked(self, pool: int, gpus: int, share: int, wire: cost.Wire | None) -> Asked:
        """A share; with the whole batch there is no other group."""
        return Asked(pool, gpus, share, wire if share < self.batch else None)

    def _ask(self, asked: Asked, *, needed: bool = False) -> None:
        """Ask what a pool can do with a share of the batch, as far as the work allowed goes or where it is needed."""
        if self._may_ask or (needed and not self.menus.effort.late) or self.menus.met(asked):
            self.menus.look(asked)
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
            menus = {gpus: tuple(undominated(self.menus.known(pool, gpus), self.menus.wires))
                     for gpus in self.menus.sizes(pool, counts[pool])}  # fmt: skip
            whole = [group for gpus, menu in menus.items() if gpus == counts[pool] or not every for group in menu]
            ways += _by_pools(whole)
            ways += [(menus[one], menus[other]) for one, other in self._cuts(pool, counts[pool])
                     if menus.get(one) and menus.get(other)]  # fmt: skip
        return ways

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
        way = tuple((group, better) if better else (group,) for group, better in improved)
        below = best.seconds * (1 + 1e-9)
        return (Dealer([way], self.batch, self.wire, keep=1, below=below).best() or [best]) + rest


def _by_pools(groups: Iterable[OpenGroup]) -> list[Way]:
    """A way to use each pool with any of its groups."""
    menus: dict[int, list[OpenGroup]] = {}
    for group in groups:
        menus.setdefault(group.pools, []).append(group)
    return [(tuple(menu),) for menu in menus.values()]


class _Able(NamedTuple):
    """What a pool can do in time, were any part of a micro-batch allowed."""

    lines: Mapping[int, Floats]  # by GPUs: [group, samples of a unit, seconds before, of a unit]
    cuts: Sequence[tuple[int, int]]

    def samples(self, seconds: Floats) -> Floats:
        """In each of some times."""
        able = {gpus: (samples[:, None] * (seconds - fixed_s[:, None]) / unit_s[:, None]).max(axis=0)
                for gpus, lines in self.lines.items() for samples, fixed_s, unit_s in [lines.T]}  # fmt: skip
        none = np.zeros_like(seconds)
        both = [able.get(one, none) + able.get(other, none) for one, other in self.cuts]
        most: Floats = np.max([none, *able.values(), *both], axis=0)
        return most


def _shape(group: OpenGroup) -> tuple[object, ...]:
    """How a group on one pool cuts the model."""
    one = group.group(group.round).plain
    assert one is not None
    return one.tp, one.cp, one.ep, one.etp, one.vp, one.layers
