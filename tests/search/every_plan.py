"""Every plan of a part of the space of small random fleets, by the reported time, against the planner's.

``python -m tests.search.every_plan [--cases 1000] [--first 0] [--journal FILE] [--save]`` writes
benchmarks/results/<date>_fleet_brute_force.json. A journal has a line for every case that was judged, which is not
judged again: a run goes on where it was stopped, and several of them share the work.

A fleet has one or two pools of one to four GPUs, or three of one or two. Plans are written as text and estimated as
anybody would: pipelines over any pools in any order, each with its own tensor parallelism, stages and recompute, every
split of the layers, every number of pipelines and micro-batch, groups that share the batch, pools cut over groups, GPUs
left idle. The part: dense models, no chunks, no context parallelism, ZeRO 1, no recompute or full, micro-batches that
divide the batch, at most three groups. A plan is left out only if what its stages have to do takes longer than the best
plan met so far. Of the search there is nothing here but the seconds of a layer, the embedding and the head on one rank,
which that bound is made of.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from astra import api
from astra.catalog.clusters import parse_cluster
from astra.catalog.models import model as find_model
from astra.errors import NoFeasiblePlan
from astra.schedule.steady import step_s
from astra.search.fleet.detail import costed_group, estimate, pipeline_of
from astra.search.fleet.plan import fleet_of, plan_fleet
from astra.search.fleet.pools import Fleet
from astra.search.fleet.space import FrameSpace
from astra.search.one_pool import plan_pool
from astra.search.world import World
from astra.spec.mixed_text import parse_mixed
from astra.spec.request import requested

TYPES: Final = ("H100", "A100-80", "A100-40", "H20", "L40S", "H800")
FIXED: Final = ("vp=1", "cp=1", "zero=1")  # what is not enumerated here
RECOMPUTES: Final = ("none", "full")
LOOSE: Final = 0.97  # of a layer's seconds: groups on one pool may say other words than pipelines over several
MOST_GROUPS: Final = 3
MOST_ESTIMATES: Final = 4000  # of one case; beyond, it is counted as not finished


class Shape(NamedTuple):
    """A group without its micro-batches."""

    used: tuple[int, ...]  # GPUs by pool
    samples: int  # of one micro-batch of all pipelines
    stage_s: tuple[float, ...]  # at least
    words: tuple[Any, ...]  # pools in order, degrees, recomputes, layers, pipelines, micro-batch

    def least_s(self, microbatches: int) -> float:
        """A stage does its micro-batches after one came to it, and that one goes back."""
        before, least = 0.0, 0.0
        for seconds in self.stage_s:
            least, before = max(least, before + microbatches * seconds), before + seconds
        return least

    def told(self, names: Sequence[str], microbatches: int) -> str:
        """As a group of a strategy."""
        order, degrees, kept, split, dp, mbs = self.words
        if len(order) == 1:
            (tp, pp), layers = degrees[0], ",".join(map(str, split))
            words = f"{' sp' if tp > 1 else ''} zero1 recompute={kept[0]} overlap=grad,param{',tp' if tp > 1 else ''}"
            plain = f"tp{tp} pp{pp} dp{dp} mbs{mbs}{words} layers={layers}"
            return f"[m{microbatches}: {names[order[0]]} {plain}]"
        parts, first = [], 0
        for pool, (tp, pp), kind in zip(order, degrees, kept, strict=True):
            layers = ",".join(map(str, split[first : first + pp]))
            parts.append(f"{names[pool]} tp{tp} pp{pp} layers={layers} recompute={kind}")
            first += pp
        return f"[dp{dp} mbs{mbs} m{microbatches}: {' + '.join(parts)}]"


class Case(NamedTuple):
    """A small fleet and what it is asked for."""

    model: Any
    gpus: tuple[str, ...]
    batch: int
    seq: int
    headroom: float

    @property
    def asked(self) -> dict[str, Any]:
        """The request's fields."""
        return {"gpus": list(self.gpus), "batch": self.batch, "seq": self.seq, "headroom": self.headroom,
                "fix": list(FIXED), "rank": "expected"}  # fmt: skip


