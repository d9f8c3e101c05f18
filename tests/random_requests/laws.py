"""What must hold of every answer, whatever was asked: checked on the record that ``--json`` prints.

Sums add up, limits and restrictions are kept, the text of a strategy and the record read back give the same, whoever is
told more strictly what to do is no quicker, and no legal strategy drawn at random beats the plan (but for what the
search says it does not exhaust: splits of layers). An error is one of ours, and a paragraph that can be read.
"""

from __future__ import annotations

import contextlib
import json
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

import astra
from astra.answer import Estimate
from astra.catalog.hardware import device
from astra.columns import from_strategy
from astra.errors import AstraError, NoCoverage, NoFeasiblePlan, visible_lines
from astra.export.reading import from_record
from astra.layers.kinds import layer_kinds
from astra.search.attempts import LEAST_BETTER
from astra.search.detail import estimate, legality
from astra.search.space import chunk_counts
from astra.search.world import World
from astra.spec.job import Job, Words
from astra.spec.request import read_request
from astra.spec.strategy import Strategy, parse_strategy
from astra.spec.strategy_fields import CHOICES, MODULES
from astra.study.records import answer_of
from tests.properties.test_best_laws import defines_a_run, mutated, restriction, sampled
from tests.random_requests.asking import Reply, ask
from tests.random_requests.drawing import Asked, drawn

Record = dict[str, Any]
ANSWERS: Final = (0, 2, 3, 4)  # a plan, or our own word on why there is none
SLACK: Final = 1e-9
TRIED: Final = 24  # strategies drawn against each plan, half of them near it,
HELD: Final = 3  # until so many are legal
# Splits of layers are polished and not all searched, and of the numbers of chunks with equally large ones the least is
# taken: such a strategy may be better than the plan by less than this.
POLISHED: Final = 0.01
LONGEST_ERROR: Final = 10_000
_MEASURED: Final = ("seconds", "strategies_per_s")
_LIMITS: Final = ("fix", "forbid", "maximum", "minimum", "rules")


class Outcome(NamedTuple):
    """What became of one request."""

    asked: Asked
    code: int
    laws: dict[str, int]  # how often each was checked
    fault: str = ""


def judged(number: int) -> Outcome:
    """Draw a request by its number, answer it, and check the answer."""
    draw = Random(number)
    return judge(drawn(draw), draw)


def judge(asked: Asked, draw: Random) -> Outcome:
    """Answer a request, and check the answer."""
    reply, laws = ask(asked), dict[str, int]()
    try:
        if reply.code == 0:
            laws = check(reply.record, draw) if reply.record else {"help is shown": 1}
        else:
            laws = refused(asked, reply, draw)
    except Exception as error:
        where = "" if isinstance(error, AssertionError) else traceback.format_exc()[-700:]
        return Outcome(asked, reply.code, laws, f"{type(error).__name__}: {error}"[:500] + where)
    return Outcome(asked, reply.code, laws)


class Case:
    """One answer, with what is looked up of it."""

    def __init__(self, record: Record, draw: Random) -> None:
        self.record, self.draw = record, draw
        self.asked: Record = record.get("asked", {})

    @cached_property
    def world(self) -> World:
        """The request of a plan, looked up."""
        return World.of(read_request("plan", self.asked))

    @property
    def several(self) -> bool:
        """Whether it is of several pools."""
        return "conceivable" in self.record

    @property
    def fastest(self) -> bool:
        """Whether plans of one pool were ranked by their step alone."""
        return not self.several and self.record["objective"] == "fastest"

    def ranked_s(self, result: Mapping[str, Any]) -> float:
        """What a plan is ranked by."""
        upper = self.asked["rank"] == "upper"
        return float(result["step_s_range"]["high"] if upper else result["step_s"])


def check(record: Record, draw: Random, *, every: bool = False) -> dict[str, int]:
    """Raise an AssertionError where a law is broken; how often each was checked. ``every``: none is left to chance."""
    case, checked = Case(record, draw), dict[str, int]()
    for name, (share, law) in LAWS[record["schema"].partition("/")[0]].items():
        times = law(case) if every or draw.random() < share else 0
        checked |= {name: times} if times else {}
    return checked


