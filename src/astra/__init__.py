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
    "astra.answer": "Estimate ModelReport Plan PlanSet",
    "astra.answer_money": "AffordReport RentReport",
    "astra.api": "describe_model estimate plan",
    "astra.errors": "AstraError InputError NoCoverage NoFeasiblePlan",
    "astra.export.python": "import_ load",
    "astra.renting.afford": "afford",
    "astra.renting.rent": "rent",
    "astra.spec.cluster": "Cluster Device Link NodeType Pool",
    "astra.spec.model": "MLA ModelSpec MoE",
    "astra.spec.money": "Money",
    "astra.spec.request": "PlanRequest",
    "astra.spec.strategy": "Strategy parse_strategy",
    "astra.spec.workload": "Workload",
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
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module 'astra' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
