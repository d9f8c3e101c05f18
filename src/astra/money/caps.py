"""What a budget and a deadline allow: how long machines may stay, and how much of that time is training.

The step of a job does not enter, so that it is known of every offer and count before anything is searched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.answer import PriceTag
from astra.money.bill import run_usd, startup_s
from astra.money.rates import billed_s
from astra.provenance import Floats, Ints
from astra.spec.money import Money


class Caps(NamedTuple):
    """Dollars and seconds that may be spent."""

    usd: float
    seconds: float


class Allowed(NamedTuple):
    """What the caps allow, by count."""

    present_s: Floats  # from the order to the end
    train_s: Floats  # of it, without start-up, idle time and what interruptions take
    usd: Floats  # the bill


def allowed(caps: Caps, options: Money, tag: PriceTag, gpus: Ints, nodes: Ints, slower: Floats) -> Allowed:
    """As long as the caps allow; ``slower`` is elapsed time over useful time (``waiting`` of a search)."""
    usd_per_s = gpus * tag.usd_per_gpu_h / 3600 + options.storage_usd_per_s
    paid_s = (caps.usd - options.egress_usd) / usd_per_s
    if tag.step_s > 0:  # of what is billed in steps, only whole ones are within the budget
        paid_s = np.floor(paid_s / tag.step_s + 1e-9) * tag.step_s
    least_s = billed_s(np.zeros(len(gpus)), tag.minimum_s, tag.step_s)
    present_s = np.where(paid_s >= least_s, np.minimum(paid_s, caps.seconds), 0.0)
    train_s = np.maximum(present_s - startup_s(options, tag, nodes) - options.idle_s, 0.0) / slower
    usd = run_usd(options, tag, np.asarray(gpus, np.float64), present_s) + options.egress_usd
    return Allowed(present_s, train_s, usd)
