"""Published runs predicted without their source."""

from __future__ import annotations

from astra.catalog import runtimes
from astra.validate.replay import replay
from astra.validate.runs import Run
from astra.validate.table import published
from tools import leave_out


def some(source: str, count: int) -> list[Run]:
    own = [run for run in published() if isinstance(run, Run) and run.source == source and not run.aside]
    return own[:count]


def test_constants_change_the_prediction() -> None:
    runs = some("nemo", 6)
    for before, after in zip(replay(runs), leave_out.predicted(runs, (0.5, 6.0, 0.0)), strict=True):
        assert (after.predicted_step_s or 0.0) > 1.2 * (before.predicted_step_s or float("inf"))


def test_a_source_is_predicted_by_its_kin_and_alone_by_all_others() -> None:
    runs = [*some("nemo", 2), *some("mlperf", 2), *some("ultrascale", 2)]
    found = {each.source: each for each in leave_out.left_out(runs)}
    assert {source: each.kin for source, each in found.items()} == {"nemo": True, "mlperf": True, "ultrascale": False}
    assert sum(len(each.rows) for each in found.values()) == len(runs)


def test_an_unknown_framework_has_learned_nothing_from_its_own_runs() -> None:
    """Nanotron's slow pipelines were learned from its own runs: without them its pipelines are faster."""
    own = [run for run in some("ultrascale", 100) if run.strategy.pp > 1][:3]
    assert runtimes.runtime("nanotron").amount("pipelined_collective_s") > 0
    for known, alone in zip(replay(own), leave_out.predicted(own, (1.0, 6.0, 0.0), alone=True), strict=True):
        assert (alone.predicted_step_s or 9e9) < (known.predicted_step_s or 0.0)


def test_steps_nobody_timed_are_not_in_the_bars() -> None:
    known = published()
    sources = {run.source for run in leave_out.timed(known)}
    assert "vtrain" not in sources
    assert sources >= {"nemo", "ultrascale", "mosaic"}
