"""Plan files that somebody has edited: whatever text is put anywhere, the export is refused or harmless."""

from __future__ import annotations

import json
from typing import Any

import pytest

import astra
from astra.errors import AstraError
from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.reading import from_record
from tests.export.hostile import keys, tampered, texts
from tests.export.test_mixed import PIPE, with_strategy

EVIL = "bf16\ntouch PWNED\n#"
MIXED = PIPE.format(dp=4, m=32, a=2, b=2)


@pytest.fixture(scope="module")
def records() -> dict[str, dict[str, Any]]:
    """Plans on one pool and on two."""
    request: dict[str, Any] = {"batch": 128, "seq": 4096}
    one = json.loads(astra.plan("llama-2-7b", gpus="8xH100", top=1, **request).to_json())
    two = json.loads(astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], top=1, **request).to_json())
    for record in (one, two):
        told = record["request"]
        pools = [told["pool"]] if "pool" in told else [pool["pool"] for pool in told["pools"].values()]
        record["written"] = record["asked"] | {"model": told["model_spec"], "cluster": {"pools": pools}, "gpus": []}
    found = {"one": one, "two": with_strategy(two, MIXED), "alone": with_strategy(two, "H100-SXM5-80GB: tp2 dp4 sp")}
    return found | {f"{name}, written out": record | {"asked": record["written"]} for name, record in found.items()}


def exported(record: dict[str, Any]) -> dict[str, str]:
    """Every file that any target would write; none if the record is refused."""
    try:
        launch, _ = from_record(record)
    except AstraError as error:
        assert str(error).isprintable()  # noqa: PT017  # not every text is refused
        return {}
    taken = [exporter for exporter in EXPORTERS.values() if not refusals(exporter, launch)]
    return {f"{exporter.name}/{name}": text for exporter in taken for name, text in exporter.files(launch).items()}


@pytest.mark.parametrize("which", ["one", "two", "alone", "one, written out", "two, written out", "alone, written out"])
def test_no_edited_plan_carries_a_command(records: dict[str, dict[str, Any]], which: str) -> None:
    record = records[which]
    assert len(exported(record)) > 5
    request = record["asked"]
    places = [("asked", *path) for path in texts(request)] + [("version",)]
    for path in places:
        hidden(exported(tampered(record, path, EVIL)), path)
    for path in [("asked", *path) for path in keys(request)]:
        hidden(exported(tampered(record, path, EVIL, key=True)), path)


def hidden(files: dict[str, str], path: tuple[Any, ...]) -> None:
    """No line of any file begins with the command, nor holds what cannot be seen."""
    for name, text in files.items():
        assert not any(line.lstrip().startswith("touch PWNED") for line in text.splitlines()), (path, name)
        assert text.replace("\n", "").isprintable(), (path, name)


def test_a_precision_that_only_the_edited_gpu_knows(records: dict[str, dict[str, Any]]) -> None:
    """Two edits that agree with each other are no better than one."""
    asked = json.loads(json.dumps(records["alone, written out"]))["asked"]
    asked["precision"] = "$(touch PWNED)"
    asked["cluster"]["pools"][0]["device"]["flops_per_s"]["$(touch PWNED)"] = 1e15
    with pytest.raises(AstraError, match="precision: got"):
        from_record(records["alone"] | {"asked": asked})


def test_the_place_is_named(records: dict[str, dict[str, Any]]) -> None:
    path = ("asked", "cluster", "pools", 0, "device", "name")
    with pytest.raises(AstraError, match=r"plan: asked.cluster: gpu.name: got 'bf16\\ntouch"):
        from_record(tampered(records["two, written out"], path, EVIL))
