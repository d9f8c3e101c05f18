"""Lower bounds of grids, the widest part of a search: their parts are timed only where they may matter.

Most grids differ from another one in ways that seldom gain. They are bounded by that one, their *sibling*:

- Experts split beyond a node or further than the other layers. The sibling has whole experts: splitting sends more and
  repeats nothing less, so that at most the matrix products can be quicker, and those no quicker than the GPU's peak.
- As many tokens on a rank from longer micro-batches cut into more pieces. The sibling has the fewest pieces: more of
  them send more to each other and run the same operators on as many tokens, so that at most attention can be quicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column, Columns, distinct
from astra.cost import effects, memory, step
from astra.cost.gathered import graph_bytes
from astra.cost.layers import EMBEDDING, HEAD
from astra.cost.parts import Part, pieces
from astra.cost.stage import (
    SHARD_COLUMNS,
    Gathered,
    expert_groups,
    least_s,
    over_all,
    over_model,
    retention,
    shard_groups,
    shard_of,
)
from astra.cost.state import WORKSPACE_BYTES, Held, Holding, local, static_bytes, whole_gradient_bytes
from astra.cost.timed import PartTable
from astra.layers import blocks, ends
from astra.layers import weights as weights_of
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Kept, Layer, Shard
from astra.layers.split import kinds
from astra.operators.gemm import most_flops_per_s
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.space import Space
from astra.spec.job import Job

FEW: Final = 8192  # grids that are timed sooner than they are compared
_FIRST_ASKED, _ASKED = 64, 8192  # grids at a time: where some have room, a few settle it


class Siblings(NamedTuple):
    """Which grid bounds which."""

    of: Ints  # [grid] itself if it is a usual one; -1 where there is none
    split: Bools  # [grid] whether its experts are split and those of the sibling are not

    @property
    def usual(self) -> Ints:
        """Grids that are timed first."""
        return np.flatnonzero(self.of == np.arange(len(self.of)))


class Grids:
    """The grids of a job with their parts and bounds, which are worked out once for every search among them."""

    def __init__(
        self,
        job: Job,
        restrictions: Restrictions,
        user_rules: Sequence[Rule] = (),
        table: PartTable | None = None,
        like: Space | None = None,
    ) -> None:
        self.space = Space(job, restrictions, user_rules, like)
        self.job = self.space.job
        self.table = PartTable() if table is None else table  # of such a job, whatever its batch
        self._placed: list[Gathered] = []
        self._rest: tuple[float, Ints, Floats] | None = None

    @property
    def timed(self) -> Sequence[Gathered]:
        """Parts of every sharding that was looked at."""
        return self.table.timed

    def none_fits(self) -> bool:
        """Whether no grid has room for its layers and its state, so that none need be timed."""
        count = len(self.space.strategies)
        few, step = np.arange(0, count, -(-count // _FIRST_ASKED)), -(-count // _ASKED)
        rows = (np.arange(start, count, step) for start in range(step))  # from all over the table
        return not any(grids_may_fit(self.job, self.space, some).any() for some in (few, *rows))

    @cached_property
    def siblings(self) -> Siblings:
        """The grid that bounds each grid."""
        return siblings_of(self.job, self.space)

    @cached_property
    def usual(self) -> tuple[Ints, Floats, Gathered]:
        """Grids that are looked at first, with their bounds and parts."""
        rows = self.siblings.usual
        gathered = self.parts_of(rows)
        return rows, grid_bound_s(self.job, self.space, gathered, rows), gathered

    @cached_property
    def _by_siblings(self) -> BySiblings:
        return BySiblings(self.job, self.space, self.usual[2], self.siblings)

    def rest(self, limit_s: float) -> tuple[Ints, Floats]:
        """All others whose bound by their siblings is below a limit, and that bound."""
        if len(self.usual[0]) == len(self.space.strategies):
            return np.zeros(0, np.int64), np.zeros(0)
        if self._rest is None or limit_s > self._rest[0]:
            self._rest = limit_s, *self._by_siblings.below(limit_s)
        _, rows, bound_s = self._rest
        return rows[bound_s < limit_s], bound_s[bound_s < limit_s]

    def open_in(self, others: Grids, limit_s: float) -> tuple[Ints, Floats]:
        """Grids that are among others of the same degrees, all that split experts, and that these bound below a limit.

        Those bounds too.
        """
        bound_s = np.full(len(others.space.strategies), np.inf)
        usual, usual_s, _ = others.usual
        bound_s[usual] = usual_s
        rest, _ = others.rest(limit_s)
        if len(rest):
            bound_s[rest] = grid_bound_s(others.job, others.space, others.parts_of(rest), rest)
        bound_s = bound_s[others.space.grids["ep"] > 1]
        rows = np.flatnonzero(bound_s < limit_s)
        return rows, bound_s[rows]

    def parts_of(self, rows: Ints) -> Gathered:
        """The parts of some grids, timed unless a table has all of them."""
        for known in self._placed:
            if (known.place[rows] >= 0).all():
                return known
        self._placed.append(gather_grids(self.job, self.space, rows, self.table))
        return self._placed[-1]


def siblings_of(job: Job, space: Space) -> Siblings:
    """The grid that bounds each grid."""
    degrees, count = space.degrees, len(space.strategies)
    if effects.clock_follows_power(job.runtime):  # the clock ties the products' time to all others
        return Siblings(np.arange(count), np.zeros(count, bool))
    apart = degrees["etp"] > np.minimum(degrees["tp"], space.facts["scaleup_gpus"])
    split, cp, mbs = apart[space.degree], space.grids["cp"], space.grids["mbs"]
    some, pair = distinct(cp, mbs)
    cut = np.arange(len(some)) if count <= FEW else np.unique(mbs[some] / cp[some], return_inverse=True)[1]
    within = (degrees[name] for name in ("tp", "pp", "ep", "sp"))
    _, degree = distinct(*within, np.where(apart, 1, degrees["etp"]))
    kinds, kind = distinct(degree[space.degree], cut[pair])
    whole, nobody = np.flatnonzero(~split), np.iinfo(np.int64).max
    fewest = np.full(len(kinds), nobody)
    np.minimum.at(fewest, kind[whole], cp[whole] * count + whole)  # the first of those with the fewest pieces
    return Siblings(np.where(fewest == nobody, -1, fewest % count)[kind], split)


def gather_grids(job: Job, space: Space, rows: Ints, table: PartTable) -> Gathered:
    """The parts of some grids: of all with flash attention (if that may be on), then of all without."""
    settings, grids = space.flash_settings, len(space.strategies)
    found = table.gather(job, _shardings(space, rows))
    place = np.full((len(settings), grids), -1)
    place[:, rows] = found.place.reshape(len(settings), len(rows))
    return found._replace(place=place.ravel())


def _shardings(space: Space, rows: Ints) -> dict[str, Column]:
    """What the parts of some grids depend on."""
    settings = space.flash_settings
    columns = {name: np.tile(column[rows], len(settings)) for name, column in space.grids.items()}
    return columns | {"flash": np.repeat(settings, len(rows))}


def time_together(several: Sequence[Grids]) -> None:
    """Time at once what each of several searches of one table looks at first: a call costs more than its rows."""
    columns = [_shardings(grids.space, grids.siblings.usual) for grids in several if not grids.space.empty]
    if len(columns) > 1:
        together = {name: np.concatenate([each[name] for each in columns]) for name in SHARD_COLUMNS}
        several[0].table.gather(several[0].job, together)


def may_fit(job: Job, shards: Columns) -> Bools:
    """Whether a GPU has room for one layer at work and its input: parts that cannot run need not be timed."""
    return memory.fits(job, layer_bytes(job, shards))


def layer_bytes(job: Job, shards: Columns) -> Floats:
    """The least layer at work and its input, on any GPU."""
    shard = _shard(job, shards)
    layers = [_kept(job, shard, blocks.layer(job.model, kind, shard)) for kind in kinds(job.model)]
    return np.asarray(np.min([kept.working + kept.checkpoint for kept in layers], axis=0))


def _shard(job: Job, shards: Columns) -> Shard:
    tp, cp, ep, etp, mbs, sp, flash = (shards[name] for name in SHARD_COLUMNS)
    return Shard(job.workload.seq, mbs, tp, cp, ep, etp, sp, flash, retention(job))


def _kept(job: Job, shard: Shard, layer: Layer) -> Kept:
    """Activation bytes of a layer, [row]."""
    return Kept(*(job.workload.widening * np.broadcast_to(column, len(shard.tp)) for column in layer.kept))


def layers_may_fit(job: Job, space: Space, gathered: Gathered, rows: Ints) -> Bools:
    """As ``grids_may_fit``, of gathered parts and at once: a layer at work beside its pipeline's average of weights."""
    grids = {name: column[rows] for name, column in space.grids.items()}
    kept = [gathered.parts[kind].kept for kind in kinds(job.model)]
    least = np.min([each.checkpoint + each.working for each in kept], axis=0)[gathered.place[rows]]
    if job.workload.task != "lora":
        of_layers = (weights_of.layer_weights(job.model, kind) for kind in layer_kinds(job.model))
        dense, expert = local(
            reduce(weights_of.Weights.plus, of_layers, weights_of.Weights()),
            *(grids[name] for name in ("tp", "ep", "etp")),
        )
        sharded = (space.allowed_pairs(grids) & (space.shardings.zero >= 2)).any(axis=1)
        each_bytes = job.workload.element_bytes + whole_gradient_bytes(job)
        least = least + np.where(sharded, 0.0, each_bytes * (dense + expert) / grids["pp"])
    return memory.fits(job, least)


