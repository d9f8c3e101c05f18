"""Frames: what all stages of a pipeline over pools share. Which there are, and what is found in one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from astra.partition.solve import Pipeline, StageChoice
from astra.search.fleet.bounds import Frames
from astra.search.fleet.ways import Shardings
from astra.search.space import divisors
from astra.spec.mixed import Group, Segment
from astra.spec.strategy import RECOMPUTES

MOST_CHUNKS: Final = 10
FEW_CHUNKS: Final = 2  # of a group that shares the batch with others: the largest numbers of chunks
MOST_SHARED_STAGES: Final = 8  # of a group that shares the batch with others

Counts = tuple[int, ...]  # GPUs of each pool that may be used


class Frame(NamedTuple):
    """What all stages of a group share."""

    dp: int
    mbs: int
    cp: int
    vp: int
    stages: int | None  # given with chunks, whose activations in flight depend on it, or where pp is restricted
    microbatches: float
    only: tuple[int, int, str] | None  # the tp, ep and recompute of every stage, where they must agree


class FrameShape(NamedTuple):
    """What a choice stands for."""

    tp: int
    ep: int
    recompute: str
    row: int  # of its pool's shardings


class FoundPipeline(NamedTuple):
    """The optimum of a frame."""

    value_s: float  # pipeline by the closed form, without what transfers add to fill and drain where they are hidden
    fill_s: float  # that
    total_s: float  # with both, gradients and optimizer
    frame: Frame
    pipeline: Pipeline
    shapes: tuple[tuple[FrameShape, ...], ...]  # by pool and choice
    late: bool = False  # transfers longer than a slot, which stall the schedule: the simulator must say how much

    def group(self, names: Sequence[str], microbatches: int) -> Group:
        """As part of a strategy."""
        segments = []
        for run in self.pipeline.runs:
            shape = self.shapes[run.pool][run.choice]
            layers = run.layers * self.frame.vp  # with chunks, the problem's unit is one layer of every chunk
            segments.append(
                Segment(
                    pool=names[run.pool],
                    tp=shape.tp,
                    ep=shape.ep,
                    pp=len(run.layers),
                    layers=layers,
                    recompute=shape.recompute,  # type: ignore[arg-type]
                )
            )
        frame = self.frame
        return Group(
            dp=frame.dp, mbs=frame.mbs, cp=frame.cp, vp=frame.vp, microbatches=microbatches, segments=tuple(segments)
        )

    @property
    def stage_s(self) -> tuple[float, ...]:
        """Seconds of a micro-batch on each stage."""
        return self.pipeline.stage_s

    @property
    def round(self) -> int:
        """Micro-batches come in whole groups of so many."""
        return self.frame.stages or 1 if self.frame.vp > 1 else 1

    @property
    def samples(self) -> int:
        """Of the batch, that all pipelines take at a time."""
        return self.frame.dp * self.frame.mbs * self.round

    def line(self) -> tuple[float, float]:
        """Pipeline seconds for m micro-batches are ``fixed + m * each``."""
        slowest = max(self.stage_s)
        return (sum(self.stage_s) - slowest) / self.frame.vp + self.fill_s, slowest


class BoundedFrame(NamedTuple):
    """Lower bounds of a frame's pipeline and of what follows it, and a pipeline of it."""

    least_s: float
    end_s: float
    found: FoundPipeline | None


def in_units(choice: StageChoice, stages: int, chunks: int) -> StageChoice:
    """With a number of stages, and layers taken ``chunks`` at a time."""
    return choice._replace(
        stages=stages,
        time_s=choice.time_s[::chunks],
        stay_bytes=choice.stay_bytes[::chunks],
        kept_bytes=choice.kept_bytes[::chunks],
    )


