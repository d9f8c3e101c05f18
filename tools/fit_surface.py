"""Fit the monotone network of ``operators.gemm`` to measured products, with NumPy alone.

Adam on a Huber loss of log time, weights projected onto zero or above after each step. Rows come in series (a clock, a
layout, a software): the first is the level that is learned, the others may differ from it by a constant factor.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.operators.gemm import FEATURES, MEMORY_FRACTION, Shapes, features
from astra.provenance import Bools, Floats, Ints

HIDDEN: Final = 36
_BATCH: Final = 256
_HUBER: Final = 0.03  # log time: beyond 3% an error counts linearly, so that outliers do not pull
_RATE: Final = 3e-3
_WARM_UP: Final = 200
_NEVER_NEGATIVE: Final = ("w1", "w2", "w3", "skip")
_FIRST_OVERHEAD_S: Final = 2.5e-6

Weights = dict[str, Floats]


class Rows(NamedTuple):
    """Measured products of one GPU at one precision."""

    shapes: Shapes
    nbytes: Floats  # moved by each product
    seconds: Floats
    weight: Floats
    series: Ints  # 0: the level to learn

    def pick(self, chosen: Bools) -> Rows:
        """Some of the rows."""
        shapes = Shapes(*(column[chosen] for column in self.shapes))
        return Rows(shapes, self.nbytes[chosen], self.seconds[chosen], self.weight[chosen], self.series[chosen])


class Fit(NamedTuple):
    """A trained network."""

    weights: Weights  # those of a surface, and "overhead": log seconds
    levels: Floats  # time of each series over that of series 0

    @property
    def overhead_s(self) -> float:
        """Fixed time of a kernel."""
        return float(np.exp(self.weights["overhead"]))


def train(
    rows: Rows,
    *,
    flops_per_s: float,
    bytes_per_s: float,
    sms: int,
    epochs: int,
    seed: int = 0,
    start: Weights | None = None,
) -> Fit:
    """Fit rows; ``start`` continues from a trained network."""
    rng = np.random.default_rng(seed)
    raw = features(rows.shapes, sms).T
    weights = _first(rng, raw, rows.shapes.flops) if start is None else {k: v.copy() for k, v in start.items()}
    x = (raw - weights["mean"]) / weights["scale"]
    memory_s = rows.nbytes / (MEMORY_FRACTION * bytes_per_s)
    levels = np.zeros(int(rows.series.max()) + 1)
    adam = _Adam(weights)
    steps = epochs * -(-len(x) // _BATCH)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for begin in range(0, len(x), _BATCH):
            some = order[begin : begin + _BATCH]
            target = np.log(rows.seconds[some]) - levels[rows.series[some]]
            gradient = _gradient(weights, x[some], memory_s[some], target, rows.weight[some], flops_per_s)
            adam.step(weights, gradient, rate=_rate(adam.count, steps, _RATE if start is None else _RATE / 3))
        if len(levels) > 1:
            levels = _levels(weights, x, memory_s, rows, flops_per_s)
    return Fit(weights, np.exp(levels))


def predict(fit_weights: Weights, rows: Rows, *, flops_per_s: float, bytes_per_s: float, sms: int) -> Floats:
    """Seconds at the level of series 0."""
    x = (features(rows.shapes, sms).T - fit_weights["mean"]) / fit_weights["scale"]
    return _seconds(fit_weights, x, rows.nbytes / (MEMORY_FRACTION * bytes_per_s), flops_per_s)[0]


def _first(rng: np.random.Generator, raw: Floats, flops: Floats) -> Weights:
    """Small random weights around time in proportion to FLOPs."""

    def positive(*size: int) -> Floats:
        return np.abs(rng.normal(size=size))

    mean, scale = raw.mean(0), raw.std(0) + 1e-9
    skip = np.zeros(FEATURES)
    skip[:3] = 0.8 * np.log(2.0) * scale[:3]
    return {
        "mean": mean,
        "scale": scale,
        "w1": positive(FEATURES, HIDDEN) * 1.5 / FEATURES,
        "b1": rng.normal(size=HIDDEN),
        "w2": positive(HIDDEN, HIDDEN) / HIDDEN,
        "b2": 0.5 * rng.normal(size=HIDDEN),
        "w3": positive(HIDDEN) / HIDDEN,
        "skip": skip,
        "bias": np.array(np.log(flops).mean() + 0.3),
        "overhead": np.array(np.log(_FIRST_OVERHEAD_S)),
    }


def _activate(z: Floats) -> tuple[Floats, Floats]:
    """``surface.activate`` and its slope."""
    third, two = z.shape[1] // 3, 2 * z.shape[1] // 3
    root = np.sqrt(1.0 + z * z)
    ratio = z / root
    value, slope = np.empty_like(z), np.empty_like(z)
    value[:, :third], slope[:, :third] = 0.5 * (z + root)[:, :third], 0.5 * (1.0 + ratio[:, :third])
    value[:, third:two], slope[:, third:two] = 0.5 * (z - root)[:, third:two], 0.5 * (1.0 - ratio[:, third:two])
    value[:, two:], slope[:, two:] = ratio[:, two:], root[:, two:] ** -3.0
    return value, slope


class _Trace(NamedTuple):
    first: Floats
    first_slope: Floats
    second: Floats
    second_slope: Floats
    busy_s: Floats
    both_s: Floats
    overhead_s: Floats


def _seconds(weights: Weights, x: Floats, memory_s: Floats, flops_per_s: float) -> tuple[Floats, _Trace]:
    first, first_slope = _activate(x @ weights["w1"] + weights["b1"])
    second, second_slope = _activate(first @ weights["w2"] + weights["b2"])
    busy_s = np.exp(second @ weights["w3"] + x @ weights["skip"] + weights["bias"]) / flops_per_s
    both_s = (busy_s**4 + memory_s**4) ** 0.25
    overhead_s = np.exp(weights["overhead"])
    return overhead_s + both_s, _Trace(first, first_slope, second, second_slope, busy_s, both_s, overhead_s)


def _gradient(
    weights: Weights, x: Floats, memory_s: Floats, target: Floats, row_weight: Floats, flops_per_s: float
) -> Weights:
    """Gradient of the weighted Huber loss of log time."""
    seconds, trace = _seconds(weights, x, memory_s, flops_per_s)
    miss = np.log(seconds) - target
    by_log = np.clip(miss / _HUBER, -1.0, 1.0) * row_weight / row_weight.sum()
    by_second = by_log / seconds
    by_output = by_second * (trace.busy_s / trace.both_s) ** 3 * trace.busy_s
    by_z2 = np.outer(by_output, weights["w3"]) * trace.second_slope
    by_z1 = (by_z2 @ weights["w2"].T) * trace.first_slope
    return {
        "w1": x.T @ by_z1,
        "b1": by_z1.sum(0),
        "w2": trace.first.T @ by_z2,
        "b2": by_z2.sum(0),
        "w3": trace.second.T @ by_output,
        "skip": x.T @ by_output,
        "bias": np.array(by_output.sum()),
        "overhead": np.array((by_second * trace.overhead_s).sum()),
    }


def _levels(weights: Weights, x: Floats, memory_s: Floats, rows: Rows, flops_per_s: float) -> Floats:
    """Median log ratio of each series; series 0 is the reference."""
    miss = np.log(rows.seconds / _seconds(weights, x, memory_s, flops_per_s)[0])
    out = np.array([np.median(miss[rows.series == index]) for index in range(int(rows.series.max()) + 1)])
    out[0] = 0.0
    return out


def _rate(step: int, steps: int, rate: float) -> float:
    """Warm up, then a cosine to zero."""
    return rate * min(1.0, (step + 1) / _WARM_UP) * 0.5 * (1.0 + float(np.cos(np.pi * step / steps)))


class _Adam:
    """Adam (Kingma and Ba 2015) with a projection onto weights at or above zero."""

    def __init__(self, weights: Weights) -> None:
        self.count = 0
        self._mean = {name: np.zeros_like(value) for name, value in weights.items()}
        self._square = {name: np.zeros_like(value) for name, value in weights.items()}

    def step(self, weights: Weights, gradient: Weights, *, rate: float) -> None:
        self.count += 1
        for name, slope in gradient.items():
            self._mean[name] = 0.9 * self._mean[name] + 0.1 * slope
            self._square[name] = 0.99 * self._square[name] + 0.01 * slope**2
            mean = self._mean[name] / (1.0 - 0.9**self.count)
            square = self._square[name] / (1.0 - 0.99**self.count)
            weights[name] = weights[name] - rate * mean / (np.sqrt(square) + 1e-9)
            if name in _NEVER_NEGATIVE:
                weights[name] = np.maximum(weights[name], 0.0)
