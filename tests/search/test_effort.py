"""A search with a counted effort: the same answer every time, never worse than a pool alone, and its gap is proven."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

import astra
from astra.errors import NoFeasiblePlan
from astra.partition.problem import Effort
from astra.partition.solve import solve
from astra.renting import mixes, popular, rent
from astra.search import budget, offers
from astra.search.fleet import search as mixed
from astra.search.fleet import worth as mixed_worth
from astra.search.fleet.records import MixedPlanSet
from astra.search.ranked import Judged, ranked
from astra.search.world import World
from astra.spec.request import requested
from tests.partition.brute_force import brute_force
from tests.partition.test_partition import random_problem
from tests.tiers import sampled

FLEET: dict[str, Any] = {
    "model": "gpt-2-xl", "gpus": ["16xA10G", "8xH100-PCIe-80GB", "8xL40S"], "batch": 32, "seq": 512,
}  # fmt: skip
SMALL = FLEET | {"gpus": ["2xA10G", "2xL40S"]}
NAMED: list[dict[str, Any]] = [  # each of them once took minutes
    {"model": "gpt-2-xl", "gpus": ["64xA10G", "64xH100-PCIe-80GB", "64xL40S", "24xRTX3090"], "batch": 128, "seq": 512},
    {"model": "mistral-7b-v0.3", "gpus": ["3xMI250X-GCD", "1024xH200", "64xV100-SXM2-32GB", "8xRTX5090"], "batch": 7},
]  # fmt: skip
RENTED: dict[str, Any] = {
    "model": "gpt-2-xl", "tokens": "1B", "max_gpus": 256, "batch": 1, "seq": 1024,
}  # fmt: skip


@pytest.fixture
def efforts(monkeypatch: pytest.MonkeyPatch) -> list[Effort]:
    """Every effort with a limit that a request makes."""
    made: list[Effort] = []
    begin = Effort.__init__

    def watched(self: Effort, most: float = np.inf) -> None:
        begin(self, most)
        if most < np.inf:
            made.append(self)

    monkeypatch.setattr(Effort, "__init__", watched)
    return made


def planned(monkeypatch: pytest.MonkeyPatch, fleet: dict[str, Any], most: float) -> MixedPlanSet:
    monkeypatch.setattr(mixed, "MOST_EFFORT", most)
    monkeypatch.setattr(mixed_worth, "MOST_EFFORT", most)
    found = astra.plan(**fleet)
    assert isinstance(found, MixedPlanSet)
    return found


def told(found: MixedPlanSet) -> bytes:
    search = msgspec.structs.replace(found.search, seconds=0.0, strategies_per_s=0.0)
    return msgspec.json.encode(msgspec.structs.replace(found, search=search))


@cache
def ended(small: bool) -> MixedPlanSet:
    """The search with all the effort it needs."""
    with pytest.MonkeyPatch.context() as patch:
        return planned(patch, SMALL if small else FLEET, np.inf)


@pytest.mark.parametrize("small", sampled((True, False), every=2))
def test_a_search_that_ends_says_nothing_of_its_effort(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ended(small)
    assert not [note for note in whole.notes if "work allowed" in note and "remark" not in note]
    assert told(planned(monkeypatch, SMALL if small else FLEET, 1e12)) == told(whole)


@pytest.mark.parametrize("most", sampled((1.0, 300.0, 2000.0), every=3, first=1))
@pytest.mark.parametrize("small", sampled((True, False), every=2))
def test_what_is_cut_is_said_and_its_gap_holds(small: bool, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, fleet = ended(small), SMALL if small else FLEET
    found = planned(monkeypatch, fleet, most)
    assert told(planned(monkeypatch, fleet, most)) == told(found)
    assert [note for note in found.notes if "work allowed" in note]
    step_s, best_s = found.plans[0].estimate.step_s, whole.plans[0].estimate.step_s
    alone = [each.step_s for each in found.alone if each.step_s is not None]
    assert step_s <= min(alone)
    assert step_s >= best_s * (1 - 1e-9)
    gap = [re.search(r"more than ([\d.]+)% faster", note) for note in found.notes]
    gaps = [float(match.group(1)) / 100 for match in gap if match]
    pipelines = [plan for plan in whole.plans if len(plan.estimate.groups) == 1]  # type: ignore[attr-defined]
    if pipelines and pipelines[0].estimate.step_s < step_s:
        assert gaps, "a faster pipeline was left open without a word"
        assert step_s / pipelines[0].estimate.step_s - 1 <= gaps[0] + 1e-3


def test_nothing_found_is_not_nothing_fits_where_the_search_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = FLEET | {"counts": "exact", "gpus": ["5xA10G", "7xL40S"], "batch": 5}
    with pytest.raises(NoFeasiblePlan, match="no plan over these pools fits"):
        astra.plan(**exact | {"batch": 1, "fix": ["dp=1", "pp=1"]})
    monkeypatch.setattr(mixed, "MOST_EFFORT", 1.0)
    with pytest.raises(NoFeasiblePlan, match="stopped at the work allowed"):
        astra.plan(**exact, forbid="groups")


@pytest.mark.parametrize("asked", sampled(NAMED, every=2), ids=lambda asked: asked["model"])
def test_fleets_that_took_minutes_stay_within_their_effort(asked: dict[str, Any], efforts: list[Effort]) -> None:
    found = astra.plan(**asked)
    assert len(efforts) == 2  # the search and the remarks
    assert sum(effort.spent for effort in efforts) <= 1.05 * 2 * mixed.MOST_EFFORT
    assert any("work allowed" in note for note in found.notes) or not any(effort.over for effort in efforts)


def test_rent_that_took_minutes_stays_within_its_effort(efforts: list[Effort]) -> None:
    found = astra.rent(**RENTED).search.mixes
    spent = {effort.most: effort for effort in efforts if effort.spent}
    assert set(spent) - {mixes.MOST_EFFORT} == {offers.MOST_EFFORT, popular.MOST_REMARKED}, "few have a likely mix"
    assert all(effort.spent <= 1.05 * effort.most for effort in spent.values())
    assert found.considered == found.dominated + found.planned + found.open


@pytest.mark.parametrize("seed", sampled(range(40), every=2))
def test_a_cut_partition_is_a_pipeline_or_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, int(rng.integers(2, 4)), int(rng.integers(3, 8)), most_stages=3, kinds=2)
    effort = Effort(float(rng.integers(1, 60)))
    found, best = solve(problem, effort=effort), brute_force(problem)
    if found is not None:
        assert found.value_s >= best * (1 - 1e-9)
    if not effort.over:
        assert (found.value_s if found else np.inf) == pytest.approx(best, rel=1e-9)


def test_one_micro_batch_asks_for_one_bottleneck() -> None:
    problem = random_problem(np.random.default_rng(3), 3, 12, most_stages=4, kinds=2)
    once, often = Effort(), Effort()
    solve(problem._replace(max_weight=0.0), effort=once)
    solve(problem._replace(max_weight=5.0), effort=often)
    assert once.spent < often.spent / 2


def test_mixes_left_open_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {
        "model": "llama-3.2-1b", "tokens": "1B", "gpus": "A100-80,H100,L40S", "max_gpus": 32, "batch": 7, "seq": 1024,
    }  # fmt: skip
    everything = astra.rent(**asked).search.mixes
    monkeypatch.setattr(mixes, "MOST_EFFORT", 1.0)
    nothing = astra.rent(**asked).search.mixes
    assert nothing.considered == everything.considered
    assert nothing.dominated == everything.dominated
    assert nothing.planned + nothing.open == everything.planned + everything.open
    assert nothing.planned <= 1


@pytest.mark.parametrize("most", sampled((1.0, 400.0), every=2, first=1))
def test_a_cut_front_is_within_the_gap_it_tells(most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {
        "model": "mixtral-8x7b", "tokens": "1B", "gpus": "A100-80,H100,H200", "max_gpus": 64, "batch": 64, "seq": 8192,
        "mixes": "none",
    }  # fmt: skip
    whole = astra.rent(**asked)
    assert not [note for note in whole.notes if "work allowed" in note]
    monkeypatch.setattr(rent, "MOST_EFFORT", most)
    monkeypatch.setattr(popular, "MOST_REMARKED", most)
    cut = astra.rent(**asked)
    (note,) = [note for note in cut.notes if note.startswith("The search stopped at the work allowed")]
    gap = float(re.findall(r"more than ([\d.]+)% better", note)[0]) / 100 + 1e-3
    for best in whole.front:
        assert any(
            one.cost.days <= best.cost.days * (1 + gap) and one.cost.usd <= best.cost.usd * (1 + gap)
            for one in cut.front
        )


def test_money_objectives_tell_what_they_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {
        "model": "mixtral-8x7b", "gpus": "128xH100", "batch": 128, "seq": 4096, "tokens": "1T", "objective": "cheapest",
    }  # fmt: skip
    assert not [note for note in astra.plan(**asked).notes if "work allowed" in note]
    monkeypatch.setattr(budget, "MOST_EFFORT", 1.0)
    assert [note for note in astra.plan(**asked).notes if "work allowed" in note]


def test_once_the_time_is_up_nothing_more_is_begun() -> None:
    """Of many pools alone, pipelines over them and groups, one pool alone is a plan."""
    soon = astra.plan(**FLEET, time_budget=1e-6)
    assert isinstance(soon, MixedPlanSet)
    assert soon.search.considered == 0
    assert len(soon.alone) == 1


@pytest.mark.parametrize("soon", [True, False])
def test_a_pool_alone_is_looked_at_in_its_usual_words_where_an_answer_is_wanted_soon(soon: bool) -> None:
    asked = {"gpus": ["512xH100"], "batch": 1024, "seq": 4096}
    world = World.of(requested("plan", "deepseek-v3", asked))
    judged = Judged(world.restrictions, world.rules, world.upper)
    found = ranked(world.job, judged, 1, late=lambda: soon)
    assert found.plans
    assert (len(found.searches) == 1) == soon