def random_case(seed: int) -> Case:
    """One to three pools, a model of a few layers, so large that memory may bind; a batch that may not divide."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(TYPES, size=int(rng.choice([1, 2, 2, 3])), replace=False)
    most = 4 if len(kinds) < 3 else 2
    gpus = tuple(f"{rng.integers(1, most + 1)}x{kind}" for kind in kinds)
    hidden = int(rng.choice([2048, 4096, 8192]))
    spec = msgspec.structs.replace(
        find_model("llama-2-7b"), layers=int(rng.integers(1, 5)), hidden=hidden, ffn=int(rng.choice([3, 4])) * hidden,
        heads=8, kv_heads=8, head_dim=hidden // 8, vocab=int(rng.choice([2048, 32000])),
    )  # fmt: skip
    batch, seq = int(rng.choice([2, 3, 4, 5, 6, 7, 8])), int(rng.choice([1024, 4096, 8192]))
    return Case(spec, gpus, batch, seq, float(rng.choice([0.08, 0.3, 0.6])))


def planned_s(case: Case) -> tuple[float, str]:
    """What the planner reports."""
    world = World.of(requested("plan", case.model, case.asked))
    try:
        best = (plan_fleet(world) if world.several else plan_pool(world)).best
    except NoFeasiblePlan:
        return np.inf, "nothing fits"
    return best.estimate.step_s, best.strategy


def fleet_in(case: Case) -> Fleet:
    """The fleet, also of one pool."""
    cluster = parse_cluster("+".join(case.gpus))
    job = api.make_job(
        case.model, gpus=None, cluster=msgspec.structs.replace(cluster, pools=cluster.pools[:1]), node=None,
        batch=case.batch, seq=case.seq, tokens=None, precision="bf16", optimizer="adam", task="pretrain", lora_rank=16,
        runtime="megatron", headroom=case.headroom,
    )  # fmt: skip
    return fleet_of(cluster, job, exact=False)[0]


@cache
def splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    """Every way to deal layers to stages, one at least to each."""
    cuts = combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in zip((0, *cut), (*cut, layers), strict=True)) for cut in cuts]


class EveryPlan:
    """All plans of one case that may beat a time."""

    def __init__(self, case: Case) -> None:
        space = FrameSpace(fleet_in(case))
        self.case, self.layers, self.estimates = case, case.model.layers, 0
        self.fleet = space.fleet._replace(columns=tuple(way.columns for way in space.ways))
        self._work_s = dict(self._each_s(space))
        self._done: dict[tuple[str, int, frozenset[int]], float] = {}

    def _each_s(self, space: FrameSpace) -> Iterator[tuple[tuple[int, int, int, str], tuple[float, float, float]]]:
        """Seconds of one layer, of the embedding and of the head by pool, tp, micro-batch and recompute."""
        for pool, way in enumerate(space.ways):
            shards = way.columns.shards
            for row in range(len(shards.tp)):
                for recompute in RECOMPUTES:
                    layer_s = float(space._prefix(pool, row, recompute)[0][1])
                    first_s, last_s = way.columns.work_s[row, -2:].tolist()
                    each_s = (LOOSE * layer_s, LOOSE * first_s, LOOSE * last_s)
                    yield (pool, int(shards.tp[row]), int(shards.mbs[row]), recompute), each_s

    def shapes(self, below_s: float) -> Iterator[Shape]:
        """Every group whose stages take less than a time."""
        counts = [pool.gpus for pool in self.fleet.cluster.pools]
        for dp, mbs in product(range(1, sum(counts) + 1), range(1, self.case.batch + 1)):
            if dp * mbs <= self.case.batch:
                for size in range(1, len(counts) + 1):
                    for order in permutations(range(len(counts)), size):
                        yield from self._along(order, counts, dp, mbs, below_s)

    def _along(self, order: tuple[int, ...], counts: list[int], dp: int, mbs: int, below_s: float) -> Iterator[Shape]:
        """Groups over some pools in this order."""
        able = [[(tp, pp) for tp in (1, 2, 4) for pp in range(1, counts[pool] // (dp * tp) + 1)] for pool in order]
        for degrees in product(*able):
            stages = [pp for _, pp in degrees]
            if sum(stages) > self.layers:
                continue
            for kept in product(RECOMPUTES, repeat=len(order)):
                keys = [(pool, tp, mbs, kind) for pool, (tp, _), kind in zip(order, degrees, kept, strict=True)]
                if any(key not in self._work_s for key in keys):
                    continue
                each_s = [self._work_s[key][0] for key, pp in zip(keys, stages, strict=True) for _ in range(pp)]
                ends_s = self._work_s[keys[0]][1], self._work_s[keys[-1]][2]
                used = [0] * len(counts)
                for pool, (tp, pp) in zip(order, degrees, strict=True):
                    used[pool] = dp * tp * pp
                for split in splits(self.layers, sum(stages)):
                    seconds = [count * one for count, one in zip(split, each_s, strict=True)]
                    seconds[0] += ends_s[0]
                    seconds[-1] += ends_s[1]
                    if max(seconds) < below_s:
                        yield Shape(tuple(used), dp * mbs, tuple(seconds), (order, degrees, kept, split, dp, mbs))

    def best_s(self, below_s: float) -> tuple[float, str]:
        """The least reported step of all plans below a time, and its plan."""
        best, host_s = (below_s, ""), self.fleet.job.runtime.host.step_s
        dealt = [
            (shape.least_s(m), shape, m)
            for shape in self.shapes(below_s)
            for m in range(1, self.case.batch // shape.samples + 1)
            if shape.least_s(m) + host_s < below_s
        ]
        by_share: dict[tuple[tuple[int, ...], int], list[tuple[float, Shape, int]]] = {}
        for entry in dealt:
            by_share.setdefault((entry[1].used, entry[1].samples * entry[2]), []).append(entry)
        for some in by_share.values():
            some.sort(key=lambda entry: entry[0])
        for parts in sorted(self._choices(by_share), key=lambda parts: max(by_share[part][0][0] for part in parts)):
            if self.estimates > MOST_ESTIMATES:
                break
            if max(by_share[part][0][0] for part in parts) + host_s >= best[0]:
                break
            firsts = [by_share[part][0][1].told(self.fleet.names, by_share[part][0][2]) for part in parts]
            pools = frozenset(pool for used, _ in parts for pool, gpus in enumerate(used) if gpus)
            told = []
            for place, part in enumerate(parts):
                others = firsts[:place] + firsts[place + 1 :]
                told.append(self._quickest(by_share[part], others, pools, best[0] - host_s))
                if told[-1] is None:
                    break
            else:
                best = min(best, self._reported(" ".join(text for text in told if text)))
        return best

    def _choices(self, by_share: dict[tuple[tuple[int, ...], int], Any]) -> list[tuple[Any, ...]]:
        """Sets of shares on GPUs of their own that add up to the batch."""
        counts = tuple(pool.gpus for pool in self.fleet.cluster.pools)
        keys, found = sorted(by_share), list[tuple[Any, ...]]()

        def choose(first: int, chosen: tuple[Any, ...], left: tuple[int, ...], samples: int) -> None:
            if samples == 0:
                found.append(chosen)
                return
            if len(chosen) == MOST_GROUPS:
                return
            for place in range(first, len(keys)):
                used, share = keys[place]
                rest = tuple(have - need for have, need in zip(left, used, strict=True))
                if share <= samples and min(rest) >= 0:
                    choose(place, (*chosen, keys[place]), rest, samples - share)

        choose(0, (), counts, self.case.batch)
        if len(counts) == 1:  # the planner for one pool uses all of it, in one group
            return [parts for parts in found if len(parts) == 1 and parts[0][0] == counts]
        return found

    def _quickest(
        self, some: list[tuple[float, Shape, int]], others: list[str], pools: frozenset[int], below_s: float
    ) -> str | None:
        """Of groups with one share on the same GPUs, that which is done first beside others like these."""
        best, told = below_s, None
        for least_s, shape, m in some:
            if least_s >= best:
                break
            text = shape.told(self.fleet.names, m)
            key = (text, len(others), pools)
            if key not in self._done:
                self._done[key] = self._done_s(text, others)
            if self._done[key] < best:
                best, told = self._done[key], text
        return told

    def _done_s(self, text: str, others: list[str]) -> float:
        """When a group is done, beside others over the same pools; infinite if it is not legal or does not fit."""
        self.estimates += 1
        strategy = parse_mixed(" ".join([text, *others]), self.fleet.usual)
        group = strategy.groups[0]
        parts = costed_group(self.fleet, strategy, group, ())
        if any(part.violations or not all(stage.fits for stage in part.stages) for part in parts):
            return np.inf
        pipeline = pipeline_of(self.fleet, group, parts)
        p, v, m = pipeline.shape(group)
        seconds = step_s(
            pipeline.schedule, p=p, v=v, m=m, **pipeline.stages._asdict(), blocking_p2p=not group.overlaps_transfers
        )
        return float(seconds + max(part.after_s.max() for part in parts))

    def _reported(self, text: str) -> tuple[float, str]:
        """What the estimate of a whole plan says."""
        self.estimates += 1
        found = estimate(self.fleet, parse_mixed(text, self.fleet.usual))
        return (found.step_s, text) if found.fits and found.legal else (np.inf, text)


class Verdict(NamedTuple):
    """One case: what the planner reports, the best of all plans, and whether all were looked at."""

    seed: int
    planned_s: float
    best_s: float
    finished: bool
    plan: str
    better: str

    @property
    def missed(self) -> float:
        """By how much the planner's plan is slower than the best."""
        return 0.0 if self.best_s >= self.planned_s else self.planned_s / self.best_s - 1


