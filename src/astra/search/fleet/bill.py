"""Days and dollars of a plan over several pools: every pool at its own price, by whole nodes, with what lines cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from astra.answer import PriceTag
from astra.cost.lines import crossings, egress_usd
from astra.money import rates
from astra.money.bill import Hired, cost_of, hired, judged_by, never_ends
from astra.money.tags import stale_warnings, tag_of
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import MixedEstimate
from astra.spec.cluster import Pool
from astra.spec.mixed_text import parse_mixed
from astra.spec.money import Money


class _Hiring(NamedTuple):
    """What a plan's servers cost together; without a tag where the price of one is not known."""

    options: Money  # with what lines cost, and the risks of its pools
    tag: PriceTag | None
    machines: Hired
    tags: dict[str, PriceTag]  # by pool


def _hiring(fleet: Fleet, result: MixedEstimate, options: Money) -> _Hiring:
    pools = dict(zip(fleet.names, fleet.cluster.pools, strict=True))
    machines = {
        name: hired(msgspec.structs.replace(pools[name], gpus=_whole(used, pools[name].node.gpus)))._replace(used=used)
        for name, used in result.used.items()
    }
    options = _with_egress(fleet, result, options)
    tags = {name: tag for name in result.used if (tag := tag_of(options, pools[name])) is not None}
    together = Hired(*(sum(column) for column in zip(*machines.values(), strict=True)))
    whole = _joined(tags, machines) if len(tags) == len(result.used) else None
    return _Hiring(_with_risks(pools, machines, tags, options), whole, together, tags)


def with_run(fleet: Fleet, result: MixedEstimate, options: Money) -> MixedEstimate:
    """Days and dollars of the whole run, when the tokens to train are known."""
    tokens = fleet.job.workload.tokens
    if tokens is None:
        return result
    options, tag, machines, tags = _hiring(fleet, result, options)
    cost = None if tag is None else cost_of(fleet.job, result, options, tag, machines)
    warnings = stale_warnings([*tags.values()])
    missing = [f"no price of {name} is known: give --usd-per-gpu-h or --prices" for name in result.used
               if name not in tags]  # fmt: skip
    return msgspec.structs.replace(
        result,
        train_days=tokens / result.tokens_per_s / 86400,
        train_usd=cost.usd if cost is not None else None,
        price_source="; ".join(f"{tag.provider} {tag.date or ''}".strip() for tag in tags.values()) or None,
        cost=cost,
        warnings=[*result.warnings, *dict.fromkeys(warnings), *missing, *never_ends(cost, options)],
    )


def judged(fleet: Fleet, result: MixedEstimate, options: Money, *, upper: bool) -> tuple[float, float]:
    """Seconds and dollars that a plan is judged by, as one on a pool alone is; every pool must have a price."""
    options, tag, machines, _ = _hiring(fleet, result, options)
    assert tag is not None
    return judged_by(fleet.job, result, options, tag, machines, upper=upper)


def _with_egress(fleet: Fleet, result: MixedEstimate, options: Money) -> Money:
    """What is sent over priced links in the whole run, with what the user says of egress."""
    tokens = fleet.job.workload.tokens
    if "[" not in result.strategy or tokens is None:
        return options
    sent = crossings(fleet.cluster, fleet.names, fleet.job, parse_mixed(result.strategy))
    usd = egress_usd(sent) * tokens / fleet.job.workload.tokens_per_step
    together = {"egress_tb": 1.0, "usd_per_tb_egress": options.egress_usd + usd}  # as one amount
    return msgspec.structs.replace(options, **together) if usd else options


def _with_risks(
    pools: Mapping[str, Pool], machines: Mapping[str, Hired], tags: Mapping[str, PriceTag], options: Money
) -> Money:
    """Failures and pre-emptions of the job where pools have their own: rates add up, so these are means over pools."""
    own = [pools[name] for name in machines]
    if all(pool.mtbf_gpu_h is None and pool.preemptions_per_node_day is None for pool in own):
        return options
    usual_h = options.mtbf_gpu_h or rates.MTBF_GPU_S / rates.HOUR_S
    failures = sum(each.used / (pools[name].mtbf_gpu_h or usual_h) for name, each in machines.items())
    taken = sum(each.nodes * _taken_per_day(pools[name], tags.get(name), options) for name, each in machines.items())
    used, nodes = (sum(column) for column in list(zip(*machines.values(), strict=True))[::2])
    return msgspec.structs.replace(options, mtbf_gpu_h=used / failures, preemptions_per_node_day=taken / nodes)


def _taken_per_day(pool: Pool, tag: PriceTag | None, options: Money) -> float:
    """How often a day a server of a pool is taken away: as the pool says, the user, or its market."""
    said = (
        pool.preemptions_per_node_day if pool.preemptions_per_node_day is not None else options.preemptions_per_node_day
    )
    usual = rates.PREEMPTIONS_PER_NODE_S * rates.DAY_S if tag is not None and tag.market == "spot" else 0.0
    return usual if said is None else said


def _whole(used: int, node: int) -> int:
    return used if used < node else -(-used // node) * node


def _joined(tags: dict[str, PriceTag], machines: dict[str, Hired]) -> PriceTag:
    """The mean price of a GPU-hour, with every pool's own in its source."""
    if len(tags) == 1:
        return next(iter(tags.values()))
    billed = sum(each.billed for each in machines.values())
    usd = sum(tag.usd_per_gpu_h * machines[name].billed for name, tag in tags.items()) / billed
    said = [
        f"{machines[name].billed} {name} at ${tag.usd_per_gpu_h:.4g}, "
        + " ".join(word for word in (tag.provider, tag.instance, tag.market, tag.date or "") if word)
        + f", {tag.source}"
        for name, tag in tags.items()
    ]
    ages = [tag.age_days for tag in tags.values() if tag.age_days is not None]
    dates = [tag.date for tag in tags.values() if tag.date is not None]
    return PriceTag(
        usd_per_gpu_h=usd, provider="mean of the pools", instance="", region="",
        market=next(iter(dict.fromkeys(tag.market for tag in tags.values()))),
        currency=next(iter(tags.values())).currency, date=min(dates, default=None), source="; ".join(said),
        age_days=max(ages, default=None), startup_s=max(tag.startup_s or 0.0 for tag in tags.values()),
        minimum_s=max(tag.minimum_s for tag in tags.values()), step_s=max(tag.step_s for tag in tags.values()),
    )  # fmt: skip
