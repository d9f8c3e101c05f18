"""Requests drawn by their number. Most are small, so that a million can be asked; rates of all kinds are in ``KINDS``.

Every model, GPU, runtime, task, goal, restriction and rule is drawn, models and clusters of one's own too, and two in
five are damaged: values that no field has, flags that do not belong together, letters that nobody types.
"""

from __future__ import annotations

import copy
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from astra.catalog import hardware, models, runtimes
from astra.errors import AstraError
from astra.layers import weights
from astra.money.objectives import OBJECTIVES
from astra.rules.can import unable
from astra.search.world import World
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS, read_request
from astra.spec.workload import LORA_TARGETS, PRECISIONS, TASKS, Workload
from benchmarks.random_requests import REFUSED
from tests.drill.test_user_files import CLUSTER
from tests.files.odd import LETTERS, NUMBERS, VALUES
from tests.properties.test_best_laws import mutated, sampled

Fields = dict[str, Any]
KINDS: Final = {  # how many of a thousand
    "plan": 350,  # one pool of at most 16 GPUs, most of them restricted in one to three ways
    "estimate": 240,  # a strategy of such a pool, legal or not
    "bad": 402,  # one of the others, damaged
    "fleet": 3,  # two or three pools of at most 8 GPUs
    "rent": 3,  # at most 16 GPUs of at most three types
    "whole": 2,  # anything of benchmarks/random_requests.py: up to 4,096 GPUs, fleets of five pools, all offers
}
SPELLINGS: Final = ("keywords", "keywords", "flags", "toml")
COUNTS: Final = (1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 12, 16)
BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 30, 32, 48, 64, 96, 128, 840)
SEQUENCES: Final = (64, 128, 500, 512, 1000, 1024, 2048, 2048, 4096, 8192, 32768)
SMALL_PARAMETERS: Final = 4e9
OPTIMIZERS: Final = ("adam",) * 9 + ("sgd",)
DEGREES: Final = ("tp", "pp", "cp", "dp", "vp", "mbs", "ep", "etp", "zero")
FLAGGED: Final = (
    "recompute=none", "recompute=selective", "recompute=full", "sp=on", "sp=off", "flash=on", "flash=off",
    "overlap=none", "offload=none", "offload=optimizer", "schedule=1f1b", "schedule=interleaved", "schedule=zb",
    "schedule=zbv", "schedule=gpipe", "method=block", "grads=bf16", "graphs=none", "reshard=never", "modules=mlp",
)  # fmt: skip
CONDITIONS: Final = (
    "tp > 4", "pp * tp > gpus / 2", "tp > gpus_per_node", 'recompute == "full"', "mbs == 1 and zero > 1",
    "not (dp >= 2 or sp)", "layers % (pp * vp) != 0", "1 < mbs <= 8", "cp > 1", 'schedule in ("zb", "zbv")',
)  # fmt: skip


class Asked(NamedTuple):
    """One request: fields of a verb and how they are spelled, or the words of a command line."""

    kind: str
    verb: str
    fields: Fields
    spelling: str
    words: tuple[str, ...] = ()  # as they are, where there are no fields


@cache
def _small_models() -> list[str]:
    return [name for name in models.model_names() if weights.count(models.model(name)).total < SMALL_PARAMETERS]


def drawn(draw: Random) -> Asked:
    """A request."""
    kind = draw.choices(tuple(KINDS), weights=tuple(KINDS.values()))[0]
    if kind == "bad":
        return _damaged(draw)
    if kind == "whole":
        from benchmarks.random_requests import KINDS as WHOLE
        from benchmarks.random_requests import request

        words = request(draw, draw.choices(WHOLE, weights=(12, 1, 1))[0])
        return Asked(kind, words[0], {}, "flags", tuple(word for word in words if word != "-q"))
    fields = _fields(draw, kind)
    own = any(isinstance(value, dict) for name, value in fields.items() if name != "money")
    spelling = draw.choice(SPELLINGS)
    return Asked(kind, _verb(kind), fields, "keywords" if own and spelling == "flags" else spelling)


def _verb(kind: str) -> str:
    return {"estimate": "estimate", "rent": "rent"}.get(kind, "plan")


