"""Hand-made results with round numbers, so that a test can check what is drawn against what went in."""

from __future__ import annotations

from typing import Any

from astra.answer import Estimate, Plan, PlanSet, Range, Reject, Search, StageEstimate

BREAKDOWN = {
    "forward": 1.3,
    "backward": 2.9,
    "tp communication": 0.5,
    "dp communication": 0.15,
    "optimizer": 0.1,
    "host": 0.05,
    "pipeline bubble and p2p": 0.6,
}
PROVENANCE = {"gemm": "measured", "attention": "interpolated", "tp": "measured", "data parallel": "assumed"}


def stage(index: int, *, activations_gib: float = 30.0, fits: bool = True, **changes: Any) -> StageEstimate:
    memory = {"weights": 8.5, "gradients": 8.5, "optimizer": 3.2, "activations": activations_gib, "buffers": 2.8}
    allocated_gib = sum(memory.values())
    fields: dict[str, Any] = {
        "index": index,
        "layers": 20,
        "gpus": 128,
        "gpu": "H100-SXM",
        "compute_s": 4.2,
        "forward_s": 1.3,
        "backward_s": 2.9,
        "optimizer_s": 0.1,
        "communication_s": {"tp": 0.8, "pp": 0.05, "dp": 0.9},
        "exposed_s": {"tp": 0.5, "pp": 0.05, "dp": 0.15},
        "in_flight": 4 - index % 4,
        "memory": memory,
        "peak_allocated_gib": allocated_gib,
        "peak_reserved_gib": allocated_gib * 1.05,
        "fits": fits,
    }
    return StageEstimate(**(fields | changes))


def estimate(**changes: Any) -> Estimate:
    breakdown = changes.pop("breakdown", BREAKDOWN)
    step_s = sum(breakdown.values())
    tokens_per_s = 1024 * 4096 / step_s
    pipeline = changes.pop("stages", [stage(index, activations_gib=38.0 - 6 * index) for index in range(4)])
    peak_gib = max(item.peak_reserved_gib for item in pipeline)
    fields: dict[str, Any] = {
        "model": "Llama-2-70B",
        "gpus": "512xH100-SXM5-80GB",
        "strategy": "tp8 pp4 vp5 dp16 mbs1 sp zero1 recompute=selective overlap=grad,param",
        "runtime": "megatron",
        "legal": True,
        "violations": [],
        "fits": True,
        "step_s": step_s,
        "step_s_range": Range(low=step_s * 0.93, high=step_s * 1.07),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / 512,
        "model_tflops_per_gpu": 612.0,
        "mfu": 0.543,
        "hfu": 0.561,
        "breakdown": breakdown,
        "bubble_fraction": 0.107,
        "microbatches": 64,
        "stages": pipeline,
        "peak_allocated_gib": max(item.peak_allocated_gib for item in pipeline),
        "peak_reserved_gib": peak_gib,
        "peak_gib_range": Range(low=peak_gib * 0.96, high=peak_gib * 1.04),
        "memory_usable_gib": 78.4,
        "memory_limit_gib": 72.1,
        "provenance": PROVENANCE,
        "provenance_worst": "assumed",
        "warnings": [],
    }
    return Estimate(**(fields | changes))


def plan(rank: int, **changes: Any) -> Plan:
    answer = estimate(**changes)
    return Plan(rank=rank, strategy=answer.strategy, estimate=answer)


def planset(**changes: Any) -> PlanSet:
    second = BREAKDOWN | {"pipeline bubble and p2p": 0.3, "tp communication": 1.2}
    third = BREAKDOWN | {"dp communication": 1.4}
    fields: dict[str, Any] = {
        "version": "0.1.0",
        "fingerprint": {"catalog": "1f2e", "calibration": "9a7b"},
        "request": {
            "model": "Llama-2-70B",
            "gpus": 512,
            "gpu": "H100-SXM5-80GB",
            "node": "dgx-h100",
            "workload": {
                "global_batch": 1024,
                "seq": 4096,
                "tokens": 1e12,
                "precision": "bf16",
                "optimizer": "adam",
                "task": "pretrain",
            },
            "runtime": "megatron",
            "restrictions": ["tp = 8"],
        },
        "plans": [
            plan(1, train_days=16.1, train_usd=512 * 2.49 * 24 * 16.1),
            plan(2, breakdown=second, train_days=17.2, train_usd=551_000.0,
                 strategy="tp8 pp2 dp32 mbs2 sp zero1 recompute=full method=block recompute_layers=12 "
                          "overlap=grad,param,tp layers=39,41"),
            plan(3, breakdown=third, train_days=19.9, train_usd=602_000.0,
                 strategy="tp2 pp8 vp10 cp2 dp16 mbs1 zero2 recompute=none overlap=none"),
        ],
        "search": Search(considered=1_000_000, evaluated=400_000, feasible=3_210, seconds=0.05, strategies_per_s=2e7),
        "rejects": [
            Reject(reason=f"rule-{index}", sentence=f"rule number {index} is broken by these", strategies=10 * 3**index)
            for index in range(11)
        ],
        "notes": [],
    }  # fmt: skip
    return PlanSet(**(fields | changes))
