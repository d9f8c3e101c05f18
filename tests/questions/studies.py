"""Small studies, and answers that are made up so that engines are tested by themselves."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from astra.questions.answering import PLANNED, StudyAnswer, StudyLine, line
from astra.questions.declared import Question, Study, fingerprint, questions_of, study_of
from astra.spec.request import PlanRequest

TABLES: dict[str, Any] = {
    "title": "two models",
    "models": ["llama-2-7b", "llama-3-8b"],
    "fleets": ["8xH100", ["8xH100", "8xA100-80"]],
    "workloads": {"short": {"batch": 64, "seq": 2048}, "long": {"batch": 8, "seq": "16k"}},
    "goals": ["fastest"],
    "prices": {"list": {}, "spot": {"market": "spot"}},
    "request": {"tokens": "10B", "top": 2},
}


def study(**changed: Any) -> Study:
    return study_of({**TABLES, **changed}, "s.toml", Path())


def many(count: int) -> Study:
    """As many questions as batches."""
    return study(fleets=["8xH100"], models=["llama-2-7b"], prices=["spot"],
                 workloads=[{"batch": 8 * number} for number in range(1, count + 1)])  # fmt: skip


def made_up(key: str, request: PlanRequest) -> bytes:
    plans = [{"rank": 1, "mfu": float(request.batch)}]
    ours = fingerprint()
    return line(key, StudyAnswer(status=PLANNED, plans=plans, version=ours["version"], catalog=ours["catalog"]))


def deadly(marks: str, key: str, request: PlanRequest) -> bytes:
    """An answer whose worker is killed the first time, for every third batch; always, for batch 16."""
    mark = Path(marks) / key
    tried = len(mark.read_bytes()) if mark.exists() else 0
    if request.batch == 16 or (isinstance(request.batch, int) and request.batch % 24 == 0 and not tried):
        mark.write_bytes(b"." * (tried + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return made_up(key, request)


def asked(found: Study) -> list[Question]:
    return list(questions_of(found))


def read(raw: bytes) -> StudyLine:
    return msgspec.json.decode(raw, type=StudyLine)
