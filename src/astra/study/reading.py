"""Answers read back from their JSON form, as the records that they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from astra.answer import Plan, PlanSet
from astra.answer_money import RentReport
from astra.errors import InputError
from astra.search.fleet.records import MixedEstimate, MixedPlanSet, MixedStage

_AGAIN: Final = "Make it again with astra plan --out or astra rent --out."


def answer_of(record: Mapping[str, Any], where: str) -> PlanSet | RentReport:
    """The answer that a record is the plain form of: of one pool, of several, or of something to rent."""
    try:
        if str(record.get("schema", "")).startswith("astra.rent/"):
            return msgspec.convert(record, RentReport)
        return _mixed(record) if "conceivable" in record else msgspec.convert(record, PlanSet)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise InputError(where, None, want=f"an answer as this version writes it: {error}", fix=_AGAIN) from None


def _mixed(record: Mapping[str, Any]) -> MixedPlanSet:
    """Plans over several pools hold more than the fields that all plans have."""
    found = msgspec.convert(record, MixedPlanSet)
    launchable = record.get("launchable")
    plans, best = [_plan(plan) for plan in record["plans"]], _plan(record["conceivable"])
    return replace(found, plans=plans, conceivable=best, launchable=launchable and _plan(launchable))


def _plan(record: Mapping[str, Any]) -> Plan:
    estimate = msgspec.convert(record["estimate"], MixedEstimate)
    stages = [msgspec.convert(stage, MixedStage) for stage in record["estimate"]["stages"]]
    return replace(msgspec.convert(record, Plan), estimate=replace(estimate, stages=stages))
