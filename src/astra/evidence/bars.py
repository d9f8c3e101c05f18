"""How far a predicted step may be off, by the runs that resemble it.

A run of another kind counts for less, by ``exp`` of minus the penalties of what differs. A source's runs share their
weight, as they share their errors. Beside them stands what is believed before anything is seen: errors as wide as those
of kinds nobody has published. The bar is the weighted quantile of all of them (conformal prediction under covariate
shift, Tibshirani et al. 2019, with the belief in the place of the point at infinity), so that a kind with much evidence
has the bar of its runs, and one without has a wide bar.

The penalties, the shares and the belief were chosen so that bars made without a source hold four in five of its runs,
class by class (``python -m tools.evidence`` prints the coverage), and so that what nobody has published is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import Final

import numpy as np

from astra.evidence.kinds import NUMBERS, WORDS, Kind
from astra.evidence.runs import Runs, runs
from astra.provenance import Floats

COVERED: Final = 0.8  # share of the steps that a bar holds
PENALTY: Final = {
    "framework": 4.0, "model": 1.0, "zero": 5.0, "pipeline": 0.7, "context": 0.8, "experts": 2.5, "dispatch": 0.1,
    "precision": 0.4, "generation": 1.0, "network": 1.0, "task": 1.0, "offload": 5.0,
    "gpus": 0.05, "tokens": 0.05,  # for each doubling
}  # fmt: skip
NEVER: Final = 4.0  # besides, of a word that no published run has
CROWD: Final = 0.5  # a source of n runs weighs n ** (1 - this)
BELIEVED: Final = 0.15  # the weight of what is believed before anything is seen:
WIDE: Final = 1.65  # four in five steps are within so many times the prediction, and log errors are normal
_BELIEF: Final = tuple(
    math.log(WIDE) * NormalDist().inv_cdf(0.5 + 0.5 * share) / NormalDist().inv_cdf(0.5 + 0.5 * COVERED)
    for share in np.arange(0.5, 24) / 24
)


@cache
def bar_of(kind: Kind, without: str = "") -> float:
    """The logarithm of how many times longer or shorter four in five such steps are at most; ``without`` a source."""
    return float(log_bars([kind], without)[0])


def log_bars(kinds: Sequence[Kind], without: str = "") -> Floats:
    """The bars of several kinds. Splitting the context as well makes no prediction surer."""
    plain = [kind._replace(context="whole") for kind in kinds]
    return np.maximum(_log_bars(kinds, without), _log_bars(plain, without))


def _log_bars(kinds: Sequence[Kind], without: str) -> Floats:
    known = runs()
    weights = nearness(known, kinds) * known.sets_bars
    weights[:, np.array([name == without for name in known.source], bool)] = 0.0
    sizes = np.concatenate([np.abs(known.log_error), _BELIEF])
    believed = np.full((len(weights), len(_BELIEF)), BELIEVED / len(_BELIEF))
    order = np.argsort(sizes, kind="stable")
    reached = np.cumsum(np.concatenate([weights, believed], axis=1)[:, order], axis=1)
    place = (reached < COVERED * reached[:, -1:]).sum(axis=1)
    return np.asarray(sizes[order][place])


def nearness(known: Runs, kinds: Sequence[Kind]) -> Floats:
    """[kind, run]: how much each run counts."""
    words, numbers = known.coded(list(kinds))
    one_words, one_numbers = known.words[known.first], known.numbers[known.first]  # runs of one kind are as far
    far = np.zeros((len(words), len(known.first)))
    for place, name in enumerate(WORDS):
        far += PENALTY[name] * (words[:, None, place] != one_words[None, :, place])
        far += NEVER * (words[:, None, place] < 0)
    for place, name in enumerate(NUMBERS):
        far += PENALTY[name] * np.abs(numbers[:, None, place] - one_numbers[None, :, place])
    names, member = np.unique(known.source, return_inverse=True)
    count = np.bincount(member, known.sets_bars, len(names))
    return np.asarray(np.exp(-far)[:, known.of] / np.maximum(count[member], 1) ** CROWD)
