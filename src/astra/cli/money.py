"""Options about prices and restarts, shared by the verbs that speak of money."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from astra.cli import options
from astra.errors import InputError
from astra.units import parse_count

if TYPE_CHECKING:
    from astra.spec.money import Money

OBJECTIVES: Final = ("fastest", "cheapest", "budget", "deadline", "dollars-per-token", "pareto")
MARKETS: Final = ("on-demand", "reserved", "spot")
GOODPUT: Final = ("both", "expected", "off")


def number(flag: str, *, least: float = 0.0, most: float = 1e12, above: bool = False) -> Callable[[str], float]:
    """A reader of plain numbers, such as dollars or hours."""

    def read(text: str) -> float:
        value = parse_count(text.strip().removeprefix("$"))
        value = math.nan if value is None else value
        if not (least < value if above else least <= value) or not value <= most:
            want = f"a number {'above' if above else 'from'} {least:g}{'' if above else f' to {most:g}'}"
            raise InputError(flag, text, want=want)
        return value

    return read


def add_objective(group: argparse._ArgumentGroup) -> None:
    """What is best."""
    group.add_argument("--objective", metavar="NAME", type=options.one_of("--objective", OBJECTIVES),
                       help=f"{', '.join(OBJECTIVES)}")  # fmt: skip
    group.add_argument("--budget", metavar="USD", help="the fastest within this many dollars, such as 400k")
    group.add_argument("--deadline", metavar="TIME", help="the cheapest within this time, such as 14d or 36h")


def add_money(parser: argparse.ArgumentParser) -> None:
    """What a GPU-hour costs, and what interrupts a run."""
    group = parser.add_argument_group("money")
    group.add_argument("--market", metavar="NAME", type=options.one_of("--market", MARKETS), default="on-demand",
                       help=f"{', '.join(MARKETS)} (default on-demand)")  # fmt: skip
    group.add_argument("--providers", metavar="A,B", help="only these (astra catalog prices)")
    group.add_argument("--prices", metavar="FILE", help="a CSV of offers that replace the catalog's")
    group.add_argument("--usd-per-gpu-h", metavar="USD", type=number("--usd-per-gpu-h", most=1000, above=True),
                       help="a price of your own")  # fmt: skip
    group.add_argument("--usd-per-kwh", metavar="USD", type=number("--usd-per-kwh", most=100),
                       help="owned hardware: energy")  # fmt: skip
    group.add_argument("--pue", metavar="N", type=number("--pue", least=1, most=5), default=1.0,
                       help="power of the building over that of the machines (default 1)")  # fmt: skip
    group.add_argument("--watts-per-gpu", metavar="W", type=number("--watts-per-gpu", most=100_000, above=True),
                       help="with its share of the server (default: the GPU's board power)")  # fmt: skip
    group.add_argument("--usd-per-gpu", metavar="USD", type=number("--usd-per-gpu", most=1e9),
                       help="owned hardware: the purchase, with its share of the server")  # fmt: skip
    group.add_argument("--lifetime-years", metavar="N", type=number("--lifetime-years", most=100, above=True),
                       default=4.0, help="over which a purchase is spread (default 4)")  # fmt: skip
    group.add_argument("--goodput", metavar="WORD", type=options.one_of("--goodput", GOODPUT), default="both",
                       help="restarts: show both ideal and expected figures, judge by the expected, or off "
                            "(default both, judged by the ideal)")  # fmt: skip
    group.add_argument("--mtbf-gpu-h", metavar="H", type=number("--mtbf-gpu-h", above=True),
                       help="hours between failures of one GPU (default: published runs)")  # fmt: skip
    group.add_argument("--restart-min", metavar="MIN", type=number("--restart-min", most=1e6),
                       help="from a failure to training again (default 15)")  # fmt: skip
    group.add_argument("--write-mb-s", metavar="MB/S", type=number("--write-mb-s", above=True),
                       help="checkpoint writing per GPU (default 122)")  # fmt: skip
    group.add_argument("--preemptions", metavar="N", type=number("--preemptions", most=1e6),
                       help="of one node in a day (default: 0, or what is published for spot)")  # fmt: skip
    group.add_argument("--idle", metavar="TIME", help="GPUs paid for without training, such as 36h (default none)")
    group.add_argument("--storage", metavar="TB@USD", help="kept for the run, at dollars per TB and month: 50@23")
    group.add_argument("--egress", metavar="TB@USD", help="taken out once, at dollars per TB: 2@90")


def given(args: argparse.Namespace) -> bool:
    """Whether any of the money options differs from its default."""
    usual: dict[str, Any] = {"market": "on-demand", "pue": 1.0, "lifetime_years": 4.0, "goodput": "both"}
    names = (*usual, "providers", "prices", "usd_per_gpu_h", "usd_per_kwh", "watts_per_gpu", "usd_per_gpu",
             "mtbf_gpu_h", "restart_min", "write_mb_s", "preemptions", "idle", "storage", "egress")  # fmt: skip
    return any(getattr(args, name) != usual.get(name) for name in names)


def money(args: argparse.Namespace) -> Money:
    """The options as one record."""
    from astra.search.bill import Money  # noqa: PLC0415
    from astra.search.objectives import seconds_of  # noqa: PLC0415

    names = ("market", "prices", "usd_per_gpu_h", "usd_per_kwh", "pue", "watts_per_gpu", "usd_per_gpu",
             "lifetime_years", "goodput", "mtbf_gpu_h")  # fmt: skip
    providers = tuple(name.strip() for name in (args.providers or "").split(",") if name.strip())
    if args.providers is not None and not providers:
        raise InputError("--providers", args.providers, want="names of providers, such as AWS,Lambda")
    _check_owned(args)
    stored, taken = (_priced(f"--{name}", getattr(args, name)) for name in ("storage", "egress"))
    return Money(
        **{name: getattr(args, name) for name in names},
        providers=providers,
        restart_s=None if args.restart_min is None else args.restart_min * 60,
        write_bytes_per_s_per_gpu=None if args.write_mb_s is None else args.write_mb_s * 1e6,
        preemptions_per_node_day=args.preemptions,
        idle_s=0.0 if args.idle is None else seconds_of(args.idle, "--idle"),
        storage_tb=stored[0],
        usd_per_tb_month=stored[1],
        egress_tb=taken[0],
        usd_per_tb_egress=taken[1],
    )


def _check_owned(args: argparse.Namespace) -> None:
    """What only changes the price of energy or of a purchase is refused without it."""
    energy = {"--pue": args.pue != 1.0, "--watts-per-gpu": args.watts_per_gpu is not None}
    wants = {flag: "--usd-per-kwh" for flag, given in energy.items() if given and args.usd_per_kwh is None}
    if args.lifetime_years != 4.0 and args.usd_per_gpu is None:
        wants["--lifetime-years"] = "--usd-per-gpu"
    for flag, beside in wants.items():
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        raise InputError(flag, f"{value:g}", want=f"{beside} with it: alone it changes no price")


def _priced(flag: str, text: str | None) -> tuple[float, float]:
    """Terabytes and dollars for each, from ``50@23``."""
    if text is None:
        return 0.0, 0.0
    amount, _, usd = text.partition("@")
    try:
        found = float(amount), float(usd.strip().removeprefix("$"))
    except ValueError:
        found = math.nan, math.nan
    if not all(0 <= value <= 1e9 for value in found):
        raise InputError(flag, text, want="terabytes and dollars for each, such as 50@23")
    return found
