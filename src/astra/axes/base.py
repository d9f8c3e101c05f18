"""What a parallel dimension declares: its name, its ranks' place, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from astra.families.kinds import LayerKind
from astra.families.operators import Shard
from astra.provenance import Floats, Ints
from astra.spec.model import ModelSpec


class Send(NamedTuple):
    """A collective of one layer and micro-batch."""

    op: str  # an operation of efficiency.collectives
    nbytes: Floats  # as nccl-tests counts them
    ranks: Ints
    stride: Ints  # distance between members in global rank order
    forward: float | Floats  # how often in forward
    backward: float | Floats
    beside: str = ""  # the compute that hides it as a matter of course: "gemm", "attention" or none


LayerSends = Callable[[ModelSpec, LayerKind, Shard], list[Send]]
EdgeSends = Callable[[ModelSpec, Shard], list[Send]]


def no_layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """An axis that is silent inside layers."""
    del model, kind, shard
    return []


def no_edge_sends(model: ModelSpec, shard: Shard) -> list[Send]:
    """An axis that is silent in the embedding or the head."""
    del model, shard
    return []


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parallel dimension. ``degree`` is its strategy column; ``overlap`` the switch that hides what it sends."""

    name: str
    title: str
    degree: str = ""  # the name, unless it rides on the ranks of another dimension
    overlap: str = ""
    layer_sends: LayerSends = no_layer_sends
    embedding_sends: EdgeSends = no_edge_sends
    head_sends: EdgeSends = no_edge_sends
