"""Who can run plans over pools: the best plan of each runtime, and fleets without groups."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.report.mixed import runs_sentence
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.spec.mixed_text import parse_mixed
from tests.tiers import sampled

MODEL = "llama-2-7b"
WORK: dict[str, Any] = {"batch": 64, "seq": 2048}
FLEET = ["8xH100", "8xA100-80"]


def shapes(strategy: str) -> int:
    return len(parse_mixed(strategy).shapes) if "[" in strategy else 1


def test_no_groups_where_they_are_forbidden() -> None:
    free, bound = (
        astra.plan(MODEL, gpus=FLEET, top=20, forbid=what, rank="expected", **WORK) for what in ((), "groups")
    )
    assert any(shapes(plan.strategy) > 1 for plan in free.plans)
    assert all(shapes(plan.strategy) == 1 for plan in bound.plans)
    assert bound.best.estimate.step_s >= free.best.estimate.step_s * (1 - 1e-9)
    assert "there are no groups of unlike replicas" in bound.request["restrictions"]


def test_one_pool_has_no_groups_to_forbid() -> None:
    free, bound = (astra.plan(MODEL, gpus="8xH100", forbid=what, **WORK) for what in ((), "groups"))
    assert free.best.strategy == bound.best.strategy


@pytest.mark.parametrize("gpus", sampled((4, 8), every=2))
def test_the_best_plan_of_each_runtime(gpus: int) -> None:
    fleet, work = [f"{gpus}xH100", f"{gpus}xA100-80"], {**WORK, "batch": 24 * gpus}
    answer = astra.plan(MODEL, gpus=fleet, by_runtime=True, **work)
    assert isinstance(answer, MixedPlanSet)
    rows = {row.runs_on: row for row in answer.by_runtime}
    assert list(rows) == ["Megatron-LM", "FlagScale", "PyTorch trainer", "jobs with a gradient bridge"]
    for name, row in rows.items():
        assert row.strategy is not None, row.why
        again = astra.estimate(MODEL, gpus=fleet, runtime=row.runtime, strategy=row.strategy, **work)
        assert isinstance(again, MixedEstimate)
        assert name in again.runs_on
        assert again.step_s == pytest.approx(row.step_s)
        assert again.fits
    assert min(row.times for row in rows.values() if row.times is not None) == 1
    planned = astra.plan(MODEL, gpus=fleet, runtime="flagscale", launchable=True, **work)
    assert planned.best.strategy == rows["FlagScale"].strategy
    assert "The best plan of each runtime" in str(answer)
    for row in rows.values():  # what nothing starts is told so
        assert bool(row.why) == (row.target is None)
    assert "nothing exports the bridge" in " ".join(str(answer).split())


def test_what_only_a_bridge_would_run_is_told_so() -> None:
    groups = (
        "[m4: H100-SXM5-80GB tp2 pp4 vp2 dp1 mbs8 sp zero1 layers=4*8] "
        "[m4: A100-SXM4-80GB tp2 pp4 vp2 dp1 mbs8 sp zero1 layers=4*3,5,4*2,3,4]"
    )
    found = astra.estimate(MODEL, gpus=FLEET, strategy=groups, **WORK)
    assert isinstance(found, MixedEstimate)
    assert found.runs_on == ["jobs with a gradient bridge"]
    assert "nothing exports the bridge" in runs_sentence(found)


def test_one_pool_has_a_runtime_of_its_own() -> None:
    with pytest.raises(astra.InputError, match="several pools"):
        astra.plan(MODEL, gpus="8xH100", by_runtime=True, **WORK)
