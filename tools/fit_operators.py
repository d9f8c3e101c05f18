"""Fit the operator timing model from measurements and write the data files of ``astra.operators``.

    python -m tools.fit_operators --aiconfigurator systems/data --matmul M.csv --attention A.csv --out DIR
    python -m tools.fit_operators --profile h200.json --out DIR        (starts from the shipped files)

Held-out errors are printed and kept with the data. The same inputs give the same files.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from astra.catalog import hardware
from astra.operators.attention import KernelCurve
from astra.operators.basis import Peaks, read_json
from astra.operators.gemm import WEIGHTS, surfaces
from astra.provenance import Floats
from tools import fit_attention, fit_cudnn, fit_gemm, operator_rows
from tools.fit_gemm import Fitted, Key
from tools.operator_rows import Row, Sweep

FAMILIES: Final = {
    "A100-SXM4-80GB": "ampere",
    "L40S": "ampere",  # GDDR boards run FlashAttention-2 class kernels
    "RTXPRO6000-Blackwell": "ampere",
    "H100-SXM5-80GB": "hopper",
    "H200-SXM5-141GB": "hopper",
    "B200-SXM-180GB": "blackwell",
    "GB200-NVL72": "blackwell",
    "B300-SXM-288GB": "blackwell",
    "GB300-NVL72": "blackwell",
}
ANCHORS: Final = {"ampere": "A100-SXM4-80GB", "hopper": "H100-SXM5-80GB", "blackwell": "B200-SXM-180GB"}
_PROFILE_KERNELS: Final = {
    "flash": "flash2",
    "sdpa": "flash2",
    "flash2": "flash2",
    "cudnn": "cudnn",
    "flash3": "flash3",
}
# Odd inner sizes fall off the tuned kernels (1.2 times the time on H200). Model layers have none: they are not fitted.
_EVEN: Final = 64
# Operators that read and write each byte once: what a fraction of the memory rate can describe.
_SINGLE_PASS: Final = ("copy", "residual_add", "gelu", "gelu_bwd", "rmsnorm")
EPOCHS: Final = 400


def as_records(weights: Sequence[Mapping[str, Floats]]) -> npt.NDArray[np.void]:
    """The weights of every surface, a field for each name."""
    kinds = [(name, np.float32, np.shape(weights[0][name])) for name in WEIGHTS]
    return np.array([tuple(one[name] for name in WEIGHTS) for one in weights], dtype=kinds)


def main(argv: list[str] | None = None) -> int:
    """Command line of the fit."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_operators", description=__doc__)
    parser.add_argument("--aiconfigurator", type=Path, help="systems/data of ai-dynamo/aiconfigurator (needs pyarrow)")
    parser.add_argument("--matmul", type=Path, help="CSV of products")
    parser.add_argument("--attention", type=Path, help="CSV of attention kernels")
    parser.add_argument("--profile", type=Path, nargs="*", default=[], help="profiles of single GPUs")
    parser.add_argument("--out", type=Path, required=True, help="folder for the data files")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the rows")
    parser.add_argument("--no-hold-out", action="store_true", help="skip the fits that measure errors")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"))
    args = parser.parse_args(argv)
    profiles = [operator_rows.read_profile(path) for path in args.profile]
    matmul = operator_rows.read_csv(args.matmul) if args.matmul else []
    fits, gemm = fit_all_gemm(args.aiconfigurator, matmul, profiles, epochs=args.epochs, hold_out=not args.no_hold_out)
    attention = fit_all_attention(args.aiconfigurator, args.attention, profiles)
    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / "gemm.npy", as_records([fit.weights for fit in fits]))
    documents = {
        "gemm": gemm,
        "attention": attention,
        "streaming": fit_streaming(profiles),
        "clocks": clocks(profiles, fits, matmul),
    }
    for name, document in documents.items():
        dated = {"date": args.date, **{key: value for key, value in document.items() if key != "date"}}
        (args.out / f"{name}.json").write_text(json.dumps(dated, indent=1) + "\n")
    sys.stdout.write(report(gemm, attention))
    return 0


