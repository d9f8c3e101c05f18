"""Time of attention kernels from how their blocks fill the GPU.

Letters: b batch, h heads, d head dim, s query and z key length, S multiprocessors. One head's work is split into blocks
of q query rows; each block walks the keys its rows see.

t = a + (T^p + L^p)^(1/p), in parallel with the memory traffic, where
- T = b h (pairs + rows (c + x)) / R: all blocks, evenly spread. ``c`` is the fixed work of a row (loading, the first
  softmax, writing) and ``x`` the masked work on the diagonal, both in keys; R pairs/s at the kernel's best. A window
  has a second edge, where rows begin to see less than all keys before them, with masked work ``e`` of its own.
- L = l q (z + c) S / R: the longest block alone on one multiprocessor, which few heads or long sequences wait for.

Backward does 2.5 times the FLOPs of forward, split over keys, with a curve of its own. Every term rises with every
size. Kernels in fp8 are cuDNN's, with operands scaled by small groups (mxfp8) or as a whole (fp8); their backward
computes what a window hides.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from astra.errors import InputError, UnknownName
from astra.operators.basis import Peaks, basis, read_json, sustained
from astra.operators.gemm import MEMORY_FRACTION, either, gemm
from astra.operators.streaming import streaming
from astra.provenance import Bools, Codes, Floats, Source, Timed, worst
from astra.spec.cluster import Device
from astra.units import US

# Kernels in fp8, by how their operands are scaled; fractions of their curves are of the fp8 peak.
FP8_KERNELS: Final = {"mxfp8": "cudnn-mxfp8", "tensorwise": "cudnn-fp8"}
KERNELS: Final = ("flash2", "flash3", "flash4", "cudnn", *FP8_KERNELS.values(), "sdpa", "unfused")
BACKWARD_FLOPS: Final = 2.5  # over forward: five products for two
OVERHEAD_S: Final = 5 * US
# Speed at the full clock over that of the curve at the clock of hours of products: kernels draw less power than those,
# FlashAttention-2 the least, so that their curves were measured nearer to it (ranks on an H200, docs/rehearsal.md).
AT_FULL_CLOCK: Final = {"flash2": 1.05, "cudnn": 1.11}
# The block softmax of unfused attention, per score: bf16 read and written; backward reads two and writes one.
SOFTMAX_BYTES: Final = {"fwd": 4.0, "bwd": 6.0}
# Which curves a generation runs, where the GPU and its relatives were not measured.
_FAMILY: Final = {"hopper": "hopper"}
_USUAL_KERNEL: Final = {"ampere": "flash2", "hopper": "cudnn", "blackwell": "cudnn"}
# AITER's assembly on CDNA4 comes to the fraction of the peak that cuDNN's kernels do on Blackwell: 0.42 causal backward
# on an MI355X (ROCm/aiter pull request 815, 2025-08-13: 20.9 ms for 8 x 64 heads of 128 and 8,192 tokens).
_OTHER_VENDORS_KERNEL: Final = {"cdna4": "cudnn"}
# Where torch's scaled_dot_product_attention takes cuDNN's by itself since 2.11 (sdp_utils.cpp,
# check_prefer_cudnn_attention; seen on an H200 in ranks of transformers and torchtitan), if the GPU runs it: those of
# Blackwell for workstations do not. Elsewhere it takes FlashAttention-2.
_TORCH_CHOOSES: Final = ("hopper", "blackwell")


class KernelCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel in one direction on one generation of GPUs, as fractions of the bf16 peak, or of fp8's."""

    family: str
    kernel: str
    direction: str
    gpu: str  # where it was measured; empty: nowhere
    clock: str
    tile: int  # rows of a block
    row_keys: float  # c
    diagonal_keys: float  # x
    power: float  # p
    lone: float  # l
    dims: tuple[float, ...]
    fractions: tuple[float, ...]
    low_seq: float
    high_seq: float
    rows: int
    error: float  # mean absolute, on held-out rows; 0: nothing to hold out
    sources: tuple[str, ...]
    skips: bool = True  # keys before a window take no time,
    edge_keys: float = 64.0  # e, but for those on its edge; where it was not measured, half a block of 128 rows


