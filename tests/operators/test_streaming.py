"""Memory-bound kernels, sustained clocks and the size of the data files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import astra.operators
from astra.catalog import hardware
from astra.errors import InputError
from astra.operators.basis import Basis, basis, sustained
from astra.operators.streaming import streaming
from astra.provenance import Source

GPUS = st.sampled_from(hardware.names("devices"))


@given(GPUS, st.floats(0, 1e12), st.floats(0, 1e4), st.floats(0, 1e12))
def test_time_grows_with_bytes_and_kernels_and_never_beats_the_memory(
    gpu: str, nbytes: float, kernels: float, more: float
) -> None:
    device = hardware.device(gpu)
    found = streaming(device, nbytes=nbytes, kernels=kernels).seconds
    assert found >= nbytes / device.memory_bytes_per_s
    assert streaming(device, nbytes=nbytes + more, kernels=kernels).seconds >= found
    assert streaming(device, nbytes=nbytes, kernels=kernels + 1).seconds > found


def test_columns_and_provenance() -> None:
    timed = streaming(hardware.device("H100"), nbytes=np.array([[1e6, 1e9]]), kernels=2)
    assert timed.seconds.shape == timed.source.shape == (1, 2)
    assert np.all(timed.source == Source.INTERPOLATED)
    assert streaming(hardware.device("H20"), nbytes=1.0, kernels=1).source == Source.TRANSFERRED
    stranger = msgspec.structs.replace(hardware.device("H100"), name="stranger", aliases=(), relative="")
    assert streaming(stranger, nbytes=1.0, kernels=1).source == Source.ASSUMED


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(InputError):
        streaming(hardware.device("H100"), nbytes=-1.0, kernels=1)


@pytest.mark.parametrize("gpu", hardware.names("devices"))
def test_sustained_clock_is_a_fraction(gpu: str) -> None:
    assert 0.5 < sustained(hardware.device(gpu), "bf16") <= 1.0


def test_hungry_boards_lose_more_of_their_burst() -> None:
    hopper = hardware.device("H100-PCIe-80GB")
    hot = msgspec.structs.replace(hopper, power_w=1000)
    assert sustained(hot, "bf16") < sustained(hopper, "bf16")


def test_basis_is_the_gpu_itself_then_an_alias_then_its_relative() -> None:
    h20 = hardware.device("H20")
    assert basis(h20, {"H20-96GB", "H100-SXM5-80GB"}) == Basis("H20-96GB", Source.INTERPOLATED)
    assert basis(h20, {"h20", "H100-SXM5-80GB"}) == Basis("h20", Source.INTERPOLATED)
    assert basis(h20, {"H100-SXM5-80GB"}) == Basis("H100-SXM5-80GB", Source.TRANSFERRED)
    assert basis(h20, {"MI300X"}) is None


def test_data_files_stay_small() -> None:
    folder = Path(astra.operators.__file__).parent / "data"
    names = ("gemm.npy", "gemm.json", "attention.json", "streaming.json", "clocks.json")
    assert sum((folder / name).stat().st_size for name in names) < 300_000


def test_more_watts_for_each_flop_keep_more_of_a_clock_measured_on_a_like_gpu() -> None:
    b200, gb200, gb300 = (sustained(hardware.device(name), "bf16") for name in ("B200", "GB200", "GB300"))
    assert b200 < gb200 < gb300  # 1,000, 1,200 and 1,400 W for nearly the same peak
    assert sustained(hardware.device("B200"), "fp8") > b200  # measured in bf16 alone
