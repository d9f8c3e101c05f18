"""Valid files of every kind that Astra reads, ways to damage them, and the commands that read them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from astra.export import EXPORTERS
from tests.catalog.test_huggingface import DEEPSEEK, GLM4_MOE, GPT_OSS, LLAMA
from tests.drill.test_user_files import CLUSTER, MODEL, RULES
from tests.export.test_imports import AUTO, SCRIPT, TOML
from tests.validate.test_runs import ROW


class OddFile(NamedTuple):
    """A valid file and the commands that read it; ``FILE`` and ``FOLDER`` stand for places."""

    name: str
    text: str
    commands: tuple[tuple[str, ...], ...]


ESTIMATE = ("estimate", "llama-2-7b", "--batch", "64", "--seq", "2048", "--strategy", "tp2 dp4 mbs1 zero1")
BETWEEN = """
[[pool]]
gpu = "A100"
count = 8
name = "east"
zone = "z1"
usd_per_gpu_h = 1.5
[[pool]]
node = "dgx-h100"
count = 8
name = "west"
zone = "z2"
[between]
kind = "tcp"
bytes_per_s = 1e9
latency_s = 1e-3
[[link]]
zones = ["z1", "z2"]
kind = "tcp"
bytes_per_s = 2e9
latency_s = 1e-3
"""
PRICES = """\
provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes
AWS,p4d.24xlarge,A100-SXM4-40GB,8,us-east-1,on-demand,2.7447,USD,2026-01-09,me,
"My, cloud",x,H100,8,,spot,2.0554,USD,2026-02-22,me,"two ""quoted"" words"
"""
SKYPILOT = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p4d.24xlarge,96.0,1152.0,A100,8.0,"{'Gpus': [{'Name': 'A100'}]}",32.77,9.83,us-east-1,us-east-1a
p5.48xlarge,192.0,2048.0,H100,8.0,,98.32,,us-east-1,us-east-1b
m5.large,2,8,,,,0.096,0.03,us-east-1,us-east-1a
,,,H100,8.0,,20.0,,us-central1,us-central1-a
"""
MORE_RULES = """\
inside: tp > gpus_per_node and not (pp == 1 or (dp // 2 * 3 - 1 >= 7))  # a sentence
recompute in ("full", "selective") and flash_attention
layers % (pp * vp) != 0 or 1 < mbs <= 8
"""
DEEPSPEED = """\
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
 "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
 "zero_optimization": {"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "cpu"}},
 "activation_checkpointing": {"partition_activations": true}, "tensor_parallel": {"autotp_size": 2}}
"""
TITAN_PY = """\
from torchtitan import llama3_8b
config = llama3_8b()
config.training.local_batch_size = 2
config.training.seq_len = 8192
config.parallelism.tensor_parallel_degree = 2
config.parallelism.pipeline_parallel_degree = 2
config.parallelism.data_parallel_shard_degree = 4
config.parallelism.pipeline_parallel_schedule = "Interleaved1F1B"
config.parallelism.module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["layers.1", "output"]]
config.activation_checkpoint = FullAC.Config()
"""
EXPERTS = SCRIPT.replace(
    "--vocab-size 32000",
    "--vocab-size 32000 --num-experts 8 --moe-layer-freq ([0]*3+[1]*29) --window-size 127,0 --norm-epsilon 1e-5"
    " --rotary-base 500000 --moe-router-topk 2 --pipeline-model-parallel-layout 'Et*3|(tt|)*14t*1L'",
)


def _runs() -> str:
    page = io.StringIO()
    writer = csv.DictWriter(page, list(ROW))
    writer.writeheader()
    writer.writerows([ROW, ROW | {"id": "mine-0002", "tp": "4", "dp": "2"}])
    return page.getvalue()


def plans() -> dict[str, str]:
    """Plan files of one pool and of several."""
    from astra import api

    one = api.plan("llama-2-7b", gpus="16xH100", batch=64, seq=2048, top=2)
    several = api.plan("llama-2-7b", gpus=["8xH100", "8xA100"], batch=64, seq=2048, top=40)
    return {"one": one.to_json(), "several": several.to_json()}