class AttentionShape(NamedTuple):
    """Attention calls as flat columns; dims of queries and keys, and of values."""

    batch: Floats
    seq_q: Floats
    seq_kv: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    head_dim_v: Floats


def attention(
    device: Device,
    *,
    batch: npt.ArrayLike,
    seq_q: npt.ArrayLike,
    seq_kv: npt.ArrayLike,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    head_dim_v: npt.ArrayLike,
    causal: bool,
    window: int | None,
    kernel: str,
    direction: str,
    precision: str,
    softmax_bytes: float | None = None,
    full_clock: bool = False,
) -> Timed:
    """Seconds of the attention core (scores, softmax, values) in sustained training.

    A causal mask is aligned to the last key; ``window`` counts the keys a query sees, itself included. fp8 jobs run
    attention in bf16, as TransformerEngine does by default, unless the kernel is one in fp8. ``softmax_bytes`` are what
    unfused attention moves per score between its products: mask, softmax, dropout. ``full_clock``: other
    kernels leave the GPU the power for it.
    """
    if direction not in SOFTMAX_BYTES:
        raise UnknownName("direction", direction, SOFTMAX_BYTES)
    sizes = (batch, seq_q, seq_kv, heads, kv_heads, head_dim, head_dim_v)
    columns = np.broadcast_arrays(*(np.asarray(size, np.float64) for size in sizes))
    outer = columns[0].shape
    shape = AttentionShape(*(column.ravel() for column in columns))
    if not all(np.all(column > 0) and np.all(np.isfinite(column)) for column in shape) or (window or 1) <= 0:
        raise InputError("attention", None, want="every size above zero")
    half = "bf16" if precision == "fp8" else precision
    if kernel == "unfused":
        per_score = SOFTMAX_BYTES[direction] if softmax_bytes is None else softmax_bytes
        timed = _unfused(device, shape, direction=direction, precision=half, softmax_bytes=per_score)
    else:
        found = _find(device, kernel, direction)
        faster = AT_FULL_CLOCK.get(found.curve.kernel, 1.0) if full_clock else 1.0
        timed = _fused(device, shape, found._replace(level=faster * found.level), causal, window, half)
    return Timed(timed.seconds.reshape(outer), timed.source.reshape(outer))


def best_kernel(device: Device) -> str:
    """The kernel TransformerEngine usually picks, or one as quick: FlashAttention-2 up to Ada, cuDNN from Hopper on."""
    if device.vendor.upper() == "NVIDIA":
        return _USUAL_KERNEL[_family(device)[0]]
    return _OTHER_VENDORS_KERNEL.get(device.generation, "flash2")


def pairs(seq_q: Floats, seq_kv: Floats, *, causal: bool, window: float | Floats | None) -> Floats:
    """Query-key pairs one head computes."""
    if not causal:
        every: Floats = seq_q * np.minimum(seq_kv, np.inf if window is None else 2.0 * window - 1)
        return every
    rows: Floats = np.minimum(seq_q, seq_kv)  # earlier queries see no key
    ahead = seq_kv - rows  # keys before the first query
    if window is None:
        return rows * ahead + rows * (rows + 1) / 2
    span = np.minimum(window, seq_kv)
    growing = np.clip(span - ahead, 0.0, rows)  # queries that see fewer keys than the window holds
    out: Floats = growing * ahead + growing * (growing + 1) / 2 + (rows - growing) * span
    return out


def _before_window(seq_q: Floats, seq_kv: Floats, window: float | Floats, most: float) -> Floats:
    """Masked keys on the far edge of a window: up to ``most`` a row, and no more than it has keys there."""
    last: Floats = np.maximum(seq_kv - window, 0.0)
    first = np.maximum(last - np.minimum(seq_q, seq_kv), 0.0)
    return _up_to(last, most) - _up_to(first, most)


