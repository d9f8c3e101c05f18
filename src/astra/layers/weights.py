"""A model's weights, counted exactly: which tensors a layer holds, how each is split, and what it costs to apply them.

Letters: h hidden, f ffn, a heads, g kv heads, d head dim, V vocab, L layers, s sequence, E experts.

Split rules are Megatron's: projections, their column biases and the vocabulary tables are divided by tensor
parallelism; norms, routers, low-rank down-projections, row biases and learned positions are held whole by each rank;
routed experts are divided by expert parallelism (and tensor parallelism inside an expert). Multi-token-prediction
layers are counted by themselves: they are in a checkpoint but not trained by default.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from astra.layers.block import LayerKind, Split, Tensor, norm
from astra.layers.blocks import blocks_of, tower
from astra.layers.ends import embedding_tensors, head_tensors
from astra.layers.kinds import layer_kinds
from astra.spec.model import ModelSpec


class Weights(NamedTuple):
    """Parameters by how they are divided."""

    sharded: int = 0  # by tensor parallelism
    replicated: int = 0  # whole on every tensor-parallel rank
    expert: int = 0  # by expert parallelism, and by tensor parallelism inside an expert

    @property
    def total(self) -> int:
        """All of them."""
        return self.sharded + self.replicated + self.expert

    def plus(self, other: Weights) -> Weights:
        """Sum, kind by kind."""
        return Weights(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def times(self, count: int) -> Weights:
        """``count`` copies."""
        return Weights(*(mine * count for mine in self))


class KindCount(NamedTuple):
    """The layers of one kind: how many, and the weights of one."""

    kind: LayerKind
    layers: int
    weights: Weights


class Counts(NamedTuple):
    """How many parameters a model has."""

    total: int
    active: int  # that one token visits: of the routed experts only ``topk``
    embedding: int  # the input table alone
    expert: int  # routed experts
    mtp: int  # multi-token-prediction layers, which are not part of the total
    per_kind: tuple[KindCount, ...]


@lru_cache(maxsize=4096)
def layer_tensors(model: ModelSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Every weight of one layer: its norms and those of its blocks."""
    blocks = (tensor for block in blocks_of(kind) for tensor in block.tensors(model))
    return (norm(model, "norms", model.norms_per_layer * model.hidden), *blocks)


def _sum(tensors: Iterable[Tensor]) -> Weights:
    by_split: dict[Split, int] = {"tp": 0, "none": 0, "expert": 0}
    for tensor in tensors:
        by_split[tensor.split] += tensor.parameters
    return Weights(sharded=by_split["tp"], replicated=by_split["none"], expert=by_split["expert"])


@lru_cache(maxsize=4096)
def layer_weights(model: ModelSpec, kind: LayerKind) -> Weights:
    """Parameters of one layer of a kind."""
    return _sum(layer_tensors(model, kind))


@lru_cache(maxsize=1024)
def embedding_weights(model: ModelSpec) -> Weights:
    """Parameters before the first layer."""
    return _sum((*embedding_tensors(model), *(tower.tensors(model) if model.tower else ())))


@lru_cache(maxsize=1024)
def head_weights(model: ModelSpec) -> Weights:
    """Parameters after the last layer, without a tied table."""
    return _sum(head_tensors(model))


