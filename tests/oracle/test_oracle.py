"""The search against plain loops: its space is the legal strategies, and its plans the best of their estimates.

Every legal strategy of a small request is estimated by the function a user calls; the search must find the least of
each group among those that fit, whatever the memory, and account for all the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import ceil, inf
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from astra.columns import from_strategy
from astra.cost.recompute import module_names
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule, check, rule_lines, rules_of
from astra.search.detail import estimate, layers_of
from astra.search.engine import SearchOutcome, search
from astra.search.settle import GROUP
from astra.search.space import LATE, Space, facts_in
from astra.search.words import said
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import METHODS, MOMENTS, OFFLOADS, RECOMPUTES, RESHARDS, SCHEDULES
from astra.units import GIB
from tests.oracle.oracle import Oracle, strategy_of
from tests.oracle.requests import KINDS, Request, random_request, rules_file, with_memory
from tests.properties.jobs import FIRST
from tests.tiers import TIMES, sampled

CLOSE = 1e-11
EVERYTHING = 10_000  # groups: more than there are
REQUESTS = 64
CHUNK = 4
MOST = 100  # strategies of one request
ALONE = 4  # of them estimated by themselves as well
RELATIVES = ("", "H100-SXM5-80GB", "A100-SXM4-80GB", "B200")  # whose measurements the made-up GPU borrows


class Figures(NamedTuple):
    """What an estimate says of one strategy."""

    step_s: float
    reserved_bytes: float


class Case(NamedTuple):
    """A request with few strategies, and the estimate of each."""

    job: Job
    limits: Restrictions
    rules: tuple[Rule, ...]
    told: dict[Strategy, Figures]
    rows: int  # of the space: two that differ in a switch with nothing to switch are one strategy

    @property
    def speaks_late(self) -> bool:
        """Whether a rule of the user or the runtime can only be checked on a whole strategy."""
        return bool(self.joint) or self.user_speaks_late

    @property
    def joint(self) -> tuple[Rule, ...]:
        """Rules of the runtime that join a mesh to what holds its state: the search applies them last."""
        return Space(self.job, self.limits).late_rules

    @property
    def user_speaks_late(self) -> bool:
        """The same of the user's rules."""
        return any(rule.needs & LATE for rule in self.rules)


def small(request: Request, rules: tuple[Rule, ...], seed: int) -> Restrictions:
    """The request's restrictions, and as many more from a strategy of its space as leave few strategies."""
    rng, limits = random.Random(f"narrow {seed}"), request.limits
    fields = ["pp", "tp", "mbs", "zero", "recompute", "offload", "sp", "cp", "ep", "etp", "vp", "method"]
    rng.shuffle(fields)
    found = list(Oracle(request.job, limits, rules).strategies())
    for field in fields:
        if len(found) <= MOST:
            break
        if field in limits.fixed:
            continue
        value = getattr(rng.choice(found), field)
        limits = msgspec.structs.replace(limits, fixed={**limits.fixed, field: (value,)})
        found = list(Oracle(request.job, limits, rules).strategies())
    return limits


def make_case(seed: int, folder: Path) -> Case:
    """Request number ``seed``, made small."""
    request = random_request(seed, relative=RELATIVES[seed % len(RELATIVES)])
    rules = rules_of(rule_lines(rules_file(request.rules, folder)), "rules") if request.rules else ()
    limits = small(request, rules, seed)
    strategies = list(Oracle(request.job, limits, rules).strategies())
    assert len(strategies) <= 4 * MOST
    return Case(request.job, limits, rules, one_by_one(request.job, strategies, rules), len(strategies))


def one_by_one(job: Job, strategies: Sequence[Strategy], rules: tuple[Rule, ...]) -> dict[Strategy, Figures]:
    """Each strategy as a user is told of it; one whose schedule is not defined takes for ever."""
    oracle, told = Oracle(job), {}
    some = list(dict.fromkeys(strategies))
    for strategy, found in zip(some, estimate(job, some, user_rules=rules) if some else (), strict=True):
        assert found.legal, f"the loops call this legal, the estimate does not: {strategy} {found.violations}"
        step_s = found.step_s if oracle.defined(strategy) else inf
        told[strategy] = Figures(step_s, found.peak_reserved_gib * GIB)
        if len(told) <= ALONE:
            assert estimate(job, [strategy], user_rules=rules)[0].step_s == pytest.approx(found.step_s, rel=CLOSE)
    return told


