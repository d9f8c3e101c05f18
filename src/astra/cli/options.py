"""Flags made from the fields of a request, and requests made from flags and files; errors name the flag."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.spec import kinds
from astra.spec.fields import Field, read_fields
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS, PlanRequest, read_request

_MODEL: Final = "{}, or a request: a TOML file of fields, or the plan file of an earlier one (docs/requests.md)"
_FLEET: Final = ("gpus", "cluster", "node")


def reader(kind: kinds.FieldKind, flag: str) -> Callable[[str], Any]:
    """What argparse calls with the text of a flag."""
    return lambda text: kind.read(text, flag)


def whole(flag: str, *, at_least: int = 1, at_most: int) -> Callable[[str], Any]:
    """A reader of whole numbers, for flags that are no part of a request."""
    return reader(kinds.whole(at_least, at_most), flag)


def one_of(flag: str, choices: tuple[str, ...]) -> Callable[[str], Any]:
    """A reader of a word out of a few, for flags that are no part of a request."""
    return reader(kinds.one_of(*choices), flag)


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False, files: bool = True) -> None:
    """The MODEL argument; with ``files``, a request may stand for it."""
    text = FIELDS["model"].help_text("")
    may: dict[str, Any] = {"nargs": "?", "default": argparse.SUPPRESS} if optional else {}
    parser.add_argument("model", metavar="MODEL", help=_MODEL.format(text) if files else text, **may)


def add_fields(parser: argparse.ArgumentParser, verb: str, *, without: Collection[str] = ()) -> None:
    """Every flag of the fields that a verb takes, under their headings; one that is not given leaves no trace."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    fields = [*FIELDS.values(), *(field._replace(group="money") for field in MONEY_FIELDS.values())]
    for field in fields:
        if field.on(verb) and field.flag is not None and field.name not in without:
            if field.group not in groups:
                groups[field.group] = parser.add_argument_group(field.group)
            add_field(groups[field.group], field, verb)


def add_field(group: argparse._ArgumentGroup | argparse.ArgumentParser, field: Field, verb: str) -> None:
    """The flag of one field, or one flag for each of its words."""
    kind = field.typed or field.kind
    given: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
    text = field.help_text(verb).replace("%", "%%") if not kind.words or isinstance(field.help, str) else ""
    if kind.words and isinstance(field.help, Mapping):
        either = group.add_mutually_exclusive_group()
        for word, help_text in field.help.items():
            either.add_argument(f"--{word}", action="store_const", const=word, help=help_text, **given)
    elif kind.switch:
        group.add_argument(field.spelled, action="store_const", const=True, help=text, **given)
    elif kind.repeats:
        group.add_argument(field.spelled, metavar=kind.metavar, action="append", help=text, **given)
    else:
        read = reader(kind, field.spelled)
        group.add_argument(field.spelled, metavar=kind.metavar, type=read, help=text, **given)


def add_save(parser: argparse.ArgumentParser) -> None:
    """Where to keep the request."""
    group = parser.add_argument_group("request")
    text = "write the request, every name resolved, as TOML: given as MODEL, it answers the same"
    group.add_argument("--save-request", metavar="FILE", help=text)


def asked(args: argparse.Namespace, verb: str) -> dict[str, Any]:
    """The fields that were given: those of a file in place of the model, and the flags, which override them."""
    flags = read_fields(PlanRequest, _given(args, FIELDS), lambda name: FIELDS[name].spelled)
    money = _money(args)
    file = _from_file(flags)
    if {"gpus", "cluster"} & flags.keys():
        file = {name: value for name, value in file.items() if name not in _FLEET}
    if "objective" in flags:
        file = {name: value for name, value in file.items() if name not in ("budget", "deadline")}
    elif {"budget", "deadline"} & flags.keys():
        file.pop("objective", None)
    found = {name: value for name, value in (file | flags).items() if FIELDS[name].on(verb)}
    return found | ({"money": file.get("money", {}) | money} if money else {})


def _given(args: argparse.Namespace, fields: Mapping[str, Field]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in fields if getattr(args, name, None) is not None}


