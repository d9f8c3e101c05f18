"""Words as engineers type them: understood, or answered with the nearest in one sentence."""

from __future__ import annotations

import pytest

import astra
from astra.catalog.hardware import device
from astra.catalog.models import model
from astra.catalog.runtimes import runtime, runtime_names
from astra.errors import InputError, nearest_names
from astra.rules.restrictions import parse_restrictions
from astra.spec.request import FIELDS
from astra.spec.strategy import parse_strategy
from astra.spec.synonyms import _BY_WORD, _NEAR, _SAME


@pytest.mark.parametrize(
    ("field", "typed", "meant"),
    [
        ("optimizer", "adamw", "adam"),
        ("optimizer", "AdamW", "adam"),
        ("optimizer", "adamw_torch_fused", "adam"),
        ("task", "sft", "finetune"),
        ("task", "fine-tune", "finetune"),
        ("task", "pre-training", "pretrain"),
        ("precision", "bfloat16", "bf16"),
        ("precision", "BF16", "bf16"),
        ("counts", "at_most", "at-most"),
        ("lora_targets", "q_proj,k_proj,v_proj", "qkv"),
        ("lora_targets", "all-linear", "all"),
    ],
)
def test_words_that_mean_the_same_are_understood(field: str, typed: str, meant: str) -> None:
    assert FIELDS[field].read(typed, field) == meant


@pytest.mark.parametrize(
    ("field", "typed", "nearest"),
    [
        ("precision", "fp32", "tf32"),
        ("optimizer", "muon", "adam"),
        ("task", "qlora", "lora"),
        ("task", "GRPO", "finetune"),
        ("lora_targets", "q_proj,v_proj", "qkv"),
    ],
)
def test_words_that_mean_nearly_the_same_are_answered_in_a_sentence(field: str, typed: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        FIELDS[field].read(typed, f"--{field}")
    assert f"The nearest is {nearest}, wh" in str(caught.value)
    assert caught.value.got == typed


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("fsdp", "zero=3"),
        ("zero3", "zero=3"),
        ("tp8", "tp=8"),
        ("tensor_parallel=8", "tp"),
        ("microbatch-size=2", "mbs"),
    ],
)
def test_fields_have_the_names_of_frameworks(typed: str, said: str) -> None:
    with pytest.raises(InputError, match=f"Did you mean --fix {said}\\?"):
        parse_restrictions(fix=[typed])


@pytest.mark.parametrize("text", ["TP=8, PP=4, DP=2", "tp8,pp4,dp2", "tp8 pp4 dp2"])
def test_words_of_a_strategy_may_have_commas_between_them(text: str) -> None:
    assert parse_strategy(text) == parse_strategy("tp8 pp4 dp2 mbs1")


def test_a_word_of_another_framework_is_answered_with_ours() -> None:
    with pytest.raises(InputError, match="Did you mean zero3"):
        parse_strategy("tp8 fsdp")


def test_no_word_means_two_things() -> None:
    words = {word for name in ("optimizer", "task", "precision", "lora_targets") for word in FIELDS[name].kind.words}
    assert set(_SAME) <= words
    assert {nearest for nearest, _ in _NEAR.values()} <= words
    assert not set(_BY_WORD) & (set(_NEAR) | words)
    assert len(_BY_WORD) == sum(map(len, _SAME.values()))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("fsdp", "fsdp-eager"),
        ("FSDP2", "torchtitan"),
        ("megatron-lm", "megatron"),
        ("mcore", "megatron"),
        ("NeMo2", "nemo"),
    ],
)
def test_frameworks_have_the_names_people_use(typed: str, meant: str) -> None:
    assert runtime(typed).name == meant
    assert astra.plan("llama-3-8b", gpus="8xH100", batch=64, runtime=typed, top=1).request["runtime"] == meant


def test_a_runtime_does_not_take_the_names_of_the_one_it_is_like() -> None:
    names = [alias for name in runtime_names() for alias in (name, *runtime(name).aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("a100-80g", "A100-SXM4-80GB"),
        ("A100-40G", "A100-SXM4-40GB"),
        ("v100-32g", "V100-SXM2-32GB"),
    ],
)
def test_gpus_with_their_memory_as_people_write_it(typed: str, meant: str) -> None:
    assert device(typed).name == meant


@pytest.mark.parametrize("gpus", ["8xH100", "8 H100", "8 x h100", "8*H100"])
def test_a_number_and_a_type(gpus: str) -> None:
    assert astra.plan("llama-3-8b", gpus=gpus, batch=64, top=1).request["gpus"] == 8


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("google-bert/bert-large-uncased", "bert-large"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3"),
    ],
)
def test_hugging_face_ids_are_names(typed: str, meant: str) -> None:
    assert model(typed).name == meant


def test_the_nearest_begin_alike() -> None:
    known = ["llama-3.2-1b", "llama-3.1-405b", "llama-3.1-8b", "llama-3.1-70b"]
    assert nearest_names("llama3.1", known) == ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]
