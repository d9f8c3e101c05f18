"""Products whose rows a compiler pads in memory, so that tensor cores can load them."""

from __future__ import annotations

import numpy as np

from astra.operators.gemm import OPERAND_BYTES, ROW_BYTES
from astra.operators.streaming import streaming
from astra.provenance import Floats
from astra.spec.cluster import Device


def padded(
    device: Device, precision: str, m: Floats, n: Floats, k: Floats, groups: Floats
) -> tuple[Floats, Floats, tuple[Floats | float, ...]]:
    """Sizes as a compiler pads them to rows of 16 bytes, and the time of the copies for each of its three products.

    Each operand is copied once, for all products it is in. A projection of 8,192 tokens to 50,257 rows takes 0.5 to 0.8
    ms longer than one to 50,304 on an H200, to 50,258 0.4 to 0.6 (benchmarks/aligned_heads.py); this says 0.4 to 0.6.
    """
    element = OPERAND_BYTES[precision]
    multiple = max(1.0, ROW_BYTES / element)
    wide_n, wide_k = (np.ceil(size / multiple) * multiple for size in (n, k))
    padded_n, padded_k = wide_n > n, wide_k > k
    if not (np.any(padded_n) or np.any(padded_k)):
        return n, k, (0.0, 0.0, 0.0)
    either = padded_n | padded_k
    forward, backward = np.where(either, n * k, 0.0) + padded_k * m * k, padded_n * m * n
    forward_s, backward_s = (
        streaming(device, nbytes=2 * element * groups * each, kernels=np.where(either, groups, 0)).seconds
        for each in (forward, backward)
    )
    return wide_n, wide_k, (forward_s, backward_s, 0.0)
