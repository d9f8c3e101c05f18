"""Run a rehearsed rank through Megatron's own pipeline schedule and read clocks and memory."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from astra.lab.profile.gpu import ClockWatch, kernels_of
from astra.lab.rehearse import megatron_rank
from astra.lab.rehearse.case import Case, as_row, fill_seconds, net_of_before
from astra.lab.rehearse.fabric import FABRIC
from astra.lab.rehearse.megatron_rank import MegatronRank

Costs = dict[str, tuple[float, float]]
_LEAST_S: Final = 0.35  # repeat short steps for as long as this
_MOST_STEPS: Final = 8


class Clock:
    """CUDA events around the phases of a step, and the host's time to issue each."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.spans: list[tuple[str, Any, Any, float]] = []

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Time a phase on the GPU's clock; fills made inside are logged under its name."""
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        outer, FABRIC.phase = FABRIC.phase, phase
        start.record()
        began = time.perf_counter()
        try:
            yield
        finally:
            host_s = time.perf_counter() - began
            stop.record()
            FABRIC.phase = outer
            self.spans.append((phase, start, stop, host_s))

    def seconds(self, phase: str) -> list[float]:
        """GPU seconds of each span of a phase (call after a synchronize)."""
        return [start.elapsed_time(stop) / 1e3 for name, start, stop, _ in self.spans if name == phase]

    def host_seconds(self, phase: str) -> list[float]:
        """Host seconds of each span of a phase."""
        return [host_s for name, _, _, host_s in self.spans if name == phase]


class MemoryClock(Clock):
    """Reads memory too: the most allocated in each phase, and what is left after it."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.peaks: dict[str, int] = {}
        self.after: dict[str, int] = {}

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Peaks are of the innermost phase: allocation goes by the host's order, so nothing is waited for."""
        with super().span(phase):
            if phase != "step":
                self.torch.cuda.reset_peak_memory_stats()
            yield
            if phase != "step":
                self.peaks[phase] = max(self.peaks.get(phase, 0), self.torch.cuda.max_memory_allocated())
                self.after[phase] = max(self.after.get(phase, 0), self.torch.cuda.memory_allocated())


class Quiet:
    """Where nothing takes time and nothing is read."""

    @contextlib.contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Nothing."""
        yield


def rehearse(case: Case, costs: Costs, *, steps: int = 2, watch: ClockWatch | None = None) -> dict[str, Any]:
    """Build, warm up, measure and tear down a rank of megatron-core."""
    return measured(case, megatron_rank.tear_down, lambda row: _measure(case, costs, steps, row, watch))


def measured(case: Case, clear: Callable[[], None], measure: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The row of a case on the GPU here; running out of memory is a result, not an error."""
    row = {**as_row(case), "oom": False, "reached": "build"}
    clear()  # what a case that failed may have left
    torch.cuda.reset_peak_memory_stats()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    row.update(before_bytes=before, reserved_before_bytes=reserved)
    row["retries_before"] = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    began = time.perf_counter()
    try:
        measure(row)
        row["reached"] = "end"
    except torch.cuda.OutOfMemoryError:
        row["oom"] = row["reached"] != "kernel count"
        row["allocated_at_oom_bytes"] = torch.cuda.max_memory_allocated()
    finally:
        clear()
    row["wall_s"] = round(time.perf_counter() - began, 3)
    return net_of_before(row)


def _measure(case: Case, costs: Costs, steps: int, row: dict[str, Any], watch: ClockWatch | None) -> None:
    rank = megatron_rank.build(case)
    try:
        _measure_rank(rank, costs, steps, row, watch)
    finally:
        megatron_rank.free(rank)


def _measure_rank(rank: MegatronRank, costs: Costs, steps: int, row: dict[str, Any], watch: ClockWatch | None) -> None:
    case = rank.case
    torch.cuda.synchronize()
    row.update(params=rank.params, built_bytes=torch.cuda.memory_allocated(), **buffer_bytes(rank))
    row["experts_kernel"] = _experts_kernel(case)
    feed = feed_of(case, "cuda")
    row["reached"] = "warm-up"
    _step(rank, feed, Clock(torch))
    torch.cuda.synchronize()
    row.update(reached="step", static_bytes=torch.cuda.memory_allocated())
    row["gather_buffer_bytes"] = _gather_buffer_bytes()
    torch.cuda.reset_peak_memory_stats()
    clocks: list[Clock] = []
    norms = []
    mark, began = watch.mark() if watch else 0, time.perf_counter()
    while len(clocks) < steps or (len(clocks) < _MOST_STEPS and time.perf_counter() - began < _LEAST_S):
        FABRIC.fills.clear()
        clock = Clock(torch)
        norms.append(_step(rank, feed, clock, row))
        clocks.append(clock)
    torch.cuda.synchronize()
    row.update(steps=len(clocks), clocks=watch.summary(mark) if watch else None)
    write_memory(row, torch)
    write_times(row, clocks, costs)
    row["finite"] = all(norm is not None and math.isfinite(norm) for norm in norms)
    row["grad_norm"] = norms[-1]
    row["reached"] = "kernel count"
    row.update(kernels_of(torch, lambda: _step(rank, feed, Clock(torch))))


