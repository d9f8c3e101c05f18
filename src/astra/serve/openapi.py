"""The API described as OpenAPI: fields of requests and records of answers are taken from where they are declared."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from astra import __version__
from astra.answer import Estimate, ModelReport, PlanSet, Result
from astra.answer_money import AffordReport, RentReport
from astra.spec.model import ModelSpec
from astra.spec.request import FIELDS, PlanRequest
from astra.study.records import Comparison, Explanation, Sweep

_REF: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    403: "Asked by a page of another site, or under a host name that is not known",
    405: "Another method",
    408: "The body did not come in time",
    413: "The body is too large",
    415: "The body is not application/json",
    422: "What was asked cannot be answered, and why, in the words of the command line",
    500: "A bug in Astra",
    503: "The server has its hands full, or the search took too long",
}

# What the command line takes from a file.
_THEMSELVES: Final = {
    "model": "a name of the catalog, or a model itself, as /api/import answers it",
    "cluster": "GPUs, nodes and links of your own; gpus or this",
    "rules": "rules of your own, a line each",
    "own": "GPUs you have, beside what can be rented, such as 64xH100",
}

_ABOUT: Final = (
    "Plans, estimates and what to rent, as the same records that `--json` writes (docs/json.md). Requests are the "
    "fields of docs/requests.md; a model, a cluster and rules are sent themselves, never as the path of a file."
)
_LOOKED_FOR: Final = ("tokens", "objective")  # by what a budget buys
_STRATEGY: Final = "tp4 pp1 dp2 mbs1 sp zero1"
_ON_GPUS: Final = {"model": "llama-2-7b", "gpus": ["8xH100"], "batch": 64, "seq": 2048, "tokens": "100B"}
_RENTED: Final = {"model": "llama-2-7b", "gpus": "H100", "tokens": "10B", "max_gpus": 16, "mixes": "none"}
_TRIED: Final = {**_ON_GPUS, "strategy": _STRATEGY}
_CONFIG: Final = (
    '{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, '
    '"intermediate_size": 1408, "vocab_size": 32000}'
)
_EXAMPLES: Final[dict[str, list[Any]]] = {
    "plan": [_ON_GPUS],
    "estimate": [_TRIED],
    "rent": [_RENTED],
    "afford": [{"model": "llama-3.2-1b", "budget": "20", "gpus": "H100", "max_gpus": 8}],
    "sweep": [{"request": _ON_GPUS, "over": ["batch=32,64"]}],
    "explain": [{"request": _ON_GPUS, "pick": 1}],
    "compare": [{"first": _TRIED, "second": {**_ON_GPUS, "strategy": "tp2 pp1 dp4 mbs1 sp zero1"}}],
    "view": [{"verb": "plan", "request": _ON_GPUS}, {"verb": "rent", "request": _RENTED}],
    "report": [{"verb": "plan", "request": _ON_GPUS}],
    "trace": [_TRIED],
    "export": [{"request": _ON_GPUS, "target": "megatron"}],
    "import": [{"text": _CONFIG, "name": "config.json"}],
}


class Imported(Result, frozen=True, kw_only=True):
    """A model of a config.json, to be sent as the model of a request, and what was understood of it."""

    model: ModelSpec
    report: ModelReport


@lru_cache(maxsize=1)
def description() -> dict[str, Any]:
    """The whole API, as OpenAPI 3.1."""
    records = [PlanRequest, PlanSet, Estimate, RentReport, Comparison, Imported, AffordReport, Sweep, Explanation]
    _, schemas = msgspec.json.schema_components(records, schema_hook=lambda _: {}, ref_template=_REF)
    whole = schemas.pop("PlanRequest")
    for verb, name in (("plan", "AskPlan"), ("estimate", "AskEstimate"), ("rent", "AskRent")):
        schemas[name] = _fields(whole, verb)
    bought = {name: kind for name, kind in schemas["AskRent"]["properties"].items() if name not in _LOOKED_FOR}
    ratio = {"type": "number", "exclusiveMinimum": 0, "maximum": 999999, "description": "tokens for each parameter"}
    schemas["AskAfford"] = _object({**bought, "ratio": ratio}, ["budget"])
    schemas["Error"] = _object({name: {"type": "string"} for name in ("error", "where", "want", "fix")})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Astra", "version": __version__, "description": _ABOUT},
        "paths": _paths(),
        "components": {"schemas": schemas},
    }


def _paths() -> dict[str, Any]:
    ask = {verb: {"$ref": _REF.format(name=f"Ask{verb.title()}")} for verb in ("plan", "estimate", "rent")}
    either = {"anyOf": [ask["plan"], ask["rent"]]}
    both = _object({"first": ask["estimate"], "second": ask["estimate"]})
    pick = _spelled({"type": "integer", "minimum": 1, "maximum": 100, "default": 1})
    bought = {"$ref": _REF.format(name="AskAfford")}
    texts = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
    over = _object({"request": ask["plan"], "over": texts})
    why = _object({"request": ask["plan"], "pick": pick}, ["request"])
    shown = _object({"verb": _words("plan", "rent", "estimate", "compare", "afford", "sweep", "explain"),
                     "request": {"anyOf": [*ask.values(), both, bought, over, why]}}, needed=["request"])  # fmt: skip
    export = _object({"request": ask["plan"], "target": {"type": "string"}, "pick": pick,
                      "nearest": {"type": "boolean", "default": False}}, needed=["request", "target"])  # fmt: skip
    config = _object({"text": {"type": "string"}, "name": {"type": "string", "default": "config.json"}}, ["text"])
    report = _object({"verb": _words("plan", "rent"), "request": either}, needed=["request"])
    html, svg, packed = "text/html", "image/svg+xml", "application/zip"
    posts: dict[str, tuple[Any, ...]] = {
        "plan": ("The best strategies for a model on some GPUs", ask["plan"], "PlanSet"),
        "estimate": ("Time and memory of one strategy", ask["estimate"], "Estimate"),
        "rent": ("What to rent: every trade of time for money worth making", ask["rent"], "RentReport"),
        "afford": ("What a budget buys: tokens, models, GPUs", bought, "AffordReport"),
        "sweep": ("How the best plan moves with a number", over, "astra.study.records.Sweep"),
        "explain": ("Why a plan is as it is, and what would change it", why, "Explanation"),
        "compare": ("Two strategies side by side, term by term", both, "Comparison"),
        "view": ("An answer as part of a page", shown, "", html),
        "report": ("An answer as a page of its own to show", report, "", html),
        "trace": ("The simulated step of a strategy as a picture", ask["estimate"], "", svg),
        "export": ("The files that start a plan", export, "", packed),
        "import": ("A model out of a Hugging Face config.json", config, "Imported"),
    }
    return {
        **{f"/api/{kind}": _post(kind, *said) for kind, said in posts.items()},
        "/api/catalog": _get("Models, GPUs, nodes, runtimes, precisions and targets known by name"),
        "/api/openapi.json": _get("This description"),
    }


def _post(
    kind: str, summary: str, body: dict[str, Any], record: str, media: str = "application/json"
) -> dict[str, Any]:
    content = {media: {"schema": {"$ref": _REF.format(name=record)}} if record else {}}
    examples = {f"example-{place}": {"value": value} for place, value in enumerate(_EXAMPLES[kind], 1)}
    asked = {"required": True, "content": {"application/json": {"schema": body, "examples": examples}}}
    return {"post": {"summary": summary, "requestBody": asked, "responses": _responses(content, *_ERRORS)}}


def _get(summary: str) -> dict[str, Any]:
    found = {"application/json": {"schema": {"type": "object"}}}
    return {"get": {"summary": summary, "responses": _responses(found, 403, 405, 500, 503)}}


def _responses(content: dict[str, Any], *errors: int) -> dict[str, Any]:
    wrong = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    said = {str(code): {"description": _ERRORS[code], "content": wrong} for code in errors}
    return {"200": {"description": "The answer", "content": content}, **said}


def _object(properties: dict[str, Any], needed: list[str] | None = None) -> dict[str, Any]:
    required = list(properties) if needed is None else needed
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _words(*words: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(words), "default": words[0]}


def _fields(whole: dict[str, Any], verb: str) -> dict[str, Any]:
    """The fields that a verb takes, with what ``--help`` says of each."""
    found = {}
    for name, field in FIELDS.items():
        if field.on(verb) and name in _THEMSELVES:
            kinds = whole["properties"][name].get("anyOf", [whole["properties"][name]])
            own = [kind for kind in kinds if name == "model" or kind.get("type") != "string"]
            found[name] = {"anyOf": own, "description": _THEMSELVES[name]}
        elif field.on(verb):
            about = field.help if isinstance(field.help, str) else "; ".join(dict.fromkeys(field.help.values()))
            found[name] = {**_spelled(whole["properties"][name]), "description": about}
    needed = {"plan": ["model"], "estimate": ["model", "strategy"], "rent": ["model", "tokens"]}[verb]
    return _object(found, needed)


def _spelled(schema: dict[str, Any]) -> dict[str, Any]:
    """Numbers may be texts such as 1T, and a list of one may stand without its brackets."""
    if "anyOf" in schema:
        kinds = [kind for one in schema["anyOf"] for kind in _spelled(one).get("anyOf", [one])]
        return {**schema, "anyOf": kinds}
    if schema.get("type") in ("number", "integer", "array"):
        rest = {key: value for key, value in schema.items() if key == "default"}
        own = {key: value for key, value in schema.items() if key != "default"}
        return {"anyOf": [own, {"type": "string"}], **rest}
    return schema