def in_space(case: Case) -> Iterator[Strategy]:
    """The same from the columns of the search."""
    space = Space(case.job, case.limits, case.rules)
    if not len(space.strategies):
        return
    meshes, _, _ = space.expand(np.arange(len(space.strategies)))
    recomputes = list(zip(*(column.tolist() for column in space.recomputes), strict=True))
    shardings = list(zip(*(column.tolist() for column in space.shardings), strict=True))
    for place, layout in enumerate(meshes.layout.tolist()):
        row = {name: column[place].item() for name, column in meshes.columns.items()}
        row |= {"schedule": SCHEDULES[row["schedule"]], "layers": meshes.layouts[layout].layers}
        deepest = ceil(sum(row["layers"]) / (row["pp"] * row["vp"]))
        row |= said(space.job, row["ep"])
        for recompute, method, n, bits, waiting in recomputes:
            if (RECOMPUTES[recompute] == "full" and n > deepest) or waiting > ceil(sum(row["layers"]) / row["pp"]):
                continue
            spoken = {"recompute": RECOMPUTES[recompute], "method": METHODS[method], "recompute_layers": n}
            spoken |= {"modules": module_names(space.job, bits), "offload_layers": waiting}
            for zero, offload, moments, reshard in shardings:
                hides = {"overlap_param": row["overlap_param"] and zero > 0}
                kept = {"moments": MOMENTS[moments], "reshard": RESHARDS[reshard]}
                yield strategy_of({**row, **spoken, **hides, **kept, "zero": zero, "offload": OFFLOADS[offload]})


def check_space(case: Case) -> None:
    """The columns have the strategies of the loops: none is missing, and none is more."""
    facts = facts_in(case.job)
    found = [one for one in in_space(case) if check(from_strategy(one), facts, case.joint).ok[0]]
    if not case.rules and not case.speaks_late:
        assert len(found) == len(set(found)), "a strategy is in the space twice"
    missing = case.told.keys() - set(found)
    assert not missing, f"the space lacks {len(missing)}: {next(iter(missing))}"
    if not case.user_speaks_late:
        extra = set(found) - case.told.keys()
        assert not extra, f"the loops lack {len(extra)}: {next(iter(extra))}"


def with_limit(case: Case, seed: int) -> Job:
    """The job on GPUs that hold none, a few, half or all of its strategies."""
    sizes = sorted(told.reserved_bytes for told in case.told.values())
    if not sizes:
        return case.job
    share = random.Random(seed).choice((0.0, 0.1, 0.5, 1.0))
    most = sizes[round(share * (len(sizes) - 1))] * (0.999 if share == 0.0 and seed % 2 else 1 + 1e-9)
    return with_memory(case.job, most / (1 - case.job.headroom) + case.job.runtime.memory.context_bytes)


def best_of(job: Job, told: dict[Strategy, Figures]) -> dict[tuple[int, ...], float]:
    """The least step of each group that fits."""
    best: dict[tuple[int, ...], float] = {}
    for strategy, (step_s, reserved_bytes) in told.items():
        if step_s < inf and reserved_bytes <= job.limit_bytes:
            group = tuple(getattr(strategy, name) for name in GROUP)
            best[group] = min(best.get(group, inf), step_s)
    return best


