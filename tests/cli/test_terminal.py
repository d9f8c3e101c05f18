"""What a terminal is sent: lines and our own colours, whatever names, files and arguments hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.cli.output import harmless, plain_json
from astra.errors import InputError, shortened, visible, visible_lines
from astra.report.drawing import render_entry
from astra.report.view import estimate_html, plans_html
from tests.cli.conftest import FakePlanner, Shown
from tests.report import records

Command = Callable[..., Shown]
ESCAPES = (
    "\x1b[31mred",
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b2J",
    "\u202egnp",
    "a\rb",
    "a\x08b",
    "[bold]x[/]",
    ":rocket:",
)
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def seen(drawn: str) -> str:
    """The text without our colours, which is all that may not be seen."""
    plain = STYLE.sub("", drawn)
    assert plain.replace("\n", "").isprintable(), plain
    return plain


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("name", ESCAPES)
def test_reports_show_names_and_never_obey_them(name: str, color: bool) -> None:
    plan = records.plan(1, model=name, gpus=f"8x{name}", runtime=name, warnings=[name])
    planset = records.planset(plans=[plan], notes=[name], request={"model": name, "gpus": 8, "gpu": name, "node": name})
    usual = records.plan(1, model="name", gpus="8xname", runtime="name", warnings=["name"])
    pages = {
        "plans": (planset.draw(120, color), ""),
        "estimate": (
            plan.estimate.draw(120, color, full=True),
            usual.estimate.draw(120, color, full=True),
        ),
        "entry": (render_entry(name, {"name": name, "list": [name]}, width=120, color=color), ""),
    }
    for drawn, other in pages.values():
        shown = visible(name.replace("\r", "").replace("\x08", "").replace("\x07", ""))  # rich leaves these out
        assert shown in seen(drawn)
        if other:
            assert len(STYLE.findall(drawn)) == len(STYLE.findall(other))
    for page in (plans_html(planset), estimate_html(plan.estimate)):
        assert page.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", [*ESCAPES, "a\nb", "\ud800"])
def test_arguments_are_shown_and_never_obeyed(astra_command: Command, name: str) -> None:
    for arguments in (
        ("plan", name, "--gpus", "8xH100"),
        ("plan", "llama-2-7b", "--gpus", name),
        ("plan", "llama-2-7b", "--cluster", name),
        ("plan", "llama-2-7b", "--gpus", "8xH100", "--node", name),
        ("plan", "llama-2-7b", "--gpus", "8xH100", "--runtime", name),
        ("catalog", "gpus", name),
        ("catalog", name),
        ("model", name),
        ("import", name),
        ("export", name, "--to", "megatron"),
        ("export", "x", "--to", name),
        ("prices", "check", name),
        (name,),
    ):
        shown = astra_command(*arguments)
        seen(shown.err)
        seen(shown.out)
        record = astra_command(*arguments, "--json")
        seen(record.out)
        seen(record.err)


def test_the_content_of_a_file_is_shown_and_never_obeyed(astra_command: Command, tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[2J\nb.toml"
    file.write_text(
        "[parallelism]\ndata_parallel_shard_degree = 8\npipeline_parallel_degree = 2\n"
        'pipeline_parallel_schedule = "\\u001b[2J\\nnot used  nothing"\n',
        encoding="utf-8",
    )
    shown = astra_command("import", str(file))
    assert shown.code == 0
    assert r"a\x1b[2J\nb.toml (torchtitan)" in seen(shown.out)
    assert r"\x1b[2J\nnot used  nothing, taken as 1F1B" in shown.out
    assert sum(line.startswith("not used") for line in shown.out.splitlines()) == 1


@pytest.mark.parametrize("key", ["\x1b[2J", "a\nb", "x" * 100_000])
def test_keys_of_files_are_shown_and_never_obeyed(astra_command: Command, tmp_path: Path, key: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f"{json.dumps(key)} = 1\n[[pool]]\ncount = 8\ngpu = 'H100'\n", encoding="utf-8")
    shown = astra_command("plan", "llama-2-7b", "--cluster", str(file))
    assert shown.code == 2
    assert seen(shown.err).count("\n") == 1
    assert len(shown.err) < 10_000


def test_errors_of_the_planner_are_shown_and_never_obeyed(planner: FakePlanner, astra_command: Command) -> None:
    for error in (InputError("a\x1b[2J", "\x9b", want="b\nc", fix="\u202ed"), RuntimeError("\x1b[2J")):
        planner.error = error
        shown = astra_command("plan", "llama-2-7b", "--gpus", "8xH100", "--batch", "8")
        assert seen(shown.err).count("\n") == 1
        assert r"\x1b[2J" in shown.err


@settings(max_examples=50)
@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_json_is_the_same_and_can_be_seen(value: object) -> None:
    for text in (json.dumps(value, indent=2), json.dumps(value, indent=2, ensure_ascii=False)):
        plain = plain_json(text)
        assert json.loads(plain) == json.loads(text)
        assert plain.replace("\n", "").isprintable()


@given(st.text())
def test_nothing_but_lines_and_colours_is_left(text: str) -> None:
    assert visible(text).isprintable()
    assert visible_lines(text).replace("\n", "").isprintable()
    assert visible_lines(text).count("\n") == text.count("\n")
    assert visible(visible(text)) == visible(text)
    seen(harmless(text, color=False))
    assert "\x1b" not in harmless(text, color=False)
    seen(harmless(f"\x1b[1m{text}\x1b[0m", color=True))
    if text.isprintable():
        assert visible(text) == text


@given(st.text(min_size=1), st.integers(5, 30))
def test_shortened(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) == min(len(text), most)
    assert short == text or (short[0] == text[0] and short[-1] == text[-1] and "..." in short)
