"""The request: one record behind every verb. Flags, keyword arguments, TOML and JSON are spellings of its fields."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from astra.errors import InputError
from astra.spec import kinds
from astra.spec.cluster import Cluster
from astra.spec.fields import Field, Fielded, fields_of, read_fields
from astra.spec.model import ModelSpec
from astra.spec.money import Money, money_options
from astra.spec.workload import LORA_TARGETS, OPTIMIZERS, PRECISIONS, TASKS, Precision
from astra.units import parse_count

_SUFFIXES: Final = ("k", "m")
COUNTS: Final = ("at-most", "exact")
MIXES: Final = ("some", "all", "none")
RANKS: Final = ("upper", "expected")
_MODEL: Final = "a catalog name (astra catalog models), a Hugging Face config.json or its folder, or a TOML file"
_GPUS: Final = {
    "plan": "how many of which, such as 512xH100 (astra catalog gpus); again for another pool",
    "estimate": "how many of which, such as 512xH100 (astra catalog gpus); again for another pool",
    "rent": "GPU types, such as H100,H200:64 (64 at most), or any (default any)",
}
_POOLS: Final = kinds.texts(
    "GPUs such as 512xH100, a text for each pool, or GPU types to rent such as H100,H200", "GPUS", split="+,"
)


def length(least: int, most: int) -> kinds.FieldKind:
    """Tokens per sample, as a number; with a suffix as text, so that the answer can say how it was read."""
    plain = kinds.whole(least, most)

    def read(value: Any, where: str) -> Any:
        text = value.strip().lower() if isinstance(value, str) else ""
        if not text.endswith(_SUFFIXES) or parse_count(text[:50]) is None:
            return plain.read(value, where)
        try:
            plain.read(_count(text), where)
        except InputError as error:
            raise InputError(where, value, want=error.want) from None
        return text

    return plain._replace(read=read)


def tokens_of(length: int | str) -> int:
    """The tokens of a length: ``128k`` are 131,072, because lengths that are powers of two are told by 1,024.

    Any other number of thousands is as it is told: ``100k`` are 100,000.
    """
    return round(_count(length)) if isinstance(length, str) else length


def _count(text: str) -> float:
    number = parse_count(text[:-1]) or 0.0
    whole = int(number) if number == int(number) else 0
    kilo = 1024.0 if whole and whole & (whole - 1) == 0 else 1000.0
    return parse_count(text, kilo=kilo) or 0.0


def inner_steps(most: int) -> kinds.FieldKind:
    """A number of local steps, or ``auto``."""
    plain = kinds.whole(2, most)

    def read(value: Any, where: str) -> Any:
        if isinstance(value, str) and value.strip().lower() == "auto":
            return "auto"
        try:
            return plain.read(value, where)
        except InputError as error:
            raise InputError(where, value, want=f"{error.want}, or auto") from None

    return plain._replace(read=read, metavar="N|auto")


class PlanRequest(Fielded, frozen=True, kw_only=True):
    """What is asked: a model, GPUs, work, a goal, money, limits. ``plan``, ``estimate`` and ``rent`` take it as it is.

    docs/requests.md tells every field and its spellings.
    """

    model: Annotated[str | ModelSpec, Field(kinds.described(ModelSpec, _MODEL), _MODEL, flag=None)]
    gpus: Annotated[tuple[str, ...], Field(_POOLS, _GPUS, group="GPUs")] = ()
    cluster: Annotated[
        str | Cluster | None,
        Field(kinds.described(Cluster, "the path of a cluster's TOML file"),
              "a TOML file with your own GPUs, nodes and links", "plan estimate", "GPUs")
    ] = None  # fmt: skip
    node: Annotated[
        str | None, Field(kinds.named("the name of a node type"),
                          "node type, when not the usual one (astra catalog nodes)",
                          "plan estimate", "GPUs")
    ] = None  # fmt: skip
    max_gpus: Annotated[int, Field(kinds.whole(1, 100_000), "rent at most so many", "rent", "GPUs")] = 2048
    mixes: Annotated[
        Literal["some", "all", "none"],
        Field(kinds.one_of(*MIXES),
              "mixes of two types: some plans the most promising that are not proven dominated, all "
                             "every one of them, or none", "rent", "GPUs")
    ] = "some"  # fmt: skip
    known_nodes: Annotated[
        bool, Field(kinds.switch(), "only node types whose links are in the catalog", "rent", "GPUs")
    ] = False  # fmt: skip
    assume_network: Annotated[
        bool, Field(kinds.switch(), "join servers whose network nobody tells by that of the GPU's usual server; else "
                    "such an offer is one server", "rent", "GPUs")
    ] = False  # fmt: skip
    own: Annotated[
        tuple[str, ...],
        Field(kinds.texts("GPUs such as 64xH100, or a cluster's TOML file", "GPUS|FILE"),
              "GPUs you have, beside what can be rented: 64xH100, or a cluster's TOML file; --usd-per-gpu and the "
              "options with it say what they cost", "rent", "GPUs")
    ] = ()  # fmt: skip
    counts: Annotated[
        Literal["at-most", "exact"],
        Field(kinds.one_of(*COUNTS),
              {"at-most": "use of each pool what helps (default)", "exact": "use every GPU"}, "plan",
              "several pools")
    ] = "at-most"  # fmt: skip
    node_lost: Annotated[
        bool, Field(kinds.switch(), "also say what happens if a node of each pool is lost: the next plan, and what has "
                    "to move", "plan", "GPUs")
    ] = False  # fmt: skip
    by_runtime: Annotated[
        bool, Field(kinds.switch(), "also tell the best plan of each runtime that joins pools, in one table", "plan",
                    "several pools")
    ] = False  # fmt: skip
    worth: Annotated[
        bool, Field(kinds.switch(), "also plan the fleet without each pool, with one more node of each, and with those "
                    "left idle: what each is worth", "plan", "several pools")
    ] = False  # fmt: skip
    time_budget: Annotated[
        float | None,
        Field(kinds.number(0, 86_400, above=True, example="0.5", unit="SECONDS"),
              "search for so long at most: the best plan met by then, and how much faster any could be", "plan",
              "several pools")
    ] = None  # fmt: skip
    local_steps: Annotated[
        int | str | None,
        Field(inner_steps(100_000),
              "also plan groups that train by themselves for so many steps before their weights meet (DiLoCo), which "
              "costs loss; auto chooses how many", "plan", "several pools")
    ] = None  # fmt: skip
    launchable: Annotated[
        bool, Field(kinds.switch(), "only what the runtime can run as it is", "plan", "several pools", flag=None)
    ] = False  # fmt: skip

    batch: Annotated[
        int | str, Field(kinds.batch(10_000_000), "global batch in samples, or in tokens as 4Mtok", group="workload")
    ] = 1024  # fmt: skip
    seq: Annotated[
        int | str | None, Field(length(1, 100_000_000),
                                "tokens per sample, such as 128k (default 4096, or what the model is made for)",
                          "plan estimate rent model", "workload")
    ] = None  # fmt: skip
    tokens: Annotated[
        float | None, Field(kinds.number(1, 1e18, example="300B or 1.5T"),
                            "tokens to train in all, such as 1T: adds days and dollars", group="workload")
    ] = None  # fmt: skip
    precision: Annotated[
        Precision,
        Field(kinds.one_of(*PRECISIONS),
              "of the matrix products; fp8 is scaled as is usual on the GPU, tf32 trains in fp32",
              group="workload")
    ] = "bf16"  # fmt: skip
    optimizer: Annotated[
        Literal["adam", "sgd"], Field(kinds.one_of(*OPTIMIZERS), "what updates the weights", group="workload")
    ] = "adam"  # fmt: skip
    task: Annotated[
        Literal["pretrain", "finetune", "lora"], Field(kinds.one_of(*TASKS), "what is trained", group="workload")
    ] = "pretrain"  # fmt: skip
    lora_rank: Annotated[int, Field(kinds.whole(1, 65536), "of --task lora", group="workload")] = 16
    lora_targets: Annotated[
        Literal["all", "attention", "qkv"],
        Field(kinds.one_of(*LORA_TARGETS), "matrices with adapters of --task lora", group="workload")
    ] = "all"  # fmt: skip
    imbalance: Annotated[
        float, Field(kinds.number(1, 1000, example="1.3"),
                     "work of the fullest expert rank over the mean's (1 is balanced)",
                     group="workload")
    ] = 1.0  # fmt: skip
    packed: Annotated[
        int, Field(kinds.whole(0, 100_000_000),
                   "tokens of the samples that each sequence is packed of, where attention stops at their ends: the "
                   "sum of their squares over their sum, if they differ (0: a sequence is one sample)",
                   group="workload")
    ] = 0  # fmt: skip
    mtp: Annotated[int, Field(kinds.whole(0, 64), "multi-token-prediction layers to train", group="workload")] = 0
    runtime: Annotated[
        str | None,
        Field(kinds.named("the name of a training framework"),
              "training framework (astra catalog runtimes; default megatron, or the first that can train the model)",
              group="workload")
    ] = None  # fmt: skip

    strategy: Annotated[
        str | None, Field(kinds.word_list(),
                          'such as "tp8 pp4 dp2 mbs1 sp zero1 recompute=selective"', "estimate", "strategy")
    ] = None  # fmt: skip
    top: Annotated[int, Field(kinds.whole(1, 100), "plans to show", "plan", "search")] = 5
    fix: Annotated[tuple[str, ...], Field(kinds.pairs("KEY=VALUE"), "keep to this value", "plan", "search")] = ()
    forbid: Annotated[
        tuple[str, ...], Field(kinds.pairs("KEY[=VALUE]"), "leave a dimension, or one value, out", "plan", "search")
    ] = ()  # fmt: skip
    maximum: Annotated[tuple[str, ...], Field(kinds.pairs("KEY=N"), "at most this", "plan", "search", "--max")] = ()
    minimum: Annotated[tuple[str, ...], Field(kinds.pairs("KEY=N"), "at least this", "plan", "search", "--min")] = ()
    rules: Annotated[
        str | tuple[str, ...] | None,
        Field(kinds.rule_lines(),
              "a file with rules of your own, one per line: 'refuse tp > 4' or 'require tp <= 4'; a bare "
              "condition is one to refuse", "plan estimate", "limits")
    ] = None  # fmt: skip
    headroom: Annotated[
        float, Field(kinds.fraction(below=1.0), "share of the usable memory to keep free", group="limits")
    ] = 0.08  # fmt: skip
    strict: Annotated[
        bool, Field(kinds.switch(), "refuse to answer from assumed data (exit code 4)", "plan estimate", "limits")
    ] = False  # fmt: skip

    objective: Annotated[
        str | None, Field(kinds.named("the name of an objective, such as cheapest", lower=True),
                          "fastest, cheapest, budget, deadline, dollars-per-token, energy, co2 or pareto",
                          "plan rent", "goal")
    ] = None  # fmt: skip
    budget: Annotated[
        float | None, Field(kinds.number(0, 1e15, above=True, example="400k", unit="USD"),
                            "the fastest within this many dollars, such as 400k", "plan rent", "goal")
    ] = None  # fmt: skip
    deadline: Annotated[
        str | float | None,
        Field(kinds.duration(), "the cheapest within this time, such as 14d or 36h", "plan rent", "goal")
    ] = None  # fmt: skip
    rank: Annotated[
        Literal["upper", "expected"],
        Field(kinds.one_of(*RANKS),
              "plans by the upper end of their step time's interval, which evidence makes short or long "
              "(default), or by the expected step time", "plan rent", "goal")
    ] = "upper"  # fmt: skip
    baseline: Annotated[
        str | None, Field(kinds.word_list("STRATEGY|FILE"),
                          "what you do now, or the script that does it: days and dollars saved", "plan", "goal")
    ] = None  # fmt: skip
    money: Annotated[Money, Field(money_options(), "prices and restarts", flag=None)] = msgspec.field(
        default_factory=Money
    )

    def plain(self, verb: str) -> dict[str, Any]:
        """What a verb takes of it, as TOML and JSON hold it; planned again, it gives the same answer."""
        values = {name: getattr(self, name) for name, field in FIELDS.items() if field.on(verb)}
        plain: dict[str, Any] = _without_nothing(msgspec.to_builtins(values))
        return plain


FIELDS: Final = fields_of(PlanRequest)


def read_request(verb: str, values: Mapping[str, Any], place: Callable[[str], str] = str) -> PlanRequest:
    """The request that some fields make up for a verb; ``place`` says how errors name a field."""
    read = read_fields(PlanRequest, values, place, taken=verb)
    if "model" not in read:
        raise InputError(place("model"), None, want=_MODEL)
    return PlanRequest(**read)


def as_meant(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a plan with what goes without saying: whoever names a runtime wants plans for it."""
    return {"launchable": True, **fields} if fields.get("runtime") is not None else dict(fields)


def _without_nothing(value: Any) -> Any:
    """Plain data without what is None, which is the default wherever it may stand and has no word in TOML."""
    if isinstance(value, dict):
        return {key: _without_nothing(each) for key, each in value.items() if each is not None}
    return [_without_nothing(each) for each in value] if isinstance(value, list | tuple) else value


def requested(verb: str, model: Any, asked: Mapping[str, Any]) -> PlanRequest:
    """The request of a call: its fields, or a request with some of them changed."""
    if isinstance(model, PlanRequest):
        return msgspec.structs.replace(model, **read_fields(PlanRequest, asked, taken=verb))
    return read_request(verb, {"model": model, **asked})
