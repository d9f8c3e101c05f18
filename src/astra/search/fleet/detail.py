"""One strategy over several pools in full: every stage with its own pool's costs, every pipeline simulated.

A stage costs what it would in a pipeline of the same layout on its pool alone, so each segment is costed as that and
its ranks are taken out; what differs is the traffic between pools and between groups of unequal shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from astra.answer import StageEstimate
from astra.columns import code, from_strategy
from astra.cost import mixed as cost
from astra.cost import step
from astra.cost.between import with_other_groups
from astra.cost.lines import busiest_s, crossings
from astra.cost.memory import activations, highest_of, peak
from astra.cost.mixed import padded, with_shares
from astra.cost.parts import worst_source
from astra.cost.pipeline import virtual_stages
from astra.cost.stage import Gathered, StageCosts, gather_parts, stage_costs
from astra.cost.step import states
from astra.evidence.bars import bar_of
from astra.evidence.kinds import MIXED, Kind, doublings, kind_of
from astra.layers.split import even
from astra.provenance import Floats, Ints, Source
from astra.rules.can import rules_of, unable
from astra.rules.names import facts_of
from astra.rules.table import Rule, violations
from astra.schedule.registry import find, legal
from astra.schedule.simulator import StageSeconds
from astra.schedule.steady import step_s
from astra.search import detail
from astra.search.fleet.pools import Fleet, part_of
from astra.search.fleet.records import GroupEstimate, MixedEstimate, MixedStage
from astra.search.fleet.summary import BETWEEN, KnownOfStrategy, group_record, summary
from astra.search.words import said
from astra.spec.job import STRAGGLING, Job
from astra.spec.mixed import Group, MixedStrategy, Segment, same_cut
from astra.spec.strategy import Strategy, replace, usual_schedule
from astra.units import GIB


class CostedSegment(NamedTuple):
    """One segment as a pipeline of its own pool."""

    job: Job
    strategy: Strategy
    costs: StageCosts
    ranks: range
    stages: list[StageEstimate]
    after_s: Floats  # [rank]
    forward_s: Floats  # [virtual stage] of one micro-batch
    backward_s: Floats
    weight_s: Floats
    provenance: dict[str, Source]
    recomputed: float
    violations: list[str]
    met_s: float = 0.0  # a step's part of the weights' meeting after local steps


CostedGroups = dict[tuple[object, ...], list["CostedSegment"]]  # by all that they depend on


def estimate(
    fleet: Fleet, strategy: MixedStrategy, *, user_rules: Sequence[Rule] = (), known: CostedGroups | None = None
) -> MixedEstimate:
    """The record of one strategy; the caller has checked it with ``check_strategy``.

    ``known``: groups of other strategies of the same fleet and rules, which may be in this one too.
    """
    groups = [_costed_once(fleet, strategy, group, user_rules, known) for group in strategy.groups]
    pipelines = [_simulated(fleet, group, costed) for group, costed in zip(strategy.groups, groups, strict=True)]
    lines = fleet.cluster.lines
    line_s = busiest_s(crossings(fleet.cluster, fleet.names, fleet.job, strategy)) if lines else 0.0
    ends_s = [max(float(part.after_s.max() + part.met_s) for part in costed) for costed in groups]
    longest = [max(line_s, seconds) for seconds, _ in pipelines]
    done_s = [seconds + end_s for seconds, end_s in zip(longest, ends_s, strict=True)]
    slowest = done_s.index(max(done_s))
    stages: list[MixedStage] = []
    records: list[GroupEstimate] = []
    for number, (group, costed, (seconds, sends)) in enumerate(zip(strategy.groups, groups, pipelines, strict=True)):
        placed = _placed(number, group, costed, sends, start=len(stages))
        stages += placed
        record = group_record(number, group, placed, sends, seconds, done_s[slowest] - done_s[number])
        if strategy.shares:
            record = msgspec.structs.replace(record, state_share=strategy.held[number] * group.dp)
        records.append(record)
    waits = 1 + straggling(fleet, strategy)
    last = longest[slowest], ends_s[slowest]
    met_s = max(part.met_s for part in groups[slowest])
    total_s, alone_s = (float(step.seconds(fleet.job, *last, share)) for share in (waits, 1.0))
    around = {"host": fleet.job.runtime.host.step_s, "stragglers": total_s - alone_s}
    around |= {"local": met_s} if met_s else {}
    causes = detail.breakdown([s for s in stages if s.group == slowest], total_s, around)
    return summary(fleet, strategy, records, stages, _known(fleet, strategy, groups), total_s, causes)


def _costed_once(
    fleet: Fleet, strategy: MixedStrategy, group: Group, user_rules: Sequence[Rule], known: CostedGroups | None
) -> list[CostedSegment]:
    """The segments of a group, of which only those that share a state or reduce together ask what the others are."""
    if known is None or strategy.shares or (len(strategy.groups) > 1 and same_cut(strategy.groups)):
        return costed_group(fleet, strategy, group, user_rules)
    others = len(strategy.groups), slowest_wire(fleet, strategy)
    key = (group, *others, strategy.zero, strategy.overlap, strategy.sp, strategy.flash, strategy.local)
    if key not in known:
        known[key] = costed_group(fleet, strategy, group, user_rules)
    return known[key]


def costed_group(
    fleet: Fleet, strategy: MixedStrategy, group: Group, user_rules: Sequence[Rule]
) -> list[CostedSegment]:
    """The segments of a group."""
    first, out = 0, []
    for segment in group.segments:
        ranks = range(first, first + segment.pp)
        out.append(_costed(fleet, strategy, group, segment, ranks, user_rules))
        first += segment.pp
    return out


def _costed(
    fleet: Fleet,
    mixed: MixedStrategy,
    group: Group,
    segment: Segment,
    ranks: range,
    user_rules: Sequence[Rule],
) -> CostedSegment:
    """A segment's ranks, in a pipeline of the same layout on its pool alone."""
    place = fleet.place(segment.pool)
    way, groups = slowest_wire(fleet, mixed), len(mixed.groups)
    job, strategy = _alone(fleet.jobs[place], mixed, group, segment)
    if mixed.local == 1 and not mixed.shares:
        job = msgspec.structs.replace(job, other_groups=cost.other_groups(job, groups, way))
    row = detail.as_row(job, strategy)
    gathered = _parts(fleet, place, job, row)
    costs = stage_costs(job, row.meshes, gathered, every_rank=True)
    met_s = 0.0
    if mixed.local > 1 and way is not None:  # once in so many steps, with nothing to hide behind
        seldom = cost.other_groups(job, groups, way.every(mixed.local))
        moved = with_other_groups(job, costs.sync, costs.held, *replicas_of(strategy), seldom)
        met_s = float(moved.across_s.max())
    if mixed.shares:
        jobs = [fleet.jobs[fleet.place(one.segments[0].pool)] for one in mixed.groups]
        costs = with_shares(job, costs, mixed, group, jobs, way)
    elif way is not None and mixed.local == 1 and same_cut(mixed.groups):
        shards = cost.Shards(*(np.array([value]) for value in (segment.tp, group.cp, segment.ep, group.mbs)))
        in_all = sum(each.dp for each in mixed.groups)
        costs = costs._replace(sync=cost.with_like_groups(job, costs.sync, costs.held, shards, in_all, way))
    saved = activations(costs, row.meshes.columns["vp"], row.recomputes)
    static, update, between = states(job, row.meshes, costs, row.shardings)
    static = padded(job, static, mixed.padding)
    (forward_s, backward_s, weight_s, _), again_s = virtual_stages(
        job, row.meshes, gathered, row.recomputes, between.per_microbatch_s[0]
    )
    by_rank_s = again_s[0][np.array(row.layout.place)].sum(axis=0)
    following_s = step.after_s(update, between)[0, 0]
    highest = highest_of(job, costs, row.shardings, peak(static, saved, costs.buffer_bytes)[0, 0, 0])
    answer = detail.CostedRow(costs, saved, by_rank_s, static, between, update.seconds[0, 0], following_s, 0.0, highest)
    records = detail.stage_records(job, row, answer, detail.Work(job, row, gathered, answer))
    provenance = worst_source(gathered.parts, int(gathered.place[0])) | detail.sources_between(row, costs, update)
    provenance["dp"] = Source(int(costs.sync.source.max()))
    return CostedSegment(
        job,
        strategy,
        costs,
        ranks,
        [records[rank] for rank in ranks],
        following_s[ranks.start : ranks.stop],
        forward_s[0],
        backward_s[0],
        weight_s[0],
        provenance,
        detail.recomputed_share(job, row) * sum(segment.layers) / max(sum(group.layers), 1),
        _broken(job, strategy, group, user_rules),
        met_s,
    )


