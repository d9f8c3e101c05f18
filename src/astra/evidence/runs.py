"""Published runs as evidence: the kind of each, and how far its prediction was off.

``data/runs.csv`` is written by ``python -m tools.evidence`` from the runs of ``astra validate``. Where other sources
have run the framework too, its constants were found anew without the run's source. Where none has, the constants stay,
and only runs that they were not fitted on set bars.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import numpy as np

from astra.evidence.kinds import NUMBERS, WORDS, Kind
from astra.provenance import Bools, Floats, Ints
from astra.spec.model import ModelSpec

FILE: Final = "runs.csv"
COLUMNS: Final = ("source", "shape", "log_error", "unseen_log_error", *Kind._fields)


class Runs(NamedTuple):
    """The runs as columns."""

    source: tuple[str, ...]
    shape: tuple[str, ...]
    log_error: Floats  # logarithm of measured over predicted, as a user of the framework meets it
    sets_bars: Bools  # whether that was predicted by constants that never saw the run
    unseen_log_error: Floats  # the same, predicted as a framework that only other sources have run
    words: Ints  # [run, word], by its place in ``known``
    numbers: Floats  # [run, number]
    known: tuple[tuple[str, ...], ...]  # the values of each word
    first: Ints  # a run of each kind,
    of: Ints  # and the place of every run's kind among them

    def coded(self, kinds: list[Kind]) -> tuple[Ints, Floats]:
        """Kinds in the same codes; a value that no run has is -1."""
        words = [
            [values.index(word) if (word := getattr(kind, name)) in values else -1
             for name, values in zip(WORDS, self.known, strict=True)]
            for kind in kinds
        ]  # fmt: skip
        numbers = [[getattr(kind, name) for name in NUMBERS] for kind in kinds]
        return np.array(words, np.int64).reshape(-1, len(WORDS)), np.array(numbers, float).reshape(-1, len(NUMBERS))

    def kind(self, run: int) -> Kind:
        """The kind of a run."""
        words = [values[code] for values, code in zip(self.known, self.words[run].tolist(), strict=True)]
        return Kind(*words, *self.numbers[run].tolist())


@cache
def runs() -> Runs:
    """Every run that comes with Astra."""
    text = (files("astra.evidence") / "data" / FILE).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    known = tuple(tuple(sorted({row[name] for row in rows})) for name in WORDS)
    words = [[values.index(row[name]) for name, values in zip(WORDS, known, strict=True)] for row in rows]
    kinds = [tuple(row[name] for name in Kind._fields) for row in rows]
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    return Runs(
        tuple(row["source"] for row in rows),
        tuple(row["shape"] for row in rows),
        np.array([float(row["log_error"] or 0.0) for row in rows]),
        np.array([bool(row["log_error"]) for row in rows]),
        np.array([float(row["unseen_log_error"]) for row in rows]),
        np.array(words, np.int64),
        np.array([[float(row[name]) for name in NUMBERS] for row in rows]),
        known,
        np.array([kinds.index(kind) for kind in places], np.int64),
        np.array([places[kind] for kind in kinds], np.int64),
    )


def shape_of(model: ModelSpec) -> str:
    """What makes two models the same one for a run, whatever they are called."""
    experts = f"x{model.moe.experts}e" if model.moe else ""
    return f"{model.layers}x{model.hidden}x{model.heads}{experts}"
