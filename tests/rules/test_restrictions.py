"""What users fix, forbid and bound: read as typed, applied to candidates, contradictions named."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.columns import FIELDS
from astra.errors import InputError
from astra.rules.restrictions import Restrictions, parse_restrictions
from astra.spec.record import decode
from astra.spec.strategy_fields import CHOICES, INTEGERS, OVERLAPS, STRATEGY_FIELDS, SWITCHES, StrategyField

CANDIDATES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(INTEGERS, (1, 2, 4, 8, 16, 32)),
    "zero": (0, 1, 2, 3),
    **dict.fromkeys(SWITCHES, (False, True)),
    **CHOICES,
}


def left(field: str, **options: list[str]) -> list[Any]:
    return parse_restrictions(**options).filter(field, CANDIDATES[field])


@pytest.mark.parametrize(
    ("field", "options", "wanted"),
    [
        ("tp", {"fix": ["tp=8"]}, [8]),
        ("tp", {"fix": ["tp=4,8"]}, [4, 8]),
        ("tp", {"fix": [" TP = 4, 8 "]}, [4, 8]),
        ("pp", {"fix": ["tp=8"]}, [1, 2, 4, 8, 16, 32]),
        ("recompute", {"fix": ["recompute=selective"]}, ["selective"]),
        ("sp", {"fix": ["sp=on"]}, [True]),
        ("sp", {"fix": ["sp=off"]}, [False]),
        ("sp", {"fix": ["sp=on,off"]}, [False, True]),
        ("flash", {"fix": ["flash-attention=true"]}, [True]),
        ("overlap_grad", {"fix": ["overlap=grad,param"]}, [True]),
        ("overlap_tp", {"fix": ["overlap=grad,param"]}, [False]),
        ("overlap_grad", {"fix": ["overlap=none"]}, [False]),
        ("overlap_p2p", {"fix": ["overlap_p2p=on"]}, [True]),
        ("cp", {"forbid": ["cp"]}, [1]),
        ("sp", {"forbid": ["sp"]}, [False]),
        ("zero", {"forbid": ["zero"]}, [0]),
        ("offload", {"forbid": ["offload"]}, ["none"]),
        ("recompute", {"forbid": ["recompute"]}, ["none"]),
        ("overlap_param", {"forbid": ["overlap"]}, [False]),
        ("overlap_tp", {"forbid": ["overlap=tp"]}, [False]),
        ("overlap_grad", {"forbid": ["overlap=tp"]}, [False, True]),
        ("recompute", {"forbid": ["recompute=full"]}, ["none", "selective"]),
        ("recompute", {"forbid": ["recompute=full", "recompute=none"]}, ["selective"]),
        ("zero", {"forbid": ["zero=3,2"]}, [0, 1]),
        ("schedule", {"forbid": ["schedule=interleaved"]}, ["1f1b", "gpipe", "zb", "zbv"]),
        ("pp", {"maximum": ["pp=16"]}, [1, 2, 4, 8, 16]),
        ("mbs", {"minimum": ["mbs=2"]}, [2, 4, 8, 16, 32]),
        ("tp", {"maximum": ["tp=8"], "minimum": ["tp=2"], "forbid": ["tp=4"]}, [2, 8]),
        ("tp", {"fix": ["tp=4,8"], "maximum": ["tp=4"]}, [4]),
        ("tp", {"fix": ["tp=8", "tp=8"]}, [8]),
    ],
)
def test_forms(field: str, options: dict[str, list[str]], wanted: list[Any]) -> None:
    assert left(field, **options) == wanted


def test_overlap_as_a_whole() -> None:
    restrictions = parse_restrictions(fix=["overlap=grad,param"])
    assert restrictions.allows("overlap", ("grad", "param"))
    assert restrictions.allows("overlap", ("param", "grad"))
    assert not restrictions.allows("overlap", ("grad",))
    assert not restrictions.allows("overlap", ("grad", "param", "tp"))
    assert not restrictions.allows("overlap", ())
    assert parse_restrictions(forbid=["overlap=tp"]).allows("overlap", ())


def test_nothing_said_restricts_nothing() -> None:
    free = parse_restrictions()
    assert not free
    assert free == Restrictions()
    assert free.describe() == []
    assert all(free.filter(field, values) == list(values) for field, values in CANDIDATES.items())


def test_entries_of_columns_are_accepted() -> None:
    restrictions = parse_restrictions(fix=["tp=8", "sp=on"], maximum=["pp=4"])
    assert restrictions.filter("tp", np.array([4, 8])) == [8]
    assert restrictions.allows("sp", np.bool_(True))
    assert not restrictions.allows("pp", np.int64(8))


def test_descriptions() -> None:
    restrictions = parse_restrictions(
        fix=["tp=4,8", "sp=on"], forbid=["recompute=full", "cp"], maximum=["pp=16"], minimum=["mbs=2"]
    )
    assert restrictions.describe() == [
        "tp is 4 or 8",
        "sp is on",
        "cp is 1",
        "recompute is not full",
        "pp is at most 16",
        "mbs is at least 2",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fix": ["tpp=8"]}, "Did you mean --fix tp or pp or etp?"),
        ({"fix": ["interleaved"]}, "--fix schedule=interleaved"),
        ({"forbid": ["full"]}, "--forbid recompute=full"),
        ({"fix": ["xyzzy=8"]}, "Fields: tp, pp,"),
        ({"fix": ["tp"]}, "tp=VALUE"),
        ({"fix": ["sp"]}, "sp=on or sp=off"),
        ({"fix": ["tp="]}, "a whole number"),
        ({"fix": ["tp=eight"]}, "a whole number"),
        ({"fix": ["tp=0"]}, "from 1 to"),
        ({"fix": ["tp=-8"]}, "a whole number"),
        ({"fix": ["tp=4.0"]}, "a whole number"),
        ({"fix": ["tp=٣"]}, "a whole number"),
        ({"fix": ["tp=99999999999"]}, "a whole number"),
        ({"fix": ["zero=4"]}, "from 0 to 3"),
        ({"fix": ["sp=maybe"]}, "on or off"),
        ({"fix": ["recompute=selectiv"]}, "Did you mean selective?"),
        ({"fix": ["overlap=grads"]}, "none, or some of grad, param, tp, p2p"),
        ({"fix": ["overlap=none,tp"]}, "none, or some of"),
        ({"fix": ["tp=4", "tp=8"]}, "To allow several values: --fix tp=A,B"),
        ({"forbid": ["schedule"]}, "--forbid schedule=zb"),
        ({"forbid": ["mbs"]}, "--forbid mbs=8"),
        ({"maximum": ["sp=1"]}, "a field that is a number"),
        ({"maximum": ["recompute=2"]}, "--fix recompute=full"),
        ({"maximum": ["pp"]}, "a whole number"),
        ({"maximum": ["pp=4", "pp=8"]}, "restricted once by --max"),
        ({"minimum": ["mbs=2,4"]}, "a whole number"),
        ({"fix": [""]}, "a field of a strategy"),
        ({"fix": ["="]}, "a field of a strategy"),
        ({"forbid": ["groups=2"]}, "--forbid groups alone"),
        ({"fix": ["groups=2"]}, "--forbid groups alone"),
        ({"maximum": ["groups=2"]}, "--forbid groups alone"),
    ],
)
def test_mistakes_are_explained(options: dict[str, list[str]], said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_restrictions(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fix": ["tp=8"], "maximum": ["tp=4"]}, "--fix tp=8 and --max tp=4: "),
        ({"fix": ["tp=2,4"], "minimum": ["tp=8"]}, "--fix tp=2,4 and --min tp=8: "),
        ({"fix": ["tp=8"], "forbid": ["tp=8"]}, "--fix tp=8 and --forbid tp=8: "),
        ({"forbid": ["cp"], "minimum": ["cp=2"]}, "--fix cp=1 (or --forbid cp) and --min cp=2: "),
        ({"forbid": ["sp=on", "sp=off"]}, "--forbid sp=on,off: "),
        ({"forbid": ["recompute=none,selective,full"]}, "--forbid recompute=none,selective,full: "),
        ({"maximum": ["pp=2"], "minimum": ["pp=4"]}, "--max pp=2 and --min pp=4: "),
        ({"maximum": ["pp=2"], "forbid": ["pp=1,2"]}, "--forbid pp=1,2 and --max pp=2: "),
        ({"minimum": ["zero=2"], "forbid": ["zero=2,3"]}, "--forbid zero=2,3 and --min zero=2: "),
        ({"fix": ["overlap=grad"], "forbid": ["overlap=grad"]}, "--fix overlap_grad=on and --forbid overlap_grad=on: "),
    ],
)
def test_contradictions_are_named(options: dict[str, list[str]], said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_restrictions(**options)
    assert str(caught.value).startswith(said)
    assert "contradict" in str(caught.value)


def test_fixing_what_is_forbidden_by_name_is_refused() -> None:
    with pytest.raises(InputError, match="--forbid cp"):
        parse_restrictions(fix=["cp=2"], forbid=["cp"])


OPTION = st.one_of(
    st.builds(
        lambda field, values: f"{field}={','.join(map(str, values))}",
        st.sampled_from([*FIELDS, "overlap"]),
        st.lists(
            st.one_of(st.integers(0, 33), st.sampled_from(["on", "off", "full", "none", "grad", "zb"])), max_size=3
        ),
    ),
    st.sampled_from([*FIELDS, "overlap"]),
    st.text(max_size=12),
)
OPTIONS = st.lists(OPTION, max_size=3)


@settings(deadline=None)
@given(fix=OPTIONS, forbid=OPTIONS, maximum=OPTIONS, minimum=OPTIONS)
def test_any_options_are_read_or_refused(
    fix: list[str], forbid: list[str], maximum: list[str], minimum: list[str]
) -> None:
    try:
        restrictions = parse_restrictions(fix, forbid, maximum, minimum)
    except InputError:
        return
    for field, values in CANDIDATES.items():
        kept = restrictions.filter(field, values)
        assert kept == [value for value in values if restrictions.allows(field, value)]
        if field in (*CHOICES, *SWITCHES, "zero"):
            assert kept  # a field with a closed domain always has a value left
    assert decode(Restrictions, msgspec.to_builtins(restrictions), where="request") == restrictions


INTEGER = st.sampled_from(CANDIDATES["tp"])


@settings(deadline=None)
@given(fixed=st.sets(INTEGER, min_size=1), forbidden=st.sets(INTEGER), most=INTEGER, least=INTEGER)
def test_a_value_is_allowed_when_no_option_speaks_against_it(
    fixed: set[int], forbidden: set[int], most: int, least: int
) -> None:
    wanted = [n for n in CANDIDATES["tp"] if n in fixed and n not in forbidden and least <= n <= most]
    options = {
        "fix": ["tp=" + ",".join(map(str, sorted(fixed)))],
        "forbid": ["tp=" + ",".join(map(str, sorted(forbidden)))] if forbidden else [],
        "maximum": [f"tp={most}"],
        "minimum": [f"tp={least}"],
    }
    if wanted:
        assert left("tp", **options) == wanted
    else:
        with pytest.raises(InputError, match="contradict"):
            parse_restrictions(**options)


@pytest.mark.parametrize(
    "plain",
    [
        {"fixed": {"tpp": [8]}},
        {"fixed": {"tp": ["8"]}},
        {"fixed": {"sp": [1]}},
        {"fixed": {"recompute": ["some"]}},
        {"maxima": {"sp": 1}},
        {"fixed": {"tp": [8]}, "maxima": {"tp": 4}},
        {"banned": {}},
    ],
)
def test_restrictions_from_a_file_are_checked_too(plain: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        decode(Restrictions, plain, where="request")


def test_every_overlap_has_its_switch() -> None:
    assert all(left(f"overlap_{name}", fix=[f"overlap={name}"]) == [True] for name in OVERLAPS)


@pytest.mark.parametrize("part", [part for part in STRATEGY_FIELDS if part.part_of], ids=lambda part: part.name)
def test_what_belongs_to_a_choice_is_not_asked_of_another(part: StrategyField) -> None:
    """Method and layers are of full recompute, modules of selective: none is fixed where the other is."""
    assert part.part_of is not None
    owner, value = part.part_of
    other = next(str(each) for each in CANDIDATES[part.name] if each != part.plain).replace("True", "on")
    others = ",".join(choice for choice in CHOICES[owner] if choice != value)
    with pytest.raises(InputError, match=f"{owner}={value}, which {part.name} belongs to"):
        parse_restrictions(fix=[f"{part.name}={other}", f"{owner}={others}"])
    for allowed in (value, f"{value},{others}"):
        assert parse_restrictions(fix=[f"{part.name}={other}", f"{owner}={allowed}"])
    assert parse_restrictions(fix=[f"{owner}={others}"])
