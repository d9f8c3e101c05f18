"""A model's weights, counted exactly: which tensors a layer holds, how each is split, and what it costs to apply them.

Letters: h hidden, f ffn, a heads, g kv heads, d head dim, V vocab, L layers, s sequence, E experts.

Split rules are Megatron's: projections, their column biases and the vocabulary tables are divided by tensor
parallelism; norms, routers, low-rank down-projections, row biases and learned positions are held whole by each rank;
routed experts are divided by expert parallelism (and tensor parallelism inside an expert). Multi-token-prediction
layers are not counted: they are in a checkpoint but not trained by default.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from astra.families.kinds import LayerKind, layer_kinds
from astra.spec.model import MLA, ModelSpec, MoE, Vision

Split = Literal["tp", "none", "expert"]


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


class Tensor(NamedTuple):
    """One weight: its size, how it is divided, and whether tokens are multiplied by it."""

    name: str
    parameters: int
    split: Split
    matmul: bool


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
    per_kind: tuple[KindCount, ...]


def _matrix(name: str, rows: int, columns: int, split: Split = "tp") -> Tensor:
    return Tensor(name, rows * columns, split, matmul=True)


def _vector(name: str, size: int, split: Split = "none") -> Tensor:
    return Tensor(name, size, split, matmul=False)


def _norm(model: ModelSpec, name: str, size: int) -> Tensor:
    has_bias = model.norm == "layernorm" and model.norm_bias
    return _vector(name, size * (2 if has_bias else 1))


def _attention(model: ModelSpec, prefix: str) -> list[Tensor]:
    if model.mla is not None:
        return _latent_attention(model, model.mla)
    h, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    tensors = [_matrix(f"{prefix}.qkv", h, q + 2 * kv), _matrix(f"{prefix}.out", q, h)]
    if model.qkv_bias:
        tensors.append(_vector(f"{prefix}.qkv_bias", q + 2 * kv, "tp"))
    if model.out_bias:
        tensors.append(_vector(f"{prefix}.out_bias", h))
    if model.qk_norm != "none":
        sizes = (model.head_dim, model.head_dim) if model.qk_norm == "per_head" else (q, kv)
        tensors += [_norm(model, f"{prefix}.q_norm", sizes[0]), _norm(model, f"{prefix}.k_norm", sizes[1])]
    if model.attention_sinks:
        tensors.append(_vector(f"{prefix}.sinks", model.heads, "tp"))
    return tensors


def _latent_attention(model: ModelSpec, mla: MLA) -> list[Tensor]:
    h, a = model.hidden, model.heads
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank is None:
        query = [_matrix("attention.q", h, a * qk)]
    else:
        query = [
            _matrix("attention.q_down", h, mla.q_lora_rank, "none"),
            _norm(model, "attention.q_norm", mla.q_lora_rank),
            _matrix("attention.q_up", mla.q_lora_rank, a * qk),
        ]
    return [
        *query,
        _matrix("attention.kv_down", h, mla.kv_lora_rank + mla.qk_rope_head_dim, "none"),
        _norm(model, "attention.kv_norm", mla.kv_lora_rank),
        _matrix("attention.kv_up", mla.kv_lora_rank, a * (mla.qk_nope_head_dim + mla.v_head_dim)),
        _matrix("attention.out", a * mla.v_head_dim, h),
    ]


def _mlp(model: ModelSpec, name: str, ffn: int, *, bias: bool) -> list[Tensor]:
    inputs = ffn * (2 if model.gated_mlp else 1)
    tensors = [_matrix(f"{name}.up", model.hidden, inputs), _matrix(f"{name}.down", ffn, model.hidden)]
    if bias:
        tensors += [_vector(f"{name}.up_bias", inputs, "tp"), _vector(f"{name}.down_bias", model.hidden)]
    return tensors


def _experts(model: ModelSpec, moe: MoE) -> list[Tensor]:
    h, E = model.hidden, moe.experts
    inputs = moe.ffn * (2 if model.gated_mlp else 1)
    tensors = [
        _matrix("router", h, E, "none"),
        _matrix("experts.up", h, E * inputs, "expert"),
        _matrix("experts.down", E * moe.ffn, h, "expert"),
    ]
    if moe.router_bias:
        tensors.append(_vector("router.bias", E))
    if moe.expert_bias:
        tensors.append(_vector("experts.bias", E * (inputs + h), "expert"))
    if moe.shared_ffn:
        tensors += _mlp(model, "shared", moe.shared_ffn, bias=False)
    if moe.shared_gate:
        tensors.append(_matrix("shared.gate", h, 1, "none"))
    return tensors


@lru_cache(maxsize=4096)
def layer_tensors(model: ModelSpec, kind: LayerKind) -> tuple[Tensor, ...]:
    """Every weight of one layer. Cross-attention adds an attention block and a norm."""
    crosses = kind.role == "cross"
    norms = model.norms_per_layer + crosses
    tensors = [_norm(model, "norms", norms * model.hidden), *_attention(model, "attention")]
    if crosses:
        tensors += _attention(model, "cross_attention")
    if kind.mlp == "moe" and model.moe is not None:
        tensors += _experts(model, model.moe)
    else:
        tensors += _mlp(model, "mlp", model.ffn, bias=model.mlp_bias)
    return tuple(tensors)


@lru_cache(maxsize=1024)
def embedding_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """What comes before the first layer: tables, positions (also T5's relative ones, one per stack), patches."""
    tensors = []
    if model.vocab:
        tensors.append(_vector("embedding", model.vocab * model.hidden, "tp"))
    if model.vision is not None:
        tensors += _patches(model, model.vision)
    if model.learned_positions:
        tensors.append(_vector("positions", model.learned_positions * model.hidden))
    if model.relative_buckets:
        stacks = 2 if model.encoder is not None else 1
        tensors.append(_vector("relative_positions", stacks * model.relative_buckets * model.heads))
    if model.embedding_norm:
        tensors.append(_norm(model, "embedding_norm", model.hidden))
    return tuple(tensors)


def _patches(model: ModelSpec, vision: Vision) -> list[Tensor]:
    pixels = vision.channels * vision.patch**2
    return [
        _matrix("patches", pixels, model.hidden, "none"),
        _vector("patches.bias", model.hidden),
        _vector("class_token", model.hidden),
    ]


@lru_cache(maxsize=1024)
def head_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """What comes after the last layer: final norms (one per stack) and the vocabulary or class projection.

    A tied projection is listed with no parameters of its own: see ``tied_head_weights``.
    """
    stacks = 2 if model.encoder is not None else 1
    tensors = [_norm(model, "final_norm", stacks * model.hidden)] if model.final_norm else []
    if model.vision is not None:
        classes = model.vision.classes
        tensors += [_matrix("classes", model.hidden, classes, "none"), _vector("classes.bias", classes)]
        return tuple(tensors)
    if not model.tied_embeddings:
        tensors.append(_matrix("head", model.hidden, model.vocab))
    if model.head_bias:
        tensors.append(_vector("head.bias", model.vocab, "tp"))
    return tuple(tensors)


def _sum(tensors: tuple[Tensor, ...]) -> Weights:
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
    return _sum(embedding_tensors(model))


@lru_cache(maxsize=1024)
def head_weights(model: ModelSpec) -> Weights:
    """Parameters after the last layer, without a tied table."""
    return _sum(head_tensors(model))


def tied_head_weights(model: ModelSpec) -> Weights:
    """The second copy of a tied table that the last stage of a pipeline keeps (nothing if untied).

    Not part of ``count``: with one stage there is no copy.
    """
    return Weights(sharded=model.vocab * model.hidden) if model.tied_embeddings else Weights()


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
        embedding=model.vocab * model.hidden,
        expert=whole.expert,
        per_kind=per_kind,
    )


