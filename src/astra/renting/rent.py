"""``rent``: which GPUs to rent, how many and from whom."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

import astra
from astra.answer import Choice, ChoicePart, RentReport, RentSearch, Unused, Waste
from astra.catalog.hardware import catalog_hash
from astra.errors import InputError, NoFeasiblePlan
from astra.money.bill import shared_range, stale_warning
from astra.money.front import knee
from astra.money.objectives import Goal
from astra.money.offers import ANY, Market, Offer, market
from astra.partition.problem import Effort
from astra.renting.mixes import Mixed, mix
from astra.search.counts import best_on
from astra.search.fleet.records import MixedEstimate
from astra.search.front import Refined, choose, front_of, refine
from astra.search.ledger import able
from astra.search.offers import MOST_EFFORT, FoundOffer, FrontSearch, JobOf, open_notes, search_front
from astra.search.world import World
from astra.spec.cluster import Cluster
from astra.spec.job import Job
from astra.spec.money import MARKETS, Money
from astra.spec.record import check
from astra.spec.request import PlanRequest, requested
from astra.units import show_dollars, show_seconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from astra.options import Asked, RentOptions

POPULAR_GPUS: Final = ("H100-SXM5-80GB", "A100-SXM4-80GB", "H200-SXM5-141GB", "B200-SXM-180GB")
POPULAR_PROVIDERS: Final = ("AWS", "Azure", "GCP", "CoreWeave", "Lambda")
POPULAR_COUNT: Final = 256
MOST_REMARKED: Final = 3_000.0  # effort of what is popular, half a second or so


def rent(
    model: Asked,
    *,
    today: dt.date | None = None,
    progress: Callable[[float], None] | None = None,
    **asked: Unpack[RentOptions],
) -> RentReport:
    """Every trade of time for money worth making, over GPU types, counts, strategies and mixes of two types.

    ``tokens`` are needed. ``mixes``: "some" plans the most promising mixes that are not proven dominated, "all" every
    one of them.
    """
    started, request = time.perf_counter(), requested("rent", model, asked)
    check(progress is None or callable(progress), "progress", progress, "a function of the fraction that is done")
    check(today is None or isinstance(today, dt.date), "today", today, "a datetime.date")
    if request.tokens is None:
        raise InputError("tokens", None, want="the tokens to train", fix="Such as --tokens 2T.")
    options, most = request.money, request.max_gpus
    shown = market(
        request.gpus or (ANY,), options, max_gpus=most, precision=request.precision, known_nodes=request.known_nodes,
        today=today,
    )  # fmt: skip
    world = World.of(_with_usual_goal(request), Cluster(pools=(shown.offers[0].pool,)))
    base, goal = world.job, world.goal
    able(base)

    def job_of(offer: Offer, count: int) -> Job:
        return msgspec.structs.replace(base, pool=offer.pool_of(count))

    state = search_front(shown.offers, job_of, options, effort=Effort(MOST_EFFORT), progress=progress)
    refined = refine(job_of, options, state.near_front())
    if not refined:
        raise NoFeasiblePlan(_nothing(base, shown, most))
    joined = request.mixes if "pp" in base.runtime.can.degrees else "none"  # pools are joined by pipelines
    mixed = mix(shown.mixable, job_of, options, refined, most, joined)
    best = front_of([*refined, *mixed.refined])
    popular, remarks = _popular(shown.offers, state, job_of, options)
    left_open = [f"{note[0].upper()}{note[1:]}." for note in open_notes(state)]
    notes = [*left_open, *remarks, *_notes(best, options, mixed)]
    return _report(best, choose(best, goal), popular, shown, state, mixed, world, notes, started)


def _with_usual_goal(request: PlanRequest) -> PlanRequest:
    """Without a goal, every trade is shown."""
    given = request.objective or request.budget or request.deadline
    return request if given else msgspec.structs.replace(request, objective="pareto")


def _popular(
    offers: Sequence[Offer], state: FrontSearch, job_of: JobOf, options: Money
) -> tuple[list[Refined], list[str]]:
    """What many would rent without looking: a common GPU in a common number, from a large provider.

    This is a remark beside the answer, with an effort of its own; the sentences say where that was not enough.
    """
    effort, chosen, notes = Effort(MOST_REMARKED), list[FoundOffer](), list[str]()
    known = {(one.offer.device.name, one.offer.tag, one.gpus): one for one in state.found}
    for gpu in POPULAR_GPUS:
        some = [offer for offer in offers if offer.device.name == gpu and len(offer.counts) > 1]
        if not some:
            continue
        offer = min(some, key=lambda offer: (_fame(offer.tag.provider), offer.tag.usd_per_gpu_h))
        sizes = [2**n for n in range(20) if 2**n <= POPULAR_COUNT and 2**n in offer.counts]
        if not sizes:
            continue
        one = known.get((gpu, offer.tag, sizes[-1]))
        if one is None:
            if effort.over:
                notes.append(
                    f"{sizes[-1]}x{gpu}, a common choice, was not looked at: the work allowed for it was done."
                )
                continue
            with effort.part(1 / 2):
                by_count = best_on(job_of(offer, sizes[-1]), effort, found=bool(chosen))
            if by_count.strategies[0] is None:
                if np.isfinite(by_count.open_s[0]):
                    notes.append(f"{sizes[-1]}x{gpu}, a common choice: nothing was found in the work allowed for it.")
                continue
            if np.isfinite(by_count.open_s[0]):
                slower = by_count.step_s[0] / by_count.open_s[0] - 1
                notes.append(
                    f"{sizes[-1]}x{gpu}, a common choice, was not searched to the end: at most {slower:.1%} faster."
                )
            step_s = float(by_count.step_s[0])
            one = FoundOffer(offer, sizes[-1], by_count.strategies[0], step_s, step_s, np.inf)
        chosen.append(one)
    return refine(job_of, options, chosen), notes


def _fame(provider: str) -> int:
    return POPULAR_PROVIDERS.index(provider) if provider in POPULAR_PROVIDERS else len(POPULAR_PROVIDERS)


def _report(
    best: list[Refined],
    chosen: list[Refined],
    popular: list[Refined],
    shown: Market,
    state: FrontSearch,
    mixed: Mixed,
    world: World,
    notes: list[str],
    started: float,
) -> RentReport:
    goal, options = world.goal, world.money
    roles: dict[int, list[str]] = {place: [] for place in range(len(best))}
    roles[0].append("fastest")
    roles[len(best) - 1].append("cheapest")
    roles[knee(np.array([one.time_s for one in best]), np.array([one.usd for one in best]))].append("knee")
    if goal.objective.direction != "front":
        roles[best.index(chosen[0])].append("chosen")
    choices = [_choice(one, roles[place]) for place, one in enumerate(best)]
    on_front = {one.name for one in best}
    return RentReport(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=_record(world, shown),
        asked=world.resolved.plain("rent"),
        objective=goal.objective.name,
        judged_by="expected" if options.goodput == "expected" else "ideal",
        front=choices,
        chosen=[choices[best.index(one)] for one in chosen],
        popular=[_choice(one, [], None if one.name in on_front else _waste(one, best)) for one in popular],
        unused=shown.unused,
        search=RentSearch(
            offers=shown.prices,
            gpu_types=len({offer.device.name for offer in shown.offers}),
            choices=state.choices,
            passed=state.passed,
            considered=state.considered,
            evaluated=state.evaluated,
            refined=len(state.near_front()) + len(popular) + len(mixed.refined),
            seconds=time.perf_counter() - started,
            mixes=mixed.record(on_front=sum(len(one.parts) > 1 for one in best)),
        ),
        notes=notes,
        warnings=_warnings([*best, *popular], chosen, goal),
    )


def _choice(one: Refined, roles: list[str], waste: Waste | None = None) -> Choice:
    result, parts = one.estimate, one.parts
    if result.cost is None:
        raise InputError("tokens", None, want="the tokens to train")
    return Choice(
        name=one.name,
        gpu=" + ".join(part.offer.device.name for part in parts),
        gpus=one.gpus,
        nodes=sum(part.nodes for part in parts),
        node=" + ".join(part.offer.node.name for part in parts),
        node_known=all(part.offer.node_known for part in parts),
        parts=[
            ChoicePart(
                gpu=part.offer.device.name,
                gpus=part.gpus,
                nodes=part.nodes,
                node=part.offer.node.name,
                node_known=part.offer.node_known,
                price=part.offer.tag,
            )
            for part in parts
        ],
        strategy=result.strategy,
        as_usual=result.as_usual,
        step_s=result.step_s,
        step_s_range=result.step_s_range,
        tokens_per_s=result.tokens_per_s,
        mfu=result.mfu,
        peak_reserved_gib=result.peak_reserved_gib,
        memory_limit_gib=result.memory_limit_gib,
        provenance_worst=result.provenance_worst,
        cost=result.cost,
        roles=roles,
        warnings=result.warnings,
        evidence=result.evidence,
        waste=waste,
    )


def _waste(one: Refined, best: list[Refined]) -> Waste | None:
    """Against the cheapest choice on the front that is no slower; None if the front has none."""
    better = [other for other in best if other.time_s <= one.time_s and other.usd <= one.usd]
    if not better:
        return None
    instead = min(better, key=lambda other: other.usd)
    days, usd = (one.time_s - instead.time_s) / 86400, one.usd - instead.usd
    return Waste(instead=instead.name, days=days, usd=usd, usd_range=shared_range(one.estimate, usd))


def _notes(best: list[Refined], options: Money, mixed: Mixed) -> list[str]:
    notes = []
    if mixed.cut:
        notes.append(
            f"{mixed.cut} of the {mixed.planned} mixes planned were not searched to the end: the work allowed for "
            "mixes was done (--mixes all searches on)."
        )
    if any(part.offer.tag.market in MARKETS for one in best for part in one.parts):
        notes.append("A price does not say how many GPUs its provider has free: ask before you rely on it.")
    offers = [part.offer for one in best for part in one.parts]
    assumed = sorted({offer.tag.provider for offer in offers if not offer.node_known})
    if assumed:
        notes.append(
            f"The links of {', '.join(assumed)} are not in the catalog: those of the usual server for the GPU were "
            "taken, between servers too. Ask before you rent, or keep to --known-nodes."
        )
    for one in best:
        if len(one.parts) > 1 and isinstance(one.estimate, MixedEstimate):
            runs = ", ".join(one.estimate.runs_on) or "no runtime of the catalog"
            notes.append(f"{one.name}: {runs} can run this mix as it is.")
    if any(offer.tag.market == "spot" for offer in offers):
        notes.append("Spot: waiting for a replacement of a node that was taken away is not counted.")
    if any(offer.tag.market == "owned" for offer in offers) and options.watts_per_gpu is None:
        notes.append("Energy is of the GPU boards alone; --watts-per-gpu adds their share of the server.")
    return notes


def _warnings(shown: list[Refined], chosen: list[Refined], goal: Goal) -> list[str]:
    warnings = [stale_warning(part.offer.tag) for one in shown for part in one.parts]
    top = chosen[0].estimate
    high = top.step_s_range.high / top.step_s
    budget = goal.cap if goal.objective.name == "budget" else goal.most_usd
    if chosen[0].usd * high > budget:
        most = show_dollars(chosen[0].usd * high)
        warnings.append(f"At the upper end of its error bar the chosen plan costs {most}, above the budget.")
    if goal.objective.name == "deadline" and chosen[0].time_s * high > goal.cap:
        most = show_seconds(chosen[0].time_s * high)
        warnings.append(f"At the upper end of its error bar the chosen plan takes {most}, past the deadline.")
    return [warning for warning in dict.fromkeys(warnings) if warning]


def _record(world: World, shown: Market) -> dict[str, Any]:
    """The request as the answer tells it."""
    fields = {
        "gpus": list(dict.fromkeys(offer.device.name for offer in shown.offers)),
        "max_gpus": world.request.max_gpus,
        "money": msgspec.to_builtins(world.money),
    }
    return world.record() | fields | world.goal.record()


def _nothing(job: Job, shown: Market, max_gpus: int) -> str:
    names = ", ".join(dict.fromkeys(offer.device.name for offer in shown.offers))
    return (
        f"{job.model.name}: no strategy fits on up to {max_gpus:,} of any of these: {names}. Try a larger --max-gpus, "
        "GPUs with more memory, another batch, or a smaller --headroom."
    )


__all__ = ["Money", "Unused", "rent"]
