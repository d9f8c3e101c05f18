"""Plans over several pools as text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import astra
from astra.answer import StageEstimate
from astra.report.explain import error_bar, why_lost
from astra.report.mixed import chain, comparison, marginal_sentences, stage_rows
from astra.search.fleet.records import (
    Alternative,
    GroupEstimate,
    LineRemark,
    LocalSteps,
    Marginal,
    MixedEstimate,
    MixedPlanSet,
    MixedStage,
    PoolChoice,
    RuntimePlan,
)

DOCS = Path(__file__).parents[2] / "docs" / "mixed.md"


@cache
def answer() -> MixedPlanSet:
    found = astra.plan("llama-2-13b", gpus=["16xH100", "16xA100-80"], batch=64, seq=4096, worth=True)
    assert isinstance(found, MixedPlanSet)
    return found


def stages_of(estimate: MixedEstimate, group: int) -> list[MixedStage]:
    return [stage for stage in estimate.stages if isinstance(stage, MixedStage) and stage.group == group]


@pytest.mark.parametrize("width", [60, 100, 160])
def test_the_picture_shows_every_stage(width: int) -> None:
    text = answer().draw(width, False, full=True)
    best = answer().best.estimate
    assert isinstance(best, MixedEstimate)
    assert all(name in text for name in best.used)
    for group in best.groups:
        assert f"{group.dp} pipelines" in text
    squeezed = re.sub(r"\s+", " ", text)
    assert "What each pool is worth" in squeezed
    assert "By what each dollar brings: return first 16 GPUs of A100-SXM4-80GB ($" in squeezed
    assert "and rent next 8 GPUs of H100-SXM5-80GB ($" in squeezed
    assert "Who can run it" in squeezed
    assert max(map(len, text.splitlines())) <= max(width, 160)


def test_a_fleet_is_told_in_full_as_one_pool_is() -> None:
    """Terms that sum to the step, memory of every stage against its own pool's limit, why each other plan lost."""
    fleet = astra.plan("llama-2-13b", gpus=["16xH100", "16xA100-40"], batch=64, seq=4096)
    assert isinstance(fleet, MixedPlanSet)
    best = fleet.best.estimate
    assert isinstance(best, MixedEstimate)
    assert len(best.used) == 2
    lines = fleet.draw(140, False, full=True).splitlines()
    assert sum(best.breakdown.values()) == pytest.approx(best.step_s, rel=1e-9)
    assert any(line.startswith("Where the ") for line in lines)
    memory = lines[next(n for n, line in enumerate(lines) if line.startswith("Memory")) :]
    rows = [line.split() for line in memory[3 : memory.index("")]]
    shown = {row[1]: (float(row[-2]), float(row[-1])) for row in rows}  # by pool: reserved and limit
    for stage in best.stages:
        assert isinstance(stage, MixedStage)
        assert shown[stage.pool][1] == pytest.approx(stage.memory_limit_gib, abs=0.06)
        assert sum(stage.memory.values()) == pytest.approx(stage.peak_allocated_gib)
    fullest = max(best.stages, key=lambda stage: stage.peak_reserved_gib / (stage.own_limit_gib or 1))
    assert f"Stage {fullest.index} of 0-{len(best.stages) - 1} is the fullest" in "\n".join(lines)
    for plan in fleet.plans[1:]:
        assert any(line.startswith(f"- #{plan.rank} is ") for line in lines)
    assert all(f"±{error_bar(plan.estimate):.0%}" in "\n".join(lines) for plan in fleet.plans)


def test_a_plan_that_is_faster_and_less_sure_is_not_called_slower() -> None:
    found = astra.plan("llama-3-70b", gpus="64xH100", batch=256, seq=8192, top=20)
    best = found.best
    daring = [plan for plan in found.plans if plan.estimate.step_s < 0.999 * best.estimate.step_s]
    assert daring, "ranked by the upper end, some faster plan comes later"
    for plan in daring:
        said = why_lost(best, plan)
        assert "faster if it works" in said
        assert "slower" not in said


def test_rows_cover_all_stages_once() -> None:
    for plan in answer().plans:
        assert isinstance(plan.estimate, MixedEstimate)
        for group in plan.estimate.groups:
            stages = stages_of(plan.estimate, group.index)
            rows = stage_rows(stages)
            covered = [number for row in rows for number in range(row.first, row.last + 1)]
            assert covered == list(range(len(stages)))
            for row in rows:
                assert {stages[n].pool for n in range(row.first, row.last + 1)} == {row.stage.pool}
            assert sum(stage.layers for stage in stages) == 40
            assert f"{sum(stage.layers for stage in stages if stage.pool == stages[0].pool)} layers" in chain(stages)


def test_the_comparison_says_what_the_numbers_say() -> None:
    text = " ".join(comparison(answer()))
    for each in answer().alone:
        assert each.times is not None
        assert f"{each.times:.2f}x of {each.pool} alone" in text
    best = answer().best.estimate.step_s
    fast, slow = answer().alone
    assert fast.step_s is not None
    assert f"without {slow.pool} you lose {1 - best / fast.step_s:.0%}" in text.lower().replace(
        slow.pool.lower(), slow.pool
    )
    assert len(marginal_sentences(answer())) == 2


def test_an_estimate_is_drawn_too() -> None:
    best = answer().best.estimate
    assert isinstance(best, MixedEstimate)
    text = best.draw(120, False)
    assert best.strategy.split()[0] in text
    assert "tokens/s" in text
    assert str(best) == best.draw()
    assert str(answer()) == answer().draw()


def test_brief_text_has_the_ranking_alone() -> None:
    text = answer().draw(120, False, brief=True)
    assert "The best plan" not in text
    assert "step time" in text


def test_every_added_field_is_documented() -> None:
    page = DOCS.read_text(encoding="utf-8")
    records = {
        MixedPlanSet: astra.PlanSet, MixedEstimate: astra.Estimate, MixedStage: None, GroupEstimate: None,
        Alternative: None, Marginal: None, LineRemark: None, LocalSteps: None, PoolChoice: None,
        RuntimePlan: None,
    }  # fmt: skip
    for record, base in records.items():
        known = set(base.__struct_fields__) if base else set(StageEstimate.__struct_fields__)
        for field in set(record.__struct_fields__) - known:
            assert f"`{field}`" in page, f"docs/mixed.md does not name {record.__name__}.{field}"
