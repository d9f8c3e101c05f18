"""One promise over every request: a plan shown can be exported to its runtime's own target, or it is said why not."""

from __future__ import annotations

import json
from itertools import product
from typing import Any, NamedTuple

import astra
from astra.catalog import runtimes
from astra.catalog.models import model_names
from astra.errors import AstraError, NoFeasiblePlan
from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.reading import from_record
from astra.spec.workload import TASKS

COUNTS = (8, 64, 1024)
GPU = "H100"
KINDS = ("exported", "refused", "too large", "no target", "broken")


class Request(NamedTuple):
    """What is asked."""

    runtime: str
    model: str
    gpus: int
    task: str


class Verdict(NamedTuple):
    """What came of it."""

    kind: str  # one of KINDS
    plans: int
    said: str = ""


def requests() -> list[Request]:
    """Every runtime, catalog model, number of GPUs and task."""
    return [Request(*each) for each in product(runtimes.runtime_names(), model_names(), COUNTS, TASKS)]


def verdict(request: Request) -> Verdict:
    """Plan, and write every plan that is shown."""
    runtime, model, gpus, task = request
    try:
        found = astra.plan(model, gpus=f"{gpus}x{GPU}", runtime=runtime, task=task)
    except NoFeasiblePlan as error:
        return _refused(str(error), runtime, model)
    except AstraError as error:
        return Verdict("broken", 0, str(error))
    record = json.loads(found.to_json())
    target = runtimes.runtime(runtime).exports_to
    reasons = [reason for plan in record["plans"] for reason in _not_written(record, plan["rank"], target)]
    if reasons:
        return Verdict("broken", len(found.plans), "; ".join(reasons))
    return Verdict("exported" if target else "no target", len(found.plans))


def _refused(said: str, runtime: str, model: str) -> Verdict:
    """A refusal names the runtime, the reasons and who can; anything else must be memory."""
    if said.startswith(f"--runtime {runtime} cannot train {model} so: "):
        whole = "Runtimes that can: " in said or "No other runtime" in said
        return Verdict("refused" if whole else "broken", 0, said)
    return Verdict("too large" if "GiB" in said else "broken", 0, said)


def _not_written(record: Any, rank: int, target: str) -> list[str]:
    launch, _ = from_record(record, rank)
    if not target:
        return []
    exporter = EXPORTERS[target]
    reasons = refusals(exporter, launch)
    return reasons or ([] if exporter.files(launch) else ["no files"])
