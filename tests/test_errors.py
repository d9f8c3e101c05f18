"""Errors for people: where, what was given, what was wanted, how to fix it; and the nearest names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import (
    AstraError,
    InputError,
    NoCoverage,
    NoFeasiblePlan,
    OutputError,
    UnknownName,
    fold,
    nearest_names,
)
from tests.properties.jobs import law

MODELS = ("llama-2-7b", "llama-2-70b", "llama-3-8b", "mixtral-8x7b", "gpt-2")


def test_the_sentence() -> None:
    error = InputError("gpus", 3, want="a multiple of 8", fix="Try 8.")
    assert str(error) == "gpus: got 3, wanted a multiple of 8. Try 8."
    assert (error.where, error.got, error.want, error.fix) == ("gpus", 3, "a multiple of 8", "Try 8.")
    assert str(InputError("rules", None, want="a file")) == "rules: wanted a file."


def test_long_values_are_cut() -> None:
    assert len(str(InputError("model", "x" * 10_000, want="a name"))) < 200


def test_exit_codes_tell_errors_apart() -> None:
    codes = {kind.exit_code for kind in (AstraError, InputError, NoFeasiblePlan, NoCoverage, OutputError)}
    assert len(codes) == 5
    assert 0 not in codes
    assert issubclass(UnknownName, InputError)


@pytest.mark.parametrize(
    ("given_", "first"),
    [("llama2-7b", "llama-2-7b"), ("LLAMA_3_8B", "llama-3-8b"), ("mixtral", "mixtral-8x7b"), ("gpt2", "gpt-2")],
)
def test_the_nearest_name_comes_first(given_: str, first: str) -> None:
    assert nearest_names(given_, MODELS)[0] == first
    assert first in str(UnknownName("model", given_, MODELS))


@law(100)
@given(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=6))
def test_suggestions_are_known_and_few(name: str, known: list[str]) -> None:
    found = nearest_names(name, known)
    assert len(found) <= 3
    assert set(found) <= set(known)
    assert UnknownName("model", name, known).nearest == nearest_names(name, sorted(known))


@law(60)
@given(st.sampled_from(MODELS))
def test_a_name_is_nearest_to_itself(name: str) -> None:
    assert nearest_names(name.upper().replace("-", " "), MODELS)[0] == name
    assert fold(name.upper()) == fold(name)


def test_a_message_is_one_line_that_can_be_seen() -> None:
    error = InputError("file\x1b[2J\n: key", "a\x9bb", want="c\u202ed", fix="e\rf")
    assert str(error) == r"file\x1b[2J\n: key: got 'a\x9bb', wanted c\u202ed. e\rf"


def test_a_message_is_short_whatever_it_quotes() -> None:
    for got in ("x" * 10**6, 10**10_000):
        assert len(str(InputError("y" * 10**6, got, want="z" * 10**6, fix="w" * 10**6))) < 10_000
