"""What each address of the API answers: functions from a client's JSON to a document, run in a worker."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from astra import api
from astra.answer import PlanSet, plain
from astra.answer_money import AffordReport, RentReport
from astra.catalog.hardware import default_node, devices, node_types
from astra.catalog.huggingface import from_config
from astra.catalog.models import models
from astra.catalog.runtimes import runtimes
from astra.errors import AstraError, InputError, visible, within
from astra.export import EXPORTERS
from astra.export.nearest import nearest_of_file
from astra.export.python import make, target
from astra.export.quoting import file_name
from astra.export.reading import from_record, world_of
from astra.files import parse_json
from astra.money.objectives import OBJECTIVES
from astra.renting.afford import afford
from astra.renting.rent import rent
from astra.report.explanation import explained
from astra.report.plan_page import plan_page
from astra.report.rent_page import rent_page
from astra.report.timeline import timeline_svg
from astra.report.view import (
    afford_view,
    comparison_view,
    estimate_view,
    explanation_view,
    plan_view,
    rent_view,
    sweep_view,
)
from astra.search.timeline import first_step, timeline_of
from astra.search.world import World
from astra.serve.asked import check_no_path, parts_of, request_of, table_of, text_of
from astra.serve.pages import OPENED
from astra.spec import kinds
from astra.spec.cluster import Device
from astra.spec.mixed_text import is_mixed
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS, RANKS, PlanRequest
from astra.spec.strategy import parse_strategy
from astra.study.changes import tried
from astra.study.compare import compared
from astra.study.hardware import on, with_gpus
from astra.study.records import Comparison, Explanation, Side, Sweep
from astra.study.sweep import read_axes, swept

JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"
SVG: Final = "image/svg+xml"
ZIP: Final = "application/zip"
UNANSWERABLE: Final = 422
_SINCE: Final = (1980, 1, 1, 0, 0, 0)  # zip has no earlier time; every export of a plan is the same file
MOST_POINTS: Final = 24  # of a sweep; the command line has more
EXPLAINED_S: Final = 6.0  # of plans under changed conditions, for one explanation
_PICK: Final = kinds.whole(1, 100)
_SWITCH: Final = kinds.switch()


class Document(NamedTuple):
    """What goes back to a client."""

    status: int
    media: str
    content: bytes
    name: str = ""  # of the file, where it is one to keep


def json_of(record: object) -> Document:
    """A record as ``--json`` writes it, without the indent."""
    return Document(200, JSON, msgspec.json.encode(record, enc_hook=plain))


def refused(error: AstraError) -> Document:
    """An error in the words of the command line."""
    said = {name: visible(str(getattr(error, name, ""))) for name in ("where", "want", "fix")}
    return Document(UNANSWERABLE, JSON, msgspec.json.encode({"error": str(error), **said}))


@lru_cache(maxsize=8)
def _planned(canonical: bytes) -> PlanSet:
    """The last few plans, so that looking closer at one does not search again."""
    return api.plan(request_of("plan", msgspec.json.decode(canonical)))


def planned(fields: object) -> PlanSet:
    """Plans for a client's fields."""
    return _planned(msgspec.json.encode(table_of(fields, "request"), order="deterministic"))


def _rented(fields: object) -> RentReport:
    return rent(request_of("rent", fields))


def _compared(body: object) -> Comparison:
    parts = parts_of(body, "first", "second")
    first, second = (_side(parts.get(name), name) for name in ("first", "second"))
    return compared(first, second)


def _side(fields: object, name: str) -> Side:
    with within(name):
        request = _on_used(request_of("estimate", table_of(fields, name)))
        tokens = World.of(request).workload.tokens_per_step
        return Side(name=name, estimate=api.estimate(request), tokens_per_step=tokens)


def _on_used(request: PlanRequest) -> PlanRequest:
    """A plan that leaves GPUs out is judged on those it uses, in a comparison."""
    world, text = World.of(request), request.strategy
    if text is None or world.several or is_mixed(text):
        return request
    used = parse_strategy(text, gpus=None).gpus
    return on(request, with_gpus(world.cluster, used)) if used < world.cluster.gpus and "dp" in text else request


def _afforded(fields: object) -> AffordReport:
    """What a client's budget buys."""
    table = dict(table_of(fields, "request"))
    if table.get("budget") is None:
        raise InputError("budget", None, want="the dollars to spend", fix="Such as 50k.")
    model, ratio = table.pop("model", None), {name: table.pop(name) for name in ("ratio",) if name in table}
    check_no_path({**table, "model": model})
    return afford(model, **ratio, **table)


def _swept(body: object) -> Sweep:
    """Plans over a range."""
    parts = parts_of(body, "request", "over")
    over: Any = parts.get("over")
    texts = [over] if isinstance(over, str) else over
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("over", over, want="what is swept, such as gpus=8..64")
    axes = read_axes([text for text in texts if text.strip()], "over")
    points = prod(len(axis.values) for axis in axes)
    if points > MOST_POINTS:
        fix = "astra sweep on the command line has up to 200."
        raise InputError("over", f"{points} points", want=f"at most {MOST_POINTS} here", fix=fix)
    return swept(request_of("plan", parts.get("request")), axes)


def _explained(body: object) -> Explanation:
    """Why one plan of an answer is as it is."""
    parts = parts_of(body, "request", "pick")
    pick, planset = _PICK.read(parts.get("pick", 1), "pick"), planned(parts.get("request"))
    if not any(plan.rank == pick for plan in planset.plans):
        raise InputError("pick", pick, want=f"a plan of the answer, which has {len(planset.plans)}")
    world = World.of(request_of("plan", planset.asked))
    changes, skipped = tried(world, planset.best.estimate, seconds=EXPLAINED_S)
    return explained(planset, pick, changes, skipped, name="plan")


