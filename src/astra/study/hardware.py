"""Clusters with one thing changed: more memory, faster links, other GPUs, another number of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from astra.catalog.clusters import parse_gpus
from astra.spec.cluster import Cluster, Link, Pool
from astra.spec.request import PlanRequest

Where = Literal["node", "cluster"]


def on(request: PlanRequest, cluster: Cluster) -> PlanRequest:
    """The same request on other hardware."""
    return replace(request, gpus=(), node=None, cluster=cluster)


def with_memory(cluster: Cluster, times: float) -> Cluster:
    """Every GPU with so many times its memory."""

    def changed(pool: Pool) -> Pool:
        return replace(pool, device=replace(pool.device, memory_bytes=pool.device.memory_bytes * times))

    return _each(cluster, changed)


def with_links(cluster: Cluster, times: float, where: Where) -> Cluster:
    """Links inside servers, or all that leave them, with so many times their bytes per second."""

    def faster(link: Link) -> Link:
        total = link.total_bytes_per_s and link.total_bytes_per_s * times
        return replace(link, bytes_per_s=link.bytes_per_s * times, total_bytes_per_s=total)

    def changed(pool: Pool) -> Pool:
        node = pool.node
        links = tuple(faster(link) if _inside(link, pool) == (where == "node") else link for link in node.links)
        return replace(pool, node=replace(node, links=links))

    found = _each(cluster, changed)
    if where == "node":
        return found
    joints = tuple(replace(joint, link=faster(joint.link)) for joint in cluster.joints)
    return replace(found, between=cluster.between and faster(cluster.between), joints=joints)


def has_links(cluster: Cluster, where: Where) -> bool:
    """Whether GPUs are joined by such links at all."""
    return any(
        _inside(link, pool) == (where == "node") and (where == "node" or pool.gpus > pool.node.gpus)
        for pool in cluster.pools
        for link in pool.node.links
    )


def _inside(link: Link, pool: Pool) -> bool:
    """A tier that the servers themselves bring: the first, and all that reach no further than a server."""
    return link is pool.node.links[0] or link.reach <= pool.node.gpus


def with_gpus(cluster: Cluster, gpus: int) -> Cluster:
    """The first pool with so many GPUs."""
    return replace(cluster, pools=(replace(cluster.pools[0], gpus=gpus), *cluster.pools[1:]))


def with_device(cluster: Cluster, name: str) -> Cluster:
    """One pool with another GPU in its usual server, as many as before."""
    return Cluster(pools=(parse_gpus(f"{cluster.pools[0].gpus}x{name}"),))


def _each(cluster: Cluster, changed: Callable[[Pool], Pool]) -> Cluster:
    return replace(cluster, pools=tuple(map(changed, cluster.pools)))
