"""A validation as text for a terminal, as the Markdown page of the documentation, and what its runs ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from astra.catalog.requests import write_request
from astra.errors import visible
from astra.validate.measured import sources
from astra.validate.replay import ReplayedRun
from astra.validate.score import (
    LEAST_STRATEGIES,
    PUBLISHED,
    Confusion,
    Coverage,
    Errors,
    Line,
    Pick,
    Validation,
    farthest,
)
from astra.validate.targets import sections, why_of

if TYPE_CHECKING:
    from astra.report.layout import Part

Section = tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]
_SHOWN_RULES: Final = 12
_TITLES: Final = {
    "source": "By source", "framework": "By framework", "gpu": "By GPU", "precision": "By precision",
    "family": "By model family", "scale": "By scale", "task": "By task", "provenance": "By provenance",
}  # fmt: skip
_BRIEF: Final = ("source", "framework", "gpu", "precision", "family", "scale")
_WRAPPED: Final = ("reached", "why", "what it was, and why")
_ERROR_COLUMNS: Final = ("runs", "mean", "median", "p90", "bias")
_STEP_HEAD: Final = ("", *_ERROR_COLUMNS, "memory: runs", "mean", "median", "bias")
_FIT_HEAD: Final = (
    "", "right", "fits, ran", "fits, failed", "refused, ran", "refused, failed", "8% free, failed"
)  # fmt: skip
_COVER_HEAD: Final = ("class of evidence", "runs", "held", "bar")
_PICK_HEAD: Final = ("", "groups", "of best", "worst", "regret", "worst", "rank corr.", "best of 3", "memory ignored")
_WORST_HEAD: Final = ("run", "predicted", "measured", "error", "what it was, and why")
_ALWAYS: Final = ("Skipped rows", "Times not scored", "The pick")
_NARROW: Final = 98  # columns that all of a table's numbers have room in; a narrower page does without some
_WIDE_ONLY: Final = ("p90", "8% free, failed", "refused, failed", "best of 3", "memory ignored", "rank corr.")
_LEAST: Final = 72  # columns that the others need
MORE: Final = (
    "-v: by framework, GPU, precision, family and scale, what was left out and filled in, the runs farthest from the "
    "measurement. --show RUN: what a run asks of astra estimate."
)


def render_validation(found: Validation, width: int | None, color: bool, *, brief: bool, full: bool) -> str:
    """The report on a screen, all of it if ``full``; of a user's own runs with those that were skipped, first."""
    from astra.report import drawing  # noqa: PLC0415

    columns = max(drawing.page_width(width), _LEAST)
    own = found.table != PUBLISHED
    parts: list[Part] = []
    for title, note, head, rows in _tables(found, brief=brief, full=full) if full or own else _short(found, brief):
        kept = [place for place, name in enumerate(head) if columns >= _NARROW or name not in _WIDE_ONLY]
        table = drawing.table(*((head[place], _side(head[place]) if place else "wrap") for place in kept))
        for row in rows:
            table.add_row(*(row[place] for place in kept))
        parts += [drawing.heading(title, note), *([table] if rows else []), drawing.blank()]
    more = [] if full or own or brief else [drawing.prose((f"{_left_out(found)} {MORE}", "dim")), drawing.blank()]
    return drawing.draw([*parts, *more][:-1], width=columns, color=color)


def _left_out(found: Validation) -> str:
    skipped, aside = sum(found.skipped.values()), sum(found.not_scored.values())
    return f"{skipped:,} of {len(found.rows):,} rows were skipped, and of {aside:,} more the time is not scored."


def _short(found: Validation, brief: bool) -> Iterable[Section]:
    """The sections that fit a screen: errors in all and by source, then what is held, what fits and the pick in all."""
    names = {line.name for line in found.overall}
    wanted = ("Step time and peak memory", "By source", *(() if brief else _IN_ALL))
    for title, note, head, rows in _tables(found, brief=True, full=False):
        if title in wanted:
            yield title, note, head, [row for row in rows if title not in _IN_ALL[1:] or row[0] in names]


_IN_ALL: Final = ("In the predicted range", "Fits or does not fit", "The pick")