def check_search(case: Case, seed: int) -> None:
    """The plans are the best estimates of their groups, and every strategy is accounted for once."""
    job = with_limit(case, seed)
    best = best_of(job, case.told)
    for keep in (1, 3, EVERYTHING):
        found = search(job, case.limits, user_rules=case.rules, keep=keep)
        check_ledger(found)
        assert [one.step_s for one in found.candidates] == pytest.approx(sorted(best.values())[:keep], rel=CLOSE)
        for strategy, step_s in found.candidates:
            group = tuple(getattr(strategy, name) for name in GROUP)
            assert step_s == pytest.approx(best[group], rel=CLOSE)
            # A switch that holds nothing back is off in the answer, so the estimate is asked anew.
            again = estimate(job, [strategy], user_rules=case.rules)[0]
            assert again.step_s == pytest.approx(step_s, rel=CLOSE)
            assert again.fits
            assert again.legal
            assert sum(layers_of(job, strategy)) == sum(stage.layers for stage in again.stages)
    oracle = Oracle(job, case.limits, case.rules)
    assert found.considered == oracle.considered()
    if not case.speaks_late:
        assert found.considered - sum(found.refused.values()) - found.dominated == case.rows


def check_ledger(found: SearchOutcome) -> None:
    """Every strategy is accounted for once."""
    counts = (*found.refused.values(), found.dominated, found.too_large, found.slower, found.feasible)
    assert min(counts) >= 0
    assert sum(counts) == found.considered


@pytest.mark.parametrize("first", sampled(range(FIRST, FIRST + REQUESTS * TIMES, CHUNK), every=4, first=1))
def test_the_search_finds_the_best_of_all_estimates(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        case = make_case(seed, tmp_path)
        try:
            check_space(case)
            check_search(case, seed)
        except AssertionError as error:
            asked = (case.job.model.name, case.limits.describe(), [rule.name for rule in case.rules])
            raise AssertionError(f"request {seed} {asked}: {error}") from error


@pytest.mark.parametrize("first", sampled(range(0, REQUESTS, REQUESTS // 4), every=4))
def test_no_setting_of_the_switches_beats_having_them_on(first: int, tmp_path: Path) -> None:
    """So that leaving the others out of the search misses nothing."""
    rng = random.Random(first)
    for seed in range(first, first + REQUESTS // 4):
        if not random_request(seed).every_switch or random_request(seed).rules:
            continue
        case = make_case(seed, tmp_path)
        every = list(Oracle(case.job, case.limits).strategies(every_switch=True))
        some = one_by_one(case.job, rng.sample(every, min(len(every), MOST)), ())
        best = best_of(case.job, case.told)
        for group, step_s in best_of(case.job, some).items():
            assert best[group] <= step_s * (1 + CLOSE), (seed, group)


def test_the_requests_are_varied() -> None:
    """What the comparison rests on: every kind of model, restrictions, rules, several nodes, all sizes."""
    requests = [random_request(seed) for seed in range(REQUESTS)]
    jobs = [request.job for request in requests]
    assert {job.model.name for job in jobs} == {f"tiny-{kind}" for kind in KINDS}
    assert {job.pool.gpus for job in jobs} >= {1, 2, 4, 6, 8, 12, 16}
    assert {job.workload.task for job in jobs} == {"pretrain", "finetune", "lora"}
    assert {job.runtime.name for job in jobs} == {"megatron", "torchtitan", "zero"}
    assert sum(bool(request.rules) for request in requests) > 15
    assert sum(bool(request.limits) for request in requests) > 30
    assert sum(job.pool.gpus > job.pool.gpus_per_node for job in jobs) > 15
    assert sum(request.every_switch for request in requests) > 5


def test_what_is_missed_or_wrong_is_noticed(tmp_path: Path) -> None:
    """The comparison can fail: with the best strategy forgotten, with one too many, and with another's figures."""
    cases = (make_case(seed, tmp_path) for seed in range(REQUESTS))
    case = next(case for case in cases if len(case.told) > 20 and not case.user_speaks_late)
    check_space(case)
    check_search(case, 1)
    fewer = dict(case.told)
    del fewer[min(fewer, key=lambda strategy: fewer[strategy].step_s)]
    with pytest.raises(AssertionError):
        check_space(case._replace(told=fewer))
    faster = {strategy: told._replace(step_s=told.step_s * 0.99) for strategy, told in case.told.items()}
    with pytest.raises(AssertionError):
        check_search(case._replace(told=faster), 1)
