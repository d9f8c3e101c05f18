"""A study from its questions to its tables and summary: what is in the journal is done, the rest is asked.

A question is done when its line is in the journal. Tables and summary are made from the journal alone, so they do not
depend on which engine answered, in which order, or in how many runs.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from astra.atomic import write_file
from astra.errors import AstraError, InputError, OutputError
from astra.journal import Journal, JournalPlace
from astra.questions.answering import FAILED, PLANNED, STATUSES, StudyAnswer, StudyLine
from astra.questions.declared import Question, Study, fingerprint, questions_of
from astra.questions.engines import Engine
from astra.questions.records import FIGURES, BestFleet, StudyPoint, StudyProblem, StudyReport
from astra.questions.tables import (
    PLAN_COLUMNS,
    PLANS_FILE,
    QUESTION_COLUMNS,
    QUESTIONS_FILE,
    StudyTable,
    arrow,
    plan_rows,
    question_row,
)

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


JOURNAL_FILE: Final = "journal.jsonl"


class Progress(NamedTuple):
    """How far a study is."""

    done: int  # with those of earlier runs
    questions: int
    now: int  # done by this run
    seconds: float  # of this run

    @property
    def left_s(self) -> float | None:
        """The time left, at the pace of this run."""
        return self.seconds / self.now * (self.questions - self.done) if self.now else None


Follow = Callable[[Progress], None]


class Results:
    """A folder of results: the journal, and where each answer stands in it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise OutputError(f"{folder} is a file; --out names the folder of the results.")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: {error.strerror or error}.") from None
        self._journal = Journal(os.path.join(folder, JOURNAL_FILE))
        self._places: dict[str, JournalPlace] = {}
        self._failed: set[str] = set()
        for number, place in enumerate(self._journal.places, start=1):
            self._note(self._read(place, number), place)

    def _read(self, place: JournalPlace, number: int) -> StudyLine:
        try:
            return msgspec.json.decode(self._journal.line(place), type=StudyLine)
        except msgspec.MsgspecError as error:
            where = f"{self._journal.path}: line {number}"
            fix = "Take that line out, and its question is asked again."
            raise InputError(where, None, want=f"an answer as this version writes it ({error})", fix=fix) from None

    def _note(self, line: StudyLine, place: JournalPlace) -> None:
        self._places[line.key] = place  # one asked again counts as it was answered last
        (self._failed.add if line.answer.status == FAILED else self._failed.discard)(line.key)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def failed(self, key: str) -> bool:
        """Whether an answer is that of a bug or a lost worker."""
        return key in self._failed

    def keep(self, line: bytes) -> None:
        """Keep an answer."""
        read = msgspec.json.decode(line, type=StudyLine)
        found, ours = {"version": read.answer.version, "catalog": read.answer.catalog}, fingerprint()
        if found != ours:
            raise AstraError(f"a worker has another Astra ({found}) than this one ({ours}): install the same there.")
        self._note(read, self._journal.append(line))

    def answer(self, key: str) -> StudyAnswer:
        """The answer to a question that has one."""
        line: StudyLine = msgspec.json.decode(self._journal.line(self._places[key]), type=StudyLine)
        return line.answer

    def close(self) -> None:
        """Have all of it on disk, and let others write."""
        self._journal.close()


def run(
    study: Study, results: Results, engine: Engine, *, most: int | None = None, retry: bool = False,
    follow: Follow = lambda progress: None,
) -> StudyReport:  # fmt: skip
    """Ask what is not answered yet (``most`` at most; with ``retry`` also what failed), and write the tables."""
    arrow()
    began_s, before = time.monotonic(), 0
    open_: dict[str, Question] = {}
    for question in questions_of(study):
        if question.key in results and not (retry and results.failed(question.key)):
            before += 1
        else:
            open_.setdefault(question.key, question)
    now = again = 0
    asked = open_ if most is None else dict(islice(open_.items(), most))
    with closing(engine):
        for given in engine.answers(iter(asked.values())):
            results.keep(given.line)
            now, again = now + 1, again + given.tries - 1
            follow(Progress(before + now, before + len(open_), now, time.monotonic() - began_s))
    seconds = time.monotonic() - began_s
    summary, files = written(study, results)
    answered = sum(summary.statuses.values())
    few, left = len(summary.points) <= MOST_POINTS, study.size - answered
    notes = [f"{left:,} questions are not answered yet: the same command goes on with them"] * bool(left)
    notes += [f"more than {MOST_POINTS:,} questions: they are in the tables alone"] * (not few)
    return StudyReport(
        title=study.title,
        folder=results.folder,
        files=files,
        fingerprint=fingerprint(),
        axes={axis: [setting.name for setting in settings] for axis, settings in study.axes.items()},
        engine=engine.name,
        workers=engine.workers,
        questions=study.size,
        answered=answered,
        before=before,
        again=again,
        statuses=summary.statuses,
        plans=summary.plans,
        seconds=seconds,
        questions_per_s=now / seconds if now else 0.0,
        best=summary.best(),
        problems=summary.problems(),
        points=summary.points if few else [],
        notes=notes,
    )


def answers_of(study: Study, results: Results) -> Iterator[tuple[Question, StudyAnswer]]:
    """Every question that has an answer, in the order of the study."""
    for question in questions_of(study):
        if question.key in results:
            yield question, results.answer(question.key)


def written(study: Study, results: Results) -> tuple[Summary, list[str]]:
    """Write the tables of all answers there are; the summary, and the paths."""
    summary, questions, plans = Summary(), StudyTable(QUESTION_COLUMNS), StudyTable(PLAN_COLUMNS)
    for question, answer in answers_of(study, results):
        summary.add(question, answer)
        questions.add([question_row(question, answer)])
        plans.add(plan_rows(question, answer))
    paths = [os.path.join(results.folder, name) for name in (QUESTIONS_FILE, PLANS_FILE)]
    for path, table in zip(paths, (questions, plans), strict=True):
        write_file(path, table.content())
    return summary, paths
