"""The reader of scripts against bash itself: quotes, escapes, line continuations, comments and variables."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astra.export.bash_run import ways

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash here")
plain = st.text(alphabet="ab1-=./#+", min_size=1, max_size=4)
odd = st.sampled_from(["\\\n", "\\\\", "\\$", '\\"', "\\'", "\\ ", "\\a", "\\#"])
in_single = st.text(alphabet='ab $"\\\n#;|', max_size=5).map(lambda text: f"'{text}'")
in_double = st.lists(
    st.sampled_from(
        ["a", " ", "'", "\n", "\\\n", "\\\\", "\\$", '\\"', "\\a", "#", ";", "$X", "${X}", "${Y:-b c}", "$Y"]
    ),
    max_size=5,
).map(lambda parts: '"' + "".join(parts) + '"')
variable = st.sampled_from(["${X}", "${Y:-c d}", "$((2*3))", "${Z[@]}"])
word = st.lists(st.one_of(plain, odd, in_single, in_double, variable), min_size=1, max_size=4).map("".join)
gap = st.sampled_from([" ", "  ", "\t", " \\\n", "\\\n ", " \\\n  "])


@st.composite
def commands(draw: Any) -> str:
    """One command over one line or more, perhaps with a comment behind it."""
    text: str = "show"
    for each in draw(st.lists(word, min_size=1, max_size=4)):
        text += draw(gap) + "_" + each
    ending: str = draw(st.sampled_from(["", " # and 'more\\", ";", " \\\n"]))
    return f"{text}{ending}\n"


def words_of_bash(script: str) -> list[str]:
    """The words that bash gives to ``show``."""
    show = "show() { printf '%s\\0' \"$@\"; }\n"
    assert BASH is not None
    ended = subprocess.run([BASH, "-fc", show + script], capture_output=True, check=True, timeout=300)
    return ended.stdout.decode().split("\0")[:-1]


@needs_bash
@settings(max_examples=60, deadline=None)
@given(commands())
@example("show _\"a\\\nb\" _a\\\nb 'a\\\nb'\n")
@example("show _a # a comment \\\nshow_not\n")
def test_words_are_those_of_bash(command: str) -> None:
    script = f"X='x y'\nZ=(p q)\n{command}"
    found = [words[1:] for words in ways(script)[0].commands if words[0] == "show"]
    wanted = words_of_bash(script.replace("show_not", "true"))
    assert found == [wanted]


def test_a_line_goes_on_inside_quotes() -> None:
    script = ways('A="a\\\nb"\nB=\'a\\\nb\'\nC=a\\\nb\nD="a\\\r\nb"  # no \\\nE=e\n')[0]
    assert script.variables == {"A": "ab", "B": "a\\\nb", "C": "ab", "D": "ab", "E": "e"}


@given(st.text(alphabet="ab$(){}[]\"'\\ \n=;#+*-1", max_size=80))
@example('"\\\n"')
@example("a=(a\nb)")
def test_nothing_is_invented(text: str) -> None:
    """It raises nothing, and every letter found was written, but for digits of sums and spaces between array words."""
    script = ways(text)[0]
    found = "".join(word for words in script.commands for word in words) + "".join(script.variables.values())
    joined = {" "} if "(" in text or "+=" in text else set()
    assert set(found) <= set(text) | set("0123456789-") | joined
