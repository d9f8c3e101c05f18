"""Fit GEMM surfaces: a network for each GPU and precision, held-out errors, levels of layouts and relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from astra.catalog import hardware
from astra.errors import InputError
from astra.operators.basis import Peaks
from astra.operators.gemm import MEMORY_FRACTION, Card, Shapes, Surface, effective_flops, either, product_bytes
from astra.provenance import Bools, Floats
from astra.spec.cluster import Device
from tools.fit_surface import Rows, Weights, predict, train
from tools.operator_rows import Row, Sweep

Key = tuple[str, str]  # GPU, precision

LOWEST: Final = (16, 64, 64)  # m, n, k: smaller products do not occur in training
TRAINING: Final = (256, 256, 256)  # errors are told for products at least this large
_ELSEWHERE_WEIGHT: Final = 0.25
_HELD_M: Final = (768, 769, 1536, 1537, 3072, 3073, 8192)
_ANCHORS: Final = 3000
_MIN_PROFILE_ROWS: Final = 8
_LARGE_FLOPS: Final = 2e12  # of products so long that the clock has settled
# Whose surface a user would get if this GPU had not been measured.
STAND_IN: Final = {
    "A100-SXM4-80GB": "H100-SXM5-80GB",
    "H100-SXM5-80GB": "H200-SXM5-141GB",
    "H200-SXM5-141GB": "H100-SXM5-80GB",
    "B200-SXM-180GB": "H200-SXM5-141GB",
    "GB200-NVL72": "B200-SXM-180GB",
    "B300-SXM-288GB": "B200-SXM-180GB",
    "GB300-NVL72": "B300-SXM-288GB",
    "L40S": "A100-SXM4-80GB",
    "RTXPRO6000-Blackwell": "L40S",
}

SAME_DIE: Final = {"MI350X": "MI355X"}  # at a lower clock


class Fitted(NamedTuple):
    """A surface as fitted."""

    card: Card
    weights: Weights

    @property
    def surface(self) -> Surface:
        """As the run time sees it."""
        return Surface(self.card, self.weights)


def rows_of(sweep: Sweep, precision: str) -> Rows:
    """The rows of a sweep that training can meet, weighted."""
    kept = np.all(sweep.shape >= LOWEST, axis=1) & (sweep.share > 0.1) & (sweep.seconds > 1e-7)
    m, n, k = sweep.shape[kept].T
    shapes = Shapes(m, n, k, np.ones(len(m)))
    weight = np.where(_large(shapes), 1.0, _ELSEWHERE_WEIGHT) * sweep.share[kept] ** 2
    nbytes = product_bytes(shapes, precision, accumulated=False)
    return Rows(shapes, nbytes, sweep.seconds[kept], weight, np.zeros(len(m), np.int64))


def fit_sweep(key: Key, sweep: Sweep, *, epochs: int, hold_out: bool = True) -> Fitted:
    """One surface, with the errors of fits that did not see some of the rows."""
    gpu, precision = key
    rows, physics = rows_of(sweep, precision), _physics(hardware.device(gpu), precision)
    errors = {"software_spread": round(sweep.spread, 4)}
    for name, held in _hold_outs(rows.shapes).items() if hold_out else ():
        asked = held & _large(rows.shapes)
        if asked.any():
            seen = train(rows.pick(~held), **physics, epochs=epochs)
            errors[name] = _error(seen.weights, rows.pick(asked), physics)
            if (asked & _common(rows.shapes)).any():
                errors[f"{name}_common"] = _error(seen.weights, rows.pick(asked & _common(rows.shapes)), physics)
    whole = train(rows, **physics, epochs=epochs)
    errors["fitted"] = _error(whole.weights, rows.pick(_large(rows.shapes)), physics)
    card = Card(
        gpu=gpu,
        precision=precision,
        clock="burst",
        peaks=Peaks(physics["flops_per_s"], physics["bytes_per_s"], physics["sms"]),
        low=_ends(rows.shapes, np.min),
        high=_ends(rows.shapes, np.max),
        overhead_s=whole.overhead_s,
        layouts={},
        rows=len(rows.seconds),
        sources=tuple(f"ai-dynamo/aiconfigurator @095f58a {name}" for name in sweep.sources),
        errors=errors,
    )
    return Fitted(card, whole.weights)


def _physics(device: Device, precision: str) -> dict[str, Any]:
    return {"flops_per_s": device.peak(precision), "bytes_per_s": device.memory_bytes_per_s, "sms": device.sms}


def _ends(shapes: Shapes, pick: Any) -> tuple[float, float, float]:
    return float(pick(shapes.m)), float(pick(shapes.n)), float(pick(shapes.k))


def _large(shapes: Shapes) -> Bools:
    return (shapes.m >= TRAINING[0]) & (shapes.n >= TRAINING[1]) & (shapes.k >= TRAINING[2])


def _common(shapes: Shapes) -> Bools:
    """Layers of 1024 to 16384 a side on 512 tokens and more, in multiples of 16."""
    n, k = shapes.n, shapes.k
    large: Bools = (shapes.m >= 512) & (n >= 1024) & (k >= 1024)
    even: Bools = shapes.m % 16 == 0
    return large & even & (n <= 16384) & (k <= 16384)


def _hold_outs(shapes: Shapes) -> dict[str, Bools]:
    """A fifth of the shapes; whole values of m; a fifth of the (n, k) pairs."""
    rng = np.random.default_rng(1)
    pair = shapes.n * 1e6 + shapes.k
    pairs = np.unique(pair)
    return {
        "held_out_shapes": rng.random(len(shapes.m)) < 0.2,
        "held_out_m": np.isin(shapes.m, _HELD_M),
        "held_out_nk": np.isin(pair, pairs[rng.random(len(pairs)) < 0.2]),
    }


def _error(weights: Weights, rows: Rows, physics: Mapping[str, Any]) -> float:
    """Mean absolute relative error."""
    return round(float(np.mean(np.abs(predict(weights, rows, **physics) / rows.seconds - 1.0))), 4)


def leave_gpu_out(fits: Mapping[Key, Fitted], sweeps: Mapping[Key, Sweep]) -> dict[Key, float]:
    """Error of each GPU served by its stand-in's surface and its own data sheet."""
    out = {}
    for (gpu, precision), sweep in sweeps.items():
        other = fits.get((STAND_IN.get(gpu, ""), precision))
        if other is not None:
            rows = rows_of(sweep, precision)
            rows = rows.pick(_large(rows.shapes))
            seconds = _seconds(other, rows, hardware.device(gpu), precision)
            out[gpu, precision] = round(float(np.mean(np.abs(seconds / rows.seconds - 1.0))), 4)
    return out


