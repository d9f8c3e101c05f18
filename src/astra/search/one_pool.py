"""``plan`` and ``estimate`` on one pool of equal GPUs; beside a plan, the fastest one if it works."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import astra
from astra.answer import Daring, Estimate, Nearby, Plan, PlanSet, PriceTag, Reject, Search
from astra.catalog.hardware import catalog_hash
from astra.columns import from_strategy
from astra.errors import InputError, NoCoverage, NoFeasiblePlan
from astra.evidence.bars import Doubt, unpublished
from astra.evidence.kinds import kind_of
from astra.money.bill import against, price, with_run
from astra.money.objectives import Goal
from astra.money.tags import tag_of
from astra.rules.table import Rule
from astra.search.attempts import LEAST_BETTER, Attempt, alternatives, attempts, may_win, roomiest, untried
from astra.search.bounds import Grids
from astra.search.detail import estimate, legality
from astra.search.detail import estimate as estimate_job
from astra.search.engine import Progress, SearchOutcome, among
from astra.search.ledger import able, lost_by, no_coverage, nothing_fits, nothing_simulated, rejects_of
from astra.search.plainer import plainest_first
from astra.search.settle import GROUP
from astra.search.splits import best_splits
from astra.search.words import settled
from astra.search.world import World, figures_of
from astra.spec.job import Job
from astra.spec.money import Money
from astra.spec.strategy import Strategy, parse_strategy, replace
from astra.units import show_dollars, show_seconds

LEAST_GAIN: Final = 0.01  # of a step, below which nobody would take a risk
KEPT: Final = 5  # plans whose layers are moved, however few are shown: the first does not depend on that
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
    strategies = [one.strategy for one in best_splits(job, found.candidates, rules, grids.timed)]
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


if TYPE_CHECKING:
    from astra.search.front import Refined
    from astra.search.offers import FrontSearch


def plan_pool(world: World, progress: Progress | None = None) -> PlanSet:
    """The best strategies on one pool, on as many of its GPUs as the goal makes use of."""
    started, goal, money = time.perf_counter(), world.goal, world.money
    able(world.job)
    tag = price(world.job, money, goal) if _about_money(world, goal) else None
    now = None if world.request.baseline is None else estimated(world, world.request.baseline, "baseline")
    fastest = goal.objective.name == "fastest"
    try:
        found = _answer(world, goal, tag, progress)
    except NoFeasiblePlan as error:
        near = _advice(world) if fastest else ""
        raise (NoFeasiblePlan(f"{error} {near}") if near else error) from None
    ranked = [(strategy, with_run(part, result, money, tag)) for part, strategy, result in found.ranked]
    best = ranked[0][1]
    if world.request.strict and best.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(best))
    return PlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=_record(world, found.ranked[0][0], goal),
        asked=world.resolved.plain("plan"),
        plans=[
            Plan(rank=place, strategy=str(strategy), estimate=result, lost_by=lost_by(best, result))
            for place, (strategy, result) in enumerate(ranked, start=1)
        ],
        search=found.search_record(time.perf_counter() - started),
        rejects=found.rejects,
        notes=[*_about(world.job), *found.notes, *world.notes],
        objective=goal.objective.name,
        daring=found.daring,
        baseline=against(best, with_run(world.job, now, money, tag)) if now is not None else None,
        nearby=_remarks(world, found.ranked[0][2]) if fastest else [],
    )  # fmt: skip


def divides(gpus: int, batch: int) -> bool:
    """Whether the smaller of both divides the larger one: no number near them leaves more ways to deal."""
    return math.gcd(gpus, batch) == min(gpus, batch)


def _remarks(world: World, best: Estimate) -> list[Nearby]:
    """Numbers near those asked for that are better; whoever asks for numbers that divide loads nothing."""
    if divides(world.job.pool.gpus, world.workload.global_batch):
        return []
    from astra.search.nearby import remarks  # noqa: PLC0415

    return remarks(world, best, _first)


def _advice(world: World) -> str:
    """The same where nothing could be found."""
    if divides(world.job.pool.gpus, world.workload.global_batch):
        return ""
    from astra.search.nearby import advice  # noqa: PLC0415

    return advice(world, _first)


def _about_money(world: World, goal: Goal) -> bool:
    """Whether a price is of use: there is a run to pay, a goal to weigh, or something was said of prices."""
    return world.job.workload.tokens is not None or goal.objective.name != "fastest" or world.money != Money()


def _about(job: Job) -> list[str]:
    notes = [f"node type {job.pool.node.name}", f"runtime {job.runtime.title}"]
    return notes if job.runtime.exports_to else [*notes, f"astra export writes no files for {job.runtime.name}"]


def estimate_pool(world: World, strategy: str) -> Estimate:
    """How a given strategy would do on one pool, legal or not."""
    result = estimated(world, strategy, "strategy")
    return with_run(world.job, result, world.money, tag_of(world.money, world.job.pool))


class _Answer(NamedTuple):
    """Plans with the part of the pool each uses, and the account of the search."""

    ranked: list[tuple[Job, Strategy, Estimate]]
    considered: int
    evaluated: int
    feasible: int
    rejects: list[Reject]
    notes: list[str]
    daring: Daring | None = None

    def search_record(self, seconds: float) -> Search:
        return Search(
            considered=self.considered, evaluated=self.evaluated, feasible=self.feasible, seconds=seconds,
            strategies_per_s=self.considered / seconds,
        )  # fmt: skip


def _answer(world: World, goal: Goal, tag: PriceTag | None, progress: Progress | None) -> _Answer:
    """The plans of a goal: the front, or the best strategies on as many GPUs as the goal makes use of."""
    rules, restrictions, notes = world.rules, world.restrictions, list[str]()
    job = settled(world.job, restrictions)
    if goal.objective.name != "fastest" and tag is not None:
        from astra.search.budget import parts_of, use_notes  # noqa: PLC0415 - few goals are about money
        from astra.search.offers import open_notes  # noqa: PLC0415

        chosen, state = parts_of(
            job, goal, world.money, tag, upper=world.upper, restrictions=restrictions, user_rules=rules,
            progress=progress,
        )  # fmt: skip
        if goal.objective.direction == "front":
            usual = untried(job.model, job.runtime, restrictions, "all trades")
            return _front(job, chosen, state, [*open_notes(state), *usual])
        notes = [*use_notes(job, chosen[0]), *open_notes(state)]
        job = job.on(chosen[0].gpus)
    found = _ranked(world, job, world.request.top, progress)
    job = found.attempt.job
    ranked = found.ranked
    if world.request.rank == "plain":
        ranked = plainest_first(job, ranked, restrictions, rules)
    plans = [(job, strategy, result) for strategy, result in ranked]
    notes += found.attempt.notes
    bold = daring(found.searches[0].grids.job, found.searches[0], plans[0][2], rules, tag)
    rejects = rejects_of(found.searches, rules, job)
    return _Answer(plans, found.considered, found.evaluated, found.feasible, rejects, notes, bold)


class _Found(NamedTuple):
    """The best of all searches of a job, as they are told, with the attempt of the first; and the searches."""

    attempt: Attempt
    searches: list[SearchOutcome]
    ranked: list[tuple[Strategy, Estimate]]
    considered: int
    evaluated: int
    feasible: int


def _ranked(world: World, job: Job, top: int, progress: Progress | None = None) -> _Found:
    """What the first attempt at a job finds that something fits in, and what is better beside it."""
    keep, usual = max(top, KEPT), job
    tried = attempts(roomiest(job, world.restrictions, world.rules), world.restrictions)
    for attempt in tried:
        grids = Grids(attempt.job, attempt.restrictions, world.rules)
        found = among(grids, keep=keep, progress=progress, doubt=_doubt_of(world, attempt), advise=attempt is tried[-1])
        if found.candidates:
            break
    else:
        raise NoFeasiblePlan(nothing_fits(attempt.job, found, world.restrictions))
    ranked = _dealt_best(world, attempt, found)
    if not any(_runs(result) for _, result in ranked):
        raise NoFeasiblePlan(nothing_simulated(attempt.job, [result for _, result in ranked]))
    searches, first = [found], attempt
    for other in alternatives(first, world.rules):
        below_s = (1 - other.worth) * min(_ranked_by(world, result) for _, result in ranked if _runs(result))
        if not may_win(other, found.grids, _doubt_of(world, other), below_s):
            continue
        grids = Grids(other.job, other.restrictions, world.rules)
        more = among(grids, keep=keep, doubt=_doubt_of(world, other), below_s=below_s)
        searches.append(more)
        own = _dealt_best(world, other, more) if more.candidates else []
        if any(_runs(result) and _ranked_by(world, result) < below_s for _, result in own):
            attempt, ranked = other, [*ranked, *own]
    fitting = sorted((pair for pair in ranked if _runs(pair[1])), key=lambda pair: _ranked_by(world, pair[1]))
    fitting = _best_of_groups(fitting)[:top]
    for name in ("params", "graphs"):
        if getattr(usual.words, name) != getattr(first.job.words, name):
            fitting = _as_usual(world, usual, fitting, name)
    considered, evaluated, feasible = (
        sum(getattr(one, name) for one in searches) for name in ("considered", "evaluated", "feasible")
    )
    return _Found(attempt, searches, fitting, considered, evaluated, feasible)


def _best_of_groups(ranked: list[tuple[Strategy, Estimate]]) -> list[tuple[Strategy, Estimate]]:
    """The first of each group: other splits, and what other words found, may be variants of one plan."""
    best: dict[tuple[int, ...], tuple[Strategy, Estimate]] = {}
    for strategy, result in ranked:
        best.setdefault(tuple(getattr(strategy, name) for name in GROUP), (strategy, result))
    return list(best.values())


def _doubt_of(world: World, attempt: Attempt) -> Doubt | None:
    return Doubt(attempt.job) if world.upper else None


def _dealt_best(world: World, attempt: Attempt, found: SearchOutcome) -> list[tuple[Strategy, Estimate]]:
    """What a search found with its layers dealt best, costed in full."""
    splits = best_splits(attempt.job, found.candidates, world.rules, found.grids.timed, attempt.restrictions)
    strategies = [one.strategy for one in splits]
    results = estimate_job(attempt.job, strategies, user_rules=world.rules, timed=found.grids.timed)
    return list(zip(strategies, results, strict=True))


def _as_usual(
    world: World, usual: Job, plans: list[tuple[Strategy, Estimate]], name: str
) -> list[tuple[Strategy, Estimate]]:
    """Plans with a word as is usual, where they have room for it and are no worse worth telling."""
    strategies = [replace(strategy, **{name: getattr(usual.words, name)}) for strategy, _ in plans]
    results = estimate_job(usual, strategies, user_rules=world.rules)
    return [
        (strategy, result) if _runs(result) and result.step_s <= plan[1].step_s * (1 + LEAST_BETTER) else plan
        for plan, strategy, result in zip(plans, strategies, results, strict=True)
    ]


def _runs(result: Estimate) -> bool:
    return result.fits and result.legal


def _ranked_by(world: World, result: Estimate) -> float:
    return result.step_s_range.high if world.upper else result.step_s


def _first(world: World) -> Estimate:
    """The first plan of a request, with nothing beside it."""
    return _ranked(world, settled(world.job, world.restrictions), world.request.top).ranked[0][1]


def _front(job: Job, chosen: list[Refined], state: FrontSearch, notes: list[str]) -> _Answer:
    """Every trade of time for money on parts of the pool, fastest first; all of them, whatever ``top`` is."""
    ranked = [(job.on(one.gpus), parse_strategy(one.estimate.strategy), one.estimate) for one in chosen]
    sentence = "refused, too large, or no better than the plans shown in both time and money"
    rest = max(state.considered - len(state.found), 0)
    rejects = [Reject(reason="front", sentence=sentence, strategies=rest)] if rest else []
    return _Answer(ranked, state.considered, state.evaluated, len(state.found), rejects, notes)


def _record(world: World, job: Job, goal: Goal) -> dict[str, Any]:
    """The request as the answer tells it; the GPUs are those the best plan uses."""
    fleet = {
        "gpus": job.pool.gpus,
        "gpu": job.pool.device.name,
        "node": job.pool.node.name,
        "pool": msgspec.to_builtins(job.pool),
        "gpus_given": world.cluster.gpus,
    }
    return world.record() | world.limits_record() | fleet | goal.record()


def estimated(world: World, text: str, where: str) -> Estimate:
    """A strategy on all of the GPUs; ``where`` is the field that gives it."""
    job = world.job
    with figures_of(where):
        strategy = job.strategy(text)
    broken = legality(job, strategy, world.rules)
    depth = job.model.layers + (job.model.encoder.layers if job.model.encoder else 0)
    # An illegal strategy is still estimated, unless its numbers do not define a run at all.
    undefined = (
        strategy.gpus != job.pool.gpus
        or strategy.pp * strategy.vp > depth + 2
        or strategy.dp * strategy.mbs > job.workload.global_batch
        or (strategy.layers and sum(strategy.layers) != depth)
        or (strategy.tp * strategy.cp * strategy.dp) % (strategy.ep * strategy.etp)
    )
    if undefined:
        fix = f"It breaks: {'; '.join(broken)}."
        raise InputError(where, str(strategy), want="a strategy that defines a run", fix=fix)
    return estimate_job(job, [strategy], user_rules=world.rules)[0]
