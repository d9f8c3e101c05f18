"""NVIDIA's tuned recipes against Astra's plans, both as this cost model predicts them.

``python benchmarks/experts.py [--save]``. For each pretraining recipe that Astra carries (Megatron-Bridge 0.6.2), the
recipe's own strategy is estimated, and a plan is searched for the same model, GPUs, batch and precision. The ratio says
what the planner believes it can gain over an expert's plan; nobody ran both.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path

from astra.validate.recipes import recipes

import astra
from astra.errors import AstraError

SEQ = {"llama": 8192}  # of Megatron-Bridge's performance tables; 4,096 for the others
RUNTIME = "megatron-bridge"


def compare(recipe: dict[str, str]) -> dict[str, object] | None:
    """Both step times; None where the recipe cannot be costed as it stands."""
    seq = next((length for name, length in SEQ.items() if recipe["model"].startswith(name)), 4096)
    degrees = " ".join(f"{axis}{recipe[axis]}" for axis in ("tp", "pp", "cp", "ep", "etp") if recipe[axis])
    virtual = f" vp{recipe['vp']}" if int(recipe["vp"] or 1) > 1 else ""
    sp = " sp" if int(recipe["tp"]) > 1 else ""
    text = f"{degrees}{virtual} mbs{recipe['mbs']}{sp} zero{recipe['zero']} recompute={recipe['recompute']}"
    asked = {
        "gpus": f"{recipe['gpus']}x{recipe['gpu'].upper()}",
        "batch": int(recipe["batch"]),
        "seq": seq,
        "precision": "bf16" if recipe["precision"] == "bf16" else "fp8",
        "runtime": RUNTIME,
    }
    try:
        own = astra.estimate(recipe["model"], strategy=text, **asked)
        best = astra.plan(recipe["model"], **asked).best
    except AstraError as error:
        print(f"{recipe['model']:18} {asked['gpus']:>10} left out: {error}")
        return None
    ratio = own.step_s / best.estimate.step_s
    note = "" if own.fits else "recipe refused by memory; "
    print(
        f"{recipe['model']:18} {asked['gpus']:>10} {recipe['precision']:6} "
        f"{own.step_s:8.3f} s {best.estimate.step_s:8.3f} s {ratio:6.3f}  {note}{best.strategy}"
    )
    return {**asked, "model": recipe["model"], "recipe": text, "recipe_s": own.step_s, "recipe_fits": own.fits,
            "plan": best.strategy, "plan_s": best.estimate.step_s, "ratio": ratio}  # fmt: skip


def main() -> None:
    """Print, and keep with --save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    args = parser.parse_args()
    print(f"{'model':18} {'GPUs':>10} {'':6} {'recipe':>10} {'plan':>10}  ratio  plan")
    rows = [row for row in map(compare, recipes()) if row is not None]
    fitting = [float(str(row["ratio"])) for row in rows if row["recipe_fits"]]
    print(
        f"{len(rows)} recipes, {len(rows) - len(fitting)} of which do not fit as written here (they offload "
        f"activations or recompute parts that a strategy has no words for). Of the {len(fitting)} others "
        f"{sum(ratio < 1.02 for ratio in fitting)} are within 2% of the best plan, which is predicted "
        f"{statistics.median(fitting):.3f} times as fast in the median, {max(fitting):.2f} at most"
    )
    if args.save:
        date = datetime.datetime.now(tz=datetime.timezone.utc).date()
        target = Path(__file__).parent / "results" / f"{date}_experts.json"
        target.write_text(json.dumps({"date": f"{date}", "version": astra.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
