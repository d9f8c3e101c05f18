"""A parallel strategy: one row of the search, hashable, with a text form that reads back to itself."""

from __future__ import annotations

import re
from operator import index
from typing import Any, Final, Literal

import msgspec

from astra.errors import InputError, nearest_names
from astra.spec._base import Spec, check

DEGREES: Final = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs")
OVERLAPS: Final = ("grad", "param", "tp", "p2p")
SCHEDULES: Final = ("1f1b", "interleaved", "gpipe", "zb")
RECOMPUTES: Final = ("none", "selective", "full")
METHODS: Final = ("uniform", "block")
OFFLOADS: Final = ("none", "optimizer")
_KEYS: Final = ("recompute", "method", "recompute_layers", "offload", "overlap", "flash", "schedule", "layers")
_DEGREE_WORD: Final = re.compile(r"([a-z]+)=?([0-9]+)")
# The largest numbers the text form reads back; far beyond any job.
MAX_DEGREE: Final = 999_999_999
MAX_LAYERS: Final = 999_999
MAX_STAGES: Final = 100_000


class Strategy(Spec, frozen=True, kw_only=True):
    """How one job is split. GPUs used: tp * cp * pp * dp; ep and etp reuse ranks of tp, cp and dp."""

    tp: int = 1  # tensor parallel
    pp: int = 1  # pipeline stages
    vp: int = 1  # chunks of layers per stage (interleaved when above 1)
    cp: int = 1  # context parallel
    ep: int = 1  # expert parallel
    etp: int = 1  # tensor parallel inside an expert
    dp: int = 1  # data parallel
    mbs: int = 1  # samples per micro-batch
    sp: bool = False  # sequence parallelism in the norm regions of tensor parallelism
    zero: int = 1  # 0 nothing, 1 optimizer, 2 + gradients, 3 + weights sharded over dp
    recompute: Literal["none", "selective", "full"] = "none"
    method: Literal["uniform", "block"] = "uniform"  # of full recompute
    recompute_layers: int = 1  # uniform: layers per checkpoint; block: layers recomputed in each chunk
    offload: Literal["none", "optimizer"] = "none"
    overlap: tuple[str, ...] = ("grad", "param")  # communication hidden behind compute
    flash: bool = True
    schedule: Literal["1f1b", "interleaved", "gpipe", "zb"] = "1f1b"
    layers: tuple[int, ...] = ()  # layers of each virtual stage in pipeline order; empty: even

    def __post_init__(self) -> None:
        for name in DEGREES:
            _check_count(name, getattr(self, name), MAX_DEGREE)
        _check_count("recompute_layers", self.recompute_layers, MAX_LAYERS)
        check(0 <= self.zero <= 3, "strategy.zero", self.zero, "0, 1, 2 or 3")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            check(value in choices, f"strategy.{name}", value, f"one of {', '.join(choices)}")
        for name in self.overlap:
            check(name in OVERLAPS, "strategy.overlap", name, f"one of {', '.join(OVERLAPS)}")
        # One order and no repetition, so that equal strategies compare, hash and print alike.
        msgspec.structs.force_setattr(self, "overlap", tuple(name for name in OVERLAPS if name in self.overlap))
        for count in self.layers:
            _check_count("layers", count, MAX_LAYERS, least=0)
        check(len(self.layers) <= MAX_STAGES, "strategy.layers", len(self.layers), f"at most {MAX_STAGES:,} stages")
        check(
            not self.layers or len(self.layers) == self.pp * self.vp,
            "strategy.layers",
            len(self.layers),
            f"one number per virtual stage, pp*vp = {self.pp * self.vp}",
        )

    @property
    def gpus(self) -> int:
        """GPUs the strategy uses."""
        return self.tp * self.cp * self.pp * self.dp

    def __str__(self) -> str:
        words = [f"{name}{getattr(self, name)}" for name in DEGREES if name in _ALWAYS or getattr(self, name) != 1]
        words += ["sp"] * self.sp + [f"zero{self.zero}", f"recompute={self.recompute}"]
        if self.recompute == "full" or self.method != METHODS[0]:
            words.append(f"method={self.method}")
        if self.recompute == "full" or self.recompute_layers != 1:
            words.append(f"recompute_layers={self.recompute_layers}")
        if self.offload != "none":
            words.append(f"offload={self.offload}")
        words.append(f"overlap={','.join(self.overlap) or 'none'}")
        if not self.flash:
            words.append("flash=off")
        if self.schedule != _usual_schedule(self.vp):
            words.append(f"schedule={self.schedule}")
        if self.layers:
            words.append("layers=" + _pack(self.layers))
        return " ".join(words)


