"""A node is lost: the best plan on what is left, what must move between pools, and what must be read again.

Each group of pipelines holds the whole model once, unless groups share one state; a pool holds the layers of its
stages. Layers that the next plan puts on a pool which did not hold them must come from elsewhere. What only the lost
node held (its shard of a sharded optimizer, unless another group has it too) comes from the last checkpoint, and the
run goes back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from astra.answer import Loss, PlanSet
from astra.errors import NoFeasiblePlan
from astra.money.bill import checkpoint_bytes
from astra.money.rates import CHECKPOINT_BYTES
from astra.search.fleet.pools import names_of
from astra.search.world import World
from astra.spec.cluster import Cluster, Pool
from astra.spec.mixed import Group
from astra.spec.mixed_text import is_mixed, on_one_pool, parse_mixed
from astra.spec.request import PlanRequest
from astra.spec.strategy import parse_strategy
from astra.units import GIB

_WEIGHT_BYTES = 2.0  # of a parameter, beside its master copy and moments


class KeptState(NamedTuple):
    """What a plan keeps where."""

    layers: dict[str, set[int]]  # by pool
    copies: int  # groups, each of which holds the whole model
    gpus: float  # of the smallest group that uses the pool in question; of a shared state as many as its parts count
    replicas: int  # pipelines of it
    zero: int


def losses(world: World, answer: PlanSet, plan: Callable[[PlanRequest], PlanSet]) -> list[Loss]:
    """One for each pool that the best plan uses."""
    names = names_of(world.cluster)
    used = getattr(answer.best.estimate, "used", {names[0]: world.cluster.pools[0].gpus})
    return [_loss(world, answer, plan, place, name) for place, name in enumerate(names) if name in used]


def _loss(world: World, answer: PlanSet, plan: Callable[[PlanRequest], PlanSet], place: int, name: str) -> Loss:
    pool, before = world.cluster.pools[place], answer.best
    left = _without_node(world.cluster, place)
    if left is None:
        return Loss(pool=name, gpus=pool.gpus_per_node, why="no GPU is left.")
    asked = replace(world.request, gpus=(), node=None, cluster=left, baseline=None, node_lost=False, worth=False, top=1)
    try:
        found = plan(asked).best
    except NoFeasiblePlan as error:
        return Loss(pool=name, gpus=pool.gpus_per_node, why=str(error))
    state = checkpoint_bytes(world.job)
    was, now = held_by(world, before.strategy, name), held_by(world, found.strategy, name)
    depth = max(world.model.layers, 1)
    moves = {there: len(layers - was.layers.get(there, set())) / depth * state / GIB
             for there, layers in now.layers.items()}  # fmt: skip
    return Loss(
        pool=name,
        gpus=pool.gpus_per_node,
        strategy=found.strategy,
        step_s=found.estimate.step_s,
        times=found.estimate.step_s / before.estimate.step_s,
        moves_gib={there: size for there, size in moves.items() if size},
        from_checkpoint_gib=_only_there(world, was, pool) / GIB,
    )


def _only_there(world: World, held: KeptState, pool: Pool) -> float:
    """Bytes of state that were on the lost node and nowhere else."""
    if held.copies > 1:
        return 0.0
    each = CHECKPOINT_BYTES[world.workload.optimizer]
    state = checkpoint_bytes(world.job)
    sharded = state * (each - _WEIGHT_BYTES * (held.zero < 3)) / each  # weights are whole on every replica up to zero 2
    if held.zero == 0 or held.replicas == 1:
        sharded = 0.0 if held.replicas > 1 else state
    return sharded * min(pool.gpus_per_node / held.gpus, 1.0)


def held_by(world: World, text: str, pool: str) -> KeptState:
    """What a strategy keeps where, as far as a pool is concerned."""
    alone, depth = on_one_pool(text), world.model.layers
    if alone is None and is_mixed(text):
        mixed = parse_mixed(text)
        layers: dict[str, set[int]] = {}
        for name, numbers in (each for group in mixed.groups for each in _placed(group)):
            layers.setdefault(name, set()).update(numbers)
        own = [group for group in mixed.groups if any(segment.pool == pool for segment in group.segments)]
        sizes = [(sum(map(group.gpus, group.segments)), group.dp) for group in own] or [(mixed.gpus, 1)]
        zero = min((group.plain.zero if group.plain is not None else mixed.zero for group in own), default=mixed.zero)
        if mixed.shares:
            largest = max(
                (part for group, part in zip(mixed.groups, mixed.held, strict=True) if group in own), default=0
            )
            return KeptState(layers, 1, 1 / largest if largest else inf, mixed.gpus, zero)
        return KeptState(layers, len(mixed.groups), *min(sizes), zero)
    where, plain = alone if alone is not None else (pool, text)
    strategy = parse_strategy(plain)
    return KeptState({where: set(range(depth))}, 1, strategy.gpus, strategy.dp, strategy.zero)


def _placed(group: Group) -> Iterator[tuple[str, range]]:
    """Pools and the layers of each of their virtual stages."""
    first = 0
    for chunk in range(group.vp):
        for segment in group.segments:
            for count in segment.layers[chunk * segment.pp : (chunk + 1) * segment.pp]:
                yield segment.pool, range(first, first + count)
                first += count


def _without_node(cluster: Cluster, place: int) -> Cluster | None:
    """The cluster with one server of a pool fewer; None if that was all."""
    pool = cluster.pools[place]
    rest = pool.gpus - pool.gpus_per_node
    kept = (replace(pool, gpus=rest, name=pool.name or pool.device.name),) if rest else ()
    pools = (*cluster.pools[:place], *kept, *cluster.pools[place + 1 :])
    if not pools:
        return None
    known = {name for each in pools for name in (each.name, each.zone)}
    joints = tuple(joint for joint in cluster.joints if known.issuperset(joint.ends))
    return replace(cluster, pools=pools, joints=joints)
