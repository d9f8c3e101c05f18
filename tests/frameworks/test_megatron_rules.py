"""Our rules accept a strategy exactly when Megatron does: reasons may differ, verdicts may not.

Random strategies, most of them broken, go through the export and the real framework. Megatron leaves a few mistakes
to fail at the first step; those are named below, and a strategy that is refused by one of them alone is not asked.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from astra import api
from astra.columns import from_strategy
from astra.errors import InputError
from astra.export.base import Launch, refusals
from astra.export.reading import launch_of
from astra.rules.names import Names, facts_of
from astra.rules.table import RULES
from astra.search.detail import layers_of
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from tests.frameworks.conftest import Harness
from tests.frameworks.test_megatron import MEGATRON, some_ranks, take

# Megatron passes these at start and fails, wastes work or stays silent later (see docs/rules.md).
LEFT_FOR_LATER = {
    "layers",  # a virtual stage may be empty in a layout
    "moe_sp",  # refused at the first forward pass
    "sp_seq",  # fails in the first scatter
    "sp_tp",  # sequence parallelism is dropped silently
    "recompute_layers",  # not bounded
    "overlap_tp_reach",  # user buffers fail to initialise
    "cp_flash",  # fails in TransformerEngine
    "fp8_shape",  # fails in TransformerEngine
    "overlap_p2p",  # means nothing without virtual stages
    "dense_experts",  # not exported for a dense model
    "single_stage", "chunks", "interleaved", "recompute_options", "runtime_schedule",  # not expressible in flags
    "gpus",  # dp is derived
}  # fmt: skip
SHAPES = (
    ("llama-3.1-8b", "64xH100", 8192, 256),
    ("llama-3.1-70b", "64xH100", 4096, 96),
    ("mixtral-8x7b", "128xH100", 4096, 384),
    ("deepseek-v3", "256xH100", 4096, 512),
    ("qwen2.5-7b", "48xH100", 3072, 96),
    ("gpt-3-175b", "96xA100-80", 2048, 144),
)
CASES = 120


def some_strategy(draw: random.Random, job: Job) -> Strategy | None:
    gpus = job.pool.gpus
    tp, cp, pp = draw.choice([1, 2, 3, 4, 7, 8, 16]), draw.choice([1, 1, 1, 2, 4]), draw.choice([1, 1, 2, 3, 4, 8])
    if gpus % (tp * cp * pp):
        return None
    vp = draw.choice([1, 1, 2, 5]) if pp > 1 else 1
    recompute: Any = draw.choice(["none", "selective", "full"])
    overlap = tuple(name for name in ("grad", "param", "tp") if draw.random() < 0.6)
    overlap += ("p2p",) if vp > 1 and draw.random() < 0.8 else ()
    experts = job.model.moe is not None
    method: Any = draw.choice(["uniform", "block"]) if recompute == "full" else "uniform"
    offload: Any = draw.choice(["none", "none", "optimizer"])
    return Strategy(
        tp=tp, cp=cp, pp=pp, vp=vp, dp=gpus // (tp * cp * pp), mbs=draw.choice([1, 1, 2, 3]),
        ep=draw.choice([1, 2, 4, 8, 3]) if experts else 1, etp=draw.choice([1, 1, 1, 2]) if experts else 1,
        sp=tp > 1 and draw.random() < 0.8, zero=draw.choice([0, 1, 1, 2, 3]), recompute=recompute,
        method=method,
        offload=offload, overlap=overlap,
        schedule="interleaved" if vp > 1 else "1f1b",
    )  # fmt: skip


def broken_rules(job: Job, strategy: Strategy) -> set[str]:
    table = Names(from_strategy(strategy), facts_of(job.model, job.pool, job.workload))
    return {rule.name for rule in RULES if rule.needs <= table.known and bool(rule.breaks(table))}


def exportable(job: Job, strategy: Strategy) -> Launch | None:
    """The launch of a strategy, legal or not; None where it does not even define one."""
    if strategy.pp * strategy.vp > job.model.layers or strategy.dp * strategy.mbs > job.workload.global_batch:
        return None
    try:
        launch = launch_of(job, strategy, layers_of(job, strategy), "0.0", None)
    except InputError:
        return None
    return None if refusals(MEGATRON, launch) else launch


@pytest.mark.parametrize(("model", "gpus", "seq", "batch"), SHAPES, ids=[shape[0] for shape in SHAPES])
def test_same_verdict(megatron: Harness, tmp_path: Path, model: str, gpus: str, seq: int, batch: int) -> None:
    draw = random.Random(f"{model} 2026")
    job = api.make_job(
        model, gpus=gpus, cluster=None, node=None, batch=batch, seq=seq, tokens=None, precision="bf16",
        optimizer="adam", task="pretrain", lora_rank=16, runtime="megatron", headroom=0.08,
    )  # fmt: skip
    verdicts: dict[bool, int] = {True: 0, False: 0}
    for _ in range(2000):
        strategy = some_strategy(draw, job)
        launch = exportable(job, strategy) if strategy is not None else None
        if launch is None:
            continue
        broken = broken_rules(job, launch.strategy)
        if broken and broken <= LEFT_FOR_LATER:
            continue
        if verdicts[not broken] >= CASES // len(SHAPES) // 2:
            continue
        verdict = take(megatron, launch, tmp_path, ranks=some_ranks(launch)[:1])
        assert verdict["accepted"] == (not broken), f"{launch.strategy}: we say {sorted(broken)}, Megatron {verdict}"
        verdicts[not broken] += 1
    assert verdicts[True] >= 5
    assert verdicts[False] >= 5
