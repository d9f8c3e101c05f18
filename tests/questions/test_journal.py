"""The journal: lines are whole or not there, and one process writes at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import OutputError
from astra.journal import Journal

LINES = st.lists(st.binary(max_size=300).filter(lambda line: b"\n" not in line), max_size=8)


@given(LINES, st.data())
def test_what_was_whole_is_kept_wherever_the_file_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    path = f"/dev/shm/astra-journal-{os.getpid()}" if os.path.isdir("/dev/shm") else "journal-test"
    try:
        with closing(Journal(path)) as journal:
            for line in lines:
                journal.append(line)
        whole = Path(path).read_bytes()
        assert whole == b"".join(line + b"\n" for line in lines)
        cut = data.draw(st.integers(0, len(whole)))
        os.truncate(path, cut)
        with closing(Journal(path)) as journal:
            kept = [journal.line(place) for place in journal.places]
            assert kept == lines[: whole[:cut].count(b"\n")]
            journal.append(b"next")
        assert Path(path).read_bytes() == b"".join(line + b"\n" for line in [*kept, b"next"])
    finally:
        Path(path).unlink(missing_ok=True)


def test_a_line_longer_than_a_block(tmp_path: Path) -> None:
    path = str(tmp_path / "j")
    lines = [b"a" * 3_000_000, b"", b"b" * 1_048_575, b"c"]
    with closing(Journal(path)) as journal:
        for line in lines:
            journal.append(line)
    with closing(Journal(path)) as journal:
        assert [journal.line(place) for place in journal.places] == lines


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = str(tmp_path / "j"), os.write

    def full(number: int, content: bytes) -> int:
        if len(content) > 4:
            return real(number, content[:4])
        raise OSError(28, "No space left on device")

    with closing(Journal(path)) as journal:
        journal.append(b"one")
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OutputError, match="No space left"):
            journal.append(b"another")
        monkeypatch.undo()
        journal.append(b"two")
    assert Path(path).read_bytes() == b"one\ntwo\n"


@pytest.mark.skipif(os.name != "posix", reason="locks are POSIX's")
def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "j")
    code = f"from astra.journal import Journal; Journal({path!r})"
    with closing(Journal(path)):
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert "another process is writing in it" in done.stderr
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and devices are POSIX's")
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_has_no_beginning_or_no_end_is_no_journal(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "journal.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OutputError, match="not a regular file"):
        Journal(str(path))
