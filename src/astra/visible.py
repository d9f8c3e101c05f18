"""Text from outside, fit to be shown: what would move a cursor, or hide or reorder letters, is written out instead."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""The text on one line, with every character that cannot be seen as its escape (``\n``, ``\x1b``, ``\u202e``)."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def visible_lines(text: str) -> str:
    """The same of text that has lines of its own."""
    return "\n".join(visible(line) for line in text.split("\n"))


def shortened(text: str, most: int) -> str:
    """The text without its middle where it is longer than ``most`` characters."""
    kept = most - 3
    return text if len(text) <= most else f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
