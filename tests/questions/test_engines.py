"""Processes of this machine: every question is answered once, whatever becomes of the workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from astra.questions.answering import FAILED, PLANNED
from astra.questions.engines import MOST_TRIES, Local
from tests.questions.studies import asked, deadly, made_up, many, read


@pytest.mark.parametrize("workers", [1, 3])
def test_every_question_is_answered_once(workers: int) -> None:
    questions = asked(many(20))
    engine = Local(workers, made_up)
    try:
        given = list(engine.answers(iter(questions)))
    finally:
        engine.close()
    found = {read(each.line).key: read(each.line).answer.plans[0]["mfu"] for each in given}
    assert found == {question.key: float(question.request.batch) for question in questions}
    assert len(given) == len(questions)


def test_a_killed_worker_is_replaced_and_a_deadly_question_is_recorded(tmp_path: Path) -> None:
    questions = asked(many(9))  # 16 always kills its worker; 24, 48 and 72 do once
    engine = Local(2, partial(deadly, str(tmp_path)))
    try:
        given = {(found := read(each.line)).key: (found.answer, each.tries) for each in engine.answers(questions)}
    finally:
        engine.close()
    assert len(given) == len(questions)
    for question in questions:
        answer, tries = given[question.key]
        batch = question.request.batch
        if batch == 16:
            assert (answer.status, answer.kind, tries) == (FAILED, "WorkerDied", MOST_TRIES)
            assert "SIGKILL" in answer.error
        else:
            assert answer.status == PLANNED
            assert tries == (2 if batch in (24, 48, 72) else 1)
