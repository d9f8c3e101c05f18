"""Inputs made of two that are read: a value of one in the place of the other's, so that what lies behind is reached."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any, Final

MOST: Final = 4  # values that are exchanged at once
_KEY: Final = re.compile(r"[\s\-\[{(]*([\w.\-]+)")
_BREAK: Final = re.compile(r"(\s+)")


def crossed(text: str, other: str, draw: Random) -> str:
    """A text with some values, lines or words of another."""
    one, two = _read(text), _read(other)
    if isinstance(one, dict | list) and isinstance(two, dict | list):
        mixed = _nested(copy.deepcopy(one), two, draw)
        return json.dumps(mixed, separators=(",", ":") if draw.random() < 0.5 else None)
    lines = "\n" in text and "\n" in other and draw.random() < 0.8
    return _rows(text, other, draw, "\n") if lines else _rows(text, other, draw, " ")


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every table or list in a value, with each key or place in it."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _nested(one: Any, two: Any, draw: Random) -> Any:
    theirs = list(_places(two))
    for _ in range(draw.randint(1, MOST)):
        mine = list(_places(one))
        if not mine or not theirs:
            break
        holder, key = draw.choice(mine)
        same = [(table, name) for table, name in theirs if name == key and draw.random() < 0.9]
        table, name = draw.choice(same or theirs)
        way = draw.random()
        if way < 0.75:
            holder[key] = copy.deepcopy(table[name])
        elif way < 0.9 and isinstance(holder, dict) and isinstance(name, str):
            holder[name] = copy.deepcopy(table[name])
        else:
            del holder[key]
    return one


def _rows(text: str, other: str, draw: Random, mark: str) -> str:
    """The same of lines, which are alike where they begin with one word, or of words."""
    mine, theirs = (each.split("\n") if mark == "\n" else _BREAK.split(each) for each in (text, other))
    for _ in range(draw.randint(1, MOST)):
        place = draw.randrange(len(mine) + 1)
        found = _KEY.match(mine[place]) if place < len(mine) else None
        same = [row for row in theirs if found and (word := _KEY.match(row)) and word[1] == found[1]]
        row, way = draw.choice(same or theirs), draw.random()
        if way < 0.7 and place < len(mine):
            mine[place] = row
        elif way < 0.9:
            mine.insert(place, row)
        elif place < len(mine):
            del mine[place]
    return ("\n" if mark == "\n" else "").join(mine)
