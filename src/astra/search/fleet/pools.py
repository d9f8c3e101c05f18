"""The pools a request may use, each with its job, and what restrictions and rules leave of the space over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from astra.columns import Column, code
from astra.cost import mixed as cost
from astra.cost.timed import PartTables
from astra.errors import InputError
from astra.layers.kinds import layer_kinds
from astra.provenance import Bools
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule, check
from astra.search.fleet.bounds import AfterSettings
from astra.search.words import joint_words
from astra.spec.cluster import Cluster
from astra.spec.job import Job
from astra.spec.mixed import MixedStrategy, pool_word
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import OVERLAPS

T = TypeVar("T")
ALWAYS: Final[Mapping[str, bool | int | str]] = {
    "etp": 1, "flash": True, "offload": "none", "method": "uniform", "recompute_layers": 1, "offload_layers": 0,
    "shard": 0, "moments": "fp32", "reshard": "always", "overlap_ep": False, "dispatch_fp8": False,
}  # fmt: skip
_WITH_STAGES: Final = frozenset(("pp", "gpus"))
_BY_SPLIT: Final = frozenset(("layers_per_stage", "layers_per_chunk"))  # known only once the layers are dealt


class Limits:
    """Every pool and every stage keeps to them; ``pp`` is the number of stages of a pipeline."""

    def __init__(self, job: Job, restrictions: Restrictions | None = None, user_rules: Sequence[Rule] = ()) -> None:
        self.restrictions = restrictions or Restrictions()
        self.user_rules = tuple(user_rules)
        words = msgspec.structs.asdict(joint_words(job).words)
        self.unsearched = [
            f"{field}={'on' if value is True else value}"
            for field, value in {**words, **ALWAYS}.items()
            if not self.allows(field, value)
        ]  # what pipelines over several pools must have and may not
        stages = [stage for stage in (1, 0) if stage in job.runtime.can.zero and self.allows("zero", stage)]
        if not stages:
            self.unsearched.append("zero0 or zero1")
            stages = [1]
        self.zero = stages[0]
        on = {name: name in job.runtime.can.overlap and self.allows(f"overlap_{name}", True) for name in OVERLAPS}
        self.overlap = tuple(name for name in OVERLAPS if on[name] and name not in ("p2p", "ep"))
        param = "param" in self.overlap and "grad" in self.overlap and self.zero > 0
        self.settings = AfterSettings(self.zero, "grad" in self.overlap, param)
        self.early_rules = tuple(rule for rule in self.user_rules if not rule.needs & _BY_SPLIT)
        named = {*self.restrictions.fixed, *self.restrictions.forbidden, *self.restrictions.maxima,
                 *self.restrictions.minima}  # fmt: skip
        self.staged = "pp" in named or any(rule.needs & _WITH_STAGES for rule in self.early_rules)

    def __bool__(self) -> bool:
        return bool(self.restrictions) or bool(self.user_rules)

    def allows(self, field: str, value: object) -> bool:
        """Whether a field may take a value."""
        return self.restrictions.allows(field, value)

    def filter(self, field: str, values: Iterable[T]) -> list[T]:
        """The values a field may take."""
        return self.restrictions.filter(field, values)

    def sequence_parallel(self, tp: Column) -> Bools:
        """Sequence parallelism is on where tp is above 1: which degrees that leaves."""
        on, off = self.allows("sp", True), self.allows("sp", False)
        return np.where(tp > 1, on, off)

    def chunks(self, vp: int) -> bool:
        """Whether stages may have so many chunks, with the schedule and the overlap that belong to it."""
        if not self.restrictions:
            return True
        interleaved = vp > 1
        schedule = "interleaved" if interleaved else "1f1b"
        return self.allows("vp", vp) and self.allows("schedule", schedule) and self.allows("overlap_p2p", interleaved)

    def kept(self, job: Job, frame: Mapping[str, Any], tp: Column, ep: Column, recompute: Column) -> Bools:
        """Which ways to shard stages of a frame the user's rules allow; ``pp`` of 0 is not known."""
        if not self.early_rules or not len(tp):
            return np.ones(len(tp), bool)
        one = np.ones(1, np.int64)
        vp, pp, dp, cp, mbs = (int(frame[name]) for name in ("vp", "pp", "dp", "cp", "mbs"))
        links = job.pool.node.links
        reach = min(links[0].reach, job.pool.gpus) if links else 1
        columns: dict[str, Column] = {
            "tp": tp, "ep": ep, "recompute": recompute, "vp": one * vp, "dp": one * dp, "cp": one * cp,
            "mbs": one * mbs, "zero": one * self.zero, "etp": one, "recompute_layers": one, "method": 0 * one,
            "offload": 0 * one, "schedule": one * code("schedule", "interleaved" if vp > 1 else "1f1b"),
            "sp": tp > 1, "flash": one > 0, "overlap_grad": one * self.settings.overlap_grad > 0,
            "overlap_param": one * self.settings.overlap_param > 0, "overlap_p2p": one * (vp > 1 and pp != 1) > 0,
            "overlap_tp": (tp > 1) & (tp <= reach) & ("tp" in self.overlap),
        }  # fmt: skip
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        facts["batch"] = round(dp * mbs * float(frame["microbatches"]))
        del facts["gpus"]
        if pp:
            columns |= {"pp": one * pp, "gpus": tp * cp * pp * dp}
        return check(columns, facts, (), self.early_rules).ok


