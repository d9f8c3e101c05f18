"""No restriction and no other legal strategy beats the plan, by the number the plan is ranked by."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import astra
from astra.answer import Estimate, PlanSet
from astra.catalog import runtimes
from astra.catalog.clusters import parse_gpus
from astra.catalog.models import model
from astra.errors import AstraError, NoFeasiblePlan
from astra.layers.kinds import layer_kinds
from astra.search.detail import estimate, layers_of, legality
from astra.search.splits import neighbours
from astra.spec.job import Job
from astra.spec.strategy import Strategy, parse_strategy, replace
from astra.spec.strategy_fields import OFFLOADS, OVERLAPS, RECOMPUTES
from astra.spec.workload import Workload
from tests.properties.jobs import job, seeds
from tests.properties.test_plan_laws import request
from tests.tiers import drawn

SLACK = 1e-11
OFFERED = [runtimes.runtime(name) for name in runtimes.runtime_names()]
# Models of every family, runtimes with rules of their own, counts that hardly divide.
REAL: tuple[tuple[str, str, str, int, int, str], ...] = (
    ("llama-2-70b", "48xA100", "megatron", 96, 4096, "bf16"),
    ("llama-3.1-8b", "24xH100", "torchtitan", 48, 512, "bf16"),
    ("gpt-3-175b", "96xH100", "megatron", 192, 2048, "fp8"),
    ("mixtral-8x7b", "24xH200", "megatron", 72, 4096, "bf16"),
    ("deepseek-v2-lite", "16xL40S", "megatron-bridge", 32, 4096, "bf16"),
    ("qwen3-30b-a3b", "24xA100", "torchtitan", 48, 2048, "bf16"),
    ("t5-11b", "24xA100", "fsdp-eager", 48, 512, "bf16"),
    ("llama-2-13b", "7xA10G", "deepspeed", 14, 256, "fp16"),
    ("llama-2-70b", "120xA10", "megatron", 360, 4096, "bf16"),
    ("gpt-oss-20b", "8xRTX4090", "fsdp-eager", 24, 1024, "bf16"),
)


@cache
def real(place: int) -> Job:
    """A catalog model on catalog GPUs."""
    name, gpus, runtime, batch, seq, precision = REAL[place]
    work = msgspec.convert({"global_batch": batch, "seq": seq, "precision": precision}, Workload)
    return Job(
        model=model(name), pool=parse_gpus(gpus), workload=work, runtime=runtimes.runtime(runtime), headroom=0.08
    )


def answer(asked: Job, **more: Any) -> PlanSet | None:
    """The plan, or None where there is none."""
    rest = {name: list(value) if isinstance(value, tuple) else value for name, value in more.items()}
    try:
        return astra.plan(**request(asked, runtime=asked.runtime.name, **rest))
    except NoFeasiblePlan:
        return None


asked_jobs = st.one_of(
    seeds.map(job).filter(lambda asked: asked.runtime in OFFERED),
    st.integers(0, len(REAL) - 1).map(real),
)


ranks = st.sampled_from(("expected", "upper"))


def ranked_s(result: Estimate, rank: str) -> float:
    """What plans are ranked by."""
    return result.step_s_range.high if rank == "upper" else result.step_s


def restriction(asked: Job, best: Strategy, rng: random.Random) -> dict[str, tuple[str, ...]]:
    """One or two restrictions, on what the best strategy has or could have."""
    found: dict[str, list[str]] = {}
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(("tp", "pp", "cp", "dp", "vp", "mbs", "ep", "etp", "zero"))
        value = getattr(best, name)
        way = rng.choice(("fix", "forbid", "maximum", "minimum", "flag", "rules"))
        if way == "flag":
            flag = rng.choice(
                ("flash=off", "sp=off", "recompute=none", "recompute=full", "recompute=selective", "overlap=none")
            )
            found.setdefault("fix", []).append(flag)
        elif way == "rules":
            found.setdefault("rules", []).append(rule(best, rng))
        elif way == "fix":
            found.setdefault("fix", []).append(f"{name}={rng.choice((value, 1, 2, 2 * value))}")
        elif way == "forbid":
            found.setdefault("forbid", []).append(f"{name}={value}")
        else:
            found.setdefault(way, []).append(f"{name}={value}")
    return {way: tuple(dict.fromkeys(texts)) for way, texts in found.items()}


def rule(best: Strategy, rng: random.Random) -> str:
    """A rule of one's own that may speak of what the best strategy has, of several fields at once or of the GPUs."""
    one, other = rng.sample(("tp", "pp", "cp", "dp", "vp", "mbs", "ep", "zero", "recompute_layers"), 2)
    a, b = getattr(best, one), getattr(best, other)
    return rng.choice(
        (
            f"refuse {one} == {a}",
            f"require {one} <= {max(a, 1)}",
            f"refuse {one} * {other} > {max(a * b, 1)}",
            f"refuse {one} == {a} and {other} == {b}",
            f"require {one} > {a} or {other} <= {b}",
            f'refuse recompute == "{best.recompute}" and {one} >= {a}',
            f"refuse sp != {str(best.sp).lower()} or {one} == {a}",
            f"refuse tp * {one} > gpus / 2",
        )
    )


