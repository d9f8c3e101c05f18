"""FSDP2 gathers weights and reduces gradients unit by unit: each layer, the embedding, the last norm with the output.

What is alive beside kept activations was counted in torch's ``_fsdp_param_group.py`` and ``_fsdp_collectives.py``. In
backward a unit has its weights and, gathered ahead, those of the next one; the gradients of the last unit are on their
way, copied to the width they are reduced in, until the next unit's are there. Those of the output are there twice when
its backward ends, as they were made and as they are reduced. The output's weights stay from forward to backward. What
ranks shard is the fp32 weight of the optimizer: there is no other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.cost.state import Bytes, Holding, gradient_bytes, local
from astra.layers import weights as weights_of
from astra.layers.operators import Shard
from astra.layers.split import StageKinds, kinds
from astra.provenance import Floats, Ints
from astra.spec.job import Job


class Units(NamedTuple):
    """Parameters of a rank's largest layer, and of the output's unit where it has one; [mesh, sort]."""

    layer: Floats
    head: Floats


def unit_parameters(job: Job, shard: Shard, place: Ints, table: StageKinds) -> Units:
    """Of every sort of rank."""

    def on_rank(weights: weights_of.Weights) -> Floats:
        dense, expert = local(weights, shard.tp, shard.ep, shard.etp)
        column: Floats = np.broadcast_to(dense + expert, len(shard.tp))[place][:, None]
        return column

    layers = [
        np.where(table.counts[..., number] > 0, on_rank(weights_of.layer_weights(job.model, kind)), 0.0)
        for number, kind in enumerate(kinds(job.model))
    ]
    head = on_rank(weights_of.head_weights(job.model))
    if job.model.tied_embeddings:
        head = head + on_rank(weights_of.tied_head_weights(job.model))
    largest: Floats = np.max(layers, axis=0)
    return Units(largest, table.last * head)


def in_units(job: Job, static: Bytes, how: Holding, *, layer: Floats, head: Floats, microbatches: Ints) -> Bytes:
    """States of a rank, and what units of so many parameters hold beside them at a layer and at the loss.

    Gradients are made in the first backward of a step: with one micro-batch none are there at the fullest moment.
    """
    width, reduced = float(job.workload.element_bytes), gradient_bytes(job)
    again = (how.zero >= 3) & ~how.kept
    moving = ~how.whole_gradients
    early = np.where(moving & (microbatches == 1), static.gradients, 0.0)
    at_layer = np.where(again, 2 * width * layer, 0.0) + np.where(moving, reduced * np.maximum(layer, head), 0.0)
    at_head = np.where(again, width * layer, 0.0) + np.where(moving, (width + reduced) * head, 0.0)
    return static._replace(
        weights=np.where(again, 0.0, static.weights),
        gathered=np.maximum(at_layer, at_head) - early,
        at_loss=np.where(again, width * head, 0.0) - early,
    )
