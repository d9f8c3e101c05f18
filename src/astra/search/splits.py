"""The layer split of a strategy that is worth telling, chosen by the simulated step.

The search knows two splits of each pipeline: equal stages, and balanced ones with the larger stages late, which keeps
the early ranks' memory low. Larger stages can be quicker elsewhere. Here a strategy's split is moved, a layer at a time
or all larger stages at once, as long as the simulated step falls and the strategy fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from math import inf
from typing import Final, NamedTuple

import numpy as np

from astra.columns import FIELDS, distinct, joined, take
from astra.cost import memory, step
from astra.cost.gathered import Layouts, layout
from astra.cost.pipeline import pipelines_s
from astra.cost.stage import Gathered, Meshes, parts_of, stage_costs
from astra.cost.step import evaluate
from astra.evidence.bars import UNEQUAL
from astra.layers.kinds import layer_kinds
from astra.layers.split import even, layer_work
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.schedule.registry import find
from astra.search.detail import as_row, layers_of, legality
from astra.search.engine import Candidate
from astra.search.space import chunk_counts, last_layers
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace

ROUNDS: Final = 12
FEW_STAGES: Final = 12  # up to here a layer may move from any stage to any other
FEW: Final = 32  # micro-batches for each stage, up to which other micro-batches are split too
NEAR: Final = 0.01  # more than the best split was seen to gain over one whose stages have as much to do
NEAR_FILLING: Final = 0.06  # the same of pipelines that are never full
REACH: Final = 4  # layers that the ends of a pipeline may have more or fewer at once
LEAST_GAIN: Final = 1e-9  # of the step
WORTH: Final = 0.005  # of the step, for which other numbers of chunks are taken

# What a strategy says besides, by what it recomputes.
_SPOKEN: Final = {
    "none": ("recompute",),
    "selective": ("recompute", "modules"),
    "full": ("recompute", "method", "recompute_layers"),
}

Split = tuple[int, ...]


def best_splits(
    job: Job,
    candidates: Sequence[Candidate],
    user_rules: Sequence[Rule],
    timed: Sequence[Gathered] = (),
    restrictions: Restrictions | None = None,
) -> list[Candidate]:
    """What a search found, with the best split where that may make one the best; ``timed`` are its parts.

    Given what it had to keep to, the first is also tried with other micro-batches, the best with other recompute, and
    what is as good in equal chunks, which are doubted less.
    """
    near = [one for one in candidates if _least_s(job, one) <= candidates[0].step_s]
    others = [] if restrictions is None else _variants(job, candidates[0].strategy, restrictions)
    polished = all_polished(job, [*near, *others], user_rules, timed)
    if restrictions is not None:
        first = min(range(len(polished)), key=lambda place: polished[place].step_s)
        turned = _turned(job, polished[first], user_rules, timed, restrictions)
        polished[first] = _cut(job, turned, user_rules, timed, restrictions)
        polished += _equal(job, polished, user_rules, timed, restrictions)
    found = dict(zip(near, polished, strict=False))
    return [found.get(one, one) for one in candidates] + [one for one in polished[len(near) :] if one.step_s < inf]


def _least_s(job: Job, one: Candidate) -> float:
    """What another split may bring the step to: ranks with as much to do each, and some more."""
    strategy = one.strategy
    few = job.workload.global_batch <= strategy.dp * strategy.mbs * strategy.pp
    return one.step_s * (1 - _unequal(job, strategy)) / (1 + (NEAR_FILLING if few else NEAR))


def _variants(job: Job, strategy: Strategy, restrictions: Restrictions) -> list[Candidate]:
    """The same with half and twice the micro-batch: other splits may make room, or less bubble.

    Only where there are few chunks and few micro-batches.
    """
    own, batch = job.workload.global_batch // strategy.dp, strategy.mbs
    if strategy.pp == 1 or strategy.pp * strategy.vp > FEW_STAGES or own > FEW * strategy.pp * batch:
        return []
    sizes = [mbs for mbs in (batch // 2, 2 * batch) if mbs and own % mbs == 0]
    return [Candidate(replace(strategy, mbs=mbs), inf) for mbs in restrictions.filter("mbs", sizes)]


def _cut(
    job: Job, best: Candidate, user_rules: Sequence[Rule], timed: Sequence[Gathered], restrictions: Restrictions
) -> Candidate:
    """The same in other numbers of chunks, of which a search has the least for each size of the largest."""
    strategy, depth = best.strategy, len(layer_kinds(job.model))
    if strategy.vp == 1 or best.step_s == inf or _waiting(job, strategy) < WORTH:
        return best
    searched = {strategy.vp, *chunk_counts(depth, strategy.pp)}
    counts = [count for count in range(2, depth // strategy.pp + 1) if count not in searched]
    some = [replace(strategy, vp=vp, layers=()) for vp in restrictions.filter("vp", counts)]
    said = job.saying(strategy)
    parts = parts_of(said, as_row(said, strategy).meshes.columns, timed if said is job else ())
    limit_s = best.step_s * (1 - WORTH)
    found = simulated(said, [Tried(one, parts, [layers_of(said, one)], limit_s) for one in some])
    quicker = sorted((faster[0][0], place) for place, faster in enumerate(found) if faster)
    for seconds, place in quicker:
        if not legality(said, some[place], user_rules):
            return all_polished(job, [Candidate(some[place], seconds)], user_rules, timed)[0]
    return best


def _equal(
    job: Job, some: Sequence[Candidate], user_rules: Sequence[Rule], timed: Sequence[Gathered],
    restrictions: Restrictions,
) -> list[Candidate]:  # fmt: skip
    """Those that may be the first, in equal chunks: of the numbers of chunks the quickest."""
    depth, equal = len(layer_kinds(job.model)), list[Candidate]()
    for strategy, step_s in some:
        each, more = divmod(depth, strategy.pp)
        if more or len(set(layers_of(job, strategy))) == 1 or step_s > some[0].step_s * (1 + UNEQUAL):
            continue
        counts = [vp for vp in range(1, each + 1) if each % vp == 0 and (vp > 1) == (strategy.vp > 1)]
        tried = [replace(strategy, vp=vp, layers=()) for vp in restrictions.filter("vp", counts)]
        said = job.saying(strategy)
        parts = parts_of(said, as_row(said, strategy).meshes.columns, timed if said is job else ())
        limit_s = step_s * (1 + UNEQUAL)
        found = simulated(said, [Tried(one, parts, [layers_of(said, one)], limit_s) for one in tried])
        ranked = sorted((quick[0][0], place) for place, quick in enumerate(found) if quick)
        legal = (Candidate(tried[at], seconds) for seconds, at in ranked if not legality(said, tried[at], user_rules))
        equal += islice(legal, 1)
    return equal


def _waiting(job: Job, strategy: Strategy) -> float:
    """What a pipeline of several chunks waits at most, as a share of its work: its bubble, and for its fullest rank."""
    microbatches = job.workload.global_batch // (strategy.dp * strategy.mbs)
    return (strategy.pp - 1) / (microbatches * strategy.vp) + _unequal(job, strategy)


def _turned(
    job: Job, best: Candidate, user_rules: Sequence[Rule], timed: Sequence[Gathered], restrictions: Restrictions
) -> Candidate:
    """What moves of one layer do not reach: less offload, other recompute, and other ends of few chunks."""
    for _ in range(ROUNDS):
        strategy, limit_s = best.strategy, best.step_s * (1 - LEAST_GAIN)
        few = strategy.pp * strategy.vp <= FEW_STAGES
        saves = strategy.recompute != "none" or strategy.offload != "none"
        if strategy.pp == 1 or best.step_s == inf or not (few or saves):
            break
        said = job.saying(strategy)
        parts = parts_of(said, as_row(said, strategy).meshes.columns, timed if said is job else ())
        layers = layers_of(said, strategy)
        splits = other_ends(layers) if few else []
        some = [strategy, *_saving_less(strategy, max(layers), restrictions)]
        tries = [Tried(one, parts, splits if one is strategy else [layers, *splits], limit_s) for one in some]
        quicker = [
            Candidate(replace(one, layers=() if split == even(sum(split), len(split)) else split), seconds)
            for one, faster in zip(some, simulated(said, tries), strict=True)
            for seconds, split in faster
        ]
        ranked = sorted(quicker, key=lambda found: found.step_s)
        moved = next((found for found in ranked if not legality(said, found.strategy, user_rules)), None)
        if moved is None:
            break
        best = all_polished(job, [moved], user_rules, timed)[0]
    return best


def _saving_less(strategy: Strategy, chunk_layers: int, restrictions: Restrictions) -> Iterator[Strategy]:
    """The same without offload; with less full recompute, down to none, or between other checkpoints."""
    if strategy.offload != "none" and restrictions.allows("offload", "none"):
        yield replace(strategy, offload="none")
    if strategy.recompute == "none":
        return
    plain = replace(strategy, recompute="none", method="uniform", recompute_layers=1, modules=())
    some, layers = [plain], strategy.recompute_layers
    if strategy.recompute == "full":
        block = strategy.method == "block"
        most = layers if block else chunk_layers
        ways = [("block", count) for count in (most // 2, most - 1)]
        ways += [] if block else [("uniform", count) for count in (layers - 1, layers + 1)]
        some += [replace(plain, recompute="selective")]
        some += [replace(plain, recompute="full", method=way, recompute_layers=n) for way, n in ways if n > 0]
    for one in some:
        if all(restrictions.allows(name, getattr(one, name)) for name in _SPOKEN[one.recompute]):
            yield one


def other_ends(layers: Split) -> list[Split]:
    """Splits whose first and last stages have some layers more or fewer, and all between as many as each other."""
    first, *inner, last = layers
    found = []
    for front, back in product(range(first - REACH, first + REACH + 1), range(last - REACH, last + REACH + 1)):
        each, more = divmod(sum(layers) - front - back, max(len(inner), 1))
        middle = [each] * (len(inner) - more) + [each + 1] * more
        found.append((front, *(middle if inner else []), back))
    sound = (one for one in found if sum(one) == sum(layers) and min(one[:-1]) > 0 and one[-1] >= 0)
    return [split for split in dict.fromkeys(sound) if split != layers]


def _unequal(job: Job, strategy: Strategy) -> float:
    """What ranks with as much to do each would save of the fullest one's work."""
    work, front, _ = layer_work(job.model, job.workload.span)
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
    return all_polished(job, [Candidate(strategy, step_s)], user_rules, timed)[0]


