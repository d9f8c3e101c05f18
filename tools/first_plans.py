"""Write the page on first plans beside those of vendors: ``python -m tools.first_plans``. It takes half a minute.

Each case is a model and GPUs that somebody published a strategy for. Both strategies are costed by the same request;
what differs is listed, and why, with a judgement that was written by hand. Every figure comes from this command.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import astra
from astra.spec.strategy import Strategy, parse_strategy

TARGET: Final = Path(__file__).parents[1] / "docs" / "first-plans.md"
COMPARED: Final = ("tp", "pp", "vp", "cp", "ep", "mbs", "zero", "recompute", "modules", "offload_layers", "dispatch",
                   "graphs", "overlap", "schedule")  # fmt: skip
NEXT: Final = 2  # plans told beside the first
BRIDGE: Final = "Megatron-Bridge 0.5.0 to 0.6.2, perf_recipes"


class Case(NamedTuple):
    """One request, the strategy somebody published for it, and what is to be said of the difference."""

    model: str
    gpus: str
    batch: int
    seq: int
    precision: str
    runtime: str
    vendors: str
    source: str
    why: str


CASES: Final = (
    Case(
        "deepseek-v3", "2048xH800", 15360, 4096, "fp8-blockwise", "megatron-bridge",
        "tp1 pp16 ep64 mbs1 zero1 recompute=selective:mla_up_proj,layernorm overlap=grad,param,ep dispatch=deepep",
        "DeepSeek-V3 technical report (arXiv 2412.19437), sections 3.2 and 3.3: PP16, EP64 over 8 nodes, ZeRO-1, no TP",
        "ZeRO-1, experts over eight nodes and exchanges behind another micro-batch, as the authors have them. "
        "They run DualPipe in 16 stages; Megatron hides exchanges in interleaved pipelines only, so that fewer "
        "stages of more chunks stand in for it, with tp 2 and the latent's projections made again to make room. "
        "Whoever wants trodden ground takes eight stages (--fix pp=8), as NVIDIA's recipe for 1,024 H100 has "
        "them: the next plans say how little that costs, and published pipelines of two stages took no longer than "
        "predicted ([evidence.md](evidence.md)). Besides the authors one published run hides exchanges between "
        "nodes: hence the interval. Try 30 steps first.",
    ),
    Case(
        "deepseek-v3", "256xGB200", 4096, 4096, "mxfp8", "megatron-bridge",
        "tp1 pp4 vp4 ep64 mbs1 zero1 recompute=selective:mla_up_proj dispatch=hybridep graphs=full "
        "overlap=grad,param,p2p,ep",
        f"{BRIDGE}: deepseek_v3_pretrain_256gpu_gb200_fp8mx",
        "The same stages, experts and words: HybridEP inside the rack, whole graphs, hidden exchanges. Chunks of "
        "two layers instead of four have the smaller bubble, and there is room to recompute nothing.",
    ),
    Case(
        "qwen3-235b-a22b", "256xH100", 8192, 4096, "bf16", "megatron-bridge",
        "tp2 pp8 vp4 ep32 mbs1 sp zero1 recompute=none dispatch=alltoall overlap=grad,param,p2p,ep",
        f"{BRIDGE}: qwen3_235b_a22b_pretrain_256gpu_h100_bf16",
        "Experts inside a node instead of over four, so that what is sent to them stays on NVLink and need not "
        "hide behind another micro-batch, and HybridEP, which NVIDIA's newer recipes for H100 have (DeepSeek-V3, "
        "Qwen3-30B). Expert weights take the room that the recipe has left, for which norms and the experts' "
        "activation are made again. Sequences are split in two where the recipe splits matrices: as much memory, "
        "larger products. The recipe's hidden exchanges between nodes, with HybridEP, are the fastest if they "
        "work: one published run has them, so that they are doubted more.",
    ),
    Case(
        "qwen3-235b-a22b", "256xB200", 8192, 4096, "mxfp8", "megatron-bridge",
        "tp1 pp8 ep8 mbs1 zero1 recompute=none dispatch=alltoall graphs=none overlap=grad,param",
        f"{BRIDGE}: qwen3_235b_a22b_pretrain_256gpu_b200_fp8mx",
        "The same expert group inside a node. The recipe keeps the plain all-to-all and no graphs on this GPU; "
        "the plan takes what NVIDIA's recipes of other models take there (HybridEP, whole graphs, hidden "
        "exchanges), and an interleaved pipeline of fewer stages, which hiding needs. Launch it with the recipe's "
        "words at hand: nobody has published this model with them.",
    ),
    Case(
        "mixtral-8x7b", "64xH100", 256, 4096, "bf16", "megatron",
        "tp1 pp4 vp8 ep8 mbs1 zero1 recompute=none dispatch=alltoall overlap=grad,param,p2p",
        "Megatron-LM examples/mixtral/train_mixtral_8x7b_distributed.sh (TP1 PP4 EP8)",
        "The same expert group and no tensor parallelism; half the stages fit 80 GB with the distributed "
        "optimizer, and have half the bubble. DeepEP sends a token once to each GPU that has an expert of its.",
    ),
    Case(
        "llama-3-70b", "64xH100", 256, 8192, "bf16", "megatron-bridge",
        "tp4 pp4 vp5 cp2 mbs1 sp zero1 recompute=none graphs=none overlap=grad,param,tp,p2p",
        f"{BRIDGE}: llama3_70b_pretrain_64gpu_h100_bf16",
        "The same tensor and context groups, and chunks of five layers for the recipe's four. More replicas of "
        "fewer stages share optimizer states among more ranks, which pays for the layers; the bubble is smaller. "
        "No graphs, as in the recipe: their inputs would take the room.",
    ),
    Case(
        "llama-3-70b", "512xH100", 2048, 8192, "bf16", "megatron-bridge",
        "tp4 pp4 vp5 cp2 mbs1 sp zero1 recompute=none graphs=none overlap=grad,param,tp,p2p",
        f"{BRIDGE}: llama3_70b_pretrain_64gpu_h100_bf16, eight times the replicas",
        "Two stages as on 64 GPUs, and all eight GPUs of a server to split matrices by instead of the context too: of "
        "such plans more runs were published (77, with split contexts 33). The plan of 64 GPUs is 0.2% behind.",
    ),
    Case(
        "llama-3.1-405b", "512xH100", 512, 8192, "bf16", "megatron-bridge",
        "tp8 pp8 vp8 cp2 mbs1 sp zero1 recompute=none graphs=none overlap=grad,param,tp,p2p",
        f"{BRIDGE}: llama31_405b_pretrain_1024gpu_h100_bf16, half the replicas",
        "The recipe's own strategy. The embedding and the loss have chunks of a layer less, as the recipe has "
        "them.",
    ),
    Case(
        "llama-3.1-405b", "16384xH100", 2048, 8192, "bf16", "megatron-bridge",
        "tp8 pp16 vp8 mbs1 sp zero1 recompute=none overlap=grad,param,tp,p2p",
        "The Llama 3 Herd of Models (arXiv 2407.21783), section 3.3: TP8, CP1, PP16, DP128, an interleaved pipeline of "
        "single layers; its FSDP keeps weights and shards the rest, for which ZeRO-1 stands here",
        "The plan splits sequences over two ranks and the layers over half as many stages, as NVIDIA's recipe for this "
        "model does: with as many GPUs and samples each pipeline has twice the micro-batches for each stage, and half "
        "of the bubble. Meta's schedule keeps fewer micro-batches in flight than Megatron's interleaved one, which is "
        "why theirs does not fit here; it reports 41% of the peak.",
    ),
)  # fmt: skip


def asked(case: Case) -> dict[str, Any]:
    """The request, without the strategy."""
    return {"gpus": case.gpus, "batch": case.batch, "seq": case.seq, "precision": case.precision,
            "runtime": case.runtime}  # fmt: skip


def differences(theirs: Strategy, ours: Strategy) -> list[str]:
    """Fields that are not the same, theirs first."""

    def shown(value: object) -> str:
        return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value) or "none"

    pairs = [(name, getattr(theirs, name), getattr(ours, name)) for name in COMPARED]
    return [f"{name} {shown(their)} -> {shown(our)}" for name, their, our in pairs if their != our]


def line(who: str, found: astra.Estimate) -> str:
    """One row of a case's table."""
    low, high = found.step_s_range.low, found.step_s_range.high
    room = f"{found.peak_reserved_gib:.0f} of {found.memory_usable_gib:.0f}{'' if found.fits else ', does not fit'}"
    return f"| {who} | `{found.strategy}` | {found.step_s:.2f} s ({low:.2f} to {high:.2f}) | {found.mfu:.1%} | {room} |"


