"""The planner over small fleets against every plan there is, by the reported time (``every_plan`` has the rest)."""

from __future__ import annotations

import time

import pytest

import astra
from astra.search.fleet.detail import estimate
from astra.search.fleet.least import least_step_s
from astra.search.fleet.plan import fleet_in, plan_fleet
from astra.search.world import World
from astra.spec.mixed_text import parse_mixed
from astra.spec.request import requested
from tests.search.every_plan import fleet_in as fleet_of_case
from tests.search.every_plan import judged, planned_s, random_case
from tests.tiers import sampled

# Among them what was missed: groups alike, micro-batches of their own, whole micro-batches, orders, unequal cuts,
# groups beside a pool with a slow network that stays idle, pipelines of two micro-batches over more pools than seem so,
# pools cut between a pipeline and a group, or between two pipelines that cut the model alike, pools cut unevenly,
# groups that fit with one micro-batch and not with two, splits that suit another micro-batch of one pool.
QUICK = (4, 5, 6, 8, 12, 19, 62, 78, 95, 534, 2018, 2527, 2555, 2591, 2616, 3066, 3094, 4017, 5042, 5169, 5193, 7265,
         20368, 20372, 20399, 20512, 20719, 22029,
         23018, 23170, 30726, 30974, 31055, 31086, 31101, 31400, 32161)  # fmt: skip


@pytest.mark.parametrize("seed", sampled(QUICK, every=2))
def test_no_plan_is_quicker_than_the_planners(seed: int) -> None:
    verdict = judged(seed)
    assert verdict.finished
    assert verdict.missed <= 1e-6, verdict.better


@pytest.mark.parametrize("parts", [(2, 2), (1, 3), (1, 1, 2)])
def test_the_replicas_of_a_pool_are_no_quicker_as_groups_than_as_one(parts: tuple[int, ...]) -> None:
    fleet = fleet_of_case(random_case(2610))
    group = "[dp{} mbs1 m1: L40S tp1 pp1 layers=4 recompute=none]"
    one, several = (
        estimate(fleet, parse_mixed(text, fleet.usual)).step_s
        for text in (group.format(4), " ".join(group.format(dp) for dp in parts))
    )
    assert several >= one * (1 - 1e-9)


@pytest.mark.parametrize("seed", QUICK[:4])
def test_no_plan_is_below_the_least_step(seed: int) -> None:
    case = random_case(seed)
    assert least_step_s(fleet_of_case(case)) < planned_s(case)[0]


@pytest.mark.parametrize(
    "model", sampled(("mixtral-8x7b", "deepseek-v2-lite", "llama-2-70b", "qwen3-30b-a3b"), every=2)
)
def test_no_plan_of_larger_models_is_below_the_least_step(model: str) -> None:
    asked = {"gpus": ["64xH100", "64xA100-80"], "batch": 256, "seq": 4096, "rank": "expected"}
    world = World.of(requested("plan", model, asked))
    plans = plan_fleet(world)
    assert 0.3 < least_step_s(fleet_in(world)[0]) / plans.best.estimate.step_s < 1


def test_a_time_budget_gives_a_plan_soon_and_says_how_much_faster_any_could_be() -> None:
    work = {"gpus": ["64xH100", "64xA100-80", "32xH20"], "batch": 512, "seq": 4096, "rank": "expected"}
    began = time.process_time()
    whole = astra.plan("llama-2-70b", **work)  # type: ignore[arg-type]
    took_s, began = time.process_time() - began, time.process_time()
    soon = astra.plan("llama-2-70b", time_budget=0.01, **work)  # type: ignore[arg-type]
    assert time.process_time() - began < took_s
    assert soon.best.estimate.step_s >= whole.best.estimate.step_s
    assert any("stopped at the time allowed" in note for note in soon.notes)
    assert not any("stopped at the time allowed" in note for note in whole.notes)
