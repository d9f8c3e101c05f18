"""``rent``: which GPUs to rent, how many and from whom."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from astra.answer_money import RentReport
from astra.catalog.clusters import parse_cluster, read_cluster
from astra.errors import InputError, NoFeasiblePlan
from astra.money.objectives import is_green
from astra.money.offers import ANY, Market, Offer, Wanted, market, wanted_gpus
from astra.partition.problem import Effort
from astra.renting.green import least
from astra.renting.mixes import Mixed, mix
from astra.renting.popular import popular
from astra.renting.report import RentAnswer, chosen_of, report_of
from astra.search.attempts import untried
from astra.search.front import Refined, front_of, refine
from astra.search.ledger import able, elsewhere
from astra.search.offers import MOST_EFFORT, FrontSearch, JobOf, open_notes, search_front
from astra.search.world import World
from astra.spec.cluster import Cluster
from astra.spec.job import Job
from astra.spec.money import MARKETS, Money
from astra.spec.record import check
from astra.spec.request import PlanRequest, requested
from astra.units import DAY_S

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from astra.options import Asked, RentOptions

HORIZON_S: Final = 366 * DAY_S  # nobody waits longer for a run without saying so
NEVER_S: Final = 1000 * HORIZON_S


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
    found = searched(request, today, progress)
    world, shown, state, mixed = found.world, found.shown, found.state, found.mixed
    best = front_of([*found.refined, *mixed.refined])
    if is_green(world.goal):
        owned = [offer for offer in shown.offers if offer.tag.market not in MARKETS]
        every = [*(offer for offer in shown.mixable if len(offer.counts)), *owned]  # a dearer offer may be greener
        chosen = least(every, best, found.job_of, world.money, world.goal, HORIZON_S, upper=world.upper)
    else:
        chosen = chosen_of(best, world.goal)
    common, remarks = popular(shown.offers, state, found.job_of, world.money, upper=world.upper)
    aside = [*_sentences(untried(world.model, world.runtime, world.restrictions, "all choices")), *remarks]
    left_open = _sentences(open_notes(state))
    return report_of(RentAnswer(best, chosen, common, shown, state, mixed, left_open, aside), world, started)


def _sentences(notes: Sequence[str]) -> list[str]:
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


class Searched(NamedTuple):
    """What a request can rent, simulated."""

    world: World
    shown: Market
    state: FrontSearch
    job_of: JobOf
    refined: list[Refined]  # of one type: on the front or near it
    mixed: Mixed


class Stage(NamedTuple):
    """What a request may rent, and the job on any of it."""

    world: World
    shown: Market
    job_of: JobOf


def staged(request: PlanRequest, shown: Market) -> Stage:
    """A request with what it may rent; an error if its runtime cannot train it."""
    world = World.of(request, Cluster(pools=(shown.offers[0].pool,)))
    base = world.job
    able(base)

    def job_of(offer: Offer, count: int) -> Job:
        return msgspec.structs.replace(base, pool=offer.pool_of(count))

    return Stage(world, shown, job_of)


def searched(
    request: PlanRequest, today: dt.date | None = None, progress: Callable[[float], None] | None = None
) -> Searched:
    """Every offer in every count, and mixes of two; an error if nothing fits."""
    options, most = request.money, request.max_gpus
    world, shown, job_of = staged(_with_usual_goal(request), offers_of(request, today))
    base, goal = world.job, world.goal
    horizon_s = max(HORIZON_S, goal.cap if goal.objective.name == "deadline" else 0.0)

    def search(most_s: float, options: Money = options) -> FrontSearch:
        return search_front(
            shown.offers, job_of, options, effort=Effort(MOST_EFFORT), upper=world.upper, most_s=most_s,
            progress=progress,
        )  # fmt: skip

    state = search(horizon_s)
    refined = refine(job_of, options, state.near_front(), upper=world.upper)
    within = [one for one in refined if one.time_s <= horizon_s]
    if not within:  # it takes longer than anybody waits, or fits nowhere
        horizon_s, state = np.inf, search(np.inf)
        within = front_of(refine(job_of, options, state.near_front(), upper=world.upper))[:1]
    if not within and not search(np.inf, msgspec.structs.replace(options, goodput="off")).found:
        raise NoFeasiblePlan(_nothing(base, shown, most))
    if not within or within[0].time_s > NEVER_S:
        raise NoFeasiblePlan(_never(base))
    joined = request.mixes if "pp" in base.runtime.can.degrees else "none"  # pools are joined by pipelines
    mixed = mix(shown.mixable, job_of, options, within, most, joined, upper=world.upper, most_s=horizon_s)
    return Searched(world, shown, state, job_of, within, mixed)


def offers_of(request: PlanRequest, today: dt.date | None = None) -> Market:
    """What a request may rent, and the GPUs it has."""
    if request.known_nodes and request.assume_network:
        raise InputError("known_nodes", True, want="no --assume-network beside it: what it joins is left out")
    own = _own(request.own)
    caps = wanted_gpus(request.gpus or (ANY,), request.money, request.max_gpus, own)
    asked = Wanted(caps, request.precision, request.known_nodes, request.assume_network, own)
    return market(asked, request.money, today=today)


def _own(texts: Sequence[str]) -> Cluster | None:
    """The GPUs one has: in words, or in a cluster's file."""
    files = [text for text in texts if text.endswith(".toml")]
    if not texts:
        return None
    if files and len(texts) > 1:
        raise InputError("own", ",".join(texts), want="GPUs such as 64xH100, or one cluster file")
    try:
        return read_cluster(Path(files[0])) if files else parse_cluster("+".join(texts))
    except InputError as error:
        raise InputError(f"own: {error.where}", error.got, want=error.want, fix=error.fix) from None


def _with_usual_goal(request: PlanRequest) -> PlanRequest:
    """Without a goal, every trade is shown."""
    given = request.objective or request.budget or request.deadline
    return request if given else msgspec.structs.replace(request, objective="pareto")


def _nothing(job: Job, shown: Market, max_gpus: int) -> str:
    names = ", ".join(dict.fromkeys(offer.device.name for offer in shown.offers))
    return (
        f"{job.model.name}: no strategy fits on up to {max_gpus:,} of any of these: {names}. Try a larger --max-gpus, "
        "GPUs with more memory, another batch, or a smaller --headroom." + elsewhere(job)
    )


def _never(job: Job) -> str:
    return (
        f"{job.model.name}: nothing would end within a thousand years. Train fewer tokens, or see what is supposed of "
        "failures: --mtbf-gpu-h, --preemptions, --restart-min."
    )
