"""Write ``benchmarks/recipes.csv`` from a survey of vendors' recipes: ``python -m tools.restate_recipes RECIPES.csv``.

Each recipe as the words of a strategy; what a strategy has no word for is named in ``unsaid``.
"""

from __future__ import annotations

import csv
import sys
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TARGET: Final = Path(__file__).parents[1] / "benchmarks" / "recipes.csv"
SOURCE: Final = "# NVIDIA's pretraining recipes, restated from Megatron-Bridge 0.6.2 (Apache-2.0), perf_recipes."
COLUMNS: Final = ("recipe", "model", "gpus", "gpu", "precision", "batch", "seq", "strategy", "unsaid")
PRECISIONS: Final = {"fp8mx": "mxfp8", "fp8cs": "fp8-tensorwise", "fp8sc": "fp8-blockwise"}
# What the recipe that a performance recipe starts from sets, where the latter says nothing (recipes/, same release):
# deepseek_v3.py ends with apply_flex_dispatcher_backend("hybridep"), gpt_oss.py keeps the all-to-all.
STARTS_FROM: Final = {"deepseek_v3": "hybridep"}
USUAL_SEQ: Final = "4096"  # of the recipes that name none
Row = Mapping[str, str]


def words(row: Row) -> tuple[str, list[str]]:
    """The strategy of a recipe, and what it says that a strategy cannot."""
    unsaid: list[str] = []
    degrees = [f"{name}{row[name]}" for name in ("tp", "pp", "vp", "cp", "ep", "etp", "mbs") if row[name]]
    said = [*degrees, *["sp"] * (row["sp"] == "True" and int(row["tp"]) > 1)]
    said.append("zero3" if row["megatron_fsdp"] == "True" else "zero1")
    said += _recompute(row, unsaid)
    if row["megatron_fsdp"] == "True" and row["cpu_offload_layers"]:
        said.append(f"offload=activations:{row['cpu_offload_layers']}")
    if row["fine_grained_offload"] == "True":
        unsaid.append(f"offload of {', '.join(literal_eval(row['offload_modules']))}")
    if int(row["ep"] or 1) > 1:
        silent = STARTS_FROM.get(row["model"], "alltoall") if not row["dispatcher"] else "alltoall"
        backend = row["flex_backend"] if row["dispatcher"] == "flex" else silent
        if backend not in ("alltoall", "hybridep", "deepep"):
            unsaid.append(f"dispatcher {backend}")
            backend = "hybridep"
        said.append(f"dispatch={backend}")
    graphs = f"{row['cuda_graph_impl']} {row['cuda_graph_scope']}"
    whole = row["cuda_graph_impl"] != "none" and "full_iteration" in graphs
    partial = "transformer_engine" in graphs
    if partial and "moe" in literal_eval(row["recompute_modules"] or "[]"):  # graphs=partial takes the router too
        unsaid.append("graphs of what is not recomputed")
        partial = False
    said.append(f"graphs={'full' if whole else 'partial' if partial else 'none'}")
    said.append(f"overlap={','.join(_overlap(row)) or 'none'}")
    return " ".join(said), unsaid


def _recompute(row: Row, unsaid: list[str]) -> list[str]:
    modules = literal_eval(row["recompute_modules"] or "[]")
    if row["recompute_granularity"] == "full":
        return [f"recompute=full:{row['recompute_method']}:{row['recompute_num_layers']}"]
    del unsaid
    return [f"recompute=selective:{','.join(modules)}"] if modules else ["recompute=none"]


def _overlap(row: Row) -> list[str]:
    grad = row["overlap_grad_reduce"] != "False"
    switched = {
        "grad": grad,
        "param": grad and row["overlap_param_gather"] != "False",
        "tp": row["tp_comm_overlap"] == "True" and int(row["tp"]) > 1,
        "p2p": int(row["vp"] or 1) > 1,
        "ep": row["ep_overlap"] == "True" and int(row["ep"] or 1) > 1,
    }
    return [name for name, on in switched.items() if on]


def main(arguments: list[str]) -> int:
    """Write the table."""
    with open(arguments[0], encoding="utf-8") as survey, TARGET.open("w", encoding="utf-8") as page:
        page.write(SOURCE + "\n")
        writer = csv.writer(page, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in csv.DictReader(survey):
            text, unsaid = words(row)
            model = row["model"].replace("_", "-").replace("llama3", "llama-3")
            precision = PRECISIONS.get(row["precision"], row["precision"])
            writer.writerow((row["recipe"].removesuffix("_config"), model, row["n_gpus"], row["gpu"].upper(), precision,
                             row["gbs"], row["seq"] or USUAL_SEQ, text, "; ".join(unsaid)))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
