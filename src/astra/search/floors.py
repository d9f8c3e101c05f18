"""The least that a sample takes with each way to shard layers, whatever else a strategy chooses: quick floors first.

A step does the GPU-seconds of all its samples, and a micro-batch goes through all layers there and back, one after
another; weight gradients alone may wait. Layers are whole: of the kind that most are of, some rank has as many as an
even deal rounded up.

The first floor is that of the same GPU in another node, without communication. The second has the node's own; where
experts are split it is that of as few pieces as can be, as more of them send more and repeat nothing less: at most the
experts' own products can be quicker, and those no quicker than the GPU's peak. So far one row stands for all ways to
split an expert. The third has each of them. Each floor is worked out for those alone that the one before leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column, Columns, cross, distinct, unique
from astra.cost import effects, memory
from astra.cost.parts import Part
from astra.cost.stage import gather_parts, least_s, over_model
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.partition.problem import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import check
from astra.search.bounds import experts_at_peak_s, layer_bytes
from astra.search.counts import OF_THE_GPU, SHARDINGS
from astra.search.degrees import expert_degrees
from astra.search.space import divisors
from astra.spec.job import Job

CHECKED: Final = 300.0  # rows in a unit of effort
SPLIT: Final = 0  # etp of a row that stands for every way to split an expert
PAIRS, EXPERTS, SHARDS = ("tp", "cp"), ("tp", "cp", "ep", "etp"), ("tp", "cp", "ep", "etp", "sp", "mbs")


class Floor(NamedTuple):
    """Ways to shard, and what each takes at least."""

    rows: Columns
    sample_s: Floats  # GPU-seconds of a sample
    through_s: Floats  # seconds of a micro-batch through all layers
    layer_s: Floats  # GPU-seconds of a sample in one layer of the kind that most are of

    def take(self, some: Bools) -> Floor:
        """Some of them."""
        return Floor({name: column[some] for name, column in self.rows.items()}, *(each[some] for each in self[1:]))


class ShardNumbers:
    """ShardNumbers for ways to shard, by some of their columns; the same for every job of a search."""

    def __init__(self, job: Job) -> None:
        moe, work = job.model.moe, job.workload
        values: dict[str, Sequence[int]] = {
            "tp": divisors(job.model.heads),
            "cp": divisors(work.seq),
            "ep": divisors(moe.experts) if moe else (1,),
            "etp": (SPLIT, *divisors(moe.ffn)) if moe else (1,),
            "sp": (0, 1),
            "mbs": divisors(work.global_batch),
        }
        self._sizes = {name: len(some) for name, some in values.items()}
        self._places = {name: np.zeros(some[-1] + 1, np.int64) for name, some in values.items()}
        for name, some in values.items():
            self._places[name][list(some)] = np.arange(len(some))

    def of(self, columns: Columns, names: Sequence[str]) -> Ints:
        """The number of each row."""
        number = np.zeros(1, np.int64)
        for name in names:
            number = number * self._sizes[name] + self._places[name][columns[name].astype(np.int64, copy=False)]
        return np.asarray(number)

    def size(self, names: Sequence[str]) -> int:
        """How many there are."""
        return prod(self._sizes[name] for name in names)

    def least(self, floor: Floor, names: Sequence[str]) -> Floats:
        """[3, number] the least of the rows of each number; infinite where there is none."""
        out, number = np.full((3, self.size(names)), np.inf), self.of(floor.rows, names)
        for least, seconds in zip(out, floor[1:], strict=True):
            np.minimum.at(least, number, seconds)
        return out


class KnownFloor(NamedTuple):
    """What is known of some of very many numbers."""

    numbers: Ints  # ascending
    seconds: Floats  # [3, number]

    def with_more(self, numbers: Ints, seconds: Floats) -> KnownFloor:
        """And of others."""
        new = np.flatnonzero(~np.isin(numbers, self.numbers))
        every = np.concatenate([self.numbers, numbers[new]])
        order = np.argsort(every)
        return KnownFloor(every[order], np.concatenate([self.seconds, seconds[:, new]], axis=1)[:, order])

    def at(self, numbers: Ints) -> Floats:
        """[3, number] of those asked for; zero, which is a floor of anything, where nothing is known."""
        place = np.minimum(self.numbers.searchsorted(numbers), len(self.numbers) - 1)
        return np.where(self.numbers[place] == numbers, self.seconds[:, place], 0.0)


NOTHING: Final = KnownFloor(np.zeros(0, np.int64), np.zeros((3, 0)))


class SharedFloors:
    """What the jobs of one search have in common."""

    def __init__(self) -> None:
        self.rows: dict[object, tuple[dict[str, Column], Floats]] = {}  # by facts: ways that are legal, and their bytes
        self.compute: dict[str, KnownFloor] = {}  # by GPU, without communication


class Floors:
    """The floors of one job."""

    def __init__(
        self, job: Job, restrictions: Restrictions, columns: Columns, shared: SharedFloors, effort: Effort
    ) -> None:
        self.job, self._shared, self._effort = job, shared, effort
        self._restrictions, self._columns = restrictions, columns
        self._facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        self._rules = tuple(rule for rule in rules_of(job.runtime) if rule.name != "gpus")
        self._experts = expert_degrees(job, restrictions)
        self._splits = unique(self._experts["etp"][self._experts["etp"] > 1])
        self.numbers = ShardNumbers(job)

    def opened(self) -> Floor:
        """Every way to shard that is legal and may fit, split experts as one; nothing is known of what it takes."""
        job, numbers = self.job, self.numbers.of(self._columns, PAIRS)
        first, _ = distinct(numbers)
        pairs = np.stack([self._columns[name][first] for name in PAIRS])
        key = pairs.tobytes(), *(value for name, value in sorted(self._facts.items()) if name not in OF_THE_GPU)
        if key not in self._shared.rows:
            rows = self._legal_rows(pairs)
            self._effort.spend(len(rows["tp"]) / CHECKED)
            self._shared.rows[key] = rows, np.where(rows["etp"] == SPLIT, 0.0, layer_bytes(job, _whole(rows)))
        rows, bytes_needed = self._shared.rows[key]
        fits = memory.fits(job, bytes_needed)
        nothing = np.zeros(int(fits.sum()))
        return Floor({name: column[fits] for name, column in rows.items()}, nothing, nothing, nothing)

    def expanded(self, floor: Floor) -> Floor:
        """The same with a row for each way to split an expert that is legal and may fit."""
        several = floor.rows["etp"] == SPLIT
        if not several.any():
            return floor
        some = floor.take(several)
        rows, row = cross(dict(some.rows), {"etp": self._splits})
        self._effort.spend(len(row) / CHECKED)
        kept = self._legal(rows)
        kept[kept] = memory.fits(self.job, layer_bytes(self.job, {name: column[kept] for name, column in rows.items()}))
        figures = (each[row[kept]] for each in some[1:])
        apart = floor.take(~several), Floor({name: column[kept] for name, column in rows.items()}, *figures)
        columns = {name: np.concatenate([one.rows[name] for one in apart]) for name in rows}
        return Floor(columns, *(np.concatenate(both) for both in zip(*(one[1:] for one in apart), strict=True)))

    def ways(self, floor: Floor) -> Ints:
        """How many ways to shard each row of a floor stands for, at most."""
        return np.where(floor.rows["etp"] == SPLIT, len(self._splits), 1)

    def closer_and_closer(self) -> Iterator[Callable[[Floor], Floor]]:
        """What makes floors closer, one after another."""
        elsewhere = self.job.pool.device.name in self._shared.compute
        if elsewhere:
            yield self._as_elsewhere
        if effects.clock_follows_power(self.job.runtime):  # the clock ties the products' time to all others
            yield self._with_all
            return
        yield self._with_fewest_pieces
        if len(self._splits):
            if elsewhere:
                yield self._split_as_elsewhere
            yield self._with_all

    def _as_elsewhere(self, floor: Floor) -> Floor:
        """What the same GPU takes in any node."""
        known = self._shared.compute[self.job.pool.device.name]
        return Floor(floor.rows, *known.at(self.numbers.of(floor.rows, SHARDS)))

    def _split_as_elsewhere(self, floor: Floor) -> Floor:
        """Ways to split experts with what the same GPU takes in any node."""
        floor = self.expanded(floor)
        return Floor(floor.rows, *np.maximum(np.stack(floor[1:]), np.stack(self._as_elsewhere(floor)[1:])))

    def _with_fewest_pieces(self, floor: Floor) -> Floor:
        """Communication in this node with experts in as few pieces as they may be, and their products at the peak."""
        rows, fewest = floor.rows, self._splits[0] if len(self._splits) else 1
        work = self._work({**rows, "etp": np.where(rows["etp"] == SPLIT, fewest, rows["etp"])})
        at_peak_s = experts_at_peak_s(self.job) / self.job.workload.global_batch
        spared_s = np.where(rows["etp"] != 1, np.maximum(work.experts_s - at_peak_s / work.share, 0.0), 0.0)
        spared_layer_s = np.where(rows["etp"] != 1, work.layer_experts_s, 0.0)
        if self.job.pool.device.name not in self._shared.compute:
            self._leave(rows, work.floor_s(work.compute_s - spared_s, work.layer_compute_s - spared_layer_s))
        return Floor(rows, *work.floor_s(work.whole_s - spared_s, work.layer_s - spared_layer_s))

    def _with_all(self, floor: Floor) -> Floor:
        """Every way to split experts; those of whole ones are known unless the clock follows the power."""
        floor = self.expanded(floor)
        follows = effects.clock_follows_power(self.job.runtime)
        left = (floor.rows["etp"] != 1) | follows
        rows = {name: column[left] for name, column in floor.rows.items()}
        work, found = self._work(rows), np.stack(floor[1:])
        found[:, left] = work.floor_s(work.whole_s, work.layer_s)
        if not follows:
            self._leave(rows, work.floor_s(work.compute_s, work.layer_compute_s))
        return Floor(floor.rows, *found)

    def _leave(self, rows: Columns, seconds: Floats) -> None:
        """Tell jobs on the same GPU what rows take without communication."""
        known = self._shared.compute
        known[self.job.pool.device.name] = known.get(self.job.pool.device.name, NOTHING).with_more(
            self.numbers.of(rows, SHARDS), seconds
        )

    def _legal_rows(self, pairs: Ints) -> dict[str, Column]:
        """All else a strategy chooses for each tp and cp, as far as no rule refuses it; what has dp and pp is left."""
        allowed, experts = self._restrictions.filter, self._experts
        rows: dict[str, Column] = dict(zip(PAIRS, pairs, strict=True))
        more: tuple[dict[str, Column], ...] = (
            {"sp": np.array(list(allowed("sp", (False, True))), bool)},
            {"mbs": np.array(list(allowed("mbs", divisors(self.job.workload.global_batch))), np.int64)},
            {"ep": unique(experts["ep"])},
        )
        for choices in more:
            rows, _ = cross(rows, choices)
            legal = self._legal(rows)
            rows = {name: column[legal] for name, column in rows.items()}
        rows, _ = cross(rows, {"etp": unique(np.where(experts["etp"] > 1, SPLIT, 1))})
        legal = (rows["etp"] == SPLIT) | self._legal(_whole(rows))
        flash = allowed("flash", (False, True))[-1]  # as in a table of many counts
        return {name: column[legal] for name, column in rows.items()} | {"flash": np.full(int(legal.sum()), flash)}

    def _legal(self, rows: Columns) -> Bools:
        """Rows that no rule refuses whose columns are there."""
        return check(rows, self._facts, self._rules).ok

    def _work(self, rows: Columns) -> _LayerWork:
        """What each row takes."""
        if not len(rows["tp"]):
            return _LayerWork(*(np.zeros(0) for _ in _LayerWork._fields))
        parts = gather_parts(self.job, rows)
        self._effort.spend(len(rows["tp"]) / SHARDINGS)
        figures = (least_s, _waiting_s, _compute_s, _experts_s)
        whole_s, waiting_s, compute_s, experts_s = (over_model(self.job, parts, figure) for figure in figures)
        part = parts.parts[most_of(self.job)]
        least, compute, experts = (figure(part)[parts.place] for figure in (least_s, _compute_s, _experts_s))
        shared = rows["tp"] * rows["cp"] / rows["mbs"]
        return _LayerWork(whole_s, waiting_s, compute_s, experts_s, least, compute, experts, shared)


def _whole(rows: Columns) -> dict[str, Column]:
    """The same with experts that are not split."""
    return {**rows, "etp": np.ones_like(rows["etp"])}


def most_of(job: Job) -> LayerKind:
    """The kind of layer that most are of."""
    return max(kinds(job.model), key=layer_kinds(job.model).count)


class _LayerWork(NamedTuple):
    """Seconds of a micro-batch through the model, by row."""

    whole_s: Floats
    waiting_s: Floats  # of it, weight gradients
    compute_s: Floats  # without communication
    experts_s: Floats  # products of routed experts alone
    layer_s: Floats  # the same through one layer of the kind that most are of
    layer_compute_s: Floats
    layer_experts_s: Floats
    share: Floats  # what they times this are GPU-seconds of a sample

    def floor_s(self, seconds: Floats, layer_s: Floats) -> Floats:
        """[3, row] of a sample, of a micro-batch, and of a sample in one layer."""
        return np.stack([seconds * self.share, np.maximum(seconds - self.waiting_s, 0.0), layer_s * self.share])


def _waiting_s(part: Part) -> Floats:
    return part.weight_s


def _compute_s(part: Part) -> Floats:
    return part.forward.compute_s + part.backward.compute_s


def _experts_s(part: Part) -> Floats:
    return part.experts_s