def _seconds(fitted: Fitted, rows: Rows, device: Device, precision: str) -> Floats:
    """Burst seconds of rows on a device, by a surface."""
    busy_s = effective_flops(fitted.surface, rows.shapes, device.sms) / device.peak(precision)
    return fitted.card.overhead_s + either(busy_s, rows.nbytes / (MEMORY_FRACTION * device.memory_bytes_per_s))


def rows_from(products: Sequence[Row], precision: str, *, accumulated: bool) -> Rows:
    """Rows of one layout from plain records."""
    m, n, k = (np.array([float(row[name]) for row in products]) for name in "mnk")
    shapes = Shapes(m, n, k, np.ones(len(m)))
    seconds = np.array([float(row["seconds"]) for row in products])
    nbytes = product_bytes(shapes, precision, accumulated=accumulated)
    return Rows(shapes, nbytes, seconds, np.ones(len(m)), np.zeros(len(m), np.int64))


def layout_levels(fits: Mapping[Key, Fitted], products: Sequence[Row]) -> tuple[dict[str, float], dict[str, Any]]:
    """Time of dgrad and wgrad over fwd, from training-shape sweeps; and of measured GPUs that have no surface."""
    ratios: dict[str, list[float]] = {"dgrad": [], "wgrad": []}
    levels: dict[str, Any] = {}
    for gpu in sorted({row["gpu"] for row in products}):
        device = hardware.device(gpu)
        fitted = fits.get((gpu, "bf16")) or fits.get((device.relative, "bf16"))
        own = [row for row in products if row["gpu"] == gpu and row["precision"] == "bf16"]
        if fitted is None or not own:
            continue
        level = {}
        for layout in ("fwd", *ratios):
            rows = rows_from([r for r in own if r["layout"] == layout], "bf16", accumulated=layout == "wgrad")
            level[layout] = float(np.median(np.log(rows.seconds / _seconds(fitted, rows, device, "bf16"))))
        for layout, values in ratios.items():
            values.append(level[layout] - level["fwd"])
        if fitted.card.gpu != gpu:
            levels[gpu] = _level(np.exp(level["fwd"]), "sustained", len(own), "MooreThreads/SimuMax @4dcaae5")
    layouts = {"fwd": 1.0, **{name: round(float(np.exp(np.mean(v))), 4) for name, v in ratios.items() if v}}
    return {**dict.fromkeys(ratios, 1.0), **layouts}, levels


def training_clocks(fits: Mapping[Key, Fitted], products: Sequence[Row], source: str) -> dict[str, Any]:
    """Steady over burst throughput of GPUs with a surface of bursts, from products timed in the shapes of training."""
    out = {}
    for gpu in sorted({row["gpu"] for row in products}):
        fitted = fits.get((gpu, "bf16"))
        own = [row for row in products if row["gpu"] == gpu and row["layout"] == "fwd"]
        large = [row for row in own if 2 * row["m"] * row["n"] * row["k"] > _LARGE_FLOPS]
        if fitted is None or fitted.card.clock != "burst" or not large:
            continue
        device, rows = hardware.device(gpu), rows_from(large, "bf16", accumulated=False)
        ratio = np.median(_seconds(fitted, rows, device, "bf16") / rows.seconds)
        out[gpu] = {
            "factor": round(min(1.0, float(ratio)), 4), "precisions": ["bf16"], "generation": device.generation,
            "watts": device.power_w, "flops_per_s": device.peak("bf16"), "source": source,
        }  # fmt: skip
    return out


