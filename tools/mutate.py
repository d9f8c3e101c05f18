"""Small mistakes put into modules one at a time: which of them do the tests notice?

    python -m tools.mutate src/astra/cost/*.py --tests "tests/cost tests/laws" --each 5 --out quick.json
    python -m tools.mutate src/astra/cost/*.py --tests "tests/cost tests/laws" --again quick.json --out survivors.json

The tests are collected once. A mistake inside a function is put into a process forked from that one; any other (a
constant of a module, a default) into one forked from a process that has only the libraries, which collects the tests
again. It meets the tests that run its line, the quickest first, and stops at the first failure; a line that only an
import runs meets all of them. --each keeps to the quickest so many seconds of them, so that a first run sorts out what
is noticed soon. What takes five times the processor time of its tests counts as noticed. With --out a run that was
stopped, or is asked for more, goes on where it ended, and which tests run which lines is kept beside it; files that
have changed since begin anew. --again FILE: only what survived there, such as with more tests. --estimate: how much
processor time is left to do.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import json
import math
import multiprocessing
import os
import pickle
import random
import resource
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
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
PROCESSES: Final = multiprocessing.get_context("forkserver")
NOTICED_S: Final = 1.5  # processor time until a mistake is noticed,
COLLECTS_S: Final = 6.0  # and more, where everything is loaded and the tests are collected once more
MOST_BYTES: Final = 6 << 30  # of a process with a mistake, which may never stop appending


class Mutant(NamedTuple):
    """One mistake: the place of a node in the order of ``ast.walk``, and what it becomes."""

    path: Path
    place: int
    part: int  # of a chain of comparisons
    line: int
    what: str


def code_nodes(tree: ast.AST) -> Iterator[tuple[int, ast.AST]]:
    """Nodes that change an answer: no types, texts, errors, decorators, or checks that lengths are equal."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += getattr(node, "decorator_list", [])
        if isinstance(node, (ast.JoinedStr, ast.Raise)) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            parts.append(node)
        skipped |= {id(each) for part in parts if part is not None for each in ast.walk(part)}
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


def functions(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods of a module; what is inside them belongs to them."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & inspect.CO_OPTIMIZED:
                yield part
            else:
                yield from functions(part)


def replaced(mutant: Mutant) -> tuple[CodeType, CodeType] | None:
    """The function a mistake is in, without it and with it; nothing if it is in none."""
    whole = compile(mutant.path.read_text(encoding="utf-8"), str(mutant.path), "exec", dont_inherit=True)
    pairs = zip(functions(whole), functions(mutated(mutant)), strict=True)
    changed = [(before, after) for before, after in pairs if before != after]
    return changed[0] if changed else None


def loaded(code: CodeType) -> list[FunctionType]:
    """The functions of this process that run a code."""
    return [each for each in gc.get_objects() if isinstance(each, FunctionType) and each.__code__ == code]


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its mistake."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.with_suffix("").parts
        super().__init__(".".join(parts[parts.index("astra") :]), str(mutant.path))
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

    def __init__(self, paths: Sequence[Path], each: float) -> None:
        self.files, self.each = {str(path.resolve()): str(path) for path in paths}, each
        self.lines: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}
        self.collected: set[tuple[str, int]] = set()  # lines that run before any test does
        self._met = self.collected
        self._began = 0.0

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
        self._began = time.process_time()
        sys.settrace(self.trace)

    def pytest_runtest_teardown(self, item: Any) -> None:
        """After it."""
        sys.settrace(None)
        self.seconds[item.nodeid] = time.process_time() - self._began

    def meets(self, mutant: Mutant) -> bool:
        """Whether a test runs its line."""
        return any((str(mutant.path), mutant.line) in lines for lines in self.lines.values())

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that run the line of a mistake, the quickest first; all of them if it is run by an import."""
        line = (str(mutant.path), mutant.line)
        tests = [test for test, lines in self.lines.items() if line in lines] or list(self.lines)
        tests.sort(key=self.seconds.__getitem__)
        ends = accumulate(self.seconds[test] for test in tests)
        return [
            test for place, (test, end) in enumerate(zip(tests, ends, strict=True)) if end <= self.each or not place
        ]

    def takes(self, mutant: Mutant) -> float:
        """Processor time of the tests that a mistake meets."""
        return sum(self.seconds[test] for test in self.of(mutant))

    def keep(self, file: Path, key: str) -> None:
        """Write down what tests ran, for a later run of the same."""
        file.write_bytes(pickle.dumps((key, self.lines, self.seconds, self.collected)))

    def knows(self, file: Path, key: str) -> bool:
        """Whether that was written down; then it is read."""
        kept: tuple[Any, ...] = pickle.loads(file.read_bytes()) if file.exists() else ("",)
        if kept[0] != key:
            return False
        self.lines, self.seconds, self.collected = kept[1:]
        return True


class Failed:
    """A plugin of pytest: the process ends at the first failure."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test and what it needs, or its end."""
        if report.failed:
            os._exit(1)


