"""Closed forms of the schedules, as their papers give them and for sends besides: what the simulator must equal.

Letters as in ``astra.schedule.base``. Rows with unequal stages get a screening estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from astra.provenance import Bools, Floats, Ints
from astra.schedule.interleaved import group_size

Numbers = npt.ArrayLike


class PipelineShape(NamedTuple):
    """Columns of a pipeline with the work of one micro-batch, for closed forms."""

    p: Ints
    v: Ints
    m: Ints
    forward_s: Floats  # summed over all virtual stages
    backward_s: Floats  # likewise; without weight_s
    weight_s: Floats  # likewise
    slowest_s: Floats  # forward + backward + weight of the busiest rank
    send_s: Floats  # one hop between neighbouring virtual stages
    blocking: Bools  # whether the sender waits for the hop

    @property
    def work_s(self) -> Floats:
        """Compute of one micro-batch over all ranks."""
        return self.forward_s + self.backward_s + self.weight_s


def gpipe_s(shape: PipelineShape) -> Floats:
    """Fill, m rounds and drain, once forward and once backward (Huang et al. 2019)."""
    p, m = shape.p, shape.m
    hops = np.where(p > 1, 2 * (p - 1) + np.where(shape.blocking, 2 * (m - 1), 0), 0)
    return shape.work_s + (m - 1) * shape.slowest_s + hops * shape.send_s


def one_f_one_b_s(shape: PipelineShape) -> Floats:
    """Every stage once, then m-1 more rounds of the slowest: sum + (m-1) max (Narayanan et al. 2019; Astra 2025)."""
    compute_s = shape.work_s + (shape.m - 1) * shape.slowest_s
    return compute_s + exposed_hops(shape) * shape.send_s


def exposed_hops(shape: PipelineShape) -> Ints:
    """Hops on the critical path.

    Blocking: an inner rank stands still twice per micro-batch, the two outer ranks once. Not blocking: forwards and
    backwards are chained without slack, and the longest path runs down and up the pipeline once every p micro-batches.
    """
    p, m = shape.p, shape.m
    inner = np.where(m > 1, 2 * m + 2 * p - 5, 2 * (p - 1))
    blocking = np.where(p > 2, inner, m + 1)
    trips, rest = np.divmod(m - 1, p)
    waiting = 2 * (p - 1) * (1 + trips) + 2 * np.maximum(rest - 1, 0)
    return np.where(p > 1, np.where(shape.blocking, blocking, waiting), 0)


def interleaved_s(shape: PipelineShape) -> Floats:
    """Rounds of the slowest rank and a bubble of (p-1)/v stages (Narayanan et al. 2021, section 2.2).

    Equal stages, sends at most as long as a chunk's forward and backward: exact, but for blocking sends with p not
    dividing m, where it is a lower bound, as for longer sends. Fewer micro-batches than stages never fill it: the first
    goes through every chunk and back, the others follow a chunk behind each other.
    """
    full_s = shape.m * shape.slowest_s + (shape.work_s - shape.slowest_s) / shape.v
    compute_s = np.where(shape.m < shape.p, shape.work_s + (shape.m - 1) * shape.slowest_s / shape.v, full_s)
    sends_s = np.where(shape.blocking, _standing_s(shape), _fill_and_drain_s(shape))
    sends_s = np.where(shape.m < shape.p, 2 * (shape.p * shape.v - 1) * shape.send_s, sends_s)
    return compute_s + np.where(shape.p > 1, sends_s, 0.0)


def _standing_s(shape: PipelineShape) -> Floats:
    """Blocking: the last rank sends one chunk less than the ranks above it, but lies at the end of the fill."""
    p, v, m, send_s = shape.p, shape.v, shape.m, shape.send_s
    chunk_s = shape.work_s / (p * v)
    uneven_s = np.abs(2 * shape.forward_s / (p * v) - chunk_s)  # |forward - backward|
    last_s = (m * (2 * v - 1) + 2 * p - 3) * send_s
    inner_s = (2 * m * v + 2 * p - 5) * send_s - chunk_s + np.maximum(uneven_s - send_s, 0.0)
    return np.where(p > 2, np.maximum(last_s, inner_s), last_s)


def _fill_and_drain_s(shape: PipelineShape) -> Floats:
    """Hops hidden in the steady state show in fill and drain, also at each wrap from the last rank to the first.

    A group larger than p gives a wrap the time of the micro-batches beyond p.
    """
    p, v, m, send_s = shape.p, shape.v, shape.m, shape.send_s
    first = group_size(p, m)
    last = np.where(m % first == 0, first, m % first)
    forward_s, backward_s = shape.forward_s / (p * v), (shape.backward_s + shape.weight_s) / (p * v)
    fill_s = np.maximum(p * send_s - (first - p) * forward_s, 0.0)
    drain_s = np.maximum(p * send_s - (last - p) * backward_s, 0.0)
    return np.asarray(2 * (p - 1) * send_s + (v - 1) * (fill_s + drain_s))


def zero_bubble_s(shape: PipelineShape) -> Floats:
    """Equal stages, no sends, m >= p: m (f+b+w) + (p-1) max(f, b, f+b-w) (Qi et al. 2023 give the last of the three).

    The longest of the paths through the first and the last micro-batches. Exact for equal stages, but a lower bound
    when sends block (which no runtime of this schedule does). Rows with unequal stages use the mean for the bubble.
    """
    p, m = shape.p, shape.m
    f, b, w = shape.forward_s / p, shape.backward_s / p, shape.weight_s / p
    equal_s = np.maximum(_first_path_s(shape, f, b, w), _both_paths_s(shape, f, b, w))
    return equal_s + m * (shape.slowest_s - (f + b + w))


def _first_path_s(shape: PipelineShape, f: Floats, b: Floats, w: Floats) -> Floats:
    """The first micro-batch down and up to a rank, then all that this rank has left.

    Linear in the rank, so the outermost ranks that send one way and those that send both ways decide.
    """
    p, m, s = shape.p, shape.m, shape.send_s
    longest_s = np.zeros(np.shape(m))
    for rank in (0 * p, np.minimum(1, p - 1), np.maximum(p - 2, 0), p - 1):
        left = m - np.minimum(p - rank, m)  # forwards
        held = np.where(rank < p - 1, left, 0) + np.where(rank > 0, m, 0)
        hops = 2 * (p - 1) - rank + np.where(shape.blocking, held, 0)
        longest_s = np.maximum(longest_s, (p + left) * f + (p - 1 - rank + m) * b + m * w + hops * s)
    return longest_s


def _both_paths_s(shape: PipelineShape, f: Floats, b: Floats, w: Floats) -> Floats:
    """The first micro-batch down and up to a rank, its work until the last forward, the last one down and up again.

    Ends on rank j with the min(j+1, m) weight gradients held back there. Sends that take longer than half a weight
    gradient also show in between, once in p micro-batches.
    """
    p, m, s = shape.p, shape.m, shape.send_s
    first_rank = np.clip(p - m + 1, 0, p - 1)  # the first whose first backward comes before its last forward
    trips, rest = np.divmod(np.maximum(m - p - 1, 0), p)
    between_s = (trips * (p - 1) + np.maximum(rest - 1, 0)) * np.maximum(2 * s - w, 0.0)
    waiting_s = (4 * (p - 1) - 2 * first_rank) * s + between_s
    standing = np.where(p > 2, np.where(m > 1, 2 * m + 2 * p - 5, 2 * (p - 1)), m + 1)
    sends_s = np.where(p > 1, np.where(shape.blocking, standing * s, waiting_s), 0.0)
    path_s = (m + p - 1) * (f + b) + np.maximum(m - p, 0) * w + sends_s
    ends_s = [
        np.minimum(j + 1, m) * w - j * b - np.where(shape.blocking, np.maximum(j - 1, 0), j) * s
        for j in (0 * p, np.minimum(p, m) - 1, p - 1)
    ]
    return np.asarray(path_s + np.maximum(np.maximum(ends_s[0], ends_s[1]), ends_s[2]))


def zbv_s(shape: PipelineShape) -> Floats:
    """A lower bound: the last rank's wait for the first micro-batch, and all its work.

    Exact for equal stages with F, B and W alike and no sends; a lower bound otherwise, and the simulation decides.
    """
    p, m, last = shape.p, shape.m, shape.p - 1
    reached_s = last * (shape.forward_s / (p * 2) + shape.send_s)
    return np.asarray(reached_s + m * shape.slowest_s)


CLOSED_FORMS: Final[dict[str, Callable[[PipelineShape], Floats]]] = {
    "1f1b": one_f_one_b_s,
    "interleaved": interleaved_s,
    "gpipe": gpipe_s,
    "zb": zero_bubble_s,
    "zbv": zbv_s,
}


def makespan_s(
    name: str,
    *,
    p: int,
    v: int,
    m: int,
    forward_s: float,
    backward_s: float,
    weight_s: float = 0.0,
    slowest_s: float | None = None,
) -> Floats:
    """Seconds from the first forward to the last backward without sends; times are summed over all stages."""
    slowest_s = (forward_s + backward_s + weight_s) / p if slowest_s is None else slowest_s
    given = (p, v, m, forward_s, backward_s, weight_s, slowest_s, 0.0, False)
    return CLOSED_FORMS[name](PipelineShape._make(np.asarray(number) for number in given))
