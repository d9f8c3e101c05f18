"""Public measurements of collectives: readers of the sweeps, and what was published as tables or plots."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from astra.errors import InputError
from astra.network.collectives import Tier
from astra.network.curves import LAST_KNOT_BYTES, Gpu, wire_factor
from astra.provenance import Floats
from astra.units import MIB, US

SOURCES: Final = (
    "one server: ai-dynamo/aiconfigurator @095f58a (2026-08-21, Apache-2.0), NCCL 2.27-2.29 sweeps",
    "beyond 512 MiB: stas00/ml-engineering @744d01e, NVIDIA/dgxc-benchmarking @841f546, "
    "aws-samples/awsome-distributed-training @7217859, VIA-Research/vTrain @f8dda84 (also V100)",
    "several servers: the systems named in tools.collectives_data",
    "latencies and sends: microsoft/vidur @7d47513; algorithms: NVIDIA/nccl @5067397 src/graph/tuning.cc",
    "meshes: MI300X all-reduce in stas00/ml-engineering @744d01e; SMs taken: calculon, deepseek-ai/DeepEP @0297fc8",
)
GPUS: Final = {
    "a100_sxm": Gpu("a100", "nvswitch", "ampere", "ampere", 300e9),
    "h100_sxm": Gpu("h100", "nvswitch", "hopper", "hopper", 450e9),
    "h200_sxm": Gpu("h200", "nvswitch", "hopper", "hopper", 450e9),
    "b200_sxm": Gpu("b200", "nvswitch", "blackwell", "blackwell", 900e9),
    "b300_sxm": Gpu("b300", "nvswitch", "blackwell", "blackwell", 900e9),
    "gb200": Gpu("gb200", "nvswitch", "blackwell", "blackwell", 900e9),
    "gb300": Gpu("gb300", "nvswitch", "blackwell", "blackwell", 900e9),
    "l40s": Gpu("l40s", "pcie", "pcie", "ada", 31e9),
    "rtx_pro_6000_server": Gpu("rtxpro6000", "pcie", "pcie", "blackwell", 63e9),
    "v100": Gpu("v100", "nvlink-mesh", "volta", "volta", 150e9),
}
RELATIVES: Final = {"h800": "h100", "h20": "h200", "gh200": "h100", "a800": "a100"}
# The L40S host's 4- and 8-GPU rows are 10 times too slow (2 GB/s): a misconfigured machine, not a fabric.
BROKEN: Final = frozenset({("l40s", 4), ("l40s", 8)})
# Group sizes one GPU lacks, taken over from another on the same fabric.
BORROWED: Final = {("gb200", 8): "b200", ("gb300", 8): "b300", ("l40s", 4): "rtxpro6000", ("l40s", 8): "rtxpro6000"}
# A link's latency is a small NCCL send between neighbours (microsoft/vidur, H100); TCP is assumed.
LATENCY_S: Final = {"infiniband": 17e-6, "roce": 17e-6, "efa": 17e-6, "tcp": 50e-6}
NEAR_LATENCY_S: Final = 5e-6

# system | network | GB/s per GPU in the server and on the network | GPUs per server | fitted | op | servers | points
# Points are MiB:GB/s of bus bandwidth, or "form alpha B gamma" for t_us = alpha + x/(1000 B) + gamma sqrt(x)/1000, B in
# GB/s, fitted to a published plot. What is not fitted is only predicted: TCP offloads, runs whose size is not stated (a
# large one is assumed), and a cluster whose authors call it congested.
PUBLISHED: Final = """
DGX H100 NDR, NVIDIA GTC24 S62129|infiniband|450|50|8|y|all_reduce|4|form 107 392 12.7
DGX H100 NDR, NVIDIA GTC24 S62129|infiniband|450|50|8|y|all_reduce|8|form 178 409 16
DGX H100 NDR, NVIDIA GTC24 S62129|infiniband|450|50|8|y|all_reduce|16|form 235 413 17
DGX H100 NDR, NVIDIA GTC24 S62129|infiniband|450|50|8|y|all_reduce|64|form 336 412 21
DGX H100 NDR, NVIDIA GTC24 S62129|infiniband|450|50|8|y|all_reduce|256|form 511 399 21
DGX H100 NDR, NVIDIA GTC24 S62129|infiniband|450|50|8|y|all_reduce|1024|form 615 415 31
Meta H100, arXiv 2411.13055|roce|450|50|8|y|all_reduce|4|form 107 378 15
Meta H100, arXiv 2411.13055|roce|450|50|8|y|all_reduce|8|form 159 390 20
Meta H100, arXiv 2411.13055|roce|450|50|8|y|all_reduce|512|form 452 396 38
GCP a4 B200, dstackai/dstack|roce|900|50|8|y|all_reduce|2|form 101 738 9
AWS p6-b200, stas00/ml-engineering|efa|900|50|8|y|all_reduce|4|form 373 408 14
DGX-2 V100, nccl-tests#78|infiniband|150|6.25|16|y|all_reduce|16|32:45.7 64:50.3 128:62.7 256:67.3 512:66.3 1024:71.6
Alibaba rings, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|2|16:124 64:194 256:330 1024:357 4096:369
Alibaba rings, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|4|16:93 64:206 256:299 1024:361 4096:369
Alibaba rings, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|16|16:19.4 64:81 256:221 1024:295 4096:369
Alibaba rings, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|32|16:17.1 64:41 256:150 1024:287 4096:358
Alibaba rings, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|128|16:3.4 64:17.1 256:40 1024:122 4096:287
GCP a4x-max GB300, Google docs 2026-04|roce|900|100|4|y|all_gather|2|1:10.7 4:51 16:75 64:230 256:317 1024:351 4096:359
GCP a3-mega H100, dstackai/dstack|tcp|450|25|8|n|all_gather|2|form 121 186 0
GCP a3-high H100, dstackai/dstack|tcp|450|12.5|8|n|all_gather|2|form 590 55 0
GCP a3-mega H100, lessizzmore log|tcp|450|25|8|n|all_reduce|2|1:9.7 4:21.6 16:32 64:100 256:213 1024:298 4096:331
Alibaba all-to-all, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_to_all|2|16:47 64:65 256:72 1024:74 4096:73
Alibaba all-to-all, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_to_all|4|16:42 64:52 256:58 1024:59 4096:60
Alibaba all-to-all, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_to_all|16|16:32 64:34 256:38 1024:44 4096:46
DGX A100 and H100, NVIDIA GTC25 S72583|infiniband|300|25|8|n|all_to_all|4|4096:24
DGX A100 and H100, NVIDIA GTC25 S72583|infiniband|450|50|8|n|all_to_all|4|4096:48
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_reduce|4|256:160
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_reduce|16|256:84.7
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_gather|4|256:119
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_gather|16|256:55
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|reduce_scatter|32|256:27.9
"""
# Systems whose rows are in the log file, by the start of its gpu column; sizes from 1 MiB up are used.
LOGGED: Final = {
    "A100-SXM4-80GB (AWS p4de": "AWS p4de A100, aws-samples|efa|300|6.25|8|y",
    "H100-SXM5-80GB (AWS p5, EFA": "AWS p5 H100, aws-samples|efa|450|50|8|y",
    "H200-SXM (AWS p5en EFA) ring": "AWS p5en H200, stas00/ml-engineering|efa|450|50|8|y",
    "H200-SXM (8 IB NICs": "H200 InfiniBand, nccl-tests#283|infiniband|450|50|8|n",
    "A100-SXM4-40GB (4x HDR": "A100 4xHDR, nccl-tests#119|infiniband|300|12.5|8|y",
    "H100 (1 GPU per node": "H100 one GPU per server, nccl-tests#232|infiniband|450|50|1|y",
}
_LARGE: Final = {"A100-SXM": "a100", "H100-SXM5": "h100", "H200-SXM": "h200", "B200-SXM": "b200"}
_OP_NAMES: Final = {"alltoall": "all_to_all"}


class Point(NamedTuple):
    """One measured collective inside a server."""

    gpu: str
    op: str
    ranks: int
    nbytes: float
    seconds: float


class Run(NamedTuple):
    """One op on one number of servers of a system."""

    system: str
    tiers: tuple[Tier, Tier]
    fitted: bool
    op: str
    ranks: int
    nbytes: Floats
    seconds: Floats


def _rows(path: str) -> list[dict[str, str]]:
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))
    except OSError as error:
        raise InputError(path, None, want="a CSV file that can be read", fix=f"{error.strerror}.") from None


def read_points(sweeps: str, logs: str) -> list[Point]:
    """Sweeps inside one server; from the logs, larger sizes of the same GPUs and the V100."""
    points = []
    for row in _rows(sweeps):
        if row["system"] not in GPUS:
            raise InputError(f"{sweeps}: system", row["system"], want=f"one of {', '.join(GPUS)}")
        gpu, ranks = GPUS[row["system"]].name, int(row["ngpu"])
        if (gpu, ranks) not in BROKEN:
            op = _OP_NAMES.get(row["op"], row["op"])
            points.append(Point(gpu, op, ranks, float(row["bytes"]), float(row["us"]) * US))
    for row in _rows(logs):
        gpu = next((name for start, name in _LARGE.items() if row["gpu"].startswith(start)), "")
        odd = any(word in row["gpu"] for word in ("NVLS off", "ring", "HF cluster"))
        if not row["bytes"] or row["nodes"] != "1" or odd:
            continue
        nbytes, volta = float(row["bytes"]), row["gpu"].startswith("V100")
        if volta or (gpu and nbytes > LAST_KNOT_BYTES):
            op, ranks = _OP_NAMES.get(row["collective"], row["collective"]), int(row["gpus"])
            seconds = nbytes * float(wire_factor(op, ranks)) / (float(row["busbw"]) * 1e9)
            points.append(Point("v100" if volta else gpu, op, ranks, nbytes, seconds))
    return points


def _run(head: str, op: str, servers: int, nbytes: Floats, busbw: Floats | None, form: Sequence[float] = ()) -> Run:
    name, kind, near, nic, each, fitted = head.split("|")
    ranks = servers * int(each)
    x = nbytes * wire_factor(op, ranks)
    if busbw is None:
        seconds = (form[0] + x / (1e3 * form[1]) + form[2] * np.sqrt(x) / 1e3) * US
    else:
        seconds = x / (busbw * 1e9)
    tiers = (
        Tier(int(each), "nvswitch", float(near) * 1e9, NEAR_LATENCY_S),
        Tier(np.inf, kind, float(nic) * 1e9, LATENCY_S[kind]),
    )
    return Run(name, tiers, fitted == "y", op, ranks, nbytes, seconds)


def read_runs(logs: str) -> list[Run]:
    """Runs over several servers: those published as tables or plots, and those in the logs."""
    runs = []
    for line in PUBLISHED.strip().splitlines():
        head, op, servers, text = line.rsplit("|", 3)
        if text.startswith("form"):
            form = [float(word) for word in text.split()[1:]]
            sizes = np.array([4.0**step * MIB for step in range(7)])
            runs.append(_run(head, op, int(servers), sizes, None, form))
        else:
            pairs = np.array([[float(value) for value in pair.split(":")] for pair in text.split()])
            runs.append(_run(head, op, int(servers), pairs[:, 0] * MIB, pairs[:, 1]))
    grouped: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in _rows(logs):
        head = next((head for start, head in LOGGED.items() if row["gpu"].startswith(start)), "")
        if head and row["bytes"] and float(row["bytes"]) >= MIB:
            key = (head, _OP_NAMES.get(row["collective"], row["collective"]), int(row["nodes"]))
            grouped[key].append((float(row["bytes"]), float(row["busbw"])))
    for (head, op, count), found in grouped.items():
        pairs = np.array(sorted(found))
        runs.append(_run(head, op, count, pairs[:, 0], pairs[:, 1]))
    return runs