def grids_may_fit(job: Job, space: Space, rows: Ints) -> Bools:
    """Whether grids have room for one layer at work, with flash attention if that may be on, beside their state.

    Of the stages with a kind of layer, some one holds the average of a pipeline's or more of it, and runs one of them;
    so it is with all kinds together. The first stage has the embedding. Graphs of single layers hold their inputs, of
    one micro-batch at least.
    """
    grids, model = {name: column[rows] for name, column in space.grids.items()}, job.model
    shard = _shard(job, grids | {"flash": np.full(len(rows), space.flash_settings[0])})
    layers = [_kept(job, shard, blocks.layer(model, kind, shard)) for kind in kinds(model)]
    embedding = _kept(job, shard, ends.embedding(model, shard))
    allowed, stages = space.allowed_pairs(grids), grids["pp"]

    def least(weights: weights_of.Weights, inputs: Floats, over: Ints) -> Floats:
        state = np.where(allowed, _state_bytes(job, space, grids, weights, over), np.inf).min(axis=1)
        return np.asarray(state + graph_bytes(job, inputs, 1 / over))

    order, input_bytes = layer_kinds(model), np.min([each.checkpoint for each in layers], axis=0)
    working = np.stack([each.working for each in layers]) + input_bytes
    counts = [order.count(kind) for kind in kinds(model)]
    of_kinds = [weights_of.layer_weights(model, kind).times(n) for kind, n in zip(kinds(model), counts, strict=True)]
    inputs = [n * each.checkpoint for n, each in zip(counts, layers, strict=True)]
    first, last = weights_of.embedding_weights(model), weights_of.head_weights(model)
    whole = reduce(weights_of.Weights.plus, of_kinds, first.plus(last))
    any_s = least(whole, sum(inputs, embedding.checkpoint), stages)
    found = [any_s + np.where(stages > 1, working.min(axis=0), working.max(axis=0))]
    if (stages > 1).any():
        found.append(least(first, embedding.checkpoint, np.ones_like(stages)) + working.min(axis=0))
        for weights, own, at_work in zip(of_kinds, inputs, working, strict=True):
            found.append(least(weights, own, stages) + at_work)
    return memory.fits(job, np.max(found, axis=0) + WORKSPACE_BYTES)


