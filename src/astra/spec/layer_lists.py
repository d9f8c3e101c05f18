"""Layers of pipeline stages as text: ``19,20*2,21``."""

from __future__ import annotations

import re
from typing import Final

MAX_STAGES: Final = 100_000
_PIECE: Final = 12  # characters of a list of layers after which a table may break the line


def pack(layers: tuple[int, ...], joint: str = ",") -> str:
    """Layers as text: ``(19, 20, 20, 21)`` as ``19,20*2,21``; ``joint`` is put between pieces that fill a column."""
    runs: list[list[int]] = []
    for count in layers:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    pieces = [""]
    for count, times in runs:
        if len(pieces[-1]) > _PIECE:
            pieces.append("")
        pieces[-1] += ("," if pieces[-1] else "") + (f"{count}*{times}" if times > 1 else str(count))
    return joint.join(pieces)


def unpack(text: str) -> tuple[int, ...] | None:
    """Layers from text; None if it is not such a text."""
    out: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\*([1-9][0-9]{0,5}))?", part)
        if match is None or len(out) + int(match.group(2) or 1) > MAX_STAGES:
            return None
        out += [int(match.group(1))] * int(match.group(2) or 1)
    return tuple(out)
