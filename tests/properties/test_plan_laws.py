"""What holds for every plan that is recommended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import astra
from astra.answer import PlanSet
from astra.errors import NoFeasiblePlan
from astra.spec.job import Job
from astra.spec.strategy import parse_strategy
from tests.properties.jobs import assert_same, cluster, job, jobs, seeds
from tests.tiers import drawn


def request(asked: Job, **more: Any) -> dict[str, Any]:
    """A job as the arguments of ``plan`` and ``estimate``."""
    work = asked.workload
    return {
        "model": asked.model,
        "cluster": cluster(asked.pool),
        "batch": work.global_batch,
        "seq": work.seq,
        "precision": work.precision,
        "optimizer": work.optimizer,
        "task": work.task,
        "lora_rank": work.lora_rank,
        "headroom": 0.08,
        **more,
    }


def planned(asked: Job, **more: Any) -> PlanSet | None:
    try:
        return astra.plan(**request(asked, **more))
    except NoFeasiblePlan:
        return None


@drawn(40, few=14)
@given(jobs, st.integers(1, 6))
def test_plans_are_legal_fit_and_differ(asked: Job, top: int) -> None:
    answer = planned(asked, top=top)
    if answer is None:
        return
    strategies = [parse_strategy(plan.strategy) for plan in answer.plans]
    assert 1 <= len(strategies) <= top
    assert [plan.rank for plan in answer.plans] == list(range(1, len(strategies) + 1))
    assert [str(strategy) for strategy in strategies] == [plan.strategy for plan in answer.plans]
    assert len({(strategy.tp, strategy.pp, strategy.ep) for strategy in strategies}) == len(strategies)
    upper_s = [plan.estimate.step_s_range.high for plan in answer.plans]
    assert upper_s == sorted(upper_s)
    for plan, strategy in zip(answer.plans, strategies, strict=True):
        assert strategy.tp * strategy.cp * strategy.pp * strategy.dp == asked.pool.gpus
        assert plan.estimate.legal
        assert plan.estimate.violations == []
        assert plan.estimate.fits
        assert plan.estimate.peak_reserved_gib <= 0.92 * plan.estimate.memory_usable_gib
        assert plan.estimate.mfu <= 1


@drawn(25, few=9)
@given(jobs)
def test_an_estimate_of_a_plan_is_the_plans(asked: Job) -> None:
    answer = planned(asked, top=3)
    for plan in answer.plans if answer is not None else ():
        again = astra.estimate(**request(asked, strategy=plan.strategy))
        assert_same(again.to_dict(), plan.estimate.to_dict())


@drawn(25, few=9)
@given(jobs, st.floats(0.0, 0.9))
def test_headroom_is_honoured(asked: Job, headroom: float) -> None:
    answer = planned(asked, headroom=headroom, top=3)
    for plan in answer.plans if answer is not None else ():
        result = plan.estimate
        assert result.memory_limit_gib == pytest.approx((1 - headroom) * result.memory_usable_gib)
        assert result.peak_reserved_gib <= result.memory_limit_gib


@drawn(25, few=9)
@given(jobs)
def test_every_strategy_is_accounted_for(asked: Job) -> None:
    answer = planned(asked)
    if answer is None:
        return
    rejected = sum(reject.strategies for reject in answer.rejects)
    assert rejected + answer.search.feasible == answer.search.considered
    assert answer.search.feasible <= answer.search.evaluated <= answer.search.considered
    assert all(reject.strategies > 0 and reject.sentence for reject in answer.rejects)


@drawn(20, few=8)
@given(seeds)
def test_fixing_the_best_plan_finds_it_again(seed: int) -> None:
    answer = planned(job(seed), top=1)
    if answer is None:
        return
    best = parse_strategy(answer.best.strategy)
    degrees = [f"{name}={getattr(best, name)}" for name in ("tp", "pp", "cp", "dp", "mbs", "vp", "ep", "etp")]
    chosen = [f"zero={best.zero}", f"recompute={best.recompute}", f"sp={'on' if best.sp else 'off'}"]
    again = planned(job(seed), top=1, fix=[*degrees, *chosen])
    assert again is not None
    assert again.best.estimate.step_s == pytest.approx(answer.best.estimate.step_s, rel=1e-5)
    assert again.search.considered < answer.search.considered


PROGRAM = """
import json, sys
import astra
answer = astra.plan("mixtral-8x7b", gpus="16xH100", batch=64, seq=2048, top=4, forbid=["cp"]).to_dict()
for name in ("seconds", "strategies_per_s"):
    del answer["search"][name]
json.dump(answer, sys.stdout)
"""


def test_the_same_plan_in_every_process_and_under_every_hash_seed() -> None:
    answers = []
    for hash_seed in ("0", "1", "31337"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]["plans"]) == 4


def test_a_plan_survives_json() -> None:
    answer = planned(job(0)) or planned(job(2))
    assert answer is not None
    again = msgspec.json.decode(answer.to_json(), type=PlanSet)
    assert again.to_json() == answer.to_json()
    assert again.plans == answer.plans
