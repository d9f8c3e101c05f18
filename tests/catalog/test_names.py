"""Names in the files users bring: clusters, prices, models."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from astra.catalog.clusters import read_cluster
from astra.catalog.models import model
from astra.catalog.prices import COLUMNS, read_prices
from astra.catalog.prices_import import SKYPILOT, import_prices
from astra.errors import InputError
from tests.export.hostile import HOSTILE

HIDDEN = tuple(name for name in HOSTILE if not name.isprintable() and name.encode("utf-8", "replace").decode() == name)
CLUSTER: dict[str, Any] = {
    "pool": [
        {"gpu": "mine", "node": "box", "count": 8, "name": "left", "zone": "here", "usd_per_gpu_h": 1.0,
         "price_source": "an offer"},
        {"gpu": "A100-SXM4-80GB", "count": 8, "name": "right", "zone": "there"},
    ],
    "gpu": [{"name": "mine", "like": "H100", "vendor": "us", "arch": "new", "relative": "H100-SXM5-80GB",
             "aliases": ["ours"], "source": "a sheet", "date": "2026-01-01", "notes": "none"}],
    "node": [{"name": "box", "like": "dgx-h100", "gpu": "mine", "provider": "own", "aliases": ["chest"],
              "default_for": ["mine"], "source": "a sheet", "date": "2026-01-01",
              "links": [{"reach": 8, "kind": "pcie", "bytes_per_s": 1e9, "latency_s": 1e-6, "source": "a sheet"}]}],
    "between": {"kind": "tcp", "bytes_per_s": 1e9, "latency_s": 1e-5, "source": "a sheet"},
    "link": [{"zones": ["here", "there"], "kind": "tcp", "bytes_per_s": 1e9, "latency_s": 1e-5, "source": "a sheet"}],
}  # fmt: skip
WORDS = ("kind",)  # refused as unknown words


def toml(tables: dict[str, Any]) -> str:
    """Tables of tables as TOML."""
    lines = []
    for key, value in tables.items():
        for table in value if isinstance(value, list) else [value]:
            lines += [f"[[{key}]]" if isinstance(value, list) else f"[{key}]"]
            lines += [f"{name} = {_inline(inner)}" for name, inner in table.items()]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every text."""
    if isinstance(value, str):
        return [] if path[-1] in WORDS else [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in places(item, (*path, key))]


def changed(path: tuple[Any, ...], text: str) -> dict[str, Any]:
    """The cluster with another text at one place."""
    found: dict[str, Any] = json.loads(json.dumps(CLUSTER))
    inside: Any = found
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = text
    return found


def test_the_cluster_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text(toml(CLUSTER), encoding="utf-8")
    assert [pool.name for pool in read_cluster(path).pools] == ["left", "right"]


@pytest.mark.parametrize("place", places(CLUSTER), ids=lambda path: ".".join(map(str, path)))
def test_no_text_of_a_cluster_file_hides_anything(tmp_path: Path, place: tuple[Any, ...]) -> None:
    path = tmp_path / "bad.toml"
    for name in HIDDEN:
        path.write_text(toml(changed(place, name)), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            read_cluster(path)
        assert str(path) in caught.value.where
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("column", ["provider", "instance", "region", "source", "notes"])
def test_no_cell_of_a_price_file_hides_anything(tmp_path: Path, column: str) -> None:
    cells = dict.fromkeys(COLUMNS, "x") | {
        "gpu": "H100-SXM5-80GB", "gpus": "8", "market": "spot", "usd_per_gpu_h": "1", "currency": "USD",
        "date": "2026-01-01",
    }  # fmt: skip
    path = tmp_path / "prices.csv"
    for name in HIDDEN:
        _write(path, COLUMNS, cells | {column: f"a{name}b"})
        with pytest.raises(InputError) as caught:
            read_prices(path)
        assert "\0" in name or f"column {column}" in caught.value.where
        with pytest.raises(InputError):
            import_prices(path)


@pytest.mark.parametrize("column", ["InstanceType", "Region"])
def test_no_cell_of_an_imported_file_hides_anything(tmp_path: Path, column: str) -> None:
    cells = dict.fromkeys(SKYPILOT, "x") | {
        "AcceleratorName": "H100", "AcceleratorCount": "8", "Price": "8", "SpotPrice": "4",
    }  # fmt: skip
    path = tmp_path / "aws.csv"
    for name in HIDDEN:
        _write(path, SKYPILOT, cells | {column: f"a{name}b"})
        with pytest.raises(InputError, match=f"column {column}|binary"):
            import_prices(path)
    _write(path, SKYPILOT, cells)
    assert import_prices(path).prices
    with pytest.raises(InputError, match="provider"):
        import_prices(path, provider="a\nb")


def _write(path: Path, columns: tuple[str, ...], cells: dict[str, str]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    hole = "no such text"  # Python 3.10 writes no zero byte
    writer.writerows([columns, [cells[column].replace("\0", hole) for column in columns]])
    path.write_bytes(out.getvalue().replace(hole, "\0").encode())


SHAPE = {"layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "kv_heads": 4, "head_dim": 16, "vocab": 100, "max_seq": 64}
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("field", ["name", "source", "date"])
def test_no_text_of_a_model_hides_anything(tmp_path: Path, field: str) -> None:
    path = tmp_path / "model.toml"
    for name in HIDDEN:
        path.write_text("\n".join(f"{key} = {_inline(value)}" for key, value in {**SHAPE, field: name}.items()))
        with pytest.raises(InputError) as caught:
            model(str(path))
        assert f"model.{field}" in caught.value.where


@pytest.mark.parametrize("name", HOSTILE)
def test_files_and_folders_of_any_name_make_models_with_names(tmp_path: Path, name: str) -> None:
    if name == "\ud800":  # neither JSON nor a path can hold it
        return
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, "_name_or_path": name}), encoding="utf-8")
    found = [model(str(config))]
    if not {"/", "\0"} & set(name):
        folder = tmp_path / f"x{name}y"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
        (folder / f"{name}.toml").write_text("\n".join(f"{key} = {value}" for key, value in SHAPE.items()))
        found += [model(str(folder)), model(os.fspath(folder / f"{name}.toml"))]
    for made in found:
        assert made.name.isprintable()
        assert made.source.isprintable()
        assert made.name == made.name.strip() != ""
        assert len(made.name) <= 80
