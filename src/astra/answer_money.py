"""What renting and a budget answer: offers that were chosen, what they cost, what they leave behind."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from astra.answer import Cost, PriceTag, Range, Result, Table

RENT_SCHEMA: Final = "astra.rent/1"
AFFORD_SCHEMA: Final = "astra.afford/1"


class Waste(Result, frozen=True, kw_only=True):
    """What a dominated choice loses against one on the front that is no slower and no dearer."""

    instead: str  # that choice's name
    days: float
    usd: float
    usd_range: Range  # an error of the step time that both share scales it


class ChoicePart(Result, frozen=True, kw_only=True):
    """One GPU type of a choice."""

    gpu: str
    gpus: int
    nodes: int
    node: str
    node_known: bool
    price: PriceTag


class Choice(Result, frozen=True, kw_only=True):
    """One thing to rent: so many GPUs of a type, or of two types, from a provider, and the best strategy on them."""

    name: str  # such as 64xH100-SXM5-80GB from Lambda
    gpu: str  # of a mix: both, joined by " + "
    gpus: int
    nodes: int
    node: str  # the node type whose links were modelled
    node_known: bool  # False: the provider's own links are not in the catalog, so the usual server's were taken
    parts: list[ChoicePart]  # one, or two for a mix
    strategy: str
    step_s: float
    step_s_range: Range
    tokens_per_s: float
    mfu: float
    peak_reserved_gib: float
    memory_limit_gib: float
    provenance_worst: str
    cost: Cost
    roles: list[str]  # of cheapest, fastest, knee, chosen
    warnings: list[str] = msgspec.field(default_factory=list)  # about its strategy
    evidence: str = ""  # published runs like it, and what nobody has published
    waste: Waste | None = None
    as_usual: tuple[str, ...] = ()  # as in an estimate
    like: str = ""  # the cheaper choice shown in its place: as fast for all that is known, or worth starting

    def __repr__(self) -> str:
        return f"<Choice {self.name}: {self.cost.days:.3g} days, ${self.cost.usd:,.0f}>"


class Unused(Result, frozen=True, kw_only=True):
    """Offers that were not considered, or could not be."""

    reason: str
    offers: list[str]


class MixSearch(Result, frozen=True, kw_only=True):
    """What became of the mixes of two GPU types; considered = dominated + planned + open."""

    considered: int
    dominated: int  # proven so by a lower bound of the step time
    planned: int
    open: int  # not proven and not planned: the front is exact but for these
    on_front: int


class RentSearch(Result, frozen=True, kw_only=True):
    """What the search for something to rent did."""

    offers: int  # with a price, of a GPU that was asked for
    gpu_types: int
    choices: int  # pairs of an offer and a count
    passed: int  # offers proven dominated in every count before any strategy was costed
    considered: int  # strategies of the other offers, in every count
    evaluated: int  # of them, fully costed
    refined: int  # choices on the front or near it, simulated
    seconds: float
    mixes: MixSearch


class BreakEven(Result, frozen=True, kw_only=True):
    """One's own GPUs against renting the same type."""

    gpu: str
    own_usd_per_gpu_h: float  # of an hour of use
    energy_usd_per_gpu_h: float  # of it: what an hour that is not used saves
    use: float  # the share of its life in which it trains, as asked
    rented: str  # the cheapest offer of the same GPU that can be joined as one's own are; empty: there is none
    rented_usd_per_gpu_h: float | None
    even_use: float | None  # from this share of use on owning is cheaper; null: never, or nothing to compare with


class RentReport(Table, frozen=True, kw_only=True):
    """What to rent: every trade of time for money worth making."""

    drawn_by: ClassVar[str] = "report.money.rent_parts"
    shown_by: ClassVar[str] = "report.view.rent_html"
    schema: str = RENT_SCHEMA
    version: str
    fingerprint: dict[str, str]
    request: dict[str, Any]
    objective: str
    judged_by: str  # ideal or expected figures
    ranked_by: str = "upper"  # the upper end of their ranges, or the figures themselves (expected)
    front: list[Choice]  # fastest first
    chosen: list[Choice]  # by the objective, best first; the front itself for pareto
    popular: list[Choice]  # common choices, with what they waste where they are dominated
    unused: list[Unused]
    search: RentSearch
    notes: list[str]
    warnings: list[str]
    asked: dict[str, Any] = msgspec.field(default_factory=dict)  # the whole request: ``astra.rent`` answers it so
    own: list[BreakEven] = msgspec.field(default_factory=list)  # one's own GPUs against renting, where some are given

    def role(self, name: str) -> Choice:
        """The cheapest, fastest or knee of the front."""
        return next(choice for choice in self.front if name in choice.roles)

    def __repr__(self) -> str:
        first = self.chosen[0] if self.objective != "pareto" else self.role("knee")
        return (
            f"<RentReport {self.request['model']}: {len(self.front)} choices; {first.name}, {first.cost.days:.3g} days>"
        )


class Afforded(Result, frozen=True, kw_only=True):
    """The most tokens of one model within the caps, and with what."""

    model: str
    parameters: int
    tokens: float
    tokens_range: Range  # from the error bar of the step time
    tokens_per_parameter: float
    loss: float | None  # by a published law of dense models; null for others
    choice: str  # what is rented
    gpus: int
    days: float  # from the order to the end
    usd: float
    strategy: str
    price: PriceTag


class AffordReport(Table, frozen=True, kw_only=True):
    """What a budget buys."""

    drawn_by: ClassVar[str] = "report.afford.afford_parts"
    shown_by: ClassVar[str] = "report.view.afford_html"
    schema: str = AFFORD_SCHEMA
    version: str
    budget_usd: float
    deadline_days: float  # as asked, or a year
    ratio: float  # tokens for each parameter, of the rule
    rows: list[Afforded]  # by size
    most: str  # the model that was asked for; empty if none
    largest: str  # the largest that has the tokens of the rule; empty if none has
    best: str  # the least loss
    notes: list[str]
    asked: dict[str, Any] = msgspec.field(default_factory=dict)  # of ``astra.rent``, that it was looked for with

    def __repr__(self) -> str:
        return f"<AffordReport ${self.budget_usd:,.0f} in {self.deadline_days:.4g} days: {len(self.rows)} models>"