def _fields(draw: Random, kind: str) -> Fields:
    """What is asked of a verb."""
    fields = _pools(draw, kind)
    fields |= {"model": _own_model(draw)} if draw.random() < 0.08 else {"model": _model(draw)}
    fields |= _work(draw, fields) | _goal(draw, kind)
    if kind == "estimate":
        fields["strategy"] = _strategy(draw, fields)
    elif kind != "rent":
        fields |= _restrictions(draw) | {"top": draw.choice((1, 1, 1, 2, 3))}
    if kind == "plan" and draw.random() < 0.02:
        fields["node_lost"] = True
    if kind == "plan" and draw.random() < 0.05:
        fields["baseline"] = _strategy(draw, fields)
    if kind == "fleet":
        fields |= {"counts": "exact"} if draw.random() < 0.15 else {}
        fields |= {"worth": True} if draw.random() < 0.1 else {}
        fields |= {"local_steps": draw.choice((8, "auto"))} if draw.random() < 0.1 else {}
    return {name: value for name, value in fields.items() if FIELDS[name].on(_verb(kind))}


def _model(draw: Random) -> str:
    return draw.choice(_small_models() if draw.random() < 0.75 else models.model_names())


def _own_model(draw: Random) -> Fields:
    heads, head = draw.choice((1, 2, 3, 4, 6, 8, 12, 16)), draw.choice((16, 32, 48, 64, 128))
    shape = {
        "name": "mine", "layers": draw.randint(1, 24), "hidden": draw.choice((heads * head, 64, 768, 1000)),
        "ffn": draw.choice((96, 1000, 3072, 4096)), "heads": heads, "head_dim": head, "vocab": draw.randint(2, 60_000),
        "kv_heads": draw.choice([n for n in (1, 2, 4, heads) if heads % n == 0]), "max_seq": draw.choice(SEQUENCES),
        "tied_embeddings": draw.random() < 0.5,
    }  # fmt: skip
    if draw.random() < 0.3:
        experts = draw.choice((2, 3, 4, 8, 16))
        shape["moe"] = {"experts": experts, "topk": draw.randint(1, experts), "ffn": draw.choice((64, 100, 1024))}
    return shape


def _pools(draw: Random, kind: str) -> Fields:
    known = hardware.names("devices")
    if kind == "rent":
        few = draw.sample(known, draw.randint(1, 3))
        return {"gpus": few, "max_gpus": draw.choice((1, 4, 8, 16)), "mixes": draw.choice(("some", "all", "none"))}
    if kind == "fleet":
        counts = [(draw.choice((1, 2, 4, 8)), gpu) for gpu in draw.sample(known, draw.choice((2, 2, 3)))]
        return {"gpus": [f"{count}x{gpu}" for count, gpu in counts]}
    if draw.random() < 0.08:
        return {"cluster": _own_cluster(draw)}
    gpu = draw.choice(known)
    node = hardware.default_node(gpu).gpus
    whole = [count for count in COUNTS if count < node or count % node == 0]
    return {"gpus": [f"{draw.choice(COUNTS if draw.random() < REFUSED else whole)}x{gpu}"]}


def _own_cluster(draw: Random) -> Fields:
    """A pool of GPUs, servers and links that no catalog has, as a request in a plan file holds it."""
    made: Fields = copy.deepcopy(_cluster())
    pool = made["pools"][0]
    gpus = draw.choice((1, 2, 4, 8))
    pool["gpus"] = gpus * draw.choice((1, 2))
    pool["device"] |= {
        "memory_bytes": draw.choice((8e9, 24e9, 100e9)), "memory_bytes_per_s": draw.choice((2e11, 2e12)),
        "sms": draw.choice((16, 64, 132)), "flops_per_s": {"bf16": draw.choice((1e13, 5e14)), "fp16": 1e14},
    }  # fmt: skip
    inside, outside = pool["node"]["links"]
    inside |= {"reach": gpus, "bytes_per_s": draw.choice((5e9, 5e10))}
    outside |= {"bytes_per_s": draw.choice((1e9, 2e10))}
    pool["node"] |= {"gpus": gpus, "links": [outside] if gpus == 1 else [inside, outside]}
    return made


@cache
def _cluster() -> Fields:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cluster.toml").write_text(CLUSTER, encoding="utf-8")
        asked = read_request("plan", {"model": "gpt-2", "cluster": f"{folder}/cluster.toml"})
        made: Fields = World.of(asked).resolved.plain("plan")["cluster"]
        return made


