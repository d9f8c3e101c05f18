"""How far a predicted step may be off, by the runs that resemble it.

A run of another kind counts for less, by ``exp`` of minus the penalties of what differs. A source's runs share their
weight, as they share their errors. Beside them stands what is believed before anything is seen: errors as wide as those
of kinds nobody has published; it counts as one more source of a framework that several tell of, which the user's own
run will be. The bar is the weighted quantile of all of them (conformal prediction under covariate shift, Tibshirani et
al. 2019, with the belief in the place of the point at infinity), so that a kind with much evidence has the bar of its
runs, and one without has a wide bar.

A framework that nobody tells of, for which another stands in, has the errors of those that were predicted so: from what
suits all others. What is believed counts as the root of so many sources there, since it is none of theirs.

The penalties, the shares and the belief were chosen so that bars made without a source hold four in five of its runs,
class by class (``python -m tools.evidence`` prints the coverage), and so that what nobody has published is wide.

How many times its predicted time a strategy may take: what plans are ranked by. And the evidence in one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import combinations, product
from operator import attrgetter
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column, code, from_strategy, unique
from astra.evidence.kinds import (
    KEYS,
    MOST_EXPERTS,
    NUMBERS,
    OTHER,
    SHARED,
    STRUCTURE,
    TOKENS,
    WORDS,
    Kind,
    keys_of,
    kind_at,
    runs,
)
from astra.layers.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints
from astra.spec.job import Job
from astra.spec.strategy import Strategy

COVERED: Final = 0.8  # share of the steps that a bar holds
PENALTY: Final = {
    "framework": 4.0, "model": 1.0, "zero": 5.0, "pipeline": 0.7, "context": 0.8, "experts": 2.5, "reach": 1.0,
    "dispatch": 0.1, "exchange": 1.5, "precision": 0.4, "generation": 1.0, "network": 1.0, "task": 1.0, "offload": 5.0,
    "gpus": 0.05, "tokens": 0.05,  # for each doubling
}  # fmt: skip
NEVER: Final = 4.0  # besides, of a word that no published run has;
APART: Final = 1.5  # instead, of one that strategies share: so many times longer or shorter, beside all else
CROWD: Final = 0.5  # a source of n runs weighs n ** (1 - this)
BELIEVED: Final = 0.15  # the least weight of what is believed before anything is seen;
ALONE: Final = 3.0  # times that at least, of a kind of which other sources have not published
ENOUGH: Final = 4  # runs: the largest of fewer errors does not say what four in five stay below
UNEQUAL: Final = 0.005  # of a step, besides, of chunks with unequal layers: no run tells how much these are worth
WIDE: Final = 1.65  # four in five steps are within so many times the prediction, and log errors are normal
_STEPS: Final = 96  # in which what is believed is told
_MOST_TOKENS: Final = 24  # log2, of a micro-batch on one rank
_BLOCK: Final = 32  # errors
_ONE_THREAD: Final = 2**18  # multiplications that OpenBLAS does in one thread
_STRUCTURE: Final = [WORDS.index(name) for name in STRUCTURE]
_shared = attrgetter(*SHARED)
_BELIEF: Final = tuple(
    math.log(WIDE) * NormalDist().inv_cdf(0.5 + 0.5 * share) / NormalDist().inv_cdf(0.5 + 0.5 * COVERED)
    for share in np.arange(0.5, _STEPS) / _STEPS
)


@cache
def bar_of(kind: Kind, without: str = "") -> float:
    """The logarithm of how many times longer or shorter four in five such steps are at most; ``without`` a source."""
    return float(log_bars([kind], without)[0])


def log_bars(kinds: Sequence[Kind], without: str = "") -> Floats:
    """The bars of several kinds."""
    kinds = [kind._replace(framework=OTHER) if stands_in(kind.framework, without) else kind for kind in kinds]
    tokens = np.array([[kind.tokens] for kind in kinds])
    return _widest(kinds, lambda some, at: _quantiles(_likeness(some, without), _as_long(tokens[at]), without)[:, 0])


def log_bars_by_tokens(kinds: Sequence[Kind], tokens: Ints) -> Floats:
    """[kind, tokens]: the bars of kinds whose micro-batches have other tokens."""
    kinds = [kind._replace(framework=OTHER) if stands_in(kind.framework) else kind for kind in kinds]
    as_long = _as_long(tokens)
    return _widest(kinds, lambda some, _: _quantiles(_likeness(some), as_long))


def stands_in(framework: str, without: str = "") -> bool:
    """Whether no source tells of a framework, but for one that is left out."""
    known = runs().known[WORDS.index("framework")]
    return framework not in known or not _tellers(without)[0][known.index(framework)]


def _widest(kinds: Sequence[Kind], bars: Callable[[list[Kind], Ints], Floats]) -> Floats:
    """The widest of kinds and of the same with the context whole or exchanges shown: what they add makes none surer."""
    shown = [kind._replace(exchange="shown") if kind.exchange == "hidden" else kind for kind in kinds]
    ways = [kinds, shown, *([kind._replace(context="whole") for kind in some] for some in (kinds, shown))]
    every = [kind for some in ways for kind in some]
    places = {kind: place for place, kind in enumerate(dict.fromkeys(every))}
    own = {kind: place % len(kinds) for place, kind in reversed([*enumerate(every)])}
    found = bars([*places], np.array([own[kind] for kind in places], np.int64))
    widest = np.max([found[[places[kind] for kind in some]] for some in ways], axis=0)
    return np.asarray(np.hypot(widest.T, _apart(kinds)).T)


def _apart(kinds: Sequence[Kind]) -> Floats:
    """[kind] what is doubted besides, for words that runs have been published without."""
    seen = {(kind.model, kind.zero, *_shared(kind)): kind for kind in kinds}
    many = {settings: len(runs().elsewhere(kind)) for settings, kind in seen.items()}
    return np.sqrt([many[(kind.model, kind.zero, *_shared(kind))] for kind in kinds]) * math.log(APART)


def _quantiles(near: Floats, as_long: Floats, without: str = "") -> Floats:
    """[kind, tokens] the bars of what is as near as [kind, kind of run] and [.., tokens, length] to the runs.

    Products of matrices say which block of errors holds a quantile: it alone is added up.
    """
    errors = _errors(without)
    before = as_long @ np.stack([_product(near[:, some], shares) for some, shares in errors.before], axis=1)
    ends = COVERED * before[..., -1:]
    block = (before[..., 1:-1] < ends).sum(axis=-1)
    of = errors.of[block]
    kind, tokens = np.ogrid[: of.shape[0], : of.shape[1]]
    own_long = np.broadcast_to(as_long, (*of.shape[:2], as_long.shape[-1]))
    reached = near[kind[..., None], of] * own_long[kind[..., None], tokens[..., None], errors.length[of]]
    reached = np.cumsum(reached * errors.shares[block], axis=-1) + before[kind, tokens, block][..., None]
    place = (reached[..., :-1] < ends).sum(axis=-1)
    return np.asarray(errors.sizes[block, place])


class _ErrorBlocks(NamedTuple):
    """Sizes of errors, ascending, in blocks; the last block is filled up with the largest, which has no share more."""

    sizes: Floats  # [block, place]
    of: Ints  # likewise, the kind of run of each,
    shares: Floats  # and its share
    length: Ints  # [kind of run] among the lengths of micro-batches
    before: tuple[tuple[Ints, Floats], ...]  # kinds of each length, and [kind, block] the shares before each, and all


@cache
def _errors(without: str) -> _ErrorBlocks:
    """All errors but those of a source."""
    known = runs()
    counted = known.sets_bars & (np.array(known.source) != without)
    weight = counted / np.maximum(np.bincount(known.source_of, known.sets_bars)[known.source_of], 1) ** CROWD
    sizes = np.concatenate([np.abs(known.log_error[counted]), _BELIEF])
    order = np.argsort(sizes, kind="stable")
    order = np.concatenate([order, np.repeat(order[-1:], -len(order) % _BLOCK)])
    of = np.concatenate([known.of[counted], np.full(len(_BELIEF), len(known.first))])[order]
    shares = np.concatenate([weight[counted], np.full(len(_BELIEF), BELIEVED / len(_BELIEF))])[order]
    shares[len(sizes) :] = 0.0
    length = np.append(
        np.searchsorted(_lengths(), known.numbers[known.first, NUMBERS.index("tokens")]), len(_lengths())
    )
    in_block = np.zeros((len(length), len(order) // _BLOCK + 1))
    np.add.at(in_block, (of, np.arange(len(order)) // _BLOCK + 1), shares)
    of_length = [np.flatnonzero(length == each) for each in range(len(_lengths()) + 1)]
    before = tuple((some, in_block.cumsum(axis=1)[some]) for some in of_length)
    sizes, of, shares = (column.reshape(-1, _BLOCK) for column in (sizes[order], of, shares))
    return _ErrorBlocks(sizes, of, shares, length, before)


@cache
def _lengths() -> Floats:
    """How many tokens micro-batches of published runs have, ascending."""
    return unique(runs().numbers[:, NUMBERS.index("tokens")])


def _likeness(kinds: Sequence[Kind], without: str = "") -> Floats:
    """[kind, kind of run]: how much a run counts by all but the tokens of a micro-batch.

    What is believed is one more kind of run, the last: near to all, nearer to what few have published, and no less
    than the mean source of a framework.
    """
    known = runs()
    words, gpus = known.coded(kinds)
    chosen = np.zeros((len(kinds), len(_far_by_word())))
    ends = np.cumsum([0, *(len(values) + 1 for values in known.known)])
    np.put_along_axis(chosen, np.where(words < 0, ends[1:] - 1, ends[:-1] + words), 1.0, axis=1)
    far = _product(chosen, _far_by_word())
    far += PENALTY["gpus"] * np.abs(gpus[:, None] - known.numbers[known.first, NUMBERS.index("gpus")])
    published, near = _published(without), np.exp(-far)
    same = np.array([tuple(word) in published for word in words[:, _STRUCTURE].tolist()], bool)
    tell, shares = _tellers(without)
    frameworks = words[:, WORDS.index("framework")]
    other = [place for place, name in enumerate(known.known[WORDS.index("framework")]) if name == OTHER]
    sources = np.where(np.isin(frameworks, other), np.sqrt(tell[frameworks]), tell[frameworks])
    another = np.where(sources > 0, near @ shares / np.maximum(sources, 1), 0.0) / BELIEVED
    return np.concatenate([near, np.maximum(np.where(same, 1.0, ALONE), another)[:, None]], axis=-1)


@cache
def _tellers(without: str) -> tuple[Ints, Floats]:
    """How many sources tell of each framework, none of an unknown one; and the shares of each kind of run."""
    known, errors = runs(), _errors(without)
    counted = known.sets_bars & (np.array(known.source) != without)
    place = WORDS.index("framework")
    pairs = {*zip(known.words[counted, place].tolist(), known.source_of[counted].tolist(), strict=True)}
    many = np.bincount([framework for framework, _ in pairs], minlength=len(known.known[place]) + 1)
    shares = np.bincount(errors.of.ravel(), errors.shares.ravel(), minlength=len(known.first) + 1)
    return np.asarray(many, np.int64), np.asarray(shares[:-1], np.float64)


@cache
def _published(without: str) -> frozenset[tuple[int, ...]]:
    """The words that make a kind of its own, of kinds with enough runs but those of a source."""
    known = runs()
    others = known.of[np.array(known.source) != without]
    kinds, many = np.unique(known.words[known.first[others]][:, _STRUCTURE], axis=0, return_counts=True)
    return frozenset(map(tuple, kinds[many >= ENOUGH].tolist()))


@cache
def _far_by_word() -> Floats:
    """[value of a word, kind of run]: how far a run is by it; after the values of each word what no run has."""
    known = runs()
    rows = []
    for place, name in enumerate(WORDS):
        codes = np.append(np.arange(len(known.known[place])), -1)
        rows.append(PENALTY[name] * (codes[:, None] != known.words[known.first, place]))
        if name not in SHARED:
            rows[-1][-1] += NEVER
    return np.concatenate(rows)


def _product(rows: Floats, table: Floats) -> Floats:
    """Rows times a table, a few at a time: for more, NumPy's library starts threads that cost more than they do."""
    few = max(min(_ONE_THREAD // table.size, len(rows)), 1)
    padded = np.concatenate([rows, np.zeros((-len(rows) % few, rows.shape[1]))])
    return (padded.reshape(-1, few, rows.shape[1]) @ table).reshape(len(padded), -1)[: len(rows)]


def _as_long(tokens: Ints | Floats) -> Floats:
    """[.., tokens, length]: how much a run counts by a micro-batch's tokens; one more length is what is believed."""
    near = np.exp(-PENALTY["tokens"] * np.abs(tokens[..., None] - _lengths()))
    return np.concatenate([near, np.ones((*near.shape[:-1], 1))], axis=-1)


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
        split = product(("split", "many"), ("inside", "beyond"), ("each", "once"), ("shown",))
        ways = (("whole", "none", "none", "none"), *split)
        kinds = [
            each._replace(experts=experts, reach=reach, dispatch=dispatch, exchange=exchange)
            for each in kinds
            for experts, reach, dispatch, exchange in ways
        ]
    return float(np.exp(log_bars_by_tokens(kinds, np.arange(_MOST_TOKENS)).min()))


@lru_cache(maxsize=64)
def _factors(kind: Kind) -> Floats:
    """What is known so far of the strategies of jobs that are of one kind but for their strategies; 0 what is not."""
    del kind
    return np.zeros(KEYS)


class Doubt:
    """The upper end of a step's interval over the step itself, for strategies of one job; 1 or more."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._depth = len(layer_kinds(job.model))
        self._factors = _factors(kind_at(job, 0))

    def of(self, columns: Mapping[str, Column]) -> Floats:
        """The factor of each row of a table; its dispatcher is the job's."""
        keys = keys_of(self._job, {name: column for name, column in columns.items() if name != "dispatch"})
        new = unique(keys[self._factors[keys] == 0])
        if len(new):
            first, kind = np.unique(new // TOKENS, return_inverse=True)
            tokens, length = np.unique(new % TOKENS, return_inverse=True)
            bars = log_bars_by_tokens([kind_at(self._job, key) for key in (first * TOKENS).tolist()], tokens)
            self._factors[new] = np.exp(bars[kind, length])
        if "vp" not in columns:  # any number of chunks
            return np.asarray(self._factors[keys])
        unequal = columns.get("unequal", self._depth % (columns["pp"] * columns["vp"]) > 0)  # layers, if they are known
        return np.asarray(self._factors[keys] * (1 + UNEQUAL * unequal))

    def of_strategy(self, strategy: Strategy) -> float:
        """The factor of one strategy, which says its layers where they are not equal."""
        unequal = np.array([len(set(strategy.layers)) > 1])
        return float(self.of({**from_strategy(strategy), "unequal": unequal})[0])

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


# What a strategy does beyond the plain, in words; a plain value has none.
_PHRASES: Final = {
    ("zero", "gradients"): "zero2",
    ("zero", "weights"): "zero3",
    ("pipeline", "1f1b"): "a 1F1B pipeline",
    ("pipeline", "interleaved"): "an interleaved pipeline",
    ("pipeline", "gpipe"): "a GPipe pipeline",
    ("pipeline", "zb"): "a zero-bubble pipeline",
    ("pipeline", "zbv"): "a zero-bubble pipeline in a V",
    ("context", "split"): "context parallelism",
    ("experts", "split"): "expert parallelism",
    ("reach", "beyond"): "experts beyond the fastest links",
    ("experts", "whole"): "every expert on every rank",
    ("experts", "many"): f"more than {MOST_EXPERTS} experts on a rank",
    ("exchange", "hidden"): "exchanges of experts hidden behind another micro-batch",
    ("task", "lora"): "LoRA",
    ("offload", "optimizer"): "optimizer offload",
}
# What makes runs of one kind nearer or farther, where none of such a model, so sharded, has it.
_ELSEWHERE: Final = {
    "precision": "in {} bits",
    "generation": "on GPUs of this generation",
    "network": "over such a network",
}
_MOST: Final = 3  # things that are told to be new together


def sentence(kind: Kind, shape: str) -> str:
    """How many published runs are like a plan, and what nobody has published."""
    matching, known = of_kind(kind), runs()
    count = int(matching.sum())
    same = sum(known.shape[place] == shape for place in np.flatnonzero(matching).tolist())
    new = unpublished(kind)
    if not count:
        whose = f"no published run of this kind on {kind.framework}"
        return f"{whose}; nobody has published {new}" if new else whose
    runs_of = f"{count:,} published run{'s' if count > 1 else ''} of this kind"
    unlike = [_ELSEWHERE[name].format(getattr(kind, name)) for name in known.elsewhere(kind) if name in _ELSEWHERE]
    return f"{runs_of}, {same or 'none'} of this model{', none ' if unlike else ''}{' or '.join(unlike)}"


@cache
def of_kind(kind: Kind) -> Bools:
    """Which published runs agree with a kind in their structure."""
    return _agree(kind, STRUCTURE)


@cache
def unpublished(kind: Kind) -> str:
    """The least that no published run does together, in words; empty if every part has been seen."""
    parts = [name for name in STRUCTURE if (name, getattr(kind, name)) in _PHRASES]
    for size in range(1, _MOST + 1):
        for some in combinations(parts, size):
            if not _agree(kind, some).any():
                phrases = [_PHRASES[name, getattr(kind, name)] for name in some]
                return " with ".join((phrases[0], " and ".join(phrases[1:]))) if len(phrases) > 1 else phrases[0]
    return ""


def _agree(kind: Kind, names: tuple[str, ...]) -> Bools:
    known = runs()
    code = known.coded([kind])[0][0]
    places = [WORDS.index(name) for name in names]
    return np.asarray((known.words[:, places] == code[places]).all(axis=1))
