"""One state over all groups in unequal parts: what each GPU then holds, what it costs, and that the best is found."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import astra
from astra.search.fleet import search
from astra.search.fleet.detail import estimate
from astra.search.fleet.plan import fleet_in
from astra.search.fleet.pools import Limits
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.search.fleet.shared import rooms_gib, sharing_state, water_level, with_room
from astra.search.lost import held_by
from astra.search.world import World
from astra.spec.mixed_text import parse_mixed
from astra.spec.request import read_request, requested
from tests.tiers import drawn, sampled

LARGE, SMALL = "A100-SXM4-80GB", "A100-SXM4-40GB"
ASKED: dict[str, Any] = {"gpus": ["4xA100-80", "4xA100-40"], "batch": 24, "seq": 4096, "runtime": "pytorch"}
GROUPS = f"[m3: {LARGE} dp4 mbs1 zero3 reshard=always layers=32] [m3: {SMALL} dp4 mbs1 zero3 reshard=always layers=32]"


def shared(shares: tuple[int, int], groups: str = GROUPS, **other: Any) -> MixedEstimate:
    """Llama-3.1-8B on four GPUs of much memory and four of little, which hold such shares of its state."""
    text = f"shares={shares[0]},{shares[1]} {groups}"
    found = astra.estimate("llama-3.1-8b", strategy=text, **(ASKED | other))
    assert isinstance(found, MixedEstimate)
    return found


def room() -> dict[str, float]:
    """By pool, what may be allocated on a GPU."""
    return rooms_gib(fleet_in(World.of(read_request("plan", ASKED | {"model": "llama-3.1-8b"})))[0])


def states_gib(estimate: Any) -> list[float]:
    """Weights, gradients and optimizer of a GPU of each stage."""
    return [sum(stage.memory[kind] for kind in ("weights", "gradients", "optimizer")) for stage in estimate.stages]


@drawn(20, few=8)
@given(st.integers(0, 50), st.sampled_from(["pytorch", "megatron"]))
def test_all_gpus_hold_the_same_state_together_whatever_the_shares(one: int, runtime: str) -> None:
    even, found = (shared(pair, runtime=runtime) for pair in ((25, 25), (one, 50 - one)))
    assert sum(states_gib(found)) == pytest.approx(sum(states_gib(even)))
    first, second = states_gib(found)
    assert first * (50 - one) == pytest.approx(second * one, abs=1e-6)
    assert [group.state_share for group in found.groups] == pytest.approx([one / 50, 1 - one / 50])


@pytest.mark.parametrize("runtime", ["pytorch", "megatron"])
def test_even_parts_are_those_of_as_many_gpus_of_one_pool(runtime: str) -> None:
    """ZeRO-3 over eight GPUs is the same whether they are one pool or two: memory to the byte, and its collectives."""
    alone = astra.estimate(
        "llama-3.1-8b", gpus="8xA100-40", batch=24, seq=4096, runtime=runtime, strategy="dp8 mbs1 zero3 reshard=always"
    )
    found = shared((1, 1), runtime=runtime)
    assert found.stages[1].memory == pytest.approx(alone.stages[0].memory)
    assert found.stages[1].peak_reserved_gib == pytest.approx(alone.stages[0].peak_reserved_gib)
    assert found.stages[1].communication_s["dp"] >= 0.99 * alone.stages[0].communication_s["dp"]


def test_the_largest_part_is_what_collectives_wait_for() -> None:
    steps = [shared((share, 100 - share)).step_s for share in range(50, 101, 10)]
    assert steps == sorted(steps)
    assert steps[-1] > 1.1 * steps[0]
    busy = [shared(pair).stages[0].communication_s["dp"] for pair in ((1, 1), (1, 0))]
    assert busy[1] == pytest.approx(2 * busy[0])  # four of eight hold all: each of their parts is twice as long


def test_a_fleet_that_does_not_fit_evenly_fits_unevenly() -> None:
    """The planner's shares against every second share of a hundred, each estimated."""
    assert not shared((1, 1)).fits
    every = {share: shared((share, 100 - share)) for share in range(0, 101, 2)}
    fitting = {share: one.step_s for share, one in every.items() if one.fits}
    assert fitting
    assert 50 < min(fitting) <= max(fitting) <= 100
    found = with_room(parse_mixed(GROUPS).groups, lambda one: shared(one.shares), room())  # type: ignore[arg-type]
    assert found is not None
    best = shared(found.shares)  # type: ignore[arg-type]
    assert best.fits
    assert best.step_s <= min(fitting.values())
    assert best.runs_on == ["PyTorch trainer"]
    assert all("a copy of the state in every group" in best.needs[name] for name in ("Megatron-LM", "FlagScale"))


