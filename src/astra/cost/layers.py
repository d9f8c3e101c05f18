"""What the task, the precision and the runtime make of the model's layers, before anything is timed."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Final

import numpy as np

from astra.cost import effects
from astra.cost.low import core_cast_bytes, fuses_experts, scaling
from astra.layers import blocks, ends
from astra.layers import weights as weights_of
from astra.layers.block import LayerKind
from astra.layers.blocks import KERNELS
from astra.layers.kinds import layer_kinds, modules_of
from astra.layers.operators import Attention, Gemm, Kept, Layer, Shard, Stream, join
from astra.spec.job import Job
from astra.spec.runtime import Kernel, Runtime
from astra.spec.strategy_fields import MODULES

BF16_GEMMS: Final = frozenset({"router", "head", "classifier", "patch"})  # kept out of fp8 by TransformerEngine
ATTENTION_GEMMS: Final = frozenset({"qkv", "q", "q_down", "q_up", "kv_down", "kv_up", "attention_out"})
EMBEDDING: Final = "embedding"
HEAD: Final = "head"


def layers_of(job: Job, shard: Shard) -> dict[LayerKind | str, Layer]:
    """Every kind of layer, the embedding and the head, with all that runs in them."""
    layers: dict[LayerKind | str, Layer] = {
        kind: blocks.layer(job.model, kind, shard) for kind in dict.fromkeys(layer_kinds(job.model))
    }
    layers[EMBEDDING] = ends.embedding(job.model, shard)
    layers[HEAD] = ends.head(
        job.model,
        shard,
        logits_kept_bytes=job.runtime.memory.logits_kept_bytes / job.workload.widening,  # fp32 values for the most part
        logits_peak_bytes=job.runtime.memory.logits_peak_bytes / job.workload.widening,
        vocab_multiple=job.runtime.vocab_multiple,
    )
    layers[HEAD] = _with_predictors(job, shard, layers[HEAD])
    layers = {key: _widened(layer, job.workload.widening) for key, layer in layers.items()}
    if job.workload.task == "lora":
        layers = {key: _with_adapters(layer, job) for key, layer in layers.items()}
    rows = len(shard.tp)
    layers = {
        key: layer._replace(
            streams=(
                *layer.streams,
                *casts(job, layer.gemms),
                *core_casts(job, layer.attentions),
                *_of_weights(job, key, layer, rows),
            )
        )
        for key, layer in layers.items()
    }
    if job.runtime.amount("experts_together"):
        layers = {key: _in_one_piece(layer) for key, layer in layers.items()}
    if effects.separate_products(job.runtime):
        layers = {key: _apart(layer) for key, layer in layers.items()}
    return layers


def _apart(layer: Layer) -> Layer:
    """Products that share an input, each by itself; their gradients of it are added up.

    What goes into them is quantised once: the compiler sees that it is the same.
    """
    gemms: list[Gemm] = []
    sums: list[Stream] = []
    for gemm in layer.gemms:
        shares = gemm.parts or (1.0,)
        names = (gemm.name, *(f"{gemm.name}.{number}" for number in range(1, len(shares))))
        gemms += [gemm._replace(name=name, n=share * gemm.n) for name, share in zip(names, shares, strict=True)]
        if len(shares) > 1:
            sums.append(Stream("shared_input", gemm.groups * gemm.m * gemm.k, len(shares) - 1.0, way="backward"))
    return layer._replace(gemms=tuple(gemms), streams=(*layer.streams, *sums))


def _with_predictors(job: Job, shard: Shard, head: Layer) -> Layer:
    """The head with multi-token-prediction layers: each a join of two states, a layer and a head once more."""
    model, hidden = job.model, np.full_like(shard.tokens, job.model.hidden)
    parts = [head]
    for number in range(1, job.workload.mtp + 1):
        own = join(blocks.layer(model, layer_kinds(model)[-1], shard), head)
        gemms = (Gemm("join", shard.tokens, hidden / shard.tp, 2 * hidden), *own.gemms)
        parts.append(own._replace(gemms=tuple(gemm._replace(name=f"mtp{number}.{gemm.name}") for gemm in gemms)))
    return join(*parts) if len(parts) > 1 else head


def modules_in(job: Job) -> tuple[str, ...]:
    """What the job's strategies may recompute of its model; core attention, which is first, always."""
    wanted = job.repeats
    return tuple(name for name in modules_of(job.model) if wanted is None or name in wanted or name == MODULES[0])


def kernel_of(runtime: Runtime, name: str) -> Kernel:
    """What a memory-bound kernel moves: the runtime's own, or the one that comes with the block."""
    return runtime.kernels.get(name) or KERNELS[name]


