"""The fields of a strategy, in one table: what each is called, what it may be, and what it is when it is not used.

The text form, the strategy table, restrictions, rules and exporters all read it from here.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

OVERLAPS: Final = ("grad", "param", "tp", "p2p")
SCHEDULES: Final = ("1f1b", "interleaved", "gpipe", "zb", "zbv")
RECOMPUTES: Final = ("none", "selective", "full")
METHODS: Final = ("uniform", "block")
OFFLOADS: Final = ("none", "optimizer")

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


def _degree(name: str, title: str, meaning: str, **more: Any) -> StrategyField:
    return StrategyField(name, "degree", 1, title, meaning, **{"off": 1, **more})


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
                  "what data parallelism shards: 0 nothing, 1 optimizer, 2 + gradients, 3 + weights", off=0),
    StrategyField("recompute_layers", "number", 1, "recompute of several layers at once",
                  "layers per checkpoint (uniform) or recomputed per chunk (block)"),
    StrategyField("sp", "switch", False, "sequence parallelism", "sequence parallelism", off=False),
    StrategyField("flash", "switch", True, "switch for fused attention", "fused attention", off=False),
    StrategyField("overlap_grad", "switch", False, "overlap of gradients",
                  "gradient reduction behind the backward pass", off=False),
    StrategyField("overlap_param", "switch", False, "overlap of weights",
                  "parameter gathering behind the forward pass", off=False),
    StrategyField("overlap_tp", "switch", False, "overlap of tensor parallelism",
                  "tensor-parallel traffic behind matrix products", off=False),
    StrategyField("overlap_p2p", "switch", False, "overlap of the pipeline",
                  "pipeline traffic behind compute", off=False),
    StrategyField("recompute", "choice", "none", "recompute setting", "activation recompute",
                  off="none", choices=RECOMPUTES),
    StrategyField("method", "choice", "uniform", "choice of recompute method", "how full recompute picks layers",
                  choices=METHODS),
    StrategyField("offload", "choice", "none", "optimizer offload", "what is kept in host memory",
                  off="none", choices=OFFLOADS),
    StrategyField("schedule", "choice", "1f1b", "choice of schedule", "pipeline schedule", choices=SCHEDULES),
)  # fmt: skip

DEGREES: Final = tuple(field.name for field in STRATEGY_FIELDS if field.kind == "degree")
INTEGERS: Final = (*DEGREES, *(field.name for field in STRATEGY_FIELDS if field.kind == "number"))
SWITCHES: Final = tuple(field.name for field in STRATEGY_FIELDS if field.kind == "switch")
CHOICES: Final = {field.name: field.choices for field in STRATEGY_FIELDS if field.kind == "choice"}
GPU_DEGREES: Final = tuple(field.name for field in STRATEGY_FIELDS if field.takes_gpus)
