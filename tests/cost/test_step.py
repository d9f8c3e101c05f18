"""The step of every combination: recomputes trade time for memory, and the bound is the simulation for one stage."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from astra.columns import code
from astra.cost.memory import Sharding, activations, least_peak, reserved_bytes, states
from astra.cost.parts import Direction
from astra.cost.recompute import Recomputes, recompute_s
from astra.cost.stage import Gathered, Meshes, StageCosts, gather_parts, stage_costs
from astra.cost.step import Evaluated, evaluate, least_seconds, most_pipeline_s
from astra.search.detail import Row, as_row, estimate, simulated
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace
from tests.properties.jobs import choices, job
from tests.tiers import drawn

Choice = tuple[Job, Strategy]


def in_columns(asked: Job, row: Row) -> Evaluated:
    costs = stage_costs(asked, row.meshes, gather_parts(asked, row.meshes.columns))
    return evaluate(asked, row.meshes, costs, row.recomputes, row.shardings)


@drawn(60, few=20)
@given(choices, st.sampled_from(("none", "selective", "full")), st.integers(0, 3))
def test_one_stage_is_simulated_as_the_bound_says(choice: Choice, recompute: str, zero: int) -> None:
    asked, strategy = choice
    assume(strategy.pp == 1)
    some = replace(strategy, recompute=recompute, zero=zero, offload="none")
    found, answer = in_columns(asked, as_row(asked, some)), estimate(asked, [some])[0]
    assert float(found.bound_s[0, 0, 0]) == pytest.approx(answer.step_s, rel=1e-9)
    assert float(found.peak_bytes[0, 0, 0]) == pytest.approx(answer.peak_allocated_gib * 2**30, rel=1e-9)


@drawn(60, few=20)
@given(choices)
def test_memory_is_the_same_in_both(choice: Choice) -> None:
    asked, strategy = choice
    found, answer = in_columns(asked, as_row(asked, strategy)), estimate(asked, [strategy])[0]
    assert float(found.peak_bytes[0, 0, 0]) == pytest.approx(answer.peak_allocated_gib * 2**30, rel=1e-9)


def without_ends(asked: Job, meshes: Meshes) -> tuple[Gathered, StageCosts]:
    """Parts whose embedding and head take no time, so that equal layers make equal stages."""
    gathered = gather_parts(asked, meshes.columns)
    parts = dict(gathered.parts)
    for key in ("embedding", "head"):
        part = parts[key]
        nothing = np.zeros_like(part.weight_s)
        silent = dict.fromkeys(part.forward.busy_s, nothing)
        still = Direction(nothing, nothing, nothing, nothing, nothing, silent, silent, silent, nothing, nothing)
        parts[key] = part._replace(forward=still, backward=still, weight_s=nothing)
    bare = gathered._replace(parts=parts)
    return bare, stage_costs(asked, meshes, bare, every_rank=True)


@drawn(60, few=20)
@given(choices, st.sampled_from((2, 4)), st.sampled_from((1, 2)), st.integers(1, 4), st.booleans())
def test_equal_stages_are_simulated_as_the_bound_says(
    choice: Choice, pp: int, vp: int, rounds: int, hidden: bool
) -> None:
    asked = choice[0]
    assume(asked.model.name in ("tiny-dense", "tiny-gpt", "tiny-gqa"))
    spec = msgspec.structs.replace(asked.model, layers=8)
    work = msgspec.structs.replace(asked.workload, global_batch=rounds * pp)
    asked = msgspec.structs.replace(asked, model=spec, workload=work)
    overlap = ("grad", "param", "p2p") if vp > 1 and hidden else ("grad", "param")
    strategy = Strategy(pp=pp, vp=vp, mbs=1, zero=1, overlap=overlap, schedule="interleaved" if vp > 1 else "1f1b")
    row = as_row(asked, strategy)
    bare, costs = without_ends(asked, row.meshes)
    simulated_s, _ = simulated(asked, row, bare, np.zeros(pp))
    none = recomputes(("none", "uniform", 1))
    alone = Sharding(*(np.zeros(1, np.int64) for _ in Sharding._fields))
    result = evaluate(asked, row.meshes, costs, none, alone)
    # One replica, so that nothing but the pipeline, the update and the host is left.
    pipeline_s = float(result.bound_s[0, 0, 0]) / (1 + asked.straggling) - asked.runtime.host.step_s
    answer = estimate(asked, [replace(strategy, zero=0, overlap=overlap)])[0]
    update_s = max(stage.optimizer_s for stage in answer.stages)
    assert pipeline_s - update_s == pytest.approx(simulated_s, rel=1e-6, abs=1e-9)


@drawn(120, few=40)
@given(
    choices, st.sampled_from(("none", "selective", "full")), st.integers(1, 4), st.integers(0, 3), st.integers(0, 99)
)
def test_the_bound_is_never_above_the_simulation(choice: Choice, kind: str, n: int, zero: int, seed: int) -> None:
    """Of any split of the layers, chunks and recomputes."""
    asked, strategy = choice
    rng = np.random.default_rng(seed)
    depth = asked.model.layers + (asked.model.encoder.layers if asked.model.encoder else 0)
    vp = int(rng.integers(1, depth // strategy.pp + 1)) if strategy.pp > 1 else 1
    cuts = np.sort(rng.integers(0, depth + 1, strategy.pp * vp - 1)).tolist()
    layers = tuple(int(count) for count in np.diff([0, *cuts, depth]))
    several = ("zbv", "interleaved")[int(rng.integers(0 if vp == 2 else 1, 2))]
    schedule = several if vp > 1 else str(rng.choice(["1f1b", "gpipe", "zb"]))
    some = replace(
        strategy, vp=vp, layers=layers, schedule=schedule if strategy.pp > 1 else "1f1b", zero=zero, offload="none",
        recompute=kind, method="block" if kind == "full" else "uniform", recompute_layers=n if kind == "full" else 1,
    )  # fmt: skip
    bound_s = float(in_columns(asked, as_row(asked, some)).bound_s[0, 0, 0])
    assume(bool(np.isfinite(bound_s)))  # the schedule is defined for the micro-batches
    assert bound_s <= estimate(asked, [some])[0].step_s * (1 + 1e-12)


@drawn(60, few=20)
@given(choices)
def test_the_simulation_is_never_below_its_bound(choice: Choice) -> None:
    asked, strategy = choice
    assume(strategy.pp > 1)
    answer = estimate(asked, [strategy])[0]
    busiest_s = max(
        stage.compute_s + sum(seconds for axis, seconds in stage.exposed_s.items() if axis != "dp")
        for stage in answer.stages
    )
    assert answer.step_s >= busiest_s


def recomputes(*rows: tuple[str, str, int]) -> Recomputes:
    table = np.array([(code("recompute", kind), code("method", method), n) for kind, method, n in rows], np.int64)
    first = (table[:, 0] == code("recompute", "selective")).astype(np.int64)  # core attention
    return Recomputes(table[:, 0], table[:, 1], table[:, 2], first, 0 * first)


def test_what_recomputing_keeps_and_costs() -> None:
    """Eight layers on one rank: what each way of recomputing keeps and costs."""
    asked = msgspec.structs.replace(job(2), model=msgspec.structs.replace(job(2).model, layers=8))
    row = as_row(asked, Strategy(dp=2, mbs=1))
    costs = stage_costs(asked, row.meshes, gather_parts(asked, row.meshes.columns))
    some = recomputes(
        ("none", "uniform", 1), ("selective", "uniform", 1), ("full", "block", 2), ("full", "block", 8),
        ("full", "uniform", 1), ("full", "uniform", 4), ("full", "uniform", 8),
    )  # fmt: skip
    found = activations(costs, row.meshes.columns["vp"], some)
    layers = costs.chunk_layers[:, None, :]
    again = recompute_s(costs.recompute_s[:, None, :], costs.modules_s[:, None, :], layers, some)[0, :, 0]
    kept = found.kept_bytes[0, :, 0]
    none, selective, two, eight, every, fourth, one = range(7)
    assert kept[none] > kept[selective] > kept[eight] == pytest.approx(kept[every])
    assert kept[two] == pytest.approx(0.25 * kept[every] + 0.75 * kept[none])
    assert kept[fourth] == pytest.approx(kept[every] / 4)
    assert kept[one] == pytest.approx(kept[every] / 8)
    assert again[none] == 0 < again[selective] < again[every]
    assert again[two] == pytest.approx(again[eight] / 4)
    assert again[eight] == pytest.approx(again[every]) == again[one]
    working = found.layer_bytes[0, :, 0]
    assert working[one] >= working[fourth] >= working[every] >= working[none]
    assert working[two] == working[none]  # six layers kept whole are given back before the first two are run again
    assert working[eight] == working[every]


@drawn(60, few=20)
@given(choices)
def test_no_recompute_or_sharding_needs_less_than_the_least(choice: Choice) -> None:
    asked, strategy = choice
    row = as_row(asked, strategy)
    costs = stage_costs(asked, row.meshes, gather_parts(asked, row.meshes.columns))
    deepest = int(costs.chunk_layers.max())
    full = [("full", method, n) for method in ("uniform", "block") for n in range(1, deepest + 1)]
    some = recomputes(("none", "uniform", 1), ("selective", "uniform", 1), *full)
    narrow = np.array([0, 0, 0, 0, 0, 1, 0])
    shardings = Sharding(
        np.array([0, 1, 2, 3, 1, 1, 3]), np.array([0, 0, 0, 0, 1, 0, 0]), narrow, np.array([0] * 6 + [1])
    )
    least = least_peak(states(asked, costs, shardings), costs, row.meshes.columns["vp"])
    peak = evaluate(asked, row.meshes, costs, some, shardings).peak_bytes
    assert np.all(least <= peak.min(axis=1) * (1 + 1e-12))


def test_a_recompute_exists_only_where_its_layers_do() -> None:
    asked = msgspec.structs.replace(job(2), model=msgspec.structs.replace(job(2).model, layers=8))
    row = as_row(asked, Strategy(pp=2, mbs=1))
    costs = stage_costs(asked, row.meshes, gather_parts(asked, row.meshes.columns))
    some = recomputes(("none", "uniform", 1), ("full", "block", 4), ("full", "block", 5))
    found = evaluate(asked, row.meshes, costs, some, row.shardings)
    assert found.known[0, :, 0].tolist() == [True, True, False]


def test_reserved_memory_is_above_allocated() -> None:
    asked = job(2)
    allocated = np.array([0.0, 1e9, 8e10])
    assert np.all(reserved_bytes(asked, allocated) >= allocated)


@given(st.integers(0, 40), st.floats(1e-3, 1e3), st.floats(1.0, 1.1))
def test_the_longest_pipeline_of_a_step_makes_that_step(seed: int, step_s: float, waits: float) -> None:
    asked = job(seed)
    longest_s = most_pipeline_s(asked, np.array([step_s]), np.array([waits]))
    assert float(least_seconds(asked, longest_s, np.array([waits]))[0]) == pytest.approx(step_s)
