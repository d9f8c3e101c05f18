"""Export, then import, is the identity: every field of the strategy and all that a target's files say of the work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from astra.errors import AstraError
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from astra.export.imports import import_file
from astra.search.detail import legality
from astra.spec.strategy import Strategy
from tests.export.launching import job_of, launched, write

# The file of each target that says how it runs.
FILES = {
    "megatron": "launch.sh", "torchtitan": "plan.py", "deepspeed": "ds_config.json", "accelerate": "launch.sh",
    "flagscale": "train.yaml", "megatron-bridge": "overrides.txt", "pytorch": "train.py",
}  # fmt: skip
DENSE = (
    "dp16 mbs1", "tp2 dp8 mbs2 sp", "tp2 pp2 dp4 mbs1 sp", "pp4 dp4 mbs1", "pp2 vp2 dp8 mbs1", "tp2 cp2 dp4 mbs1 sp",
    "tp4 pp2 dp2 mbs4 sp", "tp4 dp4 mbs1", "cp2 dp8 mbs2", "tp2 pp2 dp4 mbs1 sp layers=15,17",
)  # fmt: skip
EXPERTS = ("ep8 dp16 mbs1", "pp2 ep4 dp8 mbs1", "tp2 ep8 etp1 dp8 mbs1 sp", "tp2 pp2 ep4 etp2 dp4 mbs1 sp")
WORDS = (
    "zero0", "zero1", "zero2", "zero3", "zero3 reshard=never", "zero3 reshard=always", "zero1 recompute=full",
    "zero1 recompute=full:block:2", "zero1 recompute=selective", "zero1 recompute=selective:mlp",
    "zero3 recompute=full", "zero1 offload=optimizer", "zero2 offload=optimizer", "zero1 moments=bf16",
    "zero1 grads=bf16", "zero1 grads=fp32", "zero3 grads=fp32", "zero1 graphs=partial", "zero1 graphs=full",
    "zero3 shard8", "zero1 shard8", "zero1 overlap=none", "zero1 overlap=grad", "zero3 overlap=grad,param",
    "zero1 flash=off", "zero1 offload_layers=2",
)  # fmt: skip
DISPATCH = ("", "dispatch=deepep", "dispatch=hybridep")
WORK: tuple[dict[str, Any], ...] = (
    {}, {"precision": "fp8"}, {"task": "lora", "lora_rank": 32}, {"precision": "fp16"}, {"precision": "fp8-tensorwise"},
    {"precision": "fp8-blockwise"}, {"precision": "fp8-rowwise"},
)  # fmt: skip


def drawn(target: str) -> Iterator[Launch]:
    """Plans that a target takes: dense models and experts, each way of splitting with each word."""
    runtime = EXPORTERS[target].runtime or "megatron"
    texts = [("llama-3.1-8b", f"{base} {words}") for base, words in product(DENSE, WORDS)]
    texts += [
        ("mixtral-8x7b", f"{base} {words} {sent}") for base, words, sent in product(EXPERTS, WORDS[:12], DISPATCH)
    ]
    step = 1 if target in ("accelerate", "deepspeed") else 3  # they take few of them; others each third word of a base
    for place, (model, text) in enumerate(texts[::step]):
        work = WORK[place % 11] if place % 11 < len(WORK) else {}
        try:
            job = job_of(model, "16xH100", seq=4096, batch=128, runtime=runtime, **work)
            strategy = job.strategy(text)
        except AstraError:
            continue
        if not legality(job, strategy) and not refusals(EXPORTERS[target], launched(job, strategy)):
            yield launched(job, strategy)


def settled(strategy: Strategy, launch: Launch) -> Strategy:
    """The strategy by one name: FSDP2 says ZeRO-2 by weights that stay gathered, shards of all replicas are plain."""
    if launch.runtime in ("torchtitan", "fsdp-eager") and strategy.zero == 2:
        strategy = replace(strategy, zero=3, reshard="never")
    return replace(strategy, shard=0) if strategy.shard == strategy.dp else strategy


@pytest.mark.parametrize("target", sorted(FILES))
def test_what_is_exported_reads_back(target: str, tmp_path: Path) -> None:
    seen = 0
    for launch in drawn(target):
        folder = write(tmp_path / str(seen), EXPORTERS[target].files(launch))
        found = import_file(folder / FILES[target], gpus=launch.gpus)
        assert str(settled(found.strategy, launch)) == str(settled(launch.strategy, launch)), launch.strategy
        assert found.gpus == launch.gpus
        work = launch.workload
        said = {"batch": (found.global_batch, work.global_batch), "seq": (found.seq, work.seq)}
        for name, (read, wanted) in said.items():
            assert read in (None, wanted), (name, read, wanted)
        # What is usual on the GPU is written by its own name.
        usual = {"fp8-tensorwise": "fp8"} if work.precision == "fp8" else {}
        assert usual.get(found.precision, found.precision) == work.precision
        assert found.unknown == ()
        seen += 1
    assert seen >= 5, "too few plans to show anything"


def test_every_target_that_says_how_it_runs_is_here() -> None:
    started_by_others = {"slurm", "skypilot", "kubernetes"}  # they hold the script of the framework
    assert set(EXPORTERS) - started_by_others == set(FILES)
