"""Every parser of what users give, as a function of text: it answers, or raises one of our own errors.

A target checks what must hold of what it read: texts that are written again are read as the same, numbers are finite.
"""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from astra.api import make_job
from astra.catalog import models
from astra.catalog.clusters import parse_cluster, read_cluster
from astra.catalog.huggingface import from_config
from astra.catalog.prices import parse_prices, to_csv
from astra.catalog.prices_import import import_prices
from astra.catalog.requests import read_request_file, write_request
from astra.errors import AstraError, InputError
from astra.export.reading import from_record, plan_of_choice, read_record, read_rented
from astra.files import parse_json
from astra.layers import weights
from astra.questions.declared import read_study
from astra.rules.restrictions import parse_restrictions
from astra.rules.table import rules_of
from astra.search.detail import legality
from astra.search.world import World
from astra.sharing.declared import read_sharing
from astra.spec.job import Job
from astra.spec.mixed_text import is_mixed, on_one_pool, parse_mixed
from astra.spec.request import FIELDS, read_request, tokens_of
from astra.spec.strategy import parse_strategy
from astra.units import parse_count, parse_seconds, whole_count
from astra.validate.runs import Skipped, read_runs
from tests.export.launching import import_text
from tests.files.odd import PRICES, PROFILED, SKYPILOT
from tests.fuzz import seeds
from tests.fuzz.seeds import both, odd, texts

TODAY: Final = dt.date(2026, 11, 16)
MOST_ROWS: Final = 6


class Target(NamedTuple):
    """A parser, and texts that it reads."""

    read: Callable[[str], object]
    seeds: Callable[[], tuple[str, ...]]

    def refusal(self, text: str) -> str | None:
        """The sentence by which a text is refused; None if it is read."""
        try:
            self.read(text)
        except AstraError as error:
            return str(error)
        return None


@cache
def folder() -> Path:
    """A place for the files of readers that take a path."""
    return Path(tempfile.mkdtemp(prefix="astra-fuzz-"))


@cache
def job() -> Job:
    """The job whose strategy rules are asked about."""
    return make_job("mixtral-8x7b", gpus="8xH100", batch=64, seq=2048)


def _file(name: str, text: str) -> Path:
    path = folder() / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def _strategy(text: str) -> None:
    if is_mixed(text) and on_one_pool(text) is None:
        mixed = parse_mixed(text)
        assert parse_mixed(str(mixed)) == mixed
        return
    alone = on_one_pool(text)
    strategy = parse_strategy(text if alone is None else alone[1], gpus=64)
    assert parse_strategy(str(strategy)) == strategy
    assert strategy.gpus == strategy.tp * strategy.cp * strategy.pp * strategy.dp


def _rules(text: str) -> None:
    legality(
        job(), parse_strategy("tp2 dp4 mbs1 sp zero1 recompute=selective"), rules_of(text.split("\n"), "site.rules")
    )


def _restrictions(text: str) -> None:
    words: dict[str, list[str]] = {"fix": [], "forbid": [], "maximum": [], "minimum": []}
    for place, line in enumerate(text.splitlines()):
        kind, _, rest = line.partition(" ")
        words[kind if kind in words else list(words)[place % 4]].append(rest)
    parse_restrictions(**words)


def _units(text: str) -> None:
    for found in (parse_count(text), parse_seconds(text)):
        assert found is None or (math.isfinite(found) and found >= 0)
    whole = whole_count(text, 10**6)
    assert whole is None or 1 <= whole <= 10**6
    for name in ("batch", "seq", "tokens", "deadline", "budget", "headroom", "gpus", "imbalance", "mtp"):
        try:
            read = FIELDS[name].read(text, name)
        except InputError:
            continue
        assert name != "seq" or tokens_of(read) >= 1


def _gpus(text: str) -> None:
    for pool in parse_cluster(text).pools:
        assert pool.gpus >= 1


def _config(text: str) -> None:
    spec = from_config(_mapping(text), where="config.json")
    assert 0 < weights.count(spec).active <= weights.count(spec).total


def _mapping(text: str) -> dict[str, object]:
    found = parse_json(text, "config.json")
    if not isinstance(found, dict):
        raise InputError("config.json", None, want="a table")
    return found


def _model(text: str) -> None:
    spec = models.model(str(_file("model.toml", text)))
    assert 0 < weights.count(spec).active <= weights.count(spec).total


def _request(text: str) -> None:
    found = read_request_file(str(_file("request.toml", text)))
    if found is None:
        return
    request = read_request("plan", found)
    asked = World.of(request).resolved.plain("plan")
    again = read_request_file(str(_file("again.toml", write_request(asked, "plan"))))
    assert again is not None
    assert World.of(read_request("plan", again)).resolved.plain("plan") == asked


def _study(text: str) -> None:
    study = read_study(str(_file("study.toml", text)))
    assert study.size >= 1


def _sharing(text: str) -> None:
    sharing = read_sharing(str(_file("jobs.toml", text)))
    assert sharing.jobs
    assert all(pool.nodes >= 1 for pool in sharing.pools.values())


