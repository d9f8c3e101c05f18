"""Curves of cuDNN's attention on GB200 and GB300: in fp8, and in bf16 with heads of 64 behind a window.

``data/cudnn_attention.csv`` restates NVIDIA's own benchmark: NVIDIA/cudnn-frontend @3929da2,
benchmark/sdpa_benchmark_training/results, cuDNN 9.22, ten calls each, backward as its users get it (not deterministic).
The shapes are those of Llama 3.1 (64 heads of 128, 8 of keys and values), DeepSeek-V3, Kimi K2 and GPT-OSS. Ten calls
are a burst. The table has bf16 too, so that the curves in fp8 are brought to the clock of the family's bf16 curve,
which was timed under load: what fp8 gains over bf16 stays what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from astra.operators.attention import FP8_KERNELS, KernelCurve
from astra.provenance import Floats
from tools import operator_rows
from tools.fit_attention import Group, columns_of, fit_curves, narrowed, seconds_of
from tools.operator_rows import Row

TABLE: Final = Path(__file__).parent / "data" / "cudnn_attention.csv"
SOURCE: Final = "NVIDIA/cudnn-frontend @3929da2"
_PRECISIONS: Final = {"mxfp8": FP8_KERNELS["mxfp8"], "fp8": FP8_KERNELS["tensorwise"]}
_TILES: Final = (256, 128)
_MOST_EDGE: Final = 2000.0
# GPUs without rows of their own, and whose curves in fp8 they take at the level that context attention shows: the board
# with the same chip.
LIKE: Final = {"B200-SXM-180GB": "GB200-NVL72", "B300-SXM-288GB": "GB300-NVL72"}


def read_rows(path: Path = TABLE) -> list[Row]:
    """The table, one row for each kernel."""
    return [
        {
            "gpu": row["gpu"], "precision": row["precision"], "direction": row["direction"],
            "peak": "bf16" if row["precision"] == "bf16" else "fp8",
            "causal": row["causal"] == "1", "window": row["window"], "seconds": float(row["ms"]) * 1e-3,
            "seq_q": row["seq"], "seq_kv": row["seq"],
            **{name: row[name] for name in ("batch", "heads", "kv_heads", "head_dim", "head_dim_v")},
        }
        for row in operator_rows.read_csv(path)
    ]  # fmt: skip


def with_cudnn(document: Row, rows: Sequence[Row]) -> Row:
    """The attention document with these curves, and the edge of a window in the bf16 curve."""
    levels = {gpu: entry["level"] for gpu, entry in document["gpus"].items()}
    curves = [msgspec.convert(curve, KernelCurve) for curve in document["curves"]]
    plain = {c.direction: c for c in curves if (c.family, c.kernel) == ("blackwell", "cudnn")}
    curves = [curve for curve in curves if curve.kernel not in FP8_KERNELS.values() and curve not in plain.values()]
    bursts = [row for row in rows if row["precision"] == "bf16"]
    for way, curve in plain.items():
        curves.append(_edged(curve, [row for row in bursts if row["direction"] == way], levels))
    for gpu in sorted({row["gpu"] for row in rows}):
        steady = {way: _steady(curve, _picked(bursts, gpu, way), levels) for way, curve in plain.items()}
        for precision, kernel in _PRECISIONS.items():
            own = [row for row in rows if (row["gpu"], row["precision"]) == (gpu, precision)]
            curves += [_slowed(curve, steady[curve.direction]) for curve in _own_curves(gpu, kernel, own)]
    gpus = {gpu: entry | ({"like": LIKE[gpu]} if gpu in LIKE else {}) for gpu, entry in document["gpus"].items()}
    return {**document, "gpus": gpus, "curves": [msgspec.to_builtins(curve) for curve in curves]}


def _own_curves(gpu: str, kernel: str, rows: Sequence[Row]) -> list[KernelCurve]:
    """Forward and backward in fp8; forward was timed on heads of 64 behind a window alone, which backward ignores."""
    group = Group(gpu, kernel, gpu, "sustained", _TILES, (), precision="fp8", skips=(True, False))
    whole = [row for row in rows if row["direction"] == "bwd" or not row["window"]]
    forward, backward = fit_curves(group, whole, sources=(SOURCE,))
    return [_edged(narrowed(forward), _picked(rows, gpu, "fwd"), {gpu: 1.0}), backward]


def _picked(rows: Sequence[Row], gpu: str, way: str) -> list[Row]:
    return [row for row in rows if (row["gpu"], row["direction"]) == (gpu, way)]


def _steady(curve: KernelCurve, rows: Sequence[Row], levels: Mapping[str, float]) -> float:
    """Speed of a curve over that of bursts without a window."""
    return float(np.exp(np.median(_log_ratio(curve, [row for row in rows if not row["window"]], levels))))


def _log_ratio(curve: KernelCurve, rows: Sequence[Row], levels: Mapping[str, float]) -> Floats:
    """Logarithm of measured over predicted seconds."""
    calls = columns_of(rows, curve.gpu, rows[0]["peak"])
    level = np.array([levels[row["gpu"]] for row in rows])
    found: Floats = np.log(calls.seconds / seconds_of(curve, calls, level))
    return found


def _edged(curve: KernelCurve, rows: Sequence[Row], levels: Mapping[str, float]) -> KernelCurve:
    """The curve with the work on a window's edge that puts rows with a window as near as those without one are."""
    by_gpu = [[row for row in rows if row["gpu"] == gpu] for gpu in sorted({row["gpu"] for row in rows})]

    def away(edge_keys: float) -> float:
        tried = msgspec.structs.replace(curve, edge_keys=edge_keys)
        behind = [np.median(_log_ratio(tried, [row for row in own if row["window"]], levels)) for own in by_gpu]
        return float(np.mean(behind)) - float(np.mean([np.log(_steady(curve, own, levels)) for own in by_gpu]))

    low, high = 0.0, _MOST_EDGE
    for _ in range(40):  # measured over predicted falls with the work
        middle = 0.5 * (low + high)
        low, high = (middle, high) if away(middle) > 0 else (low, middle)
    sources = (*(source for source in curve.sources if source != SOURCE), SOURCE)
    return msgspec.structs.replace(curve, edge_keys=round(low, 1), sources=sources)


def _slowed(curve: KernelCurve, speed: float) -> KernelCurve:
    return msgspec.structs.replace(curve, fractions=tuple(fraction * speed for fraction in curve.fractions))
