"""NVIDIA's tuned recipes against Astra's plans, both as this cost model predicts them.

``python benchmarks/experts.py [--save] [--only TEXT]``. Each recipe of ``benchmarks/recipes.csv`` is estimated as its
own words say, and a plan is searched for the same model, GPUs, batch and precision, ranked by the upper end of its
interval. Both may use all of the memory, as recipes do. The ratio says what the planner believes it can gain over an
expert's plan; what the plan does differently stands beside it, each word with the published runs and NVIDIA's other
recipes that have it (with experts or without, in as many bits, on that generation of GPUs). Nobody ran both.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import astra
from astra.catalog.hardware import device
from astra.catalog.models import model
from astra.errors import AstraError
from astra.evidence.bars import UNEQUAL
from astra.evidence.kinds import bits_of
from astra.search.world import World
from astra.spec.strategy import Strategy, parse_strategy
from astra.validate.runs import Run
from astra.validate.table import published

RECIPES = Path(__file__).parent / "recipes.csv"
REASONS = Path(__file__).parent / "reasons.csv"
RUNTIME = "megatron-bridge"
COMPARED = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "zero", "recompute", "modules", "offload", "offload_layers",
            "dispatch", "graphs", "overlap", "schedule")  # fmt: skip
DEGREES = ("tp", "pp", "vp", "cp", "ep", "mbs", "zero", "offload_layers")
UNKNOWN = ("R100",)  # a GPU that the catalog does not have (reasons.csv)
BETTER = 0.03  # of a step, which a value nobody has may bring
NOTICED = 1.05  # gains below that are within the error of any prediction
LARGE = 1.5


def recipes() -> list[dict[str, str]]:
    """Every recipe, by column name."""
    lines = [line for line in RECIPES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def reason_for(recipe: str) -> str:
    """Why a recipe is left out or does not fit, as written down; empty if nobody has."""
    rows = csv.DictReader(REASONS.read_text(encoding="utf-8").splitlines())
    return next((row["why"] for row in rows if fnmatch(recipe, row["recipes"])), "")


Words = Counter[tuple[bool, str, str, str]]  # experts, bits, generation, word


def words_of(strategy: Strategy) -> Iterator[str]:
    """What a strategy does, a word for each thing; of what is hidden one for each kind of traffic."""
    for name in COMPARED:
        value = getattr(strategy, name)
        if name == "overlap":
            yield from (f"overlap={each}" for each in value)
        else:
            yield f"{name}={','.join(value)}" if isinstance(value, tuple) else f"{name}={value}"


@cache
def in_runs() -> Words:
    """How many published runs of Megatron's family have each word."""
    found: Words = Counter()
    for run in (row for row in published() if isinstance(row, Run)):
        world = World.of(run.request)
        if world.runtime.framework == "megatron" and run.measured.step_s is not None and not world.several:
            sort = world.model.moe is not None, bits_of(world.workload.precision), world.job.pool.device.generation
            found.update((*sort, word) for word in words_of(run.strategy))
    return found


@cache
def in_recipes() -> Words:
    """How many recipes have each word."""
    found: Words = Counter()
    for recipe in recipes():
        if recipe["gpu"] not in UNKNOWN:
            found.update((*sort_of(recipe), word) for word in words_of(parse_strategy(recipe["strategy"])))
    return found


def sort_of(recipe: dict[str, str]) -> tuple[bool, str, str]:
    """Which runs and recipes are like one."""
    return model(recipe["model"]).moe is not None, bits_of(recipe["precision"]), device(recipe["gpu"]).generation


def rests_on(recipe: dict[str, str], theirs: Strategy, ours: Strategy) -> dict[str, tuple[int, int]]:
    """What a plan does and the recipe does not: published runs and other recipes with each word."""
    new, sort = [word for word in words_of(ours) if word not in {*words_of(theirs)}], sort_of(recipe)
    return {word: (in_runs()[(*sort, word)], in_recipes()[(*sort, word)]) for word in new}


