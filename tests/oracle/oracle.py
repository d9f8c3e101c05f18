"""The planner in plain Python: nested loops over the space, rules row by row, the best of each group.

The readable definition of what the search does in columns; the two must agree.
"""

from __future__ import annotations

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
