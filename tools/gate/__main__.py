"""The gate: ``python -m tools.gate BASE [OTHER]`` from the root of the repository, or ``make gate BASE=main``.

Asks BASE and OTHER (a commit; the working tree if left out) the requests of tools/gate/grid.py through the command
line, and sorts the answers. The exit code is 0 if nothing broke. What was found goes to build/gate/report.json; the
answers of a commit are kept there and used again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tools.gate import grid
from tools.gate.compare import BROKEN, MOVED, OUTCOMES, USER_ERRORS, Verdict, judge

ROOT: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
KEPT: Final = ROOT / "build" / "gate"
LIMIT_S: Final = 120.0
WORKING_TREE: Final = "the working tree"


def git(*words: str) -> str:
    """What git says, in the repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def checkout(commit: str | None) -> Iterator[Path]:
    """The sources of a commit in a temporary folder, or those of the working tree."""
    if commit is None:
        yield ROOT / "src"
        return
    with tempfile.TemporaryDirectory(prefix="astra-gate-") as folder:
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder) / "src"


def answers(source: Path, requests: Sequence[grid.Request]) -> dict[str, dict[str, Any]]:
    """Ask one state of Astra everything. A child that dies counts against the request it died in."""
    with tempfile.TemporaryDirectory(prefix="astra-gate-") as folder:
        work, results = Path(folder) / "work", Path(folder) / "answers.jsonl"
        shutil.copytree(HERE / "files", work)
        results.touch()
        environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}
        found: dict[str, dict[str, Any]] = {}
        while left := [request for request in requests if request.name not in found]:
            ended = subprocess.run(
                [sys.executable, str(HERE / "answer.py"), str(source), str(results), str(LIMIT_S)],
                input=json.dumps([request._asdict() for request in left]),
                cwd=work, env=environment, text=True, capture_output=True, check=False,
            )  # fmt: skip
            lines = results.read_text(encoding="utf-8").splitlines()
            found = {answer["name"]: answer for answer in map(json.loads, lines)}
            if ended.returncode == -signal.SIGTERM:
                raise KeyboardInterrupt
            if ended.returncode != 0 and (missing := next((each for each in left if each.name not in found), None)):
                last = ended.stderr.strip().splitlines()[-1:] or ["no message"]
                died: dict[str, Any] = {
                    "code": f"died ({ended.returncode})",
                    "messages": last[0],
                    "record": None,
                    "files": {},
                }
                found[missing.name] = {"name": missing.name, **died, "cpu_s": 0.0}
                with results.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(found[missing.name]) + "\n")
        return found


def side(commit: str | None, requests: Sequence[grid.Request], *, fresh: bool) -> dict[str, dict[str, Any]]:
    """The answers of a commit, kept from an earlier run unless they shall be fresh, or of the working tree."""
    kept = KEPT / f"{commit}-{_digest()}.json"
    if commit is not None and not fresh and kept.exists():
        found: dict[str, dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    with checkout(commit) as source:
        found = answers(source, requests)
    if commit is not None and len(requests) == len(grid.requests()):
        _write(kept, found)
    return found


def _digest() -> str:
    """Of the requests, their files and the way they are asked: kept answers to other questions are of no use."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (HERE / "grid.py", HERE / "answer.py", *sorted((HERE / "files").iterdir())):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _write(path: Path, record: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1), encoding="utf-8")


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many of each, in one line."""
    counts = collections.Counter(verdict.outcome for verdict in verdicts)
    parts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES]
    return f"{len(verdicts)} requests: {', '.join(parts)}"


def reasons(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Everything that is not equal, worst last, with the reasons."""
    for outcome in OUTCOMES[1:]:
        for verdict in verdicts:
            if verdict.outcome == outcome:
                yield f"{outcome}  {verdict.name}"
                yield from (f"    {reason}" for reason in verdict.reasons)
    moves = sorted((verdict.step_change for verdict in verdicts if verdict.outcome == MOVED), key=abs)
    if moves:
        yield f"step time of the first plan: median move {moves[len(moves) // 2]:+.3%}, largest {moves[-1]:+.3%}"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.gate", description=__doc__.partition("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("other", nargs="?", help="another commit (default: the working tree)")
    parser.add_argument("--only", metavar="TEXT", default="", help="only requests whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="ask the base again although its answers are kept")
    parser.add_argument("--report", type=Path, default=KEPT / "report.json", help="where the verdicts go, as JSON")
    return parser.parse_args()


def main() -> int:
    """Ask both sides at once, compare, and say what was found."""
    args = arguments()
    base = git("rev-parse", "--verify", f"{args.base}^{{commit}}")
    other = git("rev-parse", "--verify", f"{args.other}^{{commit}}") if args.other else None
    requests = [request for request in grid.requests() if args.only in request.name]
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(side, base, requests, fresh=args.fresh)
        second = pool.submit(side, other, requests, fresh=True)
        before, after = first.result(), second.result()
    verdicts = [judge(request.name, before[request.name], after[request.name]) for request in requests]
    print("\n".join(reasons(verdicts)))
    bugs = [each["name"] for each in after.values() if each["code"] not in (0, *USER_ERRORS)]
    spent = [sum(each["cpu_s"] for each in found.values()) for found in (before, after)]
    print(f"{base[:9]} against {other[:9] if other else WORKING_TREE}; bugs now: {', '.join(bugs) or 'none'}")
    print(f"{spent[0]:.0f} s and {spent[1]:.0f} s of processor time, {time.perf_counter() - began:.0f} s in all")
    print(summary(verdicts))
    listed = [verdict._asdict() for verdict in verdicts]
    _write(args.report, {"base": base, "other": other, "summary": summary(verdicts), "verdicts": listed})
    return int(any(verdict.outcome == BROKEN for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
