"""What a runtime can do: one table, read as reasons for one strategy and as rules over columns; the two agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import astra
from astra.catalog import runtimes
from astra.catalog.clusters import parse_gpus
from astra.catalog.hardware import devices
from astra.catalog.models import model, model_names
from astra.columns import from_strategy, to_strategy
from astra.errors import NoFeasiblePlan
from astra.rules.can import able_rules, may, rules_of, unable, usual_runtime, who_can
from astra.rules.names import facts_of
from astra.rules.table import RULES, check
from astra.spec.blocks import BLOCKS, blocks_of
from astra.spec.runtime import FRAMEWORKS, Can
from astra.spec.strategy import parse_strategy
from astra.spec.strategy_fields import CHOICES, MODULES, OVERLAPS, RUNTIME_WORDS, SCHEDULES, STRATEGY_FIELDS
from astra.spec.workload import Workload

DOCS = Path(__file__).parents[2] / "docs" / "runtimes.md"
NAMES = runtimes.runtime_names()
WORK = Workload(global_batch=256, seq=4096)
POOL = parse_gpus("64xH100")
WORDS = tuple(name for name in RUNTIME_WORDS if name in CHOICES)
DEGREE = st.sampled_from([1, 1, 2, 4])
STRATEGY = st.fixed_dictionaries(
    {
        **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs"), DEGREE),
        "zero": st.integers(0, 3),
        "sp": st.booleans(),
        "flash": st.booleans(),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "method": st.sampled_from(["uniform", "block"]),
        "recompute_layers": st.sampled_from([1, 2]),
        "offload": st.sampled_from(["none", "optimizer"]),
        "schedule": st.sampled_from(SCHEDULES),
        "overlap": st.sets(st.sampled_from(OVERLAPS)).map(tuple),
        "modules": st.sets(st.sampled_from(MODULES)).map(tuple),
        "offload_layers": st.sampled_from([0, 0, 2]),
        "shard": st.sampled_from([0, 0, 2]),
        "dispatch_fp8": st.booleans(),
        **{f"{name}": st.sampled_from(CHOICES[name]) for name in WORDS},
    }
)


@settings(max_examples=150, deadline=None)
@given(STRATEGY, st.sampled_from(NAMES), st.sampled_from(["llama-2-7b", "mixtral-8x7b", "qwen2.5-1.5b"]))
def test_reasons_and_rules_agree(fields: dict[str, Any], name: str, of: str) -> None:
    """A strategy has a reason against it exactly where the columns are refused, and a rule for each reason."""
    runtime, shape, strategy = runtimes.runtime(name), model(of), parse_strategy("dp1")
    strategy = replace(strategy, **fields)
    reasons = [one for one in may(runtime, strategy, shape, WORK, POOL) if one.field == "strategy"]
    facts = facts_of(shape, POOL, WORK, runtime=runtime.framework)
    verdict = check(from_strategy(strategy), facts, able_rules(runtime))
    assert bool(verdict.ok[0]) == (reasons == [])
    assert verdict.remaining == ()
    sentences = {rule.sentence for rule in able_rules(runtime)}
    assert all(any(one.sentence.startswith(known) for known in sentences) for one in reasons)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_not_listed_is_refused(name: str) -> None:
    """Each list by itself, without the rules: change one word of a strategy and look it up."""
    runtime = runtimes.runtime(name)
    can = runtime.can
    overlap = tuple(can.always)
    plain = replace(parse_strategy("dp2"), zero=can.zero[-1], overlap=overlap, grads=can.grads[0])
    said = {one.sentence for one in may(runtime, plain, model("llama-2-7b"), WORK) if one.field == "strategy"}
    assert not said
    cases: list[tuple[bool, dict[str, Any]]] = [
        *((axis in can.degrees, {axis: 2}) for axis in ("tp", "pp", "cp", "ep", "etp")),
        *((stage in can.zero, {"zero": stage}) for stage in range(4)),
        *((kind in can.recompute, {"recompute": kind}) for kind in ("none", "selective", "full")),
        *((way in can.methods, {"recompute": "full", "method": way, "recompute_layers": 2}) for way in can.methods),
        ("optimizer" in can.offload, {"offload": "optimizer", "zero": 1}),
        ("activations" in can.offload, {"offload_layers": 1}),
        ("ep" in can.overlap, {"overlap": (*overlap, "ep"), "ep": 2}),
        *((word in can.modules, {"recompute": "selective", "modules": (word,)}) for word in MODULES),
        *((word in getattr(can, name), {f"{name}": word}) for name in WORDS for word in CHOICES[name]),
        (can.dispatch_fp8, {"ep": 2, "dispatch": "deepep", "dispatch_fp8": True}),
        (can.shard, {"shard": 2}),
        (can.unfused, {"flash": False}),
        ("tp" in can.overlap, {"overlap": (*overlap, "tp"), "tp": 2, "sp": True}),
        *((word in can.schedules, {"schedule": word, "pp": 2}) for word in ("1f1b", "gpipe", "zb")),
    ]
    for listed, fields in cases:
        changed = replace(plain, **fields)
        reasons = [one.sentence for one in may(runtime, changed, model("llama-2-7b"), WORK) if one.field == "strategy"]
        if not listed:
            assert reasons, fields


def test_every_field_of_a_strategy_is_on_a_list() -> None:
    """A new word of strategies is refused by every runtime until its file lists it: none passes unnoticed."""
    nothing = Can(blocks=(), degrees=(), schedules=("1f1b",), zero=(0,), zero_pipelined=(0,), recompute=("selective",),
                  modules=(), offload=("none",), overlap=(), precision=(), tasks=(), uneven=False)  # fmt: skip
    bare = replace(runtimes.runtime("megatron"), can=nothing)
    spoken = {word for rule in able_rules(bare) if rule.name.startswith("can_") for word in rule.needs}
    full = replace(bare, can=replace(nothing, recompute=("none", "full")))  # its way is looked at where there is any
    spoken |= {word for rule in able_rules(full) if rule.name == "can_method" for word in rule.needs}
    assert {field.name for field in STRATEGY_FIELDS} - spoken == {"mbs"}  # any number of samples may be one


@pytest.mark.parametrize("name", ["megatron", "megatron-bridge", "deepspeed", "fsdp-eager"])
def test_a_trait_that_is_not_listed_is_refused(name: str) -> None:
    """Nothing passes because nobody thought of it: a model is trained by words that are listed, all of them."""
    runtime = runtimes.runtime(name)
    for of in model_names():
        shape = model(of)
        work = replace(WORK, seq=min(512, shape.max_seq, shape.learned_positions or 512))
        words = blocks_of(shape)
        assert (unable(runtime, shape, work) == []) == (set(words) <= set(runtime.can.blocks)), of
        assert len(words) >= 3, of  # attention, feed-forward and norm at least
        for word in sorted(set(words) & set(runtime.can.blocks))[:: 1 if of in ("deepseek-v3", "gemma-3-27b") else 9]:
            fewer = replace(runtime.can, blocks=tuple(block for block in runtime.can.blocks if block != word))
            assert unable(replace(runtime, can=fewer), shape, work), (of, word)


def test_every_model_is_trained_by_somebody() -> None:
    for name in model_names():
        shape = model(name)
        assert who_can(shape, Workload(global_batch=64, seq=min(512, shape.max_seq))), name


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("gemma-3-27b", {"megatron", "torchtitan", "pytorch"}),
        ("deepseek-v2-lite", {"megatron", "pytorch"}),
        ("llama-4-scout", {"megatron", "megatron-bridge", "torchtitan", "pytorch"}),
        ("t5-11b", {"megatron", "megatron-bridge", "nemo", "torchtitan", "pytorch"}),
        ("llama-3.1-8b", set()),
        ("llama-3.2-3b", {"megatron", "torchtitan"}),
    ],
)
def test_who_can_train_what(name: str, lacks: set[str]) -> None:
    shown = {"megatron", "megatron-bridge", "nemo", "torchtitan", "pytorch", "deepspeed", "fsdp-eager"}
    assert shown - set(who_can(model(name), replace(WORK, seq=512))) == lacks


def test_tasks_and_precisions_are_listed() -> None:
    shape = model("llama-3.1-8b")
    assert who_can(shape, replace(WORK, task="lora")) == ["deepspeed", "fsdp-eager", "megatron-bridge", "nemo"]
    assert who_can(shape, replace(WORK, precision="tf32")) == ["pytorch"]
    assert "torchtitan" not in who_can(shape, replace(WORK, precision="fp8"))


def test_plan_says_at_once_who_cannot_why_and_who_can() -> None:
    with pytest.raises(NoFeasiblePlan) as caught:
        astra.plan("gemma-3-27b", gpus="16xH100", runtime="megatron")
    said = str(caught.value)
    assert said.startswith("--runtime megatron cannot train gemma-3-27b so: ")
    assert "megatron has no layers with more or fewer than two norms" in said
    assert "Runtimes that can: deepspeed, fsdp-eager, megatron-bridge, nemo." in said
    with pytest.raises(NoFeasiblePlan, match="--runtime megatron cannot train gemma-3-27b so"):
        astra.rent("gemma-3-27b", tokens="1B", gpus="H100", max_gpus=16, runtime="megatron")
    with pytest.raises(NoFeasiblePlan, match="joins several pools"):
        astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], runtime="deepspeed")


def test_an_estimate_is_costed_all_the_same() -> None:
    found = astra.estimate("gemma-3-27b", gpus="16xH100", strategy="tp8 dp2 sp", runtime="megatron", batch=64)
    assert not found.legal
    assert found.step_s > 0
    assert any("two norms" in reason for reason in found.violations)
    found = astra.estimate(
        "llama-2-7b", gpus="16xH100", strategy="dp16 zero2 overlap=grad,param", runtime="deepspeed", batch=64
    )
    assert found.violations == [
        "deepspeed prefetches weights exactly where they are sharded (zero 3) (zero=2, overlap_param=on)"
    ]


def test_deepspeed_hides_the_gather_of_weights_under_zero_3_alone() -> None:
    found = astra.plan("llama-2-7b", gpus="16xH100", batch=128, runtime="deepspeed", fix=["zero=1"])
    assert all("param" not in parse_strategy(plan.strategy).overlap for plan in found.plans)
    found = astra.plan("llama-2-7b", gpus="16xH100", batch=128, runtime="deepspeed", fix=["zero=3"])
    assert all("param" in parse_strategy(plan.strategy).overlap for plan in found.plans)


def test_equal_stages_where_they_must_be() -> None:
    runtime = runtimes.runtime("megatron-apex")
    shape = model("llama-2-7b")
    uneven = parse_strategy("pp2 dp2 zero1 layers=15,17")
    assert [one.sentence for one in may(runtime, uneven, shape, WORK)] == [
        "megatron-apex gives every stage as many layers"
    ]
    assert may(runtime, parse_strategy("pp2 dp2 zero1"), shape, WORK) == []
    found = astra.plan("llama-2-7b", gpus="24xA100-80", batch=96, runtime="megatron-apex", minimum=["pp=2"])
    assert all(not parse_strategy(plan.strategy).layers for plan in found.plans)
    assert all(32 % parse_strategy(plan.strategy).pp == 0 for plan in found.plans)


def test_rules_name_known_frameworks() -> None:
    named = {framework for rule in RULES for framework in rule.frameworks}
    assert named <= set(FRAMEWORKS)
    assert {runtimes.runtime(name).framework for name in runtimes.runtime_names()} == set(FRAMEWORKS)
    for name in NAMES:
        rules = [rule.name for rule in rules_of(runtimes.runtime(name))]
        assert len(set(rules)) == len(rules)


def test_the_generation_of_a_gpu_is_a_field_of_its_file() -> None:
    for device in devices():
        assert device.generation, device.name
        assert bool(device.fp8_recipe) == ("fp8" in device.flops_per_s), device.name
    renamed = replace(parse_gpus("8xB200").device, arch="something new")
    assert (renamed.generation, renamed.fp8_recipe) == ("blackwell", "mxfp8")


def test_the_documentation_has_every_block() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert len({block.word for block in BLOCKS}) == len(BLOCKS)
    assert all(f"| `{block.word}` | {block.meaning} |" in text for block in BLOCKS)


def test_a_table_of_many_rows_reads_as_its_rows() -> None:
    """The column form over a table against the reasons of each row."""
    runtime, shape = runtimes.runtime("torchtitan"), model("mixtral-8x7b")
    draw = np.random.default_rng(3)
    rows = [
        from_strategy(replace(parse_strategy("dp1"), tp=int(2 ** draw.integers(0, 3)), ep=int(2 ** draw.integers(0, 4)),
                              zero=int(draw.integers(0, 4)), overlap=("grad", "param")[: int(draw.integers(1, 3))]))
        for _ in range(60)
    ]  # fmt: skip
    table = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    ok = check(table, facts_of(shape, POOL, WORK, runtime=runtime.framework), able_rules(runtime)).ok
    each = [[one for one in may(runtime, to_strategy(table, place), shape, WORK, POOL) if one.field == "strategy"]
            for place in range(60)]  # fmt: skip
    assert ok.tolist() == [not reasons for reasons in each]
    assert 0 < ok.sum() < 60


def test_without_a_name_the_first_runtime_that_can_is_taken_and_it_is_said() -> None:
    plain = astra.plan("llama-2-7b", gpus="8xH100", batch=64)
    assert plain.request["runtime"] == "megatron"
    assert "runtime_because" not in plain.request
    other = astra.plan("gemma-2-9b", gpus="8xH100", batch=64)
    assert other.request["runtime"] == "megatron-bridge"
    assert "megatron has no" in other.request["runtime_because"]
    assert other.request["runtime_because"].split()[0] in str(other).split("\n\n")[0]
    named = astra.estimate("gemma-2-9b", gpus="8xH100", batch=64, strategy=other.best.strategy)
    assert named.step_s == pytest.approx(other.best.estimate.step_s, rel=1e-12)
    with pytest.raises(NoFeasiblePlan, match="--runtime megatron cannot train gemma-2-9b"):
        astra.plan("gemma-2-9b", gpus="8xH100", batch=64, runtime="megatron")


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp8-rowwise"])
@pytest.mark.parametrize("task", ["pretrain", "lora"])
def test_no_name_is_asked_for_where_any_runtime_can(precision: Any, task: Any) -> None:
    """Nobody has to know which framework computes in TF32: one that can is taken if there is one."""
    work = replace(WORK, precision=precision, task=task)
    for name in model_names():
        shape = model(name)
        taken, _ = usual_runtime(shape, work)
        assert bool(who_can(shape, work)) == (not unable(taken, shape, work)), name


def test_zero_of_a_pipeline_is_what_its_runtime_lists() -> None:
    """Megatron-FSDP knows no pipeline (tests/frameworks runs it); torchtitan's fully_shard does, in one word each."""
    shape, megatron, titan = model("llama-3.1-8b"), runtimes.runtime("megatron"), runtimes.runtime("torchtitan")
    for stage in (2, 3):
        assert may(megatron, parse_strategy(f"dp8 zero{stage}"), shape, WORK) == []
        (reason,) = may(megatron, parse_strategy(f"pp2 dp4 zero{stage}"), shape, WORK)
        assert "zero 2 or 3 without a pipeline alone" in reason.sentence
    for words in ("pp2 dp4 zero3", "pp2 dp4 zero3 reshard=never"):
        assert may(titan, parse_strategy(f"{words} overlap=grad,param"), shape, WORK) == []
    assert may(titan, parse_strategy("dp8 zero2 overlap=grad,param"), shape, WORK) != []


@pytest.mark.parametrize("zero", [2, 3])
def test_no_plan_of_megatron_shards_more_in_a_pipeline(zero: int) -> None:
    with pytest.raises(NoFeasiblePlan) as refused:
        astra.plan("llama-2-7b", gpus="8xH100", batch=64, fix=[f"zero={zero}", "pp=2"], runtime="megatron")
    assert "without a pipeline alone" in str(refused.value)