def refused(asked: Asked, reply: Reply, draw: Random) -> dict[str, int]:
    """The same of what has no answer."""
    assert reply.code in ANSWERS, f"exit code {reply.code}: {reply.told[-900:]}"
    assert reply.record["schema"] == "astra.error/1", "an error without its record"
    message = reply.record["error"]["message"]
    assert message.strip(), "an error that says nothing"
    assert len(message) < LONGEST_ERROR, "an error that nobody reads"
    assert reply.told == visible_lines(reply.told), "an error that cannot be seen"
    found = {"error is a sentence": 1}
    if reply.code == NoFeasiblePlan.exit_code and asked.kind == "plan" and draw.random() < 0.5:
        found["nothing sampled fits"] = _nothing_fits(asked, draw)
    return found


def _nothing_fits(asked: Asked, draw: Random) -> int:
    world = World.of(read_request("plan", asked.fields))
    if world.several or world.goal.objective.name != "fastest":  # a server in part is a pool of its own
        return 0
    some = (sampled(world.job, draw) for _ in range(TRIED))
    legal = [strategy for strategy in dict.fromkeys(some) if strategy is not None and _allowed(world, strategy)][:HELD]
    for result in estimate(world.job, legal) if legal else ():
        strategy = parse_strategy(result.strategy)
        assert not (result.fits and _searched(world.job, strategy)), f"{result.strategy} fits, and there is no plan"
    return len(legal)


def read_back(case: Case) -> int:
    """The record that is read back is the one that was written."""
    again = json.loads(answer_of(case.record, "answer").to_json())
    assert again == case.record, "read back as another record"
    return 1


def _estimate_back(case: Case) -> int:
    again = json.loads(msgspec.convert(case.record, Estimate).to_json())
    assert again == case.record, "read back as another record"
    return 1


def _lasting(record: Record) -> Record:
    """An answer without the time it took, and without where rules were read, which the request it carries has not."""
    search = {name: value for name, value in record["search"].items() if name not in _MEASURED}
    refused = [reject["strategies"] for reject in record["rejects"]]
    return {name: record[name] for name in ("plans", "objective", "asked")} | {"search": search, "refused": refused}


def close(one: float, other: float) -> bool:
    """Equal but for rounding."""
    return math.isclose(one, other, rel_tol=SLACK, abs_tol=1e-12)


def _sums(case: Case) -> int:
    """Parts add up to wholes."""
    tokens = case.asked["batch"] * case.asked["seq"]
    for plan in case.record["plans"]:
        result = plan["estimate"]
        _parts(result)
        assert close(result["tokens_per_s"] * result["step_s"], tokens), "tokens per second are not those of the step"
        cost = result["cost"]
        assert cost is None or close(sum(cost["parts"].values()), cost["usd"]), "the parts of the bill"
        if "groups" in result:
            samples = sum(group["samples"] for group in result["groups"])
            assert samples == case.asked["batch"], "samples of the groups"
        else:
            strategy = parse_strategy(result["strategy"].partition(": ")[2] or result["strategy"])
            assert result["microbatches"] * strategy.dp * strategy.mbs == case.asked["batch"], "micro-batches"
            assert sum(stage["gpus"] for stage in result["stages"]) == strategy.gpus, "GPUs of the stages"
    return len(case.record["plans"])


def _parts(result: Record) -> int:
    """Of any estimate, legal or not."""
    assert close(sum(result["breakdown"].values()), result["step_s"]), "the breakdown does not sum to the step"
    assert min(result["breakdown"].values()) >= -SLACK * result["step_s"], "a cause takes less than no time"
    for stage in result["stages"]:
        assert close(sum(stage["memory"].values()), stage["peak_allocated_gib"]), "memory does not sum to the peak"
        assert close(stage["forward_s"] + stage["backward_s"], stage["compute_s"]), "forward and backward"
    if "groups" not in result:
        peaks = [stage["peak_reserved_gib"] for stage in result["stages"]]
        assert result["peak_reserved_gib"] == max(peaks), "the peak is not that of the fullest stage"
    assert result["step_s_range"]["low"] <= result["step_s"] <= result["step_s_range"]["high"], "outside of its range"
    return 1