def _state_bytes(job: Job, space: Space, grids: Columns, weights: weights_of.Weights, stages: Ints) -> Floats:
    """[grid, sharding] what a rank with an even share of some weights over stages holds for them, adapters left out."""
    shares = local(weights, *(grids[name] for name in ("tp", "ep", "etp")))
    dense, expert = ((share / stages)[:, None] for share in shares)
    trained = 0.0 if job.workload.task == "lora" else 1.0
    # Of frozen weights as many may be in fp8 as there are; of trained ones, which have copies then, none need be.
    held = Held(dense, expert, trained * dense, trained * expert, (1 - trained) * (dense + expert))
    ranks, expert_ranks = (column[:, None] for column in shard_groups(job, grids, expert_groups(grids)[0]))
    zero, offload, moments, reshard = space.shardings
    units, pipelined = np.full(1, effects.units(job.runtime)), (grids["pp"] > 1)[:, None]
    how = Holding(zero, offload, ranks, expert_ranks, moments, reshard, pipelined, units)
    static = static_bytes(job, held, how, np.ones(1))
    # Where units are gathered and reduced one by one, neither weights nor gradients need be there at the peak.
    passing = how.in_units & (zero >= 2)
    return np.asarray(np.where(passing, 0.0, static.weights + static.gradients) + static.optimizer)


