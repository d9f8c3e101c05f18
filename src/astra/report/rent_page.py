"""What to rent, as one page to show to whoever pays."""

from __future__ import annotations

from astra.answer_money import Choice, RentReport
from astra.report import explain, money
from astra.report.choices import (
    ROLES,
    days_of,
    judged_words,
    network_words,
    roles_of,
    seller,
    time_of,
    usd_of,
    usd_range_of,
)
from astra.report.front_svg import Spot, front_svg
from astra.report.markup import quoted, tag
from astra.report.page import bullets, facts, folded, page, paragraph, section, table, wide
from astra.report.plan_page import footer, request_parts
from astra.spec.mixed_text import on_one_line
from astra.units import DAY_S, show_count, show_dollars, show_seconds


def rent_page(report: RentReport) -> str:
    """Everything that ``astra rent`` answers."""
    work = report.request["workload"]
    title = f"What to rent for {report.request['model']}"
    about = (
        f"{show_count(work['tokens'])} tokens, batch {work['global_batch']:,} x {work['seq']:,}, {work['precision']}; "
        f"up to {report.request['max_gpus']:,} GPUs; {report.request['runtime']}"
    )
    return page(
        title,
        tag("h1", quoted(title)),
        paragraph(about, "faint"),
        section("The answer", _headline(report), bullets(money.advice(report)), bullets(report.warnings, "warn"),
                key="answer"),
        section("Time against money", paragraph(f"{judged_words(report).capitalize()}."),
                wide(front_svg(spots(report), title)), _front(report), key="front"),
        section("Evidence and doubt", *_evidence(report), key="evidence"),
        section("Common choices", _popular(report), key="popular"),
        section("What was left out, and why", *_unused(report), key="ledger"),
        section("What this rests on", *_prices(report), key="assumptions"),
        section("How to launch it", paragraph(
            "astra rent with --pick (a choice's number) and --export (slurm, skypilot or kubernetes) writes the files "
            "that start it; astra export does so from the saved JSON."), key="launch"),
        section("The request", *request_parts(report.asked, "rent"), key="request"),
        footer(report.version, report.fingerprint),
    )  # fmt: skip


def _headline(report: RentReport) -> str:
    return facts(
        (
            ROLES.get(role, role),
            f"{show_dollars(usd_of(choice, report.judged_by))}, {time_of(choice, report.judged_by)}",
            choice.name,
        )
        for role in ("cheapest", "knee", "fastest")
        for choice in report.front
        if role in choice.roles
    )


def spots(report: RentReport, link: str = "") -> list[Spot]:
    """The front and the common choices as they are drawn; those of the front lead to ``link`` and their place."""
    by = report.judged_by
    found = [
        _spot(choice, by, on_front=True)._replace(link=f"{link}{place}" if link else "")
        for place, choice in enumerate(report.front)
    ]
    names = {choice.name for choice in report.front}
    return found + [_spot(choice, by, on_front=False) for choice in report.popular if choice.name not in names]


def _spot(choice: Choice, by: str, *, on_front: bool) -> Spot:
    words = ", ".join(ROLES.get(role, role) for role in choice.roles if role != "chosen") if on_front else ""
    usd = usd_range_of(choice, by)
    return Spot(days_of(choice, by), usd_of(choice, by), choice.name, words, usd.low, usd.high, on_front)


def _front(report: RentReport) -> str:
    heads = ("", "#", "GPUs", "from", "$/GPU-h", "network", "time", "cost", "range", "if nothing fails", "strategy")
    rows, by = [], report.judged_by
    for number, choice in enumerate(report.front, start=1):
        cost, usd = choice.cost, usd_range_of(choice, by)
        ideal = f"{show_seconds(cost.days * DAY_S)}, {show_dollars(cost.usd)}"
        spread = f"{show_dollars(usd.low)} to {show_dollars(usd.high)}"
        gpus = " + ".join(f"{part.gpus}x{part.gpu}" for part in choice.parts)
        rows.append((roles_of(choice), str(number), gpus, seller(cost.price),
                     f"{cost.price.usd_per_gpu_h:.2f}", network_words(choice), time_of(choice, by),
                     show_dollars(usd_of(choice, by)), spread, ideal, _short(choice)))  # fmt: skip
    return table(heads, rows, left=(0, 2, 3, 5, 10))


def _short(choice: Choice) -> str:
    return on_one_line(choice.strategy, choice.as_usual)


def _evidence(report: RentReport) -> list[str]:
    rows = [
        (choice.name, f"{explain.show_step(choice.step_s_range.low)} to {explain.show_step(choice.step_s_range.high)}",
         choice.provenance_worst, choice.evidence)
        for choice in report.front
    ]  # fmt: skip
    about: dict[str, list[str]] = {}
    for choice in report.front:
        for warning in choice.warnings:
            about.setdefault(warning, []).append(choice.name)
    warnings = [f"{warning} ({', '.join(names)})" for warning, names in about.items()]
    return [
        table(("choice", "step time", "weakest figure", "published runs"), rows, left=(0, 2, 3)),
        bullets(warnings, "warn"),
    ]


def _popular(report: RentReport) -> str:
    by = report.judged_by
    rows = [
        (choice.name, time_of(choice, by), show_dollars(usd_of(choice, by)), money.waste_words(choice))
        for choice in report.popular
    ]
    return table(("choice", "time", "cost", "wastes"), rows, left=(0, 3)) if rows else ""


def _unused(report: RentReport) -> list[str]:
    rows = [(f"{len(unused.offers):,}", unused.reason, ", ".join(unused.offers[:12])) for unused in report.unused]
    offers = table(("offers", "not considered because", "such as"), rows, left=(1, 2)) if rows else ""
    return [paragraph(money.search_sentence(report)), folded(f"{len(rows)} reasons", offers) if offers else ""]


def _prices(report: RentReport) -> list[str]:
    tags = {money.price_words(part.price): None for choice in report.front for part in choice.parts}
    sources = {
        source: None for choice in report.front if choice.cost.expected for source in choice.cost.expected.sources
    }
    return [bullets([*tags, *sources]), bullets(report.notes, "faint")]
