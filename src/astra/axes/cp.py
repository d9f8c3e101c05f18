"""Context parallelism: the sequence split over c ranks; keys and values travel round a ring beside attention."""

from __future__ import annotations

import numpy as np

from astra.axes.base import Axis, Send
from astra.families.kinds import LayerKind
from astra.families.operators import Shard
from astra.families.transformer import head_dims
from astra.spec.model import ModelSpec

_BF16 = 2


def layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """Send c - 1 hops of this rank's keys and values; in backward also of their gradients."""
    del kind
    heads = model.heads / shard.tp if model.mla else np.maximum(model.kv_heads / shard.tp, 1.0)
    nbytes = _BF16 * shard.tokens * heads * sum(head_dims(model))
    hops = (shard.cp - 1).astype(np.float64)
    return [Send("send_recv", nbytes, shard.cp, shard.tp, hops, 2 * hops, beside="attention")]


CP = Axis(name="cp", title="context parallel", layer_sends=layer_sends)
