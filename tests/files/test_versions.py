"""Plan files of every version that wrote them are read: planned again, costed, explained, drawn and exported.

``tests/golden/plans`` holds files as each version wrote them; they are never changed. Add those of a version when it is
released, and a step in ``astra/catalog/requests.py`` if something needed was added since.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

import astra
from astra.catalog.requests import upgraded
from astra.cli import main

PLANS = Path(__file__).parents[1] / "golden" / "plans"
FILES = sorted(path.name for path in PLANS.glob("*.json"))
RENTED = [name for name in FILES if "rent" in name]
SEVERAL = [name for name in FILES if "several" in name]


def run(*words: str) -> str:
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
        code = main(list(words))
    assert code == 0, told.getvalue()
    return said.getvalue()


@pytest.mark.parametrize("name", FILES)
def test_its_request_is_asked_again(name: str) -> None:
    then = json.loads((PLANS / name).read_text(encoding="utf-8"))
    now = json.loads(run("rent" if name in RENTED else "plan", str(PLANS / name), "--json"))
    assert now["schema"] == then["schema"]
    assert now["version"] == astra.__version__
    told = ("model", "gpus", "workload") if name not in RENTED else ("model", "tokens")
    for field in told:
        if field in then["request"]:
            before, after = then["request"][field], now["request"][field]
            assert after == before or after.items() >= before.items()


@pytest.mark.parametrize("name", sorted({*FILES} - {*RENTED}))
def test_its_best_plan_is_costed_explained_and_drawn(name: str, tmp_path: Path) -> None:
    then = json.loads((PLANS / name).read_text(encoding="utf-8"))["plans"][0]
    path = str(PLANS / name)
    assert json.loads(run("explain", path, "--seconds", "0", "--json"))["schema"] == "astra.explanation/1"
    run("trace", path, "--out", str(tmp_path / "step.svg"))
    timeline = json.loads(run("trace", path, "--json"))
    # The figures of a version are its own; the same strategy on the same GPUs stays near.
    assert timeline["step_s"] == pytest.approx(then["estimate"]["step_s"], rel=0.2)


@pytest.mark.parametrize("name", sorted({*FILES} - {*SEVERAL}))
def test_its_best_plan_is_exported(name: str, tmp_path: Path) -> None:
    run("export", str(PLANS / name), "--to", "megatron", "--nearest", "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "launch.sh").exists()


def test_the_first_files_had_no_request_and_get_the_one_they_were_made_for() -> None:
    then = json.loads((PLANS / "0.1.0-first.json").read_text(encoding="utf-8"))
    assert "asked" not in then
    now = json.loads((PLANS / "0.1.0.json").read_text(encoding="utf-8"))  # the same command, later
    made = upgraded(then)["asked"]
    for field in ("model", "batch", "seq", "precision", "optimizer", "task", "runtime", "headroom", "top"):
        assert made[field] == now["asked"][field], field
    assert astra.plan(**made).best == astra.plan(**now["asked"]).best


@pytest.mark.parametrize("edit", [{"request": 5}, {"request": {}}, {"request": {"workload": {}, "pools": {"a": 3}}}])
def test_a_cut_file_is_refused(edit: dict[str, object], tmp_path: Path) -> None:
    record = json.loads((PLANS / "0.1.0-first.json").read_text(encoding="utf-8")) | edit
    (tmp_path / "plan.json").write_text(json.dumps(record), encoding="utf-8")
    for words in (("plan", str(tmp_path / "plan.json")), ("export", str(tmp_path / "plan.json"), "--to", "megatron")):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
            assert main(list(words)) == 2, told.getvalue()
