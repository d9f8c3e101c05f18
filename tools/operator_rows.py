"""Read measured operators from public sources and from profiles of a GPU.

- aiconfigurator: ``systems/data`` of ai-dynamo/aiconfigurator (needs pyarrow): torch and TensorRT-LLM products and
  attention in short bursts. Software versions disagree by 3-7% on the same GPU, so a shape's median over them is used.
- matmul and attention CSV: columns gpu, dtype, m, n, k, tflops, source, layout / gpu, dtype, pass, batch, seq, heads,
  kv_heads, head_dim, causal, tflops, source, kernel.
- profile JSON: what ``astra.lab.profile.run`` writes.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from astra.errors import InputError
from astra.provenance import Floats

Row = dict[str, Any]

SYSTEMS: Final = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "h200_sxm": "H200-SXM5-141GB",
    "b200_sxm": "B200-SXM-180GB",
    "gb200": "GB200-NVL72",
    "b300_sxm": "B300-SXM-288GB",
    "gb300": "GB300-NVL72",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTXPRO6000-Blackwell",
}
# 15-25% slow against every other version; and a copy of another GPU's file.
_LEFT_OUT: Final = {
    ("b200_sxm", "trtllm", "1.3.0rc15"),
    ("gb200", "trtllm", "1.3.0rc17"),
    ("b300_sxm", "sglang", "0.5.14"),
}
_MIN_ROWS: Final = 20_000  # older sweeps cover a quarter of the shapes
# One collector only, so that all rows share a clock: SGLang's sweeps run 5% slow on large products, and vLLM's
# leave weights uninitialised, which draws less power and runs 4-9% fast. A100 has SGLang's alone.
_SOFTWARE: Final = ("trtllm", "sglang")
_FP8_VERSIONS: Final = ("1.3.0rc10", "1.3.0rc15", "1.3.0rc20")  # whose quantisation was timed apart


class Sweep(NamedTuple):
    """Products of one GPU at one precision: [row, (m, n, k)], seconds, and how much of the row was the product."""

    shape: Floats
    seconds: Floats
    share: Floats
    spread: float  # mean absolute difference of one software version from the median
    sources: tuple[str, ...]


def read_aiconfigurator_gemm(root: Path) -> dict[tuple[str, str], Sweep]:
    """bf16 products, and fp8 products without the quantisation of the activations."""
    out: dict[tuple[str, str], Sweep] = {}
    for system, gpu in SYSTEMS.items():
        bf16: dict[str, list[Any]] = {software: [] for software in _SOFTWARE}
        fp8 = []
        for path in sorted((root / system / "gemm").glob("*/*/gemm_perf.parquet")):
            software, version = path.parts[-3], path.parts[-2]
            if (system, software, version) in _LEFT_OUT or software not in _SOFTWARE:
                continue
            table = _parquet(path, "gemm_dtype", "m", "n", "k", "latency")
            if np.count_nonzero(table["gemm_dtype"] == "bfloat16") >= _MIN_ROWS:
                shape, seconds = _products(table, "bfloat16")
                bf16[software].append((f"{software} {version}", shape, seconds, np.ones(len(seconds))))
            if software == "trtllm" and version in _FP8_VERSIONS and np.any(table["gemm_dtype"] == "fp8"):
                shape, seconds = _products(table, "fp8")
                alone = seconds - _quantising(root / system / "quantize" / software / version, shape)
                fp8.append((f"{software} {version}", shape, alone, alone / seconds))
        chosen = next((versions for versions in bf16.values() if versions), None)
        if chosen is not None:
            out[gpu, "bf16"] = _median(chosen)
        if fp8:
            out[gpu, "fp8"] = _median(fp8)
    return out


def _parquet(path: Path, *columns: str) -> dict[str, Any]:
    import pyarrow.parquet as pq  # noqa: PLC0415 (optional, for this source only)

    table = pq.read_table(path, columns=list(columns))
    return {name: np.array(table[name].to_pylist()) for name in columns}


def _products(table: dict[str, Any], kind: str) -> tuple[Floats, Floats]:
    chosen = table["gemm_dtype"] == kind
    shape = np.stack([table[name][chosen].astype(np.float64) for name in "mnk"], axis=1)
    return shape, table["latency"][chosen].astype(np.float64) * 1e-3


def _quantising(folder: Path, shape: Floats) -> Floats:
    """Seconds of finding the scale and of applying it, for each product's left operand."""
    total: dict[tuple[float, float], float] = {}
    for name in ("computescale_perf", "scale_matrix_perf"):
        table = _parquet(folder / f"{name}.parquet", "m", "k", "latency")
        for m, k, latency in zip(table["m"], table["k"], table["latency"], strict=True):
            total[m, k] = total.get((m, k), 0.0) + float(latency) * 1e-3
    return np.array([total.get((m, k), np.nan) for m, _, k in shape])


