"""One job: a model on one pool, a workload and a runtime. What every cost is computed for."""

from __future__ import annotations

import math
from typing import Final

from astra.spec._base import Spec, check
from astra.spec.cluster import Pool
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime
from astra.spec.strategy import Strategy, parse_strategy, usual_overlap
from astra.spec.workload import Workload

# Share of a step lost, per doubling of nodes, to waiting for the slowest. Fitted on dgxc; the same in every runtime.
STRAGGLING: Final = 0.0035


class Job(Spec, frozen=True, kw_only=True):
    """A model, the GPUs, the work and who runs it."""

    model: ModelSpec
    pool: Pool
    workload: Workload
    runtime: Runtime
    headroom: float = 0.08  # fraction of usable memory a recommended plan leaves free

    def __post_init__(self) -> None:
        check(0 <= self.headroom < 1, "headroom", self.headroom, "a fraction of memory between 0 and 1, such as 0.08")
        self.pool.device.peak(self.workload.precision)

    @property
    def usable_bytes(self) -> float:
        """Device memory the allocator can take: all that is visible, less what the context holds."""
        return self.pool.device.memory_bytes - self.runtime.memory.context_bytes

    @property
    def straggling(self) -> float:
        """Share of a step lost to waiting for the slowest of all nodes."""
        return self.straggling_on(self.pool.gpus)

    def straggling_on(self, gpus: int) -> float:
        """The same on some of the GPUs."""
        return STRAGGLING * math.log2(max(gpus / self.pool.gpus_per_node, 1.0))

    @property
    def limit_bytes(self) -> float:
        """The most a recommended plan may reserve."""
        return self.usable_bytes * (1 - self.headroom)

    def hides(self, strategy: Strategy) -> tuple[str, ...]:
        """The communication a strategy of this job hides unless it says otherwise."""
        can = self.runtime.can
        return usual_overlap(strategy, known=can.overlap, gathered=can.prefetch, tp_reach=self.pool.scaleup_gpus)

    def strategy(self, text: str) -> Strategy:
        """A strategy of this job from its text."""
        return parse_strategy(text, gpus=self.pool.gpus, hides=self.hides)