class Fleet(NamedTuple):
    """The pools a request may use, each with its job. ``names`` are words of the text form."""

    cluster: Cluster
    jobs: tuple[Job, ...]
    names: tuple[str, ...]
    columns: tuple[cost.PoolColumns, ...] = ()  # parts already costed, by pool
    tables: tuple[PartTables, ...] = ()  # the same of strategies on one pool
    joined: Mapping[str, tuple[str, ...]] = MappingProxyType({})  # pools that were given apart, by what they are now

    def place(self, name: str) -> int:
        """Which pool a word means."""
        if name not in self.names:
            raise InputError("strategy", name, want=f"a pool of this cluster: {', '.join(self.names)}")
        return self.names.index(name)

    def usual(self, pool: str, strategy: Strategy) -> dict[str, Any]:
        """What a strategy on a pool takes unless it says otherwise."""
        return self.jobs[self.place(pool)].usual(strategy)

    @property
    def job(self) -> Job:
        """The first pool's; model, runtime and batch are the same for all."""
        return self.jobs[0]


def make_fleet(cluster: Cluster, jobs: Sequence[Job]) -> Fleet:
    """Pools with distinct one-word names."""
    return Fleet(cluster, tuple(jobs), names_of(cluster))


def in_order(fleet: Fleet) -> Fleet:
    """The same pools in an order that does not depend on how they were given: a search may end before all is seen."""

    def first(place: int) -> tuple[object, ...]:
        pool = fleet.cluster.pools[place]
        fastest, memory = max(pool.device.flops_per_s.values()), pool.device.memory_bytes
        return -fastest, -memory, pool.device.name, -pool.gpus, pool.name, msgspec.json.encode(pool)

    order = sorted(range(len(fleet.names)), key=first)
    pools = tuple(fleet.cluster.pools[place] for place in order)
    return fleet._replace(
        cluster=msgspec.structs.replace(fleet.cluster, pools=pools),
        jobs=tuple(fleet.jobs[place] for place in order), names=tuple(fleet.names[place] for place in order),
    )  # fmt: skip


def part_of(job: Job, gpus: int) -> Job:
    """A job on so many GPUs of its pool."""
    if gpus == job.pool.gpus:
        return job
    return msgspec.structs.replace(job, pool=msgspec.structs.replace(job.pool, gpus=gpus))


def names_of(cluster: Cluster) -> tuple[str, ...]:
    """The pools' names as distinct words."""
    names: list[str] = []
    for pool in cluster.pools:
        word, number = pool_word(pool.name or pool.device.name), 2
        base = word
        while word in names:
            word, number = f"{base}#{number}", number + 1
        names.append(word)
    return tuple(names)


def joined_fleet(fleet: Fleet) -> Fleet:
    """The fleet with pools of the same servers, in whole nodes and in one network, as one pool each."""
    cluster, same = fleet.cluster, list[list[int]]()
    for place in range(len(cluster.pools)):
        matching = next((some for some in same if _one_network(cluster, some[0], place)), None)
        if matching is None:
            same.append([place])
        else:
            matching.append(place)
    if len(same) == len(cluster.pools):
        return fleet
    pools = [
        msgspec.structs.replace(cluster.pools[some[0]], gpus=sum(cluster.pools[place].gpus for place in some))
        for some in same
    ]
    kept = {name for pool in pools for name in (pool.name, pool.zone)}
    joints = tuple(joint for joint in cluster.joints if kept.issuperset(joint.ends))
    jobs = [msgspec.structs.replace(fleet.jobs[some[0]], pool=pool) for some, pool in zip(same, pools, strict=True)]
    names = tuple(fleet.names[some[0]] for some in same)
    joined = {fleet.names[some[0]]: tuple(fleet.names[place] for place in some) for some in same if len(some) > 1}
    return Fleet(msgspec.structs.replace(cluster, pools=tuple(pools), joints=joints), tuple(jobs), names, joined=joined)


def _one_network(cluster: Cluster, here: int, there: int) -> bool:
    """Whether two pools are parts of one: the same servers at the same price, joined as their own nodes are."""
    one, other = cluster.pools[here], cluster.pools[there]
    same = msgspec.structs.replace(other, gpus=one.gpus, name=one.name) == one
    whole = one.gpus % one.node.gpus == 0 and other.gpus % other.node.gpus == 0
    link, own = cluster.joined_by(here, there), cost.outer(one)
    others = [place for place in range(len(cluster.pools)) if place not in (here, there)]
    matching = all(cluster.joined_by(here, place) == cluster.joined_by(there, place) for place in others)
    return same and whole and own is not None and link in (None, own) and matching


def check_strategy(fleet: Fleet, strategy: MixedStrategy) -> None:
    """Refuse numbers that do not define a run on these pools."""
    depth, batch = len(layer_kinds(fleet.job.model)), fleet.job.workload.global_batch
    for name, used in strategy.gpus_by_pool.items():
        have = fleet.cluster.pools[fleet.place(name)].gpus
        if used > have:
            raise InputError("strategy", f"{used} GPUs of {name}", want=f"at most the {have} there are")
    for group in strategy.groups:
        if sum(group.layers) != depth:
            raise InputError("strategy", str(group), want=f"layers that add up to {depth}, not {sum(group.layers)}")
        for segment in group.segments:
            if (group.dp * group.cp * segment.tp) % segment.ep:
                raise InputError("strategy", str(segment), want="ep that divides tp*cp*dp")
    if strategy.samples != batch:
        raise InputError(
            "strategy",
            f"{strategy.samples} samples",
            want=f"dp*mbs*m of all groups to add up to the batch of {batch}",
        )
