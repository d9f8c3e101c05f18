"""Stages are sums of parts: over ranks they give the whole model, and kinds of rank give what ranks give."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given

from astra.catalog import runtimes
from astra.catalog.clusters import parse_gpus
from astra.columns import take
from astra.cost import gathered
from astra.cost.stage import StageCosts, expert_groups, gather_parts, join_meshes, shard_groups, stage_costs
from astra.layers.weights import count, tied_head_weights
from astra.provenance import Floats
from astra.search.detail import as_row
from astra.search.space import Space
from astra.spec.job import Job
from astra.spec.runtime import changed
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload
from tests.oracle.requests import model
from tests.properties.jobs import FREE, job, jobs, with_work
from tests.tiers import drawn


def costed(asked: Job, every_rank: bool) -> tuple[Space, StageCosts] | None:
    space = Space(asked, FREE)
    if not len(space.strategies):
        return None
    meshes, _, _ = space.expand(np.arange(len(space.strategies)))
    if not len(meshes):
        return None
    return space, stage_costs(asked, meshes, gather_parts(asked, meshes.columns), every_rank=every_rank)


@drawn(25, few=9)
@given(jobs)
def test_kinds_of_rank_are_as_slow_and_as_full_as_all_ranks(asked: Job) -> None:
    stage_kinds, ranks = costed(asked, False), costed(asked, True)
    if stage_kinds is None or ranks is None:
        return
    for name in ("forward_s", "backward_s", "weight_s", "kept_whole", "kept_checkpoint", "layer_working", "head_bytes"):
        few, all_ = (getattr(found[1], name).max(axis=1) for found in (stage_kinds, ranks))
        np.testing.assert_allclose(few, all_, err_msg=name)
    alive = [found[1].kept_whole * found[1].in_flight for found in (stage_kinds, ranks)]
    np.testing.assert_allclose(alive[0].max(axis=1), alive[1].max(axis=1))


@drawn(25, few=9)
@given(jobs)
def test_ranks_add_up_to_the_model(asked: Job) -> None:
    """One depth at a time: beside a longer pipeline a table repeats its first rank."""
    space = Space(asked, FREE)
    if not len(space.strategies):
        return
    meshes, _, _ = space.expand(np.arange(len(space.strategies)))
    for pp in np.unique(meshes.columns["pp"]):
        some = meshes.take(meshes.columns["pp"] == pp)
        costs = stage_costs(asked, some, gather_parts(asked, some.columns), every_rank=True)
        for name in ("forward", "backward", "weight"):
            by_rank = getattr(costs, f"{name}_s")[:, :pp].sum(axis=1)
            np.testing.assert_allclose(by_rank, getattr(costs.over, f"{name}_s"))
        np.testing.assert_allclose(costs.recompute_s[:, :pp].sum(axis=1), costs.over.recompute_s)
        alone = some.columns["vp"] == 1
        for name in ("forward", "backward", "weight", "recompute"):
            by_rank, before = getattr(costs, f"{name}_s")[alone, :pp], getattr(costs.before, f"{name}_s")[alone, :pp]
            np.testing.assert_allclose(before, np.cumsum(by_rank, axis=1) - by_rank, atol=1e-15)
            if pp > 1:  # a lone stage also has the embedding
                np.testing.assert_allclose(getattr(costs.final, f"{name}_s")[alone], by_rank[:, -1], atol=1e-15)


@pytest.mark.parametrize("kind", ["dense", "tied", "moe", "mla", "encdec"])
def test_parameters_add_up_to_the_models(kind: str) -> None:
    asked = with_work(msgspec.structs.replace(job(5), model=model(kind)), task="pretrain", seq=128, global_batch=8)
    space = Space(asked, FREE)
    meshes, _, _ = space.expand(np.arange(len(space.strategies)))
    plain = (meshes.columns["tp"] == 1) & (meshes.columns["ep"] == 1)
    for pp in np.unique(meshes.columns["pp"][plain]):
        some = meshes.take(plain & (meshes.columns["pp"] == pp))
        held = stage_costs(asked, some, gather_parts(asked, some.columns), every_rank=True).held
        copy = tied_head_weights(asked.model).total if pp > 1 else 0
        np.testing.assert_allclose((held.dense + held.expert)[:, :pp].sum(axis=1), count(asked.model).total + copy)


def test_joined_meshes_are_the_meshes() -> None:
    space = Space(job(3), FREE)
    meshes, _, _ = space.expand(np.arange(len(space.strategies)))
    half = len(meshes) // 2
    again = join_meshes([meshes.take(np.arange(half)), meshes.take(np.arange(half, len(meshes)))])
    assert len(again) == len(meshes)
    for name, column in meshes.columns.items():
        assert np.array_equal(again.columns[name], column)
    costs = stage_costs(job(3), meshes, gather_parts(job(3), meshes.columns))
    assert np.array_equal(take(costs, np.arange(half)).forward_s, costs.forward_s[:half])


def habits(gpus: int, strategy: Strategy, **changes: float) -> StageCosts:
    """Stage costs on some GPUs under a runtime with other habits."""
    runtime = changed(runtimes.runtime("megatron"), **changes)
    spec = model("dense", layers=4, heads=8, kv_heads=8)
    work = Workload(global_batch=16, seq=512)
    asked = Job(model=spec, pool=parse_gpus(f"{gpus}xH100"), workload=work, runtime=runtime)
    row = as_row(asked, strategy)
    return stage_costs(asked, row.meshes, gather_parts(asked, row.meshes.columns))


def test_a_pipeline_across_nodes_slows_collectives_and_one_inside_a_node_does_not() -> None:
    across, inside = Strategy(tp=8, pp=2, sp=True), Strategy(tp=4, pp=2, sp=True)
    for gpus, strategy, slower in ((16, across, True), (8, inside, False)):
        usual, slow = (habits(gpus, strategy, pipelined_collective_s=seconds) for seconds in (0.0, 1e-2))
        assert (slow.forward_s > 2 * usual.forward_s).all() == slower
        assert np.array_equal(slow.forward_s, usual.forward_s) != slower
    alone = [habits(8, Strategy(tp=8, sp=True), pipelined_collective_s=seconds) for seconds in (0.0, 1e-2)]
    assert np.array_equal(alone[0].forward_s, alone[1].forward_s)


def test_what_collectives_queue_grows_with_the_lag_of_the_gpu() -> None:
    """None without tensor parallelism; all of it where the host takes no time, nearly none where it is very slow."""
    sharded = Strategy(tp=2, sp=True)
    kept = [
        habits(2, sharded, queued_activations=copies, launch_s=launch_s, backward_s=launch_s).kept_whole.item()
        for copies, launch_s in ((0.0, 0.0), (2.0, 0.0), (2.0, 1.0))
    ]
    assert kept[0] <= kept[2] < 1.001 * kept[0] < kept[1]
    one = [habits(2, Strategy(dp=2), queued_activations=copies).kept_whole.item() for copies in (0.0, 2.0)]
    assert one[0] == one[1]


def test_what_collectives_queue_is_bounded_by_the_queue_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many micro-batches a rank holds; where none follow those that fill the pipeline, it is that of one."""

    def queued(mbs: int) -> Floats:
        strategy, quick = Strategy(tp=2, pp=2, sp=True, mbs=mbs), {"launch_s": 1e-9, "backward_s": 1e-9}
        kept, without = (habits(4, strategy, queued_activations=copies, **quick) for copies in (2.0, 0.0))
        return (kept.kept_whole - without.kept_whole) * kept.in_flight / mbs

    first, last = queued(1)[0]
    assert first == pytest.approx(2 * last)  # the first stage holds two micro-batches
    assert queued(8)[0] == pytest.approx([last, last])  # two of 8 samples fill the pipeline
    monkeypatch.setattr(gathered, "QUEUED_LAUNCHES", 50)
    bounded = queued(1)[0]
    assert bounded[0] == pytest.approx(bounded[1])
    assert bounded[0] < last


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_states_are_sharded_over_all_replicas_or_groups_of_them(cp: int) -> None:
    """Experts by expert parallelism have as many times fewer replicas; groups of shards are as many times smaller."""
    columns = {name: np.array([size]) for name, size in {"tp": 2, "cp": cp, "dp": 8, "ep": 4, "etp": 1}.items()}
    every, _ = expert_groups(columns)
    assert int(every[0]) == 2 * cp * 8 // 4
    whole, halves = job(2), with_shards(job(2), 4)
    assert [int(ranks[0]) for ranks in shard_groups(whole, columns, every)] == [8 * cp, 4 * cp]
    assert [int(ranks[0]) for ranks in shard_groups(halves, columns, every)] == [4 * cp, 2 * cp]


def with_shards(asked: Job, shard: int) -> Job:
    """A job whose states are sharded over so many replicas."""
    return msgspec.structs.replace(asked, settled=msgspec.structs.replace(asked.words, shard=shard))
