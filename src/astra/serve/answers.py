"""What each address of the API answers: functions from a client's JSON to a document, run in a worker."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from astra import api
from astra.answer import PlanSet
from astra.answer_money import RentReport
from astra.catalog.huggingface import from_config
from astra.errors import AstraError, InputError, visible, within
from astra.export.nearest import nearest_of_file
from astra.export.python import make, target
from astra.export.quoting import file_name
from astra.export.reading import from_record, world_of
from astra.files import parse_json
from astra.renting.rent import rent
from astra.report.plan_page import plan_page
from astra.report.rent_page import rent_page
from astra.report.study_view import afford_view, comparison_view, explanation_view, sweep_view
from astra.report.timeline import timeline_svg
from astra.report.view import estimate_view, plan_view, rent_view
from astra.search.timeline import first_step, timeline_of
from astra.search.world import World
from astra.serve.asked import flag_of, one_of, parts_of, request_of, table_of, text_of, whole_of
from astra.serve.offered import offered
from astra.serve.pages import OPENED
from astra.serve.studies import MOST_PICK, afforded, explanation, picked, swept_over
from astra.spec.mixed_text import is_mixed
from astra.spec.request import PlanRequest
from astra.spec.strategy import parse_strategy
from astra.study.compare import compared
from astra.study.hardware import on, with_gpus
from astra.study.records import Comparison, Explanation, Side

JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"
SVG: Final = "image/svg+xml"
ZIP: Final = "application/zip"
UNANSWERABLE: Final = 422
VIEWED: Final = ("plan", "rent", "estimate", "compare", "afford", "sweep", "explain")
_SINCE: Final = (1980, 1, 1, 0, 0, 0)  # zip has no earlier time; every export of a plan is the same file


class Document(NamedTuple):
    """What goes back to a client."""

    status: int
    media: str
    content: bytes
    name: str = ""  # of the file, where it is one to keep


def json_of(record: object) -> Document:
    """A record as ``--json`` writes it, without the indent."""
    return Document(200, JSON, msgspec.json.encode(record, enc_hook=_plain))


def _plain(value: Any) -> object:
    return value.item() if hasattr(value, "item") else str(value)


def refused(error: AstraError, status: int = UNANSWERABLE) -> Document:
    """An error in the words of the command line."""
    said = {
        "error": str(error),
        "where": visible(str(getattr(error, "where", ""))),
        "want": visible(str(getattr(error, "want", ""))),
        "fix": visible(str(getattr(error, "fix", ""))),
    }
    return Document(status, JSON, msgspec.json.encode(said))


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


def _view(body: object) -> Document:
    parts = parts_of(body, "verb", "request")
    verb, request = one_of(parts, "verb", VIEWED), parts.get("request")
    shown: dict[str, Callable[[], str]] = {
        "plan": lambda: plan_view(planned(request)),
        "rent": lambda: rent_view(_rented(request)),
        "estimate": lambda: estimate_view(api.estimate(request_of("estimate", request))),
        "compare": lambda: comparison_view(_compared(request)),
        "afford": lambda: afford_view(afforded(request)),
        "sweep": lambda: sweep_view(swept_over(request)),
        "explain": lambda: explanation_view(_explained(request)),
    }
    return Document(200, HTML, shown[verb]().encode())


def _explained(body: object) -> Explanation:
    request, pick = picked(body)
    return explanation(planned(request), pick)


def _report(body: object) -> Document:
    parts = parts_of(body, "verb", "request")
    request = parts.get("request")
    if one_of(parts, "verb", ("plan", "rent")) == "rent":
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
    pick, nearest = whole_of(parts, "pick", 1, MOST_PICK), flag_of(parts, "nearest")
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


ANSWERS: Final[dict[str, Callable[[object], Document]]] = {
    "plan": lambda body: json_of(planned(body)),
    "estimate": lambda body: json_of(api.estimate(request_of("estimate", body))),
    "rent": lambda body: json_of(_rented(body)),
    "compare": lambda body: json_of(_compared(body)),
    "afford": lambda body: json_of(afforded(body)),
    "sweep": lambda body: json_of(swept_over(body)),
    "explain": lambda body: json_of(_explained(body)),
    "view": _view,
    "report": _report,
    "trace": _trace,
    "export": _export,
    "import": _import,
    "catalog": lambda _: json_of(offered()),
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