class Collected:
    """A plugin of pytest: instead of running the tests that were collected, do something with them."""

    def __init__(self, work: Callable[[Collected], None]) -> None:
        self.work = work
        self.items: dict[str, Any] = {}
        self.plugins: Any = None

    def pytest_runtestloop(self, session: Any) -> bool:
        """In place of the tests."""
        self.items = {item.nodeid: item for item in session.items}
        self.plugins = session.config.pluginmanager
        self.work(self)
        return True

    def run(self, tests: Sequence[str], plugin: object) -> None:
        """Run some of them, in this process."""
        self.plugins.register(plugin)
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def collect(tests: Sequence[str], work: Callable[[Collected], None], *plugins: object) -> None:
    """Collect the tests in this process and do something with them."""
    import pytest  # noqa: PLC0415

    quiet = ["-x", "-q", "-s", "-n", "0", "-p", "no:cacheprovider"]
    status = pytest.main([*quiet, *tests], plugins=[Collected(work), *plugins])
    if status not in {0, 5}:  # 5: none were run, by pytest itself
        raise SystemExit(f"pytest ended with {status}")


def silenced(work: Callable[[], None]) -> None:
    """Do something without a word, and end this process by how it went."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    status = 1
    try:
        work()
        status = 0
    finally:  # a mistake may end the run in any way
        os._exit(status)


def passes(work: Callable[[], None]) -> bool:
    """Whether something ends well in a process forked from this one."""
    child = os.fork()
    if child == 0:
        os.setsid()
        silenced(work)
    return os.waitpid(child, 0)[1] == 0


def limit(seconds: float) -> None:
    """End this process after so much processor time, or when it fills the memory."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))


def survives_inside(mutant: Mutant, watch: Watch, collected: Collected) -> bool | None:
    """Whether the tests pass with a mistake in a function that is loaded; nothing if it is in none."""
    pair = replaced(mutant)
    users = loaded(pair[0]) if pair else []
    if pair is None or not users or (str(mutant.path), mutant.line) in watch.collected:
        return None
    after, tests = pair[1], watch.of(mutant)

    def work() -> None:
        limit(5 + 5 * watch.takes(mutant))
        for function in users:
            function.__code__ = after
        collected.run(tests, Failed())

    return passes(work)


def anew(mutant: Mutant | None, chosen: Sequence[str], tests: Sequence[str], seconds: float) -> None:
    """Run tests with a mistake, or none, in a module of a process that has loaded none of them."""

    def work() -> None:
        limit(seconds)
        if mutant is not None:
            sys.meta_path.insert(0, Finder(Loader(mutant)))
        collect(tests, lambda collected: collected.run(chosen, Failed()))

    silenced(work)


def survives_anew(mutant: Mutant | None, watch: Watch, tests: Sequence[str]) -> bool:
    """Whether the tests pass with a mistake in a module, which is loaded anew with all that uses it.

    Without a mistake: whether the quickest test passes so, which else would seem to notice all of them.
    """
    chosen = [min(watch.seconds, key=watch.seconds.__getitem__)] if mutant is None else watch.of(mutant)
    seconds = 30 + 5 * sum(watch.seconds[test] for test in chosen)  # it collects the tests, too
    process = PROCESSES.Process(target=anew, args=(mutant, chosen, tests, seconds))
    process.start()
    process.join()
    return process.exitcode == 0


def watched(watch: Watch, collected: Collected) -> None:
    """Run the tests without any mistake, in a child, and bring back what they ran."""
    with tempfile.TemporaryFile() as found:

        def work() -> None:
            collected.plugins.register(Failed())
            collected.run(list(collected.items), watch)
            pickle.dump((watch.lines, watch.seconds), found)
            found.flush()

        if not passes(work):
            raise SystemExit("the tests fail without any mistake")
        found.seek(0)
        watch.lines, watch.seconds = pickle.load(found)


