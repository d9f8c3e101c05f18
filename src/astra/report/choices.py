"""Choices of ``astra rent`` as a table and in words: what joins them, what they cost, and one's own against them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra.answer import Cost, PriceTag, Range, Restarts
from astra.answer_money import BreakEven, Choice, RentReport
from astra.report import drawing
from astra.report.layout import Part
from astra.spec.mixed_text import on_one_line
from astra.units import DAY_S, show_dollars, show_seconds

ROLES: Final = {"knee": "best trade"}
MARKS: Final = {"chosen": "*", "fastest": "F", "cheapest": "C", "knee": "K"}  # in the picture the first that applies


WIDE: Final = 150  # columns of a page with room for strategies
_SIDES: Final = {"from": "wrap", "network": "left", "strategy": "wrap"}


def choice_cells(choice: Choice, by: str) -> dict[str, str]:
    """What a table of choices says of one, by the heads of its columns."""
    cost, counted = choice.cost, judged(choice, by)
    return {
        "from": seller(cost.price),
        "$/GPU-h": f"{cost.price.usd_per_gpu_h:.2f}",
        "network": network_words(choice),
        "time": time_of(choice, by),
        "cost": at_least(choice) + show_dollars(counted.usd),
        "range": usd_spread(counted.usd_range),
        "ideal": show_dollars(cost.usd),
        "MWh": _thousands(cost.kwh),
        "t CO2": _thousands(cost.kg_co2),
        "strategy": on_one_line(choice.strategy, choice.as_usual),
    }


def front_table(front: Sequence[tuple[int, Choice]], width: int, by: str, *, energy: bool = False) -> Part:
    """One row per choice with its place on the whole front, fastest first; a narrow page has no room for prices.

    What was chosen and is not on it, as where energy is the goal, has no place.
    """
    wide, roomy, ranges = width >= WIDE, width >= (120 if energy else 96), width >= (92 if energy else 76)
    grid = energy and any(choice.cost.kg_co2 is not None for _, choice in front)
    ideal = by == "expected" and wide and not energy and any(choice.cost.expected for _, choice in front)
    heads = ["from", *["$/GPU-h", "network"] * roomy, "time", "cost", *["range"] * ranges, *["ideal"] * ideal]
    heads += ["MWh"] * energy + ["t CO2"] * grid + ["strategy"] * wide
    numbered = width >= 80
    columns = [("", "left"), *[("#", "right")] * numbered, ("GPUs", "left")]
    out = drawing.table(*columns, *((head, _SIDES.get(head, "right")) for head in heads), gap=1 if width < 120 else 2)
    for number, choice in front:
        cells = choice_cells(choice, by)
        types = "\n+ ".join(f"{part.gpus}x{part.gpu}" for part in choice.parts)
        marks = "".join(mark for role, mark in MARKS.items() if role in choice.roles)
        named = [marks, *[str(number or "-")] * numbered, types]
        out.add_row(*named, *(cells[head] for head in heads), style="bold" if choice.roles else "")
    return out


def strategies_below(front: Sequence[tuple[int, Choice]], width: int) -> list[Part]:
    """The strategies of a front in a table of their own, on a page where the other has no room for them."""
    if width >= WIDE or not front:
        return []
    out = drawing.table(("#", "right"), ("strategy", "wrap"), gap=1)
    for number, choice in front:
        words = on_one_line(choice.strategy, choice.as_usual)
        out.add_row(str(number or "-"), words, style="bold" if choice.roles else "")
    return [drawing.blank(), out]


def _thousands(amount: float | None) -> str:
    return "-" if amount is None else f"{amount / 1000:,.3g}"


def seller(price: PriceTag) -> str:
    """Who sells it, and in which market where that is not the usual one."""
    return f"{price.provider} {price.market}" if price.market in ("spot", "reserved") else price.provider


def network_words(choice: Choice) -> str:
    """What joins the servers: as known, assumed, or nothing for one server."""
    if choice.nodes <= 1:
        return "1 server"
    price = choice.parts[0].price
    return price.fabric.removesuffix(" per GPU") if price.fabric else "assumed"


def judged_words(report: RentReport) -> str:
    """What a front is, and by which figures."""
    ranked = "the upper ends of their ranges" if report.ranked_by == "upper" else "the middle of their ranges"
    restarts = "with restarts" if report.judged_by == "expected" else "if nothing fails"
    return f"nothing beats these in both, by {ranked}, {restarts}"


def named(report: RentReport) -> list[Choice]:
    """The choices that have a role."""
    return [choice for choice in report.front if choice.roles]


def warned(shown: Sequence[Choice]) -> dict[str, list[str]]:
    """Warnings about the strategies of choices, each once with the choices it is about."""
    about: dict[str, list[str]] = {}
    for choice in shown:
        for warning in dict.fromkeys(choice.warnings):
            about.setdefault(warning, []).append(choice.name)
    return about


def energy_words(choice: Choice) -> str:
    """Energy and CO2 of a choice, and how they are known."""
    kwh, co2 = choice.cost.kwh or 0.0, choice.cost.kg_co2
    made = "CO2 not known" if co2 is None else f"{co2 / 1000:,.3g} t CO2"
    return f"Energy ({choice.name}): {kwh / 1000:,.3g} MWh, {made} ({choice.cost.energy_source})."


def own_words(found: BreakEven) -> str:
    """One's own GPUs against renting them."""
    own = f"{found.gpu}: an hour of your own costs ${found.own_usd_per_gpu_h:.2f} when used {found.use:.0%} of the time"
    if found.rented_usd_per_gpu_h is None:
        return f"{own}; no offer of it can be joined as yours are."
    rented = f"{found.rented} asks ${found.rented_usd_per_gpu_h:.2f}"
    if found.even_use is None:
        return f"{own}; {rented}, which is cheaper however much yours are used."
    return f"{own}; {rented}. Owning is cheaper from {found.even_use:.0%} of use on."


def at_least(choice: Choice) -> str:
    """What stands before a bill that is a floor, because nobody knows how long a reservation binds."""
    prices = [part.price for part in choice.parts]
    return "≥" if any(price.market == "reserved" and price.term_s is None for price in prices) else ""


def usd_spread(usd: Range) -> str:
    """A range of dollars."""
    return f"{show_dollars(usd.low)}-{show_dollars(usd.high).removeprefix('$')}"


def judged(choice: Choice, by: str) -> Cost | Restarts:
    """The figures that are judged by: as expected, with restarts, or if nothing fails."""
    return choice.cost.expected if by == "expected" and choice.cost.expected else choice.cost


def time_of(choice: Choice, by: str) -> str:
    """How long it takes, in the unit that it reads best in."""
    return show_seconds(judged(choice, by).days * DAY_S)


def roles_of(choice: Choice) -> str:
    """What a choice is, in words: such as the best trade and chosen."""
    return ", ".join(ROLES.get(role, role) for role in choice.roles)


def mark_of(choice: Choice) -> str:
    """The letter of the first of its roles."""
    return next((mark for role, mark in MARKS.items() if role in choice.roles), " ")
