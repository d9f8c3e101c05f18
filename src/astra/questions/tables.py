"""The results as two Parquet tables: a row for each question, a row for each plan. The only module with pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from astra.errors import InputError
from astra.questions.answering import PLANNED, StudyAnswer
from astra.questions.declared import Question
from astra.questions.records import FIGURES

QUESTIONS_FILE: Final = "questions.parquet"
PLANS_FILE: Final = "plans.parquet"
_ROWS: Final = 10_000  # of a row group
_AXES: Final = {"models": "model", "fleets": "fleet", "workloads": "workload", "goals": "goal", "prices": "price"}

# Where a row belongs, in both tables:
_PLACE: Final = {"question": "int64", "key": "string"} | dict.fromkeys(_AXES.values(), "string")
PLAN_COLUMNS: Final = (
    _PLACE | {"rank": "int64"} | FIGURES | {"breakdown": "terms", "warnings": "texts", "lost_by": "string"}
)
QUESTION_COLUMNS: Final = _PLACE | {
    "status": "string", "error_kind": "string", "error": "string", "objective": "string", "plans": "int64",
    "considered": "int64", "evaluated": "int64",
} | FIGURES | {"version": "string", "catalog": "string", "request": "string"}  # fmt: skip


class StudyTable:
    """A table that is filled row by row; the same rows give the same bytes."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._arrow, parquet = arrow()
        self._schema = self._arrow.schema([(name, _type(self._arrow, kind)) for name, kind in columns.items()])
        self._sink = self._arrow.BufferOutputStream()
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; a column that one does not have is null in it."""
        self._rows += map(dict, rows)
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []

    def content(self) -> bytes:
        """The file; nothing can be added any more."""
        if self._rows:
            self._flush()
        self._writer.close()
        whole: bytes = self._sink.getvalue().to_pybytes()
        return whole


def question_row(question: Question, answer: StudyAnswer) -> dict[str, Any]:
    """A question with its first plan."""
    best = answer.plans[0] if answer.plans else {}
    return {
        **_place(question),
        "status": answer.status,
        "error_kind": answer.kind or None,
        "error": answer.error or None,
        "objective": answer.objective or None,
        "plans": len(answer.plans),
        "considered": answer.considered if answer.status == PLANNED else None,
        "evaluated": answer.evaluated if answer.status == PLANNED else None,
        **{name: best.get(name) for name in FIGURES},
        "version": answer.version,
        "catalog": answer.catalog,
        "request": msgspec.json.encode(question.request.plain("plan")).decode(),
    }


def plan_rows(question: Question, answer: StudyAnswer) -> Iterator[dict[str, Any]]:
    """The plans of a question."""
    for plan in answer.plans:
        yield {**_place(question), **plan}


def _place(question: Question) -> dict[str, Any]:
    named = {_AXES[axis]: name for axis, name in question.at.items()}
    return {"question": question.number, "key": question.key, **named}


def _type(pyarrow: Any, kind: str) -> Any:
    if kind == "terms":
        return pyarrow.list_(pyarrow.struct([("term", pyarrow.string()), ("seconds", pyarrow.float64())]))
    if kind == "texts":
        return pyarrow.list_(pyarrow.string())
    return {"string": pyarrow.string, "int64": pyarrow.int64, "double": pyarrow.float64}[kind]()


def arrow() -> tuple[Any, Any]:
    """The two modules of pyarrow, or a sentence on how to have them."""
    try:
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError:
        fix = "pip install 'astra-planner[study]' has it."
        raise InputError("astra study", None, want="pyarrow, which writes Parquet", fix=fix) from None
    return pyarrow, pyarrow.parquet
