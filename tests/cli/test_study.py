"""``astra explain``, ``compare`` and ``sweep`` as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import astra
from astra.cli import main

SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 \\
  --num-layers 40 --hidden-size 5120 --num-attention-heads 40 --ffn-hidden-size 13824 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu --vocab-size 32000 \\
  --use-distributed-optimizer --sequence-parallel --untie-embeddings-and-output-weights
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    found = astra.plan("llama-2-13b", gpus="16xA100-80", batch=64, seq=4096, top=3)
    (folder / "plan.json").write_text(found.to_json(), encoding="utf-8")
    (folder / "train.sh").write_text(SCRIPT, encoding="utf-8")
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    record: dict[str, object] = json.loads(capsys.readouterr().out)
    return record


def test_explain_shows_what_is_known_and_names_what_it_had_no_time_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "plan.json", "--seconds", "0"]) == 0
    shown = capsys.readouterr().out
    for heading in ("What the step's time goes to", "What keeps it from being faster", "How sure each figure is"):
        assert heading in shown
    assert "no time for: 10% more memory per GPU" in shown
    assert "This plan (A) against plan.json #2 (B)" in shown


@pytest.mark.parametrize(
    ("one", "two", "names"),
    [
        ("plan.json", "plan.json#2", ("plan.json #1", "plan.json #2")),
        ("train.sh", "plan.json", ("train.sh", "plan.json #1")),
        ("plan.json#3", "tp4 pp2 dp2 mbs1 sp zero1", ("plan.json #3", '"tp4 pp2 dp2 mbs1 sp zero1"')),
    ],
)
def test_compare_takes_plans_scripts_and_words(
    here: Path, capsys: pytest.CaptureFixture[str], one: str, two: str, names: tuple[str, str]
) -> None:
    found = asked(capsys, "compare", one, two)
    first, second = found["first"], found["second"]
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (first["name"], second["name"]) == names
    assert first["tokens_per_step"] == second["tokens_per_step"] == 64 * 4096
    assert first["estimate"]["gpus"] == second["estimate"]["gpus"] == "16xA100-SXM4-80GB"


def test_a_script_says_more_than_the_plan_it_is_compared_with(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "small.sh").write_text(SCRIPT.replace("--global-batch-size 64", "--global-batch-size 32"), encoding="utf-8")
    found = asked(capsys, "compare", "small.sh", "plan.json")
    assert isinstance(found["first"], dict)
    assert found["first"]["tokens_per_step"] == 32 * 4096
    assert "compare tokens per second" in str(found["notes"])


def test_two_strategies_need_a_model_and_gpus(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "tp8 dp2 mbs1", "tp4 dp4 mbs1"]
    assert main(words) == 2
    assert "--model: wanted the model" in capsys.readouterr().err
    assert main([*words, "--model", "llama-2-13b", "--gpus", "16xA100-80", "--batch", "64"]) == 0
    assert "B - A" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "nothing.json", "plan.json"], "There is no such file"),
        (["compare", "plan.json#9", "plan.json"], "a rank in the file"),
        (["compare", "plan.json", "tp3 frobnicate"], "strategy"),
        (["explain", "train.sh"], "plan"),
        (["explain", "plan.json", "--pick", "x"], "the rank of a plan"),
        (["sweep", "llama-2-7b", "--gpus", "8xH100"], "one or two things to sweep"),
        (["sweep", "llama-2-7b", "--gpus", "8xH100", "--over", "gpus=8", "--csv", "a.txt"], "ends in .csv"),
        (
            ["sweep", "llama-2-7b", "--gpus", "8xH100", "--over", "gpus=8", "--plot", "a.gif"],
            "ends in .svg or .html or .png",
        ),
        (["sweep", "llama-2-7b", "--gpus", "8xH100", "--gpus", "8xA100", "--over", "gpus=8"], "one pool of GPUs"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plot", "said"), [("who.gif", "a name that ends in"), ("who.png", "resvg-py"), ("none/who.svg", "no folder")]
)
@pytest.mark.parametrize("verb", ["fleet", "validate"])
def test_a_picture_that_cannot_be_drawn_is_refused_before_the_work(
    here: Path, verb: str, plot: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("astra.report.pictures.find_spec", lambda name: None)  # nothing here draws pixels
    (here / "odd").write_text("neither jobs nor runs")
    assert main([verb, "odd", "--plot", plot]) == (5 if "/" in plot else 2)
    assert said in capsys.readouterr().err


def test_sweep_writes_a_table_and_a_chart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "plan.json", "--over", "batch=32,64", "--csv", "out.csv", "--plot", "out.svg"]
    assert main(words) == 0
    assert "astra: wrote out.csv\nastra: wrote out.svg" in capsys.readouterr().err
    assert (here / "out.csv").read_text(encoding="utf-8").startswith("batch,strategy,")
    assert (here / "out.svg").read_text(encoding="utf-8").startswith("<svg")


def test_plan_and_rent_write_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "plan.json", "--top", "2", "-q", "--report", "plan.html"]) == 0
    rent = ["rent", "llama-2-7b", "--tokens", "10B", "--gpus", "A100-80", "--max-gpus", "16", "--mixes", "none"]
    assert main([*rent, "--report", "rent.html", "-q"]) == 0
    for name, words in (("plan.html", "One step, stage by stage"), ("rent.html", "Time against money")):
        text = (here / name).read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>")
        assert words in text


def test_a_page_that_cannot_be_written_is_told_before_the_search(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "plan.json", "--report", "plan.pdf"]) == 2
    assert "--report: got 'plan.pdf', wanted a name that ends in .html" in capsys.readouterr().err
    assert main(["plan", "plan.json", "--report", "nowhere/plan.html"]) == 5
    assert "there is no folder" in capsys.readouterr().err


def test_check_ends_with_3_where_a_strategy_is_not_legal_or_does_not_fit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["estimate", "llama-2-13b", "--gpus", "16xA100-80", "--batch", "64", "-q", "--strategy"]
    fits, crowded, illegal = "tp8 pp2 dp1 mbs1 sp", "tp1 pp1 dp16 mbs1 zero0", "tp16 pp1 dp1 mbs1 cp1 ep2"
    assert main([*words, fits, "--check"]) == 0
    assert main([*words, crowded]) == 0
    assert main([*words, crowded, "--check"]) == 3
    assert "does not fit" in capsys.readouterr().out
    assert main([*words, illegal, "--check", "--json"]) in (2, 3)


def test_a_plan_that_leaves_gpus_out_is_compared_and_explained_on_those_it_uses(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "llama-2-7b", "--gpus", "32xH100", "--batch", "64", "--tokens", "1B", "--objective", "cheapest"]
    assert main([*words, "-q", "--out", "cheap.json"]) == 0
    capsys.readouterr()
    record = json.loads((here / "cheap.json").read_text(encoding="utf-8"))
    best = record["plans"][0]["estimate"]
    assert int(best["gpus"].partition("x")[0]) < 32
    found = asked(capsys, "compare", "cheap.json", "cheap.json#2")
    assert isinstance(found["first"], dict)
    assert found["first"]["estimate"]["step_s"] == pytest.approx(best["step_s"], rel=1e-12)
    told = asked(capsys, "explain", "cheap.json", "--seconds", "1")
    assert isinstance(told["changes"], list)
    gains = [change["gain"] for change in told["changes"] if change["key"] in ("memory", "batch", "node-links")]
    assert all(-0.05 <= gain <= 0.5 for gain in gains), "the same number of GPUs"
