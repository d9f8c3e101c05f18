"""The bill of a plan over several pools: each pool at its own price, by whole nodes."""

from __future__ import annotations

import msgspec

from astra.answer import PriceTag
from astra.money.bill import Hired, cost_of, hired, stale_warning, tag_of
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import MixedEstimate
from astra.spec.money import Money


def with_run(fleet: Fleet, result: MixedEstimate, options: Money) -> MixedEstimate:
    """Days and dollars of the whole run, when the tokens to train are known."""
    tokens = fleet.job.workload.tokens
    if tokens is None:
        return result
    pools = dict(zip(fleet.names, fleet.cluster.pools, strict=True))
    machines = {
        name: hired(msgspec.structs.replace(pools[name], gpus=_whole(used, pools[name].node.gpus)))._replace(used=used)
        for name, used in result.used.items()
    }
    tags = {name: tag for name in result.used if (tag := tag_of(options, pools[name])) is not None}
    cost = None
    if len(tags) == len(result.used):
        together = Hired(*(sum(column) for column in zip(*machines.values(), strict=True)))
        cost = cost_of(fleet.job, result, options, _joined(tags, machines), together)
    warnings = [warning for tag in tags.values() if (warning := stale_warning(tag))]
    missing = [f"no price of {name} is known: give --usd-per-gpu-h or --prices" for name in result.used
               if name not in tags]  # fmt: skip
    return msgspec.structs.replace(
        result,
        train_days=tokens / result.tokens_per_s / 86400,
        train_usd=cost.usd if cost is not None else None,
        price_source="; ".join(f"{tag.provider} {tag.date or ''}".strip() for tag in tags.values()) or None,
        cost=cost,
        warnings=[*result.warnings, *dict.fromkeys(warnings), *missing],
    )


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
        age_days=max(ages, default=None),
    )  # fmt: skip
