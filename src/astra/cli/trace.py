"""``astra trace``: the step of a plan as it is simulated, to look at."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from astra.cli import options, source
from astra.cli.output import VerbAnswer, check_destination, write_file
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.search.timeline import StepTimeline

HELP: Final = "draw the simulated step of a plan, stage by stage"
DESCRIPTION: Final = (
    "Simulate one step of a plan made by astra plan --out PLAN.json and show what every pipeline stage does when: "
    "forward, backward, weight gradients, sends, bubbles, gradient reduction, optimizer, and the memory it holds."
)
EPILOG: Final = """\
--out writes a picture by the ending of the file's name:
  .svg   a picture; long steps as their beginning, their end and the whole
  .png   the same in pixels ([plot])
  .html  a page with the picture and a table of seconds by stage
  .json  a Chrome trace: open it in ui.perfetto.dev
--json prints every span as one record (docs/json.md).

examples:
  astra trace plan.json
  astra trace plan.json --pick 2 --out step.svg
  astra trace plan.json --out step.json
"""
ENDINGS: Final = (".svg", ".html", ".png", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    source.add_plan(parser)
    parser.add_argument(
        "--out", metavar="FILE", dest="file", help="write a picture (.svg, .html, .png) or a trace (.json)"
    )
    options.add_output(parser, detail=False, file=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Simulate, write the picture if one is asked for, and keep the answer ready to be drawn."""
    ending = _ending(args.file)
    check_destination(args.file)
    found = source.read(args.plan, args.pick)
    step = timeline(found)
    if args.file is not None:
        write_file(args.file, _written(step, ending))
    wrote = f"\nWrote {args.file}.\n" if args.file is not None else ""
    return VerbAnswer(lambda width, color: step.draw(width) + wrote, step.to_json)


def timeline(found: source.Planned) -> StepTimeline:
    """The step of a plan, with a remark where the file says another time."""
    from msgspec.structs import replace  # noqa: PLC0415

    from astra.search.timeline import timeline_of  # noqa: PLC0415
    from astra.spec.mixed_text import on_one_pool  # noqa: PLC0415

    text = found.strategy
    if not found.world.several and on_one_pool(text) is not None:
        raise InputError(found.file, text, want="a strategy on the pool of the request")
    step, said_s = timeline_of(found.world, text), found.step_s
    if abs(step.step_s - said_s) > 1e-9 * said_s:
        note = (
            f"The file says {said_s:.6g} s: it was made by another version, and this one simulates {step.step_s:.6g} s."
        )
        return replace(step, notes=[note])
    return step


def _ending(file: str | None) -> str:
    ending = "" if file is None else "." + file.rpartition(".")[2].lower()
    if file is not None and ending not in ENDINGS:
        fix = "A browser prints the .html as PDF." if ending == ".pdf" else ""
        raise InputError("--out", file, want=f"a name that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}", fix=fix)
    return ending


def _written(step: StepTimeline, ending: str) -> str | bytes:
    if ending == ".json":
        from astra.report.timeline import chrome_trace  # noqa: PLC0415

        return json.dumps(chrome_trace(step), separators=(",", ":")) + "\n"
    from astra.report import timeline  # noqa: PLC0415

    if ending == ".png":
        from astra.report.pictures import png  # noqa: PLC0415

        return png(timeline.timeline_svg(step), "--out")
    return timeline.timeline_svg(step) + "\n" if ending == ".svg" else timeline.timeline_page(step)
