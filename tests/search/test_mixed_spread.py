"""A plain strategy over several pools is what its ranks make of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import astra
from astra.errors import InputError
from astra.search.fleet.plan import fleet_in
from astra.search.fleet.spread import spread
from astra.search.world import World
from astra.spec.mixed import MixedStrategy
from astra.spec.request import read_request

ASKED = {"model": "llama-2-13b", "batch": 64, "seq": 4096}


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*[st.sampled_from([8, 16, 32, 64])] * 2),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4, 5]),
    st.sampled_from([1, 2]),
)
def test_every_rank_is_on_its_pool(pools: tuple[int, int], tp: int, cp: int, pp: int, vp: int) -> None:
    """Ranks dealt by hand: r counts tensor, context, data and pipeline ranks, in that order, through the pools."""
    gpus, inner = sum(pools), tp * cp
    assume(gpus % (inner * pp) == 0 and all(count % inner == 0 for count in pools) and pp * vp <= 40)
    dp = gpus // (inner * pp)
    assume(ASKED["batch"] % dp == 0)  # type: ignore[operator]
    world = World.of(read_request("plan", {**ASKED, "gpus": [f"{pools[0]}xH100", f"{pools[1]}xA100"]}))
    fleet, _ = fleet_in(world)
    sp = " sp" if tp > 1 else ""
    found = spread(fleet, f"tp{tp} cp{cp} pp{pp} vp{vp} mbs1{sp}", "strategy")
    by_hand: Counter[tuple[int, str]] = Counter()  # stage, pool
    for rank in range(gpus):
        by_hand[rank // (inner * dp), fleet.names[0 if rank < pools[0] else 1]] += 1
    assert stages_of(found) == by_hand
    assert found.samples == ASKED["batch"]
    assert found.gpus_by_pool == dict(zip(fleet.names, pools, strict=True))
    assert all(sum(group.layers) == 40 for group in found.groups)


def stages_of(strategy: MixedStrategy) -> Counter[tuple[int, str]]:
    """GPUs by stage and pool."""
    found: Counter[tuple[int, str]] = Counter()
    for group in strategy.groups:
        stage = 0
        for segment in group.segments:
            for _ in range(segment.pp):
                found[stage, segment.pool] += group.gpus(segment) // segment.pp
                stage += 1
    return found


@pytest.mark.parametrize("text", ["tp8 pp2 sp", "tp2 pp4 dp2 sp recompute=full", "tp1 pp8 dp2"])
def test_two_pools_of_the_same_gpus_are_one(text: str) -> None:
    text += " overlap=grad,param,tp"
    whole, halves = (astra.estimate(**ASKED, gpus=gpus, strategy=text) for gpus in ("16xH100", "8xH100+8xH100"))  # type: ignore[arg-type]
    assert halves.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert halves.peak_allocated_gib == pytest.approx(whole.peak_allocated_gib, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tp8 dp1 sp", "over all GPUs (8 of H100-SXM5-80GB + 16 of A100-SXM4-80GB), not over 8"),
        ("tp3 dp8 sp", "tp*cp = 3 that divides the 8 GPUs"),
        ("tp8 dp3 sp zero3", "zero2 and zero3"),
        ("dp24 offload=optimizer", "offload"),
        ("dp24 recompute=full method=block recompute_layers=3", "recompute of several layers"),
        ("pp24 dp1 schedule=gpipe", "the schedule gpipe"),
        ("pp8 vp8 dp3", "layers"),
    ],
)
def test_what_pools_have_no_words_for_is_refused(text: str, says: str) -> None:
    for name in ("strategy", "baseline"):
        call: Callable[..., object] = astra.estimate if name == "strategy" else astra.plan
        with pytest.raises(InputError, match=re.escape(says)):
            call("llama-2-13b", gpus=["8xH100", "16xA100"], batch=48, **{name: text})


@pytest.mark.parametrize("text", ["x", "tp0", "[x]", "B200: tp8", "[dp1 m1: H100-SXM5-80GB layers=40]", "dp48"])
def test_errors_in_a_baseline_name_it(text: str) -> None:
    with pytest.raises(InputError) as caught:
        astra.plan("llama-2-13b", gpus=["8xH100", "16xA100"], batch=48, baseline=text)
    assert caught.value.where == "baseline"
