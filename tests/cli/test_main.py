"""Exit codes, streams and records of the command line as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from astra import __version__
from astra.errors import InputError, NoCoverage, NoFeasiblePlan, OutputError, UnknownName
from tests.cli.conftest import FakePlanner, Shown

Command = Callable[..., Shown]
PLAN = ("plan", "llama-2-7b", "--gpus", "8xH100", "--batch", "64", "--seq", "2048")


def test_version_and_help(astra_command: Command) -> None:
    assert astra_command("--version")[:2] == (0, f"astra {__version__}\n")
    for arguments in (("--help",), ("plan", "-h"), ("estimate", "--help"), ("model", "-h"), ("catalog", "-h")):
        shown = astra_command(*arguments)
        assert shown.code == 0
        assert "examples:" in shown.out
        assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "a verb is needed"),
        (("paln",), "plan"),
        (("plan", "m", "--gpu", "8xH100"), "--gpus"),
        (("plan", "m", "--wibble-wobble"), "no option"),
        (("plan", "m", "n", "--gpus", "8xH100"), "unexpected 'n'"),
        (("estimate", "llama-2-7b", "tp8", "dp2", "--gpus", "16xH100"), "one text: --strategy 'tp8 pp4 dp2'"),
        (("plan", "m", "--gpus"), "expected one argument"),
        (("plan", "m"), "--gpus"),
        (("plan", "--gpus", "8xH100"), "MODEL"),
        (("plan", "m", "--gpus", "8xH100", "--cluster", "c.toml"), "not both"),
        (("plan", "m", "--gpus", "8xH100", "-q", "-v"), "not allowed with"),
        (("estimate", "m", "--gpus", "8xH100"), "--strategy"),
        (("estimate",), "--strategy"),
        (("model",), "MODEL"),
        (("catalog",), "KIND"),
        (("catalog", "gpu"), "gpus"),
        (("plan", "\udcff", "--gpus", "8xH100"), "UTF-8"),
        ((*PLAN, "--out", ""), "--out"),
        ((*PLAN, "--out", "-"), "--json"),
    ],
)
def test_wrong_command_lines(
    astra_command: Command, planner: FakePlanner, arguments: tuple[str, ...], says: str
) -> None:
    shown = astra_command(*arguments)
    assert shown.code == 2
    assert shown.out == ""
    assert says in shown.err
    assert shown.err.startswith("astra: ")
    assert shown.err.count("\n") == 1, "an error is one paragraph"


@pytest.mark.parametrize("flag", ["--batch", "--seq", "--tokens", "--top", "--lora-rank", "--width"])
@pytest.mark.parametrize(
    "value", ["nan", "inf", "0", "-1", "-5k", "", " ", "abc", "1e99", "1e400", "0x10", "\uff11\uff12"]
)
def test_absurd_numbers(astra_command: Command, planner: FakePlanner, flag: str, value: str) -> None:
    shown = astra_command("plan", "m", "--gpus", "8xH100", f"{flag}={value}")
    assert shown.code == 2
    assert flag in shown.err
    assert planner.asked == {}, "nothing was planned"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--batch", "1.5"),
        ("--batch", "tokens"),
        ("--batch", "-4Mtok"),
        ("--batch", "nan tokens"),
        ("--seq", "4096.5"),
        ("--headroom", "-0.1"),
        ("--headroom", "1"),
        ("--headroom", "nan"),
        ("--headroom", "110%"),
        ("--precision", "bf8"),
        ("--optimizer", "adamm"),
        ("--task", "train"),
        ("--width", "10"),
    ],
)
def test_values_out_of_range(astra_command: Command, planner: FakePlanner, flag: str, value: str) -> None:
    shown = astra_command("plan", "m", "--gpus", "8xH100", f"{flag}={value}")
    assert shown.code == 2
    assert shown.err.startswith(f"astra: {flag}: ")
    assert planner.asked == {}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("gpus", "513xH100", want="whole nodes of 8", fix="Try 512x."), 2),
        (UnknownName("model", "lama", ["llama-2-7b"]), 2),
        (NoFeasiblePlan("It does not fit: needs 90 GiB."), 3),
        (NoCoverage("attention is only assumed."), 4),
        (OutputError("no room"), 5),
    ],
)
def test_each_error_has_its_exit_code(
    astra_command: Command, planner: FakePlanner, error: Exception, code: int
) -> None:
    planner.error = error
    shown = astra_command(*PLAN)
    assert (shown.code, shown.out, shown.err) == (code, "", f"astra: {error}\n")
    shown = astra_command(*PLAN, "--json")
    detail = shown.record["error"]
    assert shown.record["schema"] == "astra.error/1"
    assert (shown.code, detail["exit_code"]) == (code, code)
    assert detail["message"] == str(error)
    assert detail["kind"] == type(error).__name__
    assert detail["where"] == getattr(error, "where", "")
    assert detail["fix"] == getattr(error, "fix", "")


def test_json_errors_cover_the_command_line_too(astra_command: Command) -> None:
    shown = astra_command("plan", "m", "--gpus", "8xH100", "--batch", "zero", "--json")
    assert shown.record["error"]["where"] == "--batch"


def test_a_bug_asks_to_be_reported_without_a_traceback(astra_command: Command, planner: FakePlanner) -> None:
    planner.error = KeyError("oops")
    shown = astra_command(*PLAN)
    assert shown.code == 1
    assert "KeyError" in shown.err
    assert "report" in shown.err
    assert "Traceback" not in shown.err
    assert astra_command(*PLAN, "--json").record["error"]["kind"] == "internal"
    with pytest.raises(KeyError):
        astra_command(*PLAN, "--debug")


def test_interrupt(astra_command: Command, planner: FakePlanner) -> None:
    planner.error = KeyboardInterrupt()
    assert astra_command(*PLAN)[:2] == (130, "")


def test_no_plans_is_exit_code_3_with_the_ledger(astra_command: Command, planner: FakePlanner) -> None:
    from msgspec.structs import replace

    planner.planset = replace(planner.planset, plans=[])
    shown = astra_command(*PLAN)
    assert shown.code == 3
    assert "rule number 10" in shown.out
