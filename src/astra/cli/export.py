"""``astra export``: a plan as files that a framework or a launcher starts."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from astra.cli import options
from astra.cli.output import VerbAnswer
from astra.errors import InputError, visible

HELP: Final = "write a plan as files that a framework or launcher starts"
DESCRIPTION: Final = (
    "Write the files that start a plan made by astra plan --out PLAN.json, or a choice of astra rent --out RENT.json. "
    "A target that cannot express the plan "
    "refuses it and says why; --nearest writes the closest plan it can, and shows what that costs."
)
EPILOG: Final = """\
targets: megatron megatron-bridge torchtitan pytorch deepspeed accelerate flagscale slurm skypilot kubernetes

examples:
  astra plan llama-3.1-70b --gpus 64xH100 --out plan.json
  astra export plan.json --to megatron --out run/
  astra export plan.json --to slurm --rank 2
  astra export plan.json --to torchtitan --nearest
  astra rent llama-3-8b --tokens 100B --gpus H100 --out rent.json
  astra export rent.json --to skypilot --rank 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("plan", metavar="PLAN.json",
                        help="a plan written by astra plan --out, or an answer of astra rent --out")  # fmt: skip
    parser.add_argument("--to", metavar="TARGET", required=True, help="what to write files for; see below")
    parser.add_argument("--out", metavar="DIR", dest="folder", help="folder to write (default MODEL-TARGET)")
    parser.add_argument("--rank", metavar="N", type=options.whole("--rank", at_most=1000), default=None,
                        help="which plan of the file, or row of the front (default: the best)")  # fmt: skip
    parser.add_argument("--nearest", action="store_true", help="if refused, export the closest plan it can express")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder of an older export, as a whole")
    options.add_output(parser, detail=False, file=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Read, check, write; the answer says what was written."""
    from astra.export.python import exported, target  # noqa: PLC0415
    from astra.export.reading import plan_of_choice, read_record, read_rented  # noqa: PLC0415

    exporter = target(args.to, "--to")
    rented = read_rented(args.plan)
    plans = read_record(args.plan) if rented is None else plan_of_choice(rented, args.rank, args.plan)
    record = exported(
        plans, exporter.name, args.plan, rank=(args.rank or 1) if rented is None else 1, folder=args.folder,
        nearest=args.nearest, overwrite=args.overwrite, flag="--out",
    )  # fmt: skip
    return VerbAnswer(lambda width, color: render(record), lambda: json.dumps(record, indent=2))


def check_target(args: argparse.Namespace, *names: str) -> None:
    """Say before a search what would fail after it: an unknown target, or, without one, options that go with it."""
    if args.export is not None:
        from astra.export.python import target  # noqa: PLC0415

        target(args.export, "--export")
        return
    for name in names:
        if (given := getattr(args, name)) not in (None, False):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(flag, None if given is True else given, want="--export TARGET with it")


def render(record: dict[str, Any]) -> str:
    """The record for people."""
    lines = [f"Wrote {len(record['files'])} files for {record['target']} in {record['folder']}:"]
    lines += [f"  {name}" for name in record["files"]]
    lines += [f"strategy  {record['strategy']}", f"verified  {record['verified']}"]
    near, there = record["nearest"], record["estimated"]
    if there is not None:
        lines += [f"step      {there['step_s']:.3g} s in {there['runtime']}; the plan was made for "
                  f"{there['planned_runtime']}"]  # fmt: skip
        if not there["fits"]:
            lines += [f"warning   does not fit there: {there['peak_gib']:.1f} GiB per GPU, of {there['limit_gib']:.1f} "
                      f"GiB; plan with --runtime {there['runtime']}"]  # fmt: skip
    if near is not None:
        slower = near["exported_step_s"] / near["asked_step_s"] - 1
        lines += ["", "This is the nearest plan the target can express, not the one asked for:"]
        lines += [f"  {reason}" for reason in near["reasons"]]
        lines += [f"  {name}: {_text(old)} -> {_text(new)}" for name, (old, new) in near["changed"].items()]
        lines += [f"  step {near['asked_step_s']:.3g} s ({near['asked_runtime']}) -> {near['exported_step_s']:.3g} s "
                  f"({near['exported_runtime']}): {slower:+.1%}"]  # fmt: skip
        lines += [f"  peak memory {near['asked_peak_gib']:.1f} GiB -> {near['exported_peak_gib']:.1f} GiB"]
    return "\n".join(map(visible, lines)) + "\n"


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
