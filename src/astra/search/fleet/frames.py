"""Frames: what all stages of a pipeline over pools share, and what every pool can do with a layer in one.

A pool has its legal shardings, what they cost, and their rates for bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from astra.cost import mixed as cost
from astra.cost.memory import reserved_bytes, room_bytes
from astra.cost.state import WORKSPACE_BYTES
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.partition.problem import Ends, Pipeline, StageChoice, end_times
from astra.provenance import Floats
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.table import check
from astra.search.fleet.bounds import LONG, Frames, Rates
from astra.search.fleet.dealing import BatchShare, OpenGroup
from astra.search.fleet.pools import Fleet, Limits
from astra.search.space import divisors
from astra.spec.job import Job
from astra.spec.mixed import Group, Segment
from astra.spec.strategy_fields import RECOMPUTES
from astra.units import GIB

MOST_CHUNKS: Final = 10
FEW_CHUNKS: Final = 2  # of a group that shares the batch with others: the largest numbers of chunks
MOST_SHARED_STAGES: Final = 8  # of a group that shares the batch with others
MOST_TOKENS: Final = 131_072  # of a micro-batch; beyond it activations fit no GPU
MOST_TP: Final = 64
LONG_SEQUENCE: Final = 16_384  # context parallelism is tried beyond, and where samples are fewer than GPUs
WORTH_SELECTIVE: Final = 0.97  # of the activations: fused attention leaves it nothing to save

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


Shapes = tuple[tuple[FrameShape, ...], ...]  # by pool and choice
EndsOf = Callable[[Frame, Shapes, int, cost.Wire | None], Ends]  # what follows with so many groups over a wire


class FoundPipeline(NamedTuple):
    """The optimum of a frame."""

    value_s: float  # pipeline by the closed form, without what transfers add to fill and drain where they are hidden
    fill_s: float  # that
    total_s: float  # with both, gradients and optimizer
    frame: Frame
    pipeline: Pipeline
    shapes: Shapes
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

    def opened(self, names: Sequence[str], ends: EndsOf) -> OpenGroup:
        """As a group whose share of the batch is open: its pipeline's time is a line in the micro-batches."""
        slowest = max(self.stage_s)
        fixed_s = (sum(self.stage_s) - slowest) / self.frame.vp + self.fill_s
        pools = sum(1 << pool for pool in {run.pool for run in self.pipeline.runs})

        def end_s(groups: int, way: cost.Wire | None) -> float:
            return max(end_times(ends(self.frame, self.shapes, groups, way), self.pipeline.runs))

        share = BatchShare(self.samples, fixed_s, slowest * self.round)
        return OpenGroup(pools, self.round, share, end_s, lambda m: self.group(names, m), lambda _: None)


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


class Way(NamedTuple):
    """The legal shardings of one pool."""

    job: Job
    columns: cost.PoolColumns
    layer_s: Floats  # [row] the cheapest layer, for bounds


