"""Planning over several pools: optimal, confirmed by the simulator, and honest about pools that do not help."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

import astra
from astra import api
from astra.catalog import hardware
from astra.catalog.clusters import parse_cluster
from astra.catalog.models import model as find_model
from astra.errors import InputError, NoFeasiblePlan
from astra.partition.ends import least_end
from astra.partition.problem import StageRun
from astra.rules.restrictions import parse_restrictions
from astra.search.detail import estimate as estimate_one
from astra.search.fleet import worth as mixed_worth
from astra.search.fleet.dealing import BatchShare, deal
from astra.search.fleet.detail import estimate
from astra.search.fleet.plan import fleet_of
from astra.search.fleet.pools import Fleet, Limits
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.search.fleet.search import Planner
from astra.search.fleet.space import FrameSpace
from astra.spec.mixed_text import on_one_pool, parse_mixed
from astra.spec.money import Money
from astra.spec.strategy import parse_strategy
from tests.tiers import sampled

WORK = {"tokens": None, "optimizer": "adam", "task": "pretrain", "lora_rank": 16, "runtime": "megatron",
        "headroom": 0.08}  # fmt: skip


@cache
def fleet(gpus: str, model: str = "llama-2-13b", batch: int = 64, precision: str = "bf16", seq: int = 4096) -> Fleet:
    cluster = parse_cluster(gpus)
    one = msgspec.structs.replace(cluster, pools=cluster.pools[:1])
    job = api.make_job(
        model,
        gpus=None,
        cluster=one,
        node=None,
        batch=batch,
        seq=seq,
        precision=precision,
        **WORK,  # type: ignore[arg-type]
    )
    return fleet_of(cluster, job, exact=False)[0]


@cache
def planned(model: str, *gpus: str, batch: int = 64, counts: str = "at-most", launchable: bool = False) -> MixedPlanSet:
    found = astra.plan(
        model, gpus=list(gpus), batch=batch, seq=4096, counts=counts, launchable=launchable, rank="expected"
    )
    assert isinstance(found, MixedPlanSet)
    return found


SMALL = "16xH100+16xA100-80"


def test_one_pool_in_brackets_costs_what_a_plain_strategy_costs() -> None:
    pools = fleet(SMALL)
    name = pools.names[0]
    for brackets, plain in (
        (f"[dp4 m16: {name} tp2 pp2 layers=20*2]", "tp2 pp2 dp4 mbs1 sp zero1 overlap=grad,param,tp"),
        (f"[dp4 m16 vp5: {name} tp2 pp2 layers=4*10]", "tp2 pp2 vp5 dp4 mbs1 sp zero1 overlap=grad,param,tp,p2p"),
        (f"[dp2 mbs2 m16: {name} tp8 pp1 layers=40 recompute=full]",
         "tp8 pp1 dp2 mbs2 sp zero1 recompute=full overlap=grad,param,tp"),
    ):  # fmt: skip
        found = estimate(pools, parse_mixed(brackets))
        same = estimate_one(pools.jobs[0], [parse_strategy(plain)])[0]
        assert found.step_s == pytest.approx(same.step_s, rel=1e-9)
        assert found.peak_reserved_gib == pytest.approx(same.peak_reserved_gib, rel=1e-9)
        assert found.mfu == pytest.approx(same.mfu, rel=1e-9)
        assert found.legal == same.legal


def test_frames_left_out_by_a_bound_are_no_better() -> None:
    planner = Planner(fleet(SMALL), exact=False)
    counts = planner.counts
    best_s, best = planner.pipelines(counts, planner.frame_space.batch, keep=1)[0]
    least = np.inf
    for bound_s, frame in planner.frame_space.bounded_frames(
        counts, planner.frame_space.batch, whole=True, uniform=False
    ):
        found = planner.frame_space.solve(counts, frame, every=False, below=np.inf)
        if found is not None:
            assert bound_s <= found.value_s
            after_s = found.total_s - found.value_s - found.fill_s
            problem, shapes = planner.frame_space.problem(counts, frame, every=False)
            problem = problem._replace(ends=planner.frame_space.ends(frame, shapes))
            assert least_end(problem, (found.total_s - found.fill_s) * (1 + 1e-9)) <= after_s
            least = min(least, found.total_s)
    assert best_s == pytest.approx(least, rel=1e-9)
    assert best.value_s <= best_s


def test_the_optimiser_and_the_full_estimate_agree_on_memory_and_time() -> None:
    planner = Planner(fleet(SMALL), exact=False)
    counts = planner.counts
    seen = 0
    for _, frame in planner.frame_space.bounded_frames(counts, planner.frame_space.batch, whole=True, uniform=False):
        found = planner.frame_space.solve(counts, frame, every=False, below=np.inf)
        if found is None or seen >= 12:
            continue
        seen += 1
        result = estimate(planner.fleet, planner.strategy((found, int(frame.microbatches))))
        assert result.fits
        assert result.groups[0].closed_form_s == pytest.approx(found.value_s + found.fill_s, rel=1e-6)
        problem, _ = planner.frame_space.problem(counts, frame, every=False)
        for stage, need in zip(result.stages, _allocated(problem, found.pipeline.runs), strict=True):
            assert stage.peak_allocated_gib * 2**30 == pytest.approx(need, rel=1e-6)
    assert seen == 12


def _allocated(problem, runs: tuple[StageRun, ...]) -> list[float]:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Bytes of each stage as the optimiser sees them."""
    left, place, out = sum(sum(run.layers) for run in runs), sum(len(run.layers) for run in runs), []
    for number, run in enumerate(runs):
        choice = problem.pools[run.pool][run.choice]
        for stage, count in enumerate(run.layers):
            need = choice.stay_bytes[left] - choice.stay_bytes[left - count] + choice.fixed_bytes
            need += (choice.kept_bytes[left] - choice.kept_bytes[left - count]) * problem.in_flight[place]
            need += choice.first_bytes if number == 0 and stage == 0 else 0.0
            need += choice.last_bytes if place == 1 else 0.0
            out.append(float(need))
            left, place = left - count, place - 1
    return out


