"""Make ``efficiency/data/collectives.json`` from public sweeps, and print how well it predicts what it has not seen.

    python -m astra.calibrate.fit_collectives --aiconfigurator FILE.csv --nccl FILE.csv --out collectives.json

``--aiconfigurator`` has columns system, op, ngpu, bytes, us (ai-dynamo/aiconfigurator, nccl-tests in one server);
``--nccl`` has gpu, nodes, gpus, collective, bytes, busbw, latency_us, source (logs gathered from public repositories).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from astra.efficiency import collectives as model
from astra.efficiency.collectives import Curve, Fit, Gpu, Rules, Shape, Tier
from astra.errors import InputError
from astra.provenance import Floats
from astra.units import MIB, US

MADE: Final = "2026-11-15"
SOURCES: Final = (
    "one server: ai-dynamo/aiconfigurator @095f58a (2026-08-21, Apache-2.0), NCCL 2.27-2.29 sweeps",
    "beyond 512 MiB: stas00/ml-engineering @744d01e, NVIDIA/dgxc-benchmarking @841f546, "
    "aws-samples/awsome-distributed-training @7217859, VIA-Research/vTrain @f8dda84 (also V100)",
    "several servers: the systems listed in astra.calibrate.fit_collectives",
    "latencies: microsoft/vidur @7d47513; step counts: NVIDIA/nccl @5067397 src/graph/tuning.cc",
    "mesh: MI300X all-reduce in stas00/ml-engineering @744d01e; SMs taken: calculon, deepseek-ai/DeepEP @0297fc8",
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
# Group sizes one GPU lacks, taken over from another on the same fabric. The L40S host's own 4- and 8-GPU rows are 10
# times too slow (2 GB/s): a misconfigured machine, not a fabric.
BORROWED: Final = {("gb200", 8): "b200", ("gb300", 8): "b300", ("l40s", 4): "rtxpro6000", ("l40s", 8): "rtxpro6000"}
BROKEN: Final = {("l40s", 4), ("l40s", 8)}
LATENCY_S: Final = {"infiniband": 17e-6, "roce": 17e-6, "efa": 17e-6, "tcp": 50e-6}
NEAR_LATENCY_S: Final = 5e-6

# system | link kind | in-server and network GB/s per GPU | GPUs per server | fitted | op | servers | points
# Points are MiB:GB/s of bus bandwidth, or "form alpha_us GB/s gamma" for a published t = alpha + x/B + gamma sqrt(x).
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
AWS p6-b200, ml-engineering|efa|900|50|8|y|all_reduce|4|form 373 408 14
DGX-2 V100, nccl-tests#78|infiniband|150|6.25|16|y|all_reduce|16|32:45.7 64:50.3 128:62.7 256:67.3 512:66.3 1024:71.6
Alibaba ring table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|2|16:124 64:194 256:330 1024:357 4096:369
Alibaba ring table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|4|16:93 64:206 256:299 1024:361 4096:369
Alibaba ring table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|16|16:19.4 64:81 256:221 1024:295 4096:369
Alibaba ring table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|32|16:17.1 64:41 256:150 1024:287 4096:358
Alibaba ring table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_gather|128|16:3.4 64:17.1 256:40 1024:122 4096:287
GCP a4x-max GB300, Google docs 2026-04|roce|900|100|4|y|all_gather|2|1:10.7 4:51 16:75 64:230 256:317 1024:351 4096:359
GCP a3-mega H100, dstackai/dstack|tcp|450|25|8|y|all_gather|2|form 121 186 0
GCP a3-high H100, dstackai/dstack|tcp|450|12.5|8|y|all_gather|2|form 590 55 0
GCP a3-mega H100, create-a3mega log|tcp|450|25|8|y|all_reduce|2|1:9.7 4:21.6 16:32 64:100 256:213 1024:298 4096:331
Alibaba all-to-all table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_to_all|2|16:47 64:65 256:72 1024:74 4096:73
Alibaba all-to-all table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_to_all|4|16:42 64:52 256:58 1024:59 4096:60
Alibaba all-to-all table, aliyun/SimAI @cef83f9|roce|450|50|8|y|all_to_all|16|16:32 64:34 256:38 1024:44 4096:46
DGX A100 HDR, NVIDIA GTC25 S72583 (size assumed)|infiniband|300|25|8|n|all_to_all|4|4096:24
DGX H100 NDR, NVIDIA GTC25 S72583 (size assumed)|infiniband|450|50|8|n|all_to_all|4|4096:48
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_reduce|4|256:160
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_reduce|16|256:84.7
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_gather|4|256:119
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|all_gather|16|256:55
Hugging Face H100, ultrascale playbook|efa|450|50|8|n|reduce_scatter|32|256:27.9
"""
# Systems whose rows are in the --nccl file: start of its gpu column | then as above. At least 1 MiB is used.
LOGGED: Final = {
    "A100-SXM4-80GB (AWS p4de": "AWS p4de A100|efa|300|6.25|8|y",
    "H100-SXM5-80GB (AWS p5, EFA": "AWS p5 H100|efa|450|50|8|y",
    "H200-SXM (AWS p5en EFA) ring": "AWS p5en H200|efa|450|50|8|y",
    "H200-SXM (8 IB NICs": "H200 InfiniBand, nccl-tests#283|infiniband|450|50|8|y",
    "A100-SXM4-40GB (4x HDR": "A100 4xHDR, nccl-tests#119|infiniband|300|12.5|8|y",
    "H100 (1 GPU per node": "H100 one GPU per server, nccl-tests#232|infiniband|450|50|1|y",
}
TAILS: Final = {"A100-SXM": "a100", "H100-SXM5": "h100", "H200-SXM": "h200", "B200-SXM": "b200"}
OP_NAMES: Final = {"alltoall": "all_to_all"}
START_RULES: Final = Rules(
    ring_base_us=8.4,
    ring_step=0.7,
    ring_ramp=0.1,
    tree_step=1.8,
    tree_ramp=0.4,
    link_fraction={"infiniband": 0.93, "roce": 0.93, "efa": 0.93, "tcp": 0.8, "pcie": 0.39}
    | dict.fromkeys(("nvswitch", "rack", "nvlink-mesh", "xgmi"), 0.8),
    all_to_all_base_us=60.0,
    all_to_all_step=1.0,
    all_to_all_fraction=0.9,
    all_to_all_ramp=0.3,
    mesh_base_us=7.0,
    mesh_step_us=1.0,
    mesh_fraction=0.72,
    mesh_ramp=0.45,
    send_fraction={"nvswitch": 0.84, "rack": 0.84, "nvlink-mesh": 0.84, "xgmi": 0.75, "pcie": 0.6}
    | {"infiniband": 0.8, "roce": 0.8, "efa": 0.8, "tcp": 0.8},
    send_ramp_near=0.2,
    send_ramp_far=0.5,
    busy_sms={"node": 20.0, "cluster": 3.0},
    host_fraction=0.88,
    coherent_host_fraction=0.8,
)
FITTED: Final = (
    ("ring_step", "ring_ramp", "tree_step", "tree_ramp", "link_fraction.infiniband+roce", "link_fraction.efa"),
    ("all_to_all_base_us", "all_to_all_step", "all_to_all_fraction", "all_to_all_ramp"),
)


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
        raise InputError(path, None, want="a CSV file that can be read", fix=str(error)) from None


