"""Money as text: what to rent, the front of time against dollars as a table and a picture, and the bill of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from astra.answer import NEVER_ENDS, Cost, Estimate, PlanSet, PriceTag
from astra.answer_money import Choice, MixSearch, RentReport
from astra.report import drawing
from astra.report.choices import (
    choice_cells,
    energy_words,
    front_table,
    judged,
    judged_words,
    mark_of,
    named,
    own_words,
    strategies_below,
    usd_spread,
    warned,
)
from astra.report.layout import Part
from astra.units import show_count, show_dollars, show_seconds

ALMOST, CHEAPER = 1.02, 1.05  # as fast, for all that is known of step times; and worth a sentence
YEAR_H: Final = 8766
FAILING: Final = 1.05  # the expected bill over the ideal one, from which both are told
_WORTH_A_WORD: Final = 0.01
_PARTS: Final = {"startup": "start-up", "unused": "paid for and not used"}
FEWEST_CHOICES: Final = 6
MORE: Final = (
    "-v: the front as a picture, common choices, restarts, prices and their sources, what was left out. "
    "--report FILE.html: all of it as a page."
)
POPULAR: Final = ("choice", "time", "cost", "wastes")


def rent_parts(report: RentReport, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """The choices worth making, with the ends and the bend of the front.

    ``full`` adds it as a picture, what common choices waste, prices and what was left out.
    """
    shown = [choice for choice in report.front if full or not choice.like]
    for most in range(len(shown), -1, -1):
        page = drawing.laid_out(_page(report, thinned(shown, most), columns, brief=brief, full=full), columns)
        if full or most <= FEWEST_CHOICES or len(page.found) <= drawing.screen_lines():
            break
    return [page]


def thinned(front: Sequence[Choice], most: int) -> list[Choice]:
    """So many choices of a front: all that have a role, and of the others some that lie evenly between them."""
    others = [choice for choice in front if not choice.roles]
    room = max(most - (len(front) - len(others)), 0)
    kept = {id(others[(2 * place + 1) * len(others) // (2 * room)]) for place in range(min(room, len(others)))}
    return [choice for choice in front if choice.roles or id(choice) in kept]


def _page(report: RentReport, shown: Sequence[Choice], columns: int, *, brief: bool, full: bool) -> list[Part]:
    """The page with these choices of the front."""
    parts: list[Part] = [*_header(report), drawing.blank(), *drawing.bullets(advice(report)), drawing.blank()]
    parts += [drawing.heading("Time against money", judged_words(report))]
    numbers = {id(choice): number for number, choice in enumerate(report.front, start=1)}
    rows = [(numbers[id(choice)], choice) for choice in shown]
    rows += [(0, choice) for choice in report.chosen[:1] if "chosen" in choice.roles and choice not in report.front]
    parts.append(front_table(rows, columns, report.judged_by, energy=full or report.objective in ("energy", "co2")))
    parts += [*_merged(report, shown), *strategies_below(rows, columns)]
    about = [
        f"{', '.join(names) if len(names) <= 3 else f'{len(names)} of these {len(shown)}'}: {warning}"
        for warning, names in warned(shown).items()
    ]
    parts += drawing.closing([*about, *report.warnings], [])
    if full:
        points = [(judged(choice, report.judged_by).days, judged(choice, report.judged_by).usd) for choice in shown]
        marks = [mark_of(choice) for choice in shown]
        parts += [drawing.blank(), drawing.text(drawing.scatter(points, marks, columns))]
        if report.popular:
            sides = zip(POPULAR, ("left", "right", "right", "wrap"), strict=True)
            common = drawing.table(*sides, rows=popular_rows(report))
            parts += [drawing.blank(), drawing.heading("Common choices"), common]
        first = report.chosen[0] if report.objective != "pareto" else report.role("knee")
        parts += [drawing.blank(), *drawing.bullets(restart_sentences(first.cost, f" ({first.name})"))]
        parts += drawing.bullets(energy_words(choice) for choice in named(report) if choice.cost.kwh is not None)
        priced = (part.price for choice in (*report.front, *report.popular) for part in choice.parts)
        parts += [drawing.blank(), drawing.heading("Prices"), *drawing.bullets(dict.fromkeys(map(price_words, priced)))]
        if report.unused:
            left = [f"{entry.reason}: {', '.join(entry.offers)}." for entry in report.unused]
            parts += [drawing.blank(), drawing.heading("Left out"), *drawing.bullets(left)]
        parts += [drawing.blank(), drawing.prose((search_sentence(report), "dim"))]
        parts += drawing.closing([], report.notes)
    elif not brief:
        from astra.report.text import shortened  # noqa: PLC0415 - text draws bills too

        parts += shortened([*report.notes, search_sentence(report)], MORE)
    return parts


def _header(report: RentReport) -> list[Part]:
    work = report.request["workload"]
    tokens = (
        f"{show_count(work['tokens'])} tokens, batch {work['global_batch']:,} x {work['seq']:,}, {work['precision']}"
    )
    own = all(choice.cost.price.provider == "you" for choice in report.front)
    market = report.request["money"]["market"]
    prices = "a price of your own" if own else f"{'all' if market == 'any' else market} prices"
    limit = f"up to {report.request['max_gpus']:,} GPUs, {prices}"
    title = drawing.text((f"What to rent for {report.request['model']}", "bold"))
    facts = drawing.prose((f"{tokens}; {limit}; {report.request['runtime']}", "dim"))
    return [title, facts, *drawing.remark(report.request.get("runtime_because"))]


def advice(report: RentReport) -> list[str]:
    """One sentence for the choice and for each end and the bend of the front."""
    out = []
    if report.objective != "pareto":
        out.append(f"Chosen ({report.objective}): {_said(report.chosen[0], report.judged_by)}.")
    if report.objective in ("energy", "co2"):
        out.append(energy_words(report.chosen[0]))
    seen: set[str] = set()
    for role in ("cheapest", "knee", "fastest"):
        choice = report.role(role)
        if choice.name not in seen:
            names = [name for name in ("cheapest", "knee", "fastest") if name in choice.roles]
            shown = " and ".join("best trade" if name == "knee" else name for name in names)
            almost = _almost_as_fast(report, choice) if "fastest" in names else ""
            out.append(f"{shown[:1].upper()}{shown[1:]}: {_said(choice, report.judged_by)}{almost}.")
            seen.add(choice.name)
    return [*out, *map(own_words, report.own)]


def _almost_as_fast(report: RentReport, fastest: Choice) -> str:
    """A choice far cheaper than the fastest and slower by less than anyone would notice."""
    by = report.judged_by
    least, rows = judged(fastest, by), [(judged(one, by), one.name) for one in report.front]
    close = [row for row in rows if row[0].days <= ALMOST * least.days and row[0].usd <= least.usd / CHEAPER]
    if not close:
        return ""
    best, name = min(close, key=lambda row: row[0].usd)
    slower = best.days / least.days - 1
    speed = f"{slower:.1%} slower" if slower >= 0.0005 else "as fast"
    return f". {name} is {speed} for {show_dollars(least.usd - best.usd)} less"


def _said(choice: Choice, by: str) -> str:
    """A choice with its time and dollars, as judged; what nothing would cost that fails, where that is far from it."""
    cost, counted = choice.cost, judged(choice, by)
    took, spread = show_seconds(counted.days * 86400), usd_spread(counted.usd_range)
    words = f"{choice.name}, {took} for {show_dollars(counted.usd)} ({spread})"
    if counted.usd > FAILING * cost.usd:
        words += f"; {show_seconds(cost.days * 86400)} and {show_dollars(cost.usd)} if nothing fails"
    elif cost.expected is not None and by == "ideal":
        words += f"; with restarts {show_seconds(cost.expected.days * 86400)} and {show_dollars(cost.expected.usd)}"
    return f"{words}{_extras(cost)}{_commitment(choice)}"


def _commitment(choice: Choice) -> str:
    """What a year of a reservation costs whose term is not known."""
    price = choice.cost.price
    if price.market != "reserved" or price.term_s is not None:
        return ""
    usd = choice.cost.gpus * price.usd_per_gpu_h * YEAR_H
    return f"; a floor, because the term is not known: a year of it is {show_dollars(usd)}"


def _merged(report: RentReport, shown: Sequence[Choice]) -> list[Part]:
    """How many choices are not shown, and why."""
    hidden = [choice for choice in report.front if choice not in shown]
    like = sum(bool(choice.like) for choice in hidden)
    words = []
    if like:
        words.append(f"{like} more: dearer, and faster by less than their error bar or with start-up for over a third "
                     "of their time (-v shows them).")  # fmt: skip
    if len(hidden) > like:
        words.append(f"{len(hidden) - like} more between these (-v).")
    return [drawing.prose((" ".join(words), "dim"))] if words else []


def _extras(cost: Cost) -> str:
    """What is in the bill besides training; less than a hundredth of it is not worth a word."""
    found = {name: usd for name, usd in cost.parts.items() if name != "gpus" and usd >= _WORTH_A_WORD * cost.usd}
    extras = [f"{show_dollars(usd)} {_PARTS.get(name, name)}" for name, usd in found.items()]
    return f"; of it {', '.join(extras)}" if extras else ""


def popular_rows(report: RentReport) -> Iterator[tuple[str, ...]]:
    """Common choices under ``POPULAR``: what each loses, and against what."""
    for choice in report.popular:
        cells, waste, lost = choice_cells(choice, report.judged_by), choice.waste, "nothing: it is on the front"
        if waste is not None:  # it is no slower at the upper end of its range
            slower = f" and {show_seconds(waste.days * 86400)}" if waste.days > 0 else ""
            lost = f"{show_dollars(waste.usd)} ({usd_spread(waste.usd_range)}){slower} against {waste.instead}"
        yield choice.name, cells["time"], cells["cost"], lost


def restart_sentences(cost: Cost, whose: str = "") -> list[str]:
    """What is to be expected besides the ideal run, and where that is known from."""
    found = cost.expected
    if found is None:
        return []
    interval = show_seconds(found.checkpoint_interval_s)
    return [
        f"With restarts{whose}: {found.interruptions:.3g} interruptions expected, one every "
        f"{show_seconds(found.mtbf_h * 3600)}; a checkpoint of {found.checkpoint_gib:,.0f} GiB every {interval} of "
        f"work takes {show_seconds(found.checkpoint_write_s)}; {found.goodput:.1%} of the time is useful.",
        *(f"{source[:1].upper()}{source[1:]}." for source in found.sources),
    ]


def price_words(price: PriceTag) -> str:
    """Who asks how much, when, and who says so."""
    what = " ".join(word for word in (price.provider, price.instance, price.market) if word)
    if price.provider == "you":
        what = "Your own hardware" if price.market == "owned" else "A price of your own"
    seen = f", {price.date}" if price.date else ""
    why = f"; {price.why}" if price.why else ""
    return f"{what}: ${price.usd_per_gpu_h:.2f} per GPU and hour{seen} ({price.source}){why}{terms_words(price)}."


def terms_words(price: PriceTag) -> str:
    """The terms of an offer that are known; empty where they change nothing."""
    said = []
    if price.market == "reserved":
        said.append(
            "term not known" if price.term_s is None else f"term {show_seconds(price.term_s)}" * bool(price.term_s)
        )
    if price.minimum_s > max(price.term_s or 0.0, 60.0):
        said.append(f"{show_seconds(price.minimum_s)} at least")
    if price.step_s > 60:
        said.append(f"in steps of {show_seconds(price.step_s)}")
    if price.available is not None:
        said.append(f"{price.available:,} GPUs free")
    if price.notes:
        said.append(price.notes)
    words = [word for word in said if word]
    return f"; {'; '.join(words)}" if words else ""


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def search_sentence(report: RentReport) -> str:
    """What the search did."""
    found = report.search
    out = (
        f"Considered {_several(found.offers, 'price')} of {_several(found.gpu_types, 'GPU type')} in "
        f"{_several(found.choices, 'size')} "
        f"({show_count(found.considered)} strategies) in {show_seconds(found.seconds)}."
    )
    return f"{out} {mixes_sentence(found.mixes)}".strip()


def mixes_sentence(found: MixSearch) -> str:
    """What became of the mixes; empty if there were none."""
    if not found.considered:
        return ""
    rest = f", {found.open:,} open (--mixes all plans them)" if found.open else ""
    return (
        f"Mixes of two types: {found.considered:,} considered, {found.dominated:,} proven dominated, "
        f"{found.planned:,} planned, {found.on_front:,} on the front{rest}."
    )


def bill(planset: PlanSet) -> list[Part]:
    """The best plan's bill, what it saves, and the front where that was asked for; without a price what it saves."""
    if not planset.plans or planset.best.estimate.cost is None:
        saved = saved_sentences(planset)
        return [drawing.blank(), *drawing.bullets(saved)] if saved else []
    best = planset.best.estimate
    parts: list[Part] = [drawing.blank(), drawing.heading("The bill")]
    if planset.objective == "pareto" and len(planset.plans) > 1:
        parts += _plan_front([plan.estimate for plan in planset.plans])
    return [*parts, *drawing.bullets([*bill_sentences(best), *saved_sentences(planset)])]