@pytest.mark.parametrize("gpus", [("16xH100", "16xA100-80"), ("32xH100", "16xA100-40", "8xH20")])
def test_every_plan_is_simulated_and_reads_back(gpus: tuple[str, ...]) -> None:
    answer = planned("llama-2-13b", *gpus)
    assert [plan.rank for plan in answer.plans] == list(range(1, len(answer.plans) + 1))
    steps = [plan.estimate.step_s for plan in answer.plans]
    assert steps == sorted(steps)
    for plan in answer.plans:
        again = astra.estimate("llama-2-13b", gpus=list(gpus), batch=64, seq=4096, strategy=plan.strategy)
        assert again.step_s == pytest.approx(plan.estimate.step_s, rel=1e-6)
        assert isinstance(again, MixedEstimate)
        assert again.fits
        assert again.legal
        assert sum(plan.estimate.breakdown.values()) == pytest.approx(plan.estimate.step_s)
        for group in again.groups:  # the closed form that was minimised is what the simulator finds, nearly
            assert group.pipeline_s == pytest.approx(group.closed_form_s, rel=0.06)
        assert all(count <= again.used[name] + again.idle.get(name, 0) for name, count in again.used.items())


def test_more_gpus_never_hurt() -> None:
    steps = [planned("llama-2-13b", f"{n}xH100", "16xA100-80").conceivable.estimate.step_s for n in (8, 16, 24, 32)]
    # Plans are chosen by the closed form; the simulator may differ from it by a few percent.
    assert all(more <= fewer * 1.03 for fewer, more in pairwise(steps))


def test_the_mix_is_no_worse_than_each_pool_alone() -> None:
    answer = planned("llama-2-13b", "16xH100", "16xA100-80")
    assert answer.alone
    for each in answer.alone:
        assert each.step_s is not None
        assert answer.conceivable.estimate.step_s <= each.step_s
        assert each.times == pytest.approx(each.step_s / answer.best.estimate.step_s)
    assert not answer.marginal


