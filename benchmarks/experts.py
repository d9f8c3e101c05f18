"""NVIDIA's tuned recipes against Astra's plans, both as this cost model predicts them.

``python benchmarks/experts.py [--save] [--only TEXT]``. Each recipe of ``benchmarks/recipes.csv`` is estimated as its
own words say, and a plan is searched for the same model, GPUs, batch and precision, ranked by the upper end of its
interval. Both may use all of the memory, as recipes do. The ratio says what the planner believes it can gain over an
expert's plan; what the plan does differently stands beside it, with the published runs of its kind. Nobody ran both.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import statistics
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import astra
from astra.errors import AstraError
from astra.spec.strategy import parse_strategy

RECIPES = Path(__file__).parent / "recipes.csv"
REASONS = Path(__file__).parent / "reasons.csv"
RUNTIME = "megatron-bridge"
COMPARED = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "zero", "recompute", "modules", "offload", "offload_layers",
            "dispatch", "graphs", "overlap", "schedule")  # fmt: skip


def recipes() -> list[dict[str, str]]:
    """Every recipe, by column name."""
    lines = [line for line in RECIPES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def reason_for(recipe: str) -> str:
    """Why a recipe is left out or does not fit, as written down; empty if nobody has."""
    rows = csv.DictReader(REASONS.read_text(encoding="utf-8").splitlines())
    return next((row["why"] for row in rows if fnmatch(recipe, row["recipes"])), "")


def compare(recipe: dict[str, str]) -> dict[str, Any]:
    """Both step times, what differs and what it rests on; or why the recipe is left out."""
    asked: dict[str, Any] = {
        "gpus": f"{recipe['gpus']}x{recipe['gpu']}", "batch": int(recipe["batch"]), "seq": int(recipe["seq"]),
        "precision": recipe["precision"], "runtime": RUNTIME, "headroom": 0.0,
    }  # fmt: skip
    told = {"recipe": recipe["recipe"], "strategy": recipe["strategy"], "unsaid": recipe["unsaid"]}
    try:
        own = astra.estimate(recipe["model"], strategy=recipe["strategy"], **asked)
        found = astra.plan(recipe["model"], **asked)
    except AstraError as error:
        return told | {"left_out": str(error), "why": reason_for(recipe["recipe"])}
    best = found.best.estimate
    theirs, ours = parse_strategy(own.strategy), parse_strategy(best.strategy)
    changed = [f"{name} {getattr(theirs, name)} -> {getattr(ours, name)}" for name in COMPARED
               if getattr(theirs, name) != getattr(ours, name)]  # fmt: skip
    why = "" if own.fits and own.legal else reason_for(recipe["recipe"])
    return told | {
        "why": why, "legal": own.legal, "violations": own.violations, "fits": own.fits, "recipe_s": own.step_s,
        "recipe_peak_gib": own.peak_reserved_gib, "usable_gib": own.memory_usable_gib, "plan": best.strategy,
        "plan_s": best.step_s, "plan_upper_s": best.step_s_range.high, "recipe_upper_s": own.step_s_range.high,
        "ratio": own.step_s / best.step_s, "changed": changed, "evidence": best.evidence, "warnings": best.warnings,
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """One line, or two."""
    if "left_out" in row:
        print(f"{row['recipe']}: left out: {row['left_out'][:160]} {row['why']}")
        return
    legal = "" if row["legal"] else f"NOT LEGAL: {'; '.join(row['violations'])} "
    room = "" if row["fits"] else f"DOES NOT FIT: {row['recipe_peak_gib']:.0f} of {row['usable_gib']:.0f} GiB "
    why = f"without its {row['unsaid']} " if row["unsaid"] else ""
    why += f"({row['why']}) " if row["why"] else ""
    print(
        f"{row['recipe']}: {row['recipe_s']:.3f} s, plan {row['plan_s']:.3f} s, {row['ratio']:.3f} {legal}{room}{why}"
    )
    print(f"    {'; '.join(row['changed'])} [{row['evidence']}]")


def summary(rows: list[dict[str, Any]]) -> str:
    """The counts of the page."""
    costed = [row for row in rows if "left_out" not in row]
    fitting = [row for row in costed if row["fits"] and row["legal"]]
    ratios = [row["ratio"] for row in fitting]
    unexplained = sum(not (row.get("fits") and row.get("legal")) and not row["why"] for row in rows)
    better = sum(row["plan_upper_s"] <= row["recipe_upper_s"] * (1 + 1e-9) for row in fitting)
    return (
        f"{len(rows)} recipes: {len(rows) - len(costed)} left out, "
        f"{sum(not row['legal'] for row in costed)} not legal, "
        f"{sum(not row['fits'] for row in costed)} do not fit, {unexplained} of all these without a written reason. "
        f"Of the {len(fitting)} others the plan's upper end is no "
        f"worse in {better}; it is predicted {statistics.median(ratios):.3f} times as fast in the median, "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )


def main() -> None:
    """Print, and keep with --save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--only", default="", help="recipes with this in their name")
    args = parser.parse_args()
    rows = []
    for recipe in recipes():
        if args.only in recipe["recipe"]:
            rows.append(compare(recipe))
            show(rows[-1])
    print(summary(rows))
    if args.save:
        date = datetime.datetime.now(tz=datetime.timezone.utc).date()
        target = Path(__file__).parent / "results" / f"{date}_experts.json"
        target.write_text(json.dumps({"date": f"{date}", "version": astra.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