def all_polished(
    job: Job, candidates: Sequence[Candidate], user_rules: Sequence[Rule], timed: Sequence[Gathered] = ()
) -> list[Candidate]:
    """Strategies with the best splits found, and their simulated steps; their splits are costed side by side."""
    found, left = list(candidates), list[_Moving]()
    for place, (strategy, _) in enumerate(candidates):
        if strategy.pp > 1:
            said = job.saying(strategy)
            parts = parts_of(said, as_row(said, strategy).meshes.columns, timed if said is job else ())
            left.append(_Moving(place, said, parts, layers_of(said, strategy)))
    for _ in range(ROUNDS):
        quicker = [(one, _quicker(one, found[one.place], user_rules, faster)) for one, faster in _tried(left, found)]
        left = [one for one, better in quicker if better is not None]
        for one, better in quicker:
            if better is not None:
                found[one.place] = better
    return found


class _Moving:
    """A strategy whose split is moved: its place among the others, what it says, its parts, and the splits seen."""

    def __init__(self, place: int, job: Job, parts: Gathered, layers: Split) -> None:
        self.place, self.job, self.parts, self.layers, self.seen = place, job, parts, layers, {layers}


def _tried(left: Sequence[_Moving], found: Sequence[Candidate]) -> Iterator[tuple[_Moving, list[tuple[float, Split]]]]:
    """Each with the splits one move away that are quicker; those that share their parts are costed together."""
    for parts in {id(one.parts.parts): one.parts.parts for one in left}.values():
        some = [one for one in left if one.parts.parts is parts]
        tries = []
        for one in some:
            others = [split for split in neighbours(one.layers) if split not in one.seen]
            one.seen.update(others)
            strategy, step_s = found[one.place]
            tries.append(Tried(strategy, one.parts, others, step_s * (1 - LEAST_GAIN)))
        yield from zip(some, simulated(some[0].job, tries), strict=True)


