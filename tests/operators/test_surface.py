"""The network: monotone by construction, whatever its weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.operators.gemm import FEATURES, TILES, Shapes, activate, features, log_effective_flops

HIDDEN = 12
SIZES = st.integers(1, 100_000)


def column(*values: float) -> Shapes:
    return Shapes(*(np.array([value], np.float64) for value in values))


@given(st.tuples(SIZES, SIZES, SIZES, st.integers(1, 64)), st.integers(0, 3), st.floats(1.0, 9.0), st.integers(1, 200))
def test_no_feature_falls_as_a_size_grows(sizes: tuple[int, int, int, int], grown: int, times: float, sms: int) -> None:
    larger = [float(np.ceil(size * times)) if index == grown else float(size) for index, size in enumerate(sizes)]
    for routed in (False, True):
        before, after = (features(column(*map(float, some)), sms, routed=routed) for some in (sizes, larger))
        assert np.all(after >= before - 1e-12)


@given(st.integers(0, 1000), st.tuples(SIZES, SIZES, SIZES), st.integers(0, 2), st.floats(1.0, 9.0))
def test_any_weights_above_zero_are_monotone(seed: int, sizes: tuple[int, int, int], grown: int, times: float) -> None:
    rng = np.random.default_rng(seed)
    weights = {
        "mean": np.full(FEATURES, 11.0),
        "scale": np.full(FEATURES, 3.0),
        "w1": rng.exponential(size=(FEATURES, HIDDEN)),
        "b1": rng.normal(size=HIDDEN),
        "w2": rng.exponential(size=(HIDDEN, HIDDEN)),
        "b2": rng.normal(size=HIDDEN),
        "w3": rng.exponential(size=HIDDEN),
        "skip": rng.exponential(size=FEATURES),
        "bias": np.array(20.0),
    }
    larger = [float(np.ceil(size * times)) if index == grown else float(size) for index, size in enumerate(sizes)]
    before = log_effective_flops(weights, features(column(*map(float, sizes), 1.0), 132))[0]
    after = log_effective_flops(weights, features(column(*larger, 1.0), 132))[0]
    assert after >= before - 1e-5 * (1 + abs(before))


def test_units_rise() -> None:
    z = np.linspace(-20, 20, 400, dtype=np.float32)
    assert np.all(np.diff(activate(np.tile(z, (6, 1))), axis=1) >= 0)


def test_full_waves_do_not_depend_on_how_many_multiprocessors_share_them() -> None:
    sizes = column(128.0 * 60, 256.0 * 66, 4096.0, 1.0)
    np.testing.assert_allclose(features(sizes, 132)[7], features(sizes, 66)[7])


@pytest.mark.parametrize("tokens", [16, 512, 1000, 3 * 1024])
@pytest.mark.parametrize("tall", [64, 128, 256])
def test_tiles_of_experts_are_those_of_tokens_sent_by_chance(tokens: int, tall: int) -> None:
    """Counted: tokens drawn one by one among 64 experts, and the tiles that cover each expert's."""
    groups, wide, sms = 64, 256, 1
    drawn = np.random.default_rng(7).multinomial(groups * tokens, np.full(groups, 1 / groups), size=400)
    counted = np.ceil(drawn / tall).sum(axis=1).mean()
    shapes = column(float(tokens), float(wide), 1024.0, float(groups))
    place = 7 + TILES.index((tall, wide))
    told, exact = (2 ** features(shapes, sms, routed=each)[place, 0] / (tall * wide) for each in (True, False))
    assert told == pytest.approx(counted, rel=0.08)
    assert abs(told - counted) <= abs(exact - counted) + 0.02 * counted
