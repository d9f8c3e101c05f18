"""The page of ``astra serve`` in a real browser, and its API under schemathesis."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import Harness
from tests.frameworks.install import VENVS, python_of, ready
from tests.serve.server import Server

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 5632, "vocab_size": 32000, "_name_or_path": "my/own-model",
}  # fmt: skip
SWEEP = "?verb=sweep&model=llama-2-7b&over=gpus=8..32"
AFFORD = "?verb=afford&model=llama-3.2-1b&budget=100&rent-gpus=H100&max-gpus=8"
RENT = "?verb=rent&model=llama-2-7b&tokens=100B&rent-gpus=H100,A100-80&max-gpus=64"


REPORTED = {
    "plan": "llama-2-70b --gpus 64xH100 --batch 256 --tokens 1T",
    "rent": "llama-2-7b --tokens 100B --batch 256 --gpus H100,A100-80 --max-gpus 64 --mixes none",
    "fleet": "jobs.toml",
    "study": "study.toml",
}
JOBS = """
[pools]
h100 = "16xH100"
[jobs.chat]
model = "llama-3-8b"
tokens = "1B"
[jobs.small]
model = "llama-3.2-1b"
tokens = "10B"
deadline = "30d"
[request]
batch = 64
"""
STUDY = """
models = ["llama-3-8b", "llama-2-13b"]
fleets = ["16xH100", "16xA100-80"]
goals = ["fastest", "cheapest"]
[request]
tokens = "1B"
batch = 64
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not ready("browser"):
        pytest.skip(".venvs/browser could not be made (see make test-frameworks)")
    started = Server(str(python_of("browser")))
    started.ask("GET", "/")
    started.post("estimate", {"model": "llama-2-7b", "gpus": "8xH100", "strategy": "tp8"})  # the workers are there
    yield started
    code, said = started.end()
    assert code == 0
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def browser() -> Iterator[Harness]:
    harness = Harness("browser", "browser_harness.py")
    if "missing" in harness.versions:
        harness.close()
        pytest.skip("no chromium is installed")
    yield harness
    harness.close()


@pytest.fixture
def play(browser: Harness, server: Server) -> Any:
    def scene(name: str, **case: Any) -> dict[str, Any]:
        seen = browser.ask(scene=name, base=f"http://127.0.0.1:{server.port}/", **case)
        assert seen.pop("wrong") == [], "no error, nothing from elsewhere, nothing against the policy"
        return seen

    return scene


def test_the_page_opens_with_an_answer(play: Any) -> None:
    play("opened")
    seen = play("opened")
    print(f"\nusable after {seen['seconds']:.2f} s")
    assert seen["asked"] == ["catalog", "trace"], "the page comes with the answer to what its form asks"
    assert "tokens per second" in seen["status"]
    assert seen["cards"] == 5


def test_a_control_that_moves_moves_the_answer_and_the_address_holds_it(play: Any) -> None:
    seen = play("moved")
    assert seen["batch"] == "512"
    assert seen["first"] != seen["second"]
    assert seen["settled"] == seen["reloaded"], "the last answer is the one that stays"
    assert seen["batches"] == "8"
    assert "batch=8" in seen["address"]


def test_sweeps_budgets_explanations_and_what_joins_pools(play: Any) -> None:
    seen = play("studied")
    assert "What a single change would bring" in seen["why"]
    assert seen["charts"] == 1
    assert "Most tokens for llama-2-7b" in seen["bought"]
    assert seen["slow"] != seen["quick"]
    assert "between=50" in seen["address"]


def test_the_form_asks_for_what_it_says(play: Any) -> None:
    seen = play("filled")
    assert "llama-2-7b on 64xH100" in seen["one"]
    assert "llama-2-7b on 16xH100" in seen["two"]
    assert "16xA100" in seen["three"]
    assert seen["four"] != seen["three"], "a slower network"
    assert seen["links"] == "5"
    assert seen["reloaded"] == seen["four"]


def test_two_plans_are_compared(play: Any) -> None:
    seen = play("compared")
    assert seen["pressed"] == "true"
    assert "A trains" in seen["text"] or "B trains" in seen["text"] or "Both are as fast" in seen["text"]
    assert "B against A" in seen["text"]
    assert "compare tokens per second" in seen["other"], "batches differ"


