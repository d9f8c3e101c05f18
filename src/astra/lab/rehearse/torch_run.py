"""Take a rank built in torch through its steps: measured on the GPU here, or counted over FakeTensors without one."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from astra.lab.rehearse import fabric, fake, layers, measure, stand_ins
from astra.lab.rehearse.case import Case, as_row, read_cases, refused
from astra.lab.rehearse.counter import COUNTER, watch_resizes
from astra.schedule.base import FORWARD
from astra.schedule.one_f_one_b import order

_STEPS: Final = 2  # measured at least, after one that warms up,
_LEAST_S: Final = 0.4  # and short ones for as long as this
_MOST_STEPS: Final = 6
_NAMES: Final = 40  # kernels named in a row
Costs = dict[str, tuple[float, float]]


class TorchRank:
    """A rank of one stage that can take steps; what kind it is says how it is built, sharded and updated."""

    params: int
    case: Case

    def forward(self) -> Any:
        """What backward starts from: the loss, or the edge of an output that has been sent and is not kept."""
        raise NotImplementedError

    def backward(self, from_here: Any, *, last: bool) -> None:
        """Of one micro-batch, from the loss or from a received gradient."""
        raise NotImplementedError

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        raise NotImplementedError

    def update(self) -> float:
        """Clip and step; returns the gradient norm. Never the peak, so not counted without a GPU."""
        raise NotImplementedError

    def held(self) -> list[Any]:
        """Tensors the optimizer holds, of which it makes two moments each."""
        raise NotImplementedError

    def step(self, clock: Any) -> float:
        """One optimizer step as 1F1B orders this stage's micro-batches; returns the gradient norm."""
        case, alive = self.case, {}
        with clock.span("step"):
            with clock.span("zero_grad"):
                self.zero_grad()
            for kind, microbatch, _ in order(case.strategy.pp, 1, case.num_microbatches, case.stage).tolist():
                if kind == FORWARD:
                    with clock.span("fwd"):
                        alive[microbatch] = self.forward()
                else:
                    with clock.span("bwd"):
                        self.backward(alive.pop(microbatch), last=microbatch == case.num_microbatches - 1)
            with clock.span("optimizer"):
                return self.update()


Build = Callable[[Case, str], TorchRank]  # from the case and the device


def rehearse_memory(case: Case, build: Build) -> dict[str, Any]:
    """Two steps over tensors without data; the second shows the peak."""
    counter, row, began = COUNTER, as_row(case), time.perf_counter()
    with FakeTensorMode(allow_non_fake_inputs=True), counter.mode():
        counter.reset()
        rank = build(case, "cpu")
        row["params"] = rank.params
        moments = [torch.zeros_like(tensor) for tensor in rank.held() for _ in range(2)]
        rank.step(measure.Quiet())
        row["static_bytes"] = counter.peak_bytes = counter.live_bytes
        rank.step(measure.Quiet())
        row["peak_allocated_bytes"] = counter.peak_bytes
        del moments
    return {**row, "oom": False, "wall_s": round(time.perf_counter() - began, 3)}


def _measure(case: Case, build: Build, costs: Costs, row: dict[str, Any], watch: Any = None) -> None:
    """Warm up and measure on the GPU."""
    from astra.lab.profile.gpu import kernels_of

    rank = build(case, "cuda")
    row.update(params=rank.params, built_bytes=torch.cuda.memory_allocated(), reached="warm-up")
    began = time.perf_counter()
    rank.step(measure.Clock(torch))
    torch.cuda.synchronize()
    row.update(static_bytes=torch.cuda.memory_allocated(), reached="step")
    row["warm_up_s"] = round(time.perf_counter() - began, 3)
    clocks: list[measure.MemoryClock] = []
    norms, mark = [], watch.mark() if watch else 0
    began = time.perf_counter()
    while len(clocks) < _STEPS or (len(clocks) < _MOST_STEPS and time.perf_counter() - began < _LEAST_S):
        fabric.FABRIC.fills.clear()
        clocks.append(measure.MemoryClock(torch))
        norms.append(rank.step(clocks[-1]))
    torch.cuda.synchronize()
    row["clocks"] = watch.summary(mark) if watch else None
    for name, phases in (("train", ("zero_grad", "fwd", "bwd")), ("optimizer", ("optimizer",))):
        row[f"peak_{name}_bytes"] = max(clock.peaks.get(phase, 0) for clock in clocks for phase in phases)
    for phase in ("fwd", "bwd"):
        row[f"peak_{phase}_bytes"] = max(clock.peaks.get(phase, 0) for clock in clocks)
        row[f"after_{phase}_bytes"] = max(clock.after.get(phase, 0) for clock in clocks)
    measure.write_memory(row, torch)
    measure.write_times(row, clocks, costs)
    row.update(finite=all(map(math.isfinite, norms)), grad_norm=norms[-1], steps=len(clocks), reached="kernel count")
    row.update(kernels_of(torch, lambda: rank.step(measure.Clock(torch)), names=_NAMES))


def clear() -> None:
    """Give back what the last case held."""
    import gc

    torch._dynamo.reset()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def one(case: Case, build: Build, costs: Costs | None, world: int, **how: Any) -> dict[str, Any]:
    """The row of one case, as one rank of a fake job; what torch refuses is said in it."""
    fabric.join(case.rank % world, world)
    try:
        if costs is None:
            return rehearse_memory(case, build)
        return measure.measured(case, clear, lambda row: _measure(case, build, costs, row, **how))
    except Exception as error:
        return refused(case, error)
    finally:
        fabric.leave()


def prepare() -> Costs | None:
    """Replace the network; the cost of its fills on the GPU here, or None where tensors are only counted."""
    import torch._dynamo  # reads the collectives it may trace, so before they are replaced

    fabric.install()
    if torch.cuda.is_available():
        return fabric.measure_fills(torch)
    fabric.same_storage = fake.same_storage
    layers.attend = stand_ins.attend
    watch_resizes()
    torch.nn.functional.rms_norm = stand_ins.rms_norm
    return None


def answer(build: Build, world: Callable[[Case], int]) -> int:
    """Answer the cases on standard input."""
    cases = read_cases(sys.stdin.read())
    costs = prepare()
    json.dump([one(case, build, costs, world(case)) for case in cases], sys.stdout)
    return 0
