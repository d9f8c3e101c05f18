# -*- coding: utf-8 -*-
# Plan of Astra 0.0: qwen3-30b-a3b on 32xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp1 pp1 ep16 dp32 mbs1 zero3 recompute=none overlap=grad,param dispatch=alltoall graphs=none params=bf16 grads=fp32 reshard=always
# Verified with torchtitan 0.3.0 with torch 2.13.0: its own config manager, ParallelDims and model, on the meta device.
from torchtitan.trainer import Trainer
from torchtitan.models.qwen3.config_registry import qwen3_30b_a3b


def plan() -> Trainer.Config:
    config = qwen3_30b_a3b()
    config.training.local_batch_size = 1
    config.training.global_batch_size = 1024
    config.training.seq_len = 4096
    config.training.mixed_precision_param = 'bfloat16'
    config.training.disable_cuda_graphs = True
    config.parallelism.data_parallel_replicate_degree = 1
    config.parallelism.data_parallel_shard_degree = 32
    config.parallelism.fsdp_reshard_after_forward = 'always'
    config.parallelism.tensor_parallel_degree = 1
    config.parallelism.enable_sequence_parallel = False
    config.parallelism.context_parallel_degree = 1
    config.parallelism.expert_parallel_degree = 16
    config.parallelism.pipeline_parallel_degree = 1
    config.parallelism.spmd_backend = 'partial_dtensor'
    config.compile.enable = True
    config.compile.components = ['model', 'loss']
    config.checkpoint.interval = 1000
    for layer in config.model_spec.model.layers:
        layer.attention.rope.theta = 1000000.0
        layer.attention.rope.max_seq_len = 4096
        layer.attention.rope.scaling = 'none'
    config.activation_checkpoint = None
    return config
