"""``astra study``: a declared grid of requests, each planned in full."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from astra.cli import options, output
from astra.cli.output import VerbAnswer
from astra.errors import InputError, NoFeasiblePlan

if TYPE_CHECKING:
    from astra.questions.declared import Study
    from astra.questions.records import StudyReport

HELP: Final = "plan a whole grid of models, fleets, workloads, goals and prices"
DESCRIPTION: Final = (
    "Plan every combination that STUDY.toml declares, exactly as astra plan would, and keep the results in a folder: "
    "questions.parquet (a row per question) and plans.parquet (a row per plan). The same command goes on where an "
    "earlier one was stopped, killed or cut off."
)
EPILOG: Final = """\
a study:
  models = ["llama-3-8b", "llama-3-70b", "./ours.toml"]
  fleets = ["64xH100", "256xH100", ["64xH100", "64xA100-80"], "my-cluster.toml"]
  goals = ["fastest", "cheapest"]
  [workloads]
  short = { batch = 1024, seq = 8192 }
  long = { batch = 128, seq = "128k" }
  [prices]
  list = {}
  spot = { market = "spot" }
  [request]           # fields that all questions share (docs/requests.md)
  tokens = "1T"

examples:
  astra study roadmap.toml
  astra study roadmap.toml --out results --workers 16 --report roadmap.html
  astra study roadmap.toml --out results --engine ray --address ray://head:10001
  astra study roadmap.toml --most 0             (the tables of what is answered so far)
"""
_ENGINES: Final = ("local", "ray")
_MOST_WORKERS: Final = 4096
_MOST: Final = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("study", metavar="FILE", help="a TOML file that declares the study (docs/study.md)")
    group = parser.add_argument_group("study")
    group.add_argument(
        "--out", metavar="DIR", dest="folder", help="folder of the results (default FILE's name-results)"
    )
    group.add_argument("--engine", metavar="{local,ray}", type=options.one_of("--engine", _ENGINES), default="local",
                       help="processes of this machine (default), or Ray ([ray])")  # fmt: skip
    group.add_argument("--workers", metavar="N", type=options.whole("--workers", at_most=_MOST_WORKERS),
                       help="questions at once (default: the cores there are)")  # fmt: skip
    group.add_argument("--address", metavar="ADDRESS", help="of a Ray cluster (default: one of this machine)")
    group.add_argument("--most", metavar="N", type=options.whole("--most", at_least=0, at_most=_MOST),
                       help="ask at most so many questions now")  # fmt: skip
    group.add_argument("--retry", action="store_true", help="ask again what failed by a bug or a lost worker")
    options.add_output(parser, detail=False, file=False, page=True)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Ask, keep, write, and keep the summary ready to be drawn."""
    from astra.questions.declared import read_study  # noqa: PLC0415
    from astra.questions.tables import arrow  # noqa: PLC0415

    if args.address is not None and args.engine != "ray":
        raise InputError("--address", args.address, want="--engine ray with it")
    output.check_page(args.page)
    study = read_study(args.study)
    arrow()
    report = _asked(study, args)
    if args.page is not None:
        from astra.files import read_text  # noqa: PLC0415
        from astra.report.studied import study_page  # noqa: PLC0415

        output.write_file(args.page, study_page(report, read_text(args.study, "study")))
    nothing = report.answered == report.questions and not report.plans
    return output.answer(report, args, NoFeasiblePlan.exit_code if nothing else 0)


def _asked(study: Study, args: argparse.Namespace) -> StudyReport:
    from astra.cli.progress import StudyProgress  # noqa: PLC0415
    from astra.questions.engines import engine_of  # noqa: PLC0415
    from astra.questions.run import Results  # noqa: PLC0415
    from astra.questions.run import run as run_study  # noqa: PLC0415

    folder = args.folder or f"{Path(args.study).stem}-results"
    with contextlib.closing(Results(folder)) as results:
        engine = engine_of(args.engine, args.workers, args.address)
        try:
            with contextlib.closing(StudyProgress(sys.stderr)) as bar:
                return run_study(study, results, engine, most=args.most, retry=args.retry, follow=bar)
        except KeyboardInterrupt:
            if sys.stderr is not None:
                print(f"astra: what is answered is kept in {folder}: the same command goes on.", file=sys.stderr)
            raise