def _step(rank: MegatronRank, feed: Any, clock: Clock, row: dict[str, Any] | None = None) -> float | None:
    """One optimizer step as Megatron's train_step makes it; returns the gradient norm."""
    with clock.span("step"):
        losses = train(rank, feed, clock)
        if row is not None:
            peak = torch.cuda.max_memory_allocated()
            row["peak_train_bytes"] = max(row.get("peak_train_bytes", 0), peak)
            torch.cuda.reset_peak_memory_stats()
        with clock.span("optimizer"):
            _, norm, _ = rank.optimizer.step()
        if row is not None:
            peak = torch.cuda.max_memory_allocated()
            row["peak_optimizer_bytes"] = max(row.get("peak_optimizer_bytes", 0), peak)
            torch.cuda.reset_peak_memory_stats()
            if losses:
                row["loss"] = float(losses[-1]["lm loss"])
    return None if norm is None else float(norm)


def train(rank: MegatronRank, feed: Any, clock: Clock | Quiet) -> Any:
    """Forward and backward of all micro-batches, as Megatron's own schedule orders them; the losses."""
    from megatron.core.pipeline_parallel import schedules

    case, strategy = rank.case, rank.case.strategy
    with clock.span("zero_grad"):
        for chunk in rank.chunks:
            chunk.zero_grad_buffer()
        rank.optimizer.zero_grad()
    with _timed(schedules, "forward_step", clock, "fwd"), _timed(schedules, "backward_step", clock, "bwd"):
        return schedules.get_forward_backward_func()(
            forward_step_func=feed,
            data_iterator=[None] * strategy.vp,
            model=rank.chunks,
            num_microbatches=case.num_microbatches,
            seq_length=case.seq,
            micro_batch_size=strategy.mbs,
            forward_only=False,
        )


@contextlib.contextmanager
def _timed(module: Any, name: str, clock: Clock | Quiet, phase: str) -> Iterator[None]:
    """Time every call of a function of Megatron's schedule."""
    plain = getattr(module, name)

    def timed(*args: Any, **options: Any) -> Any:
        with clock.span(phase):
            return plain(*args, **options)

    setattr(module, name, timed)
    try:
        yield
    finally:
        setattr(module, name, plain)


def feed_of(case: Case, device: str) -> Callable[..., Any]:
    """Megatron's forward_step_func: tokens from the rank's own vocabulary shard, so that rows are finite."""
    own, size = case.model.vocab // case.strategy.tp, (case.strategy.mbs, case.seq)
    tokens, labels = (torch.randint(own, size, device=device) for _ in range(2))
    positions = torch.arange(case.seq, device=device).unsqueeze(0).expand(size).contiguous()

    def loss(output: Any) -> Any:
        value = output.float().mean()
        return value, {"lm loss": value.detach()}

    def forward(_: Any, model: Any, return_schedule_plan: bool = False) -> Any:
        run = model.build_schedule_plan if return_schedule_plan else model
        return run(tokens, positions, None, labels=labels), loss

    return forward


def _experts_kernel(case: Case) -> str | None:
    from astra.lab.rehearse.megatron_config import grouped_mm

    if not case.experts:
        return None
    return "sequential" if grouped_mm() is None else "torch grouped_mm"


def buffer_bytes(rank: MegatronRank) -> dict[str, int]:
    """Bytes of the parameter and gradient buffers of the data-parallel wrapper."""
    weights = grads = 0
    for chunk in rank.chunks:
        for buffer in megatron_rank.flat_buffers(chunk):
            grads += buffer.grad_data.numel() * buffer.grad_data.element_size()
            if buffer.param_data is not None:
                weights += buffer.param_data.numel() * buffer.param_data.element_size()
    if not weights:
        weights = sum(p.numel() * p.element_size() for chunk in rank.chunks for p in chunk.parameters())
    return {"weights_bytes": weights, "grads_bytes": grads}


def _gather_buffer_bytes() -> int:
    """Megatron's reusable buffer for gathered sequence-parallel activations; it stays between steps."""
    from megatron.core import parallel_state

    held = parallel_state.get_global_memory_buffer().buffer.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def write_memory(row: dict[str, Any], torch: Any) -> None:
    """Peaks, the allocator's reserve and what others hold, read after the measured steps."""
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    row["peak_allocated_bytes"] = max(row["peak_train_bytes"], row["peak_optimizer_bytes"])
    row["peak_reserved_bytes"] = reserved
    row["outside_torch_bytes"] = total - free - reserved
    row["alloc_retries"] = torch.cuda.memory_stats().get("num_alloc_retries", 0) - row.pop("retries_before")


def write_times(row: dict[str, Any], clocks: Sequence[Clock], costs: Costs) -> None:
    """Medians over steps; the fills of the last step are representative of each."""
    for phase in ("fwd", "bwd", "optimizer", "zero_grad", "step"):
        spans = [s for clock in clocks for s in clock.seconds(phase)]
        host = [s for clock in clocks for s in clock.host_seconds(phase)]
        count = len(spans) // len(clocks)
        fill = fill_seconds(FABRIC.fills.get(phase, []), costs)
        row[f"{phase}_raw_s"] = statistics.median(spans)
        row[f"{phase}_host_s"] = statistics.median(host)
        row[f"{phase}_s"] = row[f"{phase}_raw_s"] - fill / max(count, 1)
        row[f"{phase}_count"] = count
        if phase in ("fwd", "bwd"):
            row[f"{phase}_all_s"] = [round(s, 7) for s in clocks[-1].seconds(phase)]
    row["step_all_s"] = [round(clock.seconds("step")[0], 6) for clock in clocks]
    every = [fill for fills in FABRIC.fills.values() for fill in fills]
    row["fill_s"] = fill_seconds(every, costs)
    row["fill_bytes"] = sum(nbytes for _, nbytes in every)
    row["compute_s"] = row["step_s"] = row["step_raw_s"] - row["fill_s"]
