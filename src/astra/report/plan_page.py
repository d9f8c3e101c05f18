"""An answer to show to others, as one page: plans on one pool or on several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from astra.answer import Estimate, Plan, PlanSet
from astra.catalog.requests import write_request
from astra.catalog.runtimes import runtime, runtime_names
from astra.report import explain, money
from astra.report.charts import Spot, front_svg
from astra.report.explanation import MEANING, known
from astra.report.markup import quoted, tag
from astra.report.page import bullets, code, facts, folded, framed, heading, page, paragraph, section, table, wide
from astra.report.terms import MEMORY_LABELS, words
from astra.report.timeline import seconds_table, timeline_svg
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.search.timeline import StepTimeline
from astra.spec.mixed_text import on_one_line
from astra.units import show_dollars, show_seconds

REJECTS: Final = 60
_FILL: Final = {"optimizer": "optim"}  # a kind of memory, where the colour of that name is a kind of work
BEYOND: Final = "reserved beyond"


def plan_page(planset: PlanSet, step: StepTimeline | None = None) -> str:
    """Everything that ``astra plan`` answers, and the simulated step of its first plan if it is given."""
    request = planset.request
    title = f"{request['model']} on {gpus_words(planset)}"
    head = [tag("h1", quoted(title)), paragraph(explain.work_words(planset.request), "faint")]
    if not planset.plans:
        return page(title, *head, paragraph("No strategy is legal and fits.", "bad lead"), *_ending(planset))
    best = planset.best.estimate
    others = [ranking(planset.plans), bullets(explain.losses(planset))] if len(planset.plans) > 1 else []
    drawn = [wide(timeline_svg(step)), folded("Seconds of every stage", seconds_table(step))] if step else []
    return page(
        title,
        *head,
        section("The answer", *_answer(planset, best), key="answer"),
        section("Evidence and doubt", *_evidence(planset, best), key="evidence"),
        section(f"Where the {explain.show_step(best.step_s)} go", time_table(best),
                bullets([explain.dominates(best), explain.helps_most(best)]), key="time"),
        section("Memory of every stage against its limit", memory_bars(best),
                paragraph(explain.memory_sentence(best)), key="memory"),
        section("One step, stage by stage", *drawn, key="timeline"),
        *pool_parts(planset),
        section("The bill", *bill_parts(planset), key="bill"),
        section("Runners-up", *others, key="others"),
        *_ending(planset),
    )  # fmt: skip


def _ending(planset: PlanSet) -> list[str]:
    return [
        section("What was left out, and why", *ledger_parts(planset), key="ledger"),
        section("What this rests on", *_assumptions(planset), key="assumptions"),
        section("How to launch it", *_launch(planset), key="launch"),
        section("The request", *request_parts(planset.asked, "plan"), key="request"),
        footer(planset.version, planset.fingerprint),
    ]


def gpus_words(planset: PlanSet) -> str:
    """The GPUs of an answer, in short."""
    request = planset.request
    return str(request["gpu"]) if "pools" in request else f"{request['gpus']}x{request['gpu']}"


def figures(best: Estimate) -> list[tuple[str, str, str]]:
    """The figures to see first: name, figure, remark."""
    low, high = best.step_s_range.low, best.step_s_range.high
    allowed = f"{best.memory_limit_gib:.1f} allowed of {best.memory_usable_gib:.1f}"
    found = [
        ("step time", explain.show_step(best.step_s), f"{explain.show_step(low)} to {explain.show_step(high)}"),
        ("tokens per second", f"{best.tokens_per_s:,.0f}", f"{best.tokens_per_s_per_gpu:,.0f} per GPU"),
        ("MFU", f"{best.mfu:.1%}", f"{best.model_tflops_per_gpu:,.0f} TFLOP/s per GPU"),
        ("peak memory", f"{best.peak_reserved_gib:.1f} GiB", allowed),
        ("bubble", explain.show_share(best.bubble_fraction), f"{best.microbatches:,} micro-batches"),
    ]
    if best.train_days is not None:
        found.append(("training", show_seconds(best.train_days * 86400), "ideal: nothing fails"))
    if best.cost is not None:
        usd = best.cost.usd_range
        found.append(("cost", show_dollars(best.cost.usd), f"{show_dollars(usd.low)} to {show_dollars(usd.high)}"))
    return found


def _answer(planset: PlanSet, best: Estimate) -> list[str]:
    return [
        tag("p", tag("code", quoted(best.strategy)), class_="lead"),
        facts(figures(best)),
        bullets(best.warnings, "warn"),
        bullets(explain.headlines(planset)),
        bullets(near.sentence for near in planset.nearby),
    ]


def _evidence(planset: PlanSet, best: Estimate) -> list[str]:
    rows = [(one.figure, one.value, one.how) for one in known(best)]
    others = [one for one in explain.all_warnings(planset) if not one.startswith("#1:")]
    drawn = table(("figure", "value", "how sure"), rows, left=(0, 2))
    return [paragraph(explain.certainty(best)), drawn, bullets(others, "warn")]


def pool_parts(planset: PlanSet) -> list[str]:
    """What several pools add: which is worth what, and who can run it."""
    if not isinstance(planset, MixedPlanSet):
        return []
    from astra.report.mixed import chain, group_line, runs_sentence, to_start, worth_sentences  # noqa: PLC0415
    from astra.search.fleet.records import MixedStage  # noqa: PLC0415

    best = planset.best.estimate
    assert isinstance(best, MixedEstimate)
    lines = []
    for group in best.groups:
        own = [stage for stage in best.stages if isinstance(stage, MixedStage) and stage.group == group.index]
        lines += [group_line(group), chain(own)]
    left = [f"{name} is not used: {why}" for name, why in planset.left_out.items()]
    return [
        section("The pipelines", bullets(lines), key="pipelines"),
        section("What each pool is worth", bullets([*worth_sentences(planset), *left]), key="pools"),
        section("Who can run it", paragraph(" ".join([runs_sentence(best), to_start(planset) or ""])), key="runs"),
    ]


def bill_parts(planset: PlanSet) -> list[str]:
    """What it costs, and what it saves; nothing without a price."""
    best = planset.best.estimate
    if best.cost is None:
        return []
    spots = [
        Spot(plan.estimate.cost.days, plan.estimate.cost.usd, f"#{plan.rank}", f"#{plan.rank}",
             plan.estimate.cost.usd_range.low, plan.estimate.cost.usd_range.high)
        for plan in planset.plans if plan.estimate.cost is not None
    ]  # fmt: skip
    drawn = wide(front_svg(spots, "Time against money")) if planset.objective == "pareto" and len(spots) > 1 else ""
    return [drawn, bullets([*money.bill_sentences(best), *money.saved_sentences(planset)])]


def ranking(plans: Sequence[Plan], *, short: bool = False) -> str:
    """The plans in a table, each in whole or without what is as usual."""
    trained = any(plan.estimate.train_days is not None for plan in plans)
    priced = any(plan.estimate.train_usd is not None for plan in plans)
    heads = ["step time", "tokens/s", "MFU", "peak GiB", "bubble", *["days"] * trained, *["cost"] * priced]
    rows = []
    for plan in plans:
        one = plan.estimate
        own = {"peak GiB": f"{one.peak_reserved_gib:.1f}"}
        own |= {"days": f"{one.train_days:,.1f}"} if one.train_days is not None else {}
        cells = explain.ranking_cells(one) | own
        words = on_one_line(plan.strategy, one.as_usual) if short else plan.strategy
        rows.append([str(plan.rank), words, *(cells[head] for head in heads)])
    return table(["#", "strategy", *heads], rows, left=(1,), best=0)


def ledger_parts(planset: PlanSet) -> list[str]:
    """What was left out, by reason."""
    shown, reasons, strategies = explain.ranked_rejects(planset.rejects, REJECTS)
    rows = [(f"{reject.strategies:,}", reject.sentence) for reject in shown]
    rows += [(f"{strategies:,}", f"for {reasons} other reasons")] if reasons else []
    drawn = table(("strategies", "left out because"), rows, left=(1,)) if rows else ""
    if "pools" in planset.request:
        return [drawn]
    return [paragraph(explain.search_sentence(planset)), folded(f"{len(rows)} reasons", drawn) if drawn else ""]


def _assumptions(planset: PlanSet) -> list[str]:
    """Where the figures come from: the model, the GPUs and their links, the price, how each term is known."""
    request = planset.request
    rows = [("model", str(request["model_spec"].get("source") or "given"))]
    for name, pool in _pool_records(request):
        rows += [(f"GPU {name}", _sourced(pool["device"])), (f"server {pool['node']['name']}", _sourced(pool["node"]))]
    if planset.plans:
        best = planset.best.estimate
        rows += [(words(term).label, f"{word}: {MEANING.get(word, '')}") for term, word in best.provenance.items()]
        if best.cost is not None:
            rows.append(("price", money.price_words(best.cost.price)))
            rows += [("restarts", source) for source in (best.cost.expected.sources if best.cost.expected else ())]
    return [table(("what", "from where"), rows, left=(0, 1)), bullets(planset.notes, "faint")]


def _pool_records(request: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    pools = request.get("pools")
    found = pools.values() if isinstance(pools, Mapping) else [request["pool"]] if "pool" in request else []
    whole = [pool.get("pool", pool) for pool in found]  # of several, each beside its share
    return [(str(pool["device"]["name"]), pool) for pool in whole if "device" in pool and "node" in pool]


def _sourced(record: Mapping[str, Any]) -> str:
    return " ".join(str(record[key]) for key in ("source", "date") if record.get(key))


def target_of(name: str) -> str:
    """What starts the plans of a runtime, by the name that astra export takes; empty where nothing does."""
    return runtime(name).exports_to if name in runtime_names() else ""


def _launch(planset: PlanSet) -> list[str]:
    name = str(planset.request.get("runtime", ""))
    target = target_of(name)
    if not target:
        return [paragraph(f"astra export writes no files for {name}: start it with the strategy above.")]
    lines = ["astra plan request.toml --out plan.json", f"astra export plan.json --to {target} --out run/"]
    lines += ["astra export plan.json --to slurm --out job/     # or kubernetes, skypilot"]
    return [paragraph("With the request below in request.toml:"), code("\n".join(lines))]


def request_parts(asked: Mapping[str, Any], verb: str) -> list[str]:
    """The request to reproduce an answer."""
    return declared_parts(write_request(asked, verb) if asked else "", verb, "request.toml")


def declared_parts(text: str, verb: str, file: str) -> list[str]:
    """A file that a verb answers again; nothing where it is not known."""
    return [paragraph(f"Saved as {file}, astra {verb} {file} answers the same."), code(text)] if text else []


def footer(version: str, fingerprint: Mapping[str, str]) -> str:
    """Who made the page."""
    marks = ", ".join(f"{name} {value[:16]}" for name, value in fingerprint.items() if name != "version")
    return tag("footer", quoted(f"Astra {version}; {marks}"), class_="faint")


def time_table(estimate: Estimate) -> str:
    """The step by term, largest first, each with its bar and how it is known; the rows add up to the step."""
    rows = explain.shares(estimate)
    largest = max((row.fraction for row in rows), default=1.0)
    body = []
    for row in rows:
        width = 100 * min(max(row.fraction / largest, 0.0), 1.0)
        bar = tag("i", class_=f"fill {row.group}", style=f"width:{width:.1f}%")
        name, known_as = tag("td", quoted(row.label), class_="name"), tag("td", quoted(row.source))
        seconds, share = quoted(explain.show_step(row.seconds)), quoted(f"{row.fraction:.1%}")
        cells = (tag("td", bar, class_="bar"), tag("td", seconds, class_="n"), tag("td", share, class_="n"))
        body.append(tag("tr", name, *cells, known_as))
    total = sum(row.seconds for row in rows)
    body.append(
        tag("tr", tag("td", "step"), tag("td", ""), tag("td", quoted(explain.show_step(total)), class_="n"),
            tag("td", "100.0%", class_="n"), tag("td", ""), class_="best")
    )  # fmt: skip
    heads = (("term", None), ("", None), ("time", "n"), ("share", "n"), ("known", None))
    head = tag("tr", *(heading(name, side) for name, side in heads))
    return framed(head, body, "bars")


def memory_bars(estimate: Estimate) -> str:
    """One bar for each stage, or run of stages that read the same: kinds of memory, and the limit as a line."""
    rows = explain.memory_rows(estimate.stages)
    limits = [explain.limit_gib(estimate, row.stage) for row in rows]
    most = max([estimate.memory_usable_gib, *limits, *(row.stage.peak_reserved_gib for row in rows)])
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.stage.memory))
    several, body = len({row.stage.gpu for row in rows}) > 1, []
    for row, limit in zip(rows, limits, strict=True):
        stage = row.stage
        pieces = [_piece(kind, stage.memory.get(kind, 0.0), most) for kind in kinds]
        pieces.append(_piece(BEYOND, stage.peak_reserved_gib - stage.peak_allocated_gib, most))
        line = tag("b", class_="limit", style=f"left:{100 * limit / most:.2f}%", title=f"{limit:.1f} GiB allowed")
        name = tag("td", quoted(f"{row.name} ({stage.layers} layers{f', {stage.gpu}' if several else ''})"))
        stack = tag("td", tag("div", *pieces, line, class_="stack"), class_="bar")
        state, held = "n" if stage.fits else "n bad", f"{stage.peak_reserved_gib:.1f} / {limit:.1f}"
        body.append(tag("tr", name, stack, tag("td", quoted(held), class_=state)))
    head = tag("tr", heading("stage"), heading(""), heading("GiB / allowed", "n"))
    named = [(_fill_name(kind), MEMORY_LABELS.get(kind, kind)) for kind in kinds]
    named.append(("beyond", "reserved by the allocator beyond that"))
    legend = (tag("span", tag("i", class_=f"key {fill}"), quoted(words)) for fill, words in named)
    return framed(head, body, "bars") + tag("p", *legend, class_="keys")


def _fill_name(kind: str) -> str:
    return _FILL.get(kind, kind)


def _piece(kind: str, gib: float, most: float) -> str:
    if gib <= 0:
        return ""
    name = "beyond" if kind == BEYOND else _fill_name(kind)
    style = f"width:{100 * gib / most:.2f}%"
    return tag("i", class_=f"fill {name}", style=style, title=f"{MEMORY_LABELS.get(kind, kind)} {gib:.1f} GiB")
