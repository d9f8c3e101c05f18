"""A strategy over several pools, with a text form that reads back to itself.

``zero1 overlap=grad,param [dp16 mbs1 m64: H100 tp4 pp4 layers=14*4 recompute=none + A100 tp8 pp2 layers=12*2]``

A bracket is a *group*: ``dp`` equal pipelines that each take ``m`` micro-batches of ``mbs`` samples. Its *segments*,
joined by ``+`` in pipeline order, are runs of stages on one pool, each with its own tensor-parallel degree, recompute
and layers. Several brackets share the batch. A group on one pool may be any strategy that this pool could have by
itself, behind its micro-batches: ``[m64: H100 tp8 pp16 vp4 cp2 dp8 mbs1 sp zero1 layers=1,2*62,1]``. A plan that leaves
all pools but one idle may be a plain strategy behind the pool's name: ``H100: tp8 pp4 dp16 mbs1 sp zero2``. Groups that
share one copy of the state say of it ``shares=7,1`` before the brackets (``MixedStrategy.shares``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal

from msgspec.structs import replace

from astra.spec.record import Spec, check
from astra.spec.strategy import MAX_DEGREE, Strategy, pack, usual_schedule
from astra.spec.strategy_fields import OVERLAPS, RECOMPUTES

MOST_GROUPS: Final = 16
MOST_SEGMENTS: Final = 64
_USUAL: Final = ("grad", "param", "tp")
POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._#-]{0,79}")
_MOST_LETTERS: Final = 70  # of a name in its word; a number may follow
WHOLE: Final = 1000  # shares are written as whole numbers, of this where the planner chooses them
_EQUAL: Final = ("tp", "sp", "zero", "shard", "reshard", "offload", "moments", "params", "grads")


def pool_word(name: str) -> str:
    """A pool's name as one word of the text form."""
    word = re.sub(r"[^A-Za-z0-9._#-]+", "", name)[:_MOST_LETTERS]
    return word if POOL_NAME.fullmatch(word) else f"pool-{word}"


class Segment(Spec, frozen=True, kw_only=True):
    """Consecutive pipeline stages on one pool."""

    pool: str
    tp: int
    pp: int  # stages
    layers: tuple[int, ...]  # of each virtual stage: those of chunk 0, then of chunk 1, ...
    ep: int = 1
    recompute: Literal["none", "selective", "full"] = "none"  # full: every layer by itself

    def __post_init__(self) -> None:
        check(POOL_NAME.fullmatch(self.pool) is not None, "segment.pool", self.pool, "a pool's name, one word")
        for name in ("tp", "pp", "ep"):
            _check_count(f"segment.{name}", getattr(self, name))
        check(self.recompute in RECOMPUTES, "segment.recompute", self.recompute, f"one of {', '.join(RECOMPUTES)}")
        dealt = len(self.layers) > 0 and len(self.layers) % self.pp == 0 and min(self.layers, default=0) >= 0
        check(dealt, "segment.layers", len(self.layers), f"layers of each of the {self.pp} stages (times vp)")

    def __str__(self) -> str:
        return f"{self._degrees()} layers={pack(self.layers)} recompute={self.recompute}"

    def short(self) -> str:
        """The same without what is as usual."""
        again = f" recompute={self.recompute}" if self.recompute != "none" else ""
        return f"{self._degrees()} layers={pack(self.layers, ', ')}{again}"

    def _degrees(self) -> str:
        return f"{self.pool} tp{self.tp} pp{self.pp}" + (f" ep{self.ep}" if self.ep > 1 else "")