def fit_all_gemm(
    root: Path | None, matmul: Sequence[Row], profiles: Sequence[Row], *, epochs: int, hold_out: bool
) -> tuple[list[Fitted], Row]:
    """Every surface, and the document that describes them."""
    sweeps = operator_rows.read_aiconfigurator_gemm(root) if root else _csv_sweeps(matmul)
    if sweeps:
        fits = {key: fit_gemm.fit_sweep(key, sweep, epochs=epochs, hold_out=hold_out) for key, sweep in sweeps.items()}
        apart = fit_gemm.leave_gpu_out(fits, sweeps)
        fits = {key: _with_error(fit, apart.get(key)) for key, fit in fits.items()}
        training = list(operator_rows.csv_products(list(matmul), "SIMUMAX"))
        layouts, levels = fit_gemm.layout_levels(fits, training)
        best = fit_gemm.best_shape_levels(fits, list(operator_rows.csv_products(list(matmul), "MLE-MAMF")))
        levels = {**best, **levels}
    else:
        fits = {key: Fitted(surface.card, surface.weights) for key, surface in surfaces().items()}
        layouts, levels = (read_json("gemm.json")[name] for name in ("layouts", "levels"))
    for profile in profiles:
        fits.update(_refit(fits, profile, epochs=epochs))
    cards = [msgspec.to_builtins(fit.card) for fit in fits.values()]
    return list(fits.values()), {"layouts": layouts, "levels": levels, "surfaces": cards}


def _with_error(fit: Fitted, error: float | None) -> Fitted:
    if error is None:
        return fit
    return fit._replace(card=msgspec.structs.replace(fit.card, errors={**fit.card.errors, "left_out_gpu": error}))


def _csv_sweeps(matmul: Sequence[Row]) -> dict[Key, Sweep]:
    """The bf16 sweeps of a CSV; its fp8 rows contain the quantisation and are left alone."""
    out: dict[Key, Sweep] = {}
    products = [row for row in operator_rows.csv_products(list(matmul), "AIC-GEMM") if row["precision"] == "bf16"]
    for gpu in sorted({row["gpu"] for row in products}):
        own = [row for row in products if row["gpu"] == gpu]
        shape = np.array([[row["m"], row["n"], row["k"]] for row in own], np.float64)
        seconds = np.array([row["seconds"] for row in own])
        out[gpu, "bf16"] = Sweep(shape, seconds, np.ones(len(own)), 0.0, ("one version",))
    return out


def _refit(fits: Mapping[Key, Fitted], profile: Row, *, epochs: int) -> dict[Key, Fitted]:
    """The surfaces a profile has products for."""
    device = hardware.device(profile["gpu"])
    products = [row for row in profile["rows"] if row["op"] == "gemm" and row["n"] % _EVEN == row["k"] % _EVEN == 0]
    out = {}
    for precision in sorted({row["precision"] for row in products}):
        own = [row for row in products if row["precision"] == precision]
        base = fits.get((device.name, precision)) or fits.get((device.relative, precision))
        clock = profile.get("clock", "burst")
        out[device.name, precision] = fit_gemm.refit(base, device.name, precision, own, clock=clock, epochs=epochs)
    return out


def fit_all_attention(root: Path | None, path: Path | None, profiles: Sequence[Row]) -> Row:
    """Curves and levels, and how far context attention on each GPU is from its family's anchor."""
    if path is None:
        document = dict(read_json("attention.json"))
    else:
        rows = list(operator_rows.csv_attention(operator_rows.read_csv(path)))
        tables = operator_rows.read_aiconfigurator_attention(root) if root else {}
        anchors = {gpu: ANCHORS[family] for gpu, family in FAMILIES.items()}
        levels, context = fit_attention.context_levels(tables, anchors)
        curves = [curve for group in fit_attention.GROUPS for curve in fit_attention.fit_group(group, rows)]
        curves += fit_attention.derived(curves, rows)
        curves = [fit_attention.narrowed(curve) for curve in curves]
        document = {
            "gpus": {gpu: _gpu_entry(gpu, levels.get(gpu, 1.0)) for gpu in FAMILIES},
            "context": context,
            "curves": [msgspec.to_builtins(curve) for curve in curves],
        }
        document = fit_cudnn.with_cudnn(document, fit_cudnn.read_rows())
    for profile in profiles:
        document = _with_own_curves(document, profile)
    return document


def _gpu_entry(gpu: str, level: float) -> Row:
    device = hardware.device(gpu)
    peaks = Peaks(device.peak("bf16"), device.memory_bytes_per_s, device.sms)
    family = FAMILIES.get(gpu) or FAMILIES.get(device.relative, "ampere")
    return {"family": family, "level": level, "peaks": msgspec.to_builtins(peaks)}


