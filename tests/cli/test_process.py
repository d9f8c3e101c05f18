"""A few things only a real process shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "astra"]


def run(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, check=False, env={**os.environ, **environment}, timeout=300
    )


def test_help_and_bad_input() -> None:
    assert run("--help").returncode == 0
    wrong = run("plan", "m", "--gpus", "8xH100", "--batch", "none")
    assert wrong.returncode == 2
    assert wrong.stdout == b""
    assert b"Traceback" not in wrong.stderr


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes only there")
def test_bytes_that_are_no_text() -> None:
    wrong = run("model", b"\xff\xfe", "--json")
    assert wrong.returncode == 2
    assert b"Traceback" not in wrong.stderr
    assert b"astra.error/1" in wrong.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_on_stdout() -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*COMMAND, "catalog", "gpus"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=300
        )
    assert ended.returncode == 5
    assert ended.stderr.decode().startswith("astra: standard output: ")
    assert ended.stderr.count(b"\n") == 1


def test_a_full_disk_on_stderr_changes_no_exit_code() -> None:
    for words, code in ((("plan", "llama-2-7b", "--gpus", "x"), 2), (("catalog", "gpus"), 0)):
        with open("/dev/full", "wb") as full:
            ended = subprocess.run([*COMMAND, *words], stdout=subprocess.PIPE, stderr=full, check=False, timeout=300)
        assert ended.returncode == code


@pytest.mark.skipif(os.name != "posix", reason="pipes end differently there")
def test_a_reader_that_goes_away_is_no_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [*COMMAND, "catalog", "gpus"], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=300
        )
    finally:
        os.close(writer)
    assert ended.stderr == b""
    assert ended.returncode == 141


def test_ascii_terminals_get_ascii() -> None:
    shown = run("catalog", "gpus", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0
    assert shown.stdout.isascii()


# What is registered to run at the end, and a thread that ends after the command does.
ENDING = """
import atexit, sys, threading
from astra.cli import program
atexit.register(lambda: print("the end"))
if {thread}:
    threading.Thread(target=lambda: (threading.main_thread().join(), print("the thread"))).start()
sys.argv = ["astra", {verb!r}, "gpus"]
sys.exit(program())
"""


@pytest.mark.parametrize(("verb", "code"), [("catalog", 0), ("no-such-verb", 2)])
def test_a_program_that_leaves_at_once_leaves_nothing_undone(verb: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING.format(thread=False, verb=verb)], capture_output=True, check=False, timeout=300
    )
    assert ended.returncode == code
    assert ended.stdout.endswith(b"the end\n")
    assert (b"H100" in ended.stdout) == (code == 0)
    assert ended.stderr.startswith(b"astra: " if code else b"")


def test_a_program_waits_for_its_threads() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING.format(thread=True, verb="catalog")],
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0
    assert ended.stdout.endswith(b"the thread\nthe end\n")
