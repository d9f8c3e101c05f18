"""Which runtimes can execute a plan over several pools as it is."""

from __future__ import annotations

from typing import Final

from astra.spec.mixed import MixedStrategy

RUNTIMES: Final = ("Megatron-LM", "torch.distributed.pipelining", "FlagScale", "HexiScale", "Sailor")


def runtimes_for(strategy: MixedStrategy, *, vendors: int = 1) -> tuple[list[str], dict[str, str]]:
    """Who can execute a strategy as it is, and what the others lack (their documentation and code of 2026).

    GPUs of several vendors share no collective library; FlagScale joins them (FlagCX, or gloo).
    """
    segments = [segment for group in strategy.groups for segment in group.segments]
    one_shape = len({(segment.tp, segment.ep) for segment in segments}) == 1
    one_recompute = len({segment.recompute for segment in segments}) == 1
    one_group, one_mbs = len(strategy.groups) == 1, len({group.mbs for group in strategy.groups}) == 1
    chunks = any(group.vp > 1 for group in strategy.groups)
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
            "one chunk per stage (no vp)": chunks,
            "one pipeline shape": not one_group,
            "one cp": len({group.cp for group in strategy.groups}) > 1,
        },
        "HexiScale": {
            "one chunk per stage (no vp)": chunks,
            "tp alone inside a stage": max(s.ep for s in segments) > 1,
        },
        "Sailor": {
            "one chunk per stage (no vp)": chunks,
            "pipelines that cut the layers alike": not one_group,
            "one micro-batch size": not one_mbs,
        },
    }
    for name, wants in lacks.items():
        wants["GPUs of one vendor"] = vendors > 1 and name != "FlagScale"
    missing = {name: "; ".join(want for want, broken in wants.items() if broken) for name, wants in lacks.items()}
    return [name for name in RUNTIMES if not missing[name]], {name: text for name, text in missing.items() if text}
