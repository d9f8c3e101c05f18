"""One name, one meaning: no two modules have a class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import astra

SOURCE = Path(astra.__file__).parent


def test_classes_have_names_of_their_own() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].add(str(path.relative_to(SOURCE)))
    assert len(homes) > 300
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}
