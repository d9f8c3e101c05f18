"""Profile: the plan of shapes and the measurement file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError
from astra.lab.profile import ops
from astra.lab.profile.gpu import ClockWatch, kernel_kind, packages
from astra.lab.profile.ops import (
    _ATTENTION_CALLS,
    _STREAM_CALLS,
    _STREAMING,
    L2_SPAN_BYTES,
    MAX_SETS,
    measure,
    sets_for,
)
from astra.lab.profile.plan import KERNELS, PACKAGES, STREAMING, Store, all_rows, linear_layers, row_key


def test_quick_rows_are_fewer_and_unique() -> None:
    quick, full = all_rows(True), all_rows(False)
    assert len(quick) < len(full) < 3000
    for rows in (quick, full):
        keys = [row_key(row) for row in rows]
        assert len(set(keys)) == len(keys)


def test_every_layout_kernel_and_direction_is_planned() -> None:
    rows = all_rows(True)
    assert {r["layout"] for r in rows if r["op"] == "gemm"} == {"fwd", "dgrad", "wgrad"}
    assert {r["precision"] for r in rows if r["op"] == "gemm"} == {"bf16", "fp8"}
    attention = {(r["kernel"], r["direction"], r["causal"]) for r in rows if r["op"] == "attention"}
    assert attention >= {(k, d, True) for k in ("flash", "cudnn") for d in ("fwd", "bwd")}
    assert {r["name"] for r in rows if r["op"] == "streaming"} == set(STREAMING)


def test_every_streaming_operator_has_a_cost_and_a_call() -> None:
    names = (*STREAMING, *(name for _, more in PACKAGES.values() for name in more))
    assert set(_STREAMING) == set(names)
    for name in names:
        key = name.removeprefix("adam_") if name.startswith("adam") else name.removesuffix("_bwd")
        assert key in _STREAM_CALLS


def test_kernels_of_other_packages_are_planned_where_they_are() -> None:
    plain, more = all_rows(True), all_rows(True, ("flash_attn", "transformer_engine"))
    assert {r["kernel"] for r in plain if r["op"] == "attention"} == set(KERNELS)
    assert {r["kernel"] for r in more if r["op"] == "attention"} == {*KERNELS, "flash_attn", "te"}
    assert {r["name"] for r in more if r["op"] == "streaming"} == {*STREAMING, "te_rmsnorm", "te_rmsnorm_bwd"}
    assert {row_key(row) for row in plain} < {row_key(row) for row in more}
    assert set(_ATTENTION_CALLS) == {kernel for kernels, _ in PACKAGES.values() for kernel in kernels}


def test_which_packages_are_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setattr(sys.modules["flash_attn"], "__version__", "2.8.3", raising=False)
    monkeypatch.setattr(sys.modules["flash_attn"], "__spec__", object())
    found = packages()
    assert found["flash_attn"] == "2.8.3"
    assert found["transformer_engine"] is None


class FakeTensor:
    """Enough of a tensor to be handed to a kernel."""

    def __init__(self, size: tuple[int, ...]) -> None:
        self.shape = size


def test_each_package_is_called_in_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def function(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        seen["flash"] = (q.shape, k.shape, v.shape, causal)
        return "out", "sums"

    def attention(*arguments: Any, **options: Any) -> Any:
        seen["te"] = (arguments, options)
        return lambda q, k, v: q

    torch = SimpleNamespace(bfloat16="bf16", randn=lambda size, **_: FakeTensor(size))
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_func=function))
    monkeypatch.setitem(sys.modules, "transformer_engine", SimpleNamespace())
    engine = SimpleNamespace(DotProductAttention=attention)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", engine)
    monkeypatch.setattr(ops, "gpu_seconds", lambda torch, calls, **_: calls[0]() and 1.0)
    row = next(r for r in all_rows(False, ("flash_attn",)) if r.get("kernel") == "flash_attn"
               and r["direction"] == "fwd" and r["heads"] == 32 and r["kv_heads"] == 8)  # fmt: skip
    assert measure(torch, row)["seconds"] == 1.0
    q = (row["batch"], row["seq_q"], row["heads"], row["head_dim"])
    kv = (row["batch"], row["seq_kv"], row["kv_heads"], row["head_dim"])
    assert seen["flash"] == (q, kv, kv, row["causal"])
    measure(torch, {**row, "kernel": "te"})
    (heads, dims), options = seen["te"]
    assert (heads, dims, options["num_gqa_groups"]) == (32, (row["head_dim"], row["head_dim_v"]), 8)


def test_tensor_parallelism_divides_the_linear_layers() -> None:
    layers = linear_layers()
    assert (6144, 4096) in layers  # Llama-3-8B: 32 query and 16 key/value heads of 128
    assert (28672, 4096) in layers  # both gated projections
    assert (2 * 28672 // 8, 8192) in layers


def test_fp8_sizes_are_multiples_of_16() -> None:
    for row in all_rows(False):
        if row["op"] == "gemm" and row["precision"] == "fp8":
            assert row["n"] % 16 == row["k"] % 16 == 0


@given(st.integers(1, 1 << 34))
def test_rotating_sets_outgrow_the_cache_or_reach_the_limit(nbytes: int) -> None:
    count = sets_for(nbytes)
    assert 1 <= count <= MAX_SETS
    assert count == MAX_SETS or count * nbytes >= L2_SPAN_BYTES


def test_the_file_is_valid_after_every_row_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    store = Store(path, key="key")
    store.header["gpu"] = "toy"
    for index in range(3):
        store.add({"key": str(index), "seconds": index / 10})
        assert len(json.loads(path.read_text())["rows"]) == index + 1
    again = Store(path, key="key")
    assert again.header == {"gpu": "toy"}
    assert "2" in again
    assert "3" not in again
    assert list(tmp_path.iterdir()) == [path]


def test_a_crash_is_put_down_to_the_row_in_progress(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    Store(path, key="key").begin("a")
    again = Store(path, key="key")
    assert again.crashed() == "a"
    again.add({"key": "a", "error": "died"})
    assert Store(path, key="key").crashed() is None


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="measurement file"):
        Store(path, key="key")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "gemm"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::bfloat16_t>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("triton_poi_fused_add_0", "compiled"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("void at::native::vectorized_layer_norm_kernel<float, float>", "norm"),
        ("ncclKernel", "other"),
    ],
)
def test_kernels_are_sorted_by_family(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


def test_clock_summary_is_the_median_since_the_mark() -> None:
    watch = ClockWatch()
    assert watch.summary() is None
    watch.samples += [(100.0, 1.0, 5.0, 30.0)]
    mark = watch.mark()
    watch.samples += [(1900.0, 3201.0, 600.0, 50.0), (1800.0, 3201.0, 700.0, 60.0), (1700.0, 3201.0, 690.0, 60.0)]
    summary = watch.summary(mark)
    assert summary is not None
    assert summary["sm_mhz"] == 1800.0
    assert summary["power_w"] == 690.0
