"""A profile in a few figures: what the GPU reached in products, attention and memory, and what launching costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from astra.answer import Result
from astra.network.curves import wire_factor

PROFILE_SCHEMA: Final = "astra.profile/1"
_LARGE_FLOPS: Final = 0.5e12  # smaller products are limited by their size, not by the GPU
_LARGE_BYTES: Final = 1e8  # smaller copies are limited by their launch
_LEAST_SEQ: Final = 8192
_LARGE_MESSAGE: Final = 2**24  # smaller ones are limited by latency

Row = Mapping[str, Any]


class Speed(Result, frozen=True, kw_only=True):
    """Throughput over the large shapes of one operator: FLOP/s, or bytes/s."""

    rows: int
    median_per_s: float
    best_per_s: float


class ProfileSummary(Result, frozen=True, kw_only=True):
    """What ``astra profile`` shows at the end."""

    drawn_by: ClassVar[str] = "cli.profile.parts"
    schema: str = PROFILE_SCHEMA
    file: str
    gpu: str
    driver: str | None
    torch: str
    date: str
    rows: int
    planned: int  # rows of the mode asked for, the sustained load among them
    refused: int  # shapes that a kernel refused
    gemm: dict[str, Speed]  # by precision and layout
    attention: dict[str, Speed]  # by kernel and direction; causal, 8k tokens or more
    memory: dict[str, Speed]  # bytes/s by operator
    collectives: dict[str, Speed]  # bytes/s on the wire by operation and group; messages of 16 MiB and more
    launch_s: dict[str, float]  # host time of one call
    burst_flops_per_s: float | None
    sustained_flops_per_s: float | None
    not_measured: list[str]  # what this machine could not show, in sentences


def summarize(header: Row, rows: Sequence[Row], *, file: str, planned: int) -> ProfileSummary:
    """The figures of a measurement file."""
    timed = [row for row in rows if row.get("seconds")]
    steady = next((row for row in rows if row["op"] == "sustained"), {})
    return ProfileSummary(
        file=file,
        gpu=header["gpu"],
        driver=header.get("driver"),
        torch=header["torch"],
        date=header["date"],
        rows=len(rows),
        planned=planned,
        refused=sum("error" in row for row in rows),
        gemm=_speeds(timed, "gemm", lambda row: _gemm_flops(row) > _LARGE_FLOPS, _gemm_flops,
                     lambda row: f"{row['precision']} {row['layout']}"),
        attention=_speeds(timed, "attention", lambda row: row["causal"] and row["seq_q"] >= _LEAST_SEQ,
                          _attention_flops, lambda row: f"{row['kernel']} {row['direction']}"),
        memory=_speeds(timed, "streaming", lambda row: row["nbytes"] >= _LARGE_BYTES, lambda row: row["nbytes"],
                       lambda row: str(row["name"])),
        collectives=_speeds(timed, "collective", lambda row: row["bytes"] >= _LARGE_MESSAGE,
                            lambda row: row["bytes"] * wire_factor(row["collective"], row["ranks"]), _group),
        launch_s={row["name"]: row["seconds"] for row in timed if row["op"] == "launch"},
        burst_flops_per_s=steady.get("burst_flops_per_s"),
        sustained_flops_per_s=steady.get("sustained_flops_per_s"),
        not_measured=_not_measured(header, timed),
    )  # fmt: skip


def _not_measured(header: Row, rows: Sequence[Row]) -> list[str]:
    found = [f"{name}: not installed" for name, version in header.get("packages", {}).items() if not version]
    if not any(row["op"] == "collective" for row in rows):
        gpus = header.get("gpus", 1)
        why = "there is one GPU here" if gpus == 1 else f"the processes on the {gpus} GPUs here did not finish"
        found.append(f"collectives between GPUs: {why}")
    return found


def _speeds(
    rows: Sequence[Row],
    op: str,
    large: Callable[[Row], bool],
    amount: Callable[[Row], float],
    name: Callable[[Row], str],
) -> dict[str, Speed]:
    """Throughput of the large rows of an operator, by name."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["op"] == op and large(row):
            found.setdefault(name(row), []).append(amount(row) / row["seconds"])
    return {
        key: Speed(rows=len(values), median_per_s=statistics.median(values), best_per_s=max(values))
        for key, values in sorted(found.items())
    }


def _gemm_flops(row: Row) -> float:
    return float(2 * row["m"] * row["n"] * row["k"])


def _attention_flops(row: Row) -> float:
    """Half of the square under a causal mask; backward is two and a half times the forward."""
    flops = row["batch"] * row["heads"] * row["seq_q"] * row["seq_kv"] * (row["head_dim"] + row["head_dim_v"])
    return float(flops * (2.5 if row["direction"] == "bwd" else 1.0))


def _group(row: Row) -> str:
    apart = f", {row['stride']} apart" if row["stride"] > 1 else ""
    return f"{row['collective']} of {row['ranks']}{apart}"
