"""The work of a published run: degrees, batch, precision and task, with what is not stated filled by rules."""

from __future__ import annotations

import re
from typing import Any, Final

from astra.errors import InputError
from astra.spec.cluster import Cluster
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime
from astra.spec.workload import PRECISIONS
from astra.validate.cells import Missing, Row, count, degree, needed, number, words_of
from astra.validate.strategies import Degrees

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
