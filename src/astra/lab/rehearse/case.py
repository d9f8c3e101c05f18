"""What a rehearsal plays, one rank of a training job, and the row it is measured into. Plain records, no torch.

Letters: s sequence, b micro-batch, t tensor parallel, p pipeline stages, v chunks per stage, m micro-batches.
"""

from __future__ import annotations

import hashlib
import traceback
from typing import Any, Final, Literal

import msgspec

from astra.schedule.registry import find
from astra.spec.model import ModelSpec
from astra.spec.record import Spec, check
from astra.spec.strategy import Strategy, replace

Framework = Literal["megatron", "torch", "fsdp2", "transformers", "torchtitan"]
# What every rehearsed rank does; rows of earlier versions do not say it.
_PLAIN_WORDS: Final = (
    "overlap=none",
    "graphs=none",
    "params=bf16",
    "grads=fp32",
    "reshard=always",
    "dispatch=alltoall",
)
_ALLOCATED: Final = (
    "built_bytes",
    "static_bytes",
    "peak_train_bytes",
    "peak_optimizer_bytes",
    "peak_allocated_bytes",
    "allocated_at_oom_bytes",
    "peak_fwd_bytes",
    "peak_bwd_bytes",
    "after_fwd_bytes",
    "after_bwd_bytes",
)


