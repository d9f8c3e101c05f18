"""Plans are read back whole; a damaged, edited or foreign one is refused with the field at fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import astra
from astra.atomic import write_folder
from astra.errors import AstraError, InputError, OutputError
from astra.export import EXPORTERS
from astra.export.base import CannotExport, refusals
from astra.export.reading import from_record, read_plan
from tests.export.launching import given

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


def test_a_model_of_ones_own_needs_no_catalog(record: Record) -> None:
    edited = copy.deepcopy(record)
    edited["request"]["model"] = edited["request"]["model_spec"]["name"] = "my own model"
    assert from_record(edited)[0].model.name == "my own model"


def test_a_plan_without_shapes_is_looked_up(record: Record) -> None:
    older = copy.deepcopy(record)
    del older["request"]["model_spec"], older["request"]["pool"]
    assert from_record(older)[0] == from_record(record)[0]


NEW_FIELDS = ("rotary", "activation", "norm_epsilon", "quirks")
NEW_ROUTING = ("score", "normalized", "weight_scale", "groups", "groups_kept", "balance_bias")


def test_a_plan_from_before_positions_were_recorded_is_completed() -> None:
    """The catalog completes the shape of an older plan; a model of one's own stays as little known as it was."""
    launch = given("deepseek-v3", "1024xH100", "pp16 ep64 dp64 mbs1 zero1 layers=3,4*14,2", batch=8192)
    request = {
        "model": "deepseek-v3", "gpus": 1024, "model_spec": msgspec.to_builtins(launch.model),
        "pool": msgspec.to_builtins(launch.pool), "workload": msgspec.to_builtins(launch.workload),
        "runtime": "megatron", "headroom": 0.08,
    }  # fmt: skip
    plan = {"rank": 1, "strategy": str(launch.strategy)}
    plan["estimate"] = {"strategy": plan["strategy"], "gpus": "1024x", "step_s": 1.0}
    older: Record = {"schema": "astra.plan/1", "request": request, "plans": [plan]}
    for field in NEW_FIELDS:
        del request["model_spec"][field]
    for field in NEW_ROUTING:
        del request["model_spec"]["moe"][field]
    assert from_record(older)[0].model == launch.model
    request["model_spec"]["ffn"] += 128
    changed = from_record(older)[0].model
    assert changed.rotary is None
    assert "ROTARY_BASE" in EXPORTERS["megatron"].files(launch._replace(model=changed))["launch.sh"]
    assert "ROTARY_BASE" in EXPORTERS["megatron"].files(launch._replace(model=changed))["README.md"]
    assert "ROTARY_BASE" not in EXPORTERS["megatron"].files(launch)["launch.sh"]


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
        (put("request", "model_spec", "rotary", "base", to="big"), "rotary.base"),
        (put("request", "model_spec", "quirks", to=["odd"]), "quirks[0]"),
        (drop("request"), "request"),
        (drop("plans"), "plans"),
        (put("plans", to={}), "plans"),
        (put("plans", to=[]), "--rank"),
        (drop("request", "workload"), "workload"),
        (put("request", "workload", "seq", to="long"), "workload: seq"),
        (put("request", "workload", "unheard", to=1), "unheard"),
        (put("request", "gpus", to=32), "gpus"),
        (put("request", "model", to="other"), "model"),
        (put("request", "model_spec", "layers", to=-3), "layers"),
        (drop("request", "model_spec", "hidden"), "hidden"),
        (put("request", "pool", "gpus", to=17), "gpus"),
        (put("request", "pool", "device", "sms", to=None), "device.sms"),
        (put("request", "runtime", to="magic"), "runtime"),
        (put("request", "headroom", to="much"), "headroom"),
        (put("plans", 0, "strategy", to="tp2 dp8 mbs1"), "plans[0].strategy"),
        (put("plans", 0, "strategy", to="tp0"), "strategy"),
        (put("plans", 0, "strategy", to=7), "strategy"),
        (drop("plans", 0, "estimate"), "estimate"),
        (put("plans", 0, "estimate", "step_s", to="soon"), "step_s"),
    ],
)
def test_says_which_field(record: Record, tmp_path: Path, change: Callable[[Record], None], field: str) -> None:
    edited = copy.deepcopy(record)
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
    with pytest.raises(CannotExport, match="shares of the batch"):
        from_record(several)


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
