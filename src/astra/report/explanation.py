"""Why a plan is as it is: its answer and what changes would bring, put into sentences. Pure: records in, record out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra.answer import Estimate, Plan, PlanSet
from astra.report import explain
from astra.report.money import price_words
from astra.study.compare import compared
from astra.study.records import Changed, Comparison, Explanation, Known, Side
from astra.units import show_dollars

WORTH: Final = 0.005  # of tokens per second: less is not told as a limit
MEANING: Final = {
    "measured": "this shape was measured on this GPU",
    "interpolated": "between shapes measured on this GPU",
    "transferred": "measured on a relative of this GPU, or outside the shapes measured on it",
    "assumed": "from the data sheet and a rule of thumb",
}
_NO_SOURCE: Final = "worked out from the other terms, no measurement of its own"
_LIMITS: Final = {
    "memory": "Memory binds",
    "batch": "The batch binds",
    "cluster-links": "Links between servers bind",
    "node-links": "Links inside servers bind",
    "restrictions": "The restrictions of the request bind",
}


def explained(
    planset: PlanSet, rank: int, changes: Sequence[Changed], skipped: Sequence[str], *, name: str
) -> Explanation:
    """The explanation of one plan of an answer."""
    plan = next(one for one in planset.plans if one.rank == rank)
    estimate = plan.estimate
    rows = explain.shares(estimate)
    top = [f"{row.label} {row.fraction:.1%}" for row in rows[:3]]
    return Explanation(
        rank=rank,
        estimate=estimate,
        bounds=[f"{'; '.join(top)}.", explain.dominates(estimate), explain.helps_most(estimate)],
        binds=binding(estimate, changes),
        next=_next(planset, plan, name),
        changes=list(changes),
        skipped=list(skipped),
        known=known(estimate),
        warnings=[*estimate.warnings, *estimate.violations],
    )


def binding(estimate: Estimate, changes: Sequence[Changed]) -> list[str]:
    """What keeps the plan from being faster: each limit whose lifting brings something, the most first."""
    room = explain.memory_sentence(estimate)
    helps = [change for change in changes if change.gain is not None and change.gain >= WORTH]
    found = [f"{_LIMITS[change.key]}: {change_sentence(change)}" for change in helps if change.key in _LIMITS]
    if not found:
        found = ["No limit that was tried binds: none of those changes brings half a percent."] if changes else []
    return [*found, *([room] if room else [])]


def change_sentence(change: Changed) -> str:
    """One change and what it brings."""
    if change.gain is None:
        return f"{change.change}: no plan ({change.why})"
    per_billion = change.usd_per_billion_tokens
    usd = "" if per_billion is None else f", {show_dollars(per_billion)} per billion"
    return f"{change.change} would bring {change.gain:+.1%} tokens/s{usd} ({short_strategy(change.strategy or '')})"


def short_strategy(text: str) -> str:
    """The degrees of a strategy and its recompute, without the words that recipes choose."""
    if "[" in text:
        return text
    kept = [word for word in text.split() if "=" not in word or word.startswith("recompute=")]
    return " ".join(word for word in kept if word != "recompute=none")


def _next(planset: PlanSet, plan: Plan, name: str) -> Comparison | None:
    """Against the plan that comes after the best, or the best against another one."""
    first, work = planset.plans[0], planset.request["workload"]
    other = (
        first if plan.rank != first.rank else next((one for one in planset.plans if one.rank == plan.rank + 1), None)
    )
    if other is None:
        return None
    tokens = float(work["global_batch"] * work["seq"])
    sides = [Side(name=f"{name} #{one.rank}", estimate=one.estimate, tokens_per_step=tokens) for one in (plan, other)]
    return compared(*sides)


def known(estimate: Estimate) -> list[Known]:
    """How sure each figure is, and what it rests on."""
    low, high = explain.show_step(estimate.step_s_range.low), explain.show_step(estimate.step_s_range.high)
    because = f" ({estimate.evidence})" if estimate.evidence else ""
    found = [("step time", explain.show_step(estimate.step_s),
              f"{low} to {high} in four of five runs of its kind{because}")]  # fmt: skip
    for row in explain.shares(estimate):
        if row.fraction >= 0.01:
            how = f"{row.source}: {MEANING[row.source]}" if row.source in MEANING else _NO_SOURCE
            found.append((row.label, f"{explain.show_step(row.seconds)}, {row.fraction:.1%}", how))
    memory, cost = estimate.peak_gib_range, estimate.cost
    found.append(("peak memory", f"{estimate.peak_reserved_gib:.1f} GiB", f"{memory.low:.1f} to {memory.high:.1f} GiB "
                  "by the error of the memory model; astra rehearse measures one rank"))  # fmt: skip
    if cost is not None:
        spread = f"{show_dollars(cost.usd_range.low)} to {show_dollars(cost.usd_range.high)}"
        how = f"{spread} by the step time's range; {price_words(cost.price)}"
        found.append(("cost", show_dollars(cost.usd), how))
    return [Known(figure=figure, value=value, how=how) for figure, value, how in found]
