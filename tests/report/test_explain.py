"""The numbers and sentences behind the reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.answer import Range, Reject
from astra.report import explain, terms
from tests.report import records

SECONDS = st.floats(min_value=1e-6, max_value=1e3)


@given(st.dictionaries(st.sampled_from(sorted(terms._WORDS)), SECONDS, min_size=1))
def test_shares_sum_to_the_step_and_are_sorted(breakdown: dict[str, float]) -> None:
    rows = explain.shares(records.estimate(breakdown=breakdown))
    assert sum(row.seconds for row in rows) == pytest.approx(sum(breakdown.values()))
    assert sum(row.fraction for row in rows) == pytest.approx(1.0)
    assert [row.seconds for row in rows] == sorted((row.seconds for row in rows), reverse=True)


def test_compute_is_known_as_well_as_its_least_sure_operator() -> None:
    provenance = {
        "gemm": "measured",
        "attention": "transferred",
        "streaming": "interpolated",
        "data parallel": "assumed",
    }
    estimate = records.estimate(breakdown={"forward": 3.0, "dp communication": 1.0, "host": 0.5}, provenance=provenance)
    assert {row.term: row.source for row in explain.shares(estimate)} == {
        "forward": "transferred",
        "dp communication": "assumed",
        "host": "",
    }


def test_a_term_nobody_described_keeps_its_own_name() -> None:
    rows = explain.shares(records.estimate(breakdown={"checkpoint_io_s": 1.0}))
    assert [(row.label, row.group) for row in rows] == [("checkpoint io", "other")]


def test_dominates_adds_up_the_groups() -> None:
    estimate = records.estimate(breakdown={"compute": 6.0, "tp": 1.0, "dp": 2.0, "bubble": 1.0})
    assert (
        explain.dominates(estimate) == "Of the step, 60% is compute, 30% is exposed communication and 10% is waiting."
    )


def test_helps_most_names_the_largest_loss_and_not_compute() -> None:
    sentence = explain.helps_most(records.estimate(breakdown={"compute": 6.0, "tp": 1.0, "bubble": 3.0}))
    assert "pipeline bubble" in sentence
    assert "30%" in sentence


def test_helps_most_says_so_when_there_is_nothing_to_gain() -> None:
    assert "faster GPUs" in explain.helps_most(records.estimate(breakdown={"compute": 1.0, "tp": 1e-4}))


def test_compare_finds_the_term_that_lost_and_the_one_that_won() -> None:
    best = records.estimate(breakdown={"compute": 4.0, "tp": 1.0, "bubble": 1.0})
    other = records.estimate(breakdown={"compute": 4.0, "tp": 2.5, "bubble": 0.5})
    loss = explain.compare(best, other, rank=2)
    assert loss.seconds == pytest.approx(1.0)
    assert loss.fraction == pytest.approx(1 / 6)
    assert (loss.term, loss.gain) == ("tensor-parallel comm.", "pipeline bubble")
    assert loss.term_seconds == pytest.approx(1.5)
    assert loss.gain_seconds == pytest.approx(-0.5)


@given(
    st.dictionaries(st.sampled_from(["compute", "tp", "bubble"]), SECONDS, min_size=1),
    st.dictionaries(st.sampled_from(["compute", "tp", "dp"]), SECONDS, min_size=1),
)
def test_compare_is_antisymmetric(one: dict[str, float], two: dict[str, float]) -> None:
    forth = explain.compare(records.estimate(breakdown=one), records.estimate(breakdown=two), rank=2)
    back = explain.compare(records.estimate(breakdown=two), records.estimate(breakdown=one), rank=2)
    assert forth.seconds == pytest.approx(-back.seconds)
    if forth.gain:
        assert forth.gain_seconds == pytest.approx(-back.term_seconds)


def test_why_lost_tells_apart_inside_and_outside_the_error_bars() -> None:
    best = records.plan(1, breakdown={"compute": 10.0})
    near = records.plan(2, breakdown={"compute": 10.0, "tp": 0.3})
    far = records.plan(3, breakdown={"compute": 10.0, "tp": 9.0})
    assert "within the error bars" in explain.why_lost(best, near)
    assert "within the error bars" not in explain.why_lost(best, far)
    assert "90% slower" in explain.why_lost(best, far)


def test_why_lost_of_an_equal_plan_speaks_of_memory() -> None:
    best = records.plan(1)
    twin = records.plan(2, peak_reserved_gib=best.estimate.peak_reserved_gib + 3.0)
    assert explain.why_lost(best, twin) == "#2 is as fast as #1 by this model. It needs 3.0 GiB more per GPU."


def test_headroom_is_that_of_the_fullest_stage() -> None:
    stages = [records.stage(0, activations_gib=10.0), records.stage(1, activations_gib=40.0)]
    found = records.estimate(stages=stages)
    assert explain.fullest(found).index == 1
    said = explain.memory_sentence(found)
    assert said.startswith(f"Stage 1 of 0-1 is the fullest: {stages[1].peak_reserved_gib:.1f} of ")
    assert f"mostly activations ({stages[1].memory['activations']:.1f} GiB)" in said


def test_memory_sentence_says_how_much_is_too_much() -> None:
    # 61.0 allocated * 1.05 reserved = 64.05
    assert "4.0 GiB too much" in explain.memory_sentence(records.estimate(memory_usable_gib=60.0))
    assert "limit is 60.0 GiB" in explain.memory_sentence(records.estimate(memory_limit_gib=60.0))
    assert "14.4 GiB stay free" in explain.memory_sentence(records.estimate())


def test_certainty_names_the_weakest_term_with_the_most_time() -> None:
    provenance = {"compute": "measured", "dp": "assumed", "bubble": "assumed"}
    estimate = records.estimate(
        breakdown={"compute": 5.0, "dp": 1.0, "bubble": 2.0},
        provenance=provenance,
        provenance_worst="assumed",
        step_s_range=Range(low=7.0, high=9.5),
    )
    assert (
        explain.certainty(estimate)
        == "Expect 7.00 s to 9.50 s per step; pipeline bubble and data-parallel comm. are assumed."
    )


def test_equal_neighbours_are_joined_and_none_is_lost() -> None:
    stages = [records.stage(index, activations_gib=gib, in_flight=1) for index, gib in enumerate([9, 5, 5, 5, 7])]
    assert [row.name for row in explain.memory_rows(stages)] == ["0", "1-3", "4"]
    assert [row.name for row in explain.time_rows(stages)] == ["0-4"]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_joined_rows_cover_every_stage_once(gibs: list[int]) -> None:
    stages = [records.stage(index, activations_gib=float(gib)) for index, gib in enumerate(gibs)]
    covered = [index for row in explain.memory_rows(stages) for index in range(row.first, row.last + 1)]
    assert covered == list(range(len(gibs)))


@given(st.lists(st.integers(1, 10**9), max_size=20), st.integers(1, 10))
def test_rejects_left_off_are_still_counted(counts: list[int], limit: int) -> None:
    rejects = [Reject(reason=f"r{index}", sentence="s", strategies=count) for index, count in enumerate(counts)]
    shown, reasons, strategies = explain.ranked_rejects(rejects, limit)
    assert len(shown) + reasons == len(counts)
    assert sum(reject.strategies for reject in shown) + strategies == sum(counts)
    assert strategies == 0 or min(reject.strategies for reject in shown) >= strategies / reasons


def test_warnings_are_shown_once_with_the_plans_they_are_about() -> None:
    planset = records.planset(plans=[records.plan(1, warnings=["a", "b"]), records.plan(2, warnings=["b", "c"])])
    assert explain.all_warnings(planset) == ["#1: a", "#1, #2: b", "#2: c"]


def test_advice_already_followed_is_not_given() -> None:
    slow = {"breakdown": {"forward": 1.0, "dp communication": 3.0}}
    without, having = (
        explain.helps_most(records.estimate(**slow, strategy=f"tp8 pp4 dp16 mbs1 overlap={overlap}"))
        for overlap in ("none", "grad,param,tp")
    )
    assert "overlap=grad,param" in without
    assert "overlap" not in having
    assert "a larger batch or faster links" in having


def test_close_step_times_read_differently() -> None:
    assert explain.show_step(163.2) != explain.show_step(163.4)
    assert explain.show_step(5.6) == "5.60 s"
    assert explain.show_step(0.0123) == "12.3 ms"


def test_rounding_left_over_is_not_a_term() -> None:
    rows = explain.shares(records.estimate(breakdown={"forward": 1.0, "pipeline bubble and p2p": -1e-17}))
    assert [row.term for row in rows] == ["forward"]
    assert explain.show_share(-1e-17) == "0.0%"
    assert explain.show_share(-0.01) == "-1.0%"
