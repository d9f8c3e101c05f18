"""Explanations and comparisons as text for a terminal."""

from __future__ import annotations

from typing import Final

from astra.answer import Estimate
from astra.report import drawing, explain
from astra.report.explanation import WORTH, change_sentence, short_strategy
from astra.report.layout import Part, Text
from astra.report.terms import MEMORY_LABELS, words
from astra.study.records import Comparison, Explanation, Side
from astra.units import show_dollars

TERMS: Final = ("term", "A", "B", "B - A")


def explanation_parts(found: Explanation, columns: int) -> list[Part]:
    """What bounds a plan, what binds it, what the next one lost by, what a change would bring, how sure it is."""
    estimate = found.estimate
    parts: list[Part] = [
        drawing.text((f"{estimate.model} on {estimate.gpus}", "bold"), f", {estimate.runtime}, plan {found.rank}"),
        drawing.prose((estimate.strategy, "dim")),
        drawing.prose(figures_line(estimate)),
        *drawing.closing(found.warnings, []),
        drawing.blank(),
        drawing.heading("What the step's time goes to"),
        *drawing.bullets(found.bounds),
        drawing.blank(),
        drawing.heading("What keeps it from being faster"),
        *drawing.bullets(found.binds),
    ]  # fmt: skip
    if found.changes or found.skipped:
        parts += [drawing.blank(), drawing.heading("What a single change would bring", "each one planned anew")]
        parts.append(_changes_table(found))
        idle = ", ".join(one.change for one in found.changes if one.gain is not None and abs(one.gain) < WORTH)
        without = (change_sentence(one) for one in found.changes if one.gain is None)
        parts += drawing.bullets([f"less than {WORTH:.1%} from {idle}" if idle else "", *without])
        if found.skipped:
            parts.append(drawing.prose((f"no time for: {'; '.join(found.skipped)} (--seconds)", "dim")))
    if found.next is not None:
        parts += [drawing.blank(), drawing.heading(f"This plan (A) against {found.next.second.name} (B)")]
        parts += difference(found.next)
    rows = ((one.figure, one.value, one.how) for one in found.known)
    known = drawing.table(("figure", "left"), ("value", "right"), ("how sure", "wrap"), rows=rows)
    return [*parts, drawing.blank(), drawing.heading("How sure each figure is"), known]


def figures_line(estimate: Estimate) -> str:
    """The figures to see first."""
    return (
        f"{explain.show_step(estimate.step_s)} per step, {estimate.tokens_per_s:,.0f} tokens/s, "
        f"MFU {estimate.mfu:.1%}, {estimate.peak_reserved_gib:.1f} of {estimate.memory_usable_gib:.1f} GiB"
    )


def _changes_table(found: Explanation) -> Part:
    priced = any(one.usd_per_billion_tokens is not None for one in found.changes)
    columns = [("change", "left"), ("tokens/s", "right"), ("gain", "right")] + [("$/billion", "right")] * priced
    out = drawing.table(*columns, ("best plan with it", "wrap"))
    for one in found.changes:
        if one.gain is None or one.tokens_per_s is None or abs(one.gain) < WORTH:
            continue
        usd = "-" if one.usd_per_billion_tokens is None else show_dollars(one.usd_per_billion_tokens)
        same = one.strategy == found.estimate.strategy
        cells = [one.change, f"{one.tokens_per_s:,.0f}", f"{one.gain:+.1%}", *[usd] * priced]
        out.add_row(*cells, "the same" if same else short_strategy(one.strategy or ""))
    return out


def comparison_parts(found: Comparison, columns: int) -> list[Part]:
    """Two side by side, and their difference term by term."""
    first, second = found.first, found.second
    rows: list[list[str | Text]] = [[drawing.text((row[0], "dim")), *row[1:]] for row in side_rows(first, second)]
    sides = drawing.table(("", "left"), ("A", "right"), ("B", "right"), ("B against A", "right"), rows=rows)
    return [
        drawing.prose(("A  ", "bold"), (first.name, "bold"), f"  {first.estimate.strategy}"),
        drawing.prose(("B  ", "bold"), (second.name, "bold"), f"  {second.estimate.strategy}"),
        drawing.blank(),
        sides,
        drawing.blank(),
        drawing.heading("Where the difference comes from", "seconds of a step"),
        *difference(found),
        *drawing.closing([*first.estimate.warnings, *second.estimate.warnings], found.notes),
    ]


