"""The field's words: names of our own that once stood for them do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import astra

SOURCE = Path(astra.__file__).parent
RETIRED = {"saver", "savers", "holder", "holders", "shelf", "shelves", "rung", "rungs", "ladder", "ladders", "hunt",
           "hunts", "bench", "told", "alike", "beside", "sorts", "hides"}  # fmt: skip
WHOLE = {"in_full", "_in_full"}  # of two words that each may stand


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword | ast.alias):
            yield (node.arg if isinstance(node, ast.keyword) else node.asname or node.name) or ""


def retired(name: str) -> bool:
    lower = name.lower() if name.isupper() else re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)
    words = re.findall(r"[a-z]+", lower)
    return name in WHOLE or bool(RETIRED & set(words))


def test_retired_words_are_no_names() -> None:
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        found = {name for name in names(ast.parse(path.read_text(encoding="utf-8"))) if retired(name)}
        found |= {part for part in place.with_suffix("").parts if retired(part)}
        assert found == set(), place


def test_retired_words_are_no_names_of_the_page() -> None:
    spoken = {"told", "alike", "beside", "sorts", "hides"}  # which comments may say
    for path in SOURCE.rglob("*.js"):
        assert set(re.findall(r"[a-z]+", path.read_text(encoding="utf-8"))) & (RETIRED - spoken) == set(), path


def test_the_rule_would_notice() -> None:
    tree = ast.parse(
        "from a import told_apart as some\n_TOLD = 1\nclass TimeHolder:\n"
        "    def rung(self, beside=1): return self.in_full"
    )
    assert {name for name in names(tree) if retired(name)} == {"TimeHolder", "rung", "beside", "in_full", "_TOLD"}
    assert not any(map(retired, ("hold", "workbench", "telling", "Ladders".lower()[:5])))
