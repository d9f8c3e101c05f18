"""What holds for the estimate of any strategy."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from astra.answer import Estimate
from astra.search.detail import BUBBLE, estimate, legality
from astra.search.engine import search
from astra.spec.job import Job
from astra.spec.strategy import Strategy, parse_strategy, replace
from astra.spec.strategy_fields import DEGREES
from tests.oracle.requests import KINDS, model, pool
from tests.properties.jobs import (
    FREE,
    GROUPS,
    assert_same,
    choices,
    job,
    leaders,
    seeds,
    step_s,
    with_device,
    with_links,
    with_work,
)
from tests.tiers import drawn

Choice = tuple[Job, Strategy]
SLACK = 1e-9


def estimated(choice: Choice) -> Estimate:
    return estimate(choice[0], [choice[1]])[0]


@drawn(60, few=20)
@given(choices)
def test_the_breakdown_sums_to_the_step_and_has_no_negative_cause(choice: Choice) -> None:
    result = estimated(choice)
    assert sum(result.breakdown.values()) == pytest.approx(result.step_s, rel=SLACK)
    assert min(result.breakdown.values()) >= -SLACK * result.step_s, result.breakdown
    assert result.bubble_fraction == pytest.approx(result.breakdown[BUBBLE] / result.step_s)


@drawn(60, few=20)
@given(choices)
def test_memory_by_kind_sums_to_the_peak(choice: Choice) -> None:
    result = estimated(choice)
    for stage in result.stages:
        assert min(stage.memory.values()) >= 0
        assert sum(stage.memory.values()) == pytest.approx(stage.peak_allocated_gib, rel=SLACK)
        assert stage.peak_reserved_gib >= stage.peak_allocated_gib
        assert stage.fits == (stage.peak_reserved_gib <= result.memory_limit_gib)
    assert result.peak_allocated_gib == max(stage.peak_allocated_gib for stage in result.stages)
    assert result.peak_reserved_gib == max(stage.peak_reserved_gib for stage in result.stages)
    assert result.fits == all(stage.fits for stage in result.stages)


@drawn(60, few=20)
@given(choices)
def test_stages_layers_and_microbatches_add_up(choice: Choice) -> None:
    asked, strategy = choice
    result = estimated(choice)
    assert len(result.stages) == strategy.pp
    assert sum(stage.layers for stage in result.stages) == asked.model.layers + (
        asked.model.encoder.layers if asked.model.encoder else 0
    )
    assert sum(stage.gpus for stage in result.stages) == asked.pool.gpus == strategy.gpus
    assert result.microbatches * strategy.dp * strategy.mbs == asked.workload.global_batch
    assert result.tokens_per_s * result.step_s == pytest.approx(asked.workload.tokens_per_step)
    for stage in result.stages:
        assert stage.forward_s + stage.backward_s == pytest.approx(stage.compute_s)
        assert 1 <= stage.in_flight <= result.microbatches
        assert all(stage.exposed_s[axis] <= stage.communication_s[axis] * (1 + SLACK) for axis in stage.exposed_s)


@drawn(60, few=20)
@given(choices)
def test_no_gpu_does_more_than_its_peak(choice: Choice) -> None:
    result = estimated(choice)
    assert 0 < result.mfu <= 1
    assert result.mfu <= result.hfu
    assert max(stage.compute_s for stage in result.stages) < result.step_s


@drawn(40, few=14)
@given(choices)
def test_an_axis_of_degree_one_is_silent(choice: Choice) -> None:
    asked, strategy = choice
    result = estimated(choice)
    degrees = {"tp": strategy.tp, "cp": strategy.cp, "ep": max(strategy.ep, strategy.etp)}
    for stage in result.stages:
        for axis, degree in degrees.items():
            if degree == 1:
                assert stage.communication_s[axis] == stage.exposed_s[axis] == 0
        if strategy.pp == 1:
            assert stage.communication_s["pp"] == 0
        shared = asked.model.tied_embeddings and strategy.pp > 1  # both ends of the pipeline add up its gradient
        if strategy.dp * strategy.cp == 1 and asked.model.moe is None and not shared:
            assert stage.communication_s["dp"] == stage.exposed_s["dp"] == 0


@drawn(40, few=14)
@given(choices)
def test_degrees_of_one_may_be_left_out(choice: Choice) -> None:
    asked, strategy = choice
    full = " ".join(f"{name}{getattr(strategy, name)}" for name in DEGREES)
    rest = " ".join(word for word in str(strategy).split() if not _is_degree(word))
    short = parse_strategy(str(strategy), gpus=asked.pool.gpus)
    assert parse_strategy(f"{full} {rest}") == short == strategy
    assert estimate(asked, [short]) == estimate(asked, [strategy])


def _is_degree(word: str) -> bool:
    return any(word == f"{name}{word.removeprefix(name)}" and word.removeprefix(name).isdigit() for name in DEGREES)


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_one_gpu_does_not_communicate(kind: str) -> None:
    alone = msgspec.structs.replace(job(1), model=model(kind), pool=pool(1))
    seq = alone.model.vision.tokens if alone.model.vision else 128
    alone = with_work(alone, seq=seq, global_batch=4)
    for candidate in search(alone, FREE, keep=GROUPS).candidates:
        for stage in estimate(alone, [candidate.strategy])[0].stages:
            assert set(stage.communication_s.values()) == set(stage.exposed_s.values()) == {0.0}


@drawn(50, few=17)
@given(choices, st.sampled_from((2, 3)))
def test_more_samples_take_longer(choice: Choice, times: int) -> None:
    asked, strategy = choice
    longer = with_work(asked, global_batch=asked.workload.global_batch * times)
    assume(not legality(longer, strategy))
    assert step_s(longer, strategy) > step_s(asked, strategy)


@drawn(50, few=17)
@given(choices)
def test_longer_samples_take_longer(choice: Choice) -> None:
    asked, strategy = choice
    longer = with_work(asked, seq=asked.workload.seq * 2)
    assert step_s(longer, strategy) >= step_s(asked, strategy) * (1 - SLACK)  # equal where the host is the slower
    assert step_s(with_work(asked, seq=asked.workload.seq * 1024), strategy) > step_s(asked, strategy)


FASTER: Mapping[str, float] = {"flops_per_s": 2.0, "memory_bytes_per_s": 2.0, "host_bytes_per_s": 2.0}


@drawn(80, few=27)
@given(choices, st.sampled_from(sorted(FASTER)))
def test_a_faster_gpu_never_hurts_a_strategy(choice: Choice, name: str) -> None:
    asked, strategy = choice
    faster = with_device(asked, **{name: FASTER[name]})
    assert step_s(faster, strategy) <= step_s(asked, strategy) * (1 + SLACK)


@drawn(60, few=20)
@given(choices)
def test_faster_links_never_hurt_a_strategy(choice: Choice) -> None:
    asked, strategy = choice
    assert step_s(with_links(asked, 2.0), strategy) <= step_s(asked, strategy) * (1 + SLACK)


@drawn(40, few=14)
@given(choices)
def test_switches_only_help(choice: Choice) -> None:
    asked, strategy = choice
    bare = replace(strategy, overlap=())
    assume(not legality(asked, bare))
    assert step_s(asked, strategy) <= step_s(asked, bare) * (1 + SLACK)
    assert estimated((asked, bare)).peak_allocated_gib == estimated(choice).peak_allocated_gib


@drawn(40, few=14)
@given(choices)
def test_recompute_trades_time_for_memory(choice: Choice) -> None:
    asked, strategy = choice
    plain, full = (replace(strategy, recompute=kind, method="uniform", recompute_layers=1) for kind in ("none", "full"))
    assume(not legality(asked, full))
    assert step_s(asked, full) > step_s(asked, plain)
    kept = [sum(stage.memory["activations"] for stage in estimate(asked, [some])[0].stages) for some in (full, plain)]
    assert kept[0] <= kept[1]


@drawn(40, few=14)
@given(choices)
def test_zero_stages_shard_ever_more(choice: Choice) -> None:
    asked, strategy = choice
    stages = [replace(strategy, zero=zero, offload="none", overlap=()) for zero in range(4)]
    static = [
        sum(stage.memory[kind] for stage in result.stages for kind in ("weights", "gradients", "optimizer"))
        for result in estimate(asked, stages)
    ]
    assert static == sorted(static, reverse=True)
    if strategy.dp > 1:
        assert static[3] < static[0]


@drawn(25, few=9)
@given(seeds)
def test_a_strategy_costs_the_same_alone_and_among_others(seed: int) -> None:
    some = leaders(seed)[:6]
    for strategy, among in zip(some, estimate(job(seed), some) if some else [], strict=True):
        assert_same(estimate(job(seed), [strategy])[0].to_dict(), among.to_dict())