def _profile() -> str:
    rows = [
        {"op": "collective", "collective": "all_reduce", "ranks": 8, "stride": 1, "bytes": 2.0**n, "seconds": 1e-5}
        for n in range(20, 24)
    ]
    return json.dumps({"gpu": "H100", "collectives": {"gpu": "H100-SXM5-80GB", "backend": "nccl"}, "rows": rows})


PROFILED = """\
[[pool]]
node = "mine"
count = 8
[[node]]
name = "mine"
like = "dgx-h100"
profile = "profile.json"
"""
_EXPORT = tuple(("export", "FILE", "--to", name, "--out", "FOLDER", "--nearest") for name in EXPORTERS)
_IMPORT = (
    ("import", "FILE"),
    ("import", "FILE", "--gpus", "32"),
    ("estimate", "llama-2-7b", "--from", "FILE", "--gpus", "32xH100"),
)
_CLUSTER = ((*ESTIMATE, "--cluster", "FILE"),)
_MODEL = (("model", "FILE"), ("estimate", "FILE", *ESTIMATE[2:], "--gpus", "8xH100"))
FILES: tuple[OddFile, ...] = (
    OddFile("cluster.toml", CLUSTER, _CLUSTER),
    OddFile("between.toml", BETWEEN, ((*ESTIMATE[:-1], f"east: {ESTIMATE[-1]}", "--cluster", "FILE"),)),
    OddFile("model.toml", MODEL, _MODEL),
    *(
        OddFile(f"{config['model_type']}.json", json.dumps(config, indent=1), _MODEL)
        for config in (LLAMA, DEEPSEEK, GLM4_MOE, GPT_OSS)
    ),
    OddFile("site.rules", RULES + MORE_RULES, ((*ESTIMATE, "--gpus", "8xH100", "--rules", "FILE"),)),
    OddFile("prices.csv", PRICES, (("prices", "check", "FILE"), ("prices", "import", "FILE"))),
    OddFile("aws.csv", SKYPILOT, (("prices", "import", "FILE"),)),
    OddFile("plain.csv", "gpu,usd_per_gpu_h\nH100,2.5\nA100,1.2\n", (("prices", "import", "FILE"),)),
    OddFile("train.sh", SCRIPT, _IMPORT),
    OddFile("experts.sh", EXPERTS, _IMPORT),
    OddFile("ds.json", DEEPSPEED, _IMPORT),
    OddFile("auto.json", AUTO, _IMPORT),
    OddFile("titan.toml", TOML, _IMPORT),
    OddFile("titan.py", TITAN_PY, _IMPORT),
    OddFile("runs.csv", _runs(), (("validate", "FILE", "-q"),)),
    OddFile("profile.json", _profile(), ((*ESTIMATE, "--cluster", "BESIDE"),)),
)

NUMBERS = (
    "0", "-1", "1", "3", "9" * 9, "9" * 12, "9" * 19, "9" * 25, "9" * 400, "9" * 5000, "1e308", "1e999", "-1e-400",
    "nan", "inf", "1_000", "0x7f", "²", "٣", "0.5", "true", '"8"', "[8]", "{}", "null", "1.5.2", "08",
)  # fmt: skip
LETTERS = (
    "\x00", "\x1b[31m", "\ufeff", "\u2028", "\x85", "é", "\U0001d7e0", "\r", "\n", "\t", "\\", '"', "'", "`", "$(",
    "${", "#", "=", ",", ";", "[", "{", "(", "|", "\x7f", "\u202e", "\ud800", "²", "%", "\\ud800", "\\u0000",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, 1e308, -1e308, "", "x", "²", "H100", "9" * 40,
    [], {}, [[]], [1, "a"], {"a": {}}, [0] * 2000, "a" * 5000, "\n", "\x1b[2J",
)  # fmt: skip
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?")


