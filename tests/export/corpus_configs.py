# ruff: noqa: E501 - lines as scripts have them
"""The configurations of the corpus."""

from __future__ import annotations

from tests.export.corpus import Entry, conf

NEMO = "NVIDIA/NeMo-Megatron-Launcher launcher_scripts/conf"
NEOX, FACTORY, NANO = "EleutherAI/gpt-neox configs", "hiyouga/LLaMA-Factory examples", "huggingface/nanotron examples"
AXO, TRL, ZEPHYR = (
    "axolotl-ai-cloud/axolotl examples",
    "huggingface/trl examples",
    "huggingface/alignment-handbook recipes",
)
FLAG, TITAN = "FlagOpen/FlagScale examples", "pytorch/torchtitan"
# The registry of torchtitan: a function for each configuration, some starting from others.
REGISTRY = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC


def llama3_8b() -> Trainer.Config:
    model_spec = model_registry("8B")
    return Trainer.Config(
        model_spec=model_spec,
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=1 * 8192, max_context_length=8192, steps=1000),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_8b_mxfp8() -> Trainer.Config:
    config = llama3_8b()
    config.model_spec = model_registry("8B", converters=[MXFP8LinearConverter.Config(model_compile_enabled=True)])
    return config


def llama3_70b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("70B"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=8 * 8192, max_context_length=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
    )


def llama3_405b() -> Trainer.Config:
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    model_spec = model_registry("405B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192, steps=3000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
    )
"""
GPT3_175B = """
defaults:
  - _self_
  - optional tp_overlap@model.ub_tp_comm_overlap_cfg: ub_cfg_h100_h12288_tp4_mbs1_seqlen2048
run:
  results_dir: ${{base_results_dir}}/${{.name}}
  time_limit: "26-00:00:00"
trainer:
  num_nodes: {nodes}
  devices: 8
  precision: bf16
  max_time: "25:23:00:00"
exp_manager:
  checkpoint_callback_params:
    filename: 'megatron_gpt--{{val_loss:.2f}}-{{step}}-{{consumed_samples}}'
    model_parallel_size: ${{multiply:${{training.model.tensor_model_parallel_size}}, ${{training.model.pipeline_model_parallel_size}}}}
model:
  micro_batch_size: {mbs}
  global_batch_size: 2048
  rampup_batch_size: null
  tensor_model_parallel_size: {tp}
  pipeline_model_parallel_size: {pp}
  virtual_pipeline_model_parallel_size: {vp} # interleaved pipeline, set to maximum
  encoder_seq_length: 2048
  max_position_embeddings: ${{.encoder_seq_length}}
  num_layers: {layers}
  hidden_size: {hidden}
  ffn_hidden_size: ${{multiply:4, ${{.hidden_size}}}}  # Transformer FFN hidden size. 4 * hidden_size.
  num_attention_heads: 96
  num_query_groups: null
  fsdp: False
  fsdp_sharding_strategy: 'full'
  activations_checkpoint_granularity: null # 'selective' or 'full'
  sequence_parallel: {sp}
  overlap_p2p_comm: True
  fp8: {fp8} # enables fp8 in TransformerLayer forward
  fp8_e4m3: False
  fp8_hybrid: True
  optim:
    name: distributed_fused_adam
    overlap_grad_sync: True
    overlap_param_sync: True
    grad_sync_dtype: {grads}
"""
CONFIGS: list[Entry] = [
    # NeMo
    conf(f"{NEMO}/training/gpt3/175b.yaml", "175b.yaml",
         GPT3_175B.format(nodes=128, mbs=1, tp=4, pp=8, vp=12, layers=96, hidden=12288, sp="True", fp8="False", grads="null"),
         tp=4, pp=8, vp=12, dp=32, gpus=1024, sp=True, zero=1, batch=2048, seq=2048, depth=96, ffn=49152, vocab=51200,
         overlap=("grad", "param", "p2p"), framework="nemo", precision="bf16"),
    conf(f"{NEMO}/training/gpt3/175b_fp8.yaml", "175b_fp8.yaml",
         GPT3_175B.format(nodes=128, mbs=2, tp=8, pp=8, vp=12, layers=96, hidden=12288, sp="True", fp8="True", grads="bf16"),
         tp=8, pp=8, vp=12, dp=16, mbs=2, precision="fp8", grads="bf16"),
    conf(f"{NEMO}/training/gpt3/5b.yaml", "5b.yaml",
         GPT3_175B.format(nodes=16, mbs=4, tp=1, pp=1, vp="null", layers=24, hidden=4096, sp="False", fp8="False", grads="null"),
         tp=1, pp=1, vp=1, dp=128, mbs=4, gpus=128, hidden=4096, ffn=16384, vocab=51200),
    conf(f"{NEMO}/training/llama/llama2_70b.yaml", "llama2_70b.yaml", """
