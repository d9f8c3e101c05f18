"""Plans by money on the GPUs one has: how many of them to use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astra.answer import PriceTag
from astra.errors import NoFeasiblePlan
from astra.evidence.bars import Doubt
from astra.money.objectives import Goal
from astra.money.offers import Offer
from astra.partition.problem import Effort
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.engine import search
from astra.search.front import Refined, choose, front_of, refine
from astra.search.offers import MOST_EFFORT, FoundOffer, FrontSearch, Progress, search_front
from astra.spec.job import Job
from astra.spec.money import Money


def parts_of(
    job: Job,
    goal: Goal,
    options: Money,
    tag: PriceTag,
    *,
    upper: bool,
    restrictions: Restrictions,
    user_rules: Sequence[Rule] = (),
    progress: Progress | None = None,
) -> tuple[list[Refined], FrontSearch]:
    """Which part of the pool to use, in whole nodes: by the goal, best first, and what the search did."""
    node = job.pool.node
    counts = np.arange(node.gpus, job.pool.gpus + 1, node.gpus) if job.pool.gpus >= node.gpus else [job.pool.gpus]
    offer = Offer(tag, job.pool.device, node, True, np.array(counts, np.int64))

    def job_of(offer: Offer, gpus: int) -> Job:
        del offer
        return job.on(gpus)

    if user_rules:  # rules may speak of the number of GPUs, so each is searched by itself
        state = FrontSearch(job_of, options, restrictions, upper=upper)
        for gpus in offer.counts.tolist():
            _add(state, offer, job.on(gpus), restrictions, user_rules, upper=upper)
        near = state.found
    else:
        state = search_front(
            [offer], job_of, options, effort=Effort(MOST_EFFORT), upper=upper, restrictions=restrictions,
            progress=progress,
        )  # fmt: skip
        near = state.near_front()
    refined = refine(job_of, options, near, upper=upper)
    if not refined:
        raise NoFeasiblePlan(
            f"{job.model.name}: no strategy fits on {job.pool.gpus}x{job.pool.device.name} or any part of them and "
            "ends there, restarts included. astra plan without an objective says what would be needed."
        )
    return choose(front_of(refined), goal), state


def use_notes(job: Job, chosen: Refined) -> list[str]:
    """How many GPUs are left unused."""
    gpus = chosen.gpus
    return [f"uses {gpus:,} of the {job.pool.gpus:,} GPUs"] if gpus < job.pool.gpus else []


def _add(
    state: FrontSearch, offer: Offer, job: Job, restrictions: Restrictions, rules: Sequence[Rule], *, upper: bool
) -> None:
    """Search one count and put what is found into the account."""
    found = search(job, restrictions, user_rules=rules, keep=1, doubt=Doubt(job) if upper else None)
    state.considered += found.considered
    state.evaluated += found.evaluated
    for best in found.candidates:
        state.add(FoundOffer(offer, job.pool.gpus, best.strategy, best.step_s, best.step_s, 0.0))
