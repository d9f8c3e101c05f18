"""The nearest plan is expressible, legal and fits, and a plan that is expressible is its own nearest."""

from __future__ import annotations

import pytest

from astra.export import EXPORTERS
from astra.export.base import CannotExport, refusals
from astra.export.nearest import distance, find
from astra.search.detail import estimate, legality
from astra.spec.strategy import parse_strategy
from tests.export.launching import job_of, launched

ASKED = "tp4 pp2 vp4 dp2 mbs1 sp zero1 overlap=grad,param,tp,p2p"


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "accelerate", "flagscale"])
def test_nearest(target: str) -> None:
    job = job_of("llama-3.1-8b", "16xH100", batch=128, seq=4096)
    launch = launched(job, parse_strategy(ASKED, gpus=16))
    exporter = EXPORTERS[target]
    assert refusals(exporter, launch)
    found = find(exporter, launch, job)
    assert refusals(exporter, found.launch) == []
    assert found.after.fits
    assert found.after.legal
    assert found.launch.step_s == found.after.step_s
    assert found.changed
    for name, (old, new) in found.changed.items():
        assert getattr(launch.strategy, name) == old != new


def test_what_can_be_kept_is_kept() -> None:
    job = job_of("llama-3.1-8b", "16xH100", batch=128, seq=4096)
    launch = launched(job, parse_strategy(ASKED, gpus=16))
    found = find(EXPORTERS["torchtitan"], launch, job)
    assert set(found.changed) == {"zero", "overlap"}
    assert not legality(job, launch.strategy)


def test_an_expressible_plan_is_its_own_nearest() -> None:
    job = job_of("llama-3.1-8b", "16xH100", batch=128, seq=4096)
    launch = launched(job, parse_strategy("dp16 mbs1 zero3", gpus=16))
    assert find(EXPORTERS["megatron"], launch, job).launch.strategy == launch.strategy


def test_there_may_be_none() -> None:
    """One GPU and one sample, so that all there is near it is looked at: it fits, but cannot be written."""
    job = job_of("gemma-3-4b", "1xB200", batch=1, seq=4096)
    launch = launched(job, parse_strategy("mbs1", gpus=1))
    assert estimate(job, [launch.strategy])[0].fits
    with pytest.raises(CannotExport, match="more or fewer than two norms"):
        find(EXPORTERS["megatron"], launch, job)


def test_distance() -> None:
    asked = parse_strategy(ASKED, gpus=16)
    assert distance(asked, asked) == 0
    near, far = parse_strategy(f"{ASKED} layers=1,2*6,1", gpus=16), parse_strategy("dp16 mbs1", gpus=16)
    assert 0 < distance(asked, near) < distance(asked, far)