def grid_bound_s(job: Job, space: Space, gathered: Gathered, rows: Ints) -> Floats:
    """Compute and exposed communication of all micro-batches, spread evenly over the stages.

    Flash attention, which comes first where it may be on, is never slower than none.
    """
    whole_s = over_model(job, gathered.take(rows), least_s)
    return step.least_seconds(job, _rounds(job, space, rows) * whole_s)


class BySiblings:
    """Bounds of grids by their siblings, which have parts."""

    def __init__(self, job: Job, space: Space, gathered: Gathered, siblings: Siblings) -> None:
        self._job, self._space, self._siblings = job, space, siblings
        usual = siblings.usual
        self._floor_s = floor_s = float(products_s(job, np.asarray(job.pool.gpus)))
        own, rounds = gathered.take(usual), _rounds(job, space, usual)
        apart, gaps, products, attention = (
            rounds * over_model(job, own, seconds) for seconds in (_apart_s, _gaps_s, _products_s, _attention_s)
        )
        # By usual grid, and one more for those without a sibling; attention, and what hides sends.
        nobody = len(usual)
        self._attention_s, self._gaps_s = np.append(attention, 0.0), np.append(gaps, 0.0)
        if effects.launches_ahead(job.runtime):  # what still shows fills the gaps once more where the host runs ahead
            self._gaps_s *= 2
        quicker = apart - np.maximum(products - floor_s, 0.0)
        self._known_s = np.concatenate([apart, [floor_s], quicker, [floor_s]])  # in pieces, then split
        place = np.full(len(siblings.of) + 1, nobody)
        place[usual] = np.arange(nobody)
        self._sibling: Ints = place[siblings.of]
        self._known = self._sibling + (nobody + 1) * siblings.split  # the bound of each grid among those

    def below(self, limit_s: float) -> tuple[Ints, Floats]:
        """Grids whose bound is below a limit, and that bound."""
        job, of = self._job, self._siblings.of
        could = step.least_seconds(job, self._known_s - np.tile(self._attention_s, 2)) < limit_s
        rows = np.flatnonzero(could.take(self._known) & (of != np.arange(len(of))))
        if not len(rows):
            return rows, np.zeros(0)
        spent_s, sent_s = _pieces_s(job, self._space, rows)
        sibling = self._sibling.take(rows)
        attention_s = self._attention_s.take(sibling)
        bound_s = self._known_s.take(self._known.take(rows)) - np.maximum(attention_s - spent_s, 0.0)
        shown_s = np.maximum(sent_s - np.maximum(attention_s, spent_s) - self._gaps_s.take(sibling), 0.0)
        bound_s = step.least_seconds(job, np.where(of.take(rows) < 0, self._floor_s, bound_s + shown_s))
        hopeful = np.flatnonzero(bound_s < limit_s)
        return rows.take(hopeful), bound_s.take(hopeful)


