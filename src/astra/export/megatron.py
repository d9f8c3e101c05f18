"""Megatron-LM: a launch script with the full argument list."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from astra.cost.memory import built_without_memory
from astra.export.base import WHOLE_NODES, Exporter, Launch, Left, Limit, header, joined, template
from astra.export.launch_script import RENDEZVOUS, host_order, node_sizes, torchrun
from astra.export.megatron_model import (
    Flag,
    aware,
    captured_experts,
    fp8_format,
    fp8_scaling,
    graph_modules,
    instances,
    model_flags,
    positions_known,
)
from astra.export.quoting import shell, shell_array

SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}


def _uneven_meshes(launch: Launch) -> bool:
    return len({(mesh.tp, mesh.cp, mesh.ep, 0 if launch.by_replica else mesh.dp, mesh.etp, mesh.recompute)
                for mesh in launch.meshes}) > 1  # fmt: skip


def _left(launch: Launch) -> list[Left]:
    left = [Left("`MEGATRON_DIR`", "a checkout of Megatron-LM")]
    if launch.workload.task == "finetune":
        left += [Left("`PRETRAINED_CHECKPOINT`", "the checkpoint to start from; without it the script stops")]
    left += [Left("`DATA_PATH`, `TOKENIZER_MODEL`", "the data and its tokenizer; mock data without them")]
    every = f"every {launch.save_interval} steps" + (", as billed" if launch.figures.save_every_s else "")
    left += [Left("`SAVE`", f"a folder for checkpoints, written {every}; none without it")]
    left += [Left("`LR`", "the learning rate; 1e-4 without it")]
    if not positions_known(launch.model):
        left += [Left("`ROTARY_BASE`", "of the model, not known here; 10000 without it")]
    if launch.model.norm_epsilon is None:
        left += [Left("`--norm-epsilon`", "of the model, not known here; Megatron-LM's without it")]
    return left


def _notes(launch: Launch) -> str:
    """How to start it, and what the plan leaves open."""
    unknown = ["`ROTARY_BASE`"] * (not positions_known(launch.model))
    unknown += ["`--norm-epsilon`"] * (launch.model.norm_epsilon is None)
    model = f"{' and '.join(unknown)} of the model, not known here, " if unknown else ""
    order = (
        "\nWhich node gets which number matters: the head of the script lists the GPUs by it." if launch.mixed else ""
    )
    start = _TUNED if launch.workload.task == "finetune" else ""
    return template("megatron_notes.md").format(model=model, order=order) + start


_TUNED: Final = """
The plan fine-tunes: `PRETRAINED_CHECKPOINT` names the checkpoint of Megatron-LM whose weights it starts from (one of
Hugging Face is converted with Megatron-LM's `tools/checkpoint/convert.py` or with Megatron-Bridge). Without it the
script stops. Once `SAVE` has a checkpoint of the run, the run goes on from that.
"""


def sections(launch: Launch) -> dict[str, list[Flag]]:
    """Every argument the plan fixes, by subject."""
    return {
        "MODEL_ARGS": model_flags(launch),
        "PARALLEL_ARGS": list(_parallel(launch)),
        "BATCH_ARGS": list(_batch(launch)),
        "PRECISION_ARGS": list(_precision(launch)),
        "MEMORY_ARGS": list(_memory(launch)),
        "OVERLAP_ARGS": list(_overlap(launch)),
    }


def _parallel(launch: Launch) -> Iterator[Flag]:
    strategy = launch.strategy
    yield ("--tensor-model-parallel-size", str(strategy.tp))
    yield ("--pipeline-model-parallel-size", str(strategy.pp))
    if strategy.pp > 1 and launch.model.state_space is None:  # a hybrid's pattern has the stages
        yield ("--pipeline-model-parallel-layout", layout(launch.layers, launch.workload.mtp or 0))
    yield ("--context-parallel-size", str(strategy.cp))
    if strategy.cp > 1:
        yield ("--cp-comm-type", "p2p")
    if launch.model.moe is not None:
        yield ("--expert-model-parallel-size", str(strategy.ep))
        yield ("--expert-tensor-parallel-size", str(strategy.etp))
    if strategy.sp:
        yield ("--sequence-parallel",)
    if strategy.zero == 1:
        yield ("--use-distributed-optimizer",)
    elif strategy.zero >= 2:
        yield ("--use-distributed-optimizer",)
        yield ("--use-megatron-fsdp",)
        yield ("--data-parallel-sharding-strategy", SHARDING[strategy.zero])
        yield ("--ckpt-format", "fsdp_dtensor")
        yield ("--no-gradient-accumulation-fusion",)
        if built_without_memory(launch.model):  # otherwise every rank first holds the whole model
            yield ("--init-model-with-meta-device",)
    if instances(launch) > 1:
        yield ("--num-distributed-optimizer-instances", str(instances(launch)))
    yield ("--distributed-backend", "nccl")


def layout(layers: tuple[int, ...], mtp: int = 0) -> str:
    """The pipeline layout, one part per virtual stage: ``Et*7|t*9|t*9|t*7L``, ``Et*2|(t*2|)*38t*2mL``."""
    parts = [f"t*{count}" if count > 1 else "t" * count for count in layers]
    middle = ""
    for part, run in groupby(parts[1:-1]):
        times = len(list(run))
        middle += f"({part}|)*{times}" if times > 2 else f"{part}|" * times
    return f"E{parts[0]}|{middle}{parts[-1]}{'m' * mtp}L"


def _batch(launch: Launch) -> Iterator[Flag]:
    yield ("--micro-batch-size", str(launch.strategy.mbs))
    yield ("--global-batch-size", str(launch.workload.global_batch))
    if launch.workload.tokens is not None:
        yield ("--train-samples", str(math.ceil(launch.workload.tokens / launch.workload.seq)))
    else:
        yield ("--train-iters", "1000")


def _precision(launch: Launch) -> Iterator[Flag]:
    strategy, precision = launch.strategy, launch.workload.precision
    yield ("--fp16",) if precision == "fp16" else ("--bf16",)
    if fp8_scaling(launch):
        yield ("--fp8-format", fp8_format(launch))
        yield ("--fp8-recipe", fp8_scaling(launch))
    if precision == "nvfp4":
        yield ("--fp4-format", "e2m1")
        yield ("--fp4-recipe", "nvfp4")
    if strategy.params == "fp8":
        yield ("--fp8-param-gather",)
        if fp8_scaling(launch) == "mxfp8" and strategy.zero == 1:
            yield ("--reuse-grad-buf-for-mxfp8-param-ag",)
    if strategy.grads == "bf16":
        yield ("--grad-reduce-in-bf16",)
    elif precision == "fp16":  # whose gradients it reduces as backward makes them, unless it is told to widen them
        yield ("--accumulate-allreduce-grads-in-fp32",)
    yield ("--transformer-impl", "transformer_engine")
    yield ("--attention-backend", "auto" if launch.strategy.flash else "unfused")


def _memory(launch: Launch) -> Iterator[Flag]:
    strategy = launch.strategy
    yield ("--optimizer", launch.workload.optimizer)
    if strategy.recompute == "selective":
        yield ("--recompute-granularity", "selective")
        yield ("--recompute-modules", *strategy.modules)
    elif strategy.recompute == "full":
        yield ("--recompute-granularity", "full")
        yield ("--recompute-method", strategy.method)
        yield ("--recompute-num-layers", str(strategy.recompute_layers))
    if strategy.offload == "optimizer":
        yield ("--optimizer-cpu-offload",)
        yield ("--optimizer-offload-fraction", "1.0")
    if aware(launch):
        yield ("--use-precision-aware-optimizer",)
    if strategy.moments == "bf16":
        yield ("--exp-avg-dtype", "bf16")
        yield ("--exp-avg-sq-dtype", "bf16")
    if strategy.offload_layers:
        yield ("--cpu-offloading-num-layers", str(strategy.offload_layers))


def _overlap(launch: Launch) -> Iterator[Flag]:
    strategy = launch.strategy
    if "grad" in strategy.overlap:
        yield ("--overlap-grad-reduce",)
    if "param" in strategy.overlap:
        yield ("--overlap-param-gather",)
    if "tp" in strategy.overlap:
        yield ("--tp-comm-overlap",)
    if strategy.vp > 1 and "p2p" not in strategy.overlap:
        yield ("--no-overlap-p2p-communication",)
    if "ep" in strategy.overlap:
        yield ("--overlap-moe-expert-parallel-comm",)
    if strategy.graphs == "partial":
        yield ("--cuda-graph-impl", "transformer_engine")
        yield ("--cuda-graph-modules", *graph_modules(launch))
    elif strategy.graphs == "full":
        yield ("--cuda-graph-impl", "full_iteration")
        yield ("--no-check-for-nan-in-loss-and-grad",)
    if strategy.graphs != "none":
        yield ("--te-rng-tracker",)
    yield ("--cross-entropy-loss-fusion",)
    yield ("--cross-entropy-fusion-impl", "native")


def environment(launch: Launch) -> dict[str, str]:
    """What must be set before Python starts."""
    strategy = launch.strategy
    settings = {"NVTE_FWD_LAYERNORM_SM_MARGIN": "16", "NVTE_BWD_LAYERNORM_SM_MARGIN": "16"}
    if strategy.zero < 2 and not launch.blackwell and "ep" not in strategy.overlap:
        # Before Blackwell one queue keeps communication ahead of the kernel that needs it; Megatron-FSDP wants several.
        settings["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if strategy.dispatch == "hybridep":  # which takes eight GPUs for a domain of NVLink unless it is told
        domain = launch.pool.node.links[0].reach
        settings["NVLINK_DOMAIN_SIZE"] = str(domain)
        settings["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] = str(min(strategy.ep * strategy.etp, domain))
        settings["USE_MNNVL"] = "1" if domain > launch.gpus_per_node else "0"
    if strategy.graphs == "full":  # as perf_recipes of Megatron-Bridge 0.6.2 set it
        settings["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True,graph_capture_record_stream_reuse:True"
        settings["TORCH_NCCL_AVOID_RECORD_STREAMS"] = settings["NCCL_GRAPH_REGISTER"] = "0"
    if captured_experts(launch):
        settings["NVTE_CUTEDSL_FUSED_GROUPED_MLP"] = "1"
    return settings


# A checkpoint of the run itself, where there is one already, comes first.
_START: Final = """\
# Fine-tuning: the weights to start from, a checkpoint of Megatron-LM.
DATA_ARGS+=(--pretrained-checkpoint "${PRETRAINED_CHECKPOINT:?name the checkpoint to start from}")
"""


def script(launch: Launch) -> str:
    """The launch script; every value in it is quoted."""
    parts = sections(launch)
    lines = ["#!/usr/bin/env bash", *header(launch, MEGATRON.verified), *host_order(launch), "set -euo pipefail", ""]
    lines += [RENDEZVOUS, *node_sizes(launch), 'MEGATRON_DIR="${MEGATRON_DIR:-Megatron-LM}"', ""]
    lines += [f"export {name}={shell(value)}" for name, value in environment(launch).items()] + [""]
    for name, flags in parts.items():
        lines += [*shell_array(name, flags), ""]
    lines += ["# Yours to choose: a plan does not depend on them."]
    rotary = [] if positions_known(launch.model) else ['  --rotary-base "${ROTARY_BASE:-10000}"']
    lines += ["TRAINING_ARGS=(", '  --lr "${LR:-1e-4}" --min-lr 0 --lr-decay-style cosine --lr-warmup-fraction 0.01']
    lines += ["  --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.01"]
    lines += ["  --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --log-interval 1 --log-throughput"]
    lines += ["  --distributed-timeout-minutes 30", *rotary, ")"]
    lines += [template("megatron_data.sh").replace("@EVERY", str(launch.save_interval))]
    if launch.workload.task == "finetune":
        lines += [_START]
    groups = ["TRAINING_ARGS", "DATA_ARGS"]
    expanded = " ".join(f'"${{{name}[@]}}"' for name in [*parts, *groups])
    program = "pretrain_gpt.py" if launch.model.state_space is None else "pretrain_hybrid.py"
    lines += [torchrun(launch, f'"$MEGATRON_DIR/{program}"', f'{expanded} "$@"')]
    return joined(lines)


MEGATRON: Final = Exporter(
    name="megatron",
    title="Megatron-LM launch script",
    verified="megatron-core 0.19.2: its own parse_args, validate_args, TransformerConfig and GPTModel",
    runtime="megatron",
    limits=(
        Limit("cluster", "Megatron-LM has one tp, cp, dp and recompute setting for every stage", _uneven_meshes),
        WHOLE_NODES,
    ),
    made=lambda launch: {"launch.sh": script(launch)},
    notes=_notes,
    left=_left,
)
