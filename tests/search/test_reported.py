"""What was once not the best by the number it reports."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import astra
from astra.api import make_job
from astra.catalog.clusters import parse_gpus
from astra.cost.stage import gather_parts
from astra.rules.restrictions import Restrictions
from astra.search.detail import BUBBLE, as_row, estimate, layers_of
from astra.search.engine import Candidate, search
from astra.search.space import Space
from astra.search.splits import Tried, all_polished, neighbours, polished, simulated
from astra.spec.strategy import parse_strategy
from tests.properties.jobs import FREE
from tests.properties.test_best_laws import real


def test_an_uneven_interleaved_pipeline_does_not_hide_a_plain_one() -> None:
    asked: dict[str, Any] = {"gpus": "1024xA10", "batch": 1536, "seq": 4096, "top": 1, "rank": "expected"}
    free, plain = astra.plan("llama-2-70b", **asked), astra.plan("llama-2-70b", **asked, fix=["vp=1"])
    assert free.best.estimate.step_s <= plain.best.estimate.step_s * (1 + 1e-12)


@pytest.mark.parametrize(
    "strategy",
    [
        "tp8 pp1 dp2 mbs1 sp zero1 recompute=full",
        "tp8 pp2 dp1 mbs1 sp zero1 recompute=full method=block recompute_layers=3",
        "tp2 pp4 vp3 dp2 mbs1 sp zero1 recompute=full method=block recompute_layers=2 layers=1,4,2,4,2,4,2,4,2,4,2,1",
    ],
)
def test_no_cause_is_negative_where_recompute_repeats_communication(strategy: str) -> None:
    told = astra.estimate("llama-2-7b", gpus="16xA100", batch=64, seq=2048, strategy=strategy)
    assert sum(told.breakdown.values()) == pytest.approx(told.step_s, rel=1e-12)
    assert min(told.breakdown.values()) >= -1e-12 * told.step_s, told.breakdown
    assert told.bubble_fraction == told.breakdown[BUBBLE] / told.step_s


@pytest.mark.parametrize("seq", [64, 128, 256, 512])
def test_fused_attention_is_never_slower(seq: int) -> None:
    for gpu in ("H100", "A100", "B200", "L40S"):
        steps = [
            astra.estimate(
                "llama-3.2-1b", gpus=f"8x{gpu}", batch=64, seq=seq, strategy=f"tp1 dp8 mbs4 flash={flash}"
            ).step_s
            for flash in ("on", "off")
        ]
        assert steps[0] <= steps[1]


def test_an_expert_may_be_split_beyond_a_node_and_further_than_other_layers() -> None:
    asked = msgspec.structs.replace(real(3), pool=parse_gpus("32xH100"))
    space = Space(asked, FREE)
    etp, tp = space.grids["etp"], space.grids["tp"]
    assert (etp > space.facts["scaleup_gpus"]).any()
    assert (etp > tp).any()
    told = estimate(asked, [parse_strategy("tp1 pp1 ep2 etp16 dp32 mbs1 zero1")])[0]
    assert told.violations == ["dp * mbs must divide the batch (dp=32, mbs=1, batch=72)"]  # nothing about its experts


@pytest.mark.parametrize("place", [0, 2, 4, 8])
def test_no_neighbouring_split_is_better(place: int) -> None:
    asked = real(place)
    name, runtime = asked.model.name, asked.runtime.name
    gpus = f"{asked.pool.gpus}x{asked.pool.device.name}"
    work: dict[str, Any] = {
        "batch": asked.workload.global_batch,
        "seq": asked.workload.seq,
        "precision": asked.workload.precision,
    }
    best = astra.plan(name, gpus=gpus, runtime=runtime, top=1, **work).best
    strategy = parse_strategy(best.strategy)
    if strategy.pp > 1:
        step_s = estimate(asked, [strategy])[0].step_s
        assert step_s == pytest.approx(best.estimate.step_s, rel=1e-12)
        parts = gather_parts(asked, as_row(asked, strategy).meshes.columns)
        others = neighbours(layers_of(asked, strategy))
        assert not simulated(asked, [Tried(strategy, parts, others, step_s * (1 - 1e-8))])[0]


def test_strategies_polished_side_by_side_are_those_polished_alone() -> None:
    asked = make_job("llama-3-70b", gpus="64xH100", batch=1024, seq=4096)
    found = search(asked, Restrictions(), keep=6).candidates
    alone = [polished(asked, one.strategy, one.step_s, ()) for one in found]
    together = all_polished(asked, found, ())
    assert [one.strategy for one in together] == [strategy for strategy, _ in alone]
    assert [one.step_s for one in together] == pytest.approx([step_s for _, step_s in alone], rel=1e-12)
    assert together != [Candidate(*one) for one in found]
