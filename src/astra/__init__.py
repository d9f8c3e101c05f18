"""Astra: plan the training of large language models on the GPUs you have.

``astra.plan`` finds the best strategies, ``astra.estimate`` costs one you have, ``astra.rent`` says which GPUs to rent
for it, ``astra.afford`` what a budget buys, ``astra.describe_model`` what was understood of a model. ``astra.export``
writes the files that start a plan, ``astra.import_`` reads what others run, ``astra.load`` reads an answer back. They
are loaded on first use: importing astra is light.
"""

from __future__ import annotations

__version__ = "0.2.0"

TYPE_CHECKING = False  # typing takes longer to load than all of this
if TYPE_CHECKING:
    from typing import Any

    from astra.answer import Estimate, Plan, PlanSet
    from astra.answer_money import AffordReport, RentReport
    from astra.api import describe_model, estimate, plan
    from astra.errors import AstraError, InputError, NoCoverage, NoFeasiblePlan
    from astra.export.python import export, import_, load
    from astra.renting.afford import afford
    from astra.renting.rent import rent
    from astra.spec.cluster import Cluster, Device, Link, NodeType, Pool
    from astra.spec.model import MLA, ModelSpec, MoE
    from astra.spec.money import Money
    from astra.spec.request import PlanRequest
    from astra.spec.strategy import Strategy, parse_strategy
    from astra.spec.workload import Workload

_HOMES = {
    "plan": "astra.api",
    "estimate": "astra.api",
    "describe_model": "astra.api",
    "rent": "astra.renting.rent",
    "afford": "astra.renting.afford",
    "import_": "astra.export.python",
    "load": "astra.export.python",
    "AffordReport": "astra.answer_money",
    "Money": "astra.spec.money",
    "RentReport": "astra.answer_money",
    "ModelReport": "astra.answer",
    "Estimate": "astra.answer",
    "Plan": "astra.answer",
    "PlanRequest": "astra.spec.request",
    "PlanSet": "astra.answer",
    "Cluster": "astra.spec.cluster",
    "Device": "astra.spec.cluster",
    "Link": "astra.spec.cluster",
    "NodeType": "astra.spec.cluster",
    "Pool": "astra.spec.cluster",
    "ModelSpec": "astra.spec.model",
    "MoE": "astra.spec.model",
    "MLA": "astra.spec.model",
    "Strategy": "astra.spec.strategy",
    "parse_strategy": "astra.spec.strategy",
    "Workload": "astra.spec.workload",
    "AstraError": "astra.errors",
    "InputError": "astra.errors",
    "NoCoverage": "astra.errors",
    "NoFeasiblePlan": "astra.errors",
}

__all__ = [
    "MLA",
    "AffordReport",
    "AstraError",
    "Cluster",
    "Device",
    "Estimate",
    "InputError",
    "Link",
    "MoE",
    "ModelReport",
    "ModelSpec",
    "Money",
    "NoCoverage",
    "NoFeasiblePlan",
    "NodeType",
    "Plan",
    "PlanRequest",
    "PlanSet",
    "Pool",
    "RentReport",
    "Strategy",
    "Workload",
    "__version__",
    "afford",
    "describe_model",
    "estimate",
    "export",
    "import_",
    "load",
    "parse_strategy",
    "plan",
    "rent",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home the first time it is used."""
    import importlib  # noqa: PLC0415

    if name == "export":  # a package that can be called
        return importlib.import_module("astra.export")
    if name not in _HOMES:
        raise AttributeError(f"module 'astra' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
