"""What a budget buys, sweeps and explanations: answers of the API that are several plans each, and bounded as such."""

from __future__ import annotations

from typing import Any, Final

from astra.answer import PlanSet
from astra.answer_money import AffordReport
from astra.errors import InputError
from astra.renting.afford import afford
from astra.report.explanation import explained
from astra.search.world import World
from astra.serve.asked import check_no_path, parts_of, request_of, table_of, whole_of
from astra.study.changes import tried
from astra.study.records import Explanation, Sweep
from astra.study.sweep import read_axes, swept

MOST_POINTS: Final = 24  # of a sweep; the command line has more
EXPLAINED_S: Final = 6.0  # of plans under changed conditions, for one explanation
MOST_PICK: Final = 100


def afforded(fields: object) -> AffordReport:
    """What a client's budget buys."""
    table = dict(table_of(fields, "request"))
    if table.get("budget") is None:
        raise InputError("budget", None, want="the dollars to spend", fix="Such as 50k.")
    model, ratio = table.pop("model", None), {name: table.pop(name) for name in ("ratio",) if name in table}
    check_no_path({**table, "model": model})
    return afford(model, **ratio, **table)


def swept_over(body: object) -> Sweep:
    """Plans over a range."""
    parts = parts_of(body, "request", "over")
    over: Any = parts.get("over")
    texts = [over] if isinstance(over, str) else over
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("over", over, want="what is swept, such as gpus=8..64")
    axes = read_axes([text for text in texts if text.strip()], "over")
    points = 1
    for axis in axes:
        points *= len(axis.values)
    if points > MOST_POINTS:
        fix = "astra sweep on the command line has up to 200."
        raise InputError("over", f"{points} points", want=f"at most {MOST_POINTS} here", fix=fix)
    return swept(request_of("plan", parts.get("request")), axes)


def explanation(planset: PlanSet, pick: int) -> Explanation:
    """Why one plan of an answer is as it is."""
    if not any(plan.rank == pick for plan in planset.plans):
        raise InputError("pick", pick, want=f"a plan of the answer, which has {len(planset.plans)}")
    world = World.of(request_of("plan", planset.asked))
    changes, skipped = tried(world, planset.best.estimate, seconds=EXPLAINED_S)
    return explained(planset, pick, changes, skipped, name="plan")


def picked(body: object) -> tuple[object, int]:
    """The request and the plan that is to be explained."""
    parts = parts_of(body, "request", "pick")
    return parts.get("request"), whole_of(parts, "pick", 1, MOST_PICK)
