"""Words that contradict each other, the runtime or the GPU: one sentence each, that names what to change."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.errors import InputError, NoFeasiblePlan

DENSE: dict[str, Any] = {"model": "llama-3-8b", "gpus": "16xH100", "batch": 64, "seq": 4096}
MOE: dict[str, Any] = {"model": "mixtral-8x7b", "gpus": "64xH100", "batch": 256, "seq": 4096}
CASES = [
    (DENSE | {"runtime": "torchtitan"}, "dp16 graphs=full", "torchtitan has no graphs=full, only graphs=none"),
    (MOE, "tp2 dp32 sp dispatch=deepep", "deepep and hybridep need expert parallelism, ep above 1"),
    (MOE | {"gpus": "64xA100"}, "dp64 ep8 dispatch=hybridep", "HybridEP sends among Hopper and Blackwell GPUs"),
    (MOE | {"gpus": "64xGB200"}, "dp64 ep8 dispatch=deepep", "DeepEP sends among NVIDIA GPUs joined by NVLink"),
    (MOE | {"gpus": "64xH100-PCIe"}, "dp64 ep8 dispatch=deepep", "DeepEP sends among NVIDIA GPUs joined by NVLink"),
    (MOE | {"gpus": "64xMI300X"}, "dp64 ep8 dispatch=deepep", "DeepEP sends among NVIDIA GPUs joined by NVLink"),
    (MOE, "dp64 ep8 dispatch=alltoall:fp8", "dispatch in fp8 needs deepep or hybridep"),
    (MOE, "dp64 ep8 dispatch=deepep:fp8", "megatron has no dispatch in fp8"),
    (DENSE, "dp16 overlap=grad,param,ep", "hiding expert exchanges needs ep above 1 and a second micro-batch"),
    (MOE, "dp64 ep8 mbs4 overlap=grad,param,ep", "hiding expert exchanges needs ep above 1 and a second micro-batch"),
    (MOE, "pp4 dp16 ep8 overlap=grad,param,ep", "Megatron hides expert exchanges without a pipeline or in an inter"),
    (MOE, "dp64 ep8 dispatch=hybridep graphs=full", "a graph of the whole step needs experts whose products are one"),
    (
        MOE | {"gpus": "64xB200", "precision": "mxfp8"},
        "dp64 graphs=full",
        "a graph of the whole step needs experts that",
    ),
    (DENSE, "pp4 dp4 offload=activations:9", "a stage has fewer layers than are offloaded"),
    (DENSE, "pp4 dp4 offload=activations:2", "Megatron offloads activations without a pipeline"),
    (DENSE, "dp16 offload=activations:2 recompute=selective:mlp", "Megatron offloads activations without recompute"),
    (DENSE, "dp16 offload=activations:2 graphs=partial", "Megatron does not capture layers whose activations are offl"),
    (DENSE, "dp16 offload=activations:32", "Megatron offloads activations of some layers, not of all"),
    (DENSE | {"runtime": "deepspeed"}, "dp16 offload=activations:2", "deepspeed has no activation offload"),
    (DENSE, "dp16 shard6", "shard must divide dp"),
    (DENSE | {"runtime": "deepspeed"}, "dp16 shard8", "deepspeed has no sharding inside groups of replicas"),
    (DENSE, "dp16 recompute=selective:moe_act", "moe, moe_act and shared_experts are modules of models with such"),
    (DENSE, "dp16 attention=fp8", "megatron has no attention=fp8, only attention=bf16"),
    (
        DENSE | {"runtime": "megatron-bridge"},
        "dp16 attention=fp8",
        "attention in fp8 is of B200, B300, GB200 and GB300",
    ),
    (DENSE, "dp16 params=fp8", "fp8 weights need an fp8 or fp4 precision"),
    (DENSE, "dp16 zero1 reshard=never", "reshard=never is of zero 3"),
    (DENSE, "dp16 zero0 overlap=grad moments=bf16", "moments in bf16 need Adam and zero 1 or more"),
]


@pytest.mark.parametrize(("asked", "strategy", "sentence"), CASES)
def test_an_estimate_says_what_contradicts(asked: dict[str, Any], strategy: str, sentence: str) -> None:
    found = astra.estimate(**asked, strategy=strategy)
    assert not found.legal
    assert sum(said.startswith(sentence) for said in found.violations) == 1, found.violations


@pytest.mark.parametrize(
    ("asked", "where", "what"),
    [
        ({"precision": "nvfp4"}, "precision", "H100"),
        ({"precision": "mxfp8"}, "precision", "fp8-tensorwise"),
        ({"precision": "fp8-diagonal"}, "precision", "fp8"),
        ({"imbalance": 0.5}, "imbalance", "1"),
        ({"packed": 8193, "seq": 8192}, "packed", "8,192 tokens of a sequence"),
        ({"packed": -1}, "packed", "0"),
        ({"lora_targets": "mlp"}, "lora_targets", "attention"),
        ({"strategy": "dp16 dispatch=deepeep"}, "strategy", "deepep"),
        ({"strategy": "tp0"}, "strategy.tp", "1"),
        ({"strategy": "tp2 pp0"}, "strategy.pp", "1"),
        ({"model": "mixtral-8x7b", "strategy": "ep16"}, "strategy", "ep must divide the experts (ep=16, experts=8"),
        ({"strategy": "dp16 dispatch=deepep:bf16"}, "strategy", "fp8"),
        ({"strategy": "dp16 recompute=selective:norm"}, "strategy", "layernorm"),
        ({"strategy": "dp16 offload=activations:many"}, "strategy", "number of layers"),
        ({"strategy": "dp16 graphs=whole"}, "strategy", "partial"),
    ],
)
def test_bad_words_are_answered_with_what_is_known(asked: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        astra.estimate(**({**DENSE, "strategy": "dp16"} | asked))
    assert where in caught.value.where.replace("-", "_")
    assert what in f"{caught.value.want} {caught.value.fix}"


@pytest.mark.parametrize(
    ("more", "kind", "what"),
    [
        ({"runtime": "torchtitan", "fix": "graphs=full"}, InputError, "got 'full'.*graphs=none"),
        ({"fix": ["overlap=ep"]}, InputError, "a model with experts"),
        ({"fix": ["modules=moe_act"]}, InputError, "modules that llama-3-8b has"),
        ({"fix": ["dispatch=deepep"]}, InputError, "a model with experts"),
        ({"runtime": "deepspeed", "fix": "offload_layers=2"}, InputError, "deepspeed has no activation offload"),
        (
            {"model": "mixtral-8x7b", "fix": "graphs=full"},
            NoFeasiblePlan,
            "contradict a rule: a graph of the whole step",
        ),
        ({"runtime": "nanotron", "fix": "shard=8"}, NoFeasiblePlan, "."),
        ({"fix": "modules=nothing"}, InputError, "core_attn"),
        ({"local_steps": 8}, InputError, "several pools"),
        *(
            ({"model": "mixtral-8x7b", "gpus": gpus, "fix": "dispatch_fp8=on"}, InputError, "send tokens in fp8")
            for gpus in ("16xH100", ("16xH100", "8xA100"))
        ),
    ],
)
def test_a_plan_that_cannot_be_kept_to(more: dict[str, Any], kind: type[Exception], what: str) -> None:
    with pytest.raises(kind, match=what):
        astra.plan(**(DENSE | more))


@pytest.mark.parametrize(
    ("gpus", "dispatch", "has"),
    [("64xA100", "hybridep", "alltoall, dispatch=deepep"), ("64xGB200", "deepep", "alltoall, dispatch=hybridep")],
)
def test_a_dispatcher_that_does_not_run_there_is_said(gpus: str, dispatch: str, has: str) -> None:
    with pytest.raises(InputError, match=f"got '{dispatch}', wanted a dispatcher that runs on .*: dispatch={has}"):
        astra.plan(**MOE | {"gpus": gpus}, fix=[f"dispatch={dispatch}"])


def test_what_is_fixed_is_in_every_plan() -> None:
    asked = {"graphs": "full", "dispatch": "hybridep", "moments": "bf16", "shard": 8, "overlap_ep": "on"}
    fixed = [*(f"{name}={value}" for name, value in asked.items()), "zero=1"]
    found = astra.plan(**(MOE | {"gpus": "64xB200", "precision": "mxfp8"}), fix=fixed)
    for plan in found.plans:
        words = plan.strategy.split()
        assert {"graphs=full", "dispatch=hybridep", "moments=bf16", "shard8"} <= set(words), plan.strategy
        assert "ep" in next(word for word in words if word.startswith("overlap=")).split("=")[1].split(",")
        assert plan.estimate.legal
    modules = astra.plan(**MOE, fix=["modules=moe_act,core_attn", "recompute=selective"])
    assert all("recompute=selective:core_attn,moe_act" in plan.strategy for plan in modules.plans)


def test_rules_may_speak_of_the_words() -> None:
    """A rule on the dispatcher binds the search, not only what it found."""
    usual = astra.plan(**MOE, fix="ep=2,4,8")
    found = astra.plan(
        **MOE, fix="ep=2,4,8", rules=['refuse dispatch == "deepep" and ep > 4', "refuse recompute_moe_act"]
    )
    assert any(" ep8 " in plan.strategy for plan in usual.plans)
    assert len(found.plans) == 5
    for plan in found.plans:
        assert not {"ep8", "dispatch=deepep"} <= set(plan.strategy.split())
        assert "moe_act" not in plan.strategy
    assert {"ep8", "dispatch=alltoall"} <= set(found.best.strategy.split())  # which the rule leaves
    assert (
        sum(reject.strategies for reject in found.rejects if "rule" in reject.reason or "deepep" in reject.sentence) > 0
    )


@pytest.mark.parametrize(
    ("model", "fix", "sentence"),
    [
        ("mixtral-8x7b", "dispatch=deepep ep=1", "deepep and hybridep need expert parallelism"),
        ("mixtral-8x7b", "sp=on tp=1", "sequence parallelism needs tp above 1"),
        ("llama-3-8b", "params=fp8", "fp8 weights need an fp8 or fp4 precision"),
        ("llama-3-8b", "moments=bf16 zero=0", "moments in bf16 need Adam and zero 1 or more"),
    ],
)
def test_a_contradiction_is_named(model: str, fix: str, sentence: str) -> None:
    with pytest.raises(NoFeasiblePlan) as caught:
        astra.plan(model, gpus="64xH100", batch=256, seq=4096, fix=fix.split())
    assert sentence in str(caught.value)
    assert "Drop one of --fix" in str(caught.value)


def test_sets_are_told_as_they_were_typed() -> None:
    found = astra.plan(**DENSE, fix=["overlap=grad,param", "modules=mlp", "recompute=selective"], top=1)
    assert found.request["restrictions"] == ["recompute is selective", "overlap is grad,param", "modules is mlp"]


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"imbalance": 1.3}, "--imbalance changes nothing: llama-3-8b has no experts"),
        ({"lora_rank": 8}, "--lora-rank and --lora-targets change nothing: the task is pretrain, not lora"),
        (
            {"batch": 4_000_000},
            "--batch 4,000,000 is in samples, 16.38B tokens a step: tokens are written as --batch 4Mtok",
        ),
    ],
)
def test_what_changes_nothing_is_said(more: dict[str, Any], note: str) -> None:
    assert note in astra.plan(**(DENSE | more), top=1).notes
    assert note not in astra.plan(**DENSE, top=1).notes
