"""``astra.export``, ``astra.import_`` and ``astra.load``: files of answers and of frameworks, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final, NamedTuple

import msgspec

from astra.answer import ESTIMATE_SCHEMA, MODEL_SCHEMA, Estimate, ModelReport, PlanSet, Result
from astra.answer_money import AFFORD_SCHEMA, RENT_SCHEMA, AffordReport, RentReport
from astra.atomic import check_folder, write_folder
from astra.errors import InputError, UnknownName
from astra.export import EXPORTERS
from astra.export.base import CannotExport, Exporter, Launch, estimated_anew, refusals, strategy_could_help
from astra.export.imported import ImportedLaunch
from astra.export.imports import import_file
from astra.export.nearest import Nearest, find, in_target, nearest_of_file
from astra.export.quoting import file_name
from astra.export.reading import check_schema, from_record, plan_of_choice, read_record, read_rented, world_of
from astra.files import read_json
from astra.spec.job import Job
from astra.spec.kinds import path_text, whole
from astra.study.records import SWEEP_SCHEMA, Sweep, answer_of

EXPORT_SCHEMA: Final = "astra.export/1"


class Made(NamedTuple):
    """What a target starts, and what is told of it."""

    files: dict[str, str]  # name and content
    record: dict[str, Any]  # but for the folder and the names of the files


def target(name: str, flag: str) -> Exporter:
    """The exporter of a name."""
    if name not in EXPORTERS:
        raise UnknownName(flag, name, EXPORTERS, fix=f"The targets are {', '.join(EXPORTERS)}.")
    return EXPORTERS[name]


def make(launch: Launch, job: Job | None, exporter: Exporter, *, nearest: bool = False) -> Made:
    """The files of a plan, or of the closest one that the target can express if that is asked for."""
    reasons, found, there = refusals(exporter, launch), None, None
    near = strategy_could_help(exporter, launch)
    if reasons and (job is None or not nearest or not near):
        raise CannotExport(exporter.name, reasons, near=near)
    planned = launch
    if job is not None:
        if reasons:
            found = find(exporter, launch, job)
            launch = found.launch._replace(figures=estimated_anew(launch.figures, msgspec.to_builtins(found.after)))
        else:
            there = in_target(exporter, launch, job)
            if there is not None:
                figures = estimated_anew(planned.figures, msgspec.to_builtins(there))
                launch = planned._replace(step_s=there.step_s, figures=figures)
    record = {
        "schema": EXPORT_SCHEMA,
        "target": exporter.name,
        "strategy": str(launch.strategy),
        "verified": exporter.verified,
        "nearest": _difference(reasons, found) if found is not None else None,
        "estimated": None if there is None else _estimated(planned, there),
    }
    return Made(exporter.files(launch), record)


def _estimated(planned: Launch, there: Estimate) -> dict[str, Any]:
    """The plan in the target's runtime, where it was made for another."""
    return {
        "planned_runtime": planned.runtime,
        "planned_step_s": planned.step_s,
        "runtime": there.runtime,
        "step_s": there.step_s,
        "peak_gib": there.peak_reserved_gib,
        "limit_gib": there.memory_limit_gib,
        "fits": there.fits,
    }


