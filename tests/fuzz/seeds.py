"""Texts that the targets read, of every kind that they tell apart; fuzzing starts from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from astra.catalog import models
from astra.rules.table import RULES
from tests.catalog.test_huggingface import BUILT, GPT_OSS
from tests.export.test_corpus import CORPUS
from tests.files.odd import FILES

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "golden"
MOST_BYTES: Final = 24_000  # longer inputs find the same faults later
STUDY: Final = """\
title = "two models"
models = ["llama-2-7b", "llama-3-8b"]
fleets = ["8xH100", ["8xH100", "8xA100-80"]]
goals = ["fastest", "cheapest"]
[workloads]
short = { batch = 64, seq = 2048 }
long = { batch = 8, seq = "16k" }
[prices]
list = {}
spot = { market = "spot" }
[request]
tokens = "10B"
"""
JOBS: Final = """\
goal = "completion"
[pools]
h100 = "32xH100"
a100 = { gpus = "16xA100-80", usd_per_gpu_h = 1.1 }
[jobs.chat]
model = "llama-3-8b"
tokens = "30B"
deadline = "30d"
min_gpus = 8
pools = ["h100"]
[jobs.small]
model = "llama-2-7b"
tokens = "1B"
weight = 3
start = "2d"
[request]
batch = 64
"""
# Model types that no other test reads whole, as their files are.
OLDER: Final[tuple[dict[str, Any], ...]] = (
    {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128,
     "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True, "relative_attention_num_buckets": 32},
    {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
     "intermediate_size": 3072, "image_size": 224, "patch_size": 16, "id2label": {"0": "cat", "1": "dog"}},
    {"model_type": "bloom", "hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
    {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4, "vocab_size": 50432,
     "max_seq_len": 2048, "no_bias": True, "attn_config": {"alibi": True, "attn_type": "multihead_attention"}},
)  # fmt: skip
_ROTARY: Final = (
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1, "original_max_position_embeddings": 4096},
    {"rope_type": "linear", "factor": 4.0},
)  # fmt: skip

Seeds = Callable[[], tuple[str, ...]]


def texts(*some: str) -> Seeds:
    """These."""
    return lambda: some


def odd(*endings: str) -> Seeds:
    """Files of ``tests/files`` by how their names end."""
    return lambda: tuple(file.text for file in FILES if file.name.endswith(endings))


def corpus(*endings: str) -> Seeds:
    """Launch files of others by how their names end, and our own."""

    def seeds() -> tuple[str, ...]:
        written = [entry.text for entry in CORPUS if entry.file.endswith(endings)]
        own = [
            path.read_text(encoding="utf-8")
            for path in sorted(GOLDEN.glob("export/*/*"))
            if path.name.endswith(endings)
        ]
        return (*written, *odd(*endings)(), *own)

    return seeds


def golden(name: str) -> Seeds:
    """Files that exports are compared with."""
    return lambda: tuple(path.read_text(encoding="utf-8") for path in sorted((GOLDEN / "export").glob(f"*/{name}")))


def documented(page: str) -> Seeds:
    """The first file in TOML that a page of the documentation shows."""

    def seeds() -> tuple[str, ...]:
        shown = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
        return (shown[0],)

    return seeds


def both(*several: Seeds) -> Seeds:
    """All of several."""
    return lambda: tuple(seed for some in several for seed in some())


@cache
def plan_files() -> tuple[str, ...]:
    """Answers as each version wrote them, without blanks and with one plan each, so that they are read whole."""
    found = []
    for path in sorted((GOLDEN / "plans").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for name in ("plans", "front"):
            if name in record:
                record[name] = record[name][:1]
        found.append(json.dumps(record, separators=(",", ":")))
    return tuple(found)


@cache
def configs() -> tuple[str, ...]:
    """Hugging Face configs of every model type that is told apart, and of ways to stretch positions."""
    stretched = [GPT_OSS | {"rope_scaling": rotary, "max_position_embeddings": 131072} for rotary in _ROTARY]
    return tuple(json.dumps(config) for config in (*(row[1] for row in BUILT), *OLDER, *stretched))


@cache
def rules() -> tuple[str, ...]:
    """The conditions of all rules that Astra has."""
    return ("\n".join(f"refuse {rule.condition}  # {rule.sentence}" for rule in RULES),)


@cache
def catalog_models() -> tuple[str, ...]:
    """Every model of the catalog."""
    folder = Path(models.__file__).parent / "data" / "models"
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml")))
