"""The strategy and runtime of a published run: what its columns say, else what its framework does by default."""

from __future__ import annotations

import re
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

from astra.catalog import runtimes
from astra.rules.table import RULES
from astra.search.words import joint_words, said
from astra.search.world import World
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime, Usual
from astra.spec.strategy import Strategy, replace
from astra.validate.cells import Missing, switch
from astra.validate.unstated import least_recompute, recipe_words

# Frameworks that start no pipeline of more stages than micro-batches and one.
_FED: Final = next(rule.frameworks for rule in RULES if rule.name == "stages_fed")


# ZeRO's stages by other names.
_STAGES: Final = (
    ("shard_grad", 2), ("hybrid", 3), ("full_shard", 3), ("fully shard", 3), ("fsdp", 3), ("hsdp", 3), ("zero++", 3),
    ("infinity", 3), ("offload", 2), ("dist", 1), ("sharded optimizer", 1), ("optimizer sharding", 1),
    ("optimizer state sharding", 1),
)  # fmt: skip
# Groups of ranks that states are sharded over, told by their size or as the GPUs of a node.
_GROUP: Final = re.compile(r"over (\d+) ranks|group(?: size)?[=: ]+(\d+)")
_NODE: Final = re.compile(r"hsdp|hybrid|(?:in|within a?) ?node|per node")
_FLASH: Final = ((r"eager|unfused|math", False), (r"\bfa[- ]?\d?\b|flash|sdpa|cudnn|xformers|fused", True))
# Traffic and launches as notes word them: what is hidden behind compute, and which kernels are in CUDA graphs.
_TP_HIDDEN: Final = re.compile(
    r"async tp|(?:\btp\b|tensor[- ]parallel)(?:(?!\bno\b|\bwithout\b)[\w, -])*\boverlap(?!\w*\s*(?:=\s*0|off|false))"
)
_TP_SHOWN: Final = re.compile(r"(?:tp comm overlap|tp overlap)\s*(?:=\s*0|off|false)")
_EP_HIDDEN: Final = re.compile(r"1f1b overlap|(?:\bep\b|expert)[\w -]*(?:overlapped|hidden)")
_NOTHING_HIDDEN: Final = re.compile(r"\b(?:without|no) (?:overlap of communication|(?:communication )?overlap(?! of))")
_GRAPHS: Final = (
    (r"(?:no|without) cuda graphs", "none"),
    (r"(?:whole|full)(?: iterations?)?(?: cuda)? graphs", "full"),
    (r"partial cuda graphs|cuda graphs of parts", "partial"),
)
_DISPATCHES: Final = (
    (r"deep-?ep\b", "deepep"),
    (r"hybrid-?ep\b", "hybridep"),
    (r"plain all-?to-?all|all-?to-?all dispatch|alltoall", "alltoall"),
)
# Recompute in words: the kind that a text names first in this order.
_KINDS: Final = (
    (r"^(?:no|none|without|w/o|off|disabled)\b", "none"),
    (r"every (?:other|second)|\bhalf\b|\b50 ?%", "half"),
    (r"selective|\bsac\b|core[_ ]?att|^attention", "selective"),
    (r"full|block|uniform|checkpoint|every layer|all layers", "full"),
)


class Degrees(NamedTuple):
    """The numbers of a strategy."""

    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    dp: int
    mbs: int


class RunSettings(NamedTuple):
    """The words of a strategy, as a table has them; empty where it is silent."""

    sp: str
    zero: str
    recompute: str
    flash: str
    precision: str
    version: str  # of the framework, or a date
    notes: str


_NO_FRAMEWORKS: Final = ("", "other", "unknown", "fsdp", "fsdp2", "ddp", "zero")


def runtime_of(framework: str, version: str, notes: str, flash: str) -> tuple[str, str]:
    """The runtime that stands for a framework, and what was assumed.

    One that is called "other", or by the name of a technique, is named with its version, or by what else is told of
    the run.
    """
    texts = (version, notes, framework) if framework.lower() in _NO_FRAMEWORKS else (framework,)
    name = next(filter(None, map(called, texts)), "")
    if not name:
        return runtimes.DEFAULT, f"runtime of framework '{framework}' taken as {runtimes.DEFAULT}"
    usual = runtimes.runtime(name).usual
    if usual.unfused and switch(flash) is False:
        return usual.unfused, ""
    if usual.compiled and re.search(r"(?<!no )(?:torch[. ]compile|\bcompiled\b)", notes.lower()):
        return usual.compiled, ""
    if fused := next((other for word, other in usual.fused.items() if word in notes.lower()), ""):
        return fused, ""
    if usual.eager and "no compile" in notes.lower():
        return usual.eager, ""
    stated = re.search(r"\b20\d\d(-\d\d)?\b", version)
    month = stated and stated.group() + ("" if stated.group(1) else "-12")
    older = [month_of for month_of in usual.before if month and month < month_of]
    return usual.before[min(older)] if older else name, ""


def called(text: str) -> str:
    """The runtime that a text names, by the longest of the words tables use; empty if none."""
    return _named(text)[1]


