"""Files and folders appear whole or not at all: when a write fails, when the process is killed, beside leftovers."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import astra
from astra import atomic
from astra.atomic import write_file, write_folder
from astra.cli import output
from astra.errors import OutputError
from astra.lab.profile.plan import Store

FILES = {name: f"#!/bin/sh\n# {name}\n" * 50 for name in ("a.sh", "b.sh", "c.sh")}


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.mark.parametrize("old", [{}, {"a.sh": "old", "b.sh": "old", "c.sh": "old"}])
@pytest.mark.parametrize("broken", ["fsync", "rename", "chmod", "mkdir"])
def test_a_failure_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, old: dict[str, str]
) -> None:
    folder = tmp_path / "out"
    if old:
        write_folder(str(folder), old)
    real, calls = getattr(os, broken), iter(range(100))

    def fails(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 1 or broken == "rename":
            raise OSError(28, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, broken, fails)
    with pytest.raises(OutputError, match="nothing was written"):
        write_folder(str(folder), FILES, overwrite=True)
    monkeypatch.undo()
    assert (held(folder) if folder.exists() else {}) == old
    assert list(tmp_path.iterdir()) == [folder] * bool(old)


def test_a_swap_that_fails_half_way_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, real = tmp_path / "out", os.rename
    write_folder(str(folder), dict.fromkeys(FILES, "old"))

    def fails(old: Any, new: Any) -> None:
        if Path(old).name == "new":
            raise OSError(5, "Input/output error")
        real(old, new)

    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OutputError, match="Input/output error; nothing was written"):
        write_folder(str(folder), FILES, overwrite=True)
    assert held(folder) == dict.fromkeys(FILES, "old")
    assert list(tmp_path.iterdir()) == [folder]


def test_the_whole_folder_is_swapped(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_folder(str(folder), dict.fromkeys(FILES, "old"))
    folder.chmod(0o750)
    write_folder(str(folder), FILES, overwrite=True)
    assert held(folder) == FILES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    with pytest.raises(OutputError, match=r"\(c\.sh\)"):
        write_folder(str(folder), {name: text for name, text in FILES.items() if name != "c.sh"}, overwrite=True)
    assert held(folder) == FILES
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_behind_a_link_is_swapped_and_the_link_stays(tmp_path: Path) -> None:
    folder, link = tmp_path / "real", tmp_path / "link"
    write_folder(str(folder), dict.fromkeys(FILES, "old"))
    link.symlink_to(folder)
    write_folder(str(link), FILES, overwrite=True)
    assert link.is_symlink()
    assert held(folder) == FILES


def test_leftovers_of_any_name_are_in_nobodys_way(tmp_path: Path) -> None:
    """In a container every process may have the same number."""
    target, folder = tmp_path / "plan.json", tmp_path / "out"
    for name in (f"plan.json.{os.getpid()}.tmp", f".out.{os.getpid()}.tmp", "plan.json.part"):
        (tmp_path / name).mkdir()
    output.write_file(str(target), "{}")
    write_folder(str(folder), FILES)
    assert (target.read_text(), held(folder)) == ("{}", FILES)
    store = Store(target.with_name("plan.json.json"), key="key")
    (tmp_path / "plan.json.json.part").mkdir()
    store.add({"key": "a"})
    assert "a" in Store(store.path, key="key")


@pytest.mark.skipif(os.name != "posix", reason="masks are POSIX's")
@pytest.mark.parametrize(("mask", "file_mode", "script_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o711)])
def test_permissions_honour_the_mask(tmp_path: Path, mask: int, file_mode: int, script_mode: int) -> None:
    before = os.umask(mask)
    try:
        write_file(tmp_path / "file", "x")
        write_folder(str(tmp_path / "out"), FILES)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == file_mode
    assert stat.S_IMODE((tmp_path / "out" / "a.sh").stat().st_mode) == script_mode
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o777 & ~mask


WRITER = """
import sys
from astra.atomic import write_file, write_folder
print("ready", flush=True)
number = 0
while True:
    number += 1
    write_folder(sys.argv[1], {name: f"{number}\\n" * 2000 for name in "abcdef"}, overwrite=True)
    write_file(sys.argv[2], f"{number}\\n" * 20000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="folders are exchanged in one step on Linux")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Ten writers are killed with signal 9: the folder and the file are always whole, and the next writer goes on."""
    folder, target, draw = tmp_path / "out", tmp_path / "file", random.Random(7)
    write_folder(str(folder), dict.fromkeys("abcdef", "0\n" * 2000))
    write_file(target, "0\n" * 20000)
    source = str(Path(astra.__file__).parents[1])
    for _ in range(10):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), str(target)],
            stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": source},
        )  # fmt: skip
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(draw.uniform(0, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        texts = held(folder)
        assert sorted(texts) == list("abcdef")
        assert len(set(texts.values())) == 1
        assert {len(text.split()) for text in texts.values()} == {2000}
        assert len(target.read_text().split()) == 20000
    write_folder(str(folder), dict.fromkeys("abcdef", "last\n"), overwrite=True)
    assert held(folder) == dict.fromkeys("abcdef", "last\n")


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere nobody takes the folder away that one is in"
)
def test_the_folder_one_is_in_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for write in (
        lambda: write_file("a.json", ""),
        lambda: write_folder("a", FILES),
        lambda: output.check_destination("a"),
    ):
        with pytest.raises(OutputError, match="No such file"):
            write()
    write_file(tmp_path / "a.json", "")
