"""The fields of a strategy, in one table: what each is called, what it may be, and what it is when it is not used.

The text form, the strategy table, restrictions, rules and exporters all read it from here.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

OVERLAPS: Final = ("grad", "param", "tp", "p2p", "ep")
SCHEDULES: Final = ("1f1b", "interleaved", "gpipe", "zb", "zbv")
RECOMPUTES: Final = ("none", "selective", "full")
# What selective recompute may repeat, by Megatron-core's names; the first is what it repeats where none is named.
MODULES: Final = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
METHODS: Final = ("uniform", "block")
OFFLOADS: Final = ("none", "optimizer")
ACTIVATIONS: Final = "activations"  # the word of what else may wait in host memory: offload=activations:4
GRAPHS: Final = ("none", "partial", "full")
MOMENTS: Final = ("fp32", "bf16")
RESHARDS: Final = ("always", "never")

Value = bool | int | str


class StrategyField(NamedTuple):
    """One field; its name is also its word in the text form, in rules and after ``--fix``."""

    name: str
    kind: Literal["degree", "number", "switch", "choice"]
    plain: Value  # what a target that does not have the field does
    title: str  # what a target that does not have it lacks
    meaning: str  # for people who write rules
    off: Value | None = None  # what switches it off; None: it must be forbidden by value
    choices: tuple[str, ...] = ()
    takes_gpus: bool = False  # the GPUs of a job are the product of these
    least: int = 1  # of a number
    part_of: tuple[str, str] | None = None  # the choice, and its value, without which it is as plain


def _degree(name: str, title: str, meaning: str, **more: Any) -> StrategyField:
    return StrategyField(name, "degree", 1, title, meaning, **{"off": 1, **more})


def _switch(name: str, title: str, meaning: str, *, plain: bool = False, **more: Any) -> StrategyField:
    return StrategyField(name, "switch", plain, title, meaning, off=False, **more)


def _choice(name: str, title: str, meaning: str, choices: tuple[str, ...], **more: Any) -> StrategyField:
    return StrategyField(name, "choice", choices[0], title, meaning, choices=choices, **more)


STRATEGY_FIELDS: Final = (
    _degree("tp", "tensor parallelism", "tensor-parallel degree", takes_gpus=True),
    _degree("pp", "pipeline parallelism", "pipeline stages", takes_gpus=True),
    _degree("vp", "interleaved pipeline", "chunks of layers per stage"),
    _degree("cp", "context parallelism of this kind", "context-parallel degree", takes_gpus=True),
    _degree("ep", "expert parallelism", "expert-parallel degree"),
    _degree("etp", "tensor parallelism inside an expert", "tensor-parallel degree inside an expert"),
    _degree("dp", "data parallelism", "data-parallel degree", takes_gpus=True),
    _degree("mbs", "micro-batches of several samples", "samples per micro-batch", off=None),
    StrategyField("zero", "number", 0, "sharding of this kind",
                  "what data parallelism shards: 0 nothing, 1 optimizer, 2 + gradients, 3 + weights", off=0, least=0),
    StrategyField("recompute_layers", "number", 1, "recompute of several layers at once",
                  "layers per checkpoint (uniform) or recomputed per chunk (block)", part_of=("recompute", "full")),
    StrategyField("offload_layers", "number", 0, "activation offload",
                  "layers of a stage whose activations wait in host memory", off=0, least=0),
    StrategyField("shard", "number", 0, "sharding inside groups of replicas",
                  "data-parallel ranks that ZeRO shards over; outside them states are replicated; 0: all", off=0,
                  least=0),
    _switch("sp", "sequence parallelism", "sequence parallelism"),
    _switch("flash", "switch for fused attention", "fused attention", plain=True),
    _switch("overlap_grad", "overlap of gradients", "gradient reduction behind the backward pass"),
    _switch("overlap_param", "overlap of weights", "parameter gathering behind the forward pass"),
    _switch("overlap_tp", "overlap of tensor parallelism", "tensor-parallel traffic behind matrix products"),
    _switch("overlap_p2p", "overlap of the pipeline", "pipeline traffic behind compute"),
    _switch("overlap_ep", "overlap of expert exchanges", "expert exchanges behind another micro-batch"),
    _switch("dispatch_fp8", "dispatch in fp8", "tokens go to their experts in fp8"),
    *(_switch(f"recompute_{name}", f"recompute of {name}", f"selective recompute repeats {name}",
              part_of=("recompute", "selective")) for name in MODULES),
    _choice("recompute", "recompute setting", "activation recompute", RECOMPUTES, off="none"),
    _choice("method", "choice of recompute method", "how full recompute picks layers", METHODS,
            part_of=("recompute", "full")),
    _choice("offload", "optimizer offload", "what is kept in host memory", OFFLOADS, off="none"),
    _choice("schedule", "choice of schedule", "pipeline schedule", SCHEDULES),
    _choice("dispatch", "dispatcher of this kind", "what takes tokens to their experts",
            ("alltoall", "deepep", "hybridep"), off="alltoall"),
    _choice("graphs", "CUDA graphs of this kind", "kernels launched as CUDA graphs", GRAPHS, off="none"),
    _choice("moments", "optimizer moments in bf16", "width of the optimizer's moments", MOMENTS),
    _choice("params", "weights in fp8", "weights as they are stored and gathered", ("bf16", "fp8")),
    _choice("grads", "gradients of this width", "gradients as they are added up and reduced", ("fp32", "bf16")),
    _choice("attention", "attention in fp8", "width of what attention multiplies", ("bf16", "fp8")),
    _choice("reshard", "choice of what stays gathered", "whether ZeRO-3 gathers weights again in backward", RESHARDS),
)  # fmt: skip

DEGREES: Final = tuple(field.name for field in STRATEGY_FIELDS if field.kind == "degree")
INTEGERS: Final = (*DEGREES, *(field.name for field in STRATEGY_FIELDS if field.kind == "number"))
SWITCHES: Final = tuple(field.name for field in STRATEGY_FIELDS if field.kind == "switch")
CHOICES: Final = {field.name: field.choices for field in STRATEGY_FIELDS if field.kind == "choice"}
LEAST: Final = {field.name: field.least for field in STRATEGY_FIELDS if field.kind in ("degree", "number")}
GPU_DEGREES: Final = tuple(field.name for field in STRATEGY_FIELDS if field.takes_gpus)
# Words whose usual value is the runtime's and the GPU's; what a text leaves out of them is filled in by the job.
RUNTIME_WORDS: Final = ("dispatch", "dispatch_fp8", "graphs", "moments", "params", "grads", "attention", "reshard")
RUNTIME_CHOICES: Final = tuple(name for name in RUNTIME_WORDS if name in CHOICES)  # each one of what a runtime lists