def test_what_pools_are_worth_is_what_planning_those_fleets_says() -> None:
    """Where it is asked, and nothing else changes with it."""
    work: dict[str, Any] = {"batch": 48, "seq": 2048, "rank": "expected"}
    pools = {"H100-SXM5-80GB": "16xH100", "A100-SXM4-80GB": "4xA100-80", "L40S": "2xL40S"}
    plain = astra.plan("llama-2-7b", gpus=list(pools.values()), **work)
    answer = astra.plan("llama-2-7b", gpus=list(pools.values()), worth=True, **work)
    assert isinstance(plain, MixedPlanSet)
    assert isinstance(answer, MixedPlanSet)
    assert [plan.strategy for plan in plain.plans] == [plan.strategy for plan in answer.plans]
    assert not plain.without
    assert isinstance(answer.best.estimate, MixedEstimate)
    assert {each.pool for each in answer.without} == {*answer.best.estimate.used}
    for each in answer.without:
        rest = [gpus for name, gpus in pools.items() if name != each.pool]
        assert each.step_s == pytest.approx(astra.plan("llama-2-7b", gpus=rest, **work).best.estimate.step_s, rel=2e-3)
    more = next(each for each in answer.marginal if each.pool == "H100-SXM5-80GB")
    wider = astra.plan("llama-2-7b", gpus=["24xH100", *list(pools.values())[1:]], **work)
    assert more.gain >= 0
    assert more.step_s == pytest.approx(wider.best.estimate.step_s, rel=2e-3)
    assert plain.return_first is None
    assert plain.rent_next is None


