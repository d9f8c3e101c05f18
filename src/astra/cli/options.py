"""Options that several verbs share, and the reading of their values; a bad value is an InputError naming the flag."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, Final

from astra.errors import InputError, UnknownName
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS, whole_samples
from astra.units import parse_count

DEFAULT_BATCH: Final = 1024
DEFAULT_SEQ: Final = 4096


class _Default(str):
    """A value nobody gave."""

    __slots__ = ()


DEFAULT_RUNTIME: Final = _Default("megatron")
_TOKEN_BATCH: Final = re.compile(r"(.*?)\s*tok(?:en)?s?", re.IGNORECASE | re.DOTALL)


def whole(flag: str, *, at_least: int = 1, at_most: int) -> Callable[[str], int]:
    """A reader of whole numbers: ``1024``, ``1k``, ``4e6``."""
    want = f"a whole number from {at_least:,} to {at_most:,}"

    def read(text: str) -> int:
        value = parse_count(text)
        if value is None or not value.is_integer() or not at_least <= value <= at_most:
            raise InputError(flag, text, want=want)
        return int(value)

    return read


def amount(flag: str, *, at_most: float) -> Callable[[str], float]:
    """A reader of amounts: ``1T``, ``15.6e12``."""

    def read(text: str) -> float:
        value = parse_count(text)
        if value is None or not 1 <= value <= at_most:
            raise InputError(flag, text, want=f"a number from 1 to {at_most:.0e}, such as 300B or 1.5T")
        return value

    return read


def fraction(flag: str, *, below: float) -> Callable[[str], float]:
    """A reader of fractions: ``0.08`` or ``8%``."""

    def read(text: str) -> float:
        percent = text.strip().endswith("%")
        try:
            value = float(text.strip().removesuffix("%")) / (100 if percent else 1)
        except ValueError:
            value = math.nan
        if not 0 <= value < below:
            raise InputError(flag, text, want=f"a fraction from 0 to below {below:g}, such as 0.08 or 8%")
        return value

    return read


def one_of(flag: str, choices: tuple[str, ...]) -> Callable[[str], str]:
    """A reader of a word out of a few."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise UnknownName(flag, text, choices, fix=f"It is one of {', '.join(choices)}.")
        return text.lower()

    return read


