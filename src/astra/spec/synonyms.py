"""Words that engineers type for the words of a request: those that mean the same, and those that mean nearly so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from astra.errors import fold

# Folded words that mean exactly a word of a request.
_SAME: Final = {
    "adam": ("adamw", "adamwtorch", "adamwfused", "adamwtorchfused", "fusedadam", "distributedadam"),
    "finetune": ("sft", "finetuning", "fullfinetune", "fullfinetuning", "supervisedfinetuning"),
    "pretrain": ("pretraining", "cpt", "continuedpretraining", "continualpretraining"),
    "lora": ("peft",),
    "bf16": ("bfloat16", "bf16mixed", "torchbfloat16"),
    "fp16": ("float16", "half", "fp16mixed", "torchfloat16"),
    "fp8": ("float8", "fp8mixed", "fp8hybrid"),
    "qkv": ("qprojkprojvproj", "linearqkv"),
    "attention": ("attn", "qprojkprojvprojoproj", "linearqkvlinearproj"),
    "all": ("alllinear", "qprojkprojvprojoprojgateprojupprojdownproj", "linearqkvlinearprojlinearfc1linearfc2"),
}
# Folded words that mean something else, with the nearest word of a request and how it differs.
_NEAR: Final = {
    "fp32": ("tf32", "which trains fp32 tensors with products in TF32"),
    "float32": ("tf32", "which trains fp32 tensors with products in TF32"),
    "muon": ("adam", "which keeps one more moment of each weight"),
    "lion": ("adam", "which keeps one more moment of each weight"),
    "adafactor": ("adam", "which keeps both moments whole"),
    "adamw8bit": ("adam", "whose moments are not quantised"),
    "adam8bit": ("adam", "whose moments are not quantised"),
    "qlora": ("lora", "whose frozen weights are in the precision of the run, not in 4 bits"),
    "qprojvproj": ("qkv", "which adapts the keys too"),
    "mlp": ("all", "which adapts attention too"),
    "dora": ("lora", "which has no magnitudes"),
    "dpo": ("finetune", "which has no reference model"),
    "grpo": ("finetune", "which is the updates alone, without what is sampled"),
    "ppo": ("finetune", "which is the updates alone, without what is sampled"),
    "rlhf": ("finetune", "which is the updates alone, without what is sampled"),
}
# How folded names of a strategy's fields begin elsewhere, with the field and a value that they mean.
_FIELDS: Final = {
    "fsdp": ("zero", "3"), "fullyshard": ("zero", "3"), "ddp": ("zero", "0"), "hsdp": ("shard", ""),
    "tensor": ("tp", ""), "pipeline": ("pp", ""), "virtual": ("vp", ""), "context": ("cp", ""), "expert": ("ep", ""),
    "data": ("dp", ""), "microbatch": ("mbs", ""), "sequence": ("sp", ""), "checkpointing": ("recompute", ""),
}  # fmt: skip
_BY_WORD: Final = {word: meant for meant, words in _SAME.items() for word in words}


def meant_by(word: str, known: Iterable[str]) -> str | None:
    """The one of some words that a word means; None if it means none of them."""
    chosen = {fold(each): each for each in known}
    return chosen.get(fold(word)) or chosen.get(fold(_BY_WORD.get(fold(word), "")))


def near_to(word: str, known: Iterable[str]) -> str:
    """What of some words is nearest to one that means something else, in a sentence; empty if nothing is."""
    nearest, how = _NEAR.get(fold(word), ("", ""))
    return f"The nearest is {nearest}, {how}." if nearest in set(known) else ""


def field_meant(word: str) -> tuple[str, str] | None:
    """The field of a strategy that a word means, and its value if it says one: ``zero3`` and ``fsdp`` are zero, 3."""
    folded = fold(word)
    found = next((meant for begin, meant in _FIELDS.items() if folded.startswith(begin)), None)
    split = re.fullmatch(r"([a-z]+)(\d+)", folded)
    return found or (split and (split.group(1), split.group(2)))
