"""What a budget buys, sweeps, comparisons and explanations as parts of a page that asks again."""

from __future__ import annotations

from astra.answer_money import AffordReport
from astra.report.afford import sentences
from astra.report.explanation import change_sentence, short_strategy
from astra.report.markup import quoted, tag
from astra.report.page import bullets, paragraph, table, wide
from astra.report.pictures import picture_of
from astra.report.study_text import TERMS, figures_line, memory_difference, side_rows, term_cells, verdict
from astra.report.sweep import points_table, sweep_svg
from astra.study.records import Comparison, Explanation, Sweep
from astra.units import show_count, show_dollars


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
    return "".join(
        [
            _title(f"What {show_dollars(report.budget_usd)} buys", f"{len(report.rows)} models"),
            bullets(sentences(report)),
            wide(picture_of(report)),
            afford_table(report),
            bullets(report.notes, "faint"),
        ]
    )


def sweep_view(found: Sweep) -> str:
    """The charts and the points."""
    return "".join(
        [
            _title(f"{found.model} on {found.gpus}, over {' and '.join(found.over)}", f"{len(found.points)} points"),
            wide(sweep_svg(found)),
            points_table(found),
            bullets(found.notes, "faint"),
        ]
    )


def _terms(found: Comparison) -> str:
    rows = term_cells(found)
    return table(TERMS, rows, best=len(rows) - 1)


def comparison_view(found: Comparison) -> str:
    """Two side by side, and their difference term by term."""
    one, two = found.first, found.second
    return "".join(
        [
            tag("h2", "A and B side by side", id="compared-title"),
            paragraph(verdict(found), "lead"),
            tag("p", "A ", tag("code", quoted(one.estimate.strategy))),
            tag("p", "B ", tag("code", quoted(two.estimate.strategy))),
            bullets(found.notes, "warn"),
            table(("", "A", "B", "B against A"), side_rows(one, two)),
            tag("h3", "Where the difference is, in seconds"),
            _terms(found),
            paragraph(memory_difference(found)),
        ]
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
    return "".join(
        [
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
        ]
    )