def _apart_s(part: Part) -> Floats:
    """Forward and backward but for what the pieces of a sequence send each other."""
    sent_s = (np.minimum(way.exposed_s["cp"], way.overlapped_s["cp"]) for way in (part.forward, part.backward))
    return np.asarray(least_s(part) - sum(sent_s))


def _products_s(part: Part) -> Floats:
    return part.forward.gemm_s + part.backward.gemm_s


def _gaps_s(part: Part) -> Floats:
    """Where kernels wait for the host, and pieces can be sent."""
    ways = (part.forward, part.backward)
    return np.asarray(sum(way.compute_s - way.gemm_s - way.attention_s - way.stream_s for way in ways))


def _attention_s(part: Part) -> Floats:
    return part.forward.attention_s + part.backward.attention_s


def _pieces_s(job: Job, space: Space, rows: Ints) -> tuple[Floats, Floats]:
    """Attention, and what the pieces of a sequence send each other, of some grids; neither asks about experts."""
    grids = space.grids
    _, degree = distinct(space.degrees["tp"], space.degrees["cp"])
    first, place = distinct(degree[space.degree[rows]], grids["mbs"][rows])
    one, flash = np.ones(len(first), np.int64), np.full(len(first), space.flash_settings[0])
    few = {name: grids[name][rows[first]] for name in ("tp", "cp", "mbs", "sp")}
    found = pieces(job, shard_of(job, few | {"ep": one, "etp": one, "flash": flash}))
    keys: list[LayerKind | str] = [*kinds(job.model), EMBEDDING, HEAD]
    own = [found[key] for key in keys]
    spent_s, sent_s = (over_all(job, list(columns))[place] for columns in zip(*own, strict=True))
    rounds = _rounds(job, space, rows)
    return rounds * spent_s, rounds * sent_s


def products_s(job: Job, gpus: Ints) -> Floats:
    """Every matrix product of a step as fast as the GPU runs any, on so many GPUs."""
    model, seq = job.model, job.workload.seq
    attention = weights_of.attention_flops_per_token(model, seq)
    return _at_peak_s(job, weights_of.forward_flops_per_token(model, seq) - attention, gpus)


def experts_at_peak_s(job: Job) -> float:
    """Those of routed experts, on one GPU."""
    return float(_at_peak_s(job, weights_of.module_flops_per_token(job.model, ("experts",), job.workload.seq), 1))


def _at_peak_s(job: Job, forward: float, gpus: Ints | int) -> Floats:
    """A step's products of so many forward FLOPs per token."""
    work, device = job.workload, job.pool.device
    passes = 2 if work.task == "lora" else 3  # the weights of a LoRA run have no gradients of their own
    if work.low:
        peak = max(device.peak(name) for name in {work.precision, "bf16"} if device.computes(name))
    else:
        peak = most_flops_per_s(device, work.precision)
    flops = passes * forward * work.global_batch * work.seq
    return np.asarray(flops / (gpus * peak * effects.clock(job.runtime, job.pool.device.generation)))


def _rounds(job: Job, space: Space, rows: Ints) -> Floats:
    """Micro-batches over stages."""
    dp, mbs, pp = (space.grids[name][rows] for name in ("dp", "mbs", "pp"))
    return np.asarray(job.workload.global_batch // (dp * mbs) / pp)
