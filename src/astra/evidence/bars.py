"""How far a predicted step may be off, by the runs that resemble it.

A run of another kind counts for less, by ``exp`` of minus the penalties of what differs. A source's runs share their
weight, as they share their errors. Beside them stands what is believed before anything is seen: errors as wide as those
of kinds nobody has published. The bar is the weighted quantile of all of them (conformal prediction under covariate
shift, Tibshirani et al. 2019, with the belief in the place of the point at infinity), so that a kind with much evidence
has the bar of its runs, and one without has a wide bar.

The penalties, the shares and the belief were chosen so that bars made without a source hold four in five of its runs,
class by class (``python -m tools.evidence`` prints the coverage).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np

from astra.evidence.kinds import NUMBERS, WORDS, Kind
from astra.evidence.runs import Runs, runs
from astra.provenance import Floats

COVERED: Final = 0.8  # share of the steps that a bar holds
PENALTY: Final = {
    "framework": 1.5, "model": 2.0, "zero": 1.0, "pipeline": 0.7, "context": 0.7, "experts": 0.5, "dispatch": 0.3,
    "precision": 0.5, "generation": 0.7, "network": 0.5, "task": 1.0, "offload": 3.0,
    "gpus": 0.1, "tokens": 0.1,  # for each doubling
}  # fmt: skip
CROWD: Final = 0.5  # a source of n runs weighs n ** (1 - this)
BELIEF: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.9)  # sizes of log errors before anything is seen
BELIEVED: Final = 0.5  # its weight


@cache
def bar_of(kind: Kind, without: str = "") -> float:
    """The logarithm of how many times longer or shorter four in five such steps are at most; ``without`` a source."""
    return float(log_bars([kind], without)[0])


def log_bars(kinds: Sequence[Kind], without: str = "") -> Floats:
    """The bars of several kinds."""
    known = runs()
    weights = nearness(known, kinds)
    weights[:, np.array([name == without for name in known.source], bool)] = 0.0
    sizes = np.concatenate([np.abs(known.log_error), BELIEF])
    believed = np.full((len(weights), len(BELIEF)), BELIEVED / len(BELIEF))
    order = np.argsort(sizes, kind="stable")
    reached = np.cumsum(np.concatenate([weights, believed], axis=1)[:, order], axis=1)
    place = (reached < COVERED * reached[:, -1:]).sum(axis=1)
    return np.asarray(sizes[order][place])


def nearness(known: Runs, kinds: Sequence[Kind]) -> Floats:
    """[kind, run]: how much each run counts."""
    words, numbers = known.coded(list(kinds))
    far = np.zeros((len(words), len(known.source)))
    for place, name in enumerate(WORDS):
        far += PENALTY[name] * (words[:, None, place] != known.words[None, :, place])
    for place, name in enumerate(NUMBERS):
        far += PENALTY[name] * np.abs(numbers[:, None, place] - known.numbers[None, :, place])
    _, member, count = np.unique(known.source, return_inverse=True, return_counts=True)
    return np.asarray(np.exp(-far) / count[member] ** CROWD)
