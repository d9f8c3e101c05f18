"""Users' files are opened in one module and written in another; everything else that touches files is named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import astra

SOURCE = Path(astra.__file__).parent
DOORS = {"files.py", "atomic.py", "journal.py"}
CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "fdopen", "mkstemp", "load", "replace"}
MODULES = {"os", "np", "numpy", "json", "tomllib", "io", "codecs"}
# By module and function: what comes with Astra and is trusted.
DATA = {
    ("runtimes.py", "_table"), ("kinds.py", "runs"), ("prices.py", "_text_of"), ("grid.py", "_grids"),
    ("models.py", "_aliases"),
    ("models.py", "_load"), ("hardware.py", "catalog_hash"), ("hardware.py", "_device"), ("hardware.py", "_node"),
    ("hardware.py", "_texts"), ("curves.py", "load"), ("gemm.py", "surfaces"), ("basis.py", "read_json"),
    ("targets.py", "_table"), ("targets.py", "_data"),
    ("measured.py", "sources"), ("table.py", "published"),
    ("huggingface_forward.py", "model_types"), ("pages.py", "_read"),
    ("declared.py", "code_hash"),
}  # fmt: skip
# The two ends of a process that Astra starts, in a folder of its own.
OWN = {("here.py", "run_on_gpu")}
# The standard streams.
STREAMS = {("output.py", "flush"), ("__init__.py", "_drop_stdout")}


def touches(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """Each call that opens, reads or writes a file, with the function it is in."""
    for node in ast.iter_child_nodes(tree):
        here = node.name if isinstance(node, ast.FunctionDef) else inside
        if isinstance(node, ast.Call) and (name := _touching(node.func)):
            yield here, name
        yield from touches(node, here)


def _touching(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id if function.id == "open" else ""
    if not isinstance(function, ast.Attribute) or function.attr not in CALLS:
        return ""
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    ambiguous = function.attr in ("load", "replace")  # of texts and records; the module's are meant
    return function.attr if not ambiguous or owner in MODULES else ""


def found() -> set[tuple[str, str, str]]:
    calls = set()
    for path in SOURCE.rglob("*.py"):
        if path.name not in DOORS or path.parent != SOURCE:
            for function, call in touches(ast.parse(path.read_text(encoding="utf-8"))):
                calls.add((path.name, function, call))
    return calls


def test_files_are_opened_in_one_place() -> None:
    calls = {call[:2] for call in found()}
    assert calls - DATA - OWN - STREAMS == set()
    assert (DATA | OWN | STREAMS) - calls == set(), "named here, and not needed any more"


def test_the_rule_would_notice() -> None:
    lines = ("open(p)", "Path(p).open()", "p.read_text()", "np.load(p)", "os.replace(a, b)", "t.replace('a', 'b')")
    seen = [name for _, name in touches(ast.parse("def f():\n    " + "\n    ".join(lines)))]
    assert seen == ["open", "open", "read_text", "load", "replace"]
