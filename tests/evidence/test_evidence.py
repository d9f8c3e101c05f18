"""Evidence: kinds of strategies, bars that hold, sentences that are true."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import astra
from astra.api import make_job
from astra.catalog import runtimes
from astra.columns import from_strategy
from astra.evidence import bars
from astra.evidence.bars import (
    ALONE,
    APART,
    BELIEVED,
    COVERED,
    CROWD,
    ENOUGH,
    NEVER,
    PENALTY,
    WIDE,
    Doubt,
    bar_of,
    log_bars,
    of_kind,
    sentence,
    unpublished,
)
from astra.evidence.coverage import unseen
from astra.evidence.kinds import MOST_EXPERTS, OTHER, SHARED, STRUCTURE, WORDS, Kind, kind_of, runs, shape_of
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.strategy import parse_strategy
from astra.validate.replay import replay
from astra.validate.runs import Run
from astra.validate.table import published

DENSE: dict[str, Any] = {"model": "llama-3-70b", "gpus": "64xH100", "batch": 512, "seq": 8192}
TRODDEN = "tp4 pp4 vp5 cp2 dp2 mbs1 sp zero1"


def job(**changes: object) -> Job:
    return make_job(**{**DENSE, **changes})


def kind(text: str, **changes: object) -> Kind:
    return kind_of(job(**changes), parse_strategy(text))


@pytest.mark.parametrize("name", ["dense", "moe", "stood in"])
def test_bars_hold_four_in_five_runs_of_unseen_sources(name: str) -> None:
    held = [one.held for one in unseen() if name in (one.kind, "stood in" if one.stood_in else "")]
    assert len(held) >= 20
    assert 0.75 <= sum(held) / len(held) <= 0.90


def test_a_sources_own_runs_never_set_its_bar() -> None:
    """Whatever a source measured, its bar without it is the same."""
    known = runs()
    source = known.source[0]
    mine = [place for place, name in enumerate(known.source) if name == source]
    some = [known.kind(place) for place in mine[:20]]
    without, with_it = log_bars(some, source), log_bars(some)
    known.log_error[mine] += 1.0
    try:
        forget()
        assert log_bars(some, source) == pytest.approx(without)
        assert not np.allclose(log_bars(some), with_it)
    finally:
        known.log_error[mine] -= 1.0
        forget()


def forget() -> None:
    """What bars keep of the runs."""
    for kept in vars(bars).values():
        if hasattr(kept, "cache_clear") and kept is not runs:
            kept.cache_clear()


def test_much_evidence_makes_a_short_bar_and_none_a_wide_one() -> None:
    trodden = bar_of(kind(TRODDEN))
    assert trodden < math.log(1.2)
    for text in ("tp4 pp4 vp5 dp4 mbs1 sp zero2", "tp8 dp8 mbs1 sp zero1 offload=optimizer"):
        assert not of_kind(kind(text)).any()
        assert bar_of(kind(text)) >= math.log(1.5)
    assert bar_of(kind(TRODDEN)._replace(framework="nobody's", generation="none", zero="other")) >= math.log(1.5)


def test_a_bar_is_never_wider_than_what_is_believed_without_runs_like_it() -> None:
    words: dict[str, Any] = {name: "?" for name in WORDS if name not in (*SHARED, "model")}
    strange = kind(TRODDEN)._replace(**words)
    assert bar_of(strange) == pytest.approx(math.log(WIDE), rel=0.1)


def test_what_such_runs_have_been_published_without_is_doubted_besides() -> None:
    """Of all strategies alike, so that their order stays; and where it was published so sharded, of none."""
    asked = job(model="gpt-oss-20b", gpus="64xB200", precision="nvfp4")
    for text in ("tp1 ep8 dp64", "tp1 pp2 vp6 ep8 dp32", "tp1 ep8 dp64 zero3"):
        own = kind_of(asked, asked.strategy(text))
        assert runs().elsewhere(own) == ["precision"]
        assert bar_of(own) == pytest.approx(math.hypot(math.log(APART), bar_of(own._replace(precision="8"))), rel=0.1)
        assert bar_of(own) >= math.log(1.5)
    dense = job(model="llama-3-70b", gpus="64xGB200", precision="nvfp4")
    assert bar_of(kind_of(dense, dense.strategy("tp2 pp4 vp5 dp8 sp zero1"))) < math.log(1.2)
    sharded = kind_of(dense, dense.strategy("dp64 zero3"))
    assert bar_of(sharded) >= math.log(1.5)
    assert sentence(sharded, shape_of(dense.model)).endswith("none in 4 bits")


def test_experts_beyond_the_fastest_links_are_another_kind() -> None:
    asked = job(model="deepseek-v3", gpus="256xGB300", precision="mxfp8")
    inside, beyond = (kind_of(asked, asked.strategy(f"pp2 vp8 ep{ep} dp128")) for ep in (64, 128))
    assert (inside.reach, beyond.reach) == ("inside", "beyond")
    assert bar_of(beyond) > bar_of(inside)


def test_few_runs_of_a_kind_do_not_make_it_sure() -> None:
    """One published run hides exchanges between nodes: its error says nothing about four in five."""
    asked = job(model="deepseek-v3", gpus="1024xH100")
    own = kind_of(asked, asked.strategy("tp2 pp8 vp4 ep64 dp64 mbs1 sp zero1 overlap=grad,param,p2p,ep"))
    assert 0 < of_kind(own).sum() < ENOUGH
    assert bar_of(own) >= 1.5 * bar_of(own._replace(exchange="shown"))


def test_a_framework_that_one_source_tells_of_is_doubted_more_than_one_that_many_do() -> None:
    known = runs()
    tell = {name: {source for place, source in enumerate(known.source) if known.kind(place).framework == name}
            for name in ("megatron", "torchtitan", "nanotron")}  # fmt: skip
    assert len(tell["megatron"]) > 5
    for name in ("torchtitan", "nanotron"):
        assert len(tell[name]) == 1
        own = [known.kind(place) for place, source in enumerate(known.source) if {source} == tell[name]]
        assert float(log_bars(own).min()) > bar_of(kind(TRODDEN)) + math.log(1.1)


@pytest.mark.parametrize("name", ["torchtune", "MaxText", "litgpt"])
def test_a_framework_that_another_stands_in_for_has_no_evidence(name: str) -> None:
    """It is planned with what stands in for it, says so, and no run of that sets its bars."""
    asked: dict[str, Any] = {"model": "llama-3-8b", "gpus": "16xH100", "batch": 128, "seq": 4096, "runtime": name}
    plans = astra.plan(**asked)
    own = {"fsdp-eager": "fsdp-eager", "pytorch": "pytorch"}[plans.request["runtime"]]
    assert any(f"{own} stands in for {name}" in note for note in plans.notes)
    best = plans.best.estimate
    assert f"no published run of this kind on {name}" in best.evidence
    assert best.step_s_range.high >= 1.25 * best.step_s
    plain = astra.estimate(**asked | {"runtime": own}, strategy=best.strategy)
    assert plain.step_s == pytest.approx(best.step_s, rel=1e-12)
    assert astra.plan(**plans.asked).best.strategy == best.strategy


def test_a_framework_that_nobody_tells_of_has_the_errors_of_those_predicted_from_others() -> None:
    """Whatever it is called; wider than one that many tell of, and no wider than what is believed of anything."""
    names = ("nobody's", "another", OTHER)
    bars_of = {name: bar_of(kind(TRODDEN)._replace(framework=name)) for name in names}
    assert len(set(bars_of.values())) == 1
    assert bar_of(kind(TRODDEN)) < bars_of[OTHER] <= math.log(WIDE)
    known = runs()
    twins = [place for place in range(len(known.source)) if known.kind(place).framework == OTHER]
    alone = {known.source[place] for place in twins}
    frameworks = {known.kind(place).framework: known.source[place] for place in range(len(known.source))}
    assert {"ultrascale", "internevo", "torchtitan"} <= alone
    assert known.log_error[twins] == pytest.approx(known.unseen_log_error[twins])
    for name in ("nanotron", "internevo", "torchtitan"):  # without their one source they are such frameworks
        own = kind(TRODDEN)._replace(framework=name)
        assert bar_of(own, frameworks[name]) == bar_of(own._replace(framework=OTHER), frameworks[name])


def test_a_published_run_of_a_framework_without_a_runtime_has_a_wide_range() -> None:
    run = next(run for run in published() if isinstance(run, Run) and run.framework == "nemo" and run.measured.step_s)
    own, strange = replay([run, run._replace(framework="our own trainer")])
    assert strange.predicted_step_s == own.predicted_step_s
    assert own.predicted_step_s is not None
    assert own.predicted_step_s_range is not None
    assert strange.predicted_step_s_range is not None
    assert strange.predicted_step_s_range.high > 1.25 * own.predicted_step_s > 0
    assert strange.predicted_step_s_range.high > own.predicted_step_s_range.high


def test_splitting_the_context_makes_nothing_surer() -> None:
    for text in ("tp4 pp4 vp5 cp2 dp2 sp", "tp8 cp2 dp4 sp", "tp2 cp4 pp2 dp4 sp zero3"):
        assert bar_of(kind(text)) >= bar_of(kind(text)._replace(context="whole"))


def test_hiding_exchanges_makes_nothing_surer() -> None:
    for gpus in ("256xH100", "256xGB200"):
        asked = job(model="qwen3-235b-a22b", gpus=gpus)
        for text in ("tp4 pp8 vp6 ep16 dp8 sp", "tp1 pp1 ep32 dp256", "tp2 pp4 vp12 cp2 ep8 dp16 sp"):
            hidden, shown = (
                parse_strategy(f"{text} overlap=grad,param{more}", gpus=256) for more in (",ep", "")
            )  # fmt: skip
            assert bar_of(kind_of(asked, hidden)) >= bar_of(kind_of(asked, shown))
            assert "hidden" in kind_of(asked, hidden)
            assert "hidden" not in kind_of(asked, shown)


def test_sentences_count_what_there_is() -> None:
    known = runs()
    trodden = kind(TRODDEN)
    told = ("framework", "model", "zero", "pipeline", "context", "experts", "exchange", "task", "offload")
    count = sum(all(getattr(known.kind(place), name) == getattr(trodden, name) for name in told)
                for place in range(len(known.source)))  # fmt: skip
    assert sentence(trodden, "80x8192x64").startswith(f"{count} published runs of this kind, ")
    new = kind("tp4 pp4 vp5 dp4 mbs1 sp zero2")
    assert "zero2" in unpublished(new)
    assert "no published run" in sentence(new, "80x8192x64")
    assert unpublished(trodden) == ""


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from(["none", "optimizer"]),
    st.sampled_from([1, 2, 4]),
)
def test_doubt_over_columns_is_the_bar_of_each_strategy(
    tp: int, pp: int, cp: int, zero: int, offload: str, mbs: int
) -> None:
    """What the search multiplies by is what the estimate shows."""
    asked = job()
    strategy = parse_strategy(f"tp{tp} pp{pp} cp{cp} mbs{mbs} zero{zero} offload={offload}", gpus=64)
    factor = float(Doubt(asked).of(from_strategy(strategy))[0])
    assert factor == pytest.approx(math.exp(bar_of(kind_of(asked, strategy))))
    assert factor >= 1
    least = Doubt(asked).least(from_strategy(strategy), np.array([zero]), from_strategy(strategy)["offload"])
    assert float(least[0]) <= factor


def test_a_range_is_the_bar_around_the_step() -> None:
    found = astra.estimate(**DENSE, strategy=TRODDEN)
    times = math.exp(bar_of(kind(TRODDEN)))
    assert found.step_s_range.high == pytest.approx(found.step_s * times)
    assert found.step_s_range.low == pytest.approx(found.step_s / times)
    assert "published runs of this kind" in found.evidence


@pytest.mark.parametrize("without", ["", "mosaic"])
def test_bars_are_the_weighted_quantiles_of_all_errors(without: str) -> None:
    """Run by run, as the module describes them: penalties of what differs, shares of sources, and what is believed."""
    known = runs()
    counted = [run for run in np.flatnonzero(known.sets_bars).tolist() if known.source[run] != without]
    believed, steps = math.log(WIDE) / NormalDist().inv_cdf(0.5 + 0.5 * COVERED), 96
    rng = np.random.default_rng(0)
    for _ in range(25):
        own = known.kind(int(rng.integers(len(known.source))))._replace(
            context="whole", gpus=float(rng.integers(12)), tokens=float(rng.integers(20)),
            framework=str(rng.choice(["megatron", "torchtitan", "deepspeed", "nobody's"])),
            offload=str(rng.choice(["none", "optimizer"])),
        )  # fmt: skip
        own = own._replace(exchange="shown" if own.exchange == "hidden" else own.exchange)
        asked, told = own, {known.kind(run).framework for run in counted}
        own = own if own.framework in told else own._replace(framework=OTHER)
        others = [known.kind(run) for run, source in enumerate(known.source) if source != without]
        like = sum(all(getattr(one, name) == getattr(own, name) for name in STRUCTURE) for one in others)
        errors, weight = [], 0.0
        for run in counted:
            far = {name: _far(name, own, known.kind(run)) for name in Kind._fields}
            crowd = sum(known.source_of[other] == known.source_of[run] for other in counted) ** CROWD
            errors.append((abs(float(known.log_error[run])), math.exp(-sum(far.values())) / crowd))
            weight += math.exp(far["tokens"] - sum(far.values())) / crowd
        tell = {known.source[run] for run in counted if known.kind(run).framework == own.framework}
        tellers = math.sqrt(len(tell)) if own.framework == OTHER else len(tell)
        alone = max(BELIEVED * (1 if like >= ENOUGH else ALONE), weight / tellers if tell else 0.0)
        errors += [
            (believed * NormalDist().inv_cdf(0.5 + 0.5 * (place + 0.5) / steps), alone / steps)
            for place in range(steps)
        ]
        errors.sort()
        reached = np.cumsum([share for _, share in errors])
        quantile = errors[int(np.searchsorted(reached, COVERED * reached[-1]))][0]
        apart = math.sqrt(len(known.elsewhere(own))) * math.log(APART)
        assert bar_of(asked, without) == pytest.approx(math.hypot(quantile, apart), rel=1e-9)


def _far(name: str, own: Kind, run: Kind) -> float:
    """The penalty of what differs in one word or number."""
    here, there = own[Kind._fields.index(name)], run[Kind._fields.index(name)]
    if not (isinstance(here, str) and isinstance(there, str)):
        return PENALTY[name] * abs(float(here) - float(there))
    unknown = name not in SHARED and here not in runs().known[WORDS.index(name)]
    return PENALTY[name] * (here != there) + NEVER * unknown


def test_more_experts_on_a_rank_than_any_run_had_are_doubted() -> None:
    """The most of any published run whose step was measured, counted anew; beyond it every bar is wide."""
    most = 0
    for run in (row for row in published() if isinstance(row, Run) and row.measured.step_s is not None):
        experts = World.of(run.request).model.moe
        if experts is not None and run.strategy.ep > 1:
            most = max(most, experts.experts // run.strategy.ep)
    assert most == MOST_EXPERTS
    asked: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpus": "8xH200", "batch": 64, "seq": 4096}
    few, many = (kind(f"tp1 pp1 ep{ep} dp8 mbs1 zero1 dispatch=deepep", **asked) for ep in (4, 2))
    assert bar_of(many) > math.log(1.5) > bar_of(few)
    assert f"more than {MOST_EXPERTS} experts on a rank" in unpublished(many)


def test_graphs_are_sought_of_kinds_that_runs_were_published_with() -> None:
    """What a runtime's file captures beside its defaults, runs of its framework had."""
    had = {
        (world.runtime.framework, "experts" if world.model.moe else "dense", run.strategy.graphs)
        for run in published()
        if isinstance(run, Run) and (world := World.of(run.request))
    }
    for runtime in map(runtimes.runtime, runtimes.runtime_names()):
        for sort in ("dense", "experts"):
            word = runtime.captures(experts=sort == "experts")
            assert word == "none" or (runtime.framework, sort, word) in had