class Framing(Shardings):
    """The frames of a fleet."""

    def _frame(self, frames: Frames, row: int) -> Frame:
        dp, mbs, cp, vp, stages, m, setting, recompute = (column[row].item() for column in frames)
        only = None if setting < 0 else (*self.settings[setting], RECOMPUTES[recompute])
        return Frame(dp, mbs, cp, vp, stages or None, m, only)

    def _frames(self, counts: Counts, samples: float, *, whole: bool, uniform: bool, aligned: bool) -> Frames:
        rows: list[tuple[float, ...]] = []
        # With chunks larger bottlenecks are spread thinner, so every number of chunks is a frame of its own.
        for mbs in self.mbs:
            for dp in self._pipelines(counts, samples, mbs, whole=whole, aligned=aligned):
                m = samples / (dp * mbs)
                few = None if whole else -FEW_CHUNKS
                shapes = [(1, p) for p in self._plain_depths(counts, dp)]
                shapes += [(v, p) for p in self._depths(counts, dp, m) for v in self._chunks(p)[few:]]
                rows += [(dp, mbs, cp, v, p, m) for cp in self.cp for v, p in shapes]
        table = np.array(rows, np.float64).reshape(-1, 6)
        codes = [RECOMPUTES.index(name) for name in self.recomputes]
        kinds_of = list(product(range(len(self.settings)), codes)) if uniform else [(-1, -1)]
        chosen = np.tile(np.array(kinds_of, np.int64), (len(table), 1))
        table = np.repeat(table, len(kinds_of), axis=0)
        pipelines, samples_each, ring, chunks, stages = (table[:, column].astype(np.int64) for column in range(5))
        return Frames(pipelines, samples_each, ring, chunks, stages, table[:, 5], chosen[:, 0], chosen[:, 1])

    def _pipelines(self, counts: Counts, samples: float, mbs: int, *, whole: bool, aligned: bool) -> list[int]:
        """Numbers of pipelines to try."""
        found = self._replicas(counts, samples, mbs, whole=whole, aligned=aligned)
        return self.limits.filter("dp", found)

    def _replicas(self, counts: Counts, samples: float, mbs: int, *, whole: bool, aligned: bool) -> list[int]:
        most = int(min(samples // mbs, sum(counts)))
        if whole:
            return [n for n in divisors(int(samples) // mbs) if n <= most] if samples % mbs == 0 else []
        if aligned:
            return [n for n in divisors(self.batch) if n <= most]
        # A share is rounded later, so any number will do: those that leave few GPUs over.
        sizes = {tp * stages for tp, _ in self.settings for stages in range(1, MOST_SHARED_STAGES + 1)}
        tried = {gpus // size for gpus in counts if gpus for size in sizes}
        return sorted(n for n in tried if 1 <= n <= most and self.batch % n)

    def _plain_depths(self, counts: Counts, dp: int) -> list[int]:
        """Stages of a pipeline without chunks: 0 for any number, each of them where it is restricted."""
        if not self.limits.chunks(1):
            return []
        if not self.limits.staged:
            return [0]
        least = min((tp for tp, _ in self.settings), default=1)
        deepest = min(sum(gpus // (dp * least) for gpus in counts), self.depth)
        return self.limits.filter("pp", range(1, deepest + 1))

    def _depths(self, counts: Counts, dp: int, microbatches: float) -> list[int]:
        """Stages of an interleaved pipeline: micro-batches come in whole groups of them."""
        return self.limits.filter("pp", self._interleaved_depths(counts, dp, microbatches))

    def _interleaved_depths(self, counts: Counts, dp: int, microbatches: float) -> list[int]:
        if not self.uniform or "interleaved" not in self.fleet.job.runtime.can.schedules:
            return []
        least = min((tp for tp, _ in self.settings), default=1)
        deepest = min(sum(gpus // (dp * least) for gpus in counts), self.depth // 2)
        if microbatches != int(microbatches):  # a share, to be rounded to whole groups
            few = range(2, min(deepest, MOST_SHARED_STAGES) + 1)
            return [n for n in few if n <= microbatches and self.batch // dp % n == 0]
        return [n for n in divisors(int(microbatches)) if 2 <= n <= deepest]

    def _chunks(self, stages: int) -> list[int]:
        """Chunks per stage: those that divide the layers, so that the chunks of a stage are equal."""
        return [n for n in self._equal_chunks if n * stages <= self.depth]

    @cached_property
    def _equal_chunks(self) -> list[int]:
        """Numbers of chunks that divide the layers."""
        most = MOST_CHUNKS if not self.limits.names("vp") else self.depth
        return [n for n in divisors(self.depth) if 2 <= n <= most and self.limits.chunks(n)]
