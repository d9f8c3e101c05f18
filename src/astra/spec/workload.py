"""What is to be trained: batch, sequence, tokens, precision, optimizer and task."""

from __future__ import annotations

from typing import Final, Literal

from astra.spec._base import Spec, check, check_positive

PRECISIONS: Final = ("bf16", "fp16", "fp8", "tf32")
OPTIMIZERS: Final = ("adam", "sgd")
TASKS: Final = ("pretrain", "finetune", "lora")
NEAR_BATCH: Final = 0.01  # how far a batch in tokens may be moved to a number of samples that deals well


class Workload(Spec, frozen=True, kw_only=True):
    """One training job's work."""

    global_batch: int  # samples per optimizer step
    seq: int  # tokens per sample
    tokens: float | None = None  # tokens to train in all
    precision: Literal["bf16", "fp16", "fp8", "tf32"] = "bf16"  # tf32: fp32 tensors, products in TF32
    optimizer: Literal["adam", "sgd"] = "adam"
    task: Literal["pretrain", "finetune", "lora"] = "pretrain"
    lora_rank: int = 16

    def __post_init__(self) -> None:
        for name, choices in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS), ("task", TASKS)):
            check(getattr(self, name) in choices, name, getattr(self, name), f"one of {', '.join(choices)}")
        check_positive("workload", global_batch=self.global_batch, seq=self.seq, tokens=self.tokens)
        check_positive("workload", lora_rank=self.lora_rank)
        check(self.global_batch <= 10_000_000, "batch", self.global_batch, "at most 10,000,000 samples per step")
        check(self.seq <= 100_000_000, "seq", self.seq, "at most 100,000,000 tokens per sample")

    @property
    def tokens_per_step(self) -> int:
        """Tokens consumed by one optimizer step."""
        return self.global_batch * self.seq

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight, and of an activation between operators."""
        return 4 if self.precision == "tf32" else 2

    @property
    def widening(self) -> float:
        """Bytes of a tensor over those of its 2-byte form, in which operators and what they keep are counted."""
        return self.element_bytes / 2


def whole_samples(tokens: float, seq: int) -> int | None:
    """A batch of so many tokens in samples, an even number if one is within a percent; None if no number is.

    Replicas share a batch, so that a multiple of a power of two serves better than the nearest number, often a prime.
    """
    exact = tokens / seq
    steps = (2**power for power in range(20, -1, -1))
    even = (step * round(exact / step) for step in steps)
    return next((samples for samples in even if abs(samples - exact) <= NEAR_BATCH * exact), None)
