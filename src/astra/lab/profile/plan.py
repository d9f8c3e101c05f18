"""What a profile measures and where it is kept: lists of operator shapes, and one document that grows row by row.

No torch here. A GEMM row gives the product itself: m and n of the output, k summed over. The layouts are those of a
linear layer y = x W^T with T tokens, O outputs and I inputs: fwd (m,n,k) = (T,O,I), dgrad (T,I,O), wgrad (O,I,T). A run
that is cut short leaves a valid file, and a second run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from astra.atomic import write_file
from astra.errors import InputError
from astra.files import read_json

Row = dict[str, Any]

# hidden, ffn, heads, kv heads, head dim, gated, vocab
_MODELS: Final[dict[str, tuple[int, int, int, int, int, bool, int]]] = {
    "llama3-8b": (4096, 14336, 32, 8, 128, True, 128256),
    "llama3-70b": (8192, 28672, 64, 8, 128, True, 128256),
    "llama3-405b": (16384, 53248, 128, 8, 128, True, 128256),
    "llama2-7b": (4096, 11008, 32, 32, 128, True, 32000),
    "llama2-13b": (5120, 13824, 40, 40, 128, True, 32000),
    "gpt3-175b": (12288, 49152, 96, 96, 128, False, 51200),
    "qwen2.5-32b": (5120, 27648, 40, 8, 128, True, 152064),
    "llama3.2-1b": (2048, 8192, 32, 8, 64, True, 128256),
}
_EXPERTS: Final = ((4096, 14336), (2048, 768), (7168, 2048), (2048, 1408))  # hidden, ffn of one expert
_TOKENS: Final = (2048, 4096, 8192, 16384)
_MAX_FLOPS: Final = 12e12  # longer products say nothing new
_ATTENTION: Final = (  # heads, kv heads, head dim, value head dim
    (32, 8, 128, 128),
    (8, 1, 128, 128),
    (16, 2, 128, 128),
    (32, 32, 128, 128),
    (12, 12, 128, 128),
    (32, 8, 64, 64),
    (16, 16, 192, 128),
    (8, 8, 256, 256),
)
_SEQS: Final = (1024, 2048, 4096, 8192, 16384, 32768)
KERNELS: Final = ("flash", "cudnn")  # of SDPA: torch's own FlashAttention-2, and cuDNN
# What other packages bring, measured where they are installed: attention kernels, and memory-bound operators.
PACKAGES: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "flash_attn": (("flash_attn",), ()),
    "flash_attn_interface": (("flash_attn3",), ()),
    "transformer_engine": (("te",), ("te_rmsnorm", "te_rmsnorm_bwd")),
}
STREAMING: Final = (
    "copy", "residual_add", "cast_fp32", "accumulate_grad", "zero_fill", "rmsnorm", "rmsnorm_bwd", "layernorm",
    "layernorm_bwd", "swiglu", "swiglu_bwd", "gelu", "gelu_bwd", "rotary", "cross_entropy", "cross_entropy_bwd",
    "adam_fused", "adam_foreach",
)  # fmt: skip


def keep(row: Row, one_in: int) -> bool:
    """A fixed pseudo-random one in ``one_in`` rows."""
    text = ";".join(f"{key}={row[key]}" for key in sorted(row))
    return hashlib.sha256(text.encode()).digest()[0] % one_in == 0


def row_key(row: Row) -> str:
    """The row's identity, for resuming."""
    skip = ("seconds", "error", "key", "timing", "nbytes", "kernels")
    return " ".join(f"{key}={row[key]}" for key in sorted(row) if key not in skip)


