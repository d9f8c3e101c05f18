# -*- coding: utf-8 -*-
# Plan of Astra 0.0: llama-3.1-8b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp2 pp2 dp4 mbs1 sp zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32 reshard=never layers=15,17
# Verified with torchtitan 0.3.0 with torch 2.13.0: its own config manager, ParallelDims and model, on the meta device.
from torchtitan.trainer import Trainer
from torchtitan.models.llama3.config_registry import llama3_8b
from inspect import signature
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

if "arg_mbs" not in signature(PipelineScheduleSingle.step).parameters:
    raise SystemExit('torchtitan 0.3 runs pipelines on torch 2.14 or newer: pip install torch==2.14.1')


def plan() -> Trainer.Config:
    config = llama3_8b()
    config.training.local_batch_size = 256
    config.training.global_batch_size = 1024
    config.training.seq_len = 4096
    config.training.mixed_precision_param = 'bfloat16'
    config.training.disable_cuda_graphs = True
    config.parallelism.data_parallel_replicate_degree = 1
    config.parallelism.data_parallel_shard_degree = 4
    config.parallelism.fsdp_reshard_after_forward = 'never'
    config.parallelism.tensor_parallel_degree = 2
    config.parallelism.enable_sequence_parallel = True
    config.parallelism.context_parallel_degree = 1
    config.parallelism.expert_parallel_degree = 1
    config.parallelism.pipeline_parallel_degree = 2
    config.parallelism.spmd_backend = 'partial_dtensor'
    config.parallelism.pipeline_parallel_schedule = '1F1B'
    config.parallelism.pipeline_parallel_microbatch_size = 1
    config.parallelism.module_fqns_per_model_part = [['tok_embeddings', 'layers.0', 'layers.1', 'layers.2', 'layers.3', 'layers.4', 'layers.5', 'layers.6', 'layers.7', 'layers.8', 'layers.9', 'layers.10', 'layers.11', 'layers.12', 'layers.13', 'layers.14'], ['layers.15', 'layers.16', 'layers.17', 'layers.18', 'layers.19', 'layers.20', 'layers.21', 'layers.22', 'layers.23', 'layers.24', 'layers.25', 'layers.26', 'layers.27', 'layers.28', 'layers.29', 'layers.30', 'layers.31', 'norm', 'lm_head']]
    config.compile.enable = True
    config.compile.components = ['model', 'loss']
    config.checkpoint.interval = 1000
    for layer in config.model_spec.model.layers:
        layer.attention.rope.theta = 500000.0
        layer.attention.rope.max_seq_len = 4096
        layer.attention.rope.scaling = 'llama'
        layer.attention.rope.scaling_factor = 8.0
        layer.attention.rope.low_freq_factor = 1.0
        layer.attention.rope.high_freq_factor = 4.0
        layer.attention.rope.original_max_position_embeddings = 8192
    config.activation_checkpoint = None
    return config
