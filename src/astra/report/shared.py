"""A shared fleet as text, as a Gantt picture and as a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from astra.catalog.requests import write_request
from astra.report import drawing, explain
from astra.report.charts import COLORS, ChartCurve, Dot, Panel, charts, spread_ticks
from astra.report.layout import Part
from astra.report.markup import label, picture, quoted, tag
from astra.report.page import bullets, code, facts, folded, page, paragraph, section, table, wide
from astra.report.plan_page import declared_parts, footer, target_of
from astra.sharing.records import FleetReport, PoolUse, SharedJob
from astra.units import DAY_S, show_count, show_dollars, show_seconds

GOALS: Final = {
    "completion": "jobs done soonest, by their weights",
    "dollars": "the least money",
    "deadlines": "the least lateness, by weights",
}
NAMED: Final = ("job", "model", "pool", "nodes")
HEADS: Final = ("job", "model", "tokens", "pool", "GPUs", "nodes", "from", "to", "deadline", "cost", "tokens/s", "MFU")
WIDTH: Final = 1000.0
LEFT: Final = 110.0
RIGHT: Final = 24.0
HIGH: Final = 220.0  # of the largest pool
LEAST: Final = 44.0
TOP: Final = 58.0


def fleet_parts(report: FleetReport, columns: int) -> list[Part]:
    """The answer in a terminal."""
    heads = ((name, "left" if name in NAMED else "right") for name in HEADS)
    return [
        drawing.text((report.title, "bold"), f": {GOALS[report.goal]}"),
        drawing.prose((about(report), "dim")),
        drawing.blank(),
        drawing.table(*heads, rows=map(cells, report.jobs)),
        drawing.blank(),
        *drawing.bullets([*map(use, report.pools), proof(report)]),
        *drawing.closing(late(report), report.notes),
    ]


def about(report: FleetReport) -> str:
    """When all is done, for how much, on what."""
    jobs, plans = _several(len(report.jobs), "job"), _several(report.planned, "plan")
    pools = " + ".join(f"{pool.gpus} {pool.gpu}" for pool in report.pools)
    return f"all done after {show_seconds(report.end_s)} for {show_dollars(report.usd)}; {jobs} on {pools}; {plans}"


def cells(job: SharedJob) -> list[str]:
    """A job as a row of ``HEADS``."""
    return [
        job.name,
        job.model,
        show_count(job.tokens),
        job.pool,
        f"{job.gpus:,}",
        ranges(job.nodes),
        _day(job.start_s),
        _day(job.end_s),
        "-" if job.deadline_s is None else _day(job.deadline_s),
        show_dollars(job.usd),
        f"{job.tokens_per_s:,.0f}",
        f"{job.mfu:.0%}",
    ]


def _day(seconds: float) -> str:
    return f"day {seconds / DAY_S:,.1f}"


def _runs(numbers: list[int]) -> list[list[int]]:
    """First and last of whole numbers that follow one another."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def ranges(numbers: list[int]) -> str:
    """Whole numbers in order as ``0-7, 12``."""
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in _runs(numbers))


