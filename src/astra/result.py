"""What Astra answers: estimates, plans and the ledger of what was refused. Their JSON form is documented and versioned.

Seconds are per optimizer step unless a name says otherwise; memory is in GiB per GPU, as tools print it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from astra.spec.strategy import Strategy

ESTIMATE_SCHEMA: Final = "astra.estimate/1"
PLAN_SCHEMA: Final = "astra.plan/1"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the answers."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as written by ``--json``."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_plain)
        return plain

    def to_json(self) -> str:
        """Indented JSON text."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=_plain), indent=2).decode()


def _plain(value: object) -> object:
    return value.item() if hasattr(value, "item") else str(value)


class Range(Result, frozen=True, kw_only=True):
    """A figure with its error bar."""

    low: float
    high: float


class StageEstimate(Result, frozen=True, kw_only=True):
    """One pipeline stage, as one of its ranks sees a step."""

    index: int
    layers: int
    gpus: int
    gpu: str
    compute_s: float  # forward and backward (and recompute) of all micro-batches; no communication, bubble, optimizer
    forward_s: float  # of compute_s
    backward_s: float  # of compute_s, recompute included
    optimizer_s: float
    communication_s: dict[str, float]  # busy time by kind: tp, cp, ep, pp, dp; hidden or not
    exposed_s: dict[str, float]  # the part of it that compute does not hide
    in_flight: int  # micro-batches whose activations are alive at the worst moment
    memory: dict[str, float]  # GiB by kind at that moment; sums to peak_allocated_gib
    peak_allocated_gib: float
    peak_reserved_gib: float
    fits: bool


class Estimate(Result, frozen=True, kw_only=True):
    """How fast a strategy runs and whether it fits."""

    schema: str = ESTIMATE_SCHEMA
    model: str
    gpus: str
    strategy: str
    runtime: str
    legal: bool
    violations: list[str]
    fits: bool
    step_s: float
    step_s_range: Range
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    hfu: float
    breakdown: dict[str, float]  # seconds by cause on the slowest stage; sums to step_s
    bubble_fraction: float
    microbatches: int
    stages: list[StageEstimate]
    peak_allocated_gib: float
    peak_reserved_gib: float
    peak_gib_range: Range
    memory_usable_gib: float
    memory_limit_gib: float
    provenance: dict[str, str]  # by term
    provenance_worst: str
    warnings: list[str]
    train_days: float | None = None
    train_usd: float | None = None
    price_source: str | None = None


class Plan(Result, frozen=True, kw_only=True):
    """One recommended strategy."""

    rank: int
    strategy: str
    estimate: Estimate
    lost_by: str = ""  # against the best plan: which term costs it the most


class Reject(Result, frozen=True, kw_only=True):
    """Strategies refused for one reason."""

    reason: str
    sentence: str
    strategies: int


class Search(Result, frozen=True, kw_only=True):
    """What the search did."""

    considered: int  # strategies in the space, all accounted for
    evaluated: int  # of them, fully costed
    feasible: int  # legal and within memory, among those evaluated
    seconds: float
    strategies_per_s: float


class PlanSet(Result, frozen=True, kw_only=True):
    """The ranked answer to a request."""

    schema: str = PLAN_SCHEMA
    version: str
    fingerprint: dict[str, str]
    request: dict[str, Any]
    plans: list[Plan]
    search: Search
    rejects: list[Reject]
    notes: list[str]

    @property
    def best(self) -> Plan:
        """The first plan."""
        return self.plans[0]

    def __str__(self) -> str:
        from astra.report.text import render_plans  # noqa: PLC0415

        return render_plans(self)

    def _repr_html_(self) -> str:
        from astra.report.html import plans_html  # noqa: PLC0415

        return plans_html(self)


__all__ = ["Estimate", "Plan", "PlanSet", "Range", "Reject", "Result", "Search", "StageEstimate", "Strategy"]
