"""Dollars, energy and restarts: published figures come out, laws hold, the interval is the best one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.money import rates as money

writes = st.floats(0.1, 3600)
means = st.floats(600, 1e8)
restarts = st.floats(0, 7200)


def test_rent_is_price_by_gpus_by_time() -> None:
    assert money.rent_usd(2.5, [8, 16], 7200.0).tolist() == [40.0, 80.0]


@given(st.integers(1, 10_000), st.integers(1, 72))
def test_whole_nodes_are_paid_for(gpus: int, per_node: int) -> None:
    billed = float(money.billed_gpus(gpus, per_node))
    assert billed % per_node == 0
    assert gpus <= billed < gpus + per_node


def test_owned_hardware() -> None:
    # 700 W at a PUE of 1.3 and 10 cents; a GPU of 35,064 dollars over four years of 8,766 hours.
    assert money.energy_usd_per_gpu_h(700, 1.3, 0.10) == pytest.approx(0.091)
    assert money.hourly_usd(money.yearly_usd_per_gpu(35_064, 4)) == pytest.approx(1.0)
    assert money.hourly_usd(money.yearly_usd_per_gpu(35_064, 4), 0.5) == pytest.approx(2.0)


@given(st.floats(100, 1e6), st.floats(0.5, 20), st.floats(0.001, 0.5))
def test_an_annuity_pays_back_the_purchase(usd: float, years: float, rate: float) -> None:
    """Discounted at the rate, the yearly payments are worth what was paid; whole years are counted one by one."""
    whole = max(1, round(years))
    yearly = float(money.yearly_usd_per_gpu(usd, whole, rate))
    assert sum(yearly / (1 + rate) ** year for year in range(1, whole + 1)) == pytest.approx(usd)
    assert yearly > float(money.yearly_usd_per_gpu(usd, whole))


@given(st.floats(0, 1e7), st.floats(0, 1e6), st.just(0.0) | st.floats(1e-3, 1e5))
def test_a_bill_covers_the_time_in_whole_steps(used_s: float, minimum_s: float, step_s: float) -> None:
    billed = float(money.billed_s(used_s, minimum_s, step_s))
    assert billed >= max(used_s, minimum_s)
    assert billed <= max(used_s + step_s, minimum_s) * (1 + 1e-12)
    if step_s > 0 and billed > minimum_s and billed > used_s:
        assert billed / step_s == pytest.approx(round(billed / step_s), rel=1e-9)


def test_the_run_the_failure_rate_comes_from() -> None:
    """Llama 3 405B on 16,384 GPUs: one interruption every 3 hours, and effective training time above 90%."""
    mtbf_s = money.mtbf_s(16_384, 2048)
    assert 54 * 86400 / mtbf_s == pytest.approx(419)
    write_s = money.write_s(405e9 * money.CHECKPOINT_BYTES["adam"], 16_384)
    interval_s = money.best_interval_s(write_s, mtbf_s)
    assert 0.90 < money.goodput(interval_s, write_s, money.RESTART_S, mtbf_s) < 0.95


def test_spot_nodes_fail_more_often() -> None:
    alone = money.mtbf_s(64, 8)
    spot = money.mtbf_s(64, 8, preemptions_per_node_s=money.PREEMPTIONS_PER_NODE_S)
    assert spot < alone
    # In 30 days a node is left alone with probability 0.8, whatever its GPUs do.
    only_taken = money.mtbf_s(1, 1, mtbf_gpu_s=np.inf, preemptions_per_node_s=money.PREEMPTIONS_PER_NODE_S)
    assert np.exp(-30 * 86400 / only_taken) == pytest.approx(0.8)


@given(writes, means, restarts)
def test_no_other_interval_is_much_better(write_s: float, mtbf_s: float, restart_s: float) -> None:
    best = money.goodput(money.best_interval_s(write_s, mtbf_s), write_s, restart_s, mtbf_s)
    others = np.geomspace(max(write_s, 1) / 1000, 100 * mtbf_s, 2000)
    most = money.goodput(others, write_s, restart_s, mtbf_s).max()
    # Daly's series is exact for short writes; with writes as long as the time between failures nothing is.
    assert best >= most * (1 - 0.002 * (1 + write_s / mtbf_s) ** 4)


@given(writes, means, restarts, st.floats(1.01, 10))
def test_goodput_is_a_fraction_and_falls_with_failures(
    write_s: float, mtbf_s: float, restart_s: float, more: float
) -> None:
    def found(mean_s: float) -> float:
        return float(money.goodput(money.best_interval_s(write_s, mean_s), write_s, restart_s, mean_s))

    assert 0 <= found(mtbf_s) < 1
    assert found(mtbf_s * more) >= found(mtbf_s)


@pytest.mark.filterwarnings("error")
def test_a_job_that_never_gets_anywhere() -> None:
    assert money.goodput(10.0, 1e6, 60.0, 1.0) == 0


def test_goodput_agrees_with_a_simulation() -> None:
    """Failures drawn at random, work counted by hand."""
    interval_s, write_s, restart_s, mtbf_s = 500.0, 50.0, 100.0, 2000.0
    random = np.random.default_rng(7)
    elapsed_s, useful_s, fails_in = 0.0, 0.0, random.exponential(mtbf_s)
    while useful_s < 3e6:
        if fails_in >= interval_s + write_s:
            fails_in -= interval_s + write_s
            elapsed_s += interval_s + write_s
            useful_s += interval_s
            continue
        elapsed_s += fails_in
        left = restart_s  # a failure while restarting starts the restart again
        while (fails_in := random.exponential(mtbf_s)) < left:
            elapsed_s += fails_in
        elapsed_s += left
        fails_in -= left
    assert useful_s / elapsed_s == pytest.approx(float(money.goodput(interval_s, write_s, restart_s, mtbf_s)), rel=0.02)
