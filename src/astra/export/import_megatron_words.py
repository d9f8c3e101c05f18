"""What a Megatron-LM command line says beside its degrees: recompute, dispatcher, graphs, widths, offload, sharding."""

from __future__ import annotations

import re
from typing import Any, Final

from astra.errors import InputError
from astra.export.arguments import Arguments
from astra.spec.strategy_fields import MODULES

STAGES: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
GRAPHS: Final = {"none": "none", "local": "partial", "transformer_engine": "partial", "full_iteration": "full"}


def old(args: Arguments) -> bool:
    """Whether the words are those of Megatron-LM before 2023: no TransformerEngine, attention not fused."""
    names = ("--checkpoint-activations", "--activations-checkpoint-method", "--DDP-impl", "--model-parallel-size")
    return bool({name for name in names if args.has(name)})


def recompute(args: Arguments, name: str) -> dict[str, Any]:
    """Recompute as fields of a strategy, in today's words and in those of older versions."""
    kind: Any = args.text("--recompute-granularity", "selective" if args.has("--recompute-activations") else "none")
    method = args.text("--recompute-method") or args.text("--activations-checkpoint-method")
    number = args.maybe("--recompute-num-layers") or args.maybe("--activations-checkpoint-num-layers")
    whole = [args.has(flag) for flag in ("--checkpoint-activations", "--deepspeed-activation-checkpointing")]
    if any(whole):
        kind, number = "full", number or args.maybe("--checkpoint-num-layers")
    elif kind == "none" and args.text("--activations-checkpoint-method"):
        kind = "full"
    if kind not in ("none", "selective", "full"):
        raise InputError(f"{name}: --recompute-granularity", kind, want="selective or full")
    if kind == "full":
        return {"recompute": kind, "method": method or "uniform", "recompute_layers": number or 1}
    if kind == "none":
        return {"recompute": kind}
    modules = tuple(args.texts("--recompute-modules")) or ("core_attn",)
    known = tuple(module for module in modules if module in MODULES)
    if not known:
        raise InputError(f"{name}: --recompute-modules", " ".join(modules), want=f"some of {', '.join(MODULES)}")
    return {"recompute": kind, "modules": known}


def other_modules(args: Arguments) -> list[str]:
    """Recomputed modules that a strategy has no word for."""
    modules = [word for word in args.texts("--recompute-modules") if word not in MODULES]
    return [f"--recompute-modules {' '.join(modules)}"] if modules else []


def zero(args: Arguments, name: str) -> int:
    """The ZeRO stage."""
    if args.has("--deepspeed"):
        stage = args.text("--zero-stage")
        if not re.fullmatch(r"[0-3](\.0)?", stage):
            fix = "Add it to the command, or import the DeepSpeed JSON itself."
            raise InputError(f"{name}: --zero-stage", stage or None, want="the ZeRO stage, 0 to 3", fix=fix)
        return int(stage[0])
    sharded = args.has("--use-distributed-optimizer")
    if args.has("--use-torch-fsdp2"):
        return 3
    if args.has("--use-megatron-fsdp") or args.has("--use-custom-fsdp"):
        word = args.text("--data-parallel-sharding-strategy", "no_shard")
        if word not in STAGES:
            want = f"one of {', '.join(STAGES)}"
            raise InputError(f"{name}: --data-parallel-sharding-strategy", word, want=want)
        return STAGES[word]
    return int(sharded)


def words(args: Arguments, name: str, dp: int, ep: int) -> dict[str, Any]:
    """Dispatcher, graphs, widths, offload and groups of shards as fields of a strategy."""
    kind = args.text("--moe-token-dispatcher-type", "alltoall" if ep > 1 else "allgather")
    backend = args.text("--moe-flex-dispatcher-backend", "deepep")
    flex = (kind == "flex" or args.has("--moe-enable-deepep")) and ep > 1
    graphs = args.text("--cuda-graph-impl", "none")
    if args.has("--enable-cuda-graph") or args.has("--external-cuda-graph"):
        graphs = "transformer_engine"
    for flag in ("--cuda-graph-modules", "--cuda-graph-scope"):
        if "full_iteration" in args.texts(flag):
            graphs = "full_iteration"
    narrow = args.has("--use-precision-aware-optimizer") and args.text("--exp-avg-dtype") in ("bf16", "fp16", "fp8")
    copies = args.maybe("--num-distributed-optimizer-instances") or 1
    if dp % copies:
        where = f"{name}: --num-distributed-optimizer-instances"
        raise InputError(where, copies, want=f"a number that the {dp} replicas divide by")
    args.text("--exp-avg-sq-dtype")
    return {
        "dispatch": ("hybridep" if backend == "hybridep" else "deepep") if flex else "alltoall",
        "graphs": GRAPHS.get(graphs, "partial"),
        "moments": "bf16" if narrow else "fp32",
        "params": "fp8" if args.has("--fp8-param-gather") or args.has("--fp8-param") else "bf16",
        "grads": "bf16" if args.has("--grad-reduce-in-bf16") else "fp32",
        "offload": "optimizer" if args.has("--optimizer-cpu-offload") or args.has("--cpu-optimizer") else "none",
        "offload_layers": args.whole("--cpu-offloading-num-layers", 0),
        "shard": dp // copies if copies > 1 else 0,
    }


# How fp8 operands are scaled, where it is said; where it is not, as is usual on the GPU.
FP8_SCALED: Final = {
    "tensorwise": "fp8-tensorwise", "delayed": "fp8-tensorwise", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8",
}  # fmt: skip


def precision(args: Arguments) -> str:
    """The precision of a workload."""
    if args.has("--fp4-format"):
        return "nvfp4"
    if args.has("--fp8-format") or args.has("--fp8-hybrid") or args.has("--fp8-e4m3"):
        return FP8_SCALED.get(args.text("--fp8-recipe"), "fp8")
    return "fp16" if args.has("--fp16") else "bf16"


def flash(args: Arguments) -> bool:
    """Whether attention is fused."""
    if args.text("--attention-backend", "auto") in ("unfused", "local"):
        return False
    named = args.has("--use-flash-attn") or args.has("--use-flash-attn-v2") or args.has("--use-flash-attn-triton")
    bare = old(args) or args.text("--transformer-impl") == "local" or args.has("--deepspeed")
    return named or not bare
