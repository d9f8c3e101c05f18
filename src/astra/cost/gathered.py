"""Pipelines as they lie on ranks, and parts of unique shardings gathered to the stages that hold them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from astra.axes import AXES, Axis
from astra.columns import Columns, each
from astra.cost import effects
from astra.cost.kernels import QUEUED_LAUNCHES, launches
from astra.cost.layers import EMBEDDING, HEAD, modules_in
from astra.cost.parts import Direction, Part, forward_again
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Shard
from astra.layers.split import Place, StageKinds, kinds, stack, stage_kind_of_rank, stages
from astra.provenance import Bools, Floats, Ints
from astra.schedule.registry import find
from astra.schedule.simulator import most_alive
from astra.spec.job import Job
from astra.spec.model import ModelSpec


class Gathered(NamedTuple):
    """Unique shardings, their parts, and where each mesh finds its own."""

    shard: Shard
    parts: Mapping[LayerKind | str, Part]
    place: Ints
    totals_s: dict[Hashable, float]  # of pipelines made of them that were simulated

    def take(self, rows: Ints) -> Gathered:
        """The same parts for some of the meshes."""
        return self._replace(place=self.place[rows])


def over_stages(table: StageKinds, columns: list[Floats]) -> Floats:
    """[mesh] columns of each kind, the embedding and the head, summed to [mesh, rank]."""
    *by_kind, first, last = columns
    total = table.first * first[:, None] + table.last * last[:, None]
    for place, column in enumerate(by_kind):
        total = total + table.counts[..., place] * column[:, None]
    return total


def over_layers(table: StageKinds, by_kind: Floats) -> Floats:
    """[mesh, kind, module] figures of layers, summed to [mesh, rank, module]."""
    return np.asarray(table.counts @ by_kind)


class Passes(NamedTuple):
    """What one micro-batch does on some of the virtual stages."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats  # of backward_s
    recompute_s: Floats  # running all layers' forward again
    modules_s: Floats  # [..., module] and single modules of the layers


class StageTimes:
    """Stage times of one micro-batch from part times, [mesh, rank]; ``again``: with those of running layers again."""

    def __init__(
        self, job: Job, gathered: Gathered, table: StageKinds, columns: Columns, *, again: bool = True
    ) -> None:
        self._index, self._table, self._columns = gathered.place, table, columns
        self._collective_s = _collective_s(job, columns)
        order = kinds(job.model)
        by_kind = self._by_kind = [gathered.parts[kind] for kind in order]
        first, last = gathered.parts[EMBEDDING], gathered.parts[HEAD]
        forward = [self._seconds(part.forward) for part in (*by_kind, first, last)]
        backward = [self._seconds(part.backward) for part in (*by_kind, first, last)]
        weight = [part.weight_s[self._index] for part in (*by_kind, first, last)]
        nothing = np.zeros(len(self._index))
        repeated = [self._seconds(forward_again(job.runtime, part)) for part in by_kind] if again else []
        self._by_part = (forward, backward, weight, *([[*repeated, nothing, nothing]] if again else []))
        names = modules_in(job) if again else ()
        self._by_module = np.zeros((len(self._index), len(order), len(names)))
        for kind, part in enumerate(by_kind):
            for module, name in enumerate(names):
                self._by_module[:, kind, module] = self._again(part, name)
        self.forward, self.backward, self.weight, self.recompute, self.modules = self._passes(table)

    def _passes(self, table: StageKinds) -> Passes:
        forward, backward, weight, *again = (over_stages(table, columns) for columns in self._by_part)
        repeated = again[0] if again else np.zeros((1, 1))
        return Passes(forward, backward, weight, repeated, over_layers(table, self._by_module))

    def before(self) -> Passes:
        """The virtual stages before each kind's last rank."""
        table = self._table
        reached = table._replace(counts=table.before, first=table.until > 0, last=np.zeros_like(table.last))
        return self._passes(reached)

    def final(self) -> Passes:
        """The last virtual stage, [mesh]."""
        one = each(self._table, lambda column: column[:, :1])
        one = one._replace(counts=one.final, first=one.until < 0, last=one.until >= 0)
        return each(self._passes(one), lambda column: column[:, 0])

    def over(self, job: Job) -> Passes:
        """All of the virtual stages, [mesh]."""
        return each(self._passes(whole_model(job)), lambda column: column[:, 0])

    def _seconds(self, direction: Direction) -> Floats:
        """Compute and exposed communication of a part, [mesh]."""
        seconds = direction.compute_s[self._index]
        for axis in AXES:
            seconds = seconds + self._shown_s(direction, axis)
        return np.maximum(seconds, self._host_s(direction))

    def _shown_s(self, direction: Direction, axis: Axis) -> Floats:
        """What shows of an axis' communication, [mesh]."""
        exposed = direction.exposed_s[axis.name][self._index]
        if axis.overlap not in self._columns:
            return exposed
        overlapped = direction.overlapped_s[axis.name][self._index]
        return np.where(self._columns[axis.overlap], overlapped, exposed)

    def _again(self, part: Part, name: str) -> Floats:
        """Running a module of a part again, [mesh]."""
        module = part.modules.get(name)
        if module is None:
            return np.zeros(len(self._index))
        seconds = module.compute_s[self._index]
        for axis in AXES:
            if axis.name in module.sends:
                seconds = seconds + module.sends[axis.name] * self._shown_s(part.forward, axis)
        return seconds

    def queued_bytes(self, job: Job, shard: Shard, microbatches: Ints, alive: Floats) -> Floats:
        """Activations a rank's collectives keep reserved per micro-batch, as far as the GPU lags behind the host.

        The host is no further ahead than the queue of launches is long, however many layers and micro-batches a rank
        holds. What the micro-batches that fill a pipeline leave behind, the activations of the next are cut from: where
        no more follow, that of one stays.
        """
        tp, tokens = shard.tp[self._index], shard.tokens[self._index]
        each = effects.queued_activations(job.runtime, tp, tokens, job.model.hidden)
        if not each.any():
            return np.zeros(self.forward.shape)
        nothing = np.zeros(len(self._index))
        queued = over_stages(self._table, [*(each * self._lag(part) for part in self._by_kind), nothing, nothing])
        whole = over_stages(self._table, [*(each for _ in self._by_kind), nothing, nothing])
        issued = [launches(job, part.forward.host_s, part.backward.host_s)[self._index] for part in self._by_kind]
        most = whole * QUEUED_LAUNCHES / np.maximum(over_stages(self._table, [*issued, nothing, nothing]), 1.0)
        steady = (microbatches > self._columns["pp"])[:, None]
        return np.minimum(np.where(steady, alive * queued, queued), most) / np.maximum(alive, 1.0)

    def _lag(self, part: Part) -> Floats:
        """Near 1 where a layer keeps the GPU busy for longer than the host needs to issue it, near 0 where shorter."""
        ways = (part.forward, part.backward)
        gpu_s = sum((way.gemm_s + way.attention_s + way.stream_s + way.busy_s["tp"])[self._index] for way in ways)
        host_s = sum((self._host_s(way) for way in ways), start=np.zeros(len(self._index)))
        return gpu_s**4 / (gpu_s**4 + host_s**4)

    def _host_s(self, direction: Direction) -> Floats:
        return direction.host_s[self._index] + self._collective_s * direction.members[self._index]