@lru_cache(maxsize=1024)
def predictor_weights(model: ModelSpec) -> Weights:
    """Parameters of one multi-token-prediction layer: a layer as the last, norms, and what joins two tokens' states.

    Its embedding and head are the model's own (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    joint = Weights(sharded=2 * model.hidden**2, replicated=3 * model.hidden)
    return layer_weights(model, layer_kinds(model)[-1]).plus(joint)


def predictor_flops_per_token(model: ModelSpec, seq: int) -> float:
    """Forward FLOPs of one such layer, its join and its head."""
    kind = layer_kinds(model)[-1]
    products = layer_matmul_parameters(model, kind) + 2 * model.hidden**2 + model.vocab * model.hidden
    others = (
        block.attention_flops(model, kind, seq) + block.other_flops(model, kind, seq) for block in blocks_of(kind)
    )
    return 2 * products + sum(others)


def tied_head_weights(model: ModelSpec) -> Weights:
    """The second copy of a tied table that the last stage of a pipeline keeps (nothing if untied).

    Not part of ``count``: with one stage there is no copy.
    """
    return Weights(sharded=model.vocab * model.table_dim) if model.tied_embeddings else Weights()


@lru_cache(maxsize=1024)
def count(model: ModelSpec) -> Counts:
    """Parameters of the whole model."""
    kinds = layer_kinds(model)
    per_kind = tuple(KindCount(kind, kinds.count(kind), layer_weights(model, kind)) for kind in dict.fromkeys(kinds))
    whole = embedding_weights(model).plus(head_weights(model))
    for part in per_kind:
        whole = whole.plus(part.weights.times(part.layers))
    idle = 0 if model.moe is None else whole.expert // model.moe.experts * (model.moe.experts - model.moe.topk)
    return Counts(
        total=whole.total,
        active=whole.total - idle,
        embedding=model.vocab * model.table_dim,
        expert=whole.expert,
        mtp=predictor_weights(model).times(model.mtp_layers).total,
        per_kind=per_kind,
    )


def _active_matmul(model: ModelSpec, tensors: Iterable[Tensor]) -> int:
    applied = _sum(tensor for tensor in tensors if tensor.matmul)
    visited = 0 if model.moe is None else applied.expert // model.moe.experts * model.moe.topk
    return applied.sharded + applied.replicated + visited


@lru_cache(maxsize=4096)
def layer_matmul_parameters(model: ModelSpec, kind: LayerKind) -> int:
    """Parameters of one layer that multiply each token: matrices only, and of the experts those it visits."""
    return _active_matmul(model, layer_tensors(model, kind))


_OF_MODULES = {
    "mlp": ("mlp.",), "moe": ("experts.", "router", "shared."), "experts": ("experts.",),
    "shared_experts": ("shared.",), "mla_up_proj": ("attention.q_up", "attention.kv_up"),
}  # fmt: skip


@lru_cache(maxsize=1024)
def module_flops_per_token(model: ModelSpec, modules: tuple[str, ...], seq: int) -> float:
    """Forward FLOPs per token of modules that are run again: attention for core_attn, two per weight for the others."""
    named = tuple(prefix for name in modules for prefix in _OF_MODULES.get(name, ()))
    core = attention_flops_per_token(model, seq) if "core_attn" in modules else 0.0
    again = (
        part.layers
        * _active_matmul(model, tuple(t for t in layer_tensors(model, part.kind) if t.name.startswith(named)))
        for part in count(model).per_kind
    )
    return core + 2.0 * sum(again) if named else core


@lru_cache(maxsize=1024)
def attention_flops_per_token(model: ModelSpec, seq: int) -> float:
    """Forward FLOPs of scores and weighted values, per token of a sequence of ``seq``; no projections."""
    return sum(
        part.layers * block.attention_flops(model, part.kind, seq)
        for part in count(model).per_kind
        for block in blocks_of(part.kind)
    )


@lru_cache(maxsize=1024)
def layer_flops_per_token(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    """Forward FLOPs per token of one layer of a kind."""
    products = sum(
        block.attention_flops(model, kind, seq) + block.other_flops(model, kind, seq) for block in blocks_of(kind)
    )
    return 2.0 * layer_matmul_parameters(model, kind) + products


def other_flops_per_token(model: ModelSpec, seq: int) -> float:
    """Forward FLOPs of products of activations that are not attention's."""
    return sum(
        part.layers * block.other_flops(model, part.kind, seq)
        for part in count(model).per_kind
        for block in blocks_of(part.kind)
    )


@lru_cache(maxsize=1024)
def forward_flops_per_token(model: ModelSpec, seq: int) -> float:
    """Forward FLOPs per token of a sequence of ``seq``; training takes three times as many.

    Two per matrix parameter a token visits (the vocabulary projection included, the embedding lookup not) plus
    the products of activations with each other. A vision model's patches are all tokens but one, and only that one is
    classified. Images beside text take what their encoder does.
    """
    layers = sum(part.layers * layer_matmul_parameters(model, part.kind) for part in count(model).per_kind)
    edges: float = _active_matmul(model, embedding_tensors(model)) * (1 if model.vocab else (seq - 1) / seq)
    last = _active_matmul(model, head_tensors(model)) + tied_head_weights(model).total
    edges += last / seq if model.vision is not None else last
    images = tower.flops_per_token(model) if model.tower else 0.0
    return 2 * (layers + edges) + images + attention_flops_per_token(model, seq) + other_flops_per_token(model, seq)