def _difference(reasons: list[str], found: Nearest) -> dict[str, Any]:
    return {
        "reasons": reasons,
        "changed": {name: [_plain(value) for value in pair] for name, pair in found.changed.items()},
        "asked_step_s": found.before.step_s,
        "exported_step_s": found.after.step_s,
        "asked_peak_gib": found.before.peak_reserved_gib,
        "exported_peak_gib": found.after.peak_reserved_gib,
        "asked_runtime": found.before.runtime,
        "exported_runtime": found.after.runtime,
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


_RECORDS: Final[dict[str, type[Result]]] = {
    ESTIMATE_SCHEMA: Estimate,
    MODEL_SCHEMA: ModelReport,
    AFFORD_SCHEMA: AffordReport,
    SWEEP_SCHEMA: Sweep,
}


def export(
    plan: PlanSet | RentReport | str | PathLike[str],
    to: str,
    *,
    folder: str | PathLike[str] | None = None,
    rank: int | None = None,
    nearest: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the files that start a plan, or a choice of ``rent``, in a framework or by a launcher.

    ``plan`` is an answer or the path of its file; ``rank`` says which plan, or which row of the front. The record says
    what was written, and what a target that cannot express the plan runs in its place (``nearest``).
    """
    where, number = "plan", None if rank is None else whole(1, 1000).read(rank, "rank")
    exporter = target(to, "to") if isinstance(to, str) else None
    if exporter is None:
        raise InputError("to", to, want="the name of a target, such as megatron")
    if isinstance(plan, Result):
        record: dict[str, Any] | None = plan.to_dict()
        rented = record if isinstance(plan, RentReport) else None
        if rented is None and record is not None:
            check_schema(record, where)
    else:
        where = path_text(plan, "plan", "plans, something to rent, or the path of their file")
        rented = read_rented(where)
        record = read_record(where) if rented is None else None
    return exported(record if rented is None else plan_of_choice(rented, number, where), exporter.name, where,
                    rank=(number or 1) if rented is None else 1,
                    folder=None if folder is None else path_text(folder, "folder", "the path of a folder"),
                    nearest=nearest, overwrite=overwrite)  # fmt: skip


def exported(
    plans: dict[str, Any] | None, to: str, where: str, *, rank: int, folder: str | None, nearest: bool,
    overwrite: bool, flag: str = "folder",
) -> dict[str, Any]:  # fmt: skip
    """Write the files of one plan of a record; the account of it. ``flag`` is how the user names the folder."""
    record, exporter, instead = plans or {}, target(to, "to"), None
    if nearest and world_of(record, where).several:
        rank, instead = nearest_of_file(record, rank, exporter, where=where)
    launch, job = from_record(record, rank, where=where)
    account = write(launch, job, to, folder=folder, nearest=nearest, overwrite=overwrite, flag=flag)
    account["nearest"] = instead or account["nearest"]
    return account


def write(
    launch: Launch, job: Job | None, to: str, *, folder: str | None, nearest: bool = False, overwrite: bool = False,
    flag: str,
) -> dict[str, Any]:  # fmt: skip
    """Write the files of one plan, resolved; the account of it."""
    if folder is not None and not folder.strip():
        raise InputError(flag, folder, want="a folder name")
    place = folder if folder is not None else f"{file_name(launch.model.name)}-{to}"
    check_folder(place, overwrite=overwrite, flag=flag)
    made = make(launch, job, target(to, "to"), nearest=nearest)
    files = write_folder(place, made.files, overwrite=overwrite, flag=flag)
    return {"schema": made.record["schema"], "target": to, "folder": place, "files": files, **made.record}


def import_(
    file: str | PathLike[str],
    *,
    gpus: int | None = None,
    parameters: Sequence[str] = (),
    pick: str | int | None = None,
    vocab: int | None = None,
) -> ImportedLaunch:
    """What a launch script or a training configuration runs, as a strategy. Scripts are read, never run.

    ``gpus`` and ``vocab`` where the file does not say them, ``parameters`` of a script, ``pick`` of several
    configurations.
    """
    if isinstance(parameters, str) or not all(isinstance(each, str) for each in parameters):
        raise InputError("parameters", parameters, want="texts, as the script takes them")
    which = None if pick is None else str(pick)
    return import_file(file, gpus=gpus, parameters=parameters, pick=which, vocab=vocab)


def load(path: str | PathLike[str]) -> Result:
    """An answer that was saved (``--out``, ``--json``, ``to_json``), as the record that it was."""
    where = path_text(path, "path", "the path of an answer's file")
    record = read_json(where, "plan")
    if not isinstance(record, Mapping):
        raise InputError(where, None, want="an answer, a JSON object")
    schema = str(record.get("schema", ""))
    if schema in _RECORDS:
        try:
            return msgspec.convert(record, _RECORDS[schema])
        except msgspec.ValidationError as error:
            want = f"an answer as this version writes it: {error}"
            raise InputError(where, None, want=want, fix="Ask again, and save the answer anew.") from None
    if schema != RENT_SCHEMA:
        check_schema(record, where)
    return answer_of(record, where)
