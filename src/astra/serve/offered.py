"""What may be chosen by name, for a form."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from astra.api import describe_model
from astra.catalog.hardware import default_node, devices, node_types
from astra.catalog.models import models
from astra.catalog.runtimes import runtimes
from astra.errors import InputError
from astra.export import EXPORTERS
from astra.money.objectives import OBJECTIVES
from astra.spec.cluster import Device
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS, RANKS


@lru_cache(maxsize=1)
def offered() -> dict[str, Any]:
    """Models, GPUs, nodes with their links, runtimes, targets, and the words of every field that has a few."""
    words = {name: list(field.kind.words) for name, field in FIELDS.items() if field.kind.words}
    return {
        "schema": "astra.shelf/1",
        "models": [
            {"name": model.name, **describe_model(model).parameters, "max_seq": model.max_seq} for model in models()
        ],
        "gpus": msgspec.to_builtins(devices()),
        "usual": {gpu.name: _usual(gpu) for gpu in devices()},
        "nodes": msgspec.to_builtins(node_types()),
        "runtimes": [{"name": runtime.name, "title": runtime.title} for runtime in runtimes()],
        "objectives": [{"name": one.name, "sentence": one.sentence} for one in OBJECTIVES.values()],
        "targets": [{"name": one.name, "title": one.title} for one in EXPORTERS.values()],
        "precisions": words["precision"],
        "words": {**words, "rank": list(RANKS), "market": list(MONEY_FIELDS["market"].kind.words)},
    }


def _usual(gpu: Device) -> str:
    """The node type that is meant when only the GPU is named."""
    try:
        return default_node(gpu).name
    except InputError:
        return ""
