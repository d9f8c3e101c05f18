"""Which runtimes can execute a plan over several pools as it is."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from astra.catalog import runtimes
from astra.rules.can import unable
from astra.spec.mixed import MixedStrategy
from astra.spec.model import ModelSpec
from astra.spec.workload import Workload

# Executors whose framework is a runtime of the catalog: what it can train and do is in that file.
_PROFILES: Final = {"Megatron-LM": "megatron", "FlagScale": "flagscale"}
# The executor that starts what is written for a target.
STARTED_BY: Final = {"megatron": "Megatron-LM", "megatron-bridge": "Megatron-LM", "flagscale": "FlagScale"}
RUNTIMES: Final = ("Megatron-LM", "torch.distributed.pipelining", "FlagScale", "HexiScale", "Sailor")
_FORKS: Final = ("HexiScale", "Sailor")  # of older code, with ZeRO 1 at most


class Fitted(NamedTuple):
    """What a plan asks of a runtime beside its shape."""

    model: ModelSpec
    workload: Workload
    vendors: int = 1  # GPUs of several vendors share no collective library; FlagScale joins them (FlagCX, or gloo)
    precisions: int = 1
    zero: int = 1  # plans on one pool may go further than pipelines over several
    offload: bool = False


def runtimes_for(strategy: MixedStrategy, asks: Fitted) -> tuple[list[str], dict[str, str]]:
    """Who can execute a strategy as it is, and what the others lack (their documentation and code of 2026)."""
    segments = [segment for group in strategy.groups for segment in group.segments]
    one_shape = len({(segment.tp, segment.ep) for segment in segments}) == 1
    one_recompute = len({segment.recompute for segment in segments}) == 1
    one_group, one_mbs = len(strategy.groups) == 1, len({group.mbs for group in strategy.groups}) == 1
    chunks = any(group.vp > 1 for group in strategy.groups)
    shapes = [group.segments for group in strategy.groups]
    ends_differ = any(inside[0].tp != inside[-1].tp for inside in shapes)
    lacks = {
        "Megatron-LM": {
            "one tp for all stages": not one_shape,
            "one recompute setting": not one_recompute,
            "equal pipelines with equal micro-batches": not one_group,
        },
        "torch.distributed.pipelining": {
            "one device mesh, so one tp": not one_shape,
            "equal pipelines with equal micro-batches": not one_group,
        },
        "FlagScale": {
            "one pipeline shape": not one_group,
            "one cp": len({group.cp for group in strategy.groups}) > 1,
            "the first stage's tp on the last one too (tied embeddings)": asks.model.tied_embeddings and ends_differ,
        },
        "HexiScale": {
            "a Llama-2 model": not asks.model.name.startswith("llama-2"),
            "one chunk per stage (no vp)": chunks,
            "tp alone inside a stage": max(s.ep for s in segments) > 1 or max(g.cp for g in strategy.groups) > 1,
        },
        "Sailor": {
            "one chunk per stage (no vp)": chunks,
            "pipelines that cut the layers alike": not one_group,
            "one micro-batch size": not one_mbs,
        },
    }
    for name, wants in lacks.items():
        wants["zero 1 at most"] = name in _FORKS and asks.zero > 1
        wants["the optimizer on the GPU"] = asks.offload and name not in _PROFILES
        wants["GPUs of one vendor"] = asks.vendors > 1 and name != "FlagScale"
        wants["one precision on all GPUs"] = asks.precisions > 1
        wants.update(_profile_lacks(name, asks, chunks=chunks))
    missing = {name: "; ".join(want for want, broken in wants.items() if broken) for name, wants in lacks.items()}
    return [name for name in RUNTIMES if not missing[name]], {name: text for name, text in missing.items() if text}


def _profile_lacks(name: str, asks: Fitted, *, chunks: bool) -> dict[str, bool]:
    """What the runtime behind an executor cannot do, from its file."""
    if name not in _PROFILES:
        return {}
    runtime = runtimes.runtime(_PROFILES[name])
    can = runtime.can
    # Pools differ in precision, which is told apart below; each has one that its GPU knows.
    work = msgspec.structs.replace(asks.workload, precision="bf16")
    return {reason.sentence: True for reason in unable(runtime, asks.model, work)} | {
        "one chunk per stage (no vp)": chunks and "vp" not in can.degrees,
        f"zero {max(can.zero)} at most": asks.zero > max(can.zero),
        "the optimizer on the GPU": asks.offload and "optimizer" not in can.offload,
    }
