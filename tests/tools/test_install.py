"""Environments of frameworks that cannot be made are left out with a reason, whatever it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.frameworks import install


@pytest.mark.parametrize("said", [b"no such \xff host", "no such host", None])
def test_a_reason_is_text(said: str | bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(command: list[str]) -> None:
        raise subprocess.TimeoutExpired(command, 600, stderr=said)

    monkeypatch.setattr(install, "VENVS", tmp_path)
    monkeypatch.setattr(install, "_run", late)
    why = install.make(install.Environment("one", (("numpy",),)))
    assert isinstance(why, str)
    assert "no such" in why or "timed out" in why
    assert not (tmp_path / "one").exists()
