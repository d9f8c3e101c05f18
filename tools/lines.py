"""Lines of the package by what they are, and how many of them plans run. Run: python -m tools.lines [TREE].

TREE is the root of another state of the sources, such as one that ``git archive`` wrote. Lines that run are those of
the functions that a fresh process enters while it plans (``tools.modules`` has the plans).
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tools.modules import PLANS

KINDS: Final = ("code", "docstrings", "blank")
_RAN: Final = """
import json, sys, astra
ran = set()
def note(frame, event, argument):
    if event == "call" and "/astra/" in frame.f_code.co_filename and frame.f_code.co_name != "<module>":
        ran.add(frame.f_code)
sys.setprofile(note)
astra.plan(**json.loads(sys.argv[1]))
sys.setprofile(None)
spans = {}
for code in ran:
    last = max(line or 0 for *_, line in code.co_lines())
    spans.setdefault(code.co_filename, set()).update(range(code.co_firstlineno, last + 1))
print(sum(map(len, spans.values())))
"""


def counted(text: str) -> Counter[str]:
    """The lines of a module by kind, and its functions."""
    tree, lines = ast.parse(text), text.splitlines()
    found = Counter({"lines": len(lines), "blank": sum(not line.strip() for line in lines)})
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found["functions"] += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and node.body:
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                spanned = lines[first.lineno - 1 : first.end_lineno]
                found["docstrings"] += sum(bool(line.strip()) for line in spanned)
    found["code"] = found["lines"] - found["blank"] - found["docstrings"]
    return found


def of_package(source: Path) -> dict[str, Counter[str]]:
    """The same of each package, with its modules."""
    found: dict[str, Counter[str]] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        own = found.setdefault(parts[0] if len(parts) > 1 else ".", Counter())
        own.update(counted(path.read_text(encoding="utf-8")) + Counter({"modules": 1}))
    return found


def ran(tree: Path, request: dict[str, Any]) -> int:
    """Lines of the functions that one plan enters."""
    words = [sys.executable, "-c", _RAN, json.dumps(request)]
    around = {**os.environ, "PYTHONPATH": str(tree / "src")}
    return int(subprocess.run(words, check=True, capture_output=True, text=True, env=around).stdout)


def main() -> None:
    """Print the table, and the lines that plans run."""
    tree = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path.cwd()
    packages = of_package(tree / "src" / "astra")
    packages["all"] = sum(packages.values(), Counter())
    columns = ("modules", "functions", "lines", *KINDS)
    print(f"{'':12}" + "".join(f"{name:>12}" for name in columns))
    for name, found in sorted(packages.items(), key=lambda item: -item[1]["lines"]):
        print(f"{name:12}" + "".join(f"{found[column]:12,}" for column in columns))
    for name, request in PLANS.items():
        print(f"lines of functions that a plan on {name} enters: {ran(tree, request):,}")


if __name__ == "__main__":
    main()
