"""The model of a published run, from the sizes the table gives, and its work, what is not stated filled by rules.

Tables give sizes, not biases, norms or tied embeddings. Those come from the catalog's model of the same sizes, else
from a catalog model of the same family name, else from what is usual: a gated feed-forward goes with RMS norms, rotary
positions and no biases (Llama); an ungated one with layer norms, learned positions, biases and tied embeddings (GPT).
A row without any size is the catalog's model of its name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from astra.catalog.models import models
from astra.errors import InputError, fold
from astra.spec.cluster import Cluster
from astra.spec.model import ModelSpec, MoE
from astra.spec.names import as_name
from astra.spec.runtime import Runtime
from astra.spec.workload import PRECISIONS
from astra.validate.cells import Missing, Row, count, degree, needed, number, switch, words_of
from astra.validate.strategies import Degrees

_STYLE: Final = (
    "tied_embeddings", "norm", "norm_bias", "norms_per_layer", "embedding_norm", "qk_norm", "qkv_bias", "out_bias",
    "mlp_bias", "head_bias",
)  # fmt: skip
_GPT: Final[dict[str, Any]] = {
    "tied_embeddings": True, "norm": "layernorm", "qkv_bias": True, "out_bias": True, "mlp_bias": True,
}  # fmt: skip


_SIZES: Final = ("layers", "hidden", "heads")


class Sizes(NamedTuple):
    """What a table says of a model."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    gated: bool
    experts: int = 0
    topk: int = 0
    moe_ffn: int = 0
    tied: bool | None = None  # None: not stated


def model_in(row: Row, seq: int, notes: str, filled: list[str]) -> tuple[ModelSpec, str]:
    """The model of a row, and how what the row leaves open was chosen."""
    if not any(words_of(row, size) for size in _SIZES) and (known := _named(words_of(row, "model_name"))):
        filled.append("sizes not stated: those of the catalog's model of this name")
        return msgspec.structs.replace(known, max_seq=max(known.max_seq, seq)), "by name"
    stated, words = switch(words_of(row, "gated_mlp")), notes.lower()
    experts = count(row, "moe_experts") or 0
    given = Sizes(
        name=as_name(words_of(row, "model_name")),
        layers=needed(row, "layers", "layers"),
        hidden=needed(row, "hidden", "hidden size"),
        ffn=count(row, "ffn") or 0,
        heads=needed(row, "heads", "attention heads"),
        kv_heads=count(row, "kv_heads") or 0,
        vocab=count(row, "vocab") or 0,
        seq=seq,
        gated=stated is None or stated,
        experts=experts if experts > 1 else 0,
        topk=count(row, "moe_topk") or 0,
        moe_ffn=count(row, "moe_ffn") or 0,
        tied=False if "untied embeddings" in words else True if "tied embeddings" in words else None,
    )
    found = _completed(given, gated_stated=stated is not None, filled=filled)
    if not found.vocab:
        found = found._replace(vocab=vocabulary_of(found) or needed(row, "vocab", "vocabulary"))
        filled.append("vocabulary not stated: that of the catalog's model of these sizes")
    return model_of(found)


@lru_cache(maxsize=512)
def _named(name: str) -> ModelSpec | None:
    """The catalog's model that is called so."""
    return next((model for model in models() if fold(name) in map(fold, (model.name, *model.aliases))), None)


def _completed(given: Sizes, *, gated_stated: bool, filled: list[str]) -> Sizes:
    """The sizes with those that are not stated: the catalog's for a model of this name and depth, else the usual."""
    known = namesake(given)
    gated = known.gated_mlp if known and not gated_stated else given.gated
    moe = known.moe if known else None
    usual: dict[str, Any] = {
        "kv_heads": known.kv_heads if known else given.heads,
        "ffn": known.ffn if known else round(8 * given.hidden / 3) if gated else 4 * given.hidden,
    }
    if given.experts:
        usual["moe_ffn"] = moe.ffn if moe else given.ffn or usual["ffn"]
        usual["topk"] = moe.topk if moe else 0  # that of a model with these widths, else 1
    silent = [name for name in usual if not getattr(given, name) and not (name == "ffn" and given.moe_ffn)]
    whose = "that of the catalog's model of this name and depth" if known else "as is usual"
    filled += [f"{name} not stated: {whose}" for name in (*silent, *(() if gated_stated else ("gated_mlp",)))]
    return given._replace(gated=gated, **{name: getattr(given, name) or size for name, size in usual.items()})