def _work(draw: Random, fields: Fields) -> Fields:
    """The work and who runs it; what no runtime could do is drawn again, mostly."""
    spec = models.model(read_request("plan", {"model": fields["model"]}).model)
    have = ["bf16", "fp16"] if "cluster" in fields else _precisions(fields["gpus"][0])
    as_it_comes = draw.random() < REFUSED
    for _ in range(60):
        work: Fields = {
            "batch": draw.choice(BATCHES), "seq": draw.choice(SEQUENCES), "task": draw.choice((*TASKS, "pretrain")),
            "precision": draw.choice(PRECISIONS if as_it_comes else have), "optimizer": draw.choice(OPTIMIZERS),
            "runtime": draw.choice(runtimes.runtime_names()),
        }  # fmt: skip
        told = {name: work[name] for name in ("seq", "task", "precision", "optimizer")}
        done = Workload(global_batch=work["batch"], **told)
        if as_it_comes or not unable(runtimes.runtime(work["runtime"]), spec, done):
            break
    rare: Fields = {
        "lora_rank": draw.choice((1, 8, 64)), "lora_targets": draw.choice(LORA_TARGETS), "mtp": 1, "strict": True,
        "imbalance": draw.choice((1.1, 2, 8)), "headroom": draw.choice((0, 0.02, 0.3)), "rank": "expected",
        "tokens": draw.choice((1e6, 3e9, "2T")), "seq": "1k", "optimizer": None, "runtime": None,
    }  # fmt: skip
    work |= {name: value for name, value in rare.items() if draw.random() < 0.04}
    return {name: value for name, value in work.items() if value is not None}


@cache
def _precisions(pool: str) -> list[str]:
    """Those that the GPUs have, the most usual one oftener."""
    have = [name for name in PRECISIONS if name in hardware.device(pool.rpartition("x")[2]).flops_per_s]
    return [*have, *have[:1] * 2]


def _goal(draw: Random, kind: str) -> Fields:
    if kind == "rent":
        money: Fields = {"market": draw.choice(("on-demand", "reserved", "spot", "any"))}
        goal: Fields = (
            {} if draw.random() < 0.7 else {"objective": draw.choice(("cheapest", "pareto", "dollars-per-token"))}
        )
        return {"tokens": draw.choice((1e8, 1e9)), "money": money, **goal}
    if draw.random() < 0.7 or kind == "estimate":
        return {}
    name = draw.choice(tuple(OBJECTIVES))
    money = draw.choice(
        ({"usd_per_gpu_h": 2.0}, {"market": "spot"}, {"usd_per_kwh": 0.1, "usd_per_gpu": 3e4}, {"discount": 0.3},
         {"usd_per_gpu_h": 0.5, "goodput": "off"}, {"usd_per_gpu_h": 3, "g_co2_per_kwh": 400, "pue": 1.2})
    )  # fmt: skip
    goal = {"tokens": draw.choice((1e6, 1e9, 1e11)), "money": money}
    caps: Fields = {"budget": draw.choice((10, 1000, "1M")), "deadline": draw.choice(("2h", "3d", "100d"))}
    return goal | ({name: caps[name]} if name in caps else {"objective": name})


def _restrictions(draw: Random) -> Fields:
    found: dict[str, list[str]] = {}
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3))):
        way = draw.choice(("fix", "fix", "flag", "flag", "forbid", "maximum", "maximum", "minimum", "rules", "rules"))
        name = draw.choice(DEGREES)
        value = draw.choice({"maximum": (1, 2, 3), "forbid": (1, 2, 2, 3)}.get(way, (1, 1, 1, 2)))
        if way == "flag":
            found.setdefault("fix", []).append(draw.choice(FLAGGED))
        elif way == "rules":
            found.setdefault("rules", []).append(f"{draw.choice(('refuse', 'require'))} {draw.choice(CONDITIONS)}")
        else:
            found.setdefault(way, []).append(f"{name}={value}")
    return dict(found)