def _verdicts(case: Case) -> int:
    """An estimate is legal where it breaks nothing, and fits where every stage does."""
    result = case.record
    assert result["legal"] == (not result["violations"]), "legal, or not"
    assert result["fits"] == all(stage["fits"] for stage in result["stages"]), "fits, or not"
    return 1


def _limits(case: Case) -> int:
    """What is shown is legal, fits, and uses no more than there is; plans are in their order."""
    record, search = case.record, case.record["search"]
    lost = sum(reject["strategies"] for reject in record["rejects"]) + search["feasible"] != search["considered"]
    assert case.several or not lost, "strategies got lost"
    assert [plan["rank"] for plan in record["plans"]] == list(range(1, len(record["plans"]) + 1))
    given = sum(pool.gpus for pool in case.world.cluster.pools)
    for plan in record["plans"]:
        result = plan["estimate"]
        assert result["legal"], "a plan that is not legal"
        assert not result["violations"], "a plan that breaks a rule"
        assert result["fits"], "a plan that does not fit"
        assert 0 < result["mfu"] <= 1, "more than all of the peak"
        assert all(stage["fits"] for stage in result["stages"]), "a stage that does not fit"
        assert sum(stage["gpus"] for stage in result["stages"]) <= given, "more GPUs than there are"
    if case.fastest:
        ranked = [case.ranked_s(plan["estimate"]) for plan in record["plans"]]
        assert ranked == sorted(ranked), "plans out of order"
    return len(record["plans"])


_OF_FLEETS: Final = (
    "counts", "node_lost", "by_runtime", "worth", "launchable", "baseline", "local_steps", "time_budget",
)  # fmt: skip


def _no_pool_alone_is_better(case: Case) -> int:
    """What the planner for one pool says of each pool of a fleet is in no case surer to be quick."""
    record = case.record
    if not case.several or record["objective"] != "fastest" or case.asked["counts"] == "exact":
        return 0  # what is worthless must be used too
    asked = {name: value for name, value in case.asked.items() if name not in _OF_FLEETS}
    fleet_s = case.ranked_s(record["conceivable"]["estimate"])
    for pool in asked["gpus"]:
        if asked["precision"] not in device(pool.partition("x")[2].partition("@")[0]).flops_per_s:
            continue  # it is left idle
        try:
            own = json.loads(astra.plan(**(asked | {"gpus": [pool]})).to_json())
        except (NoFeasiblePlan, NoCoverage):  # it has no plan, or none of measured figures
            continue
        alone_s = min(case.ranked_s(plan["estimate"]) for plan in own["plans"])
        assert fleet_s <= alone_s * (1 + SLACK), f"{pool} alone is better: {alone_s} under {fleet_s}"
    return len(asked["gpus"])


def _restricted(case: Case) -> int:
    """Plans keep to what was fixed, forbidden and bounded, and to the rules."""
    if case.several:
        return 0
    for plan in case.record["plans"]:
        strategy = parse_strategy(plan["strategy"])
        assert _allowed(_used(case, plan), strategy), f"{strategy} is not what was asked for"
    return len(case.record["plans"])


def _used(case: Case, plan: Record) -> World:
    """The world of a plan on the GPUs it uses: objectives may leave some out."""
    used, pool = sum(stage["gpus"] for stage in plan["estimate"]["stages"]), case.world.cluster.pools[0]
    pools = (msgspec.structs.replace(pool, gpus=used),)
    return case.world._replace(cluster=msgspec.structs.replace(case.world.cluster, pools=pools))


def _allowed(world: World, strategy: Strategy) -> bool:
    """Whether a strategy defines a run, is legal, and is one that the request leaves."""
    asked = world.restrictions
    columns = from_strategy(strategy) if asked else {}
    for field in {*asked.fixed, *asked.forbidden, *asked.maxima, *asked.minima} - _idle(strategy):
        value = columns[field][0].item()
        if not asked.allows(field, CHOICES[field][value] if field in CHOICES else value):
            return False
    return defines_a_run(world.job, strategy) and not legality(world.job, strategy, world.rules)


