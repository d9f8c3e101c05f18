"""What a client sends, as a request: the fields of a ``PlanRequest`` as JSON, and no path of a file anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from astra.catalog.models import known_name, model_names
from astra.errors import InputError, UnknownName
from astra.spec.request import PlanRequest, read_request

# Fields of which the command line reads a file; a strategy's file (baseline) it reads before it asks.
PATHS: Final = ("model", "cluster", "own", "rules", "baseline", "money.prices")
_COUNTED: Final = re.compile(r"\s*[0-9].*(?<!\.toml)", re.IGNORECASE | re.DOTALL)
_DROP: Final = "Or send the contents of a Hugging Face config.json to /api/import, and its answer as the model."


def request_of(verb: str, fields: object) -> PlanRequest:
    """The request that a client's fields make up for a verb."""
    table = table_of(fields, "request")
    if "model" not in table:
        raise InputError("model", None, want="the model to train", fix="Such as llama-2-70b.")
    if verb == "rent" and table.get("tokens") is None:
        raise InputError("tokens", None, want="the tokens to train", fix="Such as 2T.")
    check_no_path(table)
    return read_request(verb, table)


def check_no_path(fields: Mapping[str, Any]) -> None:
    """Where the command line would take the path of a file, a client sends what is in it."""
    model = fields.get("model")
    if isinstance(model, str) and known_name(model) is None:
        raise UnknownName("model", model, model_names(), fix=_DROP)
    if isinstance(fields.get("cluster"), str):
        raise InputError("cluster", fields["cluster"], want="the cluster itself, not the path of a file")
    if isinstance(fields.get("rules"), str):
        raise InputError("rules", fields["rules"], want="a list of rules, not the path of a file")
    own = fields.get("own")
    for text in [own] if isinstance(own, str) else own if isinstance(own, list) else ():
        if isinstance(text, str) and not _COUNTED.fullmatch(text):
            raise InputError("own", text, want="GPUs such as 64xH100, not the path of a file")
    money = fields.get("money")
    if isinstance(money, Mapping) and money.get("prices") is not None:
        raise InputError("money.prices", None, want="no file of prices", fix="Give money.usd_per_gpu_h instead.")


def table_of(value: object, where: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise InputError(where, value, want="a JSON object")
    return value


def parts_of(body: object, *names: str) -> dict[str, Any]:
    """The named parts of a body, which has no others."""
    table = table_of(body, "body")
    for name in table:
        if name not in names:
            raise InputError(name, None, want=f"a part of this request: {', '.join(names)}")
    return table


def text_of(parts: Mapping[str, Any], name: str, usual: str | None = None) -> str:
    """A part that is a text."""
    value = parts.get(name, usual)
    if not isinstance(value, str):
        raise InputError(name, value, want="a text")
    return value
