"""Configurations as YAML and as overrides: what we export reads back, what others write is understood or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astra.errors import InputError
from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.imports import import_file
from astra.export.quoting import yaml
from astra.export.yaml_reading import parse_yaml
from tests.export.launching import given, import_text

BRIDGE = {"runtime": "megatron-bridge"}
BACK: list[tuple[str, str, str, str, str, dict[str, Any]]] = [
    ("accelerate", "accelerate.yaml", "llama-2-7b", "16xH100", "dp16 mbs1 zero3 recompute=full", {}),
    ("accelerate", "accelerate.yaml", "llama-2-7b", "16xH100", "dp16 mbs1 zero3 reshard=always shard8", {}),
    ("accelerate", "accelerate.yaml", "llama-2-7b", "16xH100", "cp2 dp8 mbs1 zero3", {}),
    ("flagscale", "train.yaml", "llama-3.1-8b", "16xH100", "tp2 pp2 dp4 mbs1 sp zero1 layers=15,17", {}),
    ("flagscale", "train.yaml", "mixtral-8x7b", "16xH100", "pp2 ep4 dp8 mbs1 zero1 recompute=full", {}),
    ("megatron-bridge", "overrides.txt", "llama-3.1-70b", "64xH100", "tp8 pp4 vp5 dp2 mbs1 sp zero1", BRIDGE),
    ("megatron-bridge", "overrides.txt", "llama-3.1-8b", "16xH100", "dp16 mbs1 zero3 shard8 graphs=none", BRIDGE),
    ("megatron-bridge", "overrides.txt", "llama-3.1-8b", "16xH100", "dp16 mbs1 zero1 moments=bf16 grads=fp32", BRIDGE),
    ("megatron-bridge", "overrides.txt", "llama-3.1-8b", "16xH100", "dp16 mbs1 zero1 params=fp8",
     BRIDGE | {"precision": "fp8-tensorwise"}),
    ("megatron-bridge", "overrides.txt", "qwen3-30b-a3b", "16xGB200", "ep8 dp16 mbs1 zero1 attention=fp8",
     BRIDGE | {"precision": "mxfp8"}),
    ("megatron-bridge", "overrides.txt", "qwen3-30b-a3b", "16xGB200", "ep8 dp16 mbs1 zero1 attention=bf16",
     BRIDGE | {"precision": "mxfp8"}),
    ("megatron-bridge", "overrides.txt", "deepseek-v3", "256xH100",
     "tp2 pp8 ep32 dp16 mbs1 sp zero1 recompute=selective:core_attn,mla_up_proj layers=8*7,5", BRIDGE),
    ("megatron-bridge", "overrides.txt", "mixtral-8x7b", "64xH100",
     "tp2 pp4 ep8 dp8 mbs1 sp zero1 recompute=full graphs=none", BRIDGE),
]  # fmt: skip


@pytest.mark.parametrize(("target", "file", "model", "gpus", "strategy", "request_"), BACK)
def test_exports_read_back(
    target: str, file: str, model: str, gpus: str, strategy: str, request_: dict[str, Any]
) -> None:
    runtime = {"runtime": EXPORTERS[target].runtime or "megatron"}
    launch = given(model, gpus, strategy, batch=512, **(runtime | request_))
    assert refusals(EXPORTERS[target], launch) == []
    found = import_text(EXPORTERS[target].files(launch)[file], name=file, gpus=launch.gpus)
    assert str(found.strategy) == str(launch.strategy)
    if found.global_batch is not None:
        assert found.global_batch == 512
    assert found.precision == launch.workload.precision


def test_llama_factory() -> None:
    text = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]
cutoff_len: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
"""
    with pytest.raises(InputError, match="number of GPUs"):
        import_text(text, name="sft.yaml")
    found = import_text(text, name="sft.yaml", gpus=8)
    assert (found.strategy.zero, found.strategy.dp, found.strategy.mbs) == (3, 8, 2)
    assert (found.global_batch, found.seq, found.task, found.lora_rank) == (128, 2048, "lora", 8)
    assert found.strategy.recompute == "full"
    assert any("ZeRO stage 3" in line for line in found.ignored)


def test_axolotl() -> None:
    text = """
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
adapter: qlora
lora_r: 32
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
flash_attention: true
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_offload_params: false
"""
    found = import_text(text, name="config.yml", gpus=4)
    assert (found.strategy.zero, found.strategy.recompute, found.global_batch) == (3, "full", 32)
    assert found.framework == "fsdp-eager"
    assert any("QLoRA" in line for line in found.ignored)


def test_gpt_neox() -> None:
    text = """
{
  "pipe_parallel_size": 2,
  "model_parallel_size": 4,
  "num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "seq_length": 2048,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32,
  "zero_optimization": {"stage": 1, "overlap_comm": true},
  "checkpoint_activations": true,
  "fp16": {"fp16": true, "enabled": true}
}
"""
    found = import_text(text, name="20B.yml", gpus=96)
    strategy = found.strategy
    assert (strategy.tp, strategy.pp, strategy.dp, strategy.mbs, strategy.zero) == (4, 2, 12, 4, 1)
    assert (found.global_batch, found.seq, found.precision) == (4 * 32 * 12, 2048, "fp16")
    assert (strategy.recompute, strategy.flash) == ("full", False)


