"""What follows the pipeline in a step (gradients, optimizer, weights), per found pipeline and as a lower bound."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from astra.cost import mixed as cost
from astra.cost.between import replicas, sync
from astra.cost.state import Held, optimizer_s
from astra.efficiency import collectives
from astra.families.split import kinds
from astra.provenance import Floats
from astra.search.mixed_space import Bench, Counts, Found, Frame

_ON = np.array(1)
_OFF = np.array(0)


class After:
    """Remembers bounds."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.least_s = lru_cache(maxsize=4096)(self._least_s)

    def _least_s(self, counts: Counts, dp: int, cp: int) -> float:
        """Some GPU holds at least an even share of the parameters, on one of the pools."""
        bench = self.bench
        found = []
        for pool, gpus in enumerate(counts):
            if not gpus:
                continue
            job, columns, _ = bench.ways[pool]
            held = columns.held
            whole = cost.from_the_end(job, (held.trained_dense * columns.shards.tp[:, None])[:1])[0, -1]
            share = np.array([whole * dp * cp / sum(counts)]) if job.model.moe is None else np.zeros(1)
            part = Held(share, 0 * share, share, 0 * share, 0 * share)
            seconds, _ = optimizer_s(
                job, part, zero=np.array(bench.zero), offload=_OFF, ranks=np.array(dp * cp), expert_ranks=np.array(1)
            )
            moved = sync(
                job,
                part,
                ranks=np.array([dp * cp]),
                stride=np.array([1]),
                expert_ranks=np.array([1]),
                expert_stride=np.array([1]),
            )
            busy = moved.reduce_scatter_s + moved.all_gather_s if bench.zero else moved.all_reduce_s
            slowdown = min(collectives.overlap_slowdown(job.pool, "cluster"), 1.0)
            found.append(float(seconds[0] + slowdown * busy[0]))
        return min(found, default=0.0)

    def seconds(self, found: Found) -> float:
        """The longest over the stages, close to what the full estimate says."""
        frame, start, longest = found.frame, 0, 0.0
        depth = sum(sum(run.layers) for run in found.pipeline.runs)
        left = depth
        last = len(found.pipeline.runs) - 1
        for place, run in enumerate(found.pipeline.runs):
            ends = left - np.concatenate(([0], np.cumsum(run.layers)))
            stage_s = np.array(found.stage_s[start : start + len(run.layers)])
            shape = found.shapes[run.pool][run.choice]
            after = self._stages(
                frame, run.pool, (shape.tp, shape.ep), ends * frame.vp, stage_s, place == 0, place == last
            )
            longest = max(longest, float(after.max()))
            left, start = int(ends[-1]), start + len(run.layers)
        return longest

    def _stages(
        self,
        frame: Frame,
        pool: int,
        shape: tuple[int, int],
        ends: Floats,
        stage_s: Floats,
        first: bool,
        last: bool,
    ) -> Floats:
        """Each stage of a run; ``ends`` are layers from the model's end at the stages' borders."""
        bench = self.bench
        job, columns, _ = bench.ways[pool]
        shards, count = columns.shards, len(kinds(bench.model))
        tp, ep = shape
        row = shards.row(tp=tp, cp=frame.cp, ep=ep, mbs=frame.mbs)
        assert row is not None

        def of_stages(by_sort: Floats) -> Floats:
            sums = cost.from_the_end(job, by_sort[row : row + 1, :count])[0]
            held = sums[ends[:-1]] - sums[ends[1:]]
            held[0] += by_sort[row, count] * first
            held[-1] += by_sort[row, count + 1] * last
            wide: Floats = held[None, :]
            return wide

        held = Held(*(of_stages(column) for column in columns.held))
        ranks, expert_ranks = frame.dp * frame.cp, max(tp * frame.cp * frame.dp // ep, 1)
        zero = np.array(bench.zero)
        update_s, _ = optimizer_s(
            job, held, zero=zero, offload=_OFF, ranks=np.array(ranks), expert_ranks=np.array(expert_ranks)
        )
        moved = sync(
            job,
            held,
            ranks=np.array([[ranks]]),
            stride=np.array([[tp]]),
            expert_ranks=np.array([[expert_ranks]]),
            expert_stride=np.array([[ep]]),
        )
        between = replicas(
            job,
            moved,
            zero=zero,
            overlap_grad=_ON,
            overlap_param=_ON,
            layers=(ends[:-1] - ends[1:]).astype(np.float64)[None, :],
            microbatches=np.array(1),
            forward_s=stage_s[None, :] / 3,
            backward_s=stage_s[None, :] * 2 / 3,
        )
        after: Floats = (update_s + between.exposed_s)[0]
        return after