@drawn(40, few=14)
@given(asked_jobs, st.integers(0, 2**32 - 1), ranks)
def test_no_restriction_improves_the_step(asked: Job, seed: int, rank: str) -> None:
    free = answer(asked, top=1, rank=rank)
    if free is None:
        return
    limits = restriction(asked, parse_strategy(free.best.strategy), random.Random(seed))
    try:
        restricted = answer(asked, top=1, rank=rank, **limits)
    except AstraError:
        return  # a restriction that says nothing, or twice the same
    if restricted is not None:
        assert ranked_s(free.best.estimate, rank) <= ranked_s(restricted.best.estimate, rank) * (1 + SLACK), limits


@drawn(12, few=8)
@given(
    st.integers(0, len(REAL) - 1).map(real),
    st.integers(0, 2**32 - 1),
    st.sampled_from(("cheapest", "dollars-per-token")),
)
def test_no_restriction_makes_it_cheaper(asked: Job, seed: int, objective: str) -> None:
    money: dict[str, Any] = {"objective": objective, "tokens": 1e9, "money": astra.Money(usd_per_gpu_h=2.0), "top": 1}
    free = answer(asked, **money)
    if free is None:
        return
    limits = restriction(asked, parse_strategy(free.best.strategy), random.Random(seed))
    try:
        restricted = answer(asked, **money, **limits)
    except AstraError:
        return
    if restricted is not None and restricted.best.estimate.cost is not None:
        assert free.best.estimate.cost is not None
        assert free.best.estimate.cost.usd <= restricted.best.estimate.cost.usd * (1 + SLACK), limits