def test_no_shares_are_found_where_none_fit() -> None:
    large = GROUPS.replace("mbs1", "mbs3").replace("m3", "m1")
    assert not any(shared((share, 50 - share), large).fits for share in range(0, 51, 5))
    groups = parse_mixed(large).groups
    assert with_room(groups, lambda one: shared(one.shares, large), room()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "gpus", "batch", "runtime"),
    sampled(
        [
            ("llama-2-7b", ["2xA100-80", "4xL4"], 12, "megatron"),
            ("llama-2-13b", ["4xA100-80", "2xRTX4090"], 18, "pytorch"),
        ],
        every=2,
        rows=True,
    ),
)
def test_the_best_work_and_shares_are_found(model: str, gpus: list[str], batch: int, runtime: str) -> None:
    """Against every size of micro-batch and recompute of both pools, and every fifth of the state."""
    asked = {"gpus": gpus, "batch": batch, "seq": 2048, "runtime": runtime}
    fleet, _ = fleet_in(World.of(requested("plan", model, asked)))
    (one, some), (other, more) = (
        (pool.gpus, name) for pool, name in zip(fleet.cluster.pools, fleet.names, strict=True)
    )
    depth, steps = fleet.job.model.layers, []
    for first, second in product(range(1, batch // one + 1), range(1, batch // other + 1)):
        if batch % (one * first + other * second):
            continue
        m = batch // (one * first + other * second)
        for again in product(("none", "full"), repeat=2):
            tail = f"zero3 reshard=always layers={depth}"
            text = f"[m{m}: {some} dp{one} mbs{first} recompute={again[0]} {tail}]"
            text += f" [m{m}: {more} dp{other} mbs{second} recompute={again[1]} {tail}]"
            for fifths in range(6):
                strategy = parse_mixed(f"shares={fifths},{5 - fifths} {text}", fleet.usual)
                result = estimate(fleet, strategy)
                steps += [result.step_s] * (result.fits and result.legal)
    found = sharing_state(
        fleet, Limits(fleet.job), (one, other), lambda it: estimate(fleet, it), every=True, below_s=float("inf")
    )
    assert min(estimate(fleet, it).step_s for it in found) <= min(steps)


def plan(**other: Any) -> MixedPlanSet:
    found = astra.plan("llama-3.1-8b", **(ASKED | other))
    assert isinstance(found, MixedPlanSet)
    return found


@pytest.mark.parametrize("case", sampled([{}, {"gpus": ["2xA100-80", "4xL4"], "batch": 8, "seq": 2048}], every=2))
def test_a_fleet_is_never_slower_for_it(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(**case).best
    with monkeypatch.context() as without:
        without.setattr(search, "sharing_state", lambda *_, **__: [])
        other = plan(**case).best
    assert found.estimate.step_s <= other.estimate.step_s
    if not case:  # even parts do not fit, see above
        assert found.estimate.step_s < 0.98 * other.estimate.step_s
        best = parse_mixed(found.strategy)
        assert best.shares[0] > best.shares[1] > 0
        assert all(group.plain is not None and group.plain.recompute == "none" for group in best.groups)


def test_restrictions_leave_it_out() -> None:
    """Also those that leave no recompute or no micro-batch that it is looked for with."""
    for restriction in ({"forbid": ["groups"]}, {"fix": ["tp=2"]}):
        assert not any("shares" in one.strategy for one in plan(top=20, **restriction).plans)
    for fixed in ("mbs=64", "recompute=selective"):
        found = astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], batch=256, seq=4096, fix=[fixed])
        assert not any("shares" in one.strategy for one in found.plans)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 16)), min_size=2, max_size=4))
def test_the_water_level_is_the_least(pools: list[tuple[float, int]]) -> None:
    most, replicas = [limit for limit, _ in pools], [count for _, count in pools]
    level, room = water_level(most, replicas), sum(limit * count for limit, count in pools)

    def dealt(height: float) -> float:
        return sum(min(height, limit) * count for limit, count in pools)

    if level is None:
        assert room < 1
        return
    assert dealt(level) == pytest.approx(1)
    assert dealt(0.999 * level) < 1
    corners = [height / 100 for height in range(101) if dealt(height / 100) >= 1]
    assert level <= min(corners, default=1.0) + 1e-9


def test_a_lost_node_takes_its_part_of_the_state_with_it() -> None:
    """With a copy in each group all of it is still there; of one state the part of that node is not."""
    world = World.of(read_request("plan", {"model": "llama-3.1-8b", **ASKED}))
    for pool, share in ((LARGE, 3), (SMALL, 1)):
        own, one = (held_by(world, text, pool) for text in (GROUPS, f"shares=3,1 {GROUPS}"))
        assert (own.copies, one.copies) == (2, 1)
        assert 4 / one.gpus == pytest.approx(share / 4)  # four GPUs are the node
