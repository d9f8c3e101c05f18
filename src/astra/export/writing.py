"""Put an export on disk: a new folder appears whole or not at all, and nothing is replaced unless asked."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from astra.errors import OutputError
from astra.export.quoting import file_name


def default_folder(model: str, target: str) -> str:
    """Where an export goes when no folder is named."""
    return f"{file_name(model)}-{target}"


def check_folder(folder: str, *, overwrite: bool = False) -> None:
    """Refuse a folder that has something in it, before any work is done."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{folder} is a file; --out names the folder to write.")
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise OutputError(f"{folder} is not empty and nothing was written. Name another --out, or give --overwrite.")
    if not path.parent.is_dir():
        raise OutputError(f"{folder}: there is no folder {path.parent}.")


def write_folder(folder: str, files: Mapping[str, str], *, overwrite: bool = False) -> list[str]:
    """Write every file; scripts may be run. The paths written, in order."""
    check_folder(folder, overwrite=overwrite)
    path = Path(folder)
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        staging.mkdir()
        for name, text in files.items():
            made = staging / name
            made.write_text(text, encoding="utf-8", newline="\n")
            if text.startswith("#!"):
                made.chmod(made.stat().st_mode | 0o111)
        _move(staging, path, list(files))
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}; nothing was written.") from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(staging, ignore_errors=True)
    return [str(path / name) for name in files]


def _move(staging: Path, path: Path, names: list[str]) -> None:
    if not path.exists():
        staging.rename(path)
        return
    for name in names:
        os.replace(staging / name, path / name)
