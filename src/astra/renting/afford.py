"""``afford``: what a budget buys: the most tokens for a model, the largest model for a rule, the best of models.

How long the caps let an offer train does not depend on the model, so that one search for each model answers
(``search.most``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

import astra
from astra.answer import Range
from astra.answer_money import Afforded, AffordReport
from astra.catalog.models import model as find_model
from astra.catalog.models import model_names
from astra.errors import InputError, NoFeasiblePlan
from astra.layers import weights as weights_of
from astra.money.caps import Caps
from astra.money.objectives import seconds_of
from astra.money.tags import stale_warnings
from astra.partition.problem import Effort
from astra.renting.rent import HORIZON_S, offers_of, staged
from astra.renting.report import FEWEST_STEPS, notes_on
from astra.search.front import OfferPart, Refined, refine
from astra.search.most import Buys, open_notes, search_most
from astra.search.world import World
from astra.spec.record import check
from astra.spec.request import PlanRequest, requested
from astra.spec.workload import Workload

RATIO: Final = 20.0
RATIO_SOURCE: Final = "Chinchilla (Hoffmann et al. 2022, arXiv 2203.15556): about 20 tokens for each parameter"
# L = E + A / N^a + B / D^b, fitted anew to Chinchilla's runs.
LAW: Final = {"E": 1.8172, "A": 482.01, "a": 0.3478, "B": 2085.43, "b": 0.3658}
LAW_SOURCE: Final = (
    "Besiroglu et al. 2024 (arXiv 2404.10102), a fit to Chinchilla's runs: loss = 1.8172 "
    "+ 482.01 / parameters^0.3478 + 2085.43 / tokens^0.3658; for dense models on data like theirs, to compare by"
)
OF_A_MODEL: Final = 22_000.0  # effort, a second or two
MOST_BETWEEN: Final = 2  # more models tried where the rule binds
SIZES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)  # models to try, by the size that the rule and the money suggest
USUAL: Final = "llama-3.1-8b"  # to find what a FLOP costs, where no model is named
FLOPS_PER_USD: Final = 0.4 * 1e15 * 3600 / 3.0  # a first guess: 40% of an H100 at $3
LONG_DAYS: Final = 30.0  # after which it is said that nobody asked for an end
AS_MANY: Final = 1.1  # tokens that anyone would give for an earlier end, where the error bar is wider still


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
    check(progress is None or callable(progress), "progress", progress, "a function of the fraction that is done")
    for name in ("tokens", "objective"):
        if name in asked:
            raise InputError(name, asked[name], want=f"no {name}: how many tokens is what is looked for")
    request = requested("rent", model or USUAL, {"mixes": "none", **asked, "budget": budget})
    usd, limit_s = float(request.budget or 0.0), HORIZON_S if deadline is None else seconds_of(deadline)
    request = msgspec.structs.replace(request, budget=None, deadline=deadline)
    search = _MostTokens(request, Caps(usd, limit_s), progress)
    first = search.most(request.model)
    spent = search.flops[first.model] if first is not None else FLOPS_PER_USD * usd
    named = [first] if model is not None and first is not None else []
    others = [search.other(name) for name in _near(math.sqrt(spent / (6 * ratio)))]
    rows = list({row.model: row for row in [*named, *others] if row is not None}.values())
    rows += _between(rows, ratio, search.other)
    if not rows:
        raise NoFeasiblePlan("Nothing can be trained for this money in this time: give more of either, or other GPUs.")
    return _report(rows, named[0].model if named else "", search, ratio)


class _MostTokens:
    """The most tokens of one model after another, of the same offers within the same caps."""

    def __init__(self, request: PlanRequest, caps: Caps, progress: Callable[[float], None] | None) -> None:
        self.request, self.caps, self.notes = request, caps, list[str]()
        self._shown, self._progress, self._known = offers_of(request), progress, dict[str, Afforded | None]()
        self._chosen, self.works = dict[str, OfferPart](), dict[str, Workload]()  # by model
        self.flops = dict[str, float]()  # likewise, of its products with weights

    def other(self, name: str) -> Afforded | None:
        """Another model, in whatever runtime; None where it cannot be trained so."""
        if name not in self._known:
            try:
                self.most(name, runtime=None)
            except (InputError, NoFeasiblePlan):
                self._known[name] = None
        return self._known[name]

    def most(self, model: Any, **other: Any) -> Afforded | None:
        """The most tokens within the caps; None if nothing can be trained.

        Without a deadline, the quickest of what trains as many tokens for all that is known.
        """
        request, options = msgspec.structs.replace(self.request, model=model, **other), self.request.money
        stage = staged(request, self._shown)
        as_many = 1.0 if request.deadline is not None else AS_MANY
        state = search_most(
            self._shown.offers, stage.job_of, options, self.caps, effort=Effort(OF_A_MODEL), as_many=as_many,
            upper=stage.world.upper, first=[part.offer for part in self._chosen.values()], progress=self._watch(),
        )  # fmt: skip
        found, every = list[tuple[Buys, Refined]](), state.buys()
        while every and not found:  # what the detailed account of memory turns down is left out
            some = [one for one in every if one.steps * as_many >= every[0].steps]
            every = every[len(some) :]
            refined = refine(stage.job_of, options, [one.found for one in some], upper=stage.world.upper)
            fitting = {(id(one.parts[0].offer), one.gpus): one for one in refined}
            keys = [(id(one.found.offer), one.found.gpus) for one in some]
            found = [(one, fitting[key]) for one, key in zip(some, keys, strict=True) if key in fitting]
        best = None
        if found:
            bar = min(found[0][1].estimate.step_s_range.high / found[0][1].estimate.step_s, as_many)
            as_many_tokens = [pair for pair in found if pair[0].steps * bar >= found[0][0].steps]
            bought, refined_one = min(as_many_tokens, key=lambda pair: pair[0].present_s)
            best = _row(bought, refined_one, stage.world)
            # What is good for one model is good to begin with for the next.
            self._chosen[best.model], self.works[best.model] = refined_one.parts[0], stage.world.workload
            self.flops[best.model] = 6.0 * weights_of.count(stage.world.model).active * best.tokens
            self.notes += open_notes(best.model, state)
        self._known[stage.world.model.name] = best
        return best

    def remarks(self, rows: Sequence[Afforded]) -> list[str]:
        """What was supposed for some rows, and what nobody knows of their offers."""
        works = dict.fromkeys(
            f"{work.global_batch:,} samples of {work.seq:,} tokens" for work in (self.works[row.model] for row in rows)
        )
        parts = [self._chosen[row.model] for row in rows]
        return [
            f"A step is {' or '.join(works)} (--batch, --seq).",
            *self._few_steps(rows),
            *self._money_left(rows),
            *notes_on(parts, self._shown, self.request.money),
            *stale_warnings([part.offer.tag for part in parts]),
        ]

    def _few_steps(self, rows: Sequence[Afforded]) -> list[str]:
        """That so few steps are no training."""
        works = [self.works[row.model] for row in rows]
        few = [
            row.model for row, work in zip(rows, works, strict=True)
            if row.tokens < FEWEST_STEPS * work.global_batch * work.seq
        ]  # fmt: skip
        tell = f"Of {', '.join(few)} these are fewer than {FEWEST_STEPS} steps, few for any training: give --batch."
        return [tell] if few else []

    def _money_left(self, rows: Sequence[Afforded]) -> list[str]:
        """That the time ends before the money on as many GPUs as are allowed."""
        most = self.request.max_gpus
        left = [row.model for row in rows if row.usd * AS_MANY < self.caps.usd and 2 * row.gpus > most]
        names = "all models shown" if len(left) == len(rows) else ", ".join(left)
        tell = f"Of {names} the time ends before the money on up to {most:,} GPUs: more may buy more "
        return [f"{tell}(--max-gpus)."] if left else []

    def _watch(self) -> Callable[[float], None] | None:
        """What is told of one model's search, as a share of all."""
        report, done = self._progress, len(self._known)
        return (
            None if report is None else lambda part: report(min((done + part) / (1 + len(SIZES) + MOST_BETWEEN), 1.0))
        )


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