def _collective_s(job: Job, columns: Columns) -> Floats | float:
    """Host time that a pipeline across nodes adds to each tensor-parallel collective, per member; [mesh].

    Shardings of one pool among several have no pipeline yet, and no runtime that adds it joins several pools.
    """
    if "pp" not in columns:
        return 0.0
    ranks = columns["tp"] * columns["cp"] * columns["dp"] * columns["pp"]
    across = (columns["pp"] > 1) & (ranks > job.pool.gpus_per_node)
    return effects.pipelined_collective_s(job.runtime, across) / job.pool.node.host_speed


class StageMemory:
    """Activation bytes of stages from parts."""

    def __init__(self, job: Job, gathered: Gathered, table: StageKinds) -> None:
        self._gathered, self._table = gathered, table
        self._by_kind = [gathered.parts[kind] for kind in kinds(job.model)]

    def layers(self, field: str) -> Floats:
        """Summed over a rank's layers and its image encoder, for one micro-batch through all of them."""
        nothing = np.zeros(len(self._gathered.place))
        parts = [*self._by_kind, self._gathered.parts[EMBEDDING]]
        kept = [getattr(part.kept, field)[self._gathered.place] for part in parts]
        return over_stages(self._table, [*kept, nothing])

    def modules(self, job: Job) -> Floats:
        """[mesh, rank, module] of a rank's layers, what selective recompute of each module does not keep."""
        names, place = modules_in(job), self._gathered.place
        saved = np.zeros((len(place), len(self._by_kind), len(names)))
        for kind, part in enumerate(self._by_kind):
            for module, name in enumerate(names):
                if name in part.modules:
                    saved[:, kind, module] = part.modules[name].saved[place]
        return over_layers(self._table, saved)

    def largest(self, field: str) -> Floats:
        """Of the largest layer a rank holds."""
        kept = [
            np.where(self._table.counts[..., place] > 0, getattr(part.kept, field)[self._gathered.place][:, None], 0.0)
            for place, part in enumerate(self._by_kind)
        ]
        largest: Floats = np.max(kept, axis=0)
        return largest

    def head(self) -> Floats:
        """Kept and working bytes at the loss, on the rank that holds the last virtual stage."""
        head = self._gathered.parts[HEAD].kept
        return self._table.last * (head.whole + head.working)[self._gathered.place][:, None]


