"""``astra compare``: two strategies side by side, and their difference term by term."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from astra.cli import options, source
from astra.cli.output import Answer
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.answer import Estimate
    from astra.spec.request import PlanRequest
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("a", metavar="A", help="a plan file, a script or a strategy")
    parser.add_argument("b", metavar="B", help="what is compared with it")
    parser.add_argument("--model", metavar="MODEL", default=argparse.SUPPRESS, help="for what does not say it")
    options.add_fields(parser, "estimate", without=("strategy",))
    parser.add_argument("--vocab", metavar="N", type=options.whole("--vocab", at_most=source.MOST_VOCAB),
                        help="size of the vocabulary, where a script leaves it to its tokenizer")  # fmt: skip
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> Answer:
    """Cost both, and keep the comparison ready to be drawn."""
    flags = options.asked(args, "estimate")
    files = [_read(text, flags, args.vocab) for text in (args.a, args.b)]
    for number, one in enumerate(files):
        _fill(one, files[1 - number])
    from astra.study.compare import compared  # noqa: PLC0415

    comparison = compared(*(_side(one) for one in files))

    def draw(width: int | None, color: bool) -> str:
        from astra.report.study_text import render_comparison  # noqa: PLC0415

        return render_comparison(comparison, width, color)

    return Answer(draw, comparison.to_json)


def _read(text: str, flags: dict[str, Any], vocab: int | None) -> dict[str, Any]:
    """The fields that something to compare says of itself, with its name and notes."""
    import os  # noqa: PLC0415

    file, _, pick = text.rpartition("#") if "#" in text and not os.path.exists(text) else (text, "", "")
    if source.is_plan(file):
        from astra.catalog.requests import read_request_file  # noqa: PLC0415

        strategy, _, rank = source.plan_strategy(file, source.Choice(pick=pick or None))
        asked = {name: value for name, value in (read_request_file(file) or {}).items() if name in _taken()}
        return {"name": f"{file} #{rank}", "fields": asked | flags | {"strategy": strategy}, "own": True}
    if os.path.isfile(file):
        from astra.cli import import_  # noqa: PLC0415

        fields, notes = dict(flags), list[str]()
        choice = source.Choice(pick=pick or None, vocab=vocab)
        return {"name": file, "fields": fields, "own": False, "script": (import_.fill, choice, notes)}
    if " " not in text.strip() and ("/" in text or "." in text):
        want = "a plan file or a script that exists, or a strategy such as 'tp8 pp4 dp2'"
        raise InputError(text, None, want=want, fix="There is no such file.")
    return {"name": f'"{text}"', "fields": dict(flags) | {"strategy": text}, "own": False}


def _taken() -> set[str]:
    from astra.spec.request import FIELDS  # noqa: PLC0415

    return {name for name, field in FIELDS.items() if field.on("estimate")}


def _fill(one: dict[str, Any], other: dict[str, Any]) -> None:
    """What is left open is as in the other; a script says more itself than that."""
    fields = one["fields"]
    if not one["own"]:
        given = other["fields"] if other["own"] else {}
        if {"gpus", "cluster"} & fields.keys():
            given = {name: value for name, value in given.items() if name not in ("gpus", "cluster", "node")}
        usual = {name: value for name, value in given.items() if name != "strategy"}
        if "script" in one:
            fill, choice, notes = one.pop("script")
            known = {name: usual.pop(name) for name in ("gpus", "cluster", "node") if name in usual}
            fields |= known | fields
            if "model" not in fields and "model" in usual:
                fields["model"] = usual["model"]
            fields["strategy"] = str(fill(fields, one["name"], choice, notes))
        one["fields"] = usual | fields
    if "model" not in one["fields"]:
        raise InputError("--model", None, want=f"the model of {one['name']}", fix="Such as --model llama-2-70b.")


def _side(one: dict[str, Any]) -> Side:
    """Its estimate, by the same way as astra estimate."""
    from astra import api  # noqa: PLC0415
    from astra.search.world import World  # noqa: PLC0415
    from astra.study.records import Side  # noqa: PLC0415

    request: PlanRequest = options.request("estimate", one["fields"])
    estimate: Estimate = api.estimate(request)
    return Side(name=one["name"], estimate=estimate, tokens_per_step=World.of(request).workload.tokens_per_step)
