"""Plans by money on the GPUs one has: how many of them to use, and what the best plan saves against the present one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from astra.answer import Baseline, Estimate, PriceTag, Range
from astra.errors import InputError, NoFeasiblePlan
from astra.money.bill import cost_of, stale_warning, tag_of
from astra.money.objectives import Goal
from astra.money.offers import Offer
from astra.partition.effort import Effort
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.counts import on
from astra.search.engine import search
from astra.search.front import Refined, choose, front_of, refine
from astra.search.hunt import MOST_EFFORT, Found, Hunt, Progress, hunt
from astra.spec.job import Job
from astra.spec.money import Money


def with_run(job: Job, result: Estimate, options: Money, tag: PriceTag | None) -> Estimate:
    """Add the length and price of the whole run when the tokens to train are known."""
    if job.workload.tokens is None:
        return result
    cost = cost_of(job, result, options, tag) if tag is not None else None
    warnings = [*result.warnings, *([stale_warning(tag)] if tag is not None and stale_warning(tag) else [])]
    return msgspec.structs.replace(
        result,
        train_days=cost.days if cost is not None else job.workload.tokens / result.tokens_per_s / 86400,
        train_usd=cost.usd if cost is not None else None,
        price_source=f"{tag.provider} {tag.date or ''}".strip() if tag is not None else None,
        cost=cost,
        warnings=warnings,
    )


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


def parts_of(
    job: Job,
    goal: Goal,
    options: Money,
    tag: PriceTag,
    *,
    restrictions: Restrictions,
    user_rules: Sequence[Rule] = (),
    progress: Progress | None = None,
) -> tuple[list[Refined], Hunt]:
    """Which part of the pool to use, in whole nodes: by the goal, best first, and what the search did."""
    node = job.pool.node
    counts = np.arange(node.gpus, job.pool.gpus + 1, node.gpus) if job.pool.gpus >= node.gpus else [job.pool.gpus]
    offer = Offer(tag, job.pool.device, node, True, np.array(counts, np.int64))

    def job_of(offer: Offer, gpus: int) -> Job:
        del offer
        return on(job, gpus)

    if user_rules:  # rules may speak of the number of GPUs, so each is searched by itself
        state = Hunt(job_of, options, restrictions)
        for gpus in offer.counts.tolist():
            _add(state, offer, on(job, gpus), restrictions, user_rules)
        near = state.found
    else:
        state = hunt([offer], job_of, options, effort=Effort(MOST_EFFORT), restrictions=restrictions, progress=progress)
        near = state.near_front()
    refined = refine(job_of, options, near)
    if not refined:
        raise NoFeasiblePlan(
            f"{job.model.name}: no strategy fits on {job.pool.gpus}x{job.pool.device.name} or any part of them. "
            "astra plan without an objective says what would be needed."
        )
    return choose(front_of(refined), goal), state


def use_notes(job: Job, chosen: Refined) -> list[str]:
    """How many GPUs are left unused."""
    gpus = chosen.gpus
    return [f"uses {gpus:,} of the {job.pool.gpus:,} GPUs"] if gpus < job.pool.gpus else []


def _add(state: Hunt, offer: Offer, job: Job, restrictions: Restrictions, rules: Sequence[Rule]) -> None:
    """Search one count and put what is found into the account."""
    found = search(job, restrictions, user_rules=rules, keep=1)
    state.considered += found.considered
    state.evaluated += found.evaluated
    for best in found.candidates:
        state.add(Found(offer, job.pool.gpus, best.strategy, best.step_s, best.step_s, 0.0))


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
