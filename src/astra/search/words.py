"""Which words of the runtime a search tries: what its recipes use, unless the user says otherwise."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from astra.cost.low import fuses_experts
from astra.errors import InputError
from astra.layers.kinds import modules_of
from astra.rules.restrictions import Restrictions
from astra.spec.job import Job, Words, sends_once_within
from astra.spec.strategy_fields import ACTIVATIONS, CHOICES, MODULES

# Sets of modules that recipes recompute (Megatron-Bridge 0.6.2, perf_recipes); the first is that of Megatron-LM.
MODULE_SETS: Final = (
    ("core_attn",), ("layernorm", "moe_act"), ("layernorm", "moe"), ("mla_up_proj",), ("mla_up_proj", "mlp"),
    ("layernorm", "mla_up_proj", "moe_act"),
)  # fmt: skip


def settled(job: Job, restrictions: Restrictions) -> Job:
    """The job with one value for each word that all of its strategies share: the usual one, or the first allowed."""
    if job.settled is not None:
        return job
    usual, can = job.recipe(), job.runtime.can
    chosen: dict[str, Any] = {}
    for name in ("graphs", "dispatch", "params", "grads", "attention"):
        first = "bf16" if name == "attention" and chosen["graphs"] != "full" else usual[name]
        known = [first, *(word for word in getattr(can, name) if word != first)]
        if name == "dispatch":
            known.sort(key=lambda word: not _sends_anywhere(job, word, chosen["graphs"]))
        allowed = restrictions.filter(name, known)
        if not allowed:
            had = ", ".join(f"{name}={word}" for word in known)
            asked = ",".join(map(str, restrictions.fixed.get(name, ()))) or None
            raise InputError(f"--fix {name}", asked, want=f"what {job.runtime.name} has: {had}")
        chosen[name] = allowed[0]
    reach = {"alltoall": job.pool.gpus, **sends_once_within(job.pool)}
    if job.model.moe is not None and not reach[chosen["dispatch"]]:
        has = ", ".join(f"dispatch={word}" for word in can.dispatch if reach[word])
        want = f"a dispatcher that runs on {job.pool.device.name} in {job.pool.node.name}: {has}"
        raise InputError("--fix dispatch", chosen["dispatch"], want=want)
    if job.model.moe is None:
        if not restrictions.allows("dispatch", "alltoall"):
            raise InputError("--fix dispatch", chosen["dispatch"], want="a model with experts to send tokens to")
        if not restrictions.allows("overlap_ep", False):
            raise InputError("--fix overlap", "ep", want="a model with experts, whose exchanges could be hidden")
        chosen["dispatch"] = "alltoall"  # as every strategy without expert parallelism says
    if any(restrictions.fixed.get("offload_layers", ())) and ACTIVATIONS not in can.offload:
        want = f"a runtime that offloads activations: {job.runtime.name} has no activation offload"
        raise InputError("--fix offload_layers", None, want=want)
    chosen["dispatch_fp8"] = _narrow(job, restrictions, chosen["dispatch"])
    chosen["shard"] = restrictions.filter("shard", (0, *restrictions.fixed.get("shard", ())))[0]
    repeats = tuple({name for names in _module_sets(job, restrictions) for name in names})
    return msgspec.structs.replace(job, settled=Words(**chosen), repeats=repeats)


def _narrow(job: Job, restrictions: Restrictions, dispatch: str) -> bool:
    """Whether tokens go to their experts in fp8: as is usual, where the runtime has a dispatcher that can."""
    can = job.runtime.can.dispatch_fp8 and dispatch != "alltoall"
    usual = can and bool(job.recipe()["dispatch_fp8"])
    allowed = restrictions.filter("dispatch_fp8", (usual, not usual) if can else (False,))
    if not allowed:
        want = f"a runtime and a dispatcher that send tokens in fp8: {job.runtime.name} has none here"
        raise InputError("--fix dispatch_fp8", "on", want=want)
    return allowed[0]


def joint_words(job: Job) -> Job:
    """The job with the words of pipelines over several pools, whose text has none: plain ones, gradients as usual."""
    grads: Any = job.recipe(pipelined=True)["grads"]
    return msgspec.structs.replace(job, settled=Words(grads=grads), repeats=())


def said(job: Job, ep: int) -> dict[str, Any]:
    """The job's words as fields of a strategy; without expert parallelism there is nothing to dispatch."""
    words: dict[str, Any] = msgspec.structs.asdict(job.words)
    return words if ep > 1 else words | {"dispatch": "alltoall", "dispatch_fp8": False}


def word_facts(job: Job) -> dict[str, Any]:
    """The job's words as rules read them, but for the dispatcher, which depends on the row."""
    words = job.words
    codes = {name: CHOICES[name].index(getattr(words, name)) for name in ("graphs", "params", "grads", "attention")}
    return {**codes, "shard": words.shard}


def overlaps_experts(job: Job) -> bool:
    """Whether expert exchanges can be put beside another micro-batch."""
    return job.model.moe is not None and "ep" in job.runtime.can.overlap


def module_choices(job: Job, restrictions: Restrictions) -> list[tuple[str, ...]]:
    """Sets of modules that selective recompute is tried with; products that apply the activation keep nothing of it."""
    idle = "moe_act" if fuses_experts(job) and "recompute_moe_act" not in restrictions.fixed else ""
    sets = (tuple(name for name in names if name != idle) for names in _module_sets(job, restrictions))
    return [names for names in dict.fromkeys(sets) if names]


def _module_sets(job: Job, restrictions: Restrictions) -> list[tuple[str, ...]]:
    """The same whatever the experts' products do."""
    has = [name for name in modules_of(job.model) if name in job.runtime.can.modules]
    said = [name for name in MODULES if f"recompute_{name}" in restrictions.fixed]
    if said:
        chosen = tuple(name for name in said if True in restrictions.fixed[f"recompute_{name}"])
        if lacks := [name for name in chosen if name not in has]:
            want = f"modules that {job.model.name} has and {job.runtime.name} recomputes: {', '.join(has) or 'none'}"
            raise InputError("--fix modules", ",".join(lacks), want=want)
        return [chosen] if chosen else []
    fitting = (names for names in MODULE_SETS if set(names) <= set(has))
    return [names for names in fitting if all(restrictions.allows(f"recompute_{n}", n in names) for n in MODULES)]


def offload_choices(job: Job, restrictions: Restrictions) -> list[int]:
    """Numbers of layers whose activations wait in host memory: none, unless the user names some."""
    said = restrictions.fixed.get("offload_layers", ())
    can = ACTIVATIONS in job.runtime.can.offload
    return [layers for layers in (int(number) for number in said or (0,)) if can or layers == 0]


def moment_choices(job: Job, restrictions: Restrictions) -> tuple[str, ...]:
    """Widths of the optimizer's moments: the usual one, unless the user speaks of them."""
    said = "moments" in restrictions.fixed or "moments" in restrictions.forbidden
    return job.runtime.can.moments if said else (str(job.recipe()["moments"]),)


def _sends_anywhere(job: Job, dispatcher: str, graphs: str) -> bool:
    """Whether a dispatcher reaches all GPUs, also inside a graph of the whole step."""
    reach = sends_once_within(job.pool).get(dispatcher, job.pool.gpus)
    return reach == job.pool.gpus and (graphs != "full" or dispatcher == "hybridep")