class Case(Spec, frozen=True, kw_only=True):
    """One rank of one job: pipeline stage ``stage``, first of its tensor, data and expert groups."""

    model: ModelSpec
    strategy: Strategy
    seq: int = 4096
    stage: int = 0
    microbatches: int = 0  # 0: as few as show the steady state
    framework: Framework = "megatron"
    attention: Literal["flash", "cudnn", "sdpa"] = "flash"  # chosen, or what torch takes by itself
    fused_cross_entropy: bool = False
    compiled: bool = False  # each layer and the loss by torch.compile; FSDP2 alone
    precision: Literal["bf16", "fp8-rowwise"] = "bf16"  # of products in layers; torchtitan alone

    def __post_init__(self) -> None:
        model, strategy = self.model, self.strategy
        tp, pp, vp, ep = strategy.tp, strategy.pp, strategy.vp, strategy.ep
        self._check_layers()
        check(0 <= self.stage < pp, "case.stage", self.stage, f"0 to {pp - 1}")
        check(model.heads % tp == 0, "case.tp", tp, f"a divisor of heads={model.heads}")
        check(not strategy.sp or self.seq % tp == 0, "case.seq", self.seq, f"a multiple of tp={tp} under sp")
        check(vp == 1 or pp > 1, "case.vp", vp, "1 without a pipeline")
        check(self.attention in ("flash", "cudnn", "sdpa"), "case.attention", self.attention, "flash, cudnn or sdpa")
        check(ep == 1 or self.experts > 0, "case.ep", ep, "1 for a dense model")
        check(self.experts % ep == 0, "case.ep", ep, f"a divisor of experts={self.experts}")
        check(tp * strategy.dp % ep == 0, "case.ep", ep, f"a divisor of tp*dp={tp * strategy.dp}")
        alone = not self.experts or tp == 1
        check(alone or strategy.sp, "case.sp", strategy.sp, "on for experts under tensor parallelism")
        m = self.microbatches
        check(vp == 1 or m % pp == 0, "case.microbatches", m, f"a multiple of pp={pp} when interleaved")

    def _check_layers(self) -> None:
        layers, chunks, given = self.model.layers, self.strategy.pp * self.strategy.vp, self.strategy.layers
        if given:
            check(sum(given) == layers, "case.layers", sum(given), f"layers that add up to {layers}")
        else:
            check(layers % chunks == 0, "case.pp*vp", chunks, f"a divisor of layers={layers}")

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return self.model.moe.experts if self.model.moe else 0

    @property
    def overlap_grad(self) -> bool:
        """Whether gradients go in buckets, as --overlap-grad-reduce --overlap-param-gather make them."""
        return "grad" in self.strategy.overlap

    @property
    def overlaps_experts(self) -> bool:
        """Whether expert exchanges run beside another micro-batch, as --overlap-moe-expert-parallel-comm makes them."""
        return "ep" in self.strategy.overlap

    @property
    def rank(self) -> int:
        """Global rank played; Megatron's default order is tp-cp-ep-dp-pp, pipeline outermost."""
        return self.stage * self.strategy.tp * self.strategy.dp

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a rehearsed step: enough to pass the pipeline's fullest moment."""
        return self.microbatches or fewest_microbatches(self.strategy.pp, self.strategy.vp, self.stage)

    @property
    def chunk_layers(self) -> tuple[int, ...]:
        """Transformer layers of each chunk of this rank."""
        strategy = self.strategy
        if strategy.layers:
            place = find(strategy.schedule).place(strategy.pp, strategy.vp)
            return tuple(strategy.layers[stage] for stage in place[:, self.stage].tolist())
        return (self.model.layers // (strategy.pp * strategy.vp),) * strategy.vp

    @property
    def layout(self) -> str | None:
        """Uneven layers in Megatron's own words: ``Et*3|t*4|t*4L``; None where they are even."""
        layers = self.strategy.layers
        if len(set(layers)) < 2:
            return None
        words = [f"t*{count}" if count else "" for count in layers]
        return "|".join(["E" + words[0], *words[1:]]) + "L"

    @property
    def words(self) -> str:
        """The strategy in words, without what is told apart (whether gradients overlap) and what is plain."""
        said = str(replace(self.strategy, overlap=())).split()
        return " ".join(one for one in said if one not in _PLAIN_WORDS)

    @property
    def strategy_id(self) -> str:
        """Model, workload and strategy: stages of one job share it, so they fall into one split."""
        extra = "" if self.attention == "flash" else f"/{self.attention}"
        extra += "/fusedce" if self.fused_cross_entropy else ""
        extra += "/overlap" if self.overlap_grad else ""
        extra += "/hidden" if self.overlaps_experts else ""
        extra += "" if self.framework in ("megatron", "torch") else f"/{self.framework}"
        extra += "/compiled" if self.compiled else ""
        extra += "" if self.precision == "bf16" else f"/{self.precision}"
        return f"{self.model.name}-L{self.model.layers}-V{self.model.vocab}/s{self.seq}/{self.words}{extra}"

    @property
    def id(self) -> str:
        """Unique name of the row."""
        return f"{self.strategy_id}/stage{self.stage}/m{self.num_microbatches}"

    @property
    def split(self) -> str:
        """``fit`` or ``test``: first bit of the SHA-256 of the strategy id."""
        return "fit" if hashlib.sha256(self.strategy_id.encode()).digest()[0] & 1 == 0 else "test"


def padded_vocab(vocab: int, tp: int) -> int:
    """Megatron pads the vocabulary to a multiple of 128 t."""
    step = 128 * tp
    return -(-vocab // step) * step


def write_cases(cases: list[Case]) -> str:
    """Cases as JSON, for another process."""
    return msgspec.json.encode(cases).decode()


def read_cases(text: str) -> list[Case]:
    """The cases another process has written."""
    return msgspec.json.decode(text, type=list[Case])


def fewest_microbatches(pp: int, vp: int, stage: int) -> int:
    """Micro-batches after which a stage has been as full as it gets, and has run one more."""
    return 2 * pp if vp > 1 else max(pp - stage + 1, 2)


_STRATEGY: Final = (
    "tp", "pp", "vp", "ep", "dp", "mbs", "sp", "zero", "recompute", "method", "recompute_layers", "layers",
)  # fmt: skip
_CASE: Final = (
    "id",
    "split",
    "seq",
    "stage",
    "attention",
    "fused_cross_entropy",
    "overlap_grad",
    "overlaps_experts",
    "framework",
    "compiled",
    "precision",
)
MODEL_FIELDS: Final = (
    "name", "layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "gated_mlp", "norm", "tied_embeddings",
)  # fmt: skip


def as_row(case: Case) -> dict[str, Any]:
    """Plain data: what was played, before what was measured."""
    return {
        **{name: getattr(case, name) for name in _CASE},
        **{name: getattr(case.strategy, name) for name in _STRATEGY},
        "strategy": case.words,
        "world": case.strategy.gpus,
        "microbatches": case.num_microbatches,
        "shape": _shape(case.model),
    }


def refused(case: Case, error: Exception) -> dict[str, Any]:
    """The row of a case that its framework refuses, with where: the others go on."""
    where = traceback.format_exc().strip().splitlines()[-12:]
    return {**as_row(case), "oom": False, "error": f"{type(error).__name__}: {error}"[:400], "traceback": where}


def _shape(model: ModelSpec) -> dict[str, Any]:
    """The part of a model that decides a rank's kernels and memory."""
    moe = model.moe
    return {
        **{name: getattr(model, name) for name in MODEL_FIELDS},
        "biases": model.mlp_bias,  # GPT-2 style: every linear layer has one
        "qkv_bias": model.qkv_bias and not model.mlp_bias,
        "qk_norm": model.qk_norm == "per_head",
        "learned_positions": model.learned_positions > 0,
        "experts": moe.experts if moe else 0,
        "topk": moe.topk if moe else 0,
        "moe_ffn": moe.ffn if moe else 0,
        "shared_ffn": moe.shared_ffn if moe else 0,
    }


def net_of_before(row: dict[str, Any]) -> dict[str, Any]:
    """Take what earlier cases had left allocated out of every memory reading."""
    for name in _ALLOCATED:
        if name in row:
            row[name] -= row["before_bytes"]
    if "peak_reserved_bytes" in row:
        row["peak_reserved_bytes"] -= row["reserved_before_bytes"]
    return row


def fill_seconds(fills: list[tuple[str, int]], costs: dict[str, tuple[float, float]]) -> float:
    """Time the logged fills took on the GPU."""
    return sum(costs[kind][0] + costs[kind][1] * nbytes for kind, nbytes in fills)
