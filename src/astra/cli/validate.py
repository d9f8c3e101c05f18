"""``astra validate``: published, measured runs replayed against the cost model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from astra.cli import options
from astra.cli.output import VerbAnswer, check_destination, check_plot, write_file
from astra.errors import InputError, nearest_names

if TYPE_CHECKING:
    from astra.validate.runs import Run, Skipped

HELP: Final = "how far predictions are from published, measured runs"
DESCRIPTION: Final = (
    "Replay measured training runs and print the errors of step time and memory, what fits, and how good the strategy "
    "picked from each measured family is. Without a file, the runs that come with Astra."
)
EPILOG: Final = """\
A file of your own is a CSV with the columns id, framework, model_name, layers, hidden, ffn, heads, kv_heads, vocab,
seq_len, gpu_type, num_gpus, gpus_per_node, precision, tp, pp, vp, cp, ep, dp, mbs, gbs, zero_stage_or_dist_opt,
recompute, measured_step_time_s, measured_peak_mem_gb, oom, notes and others; what is missing is inferred, or the row
is skipped and the reason counted.

examples:
  astra validate
  astra validate my_runs.csv --plot scatter.html
  astra validate --json --out validation.json
  astra validate --show dgxc-0007    what a published run asks: save it as run.toml for astra estimate run.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    text = "measured runs (default: those that come with Astra)"
    parser.add_argument("runs", metavar="RUNS.csv", nargs="?", help=text)
    options.add_output(parser)
    parser.add_argument("--plot", metavar="FILE", help="predicted against measured, as .html, .svg or .png ([plot])")
    parser.add_argument("--report", metavar="FILE", help="also write the tables as a Markdown page")
    text = "only these runs, such as dgxc-0007 or 'mlperf-*': what each asks of astra estimate, and what was filled in"
    parser.add_argument("--show", metavar="RUN", help=text)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Replay, and keep the answer ready to be drawn."""
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.validate.replay import replay  # noqa: PLC0415
    from astra.validate.runs import read_runs  # noqa: PLC0415
    from astra.validate.score import PUBLISHED, validate  # noqa: PLC0415
    from astra.validate.table import published  # noqa: PLC0415
    from astra.validate.text import (  # noqa: PLC0415
        markdown,
        render_requests,
        render_validation,
    )

    check_plot(args.plot)
    check_destination(args.report)
    runs = read_runs(args.runs) if args.runs else published()
    if args.show is not None:
        runs = _matching(runs, args.show)
    rows = replay(runs) if args.json else followed(lambda bar: replay(runs, progress=bar))
    found = validate(rows, table=args.runs or PUBLISHED)
    if args.plot:
        from astra.validate.scatter import draw  # noqa: PLC0415

        draw(rows, args.plot)
    if args.report:
        import datetime as dt  # noqa: PLC0415

        today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        write_file(args.report, markdown(found, date=today, commit=_commit()))

    def text(width: int | None, color: bool) -> str:
        if args.show is not None:
            return render_requests(rows)
        return render_validation(found, width, color, brief=args.quiet, full=args.verbose)

    return VerbAnswer(text, found.to_json)


def _matching(runs: list[Run | Skipped], pattern: str) -> list[Run | Skipped]:
    from fnmatch import fnmatchcase  # noqa: PLC0415

    found = [run for run in runs if fnmatchcase(run.id, pattern)]
    if not found:
        near = nearest_names(pattern, tuple(run.id for run in runs))
        raise InputError("--show", pattern, want="the name of a run", fix=f"Near: {', '.join(near)}." if near else "")
    return found


def _commit() -> str:
    """The commit of the source tree, where Astra runs from one."""
    import subprocess  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    try:
        ended = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return ended.stdout.strip()
