"""The one way out to files: whole or not at all, whatever fails and whenever the process is killed.

What is written is first made complete in a private folder beside its target, then moved into place by one rename. A
process that is killed leaves that folder (``.astra-...``) behind and the target as it was; nobody trips over it later,
because every write makes a new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Final

from astra.errors import OutputError

_HERE: Final = -100  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE
_CANNOT_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOTSUP)
_SHOWN_NAMES: Final = 3


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Put text, or bytes, in the place of a file, which keeps its permissions.

    A link is followed; a device takes the bytes.
    """
    target = resolved(path)
    try:
        mode = os.stat(target).st_mode if os.path.exists(target) else None
        if mode is not None and not stat.S_ISREG(mode):
            # Moving a file over /dev/null would replace it.
            with open(target, "wb") as stream:
                stream.write(_encoded(content))
            return
        with _staging(os.path.dirname(target)) as staging:
            made = os.path.join(staging, "file")
            _write(made, content)
            if mode is not None:
                os.chmod(made, stat.S_IMODE(mode))
            os.replace(made, target)
            _settle(os.path.dirname(target))
    except OSError as error:
        raise OutputError(f"{os.fspath(path)}: {error.strerror or error}.") from None


def write_folder(folder: str, files: Mapping[str, str], *, overwrite: bool = False, flag: str = "--out") -> list[str]:
    """Put a folder of files in the place of one that is absent or empty, or with ``overwrite`` of an older one.

    Scripts may be run. The paths written, in order.
    """
    check_folder(folder, overwrite=overwrite, flag=flag)
    _check_replaced(folder, files)
    path = Path(resolved(folder))
    try:
        with _staging(path.parent) as staging:
            made = Path(staging) / "new"
            os.mkdir(made)
            for name, text in files.items():
                _write(made / name, text)
                if text.startswith("#!"):
                    os.chmod(made / name, os.stat(made / name).st_mode | 0o111)
            _settle(made)
            if path.is_dir():
                os.chmod(made, stat.S_IMODE(os.stat(path).st_mode))
            _check_replaced(folder, files)  # once more: a file may have come in meanwhile
            _swap(made, path, Path(staging) / "old")
            _settle(path.parent)
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}; nothing was written.") from None
    return [str(Path(folder) / name) for name in files]


def resolved(path: str | os.PathLike[str]) -> str:
    """Where a path leads, links followed."""
    try:
        return os.path.realpath(path)
    except OSError as error:  # the folder one is in is gone
        raise OutputError(f"{os.fspath(path)}: {error.strerror or error}.") from None


def check_folder(folder: str, *, overwrite: bool = False, flag: str = "--out") -> None:
    """Refuse a folder that cannot be written, or that has something in it, before any work is done.

    ``flag`` is the one by which the user names the folder; only beside ``--out`` there is ``--overwrite``.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise OutputError(f"{folder} is a file; {flag} names the folder to write.")
    if not overwrite and path.is_dir() and _names(folder):
        other = "give --overwrite" if flag == "--out" else "write the plan with --out and astra export it --overwrite"
        raise OutputError(f"{folder} is not empty and nothing was written. Name another {flag}, or {other}.")
    if not path.parent.is_dir():
        raise OutputError(f"{folder}: there is no folder {path.parent}.")


def _check_replaced(folder: str, names: Container[str]) -> None:
    """Refuse to replace a folder with anything in it that the new one does not have: it would be gone."""
    kept = [name for name in _names(folder) if name not in names or os.path.isdir(os.path.join(folder, name))]
    if kept:
        shown = ", ".join(kept[:_SHOWN_NAMES]) + (", ..." if len(kept) > _SHOWN_NAMES else "")
        raise OutputError(
            f"{folder} holds what is not written now ({shown}), and --overwrite replaces the whole folder: nothing was "
            "written. Move that elsewhere, or name another --out."
        )


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}; nothing was written.") from None


@contextlib.contextmanager
def _staging(parent: str | os.PathLike[str]) -> Iterator[str]:
    """A private folder of a new name beside the target, gone afterwards; inside it the umask holds as usual."""
    made = tempfile.mkdtemp(prefix=".astra-", dir=parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(path: str | os.PathLike[str], content: str | bytes) -> None:
    with open(path, "xb") as stream:
        stream.write(_encoded(content))
        stream.flush()
        os.fsync(stream.fileno())


def _encoded(content: str | bytes) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content


def _settle(folder: str | os.PathLike[str]) -> None:
    """Have the names of a folder on disk, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _swap(new: Path, path: Path, old: Path) -> None:
    """Move a folder into the place of another; both names always lead to a whole folder, or are as before."""
    if not path.exists() or not any(path.iterdir()):
        os.rename(new, path)  # an empty folder is replaced
    elif not _exchange(new, path):
        os.rename(path, old)
        try:
            os.rename(new, path)
        except BaseException:
            os.rename(old, path)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    import ctypes  # noqa: PLC0415 - only an overwritten export needs it

    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    if exchange(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code))
