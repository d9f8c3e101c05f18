"""The GPUs of a published run as a cluster: one pool, or several where the table joins GPU types with a plus."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from astra.errors import InputError
from astra.spec.cluster import Cluster, Pool
from astra.validate.cells import Missing, Row, count, degree, needed, number, words_of
from astra.validate.pools import pool_of

# "12xV100-SXM2-16GB (3x p3.8xlarge)": how many of which, and the servers they are in.
_PART: Final = re.compile(r"(\d+)\s*x\s*([^\s(]+)\s*(\([^)]*\))?")


def cluster_of(row: Row, filled: list[str]) -> Cluster:
    """The cluster; equal ones are one object."""
    gpu, memory = words_of(row, "gpu_type"), number(row, "gpu_mem_gb")
    if not gpu:
        raise Missing("incomplete: GPU type is missing")
    gpus, per_node = _gpus(row, filled), count(row, "gpus_per_node")
    near, far = words_of(row, "intra_node_link"), words_of(row, "inter_node_link")
    cluster = _cluster(gpu, memory, gpus, per_node, near, far)
    node = cluster.pools[0].node
    if per_node is None and gpus > 1:
        filled.append(f"GPUs per node not stated: as {node.name}")
    if not far and gpus > node.gpus:
        filled.append(f"network between nodes not stated: as {node.name}")
    return cluster


def _gpus(row: Row, filled: list[str]) -> int:
    """How many GPUs; where a row gives every degree instead, their product."""
    degrees = [degree(row, name) for name in ("tp", "pp", "dp")]
    if count(row, "num_gpus") is None and None not in degrees:
        filled.append("number of GPUs not stated: the product of the degrees")
        return math.prod(size for size in (*degrees, degree(row, "cp")) if size)
    return needed(row, "num_gpus", "number of GPUs")


@lru_cache(maxsize=1024)
def _cluster(text: str, memory: float | None, gpus: int, per_node: int | None, near: str, far: str) -> Cluster:
    """One pool, or one for each part of a text with a plus; links are told in the same order, with a slash between."""
    if "+" not in text:
        return Cluster(pools=(_known(text, memory, gpus, per_node, near, far),))
    parts = [part for each in text.split("+") if (part := _PART.search(each))]
    inside, outside = _each(near, len(parts)), _each(far, len(parts))
    pools = [
        _known(part.group(2), memory, int(part.group(1)), per_node, inside[place], outside[place])
        for place, part in enumerate(parts)
    ]
    if len(parts) != text.count("+") + 1 or sum(pool.gpus for pool in pools) != gpus:
        raise Missing(f"GPUs do not add up: {text}")
    return Cluster(pools=tuple(replace(pool, name=pool.device.name) for pool in pools))


def _each(text: str, parts: int) -> list[str]:
    links = [part.strip() for part in re.split(r"\s/\s", text)]
    return links if len(links) == parts else [text] * parts


def _known(gpu: str, memory: float | None, gpus: int, per_node: int | None, near: str, far: str) -> Pool:
    try:
        return pool_of(gpu, memory, gpus, per_node, near, far)
    except InputError as error:
        if error.where == "gpu":
            raise Missing(f"unsupported hardware: {gpu}") from None
        raise
