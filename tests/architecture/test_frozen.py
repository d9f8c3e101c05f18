"""Names that others rely on. Change these lists on purpose, and tell users in the changelog."""

from __future__ import annotations

import msgspec
import pytest

import astra
from astra.answer import Estimate, Plan, PlanSet, Reject, Search, StageEstimate
from astra.cli import parser
from astra.errors import AstraError

PUBLIC = """
AffordReport MLA AstraError Cluster Device Estimate InputError Link MoE ModelReport ModelSpec Money NoCoverage
NoFeasiblePlan afford
NodeType Plan PlanRequest PlanSet Pool RentReport Strategy Workload __version__ describe_model estimate parse_strategy
plan rent export import_ load
"""
CLUSTER = "--gpus --cluster --node"
WORKLOAD = (
    "--batch --seq --tokens --precision --optimizer --task --lora-rank --lora-targets --imbalance --packed --mtp "
    "--runtime --strict"
)
OBJECTIVE = "--objective --budget --deadline"
MONEY = (
    "--market --providers --regions --prices --usd-per-gpu-h --price --discount --usd-per-kwh --pue --watts-per-gpu "
    "--g-co2-per-kwh --usd-per-gpu --lifetime-years --use --staff-usd --capital-rate --startup --goodput "
    "--mtbf-gpu-h --restart-min --write-mb-s --preemptions --idle --storage --egress"
)
OUTPUT = "--json --out --quiet --verbose --width --debug"
BRIEF_OUTPUT = "--json --out --width --debug"
FLAGS = {
    "plan": (
        f"--help {CLUSTER} --at-most --exact --node-lost --by-runtime --worth --time-budget --local-steps {WORKLOAD} "
        "--top --fix --forbid "
        f"--max --min --rules --headroom {OBJECTIVE} --rank --baseline --pick --vocab --parameters --save-request "
        f"--export --export-out --nearest {MONEY} --report {OUTPUT}"
    ),
    "estimate": (
        f"--help --from --pick --vocab --parameters --strategy {CLUSTER} {WORKLOAD} --rules --headroom {MONEY} "
        f"--save-request --check {OUTPUT}"
    ),
    "rent": (
        "--help --gpus --max-gpus --mixes --known-nodes --assume-network --own --tokens --batch --seq --precision "
        "--optimizer --task "
        f"--lora-rank --lora-targets --imbalance --packed --mtp --runtime --headroom {OBJECTIVE} --rank {MONEY} "
        f"--save-request --export --pick --export-out --csv --plot --report {OUTPUT}"
    ),
    "afford": (
        "--help --ratio --gpus --max-gpus --mixes --known-nodes --assume-network --own --tokens --batch --seq "
        "--precision --optimizer --task --lora-rank --lora-targets --imbalance --packed --mtp --runtime "
        f"--headroom {OBJECTIVE} --rank {MONEY} --csv --plot {OUTPUT}"
    ),
    "export": "--help --to --out --rank --nearest --overwrite --json --width --debug",
    "import": f"--help --gpus --pick --vocab {BRIEF_OUTPUT}",
    "explain": f"--help --pick --seconds {BRIEF_OUTPUT}",
    "compare": f"--help --model {CLUSTER} {WORKLOAD} --rules --headroom {MONEY} --vocab {BRIEF_OUTPUT}",
    "sweep": (
        f"--help --over --csv --plot {CLUSTER} --at-most --exact --node-lost --by-runtime --worth --time-budget "
        f"--local-steps {WORKLOAD} "
        f"--fix --forbid --max --min --rules --headroom {OBJECTIVE} --rank {MONEY} {BRIEF_OUTPUT}"
    ),
    "study": "--help --out --engine --workers --address --most --retry --report --json --width --debug",
    "fleet": "--help --goal --workers --plot --report --json --out --width --debug",
    "trace": "--help --pick --out --json --width --debug",
    "model": f"--help --seq {BRIEF_OUTPUT}",
    "catalog": f"--help {BRIEF_OUTPUT}",
    "prices": f"--help --provider --date --to {BRIEF_OUTPUT}",
    "validate": f"--help {OUTPUT} --plot --report --show",
    "rehearse": f"--help --stage --plan --framework {BRIEF_OUTPUT}",
    "profile": "--help --quick --full --out --resume --json --width --debug",
    "serve": "--help --host --port --allow-host --json --width --debug",
    "completion": "--help --json --width --debug",
}
FIELDS: dict[type[msgspec.Struct], str] = {
    PlanSet: "schema version fingerprint request plans search rejects notes",
    Plan: "rank strategy estimate lost_by",
    Search: "considered evaluated feasible seconds strategies_per_s",
    Reject: "reason sentence strategies",
    Estimate: (
        "schema model gpus strategy runtime legal violations fits step_s step_s_range tokens_per_s "
        "tokens_per_s_per_gpu model_tflops_per_gpu mfu hfu breakdown bubble_fraction microbatches stages "
        "peak_allocated_gib peak_reserved_gib peak_gib_range memory_usable_gib memory_limit_gib provenance "
        "provenance_worst warnings train_days train_usd price_source"
    ),
    StageEstimate: (
        "index layers gpus gpu compute_s forward_s backward_s optimizer_s communication_s exposed_s in_flight memory "
        "peak_allocated_gib peak_reserved_gib fits"
    ),
}
EXIT_CODES = {
    "AstraError": 1,
    "InputError": 2,
    "UnknownName": 2,
    "UsageError": 2,
    "NoFeasiblePlan": 3,
    "NoCoverage": 4,
    "OutputError": 5,
}


def test_public_names() -> None:
    assert sorted(astra.__all__) == sorted(PUBLIC.split())
    for name in astra.__all__:
        assert getattr(astra, name) is not None


def test_flags() -> None:
    assert list(parser.VERBS) == list(FLAGS)
    for verb, words in FLAGS.items():
        assert sorted(parser.flags(verb)) == sorted(words.split()), verb


@pytest.mark.parametrize("record", FIELDS)
def test_record_fields_may_be_added_but_not_lost(record: type[msgspec.Struct]) -> None:
    assert set(FIELDS[record].split()) <= set(record.__struct_fields__)


def test_exit_codes() -> None:
    def family(kind: type[AstraError]) -> dict[str, int]:
        found = {kind.__name__: kind.exit_code}
        for child in kind.__subclasses__():
            found |= family(child)
        return found

    assert family(AstraError).items() >= EXIT_CODES.items()
    assert set(family(AstraError).values()) == set(EXIT_CODES.values()), (
        "a new exit code needs a line here and in the help"
    )
