"""What a GPU-hour costs and how often runs are interrupted: the money options of a request."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from astra.errors import InputError
from astra.spec import kinds
from astra.spec.fields import Field, Fielded, fields_of, read_fields
from astra.spec.names import Name, check_fields
from astra.spec.record import check
from astra.units import MONTH_S

Market = Literal["on-demand", "reserved", "spot"]
MARKETS: Final[tuple[Market, ...]] = ("on-demand", "reserved", "spot")
ANY_MARKET: Final = "any"
GOODPUT: Final = ("expected", "ideal", "off")
_AMOUNT: Final = kinds.number(0, 1e9, unit="USD")
_PRICE: Final = kinds.number(0, 1000, above=True, unit="USD")
_SPEED: Final = kinds.number(0, 1e15, above=True)


def _goodput() -> kinds.FieldKind:
    """The words, and ``both`` of older requests: expected figures decide, ideal ones are shown."""
    kind = kinds.one_of(*GOODPUT)
    return kind._replace(
        read=lambda value, where: kind.read("expected" if isinstance(value, str) and value == "both" else value, where)
    )


class Money(Fielded, frozen=True, kw_only=True):
    """What a GPU-hour costs and how often runs are interrupted. What is left out is taken from the catalog."""

    place: ClassVar[str] = "money."

    market: Annotated[
        Literal["on-demand", "reserved", "spot", "any"],
        Field(kinds.one_of(*MARKETS, ANY_MARKET), "whose prices apply; any: all of them in one front")
    ] = "on-demand"  # fmt: skip
    providers: Annotated[
        tuple[Name, ...], Field(kinds.texts("names of providers, such as AWS,Lambda", "A,B", split=","),
                               "only these (astra catalog prices)")
    ] = ()  # fmt: skip
    regions: Annotated[
        tuple[Name, ...], Field(kinds.texts("beginnings of regions, such as us-east,eu", "A,B", split=","),
                               "only offers of regions that begin so, and of those that name none")
    ] = ()  # fmt: skip
    prices: Annotated[
        str | None, Field(kinds.file("a CSV file of offers"),
                          "a CSV of offers, beside the catalog's and in place of those for the same provider, "
                          "instance, GPU and market")
    ] = None  # fmt: skip
    usd_per_gpu_h: Annotated[float | None, Field(_PRICE, "a price of your own")] = None
    price: Annotated[
        tuple[Name, ...], Field(kinds.texts("prices of GPU types, such as H100=2.5,H200=3", "GPU=USD", split=","),
                               "a price of your own for a GPU type, beside the other offers")
    ] = ()  # fmt: skip
    discount: Annotated[
        float, Field(kinds.fraction(below=1.0), "what you pay less than the listed prices")
    ] = 0.0  # fmt: skip
    usd_per_kwh: Annotated[float | None, Field(kinds.number(0, 100, unit="USD"), "owned hardware: energy")] = None
    pue: Annotated[
        float, Field(kinds.number(1, 5), "power of the building over that of the machines, in energy and its price")
    ] = 1.0
    watts_per_gpu: Annotated[
        float | None, Field(kinds.number(0, 100_000, above=True, unit="W"),
                            "with its share of the server (default: the GPU's board power)")
    ] = None  # fmt: skip
    g_co2_per_kwh: Annotated[
        float | None, Field(kinds.number(0, 5000, unit="G"),
                            "of your grid (default: that of the offer's region, if known)")
    ] = None  # fmt: skip
    usd_per_gpu: Annotated[
        float | None, Field(_AMOUNT, "owned hardware: the purchase, with its share of the server")
    ] = None  # fmt: skip
    lifetime_years: Annotated[
        float, Field(kinds.number(0, 100, above=True), "over which a purchase is spread")
    ] = 4.0  # fmt: skip
    use: Annotated[
        float, Field(kinds.share(), "owned hardware: share of its life in which it trains")
    ] = 1.0  # fmt: skip
    staff_usd_per_gpu_year: Annotated[
        float, Field(_AMOUNT, "owned hardware: people, space and upkeep, for each GPU and year", flag="--staff-usd")
    ] = 0.0  # fmt: skip
    capital_rate: Annotated[
        float, Field(kinds.fraction(below=1.0), "owned hardware: yearly cost of the capital in it, such as 8%")
    ] = 0.0  # fmt: skip
    goodput: Annotated[
        Literal["expected", "ideal", "off"],
        Field(_goodput(), "restarts: judge by the expected time and bill and show the ideal ones beside "
                               "them (expected), the other way round (ideal), or leave them out (off)")
    ] = "expected"  # fmt: skip
    startup_s: Annotated[
        float | None, Field(kinds.number(0, 6e7), "paid for before the first step of what is rented: boot, image, "
                            "data, compilation (default 15 minutes, and 2 more for each doubling of the nodes)",
                            flag="--startup", typed=kinds.seconds(none=True))
    ] = None  # fmt: skip
    mtbf_gpu_h: Annotated[
        float | None, Field(kinds.number(above=True, unit="H"),
                            "hours between failures of one GPU (default: published runs)")
    ] = None  # fmt: skip
    restart_s: Annotated[
        float | None, Field(kinds.number(0, 6e7), "from a failure to training again (default 15 minutes)",
                            flag="--restart-min", typed=kinds.times(60.0, kinds.number(0, 1e6), "MIN"))
    ] = None  # fmt: skip
    write_bytes_per_s_per_gpu: Annotated[
        float | None, Field(_SPEED, "checkpoint writing per GPU (default 122 MB/s)", flag="--write-mb-s",
                            typed=kinds.times(1e6, kinds.number(0, 1e9, above=True), "MB/S"))
    ] = None  # fmt: skip
    preemptions_per_node_day: Annotated[
        float | None, Field(kinds.number(0, 1e6), "of one node in a day (default: 0, or what is published for spot)",
                            flag="--preemptions")
    ] = None  # fmt: skip
    idle_s: Annotated[
        float, Field(kinds.number(), "GPUs paid for without training, such as 36h: set-up, data staging, evaluation",
                     flag="--idle", typed=kinds.seconds())
    ] = 0.0  # fmt: skip
    storage_tb: Annotated[
        float, Field(_AMOUNT, "kept for the run, at dollars per TB and month: 50@23", flag="--storage",
                     typed=kinds.priced(), also="usd_per_tb_month")
    ] = 0.0  # fmt: skip
    usd_per_tb_month: Annotated[float, Field(_AMOUNT, "of what is kept", flag=None)] = 0.0
    egress_tb: Annotated[
        float, Field(_AMOUNT, "taken out once, at dollars per TB: 2@90", flag="--egress", typed=kinds.priced(),
                     also="usd_per_tb_egress")
    ] = 0.0  # fmt: skip
    usd_per_tb_egress: Annotated[float, Field(_AMOUNT, "of what is taken out", flag=None)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields("money", self)
        check(
            self.usd_per_gpu_h is None or not self.owned, "money.usd_per_gpu_h", self.usd_per_gpu_h,
            "a price per hour, or what owned hardware costs, not both",
        )  # fmt: skip
        for name in ("use", "staff_usd_per_gpu_year", "capital_rate", "lifetime_years"):
            value = getattr(self, name)
            usual = self.usd_per_gpu is not None or value == MONEY_FIELDS[name].default
            check(usual, f"money.{name}", value, "--usd-per-gpu with it: alone it changes no price")

    @property
    def markets(self) -> tuple[Market, ...]:
        """The markets whose prices apply, the most usual first."""
        return MARKETS if self.market == ANY_MARKET else (self.market,)

    @property
    def owned(self) -> bool:
        """Whether the GPUs are one's own."""
        return self.usd_per_kwh is not None or self.usd_per_gpu is not None

    @property
    def storage_usd_per_s(self) -> float:
        """What the data costs while it is kept."""
        return self.storage_tb * self.usd_per_tb_month / MONTH_S

    @property
    def egress_usd(self) -> float:
        """What taking the result out costs, once."""
        return self.egress_tb * self.usd_per_tb_egress


MONEY_FIELDS: Final = fields_of(Money)


def money_options() -> kinds.FieldKind:
    """The money options, or a table of some of them; nothing stands for the usual ones."""

    def read(value: Any, where: str) -> Money:
        if isinstance(value, Money):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise InputError(where, value, want="astra.Money(...), or a table of its fields")
        return Money(**read_fields(Money, value or {}, lambda name: f"{where}.{name}"))

    return kinds.FieldKind(read)