def read_points(aiconfigurator: str, nccl: str) -> list[Point]:
    """Sweeps inside one server, and larger sizes of the same GPUs from the log file."""
    points = []
    for row in _rows(aiconfigurator):
        gpu, ranks = GPUS[row["system"]].name, int(row["ngpu"])
        if (gpu, ranks) not in BROKEN:
            op = OP_NAMES.get(row["op"], row["op"])
            points.append(Point(gpu, op, ranks, float(row["bytes"]), float(row["us"]) * US))
    largest = max(point.nbytes for point in points)
    for row in _rows(nccl):
        gpu = next((g for start, g in TAILS.items() if row["gpu"].startswith(start)), "")
        odd = any(word in row["gpu"] for word in ("NVLS off", "ring", "HF cluster"))
        if not row["bytes"] or row["nodes"] != "1" or odd:
            continue
        volta = row["gpu"].startswith("V100")
        if volta or (gpu and float(row["bytes"]) > largest):
            op, ranks, nbytes = OP_NAMES.get(row["collective"], row["collective"]), int(row["gpus"]), float(row["bytes"])
            seconds = nbytes * float(model.wire_factor(op, ranks)) / (float(row["busbw"]) * 1e9)
            points.append(Point("v100" if volta else gpu, op, ranks, nbytes, seconds))
    return points


def _run(head: str, op: str, servers: int, nbytes: Floats, busbw: Floats | None, form: Sequence[float] = ()) -> Run:
    name, kind, near, nic, each, fitted = head.split("|")
    ranks = servers * int(each)
    x = nbytes * model.wire_factor(op, ranks)
    if form:
        seconds = (form[0] + x / (1e3 * form[1]) + form[2] * np.sqrt(x) / 1e3) * US
    else:
        seconds = x / (np.asarray(busbw) * 1e9)
    tiers = (
        Tier(int(each), "nvswitch", float(near) * 1e9, NEAR_LATENCY_S),
        Tier(np.inf, kind, float(nic) * 1e9, LATENCY_S[kind]),
    )
    return Run(name, tiers, fitted == "y", op, ranks, nbytes, seconds)


