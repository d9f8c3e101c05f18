"""Fit the block model of ``operators.attention`` to measured kernels by damped least squares, few parameters each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from astra.catalog import hardware
from astra.operators.attention import OVERHEAD_S, AttentionShape, KernelCurve, curve_seconds, traffic_bytes
from astra.operators.gemm import MEMORY_FRACTION, either
from astra.provenance import Bools, Floats

Row = dict[str, Any]

# Before any row is seen. How heads fill the GPU (p, l) starts from what context attention shows on nine GPUs.
_PRIOR: Final = (("row_keys", 60.0), ("diagonal_keys", 60.0), ("power", 1.3), ("lone", 0.75))
_PRIOR_FRACTION: Final = 0.5
# Fraction of peak with heads of 64 over that with 128, where a kernel was timed on wider heads alone. Forward: context
# attention of TensorRT-LLM on B200 from 4k tokens on (559 of 885 TFLOP/s; GB200 0.59, GB300 0.66, B300 0.71). Backward:
# cuDNN in fp8 on GB200 and GB300, which computes what a window hides (mxfp8 0.58 and 0.60, fp8 0.60 and 0.59).
NARROW_DIM: Final = 64
_NARROW: Final = {"fwd": 0.63, "bwd": 0.59}
_PULL: Final = 0.02  # of a log unit away from the prior, against one row's log error
# Of p and l, where the rows cannot tell: batch x heads x length x width is constant, or heads fill the GPU in each.
_FILL_PULL: Final = 0.2
_MANY_HEADS: Final = 100
LONGEST_SEQ: Final = 65_536  # kernels of 50 ms and more show the GPU's power limit rather than the kernel
_ROBUST: Final = 0.05  # log error beyond which a row counts less
_FOLDS: Final = 5
_SIZES: Final = ("batch", "seq_q", "seq_kv", "heads", "kv_heads", "head_dim", "head_dim_v")


class Group(NamedTuple):
    """What one pair of curves (forward, backward) is fitted to."""

    family: str
    kernel: str
    gpu: str  # the level is this GPU's
    clock: str
    tiles: tuple[int, int]  # rows of a block, forward and backward
    names: tuple[str, ...]  # kernels as the sources call them
    others: tuple[str, ...] = ()  # GPUs whose rows shape the curve, at a level of their own
    precision: str = "bf16"  # whose peak the fractions are of
    skips: tuple[bool, bool] = (True, True)  # whether keys before a window take no time, forward and backward


GROUPS: Final = (
    Group(
        "ampere", "flash2", "A100-SXM4-80GB", "burst", (128, 128), ("FlashAttention-2", "TE/FA contig"),
        ("A100-PCIe-80GB",),
    ),
    Group("hopper", "flash2", "H100-SXM5-80GB", "burst", (128, 128), ("FlashAttention-2",)),
    Group("hopper", "flash3", "H100-SXM5-80GB", "burst", (128, 128), ("FlashAttention-3",)),
    Group("hopper", "cudnn", "H100-SXM5-80GB", "burst", (128, 128), ("cuDNN",)),
    Group("blackwell", "cudnn", "B200-SXM-180GB", "sustained", (256, 128), ("TE/FA contig", "TE/FA noncontig")),
)  # fmt: skip


class _Calls(NamedTuple):
    """Rows as columns."""

    shape: AttentionShape
    causal: Bools
    window: Floats  # keys a query sees, infinite without a window
    seconds: Floats
    ways: tuple[Bools, Bools]  # whether the time contains forward, backward
    flops_per_s: Floats
    bytes_per_s: Floats
    sms: Floats
    other: Bools  # not the group's own GPU

    def pick(self, chosen: Any) -> _Calls:
        return _Calls(
            AttentionShape(*(column[chosen] for column in self.shape)),
            self.causal[chosen], self.window[chosen], self.seconds[chosen],
            (self.ways[0][chosen], self.ways[1][chosen]), self.flops_per_s[chosen], self.bytes_per_s[chosen],
            self.sms[chosen], self.other[chosen],
        )  # fmt: skip


def fit_group(group: Group, rows: Sequence[Row]) -> list[KernelCurve]:
    """Forward and backward curves of a group, with the error of rows left out of the fit."""
    kept = [r for r in rows if r["gpu"] in (group.gpu, *group.others) and r["kernel"] in group.names]
    kept = [row for row in kept if row["seq_q"] <= LONGEST_SEQ]
    return fit_curves(group, kept, sources=tuple(sorted({row["source"] for row in kept}))) if kept else []


def fit_curves(group: Group, rows: Sequence[Row], *, sources: tuple[str, ...]) -> list[KernelCurve]:
    """Curves from rows of one kernel."""
    calls = columns_of(rows, group.gpu, group.precision)
    order = np.random.default_rng(0).permutation(len(rows)) % _FOLDS
    misses = np.zeros(len(rows))
    model = _Model(group, calls)
    if len(rows) >= 2 * _FOLDS:
        for fold in range(_FOLDS):
            seen = _least_squares(partial(model.residual, calls=calls.pick(order != fold)), model.first)
            misses[order == fold] = model.log_error(seen, calls.pick(order == fold))
    theta = _least_squares(partial(model.residual, calls=calls), model.first)
    out = []
    for way, curve in enumerate(model.curves(theta)):
        inside = calls.ways[way]
        if not inside.any():
            continue
        seqs = calls.shape.seq_q[inside]
        out.append(
            msgspec.structs.replace(
                curve,
                low_seq=float(seqs.min()),
                high_seq=float(seqs.max()),
                rows=int(inside.sum()),
                error=round(float(np.mean(np.abs(np.expm1(misses[inside])))), 4),
                sources=sources,
            )
        )
    return out


def columns_of(rows: Sequence[Row], own: str, precision: str = "bf16") -> _Calls:
    """Rows as columns; ``own`` is the GPU whose level is sought."""
    devices = {name: hardware.device(name) for name in {row["gpu"] for row in rows}}
    column = {name: np.array([float(row[name]) for row in rows]) for name in (*_SIZES, "seconds")}
    return _Calls(
        AttentionShape(*(column[name] for name in _SIZES)),
        np.array([bool(row["causal"]) for row in rows]),
        np.array([float(row.get("window") or np.inf) for row in rows]),
        column["seconds"],
        (np.array(["fwd" in r["direction"] for r in rows]), np.array(["bwd" in r["direction"] for r in rows])),
        np.array([devices[row["gpu"]].peak(precision) for row in rows]),
        np.array([devices[row["gpu"]].memory_bytes_per_s for row in rows]),
        np.array([float(devices[row["gpu"]].sms) for row in rows]),
        np.array([row["gpu"] != own for row in rows]),
    )


def seconds_of(curve: KernelCurve, calls: _Calls, level: Floats | float = 1.0) -> Floats:
    """What a curve says of each row."""
    busy_s = curve_seconds(
        curve, calls.shape, causal=calls.causal, window=calls.window, sms=calls.sms,
        flops_per_s=calls.flops_per_s * level,
    )  # fmt: skip
    memory_s = traffic_bytes(calls.shape, curve.direction) / (MEMORY_FRACTION * calls.bytes_per_s)
    return OVERHEAD_S + either(busy_s, memory_s)


class _Model:
    """Parameters as a vector of logarithms: for each direction c, x, p - 1, l and fractions; then the others' level."""

    def __init__(self, group: Group, calls: _Calls) -> None:
        self.group = group
        dim = 0.5 * (calls.shape.head_dim + calls.shape.head_dim_v)
        self.dims = [np.unique(dim[way]) if way.any() else np.array([128.0]) for way in calls.ways]
        size = np.log(calls.shape.batch * calls.shape.heads * calls.shape.seq_q * dim)
        filled = float(np.min(calls.shape.batch * calls.shape.heads)) > _MANY_HEADS
        fill = _FILL_PULL if filled or np.ptp(size) < 0.1 else _PULL
        first: list[float] = []
        pull: list[float] = []
        for dims in self.dims:
            first += [float(np.log(value - (name == "power"))) for name, value in _PRIOR]
            first += [float(np.log(_PRIOR_FRACTION))] * len(dims)
            pull += [_PULL, _PULL, fill, fill, *([_PULL] * len(dims))]
        self.first = np.array([*first, 0.0])
        self.pull = np.array([*pull, _PULL])

    def curves(self, theta: Floats) -> list[KernelCurve]:
        """The two curves a vector stands for."""
        out, at = [], 0
        for way, (direction, dims) in enumerate(zip(("fwd", "bwd"), self.dims, strict=True)):
            values = np.exp(theta[at : at + 4 + len(dims)])
            at += 4 + len(dims)
            group = self.group
            out.append(
                KernelCurve(
                    family=group.family, kernel=group.kernel, direction=direction, gpu=group.gpu, clock=group.clock,
                    tile=group.tiles[way], row_keys=float(values[0]), diagonal_keys=float(values[1]),
                    power=1.0 + float(values[2]), lone=float(values[3]), dims=tuple(map(float, dims)),
                    fractions=tuple(float(value) for value in np.minimum(values[4:], 1.0)),
                    low_seq=0.0, high_seq=0.0, rows=0, error=0.0, sources=(), skips=group.skips[way],
                )
            )  # fmt: skip
        return out

    def seconds(self, theta: Floats, calls: _Calls) -> Floats:
        """What the curves say of each row."""
        total = np.zeros(len(calls.seconds))
        for way, curve in zip(calls.ways, self.curves(theta), strict=True):
            if not way.any():
                continue
            total[way] += seconds_of(curve, calls.pick(way))
        return total * np.where(calls.other, np.exp(theta[-1]), 1.0)

    def log_error(self, theta: Floats, calls: _Calls) -> Floats:
        """Log of predicted over measured."""
        return np.log(self.seconds(theta, calls) / calls.seconds)

    def residual(self, theta: Floats, calls: _Calls) -> Floats:
        """Robust errors of the rows, and the pull of the prior."""
        miss = self.log_error(theta, calls)
        robust = np.sign(miss) * _ROBUST * np.sqrt(2.0 * (np.sqrt(1.0 + (miss / _ROBUST) ** 2) - 1.0))
        return np.concatenate([robust, self.pull * (theta - self.first)])


