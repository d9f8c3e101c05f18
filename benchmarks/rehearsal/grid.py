"""The rehearsal grid: which ranks of which jobs are played on one GPU.

Three parts. ``ladders`` change one thing at a time around a few well-known jobs, so that an error of the model can be
put down to a knob. ``sample`` draws strategies at random (fixed seed) over all knobs, so that the error measured on
it is that of the strategies a search would look at. ``edge`` draws jobs about as large as the card. Rough memory and
time estimates only keep the grid affordable. Half of the rows are for fitting and half for testing, by a
hash of the strategy id (``Case.split``): all stages of a job fall into the same half.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

from astra.lab.rehearse.case import Case, Shape, coverage_order

GIB: Final = 2**30
MOST_BYTES: Final = 150 * GIB  # estimate; the card has about 139 GiB
MOST_SECONDS: Final = 2.6  # estimate for the three or more steps of a case
ASSUMED_FLOPS: Final = 450e12
SAMPLE: Final = 320  # random cases

_LLAMA3 = {"vocab": 128256, "head_dim": 128}
SHAPES: Final[dict[str, Shape]] = {
    shape.name: shape
    for shape in (
        Shape(name="llama3.2-1b", layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256,
              tied_embeddings=True),
        Shape(name="llama3-8b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, **_LLAMA3),
        Shape(name="llama3-70b", layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, **_LLAMA3),
        Shape(name="llama3-405b", layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8, **_LLAMA3),
        Shape(name="llama2-7b", layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, head_dim=128, vocab=32000),
        Shape(name="llama2-13b", layers=40, hidden=5120, ffn=13824, heads=40, kv_heads=40, head_dim=128, vocab=32000),
        Shape(name="llama2-70b", layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, head_dim=128, vocab=32000),
        Shape(name="gpt3-175b", layers=96, hidden=12288, ffn=49152, heads=96, kv_heads=96, head_dim=128, vocab=50257,
              gated_mlp=False, norm="layernorm", biases=True, learned_positions=True, tied_embeddings=True),
        Shape(name="qwen2.5-7b", layers=28, hidden=3584, ffn=18944, heads=28, kv_heads=4, head_dim=128, vocab=152064,
              qkv_bias=True),
        Shape(name="qwen2.5-32b", layers=64, hidden=5120, ffn=27648, heads=40, kv_heads=8, head_dim=128, vocab=152064,
              qkv_bias=True),
        Shape(name="mixtral-8x7b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, vocab=32000,
              experts=8, topk=2, moe_ffn=14336),
        Shape(name="qwen3-30b-a3b", layers=48, hidden=2048, ffn=6144, heads=32, kv_heads=4, head_dim=128,
              vocab=151936, qk_norm=True, experts=128, topk=8, moe_ffn=768),
        # The widths of DeepSeek-V2-Lite with plain attention and 24 layers, all of them MoE.
        Shape(name="deepseek-lite-mha", layers=24, hidden=2048, ffn=10944, heads=16, kv_heads=16, head_dim=128,
              vocab=102400, experts=64, topk=6, moe_ffn=1408, shared_ffn=2816),
    )
}  # fmt: skip


def layer_params(shape: Shape, tp: int, ep: int) -> tuple[float, float]:
    """Parameters of one layer on a rank: (shared by data parallelism, experts)."""
    heads = shape.heads * shape.head_dim
    kv = shape.kv_heads * shape.head_dim
    attention = shape.hidden * (2 * heads + 2 * kv) / tp
    if not shape.experts:
        return attention + (3 if shape.gated_mlp else 2) * shape.hidden * shape.ffn / tp, 0.0
    shared = 3 * shape.hidden * shape.shared_ffn / tp + shape.hidden * shape.experts
    return attention + shared, 3 * shape.hidden * shape.moe_ffn * shape.experts / ep


def estimate(case: Case) -> tuple[float, float]:
    """Rough (bytes, seconds) of a case: a filter, not a prediction."""
    shape, layers = case.shape, case.layers_per_chunk * case.vp
    dense, experts = (layers * part for part in layer_params(shape, case.tp, case.ep))
    ends = (case.stage == 0) + (case.stage == case.pp - 1)
    table = shape.vocab * shape.hidden / case.tp
    dense += ends * table
    shards = case.dp if case.zero else 1
    expert_shards = max(1, case.tp * case.dp // case.ep) if case.zero else 1
    static = dense * (6 + 12 / shards) + experts * (6 + 12 / expert_shards)
    tokens = case.mbs * case.seq
    unsharded = 1 if not case.sp else 1 / case.tp
    width = shape.topk * (3 * shape.moe_ffn + 2 * shape.hidden) + 3 * shape.shared_ffn if shape.experts else 0
    width = width or 3.2 * shape.ffn / case.tp
    inner = 2 * tokens * ((4 * shape.heads + 4 * shape.kv_heads) * shape.head_dim / case.tp + width)
    kept = inner + 2 * tokens * shape.hidden * 5 * unsharded
    checkpoint = 2 * tokens * shape.hidden * unsharded
    share = {"none": 1.0, "selective": 0.95, "full": 0.0}[case.recompute]
    if case.recompute == "full" and case.method == "block":
        share = 1 - min(1, case.recompute_layers / case.layers_per_chunk)
    held = case.pp - case.stage if case.vp == 1 else (case.pp - case.stage) * 2 + (case.vp - 1) * case.pp
    per_microbatch = case.layers_per_chunk * (share * kept + (1 - share) * checkpoint)
    logits = 12 * tokens * shape.vocab / case.tp if case.stage == case.pp - 1 else 0
    active = dense + experts * case.ep * shape.topk / shape.experts if shape.experts else dense
    flops = 6 * active * tokens + 6 * layers * tokens * case.seq * shape.heads * shape.head_dim / case.tp
    flops *= 1 + (1 - share) / 3
    seconds = 3 * case.num_microbatches * flops / ASSUMED_FLOPS
    return static + min(held, case.num_microbatches * case.vp) * per_microbatch + kept + logits, seconds


def ladders() -> list[Case]:
    """One knob at a time around three dense jobs and one MoE job."""
    small = Case(shape=SHAPES["llama3-8b"], tp=2, pp=4, dp=8, sp=True, seq=4096, stage=1)
    large = Case(shape=SHAPES["llama3-70b"], tp=8, pp=8, dp=8, sp=True, seq=4096, stage=3)
    huge = Case(shape=SHAPES["llama3-405b"], tp=8, pp=18, dp=8, sp=True, seq=4096, stage=15)
    moe = Case(shape=SHAPES["mixtral-8x7b"], tp=2, pp=4, ep=8, dp=8, sp=True, seq=4096, stage=1)
    steps: list[tuple[Case, dict[str, Any]]] = [
        *((small, {"tp": tp, "sp": sp}) for tp, sp in ((1, False), (2, True), (2, False), (4, True), (8, True))),
        *((small, {"stage": stage}) for stage in (0, 2, 3)),
        *((small, {"seq": seq}) for seq in (2048, 8192, 16384)),
        *((small, {"mbs": mbs}) for mbs in (2, 4)),
        *((small, {"dp": dp, "zero": zero}) for dp, zero in ((1, 0), (8, 0), (1, 1), (64, 1))),
        (small, {"recompute": "selective"}),
        *((small, {"recompute": "full", "method": "uniform", "recompute_layers": n}) for n in (1, 2, 4)),
        *((small, {"recompute": "full", "method": "block", "recompute_layers": n}) for n in (2, 4, 8)),
        *((small, {"vp": vp, "stage": stage}) for vp, stage in ((2, 0), (4, 0), (2, 3))),
        (small, {"attention": "cudnn"}),
        (small, {"overlap_grad": True}),
        *((small, {"stage": 3, "fused_cross_entropy": fused, "mbs": 2}) for fused in (True, False)),
        *((large, {"stage": stage}) for stage in (0, 3, 7)),
        *((large, {"tp": tp, "pp": pp, "stage": 2}) for tp, pp in ((4, 16), (8, 4), (8, 16))),
        *((large, {"sp": False, "recompute": recompute}) for recompute in ("none", "selective")),
        (large, {"recompute": "full", "method": "uniform", "recompute_layers": 1}),
        (large, {"attention": "cudnn", "seq": 8192}),
        *((large, {"vp": vp, "stage": 0}) for vp in (2, 5)),
        *((huge, {"stage": stage, "seq": seq}) for stage, seq in ((15, 4096), (17, 4096), (0, 1024), (16, 8192))),
        *((huge, {"recompute": "full", "method": "block", "recompute_layers": n}) for n in (1, 7)),
        (huge, {"pp": 14, "stage": 13}),
        *((moe, {"ep": ep, "tp": tp, "sp": tp > 1}) for ep, tp in ((8, 2), (4, 2), (8, 1), (2, 2))),
        *((moe, {"stage": stage}) for stage in (0, 3)),
        (moe, {"recompute": "full"}),
        (moe, {"mbs": 2}),
    ]
    return [replace(base, **change) for base, change in steps]


def _pick(rng: random.Random, **weights: float) -> str:
    """A key, drawn by weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def draw(rng: random.Random) -> Case:
    """One random legal case."""
    shape = SHAPES[rng.choice(sorted(SHAPES))]
    tp = rng.choice([t for t in ((1, 2, 4, 8) if shape.hidden < 8192 else (4, 8, 8)) if shape.heads % t == 0])
    pp = rng.choice([p for p in (1, 2, 4, 7, 8, 9, 12, 14, 16, 18, 21, 24) if shape.layers % p == 0])
    per_stage = shape.layers // pp
    vp = rng.choice([v for v in (1, 1, 1, 1, 2, 3, 4, 5) if per_stage % v == 0 and (v == 1 or pp > 1)])
    dp = rng.choice((1, 8, 64))
    zero = 1 if rng.random() < 0.8 else 0
    eps = [e for e in (1, 4, 8) if shape.experts % e == 0 and (tp * dp) % e == 0] if shape.experts else [1]
    recompute = _pick(rng, none=0.45, selective=0.15, uniform=0.15, block=0.25)
    method = recompute if recompute in ("uniform", "block") else "uniform"
    layers = rng.randint(1, max(1, per_stage // vp)) if recompute == "block" else rng.choice((1, 1, 2))
    seqs = (1024, 2048, 4096) if shape.learned_positions else (2048, 4096, 4096, 8192, 8192, 16384, 32768)
    return Case(
        shape=shape, tp=tp, pp=pp, vp=vp, ep=rng.choice(eps), dp=dp, zero=zero,
        stage=rng.choice((0, pp // 2, pp - 1)), mbs=rng.choice((1, 1, 2, 4)), seq=rng.choice(seqs),
        sp=tp > 1 and (bool(shape.experts) or rng.random() < 0.75),
        recompute=recompute if recompute in ("none", "selective") else "full",
        method=method, recompute_layers=layers if recompute in ("uniform", "block") else 1,
        attention=_pick(rng, flash=0.85, cudnn=0.15), fused_cross_entropy=rng.random() < 0.1,
        overlap_grad=zero == 1 and rng.random() < 0.15,
    )  # fmt: skip


def sample(count: int, seed: int = 20, low: float = 4 * GIB, high: float = MOST_BYTES) -> list[Case]:
    """``count`` different affordable cases whose rough memory lies between ``low`` and ``high``."""
    rng = random.Random(seed)
    found: dict[str, Case] = {}
    while len(found) < count:
        case = draw(rng)
        nbytes, seconds = estimate(case)
        if low < nbytes < high and seconds < MOST_SECONDS:
            found[case.id] = case
    return list(found.values())


def edge(count: int = 30) -> list[Case]:
    """Cases about as large as the card: does the model know which of them fit?"""
    return sample(count, seed=7, low=110 * GIB, high=210 * GIB)


def cases(count: int = SAMPLE) -> list[Case]:
    """The whole grid, in the order in which it is run; ids are unique and any prefix of the sample is fair."""
    unique = {case.id: case for case in (*ladders(), *edge(), *coverage_order(sample(count)))}
    return list(unique.values())
