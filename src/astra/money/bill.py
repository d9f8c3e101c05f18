"""The bill of a run: what it costs at a price, and what it is likely to cost with restarts."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from astra.answer import NEVER_ENDS, Baseline, Cost, Estimate, PriceTag, Range, Restarts
from astra.catalog.grid import grid
from astra.cost.stage import trained_parameters
from astra.errors import InputError
from astra.money import rates as money
from astra.money.objectives import Goal
from astra.money.tags import stale_warning, tag_of
from astra.provenance import Floats, Ints
from astra.spec.cluster import Device, Pool
from astra.spec.job import Job
from astra.spec.money import ANY_MARKET, Money
from astra.units import GIB


class Outlook(NamedTuple):
    """Restarts of jobs of several sizes, as columns."""

    goodput: Floats
    mtbf_s: Floats
    write_s: Floats
    interval_s: Floats


def restart_s(options: Money) -> float:
    """From an interruption to training again."""
    return money.RESTART_S if options.restart_s is None else options.restart_s


def outlook(options: Money, nbytes: float, gpus: Ints, nodes: Ints, market: str) -> Outlook:
    """How much of the time is useful."""
    per_gpu_s = money.MTBF_GPU_S if options.mtbf_gpu_h is None else options.mtbf_gpu_h * money.HOUR_S
    taken = money.PREEMPTIONS_PER_NODE_S if market == "spot" else 0.0
    # Beside other markets, what is said of pre-emptions is of spot.
    if options.preemptions_per_node_day is not None and (market == "spot" or options.market != ANY_MARKET):
        taken = options.preemptions_per_node_day / money.DAY_S
    rate = options.write_bytes_per_s_per_gpu or money.WRITE_BYTES_PER_S_PER_GPU
    between_s = money.mtbf_s(gpus, nodes, mtbf_gpu_s=per_gpu_s, preemptions_per_node_s=taken)
    write_s = money.write_s(nbytes, gpus, rate)
    interval_s = money.best_interval_s(write_s, between_s)
    return Outlook(money.goodput(interval_s, write_s, restart_s(options), between_s), between_s, write_s, interval_s)


def checkpoint_bytes(job: Job) -> float:
    """Weights, master copies and optimizer state of everything that is trained."""
    return trained_parameters(job) * money.CHECKPOINT_BYTES[job.workload.optimizer]


class Hired(NamedTuple):
    """GPUs of a job, over all its pools."""

    used: int
    billed: int  # whole nodes
    nodes: int


def hired(pool: Pool) -> Hired:
    """One pool."""
    return Hired(pool.gpus, int(money.billed_gpus(pool.gpus, pool.gpus_per_node)), -(-pool.gpus // pool.node.gpus))


def startup_s(options: Money, tag: PriceTag, nodes: Ints | int) -> Floats:
    """From the order of so many nodes of an offer to the first step: as the user says, the offer, or the default."""
    said = options.startup_s if options.startup_s is not None else tag.startup_s
    return money.startup_s(nodes) if said is None else np.full(np.shape(nodes), said)


def run_usd(options: Money, tag: PriceTag, gpus: Floats, seconds: Floats) -> Floats:
    """Dollars of so many GPUs that are there for some time, storage among them; egress is not."""
    billed = money.billed_s(seconds, tag.minimum_s, tag.step_s)
    usd: Floats = money.rent_usd(tag.usd_per_gpu_h, gpus, billed)
    return usd + options.storage_usd_per_s * seconds if options.storage_usd_per_s else usd


def bill_usd(options: Money, tag: PriceTag, machines: Hired, train_s: float) -> dict[str, float]:
    """Dollars by what they are for; GPUs and storage are paid from start-up to the end, idle time among it."""
    start_s = float(startup_s(options, tag, machines.nodes))
    present_s = start_s + train_s + options.idle_s
    unused_s = float(money.billed_s(present_s, tag.minimum_s, tag.step_s)) - present_s
    spent = {"gpus": train_s, "startup": start_s, "unused": unused_s, "idle": options.idle_s}
    usd = {name: float(money.rent_usd(tag.usd_per_gpu_h, machines.billed, each)) for name, each in spent.items()}
    usd |= {"storage": options.storage_usd_per_s * present_s, "egress": options.egress_usd}
    return {name: each for name, each in usd.items() if name == "gpus" or each > 0}


def judged_by(
    job: Job, result: Estimate, options: Money, tag: PriceTag, machines: Hired | None = None, *, upper: bool = False
) -> tuple[float, float]:
    """Seconds and dollars of the run, with restarts where they are to be judged by; of one step without tokens.

    With ``upper`` those of the upper end of the step's interval.
    """
    machines = machines or hired(job.pool)
    longer = result.step_s_range.high / result.step_s if upper else 1.0
    if job.workload.tokens is None:
        step_s = result.step_s * longer
        return step_s, float(money.rent_usd(tag.usd_per_gpu_h, machines.billed, step_s))
    train_s = job.workload.tokens / result.tokens_per_s * longer
    if options.goodput == "expected":
        useful = float(_outlook_of(job, options, tag, machines).goodput[0])
        train_s = train_s / useful if useful > 0 else float("inf")
    time_s = train_s + float(startup_s(options, tag, machines.nodes)) + options.idle_s
    return time_s, sum(bill_usd(options, tag, machines, train_s).values())


def cost_of(job: Job, result: Estimate, options: Money, tag: PriceTag, machines: Hired | None = None) -> Cost | None:
    """The bill of an estimate; None without tokens to train. ``machines`` are those of several pools."""
    tokens = job.workload.tokens
    if tokens is None:
        return None
    alone, machines = machines is None, machines or hired(job.pool)
    bar = (result.step_s_range.low / result.step_s, result.step_s_range.high / result.step_s)
    train_s = tokens / result.tokens_per_s
    parts = bill_usd(options, tag, machines, train_s)
    start_s = float(startup_s(options, tag, machines.nodes))
    low, high = ((train_s * end + start_s + options.idle_s) / money.DAY_S for end in bar)
    present_s = train_s + start_s + options.idle_s
    expected = None if options.goodput == "off" else _expected(job, options, tag, train_s, bar, machines)
    elapsed_s = present_s if expected is None else expected.days * money.DAY_S
    return Cost(
        gpus=machines.billed,
        days=present_s / money.DAY_S,
        days_range=Range(low=low, high=high),
        usd=sum(parts.values()),
        usd_range=_usd_range(options, tag, machines, train_s, bar),
        usd_per_billion_tokens=sum(parts.values()) / tokens * 1e9,
        price=tag,
        parts=parts,
        expected=expected,
        startup_s=start_s,
        billed_days=float(money.billed_s(present_s, tag.minimum_s, tag.step_s)) / money.DAY_S,
        **(_energy(job, options, tag, machines, elapsed_s) if alone else {}),
    )


def watts_of(options: Money, device: Device) -> float:
    """Watts of a GPU in training, as given or as measured."""
    return money.DRAWN * device.power_w if options.watts_per_gpu is None else options.watts_per_gpu


def co2_per_kwh(options: Money, tag: PriceTag) -> tuple[float | None, str]:
    """Grams, as given or of the grid of an offer's region, and how they are known; None where nobody says."""
    found = grid(tag.provider, tag.region)
    if options.g_co2_per_kwh is not None:
        return options.g_co2_per_kwh, f"{options.g_co2_per_kwh:g} g/kWh"
    if found is None:
        return None, "grid not known"
    return found.g_co2_per_kwh, f"{found.g_co2_per_kwh:g} g/kWh of {found.source}"


