"""``plan`` and ``estimate`` for several pools: inputs checked, plans compared, pools that cannot help named."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import astra
from astra.catalog.clusters import parse_cluster, read_cluster
from astra.catalog.hardware import catalog_hash
from astra.errors import InputError, NoCoverage
from astra.families.kinds import layer_kinds
from astra.result import Plan, Reject, Search
from astra.search.bill import Money, tag_of
from astra.search.ledger import lost_by, no_coverage
from astra.search.mixed import Costed, Planner
from astra.search.mixed_detail import Fleet, check_strategy, make_fleet
from astra.search.mixed_detail import estimate as estimate_fleet
from astra.search.mixed_records import Alternative, Marginal, MixedEstimate, MixedPlanSet
from astra.space.rules import Rule
from astra.spec.cluster import Cluster
from astra.spec.job import Job
from astra.spec.mixed import MixedStrategy, parse_mixed
from astra.spec.workload import PRECISIONS

MOST_POOLS: Final = 8
MOST_GPUS: Final = 1_000_000
COUNTS: Final = ("at-most", "exact")


def several(
    gpus: str | Sequence[str] | None, cluster: str | Path | Cluster | None, node: str | None
) -> tuple[str | None, Cluster | None]:
    """What was asked for: the text of one pool, or a cluster of several."""
    if cluster is not None and gpus is None:
        found = cluster if isinstance(cluster, Cluster) else read_cluster(Path(str(cluster)))
        return None, found if len(found.pools) > 1 else None
    if gpus is None or (isinstance(gpus, str) and "+" not in gpus and "," not in gpus):
        return gpus, None
    if cluster is not None:
        raise InputError("gpus", gpus, want="either --gpus such as 512xH100 or --cluster FILE, and not both")
    texts = [gpus] if isinstance(gpus, str) else list(gpus)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError("gpus", gpus, want="GPUs such as 512xH100, one text for each pool")
    if len(texts) == 1 and "+" not in texts[0] and "," not in texts[0]:
        return texts[0], None
    if node is not None:
        raise InputError("node", node, want="no --node with several pools", fix="Write 64xH100@node for each pool.")
    return None, parse_cluster("+".join(texts))


def check_cluster(cluster: Cluster) -> None:
    """Refuse what cannot be planned at all."""
    if len(cluster.pools) > MOST_POOLS:
        raise InputError("gpus", f"{len(cluster.pools)} pools", want=f"at most {MOST_POOLS} pools")
    if cluster.gpus > MOST_GPUS:
        raise InputError("gpus", cluster.gpus, want=f"at most {MOST_GPUS:,} GPUs in all")


def fleet_of(cluster: Cluster, job: Job, *, exact: bool) -> tuple[Fleet, dict[str, str]]:
    """The pools that can take part, each with its own precision, and why the others cannot.

    ``job`` is the request with any pool. A GPU without fp8 computes in bf16, which is what fp8 training keeps its
    activations and weights in; bf16 and fp16 do not mix.
    """
    pools, jobs, left_out = [], [], {}
    for pool in cluster.pools:
        wanted = job.workload.precision
        precision = wanted if wanted in pool.device.flops_per_s else "bf16" if wanted == "fp8" else wanted
        if precision not in pool.device.flops_per_s:
            left_out[pool.name] = f"has no {wanted} ({', '.join(sorted(pool.device.flops_per_s))})"
            continue
        workload = msgspec.structs.replace(job.workload, precision=precision)
        pools.append(pool)
        jobs.append(msgspec.structs.replace(job, pool=pool, workload=workload))
    if left_out and (exact or not pools):
        raise _no_common_precision(cluster, job.workload.precision, left_out)
    known = {name for pool in pools for name in (pool.name, pool.zone)}
    joints = tuple(joint for joint in cluster.joints if known.issuperset(joint.ends))
    kept = msgspec.structs.replace(cluster, pools=tuple(pools), joints=joints)
    return make_fleet(kept, jobs), left_out


def any_pool(cluster: Cluster, precision: str) -> Cluster:
    """One pool that has the precision, to check the rest of a request with; an unknown precision is told later."""
    for pool in cluster.pools:
        if precision in pool.device.flops_per_s or precision not in PRECISIONS:
            return Cluster(pools=(pool,))
    raise _no_common_precision(cluster, precision, {pool.name: f"has no {precision}" for pool in cluster.pools})


def _no_common_precision(cluster: Cluster, wanted: str, left_out: Mapping[str, str]) -> InputError:
    common = [name for name in PRECISIONS if all(name in pool.device.flops_per_s for pool in cluster.pools)]
    fix = f"All of them have {' and '.join(common)}." if common else "They have no training precision in common."
    reasons = "; ".join(f"{name} {reason}" for name, reason in left_out.items())
    return InputError("precision", wanted, want=f"one that every pool has ({reasons})", fix=fix)


def plan_fleet(
    fleet: Fleet,
    left_out: dict[str, str],
    *,
    exact: bool,
    top: int,
    launchable: bool,
    strict: bool,
    money: Money,
    user_rules: Sequence[Rule] = (),
    rules: str | None = None,
) -> MixedPlanSet:
    """The best plans over several pools, what each pool is worth, and what can be launched as it is."""
    started = time.perf_counter()
    planner = Planner(fleet, exact=exact, user_rules=user_rules)
    found, plain = planner.best(planner.counts, every=exact)
    if not found:
        raise planner.nothing_fits()
    names = planner.fleet.names
    alone = {} if exact else {place: planner.alone(place) for place in range(len(names))}
    candidates = [*found, *(each for each in alone.values() if each is not None)]
    conceivable = min(candidates, key=lambda each: each.estimate.step_s)
    shown = plain if launchable and plain else sorted(candidates, key=lambda each: each.estimate.step_s)
    shown = list({str(each.strategy): each for each in shown}.values())[:top]
    best = shown[0]
    if strict and best.estimate.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(best.estimate))
    plans = [_plan(rank, each, best, fleet, money) for rank, each in enumerate(shown, start=1)]
    mixed_best = len(best.strategy.groups) == 1
    without = {} if exact or len(names) < 3 else {
        place: planner.without(place, mixed=mixed_best) for place in range(len(names))
        if names[place] in best.estimate.used
    }  # fmt: skip
    marginal = [] if exact else _marginal(planner, best)
    records = {
        "alone": [_alternative(planner, place, each, best) for place, each in alone.items()],
        "without": [_alternative(planner, place, each, best) for place, each in without.items()],
    }
    return MixedPlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=_request(fleet, exact=exact, launchable=launchable, rules=rules, top=top),
        plans=plans,
        search=Search(
            considered=planner.bench.frames,
            evaluated=planner.bench.solved,
            feasible=len(candidates),
            seconds=(seconds := time.perf_counter() - started),
            strategies_per_s=planner.bench.frames / seconds,
        ),
        rejects=[
            Reject(
                reason="bound",
                sentence="frames (pipelines, micro-batch, chunks, stages) proven slower by a lower bound",
                strategies=planner.bench.frames - planner.bench.solved,
            )
        ],
        notes=[f"runtime {fleet.job.runtime.title}", *_idle(planner, best, candidates, left_out)],
        alone=records["alone"],
        without=records["without"],
        marginal=marginal,
        launchable=_plan(1, plain[0], best, fleet, money) if plain else None,
        conceivable=_plan(1, conceivable, best, fleet, money),
        left_out=left_out,
    )


def estimate_mixed(
    fleet: Fleet, strategy: str | MixedStrategy, *, money: Money, strict: bool, user_rules: Sequence[Rule] = ()
) -> MixedEstimate:
    """How a given strategy over several pools would do."""
    chosen = parse_mixed(strategy) if isinstance(strategy, str) else strategy
    check_strategy(fleet, chosen)
    result = _with_run(fleet, estimate_fleet(fleet, chosen, user_rules=user_rules), money)
    if strict and result.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(result))
    return result


def _plan(rank: int, each: Costed, best: Costed, fleet: Fleet, money: Money) -> Plan:
    result = _with_run(fleet, each.estimate, money)
    return Plan(rank=rank, strategy=str(each.strategy), estimate=result, lost_by=lost_by(best.estimate, each.estimate))


def _with_run(fleet: Fleet, result: MixedEstimate, money: Money) -> MixedEstimate:
    """Days and dollars of the whole run, each pool at its own price."""
    tokens = fleet.job.workload.tokens
    if tokens is None:
        return result
    seconds = tokens / result.tokens_per_s
    tags = {name: tag_of(money, pool) for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True)}
    known = [tags[name] for name in result.used]
    usd = None
    if all(tag is not None for tag in known):
        hourly = sum(count * tag.usd_per_gpu_h for tag, count in zip(known, result.used.values(), strict=True) if tag)
        usd = hourly * seconds / 3600
    source = "; ".join(f"{tag.provider} {tag.date or ''}".strip() for tag in known if tag is not None)
    return msgspec.structs.replace(result, train_days=seconds / 86400, train_usd=usd, price_source=source or None)


def _alternative(planner: Planner, place: int, each: Costed | None, best: Costed) -> Alternative:
    name = planner.fleet.names[place]
    if each is None:
        why = planner.why_not(place) or "the model does not fit."
        return Alternative(pool=name, strategy=None, step_s=None, times=None, why=why)
    step_s = each.estimate.step_s
    return Alternative(pool=name, strategy=str(each.strategy), step_s=step_s, times=step_s / best.estimate.step_s)


def _marginal(planner: Planner, best: Costed) -> list[Marginal]:
    out = []
    for place, pool in enumerate(planner.fleet.cluster.pools):
        more = planner.with_one_more(place, best)
        out.append(
            Marginal(
                pool=planner.fleet.names[place],
                gpus=pool.node.gpus,
                step_s=more.estimate.step_s,
                gain=best.estimate.step_s / more.estimate.step_s - 1,
                strategy=str(more.strategy),
            )
        )
    return out


def _idle(planner: Planner, best: Costed, candidates: Sequence[Costed], left_out: Mapping[str, str]) -> list[str]:
    """Sentences on GPUs without work, with what using them would change."""
    notes = [f"{name} is left idle: it {reason}." for name, reason in left_out.items()]
    depth = len(layer_kinds(planner.fleet.job.model))
    for place, (name, pool) in enumerate(zip(planner.fleet.names, planner.fleet.cluster.pools, strict=True)):
        used = best.estimate.used.get(name, 0)
        if used == pool.gpus:
            continue
        if used:
            notes.append(f"{pool.gpus - used} of the {pool.gpus} GPUs of {name} are idle: no plan with them is faster.")
            continue
        reason = planner.why_not(place)
        with_it = [each for each in candidates if name in each.estimate.used and len(each.estimate.used) > 1]
        other = min(with_it, key=lambda each: each.estimate.step_s, default=None) or planner.with_pool(place)
        if reason:
            notes.append(f"{name} is left idle: {reason}")
        elif other is None:
            why = f"the model has {depth} layers" if len(planner.fleet.names) > depth else "no plan that uses it fits"
            notes.append(f"{name} is left idle: {why}.")
        else:
            slower = other.estimate.step_s / best.estimate.step_s - 1
            notes.append(f"{name} is left idle: the best plan found that uses it is {slower:.1%} slower.")
    return notes


def _request(fleet: Fleet, *, exact: bool, launchable: bool, rules: str | None, top: int) -> dict[str, Any]:
    job = fleet.job
    workload: dict[str, Any] = msgspec.to_builtins(job.workload)
    between = fleet.cluster.between
    return {
        "model": job.model.name,
        "gpus": fleet.cluster.gpus,
        "gpu": " + ".join(f"{pool.gpus}x{pool.device.name}" for pool in fleet.cluster.pools),
        "pools": {
            name: {"gpus": pool.gpus, "gpu": pool.device.name, "node": pool.node.name}
            for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True)
        },
        "between": None if between is None else msgspec.to_builtins(between),
        "counts": "exact" if exact else "at-most",
        "launchable_only": launchable,
        "workload": workload,
        "runtime": job.runtime.name,
        "headroom": job.headroom,
        "rules": rules,
        "top": top,
    }
