"""``astra profile``: how fast the GPU here runs the operators of training."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from astra.cli import options
from astra.cli.output import VerbAnswer, answer, check_destination
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.lab.profile.summary import ProfileSummary, Speed

HELP: Final = "measure the GPU here: products, attention, memory, launches, sustained load, collectives"
DESCRIPTION: Final = (
    "Measure the operators of transformer training on the GPU of this machine and write one JSON file. Needs torch and "
    "CUDA (pip install 'astra-planner[gpu]'). With several GPUs here, or under torchrun, collectives between them are "
    "measured too. An interrupted profile loses nothing: --resume goes on with it."
)
EPILOG: Final = """\
docs/profile.md says what is measured and how.

examples:
  astra profile --quick --out gpu.json     a sample, about a minute
  astra profile --full --out gpu.json      all shapes, some minutes
  astra profile --full --out gpu.json --resume
  torchrun --nnodes 2 --nproc-per-node 8 ... -m astra profile --out gpu.json     on each of two servers
"""
_SUSTAIN_S: Final = {True: 10.0, False: 30.0}  # quick, full


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="a sample of the shapes, under two minutes")
    mode.add_argument("--full", action="store_true", help="every shape, under fifteen minutes (default)")
    parser.add_argument("--out", metavar="FILE", dest="file", required=True, help="the profile to write")
    parser.add_argument("--resume", action="store_true", help="go on with FILE: measure what it does not hold")
    options.add_output(parser, detail=False, file=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Measure, and keep the summary ready to be drawn."""
    from astra.lab.profile import collectives  # noqa: PLC0415
    from astra.lab.profile.gpu import require_gpu  # noqa: PLC0415

    if int(os.environ.get("RANK", "0")) > 0:  # under torchrun: only rank 0 has an answer
        require_gpu()
        collectives.run_here(args.file, quick=args.quick)
        raise SystemExit(0)
    check_destination(args.file)
    if Path(args.file).exists() and not args.resume:
        fix = "Give --resume to go on with it, or another name."
        raise InputError("--out", args.file, want="a file that does not exist yet", fix=fix)
    require_gpu()
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.lab.profile.run import planned_rows, run_profile  # noqa: PLC0415
    from astra.lab.profile.summary import summarize  # noqa: PLC0415

    collectives.run_here(args.file, quick=args.quick)
    sustain_s = _SUSTAIN_S[args.quick]
    store = followed(
        lambda bar: run_profile(args.file, quick=args.quick, sustain_s=sustain_s, progress=bar), "measuring"
    )
    planned = planned_rows(store.header, quick=args.quick)
    return answer(summarize(store.header, store.rows, file=args.file, planned=planned), args)


def parts(found: ProfileSummary, columns: int) -> list[Any]:
    """The summary for people."""
    from astra.report import drawing  # noqa: PLC0415

    made: list[Any] = [drawing.heading(found.gpu, f"driver {found.driver}, torch {found.torch}, {found.date}")]
    for title, speeds, scale, unit in (
        ("Products above 0.5 TFLOP", found.gemm, 1e12, "TFLOP/s"),
        ("Causal attention, 8k tokens or more", found.attention, 1e12, "TFLOP/s"),
        ("Memory-bound kernels above 0.1 GB", found.memory, 1e12, "TB/s"),
        ("Collectives of 16 MiB and more, on the wire", found.collectives, 1e9, "GB/s"),
    ):
        if speeds:
            made += [drawing.blank(), drawing.heading(title, unit), _table(speeds, scale)]
    return [*made, drawing.blank(), *(drawing.text(line) for line in _lines(found))]


def _table(speeds: dict[str, Speed], scale: float) -> Any:
    from astra.report import drawing  # noqa: PLC0415

    table = drawing.table(("", "left"), ("rows", "right"), ("median", "right"), ("best", "right"))
    digits = 0 if next(iter(speeds.values())).best_per_s > 20 * scale else 2
    for name, speed in speeds.items():
        values = (f"{value / scale:.{digits}f}" for value in (speed.median_per_s, speed.best_per_s))
        table.add_row(name, str(speed.rows), *values)
    return table


def _lines(found: ProfileSummary) -> list[str]:
    lines = []
    if found.launch_s:
        lines.append("launch    " + ", ".join(f"{name} {s * 1e6:.1f} us" for name, s in found.launch_s.items()))
    if found.burst_flops_per_s and found.sustained_flops_per_s:
        burst, steady = found.burst_flops_per_s, found.sustained_flops_per_s
        lines.append(
            f"sustained {steady / 1e12:.0f} TFLOP/s, {steady / burst:.2f} of the first 0.2 s ({burst / 1e12:.0f})"
        )
    lines += [f"not measured: {what}" for what in found.not_measured]
    lines.append(f"{found.rows} of {found.planned} rows in {found.file}, {found.refused} refused by their kernels")
    return lines
