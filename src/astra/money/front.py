"""The exact front of two costs, both better when smaller: what no other row beats in both."""

from __future__ import annotations

import numpy as np

from astra.provenance import Bools, Floats, Ints


def front(time_s: Floats, usd: Floats) -> Ints:
    """Rows that no other row dominates, fastest first; of equal rows the first. Rows that are not finite never count.

    A row dominates another if it is no worse in both and better in one.
    """
    finite = np.flatnonzero(np.isfinite(time_s) & np.isfinite(usd))
    order = finite[np.lexsort((finite, usd[finite], time_s[finite]))]
    cheapest_before = np.minimum.accumulate(np.append(np.inf, usd[order]))[:-1]
    kept: Ints = order[usd[order] < cheapest_before]
    return kept


def dominated(time_s: Floats, usd: Floats) -> Bools:
    """Whether some other row is no worse in both and better in one; equal rows do not dominate each other."""
    best = front(time_s, usd)
    if not len(best):
        return np.zeros(len(time_s), bool)
    times, costs = time_s[best], usd[best]
    place = np.searchsorted(times, time_s, side="right") - 1  # the cheapest row that is no slower
    found = place >= 0
    other_t, other_d = times[np.maximum(place, 0)], costs[np.maximum(place, 0)]
    beaten: Bools = found & (other_d <= usd) & ((other_d < usd) | (other_t < time_s))
    return beaten


def first_dominated(usd_per_s: Floats, time_s: Floats, usd: Floats, least_usd: Floats | float = 0.0) -> Floats:
    """For something that costs ``usd_per_s``, the shortest time at which a row of (time, usd) is no worse in both.

    It costs c t or more after a time t, and never less than ``least_usd``. So row j is no worse from max(t_j, d_j / c)
    on, and already from t_j on where d_j is no more than the least; infinite without rows.
    """
    if not len(time_s):
        return np.full(usd_per_s.shape, np.inf)
    from_s = np.where(np.asarray(least_usd)[..., None] >= usd, 0.0, usd / usd_per_s[..., None])
    first: Floats = np.maximum(time_s, from_s).min(axis=-1)
    return first


def knee(time_s: Floats, usd: Floats) -> int:
    """Where the front bends most: farthest below the line between its ends, both costs in logarithms.

    The argument is a front, fastest first. In logarithms equal steps are equal ratios, so the units do not matter.
    """
    if len(time_s) < 3:
        return int(np.argmin(np.log(time_s) + np.log(usd)))
    x, y = np.log(time_s), np.log(usd)
    x, y = (x - x[0]) / max(x[-1] - x[0], 1e-12), (y - y[-1]) / max(y[0] - y[-1], 1e-12)
    return int(np.argmin(x + y))
