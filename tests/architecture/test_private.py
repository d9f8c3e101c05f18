"""What a module begins with an underscore is its own: no other module of ours imports it or reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import astra

SOURCE = Path(astra.__file__).parent
OF_TUPLES = {"_replace", "_asdict", "_fields", "_field_defaults"}  # the public names of a NamedTuple


def ours(tree: ast.AST) -> tuple[set[str], set[str]]:
    """The names that a module takes from Astra, and those it gives to attributes, functions and classes itself."""
    taken, given = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "astra":
            taken |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            given.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return taken, given


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_TUPLES


def borrowed(tree: ast.AST) -> Iterator[str]:
    """Private names of other modules of ours: those imported, and attributes this module gives nobody.

    Private parts of what is not ours, such as a framework's, are not judged.
    """
    taken, given = ours(tree)
    arguments = {node.arg: ast.unparse(node.annotation) for node in ast.walk(tree)
                 if isinstance(node, ast.arg) and node.annotation is not None}  # fmt: skip
    yield from filter(private, taken)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not private(node.attr) or node.attr in given:
            continue
        if isinstance(node.value, ast.Call):
            continue
        whose = ast.unparse(node.value).split(".")
        borrowed_from = whose[0] in taken or arguments.get(whose[0], "").partition("[")[0] in taken
        if borrowed_from or (whose[0] == "self" and len(whose) > 1):
            yield ast.unparse(node)


def test_private_names_are_not_borrowed() -> None:
    found = {str(path.relative_to(SOURCE)): sorted(borrowed(ast.parse(path.read_text("utf-8"))))
             for path in sorted(SOURCE.rglob("*.py"))}  # fmt: skip
    assert {path: names for path, names in found.items() if names} == {}


def test_the_rule_would_notice() -> None:
    text = (
        "from astra.a import _b, c, D\nimport torch\n"
        "def f(d: D, e): return c._g, d._h, e._i, torch._j, d._replace()\n"
        "class K:\n    def l(self): return self.m._n"
    )
    assert sorted(borrowed(ast.parse(text))) == ["_b", "c._g", "d._h", "self.m._n"]
