"""What Astra answers: estimates, plans and the ledger of what was refused. Their JSON form is documented and versioned.

Seconds are per optimizer step unless a name says otherwise; memory is in GiB per GPU, as tools print it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from astra.spec.mixed_text import on_one_line

if TYPE_CHECKING:
    from astra.report.pictures import Picture

ESTIMATE_SCHEMA: Final = "astra.estimate/1"
PLAN_SCHEMA: Final = "astra.plan/1"
MODEL_SCHEMA: Final = "astra.model/1"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the answers. What draws one is named by its class, and loaded when it is looked at."""

    drawn_by: ClassVar[str] = ""  # module and function that make the parts of a page of text
    shown_by: ClassVar[str] = ""  # the same of HTML for a notebook

    def __str__(self) -> str:
        return self.draw() if self.drawn_by else repr(self)

    def draw(self, width: int | None = None, color: bool | None = None, **amount: bool) -> str:
        """As the command line prints it, in so many columns; ``brief`` and ``full`` where there is less or more."""
        from astra.report.drawing import drawn_by  # noqa: PLC0415

        return drawn_by(_loaded(self.drawn_by), self, width, color, **amount)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as written by ``--json``."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=plain)
        return found

    def to_json(self) -> str:
        """Indented JSON text."""
        return msgspec.json.format(msgspec.json.encode(self, enc_hook=plain), indent=2).decode()


class Table(Result, frozen=True, kw_only=True):
    """Base of the answers that have rows."""

    def _repr_html_(self) -> str:
        return str(_loaded(self.shown_by)(self))

    def records(self) -> list[dict[str, Any]]:
        """One row for each plan, choice, model or point, as plain columns with their units in their names."""
        from astra.report.frames import records  # noqa: PLC0415

        return records(self)

    def to_pandas(self) -> Any:
        """The rows as a data frame of pandas, where that is installed."""
        from astra.report.frames import frame  # noqa: PLC0415

        return frame(self, "pandas")

    def to_polars(self) -> Any:
        """The rows as a data frame of polars, where that is installed."""
        from astra.report.frames import frame  # noqa: PLC0415

        return frame(self, "polars")

    def plot(self) -> Picture:
        """The answer as a picture, which a notebook shows and which saves itself as SVG, HTML or PNG."""
        from astra.report.pictures import Picture, picture_of  # noqa: PLC0415

        return Picture(picture_of(self))


def _loaded(home: str) -> Any:
    module, _, function = home.rpartition(".")
    return getattr(importlib.import_module(f"astra.{module}"), function)


def plain(value: object) -> object:
    """A number of NumPy as Python's, for JSON."""
    return value.item() if hasattr(value, "item") else str(value)


class Range(Result, frozen=True, kw_only=True):
    """A figure with its error bar."""

    low: float
    high: float


class StageEstimate(Result, frozen=True, kw_only=True):
    """One pipeline stage, as one of its ranks sees a step."""

    index: int
    layers: int
    gpus: int
    gpu: str
    compute_s: float  # forward and backward (and recompute) of all micro-batches; no communication, bubble, optimizer
    forward_s: float  # of compute_s
    backward_s: float  # of compute_s, recompute included
    optimizer_s: float
    communication_s: dict[str, float]  # busy time by kind: tp, cp, ep, pp, dp; hidden or not
    exposed_s: dict[str, float]  # the part of it that compute does not hide
    in_flight: int  # micro-batches whose activations are alive at the worst moment
    memory: dict[str, float]  # GiB by kind at that moment; sums to peak_allocated_gib
    peak_allocated_gib: float
    peak_reserved_gib: float
    fits: bool

    @property
    def place(self) -> str:
        """What it runs on, as a reader names it."""
        return self.gpu

    @property
    def own_limit_gib(self) -> float | None:
        """What it may use, where stages differ in that."""
        return None