def _idle(strategy: Strategy) -> set[str]:
    """Fields that say nothing in a strategy: how it would recompute, where it does not."""
    full, some = strategy.recompute == "full", strategy.recompute == "selective"
    idle = set() if full else {"method", "recompute_layers"}
    return idle if some else {*idle, *(f"recompute_{name}" for name in MODULES)}


def _searched(job: Job, strategy: Strategy) -> bool:
    return not strategy.layers and strategy.vp in chunk_counts(len(layer_kinds(job.model)), strategy.pp)


def _unbeaten(case: Case) -> int:
    """No strategy near the plan or anywhere else is legal, fits and is better; its own text has its own number."""
    if not case.fastest:
        return 0
    world, draw, first = case.world, case.draw, case.record["plans"][0]
    job, best = world.job, parse_strategy(first["strategy"])
    some = [mutated(job, best, draw) if place % 2 else _usual(job, sampled(job, draw)) for place in range(TRIED)]
    legal: list[Strategy] = []
    for strategy in dict.fromkeys(some):
        if len(legal) < HELD and strategy not in (None, best) and _allowed(world, strategy):
            legal.append(strategy)
    own, *others = estimate(job, [best, *legal], user_rules=world.rules)
    assert math.isclose(own.step_s, first["estimate"]["step_s"], rel_tol=1e-9), "its text has another step time"
    held(case, others)
    return len(legal)


def held(case: Case, others: Sequence[Estimate]) -> None:
    """None of some strategies is better than the plan."""
    first = case.record["plans"][0]
    best, best_s = parse_strategy(first["strategy"]), case.ranked_s(first["estimate"])
    for result in others:
        strategy, other_s = parse_strategy(result.strategy), case.ranked_s(msgspec.to_builtins(result))
        beaten = result.fits and other_s < best_s * (1 - _may_lose(case.world.job, best, strategy))
        assert not beaten, f"{result.strategy} is better than the plan: {other_s} under {best_s}"


def _may_lose(job: Job, best: Strategy, other: Strategy) -> float:
    """What a plan may lose to another, as a share: for having fewer chunks, and to what is polished."""
    slack = LEAST_BETTER if other.vp > best.vp else SLACK
    return slack if _searched(job, other) else POLISHED


def _usual(job: Job, strategy: Strategy | None) -> Strategy | None:
    """A strategy with the words of its runtime's recipes: a search has one set of them."""
    if strategy is None:
        return None
    words = {name: value for name, value in job.usual(strategy).items() if name in Words.__struct_fields__}
    return msgspec.structs.replace(strategy, **words)


def _text(case: Case) -> int:
    """The text of a plan is costed as the plan by whoever asks for it alone."""
    if case.several:
        return 0
    kept = {name: value for name, value in case.asked.items() if name in _ESTIMATED}
    for plan in case.record["plans"]:
        if kept.get("gpus"):  # an objective may leave GPUs out
            kept["gpus"] = [f"{_used(case, plan).job.pool.gpus}x{case.asked['gpus'][0].partition('x')[2]}"]
        elif _used(case, plan).job.pool.gpus != case.world.job.pool.gpus:
            continue
        again = astra.estimate(**kept, strategy=plan["strategy"])
        assert math.isclose(again.step_s, plan["estimate"]["step_s"], rel_tol=1e-9), "its text has another step time"
        assert again.strategy == plan["strategy"], "its text is read as another strategy"
    return len(case.record["plans"])


_ESTIMATED: Final = (
    "model", "gpus", "cluster", "node", "batch", "seq", "precision", "optimizer", "task", "lora_rank", "lora_targets",
    "imbalance", "packed", "mtp", "runtime", "headroom",
)  # fmt: skip


def _again(case: Case) -> int:
    """The request that an answer carries gives the answer."""
    again = json.loads(astra.plan(**case.asked).to_json())
    assert _lasting(again) == _lasting(case.record), "the request of an answer gives another answer"
    return 1


def _wider(case: Case) -> int:
    """Whoever leaves more open is answered no worse."""
    if not case.fastest or not any(case.asked.get(name) for name in _LIMITS):
        return 0
    free = {name: value for name, value in case.asked.items() if name not in (*_LIMITS, "baseline", "node_lost")}
    wider = json.loads(astra.plan(**free | {"top": 1}).to_json())
    free_s, bound_s = (case.ranked_s(answer["plans"][0]["estimate"]) for answer in (wider, case.record))
    assert free_s <= bound_s * (1 + POLISHED), f"a restriction made it quicker: {bound_s} under {free_s}"
    return 1


