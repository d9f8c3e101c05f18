"""The answer of ``rent`` as a record: roles, what stands for what, what common choices waste, and what to be told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

import astra
from astra.answer import PriceTag
from astra.answer_money import BreakEven, Choice, ChoicePart, RentReport, RentSearch, Waste
from astra.catalog.hardware import catalog_hash
from astra.errors import InputError, NoFeasiblePlan
from astra.money.bill import Hired, if_taken, shared_range
from astra.money.front import knee
from astra.money.objectives import Goal
from astra.money.offers import Market
from astra.money.rates import (
    PREEMPTED_PER_MONTH,
    PREEMPTED_RANGE,
    PREEMPTION_PROVIDER,
    PREEMPTION_SOURCE,
    STARTUP_SOURCE,
)
from astra.money.tags import owned_usd_per_gpu_h, stale_warnings
from astra.renting.mixes import Mixed
from astra.search.fleet.records import MixedEstimate
from astra.search.front import OfferPart, Refined, choose
from astra.search.offers import FrontSearch, steps_of
from astra.search.world import World
from astra.spec.money import MARKETS, Money
from astra.units import show_dollars, show_seconds

FEWEST_STEPS: Final = 100  # of a run; below it the batch is likely not what is meant
MOST_STARTUP: Final = 1 / 3  # of the time that is paid for, of what is named first


class RentAnswer(NamedTuple):
    """What was found."""

    best: list[Refined]  # the front, fastest first
    chosen: list[Refined]
    popular: list[Refined]
    shown: Market
    state: FrontSearch
    mixed: Mixed
    left_open: list[str]  # what was not searched to the end
    aside: list[str]  # remarks that are about no bill


def report_of(found: RentAnswer, world: World, started: float) -> RentReport:
    """The record of an answer."""
    best, goal = found.best, world.goal
    judged = "expected" if world.money.goodput == "expected" else "ideal"
    like, roles = stand_ins(best), dict[int, list[str]]()
    named = heads(best, like)
    like = [max(place, named["fastest"]) for place in like]
    for role, place in named.items():
        roles.setdefault(place, []).append(role)
    if goal.objective.direction != "front" and found.chosen[0] in best:
        roles.setdefault(best.index(found.chosen[0]), []).append("chosen")
    choices = [
        choice_of(
            one, roles.get(place, []), like="" if place in roles or like[place] == place else best[like[place]].name
        )
        for place, one in enumerate(best)
    ]
    on_front = {one.name for one in best}
    first = best[named["knee"]] if goal.objective.direction == "front" else found.chosen[0]
    return RentReport(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=_record(world, found.shown),
        asked=world.resolved.plain("rent"),
        objective=goal.objective.name,
        judged_by=judged,
        ranked_by=world.request.rank,
        front=choices,
        chosen=[choices[best.index(one)] if one in best else choice_of(one, ["chosen"]) for one in found.chosen],
        popular=[choice_of(one, [], None if one.name in on_front else _waste(one, best)) for one in found.popular],
        unused=found.shown.unused,
        search=_search_record(found, started),
        notes=[*found.left_open, *_if_taken(first, world.money), *_notes(found, world.money), *found.aside],
        warnings=[*_few_steps(world), *_warnings([*best, *found.popular], found.chosen, goal, judged)],
        own=_break_even(found.shown, world.money),
    )


def stand_ins(best: Sequence[Refined]) -> list[int]:
    """For each row of a front, fastest first, the row that stands for it: the cheapest that is as fast for all we know.

    Rows within the error bar of the fastest of them are as fast as that one.
    """
    out, place = list[int](), 0
    while place < len(best):
        latest = best[place].time_s * _bar(best[place])
        last = max(row for row in range(place, len(best)) if best[row].time_s <= latest)
        out += [last] * (last + 1 - place)
        place = last + 1
    return out


def _bar(one: Refined) -> float:
    """How many times as long the run may take as is expected of it."""
    cost = one.estimate.cost
    return cost.days_range.high / cost.days if cost is not None else 1.0


def heads(best: Sequence[Refined], like: Sequence[int]) -> dict[str, int]:
    """The rows to name first: fastest, cheapest, knee. None of which much is start-up, if it can be helped."""
    shown = sorted(set(like))
    worth = [place for place in shown if _worth_starting(best[place])] or shown[-1:]
    times, dollars = (np.array([getattr(best[place], name) for place in worth]) for name in ("time_s", "usd"))
    return {"fastest": worth[0], "cheapest": worth[-1], "knee": worth[knee(times, dollars)]}


def _worth_starting(one: Refined) -> bool:
    cost = one.estimate.cost
    return cost is None or MOST_STARTUP * cost.days * 86400 >= cost.startup_s


def chosen_of(best: list[Refined], goal: Goal) -> list[Refined]:
    """What a goal makes of a front: the best first, then the others it allows.

    Nothing of which much is start-up, if it can be helped; the cheapest of what is as fast for all we know.
    """
    like = stand_ins(best)
    worth = [one for place, one in enumerate(best) if _worth_starting(one) and (like[place] == place or _timed(goal))]
    try:
        return choose(worth or best, goal)
    except NoFeasiblePlan:
        return choose(best, goal)


def _timed(goal: Goal) -> bool:
    return goal.objective.name == "deadline" or goal.objective.direction == "front"


def _search_record(found: RentAnswer, started: float) -> RentSearch:
    state, mixed = found.state, found.mixed
    return RentSearch(
        offers=found.shown.prices,
        gpu_types=len({offer.device.name for offer in found.shown.offers}),
        choices=state.choices,
        passed=state.passed,
        considered=state.considered,
        evaluated=state.evaluated,
        refined=len(state.near_front()) + len(found.popular) + len(mixed.refined),
        seconds=time.perf_counter() - started,
        mixes=mixed.record(on_front=sum(len(one.parts) > 1 for one in found.best)),
    )


def choice_of(one: Refined, roles: list[str], waste: Waste | None = None, like: str = "") -> Choice:
    """A choice as it is told."""
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
        like=like,
    )


def _waste(one: Refined, best: list[Refined]) -> Waste | None:
    """Against the cheapest choice on the front that is no slower; None if the front has none."""
    better = [other for other in best if other.time_s <= one.time_s and other.usd <= one.usd]
    if not better:
        return None
    instead = min(better, key=lambda other: other.usd)
    days, usd = (one.middle_s - instead.middle_s) / 86400, one.middle_usd - instead.middle_usd
    return Waste(instead=instead.name, days=days, usd=usd, usd_range=shared_range(one.estimate, usd))


def _notes(found: RentAnswer, options: Money) -> list[str]:
    best, mixed, notes = found.best, found.mixed, list[str]()
    for one in best:
        if len(one.parts) > 1 and isinstance(one.estimate, MixedEstimate):
            runs = ", ".join(one.estimate.runs_on) or "no runtime of the catalog"
            notes.append(f"{one.name}: {runs} can run this mix as it is.")
    notes += notes_on([part for one in best for part in one.parts], found.shown, options)
    if any(part.offer.tag.market == "owned" for one in best for part in one.parts) and options.watts_per_gpu is None:
        notes.append("Energy is of the GPU boards alone; --watts-per-gpu adds their share of the server.")
    if mixed.cut:
        notes.append(
            f"Mixes that were not searched to the end, because the work allowed for them was done: {mixed.cut} of "
            f"{mixed.planned} (--mixes all searches on)."
        )
    return notes


def notes_on(parts: Sequence[OfferPart], shown: Market, options: Money) -> list[str]:
    """What nobody knows of some offers, and what was made of it."""
    notes, tags = list[str](), [part.offer.tag for part in parts]
    notes += _spot_notes([tag for tag in tags if tag.market == "spot"], options)
    if any(tag.market in MARKETS and tag.available is None for tag in tags):
        notes.append("A price does not say how many GPUs its provider has free: ask before you rely on it.")
    notes += _network_notes(parts, shown)
    if any(tag.startup_s is None for tag in tags) and options.startup_s is None:
        notes.append(f"Start-up is {STARTUP_SOURCE}.")
    return [*notes, *_commitments(tags)]


def _spot_notes(tags: Sequence[PriceTag], options: Money) -> list[str]:
    """What is assumed of machines that may be taken away."""
    if not tags:
        return []
    silent = ", ".join(sorted({tag.provider for tag in tags} - {PREEMPTION_PROVIDER}))
    assumed = (
        f"how often machines are taken away is {PREEMPTION_SOURCE}; {f'of {silent} nobody tells; ' * bool(silent)}"
    )
    note = assumed if options.preemptions_per_node_day is None else ""
    return [f"Spot: {note}waiting for a replacement is not counted, so that times and bills are floors."]


def _if_taken(one: Refined, options: Money) -> list[str]:
    """What a choice on spot machines would take, were they taken away less or more often than is assumed."""
    part, seller = one.parts[0], one.parts[0].offer.tag.provider
    spot = len(one.parts) == 1 and part.offer.tag.market == "spot"
    if not spot or options.preemptions_per_node_day is not None or options.goodput != "expected":
        return []
    machines = Hired(part.gpus, part.nodes * part.offer.node.gpus, part.nodes)
    said = [
        f"{show_seconds(seconds)} for {show_dollars(usd)} if {each:.0%} are"
        for each in PREEMPTED_RANGE
        for seconds, usd in (if_taken(one.estimate, options, machines, each),)
    ]
    figure = f"a figure of {PREEMPTION_PROVIDER}{f' ({seller} tells none)' * (seller != PREEMPTION_PROVIDER)}"
    return [
        f"{one.name} is expected to take so long if {PREEMPTED_PER_MONTH:.0%} of its servers are taken away in a "
        f"month, {figure}: {', '.join(said)} (--preemptions)."
    ]


def _network_notes(parts: Sequence[OfferPart], shown: Market) -> list[str]:
    """Which networks are not known, and what was made of them."""
    joined = [part for part in parts if part.nodes > 1 and not part.offer.node_known]
    assumed = sorted({part.offer.tag.provider for part in joined})
    if assumed:
        return [
            f"The links of {', '.join(assumed)} are not in the catalog: those of the usual server for the GPU were "
            "assumed, between servers too. Ask before you rent, or leave --assume-network out."
        ]
    alone = [part.offer for part in parts if not part.offer.node_known and part.offer.tag.provider in shown.single]
    by_seller = {offer.tag.provider: list[str]() for offer in sorted(alone, key=lambda offer: offer.tag.provider)}
    for offer in alone:
        by_seller[offer.tag.provider].append(offer.device.name)
    if not alone:
        return []
    servers = "; ".join(f"{', '.join(dict.fromkeys(gpus))} of {seller}" for seller, gpus in by_seller.items())
    return [
        f"Nobody says what joins servers of {servers} well enough to count on: each is rented alone here. "
        "--assume-network joins them by the usual network of their GPU; a column network in --prices says what you "
        "know."
    ]


def _commitments(tags: Sequence[PriceTag]) -> list[str]:
    """That the term of a reserved price is not known."""
    vague = sorted({tag.provider for tag in tags if tag.market == "reserved" and tag.term_s is None})
    if not vague:
        return []
    return [
        f"How long one commits at the reserved prices of {', '.join(vague)} is not known: the bills are floors, and a "
        "commitment is paid for whether it is used or not. A column term_days in --prices says what you were offered."
    ]


def _warnings(shown: list[Refined], chosen: list[Refined], goal: Goal, judged: str) -> list[str]:
    """Old prices, and caps that the choice crosses at the upper end of its error bar."""
    warnings = stale_warnings([part.offer.tag for one in shown for part in one.parts])
    top, cost = chosen[0], chosen[0].estimate.cost
    if cost is not None:
        counted = cost.expected if judged == "expected" and cost.expected is not None else cost
        budget = goal.cap if goal.objective.name == "budget" else goal.most_usd
        limit_s = goal.cap if goal.objective.name == "deadline" else goal.most_s
        usd, seconds = counted.usd_range.high, counted.days_range.high * 86400
        may = f"{top.name} is expected to keep it, and may not: at the upper end of its error bar it"
        if usd > budget:
            warnings.append(f"The budget is within doubt. {may} costs {show_dollars(usd)}.")
        if seconds > limit_s:
            warnings.append(f"The deadline is within doubt. {may} takes {show_seconds(seconds)}.")
    return warnings


def _few_steps(world: World) -> list[str]:
    """That so few steps are no training, as where a batch for pretraining meets the tokens of a fine-tune."""
    work, steps = world.workload, steps_of(world.job)
    if steps >= FEWEST_STEPS:
        return []
    return [
        f"These tokens are {max(steps, 1):.3g} steps of {work.global_batch:,} samples of {work.seq:,} tokens: few for "
        "any training. Give the --batch and --seq that you train with."
    ]


def _break_even(shown: Market, options: Money) -> list[BreakEven]:
    """Owning against renting, for each type of one's own GPUs beside which there are offers.

    An hour whose price was said costs that, however much the GPUs are used.
    """
    out = []
    for mine in shown.offers if options.owned else ():
        if mine.tag.market != "owned" or not any(offer.tag.market in MARKETS for offer in shown.offers):
            continue
        several = len(mine.counts) > 1
        rented = [
            offer for offer in shown.offers
            if offer.device.name == mine.device.name and offer.tag.market in MARKETS
            and (offer.node_known or not several)
        ]  # fmt: skip
        watts = options.watts_per_gpu if options.watts_per_gpu is not None else mine.device.power_w
        energy, fixed = owned_usd_per_gpu_h(options, watts)
        cheapest = min(rented, key=lambda offer: offer.tag.usd_per_gpu_h, default=None)
        usd = None if cheapest is None else cheapest.tag.usd_per_gpu_h
        even = None if usd is None or usd <= energy else fixed * options.use / (usd - energy)
        words = "" if cheapest is None else f"{cheapest.tag.provider} {cheapest.tag.instance} {cheapest.tag.market}"
        out.append(
            BreakEven(
                gpu=mine.device.name, own_usd_per_gpu_h=mine.tag.usd_per_gpu_h, energy_usd_per_gpu_h=energy,
                use=options.use, rented=words, rented_usd_per_gpu_h=usd,
                even_use=even if even is not None and even <= 1 else None,
            )
        )  # fmt: skip
    return out


def _record(world: World, shown: Market) -> dict[str, Any]:
    """The request as the answer tells it."""
    fields = {
        "gpus": list(dict.fromkeys(offer.device.name for offer in shown.offers)),
        "max_gpus": world.request.max_gpus,
        "money": msgspec.to_builtins(world.money),
    }
    return world.record() | fields | world.goal.record()
