"""A user's own sweeps on top of the model: its seconds, times what was measured over what it says.

Where a group of that size and stride was measured, this gives the measured times, and follows the model's shape between
two sizes. Another group takes the ratio of the nearest one measured, inside a server or across servers as it is itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2

import numpy as np

from astra.provenance import Bools, Codes, Floats, Source, Timed
from astra.spec.cluster import CollectiveSweep, NodeType

Model = Callable[[Floats, Floats, Floats], Floats]  # bytes, ranks, stride -> seconds


def corrected(
    node: NodeType, op: str, size: Floats, ranks: Floats, stride: Floats, timed: Timed, model: Model
) -> Timed:
    """The model's times, drawn to the sweeps of the node where there are some of this kind."""
    seconds, source = timed.seconds.copy(), timed.source.copy()
    sweeps = [sweep for sweep in node.measured if sweep.op == op]
    for n, apart in {(n, apart) for n, apart in zip(ranks.ravel(), stride.ravel(), strict=True) if n > 1}:
        near = _nearest(
            [sweep for sweep in sweeps if _far(node, sweep.ranks, sweep.stride) == _far(node, n, apart)], n, apart
        )
        if near is not None:
            here: Bools = (ranks == n) & (stride == apart)
            seconds[here] *= _ratio(near, size[here], model)
            source[here] = _source(near, size[here], n, apart)
    return Timed(seconds, source)


def _far(node: NodeType, ranks: float, stride: float) -> bool:
    """Whether a group leaves the server."""
    return ranks * stride > node.gpus


def _nearest(sweeps: list[CollectiveSweep], ranks: float, stride: float) -> CollectiveSweep | None:
    def distance(sweep: CollectiveSweep) -> tuple[float, float]:
        return abs(log2(sweep.stride / stride)), abs(log2(sweep.ranks / ranks))

    return min(sweeps, key=distance, default=None)


def _ratio(sweep: CollectiveSweep, size: Floats, model: Model) -> Floats:
    """Measured over modelled, between sizes by their logarithms; beyond them as at the last."""
    sizes = np.array(sweep.nbytes)
    modelled = model(sizes, np.full(len(sizes), float(sweep.ranks)), np.full(len(sizes), float(sweep.stride)))
    ratios = np.log(np.array(sweep.seconds) / modelled)
    return np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), ratios))


def _source(sweep: CollectiveSweep, size: Floats, ranks: float, stride: float) -> Codes:
    if (sweep.ranks, sweep.stride) != (ranks, stride):
        beyond = ranks * stride > sweep.ranks * sweep.stride
        return np.full(size.shape, Source.TRANSFERRED if beyond else Source.INTERPOLATED, np.int8)
    inside = (size >= sweep.nbytes[0]) & (size <= sweep.nbytes[-1])
    return np.where(inside, Source.MEASURED, Source.INTERPOLATED).astype(np.int8)
