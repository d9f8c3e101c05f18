"""Plans are read back whole; a damaged, edited or foreign one is refused with the field at fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.atomic import write_folder
from astra.errors import AstraError, InputError, OutputError
from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.reading import from_record, read_plan

Record = dict[str, Any]


@pytest.fixture(scope="module")
def record() -> Record:
    found: Record = json.loads(astra.plan("llama-2-7b", gpus="16xH100", batch=128, top=2).to_json())
    return found


def test_reads_back(record: Record) -> None:
    for rank in (1, 2):
        launch, job = from_record(record, rank)
        assert str(launch.strategy) == record["plans"][rank - 1]["strategy"]
        assert sum(launch.layers) == launch.model.layers
        assert job is not None
        assert launch.gpus == job.pool.gpus == 16
        assert launch.step_s == record["plans"][rank - 1]["estimate"]["step_s"]


def test_what_a_plan_warns_of_is_in_its_readme() -> None:
    """Advice on the strategy, and what is doubted of its figures."""
    plans = astra.plan("qwen3-30b-a3b", gpus="8xH100", batch=128, fix=["zero=3", "ep=1"], top=1)
    warned = plans.best.estimate.warnings
    assert len(warned) > 1
    readme = EXPORTERS["megatron"].files(from_record(json.loads(plans.to_json()))[0])["README.md"].replace("\\", "")
    for warning in warned:
        assert f"> {warning}\n" in readme


@pytest.mark.parametrize("said", ["slow", [1], {"a": "b"}])
def test_warnings_that_are_no_sentences(record: Record, said: object) -> None:
    edited = copy.deepcopy(record)
    edited["plans"][0]["estimate"]["warnings"] = said
    with pytest.raises(InputError, match="a list of sentences"):
        from_record(edited)


@pytest.fixture(scope="module")
def own(record: Record) -> Record:
    """The same plan, of a model and GPUs that no catalog has."""
    found = copy.deepcopy(record)
    shape, pool = found["request"]["model_spec"], found["request"]["pool"]
    shape["name"], pool["device"]["name"] = "my own model", "my own GPU"
    found["asked"] |= {"model": shape, "cluster": {"pools": [pool]}, "gpus": []}
    return found


def test_a_model_and_gpus_of_ones_own_need_no_catalog(own: Record) -> None:
    launch = from_record(own)[0]
    assert (launch.model.name, launch.pool.device.name) == ("my own model", "my own GPU")


def test_what_is_exported_is_the_request(record: Record) -> None:
    """One record is read; what an answer tells besides is for people."""
    told = copy.deepcopy(record)
    told["request"] = {"model": "another", "gpus": 3}
    assert from_record(told) == from_record(record)


def test_a_plan_from_before_requests_were_recorded_is_refused_with_how(record: Record) -> None:
    older = copy.deepcopy(record)
    del older["asked"]
    with pytest.raises(InputError, match=r"asked: .*Make the plan again.* fields request and plans\[\].strategy"):
        from_record(older)


def test_a_model_whose_positions_are_not_known_is_asked_for_them(own: Record) -> None:
    plain = copy.deepcopy(own)
    for field in ("rotary", "activation", "norm_epsilon", "quirks"):
        del plain["asked"]["model"][field]
    launch = from_record(plain)[0]
    assert launch.model.rotary is None
    assert "ROTARY_BASE" in EXPORTERS["megatron"].files(launch)["launch.sh"]
    assert "ROTARY_BASE" in EXPORTERS["megatron"].files(launch)["README.md"]
    assert "ROTARY_BASE" not in EXPORTERS["megatron"].files(from_record(own)[0])["launch.sh"]


def put(*path: Any, to: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        for step in path[:-1]:
            record = record[step]
        record[path[-1]] = to

    return change


def drop(*path: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        for step in path[:-1]:
            record = record[step]
        del record[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("schema", to="astra.plan/2"), "schema"),
        (put("schema", to="astra.estimate/1"), "schema"),
        (drop("schema"), "schema"),
        (put("plans", 0, "estimate", "microbatches", to=7), "plans[0].estimate.microbatches"),
        (put("asked", "model", "rotary", "base", to="big"), "rotary.base"),
        (put("asked", "model", "quirks", to=["odd"]), "quirks[0]"),
        (drop("plans"), "plans"),
        (put("plans", to={}), "plans"),
        (put("plans", to=[]), "--rank"),
        (put("asked", to=7), "asked"),
        (put("asked", "seq", to="long"), "asked.seq"),
        (put("asked", "unheard", to=1), "asked.unheard"),
        (put("asked", "cluster", "pools", 0, "gpus", to=8), "plans[0].strategy"),
        (put("asked", "model", to="other"), "asked.model"),
        (put("asked", "model", "layers", to=-3), "layers"),
        (drop("asked", "model", "hidden"), "hidden"),
        (put("asked", "cluster", "pools", 0, "gpus", to=17), "gpus"),
        (put("asked", "cluster", "pools", 0, "device", "sms", to=None), "device.sms"),
        (put("asked", "runtime", to="magic"), "asked.runtime"),
        (put("asked", "headroom", to="much"), "asked.headroom"),
        (put("plans", 0, "strategy", to="tp2 dp8 mbs1"), "plans[0].strategy"),
        (put("plans", 0, "strategy", to="tp0"), "strategy"),
        (put("plans", 0, "strategy", to=7), "strategy"),
        (drop("plans", 0, "estimate"), "estimate"),
        (put("plans", 0, "estimate", "step_s", to="soon"), "step_s"),
    ],
)
def test_says_which_field(own: Record, tmp_path: Path, change: Callable[[Record], None], field: str) -> None:
    edited = copy.deepcopy(own)
    change(edited)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(edited), encoding="utf-8")
    with pytest.raises(AstraError) as error:
        read_plan(path)
    assert field in str(error.value)
    assert error.value.exit_code == 2


def test_an_edited_strategy_that_is_illegal(record: Record) -> None:
    edited = copy.deepcopy(record)
    for place in (edited["plans"][0], edited["plans"][0]["estimate"]):
        place["strategy"] = "tp16 dp1 mbs1 sp zero1 recompute=none overlap=tp"
    edited["plans"][0]["strategy"] = edited["plans"][0]["estimate"]["strategy"] = "tp1 dp16 mbs3"
    with pytest.raises(InputError, match="must divide the batch"):
        from_record(edited)


@pytest.fixture(scope="module")
def mixed() -> Record:
    found: Record = json.loads(astra.plan("llama-3.1-8b", gpus="8xH100+8xA100-80", batch=128, top=5).to_json())
    return found


def test_plans_over_several_pools(mixed: Record) -> None:
    text = (
        "zero1 overlap=grad,param,tp [dp2 mbs1 m64: H100-SXM5-80GB tp4 pp1 layers=20 recompute=none "
        "+ A100-SXM4-80GB tp4 pp1 layers=12 recompute=none]"
    )
    edited = copy.deepcopy(mixed)
    edited["plans"][0]["strategy"] = edited["plans"][0]["estimate"]["strategy"] = text
    launch, job = from_record(edited)
    assert job is None
    assert launch.mixed
    assert launch.layers == (20, 12)
    assert [mesh.gpus for mesh in launch.meshes] == [8, 8]
    assert (launch.strategy.tp, launch.strategy.pp, launch.strategy.dp, launch.microbatches) == (4, 2, 2, 64)
    assert refusals(EXPORTERS["megatron"], launch) == refusals(EXPORTERS["flagscale"], launch) == []
    several = copy.deepcopy(mixed)
    shares = (
        "zero1 overlap=grad,param [dp4 mbs2 m12: H100-SXM5-80GB tp2 pp1 layers=32] "
        "[dp4 mbs2 m4: A100-SXM4-80GB tp2 pp1 layers=32]"
    )
    several["plans"][0]["strategy"] = several["plans"][0]["estimate"]["strategy"] = shares
    launch, _ = from_record(several)
    assert "unequal shares of the batch" in refusals(EXPORTERS["megatron"], launch)[0]


def test_a_truncated_file(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(record, indent=1)[:5000], encoding="utf-8")
    with pytest.raises(InputError, match=r"breaks off or is damaged at line \d+"):
        read_plan(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"3", b"[" * 100_000])
def test_not_a_plan(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_plan(path)
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "none.json")


def test_folders_are_never_overwritten_silently(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    made = write_folder(str(folder), {"a.sh": "#!/bin/sh\n", "b.txt": "b\n"})
    assert [Path(path).name for path in made] == ["a.sh", "b.txt"]
    assert (folder / "a.sh").stat().st_mode & 0o100
    with pytest.raises(OutputError, match="not empty"):
        write_folder(str(folder), {"a.sh": "other"})
    assert (folder / "a.sh").read_text(encoding="utf-8") == "#!/bin/sh\n"
    (folder / "mine.txt").write_text("kept", encoding="utf-8")
    with pytest.raises(OutputError, match=r"\(mine.txt\)"):
        write_folder(str(folder), {"a.sh": "other\n", "b.txt": "b\n"}, overwrite=True)
    assert (folder / "mine.txt").read_text(encoding="utf-8") == "kept"
    assert (folder / "a.sh").read_text(encoding="utf-8") == "#!/bin/sh\n"
    (folder / "mine.txt").unlink()
    write_folder(str(folder), {"a.sh": "other\n", "b.txt": "b\n"}, overwrite=True)
    assert (folder / "a.sh").read_text(encoding="utf-8") == "other\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    with pytest.raises(OutputError, match="is a file"):
        write_folder(str(folder / "a.sh"), {})
    with pytest.raises(OutputError, match="no folder"):
        write_folder(str(tmp_path / "x" / "y"), {})
    (tmp_path / "empty").mkdir()
    write_folder(str(tmp_path / "empty"), {"a": "a\n"})
