"""The search over all counts at once finds what the planner finds for each count, and its bounds are bounds."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import astra
from astra.api import make_job
from astra.columns import from_strategy
from astra.errors import InputError, NoFeasiblePlan
from astra.evidence.bars import Doubt
from astra.partition.problem import Effort
from astra.rules.restrictions import Restrictions, parse_restrictions
from astra.search.counts import (
    BestByCount,
    CountSearch,
    CountSpace,
    CountTable,
    compute_bound_s,
    least_by_count,
    search_counts,
    tabulate,
)
from astra.search.engine import search
from astra.search.least import flops_bound_s
from astra.spec.job import Job
from tests.tiers import sampled

USUAL: dict[str, Any] = {
    "cluster": None, "node": None, "tokens": None, "precision": "bf16", "optimizer": "adam", "task": "pretrain",
    "lora_rank": 16, "runtime": "megatron", "headroom": 0.08,
}  # fmt: skip
NONE = Restrictions()
CASES: dict[str, tuple[str, dict[str, Any], Restrictions]] = {
    "dense": ("llama-3.2-1b", {"gpus": "64xH100", "batch": 96, "seq": 4096}, NONE),
    "odd batch": ("llama-3-8b", {"gpus": "56xA100-80", "batch": 84, "seq": 2048}, NONE),
    "tight memory": ("llama-3-70b", {"gpus": "32xH100", "batch": 64, "seq": 8192}, NONE),
    "experts": ("mixtral-8x7b", {"gpus": "48xH100", "batch": 96, "seq": 4096}, NONE),
    "rack": ("llama-3-8b", {"gpus": "48xGB200", "batch": 48, "seq": 4096}, NONE),
    "torchtitan": ("llama-3-8b", {"gpus": "48xL40S", "batch": 48, "seq": 4096, "runtime": "torchtitan"}, NONE),
    "lora": ("qwen2.5-7b", {"gpus": "24xA100-80", "batch": 48, "seq": 4096, "task": "lora"}, NONE),
    "restricted": (
        "llama-3-8b",
        {"gpus": "48xH100", "batch": 48, "seq": 8192},
        parse_restrictions(fix=["tp=2"], forbid=["recompute=none"], maximum=["pp=6"]),
    ),
}


def case(name: str) -> tuple[Job, np.ndarray, Restrictions]:
    model, request, restrictions = CASES[name]
    job = make_job(model, **{**USUAL, **request})
    return job, np.arange(job.pool.node.gpus, job.pool.gpus + 1, job.pool.node.gpus), restrictions


def without_limit(best_s: np.ndarray) -> np.ndarray:
    return np.full(len(best_s), np.inf)


@pytest.mark.parametrize("name", sampled(CASES, every=2))
def test_every_count_gets_the_plan_the_planner_finds(name: str) -> None:
    job, counts, restrictions = case(name)
    table = tabulate(job, CountSpace(job, counts, restrictions))
    by_count = search_counts(job, table, without_limit)
    bound_s = least_by_count(table, table.bound_s)
    compute_s = least_by_count(table, compute_bound_s(job, table))
    assert np.isfinite(by_count.step_s).any()
    for place, gpus in enumerate(counts.tolist()):
        found = search(job.on(gpus), restrictions, keep=1).candidates
        best_s = found[0].step_s if found else np.inf
        assert by_count.step_s[place] == pytest.approx(best_s, rel=1e-9)
        strategy = by_count.strategies[place]
        assert (strategy is None) == (not found)
        if strategy is not None:
            assert strategy.gpus == gpus
            assert bound_s[place] <= best_s
            assert compute_s[place] <= best_s
            assert flops_bound_s(job, counts)[place] <= best_s


@pytest.mark.parametrize("name", sampled(CASES, every=2))
def test_and_the_one_of_the_least_upper_end(name: str) -> None:
    """Ranked by upper ends, every count gets the plan that the planner names first."""
    job, counts, restrictions = case(name)
    table = tabulate(job, CountSpace(job, counts, restrictions))
    by_count = CountSearch(job, table, without_limit, Effort(), upper=True).go_on()
    for place, gpus in enumerate(counts.tolist()):
        doubt = Doubt(job.on(gpus))
        found = search(job.on(gpus), restrictions, keep=1, doubt=doubt).candidates
        best_s = found[0].step_s * float(doubt.of(from_strategy(found[0].strategy))[0]) if found else np.inf
        assert by_count.step_s[place] == pytest.approx(best_s, rel=1e-9)


@pytest.mark.parametrize("gpu", ["H100", "B200", "MI300X", "A100-80", "L40S", "H20", "GB200", "RTX4090"])
@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("llama-3-8b", {}),
        ("llama-3-8b", {"precision": "fp8"}),
        ("llama-3-8b", {"task": "lora"}),
        ("deepseek-v2-lite", {}),
        ("t5-3b", {}),
        ("gpt-oss-20b", {"runtime": "torchtitan"}),
    ],
)
def test_no_sharding_beats_peak_flops(model: str, more: dict[str, Any], gpu: str) -> None:
    try:
        job = make_job(model, **USUAL | {"gpus": f"64x{gpu}", "batch": 256, "seq": 2048} | more)
    except InputError:
        pytest.skip(f"{gpu} has no {more['precision']}")
    table = tabulate(job, CountSpace(job, np.array([8, 64])))
    for bound_s in (compute_bound_s(job, table) * table.waits[table.place], table.bound_s):
        assert (flops_bound_s(job, table.space.counts) <= least_by_count(table, bound_s)).all()


@pytest.mark.parametrize("name", ["dense", "tight memory", "experts"])
def test_a_climb_in_parts_ends_where_one_at_once_does(name: str) -> None:
    job, counts, restrictions = case(name)
    table = tabulate(job, CountSpace(job, counts, restrictions))
    whole = search_counts(job, table, without_limit)
    effort = Effort(1.0)
    rising = CountSearch(job, table, without_limit, effort)
    by_count, parts = rising.go_on(), 1
    assert np.isfinite(by_count.step_s).any()
    while np.isfinite(by_count.open_s).any():
        # What is not yet found is never below what is told of it.
        assert (np.minimum(by_count.step_s, by_count.open_s) <= whole.step_s * (1 + 1e-9)).all()
        effort.most = effort.spent + 200.0
        by_count, parts = rising.go_on(), parts + 1
    assert parts > 1
    assert by_count.step_s == pytest.approx(whole.step_s, rel=1e-12)


def test_a_limit_hides_only_what_does_not_beat_it() -> None:
    job, counts, restrictions = case("dense")
    table = tabulate(job, CountSpace(job, counts, restrictions))
    free = search_counts(job, table, without_limit)
    middle_s = float(np.median(free.step_s))
    limited = search_counts(job, table, lambda best_s: np.full(len(best_s), middle_s))
    below = free.step_s < middle_s
    assert below.any()
    assert not below.all()
    assert limited.step_s[below] == pytest.approx(free.step_s[below], rel=1e-9)
    assert limited.evaluated < free.evaluated


def test_cores_are_shared_between_gpus_only_where_they_are_the_same() -> None:
    job, counts, _ = case("dense")
    space = CountSpace(job, counts)
    other = make_job("llama-3.2-1b", **{**USUAL, "gpus": "64xA100-80", "batch": 96, "seq": 4096})
    again = space.of(other, counts)
    assert again is not None
    assert all((again.grids[name] == CountSpace(other, counts).grids[name]).all() for name in space.grids)
    rack = make_job("llama-3.2-1b", **{**USUAL, "gpus": "64xGB200", "batch": 96, "seq": 4096})
    assert space.of(rack, counts) is None
    assert space.of(other, counts[:-1]) is None


def test_a_table_lives_as_long_as_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[tuple[int, int]] = []
    go_on = CountSearch.go_on

    def watched(self: CountSearch, *, found: bool = False) -> BestByCount:
        known = gc.get_objects()
        tables = sum(type(one) is CountTable and bool(one.gathered.parts) for one in known)
        alive.append((tables, sum(type(one) is CountSearch for one in known)))
        return go_on(self, found=found)

    monkeypatch.setattr(CountSearch, "go_on", watched)
    gc.collect()
    astra.rent("gpt-2-xl", tokens="1B", batch=64, seq=1024, max_gpus=32, gpus=["H100", "A100-80", "L40S"])
    assert len(alive) > 3
    assert all(tables <= searches for tables, searches in alive)


@pytest.mark.parametrize("goal", [{"objective": "pareto"}, {"objective": "cheapest"}, {"budget": 1e9}, {}])
@pytest.mark.parametrize("limit", [{"fix": "etp=2"}, {"minimum": "ep=2"}])
def test_limits_of_experts_hold_for_models_without_any(goal: dict[str, Any], limit: dict[str, Any]) -> None:
    money = {"tokens": 1e9, "money": {"usd_per_gpu_h": 2.0}}
    with pytest.raises(NoFeasiblePlan):
        astra.plan("gpt-2", gpus="8xH100", batch=16, seq=1024, **money, **goal, **limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("runtime", ["megatron", "megatron-bridge"])
def test_the_ledger_is_of_all_searches_of_a_job(runtime: str) -> None:
    answer = astra.plan("llama-2-7b", gpus="8xH100", batch=64, seq=2048, runtime=runtime, top=1)
    refused = sum(reject.strategies for reject in answer.rejects)
    assert refused + answer.search.feasible == answer.search.considered
