"""Attention kernels: laws, counting of masks, provenance, and published measurements."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog import hardware
from astra.errors import InputError, UnknownName
from astra.operators.attention import BACKWARD_FLOPS, FP8_KERNELS, attention, best_kernel, pairs
from astra.operators.basis import sustained
from astra.provenance import Source
from astra.spec.cluster import Device

ROUNDING = 1e-6
GPUS = st.sampled_from(hardware.names("devices"))
DIRECTIONS = st.sampled_from(["fwd", "bwd"])


def seconds(
    device: Device, *, kernel: str = "", direction: str = "fwd", window: int | None = None, **sizes: Any
) -> float:
    shape = {"batch": 1, "seq_q": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "causal": True, **sizes}
    shape = {"seq_kv": shape["seq_q"], "head_dim_v": shape["head_dim"], **shape}
    half = "bf16" if "bf16" in device.flops_per_s else "fp16"
    timed = attention(
        device, **shape, window=window, kernel=kernel or best_kernel(device), direction=direction, precision=half
    )
    return float(timed.seconds)


@given(
    st.integers(1, 60), st.integers(1, 60), st.booleans(), st.one_of(st.none(), st.integers(1, 70))
)  # fmt: skip
def test_pairs_are_those_of_the_mask(seq_q: int, seq_kv: int, causal: bool, window: int | None) -> None:
    query = np.arange(seq_q)[:, None] + seq_kv - seq_q
    key = np.arange(seq_kv)[None, :]
    mask = key <= query if causal else np.ones((seq_q, seq_kv), bool)
    if window is not None:
        mask = mask & (np.abs(query - key) < window)
    counted = pairs(np.array([float(seq_q)]), np.array([float(seq_kv)]), causal=causal, window=window)[0]
    if causal:
        assert counted == mask.sum()
    else:
        assert counted >= mask.sum()  # the edges of a two-sided window are not trimmed


@given(
    GPUS, st.integers(1, 64), st.integers(1, 100_000), st.integers(1, 128), st.sampled_from([64, 128, 256]), DIRECTIONS
)
def test_never_beats_the_roofline(gpu: str, batch: int, seq: int, heads: int, dim: int, direction: str) -> None:
    device = hardware.device(gpu)
    flops = 4.0 * batch * heads * dim * seq * (seq + 1) / 2 * (BACKWARD_FLOPS if direction == "bwd" else 1.0)
    sizes: dict[str, Any] = {"batch": batch, "seq_q": seq, "heads": heads, "kv_heads": heads, "head_dim": dim}
    found = seconds(device, direction=direction, **sizes)
    peak = device.flops_per_s.get("bf16", device.flops_per_s["fp16"])
    assert np.isfinite(found)
    assert found > max(flops / peak, 2.0 * 4 * batch * seq * heads * dim / device.memory_bytes_per_s)


@given(
    GPUS, st.integers(1, 16), st.integers(1, 60_000), st.integers(1, 64), st.floats(1, 8),
    st.sampled_from(["batch", "seq_q", "heads", "kv_heads"]), DIRECTIONS, st.booleans(),
)  # fmt: skip
def test_more_work_never_takes_less_time(
    gpu: str, batch: int, seq: int, heads: int, times: float, grown: str, direction: str, causal: bool
) -> None:
    device = hardware.device(gpu)
    small: dict[str, Any] = {"batch": batch, "seq_q": seq, "heads": heads, "kv_heads": heads}
    large = {**small, grown: int(np.ceil(small[grown] * times))}
    before = seconds(device, direction=direction, causal=causal, **small)
    assert seconds(device, direction=direction, causal=causal, **large) >= before * (1 - ROUNDING)


@given(GPUS, st.integers(1, 60_000), st.integers(1, 64), st.floats(1, 8), st.floats(1, 8), DIRECTIONS)
def test_a_better_gpu_is_never_slower(
    gpu: str, seq: int, heads: int, flops_times: float, bytes_times: float, direction: str
) -> None:
    device = hardware.device(gpu)
    better = msgspec.structs.replace(
        device,
        flops_per_s={name: peak * flops_times for name, peak in device.flops_per_s.items()},
        memory_bytes_per_s=device.memory_bytes_per_s * bytes_times,
    )
    for kernel in (best_kernel(device), "unfused"):
        sizes: dict[str, Any] = {
            "seq_q": seq,
            "heads": heads,
            "kv_heads": heads,
            "kernel": kernel,
            "direction": direction,
        }
        assert seconds(better, **sizes) <= seconds(device, **sizes) * (1 + 1e-5)


def test_a_window_saves_time_and_a_mask_halves_it() -> None:
    device = hardware.device("H100")
    causal = seconds(device, seq_q=16384)
    assert seconds(device, seq_q=16384, window=1024) < 0.3 * causal
    assert seconds(device, seq_q=16384, window=16384) == pytest.approx(causal, rel=0.01)
    assert seconds(device, seq_q=16384, causal=False) == pytest.approx(2 * causal, rel=0.15)


FP8 = [(gpu, kernel) for gpu in ("B200", "GB200", "B300", "GB300") for kernel in FP8_KERNELS.values()]


@given(
    st.sampled_from([*FP8, ("B200", "cudnn"), ("H100", "cudnn")]), st.integers(1, 8), st.integers(1, 40_000),
    st.integers(1, 64), st.floats(1, 8), st.sampled_from(["batch", "seq_q", "heads", "head_dim"]), DIRECTIONS,
    st.one_of(st.none(), st.integers(1, 50_000)),
)  # fmt: skip
def test_more_work_never_takes_less_time_in_fp8_or_behind_a_window(
    on: tuple[str, str], batch: int, seq: int, heads: int, times: float, grown: str, way: str, window: int | None
) -> None:
    device, kernel = hardware.device(on[0]), on[1]
    small: dict[str, Any] = {"batch": batch, "seq_q": seq, "heads": heads, "kv_heads": heads, "head_dim": 64}
    large = {**small, grown: int(np.ceil(small[grown] * times))}
    shown: dict[str, Any] = {"kernel": kernel, "direction": way, "window": window}
    before = seconds(device, **small, **shown)
    assert seconds(device, **large, **shown) >= before * (1 - ROUNDING)
    if window is not None:  # a wider window never takes less time either, up to none at all
        assert seconds(device, **small, **{**shown, "window": int(window * times)}) >= before * (1 - ROUNDING)
        assert seconds(device, **small, **{**shown, "window": None}) >= before * (1 - ROUNDING)


@given(st.sampled_from(FP8), st.integers(1, 8), st.integers(1, 60_000), st.integers(1, 128), DIRECTIONS)
def test_fp8_never_beats_its_roofline(on: tuple[str, str], batch: int, seq: int, heads: int, way: str) -> None:
    device = hardware.device(on[0])
    flops = 4.0 * batch * heads * 128 * seq * (seq + 1) / 2 * (BACKWARD_FLOPS if way == "bwd" else 1.0)
    found = seconds(device, kernel=on[1], direction=way, batch=batch, seq_q=seq, heads=heads, kv_heads=heads)
    assert found > flops / device.peak("fp8")


# Times over those of bf16 at 4,096 tokens, batch 2: NVIDIA/cudnn-frontend @3929da2,
# benchmark/sdpa_benchmark_training/results (cuDNN 9.22).
@pytest.mark.parametrize(
    ("gpu", "kernel", "way", "heads", "dims", "window", "ratio"),
    [
        ("GB200", "cudnn-mxfp8", "fwd", 64, (128, 128), None, 0.326 / 0.391),
        ("GB200", "cudnn-mxfp8", "bwd", 64, (128, 128), None, 1.305 / 1.198),
        ("GB200", "cudnn-mxfp8", "fwd", 128, (192, 128), None, 0.714 / 0.977),
        ("GB200", "cudnn-mxfp8", "bwd", 128, (192, 128), None, 2.620 / 3.383),
        ("GB200", "cudnn-mxfp8", "fwd", 128, (64, 64), 128, 0.210 / 0.210),
        ("GB200", "cudnn-mxfp8", "bwd", 128, (64, 64), 128, 2.080 / 0.465),
        ("GB200", "cudnn-fp8", "bwd", 128, (192, 128), None, 2.112 / 3.383),
        ("GB300", "cudnn-mxfp8", "fwd", 128, (192, 128), None, 0.546 / 0.864),
        ("GB300", "cudnn-mxfp8", "bwd", 128, (192, 128), None, 2.348 / 3.127),
        ("GB300", "cudnn-mxfp8", "bwd", 128, (64, 64), 128, 1.871 / 0.442),
        ("GB300", "cudnn-fp8", "fwd", 64, (128, 128), None, 0.217 / 0.323),
    ],
)
def test_fp8_gains_what_was_measured(
    gpu: str, kernel: str, way: str, heads: int, dims: tuple[int, int], window: int | None, ratio: float
) -> None:
    device = hardware.device(gpu)
    keys = 8 if dims == (128, 128) else heads
    shape: dict[str, Any] = {"batch": 2, "heads": heads, "kv_heads": keys, "head_dim": dims[0], "head_dim_v": dims[1]}
    found = [seconds(device, kernel=each, direction=way, window=window, **shape) for each in (kernel, "cudnn")]
    assert found[0] / found[1] == pytest.approx(ratio, rel=0.1)


def test_the_backward_in_fp8_does_not_see_a_window() -> None:
    device = hardware.device("GB300")
    whole, behind = (
        {
            way: seconds(device, kernel="cudnn-mxfp8", direction=way, seq_q=16384, window=window)
            for way in ("fwd", "bwd")
        }
        for window in (None, 128)
    )
    assert behind["bwd"] == whole["bwd"]
    assert behind["fwd"] < 0.2 * whole["fwd"]


@pytest.mark.parametrize("gpu", ["H100", "A100", "RTXPRO6000-Blackwell", "MI300X"])
def test_other_gpus_have_no_attention_in_fp8(gpu: str) -> None:
    with pytest.raises(InputError, match="one that"):
        seconds(hardware.device(gpu), kernel="cudnn-mxfp8")
    assert not hardware.device(gpu).fp8_attention


def test_few_heads_leave_the_gpu_idle() -> None:
    device = hardware.device("B200")
    assert seconds(device, heads=4, kv_heads=1) > 0.5 * seconds(device, heads=16, kv_heads=4)


def test_unfused_attention_pays_for_its_scores() -> None:
    device = hardware.device("A100-SXM4-80GB")
    for direction in ("fwd", "bwd"):
        fused, unfused = (seconds(device, kernel=k, direction=direction, seq_q=8192) for k in ("flash2", "unfused"))
        assert unfused > 2 * fused


# Causal FLOPs over seconds, batch x length = 16384, hidden 2048: FlashAttention README and paper figures (H100, A100);
# MooreThreads/SimuMax @4dcaae5 (B200, batch 1).
@pytest.mark.parametrize(
    ("gpu", "kernel", "direction", "batch", "seq", "heads", "dim", "causal", "tflops"),
    [
        ("H100", "flash3", "fwd", 4, 4096, 16, 128, True, 579),
        ("H100", "flash3", "fwd", 1, 16384, 16, 128, False, 648),
        ("H100", "flash3", "bwd", 2, 8192, 16, 128, False, 559),
        ("H100", "cudnn", "fwd", 4, 4096, 16, 128, True, 518),
        ("H100", "flash2", "fwd", 4, 4096, 16, 128, True, 319),
        ("H100", "flash2", "fwd", 8, 2048, 32, 64, True, 262),
        ("H100", "cudnn", "bwd", 4, 4096, 16, 128, False, 499),
        ("B200", "cudnn", "bwd", 1, 4096, 32, 128, True, 890),
        ("B200", "cudnn", "fwd", 1, 4096, 8, 128, True, 350),
    ],
)
def test_agrees_with_published_kernels(
    gpu: str, kernel: str, direction: str, batch: int, seq: int, heads: int, dim: int, causal: bool, tflops: float
) -> None:
    device = hardware.device(gpu)
    sizes = {"batch": batch, "seq_q": seq, "heads": heads, "kv_heads": heads, "head_dim": dim, "causal": causal}
    flops = 4.0 * batch * heads * dim * seq * seq * (0.5 if causal else 1.0) * (2.5 if direction == "bwd" else 1.0)
    clock = 1.0 if gpu == "B200" else sustained(device, "bf16")
    rate = flops / seconds(device, kernel=kernel, direction=direction, **sizes) / 1e12 / clock
    assert rate == pytest.approx(tflops, rel=0.1)


def test_usual_kernels() -> None:
    usual = {"A100-SXM4-80GB": "flash2", "L40S": "flash2", "H100": "cudnn", "B200": "cudnn", "RTX5090": "flash2"}
    assert {gpu: best_kernel(hardware.device(gpu)) for gpu in usual} == usual


@pytest.mark.parametrize("gpu", hardware.names("devices"))
@pytest.mark.parametrize("kernel", ["", "sdpa", "flash2", "unfused"])
def test_every_gpu_runs_the_kernels_that_runtimes_take(gpu: str, kernel: str) -> None:
    """Also those of Blackwell for workstations, which have no kernel of cuDNN: torch takes its own there."""
    device = hardware.device(gpu)
    for direction in ("fwd", "bwd"):
        assert seconds(device, kernel=kernel, direction=direction) > 0


def test_columns_equal_rows() -> None:
    device = hardware.device("H200")
    seq = np.array([[512, 4096, 9000]])
    timed = attention(
        device, batch=2, seq_q=seq, seq_kv=seq, heads=16, kv_heads=4, head_dim=128, head_dim_v=128, causal=True,
        window=None, kernel="flash3", direction="bwd", precision="bf16",
    )  # fmt: skip
    apart = [
        seconds(device, batch=2, seq_q=int(s), heads=16, kv_heads=4, kernel="flash3", direction="bwd") for s in seq[0]
    ]
    assert timed.seconds.shape == timed.source.shape == (1, 3)
    np.testing.assert_allclose(timed.seconds[0], apart)


@pytest.mark.parametrize(
    ("gpu", "kernel", "seq", "source"),
    [
        ("H100", "cudnn", 4096, Source.INTERPOLATED),
        ("H100", "cudnn", 500_000, Source.TRANSFERRED),
        ("GH200-96GB", "cudnn", 4096, Source.TRANSFERRED),
        ("B200", "cudnn", 4096, Source.INTERPOLATED),
        ("B200", "flash2", 4096, Source.ASSUMED),
        ("B200", "sdpa", 4096, Source.INTERPOLATED),  # torch takes cuDNN's there
    ],
)
def test_provenance(gpu: str, kernel: str, seq: int, source: Source) -> None:
    timed = attention(
        hardware.device(gpu), batch=1, seq_q=seq, seq_kv=seq, heads=32, kv_heads=8, head_dim=128, head_dim_v=128,
        causal=True, window=None, kernel=kernel, direction="fwd", precision="bf16",
    )  # fmt: skip
    assert timed.source == source


def test_provenance_of_strangers() -> None:
    h100 = hardware.device("H100")
    stranger = msgspec.structs.replace(h100, name="stranger", aliases=(), relative="")
    faster = msgspec.structs.replace(h100, flops_per_s={**h100.flops_per_s, "bf16": 2e15})
    for device, source in ((stranger, Source.ASSUMED), (faster, Source.TRANSFERRED)):
        timed = attention(
            device, batch=1, seq_q=4096, seq_kv=4096, heads=32, kv_heads=8, head_dim=128, head_dim_v=128,
            causal=True, window=None, kernel="cudnn", direction="fwd", precision="fp8",
        )  # fmt: skip
        assert timed.source == source


def test_bad_requests_are_refused() -> None:
    device = hardware.device("A100-SXM4-80GB")
    with pytest.raises(UnknownName):
        seconds(device, kernel="flush2")
    with pytest.raises(InputError, match="flash2, sdpa, unfused"):
        seconds(device, kernel="flash3")
    with pytest.raises(UnknownName):
        seconds(device, direction="up")
    with pytest.raises(InputError, match="above zero"):
        seconds(device, heads=0)
