"""What a run costs: rent, energy, amortisation, and the time lost to failures. Formulas over columns; SI and dollars.

Letters: M mean time between interruptions of the whole job, C time to write a checkpoint, R time from an interruption
to training again, t useful work between two checkpoints.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0
YEAR_S: Final = 365.25 * DAY_S

# 419 unexpected interruptions in 54 days of pre-training Llama 3 405B on 16,384 H100.
MTBF_GPU_S: Final = 16384 * 54 * DAY_S / 419
MTBF_SOURCE: Final = "Llama 3 (arXiv 2407.21783, 3.3.4): 419 unexpected interruptions in 54 days on 16,384 H100"
# The storage that run wrote to sustained 2 TB/s for its 16,384 GPUs.
WRITE_BYTES_PER_S_PER_GPU: Final = 2e12 / 16384
WRITE_SOURCE: Final = "Llama 3 (arXiv 2407.21783, 3.3.1): storage that sustains 2 TB/s for 16,384 GPUs"
RESTART_S: Final = 15 * 60.0
RESTART_SOURCE: Final = "MegaScale (NSDI 2024): back at the last checkpoint within 15 minutes; recalled"
# Shares of instances interrupted in a month come in bands; 20% is the upper end of the last that has one.
PREEMPTED_PER_MONTH: Final = 0.20
PREEMPTED_RANGE: Final = (0.05, 0.50)  # the lowest band's end, and a guess beyond the highest, which has none


def preemptions_per_node_s(taken_per_month: float) -> float:
    """Of a server, from the share of them that are taken in a month."""
    return -float(np.log1p(-taken_per_month)) / (30 * DAY_S)


PREEMPTIONS_PER_NODE_S: Final = preemptions_per_node_s(PREEMPTED_PER_MONTH)
PREEMPTION_PROVIDER: Final = "AWS"  # whose figure it is
PREEMPTION_SOURCE: Final = (
    "assumed, 20% of servers in a month. AWS Spot Instance Advisor told so much or less for 30 of 36 regions with "
    "servers of 8 A100, H100 or H200, less than 5% for 16 and more for 6 (2025-06-28, alexei-led/spotinfo @5eedf20)"
)
# An H200 of 700 W draws 685 to 697 W in products, attention and mixes of them with streams.
DRAWN: Final = 0.99
DRAWN_SOURCE: Final = "99% of the board's power, as measured on an H200 (benchmarks/results/2026-11-15_power_h200.json)"
# A bf16 weight, its fp32 master copy and the optimizer's fp32 moments, per trained parameter.
CHECKPOINT_BYTES: Final = {"adam": 2 + 4 + 8.0, "sgd": 2 + 4 + 4.0}

# Ten minutes to be given the machines, to boot and to pull an image, five to open the data, compile and load a
# checkpoint. Of the first part, one to twenty minutes are told by those who sell GPUs.
STARTUP_S: Final = 15 * 60.0
STARTUP_DOUBLING_S: Final = 2 * 60.0  # the slowest of more machines is slower
STARTUP_SOURCE: Final = (
    "assumed: 15 minutes, and 2 more for each doubling of the nodes (--startup). Sellers tell of 1 to 20 minutes until "
    "machines are there (io.net, 2026: its own 1 to 2, AWS 5 to 15, Google Cloud 10 to 20)"
)

Number = npt.ArrayLike
Numbers = npt.NDArray[np.float64]


def _floats(*columns: Number) -> list[Numbers]:
    return [np.asarray(column, np.float64) for column in columns]


def billed_gpus(gpus: Number, gpus_per_node: Number) -> Numbers:
    """GPUs that are paid for: whole nodes."""
    used, per_node = _floats(gpus, gpus_per_node)
    return np.ceil(used / per_node) * per_node


def rent_usd(usd_per_gpu_h: Number, gpus: Number, seconds: Number) -> Numbers:
    """Price by GPUs by time."""
    price, count, time_s = _floats(usd_per_gpu_h, gpus, seconds)
    return price * count * time_s / HOUR_S


def startup_s(nodes: Number) -> Numbers:
    """From the order of so many nodes to the first step, where nobody says."""
    (count,) = _floats(nodes)
    return STARTUP_S + STARTUP_DOUBLING_S * np.log2(np.maximum(count, 1))


def billed_s(seconds: Number, minimum_s: Number, step_s: Number) -> Numbers:
    """The time on a bill: rounded up to whole steps, and never less than the minimum or the term."""
    used, least, step = _floats(seconds, minimum_s, step_s)
    size = np.where(step > 0, step, 1.0)
    rounded = np.where(step > 0, np.maximum(np.ceil(used / size - 1e-9) * size, used), used)
    return np.maximum(rounded, least)


def energy_kwh(power_w: Number, pue: Number, gpus: Number, seconds: Number) -> Numbers:
    """Power by GPUs by time, with what the building adds."""
    power, overhead, count, time_s = _floats(power_w, pue, gpus, seconds)
    return power / 1000 * overhead * count * time_s / HOUR_S


def energy_usd_per_gpu_h(power_w: Number, pue: Number, usd_per_kwh: Number) -> Numbers:
    """An hour of one GPU's power, with what the building adds (power usage effectiveness)."""
    power, overhead, price = _floats(power_w, pue, usd_per_kwh)
    return power / 1000 * overhead * price