def _alone(whole: Job, mixed: MixedStrategy, group: Group, segment: Segment) -> tuple[Job, Strategy]:
    """A group's share of the batch on one segment's pool, and the strategy that its pipelines have there."""
    workload = msgspec.structs.replace(whole.workload, global_batch=group.samples)
    job = msgspec.structs.replace(whole, workload=workload)
    if group.plain is None:
        return job, as_alone(job, mixed, group, segment)
    strategy = without_even(group.plain)
    return part_of(job, strategy.gpus).saying(strategy), strategy


def replicas_of(strategy: Strategy) -> tuple[Ints, Ints]:
    """Ranks that hold the same parameters, and the same experts."""
    ranks = np.array(strategy.dp * strategy.cp)
    return ranks, np.maximum(ranks * strategy.tp // (strategy.ep * strategy.etp), 1)


def without_even(strategy: Strategy) -> Strategy:
    """A strategy that says its layers only where its stages differ."""
    plain = strategy.layers == even(sum(strategy.layers), len(strategy.layers))
    return replace(strategy, layers=()) if plain else strategy


def _broken(job: Job, strategy: Strategy, group: Group, user_rules: Sequence[Rule]) -> list[str]:
    """Every rule a segment breaks, as sentences."""
    if group.plain is not None:
        return detail.legality(job, strategy, user_rules)
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
    facts |= {"gpus": strategy.gpus, "layers_per_chunk": max(strategy.layers)}
    return [
        *violations(from_strategy(strategy), facts, user_rules=user_rules, rules=rules_of(job.runtime)),
        *(reason.sentence for reason in unable(job.runtime, job.model, job.workload)),
    ]


def _parts(fleet: Fleet, place: int, job: Job, row: detail.Row) -> Gathered:
    """The parts of a strategy's sharding, from those already costed where it is among them."""
    strategy, joint = row.strategy, fleet.jobs[place]
    plain = (job.words, job.repeats) == (joint.words, joint.repeats) and strategy.etp == 1
    if fleet.columns and plain and strategy.flash and strategy.sp == (strategy.tp > 1):
        columns = fleet.columns[place]
        at = columns.shards.row(tp=strategy.tp, cp=strategy.cp, ep=strategy.ep, mbs=strategy.mbs)
        if at is not None:
            return columns.gathered.take(np.array([at]))
    return (
        fleet.tables[place].of(job).rows(job, row.meshes.columns)
        if fleet.tables
        else gather_parts(job, row.meshes.columns)
    )


def as_alone(job: Job, mixed: MixedStrategy, group: Group, segment: Segment) -> Strategy:
    """The whole pipeline's layout on one segment's pool and degrees."""
    alone = Strategy(
        tp=segment.tp,
        pp=group.stages,
        vp=group.vp,
        cp=group.cp,
        ep=segment.ep,
        dp=group.dp,
        mbs=group.mbs,
        sp=mixed.sp and segment.tp > 1,
        flash=mixed.flash,
        zero=mixed.zero,
        recompute=segment.recompute,
        schedule=usual_schedule(group.vp),
        layers=group.layers,
        **said(job, segment.ep),
    )
    possible = set(job.overlapped(alone)) & {*mixed.overlap, *(["p2p"] if group.stages > 1 else [])}
    return replace(alone, overlap=tuple(possible - ({"param"} if "grad" not in possible else set())))


def _kind(fleet: Fleet, mixed: MixedStrategy) -> Kind:
    """The kind of the group that is doubted most, on its first pool, over all GPUs."""
    kinds = []
    for group in mixed.groups:
        segment = group.segments[0]
        alone = _alone(fleet.jobs[fleet.names.index(segment.pool)], mixed, group, segment)
        kinds.append(kind_of(*alone)._replace(network=MIXED, gpus=doublings(mixed.gpus)))
    return max(kinds, key=bar_of)


def slowest_wire(fleet: Fleet, mixed: MixedStrategy) -> cost.Wire | None:
    """Gradients meet over the slowest wire between pools of different groups."""
    if len(mixed.groups) < 2:
        return None
    return cost.slowest_between(fleet.cluster, sorted({fleet.place(name) for name in mixed.gpus_by_pool}))


class GroupPipeline(NamedTuple):
    """What one pipeline of a group is simulated from."""

    schedule: str
    stages: StageSeconds

    def shape(self, group: Group) -> tuple[int, int, int]:
        """Ranks, chunks and micro-batches; of the latter as many as the schedule is next defined for."""
        p, v, m = group.stages, group.vp, group.microbatches
        defined = bool(legal(code("schedule", self.schedule), p=p, v=v, m=m).all())
        return p, v, m if defined else -(-m // p) * p


def pipeline_of(fleet: Fleet, group: Group, costed: Sequence[CostedSegment]) -> GroupPipeline:
    """The seconds of every virtual stage of a group, each on its own pool."""
    p, v = group.stages, group.vp
    schedule = group.schedule
    by_rank = [number for number, part in enumerate(costed) for _ in part.ranks]
    owner = [by_rank[rank] for rank in find(schedule).rank_of(p, v).tolist()]  # of each virtual stage
    sends = [_transfer_s(fleet, group, costed, here, there) if p > 1 else 0.0 for here, there in pairwise(owner)]

    def column(name: str) -> Floats:
        return np.array([getattr(costed[part], name)[k] for k, part in enumerate(owner)])

    stages = StageSeconds(column("forward_s"), column("backward_s"), column("weight_s"), np.array(sends))
    return GroupPipeline(schedule, stages)


def _simulated(fleet: Fleet, group: Group, costed: Sequence[CostedSegment]) -> tuple[float, list[float]]:
    """The makespan of one pipeline, and the seconds of each transfer between virtual stages."""
    pipeline = pipeline_of(fleet, group, costed)
    p, v, count = pipeline.shape(group)
    seconds = step_s(
        pipeline.schedule, p=p, v=v, m=count, **pipeline.stages._asdict(), blocking_p2p=not group.overlaps_transfers
    )
    return seconds * group.microbatches / count, pipeline.stages.send_s.tolist()


def _transfer_s(fleet: Fleet, group: Group, costed: Sequence[CostedSegment], here: int, there: int) -> float:
    """One activation from a stage of one segment to one of another, or of the same."""
    if here == there:
        return float(costed[here].costs.p2p_s[0])
    a, b = group.segments[here], group.segments[there]
    if a.pool == b.pool and a.tp == b.tp:
        return float(costed[here].costs.p2p_s[0])
    way = cost.wire(fleet.cluster, fleet.place(a.pool), fleet.place(b.pool))
    job = fleet.job
    nbytes = 2.0 * group.mbs * job.workload.seq / group.cp * job.model.hidden / min(a.tp, b.tp)
    ends, each = (fleet.place(a.pool), fleet.place(b.pool)), group.dp * group.cp
    together = each * nbytes * min(a.tp, b.tp)
    return float(cost.hop_s(way, cost.held_up(fleet.cluster, ends, nbytes, each * a.tp, each * b.tp), together))


def _placed(
    number: int, group: Group, costed: Sequence[CostedSegment], sends: Sequence[float], start: int
) -> list[MixedStage]:
    """Stage records with their pool."""
    out: list[MixedStage] = []
    stages = find(group.schedule).place(group.stages, group.vp)
    for segment, part in zip(group.segments, costed, strict=True):
        for rank, record in zip(part.ranks, part.stages, strict=True):
            ks = stages[:, rank].tolist()
            work = sum(float(part.forward_s[k] + part.backward_s[k] + part.weight_s[k]) for k in ks)
            moved = sum((sends[k] if k < len(sends) else 0.0) + (sends[k - 1] if k else 0.0) for k in ks)
            fields = {name: getattr(record, name) for name in StageEstimate.__struct_fields__}
            traffic = record.communication_s | {"pp": group.microbatches * moved}
            exposed = record.exposed_s | ({} if group.overlaps_transfers else {"pp": group.microbatches * moved})
            fields |= {"index": start + len(out), "communication_s": traffic, "exposed_s": exposed}
            out.append(
                MixedStage(
                    **fields,
                    group=number,
                    pool=segment.pool,
                    tp=segment.tp,
                    recompute=segment.recompute,
                    microbatch_s=work,
                    transfer_s=moved,
                    memory_limit_gib=part.job.limit_bytes / GIB,
                )
            )
    return out


def straggling(fleet: Fleet, strategy: MixedStrategy) -> float:
    """As for one pool, over the nodes that are used."""
    used = strategy.gpus_by_pool
    nodes = sum(
        math.ceil(used.get(name, 0) / pool.gpus_per_node)
        for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True)
    )
    return STRAGGLING * math.log2(max(nodes, 1))


def _known(fleet: Fleet, strategy: MixedStrategy, groups: Sequence[Sequence[CostedSegment]]) -> KnownOfStrategy:
    """What the segments say of the whole: provenance, work done again, rules broken, its kind."""
    parts = [part for costed in groups for part in costed]
    provenance: dict[str, Source] = {}
    for part in parts:
        for term, source in part.provenance.items():
            provenance[term] = max(provenance.get(term, Source.MEASURED), source)
    if len(strategy.gpus_by_pool) > 1:
        provenance[BETWEEN] = Source.ASSUMED
    shares = [group.samples / strategy.samples for group in strategy.groups]
    again = sum(part.recomputed * share for share, costed in zip(shares, groups, strict=True) for part in costed)
    violations = list(dict.fromkeys(broken for part in parts for broken in part.violations))
    return KnownOfStrategy(provenance, again, violations, _kind(fleet, strategy))
