"""Which measured GPU stands for a device, how surely, and how far its clocks fall under continuous load."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from astra.errors import fold
from astra.provenance import Source
from astra.spec.cluster import Device

SAME_DEVICE: Final = 0.02  # peaks within 2% of those of the measured GPU are its own

# Steady over burst tensor throughput by board power, where the GPU's own was not measured. Boards of 700 W and more
# run into their power limit in training: warm H100s reach 0.69 of peak (ROCm MAF chart, 2025-02) against 0.79 in the
# bursts of aiconfigurator @095f58a; A100 boards lose 3%. Between them: an interpolation.
# A GPU with time to rest between products runs them at so many times the throughput of hours of products alone: at the
# most 1.98 GHz, which other kernels leave it the power for, against 1.48 (ranks on an H200, benchmarks/power.py).
FULL_CLOCK: Final = 1.22

_SUSTAINED_BY_WATTS: Final = ((700.0, 0.90), (500.0, 0.95), (0.0, 0.97))


class Peaks(msgspec.Struct, frozen=True):
    """The data-sheet numbers a surface or curve is relative to."""

    flops_per_s: float
    bytes_per_s: float
    sms: int

    def match(self, device: Device, precision: str) -> bool:
        """Whether a device has these peaks, so that what was measured applies unscaled."""
        given = (device.peak(precision), device.memory_bytes_per_s, device.sms)
        own = (self.flops_per_s, self.bytes_per_s, self.sms)
        return all(abs(a - b) <= SAME_DEVICE * b for a, b in zip(given, own, strict=True))


class Basis(NamedTuple):
    """A measured GPU, and how sure a figure borrowed from it is."""

    gpu: str
    source: Source


def basis(device: Device, measured: Collection[str]) -> Basis | None:
    """The measured GPU that stands for a device: itself, else its relative; None if there is neither."""
    by_name = {fold(name): name for name in measured}
    for name in (device.name, *device.aliases):
        if fold(name) in by_name:
            return Basis(by_name[fold(name)], Source.INTERPOLATED)
    if fold(device.relative) in by_name:
        return Basis(by_name[fold(device.relative)], Source.TRANSFERRED)
    return None


def sustained(device: Device, precision: str) -> float:
    """Tensor throughput in hours of training over that of a short burst, at most 1.

    Where it was measured in one precision alone it holds for that one. A relative of the measured GPU that has more
    watts for each FLOP/s of its data sheet keeps that much more of its clock, up to what its power class keeps.
    """
    measured: dict[str, dict[str, Any]] = read_json("clocks.json")["sustained"]
    found = basis(device, measured)
    if found is not None and found.source is Source.INTERPOLATED:
        own = measured[found.gpu]
        if precision in own.get("precisions", (precision,)):
            return float(own["factor"])
    usual: float = next(factor for watts, factor in _SUSTAINED_BY_WATTS if device.power_w >= watts)
    for like in measured.values():
        if like.get("generation") == device.generation and precision in like["precisions"]:
            budget = device.power_w / device.peak(precision) / (like["watts"] / like["flops_per_s"])
            return float(min(usual, like["factor"] * budget))
    return usual


@cache
def read_json(name: str) -> dict[str, Any]:
    """A data file of this package, decoded once."""
    parsed: dict[str, Any] = msgspec.json.decode((Path(__file__).parent / "data" / name).read_bytes())
    return parsed
