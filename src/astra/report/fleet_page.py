"""Jobs on shared GPUs as one page to show."""

from __future__ import annotations

import shlex

from astra.catalog.requests import write_request
from astra.report import explain
from astra.report.markup import quoted, tag
from astra.report.page import bullets, code, facts, folded, page, paragraph, section, table, wide
from astra.report.plan_page import declared_parts, footer, target_of
from astra.report.shared import GOALS, HEADS, NAMED, about, cells, curves_svg, gantt_svg, late, proof, use
from astra.sharing.records import FleetReport, SharedJob
from astra.units import show_dollars, show_seconds


def fleet_page(report: FleetReport, declared: str = "") -> str:
    """The answer, and the file that declared the jobs."""
    left = tuple(HEADS.index(name) for name in NAMED)
    return page(
        report.title,
        tag("h1", quoted(report.title)),
        paragraph(about(report), "faint"),
        section("The answer", _figures(report), bullets(late(report), "warn"),
                table(HEADS, map(cells, report.jobs), left=left), key="answer"),
        section("Who has which GPUs, and when", wide(gantt_svg(report)), bullets(map(use, report.pools)),
                key="schedule"),
        section("Evidence and doubt", *_evidence(report), key="evidence"),
        section("How jobs scale", wide(curves_svg(report)), _curves(report), key="curves"),
        section("What this rests on", *_assumptions(report), key="assumptions"),
        section("How to launch them", *_launch(report), key="launch"),
        section("The request", *declared_parts(declared, "fleet", "jobs.toml"), key="request"),
        footer(report.version, {"solver": report.solver}),
    )  # fmt: skip


def _figures(report: FleetReport) -> str:
    return facts(
        (
            ("all done after", show_seconds(report.end_s), ""),
            ("cost", show_dollars(report.usd), "as expected, with restarts"),
            ("goal", GOALS[report.goal], proof(report)),
            ("late", show_seconds(report.late_s) if report.late_s else "nobody", "weighted" if report.late_s else ""),
        )
    )


def _evidence(report: FleetReport) -> list[str]:
    rows = [
        (job.name, explain.show_step(job.step_s),
         f"{explain.show_step(job.step_s_range.low)} to {explain.show_step(job.step_s_range.high)}",
         f"{job.peak_reserved_gib:.1f} / {job.memory_limit_gib:.1f}", job.evidence)
        for job in report.jobs
    ]  # fmt: skip
    heads = ("job", "step time", "four of five runs of its kind", "peak GiB / allowed", "published runs")
    remark = (
        "Days and dollars go with the step time: a job at the upper end of its range ends later by that share, and "
        "what waits for its GPUs begins later."
    )
    warnings = [f"{job.name}: {warning}" for job in report.jobs for warning in job.warnings]
    return [table(heads, rows, left=(0, 4)), paragraph(remark, "faint"), bullets(warnings, "warn")]


def _curves(report: FleetReport) -> str:
    rows = [
        (point.job, point.pool, f"{point.gpus:,}", show_seconds(point.seconds), show_dollars(point.usd),
         "chosen" if point.chosen else "", point.strategy)
        for point in report.curves
    ]  # fmt: skip
    heads = ("job", "pool", "GPUs", "time", "cost", "", "strategy")
    return folded(f"All {len(rows)} plans that help", table(heads, rows, left=(0, 1, 5, 6)))


def _assumptions(report: FleetReport) -> list[str]:
    rests = (
        f"{report.planned:,} plans, each by astra plan on GPUs of one pool; times and dollars are expected ones, "
        "with restarts.",
        "A job keeps its GPUs from its first step to its last, whole servers of one pool.",
        f"Of the schedule: {proof(report)}.",
    )
    return [bullets(rests), bullets(report.notes, "faint")]


def _launch(report: FleetReport) -> list[str]:
    return [
        paragraph("Each job has a request of its own: save it, plan it, and write the files that start it."),
        *(folded(f"{job.name} on {job.gpus:,} GPUs of {job.pool}", *_job(job)) for job in report.jobs),
    ]


def _job(job: SharedJob) -> list[str]:
    toml, record, folder = (shlex.quote(f"{job.name}{ending}") for ending in (".toml", ".json", "/"))
    lines, target = [f"astra plan {toml} --out {record}"], target_of(job.runtime)
    lines += [f"astra export {record} --to {target} --out {folder}"] if target else []
    asked = write_request(job.asked, "plan")
    return [tag("p", tag("code", quoted(job.strategy))), code("\n".join(lines)), code(asked)]