class Shardings:
    """The shardings of every pool of a fleet."""

    def __init__(self, fleet: Fleet, limits: Limits) -> None:
        self.fleet, self.limits, self.zero = fleet, limits, limits.zero
        self.model, self.batch = fleet.job.model, fleet.job.workload.global_batch
        self.depth = len(layer_kinds(self.model))
        self.uniform = len(kinds(self.model)) == 1  # layers are alike
        seq = fleet.job.workload.seq
        # What is usual, else what the restrictions leave: a restriction must not open more than there is without.
        each = divisors(self.batch)
        usual = limits.filter("mbs", [n for n in each if n == 1 or n * seq <= MOST_TOKENS])
        self.mbs = usual or limits.filter("mbs", each)
        rings = [n for n in (1, 2, 4, 8, 16, 32) if n == 1 or seq % (2 * n) == 0]
        pays = seq > LONG_SEQUENCE or fleet.cluster.gpus > self.batch
        self.cp = limits.filter("cp", rings if pays else [1]) or limits.filter("cp", rings)
        costed = fleet.columns or tuple(self._columns(job) for job in fleet.jobs)
        self.ways = [
            Way(job, columns, columns.work_s[:, : len(kinds(self.model))].min(axis=1))
            for job, columns in zip(fleet.jobs, costed, strict=True)
        ]
        allowed = limits.filter("recompute", RECOMPUTES)
        saved = any(_saves(way.columns) for way in self.ways)
        # Fused attention leaves selective recompute nothing to save, so that it is tried where it does or must be.
        self.recomputes = [name for name in allowed if name != "selective" or saved or "none" not in allowed]
        found = {pair for way in self.ways for pair in zip(*way.columns.shards[::2], strict=True)}
        self.settings = sorted((int(tp), int(ep)) for tp, ep in found)  # tp and ep of any pool
        self.rates = [self._rates(way) for way in self.ways]

    def rates_of(self, counts: Counts) -> list[float]:
        """Samples per second of so many GPUs of each pool at best, for first shares."""
        out = []
        for gpus, way in zip(counts, self.ways, strict=True):
            shards = way.columns.shards
            each = shards.mbs / (shards.tp * shards.cp * way.layer_s * self.depth)
            out.append(float(each.max()) * gpus if len(each) else 0.0)
        return out

    def _weights(self) -> Floats:
        """[kind] what a layer counts for in bounds, an average layer being 1.

        No sharding takes less time for a layer's weight than for that of the commonest kind: it makes the bound.
        """
        order = kinds(self.model)
        counts = np.array([sum(kind == other for other in layer_kinds(self.model)) for kind in order])
        common = int(counts.argmax())
        seconds = np.concatenate(
            [each[:, : len(order)] for way in self.ways
             for each in (way.columns.work_s, way.columns.work_s + way.columns.again_s)]
        )  # fmt: skip
        least = (seconds / seconds[:, common : common + 1]).min(axis=0) if len(seconds) else np.ones(len(order))
        return np.asarray(least * self.depth / (least * counts).sum())

    def _rates(self, way: Way) -> Rates:
        """A pool's ways to hold layers, for bounds."""
        rows = {pair: place for place, pair in enumerate(product(self.mbs, self.cp))}
        codes = [RECOMPUTES.index(name) for name in self.recomputes]
        ways = {(tp, ep, code): n for n, ((tp, ep), code) in enumerate(product(self.settings, codes))}
        job, columns, count = way.job, way.columns, len(kinds(self.model))
        shape = (len(rows), len(ways))
        layer_s, (head_s, stay, shared, kept, room) = np.full(shape, LONG), (np.zeros(shape) for _ in range(5))
        weights = self._weights()
        one, two = (cost.resident_bytes(job, columns, dp, self.zero)[:, :count] / weights for dp in (1, 2))
        limit = room_bytes(job)
        work = {code: columns.work_s + again_s(columns, name) for code, name in enumerate(RECOMPUTES)}
        for row, (tp, cp, ep, mbs) in enumerate(zip(*(column.tolist() for column in columns.shards), strict=True)):
            for code in codes:
                at = rows[mbs, cp], ways[tp, ep, code]
                layer_s[at] = (work[code][row, :count] / weights).min()
                head_s[at] = columns.work_s[row, count + 1]
                stay[at], shared[at] = (2 * two - one)[row].min(), 2 * (one - two)[row].min()
                least = columns.checkpoint if code == 2 else np.minimum(columns.whole, columns.selective)
                kept[at] = (least[row, :count] / weights).min()
                room[at] = limit - columns.working[row] - columns.ends_bytes[row] - WORKSPACE_BYTES
        settings = [self.settings.index((tp, ep)) for tp, ep, _ in ways]
        tps, coded = (np.array([key[place] for key in ways], np.int64) for place in (0, 2))
        lightest = 1.0 if self.uniform else float(weights.min())
        return Rates(layer_s, head_s, stay, shared, kept, room, tps, np.array(settings, np.int64), coded, lightest)

    def _columns(self, job: Job) -> cost.PoolColumns:
        """What the legal shardings of a pool cost."""
        links = job.pool.node.links
        reach = min(links[0].reach if links else 1, job.pool.gpus, MOST_TP)
        tp = self.limits.filter("tp", [n for n in divisors(self.model.heads) if n <= reach])
        experts = 1 if self.model.moe is None else self.model.moe.experts
        ep = self.limits.filter("ep", [n for n in divisors(experts) if n <= 64])
        rows = np.array(list(product(tp, self.cp, ep, self.mbs)), np.int64).reshape(-1, 4)
        sp = rows[:, 0] > 1
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        columns = dict(zip(("tp", "cp", "ep", "mbs"), rows.T, strict=True)) | {
            "sp": sp,
            "etp": np.ones_like(rows[:, 0]),
            "zero": np.full_like(rows[:, 0], self.zero),
        }
        legal = check(columns, facts, rules_of(job.runtime)).ok & self.limits.sequence_parallel(rows[:, 0])
        overlap_tp = "tp" in self.limits.overlap
        found = cost.pool_columns(job, cost.Shards(*rows[legal].T), overlap_tp=overlap_tp)
        if self.model.moe is not None and len(found.shards.tp):
            few = rows[legal][self._few_experts(job, found)]
            found = cost.pool_columns(job, cost.Shards(*few.T), overlap_tp=overlap_tp)
        return found

    def _few_experts(self, job: Job, columns: cost.PoolColumns) -> list[int]:
        """Rows with the expert degrees worth trying: of each sharding the fastest, the smallest and one between."""
        count = len(kinds(self.model))
        seconds = columns.work_s[:, :count].sum(axis=1)
        nbytes = cost.resident_bytes(job, columns, 1, self.zero)[:, :count].sum(axis=1)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for row, (tp, cp, _, mbs) in enumerate(zip(*(column.tolist() for column in columns.shards), strict=True)):
            by_shape.setdefault((tp, cp, mbs), []).append(row)
        kept: set[int] = set()
        for rows in by_shape.values():
            front = [a for a in rows if not any(seconds[b] <= seconds[a] and nbytes[b] < nbytes[a] for b in rows)]
            front.sort(key=lambda row: seconds[row])
            kept |= {front[0], front[len(front) // 2], front[-1]}
        return sorted(kept)

    def why_not(self, pool: int) -> str:
        """Why no stage fits on a pool; empty if one does."""
        job, columns, _ = self.ways[pool]
        if not len(columns.shards.tp):
            return "no tensor-parallel degree is legal for the model here, or allowed."
        stage_kinds = columns.checkpoint.shape[1] - 2
        working = columns.working + columns.layer_whole + columns.ends_bytes + WORKSPACE_BYTES
        least = np.inf
        for tp in set(columns.shards.tp.tolist()):  # with as many replicas as the pool has room for
            replicas = max(min(job.pool.gpus // tp, self.batch), 1)
            resident = cost.resident_bytes(job, columns, replicas, self.zero)[:, :stage_kinds].min(axis=1)
            need = reserved_bytes(job, resident + columns.checkpoint[:, :stage_kinds].min(axis=1) + working)
            least = min(least, float(need[columns.shards.tp == tp].min()))
        limit = job.limit_bytes
        if least <= limit:
            return ""
        return f"a stage with a single layer needs {least / GIB:.1f} GiB of the {limit / GIB:.1f} GiB a GPU may use."


def _saves(columns: cost.PoolColumns) -> bool:
    """Whether selective recompute saves something worth it, with any sharding."""
    return bool((columns.selective < WORTH_SELECTIVE * columns.whole).any())


def again_s(columns: cost.PoolColumns, recompute: str) -> Floats:
    """What recompute adds to a micro-batch."""
    return {"none": 0.0 * columns.again_s, "selective": columns.attention_s, "full": columns.again_s}[recompute]


class Framing(Shardings):
    """The frames of a fleet."""

    def _frame(self, frames: Frames, row: int) -> Frame:
        dp, mbs, cp, vp, stages, m, setting, recompute = (column[row].item() for column in frames)
        only = None if setting < 0 else (*self.settings[setting], RECOMPUTES[recompute])
        return Frame(dp, mbs, cp, vp, stages or None, m, only)

    def _frames(self, counts: Counts, samples: float, *, whole: bool, uniform: bool) -> Frames:
        rows: list[tuple[float, ...]] = []
        # With chunks larger bottlenecks are spread thinner, so every number of chunks is a frame of its own.
        for mbs in self.mbs:
            for dp in self._pipelines(counts, samples, mbs, whole=whole):
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

    def _pipelines(self, counts: Counts, samples: float, mbs: int, *, whole: bool) -> list[int]:
        """Numbers of pipelines to try."""
        found = self._replicas(counts, samples, mbs, whole=whole)
        return self.limits.filter("dp", found)

    def _replicas(self, counts: Counts, samples: float, mbs: int, *, whole: bool) -> list[int]:
        most = int(min(samples // mbs, sum(counts)))
        if whole:
            return [n for n in divisors(int(samples) // mbs) if n <= most] if samples % mbs == 0 else []
        return [n for n in divisors(self.batch) if n <= most]

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
        found = [n for n in divisors(self.depth) if n >= 2 and self.limits.chunks(n)]
        return [n for n in found if n <= MOST_CHUNKS] or found