class PriceTag(Result, frozen=True, kw_only=True):
    """An offer: what a GPU-hour costs, on which terms and machines, and who says so."""

    usd_per_gpu_h: float
    provider: str
    instance: str
    region: str
    market: str  # on-demand, reserved, spot; "owned" for energy and amortisation; "given" for the user's number
    currency: str
    date: str | None
    source: str
    age_days: int | None  # since the price was last seen
    why: str = ""  # why this offer, where another might have been taken
    gpu: str = ""
    instance_gpus: int = 0  # GPUs of one instance; 0 where that is not said
    fabric: str = ""  # between servers, such as infiniband 400 Gb/s per GPU; empty: not known
    fabric_source: str = ""
    available: int | None = None  # GPUs that can be had at once; null: nobody says
    min_gpus: int | None = None  # the fewest that are sold
    term_s: float | None = None  # one commits to so long; null: not known, or not reserved
    minimum_s: float = 0.0  # the shortest time that is billed
    step_s: float = 0.0  # a bill is rounded up to it; 0 where it is not known
    terms: str = ""  # where these are known from
    startup_s: float | None = None  # as the offer says; null: the default, which grows with the nodes
    notes: str = ""


NEVER_ENDS: Final = (
    "interruptions come so often that this run would not end (--mtbf-gpu-h, --preemptions, --restart-min): "
    "days and dollars are those without any"
)


class Restarts(Result, frozen=True, kw_only=True):
    """The run as it is to be expected: checkpoints are written, interruptions happen, work is repeated."""

    goodput: float  # useful time over elapsed time
    days: float
    days_range: Range
    usd: float
    usd_range: Range
    interruptions: float  # expected over the whole run
    mtbf_h: float  # mean time between interruptions of the job
    checkpoint_gib: float
    checkpoint_write_s: float
    checkpoint_interval_s: float  # useful work between checkpoints: the best one
    restart_s: float
    sources: list[str]


class Cost(Result, frozen=True, kw_only=True):
    """What training all tokens costs. Figures are ideal (nothing fails) unless they are in ``expected``."""

    gpus: int  # paid for: whole nodes
    days: float  # with start-up, and with idle time where it is asked for
    days_range: Range
    usd: float  # the sum of ``parts``
    usd_range: Range  # from the error bar of the step time
    usd_per_billion_tokens: float
    price: PriceTag  # of a mix: the average, with both sources
    parts: dict[str, float]  # dollars: gpus; where there are any: startup, unused, idle, storage and egress
    expected: Restarts | None = None
    startup_s: float = 0.0  # paid for before the first step
    kwh: float | None = None  # of the whole run as expected, with the building's share; null for a mix
    kg_co2: float | None = None  # of that energy; null where the grid is not known
    energy_source: str = ""  # how both are known
    billed_days: float = 0.0  # what is paid for: days, rounded up to the offer's minimum, step or term


class Estimate(Result, frozen=True, kw_only=True):
    """How fast a strategy runs and whether it fits."""

    drawn_by: ClassVar[str] = "report.text.estimate_parts"
    shown_by: ClassVar[str] = "report.view.estimate_html"
    schema: str = ESTIMATE_SCHEMA
    model: str
    gpus: str
    strategy: str
    runtime: str
    legal: bool
    violations: list[str]
    fits: bool
    step_s: float
    step_s_range: Range
    evidence: str = ""  # published runs like it, and what nobody has published
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    hfu: float
    breakdown: dict[str, float]  # seconds by cause on the slowest stage; sums to step_s
    bubble_fraction: float
    microbatches: int
    stages: list[StageEstimate]
    peak_allocated_gib: float
    peak_reserved_gib: float
    peak_gib_range: Range
    memory_usable_gib: float
    memory_limit_gib: float
    provenance: dict[str, str]  # by term
    provenance_worst: str
    warnings: list[str]
    train_days: float | None = None
    train_usd: float | None = None
    price_source: str | None = None
    cost: Cost | None = None

    def __repr__(self) -> str:
        fits, words = "" if self.fits else ", does not fit", on_one_line(self.strategy, self.as_usual)
        return f"<Estimate {self.model} on {self.gpus}: {words}, {self.step_s:.4g} s, {self.mfu:.1%} MFU{fits}>"

    def _repr_html_(self) -> str:
        return str(_loaded(self.shown_by)(self))

    as_usual: tuple[str, ...] = ()  # fields of the strategy that the runtime would choose so by itself


