"""The words a layer is described with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astra.layers.operators import Kept, Layer, Retention, Shard, Stream, join


def shard(seq: int = 512, **columns: int | bool) -> Shard:
    """One sharding."""
    values: dict[str, int | bool] = {
        "mbs": 1, "tp": 1, "cp": 1, "ep": 1, "etp": 1, "sp": False, "flash": True, **columns
    }  # fmt: skip
    arrays: dict[str, Any] = {name: np.array([value]) for name, value in values.items()}
    return Shard(seq=seq, keeps=Retention(), **arrays)


def test_tokens_are_split_by_what_splits_them() -> None:
    some = shard(512, mbs=3, tp=4, cp=2, sp=True)
    assert some.tokens.tolist() == [3 * 256]
    assert some.stream_tokens.tolist() == [3 * 64]
    assert some.routed_tokens.tolist() == [3 * 64]
    assert some._replace(sp=np.array([False])).stream_tokens.tolist() == [3 * 256]


def block(whole: float, working: float) -> Layer:
    one = np.array([1.0])
    return Layer((), (), (Stream("norm", one),), Kept(whole * one, 0.5 * whole * one, 0.1 * whole * one, working * one))


def test_joined_blocks_keep_all_but_work_one_at_a_time() -> None:
    both = join(block(10.0, 3.0), block(20.0, 2.0))
    assert len(both.streams) == 2
    assert [column.tolist() for column in both.kept] == [[30.0], [15.0], [2.0], [3.0]]


@pytest.mark.parametrize("parts", [1, 3])
def test_joining_is_the_same_in_steps(parts: int) -> None:
    blocks = [block(float(n + 1), float(n)) for n in range(parts + 2)]
    at_once, in_steps = join(*blocks), join(join(*blocks[:2]), *blocks[2:])
    for first, second in zip(at_once.kept, in_steps.kept, strict=True):
        np.testing.assert_allclose(first, second)
