"""The planner against the oracle: every strategy costs the same, and the search misses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from astra.cost.stage import Meshes, gather_parts, stage_costs
from astra.cost.step import evaluate
from astra.search.detail import layers_of
from astra.search.planner import Found, search
from astra.space.enumerate import LATE, Space
from astra.space.expression import read_rules
from astra.space.rules import Rule
from astra.spec.job import Job
from astra.spec.runtime import changed
from astra.spec.strategy import METHODS, OFFLOADS, RECOMPUTES, SCHEDULES
from tests.oracle.costs import Holder, Mesh, Saver, taken_apart
from tests.oracle.oracle import Oracle, mesh_of
from tests.oracle.requests import KINDS, Request, random_request, rules_file, with_memory
from tests.oracle.timing import TIMINGS, timing

CLOSE = 1e-11
EVERYTHING = 10_000  # groups: more than there are
SEEDS = {"roofline": 200, "fitted": 50}
CHUNK = 10
RELATIVES = ("", "H100-SXM5-80GB", "A100-SXM4-80GB", "B200")  # whose measurements the made-up GPU borrows
Choice = tuple[Mesh, Saver, Holder]


class Cost(NamedTuple):
    step_s: float  # simulated; a lower bound of it where many are costed at once
    peak_bytes: float


class Case(NamedTuple):
    """A request, and everything the oracle has to say about it."""

    request: Request
    rules: tuple[Rule, ...]
    oracle: Oracle
    costs: dict[Choice, Cost]

    @property
    def speaks_late(self) -> bool:
        """Whether a rule of the user or the runtime can only be checked on a whole strategy."""
        joint = Space(self.request.job, self.request.limits).late_rules
        return bool(joint) or any(rule.needs & LATE for rule in self.rules)


def make_case(seed: int, folder: Path, name: str) -> Case:
    request = random_request(seed, relative="" if name == "roofline" else RELATIVES[seed % len(RELATIVES)])
    rules = read_rules(rules_file(request.rules, folder)) if request.rules else ()
    oracle = Oracle(request.job, request.limits, rules)
    costs = {choice: Cost(oracle.step_s(*choice), oracle.peak_bytes(*choice)) for choice in oracle.strategies()}
    return Case(request, rules, oracle, costs)


def vectorised(case: Case) -> dict[Choice, Cost]:
    """The same by columns: every mesh with every saver and holder."""
    job, space = case.request.job, Space(case.request.job, case.request.limits, case.rules)
    meshes, _, _ = space.expand(np.arange(len(space.strategies))) if len(space.strategies) else (None, 0, 0)
    if not meshes:
        return {}
    costs = stage_costs(job, meshes, gather_parts(job, meshes.columns))
    result = evaluate(job, meshes, costs, space.savers, space.holders)
    rows = list(_meshes(meshes))
    codes = zip(*(column.tolist() for column in space.savers), strict=True)
    savers = [Saver(RECOMPUTES[recompute], METHODS[method], n) for recompute, method, n in codes]
    pairs = zip(*(column.tolist() for column in space.holders), strict=True)
    holders = [Holder(zero, OFFLOADS[offload]) for zero, offload in pairs]
    return {
        (rows[i], savers[j], holders[k]): Cost(float(result.bound_s[i, j, k]), float(result.peak_bytes[i, j, k]))
        for i, j, k in np.argwhere(result.known).tolist()
    }


def _meshes(meshes: Meshes) -> Iterator[Mesh]:
    for place, layout in enumerate(meshes.layout.tolist()):
        row = {name: column[place].item() for name, column in meshes.columns.items()}
        yield mesh_of({**row, "schedule": SCHEDULES[row["schedule"]], "layers": meshes.layouts[layout].layers})


def with_limit(case: Case, seed: int) -> Job:
    """The job on GPUs that hold none, a few, half or all of its strategies."""
    job, runtime = case.request.job, case.request.job.runtime
    peaks = sorted(cost.peak_bytes for cost in case.costs.values())
    if not peaks:
        return job
    share = random.Random(seed).choice((0.0, 0.1, 0.5, 1.0))
    most = peaks[round(share * (len(peaks) - 1))] * (0.999 if share == 0.0 and seed % 2 else 1 + 1e-9)
    reserved = most * runtime.memory.reserved_ratio + 5e8
    return with_memory(job, reserved / (1 - job.headroom) + runtime.memory.context_bytes)


def best_of(oracle: Oracle, costs: Iterable[tuple[Choice, Cost]]) -> dict[tuple[int, int, int], float]:
    """The least step time of each (tp, pp, ep) that fits."""
    best: dict[tuple[int, int, int], float] = {}
    for (mesh, _, _), cost in costs:
        if cost.step_s < inf and oracle.fits(cost.peak_bytes):  # a schedule may not be defined for so few micro-batches
            group = (mesh.shard.t, mesh.p, mesh.shard.e)
            best[group] = min(best.get(group, inf), cost.step_s)
    return best


def check_costs(case: Case) -> None:
    columns = vectorised(case)
    missing = case.costs.keys() - columns.keys()
    assert not missing, f"the oracle has {len(missing)} strategies that the space lacks: {next(iter(missing))}"
    if not case.speaks_late:
        extra = columns.keys() - case.costs.keys()
        assert not extra, f"the space has {len(extra)} strategies that the oracle lacks: {next(iter(extra))}"
    for choice, cost in case.costs.items():
        if choice[0].p == 1:
            assert columns[choice].step_s == pytest.approx(cost.step_s, rel=CLOSE), choice
        assert columns[choice].step_s <= cost.step_s * (1 + CLOSE), choice
        assert columns[choice].peak_bytes == pytest.approx(cost.peak_bytes, rel=CLOSE), choice


def check_search(case: Case, seed: int) -> None:
    job = with_limit(case, seed)
    limited = Oracle(job, case.request.limits, case.rules)
    best = best_of(limited, case.costs.items())
    for keep in (1, 3, EVERYTHING):
        found = search(job, case.request.limits, user_rules=case.rules, keep=keep)
        check_ledger(found)
        wanted = sorted(best.values())[:keep]
        assert [candidate.step_s for candidate in found.candidates] == pytest.approx(wanted, rel=CLOSE)
        for candidate in found.candidates:
            choice = taken_apart(candidate.strategy, layers_of(job, candidate.strategy))
            # A switch that holds nothing back is off in the answer, so the oracle is asked anew.
            assert limited.step_s(*choice) == pytest.approx(candidate.step_s, rel=CLOSE)
            assert limited.fits(limited.peak_bytes(*choice))
            strategy = candidate.strategy
            assert candidate.step_s == pytest.approx(best[strategy.tp, strategy.pp, strategy.ep], rel=CLOSE)
    assert found.considered == limited.considered()
    if not case.speaks_late:
        turned_away = sum(found.refused.values()) + found.dominated
        assert found.considered - turned_away == len(list(limited.strategies()))


def check_ledger(found: Found) -> None:
    """Every strategy is accounted for once."""
    counts = (*found.refused.values(), found.dominated, found.too_large, found.slower, found.feasible)
    assert min(counts) >= 0
    assert sum(counts) == found.considered


def check_switches(case: Case) -> None:
    """No setting of the switches beats having them on, so that leaving the others out misses nothing."""
    oracle = case.oracle
    every = ((choice, Cost(oracle.step_s(*choice), oracle.peak_bytes(*choice))) for choice in oracle.strategies(True))
    best = best_of(oracle, case.costs.items())
    for group, step_s in best_of(oracle, every).items():
        assert best[group] <= step_s * (1 + CLOSE), group


@pytest.mark.parametrize(
    ("name", "first"), [(name, first) for name in TIMINGS for first in range(0, SEEDS[name], CHUNK)]
)
def test_columns_equal_the_oracle_and_the_search_finds_the_best(name: str, first: int, tmp_path: Path) -> None:
    with timing(name):
        for seed in range(first, first + CHUNK):
            case = make_case(seed, tmp_path, name)
            try:
                check_costs(case)
                check_search(case, seed)
                if case.request.every_switch and not case.rules:
                    check_switches(case)
            except AssertionError as error:
                asked = (case.request.job.model.name, case.request.limits.describe(), case.request.rules)
                raise AssertionError(f"request {seed} {asked}: {error}") from error


def test_the_requests_are_varied() -> None:
    """What the comparison rests on: every kind of model, restrictions, rules, several nodes, all sizes."""
    requests = [random_request(seed) for seed in range(SEEDS["roofline"])]
    jobs = [request.job for request in requests]
    assert {job.model.name for job in jobs} == {f"tiny-{kind}" for kind in KINDS}
    assert {job.pool.gpus for job in jobs} >= {1, 2, 3, 4, 6, 8, 12, 16}
    assert {job.workload.task for job in jobs} == {"pretrain", "finetune", "lora"}
    assert {job.runtime.name for job in jobs} == {"megatron", "torchtitan", "zero"}
    assert sum(job.runtime.amount("bucket_bytes") > 0 for job in jobs) > 40
    assert sum(bool(request.rules) for request in requests) > 50
    assert sum(bool(request.limits) for request in requests) > 100
    assert sum(job.pool.gpus > job.pool.gpus_per_node for job in jobs) > 50
    assert sum(request.every_switch for request in requests) > 20


def test_a_wrong_cost_is_noticed(tmp_path: Path) -> None:
    """The comparison can fail: a second of host work that the columns know and the oracle does not."""
    with timing("roofline"):
        case = make_case(3, tmp_path, "roofline")
        job = case.request.job
        slower = msgspec.structs.replace(job, runtime=changed(job.runtime, step_s=1.0))
        with pytest.raises(AssertionError):
            check_costs(case._replace(request=case.request._replace(job=slower)))