class Plan(Result, frozen=True, kw_only=True):
    """One recommended strategy."""

    rank: int
    strategy: str
    estimate: Estimate
    lost_by: str = ""  # against the best plan: which term costs it the most

    def __repr__(self) -> str:
        words = on_one_line(self.strategy, self.estimate.as_usual)
        return f"<Plan #{self.rank}: {words}, {self.estimate.step_s:.4g} s>"


class Daring(Result, frozen=True, kw_only=True):
    """The plan that would be faster than the first one, if it is as fast as predicted."""

    strategy: str
    estimate: Estimate
    gain: float  # of the first plan's step time
    doubt: str  # why it is not the first
    settled_by: str  # what would show whether it works


class Reject(Result, frozen=True, kw_only=True):
    """Strategies refused for one reason."""

    reason: str
    sentence: str
    strategies: int


class Search(Result, frozen=True, kw_only=True):
    """What the search did."""

    considered: int  # strategies in the space, all accounted for
    evaluated: int  # of them, fully costed
    feasible: int  # legal and within memory, among those evaluated
    seconds: float
    strategies_per_s: float


class Baseline(Result, frozen=True, kw_only=True):
    """What the best plan saves against what is done now; negative where it does not."""

    estimate: Estimate
    step_s_saved: float
    days_saved: float | None
    usd_saved: float | None
    expected_days_saved: float | None
    expected_usd_saved: float | None
    usd_saved_range: Range | None = None  # an error of the step time that both share scales what is saved


class Nearby(Result, frozen=True, kw_only=True):
    """Numbers near those asked for that run better, as ``astra.plan`` answers them."""

    batch: int
    gpus: int
    strategy: str
    step_s: float
    tokens_per_s: float
    gain: float | None  # of tokens per GPU-second; null where the numbers asked for cannot be run
    sentence: str


class Loss(Result, frozen=True, kw_only=True):
    """What happens if a node of a pool is lost."""

    pool: str
    gpus: int  # of that node
    strategy: str | None = None  # the next plan; None: nothing fits what is left
    step_s: float | None = None
    times: float | None = None  # its step over that of the plan before
    moves_gib: dict[str, float] = {}  # state that the next plan puts on a pool which did not hold it, by pool
    from_checkpoint_gib: float = 0.0  # state that was on that node and nowhere else
    why: str = ""


class PlanSet(Table, frozen=True, kw_only=True):
    """The ranked answer to a request."""

    drawn_by: ClassVar[str] = "report.text.plans_parts"
    shown_by: ClassVar[str] = "report.view.plans_html"
    schema: str = PLAN_SCHEMA
    version: str
    fingerprint: dict[str, str]
    request: dict[str, Any]
    plans: list[Plan]
    search: Search
    rejects: list[Reject]
    notes: list[str]
    objective: str = "fastest"
    baseline: Baseline | None = None
    asked: dict[str, Any] = {}  # the whole request, resolved: the keywords of ``astra.plan`` that give this answer
    nearby: list[Nearby] = []  # a batch, and a number of GPUs, that divide better
    daring: Daring | None = None  # the fastest if it works, where that is another plan than the first
    lost: list[Loss] = []  # if a node is lost, where that was asked

    @property
    def best(self) -> Plan:
        """The first plan."""
        return self.plans[0]

    def __repr__(self) -> str:
        if not self.plans:
            return "<PlanSet: nothing is legal and fits>"
        best, many = self.best.estimate, f"{len(self.plans)} plan{'s' if len(self.plans) > 1 else ''}"
        words = on_one_line(best.strategy, best.as_usual)
        return f"<PlanSet {best.model} on {best.gpus}: {many}, {words}, {best.step_s:.4g} s, {best.mfu:.1%} MFU>"


class ModelReport(Result, frozen=True, kw_only=True):
    """What was understood of a model."""

    drawn_by: ClassVar[str] = "report.text.model_parts"
    schema: str = MODEL_SCHEMA
    name: str
    family: str
    shape: dict[str, Any]
    parameters: dict[str, int]
    flops_per_token: dict[str, float]
    source: str
    date: str

    def __repr__(self) -> str:
        return f"<ModelReport {self.name}: {self.parameters['total']:,} parameters>"
