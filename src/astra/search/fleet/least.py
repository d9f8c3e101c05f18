"""The least step of a fleet, for answers that are wanted before the search has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from astra.columns import Column, Columns, cross
from astra.cost.parts import Part
from astra.cost.stage import gather_parts, over_model
from astra.rules.restrictions import Restrictions
from astra.search.attempts import alternatives, attempts, roomiest
from astra.search.degrees import expert_degrees
from astra.search.fleet.frames import MOST_TOKENS, MOST_TP
from astra.search.fleet.pools import Fleet
from astra.search.space import divisors
from astra.search.words import settled
from astra.spec.job import Job

BETWEEN: Final = 0.97  # of the least: micro-batches between those looked at may have quicker products


def least_step_s(fleet: Fleet) -> float:
    """Seconds that no plan of a fleet is below: the compute of a step, each pool with the quickest shapes it has.

    No communication, no bubble, no optimizer; every layer once there and back, whatever the memory.
    """
    batch = fleet.job.workload.global_batch
    return (
        BETWEEN
        * batch
        / sum(
            job.pool.gpus / min(map(_sample_s, {one.words: one for one in _spoken(job)}.values())) for job in fleet.jobs
        )
    )


def _spoken(job: Job) -> Iterator[Job]:
    """The pool's job as pipelines over pools have it, and with all words that its groups are sought with."""
    free = Restrictions()
    own = settled(msgspec.structs.replace(job, settled=None, repeats=None), free)
    yield job
    for attempt in attempts(roomiest(own, free), free):
        yield attempt.job
        yield from (other.job for other in alternatives(attempt))


def _sample_s(job: Job) -> float:
    """GPU-seconds that the compute of a sample takes at least."""
    rows = _shapes(job)
    compute_s = over_model(job, gather_parts(job, rows), _compute_s)
    return float((compute_s * rows["tp"] / rows["mbs"]).min())


def _shapes(job: Job) -> Columns:
    """Ways to cut layers, as far as products depend on them."""
    work = job.workload
    tp = np.array([n for n in divisors(job.model.heads) if n <= MOST_TP], np.int64)
    mbs = np.array([n for n in divisors(work.global_batch) if n == 1 or n * work.seq <= MOST_TOKENS], np.int64)
    one = np.ones_like(tp)
    rows: dict[str, Column] = {"tp": tp, "cp": one, "sp": tp > 1, "flash": one > 0, "overlap_tp": one < 0}
    for choices in ({"mbs": mbs}, expert_degrees(job, Restrictions())):
        rows, _ = cross(rows, choices)
    return rows


def _compute_s(part: Part) -> Column:
    return part.forward.compute_s + part.backward.compute_s
