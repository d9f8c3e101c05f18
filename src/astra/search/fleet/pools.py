"""The pools a request may use, each with its job, and the strategies that are defined on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astra.cost import mixed as cost
from astra.errors import InputError
from astra.layers.kinds import layer_kinds
from astra.spec.cluster import Cluster
from astra.spec.job import Job
from astra.spec.mixed import MixedStrategy, pool_word


class Fleet(NamedTuple):
    """The pools a request may use, each with its job. ``names`` are words of the text form."""

    cluster: Cluster
    jobs: tuple[Job, ...]
    names: tuple[str, ...]
    columns: tuple[cost.PoolColumns, ...] = ()  # parts already costed, by pool

    def place(self, name: str) -> int:
        """Which pool a word means."""
        if name not in self.names:
            raise InputError("strategy", name, want=f"a pool of this cluster: {', '.join(self.names)}")
        return self.names.index(name)

    @property
    def job(self) -> Job:
        """The first pool's; model, runtime and batch are the same for all."""
        return self.jobs[0]


def make_fleet(cluster: Cluster, jobs: Sequence[Job]) -> Fleet:
    """Pools with distinct one-word names."""
    names: list[str] = []
    for pool in cluster.pools:
        word, number = pool_word(pool.name or pool.device.name), 2
        base = word
        while word in names:
            word, number = f"{base}#{number}", number + 1
        names.append(word)
    return Fleet(cluster, tuple(jobs), tuple(names))


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