trainer: {num_nodes: 128, devices: 8, precision: bf16}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 2048
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 20
  encoder_seq_length: 4096
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  sequence_parallel: true
  ub_tp_comm_overlap: true
  optim:
    name: distributed_fused_adam
    overlap_grad_sync: true
    overlap_param_sync: true
""", tp=4, pp=4, vp=20, dp=64, gpus=1024, batch=2048, seq=4096, overlap=("grad", "param", "tp", "p2p"), kv_heads=8,
         ffn=28672, vocab=32000, gated_mlp=True, tied_embeddings=False),
    conf(f"{NEMO}/training/mixtral/mixtral_8x7b.yaml", "mixtral.yaml", """
trainer: {num_nodes: 8, devices: 8, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 8
  pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  num_moe_experts: 8
  moe_router_topk: 2
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  sequence_parallel: true
  optim: {name: mcore_distributed_optim}
""", tp=8, pp=4, ep=1, etp=8, dp=2, gpus=64, zero=1, experts=8, topk=2, vocab=32000),
    conf(f"{NEMO}/training/nemotron/nemotron_340b.yaml", "nemotron_340b.yaml", """
trainer: {num_nodes: 768, devices: 8, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 2304
  tensor_model_parallel_size: 8
  pipeline_model_parallel_size: 12
  virtual_pipeline_model_parallel_size: 8
  encoder_seq_length: 4096
  num_layers: 96
  hidden_size: 18432
  ffn_hidden_size: 73728
  num_attention_heads: 96
  num_query_groups: 8
  activation: squared-relu
  normalization: layernorm1p
  activations_checkpoint_granularity: selective
  sequence_parallel: true
  overlap_p2p_comm: false
  optim: {name: distributed_fused_adam, overlap_grad_sync: true, overlap_param_sync: true, grad_sync_dtype: bf16}
""", tp=8, pp=12, vp=8, dp=64, gpus=6144, recompute="selective", overlap=("grad", "param"), grads="bf16",
         activation="relu2", kv_heads=8, vocab=256000),
    conf(f"{NEMO}/peft/llama/squad.yaml", "squad.yaml", """
trainer: {num_nodes: 1, devices: 8, precision: bf16}
model:
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  encoder_seq_length: 4096
  global_batch_size: 128
  micro_batch_size: 4
  restore_from_path: ${peft.run.convert_dir}/results/megatron_llama.nemo # a .nemo model
  peft:
    peft_scheme: "lora"  # can be either adapter, ia3, lora, or ptuning
    lora_tuning:
      adapter_dim: 32
  optim: {name: fused_adam}
""", dp=8, mbs=4, batch=128, zero=0, task="lora", lora_rank=32),
    conf(f"{NEMO}/training/t5/11b.yaml", "11b.yaml", """
trainer: {num_nodes: 20, devices: 8, precision: bf16}
model:
  tensor_model_parallel_size: 4
  micro_batch_size: 24
  global_batch_size: 1920
  encoder: {num_layers: 24, hidden_size: 4096}
  decoder: {num_layers: 24, hidden_size: 4096}
""", refused="num_layers"),
    conf("NVIDIA-NeMo/Megatron-Bridge examples/models/qwen/qwen3_next/conf/"
         "qwen3_next_80b_a3b_finetune_override_example.yaml", "override.yaml", """
model:
  seq_length: 2048
  cross_entropy_loss_fusion: False
train:
  global_batch_size: 64
  micro_batch_size: 1
dist:
  use_megatron_fsdp: false
ddp:
  grad_reduce_in_fp32: true
""", 64, refused="model.tensor_model_parallel_size"),
    # gpt-neox
    conf(f"{NEOX}/20B.yml", "20B.yml", """{
  "vocab_file": "./20B_checkpoints/20B_tokenizer.json",
  # parallelism settings
  "pipe_parallel_size": 4,
  "model_parallel_size": 2,
  "num_layers": 44, "hidden_size": 6144, "num_attention_heads": 64, "seq_length": 2048,
  "max_position_embeddings": 2048, "norm": "layernorm", "pos_emb": "rotary", "rotary_pct": 0.25,
  "no_weight_tying": true, "gpt_j_residual": true,
  "optimizer": {
    "type": "Adam",
    "params": {
      "lr": 0.97e-4,
      "betas": [0.9, 0.95],
      "eps": 1.0e-8,
      }
      },
  "zero_optimization": {
  "stage": 1,
  "overlap_comm": True,
  "contiguous_gradients": True,
  },
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32, "checkpoint_activations": true,
  "fp16": {"fp16": true, "enabled": true, "loss_scale": 0}
}""", 96, tp=2, pp=4, dp=12, mbs=4, batch=1536, zero=1, recompute="full", precision="fp16", depth=44, hidden=6144,
         vocab=50432, overlap=("grad",), flash=False, told="gpt_j_residual"),
    conf(f"{NEOX}/pythia/6-9B.yml", "6-9B.yml", """{
   "pipe_parallel_size": 1, "model_parallel_size": 2, "num_layers": 32, "hidden_size": 4096,
   "num_attention_heads": 32, "seq_length": 2048, "max_position_embeddings": 2048, "pos_emb": "rotary",
   "attention_config": [[["flash"], 32]],
   "zero_optimization": {"stage": 1, "overlap_comm": true, "cpu_offload": false},
   "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "checkpoint_activations": true,
   "fp16": {"fp16": true, "enabled": true}
}""", 64, tp=2, pp=1, dp=32, mbs=8, batch=512, flash=True, zero=1, precision="fp16", vocab=50432),
    conf(f"{NEOX}/1-3B.yml", "1-3B.yml", """{
   "pipe-parallel-size": 1, "model-parallel-size": 1, "num-layers": 24, "hidden-size": 2048,
   "num-attention-heads": 16, "seq-length": 2048, "max-position-embeddings": 2048,
   "zero_optimization": {"stage": 1, "overlap_comm": true},
   "train_micro_batch_size_per_gpu": 4, "checkpoint-activations": true, "fp16": {"enabled": true}
}""", 32, tp=1, dp=32, batch=128, zero=1, recompute="full", hidden=2048, vocab=50304),
    conf(f"{NEOX}/llama/13B.yml", "13B.yml", """{
  "pipe_parallel_size": 1, "model_parallel_size": 2, "num_layers": 40, "hidden_size": 5120,
  "intermediate_size": 40960, "activation": "swiglu", "norm": "rmsnorm", "mlp_multiple_of": 256
}""", 64, refused="train_micro_batch_size_per_gpu"),
    conf(f"{NEOX}/local_setup.yml", "local_setup.yml", """{
  "data_path": "data/enwik8/enwik8_text_document", "hostfile": "/mock_path"
}""", 8, refused="None of their keys"),
    # LLaMA-Factory
    conf(f"{FACTORY}/train_full/qwen3_full_sft.yaml", "sft.yaml", """
### model
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json, ds_z3_config.json]
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
bf16: true
resume_from_checkpoint: null
""", 8, zero=3, dp=8, mbs=1, batch=16, seq=2048, task="finetune", recompute="full", framework="deepspeed"),
    conf(f"{FACTORY}/train_lora/qwen3_lora_sft.yaml", "lora.yaml", """
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
finetuning_type: lora
lora_rank: 8
lora_target: all
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
""", 4, zero=0, dp=4, batch=32, task="lora", lora_rank=8, told="no sharding is named, taken as none"),
    conf(f"{FACTORY}/train_lora/qwen3_lora_dpo.yaml", "dpo.yaml", """
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: dpo
finetuning_type: lora
pref_beta: 0.1
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
""", 4, task="lora", told="stage dpo, taken as fine-tuning"),
    conf(f"{FACTORY}/train_qlora/qwen3_lora_sft_bnb_npu.yaml", "qlora.yaml", """
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
quantization_bit: 4
quantization_method: bnb
double_quantization: false
stage: sft
finetuning_type: lora
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
""", 1, task="lora", told="weights quantised beside adapters (QLoRA)"),
    conf(f"{FACTORY}/megatron/qwen3_moe_full.yaml", "mca.yaml", """
model_name_or_path: Qwen/Qwen3-30B-A3B-Instruct-2507
stage: sft
finetuning_type: full # only support full for now
cutoff_len: 4096
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
# mcore speed up
tensor_model_parallel_size: 1
sequence_parallel: false
pipeline_model_parallel_size: 4
bias_activation_fusion: true
apply_rope_fusion: true
use_distributed_optimizer: true
overlap_param_gather: true
overlap_grad_reduce: true
moe_grouped_gemm: true
moe_token_dispatcher_type: alltoall
expert_model_parallel_size: 2
recompute_granularity: full
""", 8, tp=1, pp=4, ep=2, dp=2, zero=1, recompute="full", overlap=("grad", "param"), framework="megatron", batch=16),
    # axolotl
    conf(f"{AXO}/llama-3/fft-8b.yaml", "fft.yaml", """
base_model: NousResearch/Meta-Llama-3.1-8B
# Automatically upload checkpoint and final model to HF
# hub_model_id: username/custom_model_name
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 8192
sample_packing: true
gradient_accumulation_steps: 8
micro_batch_size: 1
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
attn_implementation: flash_attention_2
special_tokens:
  pad_token: <|end_of_text|>
""", 8, zero=0, recompute="full", batch=64, seq=8192, task="finetune", told="sample_packing"),
    conf(f"{AXO}/llama-3/qlora-fsdp-70b.yaml", "qlora.yaml", """
base_model: casperhansen/llama-3-70b-fp16
load_in_8bit: false
load_in_4bit: true
adapter: qlora
lora_r: 8
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 4
bf16: auto
gradient_checkpointing: true
fsdp:
  - full_shard
  - auto_wrap
fsdp_config:
  fsdp_offload_params: true
""", 2, zero=3, task="lora", lora_rank=8, framework="fsdp-eager", batch=8, told="fsdp offload"),
    conf(f"{AXO}/llama-3/lora-8b.yml", "lora.yml", """
base_model: NousResearch/Meta-Llama-3-8B
load_in_8bit: true
adapter: lora
lora_r: 32
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
""", 1, dp=1, mbs=2, batch=8, lora_rank=32, told="weights quantised beside adapters (QLoRA)"),
    conf(f"{AXO}/distributed-parallel/llama-3_1-8b-hsdp-tp.yaml", "hsdp.yaml", """
base_model: meta-llama/Llama-3.1-8B
dp_shard_size: 4
dp_replicate_size: 2
tensor_parallel_size: 2
# context_parallel_size: 2
fsdp_version: 2
fsdp_config:
  offload_params: false
  reshard_after_forward: true
sequence_len: 2048
gradient_accumulation_steps: 1
micro_batch_size: 1
bf16: true
""", 16, tp=2, dp=8, shard=4, zero=3, reshard="always", recipe="llama-3.1-8b"),
    conf(f"{AXO}/distributed-parallel/qwen3-8b-fsdp-tp-cp.yaml", "tpcp.yaml", """
base_model: Qwen/Qwen3-8B
dp_shard_size: 2
context_parallel_size: 2
tensor_parallel_size: 2
fsdp_version: 2
fsdp_config:
  reshard_after_forward: true
sequence_len: 8192
micro_batch_size: 1  # must be 1 when using context parallel
""", 8, tp=2, cp=2, dp=2, shard=0, zero=3, seq=8192, recipe="qwen3-8b"),
    # Accelerate, TRL, alignment-handbook
    conf(f"{TRL}/accelerate_configs/deepspeed_zero3.yaml", "zero3.yaml", """
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
mixed_precision: bf16
num_machines: 1
num_processes: 8
""", zero=3, dp=8, framework="deepspeed", offload="none"),
    conf(f"{TRL}/accelerate_configs/fsdp2.yaml", "fsdp2.yaml", """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: bf16
num_machines: 1
num_processes: 8
""", zero=3, dp=8, reshard="always", recompute="none"),
    conf(f"{TRL}/accelerate_configs/context_parallel_2gpu.yaml", "cp.yaml", """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true  # Enable activation checkpointing for memory efficiency
  fsdp_reshard_after_forward: true
  fsdp_version: 2
mixed_precision: bf16
num_processes: 2
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 1
  parallelism_config_tp_size: 1
  parallelism_config_cp_size: 2
""", cp=2, dp=1, zero=3, recompute="full"),
    conf(f"{TRL}/accelerate_configs/alst_ulysses_4gpu.yaml", "alst.yaml", """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3}
