"""A contributor's first day, on a copy of the package: one of each extension, then plan, report and export.

What CONTRIBUTING promises in its table: a data file alone, or one module and the line that registers it (and the line
that imports it). The copy runs in a process of its own, so that nothing leaks.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import astra
from tests.drill.toys import AXIS, AXIS_SENDS, BLOCK, EFFECT, EXPORTER, GPU, MODEL, NODE, OBJECTIVE, SCHEDULE

SOURCE = Path(astra.__file__).parent


class Extension(NamedTuple):
    """What one extension adds to the package."""

    files: dict[str, str]  # new ones
    lines: dict[str, list[tuple[str, str]]]  # by file: what stands there, and what stands there afterwards
    touched: dict[str, int]  # lines of each other file that are new or changed


DATA = {
    "gpu": Extension({"catalog/data/devices/Toy9000.toml": GPU}, {}, {}),
    "node": Extension({"catalog/data/nodes/toybox.toml": NODE}, {}, {}),
    "model": Extension({"catalog/data/models/toymodel.toml": MODEL}, {}, {}),
    "price": Extension(
        {},
        {
            "catalog/data/prices.csv": [
                ("usd_per_gpu_h,currency,date,source,notes\n",
                 "usd_per_gpu_h,currency,date,source,notes\n"
                 "Toys,toybox,Toy9000,4,moon,on-demand,1.5,USD,2026-01-01,a drill,\n"),
            ],
        },
        {"catalog/data/prices.csv": 1},
    ),
    "rule": Extension(
        {},
        {
            "rules/data/legal.rules": [
                ("\nheads: refuse", "\ntoy: refuse tp > 4  # the drill allows tp up to 4\nheads: refuse")
            ]
        },
        {"rules/data/legal.rules": 1},
    ),
}  # fmt: skip
CODE = {
    "exporter": Extension(
        {"export/toy.py": EXPORTER},
        {
            "export/__init__.py": [
                ("from astra.export.torchtitan import TORCHTITAN\n",
                 "from astra.export.torchtitan import TORCHTITAN\nfrom astra.export.toy import TOY\n"),
                ("    MEGATRON,\n", "    TOY,\n    MEGATRON,\n"),
            ],
        },
        {"export/__init__.py": 2},
    ),
    "block": Extension(
        # Its model says it has the block by a width; a real one has a field of its own in spec/model.py.
        {
            "layers/blocks/toy.py": BLOCK,
            "catalog/data/models/toyblocks.toml": MODEL.replace("ffn = 4096", "ffn = 4160"),
        },
        {
            "layers/blocks/__init__.py": [
                ("latent, state_space\n", "latent, state_space, toy\n"),
                ("    experts.BLOCK,\n", "    experts.BLOCK,\n    toy.BLOCK,\n"),
            ],
        },
        {"layers/blocks/__init__.py": 2},
    ),
    "axis": Extension(
        {},
        {
            "axes.py": [
                ("AXES: Final[", AXIS_SENDS + "AXES: Final["),
                ("tuple[Axis, ...]] = (\n", "tuple[Axis, ...]] = (\n" + AXIS),
            ],
        },
        {"axes.py": 6},
    ),
    "objective": Extension(
        {},
        {"money/objectives.py": [("OBJECTIVES: Final = by_name(\n", "OBJECTIVES: Final = by_name(\n" + OBJECTIVE)]},
        {"money/objectives.py": 1},
    ),
    # An effect acts somewhere: beside its name and its function, the one line where it does.
    "effect": Extension(
        {},
        {
            "spec/runtime.py": [
                ("EFFECTS: Final[dict[str, EffectField]] = {\n",
                 'EFFECTS: Final[dict[str, EffectField]] = {\n'
                 '    "toy_s": EffectField(0, "time the drill takes of each step"),\n'),
            ],
            "cost/effects.py": [("def clock(", EFFECT + "def clock(")],
            "cost/step.py": [("job.runtime.host.step_s\n", "job.runtime.host.step_s + effects.toy_s(job.runtime)\n")],
            "catalog/data/runtimes/megatron.toml": [
                ("[effects]\n", '[effects]\ntoy_s = { amount = 2.0, counted_in = "the drill" }\n'),
            ],
        },
        {"spec/runtime.py": 1, "cost/effects.py": 5, "cost/step.py": 1, "catalog/data/runtimes/megatron.toml": 1},
    ),
    # A schedule's name is a word of the strategy, which lies below, and a runtime lists the schedules it can run.
    "schedule": Extension(
        {"schedule/toy.py": SCHEDULE},
        {
            "schedule/registry.py": [
                ("from astra.schedule import gpipe,", "from astra.schedule import toy, gpipe,"),
                ("zero_bubble.SCHEDULE", "zero_bubble.SCHEDULE, toy.SCHEDULE"),
            ],
            "spec/strategy_fields.py": [('"gpipe", "zb"', '"gpipe", "zb", "toy"')],
            "catalog/data/runtimes/megatron.toml": [('schedules = ["1f1b",', 'schedules = ["toy", "1f1b",')],
        },
        {"schedule/registry.py": 2, "spec/strategy_fields.py": 1, "catalog/data/runtimes/megatron.toml": 1},
    ),
}  # fmt: skip
ALL = DATA | CODE
PROGRAM = """
import json, pathlib, sys
import astra
from astra.catalog.runtimes import runtime
from astra.cli import main

