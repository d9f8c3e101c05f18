"""The rehearsal grid: which ranks of which jobs are played on one GPU.

Three parts. ``ladders`` change one thing at a time around a few well-known jobs, so that an error of the model can be
put down to a knob. ``sample`` draws strategies at random (fixed seed) over all knobs, so that the error measured on
it is that of the strategies a search would look at. ``edge`` draws jobs about as large as the card. Rough memory and
time estimates only keep the grid affordable. Half of the rows are for fitting and half for testing, by a
hash of the strategy id (``Case.split``): all stages of a job fall into the same half.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from typing import Any, Final

from msgspec.structs import replace

from astra.lab.rehearse.case import Case
from astra.spec.model import ModelSpec, MoE
from astra.spec.strategy import Strategy, parse_strategy

GIB: Final = 2**30
MOST_BYTES: Final = 150 * GIB  # estimate; the card has about 139 GiB
MOST_SECONDS: Final = 2.6  # estimate for the three or more steps of a case
ASSUMED_FLOPS: Final = 450e12
SAMPLE: Final = 320  # random cases


def _model(**fields: Any) -> ModelSpec:
    """A model made for as many tokens as are rehearsed."""
    return ModelSpec(max_seq=32768, **fields)


_LLAMA3 = {"vocab": 128256, "head_dim": 128}
MODELS: Final[dict[str, ModelSpec]] = {
    model.name: model
    for model in (
        _model(name="llama3.2-1b", layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=128256,
              tied_embeddings=True),
        _model(name="llama3-8b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, **_LLAMA3),
        _model(name="llama3-70b", layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, **_LLAMA3),
        _model(name="llama3-405b", layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8, **_LLAMA3),
        _model(name="llama2-7b", layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, head_dim=128, vocab=32000),
        _model(name="llama2-13b", layers=40, hidden=5120, ffn=13824, heads=40, kv_heads=40, head_dim=128, vocab=32000),
        _model(name="llama2-70b", layers=80, hidden=8192, ffn=28672, heads=64, kv_heads=8, head_dim=128, vocab=32000),
        _model(name="gpt3-175b", layers=96, hidden=12288, ffn=49152, heads=96, kv_heads=96, head_dim=128, vocab=50257,
              gated_mlp=False, norm="layernorm", qkv_bias=True, out_bias=True, mlp_bias=True,
              learned_positions=4096, tied_embeddings=True),
        _model(name="qwen2.5-7b", layers=28, hidden=3584, ffn=18944, heads=28, kv_heads=4, head_dim=128, vocab=152064,
              qkv_bias=True),
        _model(name="qwen2.5-32b", layers=64, hidden=5120, ffn=27648, heads=40, kv_heads=8, head_dim=128, vocab=152064,
              qkv_bias=True),
        _model(name="mixtral-8x7b", layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, head_dim=128, vocab=32000,
              moe=MoE(experts=8, topk=2, ffn=14336)),
        _model(name="qwen3-30b-a3b", layers=48, hidden=2048, ffn=6144, heads=32, kv_heads=4, head_dim=128,
              vocab=151936, qk_norm="per_head", moe=MoE(experts=128, topk=8, ffn=768)),
        # The widths of DeepSeek-V2-Lite with plain attention and 24 layers, all of them MoE.
        _model(name="deepseek-lite-mha", layers=24, hidden=2048, ffn=10944, heads=16, kv_heads=16, head_dim=128,
              vocab=102400, moe=MoE(experts=64, topk=6, ffn=1408, shared_ffn=2816)),
    )
}  # fmt: skip


# Of other widths, heads, vocabularies and experts than those above, which the cost model was made with.
OTHERS: Final[dict[str, ModelSpec]] = {
    model.name: model
    for model in (
        _model(name="llama3.2-3b", layers=28, hidden=3072, ffn=8192, heads=24, kv_heads=8, tied_embeddings=True,
              **_LLAMA3),
        _model(name="qwen3-8b", layers=36, hidden=4096, ffn=12288, heads=32, kv_heads=8, head_dim=128, vocab=151936,
              qk_norm="per_head"),
        _model(name="mistral-nemo-12b", layers=40, hidden=5120, ffn=14336, heads=32, kv_heads=8, head_dim=128,
              vocab=131072),
        _model(name="yi-34b", layers=60, hidden=7168, ffn=20480, heads=56, kv_heads=8, head_dim=128, vocab=64000),
        _model(name="opt-30b", layers=48, hidden=7168, ffn=28672, heads=56, kv_heads=56, head_dim=128, vocab=50272,
              gated_mlp=False, norm="layernorm", qkv_bias=True, out_bias=True, mlp_bias=True,
              learned_positions=4096, tied_embeddings=True),
        _model(name="olmoe-7b", layers=16, hidden=2048, ffn=1024, heads=16, kv_heads=16, head_dim=128, vocab=50304,
              moe=MoE(experts=64, topk=8, ffn=1024)),
        _model(name="phi-3.5-moe", layers=32, hidden=4096, ffn=6400, heads=32, kv_heads=8, head_dim=128, vocab=32064,
              moe=MoE(experts=16, topk=2, ffn=6400)),
        _model(name="mixtral-8x22b", layers=56, hidden=6144, ffn=16384, heads=48, kv_heads=8, head_dim=128,
              vocab=32768, moe=MoE(experts=8, topk=2, ffn=16384)),
        _model(name="dbrx", layers=40, hidden=6144, ffn=10752, heads=48, kv_heads=8, head_dim=128, vocab=100352,
              moe=MoE(experts=16, topk=4, ffn=10752)),
    )
}  # fmt: skip


# Many small experts, of other widths than those above; DeepSeek-V3 has plain attention here, and no dense layers.
FINE: Final[dict[str, ModelSpec]] = {
    model.name: model
    for model in (
        _model(name="qwen3-235b-a22b", layers=94, hidden=4096, ffn=12288, heads=64, kv_heads=4, head_dim=128,
              vocab=151936, qk_norm="per_head", moe=MoE(experts=128, topk=8, ffn=1536)),
        _model(name="glm-4.5-air", layers=46, hidden=4096, ffn=10944, heads=96, kv_heads=8, head_dim=128,
              vocab=151552, moe=MoE(experts=128, topk=8, ffn=1408, shared_ffn=1408)),
        _model(name="deepseek-v3-mha", layers=60, hidden=7168, ffn=18432, heads=56, kv_heads=56, head_dim=128,
              vocab=129280, moe=MoE(experts=256, topk=8, ffn=2048, shared_ffn=2048)),
        _model(name="qwen3-next-mha", layers=48, hidden=2048, ffn=5120, heads=16, kv_heads=2, head_dim=256,
              vocab=151936, qk_norm="per_head", moe=MoE(experts=512, topk=10, ffn=512, shared_ffn=512)),
    )
}  # fmt: skip
HELD: Final = (8, 16, 32, 64, 128)  # experts of a layer on one rank


def layer_params(model: ModelSpec, tp: int, ep: int) -> tuple[float, float]:
    """Parameters of one layer on a rank: (shared by data parallelism, experts)."""
    heads = model.heads * model.head_dim
    kv = model.kv_heads * model.head_dim
    attention = model.hidden * (2 * heads + 2 * kv) / tp
    moe = model.moe
    if moe is None:
        return attention + (3 if model.gated_mlp else 2) * model.hidden * model.ffn / tp, 0.0
    shared = 3 * model.hidden * moe.shared_ffn / tp + model.hidden * moe.experts
    return attention + shared, 3 * model.hidden * moe.ffn * moe.experts / ep


def estimate(case: Case) -> tuple[float, float]:
    """Rough (bytes, seconds) of a case: a filter, not a prediction."""
    model, moe, split = case.model, case.model.moe, case.strategy
    each, layers = case.chunk_layers[0], sum(case.chunk_layers)
    dense, experts = (layers * part for part in layer_params(model, split.tp, split.ep))
    ends = (case.stage == 0) + (case.stage == split.pp - 1)
    dense += ends * model.vocab * model.hidden / split.tp
    shards = split.dp if split.zero else 1
    expert_shards = max(1, split.tp * split.dp // split.ep) if split.zero else 1
    static = dense * (6 + 12 / shards) + experts * (6 + 12 / expert_shards)
    tokens = split.mbs * case.seq
    unsharded = 1 if not split.sp else 1 / split.tp
    width = moe.topk * (3 * moe.ffn + 2 * model.hidden) + 3 * moe.shared_ffn if moe else 3.2 * model.ffn / split.tp
    inner = 2 * tokens * ((4 * model.heads + 4 * model.kv_heads) * model.head_dim / split.tp + width)
    kept = inner + 2 * tokens * model.hidden * 5 * unsharded
    checkpoint = 2 * tokens * model.hidden * unsharded
    share = {"none": 1.0, "selective": 0.95, "full": 0.0}[split.recompute]
    if split.recompute == "full" and split.method == "block":
        share = 1 - min(1, split.recompute_layers / each)
    held = split.pp - case.stage if split.vp == 1 else (split.pp - case.stage) * 2 + (split.vp - 1) * split.pp
    per_microbatch = each * (share * kept + (1 - share) * checkpoint)
    logits = 12 * tokens * model.vocab / split.tp if case.stage == split.pp - 1 else 0
    active = dense + experts * split.ep * moe.topk / moe.experts if moe else dense
    flops = 6 * active * tokens + 6 * layers * tokens * case.seq * model.heads * model.head_dim / split.tp
    flops *= 1 + (1 - share) / 3
    seconds = 3 * case.num_microbatches * flops / ASSUMED_FLOPS
    return static + min(held, case.num_microbatches * split.vp) * per_microbatch + kept + logits, seconds


def changed(case: Case, **changes: Any) -> Case:
    """The case with fields of its own or of its strategy changed."""
    own = {name: changes.pop(name) for name in list(changes) if name in Case.__struct_fields__}
    if "vp" in changes:
        changes["schedule"] = "interleaved" if changes["vp"] > 1 else "1f1b"
    return replace(case, strategy=replace(case.strategy, **changes), **own)


def _case(model: str, strategy: str, stage: int) -> Case:
    return Case(model=MODELS[model], strategy=parse_strategy(strategy), stage=stage)


def ladders() -> list[Case]:
    """One knob at a time around three dense jobs and one MoE job."""
    small = _case("llama3-8b", "tp2 pp4 dp8 sp overlap=none", stage=1)
    large = _case("llama3-70b", "tp8 pp8 dp8 sp overlap=none", stage=3)
    huge = _case("llama3-405b", "tp8 pp18 dp8 sp overlap=none", stage=15)
    moe = _case("mixtral-8x7b", "tp2 pp4 ep8 dp8 sp overlap=none", stage=1)
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
        (small, {"overlap": ("grad", "param")}),
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
    return [changed(base, **change) for base, change in steps]


def _pick(rng: random.Random, **weights: float) -> str:
    """A key, drawn by weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def draw(rng: random.Random, models: dict[str, ModelSpec]) -> Case:
    """One random legal case."""
    model = models[rng.choice(sorted(models))]
    tp = rng.choice([t for t in ((1, 2, 4, 8) if model.hidden < 8192 else (4, 8, 8)) if model.heads % t == 0])
    pp = rng.choice([p for p in (1, 2, 4, 7, 8, 9, 12, 14, 16, 18, 21, 24) if model.layers % p == 0])
    per_stage = model.layers // pp
    vp = rng.choice([v for v in (1, 1, 1, 1, 2, 3, 4, 5) if per_stage % v == 0 and (v == 1 or pp > 1)])
    dp = rng.choice((1, 8, 64))
    zero = 1 if rng.random() < 0.8 else 0
    eps = [e for e in (1, 4, 8) if model.moe.experts % e == 0 and (tp * dp) % e == 0] if model.moe else [1]
    recompute = _pick(rng, none=0.45, selective=0.15, uniform=0.15, block=0.25)
    method = recompute if recompute in ("uniform", "block") else "uniform"
    layers = rng.randint(1, max(1, per_stage // vp)) if recompute == "block" else rng.choice((1, 1, 2))
    seqs = (1024, 2048, 4096) if model.learned_positions else (2048, 4096, 4096, 8192, 8192, 16384, 32768)
    # Drawn in this order: the grid that was run must stay what it was.
    ep, stage, mbs, seq = rng.choice(eps), rng.choice((0, pp // 2, pp - 1)), rng.choice((1, 1, 2, 4)), rng.choice(seqs)
    sp = tp > 1 and (model.moe is not None or rng.random() < 0.75)
    attention, fused = _pick(rng, flash=0.85, cudnn=0.15), rng.random() < 0.1
    overlap = ("grad", "param") if zero == 1 and rng.random() < 0.15 else ()
    strategy = Strategy(
        tp=tp, pp=pp, vp=vp, ep=ep, dp=dp, zero=zero, mbs=mbs, sp=sp, overlap=overlap,
        schedule="interleaved" if vp > 1 else "1f1b",
        recompute=recompute if recompute in ("none", "selective") else "full",
        method=method, recompute_layers=layers if recompute in ("uniform", "block") else 1,
    )  # fmt: skip
    return Case(model=model, strategy=strategy, seq=seq, stage=stage, attention=attention, fused_cross_entropy=fused)


def sample(
    count: int,
    seed: int = 20,
    low: float = 4 * GIB,
    high: float = MOST_BYTES,
    models: dict[str, ModelSpec] = MODELS,
) -> list[Case]:
    """``count`` different affordable cases whose rough memory lies between ``low`` and ``high``."""
    rng = random.Random(seed)
    found: dict[str, Case] = {}
    while len(found) < count:
        case = draw(rng, models)
        nbytes, seconds = estimate(case)
        if low < nbytes < high and seconds < MOST_SECONDS:
            found[case.id] = case
    return list(found.values())


def edge(count: int = 30) -> list[Case]:
    """Cases about as large as the card: does the model know which of them fit?"""
    return sample(count, seed=7, low=110 * GIB, high=210 * GIB)


def coverage_order(cases: list[Case]) -> list[Case]:
    """Order in which any prefix is a fair sample of the whole: by hash of the id."""
    return sorted(cases, key=lambda case: hashlib.sha256(case.id.encode()).digest())


def cases(count: int = SAMPLE) -> list[Case]:
    """The whole grid, in the order in which it is run; ids are unique and any prefix of the sample is fair."""
    unique = {case.id: case for case in (*ladders(), *edge(), *coverage_order(sample(count)))}
    return list(unique.values())


def held_experts() -> list[Case]:
    """A middle stage of two layers of each model of many experts, with few and many of them on a rank."""
    found = []
    for model, held in itertools.product(FINE.values(), HELD):
        assert model.moe is not None
        ep = model.moe.experts // held
        split = f"pp{model.layers // 2} ep{ep} dp64 zero1 overlap=none"
        stage = model.layers // 2 - 2
        for seq, mbs, words in (
            (4096, 1, "tp1"), (8192, 2, "tp1"), (4096, 2, "tp2 sp"), (4096, 2, "tp1 recompute=full")
        ):  # fmt: skip
            strategy = parse_strategy(f"{words} {split} mbs{mbs}")
            found.append(Case(model=model, strategy=strategy, seq=seq, stage=stage))
    return coverage_order([case for case in found if estimate(case)[0] < MOST_BYTES])


def other_shapes(count: int, seed: int) -> list[Case]:
    """Cases of models that are no part of the grid, as a search would look at them."""
    return coverage_order(sample(count, seed, models=OTHERS))