def _energy(job: Job, options: Money, tag: PriceTag, machines: Hired, seconds: float) -> dict[str, Any]:
    """Kilowatt-hours and CO2 of a run on one type of GPU, and how they are known."""
    watts = watts_of(options, job.pool.device)
    kwh = float(money.energy_kwh(watts, options.pue, machines.billed, seconds))
    assumed = f" per GPU: {money.DRAWN_SOURCE}, without its server"
    grams, made = co2_per_kwh(options, tag)
    return {
        "kwh": kwh,
        "kg_co2": None if grams is None else kwh * grams / 1000,
        "energy_source": f"{watts:.0f} W{', given' if options.watts_per_gpu else assumed}; PUE {options.pue:g}; {made}",
    }


def _usd_range(options: Money, tag: PriceTag, machines: Hired, train_s: float, bar: tuple[float, float]) -> Range:
    low, high = (sum(bill_usd(options, tag, machines, train_s * end).values()) for end in bar)
    return Range(low=low, high=high)


def _outlook_of(job: Job, options: Money, tag: PriceTag, machines: Hired) -> Outlook:
    used, nodes = np.array([machines.used]), np.array([machines.nodes])
    return outlook(options, checkpoint_bytes(job), used, nodes, tag.market)


def _expected(
    job: Job, options: Money, tag: PriceTag, train_s: float, bar: tuple[float, float], machines: Hired
) -> Restarts | None:
    found = _outlook_of(job, options, tag, machines)
    useful = float(found.goodput[0])
    if useful <= 0:
        return None
    elapsed_s = train_s / useful
    fixed_s = float(startup_s(options, tag, machines.nodes)) + options.idle_s
    low, high = ((elapsed_s * end + fixed_s) / money.DAY_S for end in bar)
    return Restarts(
        goodput=useful,
        days=(elapsed_s + fixed_s) / money.DAY_S,
        days_range=Range(low=low, high=high),
        usd=sum(bill_usd(options, tag, machines, elapsed_s).values()),
        usd_range=_usd_range(options, tag, machines, elapsed_s, bar),
        interruptions=elapsed_s / float(found.mtbf_s[0]),
        mtbf_h=float(found.mtbf_s[0]) / money.HOUR_S,
        checkpoint_gib=checkpoint_bytes(job) / GIB,
        checkpoint_write_s=float(found.write_s[0]),
        checkpoint_interval_s=float(found.interval_s[0]),
        restart_s=restart_s(options),
        sources=_sources(options, tag),
    )


