"""``astra fleet``: several jobs on shared pools; which GPUs each gets, and when."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from astra.cli import options, output
from astra.cli.output import VerbAnswer

if TYPE_CHECKING:
    from astra.sharing.records import FleetReport

HELP: Final = "share pools of GPUs among several jobs: who gets which, and when"
DESCRIPTION: Final = (
    "Plan every job of JOBS.toml on every useful number of GPUs, then give each job its GPUs and its time, so that "
    "weighted completion, dollars or deadlines are best. Deadlines that cannot be met are refused, with what would "
    "make them possible."
)
EPILOG: Final = """\
jobs:
  goal = "completion"               # or dollars, or deadlines
  [pools]
  h100 = "256xH100"
  a100 = { gpus = "128xA100-80", usd_per_gpu_h = 1.1 }
  [jobs.chat]
  model = "llama-3-70b"
  tokens = "300B"
  deadline = "30d"                  # weight, start, min_gpus, max_gpus, pools, counts
  [jobs.small]
  model = "llama-3-8b"
  tokens = "1T"
  weight = 3
  [request]                         # fields that all jobs share (docs/requests.md)
  batch = 1024

examples:
  astra fleet jobs.toml
  astra fleet jobs.toml --goal dollars --plot who.svg --report who.html
"""
_GOALS: Final = ("completion", "dollars", "deadlines")
_PLOTS: Final = (".svg", ".png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("jobs", metavar="FILE", help="a TOML file with jobs and pools (docs/sharing.md)")
    group = parser.add_argument_group("fleet")
    group.add_argument("--goal", metavar=f"{{{','.join(_GOALS)}}}", type=options.one_of("--goal", _GOALS),
                       help="what is best (default: as the file says, or completion)")  # fmt: skip
    group.add_argument("--workers", metavar="N", type=options.whole("--workers", at_most=4096),
                       help="plans at once (default: the cores there are)")  # fmt: skip
    group.add_argument("--plot", metavar="FILE", help="also write who has which GPUs when, as .svg or .png ([plot])")
    options.add_output(parser, detail=False, page=True)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Plan, solve, write what is asked for, and keep the answer ready to be drawn."""
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.questions.engines import Engine, engine_of  # noqa: PLC0415
    from astra.sharing.declared import read_sharing  # noqa: PLC0415
    from astra.sharing.share import share  # noqa: PLC0415

    def engine() -> Engine:
        return engine_of("local", args.workers, None)

    output.check_page(args.page)
    output.check_plot(args.plot, _PLOTS)
    sharing = read_sharing(args.jobs, args.goal)
    report = followed(lambda bar: share(sharing, engine, bar or (lambda fraction: None)), "planning jobs")
    if args.plot is not None:
        output.write_file(args.plot, _drawn(report, args.plot.lower()))
    if args.page is not None:
        from astra.files import read_text  # noqa: PLC0415
        from astra.report.shared import fleet_page  # noqa: PLC0415

        output.write_file(args.page, fleet_page(report, read_text(args.jobs, "jobs")))

    def draw(width: int | None, color: bool) -> str:
        return report.draw(width, color) + (f"Wrote {args.plot}.\n" if args.plot is not None else "")

    return VerbAnswer(draw, report.to_json)


def _drawn(report: FleetReport, path: str) -> str | bytes:
    from astra.report.shared import gantt_svg  # noqa: PLC0415

    if path.endswith(".svg"):
        return gantt_svg(report) + "\n"
    from astra.report.pictures import png  # noqa: PLC0415

    return png(gantt_svg(report), "--plot")
