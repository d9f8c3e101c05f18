"""Results as text for a terminal. Nothing here prints; the caller decides on width and colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from astra.answer import Estimate, ModelReport, Plan, PlanSet
from astra.catalog.runtimes import runtime, runtime_names
from astra.report import drawing, explain, money, sections
from astra.report.layout import Part
from astra.spec.mixed_text import short_form
from astra.units import show_count, show_dollars, show_gib, show_seconds

REJECTS_SHOWN: Final = 8  # where there is no plan and nobody asked for all
ONE_LINE_WIDTH: Final = 120
NOTES_LETTERS: Final = 420  # of notes under a short answer
MORE: Final = (
    "-v: time and memory by stage, every plan, the bill, why the others lost, what was left out. --report FILE.html: "
    "all of it as a page. astra explain PLAN.json: what would bring most."
)
MORE_IN_ALL: Final = "-v: the rest. --report FILE.html: as a page. astra explain PLAN.json: why."


def plans_parts(planset: PlanSet, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """The ranked plans, what the first rests on and what bounds it, in one screen.

    ``brief`` keeps the ranking alone; ``full`` adds its time and memory by stage, the whole bill, why the others lost,
    and what was refused.
    """

    def page(plans: int, *, tight: bool = False) -> list[Part]:
        return _page(planset, plans, columns, brief=brief, full=full, tight=tight)

    if brief or full:
        return page(len(planset.plans))
    return drawing.on_a_screen(page, len(planset.plans), columns, lambda plans: page(plans, tight=True))


def _page(planset: PlanSet, plans: int, columns: int, *, brief: bool, full: bool, tight: bool) -> list[Part]:
    """The same with some of the plans; ``tight`` leaves out what matters least of the short answer."""
    parts: list[Part] = [*_plans_header(planset), drawing.blank()]
    if planset.plans:
        parts.append(_ranking(planset.plans[:plans], columns))
        parts += drawing.closing(explain.all_warnings(planset), [])
        first = explain.headlines(planset)
        parts += [drawing.blank(), *drawing.bullets(first)] if first else []
    else:
        parts.append(drawing.text(("No strategy is legal and fits.", "red")))
    if not brief and planset.nearby:
        parts += [drawing.blank(), *drawing.bullets([near.sentence for near in planset.nearby])]
    if planset.lost:
        parts += [drawing.blank(), *drawing.bullets(sections.lost_sentences(planset))]
    if full:
        if planset.plans:
            best = planset.best.estimate
            parts += [drawing.blank(), drawing.heading("The best plan"), drawing.text(best.strategy)]
            parts += sections.details(best, columns, by_stages=False)
            parts += money.bill(planset)
            parts += sections.others(planset)
        parts += sections.ledger(planset)
        parts += drawing.closing([], planset.notes)
    elif not brief:
        parts += _in_short(planset, tight=tight)
    return parts


def _in_short(planset: PlanSet, *, tight: bool = False) -> list[Part]:
    """The first plan in a few sentences, the next one's loss, the search, and what more can be seen."""
    if not planset.plans:
        return [*sections.ledger(planset, REJECTS_SHOWN), *shortened(planset.notes, MORE)]
    best = planset.best.estimate
    # The headlines tell the first plan's evidence already.
    sentences = [] if planset.daring is not None else [explain.certainty(best)]
    helps = "" if tight else explain.helps_most(best)
    sentences += [f"{explain.dominates(best)} {helps}".strip(), explain.memory_sentence(best)]
    sentences += [money.bill_in_short(best), *money.saved_sentences(planset)]
    if not tight and len(planset.plans) > 1 and planset.objective != "pareto":
        sentences.append(explain.why_lost(planset.best, planset.plans[1]))
    sentences += [] if tight else [explain.search_sentence(planset)]
    ending = shortened(planset.notes, MORE_IN_ALL)[1:] if tight else shortened(planset.notes, MORE)
    return [drawing.blank(), *drawing.bullets(sentences), *ending]


def shortened(notes: Sequence[str], more: str) -> list[Part]:
    """How a short answer ends: what was assumed in one paragraph of a few lines, and where the rest is."""
    kept = [note.rstrip(".") for place, note in enumerate(notes) if len("; ".join(notes[: place + 1])) <= NOTES_LETTERS]
    left = [f"{len(notes) - len(kept)} more with -v"] if len(kept) < len(notes) else []
    said = [drawing.prose((f"note: {'; '.join([*kept, *left])}", "dim"))] if notes else []
    return [drawing.blank(), *said, drawing.prose((more, "dim"))]


