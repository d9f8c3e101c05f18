"""The planner over several pools against brute force over whole steps, on small random fleets and models."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from astra import api
from astra.catalog.clusters import parse_cluster
from astra.catalog.models import model as find_model
from astra.rules.restrictions import parse_restrictions
from astra.search.fleet.detail import estimate
from astra.search.fleet.frames import FoundPipeline
from astra.search.fleet.plan import fleet_of
from astra.search.fleet.pools import Fleet, Limits, check_strategy
from astra.search.fleet.records import MixedEstimate
from astra.search.fleet.search import Planner
from tests.partition.brute_force import brute_force
from tests.tiers import sampled

TYPES = ("H100", "A100-80", "H20", "A100-40", "V100-32")


def random_fleet(rng: np.random.Generator) -> Fleet:
    """One to three pools of one to eight GPUs; a small model whose layers are so large that memory may bind."""
    kinds = rng.choice(TYPES, size=int(rng.integers(1, 4)), replace=False)
    cluster = parse_cluster("+".join(f"{rng.choice([1, 2, 4])}x{kind}" for kind in kinds))
    base = find_model("mixtral-8x7b" if rng.random() < 0.15 else "llama-2-7b")
    hidden = int(rng.choice([1024, 4096, 8192]))
    heads = 8
    spec = msgspec.structs.replace(
        base, layers=int(rng.integers(1, 7)), hidden=hidden, ffn=4 * hidden, heads=heads, kv_heads=heads,
        head_dim=hidden // heads,
    )  # fmt: skip
    job = api.make_job(
        spec, gpus=None, cluster=msgspec.structs.replace(cluster, pools=cluster.pools[:1]), node=None,
        batch=int(rng.choice([2, 3, 4, 6])), seq=int(rng.choice([512, 4096])), tokens=None, precision="fp16",
        optimizer="adam", task="pretrain", lora_rank=16, runtime="megatron", headroom=float(rng.choice([0.08, 0.5])),
    )  # fmt: skip
    return fleet_of(cluster, job, exact=False)[0]


def end_s(result: MixedEstimate) -> float:
    """What follows the pipeline in a full estimate."""
    around = sum(result.breakdown[name] for name in ("host", "stragglers"))
    return result.step_s - around - max(group.pipeline_s for group in result.groups)


@pytest.mark.parametrize("seed", sampled(range(120), every=4))
def test_the_planner_finds_the_best_of_all_steps(seed: int) -> None:
    """Every dp, mbs, stage count, order, degree and split: closed-form pipeline and end of step."""
    fleet = random_fleet(np.random.default_rng(seed))
    planner = Planner(fleet, exact=False, limits=Limits(fleet.job, parse_restrictions(fix=["vp=1"])))
    frame_space, counts = planner.frame_space, planner.counts
    frames = frame_space._frames(counts, frame_space.batch, whole=True, uniform=False)
    divided = {(dp, mbs) for dp in range(1, frame_space.batch + 1) for mbs in range(1, frame_space.batch + 1)
               if frame_space.batch % (dp * mbs) == 0 and dp <= sum(counts)}  # fmt: skip
    assert set(zip(frames.dp.tolist(), frames.mbs.tolist(), strict=True)) == divided
    least = np.inf
    for row in range(frames.rows):
        frame = frame_space._frame(frames, row)
        for span in frame_space.spans(counts, frame):
            problem, shapes = frame_space.problem(counts, frame, every=False, span=span)
            if any(problem.pools):
                least = min(least, brute_force(problem._replace(ends=frame_space.ends(frame, shapes))))
    found = planner.pipelines(counts, frame_space.batch, keep=1)
    if not np.isfinite(least):
        assert not found
        return
    assert found[0][0] == pytest.approx(least, rel=1e-9)
    confirmed(planner, found[0][1])


@pytest.mark.parametrize("seed", sampled(range(40), every=4))
def test_chunks_do_no_worse_and_are_confirmed(seed: int) -> None:
    """With chunks every frame's pipeline is the best before transfers of fill and drain are added to it."""
    planner = Planner(random_fleet(np.random.default_rng(seed)), exact=False)
    frame_space, counts = planner.frame_space, planner.counts
    frames = frame_space._frames(counts, frame_space.batch, whole=True, uniform=False)
    for row in np.flatnonzero(frames.vp > 1).tolist():
        frame = frame_space._frame(frames, row)
        problem, shapes = frame_space.problem(counts, frame, every=False)
        found = frame_space.solve(counts, frame, every=False, below=np.inf) if any(problem.pools) else None
        if found is not None:
            whole = brute_force(problem._replace(ends=frame_space.ends(frame, shapes)))
            assert found.total_s - found.fill_s == pytest.approx(whole, rel=1e-9)
            if not found.late:
                confirmed(planner, found)


def confirmed(planner: Planner, best: FoundPipeline) -> None:
    """The full estimate says the same, and the simulator nearly: without chunks never more than the closed form."""
    strategy = planner.strategy((best, int(best.frame.microbatches)))
    check_strategy(planner.fleet, strategy)
    result = estimate(planner.fleet, strategy)
    assert result.fits
    assert result.legal
    closed_s = best.value_s + best.fill_s
    assert result.groups[0].closed_form_s == pytest.approx(closed_s, rel=1e-6)
    assert end_s(result) == pytest.approx(best.total_s - closed_s, rel=1e-6, abs=1e-9)
    most = 1 + 1e-9 if best.frame.vp == 1 else 1.15
    assert 0.85 * closed_s <= result.groups[0].pipeline_s <= most * closed_s
