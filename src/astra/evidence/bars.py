"""How far a predicted step may be off, by the runs that resemble it.

A run of another kind counts for less, by ``exp`` of minus the penalties of what differs. A source's runs share their
weight, as they share their errors. Beside them stands what is believed before anything is seen: errors as wide as those
of kinds nobody has published. The bar is the weighted quantile of all of them (conformal prediction under covariate
shift, Tibshirani et al. 2019, with the belief in the place of the point at infinity), so that a kind with much evidence
has the bar of its runs, and one without has a wide bar.

The penalties, the shares and the belief were chosen so that bars made without a source hold four in five of its runs,
class by class (``python -m tools.evidence`` prints the coverage), and so that what nobody has published is wide.

How many times its predicted time a strategy may take: what plans are ranked by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from statistics import NormalDist
from typing import Final

import numpy as np

from astra.columns import Column, code, unique
from astra.evidence.kinds import KEYS, NUMBERS, SHARED, STRUCTURE, TOKENS, WORDS, Kind, keys_of, kind_at, runs
from astra.provenance import Floats, Ints
from astra.spec.job import Job

COVERED: Final = 0.8  # share of the steps that a bar holds
PENALTY: Final = {
    "framework": 4.0, "model": 1.0, "zero": 5.0, "pipeline": 0.7, "context": 0.8, "experts": 2.5, "reach": 1.0,
    "dispatch": 0.1, "exchange": 1.5, "precision": 0.4, "generation": 1.0, "network": 1.0, "task": 1.0, "offload": 5.0,
    "gpus": 0.05, "tokens": 0.05,  # for each doubling
}  # fmt: skip
NEVER: Final = 4.0  # besides, of a word that no published run has;
APART: Final = 1.5  # instead, of one that strategies share: so many times longer or shorter, beside all else
CROWD: Final = 0.5  # a source of n runs weighs n ** (1 - this)
BELIEVED: Final = 0.15  # the weight of what is believed before anything is seen:
ALONE: Final = 3.0  # times that, of a kind no other source has published
WIDE: Final = 1.65  # four in five steps are within so many times the prediction, and log errors are normal
_MOST_TOKENS: Final = 24  # log2, of a micro-batch on one rank
_AT_ONCE: Final = 32  # bars whose sums fit a processor's cache
_BELIEF: Final = tuple(
    math.log(WIDE) * NormalDist().inv_cdf(0.5 + 0.5 * share) / NormalDist().inv_cdf(0.5 + 0.5 * COVERED)
    for share in np.arange(0.5, 24) / 24
)


@cache
def bar_of(kind: Kind, without: str = "") -> float:
    """The logarithm of how many times longer or shorter four in five such steps are at most; ``without`` a source."""
    return float(log_bars([kind], without)[0])


def log_bars(kinds: Sequence[Kind], without: str = "") -> Floats:
    """The bars of several kinds."""
    tokens = np.array([kind.tokens for kind in kinds])
    return _widest(kinds, lambda some, at: _quantiles(_alike(some, without) * _as_long(tokens[at]), without))


def log_bars_by_tokens(kinds: Sequence[Kind], tokens: Ints) -> Floats:
    """[kind, tokens]: the bars of kinds whose micro-batches have other tokens."""
    as_long = _as_long(tokens)
    return _widest(kinds, lambda some, _: _quantiles(_alike(some)[:, None, :] * as_long))


def _widest(kinds: Sequence[Kind], bars: Callable[[list[Kind], Ints], Floats]) -> Floats:
    """Bars of kinds, or of the same with the context whole and exchanges shown: what they add makes nothing surer."""
    plain = [_plain(kind) for kind in kinds]
    places = {kind: place for place, kind in enumerate(dict.fromkeys((*kinds, *plain)))}
    own = {kind: place % len(kinds) for place, kind in reversed([*enumerate((*kinds, *plain))])}
    found = bars([*places], np.array([own[kind] for kind in places], np.int64))
    widest = np.maximum(*(found[[places[kind] for kind in some]] for some in (kinds, plain)))
    return np.asarray(np.hypot(widest.T, _apart(kinds)).T)


def _apart(kinds: Sequence[Kind]) -> Floats:
    """[kind] what is doubted besides, for words that runs have been published without."""
    return np.sqrt([len(runs().elsewhere(kind)) for kind in kinds]) * math.log(APART)


def _plain(kind: Kind) -> Kind:
    """A kind without what is done on top of the rest."""
    return kind._replace(context="whole", exchange="shown" if kind.exchange == "hidden" else kind.exchange)


def _quantiles(near: Floats, without: str = "") -> Floats:
    """[...] the bars of what is as near as [..., kind of run] to the runs, but for those of a source."""
    sizes, of, shares = _errors(without)
    rows = near.reshape(-1, near.shape[-1])
    found = np.zeros(len(rows), np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        reached = np.take(rows[start : start + _AT_ONCE], of, axis=1, mode="clip")  # quicker than with a check
        reached *= shares
        np.cumsum(reached, axis=1, out=reached)
        ends = COVERED * reached[:, -1]
        found[start : start + _AT_ONCE] = [row.searchsorted(end) for row, end in zip(reached, ends, strict=True)]
    return np.asarray(sizes[found].reshape(near.shape[:-1]))


@cache
def _errors(without: str) -> tuple[Floats, Ints, Floats]:
    """The sizes of all errors but those of a source, ascending; the kind of run of each, and its share."""
    known = runs()
    counted = known.sets_bars & (np.array(known.source) != without)
    weight = counted / np.maximum(np.bincount(known.source_of, known.sets_bars)[known.source_of], 1) ** CROWD
    sizes = np.concatenate([np.abs(known.log_error[counted]), _BELIEF])
    order = np.argsort(sizes, kind="stable")
    of = np.concatenate([known.of[counted], np.full(len(_BELIEF), len(known.first))])[order]
    shares = np.concatenate([weight[counted], np.full(len(_BELIEF), BELIEVED / len(_BELIEF))])[order]
    return sizes[order], of, shares


def _alike(kinds: Sequence[Kind], without: str = "") -> Floats:
    """[kind, kind of run]: how much a run counts by all but the tokens of a micro-batch.

    What is believed is one more kind of run, the last. It is near to all, and nearer to what nobody has published.
    """
    known = runs()
    words, gpus = known.coded(kinds)
    far = PENALTY["gpus"] * np.abs(gpus[:, None] - known.numbers[known.first, NUMBERS.index("gpus")])
    for place, name in enumerate(WORDS):
        far += PENALTY[name] * (words[:, None, place] != known.words[known.first, place])
        if name not in SHARED:
            far += NEVER * (words[:, None, place] < 0)
    others = np.zeros(len(known.first), bool)
    others[known.of[np.array(known.source) != without]] = True
    structure = [WORDS.index(name) for name in STRUCTURE]
    same = (words[:, None, structure] == known.words[known.first][:, structure]).all(axis=-1) & others
    believed = np.where(same.any(axis=-1, keepdims=True), 1.0, ALONE)
    return np.concatenate([np.exp(-far), believed], axis=-1)


def _as_long(tokens: Ints | Floats) -> Floats:
    """[tokens, kind of run]: how much a run counts by the tokens of a micro-batch."""
    known = runs()
    far = np.abs(tokens[:, None] - known.numbers[known.first, NUMBERS.index("tokens")])
    return np.concatenate([np.exp(-PENALTY["tokens"] * far), np.ones((len(far), 1))], axis=-1)


@cache
def least_factor(kind: Kind) -> float:
    """The least that any strategy is doubted whose job is of a kind, whatever the kind says of strategies.

    One that splits the context or hides exchanges is never doubted less than one that does not.
    """
    known = dict(zip(WORDS, runs().known, strict=True))
    names = ("zero", "pipeline", "offload")
    words = [*product(*({getattr(kind, name), *known[name]} for name in names))]
    kinds = [kind._replace(context="whole", **dict(zip(names, some, strict=True))) for some in words]
    if kind.model != "dense":
        split = product(("split",), ("inside", "beyond"), ("each", "once"), ("shown",))
        ways = (("whole", "none", "none", "none"), *split)
        kinds = [
            each._replace(experts=experts, reach=reach, dispatch=dispatch, exchange=exchange)
            for each in kinds
            for experts, reach, dispatch, exchange in ways
        ]
    return float(np.exp(log_bars_by_tokens(kinds, np.arange(_MOST_TOKENS)).min()))


@lru_cache(maxsize=64)
def _factors(kind: Kind) -> Floats:
    """What is known so far of the strategies of jobs that are of one kind but for their strategies."""
    del kind
    return np.full(KEYS, np.nan)


class Doubt:
    """The upper end of a step's interval over the step itself, for strategies of one job; 1 or more."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._factors = _factors(kind_at(job, 0))

    def of(self, columns: Mapping[str, Column]) -> Floats:
        """The factor of each row of a table; its dispatcher is the job's."""
        keys = keys_of(self._job, {name: column for name, column in columns.items() if name != "dispatch"})
        new = unique(keys[np.isnan(self._factors[keys])])
        if len(new):
            first, kind = np.unique(new // TOKENS, return_inverse=True)
            tokens, length = np.unique(new % TOKENS, return_inverse=True)
            bars = log_bars_by_tokens([kind_at(self._job, key) for key in (first * TOKENS).tolist()], tokens)
            self._factors[new] = np.exp(bars[kind, length])
        return np.asarray(self._factors[keys])

    def of_each(self, columns: Mapping[str, Column], zero: Ints, offload: Ints) -> Floats:
        """[row, sharding]: the same with each ZeRO stage and offload."""
        rows = {name: column[:, None] for name, column in columns.items()}
        factors = self.of(rows | {"zero": zero[None, :], "offload": offload[None, :]})
        return np.broadcast_to(factors, (len(columns["tp"]), len(zero)))

    def least(self, columns: Mapping[str, Column], zero: Ints, offload: Ints) -> Floats:
        """The least factor of each row with any schedule, ZeRO stage and offload; hidden exchanges are doubted more."""
        found = np.full(len(columns["tp"]), np.inf)
        shown = {"overlap_ep": np.zeros(1, bool)}
        for word in self._job.runtime.can.schedules:
            schedule = {"schedule": np.array([code("schedule", word)])}
            found = np.minimum(found, self.of_each({**columns, **schedule, **shown}, zero, offload).min(axis=1))
        return found

    def above(self, least: float) -> Doubt:
        """The same for those who look at nothing that is doubted less."""
        return _Above(self, least)


class _Above(Doubt):
    """1 for strategies that are doubted at least so much, infinite for all others."""

    def __init__(self, doubt: Doubt, least: float) -> None:
        self._job = doubt._job
        self._all, self._least = doubt, least

    def of(self, columns: Mapping[str, Column]) -> Floats:
        """The factor of each row of a table."""
        return np.where(self._all.of(columns) >= self._least, 1.0, np.inf)