num_processes: 4
parallelism_config:
  parallelism_config_dp_shard_size: 2
  parallelism_config_sp_size: 2
""", refused="sp_size"),
    conf(f"{TRL}/accelerate_configs/multi_gpu.yaml", "multi.yaml",
         "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n", zero=0, dp=8),
    conf(f"{ZEPHYR}/zephyr-7b-beta/sft/config_full.yaml", "config_full.yaml", """
model_name_or_path: mistralai/Mistral-7B-v0.1
model_revision: main
torch_dtype: bfloat16
attn_implementation: flash_attention_2
bf16: true
gradient_accumulation_steps: 1
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: False
max_length: 2048
per_device_train_batch_size: 16
""", 8, dp=8, mbs=16, batch=128, seq=2048, recompute="full", recipe="mistral-7b-v0.1",
         told="no sharding is named, taken as none"),
    conf(f"{ZEPHYR}/zephyr-7b-beta/sft/config_qlora.yaml", "config_qlora.yaml", """
model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: bfloat16
use_peft: true
load_in_4bit: true
lora_r: 16
lora_target_modules:
- q_proj
- k_proj
bf16: true
gradient_accumulation_steps: 2
gradient_checkpointing: true
max_length: 2048
per_device_train_batch_size: 4
""", 1, task="lora", lora_rank=16, mbs=4, batch=8),
    conf("allenai/open-instruct configs/train_configs/sft/default.yaml", "default.yaml", """
