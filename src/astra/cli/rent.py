"""``astra rent``: which GPUs to rent, how many and from whom."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from astra.cli import money, options
from astra.cli.output import Answer
from astra.errors import InputError
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS

if TYPE_CHECKING:
    from astra.result import RentReport

HELP: Final = "what to rent: every trade of time for money worth making"
DESCRIPTION: Final = (
    "Search GPU types, numbers of nodes and strategies for training MODEL on so many tokens, and show the choices that "
    "no other beats in both time and money."
)
MIXES: Final = ("some", "all", "none")
EPILOG: Final = """\
examples:
  astra rent llama-3-70b --tokens 2T --batch 1024 --seq 8192
  astra rent llama-3-70b --tokens 2T --gpus H100,H200,B200 --max-gpus 1024 --market reserved
  astra rent qwen3-8b --tokens 300B --budget 100k --providers AWS,Lambda,CoreWeave
  astra rent llama-3-8b --tokens 1T --deadline 10d --market spot --goodput expected --json
  astra rent llama-3-8b --tokens 1T --idle 24h --storage 50@23 --egress 2@90
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser)
    group = parser.add_argument_group("GPUs")
    group.add_argument("--gpus", metavar="A,B", default="any", help="GPU types, or any (default any)")
    group.add_argument("--max-gpus", metavar="N", type=options.whole("--max-gpus", at_most=100_000), default=2048,
                       help="rent at most so many (default 2048)")  # fmt: skip
    group.add_argument("--mixes", metavar="WORD", type=options.one_of("--mixes", MIXES), default="some",
                       help="mixes of two types: some plans the most promising that are not proven dominated, "
                            "all every one of them, or none (default some)")  # fmt: skip
    group.add_argument("--known-nodes", action="store_true", help="only node types whose links are in the catalog")
    _add_workload(parser)
    money.add_objective(parser.add_argument_group("objective"))
    money.add_money(parser)
    options.add_output(parser)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    group.add_argument("--tokens", metavar="N", type=options.amount("--tokens", at_most=1e18),
                       help="tokens to train in all, such as 2T")  # fmt: skip
    group.add_argument("--batch", metavar="N", type=options.batch, help="global batch in samples, or tokens as 4Mtok")
    group.add_argument("--seq", metavar="N", type=options.whole("--seq", at_most=100_000_000),
                       help="tokens per sample")  # fmt: skip
    for name, choices, usual in (
        ("--precision", PRECISIONS, "bf16"),
        ("--optimizer", OPTIMIZERS, "adam"),
        ("--task", TASKS, "pretrain"),
    ):
        shown = "{" + ",".join(choices) + "}"
        group.add_argument(name, metavar=shown, type=options.one_of(name, choices), default=usual,
                           help=f"(default {usual})")  # fmt: skip
    group.add_argument("--lora-rank", metavar="N", type=options.whole("--lora-rank", at_most=65536), default=16,
                       help="of --task lora (default 16)")  # fmt: skip
    group.add_argument("--runtime", metavar="NAME", default="megatron", help="training framework (default megatron)")
    group.add_argument("--headroom", metavar="F", type=options.fraction("--headroom", below=0.9), default=0.08,
                       help="share of the usable memory to keep free (default 0.08)")  # fmt: skip


def run(args: argparse.Namespace) -> Answer:
    """Search, and keep the answer ready to be drawn."""
    if args.tokens is None:
        raise InputError("--tokens", None, want="the tokens to train", fix="Such as --tokens 2T.")
    notes: list[str] = []
    if args.seq is None:
        args.seq = options.default_seq(args.model)
        notes.append(f"--seq {args.seq} was assumed.")
    if args.batch is None:
        args.batch = options.DEFAULT_BATCH
        notes.append(f"--batch {args.batch} (samples) was assumed.")
    notes += options.in_samples(args.batch, args.seq)
    names = ("gpus", "max_gpus", "known_nodes", "mixes", "tokens", "batch", "seq", "precision", "optimizer", "task",
             "lora_rank", "runtime", "headroom", "objective", "budget", "deadline")  # fmt: skip
    report = _search(args.model, {name: getattr(args, name) for name in names} | {"money": money.money(args)})
    if notes:
        from msgspec.structs import replace  # noqa: PLC0415

        report = replace(report, notes=[*notes, *report.notes])

    def draw(width: int | None, color: bool) -> str:
        from astra.report.money import render_rent  # noqa: PLC0415

        return render_rent(report, width, color, brief=args.quiet, full=args.verbose)

    return Answer(draw, report.to_json)


def _search(model: str, arguments: dict[str, Any]) -> RentReport:
    from astra.cli import progress  # noqa: PLC0415
    from astra.search import rent  # noqa: PLC0415

    if not progress.watched():
        return rent.rent(model, **arguments)
    with progress.SearchProgress(sys.stderr) as bar:
        return rent.rent(model, **arguments, progress=bar)