def behind(first: astra.Estimate, other: astra.Estimate) -> str:
    """A plan that was not the first, by how much its upper end is behind."""
    return f"`{other.strategy}` ({other.step_s_range.high / first.step_s_range.high - 1:.1%} behind)"


def section(case: Case) -> str:
    """One case."""
    plan, *others = (one.estimate for one in astra.plan(case.model, **asked(case), top=NEXT + 1).plans)
    vendor = astra.estimate(case.model, strategy=case.vendors, headroom=0.0, **asked(case))
    changed = differences(parse_strategy(vendor.strategy), parse_strategy(plan.strategy))
    warned = "; ".join(plan.warnings) or "none"
    return "\n".join((
        f"## {case.model} on {case.gpus}", "",
        f"Batch {case.batch:,} of {case.seq:,} tokens, {case.precision}, {case.runtime}. Theirs: {case.source}.", "",
        "| | strategy | step (four in five) | MFU | GiB |", "| --- | --- | --- | --- | --- |",
        line("ours", plan), line("theirs", vendor), "",
        f"Predicted {vendor.step_s / plan.step_s:.2f} times as fast. Different: {'; '.join(changed) or 'nothing'}.", "",
        f"Evidence: {plan.evidence}. Warnings: {warned}.", "", case.why, "",
        f"Next: {'; '.join(behind(plan, other) for other in others)}.", "",
    ))  # fmt: skip


def main() -> int:
    """Write the page."""
    date = datetime.datetime.now(tz=datetime.timezone.utc).date()
    head = (
        "# First plans beside the vendors'\n\n"
        f"Written by `python -m tools.first_plans` on {date}, version {astra.__version__}. Both strategies are costed "
        "by this cost model for the same request; nobody ran both. Vendors may fill the memory, plans keep 8% free.\n\n"
    )
    TARGET.write_text(head + "\n".join(map(section, CASES)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
