"""The words layers are described with: operators with their shapes on one rank, and what they keep for backward.

Every size is a column over unique shardings. Letters: T tokens of a micro-batch on the rank, h hidden, f ffn,
a heads, g kv heads, d head dim, V vocabulary, E experts, k experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from astra.columns import distinct, take
from astra.provenance import Bools, Floats, Ints
from astra.spec.job import Words

BF16: Final = 2  # bytes of an activation


class Retention(NamedTuple):
    """What a runtime keeps for backward beyond what the formulas need."""

    linear_bytes: float = 2.0  # per element of a tensor kept as a GEMM input: 2, or 1 in fp8
    mlp_bytes: float = 2.0  # the same in feed-forward blocks; none where frozen matrices have no adapter
    scores_bytes: float = 4.0  # per score of unfused attention
    fp8_qkv_bytes: float = 0.0  # per element of queries, keys and values of attention in fp8; 0: it is in bf16
    projection: bool = False  # the QKV projection stays alive beside its rotated queries and keys
    activation: bool = False  # a gate's activation stays alive beside its input and the product
    dispatched_bytes: float = 0.0  # per element sent to experts, beside it
    norm_bytes: float = 0.0  # per element of a norm, beside its input
    gathered: bool = False  # inputs of products that sequence-parallel ranks gather
    spread_logits_bytes: float = 0.0  # per logit at the loss's peak, where the vocabulary is spread over ranks


class _Split(NamedTuple):
    """The fields of ``Shard``."""

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
    does: Words = Words()  # what takes tokens to their experts, and what is launched as a graph
    imbalance: float = 1.0  # work of the fullest expert rank over the mean's
    packed: int = 0  # tokens of the samples that a sequence is packed of; 0: it is one
    fused_experts: bool = False  # their products add biases, activate and quantise what comes of it


class Shard(_Split):
    """How one micro-batch is split, as columns over unique shardings."""

    @property
    def linear_bytes(self) -> float:
        """Bytes per element of a tensor kept as a GEMM input."""
        return self.keeps.linear_bytes

    @cached_property
    def tokens(self) -> Floats:
        """Tokens in the GEMM regions of a rank: T = b s / c."""
        return self.mbs * (self.seq / self.cp)

    @cached_property
    def stream_tokens(self) -> Floats:
        """Tokens in the norm and residual regions: T / t with sequence parallelism."""
        return self.tokens / np.where(self.sp, self.tp, 1)

    @cached_property
    def kept_tokens(self) -> Floats:
        """Tokens of a product's input that are kept beside a rank's own: those gathered, where they are."""
        return self.gathered_tokens if self.keeps.gathered else 0 * self.tokens

    @cached_property
    def gathered_tokens(self) -> Floats:
        """Tokens that sequence-parallel ranks gather from each other for a GEMM region: T - T / t."""
        return self.tokens - self.stream_tokens

    @cached_property
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
    parts: tuple[Floats | float, ...] = ()  # shares of n where it is several products of one input, run as one


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
    launches: Floats | float = 1.0  # how many times the operator runs on these elements in all
    way: str = "both"  # or "forward" or "backward" alone
    groups: Floats | float = 1.0  # pieces it is cut into, each with kernels of its own: experts


class Kept(NamedTuple):
    """Bytes of one layer and micro-batch alive from forward to backward, and at the worst moment of backward."""

    whole: Floats  # no recompute
    selective: Floats  # core attention recomputed
    checkpoint: Floats  # only the layer's input
    working: Floats  # gradients of intermediates while the layer's backward runs


class Module(NamedTuple):
    """What selective recompute of one module of a layer does not keep, and runs again instead."""

    saved: Floats  # bytes of one micro-batch
    gemms: tuple[str, ...] = ()  # products, by name
    streams: tuple[Stream, ...] = ()
    sends: Mapping[str, float] = MappingProxyType({})  # axis: share of what the layer sends over it in forward


class Layer(NamedTuple):
    """One layer on one rank."""

    gemms: tuple[Gemm, ...]
    attentions: tuple[Attention, ...]
    streams: tuple[Stream, ...]
    kept: Kept
    modules: Mapping[str, Module] = MappingProxyType({})  # besides core attention, which ``kept`` has
    last: str = ""  # the product that ends it, where no backward asks for what it wrote


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
        modules=_together(part.modules for part in parts),
        last=parts[-1].last,
    )


def _together(several: Iterable[Mapping[str, Module]]) -> dict[str, Module]:
    """Modules that several blocks have, such as their norms, as one."""
    found: dict[str, Module] = {}
    for modules in several:
        for name, own in modules.items():
            other = found.get(name, Module(np.zeros(1)))
            axes = {**other.sends, **own.sends}
            sends = {axis: other.sends.get(axis, 0.0) + own.sends.get(axis, 0.0) for axis in axes}
            gemms, streams = (*other.gemms, *own.gemms), (*other.streams, *own.streams)
            found[name] = Module(other.saved + own.saved, gemms, streams, sends)
    return found


def _total(columns: list[Floats]) -> Floats:
    total: Floats = np.sum(columns, axis=0)
    return total


def _largest(columns: list[Floats]) -> Floats:
    largest: Floats = np.max(columns, axis=0)
    return largest


_FEW: Final = 256  # rows that are timed sooner than they are compared

R = TypeVar("R", bound=tuple[Any, ...])


class SameShardings:
    """Shardings that are alike to most operators: those ask for tokens and few degrees, whatever made the tokens."""

    def __init__(self, shard: Shard) -> None:
        self.rows = len(shard.tp)
        tokens = (shard.tokens, shard.tp, shard.sp)
        several = self.rows > _FEW
        pieces = (shard.mbs, shard.cp, shard.tp, shard.sp, shard.flash)
        groups = (tokens, (*tokens, shard.ep, shard.etp), pieces)
        self._groups = [distinct(*columns) for columns in groups] if several else []

    def distinct(self, *columns: Floats | Ints | Bools | float) -> tuple[Ints, Ints | slice]:
        """Rows that have every combination of the columns, few if it can be, and where among them each row's is."""
        wide = [np.asarray(column) for column in columns if np.ndim(column)]
        for first, place in self._groups:
            if all(np.array_equal(column[first][place], column) for column in wide):
                return first, place
        return np.arange(self.rows), slice(None)


def once(timed: Callable[..., R], *columns: Floats | Ints | Bools | float, repeated: SameShardings | None = None) -> R:
    """``timed`` of the columns, worked out for each distinct combination and dealt to the rows that have it.

    Columns broadcast; single numbers are handed on as they are. ``alike`` knows shardings that are mostly the same,
    which is quicker to try than to compare the columns.
    """
    given = [np.asarray(column) for column in columns]
    shapes = {column.shape for column in given if column.ndim}
    shape = next(iter(shapes)) if len(shapes) == 1 else np.broadcast_shapes(*shapes)
    wider = len(shapes) > 1 or len(shape) > 1
    flat = [np.broadcast_to(column, shape).ravel() if column.ndim and wider else column for column in given]
    wide = [column for column in flat if column.ndim]
    first, place = distinct(*wide) if repeated is None else repeated.distinct(*wide)
    found = timed(*(column[first] if column.ndim else column for column in flat))
    return found if isinstance(place, slice) else take(found, place.reshape(shape))