def test_nanotron() -> None:
    text = """
parallelism:
  dp: 8
  pp: 2
  pp_engine: 1f1b
  tp: 4
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
optimizer:
  zero_stage: 1
tokens:
  batch_accumulation_per_replica: 4
  micro_batch_size: 2
  sequence_length: 4096
"""
    found = import_text(text, name="config.yaml")
    assert str(found.strategy).startswith("tp4 pp2 dp8 mbs2 sp zero1")
    assert (found.gpus, found.global_batch, found.seq) == (64, 64, 4096)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a: 1", "x.yaml"),
        ("- 1\n- 2", "x.yaml"),
        ("a: &anchor 1", "x.yaml"),
        ("a: [1, 2", "x.yaml"),
        ("a: 1\na: 2", "x.yaml"),
        ("a:\n  b: 1\n c: 2", "x.yaml"),
        ("distributed_type: TPU\nnum_processes: 8", "x.yaml"),
        ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ds.json}", "x.yaml"),
        ("model_name_or_path: m\ncutoff_len: 10\ndeepspeed: mine.json", "x.yaml"),
        ("system: {hetero: {hetero_process_meshes: [2,1,1,4,1, 4,1,1,2,1]}}\nmodel: {num_layers: 4}", "x.yaml"),
        ("model.tensor_model_parallel_size=2", "o.txt"),
        ("[" * 200, "x.yaml"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text: str, name: str) -> None:
    with pytest.raises(InputError):
        import_text(text, name=name, gpus=8)


def test_yaml_reads_what_we_write() -> None:
    data = {"a": 1, "b": {"c": [1, 2.5, "x y"], "d": None, "e": True}, "f": [{"x": 1, "y": ["q", "r"]}, {"z": "# no"}],
            "g": "it's: \"quoted\"", "h": [], "i": {}}  # fmt: skip
    assert parse_yaml(yaml(data), "t.yaml") == data


CALL = """
from transformers import TrainingArguments

args = TrainingArguments(
    output_dir=make_folder(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2 * 4,
    gradient_checkpointing=True,
    bf16=True,
    fsdp="full_shard auto_wrap",
)
"""


def test_arguments_in_python_are_read_as_text() -> None:
    found = import_text(CALL, name="train.py", gpus=8)
    assert (found.strategy.zero, found.strategy.mbs, found.global_batch) == (3, 4, 256)
    assert found.strategy.recompute == "full"
    with pytest.raises(InputError, match="not one worked out"):
        import_text(CALL.replace("batch_size=4", "batch_size=args.size"), name="train.py", gpus=8)
    with pytest.raises(InputError, match=r"1 \(TrainingArguments in line 4\); 2 "):
        import_text(CALL + CALL.replace("=4", "=2"), name="train.py", gpus=8)
    assert import_text(CALL + CALL.replace("=4", "=2"), name="train.py", gpus=8, pick="2").strategy.mbs == 2


def test_arguments_in_json() -> None:
    text = '{"model_name_or_path": "m", "per_device_train_batch_size": 2, "fp16": true, "max_length": 512}'
    found = import_text(text, name="args.json", gpus=4)
    assert (found.strategy.mbs, found.strategy.dp, found.precision, found.seq) == (2, 4, "fp16", 512)


def test_a_file_that_is_named_is_read_beside_and_nowhere_else(tmp_path: Path) -> None:
    zero = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "train_batch_size": "auto"}'
    inside = tmp_path / "job"
    inside.mkdir()
    script = inside / "sft.yaml"
    for named, found_there in (("mine.json", True), ("conf/mine.json", True), ("../mine.json", False)):
        text = f"model_name_or_path: m\ndeepspeed: {named}\ncutoff_len: 8\nper_device_train_batch_size: 1\n"
        script.write_text(text, encoding="utf-8")
        (tmp_path / "mine.json").write_text(zero, encoding="utf-8")
        (inside / "mine.json").unlink(missing_ok=True)
        if found_there:
            (inside / "mine.json").write_text(zero, encoding="utf-8")
            strategy = import_file(script, gpus=8).strategy
            assert (strategy.zero, strategy.offload) == (2, "optimizer")
        else:
            with pytest.raises(InputError, match="a stage in the name"):
                import_file(script, gpus=8)


def test_several_documents_are_listed() -> None:
    one = "distributed_type: MULTI_GPU\nnum_processes: 8\n"
    both = f"{one}---\n{one.replace('8', '4')}"
    with pytest.raises(InputError, match="has several, 2: 1; 2"):
        import_text(both, name="a.yaml")
    assert import_text(both, name="a.yaml", pick="2").gpus == 4
    with pytest.raises(InputError, match="--pick"):
        import_text(one, name="a.yaml", pick="2")


def test_flags_of_megatron_in_yaml() -> None:
    text = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 12
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 2
  --use-distributed-optimizer: true
  --deterministic-mode: false
"""
    found = import_text(text, name="model_config.yaml", gpus=8)
    assert (found.strategy.tp, found.strategy.dp, found.strategy.zero, found.global_batch) == (2, 4, 1, 32)
