"""The table of rules: the same for a table as for each row, every row accounted for, every rule refuses and passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.catalog import models
from astra.catalog.clusters import parse_gpus
from astra.columns import FIELDS, Column, from_strategy
from astra.rules.names import DERIVED, NAMES, Names, facts_of, names_of_one
from astra.rules.table import ADVICE, RULES, Rule, advice, check, parse_rule, violations
from astra.spec.cluster import Device, Link, NodeType, Pool
from astra.spec.model import Encoder, ModelSpec, MoE
from astra.spec.strategy import parse_strategy
from astra.spec.strategy_fields import CHOICES, INTEGERS, SWITCHES
from astra.spec.workload import Workload

DOCS = Path(__file__).parents[2] / "docs" / "rules.md"
WORK = Workload(global_batch=256, seq=8192)
DENSE = facts_of(models.model("llama-3-70b"), parse_gpus("64xH100"), WORK) | {"memory_gib": 80.0, "fp8_attention": True}
MOE = DENSE | {"experts": 128, "topk": 8, "moe_ffn": 768, "shared_ffn": 1536, "moe": True, "dense_ffn": False} | {
    "deepep_gpus": 64, "hybridep_gpus": 8
}  # fmt: skip

DEGREE = st.sampled_from([1, 2, 3, 4, 8, 16, 64])
ROW = st.fixed_dictionaries(
    {
        **dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs"), DEGREE),
        "zero": st.integers(0, 3),
        "recompute_layers": st.sampled_from([0, 1, 2, 5, 80, 81]),
        "offload_layers": st.sampled_from([0, 0, 1, 5, 80]),
        "shard": st.sampled_from([0, 0, 1, 2, 3, 8]),
        **{name: st.booleans() for name in SWITCHES},
        **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
    }
)
FACTS = st.builds(
    lambda base, **changes: {**base, **changes},
    st.sampled_from([DENSE, MOE]),
    gpus=st.sampled_from([8, 64, 96]),
    batch=st.sampled_from([1, 12, 256]),
    seq=st.sampled_from([4, 100, 8192]),
    layers=st.sampled_from([1, 5, 80]),
    ffn=st.sampled_from([24, 28672]),
    heads=st.sampled_from([12, 64]),
    kv_heads=st.sampled_from([1, 2, 8]),
    mla=st.booleans(),
    tied=st.booleans(),
    expert_bias=st.booleans(),
    captures_experts=st.booleans(),
    precision=st.sampled_from(["bf16", "fp8", "fp8-tensorwise"]),
    task=st.sampled_from(["pretrain", "lora"]),
    optimizer=st.sampled_from(["adam", "sgd"]),
    runtime=st.sampled_from(["megatron", "torchtitan", "fsdp", "pytorch", "nanotron"]),
)


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Column]:
    columns: dict[str, Column] = {name: np.array([row[name] for row in rows]) for name in (*INTEGERS, *SWITCHES)}
    for name, choices in CHOICES.items():
        columns[name] = np.array([choices.index(row[name]) for row in rows], dtype=np.int16)
    return columns


def random_columns(rows: int, seed: int = 0) -> dict[str, Column]:
    draw = np.random.default_rng(seed)
    columns: dict[str, Column] = {name: 2 ** draw.integers(0, 4, rows) for name in INTEGERS}
    columns["zero"] = draw.integers(0, 4, rows)
    columns |= {name: draw.random(rows) < 0.5 for name in SWITCHES}
    return columns | {name: draw.integers(0, len(words), rows).astype(np.int16) for name, words in CHOICES.items()}


def broken(rule: Rule, row: dict[str, Any], facts: dict[str, Any]) -> bool:
    """What a rule says of one row by itself, in plain numbers."""
    return bool(rule.breaks(names_of_one(columns_of([row]), facts)))


@settings(max_examples=300, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8), FACTS)
def test_every_rule_says_of_a_table_what_it_says_of_each_row(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    table = Names(columns_of(rows), facts)
    for rule in RULES:
        alone = [broken(rule, row, facts) for row in rows]
        assert np.broadcast_to(rule.breaks(table), len(rows)).tolist() == alone, rule.name


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8), FACTS)
def test_a_row_is_counted_under_the_first_rule_it_breaks(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    verdict = check(columns_of(rows), facts)
    first = [next((rule.name for rule in RULES if broken(rule, row, facts)), None) for row in rows]
    assert verdict.ok.tolist() == [name is None for name in first]
    assert verdict.ledger == {rule.name: first.count(rule.name) for rule in RULES if rule.name in first}
    assert verdict.remaining == ()


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=6), FACTS)
def test_violations_are_found_exactly_where_a_row_is_refused(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    verdict = check(columns_of(rows), facts)
    for row, ok in zip(rows, verdict.ok, strict=True):
        assert (violations(columns_of([row]), facts) == []) == ok


@settings(deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=6), FACTS, st.sampled_from(["tp", "pp dp", "cp schedule sp", "recompute zero"])
)
def test_a_column_of_one_entry_stands_for_every_row(
    rows: list[dict[str, Any]], facts: dict[str, Any], same: str
) -> None:
    rows = [{**row, **{name: rows[0][name] for name in same.split()}} for row in rows]
    full = columns_of(rows)
    short = {name: column[:1] if name in same.split() else column for name, column in full.items()}
    assert check(full, facts).ledger == check(short, facts).ledger


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=8), FACTS)
def test_rules_can_be_applied_in_two_steps(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    columns = columns_of(rows)
    degrees = {name: columns[name] for name in ("tp", "cp", "pp", "dp", "ep", "etp", "mbs")}
    first = check(degrees, facts)
    rest = [rule for rule in RULES if rule.name in first.remaining]
    second = check(columns, facts, rules=rest)
    assert second.remaining == ()
    assert {"gpus", "heads", "batch", "experts", "expert_ranks"}.isdisjoint(first.remaining)
    assert {"moe_sp", "chunks", "layers", "recompute_layers", "interleaved_batch"} <= set(first.remaining)
    assert (first.ok & second.ok).tolist() == check(columns, facts).ok.tolist()


@pytest.mark.parametrize("facts", [DENSE, MOE, MOE | {"precision": "fp8", "runtime": "torchtitan"}])
def test_a_large_table_agrees_with_its_parts(facts: dict[str, Any]) -> None:
    rows, part = 300_000, 1_000  # several blocks and looked-up remainders against one block and computed ones
    columns = random_columns(rows)
    verdict = check(columns, facts)
    ledger: dict[str, int] = {}
    for start in range(0, rows, rows // 10):
        piece = check({name: column[start : start + part] for name, column in columns.items()}, facts)
        assert (verdict.ok[start : start + part] == piece.ok).all()
        for name, count in piece.ledger.items():
            ledger[name] = ledger.get(name, 0) + count
    assert verdict.ok.sum() + sum(verdict.ledger.values()) == rows
    assert all(verdict.ledger[name] >= count for name, count in ledger.items())


def test_weights_count_the_strategies_a_row_stands_for() -> None:
    columns = random_columns(500)
    weights = np.arange(500, dtype=np.float64)
    verdict = check(columns, DENSE, weights=weights)
    assert sum(verdict.ledger.values()) + weights[verdict.ok].sum() == weights.sum()


def test_an_empty_table_has_an_empty_verdict() -> None:
    verdict = check({name: column[:0] for name, column in random_columns(1).items()}, MOE)
    assert verdict.ok.size == 0
    assert verdict.ledger == {}


def test_user_rules_come_after_the_built_in_ones() -> None:
    rule = parse_rule("no_pipeline: pp > 1  # we have fast links")
    tables = [from_strategy(parse_strategy(text)) for text in (LEGAL, "tp8 dp8 sp", "tp8 pp2 dp1 sp", "tp8 pp8 dp1 sp")]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in FIELDS}
    verdict = check(columns, DENSE, user_rules=[rule])
    assert verdict.ok.tolist() == [False, True, False, False]
    assert verdict.ledger == {"gpus": 1, "no_pipeline": 2}
    assert violations(tables[0], DENSE, user_rules=[rule]) == ["we have fast links (pp=4)"]


LEGAL = "tp8 pp4 dp2 mbs1 sp zero1 recompute=none overlap=grad,param"
# A change of a legal strategy or of the facts, and the one rule it breaks.
BREAKS: list[tuple[str, str, dict[str, Any]]] = [
    ("gpus", "tp8 pp4 dp4 sp", {}),
    ("heads", "tp32 pp2 dp1 sp overlap=grad,param", {"heads": 48}),
    ("kv_heads", "tp8 pp4 dp2 sp", {"kv_heads": 3}),
    ("kv_heads_whole", "tp8 pp4 dp2 sp", {"runtime": "torchtitan", "kv_heads": 4}),
    ("kv_heads_whole", "tp8 cp8 dp1 sp", {"runtime": "fsdp", "kv_heads": 4}),
    ("ffn", "tp8 pp4 dp2 sp", {"ffn": 4 * 8191}),
    ("shared_ffn", "tp8 pp4 dp2 sp ep2", MOE | {"shared_ffn": 1500}),
    ("state_groups", "tp8 pp4 dp2 sp", DENSE | {"state_groups": 4, "state_heads": 64}),
    ("state_heads", "tp8 pp2 cp2 dp2 sp", DENSE | {"state_groups": 8, "state_heads": 24}),
    ("delta_heads", "tp8 pp2 cp4 dp1 sp", DENSE | {"delta_heads": 16}),
    ("dense_experts", "tp8 pp4 dp2 sp ep2", {}),
    ("experts", "tp8 pp4 dp2 sp ep16", MOE | {"experts": 120}),
    ("moe_ffn", "tp8 pp4 dp2 sp etp8", MOE | {"moe_ffn": 764}),
    ("expert_ranks", "tp8 pp4 dp2 sp ep32", MOE),
    ("expert_bias", "tp8 pp4 dp2 sp ep8 etp2", MOE | {"expert_bias": True}),
    ("experts_sharded", "tp8 pp4 dp2 sp ep16 zero0 overlap=grad", MOE | {"runtime": "torchtitan"}),
    ("fp8_shape", "tp8 pp4 dp2 sp", {"precision": "fp8", "ffn": 8 * 1000}),
    ("fp8_experts", "dp64 zero3", MOE | {"precision": "fp8-tensorwise", "runtime": "fsdp"}),
    ("fp8_adapters", "dp64 zero3", {"precision": "fp8-tensorwise", "runtime": "fsdp", "task": "lora"}),
    ("adapters_split", "tp2 dp32 zero1", {"runtime": "deepspeed", "task": "lora"}),
    ("cp_seq", "tp1 cp4 pp2 dp8", {"seq": 8196}),
    ("cp_flash", "tp8 cp4 pp2 dp1 sp flash=off", {}),
    ("sp_tp", "tp1 pp4 dp16 sp", {}),
    ("sp_seq", "tp8 pp4 dp2 sp", {"seq": 8190}),
    ("moe_sp", "tp8 pp4 dp2", MOE),
    ("batch", "tp8 pp4 dp2 mbs3 sp", {}),
    ("layers", "tp8 pp4 dp2 sp", {"layers": 3}),
    ("single_stage", "tp8 pp1 dp8 sp schedule=zb", {"runtime": "torchtitan"}),
    ("chunks", "tp8 pp4 vp2 dp2 sp schedule=1f1b", {}),
    ("interleaved", "tp8 pp4 dp2 sp schedule=interleaved", {}),
    ("zbv", "tp8 pp4 vp4 dp2 sp schedule=zbv", {"runtime": "torchtitan"}),
    ("interleaved_batch", "tp8 pp4 vp2 dp2 sp", {"batch": 12}),
    ("interleaved_batch", "tp8 pp4 vp2 dp2 sp", {"batch": 4}),
    ("interleaved_rounds", "tp8 pp4 vp2 dp2 sp", {"runtime": "torchtitan", "batch": 2 * 9}),
    ("interleaved_p2p", "tp8 pp2 vp2 dp4 sp overlap=grad,param", {}),
    ("overlap_p2p", "tp8 pp4 dp2 sp overlap=grad,param,p2p", {}),
    ("stages_fed", "tp4 pp8 dp2 mbs32 sp", {"runtime": "nanotron"}),
    ("tied_torchtitan", "tp8 pp4 dp2 sp", {"runtime": "torchtitan", "tied": True}),
    ("pipeline_fed", "tp4 pp8 dp2 mbs32 sp", {"runtime": "torchtitan"}),
    ("recompute_options", "tp8 pp4 dp2 sp recompute=selective recompute_layers=2", {}),
    ("recompute_options", "tp8 pp4 dp2 sp method=block", {}),
    ("recompute_layers", "tp8 pp4 dp2 sp recompute=full recompute_layers=21", {}),
    ("overlap_param", "tp8 pp4 dp2 sp overlap=param", {}),
    ("overlap_param", "tp8 pp4 dp2 sp zero0 overlap=grad,param", {}),
    ("overlap_tp", "tp8 pp4 dp2 overlap=tp", {}),
    ("overlap_tp_reach", "tp16 pp2 dp2 sp overlap=tp", {}),
    ("offload_zero", "tp8 pp4 dp2 sp zero0 offload=optimizer overlap=grad", {}),
    ("offload_fsdp", "tp8 pp4 dp2 sp zero3 offload=optimizer", {}),
    ("offload_adam", "tp8 pp4 dp2 sp offload=optimizer", {"optimizer": "sgd"}),
    ("offload_layers", "tp8 pp4 dp2 sp offload=activations:21", {"runtime": "deepspeed"}),
    ("offload_recompute", "tp8 dp8 sp recompute=full offload=activations:2", {}),
    ("offload_pipeline", "tp8 pp4 dp2 sp offload=activations:2", {}),
    ("offload_graphs", "tp8 dp8 sp graphs=partial offload=activations:2", {}),
    ("offload_all", "tp8 dp8 sp offload=activations:80", {}),
    ("moments", "tp8 pp4 dp2 sp zero0 overlap=grad moments=bf16", {}),
    ("moments", "tp8 pp4 dp2 sp moments=bf16", {"optimizer": "sgd"}),
    ("params", "tp8 pp4 dp2 sp params=fp8", {}),
    ("grads_zero", "dp64 zero0 grads=fp32", {"runtime": "deepspeed"}),
    ("params_zero", "tp8 pp4 dp2 sp zero0 overlap=grad params=fp8", {"precision": "fp8"}),
    ("attention", "tp8 pp4 dp2 sp attention=fp8", {"fp8_attention": False}),
    ("attention_flash", "tp8 pp4 dp2 sp attention=fp8 flash=off", {}),
    ("attention_seq", "tp8 pp4 dp2 sp attention=fp8", {"seq": 8200}),
    ("attention_core", "tp8 pp4 dp2 sp attention=fp8 recompute=selective", {}),
    ("reshard", "tp8 pp4 dp2 sp zero2 reshard=never", {"runtime": "torchtitan"}),
    ("reshard_pipelined", "tp8 pp4 dp2 sp zero3", {"runtime": "pytorch"}),
    ("shard", "tp8 pp4 dp2 sp shard4", {}),
    ("shard_zero", "tp8 pp4 dp2 sp zero0 overlap=grad shard2", {}),
    ("shard_experts", "tp1 pp4 dp16 ep16 shard8", MOE),
    ("dispatch", "tp8 pp4 dp2 sp dispatch=deepep", MOE),
    ("dispatch", "tp8 pp4 dp2 sp dispatch=deepep", {"deepep_gpus": 0}),
    ("dispatch", "tp8 pp4 dp2 sp dispatch=hybridep", {"hybridep_gpus": 0}),
    ("dispatch_deepep", "tp8 pp4 dp2 sp ep8 dispatch=deepep", MOE | {"deepep_gpus": 0}),
    ("dispatch_deepep", "tp8 pp4 dp2 sp ep8 etp2 dispatch=deepep", MOE | {"deepep_gpus": 8}),
    ("dispatch_hybridep", "tp8 pp4 dp2 sp ep16 dispatch=hybridep", MOE),
    ("dispatch_fp8", "tp8 pp4 dp2 sp ep8 dispatch=alltoall:fp8", MOE),
    ("overlap_ep", "tp8 pp4 vp2 dp2 sp overlap=grad,param,tp,p2p,ep", MOE),
    ("overlap_ep", "tp8 dp8 mbs32 sp ep8 overlap=grad,param,tp,ep", MOE),
    ("overlap_ep_pipeline", "tp8 pp4 dp2 sp ep8 overlap=grad,param,tp,ep", MOE),
    ("overlap_ep_recompute", "tp8 dp8 sp ep8 overlap=grad,param,tp,ep recompute=selective:moe", MOE),
    ("overlap_ep_mtp", "tp8 dp8 sp ep8 overlap=grad,param,tp,ep", MOE | {"mtp": 2}),
    ("graphs_experts", "tp8 pp4 dp2 sp ep8 dispatch=deepep graphs=full", MOE | {"captures_experts": True}),
    ("graphs_experts", "tp8 pp4 dp2 sp graphs=full", MOE | {"captures_experts": True}),
    ("graphs_products", "tp8 pp4 dp2 sp ep8 dispatch=hybridep graphs=full", MOE),
    ("graphs_split", "tp8 pp4 dp2 sp ep4 etp2 dispatch=hybridep graphs=full", MOE | {"captures_experts": True}),
    ("graphs_recompute", "tp8 pp4 dp2 sp recompute=full graphs=partial", DENSE),
    ("module_experts", "tp8 pp4 dp2 sp recompute=selective:moe_act", {}),
    ("module_experts", "tp8 pp4 dp2 sp ep8 recompute=selective:shared_experts", MOE | {"shared_ffn": 0}),
    ("module_latent", "tp8 pp4 dp2 sp recompute=selective:mla_up_proj", {}),
    ("module_dense", "tp8 pp4 dp2 sp ep8 recompute=selective:mlp", MOE),
]


@pytest.mark.parametrize(("rule", "text", "changes"), BREAKS)
def test_each_rule_alone_refuses(rule: str, text: str, changes: dict[str, Any]) -> None:
    columns, facts = from_strategy(parse_strategy(text)), {**DENSE, **changes}
    sentence = next(known.sentence for known in RULES if known.name == rule)
    assert check(columns, facts).ledger == {rule: 1}
    (said,) = violations(columns, facts)
    assert said.startswith(sentence + " (")


def test_there_is_an_example_against_every_rule() -> None:
    assert {rule for rule, *_ in BREAKS} == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (LEGAL, {}),
        ("tp32 pp2 dp1 sp overlap=grad,param", {}),  # more ranks than key/value heads: they are copied
        ("tp16 pp4 dp1 sp overlap=grad,param", {"gpus_per_node": 8}),  # beyond the node: slow, but it runs
        ("tp8 pp8 dp1 mbs64 sp", {}),  # fewer micro-batches than stages: 1f1b accepts that
        ("tp8 pp4 vp5 dp2 sp", {"batch": 8}),
        ("tp8 pp2 vp2 dp4 sp overlap=grad,param,p2p", {}),
        ("tp8 pp4 dp2 sp recompute=full method=block recompute_layers=20", {}),
        ("tp8 pp3 dp2 sp recompute=full recompute_layers=27", {"gpus": 48}),  # 80 layers on 3 stages: 27, 27, 26
        ("tp8 pp4 dp2 zero1 sp offload=optimizer", {}),
        ("tp8 pp1 cp8 dp1 sp flash=on", {}),
        ("tp4 pp4 dp4 sp ep16 etp1", MOE),
        ("tp8 pp4 dp2 sp schedule=zb", {"runtime": "torchtitan"}),
        ("tp8 pp4 vp2 dp2 sp", {"runtime": "torchtitan", "batch": 2 * 3}),  # fewer than pp: one short round
    ],
)
def test_legal_strategies_pass(text: str, changes: dict[str, Any]) -> None:
    assert violations(from_strategy(parse_strategy(text)), {**DENSE, **changes}) == []


# Strategies of NVIDIA's tuned pretraining recipes (Megatron-Bridge 0.6.2), read 2026-11-15.
LLAMA3_8B = DENSE | {"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32}
QWEN3_30B = MOE | {"layers": 48, "hidden": 2048, "ffn": 6144, "heads": 32, "kv_heads": 4, "shared_ffn": 0, "seq": 4096}
GPT_OSS_120B = MOE | {"layers": 36, "hidden": 2880, "heads": 64, "moe_ffn": 2880, "shared_ffn": 0, "expert_bias": True}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("tp4 cp2 pp4 vp5 dp2 sp overlap=grad,param,tp,p2p", DENSE),
        ("tp4 pp8 vp5 dp2 sp overlap=grad,param,tp,p2p", DENSE | {"precision": "fp8"}),
        ("tp2 cp2 pp4 vp5 dp4 sp overlap=grad,param,tp,p2p", DENSE | {"blackwell": True}),
        ("tp1 pp4 vp5 dp16 overlap=grad,param,p2p", DENSE | {"blackwell": True, "precision": "fp8"}),
        ("tp1 pp1 dp64 mbs2 zero3", DENSE | {"blackwell": True, "batch": 256}),
        ("tp1 cp2 pp1 dp4", LLAMA3_8B | {"gpus": 8, "batch": 128}),
        ("tp1 pp1 dp8 recompute=full", LLAMA3_8B | {"gpus": 8, "batch": 128, "precision": "fp8"}),
        ("tp1 pp1 dp64 ep8 mbs4 recompute=selective", GPT_OSS_120B | {"batch": 1280, "blackwell": True}),
        ("tp1 pp1 dp64 ep64 mbs4 recompute=selective", GPT_OSS_120B | {"batch": 1280, "blackwell": True}),
        ("tp1 pp4 dp16 ep8 recompute=selective", GPT_OSS_120B | {"batch": 1280, "precision": "fp8"}),
        ("tp1 pp1 dp64 ep16", QWEN3_30B | {"batch": 4096, "precision": "fp8"}),
        ("tp1 pp1 dp8 ep8 mbs8", QWEN3_30B | {"batch": 512, "gpus": 8, "blackwell": True}),
    ],
)
def test_vendor_recipes_are_legal(text: str, facts: dict[str, Any]) -> None:
    assert violations(from_strategy(parse_strategy(text)), facts) == []


def test_a_sentence_has_the_numbers_that_break_it() -> None:
    strategy = parse_strategy("tp3 pp2 dp1 recompute=full recompute_layers=99 sp")
    said = violations(from_strategy(strategy), {**DENSE, "gpus": 6})
    assert said[0] == "tp must divide the attention heads (tp=3, heads=64)"
    assert "(recompute_layers=99, recompute=full, layers_per_chunk=40)" in said[-1]
    assert "sp=on" in next(line for line in said if line.startswith("under sequence"))


@pytest.mark.parametrize(
    ("strategy", "runtime", "sent"),
    [
        ("tp8 pp4 dp2 sp zero2", "nanotron", True),
        ("tp8 pp4 dp2 sp zero3 reshard=always", "torchtitan", True),
        ("tp8 pp4 dp2 sp zero3 reshard=never", "torchtitan", False),
        ("tp8 pp4 dp2 sp zero2", "torchtitan", False),
        ("tp8 pp4 dp2 sp zero1", "megatron", False),
        ("tp8 pp1 dp8 sp zero3 reshard=always", "torchtitan", False),
    ],
)
def test_advice_on_sharded_pipelines_is_of_those_that_send_for_every_micro_batch(
    strategy: str, runtime: str, sent: bool
) -> None:
    """In pipelines whose weights stay gathered, gradients stay whole until the step's end too (torch's pipelining)."""
    said = advice(from_strategy(parse_strategy(strategy)), DENSE | {"runtime": runtime})
    assert any("every micro-batch of a pipeline" in line for line in said) == sent


def test_advice_speaks_of_what_is_legal_but_unwise() -> None:
    strategy = parse_strategy("tp16 pp4 dp1 mbs128 recompute=selective zero0 overlap=none")
    columns = from_strategy(strategy)
    assert violations(columns, DENSE) == []
    said = advice(columns, DENSE)
    assert said[0].startswith("tensor parallelism reaches beyond the fastest links")
    assert said[0].endswith("(tp=16, scaleup_gpus=8)")
    assert any(line.startswith("fewer micro-batches") for line in said)
    assert any(line.startswith("fused attention keeps no scores") for line in said)
    assert advice(from_strategy(parse_strategy("tp8 pp4 dp2 sp")), DENSE) == []


@pytest.mark.parametrize("rule", [*RULES, *ADVICE], ids=lambda rule: rule.name)
def test_a_rule_reads_only_the_names_it_declares(rule: Any) -> None:
    columns, facts = random_columns(50), MOE | {"runtime": "torchtitan", "precision": "fp8", "optimizer": "sgd"}
    given = {
        name: value for name, value in {**facts, **columns}.items() if name in rule.needs or name in inputs_of(rule)
    }
    rule.breaks(Names({}, given))
    assert rule.needs <= set(NAMES)


def inputs_of(rule: Any) -> set[str]:
    return {name for need in rule.needs if need in DERIVED for name in DERIVED[need].inputs}


def test_the_vocabulary_has_every_field_of_the_table() -> None:
    assert set(FIELDS) <= set(NAMES)
    assert {name for name, word in NAMES.items() if word.kind == "choice"} == set(CHOICES)
    assert all(word.meaning for word in NAMES.values())


def test_derived_columns() -> None:
    columns: dict[str, Column] = {
        "dp": np.array([2, 7]),
        "mbs": np.array([2]),
        "pp": np.array([3, 80]),
        "vp": np.array([2]),
    }
    table = Names(columns, {"batch": 256, "layers": 80})
    assert table["microbatches"].tolist() == [64, 18]
    assert table["layers_per_stage"].tolist() == [27, 1]
    assert table["layers_per_chunk"].tolist() == [14, 1]
    assert "microbatches" in table
    assert "microbatches" not in Names({"dp": np.array([2])}, {"batch": 256})
    with pytest.raises(KeyError):
        table["heads"]


def test_a_given_value_takes_the_place_of_a_derived_one() -> None:
    columns = from_strategy(parse_strategy("tp8 pp4 dp2 sp recompute=full recompute_layers=22"))
    assert violations(columns, DENSE) != []
    assert violations(columns, {**DENSE, "layers_per_chunk": 22}) == []


def test_facts_of_a_request() -> None:
    device = Device(
        name="B200",
        vendor="NVIDIA",
        arch="Blackwell",
        flops_per_s={"bf16": 2.25e15},
        memory_bytes=192e9,
        memory_bytes_per_s=8e12,
        sms=148,
        power_w=1000,
        host_bytes_per_s=64e9,
        source="test",
        date="2026-11-15",
    )
    inner = Link(reach=8, kind="nvswitch", bytes_per_s=9e11, latency_s=1e-6, source="test")
    outer = Link(reach=10**6, kind="infiniband", bytes_per_s=5e10, latency_s=5e-6, source="test")
    node = NodeType(
        name="box", provider="any", gpu="B200", gpus=8, links=(inner, outer), source="test", date="2026-11-15"
    )
    model = ModelSpec(
        name="toy",
        layers=6,
        hidden=512,
        ffn=2048,
        heads=8,
        kv_heads=4,
        head_dim=64,
        vocab=1000,
        max_seq=4096,
        moe=MoE(experts=16, topk=2, ffn=256, first_dense=1),
        encoder=Encoder(layers=4),
    )
    pool = Pool(device=device, node=node, gpus=32)
    facts = facts_of(model, pool, Workload(global_batch=64, seq=2048), runtime="torchtitan")
    assert set(facts) == set(DENSE)
    assert {name: facts[name] for name in ("gpus", "gpus_per_node", "scaleup_gpus", "layers")} == {
        "gpus": 32,
        "gpus_per_node": 8,
        "scaleup_gpus": 8,
        "layers": 10,
    }
    assert facts["blackwell"]
    assert facts["dense_ffn"]
    assert facts["experts"] == 16
    assert facts["runtime"] == "torchtitan"


def test_the_documentation_has_the_table_of_rules() -> None:
    text = DOCS.read_text(encoding="utf-8")
    lines = ["| rule | what must hold | refused when |", "|---|---|---|"]
    lines += [f"| {rule.name} | {rule.sentence} | `{rule.condition}` |" for rule in RULES]
    table = "\n".join(lines)
    assert table in text, f"docs/rules.md wants this table:\n{table}"
    assert all(f"`{name}`" in text for name in NAMES)
