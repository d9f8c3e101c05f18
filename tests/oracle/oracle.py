"""The planner restated in plain Python: one strategy at a time, loops and floats. What the columns must equal.

Letters: t, p, v, c, e, x, d are tp, pp, vp, cp, ep, etp, dp; b the micro-batch, m the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from astra.efficiency import collectives
from astra.families import weights as weights_of
from astra.schedule import makespan_s
from astra.space.names import ALIASES, DERIVED, facts_of, names
from astra.space.restrictions import Restrictions
from astra.space.rules import RULES, Rule
from astra.spec.job import Job
from astra.spec.strategy import METHODS, OFFLOADS, OVERLAPS, RECOMPUTES, SCHEDULES, Strategy
from astra.table import CHOICES, FIELDS
from tests.oracle.layers import Layers, Part, Shard, hidden

CPU_BYTES_PER_S = 28e9  # of the optimizer's update in host memory
STATE_BYTES = {"adam": 12, "sgd": 8}
UPDATE_BYTES = {"adam": 30, "sgd": 22}
SAVER = ("recompute", "method", "recompute_layers")
Row = dict[str, Any]


class Mesh(NamedTuple):
    """A strategy without its memory savers."""

    shard: Shard
    p: int
    d: int
    v: int
    schedule: str
    layers: tuple[int, ...]  # of each virtual stage
    on: frozenset[str]  # overlaps

    @property
    def replicas(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Ranks and stride of the groups that share a dense and an expert parameter."""
        s = self.shard
        return (self.d * s.c, s.t), (s.t * s.c * self.d // (s.e * s.x), s.e * s.x)


class Saver(NamedTuple):
    """Recompute."""

    recompute: str
    method: str
    n: int


class Holder(NamedTuple):
    """Where states are."""

    zero: int
    offload: str


class Rank(NamedTuple):
    """One rank of a pipeline: the parts it runs, chunk by chunk, and its parameters."""

    chunks: list[list[Part]]  # layers only
    ends: list[Part]  # embedding, head
    head: Part | None
    dense: float
    expert: float
    trained: tuple[float, float]
    in_flight: int

    @property
    def layers(self) -> list[Part]:
        return [part for chunk in self.chunks for part in chunk]

    def seconds(self, way: str, on: frozenset[str]) -> float:
        return sum(part.seconds(way, on) for part in (*self.layers, *self.ends))


class Exchange(NamedTuple):
    """Data-parallel communication that shows: once a step, and in every micro-batch."""

    once_s: float
    each_s: float


class Oracle(Layers):
    """Costs, legality and search for one job."""

    def __init__(self, job: Job, limits: Restrictions | None = None, user_rules: Sequence[Rule] = ()) -> None:
        super().__init__(job)
        self.limits = limits or Restrictions()
        self.facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
        self.rules: list[tuple[Rule, list[str], dict[Any, bool]]] = [
            (rule, _fields_of(rule), {}) for rule in (*RULES, *user_rules)
        ]
        self.spoken = {name for rule in user_rules for name in rule.needs}
        self.ranks, self.saved = lru_cache(None)(self._ranks), lru_cache(None)(self._saved)
        self.states, self.exchange = lru_cache(None)(self._states), lru_cache(None)(self._exchange)

    # One strategy.

    def microbatches(self, mesh: Mesh) -> int:
        return self.job.workload.global_batch // (mesh.d * mesh.shard.b)

    def step_s(self, mesh: Mesh, saver: Saver, holder: Holder) -> float:
        """Pipeline, then what data parallelism shows, the optimizer and the host."""
        ranks, exchange, updates = self.ranks(mesh), self.exchange(mesh, holder), self.states(mesh, holder)
        forward_s = [rank.seconds("forward", mesh.on) for rank in ranks]
        backward_s = [rank.seconds("backward", mesh.on) for rank in ranks]
        weight_s = sum(part.weight_s for rank in ranks for part in (*rank.layers, *rank.ends))
        slowest_s = max(
            f + b + again + shown.each_s
            for f, b, (_, again), shown in zip(forward_s, backward_s, self.saved(mesh, saver), exchange, strict=True)
        )
        again_s = self._all_again_s(mesh, saver) + mesh.p * max(shown.each_s for shown in exchange)
        pipeline_s = self._makespan_s(mesh, sum(forward_s), sum(backward_s) + again_s, weight_s, slowest_s)
        after_s = max(shown.once_s + update_s for shown, (_, update_s) in zip(exchange, updates, strict=True))
        return pipeline_s + after_s + self.job.runtime.step_host_s

    def peak_bytes(self, mesh: Mesh, saver: Saver, holder: Holder) -> float:
        """Allocated on the worst rank."""
        received = 4 * self.tokens(mesh.shard)[1] * self.job.model.hidden if mesh.p > 1 else 0.0
        both = zip(self.saved(mesh, saver), self.states(mesh, holder), strict=True)
        return max(active + static for (active, _), (static, _) in both) + received + self.job.runtime.workspace_bytes

    def fits(self, peak_bytes: float) -> bool:
        runtime = self.job.runtime
        return peak_bytes * runtime.reserved_ratio + runtime.reserved_bytes <= self.job.limit_bytes

    def _ranks(self, mesh: Mesh) -> list[Rank]:
        s, model, parts = mesh.shard, self.job.model, self.parts(mesh.shard)
        starts = [sum(mesh.layers[:k]) for k in range(mesh.p * mesh.v)]
        found = []
        for r in range(mesh.p):
            mine = [range(starts[k], starts[k] + mesh.layers[k]) for k in range(r, mesh.p * mesh.v, mesh.p)]
            first, last = r == 0, r == mesh.p - 1
            held = [weights_of.layer_weights(model, self.kinds[i]) for chunk in mine for i in chunk]
            held += [weights_of.embedding_weights(model)] * first + [weights_of.head_weights(model)] * last
            if last and mesh.p > 1 and model.tied_embeddings:
                held.append(weights_of.tied_head_weights(model))
            dense = sum(part.sharded / s.t + part.replicated for part in held)
            expert = sum(part.expert / (s.e * s.x) for part in held)
            chunks = [[parts[self.kinds[i]] for i in chunk] for chunk in mine]
            ends = [parts["embedding"]] * first + [parts["head"]] * last
            trained = (dense, expert)
            if self.job.workload.task == "lora":
                added = sum(part.adapters for part in (*sum(chunks, []), *ends))
                trained, dense = (added, 0.0), dense + added
            found.append(Rank(chunks, ends, parts["head"] if last else None, dense, expert, trained, self._in_flight(mesh, r)))
        return found

    def _in_flight(self, mesh: Mesh, r: int) -> int:
        """(micro-batch, chunk) pairs alive on rank r at the worst moment."""
        p, v, m = mesh.p, mesh.v, self.microbatches(mesh)
        # Micro-batches pass a chunk in groups of p; of more where that would leave a group shorter than p.
        group = next((g for g in range(p, m) if m % g == 0 or m % g >= p), max(p, m))
        ahead = {"1f1b": p - r, "interleaved": 2 * (p - r - 1) + (v - 1) * group + 1, "gpipe": m, "zb": p}
        return min(ahead[mesh.schedule], m * v)

    def _saved(self, mesh: Mesh, saver: Saver) -> list[tuple[float, float]]:
        """Of each rank: bytes kept and being worked on, and seconds to recompute one micro-batch."""
        found = []
        for rank in self.ranks(mesh):
            layers, v, n = rank.layers, mesh.v, saver.n
            chunk, count = max(len(c) for c in rank.chunks), max(len(layers), 1)
            whole, inputs = sum(part.whole for part in layers), sum(part.checkpoint for part in layers)
            all_s = sum(part.seconds("forward", mesh.on) for part in layers)
            kept, again_s, stretch = whole, 0.0, 0
            if saver.recompute == "selective":
                kept, again_s = sum(part.selective for part in layers), sum(part.attention_s for part in layers)
            elif saver.method == "uniform" and saver.recompute == "full":
                kept, again_s, stretch = min(ceil(chunk / n) * v / count, 1) * inputs, all_s, min(n, chunk)
            elif saver.recompute == "full":  # block: the first n layers of each chunk, one at a time
                share = min(n * v / count, 1)
                kept, again_s, stretch = share * inputs + (1 - share) * whole, share * all_s, 1
            largest = max((part.whole for part in layers), default=0.0)
            working = max((part.working for part in layers), default=0.0) + stretch * largest
            if rank.head is not None:
                working = max(working, rank.head.whole + rank.head.working)
            found.append((kept * rank.in_flight / v + working, again_s))
        return found

    def _all_again_s(self, mesh: Mesh, saver: Saver) -> float:
        """Recompute of one micro-batch over the whole pipeline; under block, the share of the fullest rank's chunks."""
        ranks = self.ranks(mesh)
        layers = [part for rank in ranks for part in rank.layers]
        if saver.recompute == "selective":
            return sum(part.attention_s for part in layers)
        if saver.recompute == "none":
            return 0.0
        fullest = max(max(len(rank.layers) / mesh.v for rank in ranks), 1)
        share = min(saver.n / fullest, 1) if saver.method == "block" else 1
        return share * sum(part.seconds("forward", mesh.on) for part in layers)

    def _makespan_s(self, mesh: Mesh, forward_s: float, backward_s: float, weight_s: float, slowest_s: float) -> float:
        """Every stage once and the slowest m - 1 times more; interleaving divides the bubble."""
        p, v, m, work_s = mesh.p, mesh.v, self.microbatches(mesh), forward_s + backward_s
        send_s = self.send_s("send_recv", 2 * self.tokens(mesh.shard)[1] * self.job.model.hidden, p, self._apart(mesh))
        send_s, blocking = (send_s if p > 1 else 0.0), "p2p" not in mesh.on
        if mesh.schedule == "1f1b":
            hops = 0 if p == 1 else m + 1 if p == 2 else 2 * (p - 1) if m == 1 else 2 * m + 2 * p - 5
            return work_s + (m - 1) * slowest_s + hops * send_s
        if mesh.schedule == "interleaved" and not blocking and m % p == 0:
            return m * slowest_s + (work_s - slowest_s) / v + 2 * (p - 1 + (v - 1) * p) * send_s
        code = SCHEDULES.index(mesh.schedule)  # the other forms have tests of their own
        return float(makespan_s(
            code, p=p, v=v, m=m, forward_s=forward_s, backward_s=backward_s - weight_s, weight_s=weight_s,
            slowest_s=slowest_s, send_s=send_s, blocking=blocking,
        ))  # fmt: skip

    def _apart(self, mesh: Mesh) -> int:
        return mesh.shard.t * mesh.shard.c * mesh.d

    def _states(self, mesh: Mesh, holder: Holder) -> list[tuple[float, float]]:
        """Of each rank: bytes of weights, gradients, optimizer and gathered layers; seconds of the update."""
        job, grad = self.job, self.job.runtime.gradient_bytes
        (ranks, _), (expert_ranks, _) = mesh.replicas
        found = []
        for rank in self.ranks(mesh):
            def owned(dense: float, expert: float, stage: int) -> float:
                return dense / ranks + expert / expert_ranks if holder.zero >= stage else dense + expert

            every, all_trained = rank.dense + rank.expert, sum(rank.trained)
            static = 2 * owned(rank.dense, rank.expert, 3) + (2 * every if job.workload.precision == "fp8" else 0)
            static += grad * owned(*rank.trained, 2)
            static += {0: 0, 1: 0, 2: 1, 3: 2}[holder.zero] * (2 + grad) * every / max(len(rank.layers), 1)
            mine = owned(*rank.trained, 1)
            moved = UPDATE_BYTES[job.workload.optimizer] * mine
            if holder.offload == "none":
                static += STATE_BYTES[job.workload.optimizer] * mine
                update_s = self.stream_s(8 * all_trained + moved, 20)
            else:
                trips = collectives.host_transfer_s(job.pool.device, np.array([(grad + 2) * mine]))
                update_s = float(trips.seconds[0]) + moved / CPU_BYTES_PER_S + self.stream_s(8 * all_trained, 4)
            found.append((static, update_s))
        return found

    def _exchange(self, mesh: Mesh, holder: Holder) -> list[Exchange]:
        """Gradients to their owners behind the last backward, weights back behind the first forward."""
        slow, grad = collectives.overlap_slowdown(self.job.pool, "cluster"), self.job.runtime.gradient_bytes
        found = []
        for rank in self.ranks(mesh):
            def shown_s(busy_s: float, window_s: float, overlap: str, layers: int = len(rank.layers)) -> float:
                window_s = max(window_s, 0.0)
                tail_s = max(busy_s - window_s, busy_s / max(layers, 1)) + slow * min(busy_s, window_s)
                return min(tail_s, busy_s) if overlap in mesh.on else busy_s

            groups = [(size, *group) for size, group in zip(rank.trained, mesh.replicas, strict=True) if size]
            op = "reduce_scatter" if holder.zero else "all_reduce"
            reduce_s = sum(self.send_s(op, grad * size, *group) for size, *group in groups)
            gather_s = sum(self.send_s("all_gather", 2 * size, *group) for size, *group in groups) if holder.zero else 0.0
            backward_s = rank.seconds("backward", mesh.on)
            gradients_s = shown_s(reduce_s, backward_s, "grad")
            weights_s = shown_s(gather_s, rank.seconds("forward", mesh.on), "param")
            again_s = shown_s(gather_s, backward_s - reduce_s, "param")
            found.append({
                0: Exchange(gradients_s, 0.0),
                1: Exchange(gradients_s + weights_s, 0.0),
                2: Exchange(weights_s, gradients_s),
                3: Exchange(0.0, gradients_s + weights_s + again_s),
            }[holder.zero])  # fmt: skip
        return found

    # All strategies.

    def legal(self, row: Row) -> bool:
        """No rule whose names are all known is broken."""
        for rule, fields, known in self.rules:
            if any(field not in row for field in fields):
                continue
            key = tuple(row[field] for field in fields)
            if key not in known:
                cells = {f: np.array([CHOICES[f].index(row[f]) if f in CHOICES else row[f]]) for f in fields}
                known[key] = bool(np.any(rule.breaks(names(cells, self.facts))))
            if known[key]:
                return False
        return True

    def _allowed(self, field: str, values: Sequence[Any]) -> list[Any]:
        return [value for value in values if self.limits.allows(field, value)]

    def cores(self) -> Iterator[Row]:
        """Every factorisation of the GPUs, with expert degrees, sequence parallelism and micro-batches."""
        gpus, moe, depth = self.job.pool.gpus, self.job.model.moe, len(self.kinds)
        several = range(1, gpus + 1)
        for tp, pp, cp in product(several, several, several):
            if gpus % (tp * pp * cp) or pp > depth:
                continue
            degrees = {"tp": tp, "pp": pp, "cp": cp, "dp": gpus // (tp * pp * cp)}
            if not all(self.limits.allows(name, value) for name, value in degrees.items()):
                continue
            eps = [n for n in range(1, moe.experts + 1) if moe.experts % n == 0] if moe else [1]
            etps = [n for n in range(1, min(tp, self.facts["scaleup_gpus"]) + 1) if gpus % n == 0] if moe else [1]
            for ep, etp in product(self._allowed("ep", eps) if moe else eps, self._allowed("etp", etps) if moe else etps):
                batch = self.job.workload.global_batch
                fitting = [n for n in range(1, batch + 1) if batch % n == 0]
                for sp, mbs in product(self._allowed("sp", (False, True)), self._allowed("mbs", fitting)):
                    yield {**degrees, "ep": ep, "etp": etp, "sp": sp, "mbs": mbs}

    def pipelines(self, pp: int) -> Iterator[Row]:
        """Chunks, schedules and splits of a pipeline depth."""
        depth = len(self.kinds)
        stage = ceil(depth / pp)
        chunks = sorted({ceil(stage / size) for size in range(1, stage + 1)})
        for vp in self._allowed("vp", [n for n in chunks if n == 1 or pp * n <= depth]):
            splits = {self._balanced(pp * vp)} | ({(depth // (pp * vp),) * (pp * vp)} if depth % (pp * vp) == 0 else set())
            for schedule in self._allowed("schedule", SCHEDULES):
                if (schedule == "interleaved") == (vp > 1):
                    yield from ({"vp": vp, "schedule": schedule, "layers": layers} for layers in sorted(splits))

    def _balanced(self, stages: int) -> tuple[int, ...]:
        """Fewest layers on the largest stage, the last one carrying the head's work; early stages get the smaller."""
        depth, model = len(self.kinds), self.job.model
        if stages == 1:
            return (depth,)
        untied = 0 if model.tied_embeddings else weights_of.head_weights(model).sharded
        head = 2 * (model.vocab * model.hidden if model.tied_embeddings else untied)
        layer = (weights_of.forward_flops_per_token(model, self.job.workload.seq) - head) / depth
        cost = [(max(ceil((depth - n) / (stages - 1)), n + head / layer), -n) for n in range(depth + 1)]
        last = -min(cost)[1]
        base, extra = divmod(depth - last, stages - 1)
        return (*[base] * (stages - 1 - extra), *[base + 1] * extra, last)

    def savers(self, pp: int, vp: int) -> list[Saver]:
        most = ceil(len(self.kinds) / (pp * vp))
        found = [Saver(kind, "uniform", 1) for kind in self._allowed("recompute", RECOMPUTES) if kind != "full"]
        if self.limits.allows("recompute", "full"):
            counts = self._allowed("recompute_layers", range(1, most + 1))
            found += [Saver("full", method, n) for method in self._allowed("method", METHODS) for n in counts]
        return [saver for saver in found if self.legal(dict(zip(SAVER, saver, strict=True)))]

    def holders(self) -> list[Holder]:
        zeros, offloads = self._allowed("zero", self.job.runtime.zero_stages), self._allowed("offload", OFFLOADS)
        return [Holder(*pair) for pair in product(zeros, offloads) if self.legal(dict(zip(("zero", "offload"), pair)))]

    def switches(self, every: bool) -> list[Row]:
        """Settings of the overlaps and flash attention: the best of each, or every one."""
        fields = [*(f"overlap_{name}" for name in OVERLAPS), "flash"]
        options = [self._allowed(field, (False, True)) for field in fields]
        wide = [kept if every or field in self.spoken else kept[-1:] for field, kept in zip(fields, options, strict=True)]
        return [dict(zip(fields, chosen, strict=True)) for chosen in product(*wide)]

    def considered(self) -> int:
        """Strategies in the space, legal or not."""
        each = {pp: sum(len(self.savers(pp, row["vp"])) for row in self.pipelines(pp)) for pp in range(1, len(self.kinds) + 1)}
        return sum(each[core["pp"]] for core in self.cores()) * len(self.holders()) * len(self.switches(True))

    def meshes(self, every_switch: bool = False) -> Iterator[tuple[Row, Mesh]]:
        """Legal meshes; a switch that has nothing to switch is off."""
        for core in self.cores():
            if not self.legal(core):
                continue
            for pipeline, switch in product(self.pipelines(core["pp"]), self.switches(every_switch)):
                row = {**core, **pipeline, **switch}
                row["overlap_tp"] &= row["sp"] and row["tp"] <= self.facts["scaleup_gpus"]
                row["overlap_p2p"] &= row["schedule"] == "interleaved"
                row["overlap_param"] &= row["overlap_grad"]
                if self.legal(row):
                    yield row, mesh_of(row)

    def strategies(self, every_switch: bool = False) -> Iterator[tuple[Mesh, Saver, Holder]]:
        """Legal strategies."""
        for row, mesh in self.meshes(every_switch):
            for saver, holder in product(self.savers(mesh.p, mesh.v), self.holders()):
                late = {"recompute": saver.recompute, "method": saver.method, "recompute_layers": saver.n}
                late |= {"zero": holder.zero, "offload": holder.offload}
                late["overlap_param"] = row["overlap_param"] and holder.zero > 0
                if self.legal({**row, **late}):
                    yield mesh, saver, holder

    def best(self, every_switch: bool = False) -> dict[tuple[int, int, int], float]:
        """The least step time that fits, of each (tp, pp, ep)."""
        found: dict[tuple[int, int, int], float] = {}
        for mesh, saver, holder in self.strategies(every_switch):
            if self.fits(self.peak_bytes(mesh, saver, holder)):
                group = (mesh.shard.t, mesh.p, mesh.shard.e)
                found[group] = min(found.get(group, inf), self.step_s(mesh, saver, holder))
        return found


def _fields_of(rule: Rule) -> list[str]:
    """The strategy fields a rule depends on."""
    needs = {ALIASES.get(name, name) for name in rule.needs}
    needs |= {name for need in needs for name in (DERIVED[need].inputs if need in DERIVED else ())}
    return [field for field in FIELDS if field in needs]


def mesh_of(row: Row) -> Mesh:
    """A mesh from the names of the strategy table."""
    shard = Shard(*(row[name] for name in ("mbs", "tp", "cp", "ep", "etp", "sp", "flash")))
    on = frozenset(name for name in OVERLAPS if row[f"overlap_{name}"])
    return Mesh(shard, row["pp"], row["dp"], row["vp"], row["schedule"], tuple(row["layers"]), on)


def taken_apart(strategy: Strategy, layers: tuple[int, ...]) -> tuple[Mesh, Saver, Holder]:
    """A strategy as the oracle sees it."""
    row = {name: getattr(strategy, name) for name in ("tp", "cp", "pp", "dp", "ep", "etp", "mbs", "sp", "vp", "flash")}
    row |= {f"overlap_{name}": name in strategy.overlap for name in OVERLAPS}
    mesh = mesh_of({**row, "schedule": strategy.schedule, "layers": layers})
    return mesh, Saver(strategy.recompute, strategy.method, strategy.recompute_layers), Holder(strategy.zero, strategy.offload)
