"""Counts searched in blocks give what one table of all of them gives, and the bound that leaves degrees out is one."""

from __future__ import annotations

import numpy as np
import pytest

import astra
from astra.api import make_job
from astra.columns import cross, distinct
from astra.cost import memory, step
from astra.cost.pipeline import mesh_bound_s, work_bound_s
from astra.cost.stage import gather_parts, least_s, over_model, stage_costs
from astra.evidence.bars import Doubt
from astra.partition.problem import Effort
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.table import check
from astra.schedule.simulator import StageSeconds
from astra.schedule.steady import steps_s
from astra.search import blocks as streams
from astra.search.blocks import CountStream
from astra.search.bounds import layer_bytes
from astra.search.counts import CountSpace, search_counts, tabulate
from astra.search.degrees import degrees, expert_degrees
from astra.search.doubts import Doubts, least_doubts
from astra.search.floors import SHARDS, Floor, Floors, SharedFloors, most_of
from astra.search.least import least_passes
from astra.search.space import divisors
from tests.search.test_counts import CASES, case, without_limit

ASKED = (
    {"model": "mixtral-8x7b", "gpus": "96xH100", "batch": 96, "seq": 4096, "tokens": "1T", "objective": "pareto"},
    {"model": "llama-3-8b", "gpus": "128xA100-80", "batch": 120, "seq": 2048, "tokens": "1T", "objective": "cheapest"},
    {"model": "llama-3.1-8b", "gpus": "64xL40S", "batch": 60, "seq": 4096, "tokens": "1B", "objective": "pareto",
     "runtime": "torchtitan"},
)  # fmt: skip


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked["model"])
def test_blocks_give_the_same_plans(asked: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = astra.plan(**asked)  # type: ignore[arg-type]
    monkeypatch.setattr(streams, "MOST_ROWS", 200)
    monkeypatch.setattr(streams, "MOST_GRIDS", 100)
    in_blocks = astra.plan(**asked)  # type: ignore[arg-type]
    assert [plan.strategy for plan in in_blocks.plans] == [plan.strategy for plan in whole.plans]
    assert [plan.estimate.step_s for plan in in_blocks.plans] == [plan.estimate.step_s for plan in whole.plans]
    assert in_blocks.search.considered == pytest.approx(whole.search.considered, rel=1e-9)


LEVELS = (("tp", "cp", "pp", "dp"), ("ep", "etp"), ("sp", "mbs"))


@pytest.mark.parametrize("name", CASES)
def test_no_plan_is_faster_than_its_grid_allows(name: str) -> None:
    job, counts, restrictions = case(name)
    found = search_counts(job, tabulate(job, CountSpace(job, counts, restrictions)), without_limit)
    for place, strategy in enumerate(found.strategies):
        if strategy is None:
            continue
        limit_s = np.full(len(counts), found.step_s[place] * (1 + 1e-9))
        stream = CountStream(job, counts, restrictions, SharedFloors(), Effort(), np.ones(len(counts), bool))
        stream.come_closer(limit_s)
        for level in range(1, len(LEVELS) + 1):
            grid = {field: np.array([getattr(strategy, field)]) for names in LEVELS[:level] for field in names}
            assert stream.hopeful(grid, limit_s).all()
            assert not stream.hopeful(grid, 0.3 * limit_s).any()


def test_every_count_is_visited_once() -> None:
    job, counts, restrictions = case("experts")
    stream = CountStream(job, counts, restrictions, SharedFloors(), Effort(), np.ones(len(counts), bool))
    no_limit = np.full(len(counts), np.inf)
    seen: list[int] = []
    while (block := stream.next(no_limit)) is not None:
        seen += block.tolist()
    assert sorted(seen) == sorted(set(seen))
    space = CountSpace(job, counts, restrictions)
    assert set(space.gpus().tolist()) <= set(seen)


@pytest.mark.parametrize("name", CASES)
def test_floors_come_closer_and_never_pass_the_work(name: str) -> None:
    job, counts, restrictions = case(name)
    columns, shared = degrees(job, counts, restrictions), SharedFloors()
    own, again = (_closer_and_closer(Floors(job, restrictions, columns, shared, Effort())) for _ in range(2))
    assert len(again) > len(own)  # what the same GPU left behind comes first, also of ways to split experts
    parts = gather_parts(job, own[-1].rows)
    work_s = over_model(job, parts, least_s) * own[-1].rows["tp"] * own[-1].rows["cp"] / own[-1].rows["mbs"]
    kind = most_of(job)
    layer_s = least_s(parts.parts[kind])[parts.place] * work_s / over_model(job, parts, least_s)
    for floors in (own, again):
        assert floors[-1].sample_s == pytest.approx(work_s, rel=1e-12)
        assert floors[-1].layer_s == pytest.approx(layer_s, rel=1e-12)
        for looser in floors:
            assert (looser.sample_s <= floors[-1].sample_s * (1 + 1e-9)).all()
            assert (looser.through_s <= floors[-1].through_s * (1 + 1e-9)).all()
            assert (looser.layer_s <= floors[-1].layer_s * (1 + 1e-9)).all()


def _closer_and_closer(floors: Floors) -> list[Floor]:
    found = [floors.opened()]
    for closer in floors.closer_and_closer():
        found.append(closer(found[-1]))
    return [floors.expanded(each) for each in found[1:]]


@pytest.mark.parametrize("name", CASES)
def test_ways_to_split_experts_are_those_that_rules_allow(name: str) -> None:
    """Split experts are one row until they are expanded: then there is each way that a plain loop over all finds."""
    job, counts, restrictions = case(name)
    columns = degrees(job, counts, restrictions)
    floors = Floors(job, restrictions, columns, SharedFloors(), Effort())
    found = floors.expanded(floors.opened()).rows
    rules = [rule for rule in rules_of(job.runtime) if rule.name != "gpus"]
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
    first, _ = distinct(columns["tp"], columns["cp"])
    every: dict[str, np.ndarray] = {field: columns[field][first] for field in ("tp", "cp")}
    sp, mbs = restrictions.filter("sp", (False, True)), restrictions.filter("mbs", divisors(job.workload.global_batch))
    choices = expert_degrees(job, restrictions), {"sp": np.array([*sp])}, {"mbs": np.array([*mbs])}
    for more in choices:
        every, _ = cross(every, more)
    every["flash"] = np.full(len(every["tp"]), True)
    legal = check(every, facts, rules).ok & memory.fits(job, layer_bytes(job, every))
    rows = {tuple(int(every[field][row]) for field in SHARDS) for row in np.flatnonzero(legal)}
    assert rows == {tuple(int(found[field][row]) for field in SHARDS) for row in range(len(found["tp"]))}
    assert len(found["tp"]) == len(rows) > 0


@pytest.mark.parametrize("p", [2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 5, 13, 63])
def test_no_pipeline_passes_its_stages_less_often(p: int, m: int) -> None:
    job = case("dense")[0]
    shared = np.random.default_rng(0).dirichlet(np.full(p, 3.0), 200) / 3
    nothing = np.zeros_like(shared)
    least = float(least_passes(job, np.array([m]), np.array([p]))[0])
    assert (least > m / p) == (m % p != 0)  # elsewhere Megatron may cut the stages into chunks
    for schedule in ("1f1b", "gpipe"):
        stages = StageSeconds(shared, 2 * shared, nothing, nothing[:, 1:])
        took_s = steps_s(schedule, p=p, v=1, m=m, stages=stages, blocking_p2p=False)
        assert least <= took_s.min() * (1 + 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_quick_bounds_of_grids_are_below_what_their_meshes_take(name: str) -> None:
    """Whole layers of each kind, an even share and the stages that wait: no mesh of a grid is bounded lower."""
    job, counts, _ = case(name)
    table = tabulate(job, CountSpace(job, counts))
    rows = np.arange(0, len(table.grids), max(len(table.grids) // 400, 1))
    meshes, _, grid = table.space.expand(table.grids[rows])
    at = np.searchsorted(table.grids, grid)
    parts = table.gathered.take(at)
    whole_s = mesh_bound_s(meshes, stage_costs(job, meshes, parts))
    assert (work_bound_s(job, meshes, parts) == whole_s).all()  # whichever meshes are bounded together
    bound_s = step.least_seconds(job, whole_s, table.waits[table.place[at]])
    assert len(meshes)
    assert (table.bound_s[at] <= bound_s * (1 + 1e-9)).all()
    assert (meshes.columns["pp"] > 1).any()


def test_no_strategy_is_doubted_less_than_the_least() -> None:
    """Offers are passed over by it, so that it has to hold for every strategy of a space."""
    job, counts, restrictions = case("experts")
    space = CountSpace(job, counts, restrictions)
    place, rows = space.place, np.arange(len(space.place))
    doubts = Doubts(job, counts, upper=True).least(space, rows, place)
    assert (least_doubts(job, counts, upper=True)[place] <= doubts * (1 + 1e-12)).all()
    assert (least_doubts(job, counts, upper=False) == 1).all()


@pytest.mark.parametrize("gpus", ["144xGB200", "32xH100"])
def test_every_number_of_gpus_is_doubted_as_if_it_were_asked_for_alone(gpus: str) -> None:
    """Numbers of GPUs share their doubts: also where experts are spread over all that one rack's links join."""
    job = make_job("qwen3-30b-a3b", gpus=gpus, batch=256, seq=4096)
    counts = np.arange(job.pool.node.gpus, job.pool.gpus + 1, job.pool.node.gpus)
    space = CountSpace(job, counts)
    rows = np.arange(0, len(space.place), max(len(space.place) // 500, 1))
    rows = np.union1d(rows, np.flatnonzero(space.grids["ep"] == space.gpus())[:100])
    meshes, _, grid = space.expand(rows)
    place = space.place[grid]
    together = Doubts(job, counts, upper=True).of_each(meshes.columns, space.shardings, place)
    for count in np.unique(place).tolist():
        some = np.flatnonzero(place == count)
        columns = {name: column[some] for name, column in meshes.columns.items()}
        alone = Doubt(job.on(int(counts[count]))).of_each(columns, space.shardings.zero, space.shardings.offload)
        assert (together[some] == alone).all()
