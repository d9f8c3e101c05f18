"""The rule language: equal to plain Python on every row, and every fault is pointed at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.errors import InputError
from astra.files import LIMITS
from astra.rules.language import MAX_DEPTH, MAX_LENGTH, Condition, RuleText
from astra.rules.names import NAMES, Names
from astra.rules.table import MAX_RULES, Rule, parse_rule, rule_lines, rules_of
from astra.spec.strategy_fields import CHOICES

Row = Mapping[str, Any]


def parse_condition(text: str) -> Condition:
    return Condition(RuleText(text))


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    return rules_of(rule_lines(path), str(path))


ROWS: list[dict[str, Any]] = [
    {"tp": tp, "pp": pp, "zero": zero, "sp": sp, "flash": flash, "recompute": recompute}
    for tp in (1, 2, 8)
    for pp in (1, 3)
    for zero in (0, 3)
    for sp in (False, True)
    for flash in (False, True)
    for recompute in ("none", "full")
]
FACTS = {"experts": 0, "heads": 64, "moe": False, "mla": True, "task": "lora", "memory_gib": 79.6}


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: np.array([row[name] for row in rows]) for name in ("tp", "pp", "zero", "sp", "flash")}
    codes = [CHOICES["recompute"].index(row["recompute"]) for row in rows]
    return columns | {"recompute": np.array(codes, dtype=np.int16)}


TABLE = Names(columns_of(ROWS), FACTS)


class Part(NamedTuple):
    """Text in the rule language and what it means on one row."""

    text: str
    value: Callable[[Row], Any]


def name_part(name: str) -> Part:
    return Part(name, lambda row: row[name])


NUMBER = st.one_of(
    st.sampled_from(["tp", "pp", "zero", "experts", "heads"]).map(name_part),
    st.integers(1, 20).map(lambda n: Part(str(n), lambda _: n)),
    st.sampled_from([0.5, 2.25]).map(lambda n: Part(str(n), lambda _: n)),
)
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
COMPARISON: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def arithmetic(left: Part, symbol: str, right: Part) -> Part:
    return Part(
        f"({left.text}) {symbol} ({right.text})", lambda row: ARITHMETIC[symbol](left.value(row), right.value(row))
    )


NUMBERS = st.recursive(
    NUMBER,
    lambda inner: st.one_of(
        st.builds(arithmetic, inner, st.sampled_from(list(ARITHMETIC)), inner),
        inner.map(lambda part: Part(f"-({part.text})", lambda row: -part.value(row))),
    ),
    max_leaves=4,
)


def chain(first: Part, symbols: list[str], others: list[Part]) -> Part:
    pairs = list(zip([first, *others], symbols, others, strict=False))
    text = first.text + "".join(f" {symbol} {right.text}" for _, symbol, right in pairs)
    return Part(text, lambda row: all(COMPARISON[s](a.value(row), b.value(row)) for a, s, b in pairs))


def member(left: Part, negated: bool, items: list[int]) -> Part:
    text = f"{left.text} {'not in' if negated else 'in'} ({', '.join(map(str, items))})"
    return Part(text, lambda row: (left.value(row) in items) is not negated)


CONDITION = st.one_of(
    st.sampled_from(["sp", "flash", "moe", "mla"]).map(name_part),
    st.booleans().map(lambda truth: Part(str(truth).lower(), lambda _: truth)),
    st.sampled_from(["none", "selective", "full"]).map(
        lambda word: Part(f'recompute == "{word}"', lambda row: row["recompute"] == word)
    ),
    st.sampled_from(["lora", "pretrain"]).map(lambda word: Part(f"'{word}' != task", lambda row: row["task"] != word)),
    st.builds(member, NUMBER, st.booleans(), st.lists(st.integers(0, 8), min_size=1, max_size=3)),
    st.builds(
        chain,
        NUMBERS,
        st.lists(st.sampled_from(list(COMPARISON)), min_size=2, max_size=2),
        st.lists(NUMBERS, min_size=1, max_size=2),
    ),
)


def all_of(parts: list[Part]) -> Part:
    return Part(" and ".join(f"({part.text})" for part in parts), lambda row: all(part.value(row) for part in parts))


def any_of(parts: list[Part]) -> Part:
    return Part(" or ".join(f"({part.text})" for part in parts), lambda row: any(part.value(row) for part in parts))


CONDITIONS = st.recursive(
    CONDITION,
    lambda inner: st.one_of(
        inner.map(lambda part: Part(f"not ({part.text})", lambda row: not part.value(row))),
        st.lists(inner, min_size=2, max_size=3).map(all_of),
        st.lists(inner, min_size=2, max_size=3).map(any_of),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(CONDITIONS)
def test_columns_agree_with_python_row_by_row(part: Part) -> None:
    condition = parse_condition(part.text)
    try:
        wanted = [bool(part.value({**FACTS, **row})) for row in ROWS]
    except ZeroDivisionError:
        with pytest.raises(InputError, match="never 0"):
            condition(TABLE)
        return
    assert np.broadcast_to(condition(TABLE), len(ROWS)).tolist() == wanted


LOOSE = st.one_of(
    st.sampled_from(["tp", "pp", "zero", "experts", "heads", "memory_gib", "3", "7", "0.5", "007", "(tp - 3)", "-pp"]),
    st.tuples(
        st.sampled_from(["tp", "pp", "12", "heads"]),
        st.sampled_from(list(ARITHMETIC)),
        st.sampled_from(["zero", "pp", "5"]),
    ).map(" ".join),
)
JOINED = st.lists(st.tuples(st.sampled_from(list(ARITHMETIC)), LOOSE), max_size=2).flatmap(
    lambda tail: LOOSE.map(lambda first: first + "".join(f"{symbol}{right}" for symbol, right in tail))
)
LEAF = st.one_of(
    st.builds(
        lambda first, tail: first + "".join(f" {s} {n}" for s, n in tail),
        JOINED,
        st.lists(st.tuples(st.sampled_from(list(COMPARISON)), JOINED), min_size=1, max_size=2),
    ),
    st.sampled_from(["sp", "flash", "moe", "True", 'recompute == "full"', "'none' != recompute", "sp == flash"]),
    st.sampled_from(
        ["tp in (1, 8)", "pp not in [3, ]", "1 < tp in (2, 8)", "recompute in ('full', 'none',)", "tp%3 in (1,pp)"]
    ),
)
SENTENCES = st.lists(st.tuples(st.sampled_from(["and", "or", "and not", "or not"]), LEAF), max_size=4).flatmap(
    lambda tail: LEAF.map(lambda first: first + "".join(f" {joint} {right}" for joint, right in tail))
)


@settings(max_examples=300, deadline=None)
@given(SENTENCES, st.booleans())
def test_a_text_means_what_python_says_it_means(text: str, required: bool) -> None:
    """No parentheses help here: what binds to what, and what is never looked at, must be as in Python itself."""
    rule = parse_rule(f"{'require' if required else 'refuse'} {text}")
    try:
        wanted = [bool(eval(text.replace("007", "7"), {}, {**FACTS, **row})) for row in ROWS]
    except ZeroDivisionError:
        with pytest.raises(InputError, match="never 0"):
            rule.breaks(TABLE)
        return
    assert np.broadcast_to(rule.breaks(TABLE), len(ROWS)).tolist() == [truth is not required for truth in wanted]


@pytest.mark.parametrize(
    ("text", "name", "sentence", "condition"),
    [
        ("tp > 4", "rule:1", "your rule refuses tp > 4", "tp > 4"),
        ("refuse tp > 4", "rule:1", "your rule refuses tp > 4", "tp > 4"),
        ("require tp <= 4", "rule:1", "your rule requires tp <= 4", "not (tp <= 4)"),
        ("small: require tp <= 4  # NVLink", "small", "NVLink", "not (tp <= 4)"),
    ],
)
def test_a_rule_refuses_or_requires(text: str, name: str, sentence: str, condition: str) -> None:
    rule = parse_rule(text)
    assert (rule.name, rule.sentence, rule.condition) == (name, sentence, condition)
    assert rule.breaks(TABLE).tolist() == [row["tp"] > 4 for row in ROWS]
    assert parse_rule(rule.condition).breaks(TABLE).tolist() == rule.breaks(TABLE).tolist()


def truth(text: str, **row: Any) -> bool:
    return bool(np.all(parse_condition(text)(Names({}, {**FACTS, **ROWS[0], **row}))))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3 == 7", True),
        ("10 - 4 - 3 == 3", True),
        ("16 / 4 / 2 == 2", True),
        ("7 // 2 * 2 == 6", True),
        ("-7 // 2 == -4", True),
        ("-2 * -3 == 6", True),
        ("false and false or true", True),
        ("true or false and false", True),
        ("not false and false", False),
        ("not 1 == 2", True),
        ("1 < 2 < 3", True),
        ("1 < 3 < 2", False),
        ("1 < 2 == true", None),
        ("1_000 == 1e3", True),
        (".5 == 0.5", True),
        ("tp in [1, 2,]", True),
        ("True and not False", True),
    ],
)
def test_precedence_is_that_of_python(text: str, wanted: bool | None) -> None:
    if wanted is None:
        with pytest.raises(InputError, match="one kind"):
            truth(text)
    else:
        assert truth(text) is wanted


def test_a_guard_keeps_a_division_from_failing() -> None:
    assert not np.any(parse_condition("experts > 0 and heads % experts == 0")(TABLE))
    column = parse_condition("zero == 0 or 6 // zero == 2")(TABLE)
    assert column.all()
    with pytest.raises(InputError, match="never 0"):
        parse_condition("6 // zero == 2 or zero == 0")(TABLE)


def test_products_too_large_for_an_integer_column_do_not_wrap_around() -> None:
    table = Names({"tp": np.array([8, 2**30])}, {})
    assert parse_condition("tp * 1000000000 * 1000000000 * 1000000000 > 1")(table).all()
    assert parse_condition("0 - tp * 999999999999999999 * 100 < 1")(table).all()
    assert parse_condition("tp * tp * tp * tp >= tp")(table).all()


def test_flash_attention_is_another_word_for_flash() -> None:
    assert (parse_condition("flash_attention")(TABLE) == parse_condition("flash")(TABLE)).all()


WORDS = [*NAMES, *"+-*/%<>=!&|()[],:#\"'", "//", "==", "!=", "<=", ">=", "and", "or", "not", "in", "true", '"full"']
NUMBERS_AT_THE_EDGE = ["8", "0", "0.0", "1e308", "1e-308", "999999999999999999", ".5"]
EVERYTHING = Names(
    columns_of(ROWS),
    {
        name: {"number": 3, "switch": True, "text": (word.choices or ("",))[0], "choice": 0}[word.kind]
        for name, word in NAMES.items()
    },
)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.lists(st.sampled_from(WORDS + NUMBERS_AT_THE_EDGE), max_size=12).map(" ".join), st.text(max_size=60))
)
def test_any_text_is_a_rule_or_an_input_error(text: str) -> None:
    try:
        rule = parse_rule(text, "fuzz")
    except InputError as error:
        assert re.match(r"fuzz:\d+:\d+: ", str(error))  # noqa: PT017
        return
    assert rule.needs <= set(NAMES)
    assert rule.sentence


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["+", "-", "*", "/", "//", "%"]),
            st.sampled_from(["tp", "zero", "memory_gib", *NUMBERS_AT_THE_EDGE]),
        ),
        max_size=6,
    )
)
def test_arithmetic_at_the_edge_is_a_column_or_an_input_error(tail: list[tuple[str, str]]) -> None:
    text = "tp" + "".join(f" {symbol} {word}" for symbol, word in tail) + " > 1"
    try:
        column = parse_rule(text).breaks(EVERYTHING)
    except InputError:
        return
    assert np.shape(column) == (len(ROWS),)


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("tpp > 8", 1, "Did you mean tp"),
        ("tp > 8 and gpus_pernode < 3", 12, "Did you mean gpus_per_node"),
        ("recompute == full", 14, 'Put it in quotes: recompute == "full"'),
        ('recompute == "ful"', 14, 'Did you mean "full"?'),
        ('recompute in ("full", "some")', 23, '"none", "selective", "full"'),
        ('task == "train"', 9, '"pretrain", "finetune", "lora"'),
        ("tp = 8", 4, "Write ==."),
        ("tp > 8 && sp", 8, "Write and."),
        ("tp > 8 | sp", 8, "Write or."),
        ("!sp", 1, "Write not."),
        ('tp > "8"', 6, "two values of one kind"),
        ("moe == 1", 8, "Write moe or not moe."),
        ("tp and sp", 1, "tp > 1"),
        ("tp", 1, "A rule is a condition"),
        ('recompute < "full"', 11, "has no order"),
        ("tp + sp > 1", 6, "+ works on numbers"),
        ("(tp > 8", 8, ") to close the ( at 1"),
        ("tp > 8)", 7, "end of the condition"),
        ("tp >   # nothing", 5, "the rule ends here"),
        ("tp in 8", 7, "a list in parentheses"),
        ("tp in ()", 8, "a name, a number"),
        ("tp $ 8", 4, "a condition such as"),
        ('recompute == "full', 14, "a closing quote"),
        ("tp > 1234567890123456789", 6, "at most 18 digits"),
        ("tp % 0 == 1", 6, "a divisor that is not 0"),
        ("sp == on", 7, "Write true or false"),
        ("name: tp > mbss", 12, "Did you mean mbs"),
        ("reqire tp <= 4", 1, "Did you mean require"),
        ("mine: forbid tp > 4", 7, "A rule begins with refuse or require"),
        ("require: tp <= 4", 1, "require without a colon"),  # as a name, it would refuse what is required
        (" refuse : tp > 4", 2, "refuse without a colon"),
        ("heads: tp > 4", 1, "a name that no built-in rule has"),
        ("\ttp > mbss", 7, "Did you mean mbs"),
        ("require tp <= mbss", 15, "Did you mean mbs"),
        ("tp > 2 ** 3", 9, "a name, a number or a parenthesis"),
        ("tp.real > 1", 3, "a condition such as"),
        ("max(tp, 2) > 1", 1, "a known name"),
        ("tp(2) > 1", 3, "the end of the condition"),
        ("tp if sp else pp", 4, "the end of the condition"),
        ("lambda > 1", 1, "a known name"),
        ("tp in (1, 2) == true", 7, "into parentheses"),
        ("tp in (1) + 1", 7, "into parentheses"),
        ("(tp, 2) == 1", 4, ") to close the ( at 1"),
        ("tp not 5", 8, "in, as in tp not in"),
        ("sp == not moe", 7, "Put not and what follows in parentheses"),
        ("tp > 1e999", 6, "at most 18 digits"),
        ('task == "é" or "full" == recompute < 1', 9, "task to be one of"),
        ('"é" != task and tp', 1, "task to be one of"),
    ],
)
def test_the_caret_stands_under_the_fault(text: str, column: int, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rule(text, "my.rules", 7)
    message, shown, caret = str(caught.value).split("\n")
    assert message.startswith(f"my.rules:7:{column}: ")
    assert said in message
    assert caret == " " * (4 + column - 1) + "^"
    assert shown == "    " + text.replace("\t", " ").rstrip()


def test_a_division_by_zero_found_while_running_is_pointed_at() -> None:
    rule = parse_rule("tp > 1 and heads % experts == 0", "my.rules", 2)
    with pytest.raises(InputError) as caught:
        rule.breaks(TABLE)
    message, _, caret = str(caught.value).split("\n")
    assert message.startswith("my.rules:2:18: wanted a divisor that is never 0")
    assert caret == " " * (4 + 17) + "^"


def test_a_long_line_is_shown_around_the_fault() -> None:
    text = "tp > 1 or " * 100 + "tq > 1"
    with pytest.raises(InputError) as caught:
        parse_rule(text, "my.rules", 1)
    message, shown, caret = str(caught.value).split("\n")
    assert message.startswith("my.rules:1:1001: ")
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("tq > 1")


def test_control_characters_are_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        parse_rule("tp > \x1b[31m 8")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * (MAX_DEPTH + 1) + "sp" + ")" * (MAX_DEPTH + 1),
        "not " * (MAX_DEPTH + 1) + "sp",
        "tp > " + "-" * (MAX_DEPTH + 1) + "1",
        "tp > 1" + " + 1" * (MAX_DEPTH + 1),
        "(" * 40 + "1" + "+ 1 + 1)" * 40 + "> tp",
    ],
)
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"at most {MAX_DEPTH} nested parts"):
        parse_rule(text)


def test_nesting_up_to_the_limit_is_accepted() -> None:
    depth = MAX_DEPTH - 2
    assert parse_rule("(" * depth + "sp" + ")" * depth).needs == {"sp"}
    assert parse_rule(" or ".join(["tp > 1"] * 200)).needs == {"tp"}


def test_a_condition_has_a_largest_length() -> None:
    assert parse_rule("tp > 1" + " " * (MAX_LENGTH - 6))
    with pytest.raises(InputError, match="at most 2,000 characters"):
        parse_rule("tp > 1" + " " * (MAX_LENGTH - 5))


def write(folder: Path, content: bytes) -> Path:
    path = folder / "site.rules"
    path.write_bytes(content)
    return path


def test_a_file_of_rules(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        b"\xef\xbb\xbf# our cluster\r\n\r\n"
        b'recompute == "full" and flash_attention  #  we never  pay for both\r\n'
        b"   # indented comment\n"
        b"nvlink-only: tp > gpus_per_node  # keep tensor parallelism on NVLink\n"
        b'offload != "none"',
    )
    rules = read_rules(path)
    assert [rule.name for rule in rules] == ["site.rules:3", "nvlink-only", "site.rules:6"]
    assert [rule.sentence for rule in rules] == [
        "we never pay for both",
        "keep tensor parallelism on NVLink",
        'your rule refuses offload != "none"',
    ]
    assert rules[1].origin == f"{path}:5"
    assert rules[1].condition == "tp > gpus_per_node"
    assert rules[1].needs == {"tp", "gpus_per_node"}


def test_an_empty_file_has_no_rules(tmp_path: Path) -> None:
    assert read_rules(write(tmp_path, b"")) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"tp > 1\nsp and \xff\n", "line 2: wanted text in UTF-8"),
        (b"tp > 1\n\0\n", "not a binary file"),
        (b"tp > 1\n" * (LIMITS["rules"].most_bytes // 7 + 1), "at most 1 MiB"),
        (b"a: tp > 1\na: tp > 2\n", "each name once"),
        (b"tp > 1\n" * (MAX_RULES + 1), f"at most {MAX_RULES:,} rules"),
        (b"tp > 1\n\ntpp > 1\n", "site.rules:3:1: "),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_rules(write(tmp_path, content))
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["missing.rules", ".", "nul\0byte"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="a file of rules"):
        read_rules(f"{tmp_path}/{name}")


@settings(max_examples=50, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_rules_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = write(tmp_path_factory.mktemp("rules"), content)
    try:
        rules = read_rules(path)
    except InputError:
        return
    assert all(rule.needs <= set(NAMES) for rule in rules)