def bill_sentences(estimate: Estimate) -> list[str]:
    """Ideal figures, expected figures, and the price behind both."""
    cost = estimate.cost
    if cost is None:
        return []
    per_billion = show_dollars(cost.usd_per_billion_tokens)
    ideal = (
        f"Ideal: {show_seconds(cost.days * 86400)} and {show_dollars(cost.usd)} ({usd_spread(cost.usd_range)}) on "
        f"{cost.gpus:,} GPUs, {per_billion} per billion tokens{_extras(cost)}."
    )
    out = [ideal]
    if cost.expected is not None:
        spread = usd_spread(cost.expected.usd_range)
        expected = f"{show_seconds(cost.expected.days * 86400)} and {show_dollars(cost.expected.usd)} ({spread})"
        out.append(f"Expected: {expected}.")
        out += restart_sentences(cost)
    elif NEVER_ENDS in estimate.warnings:
        out.append("Expected: with restarts it would not end.")
    return [*out, price_words(cost.price)]


def bill_in_short(estimate: Estimate) -> str:
    """Days and dollars, ideal and expected, and whose price that is; empty without a price."""
    cost = estimate.cost
    if cost is None:
        return ""
    price, expected = cost.price, cost.expected
    who = "your own" if price.provider == "you" else f"{price.provider} {price.market}"
    seen = f", {price.date}" if price.date else ""
    more = f"; with restarts {show_seconds(expected.days * 86400)} and {show_dollars(expected.usd)}" if expected else ""
    more += "; with restarts it would not end" * (NEVER_ENDS in estimate.warnings)
    return (
        f"The bill: {show_seconds(cost.days * 86400)} and {show_dollars(cost.usd)} ({usd_spread(cost.usd_range)}), "
        f"{show_dollars(cost.usd_per_billion_tokens)} per billion tokens{_extras(cost)}{more}; at "
        f"${price.usd_per_gpu_h:.2f} per GPU and hour ({who}{seen})."
    )


