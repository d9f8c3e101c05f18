"""What to rent, as one page to show to whoever pays."""

from __future__ import annotations

from msgspec.structs import astuple

from astra.answer_money import Choice, RentReport
from astra.report import explain, money
from astra.report.charts import Spot, front_svg
from astra.report.choices import (
    ROLES,
    choice_cells,
    judged,
    judged_words,
    roles_of,
    warned,
)
from astra.report.markup import quoted, tag
from astra.report.page import bullets, facts, folded, page, paragraph, section, table, wide
from astra.report.plan_page import footer, request_parts
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
                wide(front_svg(spots(report), title)), front_table(report), key="front"),
        section("Evidence and doubt", *_evidence(report), key="evidence"),
        section("Common choices", popular_table(report), key="popular"),
        section("What was left out, and why", *_unused(report), key="ledger"),
        section("What this rests on", *_prices(report), key="assumptions"),
        section("How to launch it", paragraph(
            "astra rent with --pick (a choice's number) and --export (slurm, skypilot or kubernetes) writes the files "
            "that start it; astra export does so from the saved JSON."), key="launch"),
        section("The request", *request_parts(report.asked, "rent"), key="request"),
        footer(report.version, report.fingerprint),
    )  # fmt: skip


def _headline(report: RentReport) -> str:
    roles = ("cheapest", "knee", "fastest")
    cells = [
        (role, one, choice_cells(one, report.judged_by)) for role in roles for one in report.front if role in one.roles
    ]
    return facts((ROLES.get(role, role), f"{said['cost']}, {said['time']}", one.name) for role, one, said in cells)


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
    usd = judged(choice, by).usd_range
    return Spot(judged(choice, by).days, judged(choice, by).usd, choice.name, words, usd.low, usd.high, on_front)


def front_table(report: RentReport) -> str:
    """Every choice of the front."""
    before, after = ("from", "$/GPU-h", "network", "time", "cost"), ("range", "if nothing fails", "strategy")
    rows = []
    off_front = [choice for choice in report.chosen[:1] if "chosen" in choice.roles and choice not in report.front]
    for number, choice in [*enumerate(report.front, start=1), *((0, choice) for choice in off_front)]:
        cells, cost = choice_cells(choice, report.judged_by), choice.cost
        cells["range"] = " to ".join(map(show_dollars, astuple(judged(choice, report.judged_by).usd_range)))
        cells["if nothing fails"] = f"{show_seconds(cost.days * DAY_S)}, {show_dollars(cost.usd)}"
        gpus = " + ".join(f"{part.gpus}x{part.gpu}" for part in choice.parts)
        rows.append((roles_of(choice), str(number or "-"), gpus, *(cells[head] for head in (*before, *after))))
    return table(("", "#", "GPUs", *before, *after), rows, left=(0, 2, 3, 5, 10))


def _evidence(report: RentReport) -> list[str]:
    rows = [
        (choice.name, f"{explain.show_step(choice.step_s_range.low)} to {explain.show_step(choice.step_s_range.high)}",
         choice.provenance_worst, choice.evidence)
        for choice in report.front
    ]  # fmt: skip
    warnings = [f"{warning} ({', '.join(names)})" for warning, names in warned(report.front).items()]
    return [
        table(("choice", "step time", "weakest figure", "published runs"), rows, left=(0, 2, 3)),
        bullets(warnings, "warn"),
    ]


def popular_table(report: RentReport) -> str:
    """What common choices waste; nothing where there are none."""
    return table(money.POPULAR, money.popular_rows(report), left=(0, 3)) if report.popular else ""


def _unused(report: RentReport) -> list[str]:
    rows = [(f"{len(unused.offers):,}", unused.reason, ", ".join(unused.offers[:12])) for unused in report.unused]
    offers = table(("offers", "not considered because", "such as"), rows, left=(1, 2)) if rows else ""
    return [paragraph(money.search_sentence(report)), folded(f"{len(rows)} reasons", offers) if offers else ""]


def _prices(report: RentReport) -> list[str]:
    priced = (money.price_words(part.price) for choice in report.front for part in choice.parts)
    expected = [choice.cost.expected for choice in report.front if choice.cost.expected]
    sources = (source for each in expected for source in each.sources)
    return [bullets([*dict.fromkeys(priced), *dict.fromkeys(sources)]), bullets(report.notes, "faint")]