def _quicker(
    one: _Moving, best: Candidate, user_rules: Sequence[Rule], faster: Sequence[tuple[float, Split]]
) -> Candidate | None:
    """The strategy with the best of some splits that is legal."""
    for seconds, split in faster:
        plain = split == even(sum(split), len(split))
        moved = replace(best.strategy, layers=() if plain else split)
        if not legality(one.job, moved, user_rules):
            one.layers = split
            return Candidate(moved, seconds)
    return None


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


class Tried(NamedTuple):
    """Splits of a strategy that are to take less than a limit; ``parts`` are its own."""

    strategy: Strategy
    parts: Gathered
    splits: Sequence[Split]
    limit_s: float


def simulated(job: Job, tries: Sequence[Tried]) -> list[list[tuple[float, Split]]]:
    """Splits with which each strategy fits and takes less than its limit, best first, with the simulated step.

    The strategies say the same, and their parts are in one table.
    """
    found: list[list[tuple[float, Split]]] = [[] for _ in tries]
    of = np.repeat(np.arange(len(tries)), [len(one.splits) for one in tries])
    if not len(of):
        return found
    table = [as_row(job, one.strategy) for one in tries]
    columns = {name: np.concatenate([row.meshes.columns[name] for row in table])[of] for name in FIELDS}
    shapes = [(one.strategy.schedule, one.strategy.pp, one.strategy.vp) for one in tries]
    splits = [split for one in tries for split in one.splits]
    layouts = Layouts(layout(*shapes[at], split) for at, split in zip(of.tolist(), splits, strict=True))
    meshes = Meshes(columns, np.arange(len(of)), layouts)
    parts = tries[0].parts._replace(place=np.concatenate([one.parts.place for one in tries])[of])
    recomputes, shardings = joined([row.recomputes for row in table]), joined([row.shardings for row in table])
    (some, recompute), (few, sharding) = distinct(*recomputes), distinct(*shardings)
    costs = stage_costs(job, meshes, parts)
    result = evaluate(job, meshes, costs, recomputes.take(some), take(shardings, few))
    mesh, recompute, sharding = np.arange(len(of)), recompute[of], sharding[of]
    limit_s = np.array([one.limit_s for one in tries])[of]
    fits = memory.fits(job, result.peak_bytes[mesh, recompute, sharding])
    rows = np.flatnonzero(fits & (result.bound_s[mesh, recompute, sharding] < limit_s))
    exchanged_s, after_s = result.exchanged_s[rows, sharding[rows]], result.after_s[rows, sharding[rows]]
    chosen = recomputes.take(of[rows])
    pipeline_s = pipelines_s(job, meshes.take(rows), parts.take(rows), chosen, exchanged_s, costs.p2p_s[rows])
    step_s = step.seconds(job, pipeline_s, after_s)
    for total_s, at in zip(step_s.tolist(), rows.tolist(), strict=True):
        if total_s < limit_s[at]:
            found[of[at]].append((total_s, splits[at]))
    return [sorted(faster) for faster in found]