def _least_squares(residual: Callable[[Floats], Floats], start: Floats, steps: int = 80) -> Floats:
    """Levenberg and Marquardt with a numerical Jacobian."""
    theta, damping = start.copy(), 1e-2
    now = residual(theta)
    for _ in range(steps):
        jacobian = np.stack([(residual(theta + _nudge(len(theta), i)) - now) / 1e-5 for i in range(len(theta))], axis=1)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ now
        moved = theta - np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slope)
        moved = np.clip(moved, start - 4.0, start + 4.0)
        then = residual(moved)
        if then @ then < now @ now:
            done = now @ now - then @ then < 1e-10 * (now @ now)
            theta, now, damping = moved, then, damping / 3.0
            if done:
                break
        else:
            damping *= 4.0
            if damping > 1e8:
                break
    return theta


def _nudge(size: int, index: int) -> Floats:
    out = np.zeros(size)
    out[index] = 1e-5
    return out


def context_levels(
    tables: dict[str, dict[str, Floats]], anchors: dict[str, str]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Each GPU's fraction of peak over that of its family's anchor, and the anchors' block parameters.

    From context attention with 128-wide heads, which every GPU ran with the same library: good for comparing GPUs and
    for how heads fill them, not for the level of a training kernel.
    """
    fits = {gpu: _context_fit(gpu, table) for gpu, table in sorted(tables.items())}
    levels = {
        gpu: round(fit["fraction"] / fits[anchors[gpu]]["fraction"], 4)
        for gpu, fit in fits.items()
        if anchors[gpu] in fits
    }
    return levels, fits


def _context_fit(gpu: str, table: dict[str, Floats]) -> dict[str, float]:
    chosen = (table["head_dim"] == 128) & (table["isl"] >= 1024) & (table["latency"] >= 0.03)
    index = np.flatnonzero(chosen)
    index = np.random.default_rng(0).permutation(index)[:1500]
    rows = [
        {
            "gpu": gpu, "direction": "fwd", "causal": True, "head_dim": 128, "head_dim_v": 128,
            "batch": table["batch_size"][i], "seq_q": table["isl"][i], "seq_kv": table["isl"][i],
            "heads": table["num_heads"][i], "kv_heads": table["num_key_value_heads"][i],
            "seconds": float(table["latency"][i]) * 1e-3,
        }
        for i in index
    ]  # fmt: skip
    group = Group("context", "fmha", gpu, "burst", (128, 128), ())
    curve = fit_curves(group, rows, sources=())[0]
    return {
        "fraction": curve.fractions[0], "power": curve.power, "lone": curve.lone, "error": curve.error,
        "row_keys": curve.row_keys, "diagonal_keys": curve.diagonal_keys, "rows": float(curve.rows),
    }  # fmt: skip


def derived(curves: Sequence[KernelCurve], rows: Sequence[Row]) -> list[KernelCurve]:
    """Curves without rows of their own to fit: FlashAttention-4 by its level, FlashAttention-2 on Blackwell by rule."""
    by_key = {(curve.family, curve.kernel, curve.direction): curve for curve in curves}
    out = []
    for way in ("fwd", "bwd"):
        cudnn, hopper = by_key.get(("blackwell", "cudnn", way)), by_key.get(("hopper", "flash2", way))
        if cudnn is not None:
            level = _in_step_level([by_key["blackwell", "cudnn", way] for way in ("fwd", "bwd")], rows)
            out.append(
                _scaled(cudnn, level, kernel="flash4", rows=1, sources=("stas00/ml-engineering @744d01e in-step",))
            )
        if hopper is not None:
            # FlashAttention-2 issues the tensor instructions of Ampere, which a multiprocessor of Blackwell runs no
            # faster than one of Hopper: a rule, not a measurement.
            ratio = _flops_per_sm("H100-SXM5-80GB") / _flops_per_sm("B200-SXM-180GB")
            out.append(
                _scaled(hopper, ratio, family="blackwell", gpu="", rows=0, sources=("as many FLOPs per SM as on H100",))
            )
    return out


def narrowed(curve: KernelCurve) -> KernelCurve:
    """A curve timed on wide heads alone, with heads of 64: softmax costs as much, products half."""
    if min(curve.dims) <= NARROW_DIM:
        return curve
    narrow = _NARROW[curve.direction] * float(np.interp(128.0, curve.dims, curve.fractions))
    return msgspec.structs.replace(curve, dims=(float(NARROW_DIM), *curve.dims), fractions=(narrow, *curve.fractions))


def _scaled(curve: KernelCurve, level: float, **changes: Any) -> KernelCurve:
    fractions = tuple(min(1.0, fraction * level) for fraction in curve.fractions)
    return msgspec.structs.replace(curve, fractions=fractions, error=0.0, **changes)


def _flops_per_sm(gpu: str) -> float:
    device = hardware.device(gpu)
    return device.peak("bf16") / device.sms


def _in_step_level(curves: Sequence[KernelCurve], rows: Sequence[Row]) -> float:
    """Speed of the kernel timed inside a training step over that of the curves."""
    inside = [row for row in rows if row["source"] == "MLE-UPGRADE" and row["gpu"] == curves[0].gpu]
    if not inside:
        return 1.0
    group = Group("", "", curves[0].gpu, "", (128, 128), ())
    calls = columns_of(inside, group.gpu)
    seconds = sum(
        curve_seconds(c, calls.shape, causal=calls.causal, window=None, sms=calls.sms, flops_per_s=calls.flops_per_s)
        for c in curves
    )
    return float(np.median(seconds / calls.seconds))
