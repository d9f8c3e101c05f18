"""A plain strategy over several pools: which pool each rank falls on, and so which pipelines it makes.

Ranks are dealt to the pools in the order of the request, and inside the job as Megatron-LM numbers them: tensor ranks
next to each other, then context, data and pipeline. That is what a launch script does when its hosts are of two kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Any

from astra.errors import InputError
from astra.layers.kinds import layer_kinds
from astra.rules.table import Rule
from astra.search.detail import layers_of, legality
from astra.search.fleet.pools import Fleet, part_of
from astra.search.words import joint_words, said
from astra.spec.job import Job, Words
from astra.spec.mixed import Group, MixedStrategy, OnePool, Segment
from astra.spec.strategy import Strategy, parse_strategy


def spread(fleet: Fleet, text: str, where: str) -> MixedStrategy:
    """The pipelines over the pools that a plain strategy makes; an InputError where it makes none."""
    strategy = parse_strategy(text, gpus=fleet.cluster.gpus, usual=partial(_usual, joint_words(fleet.job)))
    _check(fleet, strategy, text, where)
    inner, batch = strategy.tp * strategy.cp, fleet.job.workload.global_batch
    ends = list(accumulate(pool.gpus // inner for pool in fleet.cluster.pools))
    pool_of = [next(place for place, end in enumerate(ends) if block < end) for block in range(ends[-1])]
    routes = [tuple(pool_of[stage * strategy.dp + replica] for stage in range(strategy.pp))
              for replica in range(strategy.dp)]  # fmt: skip
    layers = layers_of(fleet.job, strategy)
    groups = tuple(
        Group(
            dp=len(list(same)), mbs=strategy.mbs, cp=strategy.cp, vp=strategy.vp,
            microbatches=max(batch // (strategy.dp * strategy.mbs), 1),
            segments=_segments(fleet, strategy, route, layers),
        )
        for route, same in groupby(routes)
    )  # fmt: skip
    return MixedStrategy(
        groups=groups, zero=strategy.zero, overlap=strategy.overlap, sp=strategy.sp or strategy.tp == 1,
        flash=strategy.flash,
    )  # fmt: skip


def _usual(job: Job, strategy: Strategy) -> dict[str, Any]:
    """What a text leaves out: as is usual, but for the words of pipelines over several pools."""
    hidden = tuple(name for name in job.overlapped(strategy) if name != "ep")
    return job.usual(strategy) | said(job, strategy.ep) | {"overlap": hidden}


def _segments(fleet: Fleet, strategy: Strategy, route: tuple[int, ...], layers: tuple[int, ...]) -> tuple[Segment, ...]:
    """Runs of stages on one pool, with the layers of each chunk."""
    found = []
    for place, stages in groupby(range(strategy.pp), key=lambda stage: route[stage]):
        run = list(stages)
        own = tuple(layers[chunk * strategy.pp + stage] for chunk in range(strategy.vp) for stage in run)
        found.append(
            Segment(pool=fleet.names[place], tp=strategy.tp, pp=len(run), ep=strategy.ep, layers=own,
                    recompute=strategy.recompute)
        )  # fmt: skip
    return tuple(found)


def _check(fleet: Fleet, strategy: Strategy, text: str, where: str) -> None:
    """Refuse what pipelines over several pools have no words for."""
    inner = strategy.tp * strategy.cp
    if strategy.gpus != fleet.cluster.gpus:
        each = " + ".join(f"{pool.gpus} of {name}" for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True))
        want = f"a strategy over all GPUs ({each}), not over {strategy.gpus:,}"
        raise InputError(where, text, want=want, fix=f"For one pool by itself: {fleet.names[0]}: {text}.")
    for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True):
        if pool.gpus % inner:
            want = f"tp*cp = {inner} that divides the {pool.gpus} GPUs of {name}: its ranks would be on two pools"
            raise InputError(where, text, want=want)
    depth = len(layer_kinds(fleet.job.model))
    if strategy.pp * strategy.vp > depth:
        raise InputError(where, text, want=f"at most as many chunks of layers (pp*vp) as the {depth} layers")
    odd = {
        "zero2 and zero3": strategy.zero > 1,
        "offload": strategy.offload != "none" or strategy.offload_layers > 0,
        "recompute of modules other than core_attn": strategy.modules not in ((), ("core_attn",)),
        "words but the plain ones (dispatch, graphs, params, grads, attention, moments, shard)": strategy.moments
        != "fp32"
        or Words.of(strategy) != joint_words(fleet.job).words,
        "hidden expert exchanges": "ep" in strategy.overlap,
        "expert tensor parallelism": strategy.etp > 1,
        "recompute of several layers at once, or of some": strategy.recompute == "full"
        and (strategy.method, strategy.recompute_layers) != ("uniform", 1),
        f"the schedule {strategy.schedule}": strategy.schedule != ("interleaved" if strategy.vp > 1 else "1f1b"),
    }
    refused = [name for name, there in odd.items() if there]
    if refused:
        want = f"what pipelines over several pools can do, not {', '.join(refused)}"
        raise InputError(where, text, want=want, fix="docs/mixed.md says what they can.")


def read_alone(fleet: Fleet, pool: str, text: str) -> OnePool:
    """The plain strategy that stands behind a pool's name."""
    job = fleet.jobs[fleet.place(pool)]
    strategy = job.strategy(text)
    if strategy.gpus > job.pool.gpus:
        raise InputError("strategy", f"{strategy.gpus} GPUs of {pool}", want=f"at most the {job.pool.gpus} there are")
    return OnePool(pool=pool, strategy=strategy)


def check_alone(fleet: Fleet, plan: OnePool, user_rules: Sequence[Rule], where: str) -> None:
    """Refuse numbers that do not define a run; what is only illegal is estimated."""
    job = part_of(fleet.jobs[fleet.place(plan.pool)], plan.strategy.gpus)
    strategy, depth = plan.strategy, len(layer_kinds(job.model))
    undefined = (
        strategy.pp * strategy.vp > depth + 2
        or strategy.dp * strategy.mbs > job.workload.global_batch
        or (strategy.layers and sum(strategy.layers) != depth)
        or (strategy.tp * strategy.cp * strategy.dp) % (strategy.ep * strategy.etp)
    )
    if undefined:
        broken = "; ".join(legality(job, strategy, user_rules))
        raise InputError(where, str(plan), want="a strategy that defines a run", fix=f"It breaks: {broken}.")
