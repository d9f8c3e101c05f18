"""How many questions a second `astra study` answers, at one and at two workers, and what limits it beyond.

The grid has 10,000 questions: 20 models x 25 fleets x 5 workloads x 2 goals x 2 price scenarios. `--questions` takes
the first so many of them in an order that mixes all axes; some of them are asked of one worker and of two before.
Other programs on the machine slow the wall clock, so processor seconds are recorded too: of the workers for a question,
and of the process that hands them out and keeps the answers, which is what more workers come to wait for.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from astra.questions.answering import StudyLine
from astra.questions.declared import Question, questions_of, study_of
from astra.questions.engines import Local
from astra.questions.run import JOURNAL_FILE, Results, written

GRID: dict[str, Any] = {
    "title": "rate",
    "models": [
        "llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b", "mistral-7b-v0.3",
        "mistral-nemo-12b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-14b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b",
        "qwen3-14b", "gemma-2-9b", "gemma-3-4b", "gemma-3-12b", "phi-3-mini", "phi-4",
    ],
    "fleets": [
        f"{count}x{gpu}" for gpu in ("H100", "H200", "A100-80", "B200", "L40S") for count in (2, 4, 8, 16, 32)
    ],
    "workloads": [
        {"batch": 256, "seq": 4096}, {"batch": 512, "seq": 2048}, {"batch": 480, "seq": 4096},
        {"batch": 128, "seq": 8192}, {"batch": 256, "seq": 4096, "task": "lora"},
    ],
    "goals": ["fastest", {"name": "fastest as expected", "rank": "expected"}],
    "prices": ["on-demand", "spot"],
    "request": {"tokens": "100B", "top": 3},
}  # fmt: skip
MODELLED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def answered(questions: Iterable[Question], workers: int, folder: str) -> dict[str, float]:
    """Ask, keep, and account for it."""
    results, engine = Results(folder), Local(workers)
    began_s, cpu_s, count = time.monotonic(), time.process_time(), 0
    before = len(results)
    try:
        for given in engine.answers(question for question in questions if question.key not in results):
            results.keep(given.line)
            count += 1
    finally:
        engine.close()
        results.close()
    wall_s, own_s = time.monotonic() - began_s, time.process_time() - cpu_s
    lines = (Path(folder) / JOURNAL_FILE).read_bytes().splitlines()[before:]
    worker_s = sum(msgspec.json.decode(line, type=StudyLine).cpu_s for line in lines)
    return {
        "workers": workers,
        "questions": count,
        "wall_s": round(wall_s, 1),
        "per_s": round(count / wall_s, 2),
        "worker_cpu_s": round(worker_s, 1),
        "worker_cpu_s_per_question": round(worker_s / count, 4),
        "own_cpu_s_per_question": round(own_s / count, 6),
        "cores_had": round((worker_s + own_s) / wall_s, 2),
    }


def mixed(questions: list[Question]) -> Iterator[Question]:
    """The same order on every machine, in which every beginning is a fair sample."""
    order = list(questions)
    random.Random(1).shuffle(order)
    return iter(order)


def main() -> None:
    """Ask, print and perhaps save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--compared", type=int, default=300, help="questions asked of one worker and of two")
    parser.add_argument("--folder", help="keep the results there, and go on with them (default: none are kept)")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    study = study_of(GRID, "rate.toml", Path())
    began_s = time.process_time()
    order = list(mixed(list(questions_of(study))))
    declared_s = time.process_time() - began_s
    with tempfile.TemporaryDirectory() as folder:
        compared = [answered(order[: options.compared], workers, f"{folder}/{workers}") for workers in (1, 2)]
        kept = options.folder or f"{folder}/whole"
        whole = answered(order[: options.questions], 2, kept)
        results = Results(kept)
        began_s = time.process_time()
        summary, files = written(study, results)
        written_s = time.process_time() - began_s
        sizes = {Path(path).name: Path(path).stat().st_size for path in [*files, f"{kept}/{JOURNAL_FILE}"]}
        results.close()
        lines = (Path(kept) / JOURNAL_FILE).read_bytes().splitlines()
        each_s = sum(msgspec.json.decode(line, type=StudyLine).cpu_s for line in lines) / len(lines)
    own_s = whole["own_cpu_s_per_question"]
    found = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg(),
        "declared": study.size,
        "statuses": summary.statuses,
        "plans": summary.plans,
        "answered": len(lines),  # with earlier runs in the same folder
        "worker_cpu_s_per_question": round(each_s, 4),
        "whole": whole,
        "compared": compared,
        "declared_cpu_s": round(declared_s, 2),
        "tables_cpu_s": round(written_s, 2),
        "bytes": sizes,
        # On cores that nobody else uses: workers add up until handing out and keeping takes all of one process.
        "modelled_per_s": {str(n): round(min(n / each_s, 1 / own_s), 1) for n in MODELLED},
    }
    print(json.dumps(found, indent=2))
    if options.save:
        path = Path(__file__).parent / "results" / f"{found['date']}_study_rate.json"
        path.write_text(json.dumps(found, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
