"""Of plans as good as the first, to half a percent of the upper end, the plainest comes first.

Half a percent is a small part of any error bar, and no reason for a plan to be odd. So each plan has equal chunks of layers
and its runtime's own words where these take no more than that, and of plans that are as good the first is the one that
does the fewest things beside its runtime's recipes and beside what runs were published with. This is the only place
where a plan with a later upper end comes first; ``--rank upper`` orders by the upper end alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra.answer import Estimate
from astra.cost.stage import parts_of
from astra.evidence.bars import unpublished
from astra.evidence.kinds import kind_of
from astra.layers.split import even
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.attempts import LEAST_BETTER
from astra.search.detail import as_row
from astra.search.detail import estimate as estimate_job
from astra.search.splits import Tried, simulated
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace
from astra.spec.strategy_fields import RUNTIME_WORDS

TIE: Final = 0.005  # of the upper end

Plans = list[tuple[Strategy, Estimate]]


def plainest_first(job: Job, plans: Plans, restrictions: Restrictions, rules: Sequence[Rule]) -> Plans:
    """The same plans, each as plain as it may be, the plainest of those as good as the first before them."""
    limit_s = plans[0][1].step_s_range.high * (1 + TIE)
    near = [plan for plan in plans if plan[1].step_s_range.high <= limit_s]
    plain = [_plainer(job, *plan, limit_s, restrictions, rules) for plan in near]
    first = min(plain, key=lambda plan: (departures(job, *plan), plan[1].step_s_range.high))
    others = [plan for plan in [*plain, *plans[len(near) :]] if plan is not first]
    return [first, *sorted(others, key=lambda plan: plan[1].step_s_range.high)]


def departures(job: Job, strategy: Strategy, result: Estimate) -> int:
    """How many things a strategy does that its runtime's recipes do not, or that no run has been published with."""
    usual = job.usual(strategy)
    odd = [
        *(getattr(strategy, name) != usual[name] for name in RUNTIME_WORDS),
        *(name not in usual["overlap"] for name in strategy.overlap),
        *(True for _ in strategy.modules),
        strategy.recompute == "full",
        strategy.offload != "none",
        strategy.offload_layers > 0,
        strategy.schedule not in ("1f1b", "interleaved"),
        _depth(job) % (strategy.pp * strategy.vp) > 0 or bool(strategy.layers),
        bool(unpublished(kind_of(job, strategy))),
        *(True for _ in result.warnings),
    ]
    return sum(odd)


def _plainer(
    job: Job, strategy: Strategy, result: Estimate, limit_s: float, restrictions: Restrictions, rules: Sequence[Rule]
) -> tuple[Strategy, Estimate]:
    """The plan without what it does for no more than a tie, one thing after the other."""
    best = strategy, result
    for name in (*RUNTIME_WORDS, "layers"):
        one = _usual(job, *best, name, limit_s, restrictions)
        if one is None:
            continue
        found = estimate_job(job, [one], user_rules=rules)[0]
        fewer = departures(job, one, found) < departures(job, *best)
        if fewer and found.fits and found.legal and found.step_s_range.high <= limit_s:
            best = one, found
    return best


def _usual(
    job: Job, strategy: Strategy, result: Estimate, name: str, limit_s: float, restrictions: Restrictions
) -> Strategy | None:
    """The strategy with one thing as is usual; None if it has it so, or may not."""
    if name == "layers":
        doubt = result.step_s_range.high / result.step_s
        return _in_equal_chunks(job, strategy, limit_s / doubt, restrictions)
    usual = job.usual(strategy)[name]
    other = getattr(strategy, name) != usual and restrictions.allows(name, usual)
    return replace(strategy, **{name: usual}) if other else None


def _in_equal_chunks(job: Job, strategy: Strategy, limit_s: float, restrictions: Restrictions) -> Strategy | None:
    """The strategy with chunks of as many layers each: of the quickest the fewest; None if none takes less."""
    each, more = divmod(_depth(job), strategy.pp)
    if not strategy.layers or more:
        return None
    chunks = [vp for vp in range(min(strategy.vp, 2), each + 1) if each % vp == 0 and (vp > 1) == (strategy.vp > 1)]
    some = [replace(strategy, vp=vp, layers=()) for vp in restrictions.filter("vp", chunks)]
    said = job.saying(strategy)
    parts = parts_of(said, as_row(said, strategy).meshes.columns)
    tries = [Tried(one, parts, [even(_depth(job), one.pp * one.vp) or ()], limit_s) for one in some]
    found = [(splits[0][0], one) for one, splits in zip(some, simulated(said, tries), strict=True) if splits]
    least_s = min((step_s for step_s, _ in found), default=0.0)
    return next((one for step_s, one in found if step_s <= least_s * (1 + LEAST_BETTER)), None)


def _depth(job: Job) -> int:
    return job.model.layers + (job.model.encoder.layers if job.model.encoder else 0)
