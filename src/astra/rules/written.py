"""Rules that users write: a line of text, or a file of them, becomes a ``Rule`` beside the built-in ones.

One rule per line: what to refuse, or what to require. A condition without either word is one to refuse, and what
follows ``#`` is the sentence shown::

    no_double: refuse recompute == "full" and flash_attention   # we never pay for both
    require tp <= gpus_per_node                                 # keep tensor parallelism inside a node
    mbs > 4                                                     # refused, as with refuse
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from astra.errors import InputError
from astra.files import read_text
from astra.rules.language import Condition, RuleText
from astra.rules.table import RULES, Rule, make_rule

MAX_RULES: Final = 1_000
_LABEL: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:")
_SENSE: Final = re.compile(r"\s*(refuse|require)\b")
_BUILT_IN: Final = frozenset(rule.name for rule in RULES)


def parse_rule(text: str, where: str = "rule", line: int = 1) -> Rule:
    """Read ``name: refuse condition  # sentence``, or ``require``; all but the condition may be left out."""
    label = _LABEL.match(text)
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
