"""Imports go downward only: a package may import those listed before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import astra

SOURCE = Path(astra.__file__).parent
LAYERS = (
    ("__init__", "units", "errors", "provenance"),
    ("files", "atomic", "interrupts", "journal"),
    ("spec",),
    ("columns", "answer", "options"),
    ("answer_money",),
    ("catalog",),
    ("layers",),
    ("axes",),
    ("operators", "network"),
    ("schedule", "partition"),
    ("cost",),
    ("rules", "money"),
    ("evidence",),
    ("search",),
    ("renting", "api"),
    ("study", "questions"),
    ("sharing",),
    ("export", "report"),
    ("validate", "lab", "serve"),
    ("cli",),
    ("__main__",),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
# Results draw themselves: their methods load the drawing when called, never before.
LAZY = {("answer", "report"), ("answer_money", "report"), ("search", "report"), ("api", "report"),
        ("study", "report")}  # fmt: skip


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, *, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Each imported astra package, and whether the import runs only when a function is called or types are checked."""
    for node in ast.iter_child_nodes(tree):
        lazy = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _only_for_types(node)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            names = [f"astra.{alias.name}" for alias in node.names] if module == "astra" else [module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "astra":
                known = len(parts) > 1 and parts[1] in LEVEL
                yield parts[1] if known else "__init__", lazy
        yield from imports(node, inside=lazy)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_every_module_has_a_layer() -> None:
    assert {package_of(path) for path in files()} <= set(LEVEL)


def test_imports_go_downward_only() -> None:
    wrong = []
    for path in files():
        here = package_of(path)
        for there, lazy in imports(ast.parse(path.read_text(encoding="utf-8"))):
            allowed_lazily = here == "__init__" or (here, there) in LAZY
            if there != here and LEVEL[there] >= LEVEL[here] and not (lazy and allowed_lazily):
                wrong.append(f"{path.relative_to(SOURCE)} imports {there}")
    assert wrong == []


def test_the_rule_would_notice() -> None:
    tree = ast.parse("from astra.cli import main\ndef f():\n    import astra.search.engine")
    assert list(imports(tree)) == [("cli", False), ("search", True)]


def test_only_the_lab_imports_torch() -> None:
    users = {path for path in files() if frameworks_of(ast.parse(path.read_text(encoding="utf-8")))}
    assert {package_of(path) for path in users} == {"lab"}


def test_only_the_server_imports_its_framework() -> None:
    users = {path for path in files() if "starlette" in path.read_text(encoding="utf-8")}
    assert {package_of(path) for path in users} == {"serve"}


def frameworks_of(tree: ast.AST) -> set[str]:
    """Torch and megatron, where a module imports them anywhere."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names} & {"torch", "megatron"}


def test_nothing_shipped_imports_the_tools() -> None:
    for path in files():
        text = path.read_text(encoding="utf-8")
        assert "import tools" not in text, path
        assert "from tools" not in text, path