def saved_sentences(planset: PlanSet) -> list[str]:
    """Against what is done now."""
    base = planset.baseline
    if base is None:
        return []
    ratio = base.estimate.step_s / planset.best.estimate.step_s
    fits = "" if base.estimate.fits else ", which does not fit"
    out = [f"Against what you do now ({base.estimate.strategy}{fits}): {ratio:.2f}x the speed"]
    if base.days_saved is not None:
        out.append(_saved(base.days_saved, show_seconds(abs(base.days_saved) * 86400)))
    if base.usd_saved is not None:
        spread = (
            f" ({usd_spread(base.usd_saved_range)})" if base.usd_saved_range is not None and base.usd_saved > 0 else ""
        )
        out.append(_saved(base.usd_saved, show_dollars(abs(base.usd_saved)) + spread))
    if base.expected_usd_saved is not None:
        out.append(f"with restarts {_saved(base.expected_usd_saved, show_dollars(abs(base.expected_usd_saved)))}")
    return [f"{', '.join(out)}."]


def _saved(amount: float, words: str) -> str:
    return f"{words} {'saved' if amount >= 0 else 'more'}"


def _plan_front(estimates: Sequence[Estimate]) -> list[Part]:
    rows = drawing.table(("GPUs", "left"), ("time", "right"), ("cost", "right"), ("range", "right"))
    points = []
    for estimate in estimates:
        if (cost := estimate.cost) is not None:
            points.append((cost.days, cost.usd))
            rows.add_row(
                estimate.gpus, show_seconds(cost.days * 86400), show_dollars(cost.usd), usd_spread(cost.usd_range)
            )
    marks = ["F", *[" "] * (len(points) - 2), "C"]
    return [rows, drawing.blank(), drawing.text(drawing.scatter(points, marks, 80)), drawing.blank()]
