"""The laws of answers hold for some requests, and each is noticed where it is broken."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from multiprocessing import get_context
from random import Random
from typing import Any

import pytest

import astra
from tests.random_requests.laws import ANSWERS, Record, check, judged

SEEDS = (5, 8, 17)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_request_keeps_the_laws(seed: int) -> None:
    outcome = judged(seed)
    assert outcome.code in ANSWERS
    assert outcome.fault == ""


@cache
def _answer() -> Record:
    found: Record = json.loads(astra.plan("llama-2-7b", gpus="8xH100", batch=64, seq=2048, top=2).to_json())
    return found


def put(*path: Any, to: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        inside: Any = record
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = to

    return change


BEST = ("plans", 0, "estimate")


def _slow_alone(record: Record) -> None:
    del record["plans"][1:]
    put(*BEST, "step_s_range", "high", to=1e9)(record)


BROKEN: dict[str, Callable[[Record], object]] = {
    "breakdown": put(*BEST, "breakdown", "forward compute", to=99.0),
    "memory": put(*BEST, "stages", 0, "memory", "weights", to=99.0),
    "tokens": put(*BEST, "tokens_per_s", to=1.0),
    "does not fit": put(*BEST, "fits", to=False),
    "got lost": put("search", "feasible", to=10**9),
    "read back": put("no such field", to=1),
    "is better than the plan": _slow_alone,
    "out of order": put(*BEST, "step_s_range", "high", to=1e9),
}


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_noticed(law: str) -> None:
    record = copy.deepcopy(_answer())
    check(record, Random(1))
    BROKEN[law](record)
    with pytest.raises(AssertionError, match=law):
        check(record, Random(1))


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
