"""What kind of run a strategy is, by what decides how far a prediction may be off; and published runs of each kind.

``data/runs.csv`` is written by ``python -m tools.evidence`` from the runs of ``astra validate``. Where other sources
have run the framework too, its constants were found anew without the run's source. Where none has, the constants stay,
and only runs that they were not fitted on set bars; such runs stand there once more, predicted as those of a framework
that nobody has published are: with what suits all other sources.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column, code, from_strategy
from astra.provenance import Bools, Floats, Ints
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import CHOICES

MOST_EXPERTS: Final = 40  # on a rank, of published runs that split them
OTHER: Final = "other"  # a framework that nobody has published, for which another one stands in
MIXED: Final = "pools"  # the network of a job over several pools
_DISPATCHES: Final = {"alltoall": "each", "deepep": "once", "hybridep": "once"}
_FAST: Final = ("infiniband", "roce", "efa", "rack")


class Kind(NamedTuple):
    """One kind of run: words that are the same or not, then numbers that are near or far."""

    framework: str
    model: str  # dense or moe
    zero: str  # what is sharded: states, gradients or weights
    pipeline: str  # none, or the schedule
    context: str  # whole or split
    experts: str  # none, whole, split, or many: split with more on a rank than any published run
    reach: str  # of what is sent to experts: none, inside the fastest links, or beyond them
    dispatch: str  # of tokens to experts: a copy for each, or one for each rank or node
    exchange: str  # of tokens with other ranks' experts: none, shown, or hidden behind another micro-batch
    precision: str  # 16, 8, 4 or 32 bits
    generation: str  # of the GPU
    network: str  # node, fast, slow or pools
    task: str  # full or lora
    offload: str
    gpus: float  # log2, of a plan to whole doublings
    tokens: float  # of a micro-batch on one rank, log2


WORDS: Final = Kind._fields[:14]
NUMBERS: Final = Kind._fields[14:]
_sort = itemgetter(WORDS.index("model"), WORDS.index("zero"))
# Runs that agree in these are of one kind; GPUs, precision, network and scale only make them nearer or farther.
STRUCTURE: Final = (
    "framework", "model", "zero", "pipeline", "context", "experts", "reach", "exchange", "task", "offload",
)  # fmt: skip
SHARED: Final = ("precision", "generation", "network", "task")
# What differs between strategies of a job, and how many values it has; the tokens last.
TOKENS: Final = 64
_DIGITS: Final = {
    "zero": 4, "pipeline": 8, "context": 2, "experts": 3, "reach": 2, "dispatch": 4, "exchange": 2, "offload": 2,
    "tokens": TOKENS,
}  # fmt: skip
KEYS: Final = math.prod(_DIGITS.values())


def kind_of(job: Job, strategy: Strategy) -> Kind:
    """The kind of a strategy of a job."""
    return kind_at(job, int(keys_of(job, from_strategy(strategy))[0]))


def keys_of(job: Job, columns: Mapping[str, Column]) -> Ints:
    """A number for the kind of each row of a table; columns may have any shapes that go together.

    A table of a search leaves the dispatcher to the job.
    """
    replicas = columns["dp"] * columns["cp"] > 1
    tokens = columns["mbs"] * (job.workload.seq // columns["cp"])
    digits = {
        "zero": np.where(replicas, np.maximum(columns["zero"], 1), 1),
        "pipeline": np.where(columns["pp"] > 1, columns["schedule"].astype(np.int64) + 1, 0),
        "context": columns["cp"] > 1,
        "experts": _split(job, columns["ep"]),
        "reach": reaches_out(job, columns["ep"], columns["etp"]),
        "dispatch": columns.get("dispatch", code("dispatch", job.words.dispatch)) * (columns["ep"] > 1),
        "exchange": columns["overlap_ep"] & (columns["ep"] > 1),
        "offload": columns["offload"],
        "tokens": np.round(np.log2(np.maximum(tokens, 1))),
    }
    key: Ints = np.zeros(1, np.int64)
    for name, size in _DIGITS.items():
        key = key * size + np.asarray(digits[name]).astype(np.int64)
    return key


def asked_of_degrees(job: Job, degrees: Mapping[str, Column]) -> tuple[Column, ...]:
    """All that kinds ask of degrees."""
    reach = reaches_out(job, degrees["ep"], degrees["etp"])
    return degrees["dp"] > 1, degrees["pp"] > 1, degrees["cp"], _split(job, degrees["ep"]), reach


def kind_at(job: Job, key: int) -> Kind:
    """The kind of a number."""
    digits = {}
    for name, size in reversed(_DIGITS.items()):
        key, digits[name] = divmod(key, size)
    return _named(job, digits)


def _named(job: Job, codes: Mapping[str, int]) -> Kind:
    """A kind with its words."""
    return Kind(
        framework=job.runtime.standing_for or job.runtime.framework,
        model="dense" if job.model.moe is None else "moe",
        zero=("states", "states", "gradients", "weights")[codes["zero"]],
        pipeline=("none", *CHOICES["schedule"])[codes["pipeline"]],
        context=("whole", "split")[codes["context"]],
        experts="none" if job.model.moe is None else ("whole", "split", "many")[codes["experts"]],
        reach=("inside", "beyond")[codes["reach"]] if codes["experts"] else "none",
        dispatch=_DISPATCHES[CHOICES["dispatch"][codes["dispatch"]]] if codes["experts"] else "none",
        exchange=("shown", "hidden")[codes["exchange"]] if codes["experts"] else "none",
        precision=bits_of(job.workload.precision),
        generation=job.pool.device.arch.split()[0].lower(),  # of its own, whosever kernels it runs
        network=network_of(job),
        task="lora" if job.workload.task == "lora" else "full",
        offload=CHOICES["offload"][codes["offload"]],
        gpus=doublings(job.pool.gpus),
        tokens=float(codes["tokens"]),
    )


def reaches_out(job: Job, ep: Ints, etp: Ints) -> Bools:
    """Whether experts are spread beyond the fastest links."""
    return np.asarray((ep > 1) & (ep * etp > job.pool.scaleup_gpus))


def _split(job: Job, ep: Ints) -> Ints:
    """How experts lie on ranks: 0 all on each, 1 split, 2 split with many on each."""
    experts = 0 if job.model.moe is None else job.model.moe.experts
    return np.where(ep > 1, 1 + (experts > MOST_EXPERTS * ep), 0)


def doublings(gpus: int) -> float:
    """How many times one GPU was doubled, nearly: bars of like numbers are the same."""
    return float(round(math.log2(gpus)))


def bits_of(precision: str) -> str:
    """Bits of the operands of matrix products."""
    return "32" if precision == "tf32" else "4" if "fp4" in precision else "8" if "fp8" in precision else "16"


def network_of(job: Job) -> str:
    """What joins the GPUs of a job: the links of one node, a network made for it, or Ethernet."""
    if job.pool.gpus <= job.pool.scaleup_gpus:
        return "node"
    return "fast" if job.pool.node.links[-1].kind in _FAST else "slow"


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
    known: tuple[tuple[str, ...], ...]  # the values of each word,
    seen: frozenset[tuple[str, str, str, str]]  # and which were seen together: model, zero, word, value
    first: Ints  # a run of each kind,
    of: Ints  # and the place of every run's kind among them
    source_of: Ints  # a number for the source of every run, another one for the same run under another framework

    def coded(self, kinds: Sequence[Kind]) -> tuple[Ints, Floats]:
        """Words of kinds in the same codes, and their GPUs; a value that no run has is -1."""
        places = [{word: place for place, word in enumerate(values)} for values in self.known]
        words = [[place.get(str(word), -1) for place, word in zip(places, kind, strict=False)] for kind in kinds]
        return np.array(words, np.int64).reshape(-1, len(WORDS)), np.array([kind.gpus for kind in kinds])

    def elsewhere(self, kind: Kind) -> list[str]:
        """Words that all strategies of a job share, and that no run of such a model has.

        Of precisions, no run so sharded, if any is: what is gathered is as wide as they are.
        """
        sharded, any_way = (kind.model, kind.zero, "zero", kind.zero) in self.seen, ("states", "gradients", "weights")
        zeros = {name: (kind.zero,) if sharded and name == "precision" else any_way for name in SHARED}
        return [
            name for name in SHARED
            if not any((kind.model, each, name, getattr(kind, name)) in self.seen for each in zeros[name])
        ]  # fmt: skip

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
    sources = [
        f"{source}{' ' * (name == OTHER)}" for source, name in zip(columns["source"], columns["framework"], strict=True)
    ]
    return Runs(
        columns["source"],
        columns["shape"],
        np.array([float(error or 0.0) for error in columns["log_error"]]),
        np.array([bool(error) for error in columns["log_error"]]),
        np.array(columns["unseen_log_error"], float),
        np.stack([_codes(columns[name], values) for name, values in zip(WORDS, known, strict=True)], axis=1),
        np.array([columns[name] for name in NUMBERS], float).T,
        known,
        frozenset((*_sort(kind), name, word) for kind in kinds for name, word in zip(WORDS, kind, strict=False)),
        np.array([first[kind] for kind in places], np.int64),
        np.array([places[kind] for kind in kinds], np.int64),
        _codes(sources, tuple(sorted({*sources}))),
    )


def _codes(column: Sequence[str], values: tuple[str, ...]) -> Ints:
    """The place of each entry of a column among its values."""
    place = {value: place for place, value in enumerate(values)}
    return np.array([place[value] for value in column], np.int64)


def shape_of(model: ModelSpec) -> str:
    """What makes two models the same one for a run, whatever they are called."""
    experts = f"x{model.moe.experts}e" if model.moe else ""
    return f"{model.layers}x{model.hidden}x{model.heads}{experts}"
