"""Answers as parts of a page that asks again: cards with figures, evidence, pictures, and what may be done with each.

Buttons carry in ``data-`` attributes what they are about; the page they stand on decides what they do. For notebooks an
answer is one block of the same parts, without buttons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from astra.answer import Estimate, Plan, PlanSet
from astra.answer_money import AffordReport, Choice, RentReport
from astra.report import explain, money
from astra.report.afford import sentences
from astra.report.charts import front_svg
from astra.report.choices import judged, judged_words, network_words, roles_of, time_of
from astra.report.explanation import change_sentence, short_strategy
from astra.report.markup import joined, quoted, tag
from astra.report.page import bullets, facts, folded, paragraph, table, wide
from astra.report.pictures import picture_of
from astra.report.plan_page import (
    bill_parts,
    figures,
    gpus_words,
    ledger_parts,
    memory_bars,
    pool_parts,
    ranking,
    time_table,
)
from astra.report.rent_page import front_table, popular_table, spots
from astra.report.study_text import TERMS, figures_line, memory_difference, side_rows, term_cells, verdict
from astra.report.sweep import points_table, sweep_svg
from astra.spec.mixed_text import on_one_line, short_form
from astra.study.records import Comparison, Explanation, Sweep
from astra.units import DAY_S, show_count, show_dollars, show_seconds

_COLOR: Final = {"compute": "#3a9d5d", "communication": "#d9a21b", "idle": "#c8553d", "other": "#4f7cac"}
_STYLE: Final = (
    "div.astra{font:90% sans-serif;max-width:70em}div.astra ul{margin:.4em 0;padding-left:1.4em}"
    "div.astra table{border-collapse:collapse}div.astra .n{text-align:right;white-space:nowrap}"
    "div.astra td,div.astra th{padding:2px 10px;text-align:left;border-bottom:1px solid #8884}"
)


def plan_view(planset: PlanSet) -> str:
    """Plans, the best first."""
    title = f"{planset.request['model']} on {gpus_words(planset)}"
    head = [tag("h2", quoted(title), id="answer-title"), paragraph(explain.work_words(planset.request), "faint")]
    if not planset.plans:
        ending = [paragraph("No strategy is legal and fits.", "bad lead"), *ledger_parts(planset)]
        return joined(*head, *ending, bullets(planset.notes, "faint"))
    lost = ["", *(explain.losses(planset) or [""] * len(planset.plans))]
    cards = [_plan_card(plan, why, first=plan is planset.best) for plan, why in zip(planset.plans, lost, strict=False)]
    return joined(
        *head,
        bullets(explain.headlines(planset)),
        tag("div", ranking(planset.plans, short=True) if len(planset.plans) > 1 else "", class_="ranking"),
        tag("div", *cards, class_="cards"),
        bullets(near.sentence for near in planset.nearby),
        *pool_parts(planset),
        _part("The bill", *bill_parts(planset)),
        _part("What was left out, and why", *ledger_parts(planset)),
        bullets(planset.notes, "faint"),
    )


def estimate_view(estimate: Estimate) -> str:
    """One strategy, legal or not."""
    title = tag("h2", quoted(f"{estimate.model} on {estimate.gpus}"), id="answer-title")
    broken = bullets(estimate.violations, "bad")
    about = paragraph("It is not legal:" if estimate.violations else "", "bad")
    plan = Plan(rank=1, strategy=estimate.strategy, estimate=estimate)
    return joined(title, about, broken, tag("div", _plan_card(plan, "", first=True), class_="cards"))


def _plan_card(plan: Plan, lost: str, *, first: bool) -> str:
    one, key = plan.estimate, f"plan-{plan.rank}"
    short = [f"{tag('code', quoted(line))} " for line in short_form(plan.strategy, one.as_usual) if line]
    fits = "" if one.fits else "It does not fit: a stage needs more memory than the limit."
    details = [
        tag("h4", quoted(f"Where the {explain.show_step(one.step_s)} go")),
        time_table(one),
        bullets([explain.dominates(one), explain.helps_most(one)]),
        tag("h4", "Memory of every stage against its limit"),
        memory_bars(one),
        paragraph(explain.memory_sentence(one)),
        tag("h4", "One step, stage by stage"),
        tag("div", tag("p", "The step is simulated when it is looked at.", class_="faint"), class_="timeline"),
    ]
    return tag(
        "article",
        tag("h3", tag("span", quoted(f"#{plan.rank}"), class_="rank"), " ", *short, id=f"{key}-title"),
        paragraph(fits, "bad"),
        facts(figures(one)),
        paragraph(explain.certainty(one), "evidence"),
        bullets(one.warnings, "warn"),
        paragraph(lost, "faint"),
        _tools(plan),
        tag("details", tag("summary", "Time, memory and the simulated step"), *details, open=True if first else None),
        class_="card", id=key, aria_labelledby=f"{key}-title", data_strategy=plan.strategy, data_pick=plan.rank,
    )  # fmt: skip


def _tools(plan: Plan) -> str:
    name = f"plan {plan.rank}"
    return tag(
        "div",
        tag("button", "Compare", type="button", data_do="compare", aria_pressed="false", aria_label=f"Compare: {name}"),
        tag("button", "Edit the strategy", type="button", data_do="edit", aria_label=f"Edit the strategy: {name}"),
        tag("button", "Why?", type="button", data_do="explain", aria_label=f"Why is {name} as it is?"),
        class_="tools",
    )


def _part(title: str, *content: str) -> str:
    inside = [part for part in content if part]
    return tag("section", tag("h3", quoted(title)), *inside) if inside else ""


def rent_view(report: RentReport) -> str:
    """What to rent: the front as a picture whose points lead to the choices below it."""
    title = f"What to rent for {report.request['model']}"
    cards = [_choice_card(choice, place, report.judged_by) for place, choice in enumerate(report.front)]
    return joined(
        tag("h2", quoted(title), id="answer-title"),
        paragraph(f"{judged_words(report).capitalize()}.", "faint"),
        bullets(money.advice(report)),
        bullets(report.warnings, "warn"),
        wide(front_svg(spots(report, "#choice-"), title)),
        tag("p", "Point at a choice to see what it is; choose it to read more.", class_="faint", id="pointed"),
        tag("div", *cards, class_="cards"),
        _part("Common choices", popular_table(report)),
        paragraph(money.search_sentence(report), "faint"),
        bullets(report.notes, "faint"),
    )


def _choice_card(choice: Choice, place: int, by: str) -> str:
    cost, key, usd = choice.cost, f"choice-{place}", judged(choice, by).usd_range
    ideal = f"if nothing fails {show_seconds(cost.days * DAY_S)}" if by == "expected" else ""
    shown = [
        ("time", time_of(choice, by), ideal),
        ("cost", show_dollars(judged(choice, by).usd), f"{show_dollars(usd.low)} to {show_dollars(usd.high)}"),
        ("per GPU and hour", f"${cost.price.usd_per_gpu_h:.2f}", cost.price.market),
        ("network", network_words(choice), "between servers" if choice.nodes > 1 else ""),
        ("MFU", f"{choice.mfu:.1%}", f"{choice.tokens_per_s:,.0f} tokens/s"),
        ("peak memory", f"{choice.peak_reserved_gib:.1f} GiB", f"{choice.memory_limit_gib:.1f} allowed"),
    ]
    pools = " + ".join(f"{part.gpus}x{part.gpu}@{part.node}" for part in choice.parts)
    roles = tag("span", quoted(roles_of(choice)), class_="rank") if choice.roles else ""
    return tag(
        "article",
        tag("h3", quoted(choice.name), " ", roles, id=f"{key}-title"),
        facts(shown),
        tag("p", tag("code", quoted(on_one_line(choice.strategy, choice.as_usual)))),
        paragraph(choice.evidence, "evidence"),
        bullets(choice.warnings, "warn"),
        tag("div", tag("button", "Plan on these GPUs", type="button", data_do="plan", data_gpus=pools,
                       aria_label=f"Plan on these GPUs: {choice.name}"), class_="tools"),
        folded("The price", paragraph(money.price_words(cost.price))),
        class_="card", id=key, aria_labelledby=f"{key}-title", tabindex=-1,
    )  # fmt: skip


def _title(words: str, said: str) -> str:
    return tag("h2", quoted(words), id="answer-title", data_said=said)


def afford_table(report: AffordReport) -> str:
    """The models, each with the tokens that the budget trains."""
    rows = [
        (row.model, show_count(row.parameters), show_count(row.tokens),
         f"{show_count(row.tokens_range.low)} to {show_count(row.tokens_range.high)}",
         f"{row.tokens_per_parameter:.3g}", "-" if row.loss is None else f"{row.loss:.3f}", f"{row.days:,.1f}",
         show_dollars(row.usd), row.choice)
        for row in report.rows
    ]  # fmt: skip
    heads = ("model", "parameters", "tokens", "range", "per parameter", "loss", "days", "cost", "on")
    return table(heads, rows, left=(0, 8))


def afford_view(report: AffordReport) -> str:
    """The sentences, tokens and loss by size, and the models."""
    return joined(
        _title(f"What {show_dollars(report.budget_usd)} buys", f"{len(report.rows)} models"),
        bullets(sentences(report)),
        wide(picture_of(report)),
        afford_table(report),
        bullets(report.notes, "faint"),
    )


def sweep_view(found: Sweep) -> str:
    """The charts and the points."""
    return joined(
        _title(f"{found.model} on {found.gpus}, over {' and '.join(found.over)}", f"{len(found.points)} points"),
        wide(sweep_svg(found)),
        points_table(found),
        bullets(found.notes, "faint"),
    )


def _terms(found: Comparison) -> str:
    rows = term_cells(found)
    return table(TERMS, rows, best=len(rows) - 1)


def comparison_view(found: Comparison) -> str:
    """Two side by side, and their difference term by term."""
    one, two = found.first, found.second
    return joined(
        tag("h2", "A and B side by side", id="compared-title"),
        paragraph(verdict(found), "lead"),
        tag("p", "A ", tag("code", quoted(one.estimate.strategy))),
        tag("p", "B ", tag("code", quoted(two.estimate.strategy))),
        bullets(found.notes, "warn"),
        table(("", "A", "B", "B against A"), side_rows(one, two)),
        tag("h3", "Where the difference is, in seconds"),
        _terms(found),
        paragraph(memory_difference(found)),
    )


def explanation_view(found: Explanation) -> str:
    """Why a plan is as it is."""
    changes = [
        (one.change, f"{one.gain:+.1%}", f"{one.tokens_per_s:,.0f}", short_strategy(one.strategy or ""))
        for one in found.changes
        if one.gain is not None and one.tokens_per_s is not None
    ]
    impossible = [change_sentence(one) for one in found.changes if one.gain is None]
    skipped = f"No time for: {'; '.join(found.skipped)}." if found.skipped else ""
    other = []
    if found.next is not None:
        other = [
            tag("h3", quoted(f"This plan (A) against {found.next.second.name} (B), seconds of a step")),
            paragraph(verdict(found.next)),
            _terms(found.next),
            paragraph(memory_difference(found.next)),
        ]
    known = [(one.figure, one.value, one.how) for one in found.known]
    return joined(
        tag("h2", quoted(f"Why plan {found.rank} is as it is"), id="compared-title"),
        tag("p", tag("code", quoted(found.estimate.strategy))),
        paragraph(figures_line(found.estimate)),
        bullets(found.warnings, "warn"),
        tag("h3", "What the step's time goes to"),
        bullets(found.bounds),
        tag("h3", "What keeps it from being faster"),
        bullets(found.binds),
        tag("h3", "What a single change would bring, each one planned anew"),
        table(("change", "gain", "tokens/s", "best plan with it"), changes, left=(0, 3)) if changes else "",
        bullets(impossible, "faint"),
        paragraph(skipped, "faint"),
        *other,
        tag("h3", "How sure each figure is"),
        table(("figure", "value", "how sure"), known, left=(0, 2)),
    )


def plans_html(planset: PlanSet) -> str:
    """The ranking as a table, the best plan's step as a bar, and the reasons."""
    if not planset.plans:
        return "<div>No strategy is legal and fits.</div>"
    best = planset.best.estimate
    remarks = [
        explain.dominates(best),
        explain.helps_most(best),
        explain.memory_sentence(best),
        explain.certainty(best),
        *(explain.why_lost(planset.best, plan) for plan in planset.plans[1:2]),
        explain.search_sentence(planset),
        *explain.all_warnings(planset),
        *planset.notes,
    ]
    return _plan_block(best, planset.plans, remarks)