def _median(versions: list[tuple[str, Floats, Floats, Floats]]) -> Sweep:
    """Per shape, the median of log time over software versions."""
    shape = np.concatenate([entry[1] for entry in versions])
    log_s = np.log(np.maximum(np.concatenate([entry[2] for entry in versions]), 1e-9))
    share = np.concatenate([entry[3] for entry in versions])
    good = np.isfinite(log_s) & np.isfinite(share)
    shape, log_s, share = shape[good], log_s[good], share[good]
    unique, owner = np.unique(shape, axis=0, return_inverse=True)
    order = np.lexsort((log_s, owner))
    first = np.searchsorted(owner[order], np.arange(len(unique)))
    count = np.bincount(owner, minlength=len(unique))
    ranked = log_s[order]
    middle = 0.5 * (ranked[first + (count - 1) // 2] + ranked[first + count // 2])
    shares = np.bincount(owner, share, minlength=len(unique)) / count
    spread = float(np.mean(np.abs(log_s - middle[owner])))
    return Sweep(unique, np.exp(middle), np.clip(shares, 0.0, 1.0), spread, tuple(entry[0] for entry in versions))


def read_aiconfigurator_attention(root: Path) -> dict[str, dict[str, Floats]]:
    """Causal bf16 context attention without a window, by GPU; includes writing the key-value cache."""
    columns = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size", "latency")
    out = {}
    for system, gpu in SYSTEMS.items():
        folder = root / system / "attention" / "trtllm"
        path = folder / "1.3.0rc20" / "context_attention_perf.parquet"
        path = path if path.exists() else folder / "1.0.0" / "context_attention_perf.parquet"
        if not path.exists():
            continue
        table = _parquet(path, *columns, "attn_dtype", "kv_cache_dtype", "kernel_source")
        plain = (table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")
        plain &= (table["kernel_source"] == "torch_flow") & (table["window_size"] == 0)
        out[gpu] = {name: table[name][plain].astype(np.float64) for name in columns}
    return out


def read_csv(path: Path) -> list[Row]:
    """Rows of a CSV file."""
    return list(csv.DictReader(io.StringIO(path.read_text())))


def csv_products(rows: list[Row], source: str) -> Iterator[Row]:
    """Products of one source: gpu, precision, layout, m, n, k, seconds."""
    layouts = {"TN": "fwd", "NN": "dgrad", "NT": "wgrad", "": "fwd"}
    for row in rows:
        if row["source"] != source:
            continue
        m, n, k = (int(row[name]) for name in "mnk")
        seconds = 2.0 * m * n * k / (float(row["tflops"]) * 1e12)
        yield {
            "gpu": row["gpu"], "precision": row["dtype"], "layout": layouts[row["layout"]],
            "m": m, "n": n, "k": k, "seconds": seconds,
        }  # fmt: skip


def csv_attention(rows: list[Row]) -> Iterator[Row]:
    """Attention of every source but aiconfigurator: one row for each call, with seconds; ``pass`` may be fwd+bwd."""
    share = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}
    for row in rows:
        if row["source"] == "AIC-ATTN" or not row["batch"] or row["dtype"] == "fp8":
            continue
        dims = [float(dim) for dim in row["head_dim"].split("/")]
        batch, seq, heads = (float(row[name]) for name in ("batch", "seq", "heads"))
        causal = row["causal"] == "1"
        flops = 2.0 * batch * heads * seq * seq * (dims[0] + dims[-1]) * share[row["pass"]] * (0.5 if causal else 1.0)
        yield {
            "gpu": row["gpu"], "source": row["source"], "kernel": row["kernel"], "direction": row["pass"],
            "batch": batch, "seq_q": seq, "seq_kv": seq, "heads": heads, "kv_heads": float(row["kv_heads"]),
            "head_dim": dims[0], "head_dim_v": dims[-1], "causal": causal,
            "seconds": flops / (float(row["tflops"]) * 1e12),
        }  # fmt: skip


def read_profile(path: Path) -> dict[str, Any]:
    """A profile: ``gpu``, rows with ``op`` and ``seconds``, and optionally ``clock`` (burst unless said)."""
    try:
        document = json.loads(path.read_text())
        rows = [row for row in document["rows"] if "error" not in row]
        return {**document, "gpu": str(document["gpu"]), "rows": rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            str(path), None, want='a profile: {"gpu": ..., "rows": [{"op": ..., "seconds": ...}]}', fix=f"({error})"
        ) from None
