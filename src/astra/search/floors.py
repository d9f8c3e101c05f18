"""The least that a sample takes with a tp and cp, whatever else a strategy chooses: quick floors first.

A step does the GPU-seconds of all its samples, and a micro-batch goes through all layers there and back, one after
another; weight gradients alone may wait.

The first floor is that of the same GPU in another node, without communication. The second has the node's own, and
whole experts alone: splitting one sends more and repeats nothing less, so that at most the matrix products can be
quicker, and those no quicker than the GPU's peak. The third has every way to split experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column, Columns
from astra.cost import effects, memory
from astra.cost.parts import Part
from astra.cost.stage import gather_parts, least_s, over_model
from astra.partition.problem import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import check
from astra.search.bounds import layer_bytes, products_s
from astra.search.counts import SHARDINGS
from astra.search.degrees import expert_degrees
from astra.search.space import cross, divisors
from astra.spec.job import Job

CHECKED: Final = 300.0  # rows in a unit of effort

Floor = Callable[[Ints], Floats]  # [2, pair] tp and cp -> [2, pair] GPU-seconds of a sample, seconds of a micro-batch


class _LayerWork(NamedTuple):
    """Seconds of a micro-batch through the model, by row."""

    whole_s: Floats
    waiting_s: Floats  # of it, weight gradients
    compute_s: Floats  # without communication
    products_s: Floats  # matrix products alone
    share: Floats  # what they times this are GPU-seconds of a sample

    def floor_s(self, seconds: Floats, pair: Ints, pairs: int) -> Floats:
        """[2, pair] the least of the rows of each pair; infinite where there is none."""
        out = np.full((2, pairs), np.inf)
        np.minimum.at(out[0], pair, seconds * self.share)
        np.minimum.at(out[1], pair, np.maximum(seconds - self.waiting_s, 0.0))
        return out


class Floors:
    """The floors of one job. ``known`` has what jobs of the same search left behind, on the same GPU or on any."""

    def __init__(
        self, job: Job, restrictions: Restrictions, columns: Columns, known: dict[bytes, Floats], effort: Effort
    ) -> None:
        self.job, self._known, self._effort = job, known, effort
        self._columns = columns
        self._experts = expert_degrees(job, restrictions)
        self._mbs = np.array(list(restrictions.filter("mbs", divisors(job.workload.global_batch))), np.int64)
        self._sp = np.array(list(restrictions.filter("sp", (False, True))), bool)
        self._flash = restrictions.filter("flash", (False, True))[-1]  # as in a table of many counts

    @cached_property
    def _pairs(self) -> Ints:
        """Every tp and cp; where one table holds all counts nobody asks."""
        return np.unique(np.stack([self._columns["tp"], self._columns["cp"]]), axis=1)

    @cached_property
    def _name(self) -> bytes:
        return self.job.pool.device.name.encode() + self._pairs.tobytes()

    def closer_and_closer(self) -> Iterator[Floor]:
        """Floors to try one after another, each for the pairs that the one before leaves."""
        if self._name in self._known:
            yield lambda pairs: self._of_pairs(self._known[self._name], pairs)
        if len(set(self._experts["etp"].tolist())) > 1 and not effects.clock_follows_power(self.job.runtime):
            yield self._with_whole_experts
        yield self._with_all

    def _of_pairs(self, table: Floats, pairs: Ints) -> Floats:
        """Entries of a table over all pairs."""
        most = int(pairs[1].max()) + 1 if pairs.size else 1
        most = max(most, int(self._pairs[1].max()) + 1)
        at = np.searchsorted(self._pairs[0] * most + self._pairs[1], pairs[0] * most + pairs[1])
        return np.asarray(table[:, at])

    def _leave(self, pairs: Ints, floor_s: Floats) -> None:
        """For other nodes with this GPU; only a floor of all pairs is worth keeping."""
        if pairs.shape == self._pairs.shape:
            self._known.setdefault(self._name, floor_s)

    def _with_whole_experts(self, pairs: Ints) -> Floats:
        """Communication in this node with experts that are not split, and products at the peak where some may be."""
        rows, pair = self._rows(pairs)
        splits = len(self._experts["etp"]) // len(set(self._experts["ep"].tolist()))
        able = self._able(rows, pairs).reshape(-1, splits).any(axis=1)
        rows = {name: column[::splits][able] for name, column in rows.items()}
        work = self._work(rows | {"etp": np.ones_like(rows["ep"])})
        at_peak_s = float(products_s(self.job, np.asarray(1))) / self.job.workload.global_batch
        spared_s = np.maximum(work.products_s - at_peak_s / work.share, 0.0)
        of_pairs = pair[::splits][able], pairs.shape[1]
        self._leave(pairs, work.floor_s(work.compute_s - spared_s, *of_pairs))
        return work.floor_s(work.whole_s - spared_s, *of_pairs)

    def _with_all(self, pairs: Ints) -> Floats:
        """Every way to split experts."""
        rows, pair = self._rows(pairs)
        able = self._able(rows, pairs)
        work = self._work({name: column[able] for name, column in rows.items()})
        self._leave(pairs, work.floor_s(work.compute_s, pair[able], pairs.shape[1]))
        return work.floor_s(work.whole_s, pair[able], pairs.shape[1])

    def _rows(self, pairs: Ints) -> tuple[dict[str, Column], Ints]:
        """All else a strategy chooses for each pair, ways to split experts innermost; and the pair of each row."""
        rows: dict[str, Column] = {"tp": pairs[0], "cp": pairs[1], "pair": np.arange(pairs.shape[1])}
        rows, _ = cross(rows, {"sp": self._sp})
        rows, _ = cross(rows, {"mbs": self._mbs})
        legal = self._legal(rows)
        rows, _ = cross({name: column[legal] for name, column in rows.items()}, self._experts)
        pair = np.asarray(rows.pop("pair"), np.int64)
        return rows | {"flash": np.full(len(pair), self._flash)}, pair

    def _able(self, rows: Columns, pairs: Ints) -> Bools:
        """Whether a row of some pairs is legal and may fit."""
        ok = self._legal(rows)
        key = pairs.tobytes() + ok.tobytes()  # all else is the same for every job of a search
        if key not in self._known:
            self._effort.spend(len(rows["tp"]) / CHECKED)
            self._known[key] = layer_bytes(self.job, {name: column[ok] for name, column in rows.items()})
        ok[ok] = memory.fits(self.job, self._known[key])
        return ok

    def _legal(self, rows: Columns) -> Bools:
        """Whether no rule refuses a row; the number of GPUs is not known yet."""
        job = self.job
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        rules = tuple(rule for rule in rules_of(job.runtime) if rule.name != "gpus")
        return check({name: column for name, column in rows.items() if name != "pair"}, facts, rules).ok

    def _work(self, rows: Columns) -> _LayerWork:
        """What each row takes."""
        if not len(rows["tp"]):
            return _LayerWork(*(np.zeros(0) for _ in _LayerWork._fields))
        parts = gather_parts(self.job, rows)
        self._effort.spend(len(rows["tp"]) / SHARDINGS)
        figures = (least_s, _waiting_s, _compute_s, _products_s)
        whole_s, waiting_s, compute_s, products_s = (over_model(self.job, parts, figure) for figure in figures)
        return _LayerWork(whole_s, waiting_s, compute_s, products_s, rows["tp"] * rows["cp"] / rows["mbs"])


def _waiting_s(part: Part) -> Floats:
    return part.weight_s


def _compute_s(part: Part) -> Floats:
    return part.forward.compute_s + part.backward.compute_s


def _products_s(part: Part) -> Floats:
    return part.forward.gemm_s + part.backward.gemm_s
