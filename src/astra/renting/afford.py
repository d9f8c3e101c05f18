"""``afford``: what a budget buys: the most tokens for a model, the largest model for a rule, the best of models.

The most tokens of a model are a fixed point. On the front of N tokens, the choice that trains the most tokens M within
the caps gives the next N. Where M = N nothing can do more: what could train more than N within the caps takes less time
and money than they allow for N, so that it, or what dominates it, is on that front and would have made M larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

import astra
from astra.answer import Range
from astra.answer_money import Afforded, AffordReport, Choice
from astra.catalog.models import model as find_model
from astra.catalog.models import model_names
from astra.errors import InputError, NoFeasiblePlan
from astra.layers import weights as weights_of
from astra.money.objectives import seconds_of
from astra.renting.rent import HORIZON_S, searched
from astra.renting.report import choice_of
from astra.search.front import front_of
from astra.spec.money import Money
from astra.spec.record import check
from astra.spec.request import PlanRequest, requested

RATIO: Final = 20.0
RATIO_SOURCE: Final = "Chinchilla (Hoffmann et al. 2022, arXiv 2203.15556): about 20 tokens for each parameter"
# L = E + A / N^a + B / D^b, fitted anew to Chinchilla's runs.
LAW: Final = {"E": 1.8172, "A": 482.01, "a": 0.3478, "B": 2085.43, "b": 0.3658}
LAW_SOURCE: Final = (
    "Besiroglu et al. 2024 (arXiv 2404.10102), a fit to Chinchilla's runs, recalled and not read again: loss = 1.8172 "
    "+ 482.01 / parameters^0.3478 + 2085.43 / tokens^0.3658; for dense models on data like theirs, to compare by"
)
MOST_BETWEEN: Final = 2  # more models tried where the rule binds
SIZES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)  # models to try, by the size that the rule and the money suggest
USUAL: Final = "llama-3.1-8b"  # to find what a FLOP costs, where no model is named
FLOPS_PER_USD: Final = 0.4 * 1e15 * 3600 / 3.0  # a first guess: 40% of an H100 at $3
MOST_ROUNDS, CLOSE = 4, 0.005
AS_MANY: Final = 1.1  # tokens that anyone would give for an earlier end, where the error bar is wider still


class _Buys(NamedTuple):
    """What the caps allow with one choice."""

    choice: Choice
    tokens: float
    days: float
    usd: float


def afford(
    model: Any = None,
    *,
    budget: float | str,
    deadline: float | str | None = None,
    ratio: float = RATIO,
    progress: Callable[[float], None] | None = None,
    **asked: Any,
) -> AffordReport:
    """What a budget buys within a deadline, or within a year; ``asked`` are the keywords of ``rent``.

    With a model, the most tokens for it come first. Beside it stand models of the catalog of the size that ``ratio``
    tokens for each parameter suggest, the largest that the rule allows, and the one with the least loss by a published
    law.
    """
    check(isinstance(ratio, int | float) and 0 < ratio < 1e6, "ratio", ratio, "tokens for each parameter, above zero")
    for name in ("tokens", "objective"):
        if name in asked:
            raise InputError(name, asked[name], want=f"no {name}: how many tokens is what is looked for")
    request = requested("rent", model or USUAL, {"mixes": "none", **asked, "budget": budget})
    usd, limit_s = float(request.budget or 0.0), HORIZON_S if deadline is None else seconds_of(deadline)
    request = msgspec.structs.replace(request, budget=None, deadline=deadline)
    first = _most(request, usd, limit_s)
    rows = [] if first is None or model is None else [first]
    spent = 6 * first.parameters * first.tokens if first is not None else FLOPS_PER_USD * usd
    names = [name for name in _near(math.sqrt(spent / (6 * ratio))) if name not in {row.model for row in rows}]
    for place, name in enumerate(names):
        row = first if first is not None and name == first.model else _try(request, name, usd, limit_s)
        rows += [row] if row is not None else []
        if progress is not None:
            progress((place + 1) / len(names))
    rows += _between(rows, ratio, lambda name: _try(request, name, usd, limit_s))
    if not rows:
        raise NoFeasiblePlan("Nothing can be trained for this money in this time: give more of either, or other GPUs.")
    return _report(rows, model is not None and first is not None, usd, limit_s, ratio, request)


def _between(rows: list[Afforded], ratio: float, tried: Callable[[str], Afforded | None]) -> list[Afforded]:
    """Models between the largest that the rule allows and the next one shown, where the rule binds."""
    found = list[Afforded]()
    for _ in range(MOST_BETWEEN):
        every = sorted([*rows, *found], key=lambda row: row.parameters)
        low = max((row for row in every if row.tokens_per_parameter >= ratio), key=_size, default=None)
        high = min((row for row in every if row.tokens_per_parameter < ratio), key=_size, default=None)
        if low is None or high is None or high.parameters <= low.parameters:
            break
        # Tokens for each parameter fall as a power of the parameters.
        steep = math.log(low.tokens_per_parameter / high.tokens_per_parameter)
        share = math.log(low.tokens_per_parameter / ratio) / steep if steep > 0 else 0.5
        size = low.parameters * (high.parameters / low.parameters) ** share
        names = [(abs(math.log(total / size)), name) for total, _, name in _dense()
                 if 1.02 * low.parameters < total < high.parameters / 1.02]  # fmt: skip
        row = tried(min(names)[1]) if names else None
        if row is None:
            break
        found.append(row)
    return found


def _size(row: Afforded) -> int:
    return row.parameters


def _try(request: PlanRequest, name: str, usd: float, limit_s: float) -> Afforded | None:
    """Another model; None where it cannot be trained so."""
    try:
        return _most(msgspec.structs.replace(request, model=name, runtime=None), usd, limit_s)
    except InputError:
        return None


def _most(request: PlanRequest, usd: float, limit_s: float) -> Afforded | None:
    """The most tokens of a model within the caps, by the fixed point; None if nothing can be trained."""
    spec = find_model(request.model)
    counts = weights_of.count(spec)
    tokens, best = FLOPS_PER_USD * usd / (6 * counts.active), None
    for _ in range(MOST_ROUNDS):
        try:
            found_all = searched(msgspec.structs.replace(request, tokens=max(tokens, 1.0)))
            front = [choice_of(one, []) for one in front_of([*found_all.refined, *found_all.mixed.refined])]
        except NoFeasiblePlan:  # it fits nowhere
            return None
        found = max((_buys(choice, request.money, usd, limit_s) for choice in front), key=lambda one: one.tokens)
        if best is None or found.tokens > best.tokens:
            best = found if request.deadline is not None else _as_many(front, request.money, usd, limit_s, found)
        if found.tokens <= 0:
            tokens /= 16
        elif abs(found.tokens / tokens - 1) < CLOSE:
            break
        else:
            tokens = found.tokens
    if best is None or best.tokens <= 0:
        return None
    return _row(best, spec.name, int(counts.total), moe=spec.moe is not None)


def _as_many(front: list[Choice], options: Money, usd: float, limit_s: float, most: _Buys) -> _Buys:
    """The quickest of what trains as many tokens for all that is known."""
    bar = min(most.choice.step_s_range.high / most.choice.step_s, AS_MANY)
    every = [_buys(choice, options, usd, limit_s) for choice in front]
    return min((one for one in every if one.tokens * bar >= most.tokens), key=lambda one: one.days)


def _buys(choice: Choice, options: Money, usd: float, limit_s: float) -> _Buys:
    """The tokens a choice trains until the money or the time is spent; the bill is in its own steps."""
    cost, price = choice.cost, choice.cost.price
    usd_per_s = cost.gpus * price.usd_per_gpu_h / 3600 + options.storage_usd_per_s
    paid_s = (usd - options.egress_usd) / usd_per_s
    if price.step_s > 0:
        paid_s = math.floor(paid_s / price.step_s + 1e-9) * price.step_s
    present_s = min(paid_s, limit_s) if paid_s >= price.minimum_s else 0.0
    useful = cost.expected.goodput if cost.expected is not None and options.goodput == "expected" else 1.0
    train_s = max(present_s - cost.startup_s - options.idle_s, 0.0) * useful
    billed_s = max(present_s, price.minimum_s)
    if price.step_s > 0:
        billed_s = math.ceil(billed_s / price.step_s - 1e-9) * price.step_s
    gpus_usd = cost.gpus * price.usd_per_gpu_h * billed_s / 3600
    total = gpus_usd + options.storage_usd_per_s * present_s + options.egress_usd
    return _Buys(choice, train_s * choice.tokens_per_s, present_s / 86400, total)


def _row(best: _Buys, name: str, parameters: int, *, moe: bool) -> Afforded:
    choice = best.choice
    low, high = (best.tokens * choice.step_s / end for end in (choice.step_s_range.high, choice.step_s_range.low))
    return Afforded(
        model=name,
        parameters=parameters,
        tokens=best.tokens,
        tokens_range=Range(low=low, high=high),
        tokens_per_parameter=best.tokens / parameters,
        loss=None if moe else loss(parameters, best.tokens),
        choice=choice.name,
        gpus=choice.gpus,
        days=best.days,
        usd=best.usd,
        strategy=choice.strategy,
        price=choice.cost.price,
    )


def loss(parameters: float, tokens: float) -> float:
    """The published law's loss of a dense model."""
    return float(LAW["E"] + LAW["A"] / parameters ** LAW["a"] + LAW["B"] / tokens ** LAW["b"])


