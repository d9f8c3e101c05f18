"""Published training runs as jobs and strategies: any CSV with the columns of the project's survey of runs.

A row becomes a `Run` that the cost model can replay, or a `Skipped` with the reason. What a row leaves open is filled
by a stated rule and remembered; what makes a measurement unfit for timing sets it aside, and that is remembered too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from astra.catalog import runtimes
from astra.errors import AstraError, InputError
from astra.files import csv_rows, read_text
from astra.layers.weights import forward_flops_per_token
from astra.spec.cluster import Device, Pool
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.names import as_name
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload
from astra.validate.cells import Missing, Row, count, needed, number, switch, words_of
from astra.validate.models import Sizes, model_of, namesake, vocabulary_of
from astra.validate.pools import pool_of
from astra.validate.recipes import lora_targets, recipe_for, words_as_run
from astra.validate.strategies import Degrees, Settings, runtime_of, strategy_of

# Allocated on the first stage or the worst rank; reserved by the allocator on the first stage or the worst rank.
Peak = Literal["first", "most", "first reserved", "reserved"]

Precision = Literal["bf16", "fp16", "fp8", "tf32"]
_PRECISIONS: Final[dict[str, Precision]] = {
    "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "tf32": "tf32",
    "mxfp8": "fp8", "fp8-rowwise": "fp8", "fp8mx": "fp8", "fp8cs": "fp8",
}  # fmt: skip
Task = Literal["pretrain", "finetune", "lora"]
_TASKS: Final[dict[str, Task]] = {
    "pretrain": "pretrain",
    "pretraining": "pretrain",
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
# Frameworks, as tables name them, whose logs call memory what the allocator reserved. Nanotron resets the peak of
# allocated memory before it logs a benchmark (trainer.py, log_memory); torchtitan prints both and tables keep this one.
_LOGS_RESERVED: Final = ("torchtitan", "nanotron")
_NEEDED: Final = ("layers", "hidden", "heads", "gpu_type", "num_gpus")
_DELIMITERS: Final = (",", ";", "\t")


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


def read_runs(path: str | Path) -> list[Run | Skipped]:
    """Every row of a CSV file, with commas, semicolons or tabs."""
    text = read_text(path, "runs")
    first = text.partition("\n")[0]
    rows = csv_rows(text, str(path), delimiter=max(_DELIMITERS, key=first.count), strict=False)
    _, header = next(rows, (1, []))
    if not set(header).intersection(_NEEDED):
        raise InputError(str(path), None, want=f"a header with columns such as {', '.join(_NEEDED)}")
    return runs_of(dict(zip_longest(header, row[: len(header)], fillvalue="")) for _, row in rows)


def runs_of(rows: Iterable[Row]) -> list[Run | Skipped]:
    """Rows as runs; equal jobs are one object, so that their strategies can be costed together."""
    jobs: dict[tuple[object, ...], Job] = {}
    return [_run(row, f"row {place}", jobs) for place, row in enumerate(rows, start=1)]


def source_of(row: Row) -> str:
    """The short name of a source: the identifier without its number, else the repository."""
    name = re.sub(r"[-_]?\d+$", "", (row.get("id") or "").strip())
    return name or (row.get("source_repo_or_paper") or "unknown").split("@")[0]


def _run(row: Row, unnamed: str, jobs: dict[tuple[object, ...], Job]) -> Run | Skipped:
    identity, source = words_of(row, "id") or unnamed, source_of(row)
    repository = words_of(row, "source_repo_or_paper").lower()
    known = next((known for name, known in _SCRIPTS.items() if source == name or f"/{name}@" in repository), {})
    silent = [name for name in known if words_of(row, name).split(" ")[0] in ("", "unknown")]
    row = {**row, **{name: known[name] for name in silent}}
    try:
        run = _read(row, identity, source, jobs)
    except Missing as missing:
        return Skipped(identity, source, str(missing))
    except AstraError as error:
        return Skipped(identity, source, f"refused: {error}")
    except ArithmeticError as error:  # numbers no run can have; one row must not end the others
        return Skipped(identity, source, f"cannot be read: {error}")
    rules = [f"{name} as in the source's own scripts: {known[name]}" for name in silent]
    return run._replace(filled=(*run.filled, *rules))


def _read(row: Row, identity: str, source: str, jobs: dict[tuple[object, ...], Job]) -> Run:
    filled: list[str] = []
    notes = words_of(row, "notes")
    told = f"{notes} {source} {words_of(row, 'source_repo_or_paper')}"
    runtime, assumed = runtime_of(
        words_of(row, "framework"), words_of(row, "framework_version_or_date"), told, words_of(row, "flash_attn")
    )
    filled += [assumed] if assumed else []
    pool = _pool(row, filled)
    degrees = _degrees(row, pool.gpus, filled)
    seq = needed(row, "seq_len", "sequence length")
    model, how = _model(row, seq, notes, filled)
    filled.append(f"model {model.name}: {how}")
    batch = _batch(row, degrees, pool.gpus, seq, filled)
    stated = words_of(row, "precision").lower()
    precision = _precision(stated, pool.device, filled)
    _check(degrees, pool.gpus, model, batch)
    recipe = None
    if runtime in ("megatron-bridge", "nemo"):
        fsdp = "fsdp" in words_of(row, "zero_stage_or_dist_opt").lower()
        recipe = recipe_for(model.name, words_of(row, "gpu_type"), stated, pool.gpus, batch, degrees, fsdp)
    settings = Settings(
        framework=words_of(row, "framework"),
        sp=words_of(row, "sp"),
        zero=words_of(row, "zero_stage_or_dist_opt"),
        recompute=words_of(row, "recompute"),
        flash=words_of(row, "flash_attn"),
        notes=notes,
    )
    profile, version = runtimes.runtime(runtime), words_of(row, "framework_version_or_date")
    words = words_as_run(profile, recipe, pool.device.generation, precision, version=version)
    strategy, rules = strategy_of(profile, model, degrees, settings, recipe, words)
    filled.append("words of the runtime not stated: " + ("as in the vendor's recipe" if recipe else "as is usual"))
    _check_experts(strategy)
    rank = re.search(r"LoRA rank (\d+)", notes)
    task = _task(words_of(row, "task").lower(), rank is not None, filled)
    workload = Workload(
        global_batch=batch,
        seq=seq,
        precision=precision,
        task=task,
        lora_rank=int(rank.group(1)) if rank else 16,
        lora_targets=lora_targets(runtime, mlperf="mlperf" in told.lower()) if task == "lora" else "all",
    )
    key = (id(model), id(pool), workload, runtime)
    job = jobs.setdefault(key, Job(model=model, pool=pool, workload=workload, runtime=profile, headroom=0.0))
    measured, aside = _measured(row, job, notes, filled)
    citation = f"{words_of(row, 'source_repo_or_paper')}: {words_of(row, 'source_path_or_table')}".strip(": ")
    framework = words_of(row, "framework") or "unknown"
    return Run(identity, source, citation, framework, stated, job, strategy, measured, aside, (*filled, *rules))


def _pool(row: Row, filled: list[str]) -> Pool:
    gpu = words_of(row, "gpu_type")
    if not gpu:
        raise Missing("incomplete: GPU type is missing")
    far, near = words_of(row, "inter_node_link"), words_of(row, "intra_node_link")
    gpus, per_node = needed(row, "num_gpus", "number of GPUs"), count(row, "gpus_per_node")
    try:
        source = words_of(row, "source_repo_or_paper")
        pool = pool_of(gpu, number(row, "gpu_mem_gb"), gpus, per_node, near, far, source)
    except InputError as error:
        if error.where == "gpu":
            raise Missing(f"unsupported hardware: {gpu}") from None
        raise
    if per_node is None and gpus > 1:
        filled.append(f"GPUs per node not stated: as {pool.node.name}")
    if not far and gpus > pool.node.gpus:
        filled.append(f"network between nodes not stated: as {pool.node.name}")
    if "products at" in pool.device.name:
        filled.append("tensor rate of the board as its source measured it")
    return pool


def _degrees(row: Row, gpus: int, filled: list[str]) -> Degrees:
    cp, ep = count(row, "cp") or 1, count(row, "ep") or 1
    vp, mbs, stated = count(row, "vp"), count(row, "mbs"), count(row, "dp")
    tp, pp = _splits(row, gpus, cp * (stated or 1), filled)
    if vp is None and pp > 1:
        filled.append("virtual stages not stated: taken as 1")
    if mbs is None:
        filled.append("micro-batch not stated: taken as 1")
    if gpus % (tp * pp * cp):
        raise Missing("tp*pp*cp does not divide the GPUs")
    dp = gpus // (tp * pp * cp)
    if stated is not None and stated != dp:
        filled.append("dp stated does not multiply to the GPUs: taken as GPUs/(tp*pp*cp)")
    return Degrees(tp, pp, vp or 1, cp, ep, dp, mbs or 1)


def _splits(row: Row, gpus: int, others: int, filled: list[str]) -> tuple[int, int]:
    """Tensor and pipeline degree; one that is silent follows from the GPUs, where the other degrees leave no choice."""
    tp, pp = count(row, "tp"), count(row, "pp")
    if tp is None and pp is None and others == gpus:
        filled.append("tp and pp not stated: 1, as the other degrees multiply to the GPUs")
        return 1, 1
    if (tp is None) != (pp is None) and count(row, "dp") and gpus % (others * (tp or pp or 1)) == 0:
        filled.append("tp or pp not stated: from the GPUs and the other degrees")
        rest = gpus // (others * (tp or pp or 1))
        return tp or rest, pp or rest
    return needed(row, "tp", "tensor-parallel degree"), needed(row, "pp", "pipeline degree")


def _model(row: Row, seq: int, notes: str, filled: list[str]) -> tuple[ModelSpec, str]:
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


def _batch(row: Row, degrees: Degrees, gpus: int, seq: int, filled: list[str]) -> int:
    given = count(row, "gbs")
    if given is not None:
        return given
    rate, step = number(row, "measured_tokens_per_s_per_gpu"), number(row, "measured_step_time_s")
    if rate and step:
        filled.append("batch not stated: from tokens per second and step time")
        return max(round(rate * gpus * step / seq), 1)
    raise Missing("incomplete: global batch is missing")


def _precision(stated: str, device: Device, filled: list[str]) -> Precision:
    if stated in ("", "unknown"):
        chosen: Precision = "bf16" if "bf16" in device.flops_per_s else "fp16"
        filled.append(f"precision not stated: taken as {chosen}")
    elif stated in _PRECISIONS:
        chosen = _PRECISIONS[stated]
        if chosen != stated:
            filled.append(f"precision {stated} taken as {chosen}")
    else:
        raise Missing(f"precision {stated} is not modelled")
    if chosen not in device.flops_per_s:
        raise Missing(f"unsupported hardware: {device.name} has no {chosen}")
    return chosen


def _task(stated: str, ranked: bool, filled: list[str]) -> Task:
    if stated not in _TASKS and stated not in ("", "unknown"):
        raise Missing(f"task {stated} is not modelled")
    if stated not in _TASKS:
        filled.append("task not stated: taken as pretraining")
    task = _TASKS.get(stated, "pretrain")
    if task == "lora" and not ranked:
        filled.append("LoRA rank not stated: taken as 16")
    return task


def _check(degrees: Degrees, gpus: int, model: ModelSpec, batch: int) -> None:
    if degrees.pp * degrees.vp > model.layers:
        raise Missing("more pipeline chunks than layers")
    if batch % (degrees.dp * degrees.mbs):
        raise Missing("dp*mbs does not divide the batch")
    if model.heads % degrees.tp:
        raise Missing("tp does not divide the heads")
    if model.moe is not None and model.moe.experts % degrees.ep:
        raise Missing("ep does not divide the experts")


def _check_experts(strategy: Strategy) -> None:
    if (strategy.tp * strategy.cp * strategy.dp) % (strategy.ep * strategy.etp):
        raise Missing("ep*etp does not divide tp*cp*dp")


def _measured(row: Row, job: Job, notes: str, filled: list[str]) -> tuple[Measured, str]:
    step, tokens_per_step = number(row, "measured_step_time_s"), job.workload.tokens_per_step
    rate, tflops = number(row, "measured_tokens_per_s_per_gpu"), number(row, "measured_model_tflops_per_gpu")
    if step is None and rate:
        step = tokens_per_step / (rate * job.pool.gpus)
        filled.append("step time from tokens per second")
    if step is None and tflops and job.workload.task != "lora":
        flops = 3 * forward_flops_per_token(job.model, job.workload.seq) * tokens_per_step
        step = flops / (tflops * 1e12 * job.pool.gpus)
        filled.append("step time from TFLOP/s, counted as 3 forward passes with causal attention")
    oom = switch(words_of(row, "oom"))
    peak = number(row, "measured_peak_mem_gb")
    words = notes.lower()
    reserved = any(word in words_of(row, "framework").lower() for word in _LOGS_RESERVED)
    first = "rank 0" in words
    of: Peak = ("first reserved" if first else "reserved") if reserved else "first" if first else "most"
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
