"""The account of a search in words: what was refused, what a plan lost by, what it would take, what is not searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astra.answer import Estimate, Reject
from astra.catalog import runtimes
from astra.columns import code
from astra.errors import NoFeasiblePlan
from astra.layers.kinds import layer_kinds
from astra.rules.can import rules_of, unable, who_can
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule, violations
from astra.search.engine import SearchOutcome
from astra.search.space import chunk_counts, divisors
from astra.spec.job import Job
from astra.spec.strategy_fields import CHOICES, OVERLAPS, SCHEDULES
from astra.units import GIB, show_count


def rejects_of(searches: Sequence[SearchOutcome], user_rules: Sequence[Rule], job: Job) -> list[Reject]:
    """The ledger of all searches of a job, largest first."""
    refused: dict[str, int] = {}
    for name, count in (each for found in searches for each in found.refused.items()):
        refused[name] = refused.get(name, 0) + count
    sentences = {rule.name: rule.sentence for rule in (*rules_of(job.runtime), *user_rules)}
    rows = [
        Reject(reason=name, sentence=sentences.get(name, name), strategies=count)
        for name, count in refused.items()
        if count
    ]
    rows += [
        Reject(
            reason="memory",
            sentence=f"needs more than {job.limit_bytes / GIB:.1f} GiB per GPU",
            strategies=sum(found.too_large for found in searches),
        ),
        Reject(
            reason="dominated",
            sentence="an overlap or flash attention switched off: they stay on unless --fix or a rule speaks of them",
            strategies=sum(found.dominated for found in searches),
        ),
        Reject(
            reason="bound",
            sentence="proven slower than the plans shown, by a lower bound of its step time",
            strategies=sum(found.slower for found in searches),
        ),
    ]
    return sorted((row for row in rows if row.strategies), key=lambda row: (-row.strategies, row.reason))


def lost_by(best: Estimate, other: Estimate) -> str:
    """Which cause costs a plan the most against the best one."""
    if other.step_s <= best.step_s:
        return ""
    causes = {
        k: other.breakdown.get(k, 0.0) - best.breakdown.get(k, 0.0) for k in {**best.breakdown, **other.breakdown}
    }
    cause = max(sorted(causes), key=lambda k: causes[k])
    slower = other.step_s / best.step_s - 1
    return f"{slower:.1%} slower: {causes[cause]:+.2f} s of {cause}"


def nothing_fits(job: Job, found: SearchOutcome, restrictions: Restrictions) -> str:
    """What it would take."""
    start = f"{job.model.name} on {job.pool.gpus}x{job.pool.device.name}: no strategy fits."
    if found.least is None:
        for field, values in offered(job, restrictions).items():
            if not restrictions.filter(field, values):
                spoken = "; ".join(
                    line
                    for line in restrictions.describe()
                    if line.startswith((f"{field} is", f"{field.split('_')[0]} is"))
                )
                words = ", ".join(("off", "on")[value] if isinstance(value, bool) else str(value) for value in values)
                return (
                    f"{start} The restrictions ask that {spoken}, and here {field} can be {words or 'nothing'}. "
                    "Change --fix, --forbid, --max or --min, the batch or the number of GPUs."
                )
        if contradicted := contradictions(job, restrictions):
            why = "; ".join(contradicted)
            return f"{start} The restrictions contradict a rule: {why}. Drop one of --fix, --forbid, --max and --min."
    if found.least is None and not found.considered:
        return (
            f"{start} The restrictions leave nothing to choose from: --fix, --forbid, --max and --min together exclude "
            f"every way to split {job.pool.gpus} GPUs, {job.workload.global_batch} samples and the model's layers. "
            "Drop one of them, or change the batch or the number of GPUs."
        )
    if found.least is None:
        sentences = {rule.name: rule.sentence for rule in rules_of(job.runtime)}
        most = sorted(found.refused.items(), key=lambda item: -item[1])[:3]
        return (
            f"{start} All {show_count(found.considered)} strategies break a rule "
            f"(most often: {'; '.join(sentences.get(name, name) for name, _ in most)}). "
            "Relax --fix, --forbid, --max, --min or the rules file, or change the batch or the number of GPUs."
        )
    return (
        f"{start} The smallest legal strategy needs {found.least_bytes / GIB:.1f} GiB per GPU ({found.least}) "
        f"and {job.limit_bytes / GIB:.1f} GiB may be used. Try more GPUs, GPUs with more memory, a shorter sequence, "
        "a smaller --headroom, or allow zero3, full recompute and offload if they are restricted." + elsewhere(job)
    )


def elsewhere(job: Job) -> str:
    """Who else can train a model that the usual runtime cannot: what does not fit in one may fit in another."""
    who = who_can(job.model, job.workload)
    others = [] if runtimes.DEFAULT in who else [name for name in who if name != job.runtime.name]
    return f" Or take another runtime that can train it: --runtime {' or '.join(others)}." if others else ""


def contradictions(job: Job, restrictions: Restrictions) -> list[str]:
    """The rules that fixed values break whatever else is chosen."""
    fixed = {field: values[0] for field, values in restrictions.fixed.items() if len(values) == 1}
    columns = {
        field: np.array([code(field, str(value)) if field in CHOICES else value]) for field, value in fixed.items()
    }
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
    return violations(columns, facts, rules=[rule for rule in rules_of(job.runtime) if rule.needs & columns.keys()])


def nothing_simulated(job: Job, estimates: Sequence[Estimate]) -> str:
    """Strategies that fit by the closed form alone: their schedules, simulated, hold more at once."""
    least = min(estimates, key=lambda estimate: estimate.peak_reserved_gib)
    return (
        f"{job.model.name} on {job.pool.gpus}x{job.pool.device.name}: the {len(estimates)} best strategies fit only "
        f"before their schedules are simulated. The smallest of them needs {least.peak_reserved_gib:.1f} GiB per GPU "
        f"({least.strategy}) and {job.limit_bytes / GIB:.1f} GiB may be used. Give a larger --headroom, so that the "
        "search leaves more room."
    )


def offered(job: Job, restrictions: Restrictions) -> dict[str, list[Any]]:
    """The values each field could take if nothing else were restricted but the pipeline's depth."""
    gpus, depth, moe = job.pool.gpus, len(layer_kinds(job.model)), job.model.moe
    parts = list(divisors(gpus))
    stages = [n for n in parts if n <= depth]
    chunks = {1, *(n for pp in restrictions.filter("pp", stages) if pp > 1 for n in chunk_counts(depth, pp))}
    return {
        "tp": parts, "pp": stages, "vp": sorted(chunks), "cp": parts, "dp": parts,
        "ep": list(divisors(moe.experts)) if moe else [1], "etp": parts if moe else [1],
        "mbs": list(divisors(job.workload.global_batch)), "zero": list(job.runtime.can.zero),
        "schedule": [name for name in SCHEDULES if name in job.runtime.can.schedules],
        "recompute": list(job.runtime.can.recompute), "offload": list(job.runtime.can.offload),
        "flash": [True, False] if job.runtime.can.unfused else [True],
        **{f"overlap_{name}": [False, True] if name in job.runtime.can.overlap else [False] for name in OVERLAPS},
    }  # fmt: skip


def no_coverage(result: Estimate) -> str:
    """What could only be assumed."""
    assumed = [term for term, word in result.provenance.items() if word == "assumed"]
    return f"{result.strategy}: no measurement covers {', '.join(assumed)}; drop --strict to accept assumed figures."


def able(job: Job, *, several: bool = False) -> Job:
    """The job, unless no strategy of its runtime can run it; ``several`` pools are joined by pipelines."""
    who = job.runtime.name
    reasons = [reason.sentence for reason in unable(job.runtime, job.model, job.workload)]
    if not reasons and several and "pp" not in job.runtime.can.degrees:
        joined = "which joins several pools of GPUs (a server in part is a pool of its own)"
        reasons = [f"{who} has no pipeline parallelism, {joined}"]
    if reasons:
        others = who_can(job.model, job.workload)
        others = [name for name in others if not several or "pp" in runtimes.runtime(name).can.degrees]
        fix = f"Runtimes that can: {', '.join(others)}." if others else "No other runtime that is exported can either."
        raise NoFeasiblePlan(
            f"--runtime {who} cannot train {job.model.name} so: {'; '.join(reasons)}. {fix} "
            "(astra estimate costs a strategy all the same.)"
        )
    return job