def _several(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def use(pool: PoolUse) -> str:
    """A pool and how busy it is, as a sentence."""
    return f"{pool.name}: {pool.gpus:,} {pool.gpu} in servers of {pool.node_gpus}, busy for {pool.busy:.0%} of the time"


def proof(report: FleetReport) -> str:
    """How good the schedule is, as a sentence."""
    if report.proven:
        return f"no schedule of these plans is better ({report.solver})"
    return f"no schedule of these plans is better by more than {report.gap:.1%} ({report.solver})"


def late(report: FleetReport) -> list[str]:
    """Jobs behind their deadlines, a sentence each."""
    return [f"{job.name} ends {show_seconds(job.late_s)} behind its deadline" for job in report.jobs if job.late_s]


def gantt_svg(report: FleetReport) -> str:
    """Nodes of every pool by time, and who has them."""
    most = max(pool.gpus // pool.node_gpus for pool in report.pools)
    due_s = [job.deadline_s for job in report.jobs if job.deadline_s is not None]
    until_s = max([report.end_s, *(each for each in due_s if each <= 1.3 * report.end_s)])
    lanes, bars, y = list[str](), list[str](), TOP
    for pool in report.pools:
        nodes = pool.gpus // pool.node_gpus
        high = max(HIGH * nodes / most, LEAST)
        lanes += [label(pool.name, 12, y + 14, class_="bold"), label(f"{pool.gpus:,} GPUs", 12, y + 30, class_="small"),
                  tag("rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=high, class_="bubble")]  # fmt: skip
        bars += _bars(report, pool, y, high / nodes, until_s)
        bars += _deadlines(report, pool, (y, y + high), until_s)
        y += high + 14
    legend = "Each bar is a job on its nodes; a dashed line is a deadline."
    return picture(
        WIDTH, y + 44, f"Who has which GPUs when: {report.title}",
        label(f"{report.title}: {GOALS[report.goal]}", 12, 20, class_="bold", font_size=14),
        label(about(report), 12, 38, class_="faint"),
        *lanes, *_axis(until_s, TOP, y), *bars, label(legend, 12, y + 34, class_="small faint"),
    )  # fmt: skip


def _x(at_s: float, until_s: float) -> float:
    return LEFT + min(at_s / until_s, 1.0) * (WIDTH - LEFT - RIGHT)


def _bars(report: FleetReport, pool: PoolUse, top: float, each: float, until_s: float) -> Iterator[str]:
    for place, job in enumerate(report.jobs):
        if job.pool != pool.name:
            continue
        x, end = _x(job.start_s, until_s), _x(job.end_s, until_s)
        hover = f"{job.name}: {job.gpus} {pool.gpu}, {_day(job.start_s)} to {_day(job.end_s)}, {job.strategy}"
        for number, (low, high) in enumerate(_runs(job.nodes)):
            y, tall = top + low * each, (high - low + 1) * each
            yield tag("rect", tag("title", quoted(hover)), x=x, y=y, width=max(end - x - 0.6, 1.0),
                      height=max(tall - 0.6, 1.0), class_=COLORS[place % len(COLORS)])  # fmt: skip
            if number == 0 and end - x > 8 * len(job.name) and tall > 13:
                yield label(job.name, (x + end) / 2, y + tall / 2 + 4, class_="mid on bold")
            elif number == 0:
                yield label(job.name, min(end + 4, WIDTH - 60), y + max(tall / 2, 4) + 4, class_="small")


def _axis(until_s: float, top: float, foot: float) -> Iterator[str]:
    days = until_s / DAY_S
    step = next(each for each in (0.1, 0.2, 0.5, 1, 2, 5, 7, 14, 30, 60, 90, 180, 365, 1e9) if days / each <= 12)
    ticks = [(_x(number * step * DAY_S, until_s), f"{number * step:g}") for number in range(int(days / step) + 1)]
    for x, words in spread_ticks(ticks):
        yield tag("line", x1=x, x2=x, y1=top, y2=foot - 8, class_="rule")
        yield label(words, x, foot + 6, class_="small mid faint")
    yield label("days", WIDTH - RIGHT, foot + 20, class_="small end faint")


def _deadlines(report: FleetReport, pool: PoolUse, lane: tuple[float, float], until_s: float) -> Iterator[str]:
    own = [(place, job) for place, job in enumerate(report.jobs) if job.pool == pool.name]
    for line, (place, job) in enumerate(own):
        if job.deadline_s is not None and job.deadline_s <= until_s:
            x = _x(job.deadline_s, until_s)
            yield tag("line", x1=x, x2=x, y1=lane[0], y2=lane[1], stroke=f"var(--{COLORS[place % len(COLORS)]})",
                      stroke_width=2, stroke_dasharray="5 4")  # fmt: skip
            yield label(f"{job.name} due", x - 4, lane[0] + 12 + 13 * (line % 8), class_="small end")


def curves_svg(report: FleetReport) -> str:
    """How long each job would take on how many GPUs; chosen points are marked."""
    gpus = sorted({point.gpus for point in report.curves})
    ticks = [(float(place), f"{count:,}") for place, count in enumerate(gpus)]
    places = {count: float(place) for place, count in enumerate(gpus)}
    curves = []
    for name in dict.fromkeys((point.job, point.pool) for point in report.curves):
        own = sorted((p for p in report.curves if (p.job, p.pool) == name), key=lambda point: point.gpus)
        dots = [
            Dot(places[p.gpus], p.seconds / DAY_S, p.seconds / DAY_S, p.seconds / DAY_S,
                f"{p.job} on {p.gpus} of {p.pool}: {show_seconds(p.seconds)}, {show_dollars(p.usd)}; {p.strategy}",
                "*" if p.chosen else "")
            for p in own
        ]  # fmt: skip
        curves.append(ChartCurve(f"{name[0]} on {name[1]}", dots))
    return charts("Days by GPUs", [Panel("days", curves, ticks, lambda y: f"{y:g}", log=True)], "GPUs", ["* chosen"])


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
        section("How jobs scale", wide(curves_svg(report)), _curve_rows(report), key="curves"),
        section("What this rests on", *_assumptions(report), key="assumptions"),
        section("How to launch them", paragraph(
            "Each job has a request of its own: save it, plan it, and write the files that start it."),
            *(folded(f"{job.name} on {job.gpus:,} GPUs of {job.pool}", *_launch(job)) for job in report.jobs),
            key="launch"),
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


def _curve_rows(report: FleetReport) -> str:
    rows = [
        (point.job, point.pool, f"{point.gpus:,}", show_seconds(point.seconds), show_dollars(point.usd),
         "chosen" if point.chosen else "", point.strategy)
        for point in report.curves
    ]  # fmt: skip
    heads = ("job", "pool", "GPUs", "time", "cost", "", "strategy")
    return folded(f"All {len(rows)} plans that help", table(heads, rows, left=(0, 1, 5, 6)))


def _assumptions(report: FleetReport) -> list[str]:
    planned = f"{report.planned:,} plans, each by astra plan on GPUs of one pool"
    rests = (f"{planned}; times and dollars are expected ones, with restarts.",
             "A job keeps its GPUs from its first step to its last, whole servers of one pool.",
             f"Of the schedule: {proof(report)}.")  # fmt: skip
    return [bullets(rests), bullets(report.notes, "faint")]


def _launch(job: SharedJob) -> list[str]:
    toml, record, folder = (shlex.quote(f"{job.name}{ending}") for ending in (".toml", ".json", "/"))
    lines, target = [f"astra plan {toml} --out {record}"], target_of(job.runtime)
    lines += [f"astra export {record} --to {target} --out {folder}"] if target else []
    asked = write_request(job.asked, "plan")
    return [tag("p", tag("code", quoted(job.strategy))), code("\n".join(lines)), code(asked)]
