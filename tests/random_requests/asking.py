"""A request put to Astra in this process, by one of its spellings; whatever comes back is a reply."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import astra
from astra.catalog.requests import write_request
from astra.cli import BUG, main
from astra.cli.output import error_record
from astra.errors import AstraError, NoFeasiblePlan
from tests.random_requests.drawing import Asked, Fields, command_line

VERBS: Final[dict[str, Callable[..., Any]]] = {"plan": astra.plan, "estimate": astra.estimate, "rent": astra.rent}


class Reply(NamedTuple):
    """An exit code, the record that ``--json`` prints, and what else was said."""

    code: int
    record: dict[str, Any]
    told: str = ""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where files of requests are."""
    return tempfile.TemporaryDirectory(prefix="astra-random-")


def ask(asked: Asked) -> Reply:
    """Ask, by keywords or by a command line; nothing escapes."""
    return _by_keywords(asked) if asked.spelling == "keywords" else _by_words(words_of(asked))


def words_of(asked: Asked) -> list[str]:
    """The command line, with the files it names written."""
    folder = Path(_folder().name)
    if asked.words:
        return list(asked.words)
    if asked.spelling == "toml":
        (request := folder / "request.toml").write_text(write_request(asked.fields, asked.verb), encoding="utf-8")
        return [asked.verb, str(request)]
    fields: Fields = dict(asked.fields)
    if "rules" in fields:
        (rules := folder / "rules.txt").write_text("\n".join(fields["rules"]), encoding="utf-8")
        fields["rules"] = str(rules)
    return command_line(asked.verb, fields)


def _by_words(words: list[str]) -> Reply:
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
        code = main([*words, "--json"])
    try:
        return Reply(code, json.loads(said.getvalue()), told.getvalue())
    except ValueError:  # help was asked for, or the flag that asks for JSON became the value of another
        return Reply(code, {}, told.getvalue())


def _by_keywords(asked: Asked) -> Reply:
    try:
        answer = VERBS[asked.verb](**asked.fields)
    except AstraError as error:
        record = json.loads(error_record(type(error).__name__, error, error.exit_code))
        return Reply(error.exit_code, record, str(error))
    except Exception:
        return Reply(BUG, {}, traceback.format_exc())
    record = json.loads(answer.to_json())
    return Reply(0 if record.get("plans", record) else NoFeasiblePlan.exit_code, record)
