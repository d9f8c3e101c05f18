"""Experts: a router, the feed-forwards each token is sent to, and those that every token passes.

Letters: E experts, k experts per token, e expert parallel ranks, x ranks an expert is split over. Load is balanced.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.layers.block import Block, LayerKind, Place, Send, Tensor, column_then_row, matrix, norms_each, vector
from astra.layers.blocks.dense import BLOCK as DENSE
from astra.layers.blocks.dense import feed_forward, mlp_tensors, tp_share
from astra.layers.operators import BF16, Gemm, Kept, Layer, Module, Shard, Stream, join
from astra.provenance import Floats
from astra.spec.model import ModelSpec, MoE

# A graph of a whole step cannot know how many tokens arrive: room for so many times the mean, and of what is kept for
# backward, in pages, for so many times (moe_expert_rank_capacity_factor, moe_paged_stash of megatron-core 0.19, as all
# perf_recipes of Megatron-Bridge 0.6.2 that capture whole steps set them; exports do too).
CAPACITY: Final = 1.5
STASHED: Final = 1.2
FP8_DISPATCH_BYTES: Final = 1 + 4 / 128  # an element, and its share of a scale for each 128 of them


def _moe(model: ModelSpec) -> MoE:
    assert model.moe is not None
    return model.moe


def _has(model: ModelSpec, place: Place) -> bool:
    return place.may_have("E") and not DENSE.has(model, place)


def _tensors(model: ModelSpec) -> list[Tensor]:
    moe, h = _moe(model), model.hidden
    inputs = moe.ffn * (2 if model.gated_mlp else 1)
    tensors = [
        matrix("router", h, moe.experts, "none"),
        matrix("experts.up", h, moe.experts * inputs, "expert"),
        matrix("experts.down", moe.experts * moe.ffn, h, "expert"),
    ]
    if moe.router_bias:
        tensors.append(vector("router.bias", moe.experts))
    if moe.expert_bias:
        tensors.append(vector("experts.bias", moe.experts * (inputs + h), "expert"))
    if moe.shared_ffn:
        tensors += mlp_tensors(model, "shared", moe.shared_ffn, bias=False)
    if moe.shared_gate:
        tensors.append(matrix("shared.gate", h, 1, "none"))
    return tensors


def _operators(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """Norm, router, dispatch, experts, combine, shared expert, residual."""
    moe, routed = _moe(model), shard.routed_tokens
    # Token copies that the fullest expert-tensor-parallel rank computes on
    copies = shard.imbalance * routed * moe.topk * shard.etp
    local_experts = moe.experts / shard.ep
    experts = feed_forward("experts", model, copies / local_experts, moe.ffn / shard.etp, shard.keeps, local_experts)
    activated, room, held = experts.streams, 1.0, 1.0
    if shard.fused_experts:
        activated, room, held, own = (), CAPACITY, STASHED, experts.kept
        own = own._replace(whole=held * own.whole, selective=held * own.selective, working=room * own.working)
        experts = experts._replace(streams=(), kept=own)
    dispatched = copies * model.hidden
    stream_elements = shard.stream_tokens * model.hidden
    norm_bytes = shard.keeps.mlp_bytes * stream_elements
    routing_bytes = 8 * routed * moe.experts  # probabilities and routing map
    dispatched_bytes = shard.keeps.mlp_bytes + shard.keeps.dispatched_bytes
    kept = BF16 * stream_elements + norm_bytes + routing_bytes + held * dispatched_bytes * dispatched
    kept = kept + shard.keeps.norm_bytes * stream_elements
    router = Gemm("router", routed, np.full_like(routed, moe.experts), np.full_like(routed, model.hidden))
    outer = Layer(
        (router,),
        (),
        tuple(_streams(model, kind, shard, copies)),
        Kept(whole=kept, selective=kept, checkpoint=BF16 * stream_elements, working=0 * kept),
    )
    parts = [outer, experts]
    if moe.shared_ffn:
        parts.append(feed_forward("shared", model, shard.tokens, moe.shared_ffn / shard.tp, shard.keeps))
    joined = join(*parts)
    working = joined.kept.working + room * 3 * BF16 * dispatched + 2 * BF16 * shard.tokens * model.hidden
    modules = _modules(
        kind, shard, outer, parts[1:], activated, joined.kept.whole - BF16 * stream_elements - norm_bytes
    )
    return joined._replace(
        kept=joined.kept._replace(working=working),
        modules=modules | {"layernorm": Module(norm_bytes, streams=outer.streams[:1])},
    )


def _modules(
    kind: LayerKind, shard: Shard, outer: Layer, feeds: list[Layer], activated: tuple[Stream, ...], inside: Floats
) -> dict[str, Module]:
    """What may be run again: all behind the norm, the experts' activation, the shared experts."""
    shared = feeds[1:]
    sends = {"ep": 1.0, **(tp_share(kind) if shared else {})}
    gemms = tuple(gemm.name for part in (outer, *feeds) for gemm in part.gemms)
    behind = tuple(stream for part in (outer, *feeds) for stream in part.streams if stream.kernel != "norm")
    clamps = tuple(stream for stream in outer.streams if stream.kernel == "expert_clamp")
    saved = shard.keeps.mlp_bytes * activated[0].elements if activated else np.zeros(len(shard.ep))
    found = {
        "moe": Module(inside, gemms, behind, sends),
        "moe_act": Module(saved, streams=(*activated, *clamps)),  # nothing where the products apply the activation
    }
    for feed in shared:
        names = tuple(gemm.name for gemm in feed.gemms)
        found["shared_experts"] = Module(feed.kept.whole, names, feed.streams, tp_share(kind))
    return found