def read_runs(nccl: str) -> list[Run]:
    """Runs over several servers: those published as tables or plots, and those in the log file."""
    runs = []
    for line in PUBLISHED.strip().splitlines():
        head, op, servers, text = line.rsplit("|", 3)
        if text.startswith("form"):
            form = [float(word) for word in text.split()[1:]]
            runs.append(_run(head, op, int(servers), 4.0 ** np.arange(0, 7) * MIB, None, form))
        else:
            pairs = np.array([[float(v) for v in pair.split(":")] for pair in text.split()])
            runs.append(_run(head, op, int(servers), pairs[:, 0] * MIB, pairs[:, 1]))
    grouped: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for row in _rows(nccl):
        head = next((head for start, head in LOGGED.items() if row["gpu"].startswith(start)), "")
        if head and row["bytes"] and float(row["bytes"]) >= MIB:
            key = (head, OP_NAMES.get(row["collective"], row["collective"]), int(row["nodes"]))
            grouped[key].append((float(row["bytes"]), float(row["busbw"])))
    for (head, op, servers), pairs_found in grouped.items():
        pairs = np.array(sorted(pairs_found))
        runs.append(_run(head, op, servers, pairs[:, 0], pairs[:, 1]))
    return runs


def _form(x: Floats, seconds: Floats) -> tuple[float, float, float]:
    """A, seconds per byte and ramp that minimise the mean absolute relative error (reweighted least squares)."""
    columns = np.stack([np.ones_like(x), x, np.sqrt(x)], axis=1)
    keep = [0, 1, 2] if len(x) > 2 else [0, 1]
    while True:
        weight = 1 / seconds
        for _ in range(30):
            scaled = columns[:, keep] * weight[:, None]
            found = np.linalg.lstsq(scaled, seconds * weight, rcond=None)[0]
            off = np.abs(columns[:, keep] @ found / seconds - 1)
            weight = 1 / seconds / np.sqrt(np.maximum(off, 1e-3))
        if (found > 0).all() or keep == [1]:
            break
        keep.remove(next(c for c in (2, 0) if c in keep and (found[keep.index(c)] <= 0 or c == 2)))
    values = dict(zip(keep, found.tolist(), strict=True))
    fixed, per_byte = max(values.get(0, 0.0), 1e-7), values[1]
    return fixed, per_byte, values.get(2, 0.0) / (2 * np.sqrt(fixed * per_byte))


def fit_curves(points: Iterable[Point], *, borrow: bool = True) -> tuple[tuple[Curve, ...], tuple[Shape, ...]]:
    """Curves per (GPU, op, ranks) and the protocol corrections their generation shares."""
    groups: dict[tuple[str, str, int], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.gpu, point.op, point.ranks].append(point)
    metas = {gpu.name: gpu for gpu in GPUS.values()}
    swept = {
        key: np.array(sorted((p.nbytes, p.seconds) for p in found if p.nbytes <= 512 * MIB or metas[p.gpu].kind != "nvswitch"))
        for key, found in groups.items()
    }
    shapes: dict[tuple[str, str, int], Floats] = {}
    forms: dict[tuple[str, str, int], tuple[float, float, float]] = {}
    for _ in range(3):
        residuals: dict[tuple[str, str, int], list[Floats]] = defaultdict(list)
        for key, data in swept.items():
            gpu, op, ranks = key
            kin = (metas[gpu].generation, op, ranks)
            ratio = np.exp(_knot_weights(data[:, 0]) @ shapes.get(kin, np.zeros(model.KNOT_COUNT)))
            forms[key] = _form(data[:, 0] * model.wire_factor(op, ranks), data[:, 1] / ratio)
            left = np.log(data[:, 1] / _formed(forms[key], data[:, 0] * model.wire_factor(op, ranks)))
            residuals[kin].append(np.column_stack([left, _knot_weights(data[:, 0])]))
        shapes = {kin: _smooth(np.concatenate(found)) for kin, found in residuals.items() if kin[0] != "volta"}
    curves = [_curve(metas[key[0]], key, forms[key], swept[key], groups[key]) for key in swept]
    made = tuple(Shape(*kin, tuple(round(float(v), 3) for v in values)) for kin, values in sorted(shapes.items()))
    return tuple(sorted([*curves, *(_taken_over(curves) if borrow else ())], key=lambda c: (c.gpu, c.op, c.ranks))), made