@pytest.mark.parametrize("usd", [(40.0, 0.1, 40.0), None])
def test_what_is_returned_first_or_rented_next_brings_least_or_most_for_its_money(
    usd: tuple[float, float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"H100-SXM5-80GB": 8, "A100-SXM4-80GB": 4, "L40S": 8}
    if usd is None:  # of one pool no price is known: by GPUs
        monkeypatch.setattr(mixed_worth, "tag_of", lambda money, pool: None)
    prices = dict(zip(counts, usd or (1.0, 1.0, 1.0), strict=True))
    money = Money(price=tuple(f"{name}={each}" for name, each in prices.items()))
    gpus = [f"{count}x{name}" for name, count in counts.items()]
    answer = astra.plan("llama-2-7b", gpus=gpus, batch=48, seq=2048, rank="expected", worth=True, money=money)
    assert isinstance(answer, MixedPlanSet)
    assert isinstance(answer.best.estimate, MixedEstimate)
    step_s, used = answer.best.estimate.step_s, answer.best.estimate.used
    lost = {name: 0.0 for name in counts if name not in used} | {
        each.pool: 1 - step_s / each.step_s for each in answer.without if each.step_s is not None
    }
    first, following = answer.return_first, answer.rent_next
    assert first is not None
    assert first.change == pytest.approx(lost[first.pool])
    assert first.gpus == counts[first.pool]
    hourly = {name: counts[name] * prices[name] for name in counts}
    assert lost[first.pool] / hourly[first.pool] == pytest.approx(min(lost[name] / hourly[name] for name in lost))
    assert first.usd_per_h == (None if usd is None else pytest.approx(hourly[first.pool]))
    assert following is not None
    gains = {each.pool: each.gain / each.gpus / prices[each.pool] for each in answer.marginal}
    assert gains[following.pool] == max(gains.values())
    assert following.change > 0


@pytest.mark.parametrize("batch", [16, 64])  # with fewer samples than GPUs, and with more
@pytest.mark.parametrize("word", ["cp=2", "vp=20", "mbs=64"])
def test_what_may_be_opens_nothing_that_is_not_tried_without(word: str, batch: int) -> None:
    some = fleet("16xH100+16xA100-80", batch=batch)
    free = FrameSpace(some)
    limited = FrameSpace(some, Limits(some.job, parse_restrictions(maximum=(word,))))
    assert {*limited.cp} <= {*free.cp}
    assert {*limited.mbs} <= {*free.mbs}
    assert {*limited._equal_chunks} <= {*free._equal_chunks}
    assert (2 in free.cp) == (batch < 32)


@pytest.mark.parametrize(("word", "name"), [("cp=4", "cp"), ("mbs=64", "mbs"), ("vp=20", "_equal_chunks")])
def test_what_must_be_is_tried_though_it_is_not_usual(word: str, name: str) -> None:
    some = fleet("16xH100+16xA100-80", batch=64)
    assert not {int(word.partition("=")[2])} & {*getattr(FrameSpace(some), name)}
    assert getattr(FrameSpace(some, Limits(some.job, parse_restrictions(fix=(word,)))), name) == [
        int(word.partition("=")[2])
    ]


def test_launchable_plans_have_one_shape() -> None:
    answer = planned("llama-2-13b", "16xH100", "16xA100-80", launchable=True)
    for plan in answer.plans:
        assert isinstance(plan.estimate, MixedEstimate)
        assert "Megatron-LM" in plan.estimate.runs_on
        if on_one_pool(plan.strategy):
            continue
        strategy = parse_mixed(plan.strategy)
        assert len(strategy.groups) == 1
        shapes = {(each.tp, each.ep, each.recompute) for each in strategy.groups[0].segments}
        assert len(shapes) == 1
    assert answer.conceivable.estimate.step_s <= answer.best.estimate.step_s


def test_exact_counts_use_every_gpu() -> None:
    answer = planned("llama-2-13b", "16xH100", "16xA100-80", counts="exact")
    for plan in answer.plans:
        assert isinstance(plan.estimate, MixedEstimate)
        assert plan.estimate.idle == {}


def test_a_slow_pool_far_away_is_left_idle_with_the_reason() -> None:
    far = astra.Link(reach=10**9, kind="tcp", bytes_per_s=1e6, latency_s=0.01, source="test")
    cluster = msgspec.structs.replace(parse_cluster("16xH100+8xA100-40"), between=far)
    answer = astra.plan("llama-2-13b", cluster=cluster, batch=64, seq=4096)
    assert isinstance(answer, MixedPlanSet)
    assert isinstance(answer.best.estimate, MixedEstimate)
    assert list(answer.best.estimate.used) == ["H100-SXM5-80GB"]
    assert any("left idle" in note and "slower" in note for note in answer.notes)


def test_pools_without_fp8_compute_in_bf16() -> None:
    answer = astra.plan("llama-2-13b", gpus=["16xH100", "16xA100-80"], batch=64, seq=4096, precision="fp8")
    assert isinstance(answer.best.estimate, MixedEstimate)
    assert answer.best.estimate.precision == {"H100-SXM5-80GB": "fp8", "A100-SXM4-80GB": "bf16"}


def test_no_common_precision() -> None:
    with pytest.raises(InputError, match=r"V100.*has no bf16.*All of them have fp16"):
        astra.plan("llama-2-13b", gpus=["16xH100", "16xV100-32"], batch=64, seq=4096, counts="exact")
    answer = astra.plan("llama-2-13b", gpus=["16xH100", "16xV100-32"], batch=64, seq=4096)
    assert any("V100" in note and "bf16" in note for note in answer.notes)
    with pytest.raises(InputError, match="fp8"):
        astra.plan("llama-2-13b", gpus=["16xA100-80", "16xV100-32"], batch=64, seq=4096, precision="fp8")


def test_a_pool_on_which_no_stage_fits_is_named() -> None:
    answer = astra.plan("llama-3.1-405b", gpus=["256xH100", "4xT4"], batch=64, seq=8192, precision="fp16")
    assert any("T4" in note and "idle" in note for note in answer.notes)


def test_nothing_fits() -> None:
    with pytest.raises(NoFeasiblePlan, match="405b"):
        astra.plan("llama-3.1-405b", gpus=["8xA100-40", "8xV100-16"], batch=64, seq=4096, precision="fp16")


def test_more_pools_than_layers() -> None:
    shallow = msgspec.structs.replace(find_model("gpt-2"), layers=3)
    gpus = ["1xH100", "1xA100-80", "1xH200", "1xH20", "1xA100-40"]
    answer = astra.plan(shallow, gpus=gpus, batch=8, seq=1024)
    assert answer.best.estimate.fits


@pytest.mark.parametrize(
    ("gpus", "wanted"),
    [
        (["0xH100", "8xA100-80"], "between 1 and"),
        (["8xH100", "8xZ100"], "known name"),
        ([], "either --gpus"),
        ([f"{8 * n}xH100" for n in range(1, 10)], "at most 8 pools"),
    ],
)
def test_bad_pools_are_refused(gpus: list[str], wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        astra.plan("llama-2-13b", gpus=gpus, batch=64, seq=4096)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[dp1 m64: B200 tp8 pp2 layers=20*2]", "a pool of this cluster"),
        ("[dp1 m64: H100-SXM5-80GB tp8 pp3 layers=20,10*2]", "at most the 16"),
        ("[dp1 m64: H100-SXM5-80GB tp8 pp2 layers=20*2] [dp1 m1: A100-SXM4-80GB tp8 layers=40]", "add up to the batch"),
        ("[dp1 m64: H100-SXM5-80GB tp8 pp2 layers=20,19]", "add up to 40"),
    ],
)  # fmt: skip
def test_strategies_that_define_no_run_are_refused(text: str, wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        astra.estimate("llama-2-13b", gpus=["16xH100", "16xA100-80"], batch=64, seq=4096, strategy=text)


def test_gradients_between_groups_cost_more_over_a_slow_network() -> None:
    text = "[dp1 m32: H100-SXM5-80GB tp8 pp2 layers=20*2] [dp1 m32: A100-SXM4-80GB tp8 pp2 layers=20*2]"
    cluster = parse_cluster(SMALL)
    steps = []
    for rate in (5e10, 1e10, 1e9):
        link = astra.Link(reach=10**9, kind="infiniband", bytes_per_s=rate, latency_s=1e-5, source="test")
        joined = msgspec.structs.replace(cluster, between=link)
        steps.append(astra.estimate("llama-2-13b", cluster=joined, batch=64, seq=4096, strategy=text).step_s)
    assert steps == sorted(steps)
    assert steps[-1] > steps[0] + 1.0


def test_pools_that_are_alike_reduce_gradients_as_one_pool_does() -> None:
    work: dict[str, Any] = {"batch": 64, "seq": 1024, "runtime": "deepspeed", "precision": "fp16"}
    plain = "tp1 dp16 mbs1 zero0 overlap=none grads=fp32 flash=off"
    t4, node = hardware.device("T4"), hardware.node_type("aws-g4dn.12xlarge")
    whole, *parts = (astra.Pool(device=t4, node=node, gpus=gpus, name=f"T4-{gpus}") for gpus in (16, 12, 4))
    one, two = (
        astra.estimate("gpt2-medium", cluster=astra.Cluster(pools=tuple(pools)), strategy=plain, **work)
        for pools in ([whole], parts)
    )
    assert one.breakdown["dp communication"] > 0.2 * one.step_s
    assert two.step_s == pytest.approx(one.step_s, rel=0.03)


def test_the_smaller_group_owns_larger_parts_of_the_gradients() -> None:
    pools = fleet(SMALL)
    one = "[dp1 m32: H100-SXM5-80GB tp8 layers=40 recompute=full]"
    few = f"{one} [dp2 m16: A100-SXM4-80GB tp8 layers=40 recompute=full]"
    result = estimate(pools, parse_mixed(few))
    busy = {stage.pool: stage.communication_s["dp"] for stage in result.stages if hasattr(stage, "pool")}
    alone = estimate(fleet(SMALL, batch=32), parse_mixed(one))
    assert busy["H100-SXM5-80GB"] > alone.stages[0].communication_s["dp"] == 0


@pytest.mark.parametrize("seed", sampled(range(150), every=3))
def test_shares_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = [
        BatchShare(int(rng.integers(1, 7)), float(rng.uniform(0, 3)), float(rng.uniform(0.1, 1)))
        for _ in range(rng.integers(1, 4))
    ]
    batch = int(rng.integers(3, 30))
    grids = np.meshgrid(*[np.arange(1, batch + 1)] * len(shares), indexing="ij")
    samples = sum(share.samples * units for share, units in zip(shares, grids, strict=True))
    longest = np.max([share.fixed_s + share.unit_s * units for share, units in zip(shares, grids, strict=True)], axis=0)
    possible = longest[samples == batch]
    menus = [[share] for share in shares]
    found = deal(menus, batch)
    assert (found is None) == (len(possible) == 0)
    if found is not None:
        assert found[0] == pytest.approx(possible.min())
        assert sum(share.samples * units for share, (_, units) in zip(shares, found[1], strict=True)) == batch
        assert deal(menus, batch, below=found[0] * (1 - 1e-9)) is None
        assert deal(menus, batch, below=found[0] * (1 + 1e-9)) == found


def test_the_answer_is_the_same_every_time() -> None:
    first = astra.plan("llama-2-13b", gpus=["16xH100", "16xA100-80"], batch=64, seq=4096)
    again = astra.plan("llama-2-13b", gpus="16xH100+16xA100-80", batch=64, seq=4096)
    assert [plan.strategy for plan in first.plans] == [plan.strategy for plan in again.plans]
