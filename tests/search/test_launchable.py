"""Who can run plans over pools: the best plan of each runtime, and fleets without groups."""

from __future__ import annotations

from pathlib import Path
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
    assert all(row.target and not row.why for row in rows.values())


def test_groups_that_only_jobs_of_their_own_join(tmp_path: Path) -> None:
    fleet = ["8xH100", "8xMI300X"]
    answer = astra.plan(MODEL, gpus=fleet, runtime="pytorch", top=20, rank="expected", **WORK)
    runs = {plan.rank: plan.estimate.runs_on for plan in answer.plans if isinstance(plan.estimate, MixedEstimate)}
    joined = [rank for rank, names in runs.items() if "jobs with a gradient bridge" in names]
    assert joined
    assert all("PyTorch trainer" not in runs[rank] for rank in joined)  # no library moves what GPUs of both have
    written = astra.export(answer, "pytorch", rank=joined[0], folder=tmp_path)["files"]
    assert {Path(file).name for file in written} == {"train.py", "job.sh", "README.md"}


def test_what_nothing_runs_is_told_so() -> None:
    groups = (
        "[m4: H100-SXM5-80GB tp2 pp4 vp2 dp1 mbs8 sp zero1 layers=4*8] "
        "[m4: A100-SXM4-80GB tp2 pp4 vp2 dp1 mbs8 sp zero1 layers=4*3,5,4*2,3,4]"
    )
    found = astra.estimate(MODEL, gpus=FLEET, strategy=groups, **WORK)
    assert isinstance(found, MixedEstimate)
    assert not found.runs_on
    assert "No known runtime runs it as it is" in runs_sentence(found)


def test_one_pool_has_a_runtime_of_its_own() -> None:
    with pytest.raises(astra.InputError, match="several pools"):
        astra.plan(MODEL, gpus="8xH100", by_runtime=True, **WORK)
