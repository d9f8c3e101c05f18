"""Rehearse the memory of one rank without a GPU: the real framework over tensors that have sizes and no data.

``python -m astra.lab.rehearse.fake`` reads one JSON list of cases and writes one JSON list of rows. Every tensor
that megatron-core allocates is counted from its birth to its death, through its own model, schedule, data-parallel
wrapper and optimizer. Not seen: what libraries allocate for themselves (cuBLAS, about 0.13 GiB on Hopper).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from astra.lab.rehearse import fabric, layers, measure, megatron_rank, stand_ins
from astra.lab.rehearse.case import Case, as_row, read_cases, refused
from astra.lab.rehearse.counter import COUNTER, watch_resizes
from astra.lab.rehearse.cpu import fused, pretend_gpu, redirect, without_random_states


def load() -> None:
    """Import megatron on this machine, with stand-ins for the GPU, the network and the compiler."""
    pretend_gpu()
    for name in ("all_reduce", "broadcast", "barrier", "_all_reduce"):
        if hasattr(dist, name):
            setattr(dist, name, lambda *_, **options: fabric.Done() if options.get("async_op") else None)
    fabric.same_storage = same_storage
    torch.compile = fused(COUNTER.only_results)
    megatron_rank.load_runtime()
    without_random_states()
    layers.attend = stand_ins.attend
    torch.nn.functional.rms_norm = stand_ins.rms_norm
    _balance_experts()
    _real_meshes()
    watch_resizes()
    logging.getLogger("megatron").setLevel(logging.ERROR)


def _real_meshes() -> None:
    """A mesh is a tensor of rank numbers that are looked at: it stays one with data."""
    from torch.distributed.device_mesh import DeviceMesh

    plain = DeviceMesh.mesh

    def mesh(self: Any) -> Any:
        with unset_fake_temporarily():
            return plain.__get__(self)

    DeviceMesh.mesh = property(mesh)


def same_storage(a: Any, b: Any) -> bool:
    """Whether two tensors without data would share their memory."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _balance_experts() -> None:
    """How many tokens go where depends on data: without any, every expert gets its share."""
    import numpy as np
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    plain = MoEAlltoAllTokenDispatcher.preprocess

    def balanced(self: Any, routing_map: Any) -> Any:
        tokens_per_expert = plain(self, routing_map)
        tokens = routing_map.shape[0] * self.config.moe_router_topk
        shares = np.diff(np.linspace(0, tokens, self.num_experts + 1).round().astype(int))
        here = np.tile(shares[self.local_expert_indices], (self.tp_size * self.ep_size, 1))
        if self.ep_size > 1 or self.tp_size > 1:
            self.input_splits = shares.reshape(self.ep_size, -1).sum(1)
            received = here.reshape(self.tp_size, self.ep_size, -1).sum(2)
            self.output_splits, self.output_splits_tp = received[self.tp_rank], received.sum(1)
        self.num_global_tokens_per_local_expert = here
        places = np.arange(self.num_experts * self.tp_size)
        self.sort_input_by_local_experts = places.reshape(-1, self.num_local_experts).T.ravel()
        self.restore_output_by_local_experts = places.reshape(self.num_local_experts, -1).T.ravel()
        return tokens_per_expert

    MoEAlltoAllTokenDispatcher.preprocess = balanced


def rehearse_memory(case: Case) -> dict[str, Any]:
    """Build the rank and take it through two steps; the second shows the peak."""
    row = as_row(case)
    began = time.perf_counter()
    with FakeTensorMode(allow_non_fake_inputs=True), redirect(), COUNTER.mode():
        COUNTER.reset()
        rank = megatron_rank.build(case)
        row.update(params=rank.params, built_bytes=COUNTER.live_bytes, **measure.buffer_bytes(rank))
        _step(rank)
        state = _adam_state(rank)
        row["static_bytes"] = COUNTER.live_bytes
        COUNTER.peak_bytes = COUNTER.live_bytes
        _step(rank)
        row["peak_allocated_bytes"] = COUNTER.peak_bytes
        del state
    row["wall_s"] = round(time.perf_counter() - began, 3)
    return row


def _adam_state(rank: Any) -> list[Any]:
    """Two moments for every parameter the optimizer holds, as Adam makes them in its first step.

    With the optimizer in host memory its own weights leave the GPU instead.
    """
    strategy = rank.case.strategy
    parts = getattr(rank.optimizer, "chained_optimizers", [rank.optimizer])
    held = [p for part in parts if part.optimizer is not None for g in part.optimizer.param_groups for p in g["params"]]
    if strategy.offload != "optimizer":
        width = torch.bfloat16 if strategy.moments == "bf16" else torch.float32
        return [torch.zeros_like(parameter, dtype=width) for parameter in held for _ in range(2)]
    for parameter in held:
        own = getattr(parameter, "_local_tensor", parameter)
        if own.dtype == torch.float32:
            own.untyped_storage().resize_(0)
    return []


def _step(rank: Any) -> None:
    """One step as far as memory is concerned: the optimizer's own work is never the peak (docs/rehearsal.md)."""
    measure.train(rank, measure.feed_of(rank.case, "cpu"), measure.Quiet())


def _one(case: Case) -> dict[str, Any]:
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker

    try:
        return rehearse_memory(case)
    except Exception as error:
        return refused(case, error)
    finally:
        with contextlib.suppress(Exception):
            destroy_moe_metrics_tracker()  # it has a place for each layer of the model that came first
            parallel_state.destroy_model_parallel()
        fabric.leave()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what megatron prints out of the answer."""
    said, sys.stdout = sys.stdout, sys.stderr
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout = said


def main() -> int:
    """Answer the cases on standard input."""
    cases = read_cases(sys.stdin.read())
    with _quiet():
        load()
        rows = [_one(case) for case in cases]
    json.dump(rows, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
