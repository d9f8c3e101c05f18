# Torch is imported where it is used: only a measurement may need it.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Rehearse one rank in plain torch: linear shards, SDPA and torch norms, in the stage's own 1F1B order.

``python -m astra.lab.rehearse.plain_torch`` reads one JSON list of cases and writes one JSON list of rows: run on the
GPU of this machine, or counted over FakeTensors without one. Weights are bf16, gradients are added up in fp32, AdamW
holds fp32 weights and two moments of the rank's share. See docs/rehearsal.md for what can be compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final

from astra.lab.rehearse import fabric, fake
from astra.lab.rehearse.case import Case, read_cases
from astra.lab.rehearse.layers import build_stage, received
from astra.lab.rehearse.rows import as_row
from astra.schedule.base import FORWARD
from astra.schedule.one_f_one_b import order

_STEPS: Final = 3  # measured, after one that warms up
_CLIP: Final = 1.0


class Rank:
    """A stage with its gradients and optimizer, and the micro-batches whose backward is still to come."""

    def __init__(self, case: Case, *, gpu: bool) -> None:
        import torch

        self.torch, self.case, self.gpu = torch, case, gpu
        self.device = "cuda" if gpu else "cpu"
        self.stage = build_stage(case, self.device)
        self.parameters = list(self.stage.parameters())
        shards = case.strategy.dp if case.strategy.zero else 1
        for parameter in self.parameters:
            parameter.main_grad = torch.zeros(parameter.shape, dtype=torch.float32, device=self.device)
            parameter.register_post_accumulate_grad_hook(_accumulate)
        self.shares = [-(-parameter.numel() // shards) for parameter in self.parameters]
        self.masters = [
            parameter.detach().reshape(-1)[:share].float()
            for parameter, share in zip(self.parameters, self.shares, strict=True)
        ]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, weight_decay=0.1, fused=gpu or None)
        own, size = case.model.vocab // case.strategy.tp, (case.seq, case.strategy.mbs)
        self.tokens, self.labels = (torch.randint(own, size, device=self.device) for _ in range(2))

    def step(self, clock: Any) -> float:
        """One step as 1F1B orders this stage's micro-batches; returns the gradient norm."""
        case, alive = self.case, {}
        with clock.span("step"):
            with clock.span("zero_grad"):
                for parameter in self.parameters:
                    parameter.main_grad.zero_()
            for kind, microbatch, _ in order(case.strategy.pp, 1, case.num_microbatches, case.stage).tolist():
                if kind == FORWARD:
                    with clock.span("fwd"):
                        alive[microbatch] = self.forward()
                else:
                    with clock.span("bwd"):
                        self.backward(alive.pop(microbatch))
            with clock.span("optimizer"):
                return self.update()

    def forward(self) -> Any:
        """What backward starts from: the loss, or the edge of an output that has been sent and is not kept."""
        case = self.case
        entered = self.tokens if case.stage == 0 else received(case, self.device).requires_grad_()
        out = self.stage(entered, self.labels)
        return out if case.stage == case.strategy.pp - 1 else self.torch.autograd.graph.get_gradient_edge(out)

    def backward(self, from_here: Any) -> None:
        """Of one micro-batch, from the loss or from a received gradient."""
        last = self.case.stage == self.case.strategy.pp - 1
        self.torch.autograd.backward([from_here], None if last else [received(self.case, self.device)])

    def update(self) -> float:
        """Clip, step and write the bf16 weights of this rank's share."""
        torch = self.torch
        for master, parameter, share in zip(self.masters, self.parameters, self.shares, strict=True):
            master.grad = parameter.main_grad.view(-1)[:share]
        norm = torch.nn.utils.clip_grad_norm_(self.masters, _CLIP)
        self.optimizer.step()
        for master, parameter, share in zip(self.masters, self.parameters, self.shares, strict=True):
            parameter.detach().view(-1)[:share].copy_(master)
            master.grad = None
        return float(norm) if self.gpu else 0.0


def _accumulate(parameter: Any) -> None:
    parameter.main_grad.add_(parameter.grad)
    parameter.grad = None


class _NoClock:
    """Where nothing takes time."""

    @contextlib.contextmanager
    def span(self, _: str) -> Iterator[None]:
        yield


def rehearse_memory(case: Case) -> dict[str, Any]:
    """Two steps over tensors without data; the second shows the peak."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    counter, row, began = fake.COUNTER, as_row(case), time.perf_counter()
    with FakeTensorMode(allow_non_fake_inputs=True), counter.mode():
        counter.reset()
        rank = Rank(case, gpu=False)
        row["params"] = sum(parameter.numel() for parameter in rank.parameters)
        moments = [torch.zeros_like(master) for master in rank.masters for _ in range(2)]
        rank.update = lambda: 0.0  # type: ignore[method-assign] # the optimizer's own work is never the peak
        rank.step(_NoClock())
        row["static_bytes"] = counter.peak_bytes = counter.live_bytes
        rank.step(_NoClock())
        row["peak_allocated_bytes"] = counter.peak_bytes
        del moments
    return {**row, "oom": False, "wall_s": round(time.perf_counter() - began, 3)}


def rehearse_run(case: Case, costs: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Warm up and measure on the GPU; running out of memory is a result."""
    import torch

    from astra.lab.profile.gpu import kernels_of
    from astra.lab.rehearse import measure as reading

    row = {**as_row(case), "oom": False, "reached": "build"}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    row.update(before_bytes=before, reserved_before_bytes=reserved, retries_before=0)
    began = time.perf_counter()
    try:
        rank = Rank(case, gpu=True)
        row.update(params=sum(parameter.numel() for parameter in rank.parameters), reached="warm-up")
        rank.step(reading.Clock(torch))
        torch.cuda.synchronize()
        row.update(static_bytes=torch.cuda.memory_allocated(), reached="step")
        torch.cuda.reset_peak_memory_stats()
        clocks, norms = [], []
        for _ in range(_STEPS):
            fabric.FABRIC.fills.clear()
            clocks.append(reading.Clock(torch))
            norms.append(rank.step(clocks[-1]))
        torch.cuda.synchronize()
        row["peak_train_bytes"] = row["peak_optimizer_bytes"] = torch.cuda.max_memory_allocated()
        reading.write_memory(row, torch)
        reading.write_times(row, clocks, costs)
        row.update(finite=all(map(math.isfinite, norms)), grad_norm=norms[-1], steps=_STEPS, reached="kernel count")
        row.update(kernels_of(torch, lambda: rank.step(reading.Clock(torch))))
    except torch.cuda.OutOfMemoryError:
        row["oom"] = row["reached"] != "kernel count"
        row["allocated_at_oom_bytes"] = torch.cuda.max_memory_allocated()
    row["wall_s"] = round(time.perf_counter() - began, 3)
    return reading.net_of_before(row)


def _one(case: Case, costs: dict[str, tuple[float, float]] | None) -> dict[str, Any]:
    fabric.join(case.rank, case.strategy.gpus)
    try:
        return rehearse_memory(case) if costs is None else rehearse_run(case, costs)
    except Exception as error:  # a case that torch refuses must not stop the others
        where = traceback.format_exc().strip().splitlines()[-12:]
        return {**as_row(case), "oom": False, "error": f"{type(error).__name__}: {error}"[:400], "traceback": where}
    finally:
        fabric.leave()


def main() -> int:
    """Answer the cases on standard input."""
    import torch

    cases = read_cases(sys.stdin.read())
    fabric.install()
    costs = fabric.measure_fills(torch) if torch.cuda.is_available() else None
    if costs is None:
        fabric.same_storage = fake.same_storage
        torch.nn.functional.rms_norm = fake.rms_norm
    json.dump([_one(case, costs) for case in cases], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
