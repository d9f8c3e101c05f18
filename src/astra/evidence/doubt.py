"""How many times its predicted time a strategy may take: what plans are ranked by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from astra.columns import Column, code, unique
from astra.evidence.bars import log_bars_by_tokens
from astra.evidence.kinds import KEYS, TOKENS, keys_of, kind_at
from astra.provenance import Floats, Ints
from astra.spec.job import Job


class Doubt:
    """The upper end of a step's interval over the step itself, for strategies of one job; 1 or more."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._factors = np.full(KEYS, np.nan)

    def of(self, columns: Mapping[str, Column]) -> Floats:
        """The factor of each row of a table."""
        keys = keys_of(self._job, columns)
        new = unique(keys[np.isnan(self._factors[keys])])
        if len(new):
            first, kind = np.unique(new // TOKENS, return_inverse=True)
            tokens, length = np.unique(new % TOKENS, return_inverse=True)
            bars = log_bars_by_tokens([kind_at(self._job, key) for key in (first * TOKENS).tolist()], tokens)
            self._factors[new] = np.exp(bars[kind, length])
        return np.asarray(self._factors[keys])

    def of_each(self, columns: Mapping[str, Column], zero: Ints, offload: Ints) -> Floats:
        """[row, sharding]: the same with each ZeRO stage and offload."""
        rows = {name: column[:, None] for name, column in columns.items()}
        factors = self.of(rows | {"zero": zero[None, :], "offload": offload[None, :]})
        return np.broadcast_to(factors, (len(columns["tp"]), len(zero)))

    def least(self, columns: Mapping[str, Column], zero: Ints, offload: Ints) -> Floats:
        """The least factor of each row with any schedule, ZeRO stage and offload."""
        found = np.full(len(columns["tp"]), np.inf)
        for word in self._job.runtime.can.schedules:
            schedule = {"schedule": np.array([code("schedule", word)])}
            found = np.minimum(found, self.of_each({**columns, **schedule}, zero, offload).min(axis=1))
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
