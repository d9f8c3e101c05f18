"""A plan of a file, for the verbs that look closer at one: its record, its request looked up again, its strategy."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from astra.cli import source

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

    text, record, rank = source.plan_strategy(file, source.FileChoice(pick=pick))
    plan, place = plan_of(record, rank, file)
    return Planned(file, record, world_of(record, file), rank, text, figure(plan, "step_s", place))


def answer_of(found: Planned) -> PlanSet:
    """The whole answer of a plan file, as it was given."""
    from astra.answer import PlanSet  # noqa: PLC0415
    from astra.study.reading import answer_of as read_answer  # noqa: PLC0415

    answer = read_answer(found.record, found.file)
    assert isinstance(answer, PlanSet), "only plans were read"
    return answer
