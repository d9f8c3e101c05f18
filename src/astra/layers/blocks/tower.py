"""The image encoder of a vision-language model, which runs before the first layer, and its connector.

Every framework puts it on the first stage; every tensor- and context-parallel rank runs all of it, as the encoders of
Hugging Face's models do, which the frameworks take over. What it keeps is kept under every kind of recompute.

Letters: P patches of a micro-batch on a rank, h its hidden size, f its ffn, L its layers.
"""

from __future__ import annotations

import numpy as np

from astra.layers.block import Tensor, matrix, vector
from astra.layers.operators import BF16, Attention, Gemm, Kept, Layer, Shard, Stream
from astra.provenance import Floats
from astra.spec.model import ModelSpec, Tower


def tensors(model: ModelSpec) -> list[Tensor]:
    """Patches, positions, layers, norms and connectors; nothing for a model without images."""
    it = model.tower
    if it is None:
        return []
    h, inputs, norms = it.hidden, it.ffn * (2 if it.gated_mlp else 1), 2 if it.norm == "layernorm" else 1
    found = [
        matrix("tower.patches", it.pixels, h, "none"),
        vector("tower.rows", (it.positions + it.patch_bias + it.class_token) * h),
        matrix("tower.qkv", h, 3 * h * it.layers, "none"),
        matrix("tower.out", h, h * it.layers, "none"),
        matrix("tower.up", h, inputs * it.layers, "none"),
        matrix("tower.down", it.ffn, h * it.layers, "none"),
        vector("tower.biases", (5 * h + inputs) * it.layers),
        vector("tower.norms", 2 * norms * h * it.layers + it.outer_norms),
    ]
    for place, (width, after) in enumerate(_widths(it)):
        found.append(matrix(f"tower.connector{place}", width, after * it.connectors, "none"))
        if it.connector_bias:
            found.append(vector(f"tower.connector{place}.bias", after * it.connectors))
    return found


def _widths(it: Tower) -> list[tuple[int, int]]:
    return list(zip(it.connector[:-1], it.connector[1:], strict=True))


def operators(model: ModelSpec, shard: Shard) -> Layer | None:
    """All of it for one micro-batch."""
    it = model.tower
    if it is None:
        return None
    made = np.asarray(shard.mbs * (shard.seq * it.share), np.float64)  # tokens of images
    patches = made * it.merge**2
    inputs = it.ffn * (2 if it.gated_mlp else 1)
    sizes = {"patch": (it.pixels, it.hidden, 1), "tower_qkv": (it.hidden, 3 * it.hidden, it.layers),
             "tower_out": (it.hidden, it.hidden, it.layers), "tower_up": (it.hidden, inputs, it.layers),
             "tower_down": (it.ffn, it.hidden, it.layers)}  # fmt: skip
    gemms = [_gemm(name, patches, *size) for name, size in sizes.items()]
    gemms += [_gemm(f"connector{place}", made, *pair, it.connectors) for place, pair in enumerate(_widths(it))]
    elements = patches * it.hidden
    streams = (
        Stream("norm", elements, 2.0 * it.layers),
        Stream("residual", elements, 2.0 * it.layers),
        Stream("bias", elements, 5.0 * it.layers),
        Stream("swiglu" if it.gated_mlp else "gelu", patches * it.ffn, float(it.layers)),
    )
    kept_bytes = BF16 * patches * it.layers * (8 * it.hidden + inputs + it.ffn)
    kept = Kept(whole=kept_bytes, selective=kept_bytes, checkpoint=kept_bytes, working=0 * kept_bytes)
    return Layer(tuple(gemms), tuple(_attentions(it, patches)), streams, kept)


def _gemm(name: str, rows: Floats, width: int, after: int, groups: int) -> Gemm:
    return Gemm(name, rows, np.full_like(rows, after), np.full_like(rows, width), groups)


def _attentions(it: Tower, patches: Floats) -> list[Attention]:
    """Patches see their image, or in most layers their window of it."""
    full = it.layers if it.window is None else it.full_layers
    spans = [(full, float(it.patches)), (it.layers - full, float(it.window or it.patches))]
    ones = np.ones_like(patches)
    return [
        Attention(
            name="tower",
            batch=layers * patches / span,
            seq_q=span * ones,
            seq_kv=span,
            heads=it.heads * ones,
            kv_heads=it.heads * ones,
            head_dim=it.hidden // it.heads,
            head_dim_v=it.hidden // it.heads,
            causal=False,
            window=None,
        )
        for layers, span in spans
        if layers
    ]


def flops_per_token(model: ModelSpec) -> float:
    """Forward FLOPs for each token of a sample, of images or not; patches with each other included."""
    it = model.tower
    if it is None:
        return 0.0
    inputs = it.ffn * (2 if it.gated_mlp else 1)
    layer = 4 * it.hidden**2 + it.hidden * (inputs + it.ffn)
    full = it.layers if it.window is None else it.full_layers
    seen = full * it.patches + (it.layers - full) * (it.window or it.patches)
    patch = 2 * (it.pixels * it.hidden + it.layers * layer) + 4 * it.hidden * seen
    connector = 2 * it.connectors * sum(width * after for width, after in _widths(it))
    return it.share * (it.merge**2 * patch + connector)
