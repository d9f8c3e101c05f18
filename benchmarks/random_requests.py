"""Random requests over the whole catalog, each in a process of its own: does every one come back, and how soon?

Run: python benchmarks/random_requests.py [--requests 1000] [--seed 1] [--kind plan|fleet|rent] [--show N] [--save].
No request may take more than 5 s of processor time or 500 MB. Wall-clock time is printed too, but it depends on what
else the machine does. ``--save`` writes benchmarks/results/<date>_random_requests.json, which is tracked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from astra.catalog import hardware, models, runtimes
from astra.rules.can import unable
from astra.spec.workload import Precision, Workload

TARGET_S, TARGET_MB = 5.0, 500.0
GIVEN_UP_S, WAITED_S = 60, 600  # of processor time, and of the clock
ANSWERS = (0, 2, 3, 4)  # exit codes: a plan, or our own word on why there is none
REFUSED = 0.1  # of the requests are left as drawn, though no runtime or GPU can do them
COUNTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 48, 64, 96, 100, 128, 192, 256, 384, 512, 1000, 1024, 2048, 4096)
BATCHES = (1, 2, 3, 7, 8, 16, 30, 32, 60, 64, 100, 128, 256, 480, 512, 1000, 1024, 1536, 2048, 4096)
SEQUENCES = (512, 1000, 1024, 2048, 3000, 4096, 8192, 16384, 32768, 131072)
PRECISIONS: tuple[Precision, ...] = ("bf16", "bf16", "bf16", "fp16", "fp8", "tf32")
OBJECTIVES = ("cheapest", "pareto", "dollars-per-token", "fastest")
KINDS = ("plan", "fleet", "rent")


class Drawn(NamedTuple):
    """One request."""

    kind: str
    model: str
    gpus: dict[str, int]
    work: Workload
    runtime: str
    words: list[str]

    @property
    def sensible(self) -> bool:
        """Whether the runtime can train the model so, and the GPUs have the precision and come in whole nodes."""
        runtime = runtimes.runtime(self.runtime)
        if unable(runtime, models.model(self.model), self.work) or (
            self.kind == "fleet" and "pp" not in runtime.can.degrees
        ):
            return False
        have = [self.work.precision in hardware.device(gpu).flops_per_s for gpu in self.gpus]
        nodes = {gpu: hardware.default_node(gpu).gpus for gpu in self.gpus}
        whole = all(count < nodes[gpu] or count % nodes[gpu] == 0 for gpu, count in self.gpus.items())
        return any(have) if self.kind == "rent" else all(have) and whole


def request(draw: random.Random, kind: str | None) -> list[str]:
    """The words of one request; most of those that must be refused are drawn again."""
    kind, as_it_comes = kind or draw.choices(KINDS, weights=(4, 4, 2))[0], draw.random() < REFUSED
    while True:
        drawn = _drawn(draw, kind)
        if as_it_comes or drawn.sensible:
            return drawn.words


def _drawn(draw: random.Random, kind: str) -> Drawn:
    model = draw.choice(models.model_names())
    words, known = ["rent" if kind == "rent" else "plan", model], hardware.names("devices")
    gpus = dict.fromkeys(known, 0)
    if kind == "rent":
        words += ["--tokens", draw.choice(("1B", "100B", "2T")), "--max-gpus", str(draw.choice(COUNTS[8:]))]
        if draw.random() < 0.5:
            gpus = dict.fromkeys(draw.sample(known, draw.randint(1, 6)), 0)
            words += ["--gpus", ",".join(gpus)]
        if draw.random() < 0.3:
            words += ["--objective", draw.choice(OBJECTIVES[:3])]
        words += ["--market", draw.choice(("on-demand", "on-demand", "reserved", "spot"))]
    else:
        gpus = {gpu: draw.choice(COUNTS) for gpu in draw.sample(known, draw.randint(2, 5) if kind == "fleet" else 1)}
        for gpu, count in gpus.items():
            words += ["--gpus", f"{count}x{gpu}"]
    if kind == "fleet" and draw.random() < 0.15:
        words += ["--exact"]
    if kind == "plan" and draw.random() < 0.3:
        words += ["--objective", draw.choice(OBJECTIVES), "--tokens", "1T", "--usd-per-gpu-h", "2"]
    work = Workload(
        global_batch=draw.choice(BATCHES),
        seq=draw.choice(SEQUENCES),
        precision=draw.choice(PRECISIONS),
        optimizer=draw.choice(("adam", "adam", "sgd")),
        task=draw.choice(("pretrain", "pretrain", "finetune", "lora")),
    )
    runtime = draw.choice(("megatron", *runtimes.runtime_names()))
    words += ["--batch", str(work.global_batch), "--seq", str(work.seq), "--precision", work.precision]
    words += ["--optimizer", work.optimizer, "--task", work.task, "--runtime", runtime, "-q"]
    return Drawn(kind, model, gpus, work, runtime, words)


def measure(words: list[str], where: Path) -> dict[str, Any]:
    """Run one request in a child and account for it."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (where / "out").open("w") as out:
        began = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "astra", *words], stdout=out, stderr=out, env=usual | {"OPENBLAS_NUM_THREADS": "1"}
        )
        resource.prlimit(child.pid, resource.RLIMIT_CPU, (GIVEN_UP_S, GIVEN_UP_S))  # waiting does not count
        late = threading.Timer(WAITED_S, child.kill)
        late.start()
        _, status, used = os.wait4(child.pid, 0)
        late.cancel()
        wall_s = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    said = (where / "out").read_text(errors="replace")
    return {
        "request": shlex.join(words),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "wall_s": round(wall_s, 2),
        "mb": round(used.ru_maxrss / 1024),
        "exit": child.returncode,
        "said": said.strip().splitlines()[-1][:160] if child.returncode and said.strip() else "",
    }


def main() -> None:
    """Draw, run, print and perhaps save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.requests):
            rows.append(row := measure(request(draw, options.kind), Path(folder)))
            if row["cpu_s"] > TARGET_S or row["mb"] > TARGET_MB or row["exit"] not in ANSWERS:
                print(f"{row['cpu_s']:7.2f} {row['mb']:6.0f}  {row['exit']} {row['request']} {row['said']}", flush=True)
    failed = [row for row in rows if row["exit"] not in ANSWERS]
    answered = sum(row["exit"] == 0 for row in rows)
    late, large = sum(row["cpu_s"] > TARGET_S for row in rows), sum(row["mb"] > TARGET_MB for row in rows)
    print(f"{len(rows)} requests, {answered} plans, {late} above {TARGET_S:.0f} s, {large} above {TARGET_MB:.0f} MB, "
          f"{len(failed)} failed")  # fmt: skip
    tables = {}
    for name, unit in (("cpu_s", "slowest, CPU s"), ("mb", "largest, MB")):
        tables[name] = sorted(rows, key=lambda row: -row[name])[: options.show]
        print(f"\n{unit:>16s} {'CPU s':>7s} {'wall s':>7s} {'MB':>6s}")
        for row in tables[name]:
            print(f"{'':16s} {row['cpu_s']:7.2f} {row['wall_s']:7.2f} {row['mb']:6.0f}  {row['request']}")
    if options.save:
        results = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "load": os.getloadavg()[0],
            "target_s": TARGET_S,
            "target_mb": TARGET_MB,
            "seed": options.seed,
            "requests": len(rows),
            "answered": answered,
            "above_s": late,
            "above_mb": large,
            "failed": [row["request"] for row in failed],
            "slowest": tables["cpu_s"],
            "largest": tables["mb"],
        }
        path = Path(__file__).parent / "results" / f"{results['date']}_random_requests.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
