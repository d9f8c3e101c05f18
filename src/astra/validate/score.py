"""How far predictions are from published runs: step time, memory, what fits, and the strategy that would be picked.

An error is predicted over measured, less one. A group's pick is the one of the measured strategies that a plan would
put first: of those that fit with the usual headroom the one whose predicted range ends lowest. Its quality is its
measured speed over that of the best measured, whether predicted to fit or not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

import astra
from astra.answer import Result
from astra.catalog.hardware import catalog_hash
from astra.evidence.coverage import unseen
from astra.provenance import Floats
from astra.validate.replay import JOINED, ReplayedRun

SCHEMA: Final = "astra.validate/1"
SEVERAL: Final = "several pools"
STOOD_IN: Final = "stood in"  # frameworks that no other source has run
LEAST_STRATEGIES: Final = 4  # in a group that is picked from
SCALES: Final = ((8, "1-8 GPUs"), (64, "9-64 GPUs"), (512, "65-512 GPUs"))
WORST: Final = 10
PUBLISHED: Final = "published runs that come with Astra"
TRIED: Final = 3  # plans a careful user tries
GROUPINGS: Final[dict[str, Callable[[ReplayedRun], str]]] = {
    "source": lambda run: run.source,
    "framework": lambda run: run.framework,
    "gpu": lambda run: run.gpu,
    "precision": lambda run: run.precision,
    "family": lambda run: run.family,
    "scale": lambda run: scale_of(run.gpus),
    "task": lambda run: run.task,
    "provenance": lambda run: run.provenance or "",
}


class Errors(Result, frozen=True, kw_only=True):
    """Relative errors of a set of runs."""

    runs: int
    mean: float  # of absolute errors
    median: float
    p90: float
    worst: float
    bias: float  # median of signed errors: above zero, the prediction is too slow (or too large)


class Line(Result, frozen=True, kw_only=True):
    """One line of a table."""

    name: str
    step: Errors | None
    memory: Errors | None


class Coverage(Result, frozen=True, kw_only=True):
    """How many measured steps lie in the predicted range, which runs of their own source do not set."""

    name: str  # class of evidence, or all
    runs: int
    held: float  # share of them
    bar: float  # median size of the range: times longer or shorter, less one


class Confusion(Result, frozen=True, kw_only=True):
    """Fits or does not fit, predicted against what happened."""

    fits_and_ran: int
    fits_but_failed: int  # predicted to fit, ran out of memory: the costly mistake
    refused_but_ran: int
    refused_and_failed: int
    right: float  # fraction
    recommended_but_failed: int  # predicted to fit with the usual headroom kept free, ran out of memory


class RunGroup(Result, frozen=True, kw_only=True):
    """Strategies measured for one model, GPUs and batch."""

    source: str
    model: str
    gpu: str
    gpus: int
    batch: int
    seq: int
    precision: str
    strategies: int
    picked: str
    best: str
    quality: float  # measured speed of the pick over that of the best
    regret: float  # how much longer the pick's step takes than the best one's
    rank_correlation: float
    use: str
    quality_any: float  # of the strategy predicted fastest, whether predicted to fit or not
    quality_of_three: float  # of the best measured among the first three that a plan would put first


class Pick(Result, frozen=True, kw_only=True):
    """Decision quality over groups."""

    name: str
    groups: int
    quality: float  # mean
    worst_quality: float
    regret: float  # mean
    worst_regret: float
    rank_correlation: float  # mean
    quality_any: float  # mean, if memory were no matter
    quality_of_three: float  # mean, if the first three were tried and the best kept


class Validation(Result, frozen=True, kw_only=True):
    """All of it."""

    schema: str = SCHEMA
    version: str
    catalog: str
    table: str
    skipped: dict[str, int]
    not_scored: dict[str, int]
    filled: dict[str, int]
    overall: list[Line]
    by: dict[str, list[Line]]
    coverage: list[Coverage]
    fitting: dict[str, Confusion]
    picks: list[Pick]
    groups: list[RunGroup]
    worst: list[str]  # identifiers
    rows: list[ReplayedRun]


def validate(rows: Sequence[ReplayedRun], *, table: str) -> Validation:
    """Every figure from replayed runs."""
    replayed = [row for row in rows if row.skipped is None]
    groups = _groups(replayed)
    return Validation(
        version=astra.__version__,
        catalog=catalog_hash(),
        table=table,
        skipped=_counted(row.skipped for row in rows if row.skipped),
        not_scored=_counted(row.not_scored for row in replayed if row.not_scored),
        filled=_counted(rule for row in replayed for rule in row.filled if not rule.startswith("model ")),
        overall=[_line(name, part) for name, part in _uses(replayed)],
        by={name: _lines(replayed, key) for name, key in GROUPINGS.items()},
        coverage=_coverage(replayed, shipped=table == PUBLISHED),
        fitting={
            name: _confusion(part)
            for name, part in (*_uses(replayed), *_by_source(replayed))
            if any(row.ran_out_of_memory is not None for row in part)
        },
        picks=_picks(groups),
        groups=groups,
        worst=[row.id for row in farthest(replayed)],
        rows=list(rows),
    )


def farthest(rows: Iterable[ReplayedRun]) -> list[ReplayedRun]:
    """The scored runs whose prediction is farthest from the measurement."""
    return sorted((row for row in rows if row.error is not None), key=lambda row: -_factor(row))[:WORST]


def errors_of(values: Iterable[float | None]) -> Errors | None:
    """Statistics of relative errors; None of nothing."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(known):
        return None
    size = np.abs(known)
    return Errors(
        runs=len(known),
        mean=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        worst=float(size.max()),
        bias=float(np.median(known)),
    )


