"""Published runs as evidence: the kind of each, and how far its prediction was off.

``data/runs.csv`` is written by ``python -m tools.evidence`` from the runs of ``astra validate``. Where other sources
have run the framework too, its constants were found anew without the run's source. Where none has, the constants stay,
and only runs that they were not fitted on set bars.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
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
    source_of: Ints  # a number for the source of every run

    def coded(self, kinds: Sequence[Kind]) -> tuple[Ints, Floats]:
        """Words of kinds in the same codes, and their GPUs; a value that no run has is -1."""
        words = [
            [values.index(word) if (word := getattr(kind, name)) in values else -1
             for name, values in zip(WORDS, self.known, strict=True)]
            for kind in kinds
        ]  # fmt: skip
        return np.array(words, np.int64).reshape(-1, len(WORDS)), np.array([kind.gpus for kind in kinds])

    def kind(self, run: int) -> Kind:
        """The kind of a run."""
        words = [values[code] for values, code in zip(self.known, self.words[run].tolist(), strict=True)]
        return Kind(*words, *self.numbers[run].tolist())


@cache
def runs() -> Runs:
    """Every run that comes with Astra."""
    text = (Path(__file__).parent / "data" / FILE).read_text(encoding="utf-8")
    names, *rows = csv.reader(io.StringIO(text))
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    known = tuple(tuple(sorted({*columns[name]})) for name in WORDS)
    kinds = [*zip(*(columns[name] for name in Kind._fields), strict=True)]
    first = {kind: place for place, kind in reversed([*enumerate(kinds)])}
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds))}
    return Runs(
        columns["source"],
        columns["shape"],
        np.array([float(error or 0.0) for error in columns["log_error"]]),
        np.array([bool(error) for error in columns["log_error"]]),
        np.array(columns["unseen_log_error"], float),
        np.stack([_codes(columns[name], values) for name, values in zip(WORDS, known, strict=True)], axis=1),
        np.array([columns[name] for name in NUMBERS], float).T,
        known,
        np.array([first[kind] for kind in places], np.int64),
        np.array([places[kind] for kind in kinds], np.int64),
        _codes(columns["source"], tuple(sorted({*columns["source"]}))),
    )


def _codes(column: Sequence[str], values: tuple[str, ...]) -> Ints:
    """The place of each entry of a column among its values."""
    place = {value: place for place, value in enumerate(values)}
    return np.array([place[value] for value in column], np.int64)


def shape_of(model: ModelSpec) -> str:
    """What makes two models the same one for a run, whatever they are called."""
    experts = f"x{model.moe.experts}e" if model.moe else ""
    return f"{model.layers}x{model.hidden}x{model.heads}{experts}"
