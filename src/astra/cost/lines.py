"""What a strategy sends over the lines between pools in a step, and so what the lines take and cost.

A line has one rate for all GPUs together. Whatever a schedule hides, no step is shorter than its busiest line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from astra.cost.mixed import crossing_bytes
from astra.cost.stage import trained_parameters
from astra.cost.state import gradient_bytes
from astra.network.curves import load
from astra.spec.cluster import Cluster, Link
from astra.spec.job import Job
from astra.spec.mixed import Group, MixedStrategy


class Crossing(NamedTuple):
    """Bytes of a step that go over one link in one direction."""

    link: Link
    ends: tuple[str, str]
    activation_bytes: float
    gradient_bytes: float


def crossings(cluster: Cluster, names: Sequence[str], job: Job, strategy: MixedStrategy) -> list[Crossing]:
    """Everything that a step sends between pools, by link and direction."""
    found: dict[tuple[str, str], Crossing] = {}
    for here, there, activations, gradients in _sent(names, job, strategy):
        link, ends = cluster.crossed(here, there)
        if link is not None:
            before = found.get(ends, Crossing(link, ends, 0.0, 0.0))
            found[ends] = Crossing(link, ends, before.activation_bytes + activations, before.gradient_bytes + gradients)
    return list(found.values())


def busiest_s(crossed: Sequence[Crossing]) -> float:
    """Seconds in which the busiest line carries the activations of a step."""
    fractions = load().rules.send_fraction
    return max(
        (each.activation_bytes / (fractions.get(each.link.kind, 0.8) * each.link.total_bytes_per_s)
         for each in crossed if each.link.total_bytes_per_s is not None),
        default=0.0,
    )  # fmt: skip


def egress_usd(crossed: Sequence[Crossing]) -> float:
    """Dollars of what a step sends."""
    return sum((each.activation_bytes + each.gradient_bytes) / 1e9 * each.link.usd_per_gb for each in crossed)


def _sent(names: Sequence[str], job: Job, strategy: MixedStrategy) -> Iterator[tuple[int, int, float, float]]:
    """From which pool to which, bytes of activations and their gradients, and of weights' gradients."""
    for group in strategy.groups:
        owners = [names.index(segment.pool) for segment in group.segments for _ in range(segment.pp)] * group.vp
        each = 2.0 * group.mbs * job.workload.seq * job.model.hidden * group.dp * group.microbatches
        for here, there in pairwise(owners):
            if here != there:
                yield here, there, each, 0.0
                yield there, here, each, 0.0
    rings, count = [_first_pool(names, group) for group in strategy.groups], len(strategy.groups)
    if count > 1:
        whole = gradient_bytes(job) * trained_parameters(job) * 2 * (count - 1) / count
        if strategy.shares:
            whole = crossing_bytes(job, strategy.groups[0].microbatches, strategy.padding)
        for here, there in zip(rings, [*rings[1:], rings[0]], strict=True):
            if here != there:
                yield here, there, 0.0, whole / strategy.local


def _first_pool(names: Sequence[str], group: Group) -> int:
    """Where a group's part in the ring is counted."""
    return names.index(group.segments[0].pool)
