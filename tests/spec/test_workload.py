"""The work: sizes that make sense."""

from __future__ import annotations

from typing import Any

import pytest

from astra.errors import InputError
from astra.spec.record import decode
from astra.spec.workload import Workload


def test_tokens_per_step() -> None:
    assert Workload(global_batch=1024, seq=4096).tokens_per_step == 4_194_304


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("workload.global_batch", {"global_batch": 0}),
        ("workload.global_batch", {"global_batch": -1}),
        ("batch", {"global_batch": 10**8}),
        ("workload.seq", {"seq": 0}),
        ("seq", {"seq": 10**9}),
        ("workload.tokens", {"tokens": 0.0}),
        ("workload.tokens", {"tokens": float("nan")}),
        ("workload.lora_rank", {"lora_rank": 0}),
    ],
)
def test_what_cannot_be_is_refused(where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        Workload(**{"global_batch": 8, "seq": 512, **changes})
    assert caught.value.where == where


@pytest.mark.parametrize("changes", [{"precision": "int8"}, {"optimizer": "lion"}, {"task": "rlhf"}, {"color": 1}])
def test_unknown_words_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="request"):
        decode(Workload, {"global_batch": 8, "seq": 512, **changes}, where="request")