def stood_in(framework: str) -> bool:
    """Whether a framework has no runtime of its own, so that another one stands in for it."""
    _, name, stands = _named(framework)
    return framework.lower() not in _NO_FRAMEWORKS and (stands or not name)


@cache
def _named(text: str) -> tuple[int, str, bool]:
    """The length of the longest word that names a runtime, which one, and whether it but stands in."""
    found = [
        (len(word), name, stands)
        for name in runtimes.runtime_names()
        for usual in (runtimes.runtime(name).usual,)
        for stands, words in ((False, usual.called), (True, usual.stands_for))
        for word in words
        if word in text.lower()
    ]
    return max(found, default=(0, "", False))


def strategy_of(world: World, degrees: Degrees, settings: RunSettings) -> tuple[Strategy, list[str]]:
    """The strategy, and the rules by which what the table leaves open was filled."""
    filled: list[str] = []
    runtime, model = world.runtime, world.model
    usual = runtime.usual
    sp = _switch(settings.sp, usual.sp and degrees.tp > 1, "sp", filled) and degrees.tp > 1
    fields: dict[str, Any] = degrees._asdict() | {"sp": sp, "zero": _zero(settings.zero, runtime, filled)}
    if fields["zero"]:
        fields["shard"] = _group(settings.zero, world.job.pool.node.gpus, degrees)
    fields |= _recompute(settings, runtime, model, degrees, filled)
    flash = next((str(on) for words, on in _FLASH if re.search(words, settings.flash.lower())), settings.flash)
    fields["flash"] = _switch(flash, usual.flash, "flash attention", filled)
    fields["schedule"] = "interleaved" if degrees.vp > 1 and degrees.pp > 1 else "1f1b"
    if fields["schedule"] == "1f1b":
        fields["vp"] = 1
    fields["overlap"] = _overlap(usual, fields, settings)
    fields["etp"] = _expert_tp(usual, model, degrees, settings.notes, filled)
    layers = _stated_layers(settings.notes, model.layers, degrees.pp * fields["vp"])
    if not layers and usual.split == "parameters":
        layers = split_by_parameters(model, degrees.pp)
    unstated = fields.pop("unstated", False)
    strategy = recipe_words(world.job, Strategy(**fields, layers=layers), settings.precision, settings.version, filled)
    graphs = _in_notes(_GRAPHS, settings.notes, strategy.graphs)
    if graphs in runtime.can.graphs:
        strategy = replace(strategy, graphs=graphs)
    dispatch = _in_notes(_DISPATCHES, settings.notes, strategy.dispatch)
    if model.moe is not None and strategy.ep > 1 and dispatch in runtime.can.dispatch:
        strategy = replace(strategy, dispatch=dispatch)
    if world.several:
        strategy = replace(strategy, **said(joint_words(world.job), strategy.ep))
    return least_recompute(world, strategy, filled) if unstated else strategy, filled


def _in_notes(words: tuple[tuple[str, str], ...], notes: str, usual: str) -> str:
    """The first kind whose words are in the notes."""
    return next((kind for pattern, kind in words if re.search(pattern, notes.lower())), usual)


def _switch(text: str, usual: bool, what: str, filled: list[str]) -> bool:
    known = switch(text)
    if known is None:
        filled.append(f"{what} not stated: taken as {'on' if usual else 'off'}")
        return usual
    return known


def _zero(text: str, runtime: Runtime, filled: list[str]) -> int:
    words = text.lower()
    stated = re.search(r"(?:zero|stage)[-_= ]*([0-3])", words) or re.fullmatch(r"([0-3])(?:\.0)?", words)
    if stated:
        return int(stated.group(1))
    for word, stage in _STAGES:
        if word in words:
            return stage
    if words in ("none", "0", "no", "off", "false", "ddp"):
        return 0
    filled.append(f"ZeRO stage not stated: taken as {runtime.usual.zero} for {runtime.name}")
    return runtime.usual.zero


