"""A request answered again, from a file or from its own answer, and values that nobody should give."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astra
from astra.answer import PlanSet
from astra.catalog import hardware, runtimes
from astra.catalog.clusters import parse_gpus
from astra.catalog.models import model
from astra.catalog.requests import read_request_file, write_request
from astra.errors import AstraError, InputError, NoFeasiblePlan
from astra.search.world import World
from astra.spec.request import FIELDS, read_request
from astra.spec.strategy import Strategy
from tests.tiers import sampled

CLUSTER = """
[[gpu]]
name = "Own9"
like = "H100"
memory_bytes = 1.2e11

[[node]]
name = "own-box"
like = "dgx-h100"
gpu = "Own9"

[[pool]]
count = 16
node = "own-box"
usd_per_gpu_h = 1.25
"""
PAIR = f"""{CLUSTER}name = "new"

[[pool]]
count = 8
gpu = "A100-80"
name = "old"

[between]
kind = "roce"
bytes_per_s = 1.25e10
latency_s = 2e-5
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
NARROW: dict[str, Any] = {"maximum": {"tp": 1, "pp": 2, "vp": 1, "mbs": 1}}  # pools take longer than one
SMALL: dict[str, Any] = {"model": "gpt2", "gpus": "8xH100", "batch": 64, "seq": 1024}
REQUESTS: list[dict[str, Any]] = [
    {},
    {"batch": "64k tokens"},
    {"batch": "0.5M tokens", "seq": 512},
    {"seq": None},
    {"gpus": "16xH100@aws-p5.48xlarge"},
    {"node": "aws-p5.48xlarge"},
    {"gpus": "3xL4"},
    {"model": "llama-2-7b", "gpus": "16xA100", "top": 3, "fix": {"tp": 2}, "forbid": "cp", "maximum": "pp=4"},
    {"model": "llama-3.1-8b", "minimum": ["mbs=2"], "runtime": "torchtitan", "headroom": "20%"},
    {"model": "mixtral-8x7b", "gpus": "32xH100", "precision": "fp8"},
    {"model": "t5-3b", "gpus": "8xA100", "optimizer": "sgd"},
    {"model": "vit-l-16", "seq": None},
    {"model": "llama-2-7b", "task": "lora", "lora_rank": 8},
    {"tokens": "10B"},
    {"tokens": "10B", "objective": "cheapest"},
    {"tokens": "10B", "objective": "pareto", "gpus": "32xH100"},
    {"objective": "dollars-per-token"},
    {"tokens": "10B", "budget": "5k"},
    {"tokens": "10B", "deadline": "36h", "money": {"market": "spot", "goodput": "expected"}},
    {"tokens": "1B", "money": {"usd_per_kwh": 0.1, "pue": 1.3, "usd_per_gpu": 30e3, "storage_tb": 5}},
    {"baseline": "tp8", "tokens": "1B"},
    {"rules": ["wide: tp > 2  # narrow is enough", "", "pp > 1 and vp > 1"]},
    {"gpus": ["8xH100", "8xA100"], **NARROW},
    {"gpus": "8xH100+8xH100", "tokens": "1B", **NARROW},
    {"gpus": ["8xH100", "8xA100"], "counts": "exact", "top": 2, **NARROW},
    {"gpus": ["8xH100", "8xL40S"], "launchable": True, "runtime": "megatron", "fix": "tp=1", **NARROW},
    {"gpus": ["8xH100", "8xA100"], "baseline": "pp2 dp8", "precision": "fp16", **NARROW},
    {"cluster": "own.toml", "gpus": None},
    {"cluster": "own.toml", "gpus": None, "tokens": "10B", "objective": "cheapest"},
    {"cluster": "pair.toml", "gpus": None, **NARROW},
    {"model": "config.json"},
    {"model": "config.json", "cluster": "pair.toml", "gpus": None, "tokens": "1B", **NARROW},
]


def same(one: PlanSet, other: PlanSet) -> None:
    """The same answer; rules were named by their file, and the runtime may have been left to Astra."""
    for name in ("plans", "rejects", "notes", "objective", "baseline", "asked", "fingerprint"):
        assert getattr(one, name) == getattr(other, name), name
    requests = [
        {key: value for key, value in each.request.items() if key not in ("rules", "runtime_because")}
        for each in (one, other)
    ]
    assert requests[0] == requests[1]
    assert (one.search.considered, one.search.evaluated) == (other.search.considered, other.search.evaluated)


@pytest.mark.parametrize("asked", sampled(REQUESTS, every=3), ids=str)
def test_a_saved_request_and_a_plan_file_give_the_same_answer(asked: dict[str, Any], tmp_path: Path) -> None:
    for name, text in (("own.toml", CLUSTER), ("pair.toml", PAIR), ("config.json", json.dumps(CONFIG))):
        (tmp_path / name).write_text(text)
    asked = SMALL | {k: tmp_path / v if str(v).endswith((".toml", ".json")) else v for k, v in asked.items()}
    first = astra.plan(**asked)
    saved, planned, moved = tmp_path / "request.toml", tmp_path / "plan.json", tmp_path / "elsewhere"
    saved.write_text(write_request(World.of(read_request("plan", asked)).resolved.plain("plan"), "plan"))
    planned.write_text(first.to_json())
    moved.mkdir()
    for name in ("own.toml", "pair.toml", "config.json"):
        (tmp_path / name).rename(moved / name)  # nothing but the request is needed
    for path in (saved, planned):
        fields = read_request_file(str(path))
        assert fields is not None
        same(astra.plan(**fields), first)


