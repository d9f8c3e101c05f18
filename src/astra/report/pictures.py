"""An answer as one picture: drawn as SVG, so that nothing has to be installed to look at it."""

from __future__ import annotations

import re
from functools import singledispatch
from importlib.util import find_spec
from os import PathLike
from typing import Final

from astra.answer import PlanSet, Table
from astra.answer_money import AffordReport, RentReport
from astra.atomic import write_file
from astra.errors import InputError
from astra.report import explain
from astra.report.charts import ChartCurve, Dot, Panel, Spot, charts, front_svg
from astra.report.markup import LIGHT, keys, label, picture, quoted, tag
from astra.report.page import page, wide
from astra.report.rent_page import spots
from astra.report.sweep import sweep_page, sweep_svg
from astra.spec.kinds import path_text
from astra.spec.mixed_text import on_one_line
from astra.study.records import Sweep
from astra.units import show_count

WIDTH, ROW, TOP, LEFT = 900.0, 40.0, 64.0, 12.0
ENDINGS: Final = (".svg", ".html", ".png")
SCALE: Final = 2  # pixels for each unit of the picture
_USED: Final = re.compile(r"var\((--[a-z0-9-]+)\)")
_PALETTES: Final = re.compile(r":root\{[^}]*\}|@media[^{]*\{:root\{[^}]*\}\}")


class Picture:
    """An SVG; notebooks show it."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture, {len(self.svg):,} characters of SVG: save(path) writes it>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as SVG, as a page (.html) or, with the extra ``plot``, as PNG: as the name ends."""
        shown = path_text(path, "path", "the path of a file to write")
        write_file(shown, as_file(self.svg, shown, "path"))


@singledispatch
def picture_of(answer: Table) -> str:
    """The picture of an answer."""
    raise InputError("plot", type(answer).__name__, want="plans, something to rent, what a budget buys, or a sweep")


@picture_of.register
def _of_plans(answer: PlanSet) -> str:
    """The front where that was asked for; else a bar for each plan, of what its step goes to."""
    title = f"{answer.best.estimate.model} on {answer.best.estimate.gpus}" if answer.plans else "No plan"
    costs = [(plan, plan.estimate.cost) for plan in answer.plans]
    if answer.objective == "pareto" and len(costs) > 1:
        found = [
            Spot(cost.days, cost.usd, plan.estimate.gpus, f"#{plan.rank}", cost.usd_range.low, cost.usd_range.high)
            for plan, cost in costs
            if cost is not None
        ]
        return front_svg(found, title)
    longest_s = max((plan.estimate.step_s_range.high for plan in answer.plans), default=1.0)
    parts, groups = [label(title, LEFT, 20, class_="bold", font_size=14)], list[str]()
    for place, plan in enumerate(answer.plans):
        one, y, x = plan.estimate, TOP + place * ROW, LEFT
        words = on_one_line(plan.strategy, one.as_usual)
        parts.append(label(f"#{plan.rank}  {words}: {explain.show_step(one.step_s)}, {one.mfu:.1%} MFU", LEFT, y - 5))
        for share in explain.shares(one):
            wide_ = (WIDTH - 2 * LEFT) * share.seconds / longest_s
            hover = tag("title", quoted(f"{share.label}: {explain.show_step(share.seconds)}"))
            parts.append(tag("rect", hover, x=x, y=y, width=max(wide_, 0.0), height=14, class_=share.group))
            x, groups = x + wide_, [*groups, share.group]
        high = LEFT + (WIDTH - 2 * LEFT) * one.step_s_range.high / longest_s
        parts.append(tag("line", x1=x, x2=high, y1=y + 7, y2=y + 7, class_="rule"))
    parts += keys([(group, group) for group in dict.fromkeys(groups)], 30, WIDTH, letter=8)[0]
    parts.append(label("line: to the upper end of the interval", WIDTH - LEFT, 40, class_="small end faint"))
    return picture(WIDTH, TOP + ROW * len(answer.plans), title, *parts)


@picture_of.register
def _of_choices(answer: RentReport) -> str:
    return front_svg(spots(answer), f"What to rent for {answer.request['model']}")


@picture_of.register
def _of_models(answer: AffordReport) -> str:
    """Tokens and loss against parameters."""
    ranked = answer.rows
    ticks = [(float(place), row.model) for place, row in enumerate(ranked)]
    names = {answer.most: "M", answer.largest: "L", answer.best: "*"}

    def dots(middle: list[float], low: list[float], high: list[float]) -> list[Dot]:
        return [
            Dot(float(place), y, least, most, f"{row.model}: {show_count(row.tokens)} tokens on {row.choice}",
                names.get(row.model, ""))
            for place, (row, y, least, most) in enumerate(zip(ranked, middle, low, high, strict=True))
        ]  # fmt: skip

    ranges = [row.tokens_range for row in ranked]
    tokens = dots([row.tokens for row in ranked], [each.low for each in ranges], [each.high for each in ranges])
    panels = [Panel("tokens", [ChartCurve("", tokens)], ticks, show_count, log=True)]
    if all(row.loss is not None for row in ranked):
        losses = [row.loss or 0.0 for row in ranked]
        curve = ChartCurve("", dots(losses, losses, losses))
        panels.append(Panel("loss by the law", [curve], ticks, lambda y: f"{y:.4g}", zero=False))
    notes = ["M most tokens for the model asked for, L largest by the rule, * least loss"]
    return charts(f"What ${answer.budget_usd:,.0f} buys", panels, "models, by size", notes)


picture_of.register(Sweep, sweep_svg)


def drawn(answer: Table, path: str, where: str) -> str | bytes:
    """The picture as its name ends; ``where`` is the option that names it."""
    if isinstance(answer, Sweep) and path.lower().endswith(".html"):
        return sweep_page(answer)
    return as_file(picture_of(answer), path, where)


def as_file(svg: str, path: str, where: str) -> str | bytes:
    """A picture as the name of its file ends; ``where`` is the option that names it."""
    ending = path.lower().rpartition(".")[2]
    if f".{ending}" not in ENDINGS:
        raise InputError(where, path, want=f"a name that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if ending == "png":
        return png(svg, where)
    return svg + "\n" if ending == "svg" else page("Astra", wide(svg))


def check_png(where: str) -> None:
    """An error if what draws pixels is not installed; ``where`` is the option that asked for it."""
    if find_spec("resvg_py") is None:
        fix = "Install it (pip install 'astra-planner[plot]'), or ask for .svg or .html, which need nothing."
        raise InputError(where, ".png", want="resvg-py for a PNG", fix=fix)


def png(svg: str, where: str) -> bytes:
    """The picture in pixels."""
    check_png(where)
    import resvg_py  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    return bytes(resvg_py.svg_to_bytes(svg_string=flattened(svg), zoom=SCALE))


def flattened(svg: str) -> str:
    """The same picture without variables, which few programs but browsers know."""
    colors = dict(pair.split(":", 1) for pair in LIGHT.split(";"))
    return _USED.sub(lambda found: colors[found.group(1)], _PALETTES.sub("", svg))