def batch(text: str) -> int | str:
    """A global batch: samples (``1024``) as a number, tokens (``4M tokens``, ``4Mtok``) as text."""
    in_tokens = _TOKEN_BATCH.fullmatch(text)
    if in_tokens is None:
        return whole("--batch", at_most=10_000_000)(text)
    amount("--batch", at_most=1e12)(in_tokens.group(1))
    return text


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The MODEL argument."""
    text = "a catalog name (astra catalog models), a Hugging Face config.json or its folder, or a TOML file"
    if optional:
        parser.add_argument("model", metavar="MODEL", nargs="?", help=text)
    else:
        parser.add_argument("model", metavar="MODEL", help=text)


class _Pools(argparse.Action):
    """One pool as its text, several as a list."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        so_far = getattr(namespace, self.dest)
        pools = [] if so_far is None else [so_far] if isinstance(so_far, str) else so_far
        setattr(namespace, self.dest, [*pools, values] if pools else values)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Which GPUs."""
    group = parser.add_argument_group("GPUs")
    text = "how many of which, such as 512xH100 (astra catalog gpus); again for another pool"
    group.add_argument("--gpus", metavar="NxGPU", action=_Pools, help=text)
    group.add_argument("--cluster", metavar="FILE", help="a TOML file with your own GPUs, nodes and links")
    group.add_argument("--node", metavar="NAME", help="node type, when not the usual one (astra catalog nodes)")


def add_workload(parser: argparse.ArgumentParser) -> None:
    """What is trained, and how."""
    group = parser.add_argument_group("workload")
    group.add_argument("--batch", metavar="N", type=batch,
                       help=f"global batch in samples, or in tokens as 4Mtok (default {DEFAULT_BATCH})")  # fmt: skip
    group.add_argument("--seq", metavar="N", type=whole("--seq", at_most=100_000_000),
                       help=f"tokens per sample (default {DEFAULT_SEQ}, or what the model is made for)")  # fmt: skip
    group.add_argument("--tokens", metavar="N", type=amount("--tokens", at_most=1e18),
                       help="tokens to train in all, such as 1T: adds days and dollars")  # fmt: skip
    group.add_argument("--precision", metavar=_shown(PRECISIONS), type=one_of("--precision", PRECISIONS),
                       default="bf16", help="of the matrix products; tf32 trains in fp32 (default bf16)")  # fmt: skip
    group.add_argument("--optimizer", metavar=_shown(OPTIMIZERS), type=one_of("--optimizer", OPTIMIZERS),
                       default="adam", help="(default adam)")  # fmt: skip
    group.add_argument("--task", metavar=_shown(TASKS), type=one_of("--task", TASKS), default="pretrain",
                       help="(default pretrain)")  # fmt: skip
    group.add_argument("--lora-rank", metavar="N", type=whole("--lora-rank", at_most=65536), default=16,
                       help="of --task lora (default 16)")  # fmt: skip
    group.add_argument("--runtime", metavar="NAME", default=DEFAULT_RUNTIME,
                       help="training framework (astra catalog runtimes; default megatron)")  # fmt: skip
    group.add_argument("--strict", action="store_true", help="refuse to answer from assumed data (exit code 4)")


def add_limits(group: argparse._ArgumentGroup) -> None:
    """What a legal strategy must keep to."""
    group.add_argument("--rules", metavar="FILE", help="a file with rules of your own")
    group.add_argument("--headroom", metavar="F", type=fraction("--headroom", below=0.9), default=0.08,
                       help="share of the usable memory to keep free (default 0.08)")  # fmt: skip


def add_output(parser: argparse.ArgumentParser, *, detail: bool = True, file: bool = True) -> None:
    """Where the answer goes and how much of it is shown; without ``file``, the verb has an ``--out`` of its own."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON record and nothing else")
    if file:
        group.add_argument("--out", metavar="FILE", help="also write the JSON record to FILE")
    else:
        parser.set_defaults(out=None)
    if detail:
        amount_shown = group.add_mutually_exclusive_group()
        amount_shown.add_argument("-q", "--quiet", action="store_true", help="only the main table")
        amount_shown.add_argument("-v", "--verbose", action="store_true", help="every reject, stage and source")
    group.add_argument("--width", metavar="N", type=whole("--width", at_least=60, at_most=400),
                       help="columns of the text (default: the terminal's)")  # fmt: skip
    group.add_argument("--debug", action="store_true", help="show the traceback of an internal error")


def request(args: argparse.Namespace, assumed: list[str]) -> dict[str, Any]:
    """The keyword arguments that ``plan`` and ``estimate`` share; ``assumed`` collects the defaults used."""
    if args.gpus is None and args.cluster is None:
        raise InputError("--gpus", None, want="the GPUs to use", fix="Give --gpus 64xH100, or --cluster FILE.")
    if args.gpus is not None and args.cluster is not None:
        raise InputError("--gpus", args.gpus, want="either --gpus or --cluster, not both")
    size, seq = args.batch, args.seq
    if seq is None:
        seq = default_seq(args.model)
        assumed.append(f"--seq {seq} was assumed.")
    if size is None:
        size = DEFAULT_BATCH
        assumed.append(f"--batch {size} (samples) was assumed.")
    assumed += in_samples(size, seq)
    names = ("gpus", "cluster", "node", "tokens", "precision", "optimizer", "task", "lora_rank", "runtime", "strict",
             "rules", "headroom")  # fmt: skip
    return {"batch": size, "seq": seq} | {name: getattr(args, name) for name in names}


def in_samples(size: int | str, seq: int) -> list[str]:
    """What becomes of a batch in tokens that is no whole number of samples."""
    in_tokens = _TOKEN_BATCH.fullmatch(size) if isinstance(size, str) else None
    tokens = parse_count(in_tokens.group(1)) if in_tokens is not None else None
    if tokens is None or tokens % seq == 0 or tokens < seq:
        return []
    samples = whole_samples(tokens, seq)
    return [f"--batch {size} is {samples:,} samples of {seq:,} tokens, {samples * seq:,} tokens."]


def named(value: object) -> bool:
    """Whether the user gave a value, be it the default one."""
    return not isinstance(value, _Default)


def default_seq(model: str) -> int:
    """The length the planner takes when none is given."""
    from astra.search import api  # noqa: PLC0415

    return int(api.describe_model(model).flops_per_token["seq"])


def _shown(choices: tuple[str, ...]) -> str:
    return "{" + ",".join(choices) + "}"
