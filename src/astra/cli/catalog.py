"""``astra catalog``: what is known by name, with the source and date of every entry."""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from astra.cli import options
from astra.cli.output import VerbAnswer
from astra.errors import UnknownName, fold
from astra.units import GIB, show_count

if TYPE_CHECKING:
    from astra.catalog.prices import Price
    from astra.spec.cluster import Device, NodeType
    from astra.spec.model import ModelSpec
    from astra.spec.runtime import Runtime

HELP: Final = "the GPUs, node types, models, runtimes and prices known by name"
DESCRIPTION: Final = (
    "List what Astra knows by name; give a NAME for one entry in full, or a part of one to narrow the list."
)
EPILOG: Final = """\
examples:
  astra catalog gpus
  astra catalog gpus h100
  astra catalog models qwen --json
"""
CATALOG_SCHEMA: Final = "astra.catalog/1"

Row = list[str]
Setting = Literal["left", "right", "wrap", "cut"]


class Section(NamedTuple):
    """One kind of entry: where it is read from and how a row of it is drawn."""

    title: str
    columns: tuple[tuple[str, Setting, int], ...]  # title, setting, dropped on pages narrower than
    home: str  # module and function of the catalog
    row: Callable[[Any], Row]
    names: Callable[[Any], tuple[str, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("kind", metavar="KIND", type=_kind, help=f"one of {', '.join(SECTIONS)}")
    parser.add_argument("name", metavar="NAME", nargs="?", help="one entry, or a part of a name")
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Read the entries, and keep the answer ready to be drawn."""
    section, exact = SECTIONS[args.kind], False
    module, function = section.home.split(".")
    entries = list(getattr(importlib.import_module(f"astra.catalog.{module}"), function)())
    if args.name is not None:
        entries, exact = _chosen(entries, args.name, args.kind, section)

    def draw(width: int | None, color: bool) -> str:
        if exact and len(entries) == 1:
            import msgspec  # noqa: PLC0415

            from astra.report.drawing import render_entry  # noqa: PLC0415

            plain = msgspec.to_builtins(entries[0])
            return render_entry(section.names(entries[0])[0], plain, width=width, color=color)
        remarks = [f"astra catalog {args.kind} NAME shows an entry in full; --json shows all of them."]
        return listed(args.kind, entries, remarks, width, color)

    return VerbAnswer(draw, lambda: written({"schema": CATALOG_SCHEMA, "kind": args.kind, "entries": entries}))


def written(content: dict[str, Any]) -> str:
    """Records of the catalog as indented JSON."""
    import msgspec  # noqa: PLC0415

    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()


def listed(kind: str, entries: list[Any], remarks: list[str], width: int | None, color: bool) -> str:
    """Entries of a kind as a table."""
    from astra.report.drawing import ListingColumn, render_listing  # noqa: PLC0415

    section = SECTIONS[kind]
    columns, rows = [ListingColumn(*column) for column in section.columns], [section.row(entry) for entry in entries]
    return render_listing(section.title, columns, rows, remarks=remarks, width=width, color=color)


def _kind(text: str) -> str:
    if text not in SECTIONS:
        raise UnknownName("astra catalog", text, SECTIONS, fix=f"The kinds are {', '.join(SECTIONS)}.")
    return text


def _chosen(entries: list[Any], name: str, kind: str, section: Section) -> tuple[list[Any], bool]:
    """The entry of that name, or else those whose name contains it."""
    wanted = fold(name)
    exact = [entry for entry in entries if wanted in {fold(known) for known in section.names(entry)}]
    if exact:
        return exact, True
    close = [entry for entry in entries if wanted and any(wanted in fold(known) for known in section.names(entry))]
    if not close:
        known = [label for entry in entries for label in section.names(entry)]
        raise UnknownName(f"astra catalog {kind}", name, known, fix=f"See astra catalog {kind}.")
    return close, False


def _gpu_row(gpu: Device) -> Row:
    bf16 = gpu.flops_per_s.get("bf16")
    peaks = [gpu.flops_per_s.get("fp16", 0.0) if bf16 is None else bf16, gpu.flops_per_s.get("fp8")]
    shown = [f"{peak / 1e12:,.0f}" if peak else "-" for peak in peaks]
    return [
        gpu.name,
        f"{gpu.memory_bytes / GIB:.1f}",
        f"{gpu.memory_bytes_per_s / 1e9:,.0f}",
        shown[0] if bf16 is not None else f"fp16 {shown[0]}",
        shown[1],
        ", ".join(gpu.aliases[:2]),
        gpu.date,
        gpu.source,
    ]


def _node_row(node: NodeType) -> Row:
    reaches = ("any" if link.reach >= 1_000_000 else f"{link.reach:,}" for link in node.links)
    rates = (f"{link.kind} {link.bytes_per_s / 1e9:.3g}" for link in node.links)
    links = map(": ".join, zip(reaches, rates, strict=True))
    return [node.name, node.gpu, str(node.gpus), ", ".join(links), node.date, node.source]


def _model_row(model: ModelSpec) -> Row:
    from astra import api  # noqa: PLC0415

    parameters = api.describe_model(model).parameters
    moe = f"{model.moe.experts} x {model.moe.ffn:,}, top {model.moe.topk}" if model.moe else "-"
    sizes = [show_count(parameters["total"]), show_count(parameters["active"])]
    shape = [str(model.layers), f"{model.hidden:,}", f"{model.heads}/{model.kv_heads}", moe]
    return [model.name, *sizes, *shape, model.date, model.source]


def _runtime_row(runtime: Runtime) -> Row:
    zero = ", ".join(map(str, runtime.can.zero))
    fitted = Counter(runtime.fitted.values())
    fits = "; ".join((f"{fitted.total()} in all", *(f"{count} on {on}" for on, count in sorted(fitted.items()))))
    words = [runtime.name, runtime.title, ", ".join(runtime.can.schedules), zero, fits]
    return [*words, runtime.date, runtime.source]


def _price_row(price: Price) -> Row:
    offer = [price.provider, price.instance, price.gpu, str(price.gpus), price.region]
    return [*offer, price.market, f"{price.usd_per_gpu_h:.2f}", price.date.isoformat(), price.source]


def _names(entry: Any) -> tuple[str, ...]:
    return (entry.name, *entry.aliases)


_DATE: Final[tuple[str, Setting, int]] = ("date", "left", 100)
_SOURCE: Final[tuple[str, Setting, int]] = ("source", "cut", 76)
SECTIONS: Final[dict[str, Section]] = {
    "gpus": Section(
        "GPUs: memory GiB and GB/s, dense TFLOP/s",
        (("name", "left", 0), ("GiB", "right", 0), ("GB/s", "right", 0), ("bf16", "right", 0),
         ("fp8", "right", 0), ("also", "left", 130), _DATE, _SOURCE),
        "hardware.devices", _gpu_row, _names,
    ),
    "nodes": Section(
        "Node types: links as GPUs joined, kind and GB/s per GPU, one way",
        (("name", "left", 0), ("GPU", "left", 0), ("", "right", 0), ("links", "wrap", 0),
         _DATE, ("source", "cut", 150)),
        "hardware.node_types", _node_row, _names,
    ),
    "models": Section(
        "Models",
        (("name", "left", 0), ("total", "right", 0), ("active", "right", 0), ("layers", "right", 0),
         ("hidden", "right", 0), ("heads/kv", "right", 0), ("experts", "left", 110), _DATE, _SOURCE),
        "models.models", _model_row, _names,
    ),
    "runtimes": Section(
        "Runtimes: training frameworks to plan with (--runtime)",
        (("name", "left", 0), ("framework", "wrap", 0), ("schedules", "wrap", 76), ("zero", "left", 76),
         ("fitted numbers", "wrap", 100),         _DATE, ("source", "cut", 150)),
        "runtimes.runtimes", _runtime_row, lambda runtime: (runtime.name,),
    ),
    "prices": Section(
        "Prices: dollars per GPU and hour",
        (("provider", "cut", 0), ("instance", "cut", 0), ("GPU", "left", 0), ("", "right", 0), ("region", "cut", 130),
         ("market", "left", 0), ("$/h", "right", 0), ("date", "left", 0), ("source", "cut", 110)),
        "prices.prices", _price_row, lambda price: (f"{price.provider} {price.instance}", price.gpu),
    ),
}  # fmt: skip
