"""The fastest plan if it works: what the ranking by evidence passed over, and what would settle it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra.answer import Daring, Estimate, PriceTag
from astra.columns import from_strategy
from astra.evidence.kinds import kind_of
from astra.evidence.sentence import unpublished
from astra.rules.table import Rule
from astra.search.detail import estimate
from astra.search.engine import SearchOutcome, among
from astra.search.splits import best_splits
from astra.spec.job import Job
from astra.spec.strategy import Strategy, parse_strategy
from astra.units import show_dollars, show_seconds

LEAST_GAIN: Final = 0.01  # of a step, below which nobody would take a risk
TRIED: Final = 30  # steps of a trial, warm-up included


def daring(
    job: Job, safe: SearchOutcome, first: Estimate, rules: Sequence[Rule], tag: PriceTag | None
) -> Daring | None:
    """The plan with the least expected step, if that is worth a trial beside the first plan that a search found.

    No strategy has a lower upper end than the best one found, so that a quicker one is doubted more.
    """
    if safe.doubt is None:
        return None
    below_s, grids, best = first.step_s * (1 - LEAST_GAIN), safe.grids, safe.candidates[0]
    upper_s = best.step_s * float(safe.doubt.of(from_strategy(best.strategy))[0])
    found = among(grids, keep=1, doubt=safe.doubt.above((1 - 1e-9) * upper_s / below_s), below_s=below_s)
    if not found.candidates:
        return None
    strategies = best_splits(job, found.candidates, rules, grids.timed)
    estimates = estimate(job, strategies, user_rules=rules, timed=grids.timed)
    results = [one for one in estimates if one.fits and one.legal]
    if not results or results[0].step_s >= below_s:
        return None
    bold = results[0]
    return Daring(
        strategy=bold.strategy,
        estimate=bold,
        gain=1 - bold.step_s / first.step_s,
        doubt=_doubt(job, parse_strategy(bold.strategy), bold),
        settled_by=_settled_by(job, bold, tag),
    )


def _doubt(job: Job, strategy: Strategy, bold: Estimate) -> str:
    """Why it is not the first plan."""
    new = unpublished(kind_of(job, strategy))
    why = f"nobody has published {new}" if new else bold.evidence
    return f"{why}, so that it may take up to {bold.step_s_range.high / bold.step_s:.2f} times as long"


def _settled_by(job: Job, bold: Estimate, tag: PriceTag | None) -> str:
    """A rehearsal of a rank, or a trial with its minutes and dollars."""
    seconds = TRIED * bold.step_s_range.high
    usd = "" if tag is None else f" and {show_dollars(seconds / 3600 * job.pool.gpus * tag.usd_per_gpu_h)}"
    trial = f"a trial of {TRIED} steps, {show_seconds(seconds)}{usd} on these GPUs"
    return f"astra rehearse for its memory and compute on one GPU, then {trial}" if _rehearsed(job) else trial


def _rehearsed(job: Job) -> bool:
    return job.runtime.framework == "megatron"
