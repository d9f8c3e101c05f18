"""Reading published runs into jobs and strategies."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra.catalog import runtimes
from astra.catalog.hardware import node_type
from astra.errors import InputError
from astra.search.world import World
from astra.spec.strategy import parse_strategy
from astra.units import GIB
from astra.validate import table
from astra.validate.models import Sizes, model_of
from astra.validate.networks import read_network
from astra.validate.pools import find_device, pool_of
from astra.validate.runs import Run, Skipped, read_runs, runs_of
from astra.validate.strategies import called, refused, split_by_parameters

ROW = {
    "id": "mine-0001", "framework": "megatron", "model_name": "llama2-7b", "layers": "32", "hidden": "4096",
    "ffn": "11008", "heads": "32", "kv_heads": "32", "vocab": "32000", "seq_len": "4096", "gated_mlp": "1",
    "gpu_type": "H100-SXM", "gpu_mem_gb": "80", "num_gpus": "16", "gpus_per_node": "8", "precision": "bf16", "tp": "2",
    "pp": "2", "vp": "1", "cp": "1", "ep": "1", "dp": "4", "sp": "1", "zero_stage_or_dist_opt": "zero1",
    "recompute": "none", "flash_attn": "1", "mbs": "1", "gbs": "64", "measured_step_time_s": "3.5", "oom": "0",
    "task": "pretrain", "intra_node_link": "NVLink4 900GB/s NVSwitch", "inter_node_link": "IB NDR 8x400Gb/s",
    "notes": "",
}  # fmt: skip


def one(**changes: str) -> Run | Skipped:
    return runs_of([ROW | changes])[0]


def run(**changes: str) -> Run:
    found = one(**changes)
    assert isinstance(found, Run), found
    return found


@pytest.mark.parametrize(
    ("changes", "batch", "mbs"),
    [
        ({"gbs": "", "mbs": "2", "notes": "grad accum = 8"}, 64, 2),
        ({"gbs": "", "notes": "16 gradient accumulation steps"}, 64, 1),
        ({"mbs": "", "notes": "GA=8"}, 64, 2),
        ({"mbs": "", "notes": "fp32 grad accum; 1f1b"}, 64, 1),
        ({"gbs": "4M tokens"}, 1024, 1),
    ],
)
def test_batches_by_what_tables_give_instead(changes: dict[str, str], batch: int, mbs: int) -> None:
    found = run(**changes)
    assert (found.request.batch, found.strategy.mbs) == (batch, mbs)
    assert any("batch" in rule for rule in found.filled)


@pytest.mark.parametrize(
    ("changes", "gpus", "degrees"),
    [
        ({"num_gpus": ""}, 16, (2, 2, 4)),
        ({"pp": "", "dp": ""}, 16, (2, 1, 8)),
        ({"tp": "", "pp": "", "dp": "", "framework": "fsdp"}, 16, (1, 1, 16)),
    ],
)
def test_degrees_that_are_left_out(changes: dict[str, str], gpus: int, degrees: tuple[int, int, int]) -> None:
    found = run(**changes)
    assert found.job.pool.gpus == gpus
    assert (found.strategy.tp, found.strategy.pp, found.strategy.dp) == degrees


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("measured_step_time_s", "3500 ms", 3.5),
        ("measured_step_time_s", "~3.5s", 3.5),
        ("measured_peak_mem_gb", "75.2 GiB", 75.2),
        ("measured_peak_mem_gb", "71,680 MiB", 70.0),
        ("seq_len", "8k", 8192),
    ],
)
def test_numbers_with_units(column: str, cell: str, value: float) -> None:
    found = run(**{column: cell})
    read = {"measured_step_time_s": found.measured.step_s, "measured_peak_mem_gb": found.measured.peak_gib}
    assert read.get(column, found.request.seq) == pytest.approx(value)


@pytest.mark.parametrize(
    ("changes", "shard"),
    [
        ({"zero_stage_or_dist_opt": "zero1 over 2 ranks"}, 2),
        ({"zero_stage_or_dist_opt": "megatron-fsdp(zero3) group=2"}, 2),
        ({"zero_stage_or_dist_opt": "HSDP", "tp": "1", "pp": "1", "dp": "16"}, 8),
        ({"zero_stage_or_dist_opt": "zero1 over all dp ranks"}, 0),
    ],
)
def test_states_sharded_inside_groups(changes: dict[str, str], shard: int) -> None:
    assert run(**changes).strategy.shard == shard


@pytest.mark.parametrize(("text", "fused"), [("FA2", True), ("sdpa", True), ("unfused", False), ("0", False)])
def test_attention_by_the_words_of_tables(text: str, fused: bool) -> None:
    assert run(flash_attn=text, framework="deepspeed").strategy.flash == fused


def test_a_full_row() -> None:
    found = run()
    assert (found.id, found.source, found.job.pool.gpus) == ("mine-0001", "mine", 16)
    assert found.job.runtime.name == "megatron"
    assert str(found.strategy).startswith("tp2 pp2 dp4 mbs1 sp zero1 recompute=none overlap=grad,param")
    assert found.measured.step_s == 3.5
    assert not found.aside
    assert found.job.model.kv_heads == 32
    assert found.job.headroom == 0


@pytest.mark.parametrize(
    ("text", "memory_gb", "name"),
    [
        ("DGX H100", "80", "H100-SXM5-80GB"),
        ("HGX B300", "", "B300-SXM-288GB"),
        ("NVIDIA H100 80GB HBM3", "80", "H100-SXM5-80GB"),
        ("Grace Hopper GH200", "", "GH200-96GB"),
        ("GH200 480GB", "", "GH200-96GB"),
        ("p5.48xlarge", "", "H100-SXM5-80GB"),
        ("A100-SXM-80GB", "", "A100-SXM4-80GB"),
        ("A100 40GB", "", "A100-SXM4-40GB"),
        ("A100", "", "A100-SXM4-80GB"),
        ("H100SXM", "80", "H100-SXM5-80GB"),
        ("NVIDIA GeForce RTX 4090", "24", "RTX4090"),
        ("A10G", "24", "A10G"),
        ("L40S", "48", "L40S"),
        ("8x A100", "80", "A100-SXM4-80GB"),
        ("ND A100 v4", "40", "A100-SXM4-40GB"),
    ],
)
def test_gpus_by_the_words_of_tables(text: str, memory_gb: str, name: str) -> None:
    found = run(gpu_type=text, gpu_mem_gb=memory_gb)
    assert found.job.pool.device.name == name


@pytest.mark.parametrize("text", ["L40", "A40", "H1000", "DGX", ""])
def test_a_gpu_is_never_another_whose_name_it_begins_with(text: str) -> None:
    assert isinstance(one(gpu_type=text), Skipped)


@pytest.mark.parametrize(
    ("text", "on_hopper", "on_blackwell"),
    [
        ("bfloat16", "bf16", "bf16"),
        ("BF16-mixed", "bf16", "bf16"),
        ("half", "fp16", "fp16"),
        ("FP32", "tf32", "tf32"),
        ("mixed", "bf16", "bf16"),
        ("fp8-hybrid", "fp8", "fp8"),
        ("float8", "fp8", "fp8"),
        ("bf16 + fp8", "fp8", "fp8"),
        ("FP8-CS", "fp8-tensorwise", "fp8-tensorwise"),
        ("FP8 (current scaling)", "fp8-tensorwise", "fp8-tensorwise"),
        ("fp8 delayed", "fp8-tensorwise", "fp8-tensorwise"),
        ("FP8 blockwise", "fp8-blockwise", "fp8-blockwise"),
        ("float8 rowwise", "fp8-rowwise", "fp8-rowwise"),
        ("FP8-MX", "fp8", "mxfp8"),
        ("FP4", None, "nvfp4"),
    ],
)
def test_precisions_by_the_words_of_tables(text: str, on_hopper: str | None, on_blackwell: str) -> None:
    for gpu, wanted in (("H100-SXM", on_hopper), ("B200", on_blackwell)):
        found = one(precision=text, gpu_type=gpu, gpu_mem_gb="")
        assert (found.request.precision if isinstance(found, Run) else None) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Full AC", "recompute=full"),
        ("full activation checkpointing", "recompute=full"),
        ("gradient checkpointing", "recompute=full"),
        ("full block 8", "recompute=full method=block recompute_layers=8"),
        ("every other layer", "recompute=full method=block recompute_layers=8"),
        ("selective (core attention)", "recompute=selective"),
        ("selective: moe_act, layernorm", "recompute=selective:moe_act,layernorm"),
        ("every layer", "recompute=full"),
        ("50%", "recompute=full method=block recompute_layers=8"),
        ("no activation checkpointing", "recompute=none"),
        ("without recompute", "recompute=none"),
        ("off", "recompute=none"),
    ],
)
def test_recompute_by_the_words_of_tables(text: str, wanted: str) -> None:
    asked = parse_strategy(wanted)
    found = run(recompute=text)
    assert not any("recompute" in rule for rule in found.filled)
    for name in ("recompute", "method", "recompute_layers"):
        assert getattr(found.strategy, name) == getattr(asked, name)


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("HSDP", 3), ("ZeRO++", 3), ("zero-infinity", 3), ("sharded optimizer", 1), ("off", 0),
        ("FSDP (SHARD_GRAD_OP)", 2), ("fully sharded", 3), ("optimizer state sharding", 1), ("ZeRO-Offload", 2),
    ],
)  # fmt: skip
def test_sharding_by_the_words_of_tables(text: str, stage: int) -> None:
    found = run(zero_stage_or_dist_opt=text)
    assert found.strategy.zero == stage
    assert not any("ZeRO" in rule for rule in found.filled)


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("Pre-training", "pretrain"),
        ("training", "pretrain"),
        ("continued pretraining", "pretrain"),
        ("Fine-tuning", "finetune"),
        ("full-parameter finetuning", "finetune"),
        ("PEFT", "lora"),
    ],
)
def test_tasks_by_the_words_of_tables(text: str, task: str) -> None:
    assert run(task=text).request.task == task


@pytest.mark.parametrize(
    ("framework", "runtime"),
    [
        ("Megatron Bridge", "megatron-bridge"),
        ("NVIDIA NeMo Framework 24.07", "nemo"),
        ("Megatron-Core v0.12", "megatron"),
        ("PyTorch", "fsdp-eager"),
        ("HF Trainer", "fsdp-eager"),
        ("axolotl", "fsdp-eager"),
        ("GPT-NeoX", "deepspeed"),
        ("InternLM", "internevo"),
        ("mcore", "megatron"),
        ("MaxText", "pytorch"),
        ("OLMo", "fsdp-eager"),
    ],
)
def test_frameworks_by_the_words_of_tables(framework: str, runtime: str) -> None:
    found = run(framework=framework)
    assert found.job.runtime.name == runtime
    assert not any("taken as megatron" in rule for rule in found.filled)


@pytest.mark.parametrize(
    ("version", "flash", "runtime", "fused"),
    [
        (
            "Megatron-LM 2020-09",
            "",
            "megatron-apex",
            False,
        ),  # FlashAttention and TransformerEngine came in December 2022
        ("2021", "", "megatron-apex", False),
        ("2022-11", "", "megatron-apex", False),
        ("2022-12", "", "megatron", True),
        ("2022", "", "megatron", True),
        ("2024-05", "0", "megatron-apex", False),
        ("core_v0.12", "", "megatron", True),
        ("", "", "megatron", True),
    ],
)
def test_megatron_by_its_date(version: str, flash: str, runtime: str, fused: bool) -> None:
    found = run(framework="Megatron-LM", framework_version_or_date=version, flash_attn=flash)
    assert (found.job.runtime.name, found.strategy.flash) == (runtime, fused)


@pytest.mark.parametrize(
    ("version", "runtime"),
    [("llm-foundry 2024-01 (README HEAD)", "composer-2023"), ("llm-foundry 2024-06", "composer"), ("", "composer")],
)
def test_attention_of_composer_by_its_date(version: str, runtime: str) -> None:
    found = run(framework="llm-foundry", framework_version_or_date=version, tp="1", pp="1", dp="16")
    assert found.job.runtime.name == runtime
    assert found.job.runtime.amount("attention_rate") == (0.5 if runtime == "composer-2023" else 1)


@pytest.mark.parametrize("framework", ["DeepSpeed", "nemo", "megatron-bridge", "FSDP", "nanotron", "FlagScale"])
def test_the_years_of_megatron_are_its_own(framework: str) -> None:
    assert run(framework=framework, framework_version_or_date="2022-02").job.runtime.name not in (
        "megatron-apex",
        "megatron",
    )


@pytest.mark.parametrize(
    ("date", "notes", "runtime"),
    [
        ("2024-12", "compile", "torchtitan-2024"),
        ("2024-04", "", "torchtitan-2024"),
        ("2025-06", "compile", "torchtitan-2025"),
        ("2025-11", "compile", "torchtitan"),
        ("v0.2.0", "compile", "torchtitan"),
        ("", "", "torchtitan"),
        ("2024-12", "no compile", "torchtitan-eager"),
        ("2025-06", "no compile", "torchtitan-eager"),
    ],
)
def test_a_framework_is_what_it_was_at_the_time(date: str, notes: str, runtime: str) -> None:
    found = run(
        framework="torchtitan", framework_version_or_date=date, notes=notes, recompute="selective", tp="1", pp="1",
        dp="16", zero_stage_or_dist_opt="fsdp2(zero3)",
    )  # fmt: skip
    assert found.job.runtime.name == runtime
    assert found.strategy.recompute_layers == 16  # selective is every second layer, compiled or not


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": "", "dp": ""}, "tensor-parallel degree is missing"),
        ({"gpu_type": "TPU-v5p"}, "unsupported hardware: TPU-v5p"),
        ({"precision": "fp6"}, "fp6 is not modelled"),
        ({"precision": "nvfp4"}, "has no nvfp4"),
        ({"gpu_type": "A100-SXM", "precision": "fp8"}, "has no fp8"),
        ({"pp": "8", "vp": "8", "dp": "1"}, "more pipeline chunks than layers"),
        ({"gbs": "30"}, "dp*mbs does not divide the batch"),
        ({"tp": "3"}, "does not divide the GPUs"),
        ({"gbs": "", "measured_step_time_s": ""}, "global batch is missing"),
    ],
)
def test_what_cannot_be_replayed_says_why(changes: dict[str, str], reason: str) -> None:
    found = one(**changes)
    assert isinstance(found, Skipped)
    assert reason in found.reason


def test_missing_columns_are_filled_by_stated_rules() -> None:
    bare = {name: ROW[name] for name in (
        "id", "layers", "hidden", "heads", "gpu_type", "num_gpus", "tp", "pp", "seq_len", "gbs", "vocab",
    )}  # fmt: skip
    found = runs_of([bare | {"measured_tokens_per_s_per_gpu": "1000"}])[0]
    assert isinstance(found, Run)
    assert found.measured.step_s == pytest.approx(64 * 4096 / (1000 * 16))
    assert any("micro-batch not stated" in rule for rule in found.filled)
    assert any("precision not stated" in rule for rule in found.filled)
    assert found.strategy.dp == 4


def test_suspect_and_disturbed_times_are_set_aside_but_replayed() -> None:
    assert "q=C" in run(notes="q=C; remembered").aside
    assert "clean=0" in run(notes="q=A; clean=0 (64 nodes)").aside
    assert run(oom="1", measured_step_time_s="").measured.oom is True
    assert run(notes="q=A; mem = peak on world rank 0").measured.peak_of == "first"
    assert run(notes="q=A; peak of rank 0 by nvidia-smi").measured.peak_of == "first device"
    assert run(framework="deepspeed").measured.peak_of == "device"


def test_equal_requests_are_one_object() -> None:
    first, second, other = runs_of([ROW, ROW | {"id": "mine-0002", "tp": "4", "dp": "2"}, ROW | {"gbs": "128"}])
    assert isinstance(first, Run)
    assert isinstance(second, Run)
    assert isinstance(other, Run)
    assert first.request is second.request
    assert first.request is not other.request


@pytest.mark.parametrize(
    ("text", "kind", "gigabits"),
    [
        ("IB NDR 8x400Gb/s", "infiniband", 3200),
        ("RoCE 1600Gb/s per node", "roce", 1600),
        ("4x100Gb RoCE", "roce", 400),
        ("AWS EFA", "efa", None),
        ("AWS EFA 3200Gb/s (p5.48xlarge)", "efa", 3200),
        ("Slingshot-11 4x200Gb/s", "roce", 800),
        ("50Gb/s Ethernet", "tcp", 50),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 4", "infiniband", 3200),
        ("1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", "infiniband", 3200),
        ("ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s", "roce", None),
        ("", None, None),
    ],
)
def test_networks(text: str, kind: str | None, gigabits: float | None) -> None:
    found = read_network(text, 8)
    assert found.kind == kind
    assert found.bytes_per_s == (None if gigabits is None else pytest.approx(gigabits * 1e9 / 8))


@pytest.mark.parametrize(
    ("text", "memory", "name"),
    [
        ("H100-SXM", 80, "H100-SXM5-80GB"),
        ("A100-SXM", 40, "A100-SXM4-40GB"),
        ("A100-PCIe", 80, "A100-PCIe-80GB"),
        ("GB300", 288, "GB300-NVL72"),
        ("NVIDIA L40S", 45, "L40S"),
        ("V100-SXM3 (DGX-2)", 32, "V100-SXM2-32GB"),
        ("T4", 16, "T4"),
        ("H200-SXM", 140, "H200-SXM5-141GB"),
    ],
)
def test_devices(text: str, memory: float, name: str) -> None:
    assert find_device(text, memory).name == name


def test_gpus_joined_by_a_plus_are_pools() -> None:
    found = run(gpu_type="12xV100-SXM2-16GB (3x p3.8xlarge) + 4xT4 (1x g4dn.12xlarge)", gpu_mem_gb="16", tp="1",
                pp="4", dp="4", gpus_per_node="4", precision="fp16", sp="0",
                intra_node_link="V100 nodes NVLink2 / T4 node PCIe3",
                inter_node_link="10Gb/s (p3.8xlarge) / 50Gb/s (g4dn) Ethernet")  # fmt: skip
    pools = World.of(found.request).cluster.pools
    assert [(pool.device.name, pool.gpus) for pool in pools] == [("V100-SXM2-16GB", 12), ("T4", 4)]
    assert [pool.node.links[-1].bytes_per_s * 4 * 8e-9 for pool in pools] == pytest.approx([10, 50])
    assert isinstance(one(gpu_type="12xV100 + 8xT4"), Skipped)


def test_a_limited_gpu_is_slower_and_keeps_its_memory() -> None:
    pool = pool_of("H100-SXM 96GB HBM2e 500W", 96.0, 8, 8, "NVLink4 900GB/s NVSwitch", "")
    stock = find_device("H100-SXM", 80.0)
    shares = {name: pool.device.flops_per_s[name] / stock.flops_per_s[name] for name in ("bf16", "fp8")}
    assert 0.7 < shares["fp8"] < shares["bf16"] < 0.9  # denser kernels draw more power
    assert pool.device.memory_bytes_per_s < stock.memory_bytes_per_s
    assert 90 * GIB < pool.device.memory_bytes < 96 * GIB
    assert pool.node.links[0].bytes_per_s == 450e9


def test_a_node_named_has_the_links_of_the_catalog() -> None:
    named = pool_of("T4", 16.0, 16, 4, "PCIe4 (g4dn.12xlarge)", "50Gb/s Ethernet")
    told = pool_of("T4", 16.0, 16, 4, "PCIe4", "50Gb/s Ethernet")
    assert told.node.links[0].bytes_per_s == 31.5e9
    assert named.node.links[0] == node_type("aws-g4dn.12xlarge").links[0]
    assert named.node.measured


def test_what_a_framework_does_unless_asked_fills_what_a_table_leaves_open() -> None:
    open_ended = {"precision": "unknown", "flash_attn": "unknown", "recompute": "unknown"}
    known, other = run(framework="Megatron-DeepSpeed", **open_ended), run(**open_ended)
    assert known.job.workload.precision == "tf32"
    assert not known.strategy.flash
    assert any("tf32, what deepspeed does unless asked" in rule for rule in known.filled)
    assert other.job.workload.precision == "bf16"
    assert run(framework="deepspeed", precision="fp16").job.workload.precision == "fp16"
    old = run(framework="deepspeed", gpu_type="V100-SXM2", gpu_mem_gb="32", precision="", flash_attn="0")
    assert old.job.workload.precision == "fp16"  # a GPU without TF32


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("megatron-bridge", "megatron-bridge"),
        ("NeMo Megatron", "nemo"),
        ("Megatron-LM", "megatron"),
        ("Megatron-DeepSpeed", "deepspeed"),
        ("llm-foundry (composer)", "composer"),
        ("something", ""),
    ],
)
def test_frameworks_by_what_tables_call_them(text: str, name: str) -> None:
    assert called(text) == name


def test_no_two_runtimes_are_called_the_same() -> None:
    words = [word for name in runtimes.runtime_names() for word in runtimes.runtime(name).usual.called]
    assert len(set(words)) == len(words)
    assert all(word == word.lower() for word in words)


def test_a_framework_named_by_its_version() -> None:
    settings = {"framework": "other", "framework_version_or_date": "InternEvo 2023-09", "pp": "1", "dp": "8"}
    everywhere = run(**settings, zero_stage_or_dist_opt="zero1 over all dp ranks")
    node = run(**settings, zero_stage_or_dist_opt="zero1 over 8 ranks")
    assert everywhere.job.runtime.name == "internevo"
    assert (everywhere.strategy.overlap, node.strategy.overlap) == (("grad",), ("grad", "param"))


@pytest.mark.parametrize(("zero", "pp", "hidden"), [("0", "1", ()), ("zero1", "2", ()), ("zero1", "1", ("grad",))])
def test_deepspeed_reduces_after_backward_without_hooks(zero: str, pp: str, hidden: tuple[str, ...]) -> None:
    found = run(framework="deepspeed", zero_stage_or_dist_opt=zero, pp=pp, dp=str(8 // int(pp)), flash_attn="0")
    assert found.strategy.overlap == hidden


@pytest.mark.parametrize(
    ("notes", "hidden"),
    [
        ("", ("grad", "param")),
        ("tp comm overlap", ("grad", "param", "tp")),
        ("tensor-parallel communication overlapped", ("grad", "param", "tp")),
        ("tensor-parallel, pipeline and data-parallel communication overlapped", ("grad", "param", "tp")),
        ("TP 8, no overlap of parameters' gathers", ("grad", "param")),
        ("TP comm overlap off for AG/RS", ("grad", "param")),
        ("tp overlap=0", ("grad", "param")),
        ("without overlap of communication", ()),
        ("no overlap; tp comm overlap", ()),
        ("no overlap of parameters' gathers", ("grad", "param")),  # of one kind: not read, and not taken for all
    ],
)
def test_what_notes_say_is_hidden(notes: str, hidden: tuple[str, ...]) -> None:
    assert run(notes=notes).strategy.overlap == hidden


def test_tensor_parallel_traffic_is_hidden_with_sequence_parallelism_alone() -> None:
    assert run(notes="tp comm overlap", sp="0").strategy.overlap == ("grad", "param")


@pytest.mark.parametrize(
    ("notes", "graphs"),
    [
        ("", "none"),
        ("whole CUDA graphs", "full"),
        ("full graphs", "full"),
        ("CUDA graphs of parts", "partial"),
        ("partial CUDA graphs", "partial"),
        ("no CUDA graphs", "none"),
    ],
)
def test_graphs_that_notes_name(notes: str, graphs: str) -> None:
    assert run(notes=notes).strategy.graphs == graphs
    assert run(framework="fsdp", tp="1", pp="1", dp="16", notes=notes).strategy.graphs == "none"  # it has none


def sizes(**changes: object) -> Sizes:
    base = Sizes(name="x", layers=4, hidden=1024, ffn=4096, heads=16, kv_heads=16, vocab=50257, seq=1024, gated=False)
    return base._replace(**changes)  # type: ignore[arg-type]


def test_models_take_after_the_catalog() -> None:
    known, how = model_of(
        sizes(
            name="Qwen3_30B", hidden=2048, ffn=6144, heads=32, kv_heads=4, gated=True, experts=128, topk=8, moe_ffn=768
        )
    )
    assert known.head_dim == 128
    assert known.layers == 4
    assert "qwen3-30b-a3b" in how
    mpt, _ = model_of(sizes(name="MPT-350m"))
    assert not mpt.mlp_bias
    assert mpt.tied_embeddings
    llama, _ = model_of(sizes(name="something", gated=True))
    assert (llama.norm, llama.learned_positions, llama.tied_embeddings) == ("rmsnorm", 0, False)
    assert model_of(sizes(name="something", gated=True, tied=True))[0].tied_embeddings


@pytest.mark.parametrize(
    ("text", "microbatches", "why"),
    [
        ("tp1 pp4 dp2 mbs1 zero1 layers=6,5*2,0", 3, ""),
        ("tp1 pp4 dp2 mbs1 zero1 layers=6,5*2,0", 2, "fewer than pp - 1 micro-batches"),
        ("tp1 pp4 dp2 mbs1 zero1 layers=8,8,0,0", 8, ""),
        ("tp1 pp4 dp2 mbs1 zero0 layers=8,8,0,0", 8, "a pipeline stage without parameters"),
        ("tp1 pp4 dp1 mbs1 zero0 layers=8,8,0,0", 8, ""),
        ("tp1 pp4 dp2 mbs1 zero1 layers=16,0,0,0", 8, "a pipeline stage without parameters"),
    ],
)
def test_what_nanotron_refuses_to_start(text: str, microbatches: int, why: str) -> None:
    strategy = parse_strategy(text)
    assert refused(runtimes.runtime("nanotron"), strategy, microbatches) == why
    assert refused(runtimes.runtime("megatron"), strategy, microbatches) == ""


def test_nanotron_gives_the_last_stage_fewer_layers() -> None:
    model, _ = model_of(sizes(name="llama-1B", layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=32, vocab=131072,
                              gated=True))  # fmt: skip
    layers = split_by_parameters(model, 4)
    assert sum(layers) == 16
    assert layers[-1] < layers[0]
    assert split_by_parameters(model, 1) == ()


def test_stated_splits_are_used() -> None:
    found = run(pp="4", dp="2", notes="stage layer split [8,9,9,8] (incl. embed/head pseudo-layers)", layers="32")
    assert found.strategy.layers == (7, 9, 9, 7)


@pytest.mark.parametrize(("pp", "counts"), [("1", "26"), ("2", "12,14")])
def test_a_stated_split_of_another_depth_is_another_models_run(pp: str, counts: str) -> None:
    notes = f"stage layer split [{counts}] (incl. embed/head pseudo-layers)"
    assert run(pp=pp, dp=str(8 // int(pp)), notes=notes, layers="24").strategy.pp == int(pp)
    found = one(pp=pp, dp=str(8 // int(pp)), notes=notes, layers="32")
    assert isinstance(found, Skipped)
    assert "another depth" in found.reason


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("name,depth\nx,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="hidden"):
        read_runs(path)


def test_the_shipped_table() -> None:
    found = table.published()
    replayable = [run for run in found if isinstance(run, Run)]
    assert len(replayable) > 3000
    assert len({run.id for run in replayable}) == len(replayable)
    assert all(run.citation for run in replayable)
    assert all(run.strategy.gpus == World.of(run.request).cluster.gpus for run in replayable)


def test_steps_that_read_like_a_simulators_are_replayed_as_their_source_states_them() -> None:
    runs = [run for run in table.published() if isinstance(run, Run) and run.source == "vtrain"]
    assert {(run.job.runtime.name, run.strategy.recompute) for run in runs} == {("megatron-apex", "full")}
    # One stage: a straight line in micro-batches, which timed steps never are (docs/vtrain.md).
    alone = {
        (run.job.model.name, run.strategy.tp, run.strategy.dp, run.job.workload.global_batch): run.measured.step_s
        for run in runs
        if run.strategy.pp == run.strategy.mbs == 1
    }
    for (model, tp, dp, batch), step_s in alone.items():
        two, four = alone.get((model, tp, dp, 2 * batch)), alone.get((model, tp, dp, 4 * batch))
        if step_s and two and four:
            assert four - two == pytest.approx(2 * (two - step_s), rel=1e-4)


def test_a_table_with_other_habits_gives_the_same_runs(tmp_path: Path) -> None:
    usual = ",".join(ROW), ",".join(ROW.values())
    floats = {name: f"{value}.0" if value.isdigit() else value for name, value in ROW.items()}
    habits = {
        "semicolons": (";".join(ROW), ";".join(ROW.values())),
        "tabs": ("\t".join(ROW), "\t".join(ROW.values())),
        "a byte-order mark": ("\ufeff" + usual[0], usual[1]),
        "floats": (usual[0], ",".join(floats.values())),
    }
    path = tmp_path / "runs.csv"

    def read(lines: tuple[str, str], end: str = "\n") -> list[Run | Skipped]:
        path.write_text(end.join(lines), encoding="utf-8", newline="")
        return read_runs(path)

    expected = read(usual)
    assert isinstance(expected[0], Run)
    assert read(usual, "\r\n") == expected
    for name, lines in habits.items():
        assert read(lines) == expected, name


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("ffn", "many", "not a number: ffn"),
        ("mbs", "1.5", "not a whole number: mbs"),
        ("gbs", "-4", "out of range: gbs"),
        ("measured_step_time_s", "1e30", "out of range: measured_step_time_s"),
        ("gpu_type", "", "incomplete: GPU type is missing"),
        ("ep", "0", "out of range: ep"),
        ("ep", "-1", "out of range: ep"),
        ("ep", "x", "not a number: ep"),
        ("cp", "0", "out of range: cp"),
        ("vp", "0", "out of range: vp"),
        ("mbs", "0", "out of range: mbs"),
        ("dp", "0", "out of range: dp"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_not_taken_as_silence(column: str, cell: str, reason: str) -> None:
    found = one(**{column: cell})
    assert isinstance(found, Skipped)
    assert found.reason == reason


def test_missing_columns_are_inferred_or_counted() -> None:
    def without(*names: str) -> Run | Skipped:
        return runs_of([{name: value for name, value in ROW.items() if name not in names}])[0]

    assert without("id").id == "row 1"
    assert run(tp="").strategy.tp == 2  # 16 GPUs, pp 2, dp 4
    plain = run(tp="", pp="", dp="16")
    assert (plain.strategy.tp, plain.strategy.pp) == (1, 1)
    assert any("tp and pp not stated" in rule for rule in plain.filled)
    sparse = run(model_name="llama-3-8b", ffn="", kv_heads="", gated_mlp="", vocab="128256").job.model
    assert (sparse.ffn, sparse.kv_heads, sparse.gated_mlp) == (14336, 8, True)
    assert run(vocab="").job.model.vocab == 32000  # the catalog's Llama-2 7B
    assert without("tp", "pp") == Skipped("mine-0001", "mine", "incomplete: tensor-parallel degree is missing")
    assert without("heads") == Skipped("mine-0001", "mine", "incomplete: attention heads is missing")


def test_a_damaged_file_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    for text in ("", "a,b\n1,2\n", ",".join(ROW) + '\n"' + "x" * 200_000):
        path.write_text(text)
        with pytest.raises(InputError):
            read_runs(path)


EXPERTS = {
    "framework": "megatron-bridge", "model_name": "qwen3-30b-a3b", "layers": "48", "hidden": "2048", "ffn": "6144",
    "heads": "32", "kv_heads": "4", "vocab": "151936", "moe_experts": "128", "moe_topk": "8", "moe_ffn": "768",
    "tp": "1", "pp": "2", "vp": "12", "ep": "8", "dp": "8", "sp": "0",
}  # fmt: skip
RACK = {"gpu_type": "GB200", "gpu_mem_gb": "186", "gpus_per_node": "4", "intra_node_link": "NVLink5 NVL72 domain"}


@pytest.mark.parametrize(
    ("release", "where", "dispatch", "hidden"),
    [
        ("NeMo 25.11", {}, "alltoall", True),
        ("NeMo 25.11", {"vp": "1"}, "alltoall", False),
        ("NeMo 25.07", {}, "alltoall", False),  # no release before 25.09 hides it
        ("NeMo 26.02", {}, "alltoall", True),
        ("NeMo 26.02.01", {}, "hybridep", False),
        ("", {}, "hybridep", False),
        ("NeMo 25.11", RACK, "hybridep", False),
    ],
)
def test_the_dispatcher_of_a_release(release: str, where: dict[str, str], dispatch: str, hidden: bool) -> None:
    found = run(**{**EXPERTS, **where, "framework_version_or_date": release}).strategy
    assert (found.dispatch, "ep" in found.overlap) == (dispatch, hidden)


@pytest.mark.parametrize(
    ("notes", "dispatch"),
    [
        ("all-to-all dispatcher", "alltoall"),
        ("plain all-to-all", "alltoall"),
        ("DeepEP", "deepep"),
        ("HybridEP; force-balanced", "hybridep"),
        ("sequence parallelism is by all-to-all of heads", "hybridep"),  # nothing of experts
        ("", "hybridep"),
    ],
)
def test_a_stated_dispatcher_goes_before_the_recipes(notes: str, dispatch: str) -> None:
    assert run(**EXPERTS, notes=notes).strategy.dispatch == dispatch
    assert run(**{**EXPERTS, "ep": "1"}, notes=notes).strategy.dispatch == "alltoall"


@pytest.mark.parametrize(
    ("framework", "notes", "runtime"),
    [
        ("transformers", "no compile", "fsdp-eager"),
        ("transformers", "no compile; Liger kernels", "fsdp-liger"),
        ("lightning", "fused kernels of its own; no compile", "fsdp-fused"),
        ("fsdp2", "layers of Transformer Engine", "fsdp-fused"),
        ("fsdp2", "layers of Transformer Engine; compiled with torch.compile", "pytorch"),
        ("unsloth", "", "fsdp-fused"),
        ("torchtitan", "layers of Transformer Engine; no compile", "torchtitan"),
        ("torchtitan", "no compile", "torchtitan-eager"),
        ("llm-foundry", "fused kernels", "composer"),
    ],
)
def test_whose_kernels_run_uncompiled(framework: str, notes: str, runtime: str) -> None:
    found = run(framework=framework, notes=notes, tp="1", pp="1", dp="16", zero_stage_or_dist_opt="zero3")
    assert found.job.runtime.name == runtime


@pytest.mark.parametrize(
    ("notes", "of"),
    [
        ("", "device"),
        ("max_memory_allocated", "most"),
        ("max allocated in MB", "most"),
        ("max_memory_reserved of rank 0", "first reserved"),
        ("nvidia-smi, not max allocated", "device"),
    ],
)
def test_who_counted_memory_where_a_run_says_so(notes: str, of: str) -> None:
    assert run(framework="deepspeed", notes=notes).measured.peak_of == of


def test_exchanges_that_notes_say_are_hidden() -> None:
    plain = {**EXPERTS, "framework_version_or_date": "NeMo 26.02.01"}
    assert "ep" not in run(**plain).strategy.overlap
    assert "ep" in run(**plain, notes="expert exchanges hidden").strategy.overlap
    assert "ep" in run(**plain, notes="1F1B overlap").strategy.overlap
    assert "ep" not in run(**{**plain, "ep": "1"}, notes="1F1B overlap").strategy.overlap
    hidden_anyway = run(**{**EXPERTS, "framework_version_or_date": "NeMo 25.11"}, notes="1F1B overlap").strategy.overlap
    assert hidden_anyway.count("ep") == 1


def test_a_row_without_sizes_is_the_catalogs_model_of_its_name() -> None:
    none = dict.fromkeys(("layers", "hidden", "ffn", "heads", "kv_heads", "vocab"), "")
    named = {**EXPERTS, **RACK, **none, "model_name": "Nemotron_3_Nano", "moe_experts": "", "moe_topk": "",
             "moe_ffn": "", "gated_mlp": "", "pp": "1", "vp": "1", "dp": "16", "precision": "mxfp8",
             "framework_version_or_date": "NeMo 26.06"}  # fmt: skip
    found = run(**named, notes="q=C; shape not filled (hybrid/other)")
    assert found.job.model.name == "nemotron-3-nano-30b-a3b"
    assert any("catalog's model of this name" in rule for rule in found.filled)
    assert not found.aside  # nothing is missing any more
    assert found.strategy.graphs == "partial"  # state spaces are not captured whole
    assert "layers is missing" in str(one(**{**named, "model_name": "Nobody_9"}))
    assert "layers is missing" in str(one(**{**named, "hidden": "2688"}))  # some sizes: not the name alone


@pytest.mark.parametrize(
    ("changes", "packed", "said"),
    [
        ({"task": "sft", "framework": "megatron-bridge", "notes": "packed sequences"}, 206, "206 tokens, as in"),
        ({"task": "lora", "framework": "megatron-bridge", "notes": "Packed to 4096"}, 206, "206 tokens, as in"),
        ({"task": "sft", "framework": "megatron-bridge", "notes": "packed of samples of 512 tokens"}, 512, ""),
        ({"task": "sft", "framework": "nemo", "notes": "packed sequences"}, 0, "taken as whole sequences"),
        ({"framework": "megatron-bridge", "notes": "packed sequences"}, 0, "taken as whole sequences"),
        ({"task": "sft", "framework": "megatron-bridge"}, 0, ""),
    ],
)
def test_packed_samples_are_as_long_as_told_or_as_in_recipes(changes: dict[str, str], packed: int, said: str) -> None:
    found = run(**changes)
    assert found.request.packed == packed
    rules = [rule for rule in found.filled if "packed" in rule]
    assert bool(rules) == bool(said)
    assert all(said in rule for rule in rules)
