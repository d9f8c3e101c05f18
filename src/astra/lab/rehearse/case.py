"""What a rehearsal plays: one rank of a training job. Plain records and arithmetic, no torch.

Letters: s sequence, b micro-batch, t tensor parallel, p pipeline stages, v chunks per stage, m micro-batches.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from astra.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The part of a model's shape that decides a rank's kernels and memory."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated_mlp: bool = True
    norm: str = "rmsnorm"
    biases: bool = False  # GPT-2 style: every linear layer has one
    qkv_bias: bool = False
    qk_norm: bool = False
    learned_positions: bool = False  # instead of rotary
    tied_embeddings: bool = False
    experts: int = 0
    topk: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0

    def __post_init__(self) -> None:
        _check(self.heads % self.kv_heads == 0, "shape.kv_heads", self.kv_heads, f"a divisor of heads={self.heads}")
        _check(self.experts == 0 or 0 < self.topk <= self.experts, "shape.topk", self.topk, "1 to experts")
        _check(self.experts == 0 or self.moe_ffn > 0, "shape.moe_ffn", self.moe_ffn, "1 or more")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank of one job: pipeline stage ``stage``, first of its tensor, data and expert groups."""

    shape: Shape
    tp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    dp: int = 1
    stage: int = 0
    mbs: int = 1
    seq: int = 4096
    microbatches: int = 0  # 0: as few as show the steady state
    sp: bool = False
    zero: int = 1  # 0: replicated optimizer; 1: Megatron's distributed optimizer
    recompute: str = "none"
    method: str = "uniform"
    recompute_layers: int = 1
    attention: str = "flash"  # flash | cudnn
    fused_cross_entropy: bool = False
    overlap_grad: bool = False  # buckets, as --overlap-grad-reduce --overlap-param-gather make them
    layers: tuple[int, ...] = ()  # of each virtual stage in pipeline order; empty: even

    def __post_init__(self) -> None:
        shape = self.shape
        object.__setattr__(self, "layers", tuple(self.layers))  # a list, when read from JSON
        self._check_layers()
        _check(0 <= self.stage < self.pp, "case.stage", self.stage, f"0 to {self.pp - 1}")
        _check(shape.heads % self.tp == 0, "case.tp", self.tp, f"a divisor of heads={shape.heads}")
        _check(not self.sp or self.seq % self.tp == 0, "case.seq", self.seq, f"a multiple of tp={self.tp} under sp")
        _check(self.zero in (0, 1), "case.zero", self.zero, "0 or 1")
        _check(self.vp == 1 or self.pp > 1, "case.vp", self.vp, "1 without a pipeline")
        _check(self.recompute in ("none", "selective", "full"), "case.recompute", self.recompute, "none|selective|full")
        _check(self.method in ("uniform", "block"), "case.method", self.method, "uniform or block")
        _check(self.attention in ("flash", "cudnn"), "case.attention", self.attention, "flash or cudnn")
        experts = shape.experts
        _check(self.ep == 1 or experts > 0, "case.ep", self.ep, "1 for a dense model")
        _check(experts % self.ep == 0 if experts else True, "case.ep", self.ep, f"a divisor of experts={experts}")
        _check((self.tp * self.dp) % self.ep == 0, "case.ep", self.ep, f"a divisor of tp*dp={self.tp * self.dp}")
        _check(not experts or self.tp == 1 or self.sp, "case.sp", self.sp, "on for experts under tensor parallelism")
        m = self.microbatches
        _check(self.vp == 1 or m % self.pp == 0, "case.microbatches", m, f"a multiple of pp={self.pp} when interleaved")

    def _check_layers(self) -> None:
        layers, chunks = self.shape.layers, self.pp * self.vp
        if not self.layers:
            _check(layers % chunks == 0, "case.pp*vp", chunks, f"a divisor of layers={layers}")
            return
        _check(len(self.layers) == chunks, "case.layers", len(self.layers), f"one number per virtual stage, {chunks}")
        _check(sum(self.layers) == layers, "case.layers", sum(self.layers), f"layers that add up to {layers}")
        _check(min(self.layers) >= 0, "case.layers", min(self.layers), "0 or more layers in each")

    @property
    def world(self) -> int:
        """GPUs of the whole job."""
        return self.tp * self.pp * self.dp

    @property
    def rank(self) -> int:
        """Global rank played; Megatron's default order is tp-cp-ep-dp-pp, pipeline outermost."""
        return self.stage * self.tp * self.dp

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of a rehearsed step: enough to pass the pipeline's fullest moment."""
        return self.microbatches or fewest_microbatches(self.pp, self.vp, self.stage)

    @property
    def layers_per_chunk(self) -> int:
        """Transformer layers of each chunk, where they are even."""
        return self.shape.layers // (self.pp * self.vp)

    @property
    def chunk_layers(self) -> tuple[int, ...]:
        """Transformer layers of each chunk of this rank."""
        return self.layers[self.stage :: self.pp] if self.layers else (self.layers_per_chunk,) * self.vp

    @property
    def layout(self) -> str | None:
        """Uneven layers in Megatron's own words: ``Et*3|t*4|t*4L``; None where they are even."""
        if len(set(self.layers)) < 2:
            return None
        words = [f"t*{count}" if count else "" for count in self.layers]
        return "|".join(["E" + words[0], *words[1:]]) + "L"

    @property
    def strategy(self) -> str:
        """The parallel strategy in the planner's own words, without what belongs to the rank or workload."""
        words = [f"tp{self.tp}", f"pp{self.pp}"] + [f"vp{self.vp}"] * (self.vp > 1) + [f"ep{self.ep}"] * (self.ep > 1)
        words += [f"dp{self.dp}", f"mbs{self.mbs}"] + ["sp"] * self.sp + [f"zero{self.zero}"]
        words.append(f"recompute={self.recompute}")
        if self.recompute == "full":
            words += [f"method={self.method}", f"recompute_layers={self.recompute_layers}"]
        if self.layout:
            words.append("layers=" + ",".join(map(str, self.layers)))
        return " ".join(words)

    @property
    def strategy_id(self) -> str:
        """Model, workload and strategy: stages of one job share it, so they fall into one split."""
        extra = ("/cudnn" if self.attention == "cudnn" else "") + ("/fusedce" if self.fused_cross_entropy else "")
        extra += "/overlap" if self.overlap_grad else ""
        return f"{self.shape.name}-L{self.shape.layers}-V{self.shape.vocab}/s{self.seq}/{self.strategy}{extra}"

    @property
    def id(self) -> str:
        """Unique name of the row."""
        return f"{self.strategy_id}/stage{self.stage}/m{self.num_microbatches}"

    @property
    def split(self) -> str:
        """``fit`` or ``test``: first bit of the SHA-256 of the strategy id."""
        return "fit" if _digest(self.strategy_id)[0] & 1 == 0 else "test"

    def as_row(self) -> dict[str, Any]:
        """Plain data: what was played, before what was measured."""
        shape = asdict(self.shape)
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "shape"}
        derived = {"id": self.id, "split": self.split, "strategy": self.strategy, "world": self.world}
        return {**derived, **plain, "microbatches": self.num_microbatches, "shape": shape}


def write_cases(cases: list[Case]) -> str:
    """Cases as JSON, for another process."""
    return json.dumps([asdict(case) for case in cases])


def read_cases(text: str) -> list[Case]:
    """The cases another process has written."""
    return [Case(**{**plain, "shape": Shape(**plain["shape"])}) for plain in json.loads(text)]


def fewest_microbatches(pp: int, vp: int, stage: int) -> int:
    """Micro-batches after which a stage has been as full as it gets, and has run one more."""
    return 2 * pp if vp > 1 else max(pp - stage + 1, 2)


def in_flight(pp: int, stage: int, microbatches: int) -> int:
    """Micro-batches whose activations a 1F1B stage holds at its fullest."""
    return min(pp - stage, microbatches)


def coverage_order(cases: list[Case]) -> list[Case]:
    """Order in which any prefix is a fair sample of the whole: by hash of the id."""
    return sorted(cases, key=lambda case: _digest(case.id))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _check(condition: bool, where: str, got: object, want: str) -> None:
    if not condition:
        raise InputError(where, got, want=want)
