"""Fitting: recovers what made the rows, repeats itself, and takes a profile as a GPU's own truth."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astra.catalog import hardware
from astra.errors import InputError
from astra.operators.attention import OVERHEAD_S, KernelCurve, attention, curve_seconds, traffic_bytes
from astra.operators.basis import sustained
from astra.operators.gemm import Card, Shapes, either, gemm, product_bytes
from tools import fit_attention, fit_gemm, fit_operators, operator_rows
from tools.fit_surface import Rows, predict, train
from tools.operator_rows import Sweep

H200 = "H200-SXM5-141GB"
PHYSICS: dict[str, Any] = {"flops_per_s": 1e15, "bytes_per_s": 4e12, "sms": 132}


def products(count: int, seed: int = 0) -> Shapes:
    m, n, k = np.round(2 ** np.random.default_rng(seed).uniform(8, 14, size=(3, count)))
    return Shapes(m, n, k, np.ones(count))


def made_up_seconds(shapes: Shapes) -> Any:
    """A GPU that wastes half its last wave, ramps up over k and moves every byte at 0.9 of the memory rate."""
    waves = np.ceil(np.ceil(shapes.m / 128) * np.ceil(shapes.n / 128) / 132)
    results = 0.5 * (waves * 132 * 128 * 128 + shapes.m * shapes.n)
    busy_s = 2 * results * (shapes.k + 200) / 0.8e15
    return 3e-6 + np.maximum(busy_s, product_bytes(shapes, "bf16", accumulated=False) / 3.6e12)


def rows(count: int, seed: int = 0, level: float = 1.0) -> Rows:
    shapes = products(count, seed)
    seconds = made_up_seconds(shapes) * level
    return Rows(
        shapes, product_bytes(shapes, "bf16", accumulated=False), seconds, np.ones(count), np.zeros(count, np.int64)
    )


def test_a_made_up_gpu_is_learned() -> None:
    fit = train(rows(3000), **PHYSICS, epochs=120)
    unseen = rows(500, seed=1)
    error = np.abs(predict(fit.weights, unseen, **PHYSICS) / unseen.seconds - 1)
    assert error.mean() < 0.05
    assert all(np.all(fit.weights[name] >= 0) for name in ("w1", "w2", "w3", "skip"))


def test_the_same_rows_give_the_same_fit() -> None:
    first, second = (train(rows(600), **PHYSICS, epochs=3) for _ in range(2))
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_a_series_at_another_level_moves_its_level_not_the_surface() -> None:
    fast, slow = rows(1500), rows(1500, seed=1, level=1.3)
    both = fit_gemm._join([fast, slow._replace(series=np.ones(1500, np.int64))])
    fit = train(both, **PHYSICS, epochs=40)
    assert fit.levels[0] == 1.0
    assert fit.levels[1] == pytest.approx(1.3, rel=0.03)


def test_median_over_versions_ignores_a_slow_one() -> None:
    shape = np.array([[256.0, 256.0, 256.0], [512.0, 512.0, 512.0]])
    versions = [
        (name, shape, np.array([1.0, 2.0]) * level, np.ones(2)) for name, level in (("a", 1), ("b", 1), ("c", 9))
    ]
    sweep = operator_rows._median(versions)
    np.testing.assert_allclose(sweep.seconds, [1.0, 2.0])
    assert sweep.spread == pytest.approx(np.log(9) / 3)


def test_held_out_errors_are_told() -> None:
    shapes = products(900)
    sweep = Sweep(np.stack(shapes[:3], axis=1), made_up_seconds(shapes), np.ones(900), 0.02, ("test",))
    fitted = fit_gemm.fit_sweep((H200, "bf16"), sweep, epochs=2)
    assert {"held_out_shapes", "held_out_nk", "software_spread", "fitted"} <= set(fitted.card.errors)
    assert fitted.card.high[0] <= 2**14


def test_attention_curves_are_recovered() -> None:
    truth = KernelCurve(
        family="x", kernel="y", direction="fwd", gpu=H200, clock="burst", tile=128, row_keys=150.0, diagonal_keys=90.0,
        power=1.6, lone=1.1, dims=(64.0, 128.0), fractions=(0.4, 0.6), low_seq=0, high_seq=0, rows=0, error=0,
        sources=(),
    )  # fmt: skip
    calls = [
        {"gpu": H200, "direction": "fwd", "causal": causal, "batch": batch, "seq_q": seq, "seq_kv": seq, "heads": heads,
         "kv_heads": heads, "head_dim": dim, "head_dim_v": dim, "seconds": 1.0}
        for seq in (512, 2048, 8192) for batch in (1, 4) for heads in (4, 32) for dim in (64, 128) for causal in (0, 1)
    ]  # fmt: skip
    group = fit_attention.Group("x", "y", H200, "burst", (128, 128), ())
    columns = fit_attention.columns_of(calls, H200)
    device = hardware.device(H200)
    busy_s = curve_seconds(
        truth, columns.shape, causal=columns.causal, window=None, sms=device.sms, flops_per_s=device.peak("bf16")
    )
    memory_s = traffic_bytes(columns.shape, "fwd") / (0.92 * device.memory_bytes_per_s)
    seconds = OVERHEAD_S + either(busy_s, memory_s)
    found = fit_attention.fit_curves(
        group, [{**c, "seconds": s} for c, s in zip(calls, seconds, strict=True)], sources=()
    )
    assert len(found) == 1
    assert found[0].error < 0.01
    np.testing.assert_allclose(found[0].fractions, truth.fractions, rtol=0.03)


def profile(level: float) -> dict[str, Any]:
    """A profile of an H200 whose kernels take ``level`` times what is shipped."""
    device = hardware.device(H200)
    listed: list[dict[str, Any]] = []
    clock = sustained(device, "bf16")
    for layout in ("fwd", "dgrad", "wgrad"):
        for m, n, k in 64 * np.ceil(np.stack(products(40, seed=7)[:3], axis=1) / 64):
            shape: dict[str, Any] = {"m": int(m), "n": int(n), "k": int(k), "precision": "bf16"}
            burst_s = float(gemm(device, **shape, layout="fwd").seconds) * clock
            listed.append(
                {
                    "op": "gemm",
                    "layout": layout,
                    **shape,
                    "seconds": burst_s * level * (1.1 if layout == "wgrad" else 1),
                }
            )
    for seq in (1024, 2048, 4096, 8192):
        for heads in (4, 16, 32):
            shape = {
                "batch": 1,
                "seq_q": seq,
                "seq_kv": seq,
                "heads": heads,
                "kv_heads": 4,
                "head_dim": 128,
                "head_dim_v": 128,
            }
            for way in ("fwd", "bwd"):
                timed = attention(
                    device, **shape, causal=True, window=None, kernel="flash2", direction=way, precision="bf16"
                )
                row = {"op": "attention", "direction": way, **shape, "causal": True, "kernel": "flash"}
                listed.append({**row, "seconds": float(timed.seconds) * clock * level})
    listed += [
        {"op": "streaming", "name": "rmsnorm", "nbytes": nbytes, "kernels": 1, "seconds": 2e-6 + nbytes / 3.6e12}
        for nbytes in (1e6, 1e8, 1e9)
    ]
    listed.append({"op": "sustained", "burst_flops_per_s": 800e12, "sustained_flops_per_s": 700e12})
    listed.append({"op": "gemm", "layout": "fwd", "m": 1, "n": 1, "k": 1, "precision": "bf16", "error": "refused"})
    return {"gpu": "NVIDIA H200", "rows": listed}


def test_a_profile_becomes_the_gpus_own_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h200.json").write_text(json.dumps(profile(1.25)))
    arguments = ["--profile", str(tmp_path / "h200.json"), "--out", str(tmp_path / "data"), "--epochs", "60"]
    assert fit_operators.main(arguments) == 0
    assert "held_out_profile" in capsys.readouterr().out
    gemm, attention, streaming, clocks = (
        json.loads((tmp_path / "data" / f"{name}.json").read_text())
        for name in ("gemm", "attention", "streaming", "clocks")
    )
    card = next(msgspec.convert(c, Card) for c in gemm["surfaces"] if (c["gpu"], c["precision"]) == (H200, "bf16"))
    assert card.errors["held_out_profile"] < 0.08
    assert card.layouts["wgrad"] / card.layouts["fwd"] == pytest.approx(1.1, rel=0.04)
    own = [curve for curve in attention["curves"] if curve["family"] == H200]
    assert {(curve["kernel"], curve["direction"]) for curve in own} >= {("flash2", "fwd"), ("flash2", "bwd")}
    assert streaming["gpus"][H200]["fraction"] == pytest.approx(3.6 / 4.8, abs=0.02)
    assert clocks["sustained"][H200]["factor"] == pytest.approx(0.875)


def test_a_csv_alone_is_enough(tmp_path: Path) -> None:
    with (tmp_path / "m.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["gpu", "dtype", "m", "n", "k", "tflops", "source", "layout"])
        writer.writeheader()
        for m in (512, 2048, 8192):
            for n in (1024, 4096):
                row = {"dtype": "bf16", "m": m, "n": n, "k": 4096, "source": "AIC-GEMM", "layout": "TN"}
                writer.writerow({**row, "gpu": H200, "tflops": 700})
                writer.writerow({**row, "gpu": H200, "tflops": 1, "dtype": "fp8"})
    arguments = ["--matmul", str(tmp_path / "m.csv"), "--out", str(tmp_path), "--epochs", "2", "--no-hold-out"]
    assert fit_operators.main(arguments) == 0
    cards = json.loads((tmp_path / "gemm.json").read_text())["surfaces"]
    assert [(card["gpu"], card["precision"]) for card in cards] == [(H200, "bf16")]
    assert np.load(tmp_path / "gemm.npy")["w1"].shape[0] == 1


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "not.json"
    path.write_text('{"rows": []}')
    with pytest.raises(InputError, match="a profile"):
        operator_rows.read_profile(path)
    few = {"gpu": H200, "rows": profile(1.0)["rows"][:3]}
    path.write_text(json.dumps(few))
    with pytest.raises(InputError, match="8 products or more"):
        fit_operators.main(["--profile", str(path), "--out", str(tmp_path)])