def in_bf16(gemm: Gemm) -> bool:
    """Whether fp8 jobs run a product in bf16: adapters, and products of activations too."""
    return not gemm.weight or gemm.name.rpartition(".")[2] in BF16_GEMMS or "_lora_" in gemm.name


def trained(job: Job, gemm: Gemm) -> bool:
    """Whether a product has a weight gradient."""
    return gemm.weight and (job.workload.task != "lora" or "_lora_" in gemm.name)


def _widened(layer: Layer, widening: float) -> Layer:
    """What a layer keeps, in elements of the job's width."""
    if widening == 1:
        return layer
    modules = {name: module._replace(saved=widening * module.saved) for name, module in layer.modules.items()}
    return layer._replace(kept=Kept(*(widening * column for column in layer.kept)), modules=modules)


def _with_adapters(layer: Layer, job: Job) -> Layer:
    """Low-rank adapters beside frozen matrices: all, those of attention or its input alone (Hu et al. 2021)."""
    rank, chosen = job.workload.lora_rank, job.workload.lora_targets
    adapted = [
        gemm
        for gemm in layer.gemms
        if not in_bf16(gemm)
        and (chosen == "all" or gemm.name in ATTENTION_GEMMS)
        and not (chosen == "qkv" and gemm.name == "attention_out")
    ]
    if effects.shared_adapters(job.runtime):
        experts = ("experts_in", "experts_out")
        adapted = [g._replace(m=g.groups * g.m, groups=1) if g.name in experts else g for g in adapted]
    adapters = [
        adapter
        for gemm in adapted
        for adapter in (
            gemm._replace(name=f"{gemm.name}_lora_a", n=np.full_like(gemm.m, rank), parts=()),
            gemm._replace(name=f"{gemm.name}_lora_b", k=np.full_like(gemm.m, rank), parts=()),
        )
    ]
    return layer._replace(gemms=(*layer.gemms, *adapters))


def _in_one_piece(layer: Layer) -> Layer:
    """Kernels that take all experts at once."""
    together = (stream._replace(groups=np.minimum(stream.groups, 1.0)) for stream in layer.streams)
    return layer._replace(streams=tuple(together))


def casts(job: Job, gemms: tuple[Gemm, ...]) -> list[Stream]:
    """Quantising what goes into fp8 GEMMs: inputs in forward, output gradients in backward.

    Fused experts quantise what passes between their two products.
    """
    if not job.workload.low:
        return []
    low, own = [gemm for gemm in gemms if not in_bf16(gemm)], scaling(job)
    moved = own.share * own.cast_bytes  # over those of the usual way, which the kernel is counted with
    inputs, outputs = ("experts_out", "experts_in") if fuses_experts(job) else ("", "")
    return [
        *(
            Stream("fp8_cast", moved * gemm.groups * gemm.m * gemm.k, way="forward", groups=gemm.groups)
            for gemm in low
            if gemm.name != inputs
        ),
        *(
            Stream("fp8_cast", moved * gemm.groups * gemm.m * gemm.n, way="backward", groups=gemm.groups)
            for gemm in low
            if gemm.name != outputs
        ),
    ]


def core_casts(job: Job, attentions: tuple[Attention, ...]) -> list[Stream]:
    """Quantising what goes into attention in fp8: queries, keys and values in forward, its gradient in backward."""
    if job.words.attention != "fp8":
        return []
    found = []
    for core in attentions:
        tokens = core_cast_bytes(job) * core.batch * core.seq_q
        keys, values = tokens * core.kv_heads * core.head_dim, tokens * core.kv_heads * core.head_dim_v
        found += [
            Stream("core_cast", each, way="forward") for each in (tokens * core.heads * core.head_dim, keys, values)
        ]
        found.append(Stream("core_cast", tokens * core.heads * core.head_dim_v, way="backward"))
    return found


def _of_weights(job: Job, key: LayerKind | str, layer: Layer, rows: int) -> list[Stream]:
    """Copies of weights and gradients.

    Weight gradients are added to the buffer micro-batches share, where the GEMM does not do it itself. Runtimes that
    gather unit by unit copy weights out of a buffer, frozen ones and those of the embedding too.
    """
    added, gathered = (
        sum((g.groups * g.k * g.n for g in layer.gemms if chosen(g)), start=np.zeros(rows))
        for chosen in (partial(trained, job), attrgetter("weight"))
    )
    if not job.runtime.kernels["gather"].forward_bytes:
        return [Stream("accumulate", added, way="backward")]
    if key == EMBEDDING and not job.model.tied_embeddings:
        table = weights_of.embedding_weights(job.model).total
        added, gathered = added + table * (job.workload.task != "lora"), gathered + table
    return [Stream("accumulate", added, way="backward"), Stream("gather", gathered)]
