"""Numbers that do not divide: what is said of others is what planning them gives."""

from __future__ import annotations

import json
import re
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

import astra
from astra.answer import Nearby
from astra.search import nearby
from astra.search.nearby import Other
from astra.search.one_pool import divides


def per_token_s(step_s: float, gpus: int, batch: int) -> float:
    return gpus * step_s / batch


def proven(model: str, remark: Nearby, fix: tuple[str, ...] = ()) -> None:
    """The strategy on those numbers takes the stated step, and planning them gives it first."""
    on = f"{remark.gpus}xH100"
    same = astra.estimate(model, strategy=remark.strategy, gpus=on, batch=remark.batch)
    assert same.legal
    assert same.fits
    assert (same.step_s, same.tokens_per_s) == pytest.approx((remark.step_s, remark.tokens_per_s), rel=1e-9)
    found = astra.plan(model, gpus=on, batch=remark.batch, fix=fix)
    assert found.best.strategy == remark.strategy
    assert found.best.estimate.step_s == pytest.approx(remark.step_s, rel=1e-9)


@pytest.mark.parametrize(("gpus", "batch", "least"), [(24, 512, 0.04), (104, 1024, 0.2), (96, 32, 0.3)])
def test_a_better_batch_is_told_with_the_figures_that_planning_it_gives(gpus: int, batch: int, least: float) -> None:
    answer = astra.plan("llama-3-8b", gpus=f"{gpus}xH100", batch=batch)
    (remark,) = answer.nearby
    assert remark.gpus == gpus
    assert abs(remark.batch - batch) <= batch / 8
    proven("llama-3-8b", remark)
    before_s = per_token_s(answer.best.estimate.step_s, gpus, batch)
    gain = before_s / per_token_s(remark.step_s, gpus, remark.batch) - 1
    assert remark.gain == pytest.approx(gain, rel=1e-9)
    assert gain > least
    assert f"{gain:.0%} more tokens per second" in remark.sentence


def test_no_batch_that_the_gpus_divide_is_better_by_more_than_a_percent() -> None:
    (remark,) = astra.plan("llama-3-8b", gpus="24xH100", batch=512).nearby
    told_s = per_token_s(remark.step_s, 24, remark.batch)
    for batch in range(456, 577, 24):
        other = astra.plan("llama-3-8b", gpus="24xH100", batch=batch, top=1).best.estimate
        assert per_token_s(other.step_s, 24, batch) > told_s * 0.99


def test_fewer_gpus_are_told_where_all_of_them_do_worse() -> None:
    answer = astra.plan("llama-3-8b", gpus="232xH100", batch=1024)  # 29 nodes
    _, fewer = answer.nearby
    assert (fewer.gpus, fewer.batch) == (224, 1024)
    proven("llama-3-8b", fewer)
    before_s = per_token_s(answer.best.estimate.step_s, 232, 1024)
    assert fewer.gain == pytest.approx(before_s / per_token_s(fewer.step_s, 224, 1024) - 1, rel=1e-9)
    assert f"{fewer.gain:.0%} more tokens per GPU-second" in fewer.sentence


def test_numbers_that_cannot_be_dealt_at_all_are_answered_with_some_that_can() -> None:
    with pytest.raises(astra.NoFeasiblePlan) as caught:
        astra.plan("llama-3.1-405b", gpus="100000xH100", batch=2048)
    told = str(caught.value)
    batch = re.search(r"Batch ([\d,]+) instead of 2,048 can be trained: ([\d.]+) s a step", told)
    count = re.search(r"([\d,]+) of the 100,000 GPUs can train it: ([\d.]+) s a step", told)
    assert batch
    assert count
    for gpus, samples, step_s in ((100_000, batch.group(1), batch.group(2)), (count.group(1), "2048", count.group(2))):
        on = f"{str(gpus).replace(',', '')}xH100"
        found = astra.plan("llama-3.1-405b", gpus=on, batch=int(samples.replace(",", "")))
        assert found.best.estimate.step_s == pytest.approx(float(step_s), abs=0.005)


def test_what_does_not_fit_is_not_answered_with_other_numbers() -> None:
    with pytest.raises(astra.NoFeasiblePlan) as caught:
        astra.plan("llama-3.1-405b", gpus="24xH100", batch=512)
    assert "can be trained" not in str(caught.value)


def test_what_no_numbers_could_help_is_not_answered_with_others() -> None:
    with pytest.raises(astra.NoFeasiblePlan, match="flash is off") as caught:
        astra.plan("llama-3-8b", gpus="24xH100", batch=512, runtime="deepspeed", fix=["flash=off"])
    assert "can be trained" not in str(caught.value)


def test_limits_hold_for_what_is_told() -> None:
    (remark,) = astra.plan("llama-3-8b", gpus="24xH100", batch=500, fix=["pp=3"]).nearby
    assert "pp3" in remark.strategy
    proven("llama-3-8b", remark, ("pp=3",))
    for remark in astra.plan("llama-3-8b", gpus="24xH100", batch=512, rules=["refuse dp > 8"]).nearby:
        assert astra.parse_strategy(remark.strategy).dp <= 8


def test_it_is_in_the_text_and_the_record_and_not_in_the_short_form() -> None:
    answer = astra.plan("llama-3-8b", gpus="24xH100", batch=512)
    (remark,) = json.loads(answer.to_json())["nearby"]
    assert set(remark) == {"batch", "gpus", "strategy", "step_s", "tokens_per_s", "gain", "sentence"}
    start = f"Batch {remark['batch']} instead of 512"
    assert start in answer.draw()
    assert start not in answer.draw(brief=True)


@pytest.mark.parametrize(("gpus", "batch"), [(64, 512), (24, 480), (16384, 2048), (8, 1000)])
def test_numbers_that_divide_need_no_remark(gpus: int, batch: int) -> None:
    assert divides(gpus, batch)
    if gpus < 100:
        assert astra.plan("llama-3-8b", gpus=f"{gpus}xH100", batch=batch, top=1).nearby == []


def test_fewer_samples_than_gpus_divide_only_if_the_rest_is_a_power_of_two() -> None:
    assert divides(96, 48)
    assert not divides(96, 32)  # three GPUs a sample: no pipeline of several chunks takes its micro-batches in rounds
    (remark,) = astra.plan("llama-2-70b", gpus="100000xH100", batch=20_000).nearby
    assert (remark.gpus, remark.batch) == (100_000, 18_750)
    assert remark.gain is not None
    assert remark.gain > 0.1


@given(st.integers(1, 200_000), st.integers(1, 10_000_000), st.sampled_from([1, 4, 8, 16]))
def test_numbers_looked_at_are_few_near_and_share_more(gpus: int, batch: int, node: int) -> None:
    asked, odd = Other(gpus, batch), gpus // (gpus & -gpus)
    others = [*nearby.batches(asked), *nearby.counts(asked, min(node, gpus))]
    assert len(others) <= 6
    for other in others:
        more_of_odd = other.gpus == gpus and gcd(other.batch, odd) > gcd(batch, odd)
        assert gcd(*other) > gcd(*asked) or more_of_odd
        assert abs(other.batch - batch) <= batch / 8
        assert 0.95 * gpus <= other.gpus <= gpus
        assert other.gpus == gpus or other.gpus % min(node, gpus) == 0
        assert (other.gpus == gpus) != (other.batch == batch)
