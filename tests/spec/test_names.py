"""What may be a name, and that every record of the user's checks its own."""

from __future__ import annotations

import datetime as dt
import typing
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog import hardware
from astra.catalog.clusters import parse_cluster
from astra.catalog.huggingface_forward import ModelType
from astra.catalog.models import model
from astra.catalog.prices import Price
from astra.catalog.runtimes import runtime
from astra.errors import InputError
from astra.renting.rent import rent  # noqa: F401  # every record is loaded
from astra.spec.cluster import CollectiveSweep, Joint, Link
from astra.spec.model import StateSpace
from astra.spec.money import Money
from astra.spec.names import MOST_IN_LINE, MOST_IN_NAME, as_line, as_name, check_line, check_name
from astra.spec.record import Spec
from astra.spec.request import FIELDS, PlanRequest
from astra.spec.runtime import Can, Effect, Host, Kernel, Memory, Usual
from tests.export.hostile import HOSTILE

HIDDEN = tuple(name for name in HOSTILE if not name.isprintable())
POOL = parse_cluster("8xH100").pools[0]
LINK = Link(reach=8, kind="pcie", bytes_per_s=1e9, latency_s=1e-6, source="a test")
SAMPLES: dict[str, Spec] = {
    "ModelSpec": model("llama-3.1-8b"),
    "StateSpace": StateSpace(pattern="M", heads=8, head_dim=16, states=32),
    "Device": hardware.device("H100"),
    "NodeType": hardware.node_type("dgx-h100"),
    "Pool": POOL,
    "Link": LINK,
    "Joint": Joint(ends=("a", "b"), link=LINK),
    "CollectiveSweep": CollectiveSweep(op="all_reduce", ranks=2, stride=1, nbytes=(1.0,), seconds=(1.0,)),
    "Runtime": runtime("megatron"),
    "Price": Price(
        provider="a", instance="b", gpu="c", gpus=8, region="d", market="spot", usd_per_gpu_h=1.0,
        date=dt.date(2026, 1, 1), source="e",
    ),
    "Money": Money(providers=("AWS",)),
    "PlanRequest": PlanRequest(model="gpt2", node="dgx-h100", objective="fastest"),
}  # fmt: skip
OF_RUNTIMES = (
    Can,
    Host,
    Memory,
    Usual,
    Effect,
    Kernel,
)  # parts of the catalog's runtime files, which users do not write
# Texts of other kinds, each refused by a check of its own unless it is a known word or a path.
OTHERS = {
    ("Money", "prices"), ("Strategy", "overlap"), ("Strategy", "modules"), ("Job", "repeats"),
    ("MixedStrategy", "overlap"), ("Segment", "pool"), ("OnePool", "pool"),
    ("Restrictions", "fixed"), ("Restrictions", "forbidden"), ("Restrictions", "maxima"), ("Restrictions", "minima"),
    ("_File", "gpu"), ("_File", "node"), ("_File", "between"), ("_File", "link"),
    *((kind.__name__, field.name) for kind in OF_RUNTIMES for field in msgspec.structs.fields(kind)),
    *(("PlanRequest", name) for name in FIELDS if name not in ("node", "runtime", "objective")),
}  # fmt: skip


def records() -> list[type[Spec]]:
    """Every record that users fill in; types of Hugging Face models are a table of Astra's own."""
    found, kinds = [], [Spec]
    while kinds:
        below = kinds.pop().__subclasses__()
        found += below
        kinds += below
    return [kind for kind in found if kind.__module__.startswith("astra.") and kind is not ModelType]


def has_text(kind: Any) -> bool:
    """Whether a type holds free text."""
    return kind is str or any(has_text(inner) for inner in typing.get_args(kind) if not isinstance(inner, str))


def name_fields(kind: type[Spec]) -> list[str]:
    """The fields that hold free text and are not of another kind."""
    fields = msgspec.structs.fields(kind)
    return [field.name for field in fields if has_text(field.type) and (kind.__name__, field.name) not in OTHERS]


def test_every_record_with_names_is_tried() -> None:
    assert {kind.__name__ for kind in records() if name_fields(kind)} - {"_PoolTable"} == set(SAMPLES)


@pytest.mark.parametrize("record", SAMPLES)
def test_no_field_takes_what_cannot_be_seen(record: str) -> None:
    sample = SAMPLES[record]
    for field in name_fields(type(sample)):
        value = getattr(sample, field)
        for name in HIDDEN:
            bad: Any = name
            if isinstance(value, tuple):
                bad = (name,) * max(len(value), 1)
            elif isinstance(value, dict):
                bad = {name: next(iter(value.values()))}
            with pytest.raises(InputError) as caught:
                msgspec.structs.replace(sample, **{field: bad})
            assert field in caught.value.where
            assert str(caught.value).isprintable()
            plain = msgspec.to_builtins(sample) | {field: list(bad) if isinstance(bad, tuple) else bad}
            with pytest.raises(InputError):
                msgspec.convert(plain, type(sample), strict=False)


@given(st.text(max_size=90))
def test_a_name_is_one_line_of_what_can_be_seen(text: str) -> None:
    try:
        name = check_name("name", text)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017  # most texts are refused
        return
    assert name == text == text.strip()
    assert 0 < len(text) <= MOST_IN_NAME
    assert len(text.splitlines()) == 1
    assert all(letter == " " or unicodedata.category(letter)[0] not in "CZ" for letter in text)


@given(st.text(max_size=3000))
def test_any_text_makes_a_name_and_a_line(text: str) -> None:
    assert check_name("name", as_name(text)) == as_name(text)
    assert check_line("line", as_line(text)) == as_line(text)


@given(st.text(alphabet=st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=MOST_IN_NAME))
def test_what_can_be_seen_is_a_name(text: str) -> None:
    assert check_name("name", text) == as_name(text) == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\nb", r"name: got 'a\nb', wanted a name of 1 to 80 characters that can be seen. "
                 r"Take \n out, at position 2."),
        ("\x1b[2J", r"name: got '\x1b[2J', wanted a name of 1 to 80 characters that can be seen. "
                    r"Take \x1b out, at position 1."),
        ("x" * 81, f"name: got '{'x' * 76}..., wanted a name of 1 to 80 characters that can be seen. "
                   "It has 81: shorten it."),
        (" a", "name: got ' a', wanted a name of 1 to 80 characters that can be seen. Take the blanks off its ends."),
        ("", "name: got '', wanted a name of 1 to 80 characters that can be seen. It is empty."),
        (5, "name: got 5, wanted a name, as text."),
    ],
)  # fmt: skip
def test_the_sentence(value: object, said: str) -> None:
    with pytest.raises(InputError) as caught:
        check_name("name", value)
    assert str(caught.value) == said


def test_lines_are_longer_than_names() -> None:
    assert check_line("source", "x" * MOST_IN_LINE)
    with pytest.raises(InputError, match="shorten it"):
        check_line("source", "x" * (MOST_IN_LINE + 1))
    with pytest.raises(InputError, match=r"Take \\x1b out"):
        check_line("source", "a \x1b[0m b")
