"""Expert parallelism: experts split over e ranks, tokens exchanged all-to-all; etp splits each expert again."""

from __future__ import annotations

import numpy as np

from astra.axes.base import Axis, Send
from astra.families.kinds import LayerKind
from astra.families.operators import Shard
from astra.spec.model import ModelSpec

_BF16 = 2


def layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """Dispatch and combine, each way; under expert tensor parallelism also a gather and a scatter."""
    if kind.mlp != "moe" or model.moe is None:
        return []
    nbytes = _BF16 * shard.routed_tokens * model.moe.topk * model.hidden
    one = np.ones_like(shard.etp)
    gathered = nbytes * shard.etp
    return [
        Send("all_to_all", nbytes, shard.ep, shard.etp, 2.0, 2.0),
        Send("all_gather", gathered, shard.etp, one, 1.0, 1.0),
        Send("reduce_scatter", gathered, shard.etp, one, 1.0, 1.0),
    ]


EP = Axis(name="ep", title="expert parallel", layer_sends=layer_sends)
