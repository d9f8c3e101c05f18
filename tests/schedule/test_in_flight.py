"""Activations alive, by chunk and by weight."""

from __future__ import annotations

import numpy as np
import pytest

from astra.errors import InputError
from tests.schedule.alive import in_flight_by_chunk, peak_activation_bytes


def test_by_chunk_at_the_worst_moment() -> None:
    """Rank 0 of pp4 vp2: 7 + 4 forwards ahead of the first backward, the next group of 4 starting chunk 0 again."""
    assert in_flight_by_chunk("interleaved", p=4, v=2, m=16, rank=0).tolist() == [7, 4]
    assert in_flight_by_chunk("interleaved", p=4, v=2, m=16, rank=3).tolist() == [4, 1]
    assert in_flight_by_chunk("1f1b", p=4, v=1, m=16, rank=1).tolist() == [3]


def test_equal_chunks_weigh_their_count() -> None:
    count = in_flight_by_chunk("interleaved", p=4, v=3, m=16, rank=1).sum()
    assert peak_activation_bytes("interleaved", p=4, v=3, m=16, rank=1, chunk_bytes=np.full(3, 2.5)) == 2.5 * count


def test_the_worst_moment_depends_on_the_weights() -> None:
    """Chunks of one rank peak at different moments, so their peaks do not add up."""
    light = peak_activation_bytes("interleaved", p=4, v=2, m=16, rank=3, chunk_bytes=[1.0, 0.0])
    heavy = peak_activation_bytes("interleaved", p=4, v=2, m=16, rank=3, chunk_bytes=[0.0, 1.0])
    both = peak_activation_bytes("interleaved", p=4, v=2, m=16, rank=3, chunk_bytes=[1.0, 1.0])
    assert max(light, heavy) <= both < light + heavy


def test_one_weight_per_chunk_is_wanted() -> None:
    with pytest.raises(InputError, match="chunk_bytes"):
        peak_activation_bytes("interleaved", p=4, v=2, m=8, rank=0, chunk_bytes=[1.0])
