"""``astra catalog`` on the real catalog."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from astra.cli.catalog import SECTIONS
from tests.cli.conftest import Shown

Command = Callable[..., Shown]


@pytest.mark.parametrize("kind", SECTIONS)
@pytest.mark.parametrize("width", ["80", "150"])
def test_every_kind_is_listed(astra_command: Command, kind: str, width: str) -> None:
    shown = astra_command("catalog", kind, "--width", width)
    assert shown.code == 0
    assert max(len(line) for line in shown.out.splitlines()) <= int(width)
    record = astra_command("catalog", kind, "--json").record
    assert record["kind"] == kind
    assert record["schema"] == "astra.catalog/1"
    assert len(record["entries"]) > (20 if kind != "runtimes" else 5)
    assert all(entry["source"] and entry["date"] for entry in record["entries"])


def test_one_entry_by_alias(astra_command: Command) -> None:
    shown = astra_command("catalog", "gpus", "h100")
    assert "H100-SXM5-80GB" in shown.out
    assert "flops_per_s.bf16" in shown.out
    assert "source" in shown.out


def test_a_part_of_a_name_narrows_the_list(astra_command: Command) -> None:
    every = astra_command("catalog", "nodes", "--json").record["entries"]
    some = astra_command("catalog", "nodes", "azure", "--json").record["entries"]
    assert 0 < len(some) < len(every)
    assert all("azure" in entry["name"] for entry in some)


@pytest.mark.parametrize(("kind", "name", "near"), [("gpus", "H1000", "H100"), ("models", "lamma-2-7b", "llama-2-7b")])
def test_an_unknown_name_suggests_the_nearest(astra_command: Command, kind: str, name: str, near: str) -> None:
    shown = astra_command("catalog", kind, name)
    assert shown.code == 2
    assert near.lower() in shown.err.lower()


@pytest.mark.parametrize("name", ["", "   ", "\x1b[31m", "🚀"])
def test_odd_names(astra_command: Command, name: str) -> None:
    assert astra_command("catalog", "gpus", name).code == 2
