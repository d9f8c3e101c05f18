"""Answers as parts of a page that asks again: cards with figures, evidence, pictures, and what may be done with each.

Buttons carry in ``data-`` attributes what they are about; the page they stand on decides what they do.
"""

from __future__ import annotations

from astra.answer import Estimate, Plan, PlanSet
from astra.answer_money import Choice, RentReport
from astra.report import explain, money
from astra.report.bars import memory_bars, time_table
from astra.report.choices import judged, judged_words, network_words, roles_of, strategy_words, time_of
from astra.report.front_svg import front_svg
from astra.report.markup import quoted, tag
from astra.report.page import bullets, facts, folded, paragraph, wide
from astra.report.plan_page import bill_parts, figures, gpus_words, ledger_parts, pool_parts, ranking
from astra.report.rent_page import popular_table, spots
from astra.spec.mixed_text import short_form
from astra.units import DAY_S, show_dollars, show_seconds


def plan_view(planset: PlanSet) -> str:
    """Plans, the best first."""
    title = f"{planset.request['model']} on {gpus_words(planset)}"
    head = [tag("h2", quoted(title), id="answer-title"), paragraph(explain.work_words(planset.request), "faint")]
    if not planset.plans:
        ending = [paragraph("No strategy is legal and fits.", "bad lead"), *ledger_parts(planset)]
        return "".join([*head, *ending, bullets(planset.notes, "faint")])
    lost = {plan.rank: explain.why_lost(planset.best, plan) for plan in planset.plans[1:]}
    if planset.objective == "pareto":
        lost = {}
    cards = [_plan_card(plan, lost.get(plan.rank, ""), first=plan is planset.best) for plan in planset.plans]
    return "".join(
        [
            *head,
            bullets(explain.headlines(planset)),
            tag("div", ranking(planset.plans, short=True) if len(planset.plans) > 1 else "", class_="ranking"),
            tag("div", *cards, class_="cards"),
            bullets(near.sentence for near in planset.nearby),
            *pool_parts(planset),
            _part("The bill", *bill_parts(planset)),
            _part("What was left out, and why", *ledger_parts(planset)),
            bullets(planset.notes, "faint"),
        ]
    )


def estimate_view(estimate: Estimate) -> str:
    """One strategy, legal or not."""
    title = tag("h2", quoted(f"{estimate.model} on {estimate.gpus}"), id="answer-title")
    broken = bullets(estimate.violations, "bad")
    about = paragraph("It is not legal:" if estimate.violations else "", "bad")
    plan = Plan(rank=1, strategy=estimate.strategy, estimate=estimate)
    return "".join([title, about, broken, tag("div", _plan_card(plan, "", first=True), class_="cards")])


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
    return "".join(
        [
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
        ]
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
        tag("p", tag("code", quoted(strategy_words(choice)))),
        paragraph(choice.evidence, "evidence"),
        bullets(choice.warnings, "warn"),
        tag("div", tag("button", "Plan on these GPUs", type="button", data_do="plan", data_gpus=pools,
                       aria_label=f"Plan on these GPUs: {choice.name}"), class_="tools"),
        folded("The price", paragraph(money.price_words(cost.price))),
        class_="card", id=key, aria_labelledby=f"{key}-title", tabindex=-1,
    )  # fmt: skip