def test_report_record_and_files_are_kept(play: Any) -> None:
    seen = play("kept")
    assert (seen["report"], seen["begins"]) == ("llama-2-70b.html", "<!doctype html>")
    assert seen["plan"]["schema"] == "astra.plan/1"
    assert seen["name"] == "llama-2-70b-megatron.zip"
    assert any(name.endswith(".sh") for name in seen["files"])


def test_bad_input_shows_the_sentence(play: Any) -> None:
    seen = play("wrong")
    assert seen["sentence"].startswith("batch: got '-3', wanted a whole number from 1")
    assert seen["address"] == seen["sentence"]
    assert (seen["marked"], seen["mended"]) == ("true", None)
    assert "Did you mean llama-2-70b" in seen["model"]


def test_the_front_is_looked_at_and_followed(play: Any) -> None:
    seen = play("front")
    assert seen["points"] >= 3
    assert re.search(r": [\d.]+ (min|h|days), \$", seen["pointed"])
    assert seen["address"].endswith("#choice-1")
    assert seen["after"].startswith(f"llama-2-7b on {seen['aimed'].split()[0]}")


def test_a_config_is_planned_and_held_by_the_address(play: Any) -> None:
    seen = play("dropped", config=json.dumps(CONFIG))
    assert seen["own"].startswith("own-model on 64xH100")
    assert "parameters" in seen["note"]
    assert seen["again"] == seen["own"]
    assert "x.json: wanted whole JSON" in seen["broken"]


def test_a_strategy_is_changed_by_hand(play: Any) -> None:
    seen = play("tried")
    assert seen["same"].split(":")[1] == seen["before"].split(":")[1], "the plan's own words give its own figures"
    assert seen["after"] != seen["same"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
@pytest.mark.parametrize(
    "query", ["", RENT, SWEEP, AFFORD, "?verb=estimate", "?batch=-3", "?pool=16xH100&pool=16xA100-80"]
)
def test_nothing_serious_keeps_anybody_out(play: Any, query: str, scheme: str, width: int) -> None:
    seen = play("accessible", query=query, scheme=scheme, width=width)
    assert seen["serious"] == []
    assert seen["passed"] > 10, "it looked"
    assert seen["wide"] <= width, "nothing is cut off sideways"


@pytest.mark.parametrize("query", ["", RENT, "?pool=16xH100&pool=16xA100-80"])
def test_nor_when_every_panel_is_open(play: Any, query: str) -> None:
    for scheme, width in (("light", 1300), ("dark", 390)):
        seen = play("accessible", query=query, scheme=scheme, width=width, panels=True)
        assert seen["serious"] == []
        assert seen["wide"] <= width


def test_all_of_it_works_by_keys(play: Any) -> None:
    seen = play("by_keys")
    assert seen["first"] == "Skip to the answer"
    assert seen["unreached"] == []
    assert (seen["unseen"], seen["left"]) == (0, True), "focus is always seen, and leaves the page at its end"
    assert seen["focus"] == "compared"


@pytest.mark.parametrize("verb", ["plan", "rent", "fleet", "study"])
def test_reports_are_read_by_everybody_on_a_phone_and_on_paper(browser: Harness, tmp_path: Path, verb: str) -> None:
    words = REPORTED[verb].split()
    for name, text in (("jobs.toml", JOBS), ("study.toml", STUDY)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "astra", verb, *words, "--report", "report.html"]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, timeout=900)
    for scheme, width in (("light", 1300), ("dark", 390)):
        seen = browser.ask(scene="reported", base=f"file://{tmp_path / 'report.html'}", scheme=scheme, width=width)
        assert seen["wrong"] == [], "nothing is fetched"
        assert seen["serious"] == []
        assert seen["wide"] <= width
        assert seen["sideways"] == []
        assert seen["cut"] == [], "nothing is cut off on paper"
        assert seen["paper"] == "rgb(255, 255, 255)"
        assert seen["folded"] == 0, "what is folded has its title on paper"


def test_the_api_is_as_it_is_described(server: Server) -> None:
    program = VENVS / "browser" / "bin" / "schemathesis"
    words = ["--phases", "examples,fuzzing", "--max-examples", "25", "--seed", "1", "--no-color"]
    # Names are looked up in the catalog, which no schema says: most of what is made up is refused.
    words += ["--exclude-checks", "positive_data_acceptance"]
    address = f"http://127.0.0.1:{server.port}/api/openapi.json"
    ended = subprocess.run(
        [str(program), "run", address, *words], check=False, capture_output=True, text=True, timeout=1800,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    print(ended.stdout[-400:])
    assert ended.returncode == 0, ended.stdout[-4000:]
