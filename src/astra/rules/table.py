"""What makes a strategy legal: sentences, each with a condition that is true where it is broken.

They are files in the language users write their own rules in (``data``). Where a rule
restates a check of Megatron-LM (0.19.2) or torchtitan (0.3.0) the two must agree: a strategy refused here and
accepted there is a lost plan, the reverse a plan that does not start. What a runtime has at all is listed in its file
and read in ``astra.rules.can``; here is what must hold between a model and a strategy, for everybody or a framework.

A user writes one rule a line, what to refuse or to require; a condition without either word is one to refuse, and what
follows ``#`` is the sentence shown::

    no_double: refuse recompute == "full" and flash_attention   # we never pay for both
    require tp <= gpus_per_node                                 # keep tensor parallelism inside a node
    mbs > 4                                                     # refused, as with refuse
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from astra.columns import Columns
from astra.errors import InputError
from astra.files import own_text, read_text
from astra.provenance import Bools, Floats
from astra.rules.language import SENSES, Condition, RuleText
from astra.rules.names import NAMES, Names, names_of_one, shown

_BLOCK_ROWS: Final = 131_072  # columns of a block stay in the processor's cache


class Rule(NamedTuple):
    """One constraint."""

    name: str  # short, as counted in the ledger
    sentence: str  # for people: what must hold
    condition: str  # as text, true where the strategy is refused
    breaks: Callable[[Names], Any]  # names -> true where the strategy is refused
    needs: frozenset[str]  # names it reads
    origin: str = "built-in"  # or the file and line it was written in
    frameworks: tuple[str, ...] = ()  # whose rule it is; none: everybody's

    def broken_by(self, table: Names) -> str:
        """The sentence with the numbers of a one-row table that break it."""
        values = ", ".join(shown(name, table[name]) for name in NAMES if name in self.needs)
        return f"{self.sentence} ({values})" if values else self.sentence


def make_rule(name: str, sentence: str, condition: Condition, origin: str = "built-in") -> Rule:
    """A rule from a parsed condition."""
    return Rule(name, sentence, condition.text, condition, frozenset(condition.needs), origin)


def _rules(file: str) -> tuple[Rule, ...]:
    """The rules of a file of ours: as users write them, with the frameworks whose rule it is behind the name."""
    made = {}
    for line in own_text(__file__, file).splitlines():
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or found["name"] in made:
            raise ValueError(f"{file}: not a rule with a name of its own: {line}")
        name, frameworks, condition = found["name"], tuple((found["frameworks"] or "").split()), found["condition"]
        whose = " or ".join(f'runtime == "{framework}"' for framework in frameworks)
        whose = f"({whose})" if len(frameworks) > 1 else whose
        whole = f"{whose} and ({condition})" if whose else condition
        rule = make_rule(name, found["sentence"], Condition(RuleText(whole, f"rule {name}")))
        made[name] = rule._replace(frameworks=frameworks)
    return tuple(made.values())


_LINE: Final = re.compile(
    r"(?P<name>\w+)(?: \[(?P<frameworks>[\w ]+)\])?: (?:refuse|where) (?P<condition>[^#]+?)  # (?P<sentence>.+)"
)
RULES: Final = _rules("legal.rules")
ADVICE: Final = _rules("advice.rules")


class Verdict(NamedTuple):
    """Which rows are legal and why the others are not."""

    ok: Bools  # one entry per row
    ledger: dict[str, int]  # rule -> rows refused; a row counts under the first rule it breaks
    remaining: tuple[str, ...]  # rules that could not be applied: a name they need is not in the table


def check(
    columns: Columns,
    facts: Mapping[str, Any],
    rules: Sequence[Rule] = RULES,
    user_rules: Sequence[Rule] = (),
    *,
    weights: Floats | None = None,
) -> Verdict:
    """Apply every rule whose names are present; the counts and the legal rows add up to all rows.

    ``weights`` says how many strategies each row stands for (one if not given).
    """
    table = Names(columns, facts)
    usable = [rule for rule in (*rules, *user_rules) if rule.needs <= table.known]
    remaining = tuple(rule.name for rule in (*rules, *user_rules) if not rule.needs <= table.known)
    ledger: dict[str, int] = {}
    ok = np.ones(table.rows, dtype=np.bool_)
    start = 0
    for block in table.blocks(_BLOCK_ROWS):
        counted = None if weights is None else weights[start : start + block.rows]
        _refuse(block, ok[start : start + block.rows], usable, ledger, counted)
        start += block.rows
    return Verdict(ok, ledger, remaining)


def _refuse(block: Names, ok: Bools, rules: Sequence[Rule], ledger: dict[str, int], weights: Floats | None) -> None:
    """Take the rows that break a rule out of ``ok`` and count them."""
    for rule in rules:
        broken = rule.breaks(block)
        if np.size(broken) == 1 and not np.any(broken):
            continue
        newly = ok & broken
        rows = int(np.count_nonzero(newly))
        if rows:
            refused = rows if weights is None else round(float(weights[newly].sum()))
            ledger[rule.name] = ledger.get(rule.name, 0) + refused
            ok ^= newly


def violations(
    columns: Columns, facts: Mapping[str, Any], user_rules: Sequence[Rule] = (), *, rules: Sequence[Rule] = RULES
) -> list[str]:
    """Every sentence a one-row table breaks, with the numbers that break it."""
    return _broken(columns, facts, (*rules, *user_rules))


def advice(columns: Columns, facts: Mapping[str, Any]) -> list[str]:
    """What is legal but unwise in a one-row table."""
    return _broken(columns, facts, ADVICE)


def _broken(columns: Columns, facts: Mapping[str, Any], rules: Iterable[Rule]) -> list[str]:
    table = names_of_one(columns, facts)
    return [rule.broken_by(table) for rule in rules if rule.needs <= table.known and rule.breaks(table)]


MAX_RULES: Final = 1_000
_LABEL: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:")
_SENSE: Final = re.compile(rf"\s*({'|'.join(SENSES)})\b")
_BUILT_IN: Final = frozenset(rule.name for rule in RULES)


def parse_rule(text: str, where: str = "rule", line: int = 1) -> Rule:
    """Read ``name: refuse condition  # sentence``, or ``require``; all but the condition may be left out."""
    label = _LABEL.match(text)
    if label and label.group(1) in SENSES:  # its colon would make it a name, and turn require round
        name = label.group(1)
        RuleText(text, where, line).fail(text.index(name), f"{name}:", f"{name} without a colon, or another name")
    sense = _SENSE.match(text, label.end() if label else 0)
    required = sense is not None and sense.group(1) == "require"
    last = sense or label
    source = RuleText(text, where, line, start=last.end() if last else 0)
    condition = Condition(source, opposite=required)
    name = label.group(1) if label else f"{Path(where).name}:{line}"
    if name in _BUILT_IN:
        source.fail(text.index(name), name, "a name that no built-in rule has", "Choose another name.")
    sentence = (
        " ".join(condition.comment.split()) or f"your rule {'requires' if required else 'refuses'} {condition.said}"
    )
    return make_rule(name, sentence, condition, origin=f"{where}:{line}")


def rule_lines(path: str | Path) -> list[str]:
    """The lines of a file of rules."""
    return read_text(path, "rules").split("\n")


def rules_of(lines: Iterable[str], where: str) -> tuple[Rule, ...]:
    """The rules of some lines; empty ones and those that are only a comment are passed over."""
    rules: dict[str, Rule] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        rule = parse_rule(line.rstrip("\r"), where, number)
        if rule.name in rules:
            RuleText(line, where, number).fail(
                line.index(rule.name), rule.name, f"each name once; {rules[rule.name].origin} has it already"
            )
        rules[rule.name] = rule
        if len(rules) > MAX_RULES:
            raise InputError(f"{where}:{number}", None, want=f"at most {MAX_RULES:,} rules in a file")
    return tuple(rules.values())