model_name_or_path: allenai/open_instruct_dev
model_revision: main
use_flash_attn: true
max_seq_length: 4096
preprocessing_num_workers: 128
per_device_train_batch_size: 2 # note, this is set up for 8 GPUs
gradient_accumulation_steps: 8 # effective batch size 128 with 1 node
learning_rate: 2.0e-06
""", 8, dp=8, mbs=2, batch=128, seq=4096, recompute="none", told="no precision is named, taken as bf16"),
    # nanotron
    conf(f"{NANO}/config_tiny_llama.yaml", "tiny.yaml", """
model:
  dtype: bfloat16
  model_config: {is_llama_config: true, hidden_act: silu, hidden_size: 2048, intermediate_size: 11008,
    max_position_embeddings: 4096, num_attention_heads: 16, num_hidden_layers: 28, num_key_value_heads: 2,
    rms_norm_eps: 1.0e-05, rope_scaling: null, tie_word_embeddings: false, vocab_size: 128256}
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 0
parallelism:
  dp: 4
  expert_parallel_size: 1
  pp: 1
  pp_engine: 1f1b
  tp: 2
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 1
  micro_batch_size: 3
  sequence_length: 4096
""", tp=2, pp=1, dp=4, sp=True, batch=12, seq=4096, gpus=8, zero=0, depth=28, kv_heads=2, ffn=11008, vocab_read=128256),
    conf(f"{NANO}/config_qwen.yaml", "qwen.yaml", """
