"""The check of hosts, fed with files of two machines made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astra.catalog.hardware import device
from astra.lab.rehearse.case import Case, as_row
from astra.lab.rehearse.pace import with_host
from astra.search.detail import estimate
from astra.spec.cluster import FASTEST_HOST
from astra.spec.model import ModelSpec
from astra.spec.strategy import parse_strategy
from tools import check_hosts
from tools.check_rehearsal import job_of

TOY = ModelSpec(
    name="toy", layers=8, hidden=1024, ffn=4096, heads=8, kv_heads=8, head_dim=128, vocab=32000, max_seq=8192
)


def row(dp: int, seq: int, speed: float) -> dict[str, Any]:
    """A rank as a host of this speed would have run it."""
    case = Case(model=TOY, strategy=parse_strategy(f"dp{dp} mbs1 overlap=none"), seq=seq, stage=0)
    plain = json.loads(json.dumps(as_row(case)))
    job, strategy = job_of(plain, device("H200"))
    ran = estimate(with_host(job, speed), [strategy])[0].stages[0]
    gpu = estimate(with_host(job, FASTEST_HOST), [strategy])[0].stages[0]
    times = {"compute_s": ran.compute_s, "optimizer_s": 0.0, "zero_grad_s": 0.0, "busy_s": gpu.compute_s, "fill_s": 0.0}
    return {**plain, "oom": False, **times, "busy_by_kind": {}, "peak_allocated_bytes": 1}


def written(path: Path, speed: float) -> str:
    rows = [row(dp, seq, speed) for dp in range(1, 11) for seq in (512, 8192)]
    path.write_text(json.dumps({"gpu": "NVIDIA H200", "rows": [*rows, {**rows[0], "id": "oom", "oom": True}]}))
    return str(path)


def test_two_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual, fast = written(tmp_path / "usual.json", 1.0), written(tmp_path / "fast.json", 2.0)
    first, second, _ = check_hosts.lines({name: check_hosts.ranks_of(name) for name in (usual, fast)})
    assert (first.ranks, second.ranks) == (20, 20)
    assert 10 <= second.waited < 20
    assert [first.speed, second.speed] == pytest.approx([1.0, 2.0], rel=0.01)
    as_they_are, others, own = second.errors
    assert as_they_are == pytest.approx(others, rel=0.05)  # the other machine is the usual one
    assert as_they_are > 0.3
    assert own < 0.01
    assert first.errors[0] < 1e-9
    assert first.errors[1] > 0.2  # by the speed of the fast one
    assert check_hosts.main([usual]) == 0
    assert "usual" in capsys.readouterr().out


def test_what_is_no_rehearsal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    path.write_text("[]")
    assert check_hosts.main([str(path)]) == 2
    assert "check_hosts:" in capsys.readouterr().err