def estimate_html(estimate: Estimate) -> str:
    """One strategy's figures and its step as a bar."""
    remarks = [
        *estimate.violations,
        explain.dominates(estimate),
        explain.memory_sentence(estimate),
        explain.certainty(estimate),
        *estimate.warnings,
    ]
    return _plan_block(estimate, [Plan(rank=1, strategy=estimate.strategy, estimate=estimate)], remarks)


def _plan_block(best: Estimate, plans: Sequence[Plan], remarks: Iterable[str]) -> str:
    return _block(f"{best.model} on {best.gpus}", ranking(plans, short=True), _step_bar(best), remarks=remarks)


def rent_html(report: RentReport) -> str:
    """What to rent: the sentences, the front as a picture, and the choices."""
    title = f"What to rent for {report.request['model']}"
    return _block(title, report.plot().svg, front_table(report), remarks=[*money.advice(report), *report.warnings])


def afford_html(report: AffordReport) -> str:
    """What a budget buys: the sentences, the models, and tokens and loss by their size."""
    title = f"What {show_dollars(report.budget_usd)} buys"
    return _block(title, report.plot().svg, afford_table(report), remarks=[*sentences(report), *report.notes])


def sweep_html(found: Sweep) -> str:
    """The charts of a sweep, and its points."""
    return _block(f"{found.model} on {found.gpus}", found.plot().svg, points_table(found), remarks=found.notes)


def _block(title: str, *content: str, remarks: Iterable[str]) -> str:
    return tag("div", tag("style", _STYLE), tag("b", quoted(title)), *content, bullets(remarks), class_="astra")


def _step_bar(estimate: Estimate) -> str:
    pieces = []
    for share in explain.shares(estimate):
        title = f"{share.label}: {show_seconds(share.seconds)} ({share.fraction:.1%})"
        style = (
            f"width:{100 * max(share.fraction, 0.0):.2f}%;background:{_COLOR[share.group]};border-right:1px solid #fff8"
        )
        pieces.append(tag("span", title=title, style=style))
    return tag("div", *pieces, style="display:flex;height:1em;margin:.5em 0")
