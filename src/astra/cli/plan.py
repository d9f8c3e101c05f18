"""``astra plan``: the best strategies for a model on some GPUs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from astra.cli import export, options, output, source
from astra.cli.output import VerbAnswer
from astra.errors import InputError, NoFeasiblePlan
from astra.spec.request import as_meant
from astra.spec.strategy_fields import DEGREES

if TYPE_CHECKING:
    from astra.answer import PlanSet

HELP: Final = "rank the strategies for a model on the GPUs you have"
DESCRIPTION: Final = (
    "Search every strategy for training MODEL on the GPUs, and show the best with their time, memory and reasons."
)
DEFAULT_MODEL: Final = "llama-2-70b"
DEFAULT_GPUS: Final = "64xH100"
EPILOG: Final = f"""\
--fix, --forbid, --max and --min restrict the search and may be repeated:
  --fix tp=8 --fix recompute=none --forbid cp --max pp=16 --min mbs=2
degrees: {" ".join(DEGREES)}

examples:
  astra plan                                    ({DEFAULT_MODEL} on {DEFAULT_GPUS})
  astra plan llama-3.1-70b --gpus 512xH100 --batch 1024 --seq 8192
  astra plan mixtral-8x7b --gpus 64xA100-80 --batch 4Mtok --tokens 1T --top 10
  astra plan llama-3-70b --gpus 512xH100 --tokens 1T --budget 950k --usd-per-gpu-h 3.2
  astra plan llama-2-70b --gpus 256xH100 --gpus 512xA100-80
  astra plan llama-3-70b --gpus 512xH100 --batch 1024 --save-request request.toml
  astra plan request.toml --gpus 256xH100       (flags override the file)
  astra plan plan.json                          (the request of a plan file, again)
  astra plan ./config.json --cluster my-cluster.toml --fix tp=8 --rules house-rules.txt --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser, optional=True)
    options.add_fields(parser, "plan")
    options.add_save(parser)
    source.add_arguments(parser.add_argument_group("what you run today, with --baseline FILE"))
    group = parser.add_argument_group("export")
    group.add_argument("--export", metavar="TARGET", help="also write the best plan for a target (astra export)")
    group.add_argument("--export-out", metavar="DIR", help="folder to write (default MODEL-TARGET)")
    group.add_argument("--nearest", action="store_true", help="if refused, export the closest plan it can express")
    options.add_output(parser, page=True)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Search, and keep the answer ready to be drawn."""
    notes: list[str] = []
    planned = source.is_plan(getattr(args, "baseline", None))
    if planned:
        source.take_request(args, args.baseline, "--baseline")
    fields = options.asked(args, "plan")
    _read_baseline(fields, source.choice_of(args), notes, planned=planned)
    export.check_target(args, "export_out", "nearest")
    if args.export_out is not None:
        from astra.atomic import check_folder  # noqa: PLC0415

        check_folder(args.export_out, flag="--export-out")
    output.check_page(args.page)
    if not {"model", "gpus", "cluster"} & fields.keys():
        fields |= {"model": DEFAULT_MODEL, "gpus": (DEFAULT_GPUS,)}
        notes.append(f"No model was named, so this plans {DEFAULT_MODEL} on {DEFAULT_GPUS}; see astra plan --help.")
    from astra import api  # noqa: PLC0415
    from astra.cli.progress import followed  # noqa: PLC0415

    request, assumed = options.resolve("plan", as_meant(fields), args.save_request)
    notes += assumed
    planset = _with_notes(followed(lambda bar: api.plan(request, progress=bar)), notes)
    written = _export(planset, args) if args.export is not None else []
    planset = _with_notes(planset, written)
    if args.page is not None:
        from astra.report.plan_page import plan_page  # noqa: PLC0415
        from astra.search.timeline import first_step  # noqa: PLC0415

        output.write_file(args.page, plan_page(planset, first_step(planset)))

    def draw(width: int | None, color: bool) -> str:
        shown = planset.draw(width, color, brief=args.quiet, full=args.verbose)
        return "\n".join([shown, *written, ""]) if args.quiet and written else shown

    return VerbAnswer(draw, planset.to_json, 0 if planset.plans else NoFeasiblePlan.exit_code)


def _with_notes(planset: PlanSet, notes: list[str]) -> PlanSet:
    from msgspec.structs import replace  # noqa: PLC0415

    return replace(planset, notes=[*notes, *planset.notes]) if notes else planset


def _read_baseline(fields: dict[str, Any], choice: source.FileChoice, notes: list[str], *, planned: bool) -> None:
    """A baseline that names a file is read from it, with the batch and model it states."""
    import os  # noqa: PLC0415

    baseline = fields.get("baseline")
    if baseline is None or not os.path.isfile(baseline):
        for flag, given in zip(("--pick", "--vocab", "--parameters"), choice, strict=True):
            if given:
                raise InputError(flag, str(given), want="--baseline FILE with it")
    if baseline is None:
        return
    if planned:
        fields["baseline"], _, rank = source.plan_strategy(baseline, choice)
        notes.append(f"The baseline is plan {rank} of {baseline}.")
        return
    if not os.path.isfile(baseline):
        if " " not in baseline.strip() and ("/" in baseline or "." in baseline):  # the name of a file, and no strategy
            want = "a launch script that exists, or a strategy such as 'tp8 pp4 dp2'"
            raise InputError("--baseline", baseline, want=want, fix="There is no such file.")
        return
    from astra.cli import import_  # noqa: PLC0415

    if not {"gpus", "cluster"} & fields.keys():
        raise InputError("--gpus", None, want="the GPUs to use", fix="Give --gpus 64xH100, or --cluster FILE.")
    fields["baseline"] = str(import_.fill(fields, baseline, choice, notes))


def _export(planset: PlanSet, args: argparse.Namespace) -> list[str]:
    """The best plan's files; over several pools, those of the best plan that the target can express."""
    from astra.export.base import CannotExport  # noqa: PLC0415
    from astra.export.python import write  # noqa: PLC0415
    from astra.export.reading import from_record  # noqa: PLC0415

    refused: CannotExport | None = None
    for plan in planset.plans if "pools" in planset.request else planset.plans[:1]:
        try:
            launch, job = from_record(planset.to_dict(), plan.rank, where="plan")
            place = {"folder": args.export_out, "flag": "--export-out"}
            record = write(launch, job, args.export, nearest=args.nearest, **place)
        except CannotExport as error:
            refused = refused or error
            continue
        which = f" (plan {plan.rank}: {refused})" if refused is not None else ""
        near = record["nearest"]
        which += f" for {record['strategy']}, the closest it can express: {'; '.join(near['reasons'])}" if near else ""
        return [f"Files for {args.export} are in {record['folder']}{which}."]
    assert refused is not None
    raise refused
