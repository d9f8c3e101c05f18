"""Small mistakes put into a module one at a time: which of them do the tests notice?

    python -m tools.mutate src/astra/cost/step.py src/astra/cost/state.py --tests "tests/cost tests/laws" --most 100

Every mutant runs in a process forked from one that has the libraries loaded. It meets the tests that run its line,
the quickest first, and stops at the first failure; a line that only an import runs meets all of them. A mutant that
takes more processor time than the limit counts as noticed. What survives is printed with its line, to be judged by
hand. With --out a run that was stopped goes on where it ended.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import json
import os
import pickle
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

SWAPS: Final[dict[Any, Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES: Final = {
    "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "any": "all", "all": "any",
    "ceil": "floor", "floor": "ceil", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip
OPERATORS: Final = (ast.BinOp, ast.BoolOp, ast.AugAssign)


class Mutant(NamedTuple):
    """One mistake: the place of a node in the order of ``ast.walk``, and what it becomes."""

    path: Path
    place: int
    part: int  # of a chain of comparisons
    line: int
    what: str


def code_nodes(tree: ast.AST) -> Iterator[tuple[int, ast.AST]]:
    """Nodes that do something: no docstrings, types, or text."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            skipped |= {id(each) for each in ast.walk(getattr(node, name, None) or ast.Pass())}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(each) for each in ast.walk(node)}
    for place, node in enumerate(ast.walk(tree)):
        if id(node) not in skipped:
            yield place, node


def word(node: ast.AST | type[ast.AST]) -> str:
    """The name of a kind of node."""
    return (node if isinstance(node, type) else type(node)).__name__


def changes(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The mistakes that can be made at a node."""
    if isinstance(node, OPERATORS) and type(node.op) in SWAPS:
        yield 0, f"{word(node.op)} -> {word(SWAPS[type(node.op)])}"
    elif isinstance(node, ast.Compare):
        for part, op in enumerate(node.ops):
            yield part, f"{word(op)} -> {word(SWAPS[type(op)])}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        yield 0, f"{node.value!r} -> {other(node.value)!r}"
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield 0, f"{node.id} -> {NAMES[node.id]}"
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield 0, f".{node.attr} -> .{NAMES[node.attr]}"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield 0, f"{word(node.op)} dropped"
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield 0, "condition negated"


def other(value: float) -> float:
    """A constant that is off by one, or the other truth value."""
    return (not value) if isinstance(value, bool) else value + 1


def mutants(path: Path) -> list[Mutant]:
    """Every mistake of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        Mutant(path, place, part, getattr(node, "lineno", 0), what)
        for place, node in code_nodes(tree)
        for part, what in changes(node)
    ]


def mutated(mutant: Mutant) -> CodeType:
    """The module with its mistake."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    node: Any = next(node for place, node in enumerate(ast.walk(tree)) if place == mutant.place)
    if isinstance(node, OPERATORS):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[mutant.part] = SWAPS[type(node.ops[mutant.part])]()
    elif isinstance(node, ast.Constant):
        node.value = other(node.value)  # type: ignore[arg-type]
    elif isinstance(node, ast.Name):
        node.id = NAMES[node.id]
    elif isinstance(node, ast.Attribute):
        node.attr = NAMES[node.attr]
    elif isinstance(node, ast.UnaryOp):
        node.operand = ast.UnaryOp(type(node.op)(), node.operand)  # twice is not at all
    else:
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return compile(ast.fix_missing_locations(tree), str(mutant.path), "exec", dont_inherit=True)


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its mistake."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self.code = mutated(mutant)

    def get_code(self, fullname: str) -> CodeType:
        """Its code."""
        return self.code


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module, and leaves the others alone."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        """The module, if it is the one."""
        one = fullname == self.loader.name
        return importlib.machinery.ModuleSpec(fullname, self.loader, origin=self.loader.path) if one else None


class Watch:
    """A plugin of pytest: how long each test takes, and which lines of the files it runs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = {str(path.resolve()): str(path) for path in paths}
        self.lines: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}
        self._met: set[tuple[str, int]] = set()

    def trace(self, frame: FrameType, _event: str, _arg: object) -> Any:
        """Follow the functions of the files, and no others."""
        path = self.files.get(frame.f_code.co_filename)
        if path is None:
            return None

        def line(frame: FrameType, _event: str, _arg: object) -> Any:
            self._met.add((path, frame.f_lineno))
            return line

        return line

    def pytest_runtest_setup(self, item: Any) -> None:
        """Before a test and what it needs."""
        self._met = self.lines.setdefault(item.nodeid, set())
        sys.settrace(self.trace)

    def pytest_runtest_teardown(self) -> None:
        """After it."""
        sys.settrace(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """How long it took."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def run_tests(tests: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Run tests in this process, silently, to the first failure."""
    import pytest  # noqa: PLC0415

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    return int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests], plugins=list(plugins)))


