"""Random fleets of many small pools, each planned with parts of it: no part may be quicker than the whole.

``python -m tests.properties.parts_of_fleets [--cases 24] [--first 0] [--journal FILE] [--save]`` judges every pool left
out and some smaller parts, and writes benchmarks/results/<date>_fleet_parts.json. A journal has a line for every case
that was judged, which is not judged again: a run goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from astra.catalog.clusters import parse_cluster
from astra.errors import NoFeasiblePlan
from astra.search.fleet.plan import plan_fleet
from astra.search.one_pool import plan_pool
from astra.search.world import World
from astra.spec.request import requested

TYPES: Final = ("B200", "H200", "H100", "H800", "H20", "A100-80", "A100-40", "A800", "L40S", "L4")
COUNTS: Final = (1, 2, 3, 4, 5, 8, 16)
MODELS: Final = ("gpt2-xl", "llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-3-8b")
SMALLER: Final = 2  # parts of which more than one pool is left out


class Case(NamedTuple):
    """A fleet and what it trains."""

    pools: tuple[str, ...]
    model: str
    batch: int
    seq: int


class Verdict(msgspec.Struct, frozen=True):
    """How much longer the fleet takes than its quickest part."""

    seed: int
    step_s: float
    part_s: float
    part: tuple[str, ...]

    @property
    def missed(self) -> float:
        """0 where no part is quicker, or none fits."""
        return 0.0 if math.isinf(self.part_s) else max(self.step_s / self.part_s - 1, 0.0)


def random_case(seed: int) -> Case:
    """Six to eight pools of few GPUs, a small model, few short samples."""
    draw = random.Random(seed)
    kinds = draw.sample(TYPES, draw.randint(6, 8))
    pools = tuple(f"{draw.choice(COUNTS)}x{kind}" for kind in kinds)
    return Case(pools, draw.choice(MODELS), draw.choice((16, 24, 48, 64, 96, 100, 128, 256)), draw.choice((512, 2048)))


def parts(case: Case, seed: int) -> Iterator[tuple[str, ...]]:
    """Every part with one pool left out, and some smaller ones."""
    draw, pools = random.Random(seed), case.pools
    yield from (tuple(pool for pool in pools if pool != without) for without in pools)
    for _ in range(SMALLER):
        kept = set(draw.sample(pools, draw.randint(2, len(pools) - 2)))
        yield tuple(pool for pool in pools if pool in kept)


def step_s(case: Case) -> float:
    """The best step by the expected time, infinite where nothing fits."""
    asked = {"gpus": ["8xH100"], "batch": case.batch, "seq": case.seq, "rank": "expected"}
    world = World.of(requested("plan", case.model, asked), parse_cluster("+".join(case.pools)))
    try:
        found = plan_fleet(world) if len(world.cluster.pools) > 1 else plan_pool(world)
    except NoFeasiblePlan:
        return float("inf")
    return found.best.estimate.step_s


def judge(seed: int) -> Verdict:
    """A fleet and its quickest part."""
    case = random_case(seed)
    part_s, part = min((step_s(case._replace(pools=part)), part) for part in parts(case, seed))
    return Verdict(seed, step_s(case), part_s, part)


def main() -> None:
    """Judge many fleets, print those that a part is quicker than, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    seeds, known, began = range(options.first, options.first + options.cases), dict[int, Verdict](), time.process_time()
    if options.journal is not None and options.journal.exists():
        lines = options.journal.read_text().splitlines()
        known = {one.seed: one for line in lines if (one := msgspec.json.decode(line, type=Verdict))}
    for seed in seeds:
        if seed not in known:
            verdict = known[seed] = judge(seed)
            if options.journal is not None:
                with options.journal.open("a") as journal:
                    journal.write(msgspec.json.encode(verdict).decode() + "\n")
            if verdict.missed > 1e-9:
                print(
                    f"{seed}: {verdict.missed:.3%} {random_case(seed)}\n  without the others: {verdict.part}",
                    flush=True,
                )
    verdicts = [known[seed] for seed in seeds]
    figures = {
        "date": datetime.date.today().isoformat(),
        "first": options.first,
        "cases": len(verdicts),
        "plans": sum(1 + len(list(parts(random_case(seed), seed))) for seed in seeds),
        "missed": {str(one.seed): one.missed for one in verdicts if one.missed > 1e-9},
        "worst": max(one.missed for one in verdicts),
        "processor_s": time.process_time() - began,
    }
    print(json.dumps(figures, indent=2))
    if options.save:
        path = Path(__file__).parents[2] / "benchmarks" / "results" / f"{figures['date']}_fleet_parts.json"
        path.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