def _view(body: object) -> Document:
    parts = parts_of(body, "verb", "request")
    make, draw = RECORDS[kinds.one_of(*RECORDS).read(parts.get("verb", "plan"), "verb")]
    return Document(200, HTML, draw(make(parts.get("request"))).encode())


def _report(body: object) -> Document:
    parts = parts_of(body, "verb", "request")
    request = parts.get("request")
    if kinds.one_of("plan", "rent").read(parts.get("verb", "plan"), "verb") == "rent":
        report = _rented(request)
        page, model = rent_page(report), str(report.request["model"])
    else:
        planset = planned(request)
        page, model = plan_page(planset, first_step(planset)), str(planset.request["model"])
    return Document(200, HTML, page.encode(), f"{file_name(model)}.html")


def _trace(body: object) -> Document:
    request: PlanRequest = request_of("estimate", body)
    if request.strategy is None:
        raise InputError("strategy", None, want="the strategy to simulate", fix="Such as tp8 pp4 dp2 mbs1.")
    svg = timeline_svg(timeline_of(World.of(request), request.strategy))
    return Document(200, SVG, svg.encode(), "step.svg")


def _export(body: object) -> Document:
    parts = parts_of(body, "request", "target", "pick", "nearest")
    exporter = target(text_of(parts, "target"), "target")
    pick, nearest = _PICK.read(parts.get("pick", 1), "pick"), _SWITCH.read(parts.get("nearest", False), "nearest")
    record = planned(parts.get("request")).to_dict()
    if nearest and world_of(record, "plan").several:
        pick, _ = nearest_of_file(record, pick, exporter, where="plan")
    launch, job = from_record(record, pick, where="plan")
    made = make(launch, job, exporter, nearest=nearest)
    return Document(200, ZIP, _zipped(made.files), f"{file_name(launch.model.name)}-{exporter.name}.zip")


def _zipped(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as folder:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _SINCE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            folder.writestr(entry, content)
    return packed.getvalue()


def _import(body: object) -> Document:
    parts = parts_of(body, "text", "name")
    name = visible(text_of(parts, "name", "config.json")).replace("\\", "/").rpartition("/")[2][:80] or "config.json"
    config = parse_json(text_of(parts, "text"), name)
    if not isinstance(config, dict):
        raise InputError(name, None, want="a JSON object, as in a Hugging Face config.json")
    spec = from_config(config, where=name)
    return json_of({"model": spec, "report": api.describe_model(spec)})


@lru_cache(maxsize=1)
def offered() -> dict[str, Any]:
    """Models, GPUs, nodes with their links, runtimes, targets, and the words of every field that has a few."""
    words = {name: list(field.kind.words) for name, field in FIELDS.items() if field.kind.words}
    return {
        "schema": "astra.api-catalog/1",
        "models": [
            {"name": model.name, **api.describe_model(model).parameters, "max_seq": model.max_seq} for model in models()
        ],
        "gpus": msgspec.to_builtins(devices()),
        "usual": {gpu.name: _usual_node(gpu) for gpu in devices()},
        "nodes": msgspec.to_builtins(node_types()),
        "runtimes": [{"name": runtime.name, "title": runtime.title} for runtime in runtimes()],
        "objectives": [{"name": one.name, "sentence": one.sentence} for one in OBJECTIVES.values()],
        "targets": [{"name": one.name, "title": one.title} for one in EXPORTERS.values()],
        "precisions": words["precision"],
        "words": {**words, "rank": list(RANKS), "market": list(MONEY_FIELDS["market"].kind.words)},
    }


def _usual_node(gpu: Device) -> str:
    """The node type that is meant when only the GPU is named."""
    try:
        return default_node(gpu).name
    except InputError:
        return ""


# What makes the record of an answer, and the part of a page that shows it.
def _catalog(_: object) -> Document:
    return json_of(offered())


RECORDS: Final[dict[str, tuple[Callable[[object], Any], Callable[[Any], str]]]] = {
    "plan": (planned, plan_view),
    "rent": (_rented, rent_view),
    "estimate": (lambda body: api.estimate(request_of("estimate", body)), estimate_view),
    "compare": (_compared, comparison_view),
    "afford": (_afforded, afford_view),
    "sweep": (_swept, sweep_view),
    "explain": (_explained, explanation_view),
}
ANSWERS: Final[dict[str, Callable[[object], Document]]] = {
    **{name: lambda body, make=make: json_of(make(body)) for name, (make, _) in RECORDS.items()},  # type: ignore[misc]
    "view": _view,
    "report": _report,
    "trace": _trace,
    "export": _export,
    "import": _import,
    "catalog": _catalog,
}


def answered(kind: str, body: bytes) -> Document:
    """The answer to a body of JSON; what cannot be answered is said in a sentence."""
    try:
        sent = parse_json(body.decode("utf-8"), "body") if body else None
        return ANSWERS[kind](sent)
    except AstraError as error:
        return refused(error)
    except UnicodeDecodeError:
        return refused(InputError("body", None, want="JSON in UTF-8"))
    except MemoryError:
        return refused(InputError("request", None, want="a search that fits in this server's memory",
                                  fix="Ask for less, or run it by astra on the command line."))  # fmt: skip


def warm_up() -> None:
    """Load what the first answer would have to wait for, and have the answer that the page opens with."""
    offered()
    plan_view(planned(OPENED))
