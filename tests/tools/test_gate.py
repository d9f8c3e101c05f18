"""How the gate sorts answers: by what the user gets, not by when or how it was made."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gate import __main__ as gate
from tools.gate import grid
from tools.gate.compare import BROKEN, EQUAL, MENDED, MOVED, RESTATED, judge

RECORD: dict[str, Any] = {
    "schema": "astra.plan/1",
    "version": "0.1.0",
    "fingerprint": {"catalog": "abc"},
    "request": {"gpus": 8, "top": 2},
    "plans": [
        {"strategy": "tp8", "estimate": {"strategy": "tp8", "step_s": 2.0, "fits": True, "provenance": "measured"}},
        {"strategy": "tp4", "estimate": {"strategy": "tp4", "step_s": 3.0, "fits": True, "provenance": "measured"}},
    ],
    "search": {"evaluated": 100, "seconds": 0.5},
    "notes": ["one note"],
}


def answer(record: Any = RECORD, code: int | str = 0, messages: str = "", **files: str) -> dict[str, Any]:
    return {"code": code, "record": record, "messages": messages, "files": files, "cpu_s": 1.0}


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    """The record with one place changed."""
    record = copy.deepcopy(RECORD)
    inner: Any = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return record


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (RECORD, EQUAL),
        (changed("version", to="9"), EQUAL),
        (changed("fingerprint", to={"catalog": "other"}), EQUAL),
        (changed("search", "seconds", to=99.0), EQUAL),
        (changed("plans", 0, "estimate", "step_s", to=2.0 * (1 + 1e-12)), EQUAL),
        (changed("search", "evaluated", to=7), RESTATED),
        (changed("request", "top", to=3), RESTATED),
        (changed("notes", to=["another note"]), RESTATED),
        (changed("notes", to=[]), RESTATED),
        (changed("new_field", to=1.0), RESTATED),
        (changed("plans", 0, "estimate", "provenance", to="assumed"), RESTATED),
        (changed("plans", 0, "estimate", "step_s", to=2.0 * (1 + 1e-6)), MOVED),
        (changed("plans", 0, "estimate", "fits", to=False), MOVED),
        (changed("plans", 1, "strategy", to="tp2"), MOVED),
        (changed("plans", to=RECORD["plans"][:1]), MOVED),
        (changed("plans", to=RECORD["plans"] * 2), MOVED),
        ({key: value for key, value in RECORD.items() if key != "plans"}, MOVED),
        ({key: value for key, value in RECORD.items() if key != "schema"}, RESTATED),
    ],
)
def test_records_are_sorted_by_what_differs(record: Any, outcome: str) -> None:
    assert judge("x", answer(), answer(record)).outcome == outcome


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (0, 3, BROKEN),
        (0, "timed out", BROKEN),
        (2, 1, BROKEN),
        (3, "died (-11)", BROKEN),
        (3, 0, MENDED),
        (1, 2, MENDED),
        ("raised", 0, MENDED),
        (2, 3, MOVED),
        (2, 2, EQUAL),
        (1, 1, EQUAL),
    ],
)
def test_exit_codes_decide_first(before: int | str, after: int | str, outcome: str) -> None:
    assert judge("x", answer(code=before), answer(code=after)).outcome == outcome


def test_another_error_text_is_told_apart() -> None:
    verdict = judge("x", answer(None, 2, "wanted a number"), answer(None, 2, "wanted a whole number"))
    assert verdict.outcome == RESTATED
    assert "wanted a number -> wanted a whole number" in verdict.reasons[0]


def test_a_move_says_by_how_much_and_what() -> None:
    record = changed("plans", 0, "estimate", to={"strategy": "tp2 dp4", "step_s": 1.5})
    record["plans"][0]["strategy"] = "tp2 dp4"
    estimate = judge("x", answer(RECORD["plans"][0]["estimate"]), answer(record["plans"][0]["estimate"]))
    assert estimate.step_change == pytest.approx(-0.25)
    assert estimate.reasons[0] == "step 2 s -> 1.5 s (-25.00%)"
    assert estimate.reasons[1] == "strategy tp8 -> tp2 dp4"


def test_files_count_as_answers() -> None:
    verdict = judge("x", answer(launch="--tp 8\n--pp 2\n"), answer(launch="--tp 8\n--pp 4\n"))
    assert verdict.outcome == MOVED
    assert "file launch: --pp 2 -> --pp 4" in verdict.reasons


def test_the_summary_counts_everything() -> None:
    verdicts = [judge("a", answer(), answer()), judge("b", answer(), answer(code=2))]
    assert gate.summary(verdicts) == "2 requests: 1 equal, 0 restated, 0 moved, 0 mended, 1 broken"


def test_the_requests_are_many_different_and_the_same_every_time() -> None:
    asked = grid.requests()
    assert len(asked) >= 300
    assert len({tuple(request.argv) for request in asked}) == len(asked)
    assert asked == grid.requests()
    named = {word for request in asked for word in request.argv if word.endswith((".toml", ".rules", ".sh", ".csv"))}
    assert named - {"nosuch.toml"} <= {path.name for path in (gate.HERE / "files").iterdir()}


def child(source: Path, work: Path, argvs: list[list[str]], limit_s: float = 60.0) -> list[dict[str, Any]]:
    """The answers of a child that imports the ``astra`` found under ``source``."""
    results = work / "answers.jsonl"
    asked = json.dumps([{"name": str(number), "argv": argv} for number, argv in enumerate(argvs)])
    subprocess.run(
        [sys.executable, str(gate.HERE / "answer.py"), str(source), str(results), str(limit_s)],
        input=asked, cwd=work, text=True, check=True, timeout=300,
    )  # fmt: skip
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def test_the_child_survives_whatever_a_request_does(tmp_path: Path) -> None:
    package = tmp_path / "src" / "astra" / "cli"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    program = """
import sys
from pathlib import Path

def main(argv):
    if argv == ["raise"]:
        raise ValueError("no")
    if argv == ["exit"]:
        sys.exit(7)
    if argv == ["loop"]:
        try:
            while True:
                pass
        except Exception:
            return 0
    Path("out").mkdir()
    Path("out/file").write_text("text")
    print('{"step_s": 1.0}')
    return 0
"""
    (package / "__init__.py").write_text(program, encoding="utf-8")
    answers = child(tmp_path / "src", tmp_path, [["raise"], ["exit"], ["loop"], ["fine"], ["fine"]], limit_s=0.2)
    assert [answer["code"] for answer in answers] == ["raised", "raised", "timed out", 0, 0]
    assert answers[3]["record"] == {"step_s": 1.0}
    assert answers[3]["files"] == answers[4]["files"] == {"file": "text"}


def test_a_child_that_dies_costs_one_request(tmp_path: Path) -> None:
    package = tmp_path / "astra" / "cli"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    program = "import os\n\ndef main(argv):\n    if argv == ['die']:\n        os._exit(9)\n    return 0\n"
    (package / "__init__.py").write_text(program, encoding="utf-8")
    asked = [grid.Request(word, [word]) for word in ("one", "die", "two")]
    found = gate.answers(tmp_path, asked)
    assert {name: answer["code"] for name, answer in found.items()} == {"one": 0, "die": "died (9)", "two": 0}
