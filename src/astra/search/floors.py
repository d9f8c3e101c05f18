"""The least GPU-seconds that a sample takes with a tp and cp, whatever else a strategy chooses: quick floors first.

The first floor is that of the same GPU in another node, without communication. The second has the node's own, and
whole experts alone: splitting one sends more and repeats nothing less, so that at most the matrix products can be
quicker, and those no quicker than the GPU's peak. The third has every way to split experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from astra.columns import Column, Columns
from astra.cost import effects
from astra.cost.parts import Part
from astra.cost.stage import gather_parts, least_s, over_model
from astra.partition.effort import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import check
from astra.search.bounds import products_s
from astra.search.counts import SHARDINGS, expert_degrees, may_fit
from astra.search.space import cross, divisors
from astra.spec.job import Job

Floor = Callable[[Ints], Floats]  # [2, pair] tp and cp -> [pair] GPU-seconds of a sample


class _Work(NamedTuple):
    """GPU-seconds of a sample, by row: with communication, without, and of its matrix products alone."""

    whole_s: Floats
    compute_s: Floats
    products_s: Floats


class Floors:
    """The floors of one job. ``known`` has what jobs on the same GPU left behind."""

    def __init__(
        self, job: Job, restrictions: Restrictions, columns: Columns, known: dict[bytes, Floats], effort: Effort
    ) -> None:
        self.job, self._known, self._effort = job, known, effort
        self._pairs = np.unique(np.stack([columns["tp"], columns["cp"]]), axis=1)
        self._name = job.pool.device.name.encode() + self._pairs.tobytes()
        self._experts = expert_degrees(job, restrictions)
        self._mbs = np.array(list(restrictions.filter("mbs", divisors(job.workload.global_batch))), np.int64)
        self._sp = np.array(list(restrictions.filter("sp", (False, True))), bool)
        self._flash = restrictions.filter("flash", (False, True))[-1]  # as in a table of many counts

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
        return np.asarray(table[np.searchsorted(self._pairs[0] * most + self._pairs[1], pairs[0] * most + pairs[1])])

    def _leave(self, pairs: Ints, floor_s: Floats) -> None:
        """For other nodes with this GPU; only a floor of all pairs is worth keeping."""
        if pairs.shape == self._pairs.shape:
            self._known.setdefault(self._name, floor_s)

    def _with_whole_experts(self, pairs: Ints) -> Floats:
        """Communication in this node with experts that are not split, and products at the peak where some may be."""
        rows, pair = self._rows(pairs)
        splits = len(self._experts["etp"]) // len(set(self._experts["ep"].tolist()))
        able = self._able(rows).reshape(-1, splits).any(axis=1)
        rows = {name: column[::splits][able] for name, column in rows.items()}
        work = self._work(rows | {"etp": np.ones_like(rows["ep"])})
        spared_s = np.maximum(work.products_s - self._products_floor_s(), 0.0)
        self._leave(pairs, _least(work.compute_s - spared_s, pair[::splits][able], pairs.shape[1]))
        return _least(work.whole_s - spared_s, pair[::splits][able], pairs.shape[1])

    def _with_all(self, pairs: Ints) -> Floats:
        """Every way to split experts."""
        rows, pair = self._rows(pairs)
        able = self._able(rows)
        work = self._work({name: column[able] for name, column in rows.items()})
        self._leave(pairs, _least(work.compute_s, pair[able], pairs.shape[1]))
        return _least(work.whole_s, pair[able], pairs.shape[1])

    def _rows(self, pairs: Ints) -> tuple[dict[str, Column], Ints]:
        """All else a strategy chooses for each pair, ways to split experts innermost; and the pair of each row."""
        rows: dict[str, Column] = {"tp": pairs[0], "cp": pairs[1], "pair": np.arange(pairs.shape[1])}
        rows, _ = cross(rows, {"sp": self._sp})
        rows, _ = cross(rows, {"mbs": self._mbs})
        legal = self._legal(rows)
        rows, _ = cross({name: column[legal] for name, column in rows.items()}, self._experts)
        pair = np.asarray(rows.pop("pair"), np.int64)
        return rows | {"flash": np.full(len(pair), self._flash)}, pair

    def _able(self, rows: Columns) -> Bools:
        """Whether a row is legal and may fit."""
        ok = self._legal(rows)
        ok[ok] = may_fit(self.job, {name: column[ok] for name, column in rows.items()})
        return ok

    def _legal(self, rows: Columns) -> Bools:
        """Whether no rule refuses a row; the number of GPUs is not known yet."""
        job = self.job
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        rules = tuple(rule for rule in rules_of(job.runtime) if rule.name != "gpus")
        return check({name: column for name, column in rows.items() if name != "pair"}, facts, rules).ok

    def _work(self, rows: Columns) -> _Work:
        """GPU-seconds of a sample."""
        if not len(rows["tp"]):
            return _Work(*(np.zeros(0) for _ in _Work._fields))
        each = rows["tp"] * rows["cp"] / rows["mbs"]
        parts = gather_parts(self.job, rows)
        self._effort.spend(len(each) / SHARDINGS)
        return _Work(*(each * over_model(self.job, parts, seconds) for seconds in (least_s, _compute_s, _products_s)))

    def _products_floor_s(self) -> float:
        return float(products_s(self.job, np.asarray(1))) / self.job.workload.global_batch


def _compute_s(part: Part) -> Floats:
    return part.forward.compute_s + part.backward.compute_s


def _products_s(part: Part) -> Floats:
    return part.forward.gemm_s + part.backward.gemm_s


def _least(work_s: Floats, pair: Ints, pairs: int) -> Floats:
    """[pair] the least of its rows; infinite where there is none."""
    out = np.full(pairs, np.inf)
    np.minimum.at(out, pair, work_s)
    return out
