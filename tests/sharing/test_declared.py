"""Jobs and pools as they are declared; what is wrong is told at once, with the nearest name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from astra.errors import InputError
from astra.sharing.declared import sharing_of

TABLES: dict[str, Any] = {
    "pools": {"big": "64xH100", "old": {"gpus": "32xA100-80", "usd_per_gpu_h": 1.1}},
    "jobs": {
        "chat": {"model": "llama-2-7b", "tokens": "100B", "deadline": "14d", "min_gpus": 16},
        "code": {"model": "llama-3-8b", "tokens": 3e9, "weight": 2, "pools": "old", "start": "36h", "counts": [8, 16]},
    },
    "request": {"batch": 256, "seq": 2048},
}
CHAT = {"model": "llama-2-7b", "tokens": "100B"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a key": ({"job": {}}, "Did you mean jobs"),
    "no pools": ({"pools": {}}, "a table of pools by name"),
    "no jobs": ({"jobs": []}, "a table of jobs by name"),
    "a GPU": ({"pools": {"a": "8xH10"}}, "s.toml: pools.a: gpu: got 'H10'"),
    "a pool that is not whole": ({"pools": {"a": "12xH100"}}, "wanted whole nodes of 8"),
    "a price": ({"pools": {"a": {"gpus": "8xH100", "usd_per_gpu": "x"}}}, "pools.a.usd_per_gpu"),
    "a key of a pool": ({"pools": {"a": {"gpus": "8xH100", "usd_per_gpuh": 1}}}, "Did you mean usd_per_gpu_h"),
    "a model": ({"jobs": {"a": CHAT | {"model": "lama-2-7b"}}}, "Did you mean llama-2-7b"),
    "a field": ({"jobs": {"a": CHAT | {"bacth": 3}}}, "jobs.a: bacth: wanted a key that is known here. Did you"),
    "an own field": ({"jobs": {"a": CHAT | {"dedline": 3}}}, "Did you mean deadline"),
    "no tokens": ({"jobs": {"a": {"model": "llama-2-7b"}}}, "jobs.a.tokens: wanted the tokens of the job"),
    "a deadline": ({"jobs": {"a": CHAT | {"deadline": "soon"}}}, "a time from the beginning"),
    "a weight": ({"jobs": {"a": CHAT | {"weight": 0}}}, "jobs.a.weight"),
    "a pool": ({"jobs": {"a": CHAT | {"pools": ["bigg"]}}}, "Did you mean big"),
    "GPUs": ({"jobs": {"a": CHAT | {"gpus": "8xH100"}}}, "the pools and the goal say it"),
    "a goal": ({"goal": "dollar"}, "dollars"),
    "deadlines without one": ({"goal": "deadlines", "jobs": {"a": CHAT}}, "a deadline of some job"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told(case: str) -> None:
    changed, told = WRONG[case]
    with pytest.raises(InputError) as caught:
        sharing_of({**TABLES, **changed}, "s.toml", Path())
    assert told in str(caught.value)
    assert str(caught.value).startswith("s.toml: ")


def test_what_is_declared_is_read() -> None:
    found = sharing_of(TABLES, "s.toml", Path())
    chat, code = found.jobs
    assert (found.title, found.goal) == ("s", "completion")
    assert (chat.tokens, chat.deadline_s, chat.weight, chat.min_gpus, chat.pools) == (
        100e9, 14 * 86400.0, 1.0, 16, ("big", "old"))  # fmt: skip
    assert (code.start_s, code.weight, code.pools, code.counts) == (36 * 3600.0, 2.0, ("old",), (8, 16))
    assert math.isinf(code.deadline_s)
    assert {(pool.nodes, pool.node_gpus) for pool in found.pools.values()} == {(8, 8), (4, 8)}
    assert chat.fields["batch"] == 256
