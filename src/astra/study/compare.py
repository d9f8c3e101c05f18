"""Two estimates side by side: terms and memory subtracted, so that the differences add up."""

from __future__ import annotations

from astra.answer import Estimate, StageEstimate
from astra.study.records import Comparison, Side, TermDifference


def compared(first: Side, second: Side) -> Comparison:
    """The second against the first, term by term."""
    one, two = first.estimate, second.estimate
    names = [*one.breakdown, *(name for name in two.breakdown if name not in one.breakdown)]
    terms = [
        TermDifference(term=name, first_s=a, second_s=b, difference_s=b - a)
        for name in names
        for a, b in [(one.breakdown.get(name, 0.0), two.breakdown.get(name, 0.0))]
    ]
    held = fullest(one).memory, fullest(two).memory
    kinds = [*held[0], *(name for name in held[1] if name not in held[0])]
    return Comparison(
        first=first,
        second=second,
        terms=sorted(terms, key=lambda term: (-abs(term.difference_s), term.term)),
        memory={name: held[1].get(name, 0.0) - held[0].get(name, 0.0) for name in kinds},
        within_error=one.step_s_range.low <= two.step_s_range.high and two.step_s_range.low <= one.step_s_range.high,
        notes=_notes(first, second),
    )


def fullest(estimate: Estimate) -> StageEstimate:
    """The stage whose memory is told."""
    return max(estimate.stages, key=lambda stage: stage.peak_reserved_gib)


def _notes(first: Side, second: Side) -> list[str]:
    """What makes a difference of step times say little."""
    one, two = first.estimate, second.estimate
    notes = []
    if first.tokens_per_step != second.tokens_per_step:
        tokens = f"{first.tokens_per_step:,.0f} tokens in the first and {second.tokens_per_step:,.0f} in the second"
        notes.append(f"A step has {tokens}: compare tokens per second.")
    named = (("models", one.model, two.model), ("GPUs", one.gpus, two.gpus), ("runtimes", one.runtime, two.runtime))
    return [*notes, *(f"The {what} differ: {a} and {b}." for what, a, b in named if a != b)]
