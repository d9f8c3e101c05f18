"""The keyword arguments of the public functions, for editors and type checkers; the fields are those of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, SupportsFloat, SupportsIndex, TypedDict

from astra.spec.cluster import Cluster
from astra.spec.mixed import MixedStrategy, OnePool
from astra.spec.model import ModelSpec
from astra.spec.money import Money
from astra.spec.request import PlanRequest
from astra.spec.strategy import Strategy

Path = str | PathLike[str]
Whole = SupportsIndex | str  # numpy's integers too, and "1k"
Number = SupportsFloat | str  # numpy's numbers too, and "1.5T"
Texts = str | Sequence[str]
Restricted = Texts | Mapping[str, Any]  # "tp=8", ["tp=8", "pp=4"] or {"tp": 8, "pp": 4}
ModelLike = Path | ModelSpec | Mapping[str, Any]
Asked = ModelLike | PlanRequest


class _WorkOptions(TypedDict, total=False):
    """What every verb takes."""

    gpus: Texts | None
    batch: Whole
    seq: Whole | None
    tokens: Number | None
    precision: str
    optimizer: str
    task: str
    lora_rank: Whole
    lora_targets: str
    imbalance: Number
    packed: Whole
    mtp: Whole
    runtime: str | None
    headroom: Number
    money: Money | Mapping[str, Any] | None


class _Own(_WorkOptions, total=False):
    """What is said of GPUs that one has."""

    cluster: Path | Cluster | Mapping[str, Any] | None
    node: str | None
    rules: Path | Sequence[str] | None
    strict: bool


class _GoalOptions(TypedDict, total=False):
    """What is best."""

    objective: str | None
    budget: Number | None
    deadline: Number | None


class PlanOptions(_Own, _GoalOptions, total=False):
    """The keywords of ``plan``."""

    counts: str
    node_lost: bool
    by_runtime: bool
    worth: bool
    time_budget: float | None
    local_steps: Whole | None
    launchable: bool
    top: Whole
    fix: Restricted
    forbid: Restricted
    maximum: Restricted
    minimum: Restricted
    rank: str
    baseline: str | Strategy | MixedStrategy | OnePool | None


class EstimateOptions(_Own, total=False):
    """The keywords of ``estimate``."""

    strategy: str | Strategy | MixedStrategy | OnePool


class RentOptions(_WorkOptions, _GoalOptions, total=False):
    """The keywords of ``rent``."""

    rank: str
    max_gpus: Whole
    mixes: str
    known_nodes: bool
    assume_network: bool
    own: Texts | None
