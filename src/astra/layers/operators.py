"""The words layers are described with: operators with their shapes on one rank, what they keep for backward, weights.

Every size is a column over unique shardings. Letters: T tokens of a micro-batch on the rank, h hidden, f ffn,
a heads, g kv heads, d head dim, V vocabulary, E experts, k experts per token.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np

from astra.provenance import Bools, Floats, Ints
from astra.spec.model import ModelSpec

BF16: Final = 2  # bytes of an activation

Split = Literal["tp", "none", "expert"]


class Retention(NamedTuple):
    """What a runtime keeps for backward beyond what the formulas need."""

    linear_bytes: float = 2.0  # per element of a tensor kept as a GEMM input: 2, or 1 in fp8
    mlp_bytes: float = 2.0  # the same in feed-forward blocks; none where frozen matrices have no adapter
    projection: bool = False  # the QKV projection stays alive beside its rotated queries and keys
    activation: bool = False  # a gate's activation stays alive beside its input and the product
    cheap: bool = True  # outputs of norms and activations; if not, they are made again in backward

    @property
    def mlp_norm_bytes(self) -> float:
        """Bytes kept per element of a norm's or activation's output in a feed-forward block."""
        return self.mlp_bytes if self.cheap else 0.0


class Shard(NamedTuple):
    """How one micro-batch is split, as columns over unique shardings."""

    seq: int  # tokens of a sample
    mbs: Ints
    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    sp: Bools
    flash: Bools
    keeps: Retention = Retention()
    gathered_bytes: float = 2.0  # per element of a GEMM input or output gradient that ranks gather: 1 in fp8

    @property
    def linear_bytes(self) -> float:
        """Bytes per element of a tensor kept as a GEMM input."""
        return self.keeps.linear_bytes

    @property
    def norm_bytes(self) -> float:
        """Bytes kept per element of a norm's output in an attention block."""
        return self.keeps.linear_bytes if self.keeps.cheap else 0.0

    @property
    def mlp_norm_bytes(self) -> float:
        """Bytes kept per element of a norm's or activation's output in a feed-forward block."""
        return self.keeps.mlp_norm_bytes

    @property
    def tokens(self) -> Floats:
        """Tokens in the GEMM regions of a rank: T = b s / c."""
        return self.mbs * (self.seq / self.cp)

    @property
    def stream_tokens(self) -> Floats:
        """Tokens in the norm and residual regions: T / t with sequence parallelism."""
        return self.tokens / np.where(self.sp, self.tp, 1)

    @property
    def routed_tokens(self) -> Floats:
        """Tokens a rank routes: each tensor-parallel rank takes its own part."""
        return self.tokens / self.tp


class Gemm(NamedTuple):
    """C[m,n] = A[m,k] B[k,n] in forward; ``groups`` of them at once for experts."""

    name: str
    m: Floats
    n: Floats
    k: Floats
    groups: Floats | int = 1
    weight: bool = True  # B is a weight; if not, both are activations, and the backward passes through both


class Attention(NamedTuple):
    """Scores, softmax and weighted sum over ``seq_kv`` keys."""

    name: str
    batch: Floats
    seq_q: Floats
    seq_kv: Floats | float
    heads: Floats
    kv_heads: Floats
    head_dim: int
    head_dim_v: int
    causal: bool
    window: int | None


class Stream(NamedTuple):
    """A memory-bound operator; ``kernel`` names its cost in the runtime's table."""

    kernel: str
    elements: Floats
    launches: float = 1.0  # how many times the operator runs on these elements in all
    way: str = "both"  # or "forward" or "backward" alone, or "again": the forward kernel in backward
    groups: Floats | float = 1.0  # pieces it is cut into, each with kernels of its own: experts


class Kept(NamedTuple):
    """Bytes of one layer and micro-batch alive from forward to backward, and at the worst moment of backward."""

    whole: Floats  # no recompute
    selective: Floats  # core attention recomputed
    checkpoint: Floats  # only the layer's input
    working: Floats  # gradients of intermediates while the layer's backward runs


class Layer(NamedTuple):
    """One layer on one rank."""

    gemms: tuple[Gemm, ...]
    attentions: tuple[Attention, ...]
    streams: tuple[Stream, ...]
    kept: Kept


def join(*parts: Layer) -> Layer:
    """Several blocks as one layer; working memory is that of the largest block."""
    return Layer(
        gemms=tuple(gemm for part in parts for gemm in part.gemms),
        attentions=tuple(attention for part in parts for attention in part.attentions),
        streams=tuple(stream for part in parts for stream in part.streams),
        kept=Kept(
            whole=_total([part.kept.whole for part in parts]),
            selective=_total([part.kept.selective for part in parts]),
            checkpoint=_largest([part.kept.checkpoint for part in parts]),
            working=_largest([part.kept.working for part in parts]),
        ),
    )


def _total(columns: list[Floats]) -> Floats:
    total: Floats = np.sum(columns, axis=0)
    return total


def _largest(columns: list[Floats]) -> Floats:
    largest: Floats = np.max(columns, axis=0)
    return largest


class Tensor(NamedTuple):
    """One weight: its size, how it is divided, and whether tokens are multiplied by it."""

    name: str
    parameters: int
    split: Split
    matmul: bool


def matrix(name: str, rows: int, columns: int, split: Split = "tp") -> Tensor:
    """A weight that multiplies tokens."""
    return Tensor(name, rows * columns, split, matmul=True)


def vector(name: str, size: int, split: Split = "none") -> Tensor:
    """A weight that is added, looked up or multiplied element by element."""
    return Tensor(name, size, split, matmul=False)


def norm(model: ModelSpec, name: str, size: int) -> Tensor:
    """The weight of a norm, and its bias if it has one."""
    has_bias = model.norm == "layernorm" and model.norm_bias
    return vector(name, size * (2 if has_bias else 1))
