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
from astra.errors import InputError, NoCoverage, NoFeasiblePlan
from astra.evidence.bars import unpublished
from astra.evidence.kinds import kind_of
from astra.money.bill import against, price, with_run
from astra.money.objectives import Goal
from astra.money.tags import tag_of
from astra.rules.table import Rule
from astra.search.attempts import untried
from astra.search.detail import estimate, legality
from astra.search.engine import Progress, SearchOutcome, among
from astra.search.ledger import able, lost_by, no_coverage, nothing_fits, nothing_simulated, rejects_of
from astra.search.ranked import Judged, Ranked, ranked
from astra.search.splits import best_splits
from astra.search.words import settled
from astra.search.world import World, figures_of
from astra.spec.job import Job
from astra.spec.money import Money
from astra.spec.strategy import Strategy, parse_strategy
from astra.units import show_dollars, show_seconds

LEAST_GAIN: Final = 0.02  # of a step, below which nobody would take a risk
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
    upper_s = best.step_s * safe.doubt.of_strategy(best.strategy)
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
    plans = [(strategy, with_run(part, result, money, tag)) for part, strategy, result in found.ranked]
    best = plans[0][1]
    if world.request.strict and best.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(best))
    return PlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=_record(world, found.ranked[0][0], goal),
        asked=world.resolved.plain("plan"),
        plans=[
            Plan(rank=place, strategy=str(strategy), estimate=result, lost_by=lost_by(best, result))
            for place, (strategy, result) in enumerate(plans, start=1)
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
    """Whether no number near them leaves more ways to deal: the smaller of both divides the larger one.

    Pipelines of several chunks take their micro-batches in rounds of as many as there are stages. Of fewer samples than
    GPUs they can, where what the GPUs are more is a power of two, which tensor and context parallelism may take.
    """
    rest = max(gpus // batch, 1)
    return math.gcd(gpus, batch) == min(gpus, batch) and rest & (rest - 1) == 0


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
    plans = [(job, strategy, result) for strategy, result in found.plans]
    notes += found.attempt.notes
    bold = daring(found.searches[0].grids.job, found.searches[0], plans[0][2], rules, tag)
    rejects = rejects_of(found.searches, rules, job)
    return _Answer(plans, found.considered, found.evaluated, found.feasible, rejects, notes, bold)


def _ranked(world: World, job: Job, top: int, progress: Progress | None = None) -> Ranked:
    """The best strategies of a job; NoFeasiblePlan where there is none."""
    found = ranked(job, Judged(world.restrictions, world.rules, world.upper), top, progress=progress)
    if found.plans:
        return found
    if found.costed:
        raise NoFeasiblePlan(nothing_simulated(found.attempt.job, [result for _, result in found.costed]))
    raise NoFeasiblePlan(nothing_fits(found.attempt.job, found.found, world.restrictions))


def _first(world: World) -> Estimate:
    """The first plan of a request, with nothing beside it."""
    return _ranked(world, settled(world.job, world.restrictions), world.request.top).plans[0][1]


def _front(job: Job, chosen: list[Refined], state: FrontSearch, notes: list[str]) -> _Answer:
    """Every trade of time for money on parts of the pool, fastest first; all of them, whatever ``top`` is."""
    plans = [(job.on(one.gpus), parse_strategy(one.estimate.strategy), one.estimate) for one in chosen]
    sentence = "refused, too large, or no better than the plans shown in both time and money"
    rest = max(state.considered - len(state.found), 0)
    rejects = [Reject(reason="front", sentence=sentence, strategies=rest)] if rest else []
    return _Answer(plans, state.considered, state.evaluated, len(state.found), rejects, notes)


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
        or (job.model.moe is not None and strategy.ep > job.model.moe.experts)
    )
    if undefined:
        fix = f"It breaks: {'; '.join(broken)}."
        raise InputError(where, str(strategy), want="a strategy that defines a run", fix=fix)
    return estimate(job, [strategy], user_rules=world.rules)[0]