def markdown(found: Validation, *, date: str, commit: str) -> str:
    """The page ``docs/accuracy.md``."""
    fitted = "; ".join(f"{one.name} ({', '.join(filter(None, one.fit)) or 'all'})" for one in sources() if one.fit)
    lines = [
        "# Accuracy against published runs",
        "",
        f"Written by `astra validate --report` on {date}, commit {commit}, version {found.version}, catalog "
        f"{found.catalog}; table: {found.table}. An error is predicted over measured, less one; bias is the median of "
        f"the signed errors (above zero: predicted too slow or too large).{_simulated(found)}",
        "",
        f"Runs that may be fitted on: {fitted}. All others are for testing only.",
        "",
    ]
    for title, note, head, rows in _tables(found, brief=False, full=True):
        lines += [f"## {title}", *(["", note] if note else [])]
        if rows:
            lines += ["", _cells(head), "|" + " --- |" * len(head), *(_cells(row) for row in rows)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _simulated(found: Validation) -> str:
    names = sorted({row.source for row in found.rows if row.use == "simulated"})
    if not names:
        return ""
    pages = ", ".join(f"`{name}` ([{name}.md]({name}.md))" for name in names)
    return f" Rows of {pages} read like a simulator's: they are neither fit nor test; figures are also told without."


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(visible(cell).replace("|", "/").replace("<", "&lt;") for cell in row) + " |"


def _side(name: str) -> str:
    return "wrap" if name in _WRAPPED else "left" if name in ("reason", "rule") else "right"


def _tables(found: Validation, *, brief: bool, full: bool) -> list[Section]:
    """The sections that have something to say: rows, or that there are none."""
    return [one for one in _sections(found, brief=brief, full=full) if one[3] or one[0] in _ALWAYS]


def _sections(found: Validation, *, brief: bool, full: bool) -> Iterable[Section]:
    total, skipped = len(found.rows), sum(found.skipped.values())
    yield "Skipped rows", f"{skipped:,} of {total:,}", ("reason", "rows"), _counts(found.skipped)
    aside = sum(found.not_scored.values())
    note = f"{aside:,} rows, replayed; memory and fit still count"
    yield "Times not scored", note, ("reason", "rows"), _counts(found.not_scored)
    if full:
        yield "Filled in by rule", "", ("rule", "rows"), _counts(found.filled)
    if full and found.table == PUBLISHED:
        yield from sections(found)
    yield "Step time and peak memory", found.table, _STEP_HEAD, [_line(line) for line in found.overall]
    for name, lines in found.by.items():
        if full or (name in _BRIEF and not brief) or name == "source":
            yield _TITLES[name], "", _STEP_HEAD, [_line(line) for line in lines]
    note = "80% of measured steps should lie in the range; bars are made without the source of a run"
    yield "In the predicted range", note, _COVER_HEAD, [_coverage(one) for one in found.coverage]
    yield (
        "Fits or does not fit",
        "predicted, and what happened",
        _FIT_HEAD,
        [_confusion(name, one) for name, one in found.fitting.items()],
    )
    note = (
        "measured speed of the strategy that a plan would put first, over the best measured; best of 3: of the first "
        "three, the best measured"
        if found.picks
        else f"no model, GPUs and batch with {LEAST_STRATEGIES} or more measured strategies to pick from"
    )
    yield "The pick", note, _PICK_HEAD, [_pick(one) for one in found.picks]
    yield "Farthest from the measurement", "", _WORST_HEAD, _worst(found)


def _counts(counts: dict[str, int]) -> list[tuple[str, ...]]:
    shown = list(counts.items())[:_SHOWN_RULES]
    rest = sum(counts.values()) - sum(count for _, count in shown)
    rows: list[tuple[str, ...]] = [(name, f"{count:,}") for name, count in shown]
    return rows + ([("others", f"{rest:,}")] if rest else [])


def _line(line: Line) -> tuple[str, ...]:
    memory = line.memory
    first = (line.name, *_errors(line.step))
    return (*first, *((f"{memory.runs:,}", *_three(memory)) if memory else ("", "", "", "")))


def _errors(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("",) * len(_ERROR_COLUMNS)
    mean, median, bias = _three(errors)
    return f"{errors.runs:,}", mean, median, f"{errors.p90:.1%}", bias


def _three(errors: Errors) -> tuple[str, str, str]:
    return f"{errors.mean:.1%}", f"{errors.median:.1%}", f"{errors.bias:+.1%}"


def _confusion(name: str, one: Confusion) -> tuple[str, ...]:
    counts = (one.fits_and_ran, one.fits_but_failed, one.refused_but_ran, one.refused_and_failed,
              one.recommended_but_failed)  # fmt: skip
    return name, f"{one.right:.1%}", *(f"{count:,}" for count in counts)


def _coverage(one: Coverage) -> tuple[str, ...]:
    return one.name, f"{one.runs:,}", f"{one.held:.0%}", f"{one.bar:.0%}"


def _pick(one: Pick) -> tuple[str, ...]:
    return (
        one.name, f"{one.groups:,}", f"{one.quality:.3f}", f"{one.worst_quality:.3f}", f"{one.regret:.1%}",
        f"{one.worst_regret:.1%}", f"{one.rank_correlation:.2f}", f"{one.quality_of_three:.3f}",
        f"{one.quality_any:.3f}",
    )  # fmt: skip


def _worst(found: Validation) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for row in farthest(found.rows):
        predicted, measured = row.predicted_step_s or 0.0, row.measured_step_s or 0.0
        what = f"{row.gpus}x{row.gpu}, {row.model}, batch {row.batch}, {row.strategy}"
        why = f". {why_of(row.id)}" if found.table == PUBLISHED else ""
        lines.append((row.id, f"{predicted:.3g} s", f"{measured:.3g} s", f"{row.error or 0.0:+.0%}", f"{what}{why}"))
    return lines


def render_requests(rows: Sequence[ReplayedRun]) -> str:
    """One request after another; what was measured and filled in stands above each, as comments."""
    return "\n".join(map(_request, rows))


def _request(row: ReplayedRun) -> str:
    if row.request is None:
        return f"# {row.id}: skipped: {visible(row.skipped or '')}\n"
    measured = f"measured {row.measured_step_s:.6g} s" if row.measured_step_s else "no time measured"
    lines = [f"{row.id}: predicted {row.predicted_step_s:.6g} s, {measured}", f"published: {row.citation}"]
    lines += [f"filled: {rule}" for rule in row.filled]
    lines += [f"not scored: {row.not_scored}"] * bool(row.not_scored)
    return "".join(f"# {visible(line)}\n" for line in lines) + write_request(row.request, "estimate")
