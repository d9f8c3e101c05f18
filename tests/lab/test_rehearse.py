"""Rehearsal: the arithmetic and bookkeeping around the GPU, which need none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import astra
from astra.api import make_job
from astra.catalog import runtimes
from astra.cli.plan import DEFAULT_MODEL
from astra.errors import InputError
from astra.lab.profile.plan import Store
from astra.lab.rehearse import run as rehearse
from astra.lab.rehearse.case import (
    Case,
    as_row,
    fewest_microbatches,
    fill_seconds,
    net_of_before,
    read_cases,
    write_cases,
)
from astra.lab.rehearse.counter import Counter
from astra.lab.rehearse.plan import (
    CannotRehearse,
    case_of,
    compared_with,
    counted_only,
    framework_of,
    refusals,
    stages_of,
)
from astra.spec.model import MLA, ModelSpec, MoE
from astra.spec.strategy import Strategy, parse_strategy
from astra.spec.workload import Workload
from tests.schedule.alive import peak_activation_bytes
from tools.rehearsed_rows import case_of_row

ROOT = Path(__file__).resolve().parents[2]
MODEL = ModelSpec(
    name="toy", layers=24, hidden=64, ffn=128, heads=8, kv_heads=4, head_dim=8, vocab=1000, max_seq=4096,
    qk_norm="per_head",
)  # fmt: skip
EXPERTS = replace(MODEL, name="toy-moe", moe=MoE(experts=8, topk=2, ffn=32))
WORK = Workload(global_batch=64, seq=512)


def case_with(model: ModelSpec = MODEL, stage: int = 0, seq: int = 4096, **degrees: Any) -> Case:
    schedule = "interleaved" if degrees.get("vp", 1) > 1 else "1f1b"
    strategy = Strategy(**{"overlap": (), "schedule": schedule, **degrees})
    return Case(model=model, strategy=strategy, stage=stage, seq=seq)


@given(pp=st.integers(1, 16), vp=st.integers(1, 3), stage=st.integers(0, 15))
def test_the_fewest_microbatches_fill_the_stage(pp: int, vp: int, stage: int) -> None:
    schedule = "interleaved" if vp > 1 and pp > 1 else "1f1b"
    vp, stage = vp if schedule == "interleaved" else 1, stage % pp
    few, many = (
        peak_activation_bytes(schedule, p=pp, v=vp, m=m, rank=stage, chunk_bytes=[1.0] * vp)
        for m in (fewest_microbatches(pp, vp, stage), 8 * pp)
    )
    assert few == many


@given(pp=st.integers(2, 64), vp=st.integers(2, 8))
def test_interleaved_microbatches_are_a_multiple_of_the_pipeline(pp: int, vp: int) -> None:
    assert fewest_microbatches(pp, vp, 0) % pp == 0
    assert fewest_microbatches(pp, vp, 0) > pp  # Megatron runs all forwards first when m == p


def test_the_rank_is_the_first_of_its_stage_in_megatrons_order() -> None:
    assert case_with(tp=2, pp=4, dp=3, stage=2).rank == 12


def test_stages_of_one_job_share_a_split() -> None:
    cases = [case_with(tp=2, pp=4, dp=dp, stage=stage) for dp in range(1, 30) for stage in range(4)]
    by_job: dict[str, set[str]] = {}
    for case in cases:
        by_job.setdefault(case.strategy_id, set()).add(case.split)
    assert all(len(splits) == 1 for splits in by_job.values())
    assert {case.split for case in cases} == {"fit", "test"}


def test_the_strategy_text_reads_back_as_the_planners_own() -> None:
    case = case_with(EXPERTS, tp=2, pp=4, vp=2, ep=4, dp=8, sp=True, recompute="full", method="block")
    assert parse_strategy(f"{case.words} overlap=none") == case.strategy


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"tp": 3}, "case.tp"),
        ({"pp": 5}, "case.pp*vp"),
        ({"pp": 2, "stage": 2}, "case.stage"),
        ({"tp": 2, "sp": True, "seq": 4097}, "case.seq"),
        ({"vp": 2}, "case.vp"),
        ({"ep": 2, "dp": 2}, "case.ep"),
    ],
)
def test_illegal_cases_say_where(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as caught:
        case_with(**change)
    assert caught.value.where == place


def test_what_belongs_to_the_rank_is_checked_too() -> None:
    case = case_with(pp=4, vp=2)
    for change, place in (({"attention": "paged"}, "case.attention"), ({"microbatches": 6}, "case.microbatches")):
        with pytest.raises(InputError) as caught:
            replace(case, **change)
        assert caught.value.where == place


def test_experts_under_tensor_parallelism_need_sequence_parallelism() -> None:
    with pytest.raises(InputError, match="experts under tensor"):
        case_with(EXPERTS, tp=2)
    case_with(EXPERTS, tp=2, sp=True)


def test_a_row_is_plain_data_and_rebuilds_the_case() -> None:
    biased = replace(MODEL, qkv_bias=True, out_bias=True, mlp_bias=True, learned_positions=4096)
    for case in (
        case_with(tp=2, pp=4, stage=1, recompute="full"),
        case_with(biased, dp=2, overlap=("grad", "param")),
        case_with(EXPERTS, pp=2, vp=2, ep=4, dp=4),
        replace(case_with(pp=2, layers=(11, 13)), attention="cudnn", fused_cross_entropy=True),
    ):
        row = json.loads(json.dumps(as_row(case)))
        assert case_of_row(row) == replace(case, microbatches=case.num_microbatches)
        assert row["id"] == case.id == case_of_row(row).id
        assert (row["world"], row["shape"]["layers"]) == (case.strategy.gpus, 24)


def test_coverage_order_is_a_fixed_permutation() -> None:
    cases = [case_with(dp=dp) for dp in range(1, 50)]
    coverage_order = _load_grid().coverage_order
    ordered = coverage_order(cases)
    assert ordered == coverage_order(cases[::-1])
    assert {c.id for c in ordered} == {c.id for c in cases}
    assert ordered != cases


def test_memory_is_net_of_what_earlier_cases_left() -> None:
    row = {
        "before_bytes": 10,
        "reserved_before_bytes": 20,
        "static_bytes": 110,
        "peak_reserved_bytes": 220,
        "params": 5,
    }
    assert net_of_before(row) == {**row, "static_bytes": 100, "peak_reserved_bytes": 200, "params": 5}


def test_the_grid_is_fixed_and_every_case_is_legal_and_distinct() -> None:
    grid = _load_grid()
    cases = grid.cases()
    assert len({case.id for case in cases}) == len(cases) > 350
    assert [case.id for case in grid.cases()] == [case.id for case in cases]
    splits = [case.split for case in cases]
    assert 0.4 < splits.count("fit") / len(splits) < 0.6
    assert {case.model.name for case in cases} == set(grid.MODELS)


def test_the_published_rows_are_cases_of_the_grid() -> None:
    known = {case.id: case for case in _load_grid().cases()}
    rows = json.loads((ROOT / "benchmarks/results/2026-11-15_rehearsal_h200.json").read_text())["rows"]
    assert len(rows) > 200
    for row in rows:
        played = json.loads(json.dumps(as_row(known[row["id"]])))
        assert {name: row[name] for name in played if name in row} == {
            name: played[name] for name in played if name in row
        }
        if not row["oom"]:
            assert row["finite"]
            assert 0 < row["static_bytes"] <= row["peak_allocated_bytes"] < 150e9
            assert row["busy_s"] < 1.1 * row["step_raw_s"]


def _load_grid() -> Any:
    return _load("grid")


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"rehearsal_{name}", ROOT / f"benchmarks/rehearsal/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fills_cost_a_start_and_a_rate() -> None:
    costs = {"copy": (1e-6, 1e-12), "normal": (2e-6, 2e-12)}
    assert fill_seconds([("copy", 10**6), ("normal", 10**6)], costs) == pytest.approx(1e-6 + 1e-6 + 2e-6 + 2e-6)


def test_a_case_of_a_plan() -> None:
    strategy = parse_strategy("tp2 pp4 dp8 mbs2 sp zero1 recompute=selective overlap=grad,param")
    case = case_of(MODEL, strategy, WORK, stage=3)
    assert (case.model, case.stage, case.strategy) == (MODEL, 3, strategy)
    assert case.overlap_grad
    assert case_of(MODEL, strategy, WORK, stage=0).num_microbatches == 4  # no more than the plan has


@pytest.mark.parametrize("strategy", ["pp2 dp2 schedule=gpipe", "pp2 dp2 schedule=zb"])
def test_what_cannot_be_rehearsed_is_said(strategy: str) -> None:
    with pytest.raises(CannotRehearse, match="no such pipeline schedule"):
        case_of(MODEL, parse_strategy(strategy), WORK)


@pytest.mark.parametrize(
    ("strategy", "word"),
    [
        ("tp2 cp2 dp4", "Context parallelism needs TransformerEngine"),
        ("dp8 offload=optimizer", "without optimizer state"),
        ("dp8 moments=bf16", "Moments in bf16"),
    ],
)
def test_what_cannot_run_is_counted_and_said(strategy: str, word: str) -> None:
    chosen = parse_strategy(strategy)
    assert [sentence for sentence in counted_only(chosen, WORK) if word in sentence]
    assert refusals(MODEL, chosen, WORK) == []
    case = case_of(MODEL, chosen, WORK)
    assert case.seq * chosen.cp == WORK.seq
    assert case.strategy.gpus == chosen.gpus  # the ring's ranks shard states like replicas


def test_a_ring_of_few_micro_batches_is_counted() -> None:
    """Its ranks are played as replicas, which have as many micro-batches as the ring, not a share of them."""
    chosen, work = parse_strategy("cp2 pp4 vp2 dp8 mbs1 overlap=grad,p2p"), replace(WORK, global_batch=32)
    assert refusals(MODEL, chosen, work) == []
    assert case_of(MODEL, chosen, work).num_microbatches == 4


@pytest.mark.parametrize("gpus", ["64xH100", "512xH100"])
def test_what_the_readme_and_the_help_plan_is_rehearsed_as_printed(gpus: str) -> None:
    found = astra.plan(DEFAULT_MODEL, gpus=gpus, batch=1024, seq=4096)
    asked = make_job(DEFAULT_MODEL, gpus=gpus, batch=1024, seq=4096)
    strategies = [parse_strategy(plan.strategy) for plan in found.plans]
    assert [refusals(asked.model, one, asked.workload) for one in strategies] == [[]] * len(strategies)
    assert counted_only(strategies[0], asked.workload) == []  # the first one runs on a GPU


def test_hidden_exchanges_are_counted_as_megatron_hides_them() -> None:
    chosen = parse_strategy("pp2 vp2 dp8 ep4 overlap=grad,p2p,ep")
    assert refusals(EXPERTS, chosen, WORK) == []
    assert any("Hidden expert exchanges" in sentence for sentence in counted_only(chosen, WORK))
    case = case_of(EXPERTS, chosen, WORK)
    assert case.overlaps_experts
    assert "/hidden/" in case.id
    assert case_of_row(as_row(case)).overlaps_experts


def test_other_precisions_are_counted_in_bf16() -> None:
    assert counted_only(parse_strategy("dp8"), WORK) == []
    assert "in bf16" in counted_only(parse_strategy("dp8"), replace(WORK, precision="fp8"))[0]


def test_sharded_weights_latent_attention_and_named_modules_are_rehearsed() -> None:
    latent = MLA(q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8)
    model = replace(EXPERTS, mla=latent, moe=MoE(experts=8, topk=2, ffn=32, shared_ffn=32, first_dense=1))
    for words in ("dp8 zero2", "dp8 zero3", "dp8 recompute=selective:core_attn,layernorm,mla_up_proj"):
        assert refusals(model, parse_strategy(words), WORK) == []


def test_plain_torch_has_no_experts_and_no_virtual_stages() -> None:
    strategy = parse_strategy("pp4 vp2 dp8 overlap=grad,param,p2p")
    assert refusals(EXPERTS, strategy, WORK) == []
    found = refusals(EXPERTS, strategy, WORK, "torch")
    assert found == ["plain torch has no experts", "plain torch has no virtual stages (vp)"]


def test_fsdp2_keeps_weights_or_gathers_them_again() -> None:
    for words in ("dp8 zero3 reshard=never", "dp8 zero3", "dp8 zero2 recompute=full", "pp2 dp4 zero2"):
        strategy = parse_strategy(words)
        assert refusals(MODEL, strategy, WORK, "fsdp2") == []
        case = case_of(MODEL, strategy, WORK, framework="fsdp2", compiled=True)
        assert case.strategy.reshard == strategy.reshard
        assert "/fsdp2/compiled/" in case.id


def test_every_reason_is_given_at_once() -> None:
    found = refusals(MODEL, parse_strategy("tp2 pp2 vp2 dp2 zero1 overlap=grad,param,p2p"), WORK, "fsdp2")
    assert len(found) == 3


@pytest.mark.parametrize(
    ("runtime", "framework", "compared"),
    [
        ("megatron", "megatron", "megatron-local"),
        ("deepspeed", "megatron", "megatron-local"),
        ("torchtitan", "fsdp2", "torchtitan-local"),
        ("fsdp-eager", "transformers", "transformers-local"),
    ],
)
def test_a_plan_is_played_by_the_framework_it_is_for(runtime: str, framework: str, compared: str) -> None:
    chosen = runtimes.runtime(runtime)
    assert framework_of(chosen) == framework
    assert compared_with(framework, chosen) == compared


def test_the_fsdp2_grid_was_run_as_it_is() -> None:
    """Every published row is a case of the grid, and half of them were kept for scoring."""
    known = {case.id: case for case in _load("fsdp2").cases()}
    rows = json.loads((ROOT / "benchmarks/results/2026-11-15_rehearsal-fsdp2_h200.json").read_text())["rows"]
    assert [row["id"] for row in rows] == list(known)
    for row in rows:
        assert case_of_row(row).id == row["id"]
        assert row["split"] == known[row["id"]].split
        assert row["finite"]
    assert 0.4 < sum(row["split"] == "test" for row in rows) / len(rows) < 0.6


def test_uneven_layers() -> None:
    case = case_of(MODEL, parse_strategy("pp2 vp2 dp8 overlap=grad,param,p2p"), WORK, layers=(5, 7, 7, 5), stage=1)
    assert case.chunk_layers == (7, 5)
    assert case.layout == "Et*5|t*7|t*7|t*5L"
    assert parse_strategy(case.words).layers == (5, 7, 7, 5)
    assert read_cases(write_cases([case])) == [case]
    even = case_of(MODEL, parse_strategy("pp2 dp8"), WORK, layers=(12, 12))
    assert (even.layout, even.strategy.layers) == (None, ())
    with pytest.raises(InputError, match="add up to 24"):
        replace(case, strategy=replace(case.strategy, layers=(5, 7, 7, 6)))


@pytest.mark.parametrize(
    ("words", "found"), [([], [0, 4, 7]), (["all"], [0, 4, 7]), (["3", "1", "3"], [1, 3]), (["all", "2"], [0, 2, 4, 7])]
)
def test_stages_asked_for(words: list[str], found: list[int]) -> None:
    assert stages_of(words, 8) == found
    assert stages_of(["all"], 1) == [0]


def test_storages_are_counted_from_birth_to_death() -> None:
    class Storage:
        def __init__(self, nbytes: int) -> None:
            self._cdata, self._nbytes = id(self), nbytes

        def nbytes(self) -> int:
            return self._nbytes

    counter = Counter()
    one, two = Storage(1000), Storage(512)
    for storage in (one, two, one):
        counter.see(storage)
    assert counter.live_bytes == 1024 + 512  # whole grains, each storage once
    del one, storage
    assert (counter.live_bytes, counter.peak_bytes) == (512, 1536)
    two._nbytes = 2048
    counter.resized(two)  # FSDP makes a storage larger for gathered weights,
    assert (counter.live_bytes, counter.peak_bytes) == (2048, 2048)
    two._nbytes = 0
    counter.resized(two)  # and gives its memory back
    assert (counter.live_bytes, counter.peak_bytes) == (0, 2048)
    counter.reset()
    del two  # of an earlier case: not ours any more
    assert counter.live_bytes == 0


def test_finished_cases_are_not_run_again_and_a_crash_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [case_with(dp=dp) for dp in (1, 2, 3)]
    path = tmp_path / "rows.json"
    store = Store(path, key="id")
    store.add({"id": cases[0].id, "oom": False})
    store.begin(cases[1].id)  # and the process dies
    ran: list[str] = []

    def one(case: Case, *_: Any) -> dict[str, Any]:
        ran.append(case.id)
        return {"id": case.id, "oom": False, "error": "no GPU here"}

    monkeypatch.setattr(rehearse, "_prepare", lambda _: {})
    monkeypatch.setattr(rehearse, "_one", one)
    done = rehearse.run_cases(cases, path)
    assert ran == [cases[2].id]
    assert [row["id"] for row in json.loads(path.read_text())["rows"]] == [case.id for case in cases]
    assert "died" in done.rows[1]["error"]


def test_the_command_refuses_a_bad_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = rehearse.main(["--model", "llama-2-7b", "--strategy", "tp3", "--out", str(tmp_path / "o.json")])
    assert code == 2
    assert "heads" in capsys.readouterr().err
