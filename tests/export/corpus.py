"""Public launch scripts and configurations by the facts in them.

Each entry rests on a public file, named as repository and path: what that file sets, and the construct that makes it
hard to read, restated small. ``facts`` are fields of the strategy, of the model, or gpus, batch, seq, precision,
framework, task, lora_rank, recipe; ``refused`` is of the reason that must be given.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Entry(NamedTuple):
    source: str  # where it is public; behind a # what of it, where there are several entries
    file: str
    text: str
    facts: dict[str, Any] = {}  # noqa: RUF012
    refused: str = ""
    gpus: int | None = None
    parameters: tuple[str, ...] = ()
    pick: str | None = None
    vocab: int | None = None


def sh(
    source: str, text: str, on: int | None = None, *parameters: str, refused: str = "", pick: str | None = None,
    vocab: int | None = None, **facts: Any,
) -> Entry:  # fmt: skip
    return Entry(source, "train.sh", text, facts, refused, on, parameters, pick, vocab)


def conf(
    source: str, file: str, text: str, on: int | None = None, *, refused: str = "", pick: str | None = None,
    vocab: int | None = None, **facts: Any,
) -> Entry:  # fmt: skip
    return Entry(source, file, text, facts, refused, on, (), pick, vocab)
