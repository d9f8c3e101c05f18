"""Context parallelism as runtimes do it: what a ring passes on, and what merging its results takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import astra
from astra.cost.exchanges import sends_of
from astra.cost.stage import gather_parts
from astra.layers.block import LayerKind, Send
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.request import PlanRequest

ELEMENTS = 32_768 / 4 * 2 * 8 * 128  # of a rank's keys and values: tokens, both, heads, width


def job_of(runtime: str, model: str = "llama-3-8b") -> Job:
    return World.of(PlanRequest(model=model, gpus=("8xH100",), batch=8, seq=32_768, runtime=runtime)).job


def ring(runtime: str, model: str = "llama-3-8b") -> Send:
    """What one layer sends round four ranks."""
    job, one, no = job_of(runtime, model), np.array([1]), np.array([False])
    degrees = dict.fromkeys(("tp", "mbs", "ep", "etp"), one) | {"cp": np.array([4])}
    gathered = gather_parts(job, degrees | {"sp": no, "flash": ~no, "overlap_tp": no})
    key = next(key for key in gathered.parts if isinstance(key, LayerKind))
    (send,) = sends_of(job, key, gathered.shard)["cp"]
    return send


@pytest.mark.parametrize(
    ("runtime", "heads", "gradient_bytes"), [("megatron", 1, 2), ("torchtitan", 1, 4), ("torchtitan-2024", 4, 4)]
)
def test_bytes_of_a_ring(runtime: str, heads: int, gradient_bytes: int) -> None:
    """Three hops of bf16 keys and values; in backward again, with gradients; 32 heads of queries share 8 of keys."""
    send = ring(runtime)
    assert float(np.sum(send.nbytes * send.forward)) == pytest.approx(3 * heads * ELEMENTS * 2)
    assert float(np.sum(send.nbytes * send.backward)) == pytest.approx(3 * heads * ELEMENTS * (2 + gradient_bytes))


def test_keys_of_a_latent_are_never_repeated() -> None:
    old, new = ring("torchtitan-2024", "deepseek-v2-lite"), ring("torchtitan", "deepseek-v2-lite")
    assert old.nbytes == pytest.approx(new.nbytes)


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan", "fsdp-eager"])
def test_merging_results_takes_time_by_the_hop(runtime: str) -> None:
    """Nothing on one rank. Of eight, each has a quarter of the elements of two, and merges them seven times."""

    def stream_s(cp: int, *, merges: bool) -> float:
        job, one, no = job_of(runtime), np.array([1]), np.array([False])
        if not merges:
            free = replace(
                job.runtime.kernels["ring"], forward_bytes=0, backward_bytes=0, forward_kernels=0, backward_kernels=0
            )
            job = replace(job, runtime=replace(job.runtime, kernels=job.runtime.kernels | {"ring": free}))
        degrees = dict.fromkeys(("tp", "mbs", "ep", "etp"), one) | {"cp": np.array([cp])}
        parts = gather_parts(job, degrees | {"sp": no, "flash": ~no, "overlap_tp": no}).parts
        (part,) = (part for key, part in parts.items() if isinstance(key, LayerKind))
        return float(part.forward.stream_s[0] + part.backward.stream_s[0])

    more = {cp: stream_s(cp, merges=True) - stream_s(cp, merges=False) for cp in (1, 2, 8)}
    assert more[1] == 0
    assert more[2] > 0
    assert 7 / 4 * 0.999 <= more[8] / more[2] <= 7  # by what is moved


def test_an_uncompiled_loss_holds_the_logits_of_the_step_in_fp32() -> None:
    """Eight bytes more of each of 8,192 x 128,256 logits at the worst moment."""
    asked: dict[str, Any] = {"strategy": "dp8 mbs1 zero3", "gpus": "8xH100", "batch": 8, "seq": 8192}
    old, new = (astra.estimate("llama-3.1-8b", **asked, runtime=name) for name in ("torchtitan-2024", "torchtitan"))
    assert old.peak_allocated_gib - new.peak_allocated_gib == pytest.approx(8 * 8192 * 128_256 / 2**30, rel=0.2)
