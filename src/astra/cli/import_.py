"""``astra import``: what somebody runs today, as a strategy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from astra.cli import options, source
from astra.cli.output import VerbAnswer
from astra.errors import InputError, visible
from astra.spec.request import PlanRequest

if TYPE_CHECKING:
    from astra.export.imported import ImportedLaunch
    from astra.spec.mixed import MixedStrategy
    from astra.spec.strategy import Strategy

IMPORT_SCHEMA: Final = "astra.import/1"
HELP: Final = "read a launch script or a training configuration as a strategy"
DESCRIPTION: Final = (
    "Say what a training configuration does in Astra's words. Scripts are read, never run. "
    "astra estimate --from FILE costs it at once; astra plan --baseline FILE compares it with the best."
)
EPILOG: Final = """\
examples:
  astra import train.sh
  astra import train.sh -- 7b 64
  astra import ds_config.json --gpus 64xH100
  astra import plan.json --pick 2
  astra estimate --from train.sh --gpus 64xH100
"""
_WORK: Final = ("global_batch", "seq", "precision", "optimizer", "task", "lora_rank", "mtp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("file", metavar="FILE", help="a script (.sh), a configuration (.toml, .py, .json, .yaml) or "
                        "overrides of a recipe (.txt)")  # fmt: skip
    parser.add_argument("parameters", metavar="PARAMETER", nargs="*", help="parameters of the script, behind --")
    parser.add_argument("--gpus", metavar="N[xGPU]", help="how many GPUs it runs on, where the file does not say")
    source.add_arguments(parser, words=False)
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Read, and keep the answer ready to be drawn."""
    choice = source.choice_of(args)
    if source.is_plan(args.file):
        record = _plan_record(args.file, choice)
    else:
        record = to_record(read(args.file, {} if args.gpus is None else {"gpus": (args.gpus,)}, choice), args.file)
    return VerbAnswer(lambda width, color: render(record), lambda: json.dumps(record, indent=2))


def _plan_record(file: str, choice: source.FileChoice) -> dict[str, Any]:
    """A plan of ours in the same words as what others run."""
    strategy, record, _ = source.plan_strategy(file, choice)
    from astra.export.reading import world_of  # noqa: PLC0415

    world = world_of(record, file)
    return _record(file, world.runtime.name, strategy, world.cluster.gpus, world.workload, world.model.name)


def read(file: str, fields: Mapping[str, Any], choice: source.FileChoice) -> ImportedLaunch:
    """A configuration on the GPUs of a request, if it has any."""
    from astra.export.imports import import_file  # noqa: PLC0415

    return import_file(file, gpus=_count(fields), parameters=choice.parameters, pick=choice.pick, vocab=choice.vocab)


def _count(fields: Mapping[str, Any]) -> int | None:
    if fields.get("cluster") is not None:
        from astra.search.world import cluster_of  # noqa: PLC0415

        return cluster_of(PlanRequest(model="any", cluster=fields["cluster"])).gpus
    from astra.files import whole_number  # noqa: PLC0415

    total = 0
    for text in fields.get("gpus", ()):
        number = whole_number(text.strip().lower().partition("x")[0].strip(), 8)
        if number is None or not 1 <= number <= 10_000_000:
            raise InputError("--gpus", text, want="a number of GPUs, such as 64 or 64xH100")
        total += number
    return total or None


def fill(fields: dict[str, Any], file: str, choice: source.FileChoice, notes: list[str]) -> Strategy | MixedStrategy:
    """Put what a file says where the request says nothing; the strategy of the file."""
    found = read(file, fields, choice)
    if fields.get("model") is None and found.lacks_vocab:
        want = f"the size of the vocabulary, the one thing that {file} does not say of its model"
        raise InputError(
            "--vocab", None, want=want, fix="Give --vocab 128256, as its tokenizer has, or name the model."
        )
    if fields.setdefault("model", found.model or found.recipe) is None:
        fix = "Name it before the flags: a catalog name, or the path of its config.json."
        raise InputError("MODEL", None, want=f"the model: {file} does not give its whole shape", fix=fix)
    said = {"batch": found.global_batch, "seq": found.seq, "precision": found.precision,
            "optimizer": found.optimizer, "runtime": found.framework, "mtp": found.mtp,
            "task": found.task, "lora_rank": found.lora_rank}  # fmt: skip
    for name, value in said.items():
        if value is not None:
            fields.setdefault(name, value)
    notes.append(f"The strategy was read from {file} ({found.framework}); runtime {fields['runtime']}.")
    notes += [f"Not used of it: {setting}." for setting in found.ignored]
    notes += [f"Not understood: {setting}." for setting in found.unknown]
    return found.words


def to_record(found: ImportedLaunch, file: str) -> dict[str, Any]:
    """Plain data."""
    import msgspec  # noqa: PLC0415

    record = _record(file, found.framework, str(found.words), found.gpus, found, found.recipe)
    spec = msgspec.to_builtins(found.model) if found.model is not None else None
    own = {"model_spec": spec, "ignored": list(found.ignored), "unknown": list(found.unknown)}
    return record | own | {"lacks": ["vocab"] if found.lacks_vocab else []}


def _record(
    file: str, framework: str, strategy: str, gpus: int | None, work: object, model: str | None
) -> dict[str, Any]:
    return {
        "schema": IMPORT_SCHEMA,
        "file": file,
        "framework": framework,
        "strategy": strategy,
        "gpus": gpus,
        "workload": {key: getattr(work, key) for key in _WORK},
        "model": model,
        "model_spec": None,
        "ignored": [],
        "unknown": [],
        "lacks": [],
    }


def render(record: dict[str, Any]) -> str:
    """The record for people."""
    work, shape = record["workload"], record["model_spec"]
    lines = [f"{record['file']} ({record['framework']})", f"strategy  {record['strategy']}"]
    lines += [f"gpus      {record['gpus']}"]
    said = [f"{key} {value}" for key, value in work.items() if value is not None]
    lines += [f"workload  {', '.join(said)}"]
    if shape is not None:
        lines += [f"model     {shape['layers']} layers, hidden {shape['hidden']}, heads {shape['heads']}/"
                  f"{shape['kv_heads']}, ffn {shape['ffn']}, vocabulary {shape['vocab']}"]  # fmt: skip
    elif record["model"] is not None:
        lines += [f"model     {record['model']}"]
    elif record["lacks"]:
        lines += ["model     all but the size of its vocabulary: give --vocab N"]
    lines += [f"not used  {'; '.join(record['ignored'])}  (speed or memory)"] * bool(record["ignored"])
    lines += [f"unknown   {'; '.join(record['unknown'])}"] * bool(record["unknown"])
    return "\n".join(map(visible, lines)) + "\n"