def _with_own_curves(document: Row, profile: Row) -> Row:
    """The document with a GPU's own curves in place of its family's."""
    gpu = hardware.device(profile["gpu"]).name
    rows = [
        {**row, "gpu": gpu, "source": "profile", "kernel": _PROFILE_KERNELS[row["kernel"]]}
        for row in profile["rows"]
        if row["op"] == "attention" and row["kernel"] in _PROFILE_KERNELS and not row.get("window")
    ]
    curves = [msgspec.convert(curve, KernelCurve) for curve in document["curves"]]
    for kernel in sorted({row["kernel"] for row in rows}):
        own = [row for row in rows if row["kernel"] == kernel]
        tiles = next(
            (_tiles(curves, c) for c in curves if c.kernel == kernel and c.family == FAMILIES.get(gpu)), (128, 128)
        )
        group = fit_attention.Group(gpu, kernel, gpu, profile.get("clock", "burst"), tiles, ())
        curves = [curve for curve in curves if (curve.family, curve.kernel) != (gpu, kernel)]
        curves += fit_attention.fit_curves(group, own, sources=(f"profile of {gpu}",))
    gpus = document["gpus"] if gpu in document["gpus"] or not rows else {**document["gpus"], gpu: _gpu_entry(gpu, 1.0)}
    return {**document, "gpus": gpus, "curves": [msgspec.to_builtins(curve) for curve in curves]}


def _tiles(curves: Sequence[KernelCurve], like: KernelCurve) -> tuple[int, int]:
    """Block rows of a family's kernel, forward and backward."""
    found = {c.direction: c.tile for c in curves if (c.family, c.kernel) == (like.family, like.kernel)}
    return found.get("fwd", 128), found.get("bwd", 128)


def fit_streaming(profiles: Sequence[Row]) -> Row:
    """Achieved fraction of the memory rate and fixed time of a kernel, by least absolute log error."""
    document = dict(read_json("streaming.json"))
    for profile in profiles:
        rows = [row for row in profile["rows"] if row["op"] == "streaming" and row["name"] in _SINGLE_PASS]
        if not rows:
            continue
        device = hardware.device(profile["gpu"])
        nbytes, kernels, seconds = (
            np.array([float(r[name]) for r in rows]) for name in ("nbytes", "kernels", "seconds")
        )
        fraction, kernel_s = np.meshgrid(np.linspace(0.4, 1.0, 61), np.linspace(0.5e-6, 8e-6, 76), indexing="ij")
        modelled = nbytes / (fraction[..., None] * device.memory_bytes_per_s) + kernels * kernel_s[..., None]
        miss = np.mean(np.abs(np.log(modelled / seconds)), axis=2)
        at = np.unravel_index(np.argmin(miss), miss.shape)
        entry: Row = {"fraction": round(float(fraction[at]), 3), "kernel_s": round(float(kernel_s[at]), 8)}
        entry |= {"error": round(float(miss[at]), 4), "rows": len(rows), "source": f"profile of {device.name}"}
        document = {**document, "gpus": {**document["gpus"], device.name: entry}}
    return document


def clocks(profiles: Sequence[Row], fits: Sequence[Fitted], matmul: Sequence[Row]) -> Row:
    """Steady over burst throughput of GPUs with a long profile, or timed in the shapes of training."""
    document = dict(read_json("clocks.json"))
    by_key = {(fit.card.gpu, fit.card.precision): fit for fit in fits}
    training = list(operator_rows.csv_products(list(matmul), "SIMUMAX"))
    found = fit_gemm.training_clocks(by_key, training, "MooreThreads/SimuMax @4dcaae5: products of training shapes")
    document = {**document, "sustained": {**document["sustained"], **found}}
    for profile in profiles:
        for row in profile["rows"]:
            if row["op"] == "sustained":
                name = hardware.device(profile["gpu"]).name
                factor = min(1.0, float(row["sustained_flops_per_s"]) / float(row["burst_flops_per_s"]))
                entry = {
                    "factor": round(factor, 4),
                    "source": f"profile of {name}: steady over burst, one large product",
                }
                document = {**document, "sustained": {**document["sustained"], name: entry}}
    return document


def report(gemm: Row, attention: Row) -> str:
    """Calibration cards as text."""
    names = (
        "held_out_shapes", "held_out_m", "held_out_nk", "held_out_shapes_common", "left_out_gpu", "software_spread",
        "held_out_profile",
    )  # fmt: skip
    lines = [
        "products of 256 and more a side, mean absolute error (%)",
        f"{'':28}" + "".join(f"{n:>24}" for n in names),
    ]
    for card in gemm["surfaces"]:
        cells = "".join(f"{100 * card['errors'][n]:24.1f}" if n in card["errors"] else f"{'':24}" for n in names)
        lines.append(f"{card['gpu'] + ' ' + card['precision']:28}{cells}")
    lines += [f"layouts {gemm['layouts']}", "attention, cross-validated mean absolute error (%)"]
    lines += [
        f"{curve['family']:>18} {curve['kernel']:8}{curve['direction']:5}"
        f"{curve['rows']:5} rows {100 * curve['error']:6.1f}"
        for curve in attention["curves"]
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