model:
  model_config: {is_qwen2_config: true, hidden_act: silu, hidden_size: 2048, intermediate_size: 11008,
    max_position_embeddings: 4096, num_attention_heads: 16, num_hidden_layers: 36, num_key_value_heads: 4,
    rms_norm_eps: 1.0e-06, tie_word_embeddings: false, vocab_size: 128256}
optimizer: {zero_stage: 0, accumulate_grad_in_fp32: true}
parallelism: {dp: 2, pp: 1, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_recompute_allgather: true}
tokens: {batch_accumulation_per_replica: 1, micro_batch_size: 3, sequence_length: 4096}
""", tp=2, dp=2, gpus=4, batch=6, depth=36, kv_heads=4, told="parallelism.tp_recompute_allgather"),
    # FlagScale
    conf(f"{FLAG}/aquila/conf/train/34b.yaml", "34b.yaml", """
system:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  sequence_parallel: true
  use_distributed_optimizer: true
  precision:
    bf16: true
    attention_softmax_in_fp32: true
  checkpoint: {save_interval: 500}
model:
  num_layers: 60
  hidden_size: 6144
  num_attention_heads: 48
  group_query_attention: true
  num_query_groups: 8
  hidden_dim_multiplier: 1.3
  multiple_of: 4096
  swiglu: true
  seq_length: 4096
  max_position_embeddings: 4096
  micro_batch_size: 1
  global_batch_size: 1024
  rampup_batch_size: [32, 32, 2000000]
