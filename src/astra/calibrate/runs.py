"""Published training runs as jobs and strategies: any CSV with the columns of the project's survey of runs.

A row becomes a `Run` that the cost model can replay, or a `Skipped` with the reason. What a row leaves open is filled
by a stated rule and remembered; what makes a measurement unfit for timing sets it aside, and that is remembered too.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from astra.calibrate.runs_model import Sizes, model_of
from astra.calibrate.runs_pool import pool_of
from astra.calibrate.runs_recipe import recipe_for, runtime_as_run
from astra.calibrate.runs_strategy import Degrees, Settings, runtime_of, strategy_of
from astra.catalog.clusters import read_text
from astra.errors import AstraError, InputError
from astra.families.weights import forward_flops_per_token
from astra.spec.cluster import Device, Pool
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload

# Allocated on the first stage or the worst rank; reserved by the allocator on the first stage or the worst rank.
Peak = Literal["first", "most", "first reserved", "reserved"]

_LARGEST_FILE: Final = 256 * 2**20
Precision = Literal["bf16", "fp16", "fp8", "tf32"]
_PRECISIONS: Final[dict[str, Precision]] = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "tf32": "tf32",
    "mxfp8": "fp8", "fp8-rowwise": "fp8", "fp8mx": "fp8", "fp8cs": "fp8",
}  # fmt: skip
_TASKS: Final[dict[str, Literal["pretrain", "finetune", "lora"]]] = {
    "pretrain": "pretrain",
    "sft": "finetune",
    "finetune": "finetune",
    "lora": "lora",
}
_SUSPECT: Final = ("DO NOT USE", "SUSPECT", "INCONSISTENT")
# What a source's own scripts say where its table is silent.
_SCRIPTS: Final[dict[str, dict[str, str]]] = {
    # eth-easl/sailor @cf2c8e3: ae_scripts/clariden_scripts/run_opt.slurm has no half precision and an empty
    # zero_optimization. Products are in TF32: GPT-Neo reaches 80 model TFLOP/s where fp32 peaks at 67, and the image
    # is NVIDIA's PyTorch 24.10. FlashAttention and recompute are off unless asked for.
    "sailor": {"precision": "tf32", "zero_stage_or_dist_opt": "0", "flash_attn": "0", "recompute": "none"},
    # MccRee177/AMP: examples/ds_config.json and ds_pretrain_gpt2_pipe.sh of Megatron-LM-v1.1.5-3D_parallelism.
    "amp": {"zero_stage_or_dist_opt": "0"},
}
_NEEDED: Final = ("id", "layers", "hidden", "heads", "gpu_type", "num_gpus")


class Measured(NamedTuple):
    """What the source measured; None where it did not."""

    step_s: float | None
    peak_gib: float | None
    peak_of: Peak
    oom: bool | None


class Run(NamedTuple):
    """One published run, ready to be replayed."""

    id: str
    source: str  # short name of where it was published
    citation: str
    framework: str
    precision: str  # as published
    job: Job
    strategy: Strategy
    measured: Measured
    aside: str = ""  # why its time is not scored; empty: it is
    filled: tuple[str, ...] = ()  # rules that filled what the row left open


class Skipped(NamedTuple):
    """A row that cannot be replayed."""

    id: str
    source: str
    reason: str


class _Missing(Exception):
    """The row cannot be replayed, for this reason."""


Row = Mapping[str, str]


def read_runs(path: str | Path) -> list[Run | Skipped]:
    """Every row of a CSV file."""
    text = read_text(path, what="a CSV file of published runs", limit_bytes=_LARGEST_FILE)
    reader = csv.DictReader(io.StringIO(text))
    lacking = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    if lacking:
        fix = f"Missing: {', '.join(lacking)}."
        raise InputError(str(path), None, want=f"the columns {', '.join(_NEEDED)}", fix=fix)
    return runs_of(reader)


def runs_of(rows: Iterable[Row]) -> list[Run | Skipped]:
    """Rows as runs; equal jobs are one object, so that their strategies can be costed together."""
    jobs: dict[tuple[object, ...], Job] = {}
    return [_run(row, jobs) for row in rows]


def source_of(row: Row) -> str:
    """The short name of a source: the identifier without its number, else the repository."""
    name = re.sub(r"[-_]?\d+$", "", (row.get("id") or "").strip())
    return name or (row.get("source_repo_or_paper") or "unknown").split("@")[0]


def _run(row: Row, jobs: dict[tuple[object, ...], Job]) -> Run | Skipped:
    identity, source = _text(row, "id"), source_of(row)
    known = _SCRIPTS.get(source, {})
    silent = [name for name in known if _text(row, name).split(" ")[0] in ("", "unknown")]
    row = {**row, **{name: known[name] for name in silent}}
    try:
        run = _read(row, identity, source, jobs)
    except _Missing as missing:
        return Skipped(identity, source, str(missing))
    except AstraError as error:
        return Skipped(identity, source, f"refused: {error}")
    rules = [f"{name} as in the source's own scripts: {known[name]}" for name in silent]
    return run._replace(filled=(*run.filled, *rules))


def _read(row: Row, identity: str, source: str, jobs: dict[tuple[object, ...], Job]) -> Run:
    filled: list[str] = []
    notes = _text(row, "notes")
    runtime, assumed = runtime_of(
        _text(row, "framework"), _text(row, "framework_version_or_date"), notes, _text(row, "flash_attn")
    )
    filled += [assumed] if assumed else []
    pool = _pool(row, filled)
    degrees = _degrees(row, pool.gpus, filled)
    seq = _whole(row, "seq_len", "sequence length")
    model, how = _model(row, seq, notes)
    filled.append(f"model {model.name}: {how}")
    batch = _batch(row, degrees, pool.gpus, seq, filled)
    stated = _text(row, "precision").lower()
    precision = _precision(stated, pool.device, filled)
    _check(degrees, pool.gpus, model, batch)
    recipe = None
    if runtime in ("megatron-bridge", "nemo"):
        fsdp = "fsdp" in _text(row, "zero_stage_or_dist_opt").lower()
        recipe = recipe_for(model.name, _text(row, "gpu_type"), stated, pool.gpus, batch, degrees, fsdp)
    settings = Settings(
        framework=_text(row, "framework"),
        sp=_text(row, "sp"),
        zero=_text(row, "zero_stage_or_dist_opt"),
        recompute=_text(row, "recompute"),
        flash=_text(row, "flash_attn"),
        notes=notes,
    )
    strategy, rules = strategy_of(runtime, model, degrees, settings, recipe)
    _check_experts(strategy)
    rank = re.search(r"LoRA rank (\d+)", notes)
    workload = Workload(
        global_batch=batch,
        seq=seq,
        precision=precision,
        task=_TASKS.get(_text(row, "task").lower(), "pretrain"),
        lora_rank=int(rank.group(1)) if rank else 16,
    )
    as_run = runtime_as_run(
        runtime,
        recipe,
        model,
        version=_text(row, "framework_version_or_date"),
        task=workload.task,
        mlperf="mlperf" in notes.lower(),
        filled=filled,
    )
    key = (id(model), id(pool), workload, msgspec.json.encode(as_run))
    job = jobs.setdefault(key, Job(model=model, pool=pool, workload=workload, runtime=as_run, headroom=0.0))
    measured, aside = _measured(row, job, notes, filled)
    citation = f"{_text(row, 'source_repo_or_paper')}: {_text(row, 'source_path_or_table')}".strip(": ")
    framework = _text(row, "framework") or "unknown"
    return Run(identity, source, citation, framework, stated, job, strategy, measured, aside, (*filled, *rules))


def _pool(row: Row, filled: list[str]) -> Pool:
    gpu = _text(row, "gpu_type")
    far, near = _text(row, "inter_node_link"), _text(row, "intra_node_link")
    gpus, per_node = _whole(row, "num_gpus", "number of GPUs"), _number(row, "gpus_per_node")
    try:
        size, source = int(per_node) if per_node else None, _text(row, "source_repo_or_paper")
        pool = pool_of(gpu, _number(row, "gpu_mem_gb"), gpus, size, near, far, source)
    except InputError as error:
        if error.where == "gpu":
            raise _Missing(f"unsupported hardware: {gpu}") from None
        raise
    if not far and gpus > pool.node.gpus:
        filled.append(f"network between nodes not stated: as {pool.node.name}")
    if "products at" in pool.device.name:
        filled.append("tensor rate of the board as its source measured it")
    return pool


def _degrees(row: Row, gpus: int, filled: list[str]) -> Degrees:
    tp, pp = _whole(row, "tp", "tensor-parallel degree"), _whole(row, "pp", "pipeline degree")
    cp, ep = int(_number(row, "cp") or 1), int(_number(row, "ep") or 1)
    vp, mbs = _number(row, "vp"), _number(row, "mbs")
    if vp is None and pp > 1:
        filled.append("virtual stages not stated: taken as 1")
    if mbs is None:
        filled.append("micro-batch not stated: taken as 1")
    if gpus % (tp * pp * cp):
        raise _Missing("tp*pp*cp does not divide the GPUs")
    dp = gpus // (tp * pp * cp)
    stated = _number(row, "dp")
    if stated is not None and stated != dp:
        filled.append("dp stated does not multiply to the GPUs: taken as GPUs/(tp*pp*cp)")
    return Degrees(tp, pp, int(vp or 1), cp, ep, dp, int(mbs or 1))


def _model(row: Row, seq: int, notes: str) -> tuple[ModelSpec, str]:
    hidden, heads = _whole(row, "hidden", "hidden size"), _whole(row, "heads", "attention heads")
    gated = _text(row, "gated_mlp").lower() in ("1", "true", "yes", "")
    words = notes.lower()
    tied = False if "untied embeddings" in words else True if "tied embeddings" in words else None
    experts = int(_number(row, "moe_experts") or 0)
    return model_of(
        Sizes(
            name=_text(row, "model_name") or "unnamed",
            layers=_whole(row, "layers", "layers"),
            hidden=hidden,
            ffn=int(_number(row, "ffn") or (round(8 * hidden / 3) if gated else 4 * hidden)),
            heads=heads,
            kv_heads=int(_number(row, "kv_heads") or heads),
            vocab=_whole(row, "vocab", "vocabulary"),
            seq=seq,
            gated=gated,
            experts=experts if experts > 1 else 0,
            topk=int(_number(row, "moe_topk") or 0),
            moe_ffn=int(_number(row, "moe_ffn") or 0),
            tied=tied,
        )
    )


def _batch(row: Row, degrees: Degrees, gpus: int, seq: int, filled: list[str]) -> int:
    given = _number(row, "gbs")
    if given is not None:
        return int(given)
    rate, step = _number(row, "measured_tokens_per_s_per_gpu"), _number(row, "measured_step_time_s")
    if rate and step:
        filled.append("batch not stated: from tokens per second and step time")
        return max(round(rate * gpus * step / seq), 1)
    raise _Missing("incomplete: global batch is missing")


def _precision(stated: str, device: Device, filled: list[str]) -> Precision:
    if stated in ("", "unknown"):
        chosen: Precision = "bf16" if "bf16" in device.flops_per_s else "fp16"
        filled.append(f"precision not stated: taken as {chosen}")
    elif stated in _PRECISIONS:
        chosen = _PRECISIONS[stated]
        if chosen != stated:
            filled.append(f"precision {stated} taken as {chosen}")
    else:
        raise _Missing(f"precision {stated} is not modelled")
    if chosen not in device.flops_per_s:
        raise _Missing(f"unsupported hardware: {device.name} has no {chosen}")
    return chosen


def _check(degrees: Degrees, gpus: int, model: ModelSpec, batch: int) -> None:
    if degrees.pp * degrees.vp > model.layers:
        raise _Missing("more pipeline chunks than layers")
    if batch % (degrees.dp * degrees.mbs):
        raise _Missing("dp*mbs does not divide the batch")
    if model.heads % degrees.tp:
        raise _Missing("tp does not divide the heads")
    if model.moe is not None and model.moe.experts % degrees.ep:
        raise _Missing("ep does not divide the experts")


def _check_experts(strategy: Strategy) -> None:
    if (strategy.tp * strategy.cp * strategy.dp) % (strategy.ep * strategy.etp):
        raise _Missing("ep*etp does not divide tp*cp*dp")


def _measured(row: Row, job: Job, notes: str, filled: list[str]) -> tuple[Measured, str]:
    step, tokens_per_step = _number(row, "measured_step_time_s"), job.workload.tokens_per_step
    rate, tflops = _number(row, "measured_tokens_per_s_per_gpu"), _number(row, "measured_model_tflops_per_gpu")
    if step is None and rate:
        step = tokens_per_step / (rate * job.pool.gpus)
        filled.append("step time from tokens per second")
    if step is None and tflops and job.workload.task != "lora":
        flops = 3 * forward_flops_per_token(job.model, job.workload.seq) * tokens_per_step
        step = flops / (tflops * 1e12 * job.pool.gpus)
        filled.append("step time from TFLOP/s, counted as 3 forward passes with causal attention")
    oom = {"1": True, "0": False}.get(_text(row, "oom"))
    peak = _number(row, "measured_peak_mem_gb")
    words = notes.lower()
    reserved = "torchtitan" in _text(row, "framework").lower()  # what its log calls memory, compiled or not
    of: Peak = "first" if "rank 0" in words else "reserved" if reserved else "most"
    # Nanotron resets the peak of allocated memory before it logs a benchmark (trainer.py, log_memory): what it can
    # report of a whole step is the peak of reserved memory.
    of = "first reserved" if job.runtime.name == "nanotron" and of == "first" else of
    return Measured(None if oom else step, peak, of, oom), _aside(notes, step, oom)


def _aside(notes: str, step: float | None, oom: bool | None) -> str:
    if oom:
        return "out of memory or crashed: no time"
    if step is None:
        return "no step time, tokens per second or TFLOP/s"
    if "clean=0" in notes:
        return "disturbed run by the survey's check (clean=0)"
    if "q=C" in notes or any(word in notes for word in _SUSPECT):
        return "incomplete, remembered or suspect (q=C)"
    return ""


def _text(row: Row, name: str) -> str:
    return (row.get(name) or "").strip()


def _number(row: Row, name: str) -> float | None:
    text = _text(row, name)
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _whole(row: Row, name: str, what: str) -> int:
    value = _number(row, name)
    if value is None or value != int(value):
        raise _Missing(f"incomplete: {what} is missing")
    return int(value)