def _money(args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name, value in _given(args, MONEY_FIELDS).items():
        field = MONEY_FIELDS[name]
        if field.also:
            found[name], found[field.also] = value
        else:
            found[name] = field.read(value, field.spelled)
    return found


def _from_file(flags: dict[str, Any]) -> dict[str, Any]:
    """The fields of the file that stands for the model, which is then no model; none without one."""
    if "model" not in flags:
        return {}
    from astra.catalog.requests import read_request_file  # noqa: PLC0415

    path = flags["model"]
    found = read_request_file(path)
    if found is None:
        return {}
    del flags["model"]
    read = read_fields(PlanRequest, found, lambda name: f"{path}: {name}")
    return read | ({"money": found["money"]} if "money" in found else {})


def request(verb: str, fields: Mapping[str, Any]) -> PlanRequest:
    """The request that fields make up; what cannot do without is asked for."""
    if "model" not in fields:
        raise InputError("MODEL", None, want="the model to train", fix=f"Such as astra {verb} llama-2-70b ...")
    model = fields["model"]
    if isinstance(model, str) and model.lower().endswith((".toml", ".json")) and not os.path.exists(model):
        raise InputError(model, None, want="a request or a model in a file", fix="There is no such file.")
    gpus, cluster = fields.get("gpus"), fields.get("cluster")
    if verb != "rent" and not gpus and cluster is None:
        raise InputError("--gpus", None, want="the GPUs to use", fix="Give --gpus 64xH100, or --cluster FILE.")
    if gpus and cluster is not None:
        raise InputError("--gpus", gpus, want="either --gpus or --cluster, not both")
    try:
        return read_request(verb, fields, lambda name: FIELDS[name].spelled)
    except InputError as error:
        name = error.where.removeprefix("money.")
        if name == error.where or name not in MONEY_FIELDS:
            raise
        raise InputError(MONEY_FIELDS[name].spelled, error.got, want=error.want, fix=error.fix) from None


def assumed(fields: Mapping[str, Any], seq: int, batch: int) -> list[str]:
    """Sentences on what nobody gave, and on how numbers with a unit were read."""
    notes = [f"--seq {seq} was assumed."] if "seq" not in fields else []
    if isinstance(fields.get("seq"), str):
        notes.append(f"--seq {fields['seq']} is {seq:,} tokens.")
    if "batch" not in fields:
        return [*notes, f"--batch {batch} (samples) was assumed."]
    asked = fields["batch"]
    if isinstance(asked, str) and kinds.batch_tokens(asked)[0] != batch * seq:
        notes.append(f"--batch {asked} is {batch:,} samples of {seq:,} tokens, {batch * seq:,} tokens.")
    return notes


def resolve(verb: str, fields: Mapping[str, Any], save_to: str | None) -> tuple[PlanRequest, list[str]]:
    """The request, written to a file if one is named, and sentences on what it assumes."""
    from astra.search.world import World  # noqa: PLC0415

    made = request(verb, fields)
    world = World.of(made)
    notes = assumed(fields, world.workload.seq, world.workload.global_batch)
    return made, notes + save(world.resolved.plain(verb), verb, save_to)


def save(asked: Mapping[str, Any], verb: str, path: str | None) -> list[str]:
    """Write the plain form of a request, if a file is named, and say so."""
    if path is None:
        return []
    from astra.catalog.requests import write_request  # noqa: PLC0415
    from astra.cli import output  # noqa: PLC0415

    output.write_file(path, write_request(asked, verb))
    return [f"The request is in {path}."]


def add_files(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Files of an answer beside its record."""
    parser.add_argument("--csv", metavar="FILE", help="also write the rows as CSV")
    parser.add_argument("--plot", metavar="FILE", help="also draw them, as .svg, .html or .png ([plot])")


def add_output(parser: argparse.ArgumentParser, *, detail: bool = True, file: bool = True, page: bool = False) -> None:
    """Where the answer goes and how much of it is shown; without ``file``, the verb has an ``--out`` of its own."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON record and nothing else")
    if file:
        group.add_argument("--out", metavar="FILE", help="also write the JSON record to FILE")
    else:
        parser.set_defaults(out=None)
    if page:
        text = "also write the answer as a page to show, .html"
        group.add_argument("--report", metavar="FILE", dest="page", help=text)
    if detail:
        amount = group.add_mutually_exclusive_group()
        amount.add_argument("-q", "--quiet", action="store_true", help="only the main table")
        text = "everything: stages, bill, runners-up, rejects, sources"
        amount.add_argument("-v", "--verbose", action="store_true", help=text)
    group.add_argument("--width", metavar="N", type=whole("--width", at_least=60, at_most=400),
                       help="columns of the text (default: the terminal's)")  # fmt: skip
    group.add_argument("--debug", action="store_true", help="show the traceback of an internal error")