def _sources(options: Money, tag: PriceTag) -> list[str]:
    """Where the figures of failures come from: the user, or published runs."""
    rows = [
        ("failures", options.mtbf_gpu_h, money.MTBF_SOURCE),
        ("restart time", options.restart_s, money.RESTART_SOURCE),
        ("checkpoint writing", options.write_bytes_per_s_per_gpu, money.WRITE_SOURCE),
    ]
    if tag.market == "spot" or options.preemptions_per_node_day is not None:
        rows.append(("pre-emption", options.preemptions_per_node_day, money.PREEMPTION_SOURCE))
    return [f"{name}: {'given with the request' if given is not None else source}" for name, given, source in rows]


def if_taken(result: Estimate, options: Money, machines: Hired, per_month: float) -> tuple[float, float]:
    """Seconds and dollars of a run on spot machines, were such a share of them taken away in a month."""
    cost = result.cost
    assert cost is not None
    assert cost.expected is not None
    often = msgspec.structs.replace(
        options, preemptions_per_node_day=money.preemptions_per_node_s(per_month) * money.DAY_S
    )
    sizes = np.array([machines.used]), np.array([machines.nodes])
    useful = float(outlook(often, cost.expected.checkpoint_gib * GIB, *sizes, cost.price.market).goodput[0])
    train_s = (cost.days * money.DAY_S - cost.startup_s - options.idle_s) / useful if useful > 0 else np.inf
    usd = sum(bill_usd(options, cost.price, machines, train_s).values())
    return train_s + cost.startup_s + options.idle_s, usd


def with_run(job: Job, result: Estimate, options: Money, tag: PriceTag | None) -> Estimate:
    """Add the length and price of the whole run when the tokens to train are known."""
    if job.workload.tokens is None:
        return result
    cost = cost_of(job, result, options, tag) if tag is not None else None
    warnings = [*result.warnings, *([stale_warning(tag)] if tag is not None and stale_warning(tag) else [])]
    warnings += never_ends(cost, options)
    return msgspec.structs.replace(
        result,
        train_days=cost.days if cost is not None else job.workload.tokens / result.tokens_per_s / 86400,
        train_usd=cost.usd if cost is not None else None,
        price_source=f"{tag.provider} {tag.date or ''}".strip() if tag is not None else None,
        cost=cost,
        warnings=warnings,
    )


def never_ends(cost: Cost | None, options: Money) -> list[str]:
    """A warning where a bill cannot count restarts, because they take all of the time."""
    return [NEVER_ENDS] if cost is not None and cost.expected is None and options.goodput != "off" else []


def price(job: Job, options: Money, goal: Goal) -> PriceTag | None:
    """The price of a GPU-hour; an objective that is about money cannot do without."""
    tag = tag_of(options, job.pool)
    if tag is None and (
        "usd" in goal.objective.columns[0] or goal.objective.cap or goal.objective.direction == "front"
    ):
        raise InputError(
            "price", None, want=f"a price of {job.pool.device.name} ({options.market})",
            fix="None is in the catalog: give --usd-per-gpu-h, --prices FILE, or energy and purchase of your own.",
        )  # fmt: skip
    return tag


def shared_range(result: Estimate, usd: float) -> Range:
    """A difference of dollars between two runs whose step times are off by the same factor."""
    low, high = (usd * end / result.step_s for end in (result.step_s_range.low, result.step_s_range.high))
    return Range(low=min(low, high), high=max(low, high))


def against(best: Estimate, now: Estimate) -> Baseline:
    """What the best plan saves."""
    mine, theirs = best.cost, now.cost
    expected = (mine.expected, theirs.expected) if mine and theirs else (None, None)
    saved = theirs.usd - mine.usd if mine and theirs else None
    return Baseline(
        estimate=now,
        step_s_saved=now.step_s - best.step_s,
        days_saved=None if best.train_days is None or now.train_days is None else now.train_days - best.train_days,
        usd_saved=saved,
        expected_days_saved=expected[1].days - expected[0].days if expected[0] and expected[1] else None,
        expected_usd_saved=expected[1].usd - expected[0].usd if expected[0] and expected[1] else None,
        usd_saved_range=None if saved is None else shared_range(best, saved),
    )
