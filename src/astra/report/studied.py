"""A study as text and as a page: the best fleet for everything else, the grid of figures, what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from astra.questions.records import BestFleet, StudyPoint, StudyReport
from astra.report import drawing, explain
from astra.report.explanation import short_strategy
from astra.report.layout import Part
from astra.report.markup import quoted, tag
from astra.report.page import bullets, facts, folded, page, paragraph, section, table
from astra.report.plan_page import declared_parts, footer
from astra.units import show_dollars, show_seconds

TITLES: Final = {"models": "model", "workloads": "workload", "goals": "goal", "prices": "prices"}
SHOWN: Final = 40  # rows of the text
ON_PAGE: Final = 500
GRIDS: Final = 24
_FIGURES: Final = ("best fleet", "planned", "tokens/s", "MFU", "days", "cost")


def study_parts(report: StudyReport, columns: int) -> list[Part]:
    """The answer in a terminal."""
    axes = _axes(report)
    heads = [(TITLES[axis], "left") for axis in axes] + [(_FIGURES[0], "left")]
    rows = (_cells(row, axes)[:-2] for row in report.best[:SHOWN])
    out = drawing.table(*heads, *[(name, "right") for name in _FIGURES[1:]], rows=rows)
    more = [f"... and {len(report.best) - SHOWN:,} rows more, in the tables"] if len(report.best) > SHOWN else []
    return [
        drawing.text((report.title, "bold"), f": {_counted(report)}"),
        drawing.prose((_pace(report), "dim")),
        drawing.blank(),
        *([out] if report.best else []),
        *drawing.bullets(more, mark=""),
        *([drawing.blank(), drawing.heading("Without a plan")] if report.problems else []),
        *drawing.bullets(_sentences(report, 8)),
        drawing.blank(),
        *drawing.bullets(f"wrote {path}" for path in report.files),
        *drawing.closing([], report.notes),
    ]


def _counted(report: StudyReport) -> str:
    grid = " x ".join(f"{len(names)} {axis}" for axis, names in report.axes.items() if len(names) > 1)
    counts = ", ".join(f"{count:,} {status}" for status, count in report.statuses.items() if count)
    return f"{report.questions:,} questions{f' ({grid})' if grid else ''}: {counts or 'none answered'}"


def _pace(report: StudyReport) -> str:
    now = report.answered - report.before
    again = f", {report.again:,} asked again after a worker ended" if report.again else ""
    before = f"{report.before:,} were answered before; " if report.before else ""
    if not now:
        return f"{before}nothing was asked"
    who = f"{report.workers} {report.engine} worker{'s' * (report.workers != 1)}"
    return f"{before}{now:,} in {show_seconds(report.seconds)} by {who}, {report.questions_per_s:.1f} a second{again}"


def _axes(report: StudyReport) -> list[str]:
    """The axes that are told apart in a row."""
    return [axis for axis in TITLES if len(report.axes[axis]) > 1] or ["models"]


def _cells(row: BestFleet, axes: Sequence[str]) -> list[str]:
    best = row.best
    return [
        *(row.at[axis] for axis in axes),
        best.at["fleets"],
        f"{row.planned} of {row.fleets}",
        f"{best.tokens_per_s or 0.0:,.0f}",
        f"{best.mfu or 0.0:.1%}",
        "-" if best.days is None else f"{best.days:,.1f}",
        "-" if best.usd is None else show_dollars(best.usd),
        explain.show_step(best.step_s or 0.0),
        short_strategy(best.strategy or ""),
    ]


def _sentences(report: StudyReport, most: int) -> list[str]:
    found = [
        f"{one.questions:,} {one.status}: {one.sentence} (first: {', '.join(filter(None, one.first.values()))})"
        for one in report.problems[:most]
    ]
    left = len(report.problems) - most
    return [*found, f"{left:,} reasons more, in the column error of the questions"] if left > 0 else found


def study_page(report: StudyReport, declared: str = "") -> str:
    """The answer as one page to show, and the file that declared the study."""
    axes = _axes(report)
    heads = (*(TITLES[axis] for axis in axes), *_FIGURES, "step time", "best plan")
    rows = [_cells(row, axes) for row in report.best[:ON_PAGE]]
    left = (*range(len(axes) + 1), len(heads) - 1)
    judged = sorted({row.judged_by for row in report.best})
    return page(
        report.title,
        tag("h1", quoted(report.title)),
        paragraph(_counted(report), "faint"),
        facts(_facts(report)),
        section("The best fleet", paragraph(f"Judged by {' or '.join(judged)}, as each goal asks.") if judged else "",
                table(heads, rows, left=left) if rows else "", key="best"),
        section("Evidence and doubt", *_evidence(report, axes), key="evidence"),
        section("Every question", *_grids(report), key="questions"),
        section("Without a plan", bullets(_sentences(report, 100)), key="problems"),
        section("Where the results are", bullets(report.files), paragraph(
            "Parquet: pandas.read_parquet, polars.read_parquet, or duckdb: select * from 'plans.parquet'."),
            bullets(report.notes, "faint"), key="files"),
        section("How to launch one", paragraph(
            "The column request of questions.parquet holds the request of every question: astra plan answers it, "
            "astra export writes the files that start it."), key="launch"),
        section("The request", *declared_parts(declared, "study", "study.toml"), key="request"),
        footer(report.fingerprint["version"], report.fingerprint),
    )  # fmt: skip


def _evidence(report: StudyReport, axes: Sequence[str]) -> list[str]:
    """How far the step times of the best fleets are to be trusted."""
    named = (*(TITLES[axis] for axis in axes), _FIGURES[0])
    heads = (*named, "step time", "four of five runs of its kind", "published runs")
    rows = [
        [*(row.at[axis] for axis in axes), best.at["fleets"], explain.show_step(best.step_s),
         f"{explain.show_step(best.step_s_low)} to {explain.show_step(best.step_s_high)}", best.evidence or ""]
        for row in report.best[:ON_PAGE]
        for best in (row.best,)
        if best.step_s is not None and best.step_s_low is not None and best.step_s_high is not None
    ]  # fmt: skip
    drawn = table(heads, rows, left=(*range(len(axes) + 1), len(heads) - 1))
    return [folded(f"The range of every step time, {len(rows)} rows", drawn)] if rows else []


def _facts(report: StudyReport) -> Iterator[tuple[str, str, str]]:
    yield "questions", f"{report.questions:,}", " x ".join(str(len(names)) for names in report.axes.values())
    yield "plans", f"{report.plans:,}", f"{report.statuses['planned']:,} questions have one"
    yield "without a plan", f"{report.answered - report.statuses['planned']:,}", f"{report.statuses['failed']:,} failed"
    yield "answered by", f"{report.workers} {report.engine} worker{'s' * (report.workers != 1)}", _pace(report)


def _grids(report: StudyReport) -> Iterator[str]:
    """A table of models by fleets for each setting of the rest."""
    cells: dict[tuple[str, ...], dict[tuple[str, str], StudyPoint]] = {}
    for point in report.points:
        rest = tuple(point.at[axis] for axis in ("workloads", "goals", "prices"))
        cells.setdefault(rest, {})[point.at["models"], point.at["fleets"]] = point
    fleets = report.axes["fleets"]
    for place, (rest, found) in enumerate(cells.items()):
        if place == GRIDS:
            yield paragraph(f"{len(cells) - GRIDS:,} grids more are in the tables.", "faint")
            return
        rows = [[model, *(_cell(found.get((model, fleet))) for fleet in fleets)] for model in report.axes["models"]]
        drawn = table(("model", *(fleet or "GPUs" for fleet in fleets)), rows)
        named = ", ".join(name for name in rest if name) or "all"
        yield tag("h3", quoted(named)) + drawn if place == 0 else folded(named, drawn)


def _cell(point: StudyPoint | None) -> str:
    if point is None:
        return ""
    if point.tokens_per_s is None:
        return point.status
    usd = "" if point.usd_per_billion_tokens is None else f", {show_dollars(point.usd_per_billion_tokens)}/B"
    return f"{point.tokens_per_s:,.0f} tok/s, {point.mfu or 0.0:.0%}{usd}"
