"""Requests at the edge of what can be asked: an answer that makes sense, or an error that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import astra
from astra.answer import PlanSet
from astra.catalog import runtimes
from astra.cli import main
from astra.errors import InputError, NoFeasiblePlan
from astra.search import ranked
from astra.spec.strategy import parse_strategy
from tests.oracle.requests import model


def plan(name: Any, gpus: str, **more: Any) -> PlanSet:
    return astra.plan(name, gpus=gpus, **{"batch": 16, "seq": 1024, **more})


def check(answer: PlanSet, gpus: int) -> None:
    assert answer.plans
    for some in answer.plans:
        assert some.estimate.legal, some.estimate.violations
        assert some.estimate.fits
        assert parse_strategy(some.strategy).gpus == gpus
        assert 0 < some.estimate.mfu < 1


def test_one_gpu() -> None:
    answer = plan("gpt2", "1xH100")
    check(answer, 1)
    assert len(answer.plans) == 1
    assert parse_strategy(answer.best.strategy).mbs >= 1


@pytest.mark.parametrize("gpus", [2, 3, 5, 7])
def test_prime_numbers_of_gpus_below_one_node(gpus: int) -> None:
    check(plan("gpt2", f"{gpus}xH100", batch=2 * gpus), gpus)
    odd = plan("gpt2", f"{gpus}xH100", batch=8)
    check(odd, gpus)
    if gpus > 2:  # 8 samples cannot be dealt to 3, 5 or 7 replicas
        assert {parse_strategy(some.strategy).dp for some in odd.plans} == {1}


def test_a_batch_smaller_than_the_replicas() -> None:
    answer = plan("llama-2-7b", "16xH100", batch=1)
    check(answer, 16)
    assert all(parse_strategy(some.strategy).dp == 1 for some in answer.plans)


@pytest.mark.parametrize("seq", [1, 7, 1001])
def test_a_sequence_that_nothing_divides(seq: int) -> None:
    answer = plan("llama-2-7b", "8xH100", seq=seq)
    check(answer, 8)
    for some in answer.plans:
        strategy = parse_strategy(some.strategy)
        assert strategy.cp == 1
        assert not strategy.sp or seq % strategy.tp == 0


def test_a_model_with_one_layer() -> None:
    answer = plan(model("dense", layers=1, hidden=1024, heads=8, kv_heads=8, head_dim=128), "8xH100")
    check(answer, 8)
    assert all(parse_strategy(some.strategy).pp == 1 for some in answer.plans)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("vit-l-16", {"seq": None, "batch": 512, "runtime": "fsdp-eager"}),
        ("vit-h-14", {"seq": None, "batch": 512, "runtime": "deepspeed"}),
        ("t5-11b", {"seq": 512, "batch": 128, "runtime": "deepspeed"}),
    ],
)
def test_models_that_are_not_decoders(name: str, request_: dict[str, Any]) -> None:
    check(plan(name, "16xA100", **request_), 16)


def test_lora_needs_less_memory_and_time() -> None:
    strategy = "tp8 dp1 mbs1 sp zero1"
    full, lora = (
        astra.estimate("llama-2-70b", gpus="8xH100", batch=16, seq=4096, strategy=strategy, task=task)
        for task in ("finetune", "lora")
    )
    assert lora.step_s < full.step_s
    assert lora.peak_allocated_gib < full.peak_allocated_gib / 3
    check(plan("llama-2-70b", "8xH100", task="lora", runtime="megatron-bridge"), 8)


def test_fp8_where_the_gpu_has_it() -> None:
    low, half = (plan("llama-3-8b", "8xH100", batch=64, seq=4096, precision=some) for some in ("fp8", "bf16"))
    check(low, 8)
    assert low.best.estimate.step_s < half.best.estimate.step_s
    with pytest.raises(InputError, match="A100-SXM4-80GB has: bf16"):
        plan("llama-3-8b", "8xA100", precision="fp8")


def test_fp16_on_v100() -> None:
    check(plan("gpt2", "8xV100-SXM2-32GB", precision="fp16"), 8)
    with pytest.raises(InputError, match="fp16"):
        plan("gpt2", "8xV100-SXM2-32GB")


def test_a_hundred_thousand_gpus() -> None:
    answer = plan("llama-3.1-405b", "100000xH100", batch=20_000, seq=8192)
    check(answer, 100_000)
    assert answer.search.considered > 10**8


def test_a_rack_is_one_domain() -> None:
    check(plan("llama-3.1-405b", "576xGB200", batch=1152, seq=8192), 576)
    asked: dict[str, Any] = {"batch": 576, "seq": 4096, "strategy": "ep16 dp144 zero1 dispatch=alltoall"}
    rack, servers = (
        astra.estimate("qwen3-30b-a3b", gpus=gpus, **asked).stages[0].communication_s["ep"]
        for gpus in ("144xGB200", "144xH100")
    )
    assert rack < servers / 4  # experts on 16 GPUs exchange tokens inside the rack, and across servers of 8


def test_a_huge_vocabulary() -> None:
    large = plan(model("tied", vocab=4_000_000, hidden=2048, heads=16, kv_heads=16, head_dim=128), "8xH100")
    check(large, 8)
    stages = large.best.estimate.stages
    assert stages[-1].memory["buffers"] == max(stage.memory["buffers"] for stage in stages)


ONE = ("tp=2", "pp=2", "dp=2", "cp=1", "mbs=1", "vp=1", "sp=on", "zero=1", "offload=none", "recompute=none")


def test_a_single_strategy() -> None:
    answer = plan("llama-2-7b", "8xH100", fix=[*ONE, "flash=on", "overlap=grad,param", "graphs=none"])
    assert [some.strategy for some in answer.plans] == [
        "tp2 pp2 dp2 mbs1 sp zero1 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32"
    ]
    assert answer.search.considered <= 4


@pytest.mark.parametrize("runtime", runtimes.runtime_names())
def test_every_runtime_gets_plans_it_can_run(runtime: str) -> None:
    can = runtimes.runtime(runtime).can
    staged = ["pp=2"] if "pp" in can.degrees else []
    answer = plan(
        "llama-3.1-8b" if can.recipes else "llama-2-7b", "16xH100", batch=128, runtime=runtime, minimum=staged
    )
    check(answer, 16)
    # Grids of replicas alone are few.
    assert len(answer.plans) >= (5 if "tp" in can.degrees else 1)
    for strategy in (parse_strategy(some.strategy) for some in answer.plans):
        assert strategy.schedule in can.schedules
        assert strategy.zero in can.zero
        assert strategy.recompute in can.recompute
        assert set(strategy.overlap) <= set(can.overlap)
        assert all(getattr(strategy, axis) == 1 for axis in ("tp", "pp", "vp", "cp") if axis not in can.degrees)


NOTHING_LEFT = [
    {"fix": ["tp=8", "pp=8"]},
    {"fix": ["tp=3"]},
    {"fix": ["mbs=3"]},
    {"fix": ["dp=7"]},
    {"fix": ["ep=2"]},
    {"fix": ["zero=0", "offload=optimizer"]},
    {"fix": ["recompute=full", "recompute_layers=500"]},
    {"fix": ["sp=on", "tp=1"]},
    {"fix": ["vp=2", "pp=1"]},
    {"optimizer": "sgd", "fix": ["offload=optimizer"]},
    {"minimum": ["cp=16"]},
]


@pytest.mark.parametrize("limits", NOTHING_LEFT, ids=str)
def test_restrictions_that_leave_nothing(limits: dict[str, Any]) -> None:
    with pytest.raises(NoFeasiblePlan, match=r"--fix, --forbid, --max") as caught:
        plan("llama-2-7b", "8xH100", **limits)
    assert "0 strategies" not in str(caught.value)
    assert ": )" not in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"fix": ["vp=7"]}, "vp is 7, and here vp can be 1, 2, 3, 4, 6, 8, 16."),  # 32 layers in 2, 4 or 8 stages
        ({"fix": ["vp=7", "pp=4"]}, "vp is 7, and here vp can be 1, 2, 3, 4, 8."),
        ({"minimum": ["mbs=3"], "maximum": ["mbs=3"]}, "here mbs can be 1, 2, 4, 8, 16."),
        ({"fix": ["ep=2"]}, "here ep can be 1."),
        ({"fix": ["zero=2"], "runtime": "nanotron"}, "here zero can be 0, 1."),
    ],
)
def test_a_value_that_is_not_on_offer_is_named(limits: dict[str, Any], says: str) -> None:
    with pytest.raises(NoFeasiblePlan) as caught:
        plan("llama-2-7b", "8xH100", **limits)
    assert says in str(caught.value)


@pytest.mark.parametrize("objective", ["cheapest", "pareto"])
def test_a_recompute_that_the_runtime_has_not_leaves_nothing_for_money_either(objective: str) -> None:
    money: dict[str, Any] = {"objective": objective, "tokens": 1e9, "money": astra.Money(usd_per_gpu_h=2.0)}
    with pytest.raises(NoFeasiblePlan, match="no strategy fits"):
        astra.plan("llama-3.1-8b", gpus="8xH100", batch=8, seq=512, runtime="torchtitan", fix=["recompute=selective"],
                   **money)  # fmt: skip


def test_strategies_that_fit_only_by_the_closed_form_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from msgspec.structs import replace

    from astra.search.detail import estimate as real

    monkeypatch.setattr(
        ranked, "estimate", lambda *given, **more: [replace(one, fits=False) for one in real(*given, **more)]
    )
    with pytest.raises(NoFeasiblePlan, match=r"needs [\d.]+ GiB .* larger --headroom"):
        plan("llama-2-7b", "8xH100")


def test_a_rule_that_refuses_everything(tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("never: tp >= 1  # nothing is good enough\n", encoding="utf-8")
    with pytest.raises(NoFeasiblePlan, match="never"):
        plan("llama-2-7b", "8xH100", rules=rules)


def test_a_model_that_fits_nowhere_says_what_it_would_need(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoFeasiblePlan, match=r"smallest legal strategy needs [\d.]+ GiB .* Try more GPUs"):
        plan("llama-3.1-405b", "1xL4")
    assert main(["plan", "llama-3.1-405b", "--gpus", "1xL4", "--batch", "8", "--seq", "1024"]) == 3
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert "Try more GPUs" in shown.err.replace("\n", " ")


def test_restrictions_speak_of_what_the_search_returns() -> None:
    answer = plan(
        "mixtral-8x7b", "64xH100", batch=64, seq=2048, fix=["tp=2", "ep=4,8"], maximum=["pp=2"], forbid=["cp"]
    )
    for some in answer.plans:
        strategy = parse_strategy(some.strategy)
        assert (strategy.tp, strategy.cp) == (2, 1)
        assert strategy.ep in (4, 8)
        assert strategy.pp <= 2


def test_stages_and_the_optimizer_have_a_provenance() -> None:
    """A network nobody measured shows wherever it carries something."""

    def known(strategy: str) -> dict[str, str]:
        return astra.estimate("llama-2-7b", gpus="8xH100", batch=16, seq=4096, strategy=strategy).provenance

    assert "pp" not in known("tp8 dp1 mbs1")
    assert known("tp4 pp2 dp1 mbs1").keys() >= {"pp", "optimizer"}
    assert known("tp8 dp1 mbs1")["optimizer"] != "assumed"
    assert known("tp8 dp1 mbs1 offload=optimizer")["optimizer"] == "assumed"


def test_training_in_fp32_is_slower_and_larger() -> None:
    half, wide = (
        astra.estimate("llama-2-7b", gpus="8xH100", batch=16, seq=4096, strategy="tp4 dp2 mbs1", precision=precision)
        for precision in ("bf16", "tf32")
    )
    assert wide.step_s > 1.5 * half.step_s
    assert wide.peak_allocated_gib > half.peak_allocated_gib


def test_a_switch_that_the_runtime_does_not_have() -> None:
    with pytest.raises(NoFeasiblePlan, match="flash is off, and here flash can be on"):
        plan("llama-3-8b", "8xH100", runtime="deepspeed", fix=["flash=off"])


def test_what_does_not_fit_in_the_usual_runtime_names_one_that_it_fits_in() -> None:
    """Of models that the first choice cannot train: one runtime pads few experts to its shards, the other does not."""
    with pytest.raises(NoFeasiblePlan, match=r"another runtime that can train it: --runtime (\S+)\.$") as refused:
        plan("grok-1", "512xH100", batch=1024, seq=4096)
    other = str(refused.value).rpartition(" ")[2].rstrip(".")
    assert plan("grok-1", "512xH100", batch=1024, seq=4096, runtime=other).plans
