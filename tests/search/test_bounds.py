"""The bound of a grid by its sibling never exceeds the grid's own, whatever the model, the network and the runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import astra
from astra.api import make_job
from astra.catalog.runtimes import runtime_names
from astra.cost.timed import PartTable
from astra.rules.restrictions import Restrictions
from astra.search import bounds
from astra.search.attempts import Attempt, alternatives, roomiest
from astra.search.space import Space
from astra.search.words import settled

CASES: list[tuple[str, str, int, int, dict[str, Any]]] = [
    ("llama-3-8b", "32xH100", 96, 65536, {}),  # sequences that must be cut
    ("gemma-3-27b", "64xA100-80", 64, 8192, {}),  # sliding windows
    ("llama-4-scout", "32xB200", 64, 16384, {}),  # chunks
    ("mixtral-8x7b", "48xL40S", 96, 4096, {}),  # experts over PCIe and a slow network
    ("deepseek-v2-lite", "64xH800", 240, 4096, {}),
    ("deepseek-v2-lite", "16xB200", 64, 4096, {"precision": "fp8"}),
    ("qwen3-30b-a3b", "72xGB200", 144, 4096, {"task": "lora"}),
    ("nemotron-3-nano-30b-a3b", "32xH100", 64, 4096, {}),  # state-space layers
    ("t5-3b", "32xMI300X", 64, 512, {}),
    *(("qwen3-30b-a3b", "32xH100", 96, 4096, {"runtime": name}) for name in runtime_names()),
    *(("llama-3.2-1b", "16xA100-80", 96, 2048, {"runtime": name}) for name in runtime_names()),  # the host decides
]


@pytest.mark.parametrize(("model", "gpus", "batch", "seq", "more"), CASES)
def test_a_core_takes_no_less_than_its_sibling_says(
    model: str, gpus: str, batch: int, seq: int, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "FEW", 0)
    job = make_job(model, gpus=gpus, batch=batch, seq=seq, **({"runtime": "megatron"} | more))
    space = Space(job, Restrictions())
    siblings = bounds.siblings_of(job, space)
    usual = bounds.gather_grids(job, space, siblings.usual, PartTable())
    rest, bound_s = bounds.BySiblings(job, space, usual, siblings).below(np.inf)
    assert len(rest) + len(siblings.usual) == len(space.strategies)
    own_s = (
        bounds.grid_bound_s(job, space, bounds.gather_grids(job, space, rest, PartTable()), rest)
        if len(rest)
        else bound_s
    )
    assert (bound_s <= own_s * (1 + 1e-9)).all()


def test_a_limit_leaves_out_what_is_slower_by_its_sibling_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FEW", 0)
    job = make_job("mixtral-8x7b", gpus="64xH100", batch=240, seq=4096, runtime="megatron")
    space = Space(job, Restrictions())
    siblings = bounds.siblings_of(job, space)
    usual = bounds.gather_grids(job, space, siblings.usual, PartTable())
    every, bound_s = bounds.BySiblings(job, space, usual, siblings).below(np.inf)
    limit_s = float(np.quantile(bound_s, 0.1))
    some, lower_s = bounds.BySiblings(job, space, usual, siblings).below(limit_s)
    assert 0 < len(some) < len(every)
    assert some.tolist() == every[bound_s < limit_s].tolist()
    assert lower_s == pytest.approx(bound_s[bound_s < limit_s], rel=1e-12)
    assert not len(bounds.BySiblings(job, space, usual, siblings).below(0.0)[0])


@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_plans_do_not_depend_on_who_is_timed_first(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request: dict[str, Any] = {"model": model, "gpus": "64xH100", "batch": 240, "seq": 4096, "runtime": "megatron"}
    told = [(plan.strategy, plan.estimate.step_s) for plan in astra.plan(**request).plans]
    monkeypatch.setattr(bounds, "FEW", 0)
    again = [(plan.strategy, plan.estimate.step_s) for plan in astra.plan(**request).plans]
    assert [name for name, _ in again] == [name for name, _ in told]
    assert [step_s for _, step_s in again] == pytest.approx([step_s for _, step_s in told], rel=1e-9)


@pytest.mark.parametrize(
    ("model", "gpus", "runtime"),
    [
        ("mixtral-8x7b", "48xH100", "megatron"),
        ("qwen3-30b-a3b", "64xH800", "megatron"),
        ("deepseek-v2-lite", "32xH100", "megatron-bridge"),
    ],
)
def test_a_slower_search_looks_at_all_that_may_come_below(model: str, gpus: str, runtime: str) -> None:
    """Of the grids that split experts, those that sending once bounds below a limit, each by its own."""
    job = make_job(model, gpus=gpus, batch=96, seq=4096, runtime=runtime)
    first = Attempt(roomiest(settled(job, Restrictions()), Restrictions()), Restrictions())
    (other,) = (each for each in alternatives(first) if each.slower)
    quick, slow = (bounds.Grids(each.job, each.restrictions) for each in (first, other))
    every = np.arange(len(slow.space.strategies))
    own_s = bounds.grid_bound_s(slow.job, slow.space, slow.parts_of(every), every)
    for limit_s in np.quantile(own_s, (0.05, 0.5, 1.0)).tolist():
        rows, bound_s = slow.open_in(quick, limit_s)
        assert (bound_s <= own_s[rows] * (1 + 1e-9)).all()
        assert {*np.flatnonzero(own_s < limit_s).tolist()} <= {*rows.tolist()}
        if limit_s == np.quantile(own_s, 0.05):
            assert len(rows) < len(every)
    places = np.flatnonzero(quick.space.grids["ep"] > 1)
    for name in ("tp", "pp", "dp", "cp", "ep", "etp", "mbs", "sp"):
        assert (quick.space.grids[name][places] == slow.space.grids[name]).all()
