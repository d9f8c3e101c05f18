"""The orders themselves, against what the papers and Megatron-LM print."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.schedule.interleaved import forward_order, group_size
from astra.schedule.registry import find
from tests.schedule.alive import readable


def words(name: str, p: int, v: int, m: int, rank: int) -> str:
    slots = readable(find(name).slots(p, v, m, rank))
    return " ".join(f"{kind}{microbatch}" + (f".{chunk}" if v > 1 else "") for kind, microbatch, chunk in slots)


@pytest.mark.parametrize(
    ("name", "rank", "order"),
    [
        ("1f1b", 0, "F0 F1 F2 B0 F3 B1 B2 B3"),
        ("1f1b", 2, "F0 B0 F1 B1 F2 B2 F3 B3"),
        ("gpipe", 1, "F0 F1 F2 F3 B0 B1 B2 B3"),
        ("zb", 0, "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"),
        ("zb", 1, "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"),
        ("zb", 2, "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"),
    ],
)
def test_one_chunk_orders(name: str, rank: int, order: str) -> None:
    assert words(name, 3, 1, 4, rank) == order


def test_more_ranks_than_microbatches() -> None:
    assert words("1f1b", 8, 1, 2, 0) == "F0 F1 B0 B1"
    assert words("zb", 8, 1, 2, 5) == "F0 F1 B0 B1 W0 W1"


def test_interleaved_orders() -> None:
    """Warm-up 2(p-r-1) + (v-1)p; groups of p; backwards from the last chunk."""
    assert words("interleaved", 2, 2, 4, 0) == (
        "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    )
    assert words("interleaved", 2, 2, 4, 1) == (
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"
    )


def test_zbv_orders() -> None:
    """As torch.distributed.pipelining prints them for two ranks (I is B here); chunk 1 of rank 0 is the last stage."""
    assert words("zbv", 2, 2, 4, 0) == (
        "F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 F3.0 B0.0 W0.0 F2.1 B2.1 W2.1 "
        "B1.0 W1.0 F3.1 B3.1 W3.1 B2.0 W2.0 B3.0 W3.0"
    )
    assert words("zbv", 2, 2, 4, 1) == (
        "F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1 W1.1 F3.0 B1.0 W1.0 F3.1 B2.1 W2.1 "
        "B2.0 B3.1 B3.0 W2.0 W3.1 W3.0"
    )
    assert words("zbv", 2, 2, 1, 1) == "F0.0 F0.1 B0.1 W0.1 B0.0 W0.0"


def test_a_v_ends_where_it_began() -> None:
    assert find("zbv").place(3, 2).tolist() == [[0, 1, 2], [5, 4, 3]]
    assert find("zbv").rank_of(3, 2).tolist() == [0, 1, 2, 2, 1, 0]
    assert find("zbv").hops(3, 2).tolist() == [True, True, False, True, True]
    assert find("interleaved").place(3, 2).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_interleaved_with_one_group_is_all_warm_up_on_the_first_rank() -> None:
    kinds = [slot.kind for slot in readable(find("interleaved").slots(4, 2, 4, 0))]
    assert kinds == ["F"] * 8 + ["B"] * 8


def test_megatron_table_with_a_group_of_three() -> None:
    """The example in Megatron-LM's comments: pp 2, vp 2, groups of 3, 5 micro-batches."""
    assert forward_order(2, 5, 3)[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert forward_order(2, 5, 3)[:, 1].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


@given(p=st.integers(1, 16), more=st.integers(0, 200))
def test_group_size_is_the_smallest_megatron_accepts(p: int, more: int) -> None:
    m = p + more
    accepted = [group for group in range(p, m + 1) if m % group == 0 or m % group >= p]
    assert int(group_size(np.asarray(p), np.asarray(m))) == accepted[0]


def test_group_size_over_columns() -> None:
    assert group_size(np.array([4, 4, 4, 2]), np.array([8, 9, 6, 5])).tolist() == [4, 5, 6, 3]