def scale_of(gpus: int) -> str:
    """The class of a number of GPUs."""
    return next((name for most, name in SCALES if gpus <= most), "513 GPUs and more")


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's: Pearson's of the ranks, ties sharing their mean rank; 0 where one of them does not vary."""
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (first, second)]
    spread = [rank - rank.mean() for rank in ranks]
    size = np.sqrt((spread[0] ** 2).sum() * (spread[1] ** 2).sum())
    return float((spread[0] * spread[1]).sum() / size) if size > 0 else 0.0


def _ranks(values: Floats) -> Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    ranks: Floats = (ends - (count - 1) / 2.0)[place]
    return ranks


def _factor(row: ReplayedRun) -> float:
    """How many times too slow or too fast: both directions weigh the same."""
    ratio = 1 + (row.error or 0.0)
    return max(ratio, 1 / max(ratio, 1e-9))


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    return {str(name): count for name, count in Counter(names).most_common()}


def _uses(rows: Sequence[ReplayedRun]) -> list[tuple[str, list[ReplayedRun]]]:
    parts = {"all": list(rows)} | {use: [row for row in rows if row.use == use] for use in ("fit", "test")}
    others = [row for row in rows if row.use != "simulated"]
    if 0 < len(others) < len(rows):
        parts[_without(rows)] = others
    return [(name, part) for name, part in parts.items() if part]


def _without(parts: Sequence[ReplayedRun | RunGroup]) -> str:
    return f"without {', '.join(sorted({part.source for part in parts if part.use == 'simulated'}))}"


def _by_source(rows: Sequence[ReplayedRun]) -> list[tuple[str, list[ReplayedRun]]]:
    names = sorted({row.source for row in rows})
    return [(name, [row for row in rows if row.source == name]) for name in names]


def _line(name: str, rows: Sequence[ReplayedRun]) -> Line:
    return Line(
        name=name,
        step=errors_of(row.error for row in rows),
        memory=errors_of(row.memory_error for row in rows),
    )


def _lines(rows: Sequence[ReplayedRun], key: Callable[[ReplayedRun], str]) -> list[Line]:
    members: dict[str, list[ReplayedRun]] = {}
    for row in rows:
        members.setdefault(key(row), []).append(row)
    lines = [_line(name, part) for name, part in members.items()]
    return sorted(lines, key=lambda line: (-(line.step.runs if line.step else 0), line.name))


def _coverage(rows: Sequence[ReplayedRun], *, shipped: bool) -> list[Coverage]:
    """Of all timed runs, of dense models, of models with experts, and of frameworks that another one stands in for.

    Constants may have been fitted on shipped runs: those are judged as they were predicted without their source.
    """
    intervals = (
        [((one.kind, *[STOOD_IN] * one.stood_in), one.held, math.expm1(one.log_bar)) for one in unseen()]
        if shipped
        else [((row.evidence,), row.held, row.predicted_step_s_range.high / row.predicted_step_s - 1) for row in rows
              if row.held is not None and row.predicted_step_s_range and row.predicted_step_s]
    )  # fmt: skip
    parts: dict[str, list[tuple[bool, float]]] = {}
    for kinds, held, bar in intervals:
        for name in ("all", *kinds):
            parts.setdefault(name, []).append((bool(held), bar))
    return [
        Coverage(name=name, runs=len(part), held=sum(held for held, _ in part) / len(part),
                 bar=float(np.median([bar for _, bar in part])))
        for name, part in sorted(parts.items(), key=lambda item: (item[0] != "all", item[0]))
    ]  # fmt: skip


def _confusion(rows: Sequence[ReplayedRun]) -> Confusion:
    seen = Counter((bool(row.fits), bool(row.ran_out_of_memory)) for row in rows if row.ran_out_of_memory is not None)
    right = seen[True, False] + seen[False, True]
    failed = sum(bool(row.recommended and row.ran_out_of_memory) for row in rows)
    return Confusion(
        fits_and_ran=seen[True, False],
        fits_but_failed=seen[True, True],
        refused_but_ran=seen[False, False],
        refused_and_failed=seen[False, True],
        right=right / max(sum(seen.values()), 1),
        recommended_but_failed=failed,
    )


def _groups(rows: Sequence[ReplayedRun]) -> list[RunGroup]:
    """Groups with enough measured strategies; repeated runs of one strategy count once, by their median."""
    members: dict[tuple[object, ...], dict[str, list[ReplayedRun]]] = {}
    for row in rows:
        if row.error is not None:
            key = (row.source, row.model, row.gpu, row.gpus, row.batch, row.seq, row.precision, row.task)
            members.setdefault(key, {}).setdefault(row.strategy, []).append(row)
    return [_group(by_strategy) for by_strategy in members.values() if len(by_strategy) >= LEAST_STRATEGIES]


def _group(by_strategy: dict[str, list[ReplayedRun]]) -> RunGroup:
    strategies = list(by_strategy)
    one = by_strategy[strategies[0]][0]
    measured = np.array([np.median([row.measured_step_s for row in by_strategy[name]]) for name in strategies])
    predicted = np.array([by_strategy[name][0].predicted_step_s for name in strategies])
    fastest, best = int(predicted.argmin()), int(measured.argmin())
    tried = _in_order([by_strategy[name][0] for name in strategies])[:TRIED]
    picked = tried[0]
    return RunGroup(
        source=one.source,
        model=one.model,
        gpu=one.gpu,
        gpus=one.gpus,
        batch=one.batch,
        seq=one.seq,
        precision=one.precision,
        strategies=len(strategies),
        picked=strategies[picked],
        best=strategies[best],
        quality=float(measured[best] / measured[picked]),
        regret=float(measured[picked] / measured[best] - 1),
        rank_correlation=rank_correlation(predicted, measured),
        use=one.use,
        quality_any=float(measured[best] / measured[fastest]),
        quality_of_three=float(measured[best] / measured[tried].min()),
    )


def _in_order(runs: Sequence[ReplayedRun]) -> list[int]:
    """The places of the runs that a plan would show, best first: recommended ones, else those that fit, else all."""
    places = range(len(runs))
    shown = [n for n in places if runs[n].recommended] or [n for n in places if runs[n].fits] or list(places)
    return sorted(shown, key=lambda n: runs[n].highest_s)


def _picks(groups: Sequence[RunGroup]) -> list[Pick]:
    parts = {"all": list(groups)}
    parts |= {use: [group for group in groups if group.use == use] for use in ("fit", "test")}
    others = [group for group in groups if group.use != "simulated"]
    if 0 < len(others) < len(groups):
        parts[_without(groups)] = others
    parts[SEVERAL] = [group for group in groups if JOINED in group.gpu]
    parts |= {name: [group for group in groups if group.source == name] for name in sorted({g.source for g in groups})}
    return [_pick(name, part) for name, part in parts.items() if part]


def _pick(name: str, groups: Sequence[RunGroup]) -> Pick:
    quality, regret = np.array([g.quality for g in groups]), np.array([g.regret for g in groups])
    return Pick(
        name=name,
        groups=len(groups),
        quality=float(quality.mean()),
        worst_quality=float(quality.min()),
        regret=float(regret.mean()),
        worst_regret=float(regret.max()),
        rank_correlation=float(np.mean([g.rank_correlation for g in groups])),
        quality_any=float(np.mean([g.quality_any for g in groups])),
        quality_of_three=float(np.mean([g.quality_of_three for g in groups])),
    )