def side_rows(first: Side, second: Side) -> list[tuple[str, ...]]:
    """Figures of both, and how the second differs."""
    one, two = first.estimate, second.estimate
    steps = [explain.ranking_cells(each)["step time"] for each in (one, two)]
    rows = [
        ("model", one.model, two.model, ""),
        ("GPUs", one.gpus, two.gpus, ""),
        ("runtime", one.runtime, two.runtime, ""),
        ("step time", *steps, f"{two.step_s / one.step_s - 1:+.1%}"),
        ("tokens/s", f"{one.tokens_per_s:,.0f}", f"{two.tokens_per_s:,.0f}",
         f"{two.tokens_per_s / one.tokens_per_s - 1:+.1%}"),
        ("per GPU", f"{one.tokens_per_s_per_gpu:,.0f}", f"{two.tokens_per_s_per_gpu:,.0f}",
         f"{two.tokens_per_s_per_gpu / one.tokens_per_s_per_gpu - 1:+.1%}"),
        ("MFU", f"{one.mfu:.1%}", f"{two.mfu:.1%}", f"{100 * (two.mfu - one.mfu):+.1f} points"),
        ("peak GiB", f"{one.peak_reserved_gib:.1f}/{one.memory_usable_gib:.1f}",
         f"{two.peak_reserved_gib:.1f}/{two.memory_usable_gib:.1f}",
         f"{two.peak_reserved_gib - one.peak_reserved_gib:+.1f} GiB"),
        ("fits", *("yes" if each.fits else "no" for each in (one, two)), ""),
        ("micro-batches", f"{one.microbatches:,}", f"{two.microbatches:,}", ""),
    ]  # fmt: skip
    if one.train_days is not None and two.train_days is not None:
        change = f"{two.train_days - one.train_days:+.1f}"
        rows.append(("days", f"{one.train_days:.1f}", f"{two.train_days:.1f}", change))
    if one.train_usd is not None and two.train_usd is not None:
        change = f"{two.train_usd / one.train_usd - 1:+.1%}"
        rows.append(("cost", show_dollars(one.train_usd), show_dollars(two.train_usd), change))
    return rows


def difference(found: Comparison) -> list[Part]:
    """Terms that differ, their sum, and memory."""
    *terms, total = term_cells(found)
    out = drawing.table(*((name, "right" if place else "left") for place, name in enumerate(TERMS)), rows=terms)
    out.add_row(*total, style="bold")
    return [out, drawing.blank(), *drawing.bullets([verdict(found), memory_difference(found)])]


def term_rows(found: Comparison) -> list[tuple[str, float, float, float]]:
    """Terms that either has, by what they differ; what is too small to show is one row, so that the rows add up."""
    scale = max(found.first.estimate.step_s, found.second.estimate.step_s)
    large = [term for term in found.terms if max(abs(term.first_s), abs(term.second_s)) >= 5e-4 * scale]
    small = [term for term in found.terms if term not in large]
    rows = [(words(term.term).label, term.first_s, term.second_s, term.difference_s) for term in large]
    if any(term.first_s or term.second_s for term in small):
        first_s, second_s = sum(term.first_s for term in small), sum(term.second_s for term in small)
        rows.append(("the rest", first_s, second_s, second_s - first_s))
    return rows


def term_cells(found: Comparison) -> list[tuple[str, str, str, str]]:
    """The same rows under ``TERMS``, and the step that they add up to."""
    first_s, second_s = found.first.estimate.step_s, found.second.estimate.step_s
    rows = [*term_rows(found), ("step", first_s, second_s, second_s - first_s)]
    return [(name, f"{a_s:.4g}", f"{b_s:.4g}", f"{more_s:+.4g}") for name, a_s, b_s, more_s in rows]


def verdict(found: Comparison) -> str:
    """Which is faster and whether that is sure."""
    one, two = found.first.estimate, found.second.estimate
    ratio = two.tokens_per_s / one.tokens_per_s
    if abs(ratio - 1) < 0.0005:
        return "Both are as fast by this model."
    faster, slower = ("B", "A") if ratio > 1 else ("A", "B")
    by = max(ratio, 1 / ratio) - 1
    sure = "; their error bars overlap" if found.within_error else ""
    return f"{faster} trains {by:.1%} more tokens per second than {slower}{sure}."


def memory_difference(found: Comparison) -> str:
    """What the fullest stage of the second holds more or less."""
    kinds = [(MEMORY_LABELS.get(name, name), gib) for name, gib in found.memory.items() if abs(gib) >= 0.05]
    if not kinds:
        return "Their fullest stages hold the same memory."
    parts = [f"{name} {gib:+.1f}" for name, gib in sorted(kinds, key=lambda kind: -abs(kind[1]))]
    return f"B's fullest stage against A's, GiB allocated: {', '.join(parts)}."