def yearly_usd_per_gpu(usd_per_gpu: Number, lifetime_years: Number, capital_rate: Number = 0.0) -> Numbers:
    """A purchase in equal yearly payments over its life, with the cost of the capital (an annuity)."""
    paid, years, rate = _floats(usd_per_gpu, lifetime_years, capital_rate)
    safe = np.where(rate > 0, rate, 1.0)
    return paid * np.where(rate > 0, safe / -np.expm1(-years * np.log1p(safe)), 1 / years)


def hourly_usd(usd_per_year: Number, used_fraction: Number = 1.0) -> Numbers:
    """What is paid in a year, spread over the hours of it that are used."""
    paid, used = _floats(usd_per_year, used_fraction)
    return paid / (used * YEAR_S / HOUR_S)


def mtbf_s(
    gpus: Number,
    nodes: Number,
    *,
    mtbf_gpu_s: Number = MTBF_GPU_S,
    preemptions_per_node_s: Number = 0.0,
) -> Numbers:
    """Mean time between interruptions of a job that stops when any GPU fails or any node is taken away."""
    count, servers, each_s, taken = _floats(gpus, nodes, mtbf_gpu_s, preemptions_per_node_s)
    return 1 / (count / each_s + servers * taken)


def write_s(nbytes: Number, gpus: Number, bytes_per_s_per_gpu: Number = WRITE_BYTES_PER_S_PER_GPU) -> Numbers:
    """Time to write a checkpoint that all GPUs share, training standing still."""
    size, count, rate = _floats(nbytes, gpus, bytes_per_s_per_gpu)
    return size / (count * rate)


def best_interval_s(write_s: Number, mtbf_s: Number) -> Numbers:
    """Useful work between checkpoints that wastes the least (Young 1974, higher order of Daly 2006, equation 37)."""
    c, m = _floats(write_s, mtbf_s)
    ratio = np.sqrt(np.minimum(c / (2 * m), 1.0))
    return np.where(c < 2 * m, np.sqrt(2 * c * m) * (1 + ratio / 3 + ratio**2 / 9) - c, m)


def goodput(interval_s: Number, write_s: Number, restart_s: Number, mtbf_s: Number) -> Numbers:
    """Useful time over elapsed time when interruptions are exponential (Daly 2006, equation 20).

    A stretch of t + C is repeated until it passes without an interruption, and each interruption costs R.
    """
    t, c, r, m = _floats(interval_s, write_s, restart_s, mtbf_s)
    with np.errstate(over="ignore"):
        elapsed_s = m * np.exp(r / m) * np.expm1((t + c) / m)
    return np.where(elapsed_s > 0, t / elapsed_s, 0.0)