asked = dict(gpus="16xT9", batch=64, seq=2048)
one = dict(**asked, strategy="dp16 mbs1 zero1")
plan = astra.plan("toymodel", **asked, top=5)
blocks = astra.plan("toyblocks", **asked, top=3)
out = pathlib.Path(sys.argv[1])
for name, made in (("plan", plan), ("blocks", blocks)):
    (out / f"{name}.json").write_text(made.to_json(), encoding="utf-8")
    if main(["export", str(out / f"{name}.json"), "--to", "toy", "--out", str(out / name), "--json"]):
        sys.exit(f"no export of {name}")
records = {
    "plan": plan,
    "blocks": blocks,
    "wide": astra.estimate("toymodel", **asked, strategy="cp4 dp4 mbs1 zero1"),
    "broken": astra.estimate("toymodel", **asked, strategy="tp8 dp2 mbs1 sp zero1"),
    "alone": astra.estimate("toymodel", **one),
    "blocky": astra.estimate("toyblocks", **one),
    "split": astra.plan("toymodel", **asked, top=5, fix=["schedule=toy", "pp=4"]),
    "priced": astra.estimate("toymodel", **one, tokens=1e9),
    "sized": astra.describe_model("toyblocks"),
    "plain_sized": astra.describe_model("toymodel"),
    "rent": astra.rent("toymodel", gpus="T9", max_gpus=16, batch=64, seq=2048, tokens=1e9, objective="toy"),
}
told = {"text": plan.draw(full=True), "html": plan._repr_html_(), "reported": str(blocks)}
told["home"] = astra.__file__
told["listed"] = {
    f"effects.{name}": effect.fitted_on for name, effect in runtime("megatron").effects.items() if name == "toy_s"
}
told["files"] = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*.txt")}
answers = {name: json.loads(record.to_json()) for name, record in records.items()}
(out / "answers.json").write_text(json.dumps(answers | told), encoding="utf-8")
"""


def extend(home: Path, extension: Extension) -> dict[str, int]:
    """Add one extension to a copy; how many lines of each other file are new or changed."""
    touched = {}
    for name, text in extension.files.items():
        assert not (home / name).exists()
        (home / name).write_text(text.lstrip(), encoding="utf-8")
    for name, changes in extension.lines.items():
        path = home / name
        before = after = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in after, f"{name} has no {old!r}: CONTRIBUTING and this drill are out of date"
            after = after.replace(old, new, 1)
        path.write_text(after, encoding="utf-8")
        difference = difflib.ndiff(before.splitlines(), after.splitlines())
        touched[name] = sum(line.startswith("+ ") for line in difference)
    return touched


def copy(where: Path) -> Path:
    home = where / "astra"
    shutil.copytree(SOURCE, home, ignore=shutil.ignore_patterns("__pycache__", "*.csv.gz"))
    return home


@pytest.mark.parametrize("name", ALL)
def test_an_extension_touches_as_little_as_the_table_says(name: str, tmp_path: Path) -> None:
    extension = ALL[name]
    home = tmp_path / "astra"
    for file in (*extension.files, *extension.lines):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
    for file in extension.lines:
        shutil.copy(SOURCE / file, home / file)
    assert extend(home, extension) == extension.touched
    if name in DATA:
        assert len(extension.files) + len(extension.touched) == 1  # one data file
    modules = [file for file in extension.files if file.endswith(".py")]
    assert len(modules) <= 1
    registries = [file for file in extension.touched if file.endswith(".py")]
    assert len(registries) <= {"schedule": 2, "effect": 3}.get(name, 1)
    assert sum(extension.touched.values()) <= {"schedule": 4, "effect": 8, "axis": 6}.get(name, 2)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy with all of them answers."""
    where, out = tmp_path_factory.mktemp("drill"), tmp_path_factory.mktemp("answers")
    home = copy(where)
    for extension in ALL.values():
        extend(home, extension)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(out)],
        env={**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads((out / "answers.json").read_text(encoding="utf-8"))
    assert answers["home"].startswith(str(where))
    return answers


def test_a_gpu_a_node_and_a_model(extended: dict[str, Any]) -> None:
    request = extended["plan"]["request"]
    assert (request["gpu"], request["node"], request["model"]) == ("Toy9000", "toybox", "toymodel")
    best = extended["plan"]["plans"][0]["estimate"]
    assert best["legal"]
    assert best["fits"]
    assert best["memory_usable_gib"] < 64e9 / 2**30
    assert best["provenance"]["gemm"] == "transferred"  # borrowed from its relative


def test_a_price(extended: dict[str, Any]) -> None:
    priced = extended["priced"]
    assert priced["train_usd"] == pytest.approx(16 * 1.5 * 24 * priced["train_days"])


def test_an_objective(extended: dict[str, Any]) -> None:
    assert extended["rent"]["request"]["objective"] == "toy"


def test_an_exporter(extended: dict[str, Any]) -> None:
    assert extended["files"] == {
        "plan/launch.txt": "train toymodel on 16 GPUs",
        "blocks/launch.txt": "train toyblocks on 16 GPUs",
    }


def test_a_block(extended: dict[str, Any]) -> None:
    """Twelve layers with one more square matrix each, and the wider feed-forward that the toy goes by."""
    plain, more = extended["alone"], extended["blocky"]
    layers, hidden = 12, 1024
    added = layers * (hidden**2 + 3 * hidden * 64)
    total = extended["sized"]["parameters"]["total"]
    assert total == extended["plain_sized"]["parameters"]["total"] + added
    flops = 3 * 2 * added
    assert more["step_s"] > plain["step_s"]
    assert extended["sized"]["flops_per_token"]["training"] == pytest.approx(
        extended["plain_sized"]["flops_per_token"]["training"] + flops
    )
    assert all(plan["estimate"]["legal"] for plan in extended["blocks"]["plans"])
    assert "toyblocks" in extended["reported"]


def test_a_rule(extended: dict[str, Any]) -> None:
    refused = {reject["reason"]: reject for reject in extended["plan"]["rejects"]}
    assert refused["toy"]["sentence"] == "the drill allows tp up to 4"
    assert refused["toy"]["strategies"] > 0
    assert any("the drill allows tp up to 4" in sentence for sentence in extended["broken"]["violations"])
    assert not any(plan["strategy"].startswith(("tp8", "tp16")) for plan in extended["plan"]["plans"])


def test_an_effect(extended: dict[str, Any]) -> None:
    """A second or two of each step, so that nothing is faster than that and the sum still adds up."""
    assert extended["alone"]["step_s"] > 2
    assert extended["listed"] == {"effects.toy_s": ""}


def test_a_schedule(extended: dict[str, Any]) -> None:
    plans = extended["split"]["plans"]
    assert plans
    for plan in plans:
        assert "schedule=toy" in plan["strategy"]
        assert plan["estimate"]["legal"]
        assert plan["estimate"]["bubble_fraction"] > 0
        assert plan["estimate"]["stages"][0]["in_flight"] == plan["estimate"]["microbatches"]  # as GPipe


def test_an_axis(extended: dict[str, Any]) -> None:
    wide, alone = extended["wide"], extended["alone"]
    assert wide["breakdown"]["toy communication"] > 0
    assert wide["stages"][0]["communication_s"]["toy"] > 0
    assert "toy" in wide["provenance"]
    assert alone["breakdown"]["toy communication"] == 0  # degree 1 is a no-op
    assert "toy" not in alone["provenance"]


def test_the_report_tells_of_them(extended: dict[str, Any]) -> None:
    assert "Toy9000" in extended["text"]
    assert "toymodel" in extended["html"]
    assert "the drill allows tp up to 4" in " ".join(extended["text"].split())


def test_degree_one_of_a_new_axis_changes_nothing(extended: dict[str, Any]) -> None:
    """The same estimate as the package without the axis gives, for the same hardware."""
    alone = extended["alone"]
    total = sum(seconds for cause, seconds in alone["breakdown"].items() if cause != "toy communication")
    assert total == pytest.approx(alone["step_s"])