def over_all(job: Job, columns: list[Floats]) -> Floats:
    """[mesh] columns of each kind, the embedding and the head, summed over the whole model."""
    return over_stages(whole_model(job), columns)[:, 0]


def whole_model(job: Job) -> StageKinds:
    """All layers on one rank."""
    return each(stages(job.model, ((0,),), (len(layer_kinds(job.model)),)), lambda column: column[None])


def over_model(job: Job, gathered: Gathered, seconds: Callable[[Part], Floats]) -> Floats:
    """One figure of each part, summed over the whole model, [mesh]."""
    keys: list[LayerKind | str] = [*kinds(job.model), EMBEDDING, HEAD]
    return over_all(job, [seconds(gathered.parts[key]) for key in keys])[gathered.place]


def least_s(part: Part) -> Floats:
    """Forward and backward of a part with every overlap that helps."""
    total: Floats = np.zeros_like(part.weight_s)
    for direction in (part.forward, part.backward):
        total = total + direction.compute_s
        for axis in AXES:
            total = total + np.minimum(direction.exposed_s[axis.name], direction.overlapped_s[axis.name])
    return total


def temporary_bytes(columns: Columns, layer_bytes: Floats) -> Floats:
    """What hiding expert exchanges holds besides: a layer of a second micro-batch.

    One micro-batch goes forward through the layers while another goes back through them, so that as many are filled as
    are given back, but for the two at work.
    """
    return np.where(columns["overlap_ep"][:, None], layer_bytes, 0.0)


def graph_bytes(job: Job, inputs: Floats, in_flight: Floats) -> Floats:
    """What graphs of single layers hold besides: an input each of their own, for every micro-batch in flight.

    A graph is replayed on the tensors it was captured with. A graph of the whole step has its inputs within it.
    """
    return inputs * in_flight if job.words.graphs == "partial" else np.zeros_like(inputs)


class Layout(NamedTuple):
    """Layers on each virtual stage of a pipeline, and who holds it."""

    place: Place
    layers: tuple[int, ...]

    @property
    def pp(self) -> int:
        """Ranks."""
        return len(self.place[0])

    @property
    def vp(self) -> int:
        """Chunks of a rank."""
        return len(self.place)


def layout(schedule: str, pp: int, vp: int, layers: tuple[int, ...]) -> Layout:
    """The layout of a schedule's pipeline."""
    return Layout(_place(schedule, pp, vp), layers)


@lru_cache(maxsize=4096)
def _place(schedule: str, pp: int, vp: int) -> Place:
    return tuple(tuple(ranks) for ranks in find(schedule).place(pp, vp).tolist())


class Layouts(tuple[Layout, ...]):
    """The layouts of a space; their stages are worked out once."""

    _kinds_of_rank: Ints
    _unequal: Bools
    _stages: dict[bool, StageKinds]
    _alive: dict[tuple[int, str, int, bool], Floats]

    def stages(self, model: ModelSpec, *, every_rank: bool) -> StageKinds:
        """The kinds of rank of every layout, [layout, rank]."""
        if not hasattr(self, "_stages"):
            self._stages = {}
        if every_rank not in self._stages:
            self._stages[every_rank] = stack([stages(model, *layout, every_rank) for layout in self])
        return self._stages[every_rank]

    @property
    def unequal(self) -> Bools:
        """Whether the chunks of each have unequal layers."""
        if not hasattr(self, "_unequal"):
            self._unequal = np.array([len(set(each.layers)) > 1 for each in self], dtype=bool)
        return self._unequal

    def kinds_of_rank(self, model: ModelSpec) -> Ints:
        """How many kinds of rank each layout has, [layout]."""
        if not hasattr(self, "_kinds_of_rank"):
            self._kinds_of_rank = np.array([len(stages(model, *layout).rank) for layout in self])
        return self._kinds_of_rank

    def alive(self, model: ModelSpec, at: int, schedule: str, m: int, *, every_rank: bool) -> Floats:
        """The most micro-batches alive on a rank of each kind of one layout; kinds that it lacks repeat the first."""
        if not hasattr(self, "_alive"):
            self._alive = {}
        key = (at, schedule, m, every_rank)
        if key not in self._alive:
            kind = np.arange(self[at].pp) if every_rank else stage_kind_of_rank(model, *self[at])
            found = np.zeros(self.stages(model, every_rank=every_rank).rank.shape[1])
            np.maximum.at(found, kind, most_alive(schedule, self[at].pp, self[at].vp, m, self[at].layers))
            found[kind.max() + 1 :] = found[0]
            self._alive[key] = found
        return self._alive[key]

    def in_line(self) -> Layouts:
        """The same virtual stages, each on a rank of its own."""
        return Layouts(Layout((tuple(range(len(each.layers))),), each.layers) for each in self)