data:
  tokenizer: {tokenizer_type: AquilaTokenizerFS, vocab_size: 100008}
""", 64, tp=4, pp=4, dp=4, sp=True, zero=1, batch=1024, depth=60, kv_heads=8, ffn=24576, framework="flagscale"),
    conf(f"{FLAG}/mixtral/conf/train/8x7b.yaml", "8x7b.yaml", """
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  expert_model_parallel_size: 4
  sequence_parallel: true
  use_distributed_optimizer: true
  precision: {bf16: true}
model:
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  group_query_attention: true
  num_query_groups: 8
  seq_length: 4096
  swiglu: true
  num_experts: 8
  moe_router_topk: 2
  # moe_grouped_gemm: true
  micro_batch_size: 1
  global_batch_size: 2048
  optimizer:
    lr: 1e-4
    lr_scheduler: {min_lr: 1.0e-5}
data:
  data_path: <xxxx>
""", 64, tp=2, pp=4, ep=4, etp=2, dp=8, batch=2048, experts=8, vocab=32000),
    conf(f"{FLAG}/aquila/conf/train/hetero.yaml", "hetero.yaml", """
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 3
  hetero:
    enable_hetero: true
    hetero_process_meshes: [2, 1, 1, 1, 1, 4, 1, 1, 1, 1, 2, 1, 1, 1, 1]
model: {num_layers: 12, hidden_size: 4096, num_attention_heads: 32, micro_batch_size: 1, global_batch_size: 32}
""", refused="a GPU for each mesh"),
    conf(f"{FLAG}/aquila/conf/train.yaml", "train.yaml", """
defaults:
  - train: 7b
  - _self_
experiment:
  task: {type: train, backend: megatron, entrypoint: ./flagscale/train/train_gpt.py}
  runner: {backend: torchrun, nnodes: 1, nproc_per_node: 8}
action: run
""", refused="under train/"),
    # torchtitan
    conf(f"{TITAN} torchtitan/models/llama3/config_registry.py", "config_registry.py", REGISTRY, 64,
         refused="llama3_8b; llama3_8b_mxfp8; llama3_70b; llama3_405b"),
    conf(f"{TITAN} torchtitan/models/llama3/config_registry.py # llama3_70b", "config_registry.py", REGISTRY, 64,
         pick="llama3_70b", tp=8, dp=8, mbs=8, sp=True, zero=3, recompute="full", seq=8192, recipe="llama-3.1-70b"),
    conf(f"{TITAN} torchtitan/models/llama3/config_registry.py # llama3_405b", "config_registry.py", REGISTRY, 128,
         pick="llama3_405b", tp=8, dp=16, mbs=2, precision="fp8-rowwise", recipe="llama-3.1-405b"),
    conf(f"{TITAN} torchtitan/models/llama3/config_registry.py # llama3_8b_mxfp8", "config_registry.py", REGISTRY, 8,
         pick="llama3_8b_mxfp8", tp=1, dp=8, mbs=1, seq=8192, precision="mxfp8", recipe="llama-3.1-8b"),
    conf(f"{TITAN} pyproject.toml", "pyproject.toml", """
[project]
name = "torchtitan"
dependencies = ["datasets"]
[tool.pytest.ini_options]
testpaths = ["tests"]
""", 8, refused="It has neither"),
]  # fmt: skip
