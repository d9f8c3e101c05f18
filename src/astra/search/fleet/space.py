"""The space of pipelines over pools: frames (what all stages share) and, inside each, an exact partition problem.

A *frame* is the number of pipelines, the micro-batch, context parallelism and chunks per stage. Every frame has a lower
bound from its pools' rates, so frames are visited best first and most are never solved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from itertools import pairwise, product
from typing import Final

import numpy as np

from astra.cost import mixed as cost
from astra.cost.memory import room_bytes
from astra.cost.state import WORKSPACE_BYTES
from astra.layers.split import kinds
from astra.partition.ends import least_end, solve_ended
from astra.partition.problem import Effort, Ends, Pipeline, Problem, StageChoice, end_times
from astra.partition.solve import bound
from astra.provenance import Floats
from astra.search.fleet.bounds import After, best_first
from astra.search.fleet.frames import (
    BoundedFrame,
    Counts,
    FoundPipeline,
    Frame,
    FrameShape,
    Framing,
    Shapes,
    again_s,
    in_units,
)
from astra.search.fleet.pools import Fleet, Limits
from astra.spec.cluster import Cluster
from astra.spec.strategy_fields import RECOMPUTES

FRAME: Final = 40.0  # effort of opening one
CELLS: Final = 1000.0  # of the tables of what follows a pipeline, in a unit of effort
FAR: Final = 10**6  # stages of a pipeline that surely leaves the inner links


class FrameSpace(Framing):
    """The partition problems of a fleet's frames, with what is computed once for all of them."""

    def __init__(self, fleet: Fleet, limits: Limits | None = None) -> None:
        super().__init__(fleet, limits or Limits(fleet.job))
        self.after = After([(way.job, way.columns) for way in self.ways], self.limits.settings)
        places = range(len(fleet.jobs))
        self.wires = {(a, b): cost.wire(fleet.cluster, a, b) for a in places for b in places if a != b}
        self._choices: dict[tuple[int, int, int, int, int], tuple[tuple[StageChoice, ...], tuple[FrameShape, ...]]] = {}
        self._prefixes: dict[tuple[int, int, int], tuple[Floats, ...]] = {}
        self.solved = 0
        self.frames = 0
        self.effort = Effort()

    def over(self, cluster: Cluster) -> FrameSpace:
        """The same pools with other links between them."""
        other = copy(self)
        other.fleet = self.fleet._replace(cluster=cluster)
        other.wires = {(a, b): cost.wire(cluster, a, b) for a, b in self.wires}
        return other

    def spans(self, counts: Counts, frame: Frame) -> list[int]:
        """Numbers of stages up to which transfers inside a pool take the same links, the most stages last.

        How far neighbours are apart at worst depends on the length of the pipeline. With chunks transfers are hidden
        and the length is given: 0.
        """
        if frame.vp > 1:
            return [0]
        if frame.stages is not None:
            return [frame.stages]
        inner = frame.dp * frame.cp
        degrees = sorted({tp for tp, _ in self.settings})
        deepest = min(sum(gpus // (inner * degrees[0]) for gpus in counts), self.depth) if degrees else 0
        reaches = {link.reach for gpus, job in zip(counts, self.fleet.jobs, strict=True) if gpus
                   for link in job.pool.node.links[:-1]}  # fmt: skip
        turns = {reach // (inner * tp) for reach in reaches for tp in degrees}
        return [*sorted(turn for turn in turns if 2 <= turn < deepest), max(deepest, 1)]

    def choices(
        self, pool: int, dp: int, mbs: int, cp: int, span: int
    ) -> tuple[tuple[StageChoice, ...], tuple[FrameShape, ...]]:
        """Ways for a pool to take stages of a frame; the numbers of stages are filled in later."""
        links = self.fleet.jobs[pool].pool.node.links
        if span and (len(links) < 2 or span * dp * cp > links[-2].reach):
            span = FAR  # all of them leave the inner links
        key = (pool, dp, mbs, cp, span)
        if key not in self._choices:
            self._choices[key] = self._make_choices(*key)
        return self._choices[key]

    def _make_choices(
        self, pool: int, dp: int, mbs: int, cp: int, span: int
    ) -> tuple[tuple[StageChoice, ...], tuple[FrameShape, ...]]:
        job, columns, _ = self.ways[pool]
        shards = columns.shards
        usable = (shards.mbs == mbs) & (shards.cp == cp) & (dp * cp * shards.tp % shards.ep == 0)
        rows = np.flatnonzero(usable & (dp * cp * shards.tp <= job.pool.gpus * 2))
        resident = cost.resident_bytes(job, columns, dp, self.zero)
        sends = np.zeros(len(rows))
        if span > 1 and len(rows):
            sends = cost.p2p_s(job, columns.stream_bytes[rows], shards.tp[rows] * cp * dp, span)
        count = len(kinds(self.model))
        stay = cost.from_the_end(job, resident[rows, :count])
        limit = room_bytes(job)
        made: list[tuple[StageChoice, FrameShape]] = []
        for place, row in enumerate(rows.tolist()):
            for recompute in self.recomputes:
                time_s, kept = self._prefix(pool, row, recompute)
                working = columns.working[row] + (columns.layer_whole[row] if recompute == "full" else 0.0)
                choice = StageChoice(
                    stages=0,
                    time_s=time_s,
                    first_s=float(columns.work_s[row, count]),
                    last_s=float(columns.work_s[row, count + 1]),
                    send_s=float(sends[place]),
                    stay_bytes=stay[place],
                    kept_bytes=kept,
                    fixed_bytes=float(working + columns.ends_bytes[row] + WORKSPACE_BYTES),
                    first_bytes=float(resident[row, count]),
                    last_bytes=float(resident[row, count + 1] + max(columns.head_bytes[row] - working, 0.0)),
                    limit_bytes=limit,
                )
                if stay[place, -1] / self.depth + choice.fixed_bytes <= limit:
                    made.append((choice, FrameShape(int(shards.tp[row]), int(shards.ep[row]), recompute, row)))
        return tuple(choice for choice, _ in made), tuple(shape for _, shape in made)

    def _prefix(self, pool: int, row: int, recompute: str) -> tuple[Floats, Floats]:
        """Seconds and kept bytes of the last j layers."""
        key = (pool, row, RECOMPUTES.index(recompute))
        if key not in self._prefixes:
            job, columns, _ = self.ways[pool]
            count = len(kinds(self.model))
            kept = {"none": columns.whole, "selective": columns.selective, "full": columns.checkpoint}[recompute]
            seconds = (columns.work_s + again_s(columns, recompute))[row : row + 1, :count]
            self._prefixes[key] = (
                cost.from_the_end(job, seconds)[0],
                cost.from_the_end(job, kept[row : row + 1, :count])[0],
            )
        found = self._prefixes[key]
        return found[0], found[1]

    def problem(
        self, counts: Counts, frame: Frame, *, every: bool, must: int = 0, span: int | None = None
    ) -> tuple[Problem, Shapes]:
        """The partition problem of a frame, for pipelines of at most ``span`` stages (see ``spans``)."""
        span = self.spans(counts, frame)[-1] if span is None else span
        pools, shapes = [], []
        for pool, gpus in enumerate(counts):
            made, named = self.choices(pool, frame.dp, frame.mbs, frame.cp, span)
            kept = [
                (in_units(choice, min(gpus // need, self.depth // frame.vp), frame.vp), shape)
                for choice, shape in zip(made, named, strict=True)
                if (need := frame.dp * frame.cp * shape.tp) <= gpus
                and (not every or (gpus % need == 0 and gpus // need <= self.depth // frame.vp))
                and (frame.only is None or shape[:3] == frame.only)
            ]
            kept = self._ruled(pool, frame, kept)
            pools.append(tuple(choice for choice, _ in kept))
            shapes.append(tuple(shape for _, shape in kept))
        hops = {}
        whole = 2.0 * frame.mbs * self.fleet.job.workload.seq / frame.cp * self.model.hidden
        for (a, b), way in self.wires.items():
            here, there = (np.array([shape.tp for shape in shapes[place]], np.float64) for place in (a, b))
            nbytes = whole / np.minimum(here[:, None], there[None, :])
            each = frame.dp * frame.cp
            nbytes = cost.held_up(self.fleet.cluster, (a, b), nbytes, each * here[:, None], each * there[None, :])
            hops[a, b] = cost.hop_s(way, nbytes, each * whole) if frame.vp == 1 else np.zeros(nbytes.shape)
        most = min(sum(max((choice.stages for choice in pool), default=0) for pool in pools), self.depth // frame.vp)
        places = np.arange((min(most, span) if span else most) + 1)
        m, v = frame.microbatches, frame.vp
        if v > 1:
            assert frame.stages is not None
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
            uniform_layers=self.uniform,
        )
        return problem, tuple(shapes)

    def _ruled(
        self, pool: int, frame: Frame, kept: list[tuple[StageChoice, FrameShape]]
    ) -> list[tuple[StageChoice, FrameShape]]:
        """The ways to take stages that the user's own rules leave."""
        if not self.limits.early_rules:
            return kept
        facts = frame._asdict() | {"pp": frame.stages or 0}
        tp, ep = (np.array([shape[place] for _, shape in kept], np.int64) for place in (0, 1))
        recompute = np.array([RECOMPUTES.index(shape.recompute) for _, shape in kept], np.int64)
        ok = self.limits.kept(self.ways[pool].job, facts, tp, ep, recompute)
        return [entry for entry, fine in zip(kept, ok.tolist(), strict=True) if fine]

    def ends(self, frame: Frame, shapes: Shapes, groups: int = 1, way: cost.Wire | None = None) -> Ends:
        """What follows the pipeline on every stage there can be, by pool and choice, in units of the frame."""
        out = []
        for pool, named in enumerate(shapes):
            tables = self.after.tables(pool, frame.dp, (shape.row for shape in named), groups, way)
            self.effort.spend(sum(table.size for table in tables.values()) / CELLS)
            of_units = {row: table[..., :: frame.vp] for row, table in tables.items()}  # one for all kinds of recompute
            out.append(tuple(of_units[shape.row] for shape in named))
        return tuple(out)

    def bound(self, counts: Counts, frame: Frame, *, every: bool, below: float, must: int = 0) -> BoundedFrame:
        """Close lower bounds of a frame's pipeline and end, together ``below`` if nothing can beat that.

        And a pipeline if one was met.
        """
        if len(self.spans(counts, frame)) > 1:
            return BoundedFrame(0.0, 0.0, None)
        self.effort.spend(FRAME)
        problem, shapes = self.problem(counts, frame, every=every, must=must)
        needed = [pool for pool, gpus in zip(problem.pools, counts, strict=True) if gpus] if every else []
        if not any(problem.pools) or not all(needed):
            return BoundedFrame(below, 0.0, None)
        problem = problem._replace(ends=self.ends(frame, shapes))
        end_s = least_end(problem, below)
        if end_s >= below:
            return BoundedFrame(below, 0.0, None)
        least, pipeline = bound(problem, below=below - end_s, effort=self.effort)
        if pipeline is None:
            return BoundedFrame(least, end_s, None)
        longest_s = max(end_times(problem.ends, pipeline.runs))
        return BoundedFrame(least, end_s, self._found(frame, pipeline, shapes, pipeline.value_s + longest_s))

    def _found(self, frame: Frame, pipeline: Pipeline, shapes: Shapes, total_s: float) -> FoundPipeline:
        sends = self._sends(frame, pipeline, shapes)
        fill_s = 2 * sum(sends)
        slot_s = min(pipeline.stage_s) / (3 * frame.vp)  # a forward of one chunk, about
        late = bool(sends) and max(sends) > slot_s
        total_s = max(total_s + fill_s, self._line_s(frame, pipeline))
        return FoundPipeline(pipeline.value_s, fill_s, total_s, frame, pipeline, shapes, late)

    def _line_s(self, frame: Frame, pipeline: Pipeline) -> float:
        """Seconds in which the busiest line between two pools carries what crosses it, one way."""
        owners = [run.pool for run in pipeline.runs] * frame.vp
        crossed = Counter(frozenset(pair) for pair in pairwise(owners) if pair[0] != pair[1])
        sent = 2.0 * frame.mbs * self.fleet.job.workload.seq * self.model.hidden * frame.dp * frame.microbatches
        ways = {pair: self.wires[min(pair), max(pair)] for pair in crossed}
        return max((count * sent / ways[pair].total_bytes_per_s for pair, count in crossed.items()), default=0.0)

    def _sends(self, frame: Frame, pipeline: Pipeline, shapes: Shapes) -> list[float]:
        """Seconds of each transfer between virtual stages, where they are hidden but for fill and drain."""
        if frame.vp == 1:
            return []
        owners = [(run.pool, shapes[run.pool][run.choice]) for run in pipeline.runs for _ in run.layers]
        ring = [self._send_s(frame, here, there) for here, there in zip(owners, [*owners[1:], owners[0]], strict=True)]
        return (ring * frame.vp)[:-1] if len(owners) > 1 else []

    def _send_s(self, frame: Frame, here: tuple[int, FrameShape], there: tuple[int, FrameShape]) -> float:
        (a, one), (b, other) = here, there
        if a == b:
            job, columns, _ = self.ways[a]
            apart = np.array([one.tp * frame.cp * frame.dp])
            return float(cost.p2p_s(job, columns.stream_bytes[[one.row]], apart, frame.stages or 2)[0])
        whole = 2.0 * frame.mbs * self.fleet.job.workload.seq / frame.cp * self.model.hidden
        sent, each = whole / min(one.tp, other.tp), frame.dp * frame.cp
        nbytes = cost.held_up(self.fleet.cluster, (a, b), sent, each * one.tp, each * other.tp)
        return float(cost.hop_s(self.wires[a, b], nbytes, each * whole))

    def solve(
        self, counts: Counts, frame: Frame, *, every: bool, below: float, must: int = 0, quick: bool = False
    ) -> FoundPipeline | None:
        """The best pipeline of a frame, with what follows it, that beats ``below``; ``quick``: best without that."""
        best: FoundPipeline | None = None
        self.solved += 1
        for span in self.spans(counts, frame):
            self.effort.spend(FRAME)
            problem, shapes = self.problem(counts, frame, every=every, must=must, span=span)
            needed = [pool for pool, gpus in zip(problem.pools, counts, strict=True) if gpus] if every else []
            if not any(problem.pools) or not all(needed):
                continue
            problem = problem._replace(ends=self.ends(frame, shapes))
            found = solve_ended(problem, below=below, quick=quick, effort=self.effort)
            if found is not None:
                best, below = self._found(frame, found.pipeline, shapes, found.total_s), found.total_s
        return best

    def bounded_frames(
        self,
        counts: Counts,
        samples: float,
        *,
        whole: bool,
        uniform: bool,
        below: float = np.inf,
    ) -> Iterator[tuple[float, Frame]]:
        """Frames with their lower bounds of the pipeline's seconds, best first.

        ``whole``: micro-batches must be whole numbers; otherwise ``samples`` is a share yet to be rounded. ``below``:
        only frames that may beat it.
        """
        if not self.settings:
            return
        frames = self._frames(counts, samples, whole=whole, uniform=uniform)
        self.frames += frames.rows
        if not frames.rows:
            return
        keys = {pair: place for place, pair in enumerate(product(self.mbs, self.cp))}
        place = np.array([keys[pair] for pair in zip(frames.mbs.tolist(), frames.cp.tolist(), strict=True)])
        for bound_s, row in best_first(frames, place, self.rates, counts, self.depth, below):
            yield bound_s, self._frame(frames, row)
