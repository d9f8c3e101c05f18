"""The laws of answers hold for some requests, and each is noticed where it is broken."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import pytest

import astra
from astra.catalog import runtimes
from astra.money.objectives import OBJECTIVES
from astra.search.detail import estimate
from astra.spec.request import FIELDS
from astra.spec.strategy import parse_strategy
from astra.spec.workload import PRECISIONS, TASKS
from tests.random_requests.asking import VERBS, ask
from tests.random_requests.drawing import KINDS, SPELLINGS, Asked, drawn
from tests.random_requests.laws import ANSWERS, LAWS, Case, Record, check, held, judge, judged, refused

NUMBERS = range(40)
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "random_laws.json"
BETTER = re.compile(r"AssertionError: (.*) is better than the plan")
_VERBS = {kind: kind if kind in VERBS else "plan" for kind in KINDS}


def test_random_requests_keep_the_laws() -> None:
    outcomes = [judged(number) for number in NUMBERS]
    assert [(number, outcome.fault) for number, outcome in enumerate(outcomes) if outcome.fault] == []
    assert {outcome.code for outcome in outcomes} <= {*ANSWERS}
    assert {"plan", "estimate", "bad"} <= {outcome.asked.kind for outcome in outcomes} <= {*KINDS}


def test_every_field_and_name_is_drawn() -> None:
    """Of 1,500 requests; none is asked."""
    draws = [drawn(Random(number)) for number in range(1500)]
    fields = [asked.fields for asked in draws]
    assert {asked.kind for asked in draws} == {*KINDS}
    assert {asked.spelling for asked in draws} == {*SPELLINGS}
    known = {
        "runtime": runtimes.runtime_names(), "task": TASKS, "precision": PRECISIONS,
        "objective": {*OBJECTIVES} - {"budget", "deadline"},
    }  # fmt: skip
    for name, values in known.items():
        assert {str(each.get(name)) for each in fields} >= {*values}, name
    assert {name for each in fields for name in each} >= {*FIELDS} - {"known_nodes", "assume_network", "own"}


# What broke a law once, but for clusters of one's own, which the record leaves out.
BROKE = [
    broken
    for run in json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    for broken in run["broken"]
    if "cluster" not in broken["asked"]
]


@pytest.mark.parametrize("broken", BROKE, ids=lambda broken: str(broken["number"]))
def test_what_broke_a_law_keeps_it_now(broken: Record) -> None:
    words, own = broken["asked"], isinstance(broken["asked"], list)
    asked = Asked(broken["kind"], words[0] if own else _VERBS[broken["kind"]], {} if own else words, broken["spelled"],
                  tuple(words) if own else ())  # fmt: skip
    assert judge(asked, Random(broken["number"])).fault == ""
    found = BETTER.match(broken["fault"])
    if found:
        case = Case(ask(asked).record, Random(1))
        held(case, estimate(case.world.job, [parse_strategy(found[1])], user_rules=case.world.rules))


@cache
def _answer() -> Record:
    found: Record = json.loads(
        astra.plan("llama-2-7b", gpus="8xH100", batch=64, seq=2048, top=2, fix=["pp=1"]).to_json()
    )
    return found


def put(*path: Any, to: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        inside: Any = record
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = to

    return change


BEST = ("plans", 0, "estimate")


BROKEN: dict[str, tuple[str, Callable[[Record], object]]] = {
    "breakdown": ("sums", put(*BEST, "breakdown", "forward compute", to=99.0)),
    "memory": ("sums", put(*BEST, "stages", 0, "memory", "weights", to=99.0)),
    "tokens": ("sums", put(*BEST, "tokens_per_s", to=1.0)),
    "does not fit": ("limits", put(*BEST, "fits", to=False)),
    "got lost": ("limits", put("search", "feasible", to=10**9)),
    "out of order": ("limits", put(*BEST, "step_s_range", "high", to=1e9)),
    "read back": ("read back", put("no such field", to=1)),
    "is better than the plan": ("unbeaten", put(*BEST, "step_s_range", "high", to=1e9)),
    "is not what was asked for": ("restrictions kept", put("asked", "fix", to=["tp=8"])),
    "another step time": ("text", put(*BEST, "step_s", to=1.0)),
    "a restriction made it quicker": ("wider is no slower", put(*BEST, "step_s_range", "high", to=1e-3)),
    "made it quicker": ("narrower is no quicker", put(*BEST, "step_s_range", "high", to=1e9)),
    "gives another answer": ("asked again", put("asked", "batch", to=128)),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_law_is_noticed(said: str) -> None:
    record, (law, change) = copy.deepcopy(_answer()), BROKEN[said]
    record["asked"] |= {"fix": []} if law == "narrower is no quicker" else {}
    change(record)
    with pytest.raises(AssertionError, match=said):
        LAWS["astra.plan"][law][1](Case(record, Random(3)))


def test_an_answer_keeps_every_law() -> None:
    checked = check(copy.deepcopy(_answer()), Random(1), every=True)
    assert {*LAWS["astra.plan"]} - {*checked} == {"narrower is no quicker", "no pool alone is better"}


def test_what_escapes_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is none of ours is noticed, by keywords and on the command line."""

    def fails(*args: object, **more: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setitem(VERBS, "plan", fails)
    monkeypatch.setattr("astra.api.plan", fails)
    for spelling in ("keywords", "flags", "toml"):
        asked = Asked("plan", "plan", {"model": "gpt-2", "gpus": ["1xH100"]}, spelling)
        with pytest.raises(AssertionError, match="nobody thought of this"):
            refused(asked, ask(asked), Random(1))


def _asked(name: str) -> str:
    answer = astra.plan(name, gpus="8xH100", batch=64, seq=2048, top=2).to_dict()
    answer["search"] |= {"seconds": 0, "strategies_per_s": 0}
    return repr(answer)


def test_workers_answer_alike_in_any_order() -> None:
    """What was asked before, here or in another worker, changes nothing."""
    names = ["llama-2-7b", "mixtral-8x7b", "llama-3.1-8b"]
    here = [_asked(name) for name in names]
    with get_context("spawn").Pool(2) as pool:
        there = pool.map(_asked, [*reversed(names), *names], chunksize=1)
    assert there == [*reversed(here), *here]