def _up_to(rows: Floats, most: float) -> Floats:
    """The sum of min(i, most) over rows i."""
    short = np.minimum(rows, most)
    return short * (rows - 0.5 * short)


class _KernelFound(NamedTuple):
    curve: KernelCurve
    level: float  # of this GPU's fraction of peak over that of the GPU the curve was measured on
    source: Source


def _fused(
    device: Device, shape: AttentionShape, found: _KernelFound, causal: bool, window: int | None, precision: str
) -> Timed:
    curve = found.curve
    precision = "fp8" if curve.kernel in FP8_KERNELS.values() else precision
    clock = 1.0 if curve.clock == "sustained" else sustained(device, precision)
    seconds = curve_seconds(
        curve, shape, causal=causal, window=window, sms=device.sms,
        flops_per_s=device.peak(precision) * clock * min(found.level, 1.0 / max(curve.fractions)),
    )  # fmt: skip
    moved = traffic_bytes(shape, curve.direction) / (MEMORY_FRACTION * device.memory_bytes_per_s)
    return Timed(OVERHEAD_S + either(seconds, moved), _provenance(found, shape))


def curve_seconds(
    curve: KernelCurve,
    shape: AttentionShape,
    *,
    causal: bool | Bools,
    window: float | Floats | None,
    sms: float | Floats,
    flops_per_s: float | Floats,
) -> Floats:
    """Seconds of the blocks, without the kernel's fixed time and memory traffic."""
    window = window if curve.skips else None
    dim = 0.5 * (shape.head_dim + shape.head_dim_v)
    fraction = np.interp(np.log(dim), np.log(curve.dims), curve.fractions)
    flops_per_pair = 4.0 * dim * (BACKWARD_FLOPS if curve.direction == "bwd" else 1.0)
    pairs_per_s = flops_per_s * fraction / flops_per_pair
    open_pairs = pairs(shape.seq_q, shape.seq_kv, causal=False, window=window)
    masked_pairs = pairs(shape.seq_q, shape.seq_kv, causal=True, window=window)
    rows = np.ceil(shape.seq_q / curve.tile) * curve.tile
    keys = np.minimum(shape.seq_kv, np.inf if window is None else window + curve.tile)
    if window is not None:
        masked_pairs = masked_pairs + _before_window(shape.seq_q, shape.seq_kv, window, curve.edge_keys)
    every = np.where(causal, masked_pairs, open_pairs) + rows * (
        curve.row_keys + np.where(causal, curve.diagonal_keys, 0.0)
    )
    total_s = shape.batch * shape.heads * every / pairs_per_s
    longest_s = curve.lone * curve.tile * (keys + curve.row_keys) * sms / pairs_per_s
    return _norm(total_s, longest_s, curve.power)


def _norm(first: Floats, second: Floats, power: float) -> Floats:
    larger = np.maximum(first, second)
    out: Floats = larger * (1.0 + (np.minimum(first, second) / larger) ** power) ** (1.0 / power)
    return out


def traffic_bytes(shape: AttentionShape, direction: str) -> Floats:
    """Bytes of queries, keys, values and result, each moved once; in backward also of their gradients."""
    wide = shape.head_dim + shape.head_dim_v
    once = 2.0 * shape.batch * wide * (shape.seq_q * shape.heads + shape.seq_kv * shape.kv_heads)
    return once * (2.0 if direction == "bwd" else 1.0)


