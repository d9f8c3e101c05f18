"""Writing: whole files or none, devices untouched, streams that fail."""

from __future__ import annotations

import io
import os
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from astra.cli import output
from astra.cli.progress import SearchProgress
from astra.errors import OutputError

AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    target, plain = tmp_path / "out.json", tmp_path / "plain"
    output.write_file(str(target), "{}\n")
    plain.write_text("")
    assert target.read_text() == "{}\n"
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old " * 1000)
    target.chmod(0o640)
    output.write_file(str(target), "new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    output.write_file(str(link), "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("path", [".", "missing/out.json", "file/out.json"])
def test_places_that_cannot_hold_a_file(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError):
        output.check_destination(str(tmp_path / path))
    with pytest.raises(OutputError):
        output.write_file(str(tmp_path / path), "{}")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(AS_ROOT, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="permission"):
        output.write_file(str(tmp_path / "out.json"), "{}")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        output.write_file(str(target), "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no devices here")
def test_a_device_is_written_to_and_not_replaced() -> None:
    output.write_file("/dev/null", "{}")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_stdout_that_fails_is_an_output_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OutputError, match="No space left"):
        output.write_stdout("x")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed"):
        output.write_stdout("x")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "colour"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
        (None, {}, False),
    ],
)
def test_colour(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None, environment: dict[str, str], colour: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output.wants_color(stream) is colour


def test_progress_appears_only_after_a_second() -> None:
    now_s = [0.0]
    stream = Terminal()
    with closing(SearchProgress(stream, clock=lambda: now_s[0])) as bar:
        bar(0.1)
        now_s[0] = 0.9
        bar(0.5)
        early = bar.shown
        assert stream.getvalue() == ""
        now_s[0] = 1.5
        bar(0.7)
        assert (early, bar.shown) == (False, True)
    assert "searching" in stream.getvalue()