def test_what_to_rent_is_answered_again() -> None:
    asked: dict[str, Any] = {"tokens": "10B", "gpus": "H100,A100-80", "max_gpus": 16, "batch": 64, "mixes": "none"}
    first = astra.rent("gpt2", **asked, money={"market": "spot"}, budget="1M")
    again = astra.rent(**first.asked)
    assert (again.front, again.chosen, again.asked) == (first.front, first.chosen, first.asked)


def test_names_of_pools_are_read_back() -> None:
    """Whatever GPU and node are meant by a text, the resolved text means them too."""
    for name in hardware.names("nodes"):
        node = hardware.node_type(name)
        pool = parse_gpus(f"{node.gpus}x{node.gpu}@{name}")
        world = World.of(read_request("plan", {"model": "gpt2", "gpus": f"{pool.gpus}x{node.gpu}@{name}"}))
        again = World.of(world.resolved)
        assert again.cluster == world.cluster
        assert again.resolved == world.resolved


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


class NoPath:
    def __fspath__(self) -> int:
        return 5


OWN = astra.Cluster(pools=(parse_gpus("8xH100"),))
VALUES: list[Any] = [
    None, 1.5, "x", [], {}, object(), b"x", float("nan"), float("inf"), 10**400, 10**5000, True, Path("/nowhere/x"),
    -1, 0, "", (1,), ["x", 1], {"x": 1}, {1: 2}, {"tp": 8.5}, {"tp": [8, None]}, set(), np.float64("nan"), np.int64(-3),
    np.array([1, 2]), np.array(3), 1j, Unshown(), NoPath(), OWN, model("gpt2"), astra.Money(), Strategy(), Exception,
    "\0", "9" * 10_000, "x" * 100_000, range(3), [["tp=8"]],
]  # fmt: skip
USUAL: dict[str, dict[str, Any]] = {
    "plan": {"gpus": "8xH100", "batch": 8, "seq": 256},
    "estimate": {"gpus": "8xH100", "batch": 8, "seq": 256, "strategy": "tp4 dp2"},
    "rent": {"gpus": "H100", "tokens": 1e9, "batch": 8, "seq": 256, "max_gpus": 8, "mixes": "none"},
}
# What else an error may speak of: the field that goes with it, or the type of GPU inside it.
BESIDE = {"cluster": ("gpus",), "budget": ("tokens",), "deadline": ("tokens",), "gpus": ("gpu",), "maximum": ("max",),
          "minimum": ("min",)}  # fmt: skip


def refused(call: Callable[[], object], name: str) -> None:
    """An answer, or an error of ours within a second that names the field."""
    started, found = time.process_time(), None
    try:
        call()
    except AstraError as error:
        found = error
    if isinstance(found, InputError):
        assert any(word in found.where for word in (name, *BESIDE.get(name, ()))), (name, found.where)
        assert len(str(found)) < 2_000
        assert time.process_time() - started < 1


TAKEN = [(verb, name) for name in FIELDS for verb in USUAL if FIELDS[name].on(verb)]


@pytest.mark.parametrize(("verb", "name"), sampled(TAKEN, every=3, rows=True))
def test_nothing_that_is_given_ends_in_an_error_that_is_not_ours(verb: str, name: str) -> None:
    call: Callable[..., object] = getattr(astra, verb)
    for value in VALUES:
        if (verb, name) == ("rent", "gpus") and (value is None or (isinstance(value, list) and not value)):
            continue  # any GPU: an answer, after a while
        asked = {"model": "gpt2"} | USUAL[verb] | ({"gpus": None} if name == "cluster" else {}) | {name: value}
        refused(lambda asked=asked: call(**asked), name)  # type: ignore[misc]


def test_nor_what_is_given_to_the_others() -> None:
    from astra.export.imports import import_file
    from astra.export.reading import read_record
    from astra.spec.money import MONEY_FIELDS

    for value in VALUES:
        refused(lambda value=value: astra.describe_model(value), "model")  # type: ignore[misc]
        refused(lambda value=value: astra.describe_model("gpt2", seq=value), "seq")  # type: ignore[misc]
        refused(lambda value=value: astra.parse_strategy(value), "strategy")  # type: ignore[misc]
        refused(lambda value=value: astra.parse_strategy("tp1", gpus=value), "")  # type: ignore[misc]
        refused(lambda value=value: import_file(value), "")  # type: ignore[misc]
        refused(lambda value=value: read_record(value), "")  # type: ignore[misc]
        refused(lambda value=value: astra.plan("gpt2", gpus="1xH100", progress=value), "progress")  # type: ignore[misc]
        for name in MONEY_FIELDS:
            refused(lambda value=value, name=name: astra.Money(**{name: value}), name)  # type: ignore[misc]


