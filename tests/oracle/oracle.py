"""The space in plain Python: nested loops over every field, rules row by row.

The readable definition of which strategies the search chooses from. It knows no formula: what a strategy costs is asked
of ``estimate``, one strategy at a time, as a user would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from astra.columns import FIELDS
from astra.layers import weights as weights_of
from astra.layers.kinds import layer_kinds
from astra.layers.split import EVEN_WORK, layer_work, weighted
from astra.rules.can import rules_of
from astra.rules.names import ALIASES, DERIVED, Names, facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.schedule.registry import find
from astra.search.words import settled
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import CHOICES, METHODS, MODULES, OFFLOADS, OVERLAPS, RECOMPUTES

RECOMPUTE = ("recompute", "method", "recompute_layers", "modules", "offload_layers")
HOLDER = ("zero", "offload", "reshard")
RECIPES = (
    ("core_attn",), ("layernorm", "moe_act"), ("layernorm", "moe"), ("mla_up_proj",), ("mla_up_proj", "mlp"),
    ("layernorm", "mla_up_proj", "moe_act"),
)  # fmt: skip
WORDS = ("graphs", "params", "grads", "attention")
Row = dict[str, Any]


class Oracle:
    """The legal strategies of one job."""

    def __init__(self, job: Job, limits: Restrictions | None = None, user_rules: Sequence[Rule] = ()) -> None:
        self.job, self.kinds = job, layer_kinds(job.model)
        self.limits = limits or Restrictions()
        self.facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        self.rules = [(rule, fields_of(rule)) for rule in (*rules_of(job.runtime), *user_rules)]
        late = {*RECOMPUTE, *HOLDER, *(f"recompute_{name}" for name in MODULES)}
        self.late_rules = [(rule, fields) for rule, fields in self.rules if late & set(fields)]
        self.broken: dict[tuple[Any, ...], bool] = {}
        self.spoken = {name for rule in user_rules for name in rule.needs} | {"overlap_ep"}
        if any(stage not in job.runtime.can.prefetch for stage in job.runtime.can.zero if stage):
            self.spoken.add("overlap_param")
        if 0 < job.workload.packed < 128:  # rows of a tile of fused attention
            self.spoken.add("flash")

    def legal(self, row: Row, *, late: bool = False) -> bool:
        """No rule whose fields are all in the row is broken; ``late``: the others have been seen to already."""
        for rule, fields in self.late_rules if late else self.rules:
            try:
                key = (rule.name, *[row[field] for field in fields])
            except KeyError:
                continue
            if key not in self.broken:
                cells = {f: np.array([CHOICES[f].index(row[f]) if f in CHOICES else row[f]]) for f in fields}
                self.broken[key] = bool(np.any(rule.breaks(Names(cells, self.facts))))
            if self.broken[key]:
                return False
        return True

    def allowed(self, field: str, values: Sequence[Any]) -> list[Any]:
        """Values the restrictions leave."""
        return [value for value in values if self.limits.allows(field, value)]

    def grids(self) -> Iterator[Row]:
        """Every factorisation of the GPUs, with expert degrees, sequence parallelism and micro-batches."""
        gpus, batch, moe = self.job.pool.gpus, self.job.workload.global_batch, self.job.model.moe
        some, fitting = _divisors(gpus), self.allowed("mbs", _divisors(batch))
        eps = self.allowed("ep", _divisors(moe.experts) if moe else [1])
        etps = self.allowed("etp", some if moe else [1])
        for tp, cp, pp, ep, etp in product(some, some, some, eps, etps):
            if gpus % (tp * cp * pp) or pp > len(self.kinds):
                continue
            degrees = {"tp": tp, "pp": pp, "cp": cp, "dp": gpus // (tp * pp * cp)}
            if all(self.limits.allows(name, degree) for name, degree in degrees.items()):
                for sp, mbs in product(self.allowed("sp", (False, True)), fitting):
                    yield {**degrees, "ep": ep, "etp": etp, "sp": sp, "mbs": mbs, **self.words(ep)}

    def words(self, ep: int) -> Row:
        """What the runtime's recipes choose, where there is something to choose, and a dispatcher that runs."""
        usual = self.job.recipe()
        sender = settled(self.job, self.limits).words
        sends = {"dispatch": sender.dispatch, "dispatch_fp8": sender.dispatch_fp8} if ep > 1 else {}
        return {name: usual[name] for name in WORDS} | sends

    def pipelines(self, pp: int) -> Iterator[Row]:
        """Chunks, schedules and splits of a pipeline depth."""
        depth = len(self.kinds)
        stage = ceil(depth / pp)
        chunks = sorted({ceil(stage / size) for size in range(1, stage + 1)})
        for vp in self.allowed("vp", [n for n in chunks if n == 1 or pp * n <= depth]):
            even = {(depth // (pp * vp),) * (pp * vp)} if depth % (pp * vp) == 0 else set()
            for schedule in self.allowed("schedule", self.job.runtime.can.schedules):
                if vp in {"interleaved": chunks[1:], "zbv": [2]}.get(schedule, [1]):
                    for layers in sorted({self.balanced(pp * vp), *self.by_work(pp * vp)} | even):
                        yield {"vp": vp, "schedule": schedule, "layers": layers}

    def balanced(self, stages: int) -> tuple[int, ...]:
        """Fewest layers on the largest stage, the last one carrying the head's work; early stages get the smaller."""
        depth, model = len(self.kinds), self.job.model
        if stages == 1:
            return (depth,)
        head = 2 * (model.vocab * model.hidden if model.tied_embeddings else weights_of.head_weights(model).sharded)
        layer = (weights_of.forward_flops_per_token(model, self.job.workload.span) - head) / depth
        last = -min((max(ceil((depth - n) / (stages - 1)), n + head / layer), -n) for n in range(depth + 1))[1]
        base, extra = divmod(depth - last, stages - 1)
        return (*[base] * (stages - 1 - extra), *[base + 1] * extra, last)

    def by_work(self, stages: int) -> list[tuple[int, ...]]:
        """As balanced, where kinds of layer differ in work or images come first: of equals the one the search takes."""
        work, front, back = layer_work(self.job.model, self.job.workload.span)
        alike = front == 0 and max(work) <= EVEN_WORK * min(work)
        return [] if stages == 1 or stages > len(work) or alike else [weighted(work, stages, front, back)]

    def recomputes(self, pp: int, vp: int) -> list[Row]:
        """Ways to recompute; full recompute has a method and layers up to a chunk's."""
        some = self.allowed("recompute_layers", range(1, ceil(len(self.kinds) / (pp * vp)) + 1))
        none, selective, full = (self.allowed("recompute", [kind]) for kind in RECOMPUTES)
        found = [*product(none, ["uniform"], [1], [()]), *product(selective, ["uniform"], [1], self.modules())]
        found += product(full, self.allowed("method", METHODS), some, [()])
        waiting = self.limits.fixed.get("offload_layers", (0,))
        rows = [dict(zip(RECOMPUTE, (*each, layers), strict=True)) for each in found for layers in waiting]
        rows = [row | {f"recompute_{name}": name in row["modules"] for name in MODULES} for row in rows]
        return [row for row in rows if self.legal({**self.words(1), **row})]

    def modules(self) -> list[tuple[str, ...]]:
        """Sets of modules that recipes recompute, of those that the model and the runtime have."""
        moe, blocks = self.job.model.moe, {name for kind in self.kinds for name in kind.blocks}
        has = {"core_attn", "layernorm", *["mlp"] * ("dense" in blocks), *["mla_up_proj"] * ("latent" in blocks)}
        has |= {"moe", "moe_act"} if moe else set()
        return [names for names in RECIPES if {*names} <= has & {*self.job.runtime.can.modules}]

    def shardings(self) -> list[Row]:
        """ZeRO stages, offload, and weights that stay gathered."""
        zero, reshard = (self.allowed(name, getattr(self.job.runtime.can, name)) for name in ("zero", "reshard"))
        every = product(zero, self.allowed("offload", OFFLOADS), reshard)
        rows = (dict(zip(HOLDER, row, strict=True)) for row in every)
        return [row for row in rows if self.legal(row | self.words(1))]

    def switches(self, every: bool) -> list[Row]:
        """Settings of the overlaps and flash attention: each on if it may be (both if a rule speaks of it), or all."""
        can = self.job.runtime.can
        has = {f"overlap_{n}": (False, True) if n in can.overlap else (False,) for n in OVERLAPS}
        has["overlap_ep"] = (False, True) if self.job.model.moe and "ep" in can.overlap else (False,)
        has["flash"] = (False, True) if can.unfused else (True,)
        options = {name: self.allowed(name, settings) for name, settings in has.items()}
        chosen = {name: both if every or name in self.spoken else both[-1:] for name, both in options.items()}
        return [dict(zip(chosen, row, strict=True)) for row in product(*chosen.values())]

    def considered(self) -> int:
        """Strategies in the space, legal or not."""
        below = {
            pp: sum(len(self.recomputes(pp, row["vp"])) for row in self.pipelines(pp))
            for pp in range(1, len(self.kinds) + 1)
        }
        return sum(below[grid["pp"]] for grid in self.grids()) * len(self.shardings()) * len(self.switches(True))

    def meshes(self, every_switch: bool = False) -> Iterator[Row]:
        """Legal meshes; a switch that has nothing to switch is off."""
        for grid in self.grids():
            if not self.legal(grid):
                continue
            for pipeline, switch in product(self.pipelines(grid["pp"]), self.switches(every_switch)):
                row = {**grid, **pipeline, **switch}
                row["overlap_tp"] &= row["sp"] and row["tp"] <= self.facts["scaleup_gpus"]
                row["overlap_p2p"] &= row["vp"] > 1
                row["overlap_param"] &= row["overlap_grad"]
                count = self.job.workload.global_batch // (row["dp"] * row["mbs"])
                row["overlap_ep"] &= row["ep"] > 1 and count > 1 and (row["pp"] == 1 or row["vp"] > 1)
                if row["overlap_ep"] != switch["overlap_ep"] and self.allowed("overlap_ep", [False]):
                    continue  # the same as with the switch off
                if self.legal(row):
                    yield row

    def strategies(self, every_switch: bool = False) -> Iterator[Strategy]:
        """Legal strategies, also those with every setting of the switches where asked."""
        shardings = self.shardings()
        for mesh in self.meshes(every_switch):
            for recompute, sharding in product(self.recomputes(mesh["pp"], mesh["vp"]), shardings):
                row = {**mesh, **recompute, **sharding}
                row["overlap_param"] &= row["zero"] > 0
                if self.legal(row, late=True):
                    yield strategy_of(row)

    def defined(self, strategy: Strategy) -> bool:
        """Whether the schedule is defined for so few micro-batches."""
        count = self.job.workload.global_batch // (strategy.dp * strategy.mbs)
        sizes = (np.asarray(size) for size in (strategy.pp, strategy.vp, count))
        return bool(find(strategy.schedule).legal(*sizes).all())


def fields_of(rule: Rule) -> list[str]:
    """The strategy fields a rule depends on."""
    needs = {ALIASES.get(name, name) for name in rule.needs}
    needs |= {name for need in needs for name in (DERIVED[need].inputs if need in DERIVED else ())}
    return [field for field in FIELDS if field in needs]


def strategy_of(row: Row) -> Strategy:
    """A strategy from the names of the strategy table."""
    fields = {name: value for name, value in row.items() if name in Strategy.__struct_fields__}
    return Strategy(**fields, overlap=tuple(name for name in OVERLAPS if row[f"overlap_{name}"]))


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
