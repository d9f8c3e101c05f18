"""The evidence of a plan in one line."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Final

import numpy as np

from astra.evidence.kinds import MOST_EXPERTS, STRUCTURE, WORDS, Kind, runs
from astra.provenance import Bools

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
