"""One module per block. BLOCKS is the one list of them, in the order a token passes them in a layer."""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.layers.block import Block, LayerKind
from astra.layers.blocks import attention, cross, delta_net, dense, experts, latent, state_space
from astra.layers.operators import Layer, Shard, join
from astra.spec.model import ModelSpec

__all__ = ["BLOCKS", "KERNELS", "blocks_of", "layer"]

BLOCKS: Final[tuple[Block, ...]] = (
    attention.BLOCK,
    latent.BLOCK,
    cross.BLOCK,
    state_space.BLOCK,
    delta_net.BLOCK,
    dense.BLOCK,
    experts.BLOCK,
)
KERNELS: Final = {name: kernel for block in BLOCKS for name, kernel in block.kernels.items()}
_BY_NAME: Final = {block.name: block for block in BLOCKS}


def blocks_of(kind: LayerKind) -> list[Block]:
    """The blocks of a layer."""
    return [_BY_NAME[name] for name in kind.blocks]


def layer(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """One layer of a kind on one rank: its blocks, one after another.

    Backward comes to the last block first: by the time it comes to another, those behind that have been given back.
    """
    blocks = [block.operators(model, kind, shard) for block in blocks_of(kind)]
    joined = join(*blocks)
    working, given_back = blocks[-1].kept.working, 0 * blocks[-1].kept.working
    for own, behind in zip(blocks[-2::-1], blocks[:0:-1], strict=True):
        given_back = given_back + behind.kept.whole
        working = np.maximum(working, own.kept.working - given_back)
    return joined._replace(kept=joined.kept._replace(working=working))