def watched(paths: Sequence[Path], tests: Sequence[str]) -> Watch:
    """Run the tests without any mistake, in a child, and bring back what they ran."""
    watch = Watch(paths)
    with tempfile.TemporaryFile() as found:
        child = os.fork()
        if child == 0:
            status = run_tests(tests, [watch])
            pickle.dump((watch.lines, watch.seconds), found)
            found.flush()
            os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise SystemExit("the tests fail without any mistake")
        found.seek(0)
        watch.lines, watch.seconds = pickle.load(found)
    return watch


def meeting(mutant: Mutant, watch: Watch) -> list[str]:
    """The tests that run the line of a mistake, the quickest first; all of them if it is run by an import."""
    line = (str(mutant.path), mutant.line)
    tests = [test for test, lines in watch.lines.items() if line in lines] or list(watch.lines)
    return sorted(tests, key=lambda test: watch.seconds[test])


def survives(mutant: Mutant, tests: Sequence[str], most_s: float) -> bool:
    """Whether the tests pass with the mistake in place."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.setitimer(signal.ITIMER_PROF, most_s)
        parts = mutant.path.with_suffix("").parts
        sys.meta_path.insert(0, Finder(Loader(".".join(parts[parts.index("astra") :]), mutant)))
        try:
            status = run_tests(tests)
        except BaseException:  # a mistake may end the run in any way
            status = 1
        os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def keep(out: Path | None, every: int, ran: int, left: Sequence[Mutant]) -> None:
    """Write how far the run is."""
    found = [{"file": str(one.path), "line": one.line, "what": one.what} for one in left]
    if out:
        out.write_text(json.dumps({"of": every, "ran": ran, "survived": found}, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a sample of the mutants and say which survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tests", type=shlex.split, required=True, help="what pytest is given, in one text")
    parser.add_argument("--most", type=int, default=100, help="mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of processor time for one mutant")
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for all of them")
    parser.add_argument("--out", type=Path, help="a JSON file of the survivors, which goes on where it ended")
    asked = parser.parse_args(argv)
    import msgspec  # noqa: F401, PLC0415
    import numpy  # noqa: F401, PLC0415
    import pytest  # noqa: F401, PLC0415

    every = [mutant for path in asked.files for mutant in mutants(path)]
    sample = random.Random(asked.seed).sample(every, min(asked.most, len(every)))
    before = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out and asked.out.exists() else {}
    ran, known = before.get("ran", 0), {tuple(one.values()) for one in before.get("survived", [])}
    left = [one for one in sample[:ran] if (str(one.path), one.line, one.what) in known]
    watch, started = watched(asked.files, asked.tests), time.monotonic()
    for mutant in sample[ran:]:
        if time.monotonic() - started > asked.budget:
            break
        if survives(mutant, meeting(mutant, watch), asked.limit):
            left.append(mutant)
            print(f"survived  {mutant.path}:{mutant.line}  {mutant.what}", flush=True)
        ran += 1
        keep(asked.out, len(every), ran, left)
    print(f"{len(every)} mutants, {ran} run, {ran - len(left)} noticed, {len(left)} survived")


if __name__ == "__main__":
    main()