def mutated(asked: Job, best: Strategy, rng: random.Random) -> Strategy | None:
    """A strategy a few changes away, or None if it does not use the GPUs."""
    changes: dict[str, Any] = {}
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.choice(("move", "vp", "mbs", "zero", "recompute", "layers", "experts", "switch", "offload"))
        now = replace(best, **changes)
        if kind == "move":
            giver, taker = rng.sample(("tp", "pp", "cp", "dp"), 2)
            factor = rng.choice([n for n in (2, 3, 4) if getattr(now, giver) % n == 0] or [1])
            changes |= {giver: getattr(now, giver) // factor, taker: getattr(now, taker) * factor, "layers": ()}
            changes |= {"sp": rng.random() < 0.8, "vp": 1, "schedule": "1f1b"}
        elif kind == "vp":
            vp = rng.choice((1, 2, 3, 4, 5, 6, 8))
            changes |= {"vp": vp, "schedule": "interleaved" if vp > 1 else "1f1b", "layers": ()}
            changes["overlap"] = tuple({*now.overlap} - {"p2p"} | ({"p2p"} if vp > 1 else set()))
        elif kind == "layers" and 1 < now.pp * now.vp <= sum(layers_of(asked, now)):
            changes["layers"] = rng.choice(neighbours(layers_of(asked, now)) or [()])
        elif kind == "experts":
            changes |= {"ep": rng.choice((1, 2, 3, 4, 8)), "etp": rng.choice((1, 1, 2, 3, 4, 8, 16))}
        elif kind == "recompute":
            changes |= {"recompute": rng.choice(RECOMPUTES), "method": "uniform", "recompute_layers": 1}
            if changes["recompute"] == "full":
                changes |= {"method": rng.choice(("uniform", "block")), "recompute_layers": rng.choice((1, 1, 2, 3))}
        elif kind == "switch":
            changes |= {"flash": rng.random() < 0.5, "sp": rng.random() < 0.5}
        else:
            changes |= {
                "zero": rng.choice((0, 1, 2, 3)),
                "mbs": rng.choice((1, 2, 3, 4, 8)),
                "offload": rng.choice(OFFLOADS),
            }
    if "p2p" in changes.get("overlap", best.overlap) and changes.get("vp", best.vp) == 1:
        changes["overlap"] = tuple(name for name in changes.get("overlap", best.overlap) if name != "p2p")
    found = replace(best, **changes)
    return found if found.gpus == asked.pool.gpus else None


def defines_a_run(asked: Job, strategy: Strategy) -> bool:
    depth = asked.model.layers + (asked.model.encoder.layers if asked.model.encoder else 0)
    ranks = strategy.tp * strategy.cp * strategy.dp
    return strategy.pp * strategy.vp <= depth and ranks % (strategy.ep * strategy.etp) == 0


@drawn(40, few=14)
@given(asked_jobs, st.integers(0, 2**32 - 1), ranks)
def test_no_mutation_beats_the_plan(asked: Job, seed: int, rank: str) -> None:
    plans = answer(asked, top=1, rank=rank)
    if plans is None:
        return
    best, rng = parse_strategy(plans.best.strategy), random.Random(seed)
    some = {mutated(asked, best, rng) for _ in range(40)} - {None, best}
    legal = [s for s in some if s is not None and defines_a_run(asked, s) and not legality(asked, s)]
    for result in estimate(asked, sorted(legal, key=str)) if legal else ():
        if result.fits:
            assert ranked_s(plans.best.estimate, rank) <= ranked_s(result, rank) * (1 + SLACK), result.strategy


def sampled(asked: Job, rng: random.Random) -> Strategy | None:
    """Any strategy on all GPUs, whatever the plan is; None if the degrees drawn do not divide them."""
    can: Any = asked.runtime.can
    moe, left, degrees = asked.model.moe is not None, asked.pool.gpus, dict[str, Any]()
    fitting = {"tp": asked.model.heads, "cp": asked.workload.seq // 2, "pp": 0}
    for name in rng.sample(sorted(fitting), 3):
        tried = [1] if name not in can.degrees else [1, 1, 2, 3, 4, 5, 6, 8, 12, 16]
        degrees[name] = rng.choice([n for n in tried if left % n == 0 and fitting[name] % n == 0])
        left //= degrees[name]
    if asked.workload.global_batch % left:
        return None
    share, several = asked.workload.global_batch // left, degrees["pp"] > 1
    schedule: Any = rng.choice(can.schedules) if several and can.schedules else "1f1b"
    vp = rng.choice((2, 3, 4)) if schedule == "interleaved" else 1
    zero = rng.choice(can.zero)
    fields: dict[str, Any] = degrees | {
        "dp": left,
        "vp": 2 if schedule == "zbv" else vp,
        "mbs": rng.choice([n for n in (1, 1, 2, 3, 4, 6, 8) if share % n == 0]),
        "ep": rng.choice((1, 2, 4, 8)) if moe and "ep" in can.degrees else 1,
        "etp": rng.choice((1, 1, 2, 4)) if moe and "etp" in can.degrees else 1,
        "sp": degrees["tp"] > 1 and "sp" in can.degrees and (moe or rng.random() < 0.7),
        "zero": zero,
        "offload": rng.choice([way for way in can.offload if way in OFFLOADS]) if zero == 1 else "none",
        "flash": rng.random() < 0.8 or not can.unfused,
        "schedule": schedule,
        "recompute": rng.choice(can.recompute),
    }
    made = Strategy(**fields)
    if made.recompute == "full" and can.methods:
        made = replace(made, method=rng.choice(can.methods), recompute_layers=rng.choice((1, 1, 2, 3, 5, 8)))
    hidden = {name for name in asked.overlapped(made) if rng.random() < 0.8 or name in can.always}
    hidden -= {"param"} if "grad" not in hidden or zero == 0 else set()
    made = replace(made, overlap=tuple(name for name in OVERLAPS if name in hidden))
    depth, stages = len(layer_kinds(asked.model)), made.pp * made.vp
    if 1 < stages <= depth and can.uneven and rng.random() < 0.5:
        cuts = sorted(rng.sample(range(1, depth), stages - 1))
        made = replace(made, layers=tuple(b - a for a, b in pairwise((0, *cuts, depth))))
    return made


@drawn(20, few=8)
@given(asked_jobs, st.integers(0, 2**32 - 1), ranks)
def test_no_legal_strategy_beats_the_plan(asked: Job, seed: int, rank: str) -> None:
    plans, rng = answer(asked, top=1, rank=rank), random.Random(seed)
    some = {sampled(asked, rng) for _ in range(30)} - {None}
    legal = [s for s in some if s is not None and defines_a_run(asked, s) and not legality(asked, s)]
    for result in estimate(asked, sorted(legal, key=str)) if legal else ():
        if result.fits:
            assert plans is not None, result.strategy
            assert ranked_s(plans.best.estimate, rank) <= ranked_s(result, rank) * (1 + SLACK), result.strategy


@drawn(30, few=10)
@given(asked_jobs)
def test_the_text_of_a_plan_has_its_number(asked: Job) -> None:
    plans = answer(asked, top=3)
    for plan in plans.plans if plans is not None else ():
        again = astra.estimate(**request(asked, runtime=asked.runtime.name, strategy=plan.strategy))
        assert abs(again.step_s - plan.estimate.step_s) <= 1e-12 * plan.estimate.step_s
        assert min(again.breakdown.values()) >= -1e-12 * again.step_s
        assert msgspec.structs.asdict(again)["strategy"] == plan.strategy
