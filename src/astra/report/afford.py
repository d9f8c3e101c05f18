"""What a budget buys, as text."""

from __future__ import annotations

from typing import Final

from astra.answer_money import Afforded, AffordReport
from astra.report import drawing
from astra.report.layout import Part
from astra.units import show_count, show_dollars, show_seconds

MORE: Final = "-v: tokens against parameters as a picture. --plot FILE: as charts, with the loss."
_TINY, _NARROW, _WIDE = 72, 90, 110  # columns


def afford_parts(report: AffordReport, columns: int, *, brief: bool = False, full: bool = False) -> list[Part]:
    """The answers in a sentence each and a table of models; ``full`` adds tokens against parameters as a picture."""
    within = show_seconds(report.deadline_days * 86400) if report.asked.get("deadline") else "a year"
    title = f"What {show_dollars(report.budget_usd)} within {within} buys"
    parts: list[Part] = [drawing.text((title, "bold")), drawing.blank()]
    parts += [*drawing.bullets(sentences(report)), drawing.blank(), _table(report, columns)]
    if full and len(report.rows) > 1:
        points = [(float(row.parameters), row.tokens) for row in report.rows]
        marks = [(_mark(row, report) or " ")[0] for row in report.rows]
        legend = "M most tokens, L largest by the rule, * least loss; both axes logarithmic"
        drawn = drawing.scatter(points, marks, columns, across=show_count, up=show_count, legend=legend)
        parts += [drawing.blank(), drawing.heading("Tokens against parameters"), drawing.text(drawn)]
    parts += drawing.closing([], report.notes) if not brief else []
    return parts if brief or full else [*parts, drawing.prose((MORE, "dim"))]


def sentences(report: AffordReport) -> list[str]:
    """The most tokens of the model asked for, the largest model for the rule, the best by the law."""
    by_name = {row.model: row for row in report.rows}
    out = []
    if report.most:
        out.append(f"Most tokens for {report.most}: {_said(by_name[report.most])}.")
    if report.largest:
        out.append(f"Largest with {report.ratio:g} tokens for each parameter: {report.largest}, "
                   f"{_said(by_name[report.largest])}.")  # fmt: skip
    if report.best:
        row = by_name[report.best]
        out.append(f"Least loss by the law: {report.best} ({row.loss:.3f}), {_said(row)}.")
    return out


def _said(row: Afforded) -> str:
    low, high = show_count(row.tokens_range.low), show_count(row.tokens_range.high)
    return (
        f"{show_count(row.tokens)} tokens ({low}-{high}) on {row.choice}, {show_seconds(row.days * 86400)} for "
        f"{show_dollars(row.usd)}"
    )


def _mark(row: Afforded, report: AffordReport) -> str:
    """What a row is the best in; in a picture the first letter."""
    marks = {"*": report.best, "L": report.largest, "M": report.most}
    return "".join(mark for mark, name in marks.items() if name == row.model)


def _table(report: AffordReport, width: int) -> Part:
    """One row per model; a narrow page keeps room for the GPUs before ranges and tokens per parameter."""
    sums, ratios, ranges = (width >= columns for columns in (_TINY, _NARROW, _WIDE))
    columns = [("", "left"), ("model", "left")] + [("params", "right")] * sums + [("tokens", "right")]
    columns += [("range", "right")] * ranges + [("per param", "right")] * ratios
    columns += [("loss", "right"), ("time", "right")] + [("cost", "right")] * sums + [("GPUs", "wrap")]
    out = drawing.table(*columns, gap=1 if width < 120 else 2)
    for row in report.rows:
        spread = f"{show_count(row.tokens_range.low)}-{show_count(row.tokens_range.high)}"
        cells = [_mark(row, report), row.model] + [show_count(row.parameters)] * sums + [show_count(row.tokens)]
        cells += [spread] * ranges + [f"{row.tokens_per_parameter:.3g}"] * ratios
        cells += ["-" if row.loss is None else f"{row.loss:.3f}"]
        cells += [show_seconds(row.days * 86400)] + [show_dollars(row.usd)] * sums + [row.choice]
        out.add_row(*cells, style="bold" if _mark(row, report) else "")
    return out