def linear_layers() -> list[tuple[int, int]]:
    """Distinct (outputs, inputs) of the linear layers of well-known models under tensor parallelism."""
    found: dict[tuple[int, int], None] = {}
    for hidden, ffn, heads, kv_heads, head_dim, gated, vocab in _MODELS.values():
        for tp in (1, 2, 4, 8):
            qkv = (heads + 2 * max(kv_heads, tp)) * head_dim // tp
            fc1 = (2 if gated else 1) * ffn // tp
            for pair in ((qkv, hidden), (hidden, heads * head_dim // tp), (fc1, hidden), (hidden, ffn // tp)):
                found[pair] = None
            found[(-(-vocab // (128 * tp)) * 128, hidden)] = None
    return list(found)


def gemm_rows(quick: bool) -> Iterator[Row]:
    """Linear layers in three layouts, expert-sized products, and odd shapes."""
    for outputs, inputs in linear_layers():
        for tokens in _TOKENS:
            yield from _three_layouts(tokens, outputs, inputs, one_in=5 if quick else 2)
    for hidden, ffn in _EXPERTS:
        for tokens in (128, 512, 1024, 4096):
            yield from _three_layouts(tokens, 2 * ffn, hidden, one_in=3 if quick else 1)
            yield from _three_layouts(tokens, hidden, ffn, one_in=3 if quick else 1)
    for index in range(40 if quick else 100):
        m, n, k = (_log_uniform(f"odd/{index}/{axis}") for axis in "mnk")
        yield {"op": "gemm", "layout": "fwd", "m": m, "n": n, "k": k, "precision": "bf16"}


def _three_layouts(tokens: int, outputs: int, inputs: int, *, one_in: int) -> Iterator[Row]:
    shapes = {"fwd": (tokens, outputs, inputs), "dgrad": (tokens, inputs, outputs), "wgrad": (outputs, inputs, tokens)}
    if 2.0 * tokens * outputs * inputs > _MAX_FLOPS:
        return
    for layout, (m, n, k) in shapes.items():
        row = {"op": "gemm", "layout": layout, "m": m, "n": n, "k": k, "precision": "bf16"}
        if keep(row, one_in):
            yield row
    m, n, k = shapes["fwd"]
    row = {"op": "gemm", "layout": "fwd", "m": m, "n": n, "k": k, "precision": "fp8"}
    if keep(row, 2 * one_in):
        yield row


def _log_uniform(text: str) -> int:
    """A size between 256 and 16384, a multiple of 8, drawn by hash."""
    unit = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
    return max(8, int(256 * 64**unit) // 8 * 8)


def attention_rows(quick: bool, kernels: tuple[str, ...] = KERNELS) -> Iterator[Row]:
    """Causal attention over head shapes and lengths, by every kernel and direction; a few without the mask."""
    for heads, kv_heads, head_dim, head_dim_v in _ATTENTION:
        for seq in _SEQS:
            for batch in (1, 4):
                if batch * seq > 32768 or (batch == 4 and seq > 4096):
                    continue
                for kernel in kernels:
                    shape = {"batch": batch, "seq_q": seq, "seq_kv": seq, "heads": heads, "kv_heads": kv_heads}
                    for causal in (True, False) if seq == 4096 and heads == 32 else (True,):
                        row = {**shape, "head_dim": head_dim, "head_dim_v": head_dim_v, "causal": causal}
                        if kernel.startswith("flash") and head_dim != head_dim_v:
                            continue
                        for direction in ("fwd", "bwd"):
                            full = {"op": "attention", "direction": direction, **row, "kernel": kernel}
                            if not quick or keep(full, 2):
                                yield full


def streaming_rows(quick: bool, names: tuple[str, ...] = STREAMING) -> Iterator[Row]:
    """Memory-bound operators over element counts."""
    for name in names:
        for log2 in (20, 23, 25, 27) if quick else (18, 20, 22, 24, 25, 26, 27, 28):
            for width in (4096, 8192) if "norm" in name and not quick else (4096,):
                yield {"op": "streaming", "name": name, "elements": 1 << log2, "width": width}


def all_rows(quick: bool, packages: Iterable[str] = ()) -> list[Row]:
    """The whole plan, without duplicates, interleaved so that a cut leaves a fair sample."""
    kernels: tuple[str, ...] = KERNELS
    names: tuple[str, ...] = STREAMING
    for package in packages:
        kernels, names = kernels + PACKAGES[package][0], names + PACKAGES[package][1]
    rows = [{"op": "launch", "name": name} for name in ("add_", "mm", "linear_fwd_bwd", "rmsnorm_fwd_bwd")]
    seen: dict[str, Row] = {}
    for row in (*streaming_rows(quick, names), *attention_rows(quick, kernels), *gemm_rows(quick)):
        seen.setdefault(row_key(row), row)
    mixed = sorted(seen.values(), key=lambda row: hashlib.sha256(row_key(row).encode()).digest())
    return rows + mixed


class Store:
    """Rows on disk, keyed by a text each; never loses a finished row."""

    def __init__(self, path: str | Path, *, key: str) -> None:
        self.path = Path(path)
        self.key = key
        self.header: Row = {}
        self.rows: list[Row] = []
        if self.path.exists():
            self._load()
        self.known = {row[key] for row in self.rows}

    def _load(self) -> None:
        try:
            document = read_json(self.path, "profile")
            self.rows = list(document.pop("rows"))
        except (KeyError, AttributeError, TypeError) as error:
            raise InputError(str(self.path), None, want="a measurement file with rows", fix=f"({error})") from None
        self.header = document

    def __contains__(self, key: object) -> bool:
        return key in self.known

    def begin(self, key: str) -> None:
        """Note what is being measured, so that a crash can be put down to it."""
        self.header["in_progress"] = key
        self.save()

    def forget(self) -> None:
        """Take back ``begin``: the row was not measured, and nothing crashed."""
        self.header.pop("in_progress", None)
        self.save()

    def crashed(self) -> str | None:
        """The key a previous process died on, if any."""
        key = self.header.get("in_progress")
        return key if key is not None and key not in self.known else None

    def add(self, row: Row, *, save: bool = True) -> None:
        """Append a finished row and write the file."""
        self.rows.append(row)
        self.known.add(row[self.key])
        self.header.pop("in_progress", None)
        if save:
            self.save()

    def save(self) -> None:
        """Write to a sibling file and rename: readers never see half a document."""
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        head = json.dumps(self.header)[1:-1]
        write_file(self.path, "{" + head + (", " if head else "") + '"rows": [\n' + lines + "\n]}\n")