def _group(text: str, node_gpus: int, degrees: Degrees) -> int:
    """Data-parallel ranks that states are sharded over; 0: all, where a text does not say less."""
    words = text.lower()
    stated = _GROUP.search(words)
    near = max(node_gpus // (degrees.tp * degrees.cp * degrees.pp), 1) if _NODE.search(words) else 0
    ranks = int(stated.group(1) or stated.group(2)) if stated else near
    return ranks if 1 < ranks < degrees.dp and degrees.dp % ranks == 0 else 0


def _recompute(
    settings: RunSettings, runtime: Runtime, model: ModelSpec, degrees: Degrees, filled: list[str]
) -> dict[str, Any]:
    words, usual = settings.recompute.strip().lower(), runtime.usual
    stated, modules = switch(words), tuple(name for name in runtime.can.modules if re.search(rf"\b{name}\b", words))
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, words)), "")
    if stated is not None:
        kind = "full" if stated else "none"
    if kind == "half" or (kind == "selective" and usual.selective == "half"):
        if kind == "selective":
            filled.append("selective recompute of this framework taken as every second layer in full")
        half = max(-(-model.layers // (2 * degrees.pp * degrees.vp)), 1)
        return {"recompute": "full", "method": "block", "recompute_layers": half}
    if kind == "full" and (block := re.search(r"block\D*(\d+)|(\d+) (?:layers|blocks)", words)):
        layers = min(int(block.group(1) or block.group(2)), -(-model.layers // (degrees.pp * degrees.vp)))
        return {"recompute": "full", "method": "block", "recompute_layers": max(layers, 1)}
    if modules and kind in ("", "selective"):
        return {"recompute": "selective", "modules": modules if modules != ("core_attn",) else ()}
    if kind:
        return {"recompute": kind}
    if words not in ("", "unknown"):
        filled.append("recompute stated in words of its own: taken as not stated")
    return {"recompute": "none", "unstated": True}


def _overlap(usual: Usual, fields: dict[str, Any], settings: RunSettings) -> tuple[str, ...]:
    """What the framework hides by default, with what the row says.

    A gather over the ranks of a node alone is quick: it is taken as hidden. Interleaved schedules send while they
    compute.
    """
    words = settings.notes.lower()
    found = list(usual.overlap_sharded if fields["zero"] >= 1 else usual.overlap)
    if _NOTHING_HIDDEN.search(words):
        return ()
    if fields["pp"] > 1 and not usual.overlap_pipelined:
        found = []
    if re.search(r"over [248] ranks", settings.zero) and "param" not in found:
        found.append("param")
    if fields["sp"] and (_TP_HIDDEN.search(words) or (usual.sp and not _TP_SHOWN.search(words))):
        found.append("tp")
    if fields["ep"] > 1 and _EP_HIDDEN.search(words):
        found.append("ep")
    if "no gradient bucketing" in words:
        found = [name for name in found if name != "grad"]
    if fields["schedule"] == "interleaved":
        found.append("p2p")
    return tuple(found)


def _expert_tp(usual: Usual, model: ModelSpec, degrees: Degrees, notes: str, filled: list[str]) -> int:
    if model.moe is None:
        return 1
    stated = re.search(r"ETP=(\d+)", notes)
    if stated:
        return int(stated.group(1))
    etp = degrees.tp if usual.splits_experts else 1
    while etp > 1 and ((degrees.tp * degrees.cp * degrees.dp) % (degrees.ep * etp) or model.moe.ffn % etp):
        etp //= 2
    if degrees.tp > 1:
        filled.append("expert tensor parallelism not stated: as tensor parallelism, or 1 in Megatron-Bridge")
    return etp


def _stated_layers(notes: str, depth: int, stages: int) -> tuple[int, ...]:
    """A layer split a table states: counts with the embedding and head as one each, or bounds of a longer list.

    Counts of another depth are another model's: such a row has the settings, and so the figures, of a different run.
    """
    counts = re.search(r"stage layer split \[([\d,]+)\] \(incl", notes)
    layers: list[int] = []
    if counts:
        layers = [int(word) for word in counts.group(1).split(",")]
        layers[0] -= 1
        layers[-1] -= 1
        if sum(layers) != depth:
            raise Missing("the stated layer split is that of a model of another depth")
    bounds = re.search(r"pipeline partition \(of (\d+) \w+ layers\) \[([\d,]+)\]", notes)
    if bounds:
        # The extra modules are the embedding and a reshape before the layers; norm, head and the rest after them.
        ends = [int(word) for word in bounds.group(2).split(",")]
        layers = [max(min(b, depth + 2) - max(a, 2), 0) for a, b in pairwise(ends)]
    return tuple(layers) if len(layers) == stages > 1 and sum(layers) == depth and min(layers) >= 0 else ()


def split_by_parameters(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """Nanotron's split: blocks go to a stage until it has its share of the matrix parameters, head included.

    Its public code moves on when the share is exceeded. Where the two differ (the 1B model of the Ultra-Scale Playbook,
    whose head weighs exactly four layers) times and memory of its runs are those of stages that moved on at the share.
    """
    if pp == 1:
        return ()
    gates = 3 if model.gated_mlp else 2
    layer = 4 * model.heads * model.head_dim * model.hidden + gates * model.ffn * model.hidden
    total = model.layers * layer + model.vocab * model.hidden
    stage, layers = 0, [0] * pp
    for done in accumulate([layer] * model.layers):
        layers[stage] += 1
        if done * pp >= total * (stage + 1):
            stage += 1
    return tuple(layers)


def refused(runtime: Runtime, strategy: Strategy, microbatches: int) -> str:
    """Why a runtime stops before the first step, whatever the memory; empty if it does not.

    Its framework's rule about micro-batches, and stages without layers where it cannot have them: one still runs the
    final norm or the loss, more have nothing to run; and without ZeRO replicas are wrapped in DistributedDataParallel,
    which needs parameters on every stage (nanotron: models/base.py, check_model_has_grad).
    """
    if runtime.framework in _FED and microbatches < strategy.pp - 1:
        return "fewer than pp - 1 micro-batches"
    empty = 0 if runtime.can.empty_stages else sum(count == 0 for count in strategy.layers[:-1])
    if empty > 1 or (empty == 1 and strategy.zero == 0 and strategy.dp > 1):
        return "a pipeline stage without parameters"
    return ""
