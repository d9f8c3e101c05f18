"""``astra compare``: two strategies side by side, and their difference term by term."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from astra.cli import options, output, source
from astra.cli.output import VerbAnswer
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.study.records import Side

HELP: Final = "two plans, scripts or strategies side by side"
DESCRIPTION: Final = (
    "Compare two things that train a model: plans of a file (PLAN.json, or PLAN.json#2 for its second), scripts and "
    "configurations (as astra import reads them), or strategies in words. The differences of the terms add up to the "
    "difference of the steps."
)
EPILOG: Final = """\
A and B: plan.json, plan.json#2, train.sh, or a text such as "tp8 pp4 dp2 mbs1". A strategy in words, and what a script
leaves open, is taken on the model, GPUs and workload of the other one, or of the flags.

examples:
  astra compare plan.json#1 plan.json#2
  astra compare train.sh plan.json
  astra compare plan.json "tp8 pp2 dp4 mbs1 sp zero1"
  astra compare "tp8 pp4 dp2 mbs1" "tp4 pp4 dp4 mbs1" --model llama-2-70b --gpus 64xH100 --batch 1024 --json
"""
_FLEET: Final = ("gpus", "cluster", "node")


class ComparedInput(NamedTuple):
    """One of two: what it says of itself."""

    name: str
    fields: dict[str, Any]  # of a request, strategy among them unless a script has to be read for it
    whole: bool = False  # a plan file: nothing is left open
    script: source.FileChoice | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("a", metavar="A", help="a plan file, a script or a strategy")
    parser.add_argument("b", metavar="B", help="what is compared with it")
    parser.add_argument("--model", metavar="MODEL", default=argparse.SUPPRESS, help="for what does not say it")
    options.add_fields(parser, "estimate", without=("strategy",))
    parser.add_argument("--vocab", metavar="N", type=options.whole("--vocab", at_most=source.MOST_VOCAB),
                        help="size of the vocabulary, where a script leaves it to its tokenizer")  # fmt: skip
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Cost both, and keep the comparison ready to be drawn."""
    flags = options.asked(args, "estimate")
    first, second = (_given(text, flags, args.vocab) for text in (args.a, args.b))
    from astra.study.compare import compared  # noqa: PLC0415

    return output.answer(compared(_side(first, second), _side(second, first)), args)


def _given(text: str, flags: dict[str, Any], vocab: int | None) -> ComparedInput:
    """A plan of a file, a script, or words."""
    file, _, pick = text.rpartition("#") if "#" in text and not os.path.exists(text) else (text, "", "")
    choice = source.FileChoice(pick=pick or None, vocab=vocab)
    if source.is_plan(file):
        strategy, record, rank = source.plan_strategy(file, choice)
        asked = _request_of(record, file, strategy)
        if {"gpus", "cluster"} & flags.keys():
            asked = {name: value for name, value in asked.items() if name not in _FLEET}
        return ComparedInput(f"{file} #{rank}", {**asked, **flags, "strategy": strategy}, whole=True)
    if os.path.isfile(file):
        return ComparedInput(file, dict(flags), script=choice)
    if " " not in text.strip() and ("/" in text or "." in text):
        want = "a plan file or a script that exists, or a strategy such as 'tp8 pp4 dp2'"
        raise InputError(text, None, want=want, fix="There is no such file.")
    return ComparedInput(f'"{text}"', {**flags, "strategy": text})


def _request_of(record: dict[str, Any], file: str, strategy: str) -> dict[str, Any]:
    """The fields that a plan was asked with, as far as an estimate takes them, on the GPUs that it uses."""
    from astra.export.reading import world_of  # noqa: PLC0415
    from astra.spec.strategy import parse_strategy  # noqa: PLC0415
    from astra.study.hardware import with_gpus  # noqa: PLC0415

    world = world_of(record, file)
    plain: dict[str, Any] = world.resolved.plain("estimate")
    if not world.several and (used := parse_strategy(strategy, gpus=None).gpus) != world.cluster.gpus:
        plain = {name: value for name, value in plain.items() if name not in _FLEET}
        plain["cluster"] = with_gpus(world.cluster, used)
    return plain


def _side(one: ComparedInput, other: ComparedInput) -> Side:
    """Its estimate, by the same way as astra estimate; what it leaves open is as in a plan it is compared with."""
    from astra import api  # noqa: PLC0415
    from astra.search.world import World  # noqa: PLC0415
    from astra.study.records import Side  # noqa: PLC0415

    fields = dict(one.fields)
    usual = {name: value for name, value in other.fields.items() if name != "strategy"} if other.whole else {}
    if one.whole or {"gpus", "cluster"} & fields.keys():
        usual = {name: value for name, value in usual.items() if name not in _FLEET and not one.whole}
    if one.script is not None:
        from astra.cli import import_  # noqa: PLC0415

        # A script says more itself than the other does, but for where it runs; its model may be told by name.
        fields = {name: usual[name] for name in (*_FLEET, "model") if name in usual} | fields
        fields["strategy"] = str(import_.fill(fields, one.name, one.script, []))
    fields = usual | fields
    if "model" not in fields:
        raise InputError("--model", None, want=f"the model of {one.name}", fix="Such as --model llama-2-70b.")
    request = options.request("estimate", fields)
    tokens = World.of(request).workload.tokens_per_step
    return Side(name=one.name, estimate=api.estimate(request), tokens_per_step=tokens)