def _streams(model: ModelSpec, kind: LayerKind, shard: Shard, copies: Floats) -> list[Stream]:
    moe, stream_elements = _moe(model), shard.stream_tokens * model.hidden
    local_experts, dispatched = moe.experts / shard.ep, copies * model.hidden
    streams = [
        Stream("norm", stream_elements, norms_each(model, kind)),
        Stream("residual", stream_elements),
        Stream("router", shard.routed_tokens * moe.experts),
        Stream("permute", dispatched),
    ]
    if not shard.does.sends_once:  # such a dispatcher leaves tokens in the order of the experts
        sorted_here = np.where((shard.ep > 1) & (local_experts > 1), 1.0, 0.0)
        streams.append(Stream("sort", dispatched * sorted_here, groups=sorted_here))
    if moe.expert_bias and shard.fused_experts:
        streams.append(Stream("bias", (2 if model.gated_mlp else 1) * copies * moe.ffn / shard.etp))
    elif moe.expert_bias:  # GPT-OSS, whose activation is clamped too
        inner_elements = copies * moe.ffn / shard.etp
        streams.append(Stream("expert_bias", dispatched, groups=local_experts))
        streams.append(Stream("expert_clamp", inner_elements))
        streams.append(Stream("bias", (2 if model.gated_mlp else 1) * inner_elements))
    return streams


def _tp_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """Routed tokens are split already; shared experts are as a dense feed-forward."""
    return column_then_row(model, kind, shard) if _moe(model).shared_ffn else []


def _ep_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """Dispatch and combine, each way; under expert tensor parallelism also a gather and a scatter."""
    del kind
    nbytes = shard.imbalance * BF16 * shard.routed_tokens * _moe(model).topk * model.hidden
    one = np.ones_like(shard.etp)
    gathered = nbytes * shard.etp
    back_and_forth = [Send("all_to_all", nbytes, shard.ep, shard.etp, 2.0, 2.0, routed=True)]
    if shard.does.dispatch_fp8:  # a byte an element on the way out, in both directions; results come back in bf16
        out, back = FP8_DISPATCH_BYTES / BF16 * nbytes, nbytes
        back_and_forth = [Send("all_to_all", x, shard.ep, shard.etp, 1.0, 1.0, routed=True) for x in (out, back)]
    return [
        *back_and_forth,
        Send("all_gather", gathered, shard.etp, one, 1.0, 1.0),
        Send("reduce_scatter", gathered, shard.etp, one, 1.0, 1.0),
    ]


BLOCK = Block(
    name="experts",
    of="moe",
    has=_has,
    tensors=_tensors,
    operators=_operators,
    sends={"tp": _tp_sends, "ep": _ep_sends},
)
