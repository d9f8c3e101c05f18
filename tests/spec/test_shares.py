"""Groups that share one state: their text reads back, parts add up to one, and what could not be run is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError
from astra.spec.mixed_text import parse_mixed, short_form

ONE = "[m4: A100 dp8 mbs2 zero3 reshard=always layers=32]"
OTHER = "[m4: V100 dp4 mbs1 zero3 reshard=always recompute=full layers=32]"
numbers = st.integers(0, 1000)


@given(numbers, numbers)
def test_the_text_reads_back_and_parts_add_up_to_one(one: int, other: int) -> None:
    text = f"shares={one},{other} {ONE} {OTHER}"
    if one == other == 0:
        with pytest.raises(InputError, match="not all of them 0"):
            parse_mixed(text)
        return
    strategy = parse_mixed(text)
    assert parse_mixed(str(strategy)) == strategy
    assert parse_mixed(" ".join(short_form(str(strategy)))) == strategy
    assert strategy.shares == (one, other)
    first, second = strategy.held
    assert 8 * first + 4 * second == pytest.approx(1)
    assert first * other == pytest.approx(second * one / 2)  # eight replicas in the first group, four in the second
    assert strategy.padding >= 1 - 1e-12
    assert (strategy.padding == pytest.approx(1)) == (one == 2 * other)  # nothing is padded where all parts are equal


def test_groups_with_a_state_of_their_own_say_nothing_of_it() -> None:
    strategy = parse_mixed(f"{ONE} {OTHER}")
    assert (strategy.shares, strategy.held) == ((), ())
    assert "shares" not in str(strategy)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"shares=1 {ONE} {OTHER}", "a number for each of the 2 groups"),
        (f"shares=1,-1 {ONE} {OTHER}", "a whole number for each group"),
        (f"shares=1,1 shares=1,1 {ONE} {OTHER}", "each setting once"),
        (f"shares=1 {ONE}", "a number for each"),
        (f"shares=1,1 {ONE} {OTHER.replace('m4', 'm2')}", "one number of micro-batches"),
        (f"shares=1,1 {ONE} {OTHER.replace('zero3', 'zero1')}", "zero3 over all their replicas"),
        (f"shares=1,1 {ONE} {OTHER.replace('reshard=always', 'reshard=never')}", "reshard=always"),
        (f"shares=1,1 {ONE} {OTHER.replace('dp4', 'dp4 shard2')}", "zero3 over all their replicas"),
        (f"shares=1,1 {ONE} {OTHER.replace('dp4', 'tp2 dp4')}", "one tp"),
        (f"shares=1,1 {ONE} {OTHER.replace('dp4', 'pp2 dp4').replace('=32', '=16*2')}", "without pipelines"),
        (f"shares=1,1 {ONE} [dp4 mbs1 m4: V100 tp1 pp1 layers=32]", "groups on one pool each"),
        (f"shares=1,1 local=30 {ONE} {OTHER}", "no local steps"),
    ],
)
def test_what_could_not_be_run_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_mixed(text)
