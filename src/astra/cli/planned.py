"""A plan of a file, for the verbs that look closer at one: its record, its request looked up again, its strategy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from astra.cli import source
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.answer import PlanSet
    from astra.search.world import World


class Planned(NamedTuple):
    """One plan of a file."""

    file: str
    record: dict[str, Any]
    world: World
    rank: int
    strategy: str
    step_s: float


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The PLAN.json argument and which plan of it."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan written by astra plan --out")
    parser.add_argument("--pick", metavar="N", help="which plan of the file (default 1, the best)")


def read(file: str, pick: str | None) -> Planned:
    """The plan of a rank; the file must be whole and consistent."""
    from astra.export.reading import figure, plan_of, world_of  # noqa: PLC0415

    text, record, rank = source.plan_strategy(file, source.Choice(pick=pick))
    plan, place = plan_of(record, rank, file)
    return Planned(file, record, world_of(record, file), rank, text, figure(plan, "step_s", place))


def answer_of(found: Planned) -> PlanSet:
    """The whole answer of a plan file, as it was given."""
    import msgspec  # noqa: PLC0415

    from astra.answer import PlanSet  # noqa: PLC0415
    from astra.search.fleet.records import MixedPlanSet  # noqa: PLC0415

    kind: type[PlanSet] = MixedPlanSet if "conceivable" in found.record else PlanSet
    try:
        return msgspec.convert(found.record, kind)
    except msgspec.ValidationError as error:
        fix = "Make the plan again with astra plan --out PLAN.json."
        raise InputError(found.file, None, want=f"an answer as this version writes it: {error}", fix=fix) from None