@lru_cache(maxsize=512)
def model_of(sizes: Sizes) -> tuple[ModelSpec, str]:
    """The model, and how what the sizes leave open was chosen."""
    twin = _twin(sizes)
    if twin is not None:
        changes: dict[str, Any] = {"name": sizes.name, "layers": sizes.layers, "vocab": sizes.vocab}
        if sizes.tied is not None:
            changes["tied_embeddings"] = sizes.tied
        if twin.moe is not None:
            changes["moe"] = msgspec.structs.replace(
                twin.moe, topk=sizes.topk or twin.moe.topk, first_dense=min(twin.moe.first_dense, sizes.layers)
            )
        changes |= {"aliases": (), "max_seq": max(twin.max_seq, sizes.seq)}
        return msgspec.structs.replace(twin, **changes), f"as {twin.name} in the catalog"
    style, how = _style(sizes)
    if sizes.tied is not None:
        style["tied_embeddings"] = sizes.tied
    moe = MoE(experts=sizes.experts, topk=sizes.topk or 1, ffn=sizes.moe_ffn or sizes.ffn) if sizes.experts else None
    return (
        ModelSpec(
            name=sizes.name,
            layers=sizes.layers,
            hidden=sizes.hidden,
            ffn=sizes.ffn,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=max(sizes.hidden // sizes.heads, 1),
            vocab=sizes.vocab,
            max_seq=sizes.seq,
            gated_mlp=sizes.gated,
            moe=moe,
            source="published run",
            **style,
        ),
        how,
    )


def vocabulary_of(sizes: Sizes) -> int:
    """The vocabulary of the catalog's model with these widths; 0 where it has none."""
    twin = _twin(sizes)
    return twin.vocab if twin else 0


def namesake(sizes: Sizes) -> ModelSpec | None:
    """The catalog's model of this family, depth, widths and experts, for the sizes a table leaves out."""
    given = (sizes.layers, sizes.hidden, sizes.heads, sizes.experts)
    same = [
        model
        for model in models()
        if given == (model.layers, model.hidden, model.heads, model.moe.experts if model.moe else 0)
        and _related(model, sizes)
    ]
    return min(same, key=lambda model: (model.vocab != sizes.vocab, model.ffn != sizes.ffn), default=None)


def _twin(sizes: Sizes) -> ModelSpec | None:
    """The catalog's model with these widths; of several, the one whose depth, vocabulary and name are nearest."""
    same = [model for model in models() if model.vision is None and model.encoder is None and _same(model, sizes)]
    if any(_related(model, sizes) for model in models()):  # a known family: no other family's biases and norms
        same = [model for model in same if _related(model, sizes)]

    def distance(model: ModelSpec) -> tuple[bool, float]:
        return model.vocab != sizes.vocab, abs(model.layers - sizes.layers)

    return min(same, key=distance, default=None)


def _same(model: ModelSpec, sizes: Sizes) -> bool:
    given = (sizes.hidden, sizes.heads, sizes.kv_heads, sizes.gated, sizes.experts)
    own = (model.hidden, model.heads, model.kv_heads, model.gated_mlp, model.moe.experts if model.moe else 0)
    if model.moe is not None:
        return given == own and model.moe.ffn == (sizes.moe_ffn or sizes.ffn)
    return given == own and model.ffn == sizes.ffn


def _style(sizes: Sizes) -> tuple[dict[str, Any], str]:
    for model in models():
        same_blocks = model.gated_mlp == sizes.gated and bool(model.moe) == bool(sizes.experts) and model.mla is None
        if _related(model, sizes) and same_blocks and model.vision is None and model.encoder is None:
            style = {name: getattr(model, name) for name in _STYLE}
            style["learned_positions"] = sizes.seq if model.learned_positions else 0
            return style, f"biases, norms and embeddings as in {model.name}"
    if sizes.gated:
        return {}, "biases, norms and embeddings as in Llama"
    return _GPT | {"learned_positions": sizes.seq}, "biases, norms and embeddings as in GPT"


def _related(model: ModelSpec, sizes: Sizes) -> bool:
    """Whether a name begins with the letters of the model's: of one family."""
    family = re.match(r"[a-z]*", model.name.lower())
    return family is not None and len(family.group(0)) > 1 and sizes.name.lower().startswith(family.group(0))


# Precisions as tables call them; the first that a text has is meant, so that those of fewer bits come first.
_CALLED: Final = (
    (r"nvfp4|\bfp4", "nvfp4"),
    (r"mx-?fp8|fp8[-_ ]?mx|mxfloat8", "mxfp8"),
    (r"(?:fp8|float8).*row", "fp8-rowwise"),
    (r"(?:fp8|float8)(?:.*block|[-_ ]?sc\b|.*sub-?channel)", "fp8-blockwise"),
    (r"(?:fp8|float8)(?:.*tensor|[-_ ]?cs\b|.*current|.*delayed)", "fp8-tensorwise"),
    (r"fp8|float8|e4m3|e5m2", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|\bhalf\b", "fp16"),
    (r"tf32|fp32|float32", "tf32"),
)
_TASKS: Final = (
    (r"^(?:lora|peft)\b", "lora"),
    (r"^(?:sft|(?:full|supervised)?[- ]?(?:parameter )?fine-?tun(?:e|ing))$", "finetune"),
    (r"^(?:continu(?:ed|al) )?(?:pre-?)?train(?:ing)?$", "pretrain"),
)
_ACCUMULATED: Final = re.compile(
    r"(?:\bgrad(?:ient)?s?[ _-]?acc\w*(?:[ _]steps)?|\bGAS?)\s*[=: ]\s*(\d+)\b"
    r"|\b(\d+)\s*(?:gradient[ -])?accumulation steps",
    re.IGNORECASE,
)
_TOKENS: Final = re.compile(r"~?(\d+(?:\.\d+)?)\s*([km]?)\s*tok(?:en)?s?", re.IGNORECASE)
_THOUSANDS: Final = {"": 1, "k": 2**10, "m": 2**20}  # of a power of two, as batches are
_PACKED: Final = re.compile(r"\bpacked\b", re.IGNORECASE)
_SILENT: Final = ("", "unknown", "amp", "mixed", "mixed precision", "n/a", "-")


def accumulated(notes: str) -> int | None:
    """Micro-batches of a step on a rank, where the notes of a run tell how gradients are accumulated."""
    found = _ACCUMULATED.search(notes)
    return int(found.group(1) or found.group(2)) if found else None


def degrees_of(row: Row, gpus: int, runtime: Runtime, notes: str, filled: list[str]) -> Degrees:
    """The numbers of the strategy."""
    cp, ep = degree(row, "cp") or 1, degree(row, "ep") or 1
    vp, mbs, stated = degree(row, "vp"), degree(row, "mbs"), degree(row, "dp")
    tp, pp = _splits(row, gpus, cp * (stated or 1), filled, shards=runtime.usual.zero == 3)
    if vp is None and pp > 1:
        filled.append("virtual stages not stated: taken as 1")
    if gpus % (tp * pp * cp):
        raise Missing("tp*pp*cp does not divide the GPUs")
    dp = gpus // (tp * pp * cp)
    if mbs is None:
        batch, pieces = _given(row), dp * (accumulated(notes) or 0)
        mbs = batch // pieces if pieces and batch and batch % pieces == 0 else 1
        known = pieces and batch == mbs * pieces
        filled.append(f"micro-batch not stated: {'from the batch and its accumulation' if known else 'taken as 1'}")
    if stated is not None and stated != dp:
        filled.append("dp stated does not multiply to the GPUs: taken as GPUs/(tp*pp*cp)")
    return Degrees(tp, pp, vp or 1, cp, ep, dp, mbs)


def _given(row: Row) -> int:
    """Samples of a step where a row says so; 0 where it does not, or in tokens."""
    return 0 if _TOKENS.fullmatch(words_of(row, "gbs")) else count(row, "gbs") or 0


def _splits(row: Row, gpus: int, others: int, filled: list[str], *, shards: bool) -> tuple[int, int]:
    """Tensor and pipeline degree; one that is silent follows from the GPUs, where the other degrees leave no choice."""
    tp, pp = degree(row, "tp"), degree(row, "pp")
    if tp is None and pp is None and others == gpus:
        filled.append("tp and pp not stated: 1, as the other degrees multiply to the GPUs")
        return 1, 1
    if (tp is None) != (pp is None) and degree(row, "dp") and gpus % (others * (tp or pp or 1)) == 0:
        filled.append("tp or pp not stated: from the GPUs and the other degrees")
        rest = gpus // (others * (tp or pp or 1))
        return tp or rest, pp or rest
    if tp is not None and pp is None:
        filled.append("pp not stated: 1, where tp is")
        return tp, 1
    if tp is None and pp is None and shards:
        filled.append("tp and pp not stated: 1, as the framework shards weights instead")
        return 1, 1
    return needed(row, "tp", "tensor-parallel degree"), needed(row, "pp", "pipeline degree")


def batch_of(row: Row, degrees: Degrees, gpus: int, seq: int, notes: str, filled: list[str]) -> int:
    """Samples of a step."""
    if tokens := _TOKENS.fullmatch(words_of(row, "gbs")):
        filled.append("batch stated in tokens")
        return max(round(float(tokens.group(1)) * _THOUSANDS[tokens.group(2).lower()] / seq), 1)
    given = count(row, "gbs")
    if given is not None:
        return given
    rate, step = number(row, "measured_tokens_per_s_per_gpu"), number(row, "measured_step_time_s")
    if rate and step:
        filled.append("batch not stated: from tokens per second and step time")
        return max(round(rate * gpus * step / seq), 1)
    if (times := accumulated(notes)) is not None:
        filled.append("batch not stated: from the micro-batch and its accumulation")
        return degrees.mbs * degrees.dp * times
    raise Missing("incomplete: global batch is missing")


def precision_of(stated: str, cluster: Cluster, runtime: Runtime, filled: list[str]) -> dict[str, Any]:
    """The precision of the matrix products: as stated, else the runtime's own, else bf16 or what the GPU has."""
    chosen = next((name for words, name in _CALLED if re.search(words, stated)), stated)
    if stated in _SILENT:
        usual = (runtime.usual.precision, "bf16", "fp16")
        chosen = next(name for name in usual if name and _all_have(cluster, name))
        whose = f"what {runtime.name} does unless asked" if chosen == usual[0] else "what the GPU has"
        filled.append(f"precision not stated: taken as {chosen}, {whose}")
    if chosen == "fp8" and "fp8" not in runtime.can.precision:
        filled.append("scaling of fp8 not stated: one scale for a tensor, what torchao does unless asked")
        chosen = "fp8-tensorwise"
    if chosen not in PRECISIONS:
        raise Missing(f"precision {stated} is not modelled")
    if not _all_have(cluster, chosen) and "fp8" in chosen and _all_have(cluster, "fp8"):
        filled.append(f"precision {stated} taken as fp8")
        chosen = "fp8"
    if not _all_have(cluster, chosen):
        raise Missing(f"unsupported hardware: {cluster.pools[0].device.name} has no {chosen}")
    return {"precision": chosen}


def _all_have(cluster: Cluster, precision: str) -> bool:
    try:
        return all(pool.device.peak(precision) > 0 for pool in cluster.pools)
    except InputError:
        return False


def mtp_of(name: str, model: ModelSpec, filled: list[str]) -> dict[str, Any]:
    """Multi-token-prediction layers that are trained: as the name of the run says, else none."""
    if model.mtp_layers and "mtp" not in name.lower():
        filled.append("multi-token prediction not stated: taken as off")
    on = model.mtp_layers and "mtp" in name.lower() and "w/o mtp" not in name.lower()
    return {"mtp": model.mtp_layers} if on else {}


def task_of(stated: str, runtime: Runtime, notes: str, filled: list[str]) -> dict[str, Any]:
    """What is trained, and the rank of adapters."""
    task = next((name for words, name in _TASKS if re.search(words, stated)), stated)
    if task in _SILENT:
        filled.append("task not stated: taken as pretraining")
        task = "pretrain"
    if task not in ("pretrain", "finetune", "lora"):
        raise Missing(f"task {stated} is not modelled")
    if task != "lora":
        return {"task": task}
    rank = re.search(r"LoRA rank (\d+)", notes)
    if not rank:
        filled.append("LoRA rank not stated: taken as 16")
    benchmark = "mlperf" in notes.lower()
    targets = "attention" if benchmark else runtime.usual.lora_targets
    whose = "the MLPerf benchmark adapts" if benchmark else f"{runtime.name}'s recipes adapt"
    filled.append(f"adapted matrices not stated: {targets}, which {whose}")
    return {"task": task, "lora_rank": int(rank.group(1)) if rank else 16, "lora_targets": targets}


def packing_of(task: str, seq: int, runtime: Runtime, notes: str, filled: list[str]) -> dict[str, Any]:
    """The samples that sequences are packed of, where a run says that they are; their length as it says, or usual."""
    if not _PACKED.search(notes):
        return {}
    stated = re.search(r"samples of (\d+) tokens", notes)
    tokens = int(stated.group(1)) if stated else runtime.usual.packed if task != "pretrain" else 0
    if not stated:
        usual = f"{tokens} tokens, as in {runtime.name}'s recipes" if tokens else "taken as whole sequences"
        filled.append(f"length of packed samples not stated: {usual}")
    return {"packed": min(tokens, seq)} if tokens else {}
