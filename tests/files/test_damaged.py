"""Damaged files of every kind: whatever was done to them, only our own errors come out."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astra.cli import main
from tests.files.odd import OddFile, commands, damaged, with_plans

OURS = (0, 2, 3, 4, 5)  # an answer, or one of our own errors; 1 is a bug


@cache
def _files() -> tuple[OddFile, ...]:
    return with_plans()


def _code(command: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        return main(command), said.getvalue()


def test_the_whole_files_are_read(tmp_path: Path) -> None:
    """Else their damage would prove nothing: each is read by at least one of its commands."""
    for file in _files():
        (tmp_path / file.name).write_text(file.text, encoding="utf-8")
        found = {tuple(command): _code(command) for command in commands(file, tmp_path)[:3]}
        if file.name != "several.json":  # which plan a target can express is another matter
            assert 0 in [code for code, _ in found.values()], (file.name, found)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.integers(0, 10**6), seed=st.integers(0, 2**32))
def test_only_our_own_errors(tmp_path_factory: pytest.TempPathFactory, place: int, seed: int) -> None:
    file, draw, folder = _files()[place % len(_files())], Random(seed), tmp_path_factory.mktemp("damaged")
    (folder / file.name).write_bytes(damaged(file.text, file.name, draw))
    command = draw.choice(commands(file, folder))
    code, said = _code(command)
    assert code in OURS, (command, said)