class Group(Spec, frozen=True, kw_only=True):
    """Equal pipelines with an equal number of micro-batches."""

    dp: int
    microbatches: int  # per pipeline and step
    segments: tuple[Segment, ...]
    mbs: int = 1
    cp: int = 1
    vp: int = 1  # chunks per stage; above 1 the schedule is interleaved
    plain: Strategy | None = None  # on one pool, with all that a strategy there may have; see ``plain_group``

    def __post_init__(self) -> None:
        if self.plain is not None:
            fields = _of_plain(self.segments[0].pool, self.plain, self.microbatches)
            agrees = all(getattr(self, name) == value for name, value in fields.items())
            check(agrees, "group.plain", str(self.plain), "the degrees and layers of the group")
        for name in ("dp", "microbatches", "mbs", "cp", "vp"):
            _check_count(f"group.{name}", getattr(self, name))
        check(0 < len(self.segments) <= MOST_SEGMENTS, "group", len(self.segments), f"1 to {MOST_SEGMENTS} segments")
        for segment in self.segments:
            layers, stages = len(segment.layers), segment.pp * self.vp
            check(layers == stages, f"segment {segment.pool}.layers", layers, f"pp*vp = {stages} numbers")

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return sum(segment.pp for segment in self.segments)

    @property
    def schedule(self) -> str:
        """Of its pipelines."""
        return usual_schedule(self.vp) if self.plain is None else self.plain.schedule

    @property
    def overlaps_transfers(self) -> bool:
        """Whether stages go on while they send."""
        return self.vp > 1 if self.plain is None else "p2p" in self.plain.overlap

    @property
    def samples(self) -> int:
        """Samples of a step that the group takes."""
        return self.dp * self.mbs * self.microbatches

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each virtual stage in the order a micro-batch visits them."""
        return tuple(
            count
            for chunk in range(self.vp)
            for segment in self.segments
            for count in segment.layers[chunk * segment.pp : (chunk + 1) * segment.pp]
        )

    @property
    def degrees(self) -> tuple[tuple[int, int], ...]:
        """Of each stage: by how many tensor and expert ranks its layers are split."""
        return tuple((segment.tp, segment.ep) for segment in self.segments for _ in range(segment.pp))

    def gpus(self, segment: Segment) -> int:
        """GPUs of one segment over all pipelines."""
        return self.dp * self.cp * segment.tp * segment.pp

    def __str__(self) -> str:
        if self.plain is not None:
            return f"[m{self.microbatches}: {self.segments[0].pool} {self.plain}]"
        return f"[{self._head()}: {' + '.join(map(str, self.segments))}]"

    def short(self, usual: Collection[str] = ()) -> list[str]:
        """The same without what is as usual: a line for what its pipelines share, then one for each segment."""
        if self.plain is not None:
            degrees, rest = self.plain.short(usual)
            return [f"[m{self.microbatches}: {self.segments[0].pool} {degrees}", f" {rest}]"]
        lines = [segment.short() for segment in self.segments]
        return [f"[{self._head()}:", *(f" {line} +" for line in lines[:-1]), f" {lines[-1]}]"]

    def _head(self) -> str:
        words = [f"dp{self.dp}", f"mbs{self.mbs}", f"m{self.microbatches}"]
        words += [f"cp{self.cp}"] * (self.cp > 1) + [f"vp{self.vp}"] * (self.vp > 1)
        return " ".join(words)


def plain_group(pool: str, strategy: Strategy, microbatches: int) -> Group:
    """A group whose pipelines are those of a strategy on one pool, which must say its layers."""
    return Group(**_of_plain(pool, strategy, microbatches), plain=strategy)


def _of_plain(pool: str, strategy: Strategy, microbatches: int) -> dict[str, Any]:
    """The fields of a group that its strategy decides."""
    segment = Segment(
        pool=pool, tp=strategy.tp, pp=strategy.pp, ep=strategy.ep, layers=strategy.layers, recompute=strategy.recompute
    )
    fields = {name: getattr(strategy, name) for name in ("dp", "mbs", "cp", "vp")}
    return {**fields, "microbatches": microbatches, "segments": (segment,)}


def same_cut(groups: Iterable[Group]) -> bool:
    """Whether every group cuts the model alike, so that ranks meet their like in all of them."""
    return len({(group.cp, group.vp, group.layers, group.degrees) for group in groups}) == 1


class MixedStrategy(Spec, frozen=True, kw_only=True):
    """How one job is split over several pools."""

    groups: tuple[Group, ...]
    zero: int = 1
    overlap: tuple[str, ...] = _USUAL  # each where the segment and its runtime can; chunks always overlap transfers
    sp: bool = True  # sequence parallelism where tp is above 1
    flash: bool = True
    local: int = 1  # steps that groups take by themselves before their weights meet (DiLoCo); 1: every gradient meets
    shares: tuple[int, ...] = ()  # of the groups in one copy of the state; empty: every group has a copy of its own

    def __post_init__(self) -> None:
        _check_count("strategy.local", self.local)
        check(self.local == 1 or len(self.groups) > 1, "strategy.local", self.local, "several groups for local steps")
        if self.shares:
            check_shares(self.groups, self.shares)
            check(self.local == 1, "strategy.local", self.local, "no local steps of groups that share one state")
        check(0 < len(self.groups) <= MOST_GROUPS, "strategy", len(self.groups), f"1 to {MOST_GROUPS} groups")
        check(self.zero in (0, 1), "strategy.zero", self.zero, "0 or 1: pools do not share deeper ZeRO stages")
        unknown = [name for name in self.overlap if name not in OVERLAPS]
        check(not unknown, "strategy.overlap", unknown, f"some of {', '.join(OVERLAPS)}")
        ordered = tuple(name for name in OVERLAPS if name in self.overlap)
        check(
            self.overlap == ordered, "strategy.overlap", self.overlap, f"each once, in the order {', '.join(OVERLAPS)}"
        )

    @property
    def samples(self) -> int:
        """Global batch."""
        return sum(group.samples for group in self.groups)

    @property
    def held(self) -> tuple[float, ...]:
        """What one replica of each group holds of the state that is sharded; empty: each group shards its own."""
        return tuple(parts(self.shares, [group.dp for group in self.groups])) if self.shares else ()

    @property
    def padding(self) -> float:
        """How much more is gathered than with even parts of one state."""
        return padding(self.shares, [group.dp for group in self.groups]) if self.shares else 1.0

    @property
    def shapes(self) -> set[tuple[Any, ...]]:
        """The unlike pipelines; groups of one shape are plain data parallelism, whatever pools they are on."""
        return {
            (group.mbs, group.microbatches, group.cp, group.vp,
             tuple((one.tp, one.pp, one.ep, one.layers, one.recompute) for one in group.segments),
             group.plain and str(replace(group.plain, dp=1)))
            for group in self.groups
        }  # fmt: skip

    @property
    def over_pools(self) -> bool:
        """Whether it is one group of pipelines over several pools."""
        return len(self.groups) == 1 and len(self.groups[0].segments) > 1

    @property
    def gpus_by_pool(self) -> dict[str, int]:
        """GPUs used of each pool."""
        used: dict[str, int] = {}
        for group in self.groups:
            for segment in group.segments:
                used[segment.pool] = used.get(segment.pool, 0) + group.gpus(segment)
        return used

    @property
    def gpus(self) -> int:
        """GPUs used in all."""
        return sum(self.gpus_by_pool.values())

    def __str__(self) -> str:
        words = [f"zero{self.zero}", f"overlap={','.join(self.overlap) or 'none'}", *self._rare()]
        if all(group.plain is not None for group in self.groups):
            words = self._seldom()  # each of them says its own
        return " ".join([*words, *map(str, self.groups)])

    def short(self, usual: Collection[str] = ()) -> list[str]:
        """The same without what is as usual, in lines."""
        words = [f"zero{self.zero}"] * (self.zero != 1)
        words += [f"overlap={','.join(self.overlap) or 'none'}"] * (self.overlap != _USUAL)
        words += self._rare()
        return [" ".join(words)] * bool(words) + [line for group in self.groups for line in group.short(usual)]

    def _rare(self) -> list[str]:
        words = ["nosp"] * (not self.sp) + ["flash=off"] * (not self.flash)
        return words + self._seldom()

    def _seldom(self) -> list[str]:
        words = [f"local={self.local}"] * (self.local > 1)
        return words + [f"shares={','.join(map(str, self.shares))}"] * bool(self.shares)


class OnePool(Spec, frozen=True, kw_only=True):
    """A plain strategy on one pool; the others are idle."""

    pool: str
    strategy: Strategy

    def __post_init__(self) -> None:
        check(POOL_NAME.fullmatch(self.pool) is not None, "strategy.pool", self.pool, "a pool's name, one word")

    @property
    def gpus_by_pool(self) -> dict[str, int]:
        """GPUs used of each pool."""
        return {self.pool: self.strategy.gpus}

    def __str__(self) -> str:
        return f"{self.pool}: {self.strategy}"


def _check_count(where: str, value: int) -> None:
    check(isinstance(value, int) and 1 <= value <= MAX_DEGREE, where, value, f"a whole number from 1 to {MAX_DEGREE:,}")


def check_shares(groups: Sequence[Group], shares: Sequence[int]) -> None:
    """Refuse groups that could not share one copy of the state so.

    Every replica gathers each layer with all others, for each micro-batch: they must cut the model alike and come to
    it equally often.
    """
    where = "strategy.shares"
    check(len(shares) == len(groups) > 1, where, len(shares), f"a number for each of the {len(groups)} groups")
    check(min(shares) >= 0 < max(shares), where, shares, "whole numbers from 0 on, not all of them 0")
    for group in groups:
        one = group.plain
        whole = one is not None and one.zero == 3 and one.shard == 0 and one.reshard == "always"
        want = "groups on one pool each, with zero3 over all their replicas, reshard=always and no offload"
        check(whole and one is not None and one.offload == "none", where, str(group), want)
        inner = group.stages * group.cp * group.vp * max(segment.ep for segment in group.segments)
        check(inner == 1, where, str(group), "groups without pipelines, context or expert parallelism")
    plain = [group.plain for group in groups]
    found = {tuple(getattr(one, name) for name in _EQUAL) for one in plain}
    check(len(found) == 1, where, [str(one) for one in plain], f"one {', '.join(_EQUAL)} for all groups")
    counts = {group.microbatches for group in groups}
    check(
        len(counts) == 1, where, sorted(counts), "one number of micro-batches: every one gathers the weights from all"
    )


def parts(shares: Sequence[int], replicas: Sequence[int]) -> list[float]:
    """What one replica of each group holds of the state."""
    return [share / sum(shares) / count for share, count in zip(shares, replicas, strict=True)]


def padding(shares: Sequence[int], replicas: Sequence[int]) -> float:
    """How much more collectives move than with even parts: every part is padded to the largest."""
    return sum(replicas) * max(parts(shares, replicas))
