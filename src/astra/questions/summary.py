"""A study at a glance: the best fleet for everything else, and what went wrong how often."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, Final

from astra.questions.answering import PLANNED, STATUSES, StudyAnswer
from astra.questions.question import Question
from astra.questions.records import FIGURES, BestFleet, StudyPoint, StudyProblem

MOST_POINTS: Final = 1000  # that a summary holds one by one
MOST_BEST: Final = 5000
_NUMBERS: Final = re.compile(r"[0-9][0-9.,]*")
_BY_DOLLARS: Final = ("usd_per_billion_tokens", "dollars")
# What decides between fleets, by the objective that plans were chosen by: a column and its words.
_JUDGED: Final = {
    "fastest": ("tokens_per_s", "tokens per second"),
    "budget": ("tokens_per_s", "tokens per second"),
    "energy": ("kwh", "kWh"),
    "co2": ("kg_co2", "kg of CO2"),
}


class Summary:
    """Filled question by question, in the order of the study."""

    def __init__(self) -> None:
        self.statuses = dict.fromkeys(STATUSES, 0)
        self.plans = 0
        self.points: list[StudyPoint] = []
        self._asked: Counter[tuple[str, ...]] = Counter()
        self._planned: Counter[tuple[str, ...]] = Counter()
        self._best: dict[tuple[str, ...], tuple[float, str, StudyPoint]] = {}
        self._problems: dict[tuple[str, str, str], list[Any]] = {}

    def add(self, question: Question, answer: StudyAnswer) -> None:
        """Count one question in."""
        self.statuses[answer.status] += 1
        self.plans += len(answer.plans)
        point = _point(question, answer)
        if len(self.points) <= MOST_POINTS:
            self.points.append(point)
        others = tuple(name for axis, name in question.at.items() if axis != "fleets")
        self._asked[others] += 1
        if answer.status == PLANNED:
            self._planned[others] += 1
            self._offer(others, answer, point)
        else:
            key = (answer.status, answer.kind, _NUMBERS.sub("0", answer.error))
            found = self._problems.setdefault(key, [answer.error, 0, question.at])
            found[1] += 1

    def _offer(self, others: tuple[str, ...], answer: StudyAnswer, point: StudyPoint) -> None:
        column, words = _JUDGED.get(answer.objective, _BY_DOLLARS)
        value = answer.plans[0].get(column)
        worth = math.inf if value is None else -value if column == "tokens_per_s" else value
        known = self._best.get(others)
        if (known is None and len(self._best) < MOST_BEST) or (known is not None and worth < known[0]):
            self._best[others] = worth, words, point

    def best(self) -> list[BestFleet]:
        """The best fleet for each setting of the other axes, in the order of the study."""
        return [
            BestFleet(
                at={axis: name for axis, name in point.at.items() if axis != "fleets"},
                judged_by=words,
                fleets=self._asked[others],
                planned=self._planned[others],
                best=point,
            )
            for others, (_, words, point) in self._best.items()
        ]

    def problems(self) -> list[StudyProblem]:
        """Why questions have no plan, sentences that differ in numbers alone as one; the most frequent first."""
        found = [
            StudyProblem(status=status, kind=kind, sentence=sentence, questions=count, first=at)
            for (status, kind, _), (sentence, count, at) in self._problems.items()
        ]
        return sorted(found, key=lambda problem: -problem.questions)


def _point(question: Question, answer: StudyAnswer) -> StudyPoint:
    best = answer.plans[0] if answer.plans else {}
    figures = {name: best.get(name) for name in StudyPoint.__struct_fields__ if name in FIGURES}
    expected = {name: best[f"expected_{name}"] for name in ("days", "usd") if best.get(f"expected_{name}") is not None}
    return StudyPoint(at=question.at, status=answer.status, why=answer.error, **(figures | expected))
