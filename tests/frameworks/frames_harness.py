"""Answers of Astra in pandas, polars, a notebook's formatter and as PNG: each question names an answer."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.image
import polars
from IPython.core.formatters import DisplayFormatter

import astra
from astra.spec.request import requested
from astra.study.sweep import read_axes, swept

WORK: dict[str, Any] = {"batch": 64, "seq": 2048}
MAKE = {
    "plan": lambda: astra.plan("llama-2-7b", gpus="8xH100", tokens=1e9, **WORK),
    "front": lambda: astra.plan("llama-2-7b", gpus="32xH100", tokens=1e9, objective="pareto", **WORK),
    "pools": lambda: astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], **WORK),
    "rent": lambda: astra.rent("llama-2-7b", tokens=1e10, gpus="H100", max_gpus=32, **WORK),
    "afford": lambda: astra.afford("llama-3.2-1b", budget=50, gpus="H100", max_gpus=8),
    "sweep": lambda: swept(requested("plan", "llama-2-7b", {"gpus": "8xH100", **WORK}), read_axes(["batch=32,64"])),
}


def plain(value: Any) -> Any:
    """A cell of a frame as JSON holds it; what is missing is None in all of them."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return value.item() if hasattr(value, "item") else value


def seen(name: str) -> dict[str, Any]:
    """What the libraries make of one answer."""
    answer = MAKE[name]()
    one, two, rows = answer.to_pandas(), answer.to_polars(), answer.records()
    shown, _ = DisplayFormatter().format(answer)
    drawn, _ = DisplayFormatter().format(answer.plot())
    with tempfile.TemporaryDirectory() as folder:
        answer.plot().save(Path(folder) / "answer.png")
        pixels = matplotlib.image.imread(Path(folder) / "answer.png")
    return {
        "rows": rows,
        "pandas": [{key: plain(value) for key, value in row.items()} for row in one.to_dict("records")],
        "polars": two.to_dicts(),
        "objects": [column for column, kind in two.schema.items() if kind == polars.Object],
        "numbers": {column: str(kind) for column, kind in one.dtypes.items()},
        "shown": shown,
        "drawn": sorted(drawn),
        "pixels": [*pixels.shape[:2], float(pixels.std())],
        "svg": answer.plot().svg[:400],
    }


def tried(name: str) -> dict[str, Any]:
    """The same, or what went wrong: one that broke off must not end the others."""
    try:
        return seen(name)
    except Exception:
        return {"wrong": traceback.format_exc()[-2500:]}


def main() -> None:
    """Answer until nobody asks."""
    print(json.dumps({name: version(name) for name in ("pandas", "polars", "ipython", "resvg-py")}), flush=True)
    for line in sys.stdin:
        print(json.dumps(tried(json.loads(line)["name"])), flush=True)


main()
