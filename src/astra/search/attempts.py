"""What a search is tried with besides the usual words of its runtime: where nothing fits, and what may be better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from astra.cost import effects
from astra.cost.kernels import launch_s
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.spec.job import Job, sends_once_within
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime
from astra.spec.strategy_fields import ACTIVATIONS

LEAST_BETTER: Final = 1e-3  # of a step, for which a plan has other words than usual
_WORTH_CAPTURING: Final = 0.01  # the same for CUDA graphs that the runtime's recipes do without
_SERVERS: Final = (1, 2, 4, 8)  # in which states are sharded that others replicate
_GRAPHS: Final = {
    "none": "no CUDA graphs, which leaves room that they would take, or for what they exclude",
    "partial": "CUDA graphs of parts, which the runtime's own defaults do without: kernels are launched sooner",
    "full": "a CUDA graph of the whole step, which the runtime's own defaults do without: kernels are launched sooner",
}


class Attempt(NamedTuple):
    """A job and restrictions to search with, and what to say of them."""

    job: Job
    restrictions: Restrictions
    notes: tuple[str, ...] = ()
    slower: bool = False  # each of its strategies splits experts and takes as long at least as in the first attempt
    worth: float = LEAST_BETTER  # of a step, which it must gain


def attempts(job: Job, restrictions: Restrictions) -> list[Attempt]:
    """A job as is usual, then what is tried where nothing fits: no graphs, then moments in bf16 too.

    Weights in fp8 need sharded states, which those in bf16 can do without. Few experts, which FSDP2 pads to as many
    shards as there are ranks, have more room in groups of ranks.
    """
    found = [Attempt(job, restrictions)]
    if _may_drop_graphs(job, restrictions):
        found.append(Attempt(_without_graphs(job, restrictions), restrictions, (_GRAPHS["none"],)))
    if not _spoken(restrictions, "moments") and "bf16" in job.runtime.can.moments and job.workload.optimizer == "adam":
        narrow = msgspec.structs.replace(restrictions, fixed={**restrictions.fixed, "moments": ("bf16",)})
        last = found[-1]
        found.append(Attempt(last.job, narrow, (*last.notes, "moments in bf16, because nothing fits with fp32")))
    if job.words.params == "fp8" and "bf16" in job.runtime.can.params and not _spoken(restrictions, "params"):
        found.append(Attempt(_saying(job, params="bf16"), restrictions, ("weights in bf16, where none run in fp8",)))
    if job.model.moe and job.runtime.amount("pads_experts"):
        found += _in_groups(found[0])
    return found


def roomiest(job: Job, restrictions: Restrictions, rules: Sequence[Rule] = ()) -> Job:
    """The job with the words that leave the most room and cost no time: a plan has the usual ones where it may.

    Without graphs of layers, where these hold memory and launch nothing sooner: beside experts. With fp8 weights, of
    which fewer copies are held and less is gathered.
    """
    plain = _without_graphs(job, restrictions)
    parts = job.words.graphs == "partial"
    if parts and _may_drop_graphs(job, restrictions) and launch_s(plain) == launch_s(job):
        job = plain
    spoken = _spoken(restrictions, "params") or any("params" in rule.needs for rule in rules)
    sharded = any(restrictions.allows("zero", zero) for zero in job.runtime.can.zero if zero)  # else it is refused
    if job.workload.low and "fp8" in job.runtime.can.params and sharded and not spoken:
        job = _saying(job, params="fp8")
    return job


def alternatives(attempt: Attempt, rules: Sequence[Rule] = ()) -> Iterator[Attempt]:
    """What may be better than what an attempt has found, because it leaves more room, sends less or is doubted less.

    Graphs of layers keep their inputs and exclude recompute; those of steps exclude ways to split experts. Activations
    of dense layers can wait with a near host, as FSDP's recipes have them (Megatron-Bridge on GB200 and GB300); then
    nothing is captured or recomputed. States of FSDP2 may be sharded inside groups.
    """
    yield from _in_groups(attempt)
    yield from _sent_otherwise(attempt, rules)
    yield from _captured(attempt)
    job, restrictions, can = attempt.job, attempt.restrictions, attempt.job.runtime.can
    plain = _may_drop_graphs(job, restrictions)
    bare = _without_graphs(job, restrictions) if plain else job
    if plain:
        yield Attempt(bare, restrictions, (*attempt.notes, _GRAPHS["none"]))
    if (
        not job.pool.device.near_host
        or job.model.moe
        or ACTIVATIONS not in can.offload
        or "partial" in bare.words.graphs
    ):
        return
    waiting = tuple(restrictions.filter("offload_layers", _waiting_layers(job.model.layers)))
    alone: dict[str, Any] = {"offload_layers": waiting, "zero": (3,), "pp": (1,), "recompute": ("none",)}
    if "offload_layers" not in restrictions.fixed and all(restrictions.filter(*item) for item in alone.items()):
        yield Attempt(bare, msgspec.structs.replace(restrictions, fixed={**restrictions.fixed, **alone}), attempt.notes)


def untried(model: ModelSpec, runtime: Runtime, restrictions: Restrictions, where: str) -> list[str]:
    """What is tried with the usual words alone where ``alternatives`` would take too long."""
    experts = model.moe is not None
    titles = {
        "dispatch": "the dispatcher of tokens" if experts and len(runtime.can.dispatch) > 1 else "",
        "graphs": "CUDA graphs" if runtime.captures(experts=experts) != "none" else "",
    }
    named = " and ".join(title for word, title in titles.items() if title and not _spoken(restrictions, word))
    return [f"of {named} {where} have what is usual on their GPUs alone"] if named else []


def _sent_otherwise(attempt: Attempt, rules: Sequence[Rule]) -> Iterator[Attempt]:
    """Tokens sent once to a rank or node where the attempt sends a copy to each expert, or the other way round.

    Sending once takes no longer and the same room, wherever it is legal. DeepEP and HybridEP cost the same.
    """
    job, restrictions, once = attempt.job, attempt.restrictions, attempt.job.words.sends_once
    within = sends_once_within(job.pool)
    others = [
        word for word in restrictions.filter("dispatch", job.runtime.can.dispatch)
        if (within[word] > 1 if word in within else once) and (word in within) != once
        and (job.words.graphs != "full" or word == "hybridep")
    ]  # fmt: skip
    if job.model.moe is None or not others or not restrictions.allows("dispatch_fp8", False):
        return
    word = max(others, key=lambda word: within.get(word, 0))
    minima = {**restrictions.minima, "ep": max(2, restrictions.minima.get("ep", 2))}
    if restrictions.filter("ep", range(2, job.model.moe.experts + 1)):
        spread = msgspec.structs.replace(restrictions, minima=minima)
        bound = once and not any("dispatch" in rule.needs for rule in rules)
        yield Attempt(_saying(job, dispatch=word, dispatch_fp8=False), spread, attempt.notes, slower=bound)


def _captured(attempt: Attempt) -> Iterator[Attempt]:
    """CUDA graphs that the runtime's recipes do without, of a kind that runs of it have been published with.

    Parts of models without experts; whole steps of those with experts wherever some recipe captures them.
    """
    job, restrictions, moe = attempt.job, attempt.restrictions, attempt.job.model.moe
    word = job.runtime.captures(experts=moe is not None)
    if word == "none" or job.words.graphs != "none" or _spoken(restrictions, "graphs"):
        return
    said: dict[str, Any] = {"graphs": word}
    if moe is not None and word == "full":
        reached = sends_once_within(job.pool)["hybridep"] > 1 and restrictions.allows("dispatch", "hybridep")
        if not (reached and job.captures_steps and restrictions.filter("ep", range(2, moe.experts + 1))):
            return
        said |= {"dispatch": "hybridep", "dispatch_fp8": False}
    yield Attempt(_saying(job, **said), restrictions, (*attempt.notes, _GRAPHS[word]), worth=_WORTH_CAPTURING)


def _in_groups(attempt: Attempt) -> Iterator[Attempt]:
    """States sharded over the ranks of one, two, four or eight servers alone (HSDP): less goes between servers.

    Of frameworks that gather weights layer by layer, so in every pass.
    """
    job, restrictions = attempt.job, attempt.restrictions
    if _spoken(restrictions, "shard") or not job.runtime.can.shard or not effects.units(job.runtime):
        return
    for servers in _SERVERS:
        ranks = servers * job.pool.node.gpus
        if ranks < job.pool.gpus:
            yield Attempt(_saying(job, shard=ranks), restrictions, attempt.notes)


def _may_drop_graphs(job: Job, restrictions: Restrictions) -> bool:
    return job.words.graphs != "none" and "none" in job.runtime.can.graphs and not _spoken(restrictions, "graphs")


def _without_graphs(job: Job, restrictions: Restrictions) -> Job:
    """Recipes run attention in fp8 in graphs of whole steps alone."""
    usual = job.words.graphs != "full" or _spoken(restrictions, "attention")
    return _saying(job, graphs="none", **({} if usual else {"attention": "bf16"}))


def _saying(job: Job, **words: Any) -> Job:
    return msgspec.structs.replace(job, settled=msgspec.structs.replace(job.words, **words))


def _spoken(restrictions: Restrictions, word: str) -> bool:
    """Whether the user speaks of a word."""
    return word in restrictions.fixed or word in restrictions.forbidden


def _waiting_layers(layers: int) -> range:
    """Numbers of layers whose activations may wait: sixteenths of all."""
    each = max(layers // 16, 1)
    return range(each, layers, each)
