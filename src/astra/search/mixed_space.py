"""The space of pipelines over pools: frames (what all stages share) and, inside each, an exact partition problem.

A *frame* is the number of pipelines, the micro-batch, context parallelism and chunks per stage. Every frame has a lower
bound from its pools' rates, so frames are visited best first and most are never solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from astra.cost import mixed as cost
from astra.families.kinds import layer_kinds
from astra.families.split import kinds
from astra.provenance import Floats
from astra.search.mixed_detail import Fleet
from astra.space.enumerate import divisors
from astra.space.names import facts_of
from astra.space.partition import Choice, Pipeline, Problem, solve
from astra.space.rules import check
from astra.spec.job import Job
from astra.spec.mixed import Group, Segment

MOST_TOKENS: Final = 131_072  # of a micro-batch; beyond it activations fit no GPU
MOST_TP: Final = 64
LONG_SEQUENCE: Final = 16_384  # context parallelism is tried beyond
MOST_CHUNKS: Final = 10
RECOMPUTES: Final = ("none", "selective", "full")
WORTH_SELECTIVE: Final = 0.97  # of the activations: fused attention leaves it nothing to save

Counts = tuple[int, ...]  # GPUs of each pool that may be used


class Frame(NamedTuple):
    """What all stages of a group share."""

    dp: int
    mbs: int
    cp: int
    vp: int
    stages: int | None  # only given with chunks, whose activations in flight depend on it
    microbatches: float
    only: tuple[int, int, str] | None  # the tp, ep and recompute of every stage, where they must agree


class Shape(NamedTuple):
    """What a choice stands for."""

    tp: int
    ep: int
    recompute: str


class Found(NamedTuple):
    """The optimum of a frame."""

    value_s: float  # pipeline by the closed form
    frame: Frame
    pipeline: Pipeline
    shapes: tuple[tuple[Shape, ...], ...]  # by pool and choice

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

    def line(self) -> tuple[float, float]:
        """Pipeline seconds for m micro-batches are ``fixed + m * each``."""
        slowest = max(self.stage_s)
        return (sum(self.stage_s) - slowest) / self.frame.vp, slowest


def _in_units(choice: Choice, stages: int, chunks: int) -> Choice:
    """With a number of stages, and layers taken ``chunks`` at a time."""
    return choice._replace(
        stages=stages,
        time_s=choice.time_s[::chunks],
        stay_bytes=choice.stay_bytes[::chunks],
        kept_bytes=choice.kept_bytes[::chunks],
    )


class _Ways(NamedTuple):
    """The legal shardings of one pool."""

    job: Job
    columns: cost.PoolColumns
    layer_s: Floats  # [row] the cheapest layer, for bounds


class Bench:
    """Everything about a fleet that is computed once: the columns of each pool and the wires between pools."""

    def __init__(self, fleet: Fleet, *, zero: int) -> None:
        self.fleet, self.zero = fleet, zero
        self.model, self.batch = fleet.job.model, fleet.job.workload.global_batch
        self.depth = len(layer_kinds(self.model))
        self.uniform = len(kinds(self.model)) == 1
        seq = fleet.job.workload.seq
        self.mbs = [n for n in divisors(self.batch) if n == 1 or n * seq <= MOST_TOKENS]
        self.cp = [1] if seq <= LONG_SEQUENCE else [n for n in (1, 2, 4, 8, 16, 32) if seq % (2 * n) == 0]
        self.ways = [self._ways(job) for job in fleet.jobs]
        places = range(len(fleet.jobs))
        self.wires = {(a, b): cost.wire(fleet.cluster, a, b) for a in places for b in places if a != b}
        self._choices: dict[tuple[int, int, int, int, bool], tuple[tuple[Choice, ...], tuple[Shape, ...]]] = {}
        self._prefixes: dict[tuple[int, int, int], tuple[Floats, ...]] = {}
        self.solved = 0
        self.frames = 0

    def _ways(self, job: Job) -> _Ways:
        links = job.pool.node.links
        reach = min(links[0].reach if links else 1, job.pool.gpus, MOST_TP)
        tp = [n for n in divisors(self.model.heads) if n <= reach]
        ep = [1] if self.model.moe is None else [n for n in divisors(self.model.moe.experts) if n <= 64]
        rows = np.array(list(product(tp, self.cp, ep, self.mbs)), np.int64).reshape(-1, 4)
        sp = rows[:, 0] > 1
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
        columns = dict(zip(("tp", "cp", "ep", "mbs"), rows.T, strict=True)) | {
            "sp": sp,
            "etp": np.ones_like(rows[:, 0]),
        }
        legal = check(columns, facts).ok
        shards = cost.Shards(*rows[legal].T)
        found = cost.pool_columns(job, shards)
        count = len(kinds(self.model))
        return _Ways(job, found, found.work_s[:, :count].min(axis=1))

    def choices(
        self, pool: int, dp: int, mbs: int, cp: int, blocking: bool
    ) -> tuple[tuple[Choice, ...], tuple[Shape, ...]]:
        """Ways for a pool to take stages of a frame; the numbers of stages are filled in later."""
        key = (pool, dp, mbs, cp, blocking)
        if key not in self._choices:
            self._choices[key] = self._make_choices(*key)
        return self._choices[key]

    def _make_choices(
        self, pool: int, dp: int, mbs: int, cp: int, blocking: bool
    ) -> tuple[tuple[Choice, ...], tuple[Shape, ...]]:
        job, columns, _ = self.ways[pool]
        shards = columns.shards
        usable = (shards.mbs == mbs) & (shards.cp == cp) & (dp * cp * shards.tp % shards.ep == 0)
        rows = np.flatnonzero(usable & (dp * cp * shards.tp <= job.pool.gpus * 2))
        resident = cost.resident_bytes(job, columns, dp, self.zero)
        sends = cost.p2p_s(job, columns.stream_bytes[rows], shards.tp[rows] * cp * dp) if len(rows) else np.zeros(0)
        count = len(kinds(self.model))
        stay = cost.from_the_end(job, resident[rows, :count])
        limit = (job.limit_bytes - job.runtime.reserved_bytes) / job.runtime.reserved_ratio
        made: list[tuple[Choice, Shape]] = []
        for place, row in enumerate(rows.tolist()):
            for recompute in self._recomputes(columns, row):
                time_s, kept = self._prefix(pool, row, recompute)
                working = columns.working[row] + (columns.layer_whole[row] if recompute == "full" else 0.0)
                choice = Choice(
                    stages=0,
                    time_s=time_s,
                    first_s=float(columns.work_s[row, count]),
                    last_s=float(columns.work_s[row, count + 1]),
                    send_s=float(sends[place]) if blocking else 0.0,
                    stay_bytes=stay[place],
                    kept_bytes=kept,
                    fixed_bytes=float(working + columns.ends_bytes[row] + job.runtime.workspace_bytes),
                    first_bytes=float(resident[row, count]),
                    last_bytes=float(resident[row, count + 1] + max(columns.head_bytes[row] - working, 0.0)),
                    limit_bytes=limit,
                )
                if stay[place, -1] / self.depth + choice.fixed_bytes <= limit:
                    made.append((choice, Shape(int(shards.tp[row]), int(shards.ep[row]), recompute)))
        return tuple(choice for choice, _ in made), tuple(shape for _, shape in made)

    def _recomputes(self, columns: cost.PoolColumns, row: int) -> list[str]:
        saves = bool((columns.selective[row] < WORTH_SELECTIVE * columns.whole[row]).any())
        return [name for name in RECOMPUTES if name != "selective" or saves]

    def _prefix(self, pool: int, row: int, recompute: str) -> tuple[Floats, Floats]:
        """Seconds and kept bytes of the last j layers."""
        key = (pool, row, RECOMPUTES.index(recompute))
        if key not in self._prefixes:
            job, columns, _ = self.ways[pool]
            count = len(kinds(self.model))
            again = {"none": 0.0 * columns.again_s, "selective": columns.attention_s, "full": columns.again_s}[
                recompute
            ]
            kept = {"none": columns.whole, "selective": columns.selective, "full": columns.checkpoint}[recompute]
            seconds = (columns.work_s + again)[row : row + 1, :count]
            self._prefixes[key] = (
                cost.from_the_end(job, seconds)[0],
                cost.from_the_end(job, kept[row : row + 1, :count])[0],
            )
        found = self._prefixes[key]
        return found[0], found[1]

    def problem(self, counts: Counts, frame: Frame, *, every: bool, must: int = 0) -> tuple[Problem, tuple[tuple[Shape, ...], ...]]:
        """The partition problem of a frame."""
        pools, shapes = [], []
        for pool, gpus in enumerate(counts):
            made, named = self.choices(pool, frame.dp, frame.mbs, frame.cp, frame.vp == 1)
            kept = [
                (_in_units(choice, min(gpus // need, self.depth // frame.vp), frame.vp), shape)
                for choice, shape in zip(made, named, strict=True)
                if (need := frame.dp * frame.cp * shape.tp) <= gpus
                and (not every or gpus % need == 0)
                and (frame.only is None or tuple(shape) == frame.only)
            ]
            pools.append(tuple(choice for choice, _ in kept))
            shapes.append(tuple(shape for _, shape in kept))
        hops = {}
        whole = 2.0 * frame.mbs * self.fleet.job.workload.seq / frame.cp * self.model.hidden
        for (a, b), way in self.wires.items():
            here, there = (np.array([shape.tp for shape in shapes[place]], np.float64) for place in (a, b))
            nbytes = whole / np.minimum(here[:, None], there[None, :])
            hops[a, b] = cost.hop_s(way, nbytes) if frame.vp == 1 else np.zeros(nbytes.shape)
        most = min(sum(max((choice.stages for choice in pool), default=0) for pool in pools), self.depth // frame.vp)
        places = np.arange(most + 1)
        m, v = frame.microbatches, frame.vp
        if frame.stages is not None:
            alive = np.minimum(2 * (places - 1) + (v - 1) * frame.stages + 1, m * v) / v
        else:
            alive = np.minimum(places, m)
        problem = Problem(
            pools=tuple(pools),
            hop_s=hops,
            in_flight=alive.astype(np.float64),
            sum_weight=1.0 / v,
            max_weight=m - 1.0 / v,
            every=every,
            stages=frame.stages,
            must=must,
        )
        return problem, tuple(shapes)

    def solve(self, counts: Counts, frame: Frame, *, every: bool, below: float, must: int = 0) -> Found | None:
        """The best pipeline of a frame that beats ``below``."""
        problem, shapes = self.problem(counts, frame, every=every, must=must)
        needed = [pool for pool, gpus in zip(problem.pools, counts, strict=True) if gpus] if every else []
        if not any(problem.pools) or not all(needed):
            return None
        self.solved += 1
        pipeline = solve(problem, below=below)
        return None if pipeline is None else Found(pipeline.value_s, frame, pipeline, shapes)

    def bounded_frames(
        self, counts: Counts, samples: float, *, whole: bool, uniform: bool
    ) -> list[tuple[float, Frame]]:
        """Every frame with its lower bound of the pipeline's seconds, best first.

        ``whole``: micro-batches must be whole numbers; otherwise ``samples`` is a share yet to be rounded.
        """
        out: list[tuple[float, Frame]] = []
        for mbs, cp in product(self.mbs, self.cp):
            table = self._rows(counts, mbs, cp)
            settings = sorted({(tp, ep) for _, tp, ep, _ in table}) if uniform else [None]
            for dp in self._pipelines(counts, samples, mbs, whole=whole):
                for setting in settings:
                    rows = [(p, tp, a) for p, tp, ep, a in table if setting is None or (tp, ep) == setting]
                    out += self._bounded(counts, samples / (dp * mbs), (dp, mbs, cp), rows, setting)
        self.frames += len(out)
        return sorted(out, key=lambda entry: (entry[0], entry[1][:4], entry[1].stages or 0, entry[1].only or ()))

    def _rows(self, counts: Counts, mbs: int, cp: int) -> list[tuple[int, int, int, float]]:
        """(pool, tp, ep, seconds of the cheapest layer) of every sharding."""
        out = []
        for pool, way in enumerate(self.ways):
            shards = way.columns.shards
            for row in np.flatnonzero((shards.mbs == mbs) & (shards.cp == cp)).tolist() if counts[pool] else ():
                out.append((pool, int(shards.tp[row]), int(shards.ep[row]), float(way.layer_s[row])))
        return out

    def _pipelines(self, counts: Counts, samples: float, mbs: int, *, whole: bool) -> list[int]:
        """Numbers of pipelines to try."""
        most = int(min(samples // mbs, sum(counts)))
        if whole:
            return [n for n in divisors(int(samples) // mbs) if n <= most] if samples % mbs == 0 else []
        # A share is rounded later, so any number will do: those that leave few GPUs of a pool over.
        tried = {gpus // size for gpus in counts if gpus for size in range(1, 8 * self.depth + 1)}
        largest = sorted((n for n in tried if 1 <= n <= most), reverse=True)
        return sorted({*largest[:48], *(n for n in divisors(self.batch) if n <= most)})

    def _bounded(
        self,
        counts: Counts,
        microbatches: float,
        degrees: tuple[int, int, int],
        rows: list[tuple[int, int, float]],
        setting: tuple[int, int] | None,
    ) -> Iterator[tuple[float, Frame]]:
        """The frames of given degrees: without chunks, and with each number of chunks and stages."""
        dp, _, cp = degrees
        able = [(pool, counts[pool] // (dp * cp * tp), a) for pool, tp, a in rows if counts[pool] >= dp * cp * tp]
        if not able:
            return
        slowest_s, fastest_s = self._least_bottleneck(able), min(a for _, _, a in able)
        recomputes = [None] if setting is None else [(*setting, name) for name in ("none", "full")]
        for only in recomputes:
            ramp_s = max(self.depth * fastest_s - slowest_s, 0.0)
            yield ramp_s + microbatches * slowest_s, Frame(*degrees, 1, None, microbatches, only)
            if not self.uniform or "interleaved" not in self.fleet.job.runtime.schedules:
                continue
            most = {pool: max(s for p, s, _ in able if p == pool) for pool, _, _ in able}
            for stages in self._depths(sum(most.values()), microbatches):
                bottleneck_s = max(slowest_s, fastest_s * -(-self.depth // stages))
                for chunks in self._chunks(stages):
                    bound_s = max(self.depth * fastest_s - bottleneck_s, 0.0) / chunks + microbatches * bottleneck_s
                    yield bound_s, Frame(*degrees, chunks, stages, microbatches, only)

    def _depths(self, most: int, microbatches: float) -> list[int]:
        """Stages of an interleaved pipeline: micro-batches come in whole groups of them."""
        if microbatches != int(microbatches):
            return []
        return [n for n in divisors(int(microbatches)) if 2 <= n <= min(most, self.depth // 2)]

    def _chunks(self, stages: int) -> list[int]:
        """Chunks per stage: those that divide the layers, so that the chunks of a stage are equal."""
        return [n for n in divisors(self.depth) if 2 <= n <= MOST_CHUNKS and n * stages <= self.depth]

    def _least_bottleneck(self, able: list[tuple[int, int, float]]) -> float:
        """The shortest longest stage for which whole layers find a place, without memory or transfers."""
        seconds = np.array([a for _, _, a in able])
        stages = np.array([s for _, s, _ in able])
        pools = np.array([pool for pool, _, _ in able])
        starts = np.flatnonzero(np.diff(pools, prepend=-1))
        low = self.depth / float(np.maximum.reduceat(stages / seconds, starts).sum()) * (1 - 1e-9)
        high = self.depth * float(seconds.max())
        for _ in range(24):
            middle = (low + high) / 2
            room = np.maximum.reduceat(stages * np.floor(middle / seconds * (1 + 1e-9)), starts).sum()
            low, high = (low, middle) if room >= self.depth else (middle, high)
        return low
