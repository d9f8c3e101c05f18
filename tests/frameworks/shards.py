"""Parameters of one rank by our own count, for comparison with what a framework builds."""

from __future__ import annotations

from msgspec.structs import replace

from astra.export.base import Launch
from astra.layers.kinds import layer_kinds
from astra.layers.weights import (
    Weights,
    embedding_weights,
    head_weights,
    layer_weights,
    tied_head_weights,
)


def rank_parameters(launch: Launch, stage: int) -> int:
    """Parameters on a rank of a pipeline stage, the vocabulary padded as Megatron pads it."""
    strategy, step = launch.strategy, 128 * launch.strategy.tp
    model = replace(launch.model, vocab=-(-launch.model.vocab // step) * step)
    kinds, weights, start = layer_kinds(model), Weights(), 0
    for place, count in enumerate(launch.layers):
        if place % strategy.pp == stage:
            for kind in kinds[start : start + count]:
                weights = weights.plus(layer_weights(model, kind))
        start += count
    if stage == 0:
        weights = weights.plus(embedding_weights(model))
    if stage == strategy.pp - 1:
        weights = weights.plus(head_weights(model))
        if strategy.pp > 1:
            weights = weights.plus(tied_head_weights(model))
    sharded, left = divmod(weights.sharded, strategy.tp)
    experts, over = divmod(weights.expert, strategy.ep * strategy.etp)
    assert left == over == 0
    return sharded + weights.replicated + experts