def best_shape_levels(fits: Mapping[Key, Fitted], products: Sequence[Row]) -> dict[str, Any]:
    """Levels of GPUs known only by their best product, against their relative's best product."""
    best = {
        row["gpu"]: 2.0 * row["m"] * row["n"] * row["k"] / row["seconds"]
        for row in products
        if row["precision"] == "bf16"
    }
    out = {}
    for gpu, flops_per_s in sorted(best.items()):
        if gpu not in hardware.names("devices") or (gpu, "bf16") in fits:
            continue
        device = hardware.device(gpu)
        if device.relative in best:
            theirs = best[device.relative] / hardware.device(device.relative).peak("bf16")
            factor = theirs / (flops_per_s / device.peak("bf16"))
            out[gpu] = _level(factor, "burst", 1, "stas00/ml-engineering @744d01e best product of a sweep")
    for gpu, same in SAME_DIE.items():
        if same in out and gpu not in out:
            out[gpu] = {**out[same], "rows": 0, "source": f"as the {same}, which is the same die"}
    return out


def _level(factor: float, clock: str, rows: int, source: str) -> dict[str, Any]:
    return {"factor": round(float(factor), 4), "clock": clock, "rows": rows, "source": source}


def refit(base: Fitted | None, gpu: str, precision: str, products: Sequence[Row], *, clock: str, epochs: int) -> Fitted:
    """A surface moved onto a profile's products; where the profile has none, it keeps the base's form."""
    device = hardware.device(gpu)
    if base is None:
        raise InputError(f"profile of {gpu}", precision, want="a GPU with a surface or a relative that has one")
    parts = []
    layouts = [name for name in ("fwd", "dgrad", "wgrad") if any(row["layout"] == name for row in products)]
    if layouts[:1] != ["fwd"] or len(products) < _MIN_PROFILE_ROWS:
        raise InputError(
            f"profile of {gpu}", len(products), want=f"{_MIN_PROFILE_ROWS} products or more, fwd among them"
        )
    for index, layout in enumerate(layouts):
        chosen = [row for row in products if row["layout"] == layout]
        rows = rows_from(chosen, precision, accumulated=any(row.get("accumulate") for row in chosen))
        parts.append(rows._replace(series=np.full(len(chosen), index)))
    profile, physics = _join(parts), _physics(device, precision)
    anchors = _anchors(base, device, precision, weight=0.5 * len(products) / _ANCHORS, series=len(layouts))
    held = np.random.default_rng(2).random(len(products)) < 0.2
    forward = profile.pick(profile.series == 0)
    shift = np.median(np.log(forward.seconds / _seconds(base, forward, device, precision)))
    start = {**base.weights, "bias": base.weights["bias"] + shift, "overhead": np.array(np.log(base.card.overhead_s))}
    seen = train(_join([profile.pick(~held), anchors]), **physics, epochs=epochs, start=start)
    level = seen.levels[profile.series[held]]
    miss = predict(seen.weights, profile.pick(held), **physics) * level / profile.seconds[held] - 1.0
    whole = train(_join([profile, anchors]), **physics, epochs=epochs, start=start)
    low, high = _ends(profile.shapes, np.min), _ends(profile.shapes, np.max)
    if base.card.gpu == gpu:
        low, high = tuple(map(min, low, base.card.low)), tuple(map(max, high, base.card.high))  # type: ignore[assignment]
    card = msgspec.structs.replace(
        base.card, gpu=gpu, precision=precision, clock=clock, low=low, high=high, overhead_s=whole.overhead_s,
        peaks=Peaks(physics["flops_per_s"], physics["bytes_per_s"], physics["sms"]),
        layouts={name: round(float(whole.levels[i]), 4) for i, name in enumerate(layouts)},
        rows=base.card.rows + len(products),
        sources=(*base.card.sources, f"profile of {gpu}"),
        errors={**base.card.errors, "held_out_profile": round(float(np.mean(np.abs(miss))), 4)},
    )  # fmt: skip
    return Fitted(card, whole.weights)


def _join(parts: Sequence[Rows]) -> Rows:
    shapes = Shapes(*(np.concatenate([getattr(part.shapes, name) for part in parts]) for name in Shapes._fields))
    return Rows(shapes, *(np.concatenate([part[i] for part in parts]) for i in range(1, len(Rows._fields))))


def _anchors(base: Fitted, device: Device, precision: str, *, weight: float, series: int) -> Rows:
    """What the base says of products spread over its range."""
    rng = np.random.default_rng(3)
    low, high = np.log(base.card.low), np.log(base.card.high)
    m, n, k = np.round(np.exp(rng.uniform(low, high, size=(_ANCHORS, 3)))).T
    shapes = Shapes(m, n, k, np.ones(_ANCHORS))
    nbytes = product_bytes(shapes, precision, accumulated=False)
    rows = Rows(shapes, nbytes, np.ones(_ANCHORS), np.full(_ANCHORS, weight), np.full(_ANCHORS, series))
    return rows._replace(seconds=_seconds(base, rows, device, precision))
