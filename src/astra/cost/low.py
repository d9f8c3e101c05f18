"""Quantised products: whose peak they run at, how much longer they take, and what quantising their operands moves.

Megatron-core and torchao scale fp8 operands as a whole (tensorwise), by row, by blocks of 128, or by groups of 32
(mxfp8, in the tensor cores of Blackwell); nvfp4 scales groups of 16 and the whole.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from astra.spec.job import Job


class Scaling(NamedTuple):
    """One way to scale operands."""

    product: str  # whose peak the tensor cores reach
    slower: float  # time of a product over that of one with whole operands scaled
    cast_bytes: float  # read and written per element: its maximum, the cast, both layouts
    share: float = 1.0  # of the products; the others stay in bf16
    copies_bytes: float = 2.0  # per element of a weight that is kept quantised in both layouts, with its scales
    gathered_bytes: float = 1.0  # per element, where tensor-parallel ranks gather what is quantised already


SCALINGS: Final = {
    "fp8-tensorwise": Scaling("fp8", 1.0, 2 + 2 + 2),  # two passes: the maximum of the whole, then the cast
    # Products by row and by blocks: benchmarks/quantised.py on an H200. Rows and columns have maxima of their own, so
    # that each layout is two passes, of which TorchInductor's over columns run at half of the rate (ranks of torchtitan
    # on an H200 took 1.7 times as long as this for casts of 8,192 tokens); sums of blocks are promoted on CUDA cores
    # every 128 elements.
    "fp8-rowwise": Scaling("fp8", 1.03, (2 + 2 + 1) + 2 * (2 + 2 + 1), gathered_bytes=2.0),  # torchao gathers in bf16
    "fp8-blockwise": Scaling("fp8", 1.14, 2 + 2 * (1 + 4 / 128)),
    "mxfp8": Scaling("fp8", 1.0, 2 + 2 * (1 + 1 / 32), copies_bytes=2 * (1 + 1 / 32)),
    # Two passes, for the scale of the whole. Megatron-Bridge's recipes keep no layer in bf16 (bf16_with_nvfp4_mixed of
    # 0.2 to 0.6: only router and head), NVIDIA's paper on convergence 10 to 15% of the work (arXiv 2509.25149).
    "nvfp4": Scaling("fp4", 1.0, 2 + 2 + 2 * (0.5 + 1 / 16), copies_bytes=2 * (0.5 + 1 / 16)),
}


def usual(job: Job) -> str:
    """How fp8 operands are scaled on the GPU where nobody says."""
    return "mxfp8" if job.pool.device.fp8_recipe == "mxfp8" else "fp8-tensorwise"


def scaling(job: Job) -> Scaling:
    """How a job scales operands; products and casts are measured with the usual way, which takes as long as it does."""
    own, known = SCALINGS.get(job.workload.precision), SCALINGS[usual(job)]
    if own is None:
        return known._replace(cast_bytes=1.0, slower=1.0)
    return own._replace(cast_bytes=own.cast_bytes / known.cast_bytes, slower=own.slower / known.slower)


def qkv_bytes(job: Job) -> float:
    """Bytes per element of queries, keys and values that attention in fp8 keeps for backward.

    TransformerEngine (FusedAttnFunc of 2.20) keeps quantised copies alone: in both layouts with their scales where
    operands are scaled by groups, in one layout where they are scaled as a whole. The result stays in bf16.
    """
    return 2 * (1 + 1 / 32) if job.scales_groups else 1.0


def core_cast_bytes(job: Job) -> float:
    """Bytes read and written per element to quantise what goes into attention: bf16, then as ``qkv_bytes`` keeps it.

    Operands scaled as a whole are read once more, for their maximum.
    """
    return 2 + qkv_bytes(job) + (0 if job.scales_groups else 2)


def fuses_experts(job: Job) -> bool:
    """Whether experts' products apply the activation and quantise what comes of it, forward and backward.

    cuDNN has such grouped products for operands scaled by groups on Blackwell (its pages on grouped GEMM + SwiGLU and
    dSwiGLU); recipes that capture whole steps switch them on, as a graph needs products that are not launched one by
    one for each expert.
    """
    return job.words.graphs == "full" and job.scales_groups