_ALWAYS: Final = ("tp", "pp", "dp", "mbs")


def _check_count(name: str, value: int, most: int, least: int = 1) -> None:
    check(least <= value <= most, f"strategy.{name}", value, f"a whole number from {least} to {most:,}")


def _usual_schedule(vp: int) -> str:
    return "interleaved" if vp > 1 else "1f1b"


def _pack(layers: tuple[int, ...]) -> str:
    """``(19, 20, 20, 21)`` as ``19,20*2,21``."""
    runs: list[list[int]] = []
    for count in layers:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}*{times}" if times > 1 else str(count) for count, times in runs)


def _unpack(text: str) -> tuple[int, ...] | None:
    out: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\*([1-9][0-9]{0,5}))?", part)
        if match is None or len(out) + int(match.group(2) or 1) > MAX_STAGES:
            return None
        out += [int(match.group(1))] * int(match.group(2) or 1)
    return tuple(out)


def parse_strategy(text: str, *, gpus: int | None = None) -> Strategy:
    """Read ``tp8 pp4 vp5 dp16 mbs1 sp zero1 recompute=selective``.

    What is left out takes its default; ``dp`` is derived from ``gpus`` when that is given.
    """
    check(isinstance(text, str), "strategy", text, "words such as tp8 pp4 dp2 mbs1 sp zero1 recompute=selective")
    try:
        gpus = None if gpus is None else index(gpus)
    except TypeError:
        raise InputError("gpus", gpus, want="a whole number of GPUs") from None
    given: dict[str, Any] = {}
    for word in text.replace(";", " ").split():
        key, value = _parse_word(word.lower(), text)
        if key in given:
            raise InputError("strategy", word, want=f"each setting once; {key} is given twice")
        given[key] = value
    given.setdefault("schedule", _usual_schedule(given.get("vp", 1)))
    if "dp" not in given and gpus is not None:
        inner = given.get("tp", 1) * given.get("cp", 1) * given.get("pp", 1)
        if inner == 0 or gpus < inner or gpus % inner:
            raise InputError(
                "strategy",
                text,
                want=f"tp*cp*pp = {inner:,} to divide the {gpus:,} GPUs",
                fix="Give dp, or change tp, cp or pp.",
            )
        given["dp"] = gpus // inner
    return Strategy(**given)


def _parse_word(word: str, text: str) -> tuple[str, Any]:
    if word in ("sp", "nosp"):
        return "sp", word == "sp"
    degree = _DEGREE_WORD.fullmatch(word)
    if degree is not None and degree.group(1) in (*DEGREES, "zero"):
        if len(degree.group(2)) > len(str(MAX_DEGREE)):
            raise InputError("strategy", word, want=f"a number up to {MAX_DEGREE:,}")
        return degree.group(1), int(degree.group(2))
    key, equals, value = word.partition("=")
    if not equals or key not in (*_KEYS, "sp"):
        hint = nearest_names(key.rstrip("0123456789"), (*DEGREES, "sp", "zero", *_KEYS))
        raise InputError(
            "strategy" if len(text) > 200 or not text.isprintable() else f'strategy "{text}"',
            word,
            want="words like tp8 pp4 vp2 cp1 ep1 dp16 mbs1 sp zero1 recompute=selective",
            fix=f"Did you mean {', '.join(hint)}?" if hint else "",
        )
    return key, _parse_value(key, value, word)


def _parse_value(key: str, value: str, word: str) -> Any:
    parsed: Any = None
    if key in ("flash", "sp"):
        parsed = {"on": True, "off": False}.get(value)
        want = "on or off"
    elif key == "overlap":
        names = () if value == "none" else tuple(value.split(","))
        parsed = tuple(name for name in OVERLAPS if name in names) if set(names) <= set(OVERLAPS) else None
        want = f"none, or some of {','.join(OVERLAPS)}"
    elif key == "layers":
        parsed = _unpack(value)
        want = "layers per virtual stage, such as 19,20*2,21"
    elif key == "recompute_layers":
        parsed = int(value) if value.isascii() and value.isdigit() and len(value) < 7 else None
        want = "a number of layers"
    else:
        choices: tuple[str, ...] = _CHOICES[key]
        parsed = value if value in choices else None
        want = f"one of {', '.join(choices)}"
    if parsed is None:
        raise InputError("strategy", word, want=f"{key}={want}")
    return parsed


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "recompute": RECOMPUTES,
    "method": METHODS,
    "offload": OFFLOADS,
    "schedule": SCHEDULES,
}


def replace(strategy: Strategy, **changes: Any) -> Strategy:
    """A copy with some fields changed."""
    return msgspec.structs.replace(strategy, **changes)
