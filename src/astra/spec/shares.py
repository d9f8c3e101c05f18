"""One copy of the state over all groups of a fleet, of which groups may hold unequal shares.

Groups on one pool each have a copy of weights, gradients and optimizer of their own unless a strategy says
``shares=7,1``: then ZeRO-3 shards one copy over the replicas of all groups, of which the first group's hold seven
eighths together and the second group's the rest. So a GPU with little memory may hold little of the state, or none,
and still take as many samples as it has time for (Cephalo: Guo et al. 2024, arXiv 2411.01075).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from astra.spec.record import check

if TYPE_CHECKING:
    from astra.spec.mixed import Group

WHOLE: Final = 1000  # shares are written as whole numbers, of this where the planner chooses them
_EQUAL: Final = ("tp", "sp", "zero", "shard", "reshard", "offload", "moments", "params", "grads")


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
