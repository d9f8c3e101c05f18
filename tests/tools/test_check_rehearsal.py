"""The check of the cost model against rehearsed ranks, fed with a file made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from astra.catalog.hardware import device
from astra.errors import InputError
from astra.lab.rehearse.case import Case, as_row
from astra.search.detail import estimate
from astra.spec.model import ModelSpec, MoE
from astra.spec.strategy import parse_strategy
from astra.validate.targets import REHEARSED
from tools import check_rehearsal

DENSE = ModelSpec(
    name="toy", layers=8, hidden=2048, ffn=8192, heads=16, kv_heads=8, head_dim=128, vocab=32000, max_seq=8192
)
MOE = replace(DENSE, name="toy-moe", moe=MoE(experts=8, topk=2, ffn=1024))
H200 = device("H200")


def played(strategy: str, model: ModelSpec = DENSE, seq: int = 8192, stage: int = 0) -> Case:
    return Case(model=model, strategy=parse_strategy(f"{strategy} overlap=none"), seq=seq, stage=stage)


def row(case: Case, *, off: float = 1.0, wait: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A row whose every measurement is ``off`` times the prediction, and whose host takes ``wait`` times as long."""
    plain = json.loads(json.dumps(as_row(case)))
    job, strategy = check_rehearsal.job_of(plain, H200)
    stage = estimate(job, [strategy])[0].stages[case.stage]
    kinds = check_rehearsal.kernel_seconds(job, strategy, case.stage)
    optimizer_s, zero_grad_s, fill_s = off * stage.optimizer_s, 0.0, 0.001
    busy_s = off * sum(kinds.values()) + optimizer_s + fill_s
    times = {
        "compute_s": max(off * (stage.compute_s + stage.optimizer_s), wait * busy_s), "optimizer_s": optimizer_s,
        "zero_grad_s": zero_grad_s, "fill_s": fill_s, "busy_s": busy_s,
        "busy_by_kind": {"gemm": [1, off * kinds["gemm"] / 2], "grouped_gemm": [1, off * kinds["gemm"] / 2],
                         "attention": [1, off * kinds["attention"]], "copy": [1, 0.1]},
        "peak_allocated_bytes": off * stage.peak_allocated_gib * 2**30,
    }  # fmt: skip
    return {**plain, "oom": False, **times, **changes}


def by_id(rows: list[dict[str, Any]]) -> dict[str, check_rehearsal.Checked]:
    return {found.id: found for found in check_rehearsal.check(rows, H200)}


@pytest.mark.parametrize(
    "case",
    [
        played("tp2 pp2 dp4 mbs4 sp recompute=selective", stage=1, seq=4096),
        played("pp4 vp2 dp2 recompute=full method=block recompute_layers=1"),
        played("ep8 dp8 mbs2", MOE),
    ],
)
def test_a_row_that_equals_the_prediction_has_no_error(case: Case) -> None:
    found = check_rehearsal.check([row(case)], H200)[0]
    for measure in ("memory", "gemm", "attention", "rest"):
        assert found.error(measure) == pytest.approx(0, abs=1e-9)
    assert found.error("compute") == pytest.approx(0, abs=0.02)  # fills are kernels too
    assert found.moe == (case.model is MOE)


def test_kernels_add_up_to_the_stage_where_the_host_is_fast() -> None:
    case = played("dp8 mbs2 recompute=full", seq=32768)
    job, strategy = check_rehearsal.job_of(as_row(case), H200)
    stage = estimate(job, [strategy])[0].stages[0]
    assert sum(check_rehearsal.kernel_seconds(job, strategy, 0).values()) == pytest.approx(stage.compute_s, rel=0.01)


def test_errors_are_signed_and_host_bound_rows_apart() -> None:
    case = played("dp8 mbs2")
    slow = played("dp4 mbs2")
    found = by_id([row(case, off=1.25), row(slow, wait=3.0)])
    assert found[case.id].error("memory") == pytest.approx(-0.2)
    assert not found[case.id].host_bound
    assert found[slow.id].host_bound
    assert found[slow.id].error("rest") is None
    assert found[slow.id].error("gemm") == pytest.approx(0)


def test_variants_of_the_runtime() -> None:
    plain = as_row(played("dp8", seq=4096))
    assert check_rehearsal.runtime_of(plain).attention == "flash2"
    fused = check_rehearsal.runtime_of({**plain, "fused_cross_entropy": True, "attention": "cudnn"})
    assert (fused.memory.logits_peak_bytes, fused.attention) == (10, "cudnn")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = played("dp8")
    huge = played("dp1 mbs512")
    out = {"oom": True, "allocated_at_oom_bytes": 1}
    failed = {**as_row(small), "id": "x", "error": "refused"}
    path = tmp_path / "rows.json"
    rows = [row(small, off=1.25), {**row(huge), **out}, {**row(small), "id": "lie", **out}, failed]
    path.write_text(json.dumps({"gpu": "NVIDIA H200", "rows": rows}))
    assert check_rehearsal.main([str(path)]) == 0
    text = capsys.readouterr().out
    assert "-20.0%" in text
    confusion = check_rehearsal.tables(check_rehearsal.check(rows[:3], H200))[len(check_rehearsal.MEASURES)]
    counts = [sum(int(line[place]) for line in confusion.rows) for place in range(3, len(confusion.head))]
    assert counts == [1, 1, 0, 1, 1]  # the lie was recommended, and failed
    assert check_rehearsal.main([str(path), "--markdown"]) == 0
    page = capsys.readouterr().out
    assert "### Peak allocated memory" in page
    assert "| --- |" in page
    fits = {found.id: (found.fits, found.ran) for found in check_rehearsal.check(rows[:3], H200)}
    assert fits == {small.id: (True, True), huge.id: (False, False), "lie": (True, False)}


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}', "{}"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(InputError):
        check_rehearsal.read_rows(path)
    assert check_rehearsal.main([str(tmp_path / "none.json")]) == 2


def test_the_kept_errors_are_those_of_the_rows_first_looked_at_when_the_model_was_fixed() -> None:
    root = Path(check_rehearsal.__file__).parents[1]
    rows = sorted((root / "benchmarks" / "results").glob("*_rehearsal-last_*.json"))
    found = check_rehearsal.kept(check_rehearsal.check(*check_rehearsal.read_rows(rows[-1])))
    kept = root / "src" / "astra" / "validate" / "data" / REHEARSED
    assert kept.read_text(encoding="utf-8") == found, f"python -m tools.check_rehearsal {rows[-1]} --keep"
