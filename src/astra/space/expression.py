"""Rules that users write: a line of text, or a file of them, becomes a ``Rule`` beside the built-in ones.

One rule per line; a condition that is true refuses the strategy, and what follows ``#`` is the sentence shown::

    no_double: recompute == "full" and flash_attention   # we never pay for both
    tp > gpus_per_node                                    # keep tensor parallelism inside a node
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from astra.errors import InputError
from astra.files import LIMITS, read_text
from astra.space._parser import MAX_DEPTH, MAX_LENGTH, Condition, Source
from astra.space.rules import RULES, Rule, make_rule

__all__ = ["MAX_DEPTH", "MAX_FILE_BYTES", "MAX_LENGTH", "MAX_RULES", "parse_condition", "parse_rule", "read_rules"]

MAX_FILE_BYTES: Final = LIMITS["rules"].most_bytes
MAX_RULES: Final = 1_000
_LABEL: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:")
_BUILT_IN: Final = frozenset(rule.name for rule in RULES)


def parse_condition(text: str, where: str = "rule") -> Condition:
    """A condition as something to call with ``Names``."""
    return Condition(Source(text, where))


def parse_rule(text: str, where: str = "rule", line: int = 1) -> Rule:
    """Read ``name: condition  # sentence``; the name and the sentence may be left out."""
    label = _LABEL.match(text)
    source = Source(text, where, line, start=label.end() if label else 0)
    condition = Condition(source)
    name = label.group(1) if label else f"{Path(where).name}:{line}"
    if name in _BUILT_IN:
        source.fail(text.index(name), name, "a name that no built-in rule has", "Choose another name.")
    sentence = " ".join(condition.comment.split()) or f"your rule refuses {condition.text}"
    return make_rule(name, sentence, condition, origin=f"{where}:{line}")


def read_rules(path: str | Path) -> tuple[Rule, ...]:
    """The rules of a file, in order; empty lines and lines that are only a comment are passed over."""
    where = str(path)
    rules: dict[str, Rule] = {}
    for number, line in enumerate(read_text(path, "rules").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        rule = parse_rule(line.rstrip("\r"), where, number)
        if rule.name in rules:
            Source(line, where, number).fail(
                line.index(rule.name), rule.name, f"each name once; {rules[rule.name].origin} has it already"
            )
        rules[rule.name] = rule
        if len(rules) > MAX_RULES:
            raise InputError(f"{where}:{number}", None, want=f"at most {MAX_RULES:,} rules in a file")
    return tuple(rules.values())
