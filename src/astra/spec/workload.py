"""What is to be trained: batch, sequence, tokens, precision, optimizer and task."""

from __future__ import annotations

from typing import Final, Literal, get_args

from astra.spec.names import Positive, Size, check_fields
from astra.spec.record import Spec, check

Precision = Literal[
    "bf16", "fp16", "fp8", "tf32", "fp8-tensorwise", "fp8-blockwise", "fp8-rowwise", "mxfp8", "nvfp4"
]  # fmt: skip
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
# Whose peak the products of a precision run at.
PEAKS: Final = {
    "fp8-tensorwise": "fp8", "fp8-blockwise": "fp8", "fp8-rowwise": "fp8", "mxfp8": "fp8", "nvfp4": "fp4",
}  # fmt: skip
LORA_TARGETS: Final = ("all", "attention", "qkv")
OPTIMIZERS: Final = ("adam", "sgd")
TASKS: Final = ("pretrain", "finetune", "lora")
NEAR_BATCH: Final = 0.01  # how far a batch in tokens may be moved to a number of samples that deals well


class Workload(Spec, frozen=True, kw_only=True):
    """One training job's work."""

    global_batch: Size  # samples per optimizer step
    seq: Size  # tokens per sample
    tokens: Positive | None = None  # tokens to train in all
    precision: Precision = "bf16"  # tf32: fp32 tensors, products in TF32; fp8: as is usual on the GPU
    optimizer: Literal["adam", "sgd"] = "adam"
    task: Literal["pretrain", "finetune", "lora"] = "pretrain"
    lora_rank: Size = 16
    lora_targets: Literal["all", "attention", "qkv"] = "all"  # matrices with low-rank adapters
    imbalance: float = 1.0  # work of the fullest expert rank over the mean's
    mtp: int = 0  # multi-token-prediction layers that are trained
    packed: int = 0  # tokens of the samples that a sequence is packed of, which do not see each other; 0: it is one

    def __post_init__(self) -> None:
        check_fields("workload", self)
        known = {"precision": PRECISIONS, "optimizer": OPTIMIZERS, "task": TASKS, "lora_targets": LORA_TARGETS}
        for name, choices in known.items():
            check(getattr(self, name) in choices, name, getattr(self, name), f"one of {', '.join(choices)}")
        check(0 <= self.mtp <= 64, "mtp", self.mtp, "a number of layers from 0 to 64")
        check(1 <= self.imbalance <= 1000, "imbalance", self.imbalance, "1 (balanced experts) or more, such as 1.3")
        check(self.global_batch <= 10_000_000, "batch", self.global_batch, "at most 10,000,000 samples per step")
        check(0 <= self.packed <= self.seq, "packed", self.packed, f"at most the {self.seq:,} tokens of a sequence")
        check(self.seq <= 100_000_000, "seq", self.seq, "at most 100,000,000 tokens per sample")

    @property
    def tokens_per_step(self) -> int:
        """Tokens consumed by one optimizer step."""
        return self.global_batch * self.seq

    @property
    def span(self) -> int:
        """Tokens that attention joins: a sequence, or each of the samples it is packed of."""
        return self.packed or self.seq

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight, and of an activation between operators."""
        return 4 if self.precision == "tf32" else 2

    @property
    def low(self) -> bool:
        """Whether products are of quantised operands: fp8 of any scaling, or nvfp4."""
        return self.precision not in ("bf16", "fp16", "tf32")

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