def _row(bought: Buys, found: Refined, world: World) -> Afforded:
    result, spec = found.estimate, world.model
    longer = result.step_s_range.high / result.step_s if world.upper else 1.0  # than is expected
    tokens = bought.steps * longer * world.workload.global_batch * world.workload.seq
    low, high = (tokens * result.step_s / end for end in (result.step_s_range.high, result.step_s_range.low))
    parameters = int(weights_of.count(spec).total)
    return Afforded(
        model=spec.name,
        parameters=parameters,
        tokens=tokens,
        tokens_range=Range(low=low, high=high),
        tokens_per_parameter=tokens / parameters,
        loss=None if spec.moe is not None else loss(parameters, tokens),
        choice=found.name,
        gpus=found.gpus,
        days=bought.present_s / 86400,
        usd=bought.usd,
        strategy=result.strategy,
        price=found.parts[0].offer.tag,
    )


def loss(parameters: float, tokens: float) -> float:
    """The published law's loss of a dense model."""
    return float(LAW["E"] + LAW["A"] / parameters ** LAW["a"] + LAW["B"] / tokens ** LAW["b"])


@cache
def _dense() -> list[tuple[float, str, str]]:
    """Dense decoders of text in the catalog that anyone can have: parameters, date and name.

    Their makers publish a configuration on a hub; of others there is a paper, and nothing to begin with.
    """
    known = []
    for name in model_names():
        spec = find_model(name)
        others = (spec.moe, spec.vision, spec.state_space, spec.delta_net, spec.encoder, spec.tower)
        published = any("/" in alias for alias in spec.aliases)
        if published and spec.family == "decoder" and spec.causal and not any(others):
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


def _report(rows: list[Afforded], named: str, search: _MostTokens, ratio: float) -> AffordReport:
    """The record, models by size."""
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
    if search.request.deadline is None and any(row.days > LONG_DAYS for row in ranked):
        notes.insert(0, "The most tokens take few GPUs and long, within a year: --deadline says what less time buys.")
    if not allowed:
        notes.append("No model shown is small enough for the rule: name a smaller one.")
    return AffordReport(
        version=astra.__version__,
        budget_usd=search.caps.usd,
        deadline_days=search.caps.seconds / 86400,
        ratio=ratio,
        rows=ranked,
        most=named,
        largest=allowed[-1].model if allowed else "",
        best=least,
        notes=[*search.notes, *notes, *search.remarks(ranked)],
        asked=msgspec.structs.replace(search.request, budget=search.caps.usd).plain("rent"),
    )