def _narrower(case: Case) -> int:
    """Whoever leaves less open is answered no better."""
    if not case.fastest or any(case.asked.get(name) for name in _LIMITS):
        return 0
    limits = restriction(case.world.job, parse_strategy(case.record["plans"][0]["strategy"]), case.draw)
    asked = {name: value for name, value in case.asked.items() if name not in ("baseline", "node_lost")}
    try:
        narrower = json.loads(astra.plan(**asked | limits | {"top": 1}).to_json())
    except AstraError:
        return 0  # none is left, or it says nothing
    firsts = [answer["plans"][0] for answer in (case.record, narrower)]
    free_s, bound_s = (case.ranked_s(first["estimate"]) for first in firsts)
    slack = _may_lose(case.world.job, *(parse_strategy(first["strategy"]) for first in firsts))
    assert free_s <= bound_s * (1 + slack), f"{limits} made it quicker: {bound_s} under {free_s}"
    return 1


def _exported(case: Case) -> int:
    """What a launcher needs is in the record; a target may have no words for it, which it says."""
    if case.several:
        return 0
    with contextlib.suppress(AstraError):
        from_record(case.record)
    return 1


def _shown(case: Case) -> int:
    """The answer can be drawn at any width."""
    if case.several:
        return 0
    answer: Any = answer_of(case.record, "answer")
    text = answer.draw(case.draw.choice((40, 80, 100, 200)), False, full=case.draw.random() < 0.5)
    assert case.record["plans"][0]["strategy"].split()[0] in text, "the best plan is not shown"
    return 1


def _estimated_again(case: Case) -> int:
    """A strategy is written as it is read."""
    text = case.record["strategy"]
    if "[" in text:
        return 0
    assert str(parse_strategy(text)) == text, "read as another strategy"
    return 1


def _rented(case: Case) -> int:
    """Along the front time grows and dollars fall, by what choices are ranked by; bills add up."""
    record = case.record
    for choice in record["front"]:
        cost = choice["cost"]
        assert close(sum(cost["parts"].values()), cost["usd"]), "the parts of the bill"
        assert sum(part["gpus"] for part in choice["parts"]) == choice["gpus"] <= record["asked"]["max_gpus"]
        assert choice["peak_reserved_gib"] <= choice["memory_limit_gib"], "a choice that does not fit"
    costs = [choice["cost"]["expected"] or choice["cost"] for choice in record["front"]]
    upper = record["ranked_by"] == "upper"
    figures = [[cost[f"{name}_range"]["high"] if upper else cost[name] for name in ("days", "usd")] for cost in costs]
    for (fast_days, more_usd), (slow_days, less_usd) in pairwise(figures):
        assert fast_days <= slow_days * (1 + SLACK), "the front is not in order"
        assert more_usd >= less_usd * (1 - SLACK), "a choice of the front is dominated"
    return len(record["front"])


# Each law with the share of answers that it is checked on: those that cost as much as the answer are for some.
LAWS: Final[dict[str, dict[str, tuple[float, Callable[[Case], int]]]]] = {
    "astra.plan": {
        "read back": (1.0, read_back), "sums": (1.0, _sums), "limits": (1.0, _limits),
        "restrictions kept": (1.0, _restricted), "unbeaten": (1.0, _unbeaten), "text": (0.05, _text),
        "asked again": (0.03, _again), "wider is no slower": (0.05, _wider),
        "narrower is no quicker": (0.1, _narrower), "exported": (0.3, _exported), "shown": (0.03, _shown),
        "no pool alone is better": (0.5, _no_pool_alone_is_better),
    },
    "astra.estimate": {
        "read back": (1.0, _estimate_back), "sums": (1.0, lambda case: _parts(case.record)),
        "verdicts": (1.0, _verdicts), "text": (1.0, _estimated_again),
    },
    "astra.rent": {"read back": (1.0, read_back), "front": (1.0, _rented)},
}  # fmt: skip