def _unfused(device: Device, shape: AttentionShape, *, direction: str, precision: str, softmax_bytes: float) -> Timed:
    """Two batched products and a softmax over all scores; a mask saves nothing. Backward: four products."""
    heads = shape.batch * shape.heads
    products = [(shape.seq_q, shape.seq_kv, shape.head_dim), (shape.seq_q, shape.head_dim_v, shape.seq_kv)]
    if direction == "bwd":
        products = [
            (shape.seq_q, shape.seq_kv, shape.head_dim_v),  # gradient of the probabilities
            (shape.seq_kv, shape.head_dim_v, shape.seq_q),  # of the values
            (shape.seq_q, shape.head_dim, shape.seq_kv),  # of the queries
            (shape.seq_kv, shape.head_dim, shape.seq_q),  # of the keys
        ]
    nbytes = softmax_bytes * heads * shape.seq_q * shape.seq_kv
    softmax = streaming(device, nbytes=nbytes, kernels=1.0)
    seconds, source = softmax.seconds, softmax.source
    for m, n, k in products:
        timed = gemm(device, m=m, n=n, k=k, precision=precision, layout="fwd", groups=heads)
        seconds, source = seconds + timed.seconds, worst(source, timed.source)
    return Timed(seconds, source)


def _provenance(found: _KernelFound, shape: AttentionShape) -> Codes:
    curve = found.curve
    dim = 0.5 * (shape.head_dim + shape.head_dim_v)
    inside = (dim >= min(curve.dims)) & (dim <= max(curve.dims))
    inside &= (shape.seq_q >= curve.low_seq) & (shape.seq_q <= curve.high_seq) & (shape.seq_q == shape.seq_kv)
    return np.where(inside, found.source, max(found.source, Source.TRANSFERRED)).astype(np.int8)


def _family(device: Device) -> tuple[str, float, str, Source]:
    """Family of curves, level against them, the measured GPU and how sure the choice is."""
    gpus = read_json("attention.json")["gpus"]
    found = basis(device, gpus)
    if found is None:
        return _FAMILY.get(device.generation, "ampere"), 1.0, "", Source.ASSUMED
    entry = gpus[found.gpu]
    same = msgspec.convert(entry["peaks"], Peaks).match(device, "bf16" if "bf16" in device.flops_per_s else "fp16")
    source = found.source if same else max(found.source, Source.TRANSFERRED)
    return entry["family"], entry["level"], found.gpu, source


def _find(device: Device, kernel: str, direction: str) -> _KernelFound:
    """The curve for a kernel: this GPU's own or that of one like it if there is one, else its family's."""
    if kernel not in KERNELS:
        raise UnknownName("attention kernel", kernel, KERNELS)
    family, level, gpu, source = _family(device)
    curves = _curves()
    own_choice = _USUAL_KERNEL[family] if device.generation in _TORCH_CHOOSES else "flash2"
    name = own_choice if kernel == "sdpa" else kernel
    own = _near(gpu, name, direction)
    if own is not None:
        return own._replace(source=max(source, own.source))
    curve = curves.get((family, name, direction))
    if curve is None:
        have = sorted({each for place, each, _ in curves if place in (family, gpu)} | {"sdpa", "unfused"})
        raise InputError("attention kernel", kernel, want=f"one that {device.name} runs: {', '.join(have)}")
    if not curve.gpu:
        return _KernelFound(curve, level, Source.ASSUMED)
    here = curve.gpu == gpu and curve.rows > 1
    return _KernelFound(curve, level, source if here else max(source, Source.TRANSFERRED))


def _near(gpu: str, kernel: str, direction: str) -> _KernelFound | None:
    """A measured GPU's own curve, or that of the GPU it is most like (``like``) at the level of its own."""
    curves, gpus = _curves(), read_json("attention.json")["gpus"]
    own = curves.get((gpu, kernel, direction))
    if own is not None:
        return _KernelFound(own, 1.0, Source.INTERPOLATED)
    like = gpus.get(gpu, {}).get("like", "")
    theirs = curves.get((like, kernel, direction))
    if theirs is None:
        return None
    return _KernelFound(theirs, gpus[gpu]["level"] / gpus[like]["level"], Source.TRANSFERRED)


@cache
def _curves() -> dict[tuple[str, str, str], KernelCurve]:
    """Curves by (family, or GPU for a curve of its own; kernel; direction)."""
    parsed = [msgspec.convert(curve, KernelCurve) for curve in read_json("attention.json")["curves"]]
    return {(curve.family, curve.kernel, curve.direction): curve for curve in parsed}
