"""Megatron-LM's many flags, sorted by what not reading them could cost: nothing, speed and memory, or who knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

# Learning rates, data, logs, checkpoints and the launcher's own: they change neither speed nor memory of a step.
_HARMLESS: Final = re.compile(
    r"--(?:"
    r"lr|min-lr|lr-.*|weight-decay.*|.*-weight-decay.*|clip-grad|adam-.*|sgd-.*|init-method.*|seed|split|finetune"
    r"|(?:train|valid|test|eval|skip-train|full-validation|multiple-validation)(?:-.*)?|mock-data|tokenizer-.*"
    r"|data|data-.*|data_.*|dataloader-.*|dataset.*|num-dataset-.*|num-workers|per-split-.*|vocab-file|merge-file"
    r"|make-vocab-.*|vocab-extra-ids|save|save-.*|load|load-.*|ckpt-.*|async-save|async-ckpt-.*|dist-ckpt-.*"
    r"|use-dist-ckpt|auto-detect-ckpt-format|no-(?:load|save)-.*|pretrained-checkpoint|non-persistent-.*"
    r"|exit-.*|log-.*|logging-.*|tensorboard-.*|wandb-.*|timing-log-.*|no-log-.*|log_.*|profile.*|one-logger.*"
    r"|enable-one-logger|distributed-(?:backend|timeout-minutes)|manual-gc.*|(?:attention|hidden)-dropout"
    r"|override-opt.*|use-checkpoint-.*|reset-.*|eod-.*|exit-on-.*|no-(?:barrier-.*|check-for-nan-.*)"
    r"|check-for-nan-.*|local-rank|local_rank|rank|world-size|nnodes|nproc.per.node|node.rank|master.(?:addr|port)"
    r"|rdzv.*|standalone|max-restarts|max_restarts|tee|redirects|monitor.interval|role|start.method|no.python|module"
    r"|mscale.*|beta-.*|initial-loss-scale|loss-scale.*|min-loss-scale|hysteresis|apply-.*|norm-epsilon"
    r"|make-.*|lazy-.*|job-name|job-.*|project|hostfile|num-gpus|num.nodes|include|exclude|launcher|deepspeed.config"
    r"|moe-(?:aux-loss-coeff|z-loss-coeff|router-(?:bias-update-rate|load-balancing-type|dtype).*)|mtp-loss-.*"
    r"|(?:patch-)?tokenizer.*|max-padding-length|target-expert-.*|custom-.*|ckpt.*|te-rng-tracker|kubernetes-.*"
    r")"
)
# Words that speak of what is computed, sent or kept.
_COSTLY: Final = re.compile(
    r"fus|overlap|recompute|checkpoint|activation|offload|cuda-graph|graph|fp8|fp4|fp16|fp32|bf16|moe|expert|parallel"
    r"|fsdp|shard|bucket|nccl|sharp|attention|attn|flash|cp-|dispatch|dtype|capacity|mtp|compile|comm|memory|batch"
    r"|sequence|seq|optimizer|zero|gemm|norm|rotary|rope|embedding|position|layer|head|hidden|ffn|vocab|swiglu|geglu"
    r"|window|mamba|hybrid|mla|lora|qk-|group|precision|loss-fusion|delay|defer|tp-|pp-|spec|transformer-impl|swin|num-"
)
# The value at which such a flag says nothing new.
_USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "--cuda-graph-impl": ("none",),
    "--cp-comm-type": ("p2p",),
    "--cpu-offloading-num-layers": ("0",),
    "--cross-entropy-fusion-impl": ("native", "te"),
    "--cross-entropy-loss-fusion": ("",),
    "--distribute-saved-activations": ("false",),
    "--moe-grouped-gemm": ("",),
    "--moe-permute-fusion": ("",),
    "--moe-router-fusion": ("",),
    "--mtp-num-layers": ("0",),
    "--num-distributed-optimizer-instances": ("1",),
    "--optimizer-offload-fraction": ("1.0", "1"),
    "--reuse-grad-buf-for-mxfp8-param-ag": ("",),
    "--transformer-impl": ("transformer_engine",),
    "--spec": ("megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",),
    "--use-mcore-models": ("",),
    "--no-async-tensor-model-parallel-allreduce": ("",),
    "--accumulate-allreduce-grads-in-fp32": ("",),
    "--no-gradient-accumulation-fusion": ("",),
    "--no-bias-gelu-fusion": ("",),
    "--no-bias-dropout-fusion": ("",),
    "--attention-softmax-in-fp32": ("",),
    "--init-model-with-meta-device": ("",),
    "--bf16": ("",),
    "--no-masked-softmax-fusion": ("",),
    "--no-bias-swiglu-fusion": ("",),
    "--group-query-attention": ("",),
}


def unread(flags: Mapping[str, Sequence[str]], read: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags nobody read: those that decide speed or memory, with their values, and those that are not known."""
    costly: list[str] = []
    unknown: list[str] = []
    for flag in sorted(set(flags) - set(read)):
        said = " ".join(flags[flag])
        shown = f"{flag} {said}".strip()
        if said in _USUAL.get(flag, ()) or _HARMLESS.fullmatch(flag):
            continue
        (costly if _COSTLY.search(flag) else unknown).append(shown)
    return tuple(costly), tuple(unknown)
