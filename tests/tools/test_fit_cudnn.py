"""cuDNN's attention: the shipped curves are those of the table, and say what it says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from astra.operators.attention import FP8_KERNELS, KernelCurve
from astra.operators.basis import read_json
from tools import fit_cudnn
from tools.fit_attention import columns_of, seconds_of


def curves(document: dict[str, object]) -> dict[tuple[str, str, str], KernelCurve]:
    found = msgspec.convert(document["curves"], list[KernelCurve])
    return {(curve.family, curve.kernel, curve.direction): curve for curve in found}


def test_the_table_gives_the_shipped_curves() -> None:
    shipped = read_json("attention.json")
    again = curves(fit_cudnn.with_cudnn(shipped, fit_cudnn.read_rows()))
    for key, curve in curves(shipped).items():
        np.testing.assert_allclose(again[key].fractions, curve.fractions, rtol=0.01)
        assert again[key].edge_keys == pytest.approx(curve.edge_keys, abs=1)
    assert again.keys() == curves(shipped).keys()


@pytest.mark.parametrize("gpu", ["GB200-NVL72", "GB300-NVL72"])
@pytest.mark.parametrize("kernel", FP8_KERNELS.values())
@pytest.mark.parametrize("way", ["fwd", "bwd"])
def test_the_shape_of_the_curves_is_that_of_the_rows(gpu: str, kernel: str, way: str) -> None:
    """At one level, that of the clock: every row within a fifth, nine in ten within a tenth."""
    curve = curves(read_json("attention.json"))[gpu, kernel, way]
    precision = "mxfp8" if "mxfp8" in kernel else "fp8"
    wanted = (gpu, precision, way)
    rows = [r for r in fit_cudnn.read_rows() if (r["gpu"], r["precision"], r["direction"]) == wanted]
    calls = columns_of(rows, gpu, "fp8")
    ratio = seconds_of(curve, calls) / calls.seconds
    away = np.abs(ratio / np.median(ratio) - 1)
    assert len(rows) == 35
    assert away.max() < 0.2
    assert np.mean(away < 0.1) > 0.85
