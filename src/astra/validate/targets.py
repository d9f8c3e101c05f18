"""What was aimed at and what was reached: operators, rehearsals, published runs, what fits, the pick.

Operator errors are those their fits kept (``operators/data``); runs predicted without their source are what
``python -m tools.leave_out`` last kept, and errors of rehearsed ranks what ``python -m tools.check_rehearsal`` did.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from astra.catalog.runtimes import runtime
from astra.validate.replay import JOINED, ReplayedRun
from astra.validate.score import SEVERAL, Errors, Validation

REHEARSED: Final = "rehearsed.csv"
NO_REASON: Final = "no explanation yet"
Part = TypeVar("Part")
_FEWEST: Final = 2  # rows an attention curve needs before one can be held out


class Target(NamedTuple):
    """One line: what is aimed at, the bound, what was reached, whether that is within it, and why not."""

    name: str
    bound: str
    reached: str
    met: bool | None  # None: not known here
    gap: str = ""  # how far it is missed
    why: str = ""


def targets(found: Validation) -> list[Target]:
    """Every target, in the order they were set."""
    lines = [*_operators(), *_rehearsal(), *_left_out(), *_published(found)]
    return [line._replace(why=_remark(line)) for line in lines]


def _remark(line: Target) -> str:
    why = why_of(f"target: {line.name}")
    return "" if line.met is None or (line.met and why == NO_REASON) else why


def why_of(about: str) -> str:
    """The explanation of a run or of a missed target."""
    return next((why for pattern, why in _explanations() if fnmatchcase(about, pattern)), NO_REASON)


@cache
def _explanations() -> tuple[tuple[str, str], ...]:
    return tuple((row["about"], row["why"]) for row in _table("explanations.csv"))


def left_out() -> list[tuple[str, Errors]]:
    """Errors by source of runs predicted without it; nothing where they are not stored."""
    found = []
    for row in _table("left_out.csv"):
        mean, median, p90, bias = (float(row[name]) for name in ("mean", "median", "p90", "bias"))
        errors = Errors(runs=int(row["runs"]), mean=mean, median=median, p90=p90, worst=np.nan, bias=bias)
        found.append((row["source"] or "all", errors))
    return found


def _table(name: str) -> list[dict[str, str]]:
    file = files("astra.validate") / "data" / name
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))) if file.is_file() else []


def _most(name: str, bound: float, value: float, shown: str = "") -> Target:
    return Target(name, f"at most {bound:.0%}", f"{value:.1%}{shown}", value <= bound, f"{value - bound:.1%}")


def _least(name: str, bound: float, value: float, shown: str) -> Target:
    return Target(name, f"at least {bound:g}", shown, value >= bound, f"{bound - value:.3f}")


def _operators() -> Iterator[Target]:
    surfaces = _data("gemm.json")["surfaces"]
    shapes = [(one["errors"]["held_out_shapes"], f"{one['gpu']} {one['precision']}") for one in surfaces]
    yield _most("products, held-out shapes, mean over GPUs", 0.04, _mean(shapes), _ends(shapes))
    common = [(one["errors"]["held_out_shapes_common"], f"{one['gpu']} {one['precision']}") for one in surfaces]
    yield _most("the same, sizes of common layers", 0.04, _mean(common), _ends(common))
    own = [(error, one["precision"]) for one in surfaces if (error := one["errors"].get("held_out_profile"))]
    yield _most("products held out of the H200's own profile, mean", 0.04, _mean(own), _ends(own))
    curves = [curve for curve in _data("attention.json")["curves"] if curve["rows"] >= _FEWEST]
    names = [(curve["error"], f"{curve['gpu']} {curve['kernel']} {curve['direction']}") for curve in curves]
    yield _most("attention, held-out rows, mean over kernels", 0.06, _mean(names), _ends(names))
    yield _most(
        "collectives in one server, held-out sizes",
        0.07,
        _data("collectives.json", "network")["held_out"]["sizes, all"],
    )


def _data(name: str, package: str = "operators") -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode((files(f"astra.{package}") / "data" / name).read_bytes())
    return content


def _mean(values: Sequence[tuple[float, str]]) -> float:
    return float(np.mean([value for value, _ in values]))


def _ends(values: Sequence[tuple[float, str]]) -> str:
    (low, least), (high, most) = min(values), max(values)
    return f" ({low:.1%} {least} to {high:.1%} {most})"


def _rehearsal() -> Iterator[Target]:
    """Ranks that no constant was tuned on."""
    names = {"compute": "rehearsed ranks on H200, compute", "memory": "rehearsed ranks on H200, peak memory"}
    bounds = {"compute": (0.04, 0.10), "memory": (0.03, 0.06)}
    kept = {row["measure"]: row for row in _table(REHEARSED)}
    for measure, name in names.items():
        for bound, part in zip(bounds[measure], ("mean", "worst"), strict=True):
            yield _most(f"{name}, {part}", bound, float(kept[measure][part]), f" of {kept[measure]['runs']}")


def _left_out() -> Iterator[Target]:
    stored = dict(left_out())
    name = "published runs predicted without their source"
    if "all" not in stored:
        yield Target(f"{name}, mean", "at most 10%", "not stored: python -m tools.leave_out", None)
        return
    yield _most(f"{name}, mean", 0.10, stored["all"].mean, f" of {stored['all'].runs:,}")
    yield _most(f"{name}, median", 0.06, stored["all"].median)
    sources = [errors.mean for source, errors in stored.items() if source != "all"]
    yield _most(f"{name}, mean over sources", 0.09, float(np.mean(sources)), f" of {len(sources)}")


def _published(found: Validation) -> Iterator[Target]:
    lines = {line.name: line for line in found.overall} | {line.name: line for line in found.by["source"]}
    if (test := lines.get("test")) and test.step:
        yield _most("published runs never fitted on, mean", 0.10, test.step.mean, f" of {test.step.runs:,}")
        yield _most("published runs never fitted on, median", 0.06, test.step.median)
    yield from _kinds(found.rows)
    yield from _several(found)
    if (fit := lines.get("fit")) and fit.step:
        yield _most("published runs that may be fitted on, mean", 0.05, fit.step.mean)
    if fitting := _timed(found.fitting):
        yield _least("fits or does not fit, right", 0.97, fitting.right, f"{fitting.right:.3f}")
        failed = fitting.recommended_but_failed
        yield Target("recommended (8% kept free), but ran out of memory", "none", f"{failed:,}", failed == 0)
    if pick := _timed({pick.name: pick for pick in found.picks}):
        yield _least("the pick, of the best measured", 0.985, pick.quality, f"{pick.quality:.3f}")
        three = pick.quality_of_three
        yield Target("the best measured of the first three, of the best measured", "no target", f"{three:.3f}", None)


def _kinds(rows: Sequence[ReplayedRun]) -> Iterator[Target]:
    """Of the runs never fitted on: experts, and dense models on Megatron, where most people train."""
    unseen = [row for row in rows if row.use == "test" and not row.not_scored and row.measured_step_s]
    experts = [row for row in unseen if row.evidence == "moe"]
    dense = [row for row in unseen if row.evidence == "dense" and runtime(row.runtime).framework == "megatron"]
    for name, bound, some in (("with experts", 0.12, experts), ("of dense models on Megatron", 0.06, dense)):
        if some:
            errors = [abs((row.predicted_step_s or 0.0) / (row.measured_step_s or 1.0) - 1.0) for row in some]
            yield _most(f"the same, {name}, mean", bound, float(np.mean(errors)), f" of {len(errors):,}")


def _several(found: Validation) -> Iterator[Target]:
    """Runs over several pools: how far off, in what order, and what the pick loses."""
    errors = [abs(row.error) for row in found.rows if row.error is not None and JOINED in row.gpu]
    pick = next((pick for pick in found.picks if pick.name == SEVERAL), None)
    if errors and pick:
        yield _most("runs over several pools, mean", 0.15, float(np.mean(errors)), f" of {len(errors):,}")
        order = pick.rank_correlation
        yield _least("the same, rank correlation", 0.80, order, f"{order:.3f}")
        yield _most("the same, what the pick loses", 0.05, pick.regret)


def _timed(parts: Mapping[str, Part]) -> Part | None:
    """What was found over all runs that somebody timed: simulated ones are left out where there are any."""
    return next((part for name, part in parts.items() if name.startswith("without ")), parts.get("all"))


def _said(line: Target) -> str:
    return "met" if line.met else "" if line.met is None else f"missed by {line.gap}" if line.gap else "missed"


def sections(found: Validation) -> Iterable[tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Targets, and what was predicted without its source, as sections of the report."""
    rows: list[tuple[str, ...]] = [
        (line.name, line.bound, line.reached, _said(line), line.why) for line in targets(found)
    ]
    yield "Targets", "", ("", "target", "reached", "so", "why"), rows
    stored = left_out()
    if stored:
        head = ("", "runs", "mean", "median", "p90", "bias")
        note = "constants of the runtime found anew without the source's runs (python -m tools.leave_out)"
        shown: list[tuple[str, ...]] = [
            (name, f"{one.runs:,}", f"{one.mean:.1%}", f"{one.median:.1%}", f"{one.p90:.1%}", f"{one.bias:+.1%}")
            for name, one in stored
        ]
        yield "Predicted without their source", note, head, shown