class Findings:
    """What came of each mistake, in a file that is written after each."""

    def __init__(self, files: Sequence[Path], out: Path | None) -> None:
        self.out = out
        self.texts = {str(path): path.read_text(encoding="utf-8") for path in files}
        self.digests = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in self.texts.items()}
        before = json.loads(out.read_text(encoding="utf-8")) if out and out.exists() else {"files": {}, "found": []}
        same = {path for path, digest in before["files"].items() if self.digests.get(path) == digest}
        self.rows: list[dict[str, Any]] = [row for row in before["found"] if row["file"] in same]
        self.known = {(row["file"], row["place"], row["part"]) for row in self.rows}

    def survivors(self) -> set[tuple[str, int, int]]:
        """Those that no test noticed."""
        return {(row["file"], row["place"], row["part"]) for row in self.rows if row["survived"]}

    def knows(self, mutant: Mutant) -> bool:
        """Whether it was run."""
        return (str(mutant.path), mutant.place, mutant.part) in self.known

    def add(self, mutant: Mutant, *, survived: bool, met: bool) -> None:
        """Keep what came of one, and whether any test runs its line."""
        row: dict[str, Any] = mutant._asdict()
        file = str(row.pop("path"))
        text = self.texts[file].splitlines()[mutant.line - 1].strip()
        self.rows.append({"file": file, **row, "survived": survived, "met": met, "text": text})
        if survived:
            print(f"survived  {file}:{mutant.line}  {mutant.what}    {text}", flush=True)
        if self.out:
            kept = {"files": self.digests, "found": self.rows}
            self.out.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8")


def state_of(asked: argparse.Namespace) -> str:
    """A digest of all that decides which tests run which lines."""
    found = hashlib.sha256(
        repr((asked.tests, sorted(map(str, asked.files)), os.environ.get("ASTRA_EXHAUSTIVE"))).encode()
    )
    for path in sorted(path for folder in ("src", "tests") for path in Path(folder).rglob("*") if path.is_file()):
        if path.suffix != ".pyc":
            found.update(path.read_bytes())
    return found.hexdigest()


def estimated(left: Sequence[Mutant], watch: Watch, findings: Findings) -> str:
    """The processor time that is left, if as many survive as did so far (a third where none were run)."""
    survive = len(findings.survivors()) / len(findings.rows) if findings.rows else 1 / 3
    anew = sum((str(mutant.path), mutant.line) in watch.collected or not watch.meets(mutant) for mutant in left)
    whole_s = sum(map(watch.takes, left))
    hours = (NOTICED_S * len(left) + COLLECTS_S * anew + survive * whole_s) / 3600
    return (
        f"{len(left)} mutants left, {anew} of them loaded anew; their tests take {whole_s / 3600:.1f} h if none is "
        f"noticed; about {hours:.1f} h of processor time if {survive:.0%} survive"
    )


def read_asked(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tests", type=shlex.split, required=True, help="what pytest is given, in one text")
    parser.add_argument("--most", type=int, help="so many mutants, drawn at random; all of them without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=float, default=math.inf, help="seconds of tests for a mutant, the quickest")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all of them")
    parser.add_argument("--out", type=Path, help="a JSON file of what was found, which goes on where it ended")
    parser.add_argument("--again", type=Path, help="such a file: only its survivors")
    parser.add_argument("--estimate", action="store_true", help="say how long it would take, and end")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the mutants, or a sample of them, and say which survived."""
    asked = read_asked(argv)
    PROCESSES.set_forkserver_preload(["msgspec", "numpy", "pytest"])  # no plugin of pytest: it would warn, and fail

    every = [mutant for path in asked.files for mutant in mutants(path)]
    sample = random.Random(asked.seed).sample(every, len(every))[: asked.most]
    if asked.again:
        left = Findings(asked.files, asked.again).survivors()
        sample = [mutant for mutant in every if (str(mutant.path), mutant.place, mutant.part) in left]
    findings, watch, started = Findings(asked.files, asked.out), Watch(asked.files, asked.each), time.monotonic()
    kept, state = asked.out and asked.out.with_suffix(".ran"), state_of(asked)

    def run(collected: Collected) -> None:
        sys.settrace(None)
        if kept is None or not watch.knows(kept, state):
            watched(watch, collected)
            if not survives_anew(None, watch, asked.tests):
                raise SystemExit("the tests fail in a process of their own without any mistake")
            if kept is not None:
                watch.keep(kept, state)
        todo = [mutant for mutant in sample if not findings.knows(mutant)]
        print(estimated(todo, watch, findings), flush=True)
        for mutant in todo if not asked.estimate else ():
            if time.monotonic() - started > asked.budget:
                break
            survived = survives_inside(mutant, watch, collected)
            if survived is None:
                survived = survives_anew(mutant, watch, asked.tests)
            findings.add(mutant, survived=survived, met=watch.meets(mutant))

    sys.settrace(watch.trace)  # until the tests are collected
    collect(asked.tests, run)
    survived = len(findings.survivors())
    print(
        f"{len(every)} mutants, {len(findings.rows)} run, {len(findings.rows) - survived} noticed, {survived} survived"
    )


if __name__ == "__main__":
    main()
