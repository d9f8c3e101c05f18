"""The layer split of a strategy that is worth telling, chosen by the simulated step.

The search knows two splits of each pipeline: equal stages, and balanced ones with the larger stages late, which keeps
the early ranks' memory low. Larger stages can be quicker elsewhere. Here a strategy's split is moved, a layer at a time
or all larger stages at once, as long as the simulated step falls and the strategy fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Final

import numpy as np

from astra.cost import memory, step
from astra.cost.gathered import Layouts, layout
from astra.cost.pipeline import pipelines_s
from astra.cost.stage import Gathered, Meshes, parts_of, stage_costs
from astra.cost.step import evaluate
from astra.layers.split import even, layer_work
from astra.rules.table import Rule
from astra.schedule import find
from astra.search.detail import as_row, layers_of, legality
from astra.search.engine import Candidate
from astra.search.space import last_layers
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace

ROUNDS: Final = 12
FEW_STAGES: Final = 12  # up to here a layer may move from any stage to any other
NEAR: Final = 0.01  # more than the best split was seen to gain over one whose stages have as much to do
LEAST_GAIN: Final = 1e-9  # of the step

Split = tuple[int, ...]


def best_splits(
    job: Job, candidates: Sequence[Candidate], user_rules: Sequence[Rule], timed: Sequence[Gathered] = ()
) -> list[Strategy]:
    """The strategies of a search, with the best split where that may make one the best; ``timed`` are its parts."""
    limit_s = candidates[0].step_s * (1 + NEAR)
    return [
        polished(job, one.strategy, one.step_s, user_rules, timed)[0]
        if one.step_s * (1 - _unequal(job, one.strategy)) <= limit_s
        else one.strategy
        for one in candidates
    ]


def _unequal(job: Job, strategy: Strategy) -> float:
    """What ranks with as much to do each would save of the fullest one's work."""
    work, front, _ = layer_work(job.model, job.workload.seq)
    ends = np.cumsum((0, *layers_of(job, strategy)))
    passed = np.concatenate(([0.0], np.cumsum(work)))[ends]
    chunks = np.diff(passed)
    chunks[0] += front
    chunks[-1] += last_layers(job)
    ranks = chunks[np.array(find(strategy.schedule).place(strategy.pp, strategy.vp))].sum(axis=0)
    return 1.0 - float(ranks.mean() / ranks.max())


def polished(
    job: Job, strategy: Strategy, step_s: float, user_rules: Sequence[Rule], timed: Sequence[Gathered] = ()
) -> tuple[Strategy, float]:
    """The strategy with the best split found, and its simulated step."""
    if strategy.pp == 1:
        return strategy, step_s
    best, layers = strategy, layers_of(job, strategy)
    said = job.saying(strategy)
    job, timed = said, timed if said is job else ()
    seen, parts = {layers}, parts_of(job, as_row(job, strategy).meshes.columns, timed)
    for _ in range(ROUNDS):
        others = [split for split in neighbours(layers) if split not in seen]
        seen.update(others)
        for seconds, split in simulated(job, best, parts, others, step_s * (1 - LEAST_GAIN)):
            plain = split == even(sum(split), len(split))
            moved = replace(best, layers=() if plain else split)
            if not legality(job, moved, user_rules):
                best, layers, step_s = moved, split, seconds
                break
        else:
            break
    return best, step_s


def neighbours(layers: Split) -> list[Split]:
    """Splits one move away; only the last stage, which has the head, may be left without layers."""
    count = len(layers)
    places = range(count) if count <= FEW_STAGES else _edges(layers)
    found = []
    for giver, taker in permutations(places, 2):
        moved = list(layers)
        moved[giver] -= 1
        moved[taker] += 1
        found.append(tuple(moved))
    inner = sorted(layers[1:-1])
    found += [(layers[0], *middle, layers[-1]) for middle in (inner, inner[::-1])]
    most = max(layers) + 1
    sound = (split for split in dict.fromkeys(found) if min(split[:-1]) > 0 and split[-1] >= 0)
    return [split for split in sound if max(split) <= most]


def _edges(layers: Split) -> list[int]:
    """The ends of the pipeline and of every run of equal stages."""
    count = len(layers)
    ends = {0, 1, count - 2, count - 1}
    for place in range(1, count):
        if layers[place] != layers[place - 1]:
            ends |= {place - 1, place}
    return sorted(ends)[:FEW_STAGES]


def simulated(
    job: Job, strategy: Strategy, own: Gathered, splits: Sequence[Split], limit_s: float
) -> list[tuple[float, Split]]:
    """Splits with which the strategy fits and takes less than the limit, best first, with the simulated step."""
    if not splits:
        return []
    row = as_row(job, strategy)
    place = np.zeros(len(splits), np.int64)
    columns = {name: column[place] for name, column in row.meshes.columns.items()}
    layouts = Layouts(layout(strategy.schedule, strategy.pp, strategy.vp, split) for split in splits)
    meshes = Meshes(columns, np.arange(len(splits)), layouts)
    parts = own.take(place)
    result = evaluate(job, meshes, stage_costs(job, meshes, parts), row.recomputes, row.shardings)
    fits = memory.fits(job, result.peak_bytes[:, 0, 0])
    rows = np.flatnonzero(fits & (result.bound_s[:, 0, 0] < limit_s))
    recomputes = row.recomputes.take(place[rows])
    pipeline_s = pipelines_s(job, meshes.take(rows), parts.take(rows), recomputes, result.exchanged_s[rows, 0])
    step_s = step.seconds(job, pipeline_s, result.after_s[rows, 0])
    found = [(total_s, splits[at]) for total_s, at in zip(step_s.tolist(), rows.tolist(), strict=True)]
    return sorted(pair for pair in found if pair[0] < limit_s)