def known_values(recipe: dict[str, str], theirs: Strategy) -> list[str]:
    """Restrictions to the degrees and micro-batches that such a run, such a recipe or this one has."""
    found = {name: {str(getattr(theirs, name))} for name in DEGREES}
    sort = sort_of(recipe)
    for *like, word in (*in_runs(), *in_recipes()):
        name, _, value = word.partition("=")
        if name in found and tuple(like) == sort:
            found[name].add(value)
    return [f"{name}={','.join(sorted(values, key=int))}" for name, values in found.items()]


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
    new = rests_on(recipe, theirs, ours)
    nobody = [word for word, counts in new.items() if not any(counts)]
    known = ratio = own.step_s / best.step_s
    if nobody and ratio > NOTICED:  # what is gained by values that somebody has
        plain = astra.plan(recipe["model"], **asked, fix=known_values(recipe, theirs), top=1).best.estimate
        known = own.step_s / plain.step_s
    why = "" if own.fits and own.legal else reason_for(recipe["recipe"])
    return told | {
        "why": why, "legal": own.legal, "violations": own.violations, "fits": own.fits, "recipe_s": own.step_s,
        "recipe_peak_gib": own.peak_reserved_gib, "usable_gib": own.memory_usable_gib, "plan": best.strategy,
        "plan_s": best.step_s, "plan_upper_s": best.step_s_range.high, "recipe_upper_s": own.step_s_range.high,
        "ratio": ratio, "known_ratio": known, "changed": changed, "evidence": best.evidence, "warnings": best.warnings,
        "rests_on": {word: {"runs": runs, "recipes": others} for word, (runs, others) in new.items()},
        "nobody": nobody,
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
    words = (f"{word} {each['runs']}+{each['recipes']}" for word, each in row["rests_on"].items())
    alone = f"; without what nobody has {row['known_ratio']:.3f}" if row["known_ratio"] != row["ratio"] else ""
    print(f"    runs + recipes with what is new: {', '.join(words) or 'nothing is'}{alone}")


def summary(rows: list[dict[str, Any]]) -> str:
    """The counts of the page."""
    costed = [row for row in rows if "left_out" not in row]
    fitting = [row for row in costed if row["fits"] and row["legal"]]
    ratios = [row["ratio"] for row in fitting]
    unexplained = sum(not (row.get("fits") and row.get("legal")) and not row["why"] for row in rows)
    better = sum(row["plan_upper_s"] <= row["recipe_upper_s"] * (1 + 1e-9) for row in fitting)
    tied = sum(row["plan_upper_s"] <= row["recipe_upper_s"] * (1 + UNEQUAL) for row in fitting) - better
    large = [row for row in fitting if row["ratio"] > LARGE]
    back = sum(row["plan_upper_s"] >= row["recipe_s"] for row in large)
    daring = [row for row in fitting if row["nobody"] and row["ratio"] > NOTICED]
    rests = [row for row in daring if row["ratio"] > (1 + BETTER) * row["known_ratio"]]
    counted = Counter(word for row in daring for word in row["nobody"]).most_common()
    words = ", ".join(f"{word} ({times})" for word, times in counted) or "none"
    return (
        f"{len(rows)} recipes: {len(rows) - len(costed)} left out, "
        f"{sum(not row['legal'] for row in costed)} not legal, "
        f"{sum(not row['fits'] for row in costed)} do not fit, {unexplained} of all these without a written reason. "
        f"Of the {len(fitting)} others the plan's upper end is no "
        f"worse in {better} and a tie, to {UNEQUAL:.0%}, in {tied}; "
        f"it is predicted {statistics.median(ratios):.3f} times as fast in the median, "
        f"{min(ratios):.2f} to {max(ratios):.2f}, more than {LARGE} times in {len(large)}, "
        f"of which the upper end of {back} "
        f"reaches back to what the recipe is expected to take. "
        f"{len(daring)} plans that are more than {NOTICED - 1:.0%} faster have "
        f"a word that no such run and no such recipe has: {words}. With degrees and micro-batches that one "
        f"has all but {len(rests)} of these plans gain as much, to {BETTER:.0%}"
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
    if not rows:
        parser.error(f"no recipe of {RECIPES.name} has {args.only!r} in its name")
    print(summary(rows))
    if args.save:
        date = datetime.datetime.now(tz=datetime.timezone.utc).date()
        target = Path(__file__).parent / "results" / f"{date}_experts.json"
        target.write_text(json.dumps({"date": f"{date}", "version": astra.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
