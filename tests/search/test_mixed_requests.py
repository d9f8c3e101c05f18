"""What a user may ask of several pools beside the plan itself: restrictions, rules, bills, baselines, exports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import astra
from astra.catalog.clusters import parse_cluster
from astra.errors import InputError, NoFeasiblePlan
from astra.export.base import CannotExport
from astra.export.reading import from_record
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.spec.mixed import Group, Segment
from astra.spec.mixed_text import on_one_pool, parse_mixed
from astra.spec.money import Money
from tests.tiers import sampled

GPUS = ["16xH100", "16xA100-80"]
MISSED = 2e-3  # what shares of the batch that were not looked for may bring (docs/mixed.md)


@cache
def planned(*fix: str, forbid: tuple[str, ...] = (), maximum: tuple[str, ...] = (), minimum: tuple[str, ...] = (),
            rules: str | None = None, tokens: str | None = None) -> MixedPlanSet:  # fmt: skip
    found = astra.plan("llama-2-13b", gpus=GPUS, batch=64, seq=4096, fix=fix, forbid=forbid, maximum=maximum,
                       minimum=minimum, rules=rules, tokens=tokens, rank="expected")  # fmt: skip
    assert isinstance(found, MixedPlanSet)
    return found


def groups(answer: MixedPlanSet) -> list[Group]:
    return [group for plan in answer.plans if not on_one_pool(plan.strategy)
            for group in parse_mixed(plan.strategy).groups]  # fmt: skip


def segments(answer: MixedPlanSet) -> list[Segment]:
    return [segment for group in groups(answer) for segment in group.segments]


@pytest.mark.parametrize(
    ("how", "holds"),
    sampled([
        ({"fix": ["tp=4"]}, lambda a: {s.tp for s in segments(a)} == {4}),
        ({"fix": ["pp=3"]}, lambda a: {g.stages for g in groups(a)} == {3}),
        ({"maximum": ["pp=2"]}, lambda a: all(g.stages <= 2 for g in groups(a))),
        ({"minimum": ["pp=4"]}, lambda a: all(g.stages >= 4 for g in groups(a))),
        ({"fix": ["vp=1"]}, lambda a: {g.vp for g in groups(a)} == {1}),
        ({"fix": ["schedule=interleaved"]}, lambda a: all(g.vp > 1 for g in groups(a))),
        ({"fix": ["mbs=2"]}, lambda a: {g.mbs for g in groups(a)} == {2}),
        ({"fix": ["dp=4"]}, lambda a: {g.dp for g in groups(a)} == {4}),
        ({"fix": ["cp=2"]}, lambda a: {g.cp for g in groups(a)} == {2}),
        ({"fix": ["recompute=full"]}, lambda a: {s.recompute for s in segments(a)} == {"full"}),
        ({"fix": ["recompute=selective"]}, lambda a: {s.recompute for s in segments(a)} == {"selective"}),
        ({"forbid": ["sp"]}, lambda a: not any(" sp " in plan.strategy for plan in a.plans)),
        ({"fix": ["zero=0"]}, lambda a: all("zero0" in plan.strategy for plan in a.plans)),
        ({"forbid": ["overlap=grad"]}, lambda a: not any("=grad," in plan.strategy for plan in a.plans)),
    ], every=5, rows=True),
)  # fmt: skip
def test_restrictions_hold_in_every_plan(how: dict[str, list[str]], holds: Callable[[MixedPlanSet], bool]) -> None:
    free = planned()
    answer = planned(*how.get("fix", ()), forbid=tuple(how.get("forbid", ())), maximum=tuple(how.get("maximum", ())),
                     minimum=tuple(how.get("minimum", ())))  # fmt: skip
    assert groups(answer)
    assert holds(answer)
    assert answer.request["restrictions"]
    assert answer.conceivable.estimate.step_s >= free.conceivable.estimate.step_s * (1 - MISSED)


def test_rules_hold_in_every_plan(tmp_path: Path) -> None:
    file = tmp_path / "house.rules"
    file.write_text("tp * dp > 8  # small groups\npp * tp > 8  # short pipelines\n")
    answer = planned(rules=str(file))
    for group in groups(answer):
        for segment in group.segments:
            assert segment.tp * group.dp <= 8
            assert group.stages * segment.tp <= 8
    assert groups(answer)
    assert planned().conceivable.estimate.step_s <= answer.conceivable.estimate.step_s * (1 + MISSED)


@pytest.mark.parametrize(
    ("fix", "wanted"),
    [
        ("zero=3", "zero0 or zero1"),
        ("offload=optimizer", "offload=none"),
        ("flash=off", "flash=on"),
    ],
)
def test_what_pipelines_over_pools_have_not_is_open_in_groups(fix: str, wanted: str) -> None:
    answer = planned(fix)
    assert any(f"they need {wanted}" in note for note in answer.notes)
    field, value = fix.split("=")
    plain = [group.plain for group in groups(answer)]
    assert plain
    assert all(one is not None and str(getattr(one, field)) in (value, "False") for one in plain)


def test_restrictions_that_leave_nothing() -> None:
    with pytest.raises(NoFeasiblePlan, match=r"allowed.*restrictions"):
        astra.plan("llama-2-13b", gpus=GPUS, batch=64, seq=4096, fix=["tp=3"])


def test_a_pool_alone_is_what_the_one_type_planner_says() -> None:
    for each, gpus in zip(planned().alone, GPUS, strict=True):
        own = astra.plan("llama-2-13b", gpus=gpus, batch=64, seq=4096, rank="expected")
        assert each.step_s == pytest.approx(own.best.estimate.step_s, rel=1e-9)
        assert each.strategy == f"{each.pool}: {own.best.strategy}"


@pytest.mark.parametrize(
    ("model", "gpus", "how"),
    [
        ("qwen3-30b-a3b", "16xL4", {"batch": 16, "seq": 32768}),  # fits without CUDA graphs alone
        ("qwen3-30b-a3b", "8xL4", {"batch": 8, "seq": 16384, "task": "lora"}),
        ("deepseek-v2-lite", "8xL4", {"batch": 8, "seq": 8192}),  # stages of unequal length
    ],
)
def test_a_fleet_is_no_slower_than_what_a_pool_does_by_itself(model: str, gpus: str, how: dict[str, Any]) -> None:
    own = astra.plan(model, gpus=gpus, runtime="megatron-bridge", rank="expected", **how)
    answer = astra.plan(model, gpus=[gpus, "1xA10G"], runtime="megatron-bridge", rank="expected", **how)
    assert isinstance(answer, MixedPlanSet)
    assert answer.alone[0].step_s == pytest.approx(own.best.estimate.step_s, rel=1e-9)
    assert answer.best.estimate.step_s <= own.best.estimate.step_s * (1 + 1e-9)


def test_every_text_reads_back_with_all_figures() -> None:
    answer = planned(tokens="1T")
    told = [plan.strategy for plan in answer.plans] + [each.strategy for each in answer.alone if each.strategy]
    assert any(on_one_pool(text) for text in told)
    for plan in answer.plans:
        again = astra.estimate("llama-2-13b", gpus=GPUS, batch=64, seq=4096, tokens="1T", strategy=plan.strategy)
        assert isinstance(again, MixedEstimate)
        for name in ("step_s", "tokens_per_s", "mfu", "hfu", "peak_reserved_gib", "train_days", "train_usd"):
            assert getattr(again, name) == pytest.approx(getattr(plan.estimate, name), rel=1e-6)
        assert [stage.layers for stage in again.stages] == [stage.layers for stage in plan.estimate.stages]
        assert again.strategy == plan.strategy


def test_the_bill_adds_up_over_the_pools() -> None:
    prices = {"H100-SXM5-80GB": 4.0, "A100-SXM4-80GB": 2.0}
    cluster = parse_cluster("+".join(GPUS))
    pools = tuple(msgspec.structs.replace(pool, usd_per_gpu_h=prices[pool.device.name]) for pool in cluster.pools)
    priced = msgspec.structs.replace(cluster, pools=pools)
    answer = astra.plan("llama-2-13b", cluster=priced, batch=64, seq=4096, tokens="1T")
    for plan in answer.plans:
        estimate = plan.estimate
        assert isinstance(estimate, MixedEstimate)
        assert estimate.cost is not None
        hourly = sum(prices[name] * -(-gpus // 8) * 8 for name, gpus in estimate.used.items())
        assert estimate.cost.parts["gpus"] == pytest.approx(hourly * 1e12 / estimate.tokens_per_s / 3600)
        assert estimate.cost.usd == pytest.approx(estimate.train_usd)
        assert estimate.cost.usd == pytest.approx(sum(estimate.cost.parts.values()))
        assert estimate.cost.expected is not None
    assert "The bill" in str(answer)


def test_one_price_for_all() -> None:
    answer = astra.plan("llama-2-13b", gpus=GPUS, batch=64, seq=4096, tokens="1T", money=Money(usd_per_gpu_h=3.0))
    cost = answer.best.estimate.cost
    assert cost is not None
    assert cost.price.usd_per_gpu_h == pytest.approx(3.0)


@pytest.mark.parametrize("baseline", [
    "H100-SXM5-80GB: tp8 pp1 dp2 mbs1 sp zero1",
    "[dp1 m32: H100-SXM5-80GB tp8 pp2 layers=20*2] [dp1 m32: A100-SXM4-80GB tp8 pp2 layers=20*2]",
])  # fmt: skip
def test_what_is_saved_against_a_baseline(baseline: str) -> None:
    answer = astra.plan("llama-2-13b", gpus=GPUS, batch=64, seq=4096, tokens="1T", baseline=baseline)
    assert answer.baseline is not None
    now = astra.estimate("llama-2-13b", gpus=GPUS, batch=64, seq=4096, strategy=baseline)
    assert answer.baseline.estimate.step_s == pytest.approx(now.step_s)
    assert answer.baseline.step_s_saved == pytest.approx(now.step_s - answer.best.estimate.step_s)
    assert answer.baseline.usd_saved is not None
    assert "Against" in str(answer)


def test_a_plain_baseline_that_leaves_gpus_out_is_told_how_to_name_its_pool() -> None:
    with pytest.raises(InputError, match=r"H100-SXM5-80GB: tp8 pp2 dp1"):
        astra.plan("llama-2-13b", gpus=GPUS, batch=64, seq=4096, baseline="tp8 pp2 dp1")


def test_the_record_of_a_plan_is_enough_to_launch_it() -> None:
    answer = planned()
    record = answer.to_dict()
    launched = 0
    for plan in answer.plans:
        try:
            launch, _ = from_record(record, plan.rank)
        except CannotExport:
            assert len(parse_mixed(plan.strategy).groups) > 1
            continue
        launched += 1
        assert isinstance(plan.estimate, MixedEstimate)
        assert sum(mesh.pp * mesh.tp * mesh.cp * mesh.dp for mesh in launch.meshes) == sum(plan.estimate.used.values())
        assert sum(launch.layers) == 40
        assert ("p2p" in launch.strategy.overlap) == (launch.strategy.vp > 1)
        assert launch.model.name == "llama-2-13b"
    assert launched


def test_exact_counts_use_every_gpu() -> None:
    """Also where a pool alone would be quicker, and where no pool alone can hold what is asked for."""
    for how in ({}, {"forbid": "groups"}, {"fix": ["pp=12", "dp=1"]}):
        found = astra.plan("gpt-2-xl", gpus=["5xA10G", "7xL40S"], counts="exact", batch=5, seq=512, **how)
        for plan in found.plans:
            assert isinstance(plan.estimate, MixedEstimate)
            assert sum(plan.estimate.used.values()) == 12
