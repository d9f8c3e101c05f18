"""Errors, confusion and picks of replayed runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.answer import Range
from astra.cli import main
from astra.errors import InputError
from astra.search.world import World
from astra.validate import scatter
from astra.validate.measured import use_of
from astra.validate.replay import ReplayedRun, replay
from astra.validate.runs import Run, Skipped, runs_of
from astra.validate.score import PUBLISHED, errors_of, rank_correlation, scale_of, validate
from astra.validate.table import published
from astra.validate.targets import NO_REASON, targets, why_of
from astra.validate.text import markdown, render_validation
from tests.validate.test_runs import ROW


def row(name: str, predicted: float, measured: float, **changes: Any) -> ReplayedRun:
    fields: dict[str, Any] = {
        "source": "mine", "predicted_step_s": predicted, "measured_step_s": measured, "fits": True,
        "ran_out_of_memory": False, "gpus": 8, "gpu": "H100", "model": "m", "strategy": name, "framework": "megatron",
        "provenance": "measured", "batch": 8, "seq": 4, "precision": "bf16", "task": "pretrain", "family": "dense",
        "predicted_peak_gib": [1.0],
    }  # fmt: skip
    return ReplayedRun(id=name, **(fields | changes))


def test_errors() -> None:
    found = errors_of([0.1, -0.3, None, 0.2])
    assert found is not None
    assert found.runs == 3
    assert [found.mean, found.median, found.bias] == pytest.approx([0.2, 0.2, 0.1])
    assert errors_of([None]) is None


def test_the_pick_is_the_strategy_predicted_fastest() -> None:
    rows = [row("a", 1.0, 2.0), row("b", 2.0, 1.0), row("c", 3.0, 3.0), row("d", 4.0, 4.0)]
    found = validate(rows, table="t")
    assert len(found.groups) == 1
    assert (found.groups[0].picked, found.groups[0].best) == ("a", "b")
    assert found.groups[0].quality == pytest.approx(0.5)
    assert found.groups[0].regret == pytest.approx(1.0)
    assert found.groups[0].rank_correlation == pytest.approx(0.8)


def test_the_pick_is_among_what_is_predicted_to_fit() -> None:
    rows = [row("a", 1.0, 2.0, fits=False), row("b", 2.0, 1.0), row("c", 3.0, 3.0), row("d", 4.0, 4.0)]
    found = validate(rows, table="t").groups[0]
    assert (found.picked, found.quality, found.quality_any) == ("b", 1.0, 0.5)
    refused = validate([row(one.id, 1.0 + n, 2.0 - n / 4, fits=False) for n, one in enumerate(rows)], table="t")
    assert refused.groups[0].picked == "a"  # where nothing fits, the fastest of all


def test_the_pick_keeps_the_headroom_and_is_by_the_upper_end_as_a_plan_is() -> None:
    def with_range(name: str, high: float, measured: float, **changes: Any) -> ReplayedRun:
        return row(name, 1.0, measured, predicted_step_s_range=Range(low=0.5, high=high), **changes)

    rows = [with_range("tight", 1.1, 9.0, recommended=False), with_range("doubtful", 1.6, 5.0, recommended=True),
            with_range("proven", 1.2, 2.0, recommended=True), with_range("far", 3.0, 1.0, fits=False)]  # fmt: skip
    found = validate(rows, table="t").groups[0]
    assert (found.picked, found.quality) == ("proven", 0.5)
    assert found.quality_of_three == pytest.approx(0.5)  # neither the tight one nor the one that does not fit is tried


def test_the_first_three_are_tried_among_what_fits() -> None:
    rows = [row("a", 1.0, 4.0), row("b", 2.0, 3.0), row("c", 3.0, 1.0, fits=False), row("d", 4.0, 2.0)]
    found = validate([*rows, row("e", 5.0, 1.0)], table="t").groups[0]
    assert (found.picked, found.quality, found.quality_of_three) == ("a", 0.25, 0.5)


def test_figures_are_also_told_without_simulated_sources() -> None:
    rows = [row("a", 1.0, 1.0, source="vtrain", use="simulated"), row("b", 2.0, 1.0)]
    lines = {line.name: line for line in validate(rows, table="t").overall}
    assert lines["test"].step is not None
    assert lines["test"].step.runs == 1
    assert lines["without vtrain"].step is not None
    assert lines["without vtrain"].step.mean == 1
    assert "without vtrain" not in {line.name for line in validate(rows[1:], table="t").overall}


def test_duplicate_identifiers_keep_their_own_numbers() -> None:
    rows = [row("x", 1.0, 2.0), row("x", 9.0, 1.0)]
    text = render_validation(validate(rows, table="t"), 100, False, brief=False, full=False)
    assert "+800%" in text
    assert "-50%" in text


def test_narrow_pages_do_not_cut_numbers() -> None:
    rows = [row(str(n), 1.0, 2.0, gpu="H100-SXM5-80GB (a board with a very long name indeed)") for n in range(12)]
    text = render_validation(validate(rows * 100, table="t"), 60, False, brief=False, full=False)
    assert text.count("1,200") >= 6


def test_every_missed_target_and_far_run_is_explained() -> None:
    assert why_of("sailor-0003") != NO_REASON
    assert why_of("somebody-1") == NO_REASON
    found = [row(str(n), 1.0 + n, 1.0) for n in range(4)]
    lines = targets(validate(found, table=PUBLISHED))
    assert {line.name for line in lines if line.met is False} >= {"published runs never fitted on, mean"}
    assert all(line.why for line in lines if line.met is False)


def test_small_groups_repeats_and_unscored_rows_are_not_picked_from() -> None:
    rows = [row("a", 1.0, 2.0), row("a", 1.0, 2.0), row("b", 2.0, 1.0), row("c", 3.0, 3.0)]
    assert validate(rows, table="t").groups == []
    assert validate([*rows, row("d", 4.0, 4.0, not_scored="why")], table="t").groups == []


def test_a_perfect_prediction_has_no_error_and_no_regret() -> None:
    rows = [row(name, time, time) for name, time in (("a", 4.0), ("b", 3.0), ("c", 2.0), ("d", 1.0))]
    found = validate(rows, table="t")
    assert found.overall[0].step is not None
    assert found.overall[0].step.worst == 0
    assert found.picks[0].quality == 1
    assert found.picks[0].rank_correlation == pytest.approx(1)


def test_confusion_counts_every_case() -> None:
    cases = [(True, False), (True, True), (False, False), (False, True), (False, True)]
    rows = [row(str(i), 1.0, 1.0, fits=fits, ran_out_of_memory=oom) for i, (fits, oom) in enumerate(cases)]
    found = validate(rows, table="t").fitting["all"]
    counts = (found.fits_and_ran, found.fits_but_failed, found.refused_but_ran, found.refused_and_failed)
    assert counts == (1, 1, 1, 2)
    assert found.right == pytest.approx(0.6)


def test_skipped_rows_are_counted_and_never_scored() -> None:
    rows = [row("a", 1.0, 1.0), ReplayedRun(id="b", source="mine", skipped="no GPU")]
    found = validate(rows, table="t")
    assert found.skipped == {"no GPU": 1}
    assert found.overall[0].step is not None
    assert found.overall[0].step.runs == 1


def test_the_split_is_by_source_and_by_model() -> None:
    assert use_of("dgxc", "anything") == "fit"
    assert use_of("ultrascale", "llama-1B-x") == "fit"
    assert use_of("ultrascale", "llama-8B-x") == "test"
    assert use_of("vtrain", "GPT-12L-1024") == "simulated"
    assert use_of("somebody", "else") == "test"


def test_targets_are_judged_on_runs_that_somebody_timed() -> None:
    timed = [row(str(n), 1.0, 1.0) for n in range(3)]
    lines = targets(validate([*timed, row("x", 9.0, 1.0, source="y", use="simulated")], table=PUBLISHED))
    assert next(line for line in lines if line.name == "published runs never fitted on, mean").met


@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=30, unique=True))
def test_rank_correlation_of_a_monotone_image_is_one(values: list[int]) -> None:
    column = np.array(values, np.float64)
    assert rank_correlation(column, np.log(column) * 3 + 1) == pytest.approx(1, abs=1e-9)
    assert rank_correlation(column, -column) == pytest.approx(-1, abs=1e-9)


def test_rank_correlation_with_ties() -> None:
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 0


@pytest.mark.parametrize(
    ("gpus", "name"), [(1, "1-8 GPUs"), (9, "9-64 GPUs"), (512, "65-512 GPUs"), (513, "513 GPUs and more")]
)
def test_scales(gpus: int, name: str) -> None:
    assert scale_of(gpus) == name


@pytest.fixture(scope="module")
def sample() -> list[ReplayedRun]:
    """A few real runs of every source."""
    kept: dict[str, list[Run | Skipped]] = {}
    for run in published():
        if len(kept.setdefault(run.source, [])) < 6:
            kept[run.source].append(run)
    return replay([run for runs in kept.values() for run in runs])


def test_real_runs_are_replayed_in_order(sample: list[ReplayedRun]) -> None:
    done = [found for found in sample if found.skipped is None]
    assert len(done) > 40
    for found in done:
        assert found.predicted_step_s is not None
        assert 0 < found.predicted_step_s < 1e5
        assert found.predicted_peak_gib
        assert found.provenance in ("measured", "interpolated", "transferred", "assumed")
        # Within a factor of ten of any measurement that is scored, or the replay is of something else.
        if found.error is not None:
            assert -0.9 < found.error < 9


def test_stages_have_a_peak_each(sample: list[ReplayedRun]) -> None:
    for found in sample:
        if found.skipped is None:
            stages = next(int(word[2:]) for word in found.strategy.split() if word.startswith("pp"))
            assert len(found.predicted_peak_gib or []) == stages


def test_reports(sample: list[ReplayedRun]) -> None:
    found = validate(sample, table="a sample")
    text = render_validation(found, 120, False, brief=False, full=True)
    assert text.startswith("Skipped rows")
    assert "The pick" in text
    page = markdown(found, date="2026-01-01", commit="abc")
    assert "| vtrain |" in page
    assert "abc" in page


def test_pictures(sample: list[ReplayedRun], tmp_path: Path) -> None:
    points = scatter.points_of(sample)
    assert len(points) == sum(found.error is not None for found in sample)
    low, high = scatter.limits(points)
    assert all(10.0**low <= time <= 10.0**high for point in points for time in point[:2])
    scatter.draw(sample, str(tmp_path / "x.html"))
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.count("<title>") - page.count("<circle") == 2 - len({point.source for point in points})
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    with pytest.raises(InputError, match="html"):
        scatter.draw(sample, str(tmp_path / "x.gif"))


CSV = """id,framework,model_name,layers,hidden,ffn,heads,kv_heads,vocab,seq_len,gated_mlp,gpu_type,gpu_mem_gb,num_gpus,\
gpus_per_node,precision,tp,pp,dp,mbs,gbs,recompute,measured_step_time_s,oom
u-1,megatron,mine,16,2048,8192,16,16,32000,2048,1,H100-SXM,80,8,8,bf16,1,1,8,2,64,none,1.0,0
u-2,megatron,mine,16,2048,8192,16,16,32000,2048,1,Abacus,80,8,8,bf16,1,1,8,2,64,none,1.0,0
"""


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(CSV, encoding="utf-8")
    assert main(["validate", str(table), "--json", "--report", str(tmp_path / "r.md")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "astra.validate/1"
    first, second = record["rows"]
    assert first["id"] == "u-1"
    assert first["predicted_step_s"] > 0
    assert len(first["predicted_peak_gib"]) == 1
    assert first["fits"] is True
    assert "Abacus" in second["skipped"]
    assert (tmp_path / "r.md").read_text(encoding="utf-8").startswith("# Accuracy")
    assert main(["validate", str(table)]) == 0
    assert capsys.readouterr().out.startswith("Skipped rows  1 of 2")
    assert main(["validate", str(tmp_path / "none.csv")]) == 2


def test_odd_rows_are_skipped_with_a_reason_and_do_not_end_the_others() -> None:
    odd: list[dict[str, str]] = [{"ep": "3"}, {"ep": "16"}, {"tp": "3"}, {"gbs": "7"}, {"pp": "64"}, {"seq_len": "x"}]
    rows = replay(runs_of([ROW, *(ROW | changes for changes in odd)]))
    assert rows[0].skipped is None
    assert all(row.skipped for row in rows[1:])
    assert sum(validate(rows, table="t").skipped.values()) == len(odd)


def test_runs_over_several_pools_are_near_and_in_order() -> None:
    """12 V100 and 4 T4 over slow Ethernet (AMP, NeurIPS 2022), never fitted on. Brute force is 22 to 29% off."""
    mixed = [run for run in published() if isinstance(run, Run) and len(World.of(run.request).cluster.pools) > 1]
    found = validate(replay(mixed), table="t")
    errors = [abs(row.error) for row in found.rows if row.error is not None]
    assert len(errors) > 20
    assert np.mean(errors) < 0.15
    pick = next(pick for pick in found.picks if pick.name == "several pools")
    assert pick.rank_correlation > 0.75
    assert pick.regret < 0.05


def test_memory_is_compared_with_what_was_counted() -> None:
    stated = ROW | {"measured_peak_mem_gb": "40"}
    plain, driver = replay(runs_of([stated, stated | {"notes": "q=A; peak by nvidia-smi"}]))
    assert plain.compared_peak_gib
    assert driver.compared_peak_gib
    assert driver.compared_peak_gib > plain.compared_peak_gib + 1.5  # the context and slack of the allocator
