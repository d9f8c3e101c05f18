"""Matrix products: laws that hold for any shape, provenance, and a few published measurements."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog import hardware
from astra.errors import InputError, UnknownName
from astra.operators.basis import read_json, sustained
from astra.operators.gemm import Shapes, gemm, most_flops_per_s, product_bytes, surfaces
from astra.provenance import Source
from astra.spec.cluster import Device

ROUNDING = 1e-5
SIZES = st.one_of(st.integers(1, 200_000), st.sampled_from([64, 128, 256, 1024, 4096, 8192, 28672]))
GPUS = st.sampled_from(hardware.names("devices"))
LAYOUTS = st.sampled_from(["fwd", "dgrad", "wgrad"])


def half(device: Device) -> str:
    return "bf16" if "bf16" in device.flops_per_s else "fp16"


def seconds(device: Device, m: float, n: float, k: float, layout: str = "fwd", groups: int = 1) -> float:
    return float(gemm(device, m=m, n=n, k=k, precision=half(device), layout=layout, groups=groups).seconds)


@given(GPUS, SIZES, SIZES, SIZES, LAYOUTS, st.integers(1, 64))
def test_never_beats_the_roofline(gpu: str, m: int, n: int, k: int, layout: str, groups: int) -> None:
    device = hardware.device(gpu)
    flops_s = 2.0 * groups * m * n * k / device.peak(half(device))
    bytes_s = 2.0 * groups * (m * k + k * n + m * n) / device.memory_bytes_per_s
    found = seconds(device, m, n, k, layout, groups)
    assert np.isfinite(found)
    assert found > max(flops_s, bytes_s)


@given(GPUS, SIZES, SIZES, SIZES, LAYOUTS, st.integers(1, 64))
def test_nothing_is_faster_than_the_most_a_gpu_does(gpu: str, m: int, n: int, k: int, layout: str, groups: int) -> None:
    device = hardware.device(gpu)
    for precision in ("bf16", "fp8"):
        if device.computes(precision):
            timed = gemm(device, m=m, n=n, k=k, precision=precision, layout=layout, groups=groups)
            flops = 2.0 * groups * m * n * k
            assert flops / timed.seconds <= most_flops_per_s(device, precision) * (1 + 1e-12)
            assert most_flops_per_s(device, precision) <= device.peak(precision)


@given(GPUS, SIZES, SIZES, SIZES, LAYOUTS, st.integers(1, 64), st.sampled_from("mnkg"), st.floats(1.0, 8.0))
def test_more_work_never_takes_less_time(
    gpu: str, m: int, n: int, k: int, layout: str, groups: int, grown: str, times: float
) -> None:
    """Of rows that tensor cores can load: a little more may well be faster than rows they cannot."""
    device = hardware.device(gpu)
    small = {"m": 8 * m, "n": 8 * n, "k": 8 * k, "groups": groups}
    axis = "groups" if grown == "g" else grown
    large = {**small, axis: small[axis] // (1 if grown == "g" else 8)}
    large[axis] = int(np.ceil(large[axis] * times)) * (1 if grown == "g" else 8)
    before = seconds(device, small["m"], small["n"], small["k"], layout, small["groups"])
    after = seconds(device, large["m"], large["n"], large["k"], layout, large["groups"])
    assert after >= before * (1 - ROUNDING)


@given(GPUS, SIZES, SIZES, SIZES, st.sampled_from(["bf16", "fp8"]), st.floats(1.0, 10.0), st.floats(1.0, 10.0))
def test_a_better_gpu_is_never_slower(
    gpu: str, m: int, n: int, k: int, precision: str, flops_times: float, bytes_times: float
) -> None:
    device = hardware.device(gpu)
    if precision not in device.flops_per_s:
        return
    better = msgspec.structs.replace(
        device,
        flops_per_s={name: peak * flops_times for name, peak in device.flops_per_s.items()},
        memory_bytes_per_s=device.memory_bytes_per_s * bytes_times,
    )
    shape: dict[str, Any] = {"m": m, "n": n, "k": k, "precision": precision, "layout": "fwd"}
    assert gemm(better, **shape).seconds <= gemm(device, **shape).seconds * (1 + ROUNDING)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=2, max_size=6))
def test_columns_equal_rows(shapes: list[tuple[int, int, int]]) -> None:
    device = hardware.device("H200")
    m, n, k = np.array(shapes).T
    together = gemm(device, m=m.reshape(1, -1), n=n, k=k, precision="bf16", layout="dgrad")
    assert together.seconds.shape == together.source.shape == (1, len(shapes))
    apart = [seconds(device, *shape, "dgrad") for shape in shapes]
    np.testing.assert_allclose(together.seconds[0], apart, rtol=ROUNDING)


# Burst rates (TFLOP/s) of ai-dynamo/aiconfigurator @095f58a, TensorRT-LLM 1.3.0rc20 (A100: SGLang 0.5.10); for the H200
# those of the profile in benchmarks/results.
@pytest.mark.parametrize(
    ("gpu", "m", "n", "k", "tflops"),
    [
        ("A100-SXM4-80GB", 4096, 4096, 4096, 250),
        ("A100-SXM4-80GB", 8192, 8192, 8192, 257),
        ("H100-SXM5-80GB", 4096, 4096, 4096, 789),
        ("H100-SXM5-80GB", 8192, 4096, 4096, 800),
        ("H100-SXM5-80GB", 8192, 8192, 8192, 783),
        ("H100-SXM5-80GB", 2048, 8192, 1024, 673),
        ("H200-SXM5-141GB", 8192, 8192, 8192, 734),
        ("H200-SXM5-141GB", 16384, 16384, 16384, 674),
        ("B200-SXM-180GB", 2048, 8192, 1024, 1419),
        ("B200-SXM-180GB", 8192, 8192, 8192, 1492),
        ("GB200-NVL72", 4096, 8192, 8192, 1505),
    ],
)
def test_agrees_with_published_products(gpu: str, m: int, n: int, k: int, tflops: float) -> None:
    device = hardware.device(gpu)
    found = 2.0 * m * n * k / seconds(device, m, n, k) / 1e12 / sustained(device, "bf16")
    assert found == pytest.approx(tflops, rel=0.12)


def test_weight_gradients_are_slower() -> None:
    device = hardware.device("H100")
    ratio = seconds(device, 4096, 4096, 4096, "wgrad") / seconds(device, 4096, 4096, 4096)
    assert 1.02 < ratio < 1.12
    assert seconds(device, 4096, 4096, 4096, "dgrad") == pytest.approx(seconds(device, 4096, 4096, 4096), rel=0.03)


def test_fp8_products_take_more_than_half_the_time_of_bf16_ones() -> None:
    device = hardware.device("H100")
    forward = float(gemm(device, m=8192, n=4096, k=4096, precision="fp8", layout="fwd").seconds)
    assert 0.5 * seconds(device, 8192, 4096, 4096) < forward < 0.9 * seconds(device, 8192, 4096, 4096)


def test_a_group_of_products_beats_as_many_kernels_and_loses_to_one_product() -> None:
    device = hardware.device("H100")
    grouped = seconds(device, 512, 2048, 2048, groups=32)
    assert seconds(device, 512 * 32, 2048, 2048) < grouped < 32 * seconds(device, 512, 2048, 2048)


def test_weights_of_every_group_are_read() -> None:
    shapes = Shapes(*(np.array([value]) for value in (1.0, 100.0, 1000.0, 7.0)))
    assert product_bytes(shapes, "bf16", accumulated=False) == 7 * 2 * (1000 + 100_000 + 100)
    assert product_bytes(shapes, "bf16", accumulated=True) == 7 * (2 * (1000 + 100_000) + 8 * 100)


@pytest.mark.parametrize(
    ("gpu", "shape", "source"),
    [
        ("H100", {"m": 4096, "n": 4096, "k": 4096}, Source.INTERPOLATED),
        ("H100", {"m": 4096, "n": 256_000, "k": 4096}, Source.TRANSFERRED),
        ("H100", {"m": 1, "n": 4096, "k": 4096}, Source.TRANSFERRED),
        ("H100", {"m": 512, "n": 4096, "k": 4096, "groups": 8}, Source.TRANSFERRED),
        ("H20", {"m": 4096, "n": 4096, "k": 4096}, Source.TRANSFERRED),
    ],
)
def test_provenance(gpu: str, shape: dict[str, Any], source: Source) -> None:
    for precision in ("bf16", "fp8"):
        assert gemm(hardware.device(gpu), **shape, precision=precision, layout="fwd").source == source


def test_provenance_of_what_was_not_measured() -> None:
    h100 = hardware.device("H100")
    shape: dict[str, Any] = {"m": 4096, "n": 4096, "k": 4096, "layout": "fwd"}
    faster = msgspec.structs.replace(h100, flops_per_s={**h100.flops_per_s, "bf16": 2e15})
    assert gemm(faster, **shape, precision="bf16").source == Source.TRANSFERRED
    assert gemm(h100, **shape, precision="tf32").source == Source.TRANSFERRED
    assert gemm(h100, **shape, precision="fp16").source == Source.INTERPOLATED
    stranger = msgspec.structs.replace(h100, name="stranger", aliases=(), relative="")
    assert gemm(stranger, **shape, precision="bf16").source == Source.ASSUMED


def test_a_relative_lends_its_fraction_of_peak() -> None:
    h100 = hardware.device("H100")
    double = {name: 2 * peak for name, peak in h100.flops_per_s.items()}
    twin = msgspec.structs.replace(
        h100,
        name="twin",
        aliases=(),
        relative="H100-SXM5-80GB",
        flops_per_s=double,
        memory_bytes_per_s=2 * h100.memory_bytes_per_s,
    )
    assert seconds(twin, 8192, 8192, 8192) == pytest.approx(seconds(h100, 8192, 8192, 8192) / 2, rel=0.01)


@pytest.mark.parametrize("gpu", hardware.names("devices"))
def test_every_gpu_answers_at_every_precision(gpu: str) -> None:
    device = hardware.device(gpu)
    for precision in device.flops_per_s:
        assert gemm(device, m=2048, n=2048, k=2048, precision=precision, layout="fwd").seconds > 0


def test_bad_requests_are_refused() -> None:
    device = hardware.device("A100-SXM4-80GB")
    shape: dict[str, Any] = {"m": 128, "n": 128, "k": 128}
    with pytest.raises(UnknownName):
        gemm(device, **shape, precision="bf61", layout="fwd")
    with pytest.raises(UnknownName):
        gemm(device, **shape, precision="bf16", layout="sideways")
    with pytest.raises(InputError, match="one that A100"):
        gemm(device, **shape, precision="fp8", layout="fwd")
    with pytest.raises(InputError, match="above zero"):
        gemm(device, **{**shape, "m": 0}, precision="bf16", layout="fwd")


def test_surfaces_are_relative_to_the_catalog() -> None:
    for (gpu, precision), surface in surfaces().items():
        assert surface.card.peaks.match(hardware.device(gpu), precision), f"refit {gpu} {precision}: its peaks changed"


def test_cards_keep_their_promise() -> None:
    cards = [surface.card for surface in surfaces().values()]
    bf16 = [card.errors["held_out_shapes"] for card in cards if card.precision == "bf16"]
    assert np.mean(bf16) < 0.047
    assert max(card.errors["held_out_shapes"] for card in cards) < 0.08
    assert all(card.errors["held_out_nk"] < 0.085 for card in cards)
    layouts = read_json("gemm.json")["layouts"]
    assert layouts["fwd"] == 1.0
    assert 1.02 < layouts["wgrad"] < 1.08
