"""How many times its predicted time a strategy may take: what plans are ranked by."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from astra.columns import Column
from astra.evidence.bars import log_bars
from astra.evidence.kinds import KEYS, keys_of, kind_at
from astra.provenance import Floats
from astra.spec.job import Job


class Doubt:
    """The upper end of a step's interval over the step itself, for strategies of one job; 1 or more."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._factors = np.full(KEYS, np.nan)

    def of(self, columns: Mapping[str, Column]) -> Floats:
        """The factor of each row of a table."""
        keys = keys_of(self._job, columns)
        new = np.unique(keys[np.isnan(self._factors[keys])])
        if len(new):
            self._factors[new] = np.exp(log_bars([kind_at(self._job, key) for key in new.tolist()]))
        return np.asarray(self._factors[keys])
