"""A parallel strategy: one row of the search, hashable, with two text forms that read back to itself.

The full form, ``tp4 pp4 dp4 mbs1 sp zero1 recompute=none overlap=grad,param,tp``, is what files keep. The short form,
``tp4 pp4 dp4 mbs1 sp zero1``, is what tables show. They have the same words, and what a text leaves out is the same
everywhere: communication is overlapped wherever the strategy and its runtime can, dispatcher, CUDA graphs and widths
are those usual for the runtime on the GPU, ``dp`` takes the GPUs that are left, layers are even, or balanced where they
do not divide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from operator import index
from typing import Any, Final, Literal

import msgspec

from astra.errors import InputError, did_you_mean
from astra.spec.record import Spec, check
from astra.spec.strategy_fields import (
    ACTIVATIONS,
    CHOICES,
    DEGREES,
    GPU_DEGREES,
    METHODS,
    MODULES,
    OVERLAPS,
)
from astra.spec.synonyms import field_meant

USUAL: Final = ("usual",)  # overlap or modules that were left out
_KEYS: Final = (
    "recompute", "method", "recompute_layers", "offload", "overlap", "dispatch", "graphs", "moments", "params", "grads",
    "attention", "reshard", "flash", "schedule", "layers",
)  # fmt: skip
_COUNTED: Final = (*DEGREES, "zero", "shard")  # words with a number behind them
_DEGREE_WORD: Final = re.compile(r"([a-z]+)=?([0-9]+)")
_NEXT_WORD: Final = re.compile(rf",(?=(?:{'|'.join(_COUNTED)})=?\d)", re.IGNORECASE)
# The largest numbers the text form reads back; far beyond any job.
MAX_DEGREE: Final = 999_999_999
MAX_LAYERS: Final = 999_999
MAX_STAGES: Final = 100_000
_PIECE: Final = 12  # characters of a list of layers after which a table may break the line


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
    overlap: tuple[str, ...] = USUAL  # communication hidden behind compute; left out: all that can be
    flash: bool = True
    schedule: Literal["1f1b", "interleaved", "gpipe", "zb", "zbv"] = "1f1b"
    layers: tuple[int, ...] = ()  # layers of each virtual stage in pipeline order; empty: even
    modules: tuple[str, ...] = USUAL  # what selective recompute repeats, core_attn unless it is said; else nothing
    offload_layers: int = 0  # of a stage: their activations wait in host memory
    dispatch: Literal["alltoall", "deepep", "hybridep"] = "alltoall"  # what takes tokens to their experts,
    dispatch_fp8: bool = False  # in fp8 on the way there
    graphs: Literal["none", "partial", "full"] = "none"  # CUDA graphs: of all but experts, or of the whole step
    moments: Literal["fp32", "bf16"] = "fp32"  # of the optimizer
    params: Literal["bf16", "fp8"] = "bf16"  # weights as they are stored and gathered
    grads: Literal["fp32", "bf16"] = "fp32"  # as they are added up and reduced
    attention: Literal["bf16", "fp8"] = "bf16"  # its products; in bf16 too where the others are in fp8
    reshard: Literal["always", "never"] = "always"  # of ZeRO-3: weights gathered again in backward, or kept
    shard: int = 0  # data-parallel ranks that ZeRO shards over, replicated outside; 0: all

    def __post_init__(self) -> None:
        for name in DEGREES:
            _check_count(name, getattr(self, name), MAX_DEGREE)
        _check_count("recompute_layers", self.recompute_layers, MAX_LAYERS)
        _check_count("offload_layers", self.offload_layers, MAX_LAYERS, least=0)
        _check_count("shard", self.shard, MAX_DEGREE, least=0)
        check(0 <= self.zero <= 3, "strategy.zero", self.zero, "0, 1, 2 or 3")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            check(value in choices, f"strategy.{name}", value, f"one of {', '.join(choices)}")
        if self.overlap == USUAL:
            msgspec.structs.force_setattr(self, "overlap", usual_overlap(self))
        if self.recompute != "selective" or self.modules in (USUAL, ()):
            msgspec.structs.force_setattr(self, "modules", MODULES[: self.recompute == "selective"])
        # One order and no repetition, so that equal strategies compare, hash and print alike.
        for field, known in (("overlap", OVERLAPS), ("modules", MODULES)):
            for name in getattr(self, field):
                check(name in known, f"strategy.{field}", name, f"one of {', '.join(known)}")
            ordered = tuple(name for name in known if name in getattr(self, field))
            msgspec.structs.force_setattr(self, field, ordered)
        for count in self.layers:
            _check_count("layers", count, MAX_LAYERS, least=0)
        check(len(self.layers) <= MAX_STAGES, "strategy.layers", len(self.layers), f"at most {MAX_STAGES:,} stages")
        given, stages = len(self.layers), self.pp * self.vp
        check(given in (0, stages), "strategy.layers", given, f"one number per virtual stage, pp*vp = {stages}")

    @property
    def gpus(self) -> int:
        """GPUs the strategy uses."""
        return self.tp * self.cp * self.pp * self.dp

    def __str__(self) -> str:
        """The full form: what is at its default is said where that could be doubted."""
        words = [*self._degrees(), *["sp"] * self.sp, f"zero{self.zero}", *[f"shard{self.shard}"] * (self.shard > 0)]
        words += [self._recompute(), *self._picked()]
        return " ".join([*words, *self._offload(), self._overlap(), *self._choices(()), *self._rare()])

    def short(self, usual: Collection[str] = ()) -> tuple[str, str]:
        """The short form, in two parts: the degrees, then all that is not as usual.

        ``usual`` are the fields that the runtime would choose so by itself (``Job.chosen``).
        """
        words = ["sp"] * self.sp + [f"zero{self.zero}"] + [f"shard{self.shard}"] * (self.shard > 0)
        picked = (self.method, self.recompute_layers) != (METHODS[0], 1)
        if picked and self.recompute != "selective":
            words.append(f"recompute={self.recompute}:{self.method}:{self.recompute_layers}")
        elif self.recompute != "none":
            words += [self._recompute(", "), *self._picked()]
        words += self._offload()
        if "overlap" not in usual and (self.ep > 1 or self.overlap != usual_overlap(self)):
            words.append(self._overlap())
        return " ".join(self._degrees()), " ".join([*words, *self._choices(usual), *self._rare(", ")])

    def _degrees(self) -> list[str]:
        always = ("tp", "pp", "dp", "mbs")
        return [f"{name}{getattr(self, name)}" for name in DEGREES if name in always or getattr(self, name) != 1]

    def _recompute(self, joint: str = ",") -> str:
        named = "" if self.modules in ((), MODULES[:1]) else ":" + joint.join(self.modules)
        return f"recompute={self.recompute}{named}"

    def _picked(self) -> list[str]:
        """Method and layers, where they are not the first ones or belong to what is recomputed."""
        full = self.recompute == "full"
        words = [f"method={self.method}"] * (full or self.method != METHODS[0])
        return words + [f"recompute_layers={self.recompute_layers}"] * (full or self.recompute_layers != 1)

    def _offload(self) -> list[str]:
        held: list[str] = [self.offload] * (self.offload != "none")
        held += [f"{ACTIVATIONS}:{self.offload_layers}"] * (self.offload_layers > 0)
        return [f"offload={','.join(held)}"] * bool(held)

    def _overlap(self) -> str:
        return f"overlap={','.join(self.overlap) or 'none'}"

    def _choices(self, usual: Collection[str]) -> list[str]:
        """What a runtime has a choice of its own for, where it matters to the strategy."""
        words = []
        if (self.ep > 1 or self.dispatch != "alltoall") and not {"dispatch", "dispatch_fp8"} <= {*usual}:
            words.append(f"dispatch={self.dispatch}" + ":fp8" * self.dispatch_fp8)
        always = ("graphs", "params", "grads", *["attention"] * (self.graphs == "full"))
        always += ("reshard",) * (self.zero == 3)
        for name in ("graphs", "moments", "params", "grads", "attention", "reshard"):
            value = getattr(self, name)
            if (name in always or value != CHOICES[name][0]) and name not in usual:
                words.append(f"{name}={value}")
        return words

    def _rare(self, joint: str = ",") -> list[str]:
        words = [] if self.flash else ["flash=off"]
        words += [f"schedule={self.schedule}"] * (self.schedule != usual_schedule(self.vp))
        return words + ["layers=" + pack(self.layers, joint)] * bool(self.layers)


def usual_overlap(
    strategy: Strategy,
    *,
    known: tuple[str, ...] = ("grad", "param", "tp", "p2p"),
    tp_reach: float = math.inf,
    gathered: tuple[int, ...] = (1, 2, 3),
) -> tuple[str, ...]:
    """The communication a strategy hides unless it says otherwise: all that it can.

    ``known`` is what its runtime hides where it can, ``tp_reach`` the GPUs joined by the fastest links, ``gathered``
    the ZeRO stages whose weights the runtime gathers behind compute.
    """
    can = {
        "grad": True,
        "param": strategy.zero in gathered,
        "tp": strategy.sp and strategy.tp <= tp_reach,
        "p2p": strategy.vp > 1,
        "ep": strategy.ep > 1,
    }
    return tuple(name for name in OVERLAPS if can[name] and name in known)


def _usual_words(strategy: Strategy) -> Mapping[str, Any]:
    """What a text leaves out, where no job is known."""
    return {"overlap": usual_overlap(strategy)}


def _check_count(name: str, value: int, most: int, least: int = 1) -> None:
    check(least <= value <= most, f"strategy.{name}", value, f"a whole number from {least} to {most:,}")


def usual_schedule(vp: int) -> Literal["1f1b", "interleaved"]:
    """The schedule of a strategy that names none."""
    return "interleaved" if vp > 1 else "1f1b"


def words_of(text: str) -> list[str]:
    """The words of a text form; a list may have been broken behind a comma, and commas may stand between words."""
    whole = re.sub(r",\s+", ",", text.replace(";", " "))
    return _NEXT_WORD.sub(" ", whole).split()


def parse_strategy(
    text: str, *, gpus: int | None = None, usual: Callable[[Strategy], Mapping[str, Any]] = _usual_words
) -> Strategy:
    """Read either text form, such as ``tp8 pp4 vp5 dp16 mbs1 sp zero1 recompute=selective``.

    What is left out takes its default; ``dp`` is derived from ``gpus`` when that is given, and ``usual`` gives the
    words of the runtime that the text leaves out (``Job.usual`` for the strategy of a job).
    """
    check(isinstance(text, str), "strategy", text, "words such as tp8 pp4 dp2 mbs1 sp zero1 recompute=selective")
    try:
        gpus = None if gpus is None else index(gpus)
    except TypeError:
        raise InputError("gpus", gpus, want="a whole number of GPUs") from None
    given: dict[str, Any] = {}
    for word in words_of(text):
        for key, value in _parse_word(word.lower(), text).items():
            if key in given:
                raise InputError("strategy", word, want=f"each setting once; {key} is given twice")
            given[key] = value
    given.setdefault("schedule", usual_schedule(given.get("vp", 1)))
    if "dp" not in given and gpus is not None:
        inner = math.prod(given.get(name, 1) for name in GPU_DEGREES)
        if inner and (gpus < inner or gpus % inner):
            want = f"tp*cp*pp = {inner:,} to divide the {gpus:,} GPUs"
            raise InputError("strategy", text, want=want, fix="Give dp, or change tp, cp or pp.")
        given["dp"] = gpus // max(inner, 1)
    strategy = Strategy(**given)
    for _ in range(2):  # some words are usual with others, which the text may leave out too
        strategy = replace(strategy, **{name: value for name, value in usual(strategy).items() if name not in given})
    return strategy


def _parse_word(word: str, text: str) -> dict[str, Any]:
    """The fields a word sets."""
    if word in ("sp", "nosp"):
        return {"sp": word == "sp"}
    degree = _DEGREE_WORD.fullmatch(word)
    if degree is not None and degree.group(1) in _COUNTED:
        if len(degree.group(2)) > len(str(MAX_DEGREE)):
            raise InputError("strategy", word, want=f"a number up to {MAX_DEGREE:,}")
        return {degree.group(1): int(degree.group(2))}
    key, _, value = word.partition("=")
    if key not in (*_KEYS, "sp"):
        meant, known = field_meant(key), (*_COUNTED, "sp", *_KEYS)
        owners = [f"{name}={word}" for name, choices in CHOICES.items() if word in choices]
        near = owners or (["".join(meant)] if meant and meant[0] in known else [])
        said = f"Did you mean {' or '.join(near)}?" if near else ""
        raise InputError(
            "strategy" if len(text) > 200 or not text.isprintable() else f'strategy "{text}"',
            word,
            want="words like tp8 pp4 vp2 cp1 ep1 dp16 mbs1 sp zero1 recompute=selective",
            fix=said or did_you_mean(key.rstrip("0123456789"), known),
        )
    if key == "recompute" and ":" in value:
        return _parse_recompute(value, word)
    if key == "offload":
        return _parse_offload(value, word)
    if key == "dispatch":
        name, _, width = value.partition(":")
        if width not in ("", "fp8"):
            raise InputError("strategy", word, want="fp8 or nothing behind the dispatcher, such as dispatch=deepep:fp8")
        return {"dispatch": _parse_value(key, name, word), "dispatch_fp8": bool(width)}
    return {key: _parse_value(key, value, word)}


def _parse_recompute(value: str, word: str) -> dict[str, Any]:
    """``full:block:4``: a method and a number; ``selective:core_attn,moe_act``: modules."""
    kind, _, rest = value.partition(":")
    if kind == "selective":
        modules = tuple(rest.split(","))
        for name in modules:
            if name not in MODULES:
                want = f"modules among {','.join(MODULES)}"
                raise InputError("strategy", word, want=want, fix=did_you_mean(name, MODULES))
        return {"recompute": kind, "modules": modules}
    parts = value.split(":")
    if len(parts) > 3:
        raise InputError("strategy", word, want="at most a method and a number, such as recompute=full:block:4")
    fields = zip(("recompute", "method", "recompute_layers"), parts, strict=False)
    return {field: _parse_value(field, part, word) for field, part in fields}


def _parse_offload(value: str, word: str) -> dict[str, Any]:
    """``none``, ``optimizer``, ``activations:4`` or both with a comma between them."""
    found: dict[str, Any] = {}
    parts = value.split(",")
    for part in parts:
        kind, _, layers = part.partition(":")
        field, said = ("offload_layers", layers) if kind == ACTIVATIONS else ("offload", part)
        if field in found or (part == "none" and len(parts) > 1):
            raise InputError("strategy", word, want=f"offload=none, or each of optimizer and {ACTIVATIONS}:N once")
        found[field] = _parse_value(field, said, word)
    return {"offload": "none", **found}


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
        parsed = unpack(value)
        want = "layers per virtual stage, such as 19,20*2,21"
    elif key in ("recompute_layers", "offload_layers"):
        parsed = int(value) if value.isascii() and value.isdigit() and len(value) < 7 else None
        want = "a number of layers"
    else:
        choices = CHOICES[key]
        parsed = value if value in choices else None
        want = f"one of {', '.join(choices)}"
        if key == "offload":
            want += f" or {ACTIVATIONS}:N"
    if parsed is None:
        raise InputError("strategy", word, want=f"{key}={want}")
    return parsed


def replace(strategy: Strategy, **changes: Any) -> Strategy:
    """A copy with some fields changed."""
    return msgspec.structs.replace(strategy, **changes)


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
