"""What must hold of every answer, whatever was asked: checked on the record that ``--json`` prints.

Sums add up, limits hold, the text of a strategy and the record read back give the same, and no legal strategy drawn at
random beats the plan (but for what the search says it does not exhaust: splits of layers).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

import astra
from astra.catalog.hardware import device
from astra.cli import main
from astra.errors import AstraError, NoFeasiblePlan
from astra.export.reading import from_record
from astra.layers.kinds import layer_kinds
from astra.search.detail import estimate, legality
from astra.search.space import chunk_counts
from astra.search.world import World
from astra.spec.request import read_request
from astra.spec.strategy import parse_strategy
from astra.study.reading import answer_of
from benchmarks.random_requests import KINDS, request
from tests.properties.test_best_laws import defines_a_run, mutated, sampled

Record = dict[str, Any]
ANSWERS: Final = (0, 2, 3, 4)  # a plan, or our own word on why there is none
SLACK: Final = 1e-9
DRAWN: Final = 40  # strategies against each plan, half of them near it
# Splits of layers are polished and not all searched, and of the numbers of chunks with equally large ones the least is
# taken: such a strategy may be better than the plan by less than this.
POLISHED: Final = 0.01
AGAIN: Final = 0.1  # of the answers are asked for again, from the request they carry
_MEASURED: Final = ("seconds", "strategies_per_s")


class Outcome(NamedTuple):
    """What became of one request."""

    words: list[str]
    code: int
    strategies: int  # legal ones that were held against the plan
    fault: str = ""


def judged(seed: int) -> Outcome:
    """Draw a request by its number, answer it, and check the answer."""
    draw = Random(seed)
    kind = draw.choices(KINDS, weights=(12, 1, 1))[0]  # answers for one pool are soonest checked
    words = [word for word in request(draw, kind) if word != "-q"]
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
        code = main([*words, "--json"])
    if code not in ANSWERS:
        return Outcome(words, code, 0, told.getvalue()[-500:])
    if code:
        record = json.loads(said.getvalue())
        return Outcome(words, code, 0, "" if record["schema"] == "astra.error/1" else "an error without its record")
    try:
        return Outcome(words, code, check(json.loads(said.getvalue()), draw))
    except Exception as error:
        return Outcome(words, code, 0, f"{type(error).__name__}: {error}"[:500])


def check(record: Record, draw: Random) -> int:
    """Raise an AssertionError where a law is broken; how many strategies were held against the plan."""
    read_back(record)
    if record["schema"] == "astra.rent/1":
        _rented(record)
        return 0
    for plan in record["plans"]:
        _sums(plan["estimate"], record["asked"])
        _text(plan, record["asked"])
    _limits(record)
    if draw.random() < AGAIN:
        again = json.loads(astra.plan(**record["asked"]).to_json())
        assert _lasting(again) == _lasting(record), "the request of an answer gives another answer"
    if "conceivable" in record:
        return 0
    with contextlib.suppress(AstraError):  # a target may have no words for it, which it says
        from_record(record)
    return _unbeaten(record, draw) if record["objective"] == "fastest" else 0


def read_back(record: Record) -> None:
    """The record that is read back is the one that was written."""
    again = json.loads(answer_of(record, "answer").to_json())
    assert again == record, "read back as another record"


def _lasting(record: Record) -> Record:
    """An answer without the time it took."""
    return record | {"search": {name: value for name, value in record["search"].items() if name not in _MEASURED}}


def close(one: float, other: float) -> bool:
    """Equal but for rounding."""
    return math.isclose(one, other, rel_tol=SLACK, abs_tol=1e-12)


def _sums(result: Record, asked: Record) -> None:
    """Parts add up to wholes."""
    assert close(sum(result["breakdown"].values()), result["step_s"]), "the breakdown does not sum to the step"
    assert min(result["breakdown"].values()) >= -SLACK * result["step_s"], "a cause takes less than no time"
    for stage in result["stages"]:
        assert close(sum(stage["memory"].values()), stage["peak_allocated_gib"]), "memory does not sum to the peak"
        assert close(stage["forward_s"] + stage["backward_s"], stage["compute_s"]), "forward and backward"
    tokens = asked["batch"] * asked["seq"]
    assert close(result["tokens_per_s"] * result["step_s"], tokens), "tokens per second are not those of the step"
    cost = result["cost"]
    assert cost is None or close(sum(cost["parts"].values()), cost["usd"]), "the parts of the bill"
    if "groups" in result:
        assert sum(group["samples"] for group in result["groups"]) == asked["batch"], "samples of the groups"
        return
    strategy = parse_strategy(result["strategy"].partition(": ")[2] or result["strategy"])
    peaks = [stage["peak_reserved_gib"] for stage in result["stages"]]
    assert result["peak_reserved_gib"] == max(peaks), "the peak is not that of the fullest stage"
    assert result["microbatches"] * strategy.dp * strategy.mbs == asked["batch"], "micro-batches"
    assert sum(stage["gpus"] for stage in result["stages"]) == strategy.gpus, "GPUs of the stages"


def _text(plan: Record, asked: Record) -> None:
    """The text of a plan is costed as the plan."""
    kept = {name: value for name, value in asked.items() if name in _ESTIMATED}
    if "groups" not in plan["estimate"] and len(asked["gpus"]) == 1:  # an objective may leave GPUs out
        used = sum(stage["gpus"] for stage in plan["estimate"]["stages"])
        kept["gpus"] = [f"{used}x{asked['gpus'][0].partition('x')[2]}"]
    again = astra.estimate(**kept, strategy=plan["strategy"])
    assert math.isclose(again.step_s, plan["estimate"]["step_s"], rel_tol=1e-9), "its text has another step time"
    assert again.strategy == plan["strategy"], "its text is read as another strategy"


_ESTIMATED: Final = (
    "model", "gpus", "cluster", "node", "batch", "seq", "precision", "optimizer", "task", "lora_rank", "lora_targets",
    "imbalance", "mtp", "runtime", "headroom",
)  # fmt: skip


def _limits(record: Record) -> None:
    """What is shown is legal, fits, and uses no more than there is; plans are in their order."""
    search = record["search"]
    refused = sum(reject["strategies"] for reject in record["rejects"])
    assert "conceivable" in record or refused + search["feasible"] == search["considered"], "strategies got lost"
    assert [plan["rank"] for plan in record["plans"]] == list(range(1, len(record["plans"]) + 1))
    given = sum(int(text.partition("x")[0]) for text in record["asked"]["gpus"])  # a type may come twice
    for plan in record["plans"]:
        result = plan["estimate"]
        assert result["legal"], "a plan that is not legal"
        assert not result["violations"], "a plan that breaks a rule"
        assert result["fits"], "a plan that does not fit"
        assert 0 < result["mfu"] <= 1, "more than all of the peak"
        assert result["step_s_range"]["low"] <= result["step_s"] <= result["step_s_range"]["high"]
        assert all(stage["fits"] for stage in result["stages"])
        assert sum(stage["gpus"] for stage in result["stages"]) <= given, "more GPUs than there are"
    if record["objective"] == "fastest":
        upper = [plan["estimate"]["step_s_range"]["high"] for plan in record["plans"]]
        assert "conceivable" in record or upper == sorted(upper), "plans out of order"
    if record["objective"] == "fastest" and "conceivable" in record:
        _no_pool_alone_is_better(record)


_OF_FLEETS: Final = ("counts", "node_lost", "by_runtime", "worth", "launchable", "baseline")


def _no_pool_alone_is_better(record: Record) -> None:
    """What the planner for one pool says of each pool of a fleet is in no case surer to be quick."""
    if record["asked"]["counts"] == "exact":
        return  # what is worthless must be used too
    asked = {name: value for name, value in record["asked"].items() if name not in _OF_FLEETS}
    upper_s = record["conceivable"]["estimate"]["step_s_range"]["high"]
    for pool in asked["gpus"]:
        if asked["precision"] not in device(pool.partition("x")[2].partition("@")[0]).flops_per_s:
            continue  # it is left idle
        try:
            own = astra.plan(**(asked | {"gpus": [pool]}))
        except NoFeasiblePlan:
            continue
        alone_s = min(plan.estimate.step_s_range.high for plan in own.plans)
        assert upper_s <= alone_s * (1 + SLACK), f"{pool} alone is better: {alone_s} under {upper_s}"


def _unbeaten(record: Record, draw: Random) -> int:
    """No strategy near the plan or anywhere else is legal, fits and is better."""
    asked = World.of(read_request("plan", record["asked"])).job
    best = parse_strategy(record["plans"][0]["strategy"])
    some = {mutated(asked, best, draw) for _ in range(DRAWN // 2)} | {sampled(asked, draw) for _ in range(DRAWN // 2)}
    legal = [s for s in some if s is not None and defines_a_run(asked, s) and not legality(asked, s)]
    upper_s = record["plans"][0]["estimate"]["step_s_range"]["high"]
    for result in estimate(asked, sorted(legal, key=str)) if legal else ():
        strategy = parse_strategy(result.strategy)
        searched = not strategy.layers and strategy.vp in chunk_counts(len(layer_kinds(asked.model)), strategy.pp)
        beaten = result.fits and result.step_s_range.high < upper_s * (1 - (SLACK if searched else POLISHED))
        assert not beaten, f"{result.strategy} is better than the plan: {result.step_s_range.high} under {upper_s}"
    return len(legal)


def _rented(record: Record) -> None:
    """Along the front time grows and dollars fall, by what choices are ranked by; bills add up."""
    for choice in record["front"]:
        cost = choice["cost"]
        assert close(sum(cost["parts"].values()), cost["usd"]), "the parts of the bill"
        assert sum(part["gpus"] for part in choice["parts"]) == choice["gpus"] <= record["asked"]["max_gpus"]
        assert choice["peak_reserved_gib"] <= choice["memory_limit_gib"], "a choice that does not fit"
    costs = [choice["cost"]["expected"] or choice["cost"] for choice in record["front"]]
    upper = record["ranked_by"] == "upper"
    figures = [[cost[f"{name}_range"]["high"] if upper else cost[name] for name in ("days", "usd")] for cost in costs]
    for (fast_days, more_usd), (slow_days, less_usd) in pairwise(figures):
        assert fast_days <= slow_days * (1 + SLACK), "the front is not in order"
        assert more_usd >= less_usd * (1 - SLACK), "a choice of the front is dominated"
