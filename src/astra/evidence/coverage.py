"""How the bars of published runs hold, each made without the source of the run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.evidence.bars import log_bars, stands_in
from astra.evidence.kinds import OTHER, runs


class Covered(NamedTuple):
    """One run of a source that neither constants nor bars have seen."""

    source: str
    kind: str  # of model: dense, or moe
    stood_in: bool  # whether no other source has run its framework
    held: bool
    log_bar: float


def unseen() -> list[Covered]:
    """Every published run."""
    known, found = runs(), []
    for source in sorted(set(known.source)):
        own = [place for place, name in enumerate(known.source) if name == source]
        own = [place for place in own if known.kind(place).framework != OTHER]
        kinds = [known.kind(place) for place in own]
        bars, sizes = log_bars(kinds, without=source), np.abs(known.unseen_log_error[own])
        for kind, bar, size in zip(kinds, bars.tolist(), sizes.tolist(), strict=True):
            found.append(Covered(source, kind.model, stands_in(kind.framework, without=source), size <= bar, bar))
    return found
