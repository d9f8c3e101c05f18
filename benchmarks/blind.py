"""Published runs that no constant and no mechanism was chosen on: predicted today, beside their first prediction.

``python benchmarks/blind.py [first|second|third] [--totals] [--record FILE]``. ``blind/runs.csv`` has 404 runs,
collected after the cost model was written, that its tables do not have, ``blind/runs2.csv`` 217 of places that the
first set does not have, ``blind/runs3.csv`` 168 of places or GPUs that neither has (``blind/README.md``). All were
predicted once before anybody looked: that first score stands in ``results/``, row by row, and is the honest one.
Whoever changes the model after looking at a row has seen it; the second table says how far predictions are off now. The
third set is there for that: its rows are not looked at while the model changes, only what ``--totals`` prints. Never
fit on any. A, B and C say how well a place tells its runs.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import astra
from astra.validate.replay import replay
from astra.validate.runs import Run, read_runs
from astra.validate.strategies import stood_in

HERE = Path(__file__).parent


class Blind(NamedTuple):
    """A set of runs, and what was first predicted of them."""

    runs: Path
    first: Path


SETS: Final = {
    "first": Blind(HERE / "blind" / "runs.csv", HERE / "results" / "2026-11-18_blind.json"),
    "second": Blind(HERE / "blind" / "runs2.csv", HERE / "results" / "2026-11-18_blind2.json"),
    "third": Blind(HERE / "blind" / "runs3.csv", HERE / "results" / "2026-11-19_blind3.json"),
}
# Later rounds, other rows and other pages of those who publish Astra's tables; all others are wholly new places.
KNOWN = ("mbridge_rest", "dgxc_rest", "maxtext", "titan_4d", "titan_llama2", "titan_405b", "mlperf50", "mlperf51",
         "mlperf51lora", "mlm_weak", "mlm_llama")  # fmt: skip
KEPT = ("id", "source", "told", "measured_step_s", "predicted_step_s", "low_s", "high_s", "measured_peak_gib",
        "predicted_peak_gib", "fits", "ran_out_of_memory")  # fmt: skip

Row = dict[str, Any]


def predicted(runs: Path) -> list[Row]:
    """Every run of a set as the code is now."""
    with runs.open(encoding="utf-8", newline="") as table:
        told_in = {row["id"]: row["notes"].partition("conf=")[2][:1] for row in csv.DictReader(table)}
    rows = []
    for run in replay(read_runs(runs)):
        scored, between = run.error is not None, run.predicted_step_s_range
        values = (
            run.id, run.source, told_in[run.id], run.measured_step_s if scored else None, run.predicted_step_s,
            between.low if between else None, between.high if between else None, run.measured_peak_gib,
            run.compared_peak_gib, run.fits, run.ran_out_of_memory,
        )  # fmt: skip
        rows.append(dict(zip(KEPT, values, strict=True)))
    return rows


def errors(rows: Iterable[Row], what: str) -> list[float]:
    """Predicted over measured, less one: of ``step_s`` or ``peak_gib``."""
    return [row[f"predicted_{what}"] / row[f"measured_{what}"] - 1 for row in rows if row[f"measured_{what}"]]


def sizes(found: list[float]) -> str:
    """Mean and median of the sizes of errors, and the median of the errors."""
    if not found:
        return f"{'':20}"
    off = [abs(error) for error in found]
    return f"{statistics.mean(off):6.1%}{statistics.median(off):7.1%}{statistics.median(found):+7.1%}"


def line(name: str, rows: list[Row]) -> str:
    """Time and memory of a set of runs."""
    timed = [row for row in rows if row["measured_step_s"]]
    held = sum(row["low_s"] <= row["measured_step_s"] <= row["high_s"] for row in timed)
    memory = errors(rows, "peak_gib")
    return f"{name:14}{len(timed):5}{sizes(errors(timed, 'step_s'))}{held:5}{len(memory):7}{sizes(memory)}"


def classes(runs: Path) -> dict[str, set[str]]:
    """The runs that belong together by what was run."""
    found: dict[str, set[str]] = {"stood in": set(), "of its own": set(), "dense": set(), "moe": set()}
    for run in read_runs(runs):
        if isinstance(run, Run):
            found["stood in" if stood_in(run.framework) else "of its own"].add(run.id)
            found["moe" if run.job.model.moe else "dense"].add(run.id)
    return found


def show(title: str, rows: list[Row], of_kind: dict[str, set[str]], *, totals: bool) -> None:
    """The table of one prediction of all runs."""
    print(f"{title}\n{'':14} runs  mean median   bias held memory  mean median   bias")
    print(line("all", rows))
    if any(row["source"] in KNOWN for row in rows):
        print(line("new places", [row for row in rows if row["source"] not in KNOWN]))
        print(line("known places", [row for row in rows if row["source"] in KNOWN]))
    for letter in "ABC":
        print(line(f"told {letter}", [row for row in rows if row["told"] == letter]))
    for name, members in of_kind.items():
        print(line(name, [row for row in rows if row["id"] in members]))
    of = {name: [row for row in rows if row["source"] == name] for name in dict.fromkeys(row["source"] for row in rows)}
    for source, its in () if totals else of.items():
        print(line(source, its))
    means = [statistics.mean(map(abs, found)) for its in of.values() if (found := errors(its, "step_s"))]
    print(f"mean over {len(means)} sources of their mean errors of time: {statistics.mean(means):.1%}")
    ran = [row for row in rows if row["ran_out_of_memory"] is not None]
    right = sum(row["fits"] != row["ran_out_of_memory"] for row in ran)
    failed = sum(row["fits"] and row["ran_out_of_memory"] for row in ran)
    print(f"what fits: {right} of {len(ran)} right; {failed} ran out of memory though predicted to fit\n")


def main() -> None:
    """Print the first prediction of a set and today's, and keep today's with --record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=tuple(SETS), default="first", help="the set of runs")
    parser.add_argument("--totals", action="store_true", help="no place by itself: for a set that is not looked at")
    parser.add_argument("--record", metavar="FILE", help="write today's predictions, as the first ones were")
    args = parser.parse_args()
    runs, kept_first = SETS[args.which]
    first, of_kind = json.loads(kept_first.read_text(encoding="utf-8")), classes(runs)
    show(f"first, {first['date']}, commit {first['commit']}", first["rows"], of_kind, totals=args.totals)
    rows = predicted(runs)
    date = f"{datetime.datetime.now(tz=datetime.timezone.utc).date()}"
    code, asked = Path(astra.__file__).parent, ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=code, capture_output=True, text=True, check=False).stdout.strip()
    show(f"now, {date}, commit {commit}", rows, of_kind, totals=args.totals)
    if args.record:
        kept = {"date": date, "commit": commit, "version": astra.__version__, "rows": rows}
        Path(args.record).write_text(written(kept), encoding="utf-8")


def written(record: dict[str, Any]) -> str:
    """A record as JSON, one run a line."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in record["rows"])
    head = {key: value for key, value in record.items() if key != "rows"}
    return f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    main()