def estimate_parts(estimate: Estimate, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """One strategy's speed and memory; ``full`` adds them stage by stage, and how each term is known."""
    parts: list[Part] = [
        drawing.text((f"{estimate.model} on {estimate.gpus}", "bold"), f", {estimate.runtime}"),
        drawing.text(("strategy  ", "dim"), estimate.strategy),
        *_verdict(estimate),
        drawing.blank(),
        _figures(estimate),
        drawing.blank(),
        drawing.prose(explain.certainty(estimate)),
    ]
    if brief:
        return parts
    bill, more = money.bill_sentences(estimate), "-v: time and memory by stage, the whole bill."
    if not full:
        parts += [*drawing.bullets([money.bill_in_short(estimate)]), *sections.where_time_goes(estimate, columns)]
        parts += [*drawing.bullets([explain.memory_sentence(estimate)]), *drawing.closing(estimate.warnings, [])]
        return [*parts, drawing.blank(), drawing.prose((more, "dim"))]
    parts += [drawing.blank(), drawing.heading("The bill"), *drawing.bullets(bill)] if bill else []
    parts += [*sections.where_time_goes(estimate, columns), *sections.by_stage(estimate, columns)]
    parts += [*sections.memory(estimate, columns), *sections.provenance(estimate)]
    return [*parts, *drawing.closing(estimate.warnings, [])]


def model_parts(report: ModelReport, columns: int) -> list[Part]:
    """What was understood of a model."""
    parts: list[Part] = [drawing.text((report.name, "bold"), f", {report.family}"), drawing.blank()]
    rows = ((name.replace("_", " "), f"{count:,.0f}", show_count(count)) for name, count in report.parameters.items())
    parts += [drawing.table(("parameters", "left"), ("count", "right"), ("", "right"), rows=rows), drawing.blank()]
    seq = report.flops_per_token.get("seq")
    title = f"FLOPs per token at {seq:,.0f} tokens" if seq else "FLOPs per token"
    each = report.flops_per_token.items()
    flops = [(name.replace("_", " "), show_count(count)) for name, count in each if name != "seq"]
    parts += [drawing.table((title, "left"), ("count", "right"), rows=flops), drawing.blank()]
    known = {name: one for name, one in report.shape.items() if one is not None and (one != 0 or isinstance(one, bool))}
    shape = [(name, _shape_value(one)) for name, one in known.items()]
    parts.append(drawing.table(("shape", "left"), ("", "wrap"), rows=shape))
    return [*parts, drawing.blank(), drawing.prose((f"source: {report.source}", "dim"))]


def _shape_value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shape_value(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plans_header(planset: PlanSet) -> list[Part]:
    request = planset.request
    gpus = f"{request.get('gpus', '')}x{request.get('gpu', '')}"
    node = f" ({request['node']})" if request.get("node") else ""
    title = drawing.text((f"{request.get('model', '')} on {gpus}", "bold"), node)
    lines: list[Part] = [title, drawing.prose((explain.work_words(request), "dim"))]
    if request.get("runtime") in runtime_names() and not runtime(request["runtime"]).exports_to:
        lines.append(drawing.prose((f"astra export writes no files for {request['runtime']}", "dim")))
    lines += drawing.remark(request.get("runtime_because"))
    if request.get("restrictions"):
        lines.append(drawing.prose((f"restricted to {', '.join(map(str, request['restrictions']))}", "dim")))
    return lines


def _ranking(plans: list[Plan], width: int) -> Part:
    trained = any(plan.estimate.train_days is not None for plan in plans)
    priced = any(plan.estimate.train_usd is not None for plan in plans)
    # A strategy must not be broken inside a word, so that it can be copied: a narrow page has fewer figures beside it.
    heads = ["step time", *["tokens/s"] * (width >= 80), *["MFU"] * (width >= 70), "peak GiB"]
    # The bubble is in the breakdown too, so a narrow page gives its room to the money.
    heads += ["bubble"] * (width >= 100 or not priced) + ["days"] * trained + ["cost"] * priced
    columns = [("#", "right"), ("strategy", "wrap"), *((head, "right") for head in heads)]
    out = drawing.table(*columns, gap=1 if width < 100 else 2)
    for plan in plans:
        cells = explain.ranking_cells(plan.estimate)
        degrees, switches = short_form(plan.strategy, plan.estimate.as_usual)
        best, between = "bold" if plan.rank == 1 else "", "\n" if width < ONE_LINE_WIDTH else "  "
        name = drawing.text((degrees, best), between, (switches, "dim"))
        out.add_row(str(plan.rank), name, *(cells[head] for head in heads))
    return out


def _verdict(estimate: Estimate) -> list[Part]:
    if estimate.legal and estimate.fits:
        return []
    parts: list[Part] = []
    if not estimate.legal:
        parts.append(drawing.text(("This strategy is not legal:", "bold red")))
        parts += drawing.bullets(estimate.violations, mark="!", style="red")
    if not estimate.fits:
        parts.append(drawing.prose(("This strategy does not fit. ", "bold red"), explain.memory_sentence(estimate)))
    return [drawing.blank(), *parts]


def _figures(estimate: Estimate) -> Part:
    peak = f"{estimate.peak_gib_range.low:.1f} to {estimate.peak_gib_range.high:.1f}"
    rows = [
        ("step time", f"{explain.show_step(estimate.step_s)} ±{explain.error_bar(estimate):.0%}"),
        ("tokens/s", f"{estimate.tokens_per_s:,.0f} ({estimate.tokens_per_s_per_gpu:,.0f} per GPU)"),
        ("model FLOP/s", f"{estimate.model_tflops_per_gpu:,.0f} TFLOP/s per GPU"),
        ("MFU / HFU", f"{estimate.mfu:.1%} / {estimate.hfu:.1%}"),
        ("bubble", f"{explain.show_share(estimate.bubble_fraction)} with {estimate.microbatches:,} micro-batches"),
        ("peak memory", f"{show_gib(estimate.peak_reserved_gib * 1024**3)} reserved ({peak} expected), "
                        f"{estimate.peak_allocated_gib:.1f} allocated, {estimate.memory_usable_gib:.1f} usable"),
    ]  # fmt: skip
    if estimate.train_days is not None:
        rows.append(("training", show_seconds(estimate.train_days * 86400)))
    if estimate.train_usd is not None:
        source = f" ({estimate.price_source})" if estimate.price_source else ""
        rows.append(("cost", f"{show_dollars(estimate.train_usd)}{source}"))
    dimmed = ((drawing.text((name, "dim")), value) for name, value in rows)
    return drawing.table(("", "left"), ("", "wrap"), headed=False, rows=dimmed)
