"""The text form of strategies over several pools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError
from astra.spec.mixed import Group, MixedStrategy, Segment, pool_word
from astra.spec.mixed_text import is_mixed, parse_mixed, short_form
from astra.spec.strategy_fields import OVERLAPS

counts = st.integers(1, 999)
words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._#-]{0,12}", fullmatch=True)


@st.composite
def segments(draw: st.DrawFn, vp: int) -> Segment:
    pp = draw(st.integers(1, 4))
    layers = draw(st.lists(st.integers(0, 99), min_size=pp * vp, max_size=pp * vp))
    recompute: Any = draw(st.sampled_from(("none", "selective", "full")))
    return Segment(pool=draw(words), tp=draw(counts), pp=pp, ep=draw(counts), layers=tuple(layers), recompute=recompute)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    vp = draw(st.integers(1, 3))
    made = draw(st.lists(segments(vp), min_size=1, max_size=3))
    return Group(
        dp=draw(counts), mbs=draw(counts), cp=draw(counts), microbatches=draw(counts), vp=vp, segments=tuple(made)
    )


@st.composite
def mixed(draw: st.DrawFn) -> MixedStrategy:
    overlap = draw(st.sets(st.sampled_from(OVERLAPS)))
    made = draw(st.lists(groups(), min_size=1, max_size=3))
    ordered = tuple(name for name in OVERLAPS if name in overlap)
    return MixedStrategy(groups=tuple(made), zero=draw(st.integers(0, 1)), overlap=ordered)


@given(mixed())
def test_the_text_reads_back_to_itself(strategy: MixedStrategy) -> None:
    assert parse_mixed(str(strategy)) == strategy
    assert is_mixed(str(strategy))


@given(mixed(), st.booleans())
def test_the_short_text_reads_back_to_the_same_strategy(strategy: MixedStrategy, usual: bool) -> None:
    if usual:
        strategy = MixedStrategy(groups=strategy.groups)
    short = "\n".join(strategy.short())
    assert parse_mixed(short) == strategy
    assert short_form(str(strategy)) == strategy.short()
    assert ("overlap" in short or "zero" in short) == (strategy != MixedStrategy(groups=strategy.groups))


@given(mixed())
def test_counts_add_up(strategy: MixedStrategy) -> None:
    assert strategy.gpus == sum(group.gpus(segment) for group in strategy.groups for segment in group.segments)
    assert strategy.samples == sum(group.dp * group.mbs * group.microbatches for group in strategy.groups)
    for group in strategy.groups:
        assert sorted(group.layers) == sorted(n for segment in group.segments for n in segment.layers)


def test_layers_come_in_the_order_a_micro_batch_visits_them() -> None:
    group = parse_mixed("[dp1 m4 vp2: A tp1 pp2 layers=1,2,3,4 + B tp1 pp1 layers=5,6]").groups[0]
    assert group.layers == (1, 2, 5, 3, 4, 6)


def test_what_is_left_out_takes_its_default() -> None:
    strategy = parse_mixed("[dp2 m8: H100 layers=4*2]")
    assert strategy.groups[0].segments[0] == Segment(pool="H100", tp=1, pp=2, layers=(4, 4))
    assert (strategy.zero, strategy.groups[0].mbs) == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tp8 pp4",
        "[]",
        "[dp1 m1]",
        "[dp1 m1: ]",
        "[dp1: A layers=1]",
        "[dp1 m1: A tp2]",
        "[dp1 m1: A layers=1 + ]",
        "[dp1 m1: A layers=x]",
        "[dp1 m1: A layers=1 tp2 tp2]",
        "[dp1 m1: A layers=1 pp2]",
        "[dp1 m1: A layers=1 recompute=some]",
        "[dp0 m1: A layers=1]",
        "[dp1 m1: A layers=1",
        "[dp1 m1: A layers=1] zero3",
        "[dp1 m1: A layers=1] fast",
        "[dp1 m1: A layers=1] overlap=grad,grad",
        "[dp1 m1: A/B layers=1]",
        "[dp99999999999 m1: A layers=1]",
    ],
)
def test_bad_text_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        parse_mixed(text)


@given(st.text(max_size=20))
def test_any_pool_name_becomes_a_word(name: str) -> None:
    word = pool_word(name)
    assert parse_mixed(f"[dp1 m1: {word} layers=1]").groups[0].segments[0].pool == word