def damaged(text: str, name: str, draw: Random) -> bytes:
    """A text with one to three faults; JSON is damaged in its values as often as in its letters."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        ways = (*_WAYS, *((_value,) * len(_WAYS) if name.endswith(".json") else ()))
        text = draw.choice(ways)(text, draw)
    return text.encode("utf-8", "surrogatepass") + (b"\xff" if draw.random() < 0.02 else b"")


def _span(text: str, draw: Random, most: int = 200) -> tuple[int, int]:
    start = draw.randrange(len(text) + 1)
    return start, min(len(text), start + draw.randrange(1, most))


def _truncate(text: str, draw: Random) -> str:
    return text[: draw.randrange(len(text) + 1)]


def _duplicate(text: str, draw: Random) -> str:
    start, end = _span(text, draw)
    return text[:end] + text[start:end] * draw.choice((1, 1, 2, 50, 2000)) + text[end:]


def _delete(text: str, draw: Random) -> str:
    start, end = _span(text, draw, 60)
    return text[:start] + text[end:]


def _nest(text: str, draw: Random) -> str:
    start, end = _span(text, draw, 30)
    opening, closing = draw.choice((("[", "]"), ("{", "}"), ("(", ")"), ("${a:-", "}"), ("[[", "]]"), ("a.", "")))
    depth = draw.choice((1, 2, 10, 70, 1500, 20_000))
    return text[:start] + opening * depth + text[start:end] + closing * depth + text[end:]


def _number(text: str, draw: Random) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    match = draw.choice(found)
    return text[: match.start()] + draw.choice(NUMBERS) + text[match.end() :]


def _letter(text: str, draw: Random) -> str:
    start, _ = _span(text, draw)
    return text[:start] + draw.choice(LETTERS) * draw.choice((1, 1, 1, 300)) + text[start:]


def _lines(text: str, draw: Random) -> str:
    lines = text.split("\n")
    draw.shuffle(lines)
    return "\n".join(lines[: draw.randrange(1, len(lines) + 1)])


def _cell(text: str, draw: Random) -> str:
    """One word for another of the same file."""
    words = list(re.finditer(r"[^\s,=:]+", text))
    if len(words) < 2:
        return text
    one, other = draw.choice(words), draw.choice(words)
    return text[: one.start()] + other.group() + text[one.end() :]


def _everywhere(text: str, draw: Random) -> str:
    """One word for another wherever it stands, so that what is said twice still agrees."""
    words = re.findall(r"[A-Za-z_]+[0-9]+|[0-9]+|[A-Za-z_.-]+", text)
    if not words:
        return text
    old = draw.choice(words)
    stem = old.rstrip("0123456789")
    new = draw.choice((draw.choice(words), stem + draw.choice(NUMBERS), stem + str(draw.randrange(70))))
    return text.replace(old, new)


def _value(text: str, draw: Random) -> str:
    """One value of a JSON document for another, or away."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _letter(text, draw)
    sharding: Any = document
    while isinstance(sharding, dict | list) and sharding:
        key: Any = draw.choice(list(sharding) if isinstance(sharding, dict) else range(len(sharding)))
        inner = sharding[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.15:
            if draw.random() < 0.2 and isinstance(sharding, dict):
                del sharding[key]
            else:
                sharding[key] = draw.choice(VALUES)
            break
        sharding = inner
    return json.dumps(document)


_WAYS: tuple[Callable[[str, Random], str], ...] = (
    _truncate, _duplicate, _delete, _nest, _number, _number, _number, _letter, _lines, _cell, _everywhere,
)  # fmt: skip


def commands(file: OddFile, folder: Path) -> list[list[str]]:
    """The commands with their places filled in."""
    path = folder / file.name
    beside = folder / "beside.toml"
    if file.name == "profile.json":
        beside.write_text(PROFILED, encoding="utf-8")
    places = {"FILE": str(path), "BESIDE": str(beside), "FOLDER": str(folder / "out")}
    return [[places.get(word, word) for word in command] for command in file.commands]


def with_plans() -> tuple[OddFile, ...]:
    """Every kind of file, plans among them."""
    made = plans()
    return (*FILES, *(OddFile(f"{name}.json", text, _EXPORT) for name, text in made.items()))
