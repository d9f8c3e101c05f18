"""Say at once, before any search, that a runtime cannot train a model: why, and which can."""

from __future__ import annotations

from astra.catalog import runtimes
from astra.errors import NoFeasiblePlan
from astra.rules.can import unable, who_can
from astra.spec.job import Job


def able(job: Job, *, several: bool = False) -> Job:
    """The job, unless no strategy of its runtime can run it; ``several`` pools are joined by pipelines."""
    who = job.runtime.name
    reasons = [reason.sentence for reason in unable(job.runtime, job.model, job.workload)]
    others = who_can(job.model, job.workload) if reasons or several else []
    if not reasons and several and "pp" not in job.runtime.can.degrees:
        reasons = [f"{who} has no pipeline parallelism, which joins several pools of GPUs"]
    if several:
        others = [name for name in others if "pp" in runtimes.runtime(name).can.degrees]
    if reasons:
        fix = f"Runtimes that can: {', '.join(others)}." if others else "No other runtime that is exported can either."
        raise NoFeasiblePlan(
            f"--runtime {who} cannot train {job.model.name} so: {'; '.join(reasons)}. {fix} "
            "(astra estimate costs a strategy all the same.)"
        )
    return job
