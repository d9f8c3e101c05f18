"""Time GPU work: random data, buffers that rotate past the L2 cache, warm-up, median of several, CUDA events."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

L2_SPAN_BYTES: Final = 256 << 20  # rotate over more than the cache holds
MAX_SETS: Final = 48
REPLAYS: Final = 5
TARGET_S: Final = 1.5e-3  # one timed batch of calls

Call = Callable[[], object]


def sets_for(nbytes: int) -> int:
    """How many operand sets make repeated calls miss the cache."""
    return max(1, min(MAX_SETS, math.ceil(L2_SPAN_BYTES / max(nbytes, 1))))


def gpu_seconds(torch: Any, calls: list[Call], *, graph: bool = True) -> float:
    """Median GPU seconds of one call, over calls that use different operands.

    With ``graph`` the calls are captured, so that short kernels are not hidden behind the host's launches. The
    current stream must then not be the default one (see ``own_stream``).
    """
    for call in calls[:2]:
        call()
    guess = _batch_seconds(torch, calls[:1], 1)
    count = max(1, min(200, round(TARGET_S / max(guess, 1e-6))))
    sequence = [calls[i % len(calls)] for i in range(max(count, len(calls) if guess < 1e-4 else 1))]
    if not graph:
        return statistics.median(_batch_seconds(torch, sequence, len(sequence)) for _ in range(REPLAYS))
    captured = _capture(torch, sequence)
    captured.replay()
    return statistics.median(_batch_seconds(torch, [captured.replay], len(sequence)) for _ in range(REPLAYS))


def _capture(torch: Any, sequence: list[Call]) -> Any:
    """The calls as one CUDA graph. Not torch.cuda.graph: that empties the allocator's cache each time."""
    captured = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().synchronize()
    captured.capture_begin()
    try:
        for call in sequence:
            call()
    finally:
        captured.capture_end()
    return captured


def own_stream(torch: Any) -> Any:
    """A context with a stream of its own: work on the default stream cannot be captured."""
    return torch.cuda.stream(torch.cuda.Stream())


def _batch_seconds(torch: Any, sequence: list[Call], count: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for call in sequence:
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / count


def host_seconds(torch: Any, call: Call, *, count: int = 3000) -> float:
    """Seconds the host needs to issue one call whose GPU work is negligible."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count // 5):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - began) / (count // 5))
    return statistics.median(samples)