def judged(seed: int) -> Verdict:
    """A case planned, and every plan of it."""
    case = random_case(seed)
    seconds, plan = planned_s(case)
    every = EveryPlan(case)
    best, text = every.best_s(seconds * (1 - 1e-9))
    return Verdict(seed, seconds, best, every.estimates <= MOST_ESTIMATES, plan, text)


def judged_once(seeds: range, journal: Path | None) -> list[Verdict]:
    """Verdicts of cases, told as they come; those in the journal are taken from it."""
    known: dict[int, Verdict] = {}
    if journal is not None and journal.exists():
        lines = [Verdict(*json.loads(line)) for line in journal.read_text().splitlines()]
        known = {one.seed: one for one in lines}
    for seed in seeds:
        if seed in known:
            continue
        verdict = known[seed] = judged(seed)
        if journal is not None:
            with journal.open("a") as lines_of:
                lines_of.write(json.dumps(verdict) + "\n")
        if verdict.missed > 1e-6:
            print(
                f"{seed}: {verdict.missed:.3%} {random_case(seed)[1:]}\n  {verdict.plan}\n  {verdict.better}",
                flush=True,
            )
    return [known[seed] for seed in seeds]


def main() -> None:
    """Judge many cases, print those that were missed, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    began = time.process_time()
    verdicts = judged_once(range(options.first, options.first + options.cases), options.journal)
    some = [one for one in verdicts if np.isfinite(min(one.planned_s, one.best_s))]
    figures = {
        "date": datetime.date.today().isoformat(),
        "cases": len(verdicts),
        "first": options.first,
        "with a plan": len(some),
        "finished": sum(one.finished for one in verdicts),
        "equal": sum(one.missed <= 1e-6 for one in verdicts),
        "equal_share": sum(one.missed <= 1e-6 for one in verdicts) / len(verdicts),
        "worst": max(one.missed for one in verdicts),
        "unfinished": [one.seed for one in verdicts if not one.finished],
        "missed": {str(one.seed): one.missed for one in verdicts if one.missed > 1e-6},
        "processor_s": time.process_time() - began,
    }
    print(json.dumps(figures, indent=2))
    if options.save:
        path = Path(__file__).parents[2] / "benchmarks" / "results" / f"{figures['date']}_fleet_brute_force.json"
        path.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
