"""Fleets that are not whole: broken servers, servers of several makes, pools that fail or go, a node that is lost."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.catalog.clusters import parse_cluster, read_cluster
from astra.money.rates import MTBF_GPU_S
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.units import GIB

MODEL = "llama-3.2-1b"
STATE_GIB = 1_235_814_400 * 14 / GIB  # weights in bf16, master copies and moments


def test_a_broken_server_is_a_pool_of_its_own() -> None:
    assert [pool.gpus for pool in parse_cluster("13xH100").pools] == [8, 5]
    assert [pool.gpus for pool in parse_cluster("16xH100").pools] == [16]
    assert [pool.gpus for pool in parse_cluster("5xH100").pools] == [5]
    assert [pool.gpus for pool in parse_cluster("13xH100+9xA100").pools] == [8, 5, 8, 1]


def test_a_broken_server_helps() -> None:
    """More GPUs are never slower than the whole servers alone, and at most as fast as their number says."""
    asked: dict[str, Any] = {"batch": 32, "seq": 2048, "fix": "vp=1"}
    whole = astra.plan(MODEL, gpus="8xH100", **asked).best.estimate.tokens_per_s
    broken = astra.plan(MODEL, gpus="13xH100", **asked).best.estimate
    assert isinstance(broken, MixedEstimate)
    assert whole <= broken.tokens_per_s * (1 + 1e-9) < 1.7 * whole


def fleet(tmp_path: Any, more: str) -> Any:
    file = tmp_path / "fleet.toml"
    file.write_text(
        f'[[pool]]\ngpu = "H100"\ncount = 8\nname = "a"\n[[pool]]\ngpu = "H200"\ncount = 8\nname = "b"\n{more}'
    )
    return read_cluster(file)


GROUPS = "[dp8 mbs1 m2: a layers=16] [dp8 mbs1 m2: b layers=16]"


def priced(cluster: Any) -> Any:
    found = astra.estimate(
        MODEL, cluster=cluster, batch=32, seq=2048, tokens=1e11, strategy=GROUPS, money={"usd_per_gpu_h": 2.0}
    )
    assert found.cost is not None
    assert found.cost.expected is not None
    return found.cost.expected


def test_failures_of_pools_add_up(tmp_path: Any) -> None:
    usual_h = MTBF_GPU_S / 3600
    plain = priced(fleet(tmp_path, "")).mtbf_h
    assert plain == pytest.approx(usual_h / 16)
    assert priced(fleet(tmp_path, "mtbf_gpu_h = 1000")).mtbf_h == pytest.approx(1 / (8 / usual_h + 8 / 1000))
    often = priced(fleet(tmp_path, "preemptions_per_node_day = 2")).mtbf_h
    assert often == pytest.approx(1 / (16 / usual_h + 2 / 24))


def test_a_pool_that_is_not_always_there(tmp_path: Any) -> None:
    answer = astra.plan(MODEL, cluster=fleet(tmp_path, "available = 0.25"), batch=32, seq=2048, fix="vp=1")
    assert isinstance(answer, MixedPlanSet)
    alone = next(each for each in answer.alone if each.pool == "a")
    assert alone.step_s is not None
    mean = 32 * 2048 * (0.25 / answer.best.estimate.step_s + 0.75 / alone.step_s)
    (note,) = [note for note in answer.notes if "of the time" in note]
    assert f"{mean:,.0f} tokens/s" in note


def test_pools_that_cannot_be_are_refused(tmp_path: Any) -> None:
    for line, wanted in (
        ("available = 1.5", "available"),
        ("mtbf_gpu_h = 0", "mtbf_gpu_h"),
        ("available = 0", "above 0"),
    ):
        with pytest.raises(astra.InputError, match=wanted):
            fleet(tmp_path, line)


def test_the_next_plan_is_that_of_what_is_left() -> None:
    asked: dict[str, Any] = {"batch": 32, "seq": 2048, "fix": "vp=1"}
    answer = astra.plan(MODEL, gpus=["16xH100", "8xA100"], node_lost=True, **asked)
    assert {loss.pool for loss in answer.lost} == set(answer.best.estimate.used)  # type: ignore[attr-defined]
    left = {"H100-SXM5-80GB": ["8xH100", "8xA100"], "A100-SXM4-80GB": ["16xH100"]}
    for loss in answer.lost:
        again = astra.plan(MODEL, gpus=left[loss.pool], **asked)
        assert loss.step_s == pytest.approx(again.best.estimate.step_s)
        assert loss.times == pytest.approx(again.best.estimate.step_s / answer.best.estimate.step_s)
        assert loss.times is not None
        assert loss.times >= 1


def test_what_only_the_node_held_comes_from_the_checkpoint() -> None:
    """A sharded optimizer is on each GPU once; weights are on every replica."""
    answer = astra.plan(MODEL, gpus="16xH100", batch=32, seq=2048, fix=["tp=1", "pp=1", "zero=1"], node_lost=True)
    (loss,) = answer.lost
    assert loss.from_checkpoint_gib == pytest.approx(STATE_GIB * 12 / 14 / 2, rel=1e-6)
    whole = astra.plan(MODEL, gpus="16xH100", batch=32, seq=2048, fix=["tp=1", "pp=1", "zero=0"], node_lost=True)
    assert whole.lost[0].from_checkpoint_gib == 0


def test_nothing_is_left() -> None:
    (loss,) = astra.plan(MODEL, gpus="8xH100", batch=32, seq=2048, node_lost=True).lost
    assert loss.strategy is None
    assert "no GPU is left" in loss.why