def _dense() -> list[tuple[float, str, str]]:
    """Dense decoders of text in the catalog: parameters, date and name."""
    known = []
    for name in model_names():
        spec = find_model(name)
        others = (spec.moe, spec.vision, spec.state_space, spec.delta_net, spec.encoder, spec.tower)
        if spec.family == "decoder" and spec.causal and not any(others):
            known.append((float(weights_of.count(spec).total), spec.date, spec.name))
    return known


def _near(parameters: float) -> list[str]:
    """Dense decoders of the catalog near some multiples of a size, each once, the newest of those that are as near."""
    known = _dense()
    found = dict[str, float]()
    for size in SIZES:
        nearest = min(abs(math.log(each[0] / (parameters * size))) for each in known)
        close = [each for each in known if abs(math.log(each[0] / (parameters * size))) <= nearest + 0.05]
        total, _, name = max(close, key=lambda each: (each[1], each[2]))
        if all(abs(math.log(total / other)) > 0.1 for other in found.values()):
            found[name] = total
    return list(found)


def _report(
    rows: list[Afforded], named: bool, usd: float, limit_s: float, ratio: float, request: PlanRequest
) -> AffordReport:
    """The record, models by size."""
    asked = rows[0] if named else None
    ranked = sorted(rows, key=lambda row: row.parameters)
    allowed = [row for row in ranked if row.tokens_per_parameter >= ratio]
    judged = [row for row in ranked if row.loss is not None]
    least = min(judged, key=lambda row: row.loss or math.inf).model if judged else ""
    notes = [
        f"The rule is {ratio:g} tokens for each parameter: "
        + (RATIO_SOURCE if ratio == RATIO else "yours; Chinchilla's is about 20")
        + ".",
        f"Loss by {LAW_SOURCE}.",
    ]
    if not allowed:
        notes.append("No model shown is small enough for the rule: name a smaller one.")
    return AffordReport(
        version=astra.__version__,
        budget_usd=usd,
        deadline_days=limit_s / 86400,
        ratio=ratio,
        rows=ranked,
        most=asked.model if asked is not None else "",
        largest=allowed[-1].model if allowed else "",
        best=least,
        notes=notes,
        asked=msgspec.structs.replace(request, budget=usd).plain("rent"),
    )
