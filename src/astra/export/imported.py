"""What was understood of somebody's configuration, and strict reading of its settings and flags."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from astra.errors import InputError
from astra.files import load_toml, own_text, read_text
from astra.spec.mixed import MixedStrategy
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy


class ImportedLaunch(NamedTuple):
    """A configuration as far as Astra knows what to do with it; None where the file does not say."""

    framework: str
    strategy: Strategy
    gpus: int
    global_batch: int | None = None
    seq: int | None = None
    precision: str = "bf16"
    optimizer: str = "adam"
    model: ModelSpec | None = None  # where the file gives the shape
    recipe: str | None = None  # a catalog name, where the file names a known recipe
    ignored: tuple[str, ...] = ()  # settings that decide speed or memory and have no word in a strategy
    unknown: tuple[str, ...] = ()  # settings that are not understood
    mtp: int | None = None  # multi-token-prediction layers that are trained
    task: str = "pretrain"
    lora_rank: int | None = None
    lacks_vocab: bool = False  # the whole shape is there but the size of the vocabulary
    mixed: MixedStrategy | None = None  # over several pools; ``strategy`` is then that of its first stages

    @property
    def words(self) -> Strategy | MixedStrategy:
        """The strategy, on one pool or on several."""
        return self.mixed or self.strategy


class ImportAsked(NamedTuple):
    """A file's name, and what the user says beside it."""

    name: str
    gpus: int | None = None
    parameters: tuple[str, ...] = ()  # of a script
    pick: str | None = None  # which of several configurations
    vocab: int | None = None  # where the file does not say
    folder: str | None = None  # where the file lies: others that it names may lie there too

    def count(self, said: int | None = None) -> int:
        """The number of GPUs: the user's, or what the file says."""
        found = self.gpus or said
        if found is None:
            raise InputError(self.name, None, want="the number of GPUs", fix="Give --gpus; the file does not say.")
        return found

    def file_named(self, named: str) -> tuple[str, str] | None:
        """The name and text of a file that this one names, where it lies in the same folder or below."""
        if self.folder is None or not named:
            return None
        top, last = Path(self.folder), named.rstrip("/").rpartition("/")[2]
        for inner in (named, last):
            if not inner or inner.startswith(("/", "~")) or ".." in Path(inner).parts or "\0" in inner:
                continue
            if (top / inner).is_file():
                return last, read_text(top / inner, "launch")
        return None

    def choose(self, choices: Sequence[str], shown: Sequence[str] = ()) -> int:
        """The place of the configuration that is picked; several and none picked are listed."""
        if self.pick is not None:
            if self.pick not in choices:
                want = f"one of {', '.join(choices[:_MOST_LISTED])}"
                raise InputError("--pick", self.pick, want=want, fix=f"They are those of {self.name}.")
            return choices.index(self.pick)
        if len(choices) > 1:
            remarks = [f" ({text})" if text else "" for text in shown] or [""] * len(choices)
            listed = [f"{name}{text}" for name, text in zip(choices, remarks, strict=True)]
            more = f"; and {len(choices) - _MOST_LISTED} more" if len(choices) > _MOST_LISTED else ""
            want = f"one configuration; it has several, {len(choices)}: {'; '.join(listed[:_MOST_LISTED])}{more}"
            raise InputError(self.name, None, want=want, fix=f"Choose one, such as --pick {choices[0]}.")
        return 0


_MOST_LISTED: Final = 24


class KnownSettings(NamedTuple):
    """What is known of a framework's settings (``data/settings.toml``)."""

    words: Mapping[str, Any]  # the table
    read: frozenset[str]
    costly: re.Pattern[str]  # of what is not read

    def unread(self, settings: Iterable[object]) -> list[str]:
        """Settings that nobody reads and that decide speed or memory."""
        return [key for key in map(str, settings) if key not in self.read and self.costly.search(key)]


@cache
def known_settings(framework: str) -> KnownSettings:
    """The table of a framework; all but what decides speed is read."""
    words = load_toml(own_text(__file__, "settings.toml").encode())[framework]
    read = {key for name, part in words.items() if name not in ("costly", "degrees") for key in part}
    return KnownSettings(words, frozenset(read), re.compile("|".join(words.get("costly", ()))))


class Numbers:
    """Settings with their place, read strictly."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self._where = values, where

    def whole(self, name: str, default: int) -> int:
        """A whole number."""
        value = self.values.get(name, default)
        if value in ("auto", None):
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{self._where}.{name}", value, want="a whole number")
        return value

    def count(self, name: str, default: int = 1) -> int:
        """A whole number above zero."""
        value = self.whole(name, default)
        if value < 1:
            raise InputError(f"{self._where}.{name}", value, want="a whole number above zero")
        return value


def section(record: Mapping[str, Any], key: str, name: str) -> Numbers:
    """A part of a configuration, empty where it is left out."""
    found = record.get(key)
    if found is None:
        found = {}
    if not isinstance(found, Mapping):
        raise InputError(f"{name}: {key}", found, want="a section of settings")
    return Numbers(found, f"{name}: {key}")


def plain_value(node: ast.AST) -> Any:
    """The value of an expression of plain values; its source where it is anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = plain_value(node.left), plain_value(node.right)
        if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) < 2**40:
            return left * right
    try:
        return ast.unparse(node)[:80]
    except (ValueError, RecursionError, MemoryError):
        return "?"


class Arguments:
    """Flags of a command line; the last of a repeated one counts."""

    def __init__(self, words: list[str], name: str) -> None:
        self._name = name
        self.read: set[str] = set()  # flags that were looked for
        self.flags: dict[str, list[str]] = {}
        current: list[str] | None = None
        for word in words:
            if word.startswith("--") and len(word) > 2:
                flag, equals, value = word.partition("=")
                current = self.flags[flag] = [value] if equals else []
            elif current is not None:
                current.append(word)

    def has(self, flag: str) -> bool:
        """Whether a switch is given."""
        self.read.add(flag)
        return flag in self.flags

    def text(self, flag: str, default: str = "") -> str:
        """The value of a flag."""
        self.read.add(flag)
        values = self.flags.get(flag)
        return values[0] if values else default

    def texts(self, flag: str) -> list[str]:
        """All values of a flag."""
        self.read.add(flag)
        return self.flags.get(flag, [])

    def one_of(self, flag: str, choices: tuple[str, ...], default: str) -> Any:
        """The value of a flag, which must be known."""
        value = self.text(flag, default)
        if value not in choices:
            raise InputError(f"{self._name}: {flag}", value, want=f"one of {', '.join(choices)}")
        return value

    def whole(self, flag: str, default: int | None = None) -> int:
        """The value of a flag that is a whole number."""
        text = self.text(flag)
        if not text and default is not None and flag not in self.flags:
            return default
        if not text:
            fix = "It stands there without one: a variable of the script is not set. Give its parameters behind --."
            raise InputError(f"{self._name}: {flag}", None, want="a whole number", fix=fix)
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise InputError(f"{self._name}: {flag}", text or None, want="a whole number")
        return int(text)

    def number(self, flag: str, default: float) -> float:
        """The value of a flag that is a number."""
        text = self.text(flag)
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self._name}: {flag}", text, want="a number")
        return value

    def count(self, flag: str, default: int | None = None) -> int:
        """The value of a flag that is a whole number above zero."""
        value = self.whole(flag, default)
        if value < 1:
            raise InputError(f"{self._name}: {flag}", value, want="a whole number above zero")
        return value

    def maybe(self, flag: str) -> int | None:
        """The value of a flag that may be absent."""
        return self.whole(flag) if self.has(flag) else None
