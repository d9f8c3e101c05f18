"""The fields of a request: one table, of which flags, keywords, TOML and JSON are spellings."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.catalog.clusters import parse_gpus
from astra.catalog.models import model
from astra.catalog.requests import write_toml
from astra.cli import options, parser
from astra.errors import InputError
from astra.files import load_toml
from astra.options import EstimateOptions, PlanOptions, RentOptions
from astra.spec.cluster import Cluster
from astra.spec.model import ModelSpec
from astra.spec.money import MONEY_FIELDS, Money
from astra.spec.request import FIELDS, PlanRequest, read_request
from astra.spec.strategy import parse_strategy

OWN = Cluster(pools=(parse_gpus("8xH100"),))
VALUES: dict[str, list[Any]] = {
    "model": ["gpt2", Path("a/config.json"), model("gpt2"), msgspec.to_builtins(model("mixtral-8x7b"))],
    "gpus": ["8xH100", "8xH100+8xA100", ["8xH100", "8xA100@dgx-a100"], (), None],
    "cluster": ["c.toml", Path("c.toml"), OWN, None],
    "node": ["dgx-h100", None],
    "max_gpus": [np.int32(64), "1k"],
    "mixes": ["ALL"],
    "known_nodes": [True, np.bool_(False)],
    "assume_network": [True],
    "own": ["64xH100", ["64xH100", "8xA100"], "c.toml", (), None],
    "counts": ["exact"],
    "node_lost": [True],
    "by_runtime": [True],
    "worth": [True],
    "time_budget": [None, 0.5, "2"],
    "local_steps": [None, 50, "100", " Auto "],
    "launchable": [True],
    "batch": [1, 1e3, "1k", "4M tokens", "4Mtok", np.int64(512)],
    "seq": [8192, "8k", np.uint16(4096), 4096.0, None],
    "tokens": [1e12, "1.5T", 10**12, np.float32(1e9), None],
    "precision": ["FP8"],
    "optimizer": ["sgd"],
    "task": ["lora"],
    "lora_rank": [np.int8(8)],
    "lora_targets": ["QKV"],
    "imbalance": ["1.3", 2, np.float32(1.5)],
    "packed": [206, "1k"],
    "mtp": [1, "2"],
    "runtime": ["nanotron"],
    "strategy": ["tp8 pp2", parse_strategy("tp8 pp2 dp1"), None],
    "top": ["3"],
    "fix": ["tp=8", ["tp=8", "pp=2"], {"tp": 8, "sp": True, "recompute": ["none", "full"], "pp": np.int64(2)}, {}],
    "forbid": ["cp", {"cp": 2}],
    "maximum": [{"pp": 4}],
    "minimum": [("mbs=2",)],
    "rules": ["r.txt", Path("r.txt"), ["tp > 8  # no"], None],
    "headroom": ["5%", 0, np.float64(0.3)],
    "strict": [True],
    "objective": ["Cheapest", None],
    "budget": ["$400k", 1.5e6, np.int64(9), None],
    "deadline": ["36h", "2w", 14, np.float64(1.5), None],
    "rank": ["Expected"],
    "baseline": ["tp8", parse_strategy("tp8"), None],
    "money": [None, {}, {"market": "spot", "restart_s": 60}, Money(usd_per_gpu_h=2.0)],
}  # fmt: skip


def test_every_field_is_tried() -> None:
    assert list(VALUES) == list(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_read_once_is_read_to_itself(name: str) -> None:
    for value in VALUES[name]:
        once = FIELDS[name].read(value, name)
        again = FIELDS[name].read(once, name)
        assert again == once
        assert type(again) is type(once)
        plain = msgspec.json.decode(msgspec.json.encode(once))  # as a plan file has it
        assert plain is None or FIELDS[name].read(plain, name) == once


def test_a_mapping_is_the_words_of_restrictions() -> None:
    read = FIELDS["fix"].read({"tp": 8, "sp": True, "recompute": ["none", "full"]}, "fix")
    assert read == ("tp=8", "sp=on", "recompute=none,full")


@pytest.mark.parametrize(
    ("verb", "keywords"), [("plan", PlanOptions), ("estimate", EstimateOptions), ("rent", RentOptions)]
)
def test_keywords_are_the_fields(verb: str, keywords: type) -> None:
    assert {"model", *get_type_hints(keywords)} == {name for name, field in FIELDS.items() if field.on(verb)}


@pytest.mark.parametrize("verb", ["plan", "estimate", "rent"])
def test_flags_are_the_fields(verb: str) -> None:
    made = argparse.ArgumentParser()
    options.add_fields(made, verb)
    flags = {option for action in made._actions for option in action.option_strings if option.startswith("--")}
    flagged = [
        field for field in (*FIELDS.values(), *MONEY_FIELDS.values()) if field.on(verb) and field.flag is not None
    ]
    words = {"--at-most", "--exact"} if verb == "plan" else set()
    assert flags == {"--help", *(field.spelled for field in flagged if field.name != "counts"), *words}
    assert flags <= {*parser.flags(verb), "--help"}


def test_a_request_is_its_plain_form() -> None:
    for name, values in VALUES.items():
        for value in values:
            request = PlanRequest(**{"model": "gpt2", name: value})
            verb = FIELDS[name].verbs.split()[0]
            plain = request.plain(verb)
            assert read_request(verb, plain) == request
            assert read_request(verb, load_toml(write_toml(plain).encode())) == request


@pytest.mark.parametrize(
    ("names", "near"),
    [({"bach": 1}, "batch"), ({"gpu": "8xH100"}, "gpus"), ({"fixed": "tp=8"}, "fix"), ({"sequence": 1}, "seq")],
)
def test_unknown_fields_get_the_nearest_name(names: dict[str, Any], near: str) -> None:
    with pytest.raises(InputError, match=f"Did you mean .*{near}"):
        read_request("plan", {"model": "gpt2", **names})
    with pytest.raises(InputError, match="Did you mean market"):
        read_request("plan", {"model": "gpt2", "money": {"markt": "spot"}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seq", 1.5), ("lora_rank", 1.5), ("counts", "x"), ("objective", ""), ("gpus", 8), ("top", True),
        ("seq", math.nan), ("tokens", math.inf), ("seq", 10**400), ("headroom", 1.0), ("fix", None), ("batch", None),
        ("fix", {"tp": 1.5}),
        ("model", None), ("model", OWN), ("cluster", model("gpt2")), ("strict", 1), ("budget", 0), ("deadline", "soon"),
        ("money", {"pue": 0.2}), ("money", {"usd_per_gpu_h": "dear"}), ("rules", b"r.txt"), ("node", ""),
    ],
)  # fmt: skip
def test_what_is_no_value_of_a_field_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        PlanRequest(**{"model": "gpt2", name: value})
    assert name in caught.value.where


def test_records_made_in_python_are_checked_throughout() -> None:
    spec = msgspec.structs.replace(model("gpt2"), vocab=np.int64(50257))
    assert FIELDS["model"].read(spec, "model").vocab == 50257
    wrong = msgspec.structs.replace(model("gpt2"), gated_mlp="yes")
    with pytest.raises(InputError, match=r"model: gated_mlp"):
        FIELDS["model"].read(wrong, "model")


words = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.dictionaries(words, plain, max_size=4))
def test_toml_is_read_back(values: dict[str, Any]) -> None:
    assert load_toml(write_toml(values).encode()) == values


def test_a_model_and_a_cluster_are_written_whole() -> None:
    for spec in (model("deepseek-v3"), model("t5-11b"), model("vit-l-16"), model("gpt-oss-120b")):
        request = PlanRequest(model=spec, cluster=OWN)
        read = read_request("plan", load_toml(write_toml(request.plain("plan")).encode()))
        assert isinstance(read.model, ModelSpec)
        assert (read.model, read.cluster) == (spec, OWN)
