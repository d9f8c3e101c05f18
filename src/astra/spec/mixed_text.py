"""The text of strategies over several pools (``spec.mixed``): read, and written without what is as usual."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

from astra.errors import InputError
from astra.spec.mixed import POOL_NAME, Group, MixedStrategy, Segment, plain_group
from astra.spec.record import check
from astra.spec.strategy import Strategy, parse_strategy, unpack, words_of

_EXAMPLE: Final = "[dp8 mbs1 m16: H100 tp4 pp4 layers=12*4 + A100 tp8 pp4 layers=8*4]"
_SWITCHES: Final = {"nosp": ("sp", False), "flash=off": ("flash", False)}
_LOCAL: Final = re.compile(r"local=([0-9]{1,9})")
_GROUP: Final = re.compile(r"\[([^\[\]]*)\]")
_DEGREE: Final = re.compile(r"([a-z]+)([0-9]{1,9})")
_ONE_POOL: Final = re.compile(rf"\s*({POOL_NAME.pattern})\s*:\s+([^\[\]]*)")
Usual = Callable[[str, Strategy], Mapping[str, Any]]  # a pool and a strategy on it -> the words that it leaves out


def on_one_pool(text: str) -> tuple[str, str] | None:
    """The pool and the plain strategy of ``POOL: strategy``; None if the text is of another form."""
    found = _ONE_POOL.fullmatch(text)
    return None if found is None else (found.group(1), found.group(2))


def short_form(text: str, usual: Collection[str] = ()) -> list[str]:
    """A strategy's text without what is as usual, in lines; ``estimate`` reads them as the same strategy.

    ``usual`` are the fields that the runtime would choose so by itself (``Estimate.as_usual``).
    """
    if "[" in text:
        return parse_mixed(text).short(usual)
    alone = on_one_pool(text)
    degrees, rest = parse_strategy(text if alone is None else alone[1]).short(usual)
    return [degrees if alone is None else f"{alone[0]}: {degrees}", rest]


def on_one_line(text: str, usual: Collection[str] = ()) -> str:
    """The same words one after another."""
    return " ".join(" ".join(short_form(text, usual)).split())


def is_mixed(text: str) -> bool:
    """Whether a strategy's text names its pools."""
    return "[" in text or on_one_pool(text) is not None


def parse_mixed(text: str, usual: Usual | None = None) -> MixedStrategy:
    """Read the text form; what is left out takes its default, and in a strategy on one pool what is ``usual`` there."""
    groups = tuple(_parse_group(match.group(1), usual) for match in _GROUP.finditer(text))
    rest = _GROUP.sub(" ", text)
    if not groups or "[" in rest or "]" in rest:
        raise InputError("strategy", text, want=f"groups in brackets, such as {_EXAMPLE}")
    fields: dict[str, Any] = {}
    for word in words_of(rest):
        degree = _DEGREE.fullmatch(word)
        if degree is not None and degree.group(1) == "zero":
            key, value = "zero", int(degree.group(2))
        elif word.startswith("overlap="):
            names = tuple(name for name in word.removeprefix("overlap=").split(",") if name != "none")
            key, value = "overlap", names  # type: ignore[assignment]
        elif word in _SWITCHES:
            key, value = _SWITCHES[word]
        elif (local := _LOCAL.fullmatch(word)) is not None:
            key, value = "local", int(local.group(1))
        elif word.startswith("shares="):
            key, value = "shares", unpack(word.removeprefix("shares="))  # type: ignore[assignment]
            check(value is not None, "strategy", word, "a whole number for each group, such as shares=7,1")
        else:
            want = "zero0 or zero1, overlap=..., nosp, flash=off, local=..., shares=..., groups in brackets"
            raise InputError("strategy", word, want=want)
        _once(fields, key, value, word)
    return MixedStrategy(groups=groups, **fields)


def _parse_plain(microbatches: int, body: str, usual: Usual | None) -> Group:
    """A strategy on one pool behind its micro-batches."""
    pool, _, words = body.strip().partition(" ")
    strategy = parse_strategy(words) if usual is None else parse_strategy(words, usual=partial(usual, pool))
    check(bool(strategy.layers), "strategy", body.strip(), "layers=... of every stage, such as layers=10*8")
    return plain_group(pool, strategy, microbatches)


def _parse_group(text: str, usual: Usual | None) -> Group:
    head, colon, body = text.partition(":")
    only = _DEGREE.fullmatch(head.strip())
    if only is not None and only.group(1) == "m":
        return _parse_plain(int(only.group(2)), body, usual)
    if not colon:
        raise InputError("strategy", f"[{text}]", want=f"degrees, a colon and segments, such as {_EXAMPLE}")
    fields: dict[str, Any] = {}
    for word in head.split():
        key, value = _degree(word, ("dp", "mbs", "m", "cp", "vp"))
        _once(fields, {"m": "microbatches"}.get(key, key), value, word)
    for name, short in (("dp", "dp"), ("microbatches", "m")):
        check(name in fields, "strategy", f"[{text}]", f"{short} with its number before the colon, such as {short}8")
    return Group(segments=tuple(_parse_segment(part) for part in body.split("+")), **fields)


def _parse_segment(text: str) -> Segment:
    words = words_of(text)
    if not words:
        raise InputError("strategy", text, want=f"a pool and its degrees on each side of +, such as {_EXAMPLE}")
    fields: dict[str, Any] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and key == "layers":
            layers = unpack(value)
            check(layers is not None, "strategy", word, "layers per stage, such as layers=19,20*2,21")
            _once(fields, "layers", layers, word)
        elif equals and key == "recompute":
            _once(fields, "recompute", value, word)
        else:
            _once(fields, *_degree(word, ("tp", "pp", "ep")), word)
    check("layers" in fields, "strategy", text.strip(), "layers=... in every segment")
    fields.setdefault("tp", 1)
    fields.setdefault("pp", len(fields["layers"]))
    return Segment(pool=words[0], **fields)


def _degree(word: str, names: tuple[str, ...]) -> tuple[str, int]:
    found = _DEGREE.fullmatch(word)
    if found is None or found.group(1) not in names:
        raise InputError("strategy", word, want=f"one of {' '.join(names)} with its number")
    return found.group(1), int(found.group(2))


def _once(fields: dict[str, Any], key: str, value: Any, word: str) -> None:
    if key in fields:
        raise InputError("strategy", word, want=f"each setting once; {key} is given twice")
    fields[key] = value