def _active_matmul(model: ModelSpec, tensors: tuple[Tensor, ...]) -> int:
    applied = _sum(tuple(tensor for tensor in tensors if tensor.matmul))
    visited = 0 if model.moe is None else applied.expert // model.moe.experts * model.moe.topk
    return applied.sharded + applied.replicated + visited


@lru_cache(maxsize=4096)
def layer_matmul_parameters(model: ModelSpec, kind: LayerKind) -> int:
    """Parameters of one layer that multiply each token: matrices only, and of the experts those it visits."""
    return _active_matmul(model, layer_tensors(model, kind))


def keys_per_query(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    """How many positions a token attends to in self-attention, averaged over a sequence.

    It is the area of the mask over ``seq``: half of it for a causal layer (the diagonal counts half), w - w^2 / 2s
    for a sliding window w, and half of each chunk's square where the sequence is cut in chunks.
    """
    if kind.span == "full" or model.window is None or model.window >= seq:
        return seq / (1 if kind.role == "encoder" else 2)
    if kind.role == "encoder":
        return model.window
    if not model.chunked:
        return model.window - model.window**2 / (2 * seq)
    chunks, rest = divmod(seq, model.window)
    return (chunks * model.window**2 + rest**2) / (2 * seq)


@lru_cache(maxsize=1024)
def attention_flops_per_token(model: ModelSpec, seq: int) -> float:
    """Forward FLOPs of scores and weighted values, per token of a sequence of ``seq``; no projections.

    An encoder-decoder sample has ``seq`` tokens on both sides, and one of each is counted together.
    """
    mla = model.mla
    score = model.head_dim if mla is None else mla.qk_nope_head_dim + mla.qk_rope_head_dim
    value = model.head_dim if mla is None else mla.v_head_dim
    keys = 0.0
    for kind, layers, _ in count(model).per_kind:
        crossed = seq if kind.role == "cross" else 0
        keys += layers * (keys_per_query(model, kind, seq) + crossed)
    return 2 * keys * model.heads * (score + value)


@lru_cache(maxsize=1024)
def forward_flops_per_token(model: ModelSpec, seq: int) -> float:
    """Forward FLOPs per token of a sequence of ``seq``; training takes three times as many.

    Two per matrix parameter a token visits (the vocabulary projection included, the embedding lookup not) plus
    attention. A vision model's patches are all tokens but one, and only that one is classified.
    """
    layers = sum(part.layers * layer_matmul_parameters(model, part.kind) for part in count(model).per_kind)
    edges: float = _active_matmul(model, embedding_tensors(model)) * (seq - 1) / seq
    head = _active_matmul(model, head_tensors(model)) + tied_head_weights(model).total
    edges += head / seq if model.vision is not None else head
    return 2 * (layers + edges) + attention_flops_per_token(model, seq)