def _cluster(text: str) -> None:
    read_cluster(_file("cluster.toml", text))


def _profile(text: str) -> None:
    _file("profile.json", text)
    read_cluster(_file("beside.toml", PROFILED))


def _prices(text: str) -> None:
    found = parse_prices(text, where="prices.csv", today=TODAY)
    assert parse_prices(to_csv(found), where="again.csv", today=TODAY) == found


def _catalogs(text: str) -> None:
    import_prices(_file("aws.csv", text), date=TODAY)


def _runs(text: str) -> None:
    few = "\n".join(text.split("\n")[:MOST_ROWS])  # each is costed, which takes its time
    for run in read_runs(_file("runs.csv", few)):
        assert isinstance(run, Skipped) or run.strategy.gpus >= 1


def _plan(text: str) -> None:
    path = _file("plan.json", text)
    if (asked := read_request_file(str(path))) is not None:
        read_request("rent" if "max_gpus" in asked else "plan", asked)
    rented = read_rented(path)
    from_record(read_record(path) if rented is None else plan_of_choice(rented, None, "rent.json"), 1, where="plan")


def _launch(name: str, gpus: int | None = 1152) -> Callable[[str], object]:
    """The reader of launch files by the ending of their name; the GPUs are divided by the degrees of the seeds.

    What does not go with those is read with the GPUs it says itself.
    """

    def read(text: str) -> None:
        try:
            found = import_text(text, name=name, gpus=gpus)
        except AstraError:
            found = import_text(text, name=name, gpus=None)
        assert found.strategy is None or found.strategy.gpus >= 1

    return read


TARGETS: Final[dict[str, Target]] = {
    "strategy": Target(_strategy, texts(
        "tp8 pp4 vp5 dp16 mbs1 sp zero1 recompute=selective",
        "tp4 cp2 pp2 dp4 ep8 etp1 mbs2 zero3 recompute=full:block:4 offload=optimizer overlap=grad,param "
        "schedule=zbv",
        "tp1 pp4 vp2 dp2 mbs1 recompute=selective:moe_act,layernorm dispatch=deepep graphs=full layers=2*3,3*4,2 "
        "moments=bf16",
        "[dp8 mbs1 m4: a tp4 pp2 layers=19,20 recompute=full + b tp2 pp2 layers=20*2] zero1 overlap=grad nosp",
        "a: tp2 dp4 mbs1 zero1",
    )),
    "rules": Target(_rules, both(odd(".rules"), seeds.rules)),
    "restrictions": Target(_restrictions, texts(
        "fix tp=8\nforbid cp\nmaximum pp=8\nminimum dp=2", "fix tp=2,4\nforbid recompute=full\nfix sp=on",
    )),
    "units": Target(_units, texts("1T", "400k", "15.6e12", "4M tokens", "14d", "36h", "20min", "1_000", "20k")),
    "gpus": Target(_gpus, texts("512xH100", "64 x A100-80", "8xH100,16xA100", "16xH100@aws-p5.48xlarge")),
    "config": Target(_config, seeds.configs),
    "model": Target(_model, both(odd("model.toml"), seeds.catalog_models)),
    "request": Target(_request, both(seeds.documented("requests.md"), texts(
        'model = "llama-2-7b"\ngpus = ["16xH100"]\nbatch = 64\nseq = 2048\nfix = ["tp=2"]\ntokens = "1T"\n'
        '[money]\nmarket = "spot"\n',
        'model = "llama-3-8b"\ngpus = ["8xH100", "8xA100"]\nbatch = "4M tokens"\nrules = ["tp > 4"]\n'
        'objective = "cheapest"\n',
    ))),
    "study": Target(_study, both(texts(seeds.STUDY), seeds.documented("study.md"))),
    "sharing": Target(_sharing, both(texts(seeds.JOBS), seeds.documented("sharing.md"))),
    "cluster": Target(_cluster, both(odd("cluster.toml", "between.toml"), seeds.documented("clusters.md"))),
    "profile": Target(_profile, odd("profile.json")),
    "prices": Target(_prices, texts(PRICES)),
    "catalogs": Target(_catalogs, texts(SKYPILOT, PRICES, "gpu,usd_per_gpu_h\nH100,2.5\nA100,1.2\n")),
    "runs": Target(_runs, odd("runs.csv")),
    "plan": Target(_plan, seeds.plan_files),
    "scripts": Target(_launch("train.sh"), seeds.corpus(".sh", ".sbatch")),
    "yaml": Target(_launch("train.yaml"), seeds.corpus(".yaml", ".yml")),
    "json": Target(_launch("ds.json", 32), seeds.corpus("ds.json", "auto.json", "ds_config.json")),
    "toml": Target(_launch("titan.toml"), seeds.corpus("titan.toml", "train.toml")),
    "python": Target(_launch("plan.py"), both(odd(".py"), seeds.golden("plan.py"))),
    "overrides": Target(_launch("overrides.txt", 64), seeds.golden("overrides.txt")),
}  # fmt: skip