def test_keywords_that_there_are_not() -> None:
    with pytest.raises(InputError, match="Did you mean batch"):
        astra.plan("gpt2", gpus="8xH100", bacth=8)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="a field of astra estimate"):
        astra.estimate("gpt2", gpus="8xH100", strategy="tp8", top=3)  # type: ignore[call-arg]


def test_a_request_may_be_given_whole_and_changed() -> None:
    request = astra.PlanRequest(**SMALL)
    assert astra.plan(request).plans == astra.plan(**SMALL).plans
    assert astra.plan(request, top=1).plans == astra.plan(**SMALL, top=1).plans
    assert astra.estimate(request, strategy="tp2").strategy.startswith("tp2")


@pytest.mark.parametrize(
    ("batch", "seq", "samples"), [("4M tokens", 4096, 1024), ("4Mtok", 2000, 2000), ("64k tokens", 1024, 64),
                                  ("8192 tokens", 4096, 2), ("3M tokens", 1000, 3000)]
)  # fmt: skip
def test_batches_in_tokens(batch: str, seq: int, samples: int) -> None:
    """A million tokens are 1,000,000, or 1,048,576 where only these make whole samples."""
    world = World.of(read_request("plan", {"model": "llama-2-7b", "gpus": "8xH100", "batch": batch, "seq": seq}))
    assert world.workload.global_batch == samples


def test_batches_that_make_no_whole_samples() -> None:
    for batch in ("100 tokens", "5400 tokens"):
        with pytest.raises(InputError, match="batch"):
            astra.plan("gpt2", gpus="8xH100", batch=batch, seq=1000)


@pytest.mark.parametrize(
    ("runtime", "gpus", "own"),
    [
        ("torchtitan", "8xH100", "fp8-rowwise"),
        ("torchtitan", "8xB200", "mxfp8"),
        ("fsdp", "8xH100", "fp8-tensorwise"),
        ("megatron", "8xH100", "fp8"),
    ],
)
def test_fp8_is_what_the_runtime_has_of_it(runtime: str, gpus: str, own: str) -> None:
    found = astra.plan("llama-3-8b", gpus=gpus, batch=16, seq=4096, precision="fp8", runtime=runtime, top=1)
    assert found.request["workload"]["precision"] == own
    assert found.asked["precision"] == own
    assert (f"fp8 is {own}" in found.request.get("runtime_because", "")) == (own != "fp8")
    again = astra.estimate(
        "llama-3-8b", strategy=found.best.strategy, gpus=gpus, batch=16, seq=4096, precision=own, runtime=runtime
    )
    assert again.step_s == pytest.approx(found.best.estimate.step_s, rel=1e-12)


@pytest.mark.parametrize("runtime", runtimes.runtime_names())
@pytest.mark.parametrize("gpus", ["8xH100", "8xB200"])
def test_fp8_is_the_same_in_estimates_as_in_plans(runtime: str, gpus: str) -> None:
    """A plan's first row, pasted into an estimate with the same words, gives the plan's number."""
    asked: dict[str, Any] = {"gpus": gpus, "batch": 16, "seq": 4096, "precision": "fp8", "runtime": runtime}
    if not any("fp8" in name for name in runtimes.runtime(runtime).can.precision):
        with pytest.raises(NoFeasiblePlan, match="does not train in fp8"):
            astra.plan("llama-3-8b", **asked)
        return
    best = astra.plan("llama-3-8b", **asked, top=1).best
    again = astra.estimate("llama-3-8b", strategy=best.strategy, **asked)
    assert again.step_s == pytest.approx(best.estimate.step_s, rel=1e-12)
    assert again.legal


def test_fp8_is_still_refused_where_the_runtime_has_none() -> None:
    with pytest.raises(NoFeasiblePlan, match="does not train in fp8 here"):
        astra.plan("llama-3-8b", gpus="8xH100", batch=16, seq=4096, precision="fp8", runtime="nanotron")


@pytest.mark.parametrize("asked", [{"worth": True}, {"time_budget": 1.0}, {"by_runtime": True}])
def test_what_is_of_several_pools_is_refused_for_one(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="several pools"):
        astra.plan("gpt2", gpus="8xH100", batch=16, **asked)


@pytest.mark.parametrize("gpus", [["8xH100"], ["4xA800", "4xB200"]])
@pytest.mark.parametrize("money", [{"providers": ["Nobody"]}, {"regions": ["atlantis"]}, {"prices": "no such file"}])
def test_sellers_places_and_lists_that_nobody_knows_are_refused(gpus: list[str], money: dict[str, Any]) -> None:
    """Also where no bill is asked for."""
    with pytest.raises(InputError, match=next(iter(money))):
        astra.plan("gpt-2-xl", gpus=gpus, batch=8, seq=1024, money=money)