def _strategy(draw: Random, fields: Fields) -> str:
    """A strategy of the job, or one a few changes away, or any."""
    try:
        asked = {name: value for name, value in fields.items() if FIELDS[name].on("estimate")}
        job = World.of(read_request("estimate", asked)).job
    except AstraError:
        return "tp2 dp4 mbs1 zero1"
    found = [strategy for strategy in (sampled(job, draw) for _ in range(6)) if strategy is not None]
    if not found:
        return f"dp{job.pool.gpus}"
    changed = mutated(job, found[0], draw) if draw.random() < 0.5 else None
    return str(changed or found[0]) if draw.random() < 0.95 else "tp3 pp2 dp1 mbs5 sp zero3 recompute=full:block:2"


def _damaged(draw: Random) -> Asked:
    kind = draw.choice(("plan", "plan", "plan", "estimate", "estimate", "fleet", "rent"))
    fields, verb = _fields(draw, kind), _verb(kind)
    way = draw.choice(("fields", "fields", "contradict", "words", "words"))
    if way == "words":
        words = command_line(verb, {name: value for name, value in fields.items() if not isinstance(value, dict)})
        for _ in range(draw.choice((1, 1, 2))):
            _damage_words(draw, words)
        return Asked("bad", verb, {}, "flags", tuple(words))
    if way == "contradict":
        fields |= _contradiction(draw)
    else:
        name = draw.choice((*fields, *FIELDS, "no_such_field"))
        fields[name] = draw.choice((*VALUES, *NUMBERS, *LETTERS))
    return Asked("bad", verb, fields, "keywords")


def _contradiction(draw: Random) -> Fields:
    name, value = draw.choice(DEGREES), draw.choice((2, 3, 5, 64))
    return draw.choice(
        (
            {"fix": [f"{name}={value}"], "forbid": [f"{name}={value}"]},
            {"minimum": [f"{name}={value + 1}"], "maximum": [f"{name}={value}"]},
            {"fix": [f"{name}={value}", f"{name}={value + 1}"]},
            {"rules": ["refuse tp >= 1"]},
            {"rules": [draw.choice(CONDITIONS)[: draw.randint(0, 9)] + draw.choice(LETTERS)]},
            {"gpus": ["8xH100"], "cluster": _own_cluster(draw)},
            {"gpus": [f"{draw.choice(NUMBERS)}x{draw.choice(('H100', 'H1000', '', 'x'))}"]},
            {"objective": "cheapest", "budget": 5, "deadline": "0h"},
            {"objective": "deadline"},
            {"node": draw.choice(hardware.names("nodes"))},
            {"batch": draw.choice(("4Mtok", "1tok", 7, "1.5k"))},
            {"strategy": f"{name}{value} {name}{value}"},
            {"money": {"usd_per_gpu_h": 1, "usd_per_kwh": 1}},
            {"money": {draw.choice(tuple(MONEY_FIELDS)): draw.choice(VALUES)}},
        )
    )


def _damage_words(draw: Random, words: list[str]) -> None:
    place = draw.randrange(len(words))
    way = draw.choice(("drop", "twice", "number", "letter", "swap", "flag"))
    if way == "drop":
        del words[place]
        words += [] if words else ["plan"]
    elif way == "twice":
        words.insert(place, words[place])
    elif way == "number":
        words[place] = draw.choice(NUMBERS)
    elif way == "letter":
        cut = draw.randrange(len(words[place]) + 1)
        words[place] = words[place][:cut] + draw.choice(LETTERS) + words[place][cut:]
    elif way == "swap":
        other = draw.randrange(len(words))
        words[place], words[other] = words[other], words[place]
    else:
        spelled = [field.spelled for field in FIELDS.values() if field.flag is not None]
        words.insert(place, draw.choice(spelled))


def command_line(verb: str, fields: Fields) -> list[str]:
    """The words of a request whose fields are all flags; rules are left to ``files``."""
    words = [verb, str(fields["model"])] if "model" in fields else [verb]
    money: Fields = fields.get("money", {})
    spelled = {
        FIELDS[name].spelled: value for name, value in fields.items() if name not in ("model", "money", "counts")
    }
    spelled |= {MONEY_FIELDS[name].spelled: value for name, value in money.items()}
    for flag, value in spelled.items():
        for each in value if isinstance(value, list) else [value]:
            words += [flag] if each is True else [flag, str(each)]
    return [*words, f"--{fields['counts']}"] if "counts" in fields else words
