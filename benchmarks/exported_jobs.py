"""Plans of one GPU, exported and trained for a few steps on random tokens: measured beside planned.

    python benchmarks/exported_jobs.py --out benchmarks/results/DATE_exported_jobs_h200.json

Each job is planned (``astra.plan``), written by ``astra export`` and started by the ``launch.sh`` that came out, as it
is. A Megatron-LM script starts ``tools/exported/pretrain_gpt.py``, which needs megatron-core (on PYTHONPATH) and no
TransformerEngine; it is compared with the estimate of the runtime without it, too. A folder with a ``train.py`` of its
own needs torch alone. ``--dry`` takes tiny models, on a CPU, and shows only that everything runs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import astra  # noqa: E402
from astra.catalog.runtimes import runtime, runtime_names  # noqa: E402
from astra.cli import main as command_line  # noqa: E402

GIB = 2**30
WARM_UP = 3  # steps not timed: kernels are compiled and memory is first reserved in them
# What the frameworks have without TransformerEngine.
PLAIN = ("graphs=none", "moments=fp32", "offload=none", "dispatch=alltoall", "params=bf16")
WITHOUT_ENGINE = {"megatron": "megatron-local"}
STEP = re.compile(r"step (\d+) loss (\S+) .*? (\S+) s .* peak (\S+) GiB")
# Layers of Qwen3-30B-A3B, as many as one GPU can train.
ROUTED = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
TINY = ROUTED | {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {"qwen3-30b-a3b-6-layers": ROUTED, "tiny": TINY}


class Job(NamedTuple):
    """One job: what is trained, by which target, and on what batch."""

    model: str
    target: str
    batch: int
    seq: int


JOBS = (
    Job("qwen3-1.7b", "megatron", 16, 4096),
    Job("gpt-2-xl", "megatron", 64, 1024),
    Job("qwen3-30b-a3b-6-layers", "megatron", 16, 4096),
    Job("llama-3.2-1b", "pytorch", 16, 4096),
    Job("qwen3-1.7b", "pytorch", 16, 4096),
    Job("gpt-2-xl", "pytorch", 64, 1024),
)
DRY = (Job("tiny", "megatron", 4, 32), Job("tiny", "pytorch", 4, 32))


def measure(job: Job, folder: Path, steps: int, python: str, seconds: float) -> dict[str, Any]:
    """Plan, export, run; one row of what was planned and what was measured."""
    model = job.model
    if model in CONFIGS:
        model = str(folder / model / "config.json")
        Path(model).parent.mkdir(parents=True)
        Path(model).write_text(json.dumps(CONFIGS[job.model]), encoding="utf-8")
    wanted: dict[str, Any] = {"gpus": "1xH200", "batch": job.batch, "seq": job.seq}
    plan = astra.plan(model, runtime=job.target, top=1, fix=_known(job.target), **wanted)
    written = folder / "plan.json"
    written.write_text(plan.to_json(), encoding="utf-8")
    row: dict[str, Any] = {**job._asdict(), "strategy": str(plan.plans[0].strategy), "steps": steps}
    row["plan"] = _told(plan.plans[0].estimate, job.target)
    if job.target in WITHOUT_ENGINE:
        other = WITHOUT_ENGINE[job.target]
        row["predicted"] = _told(astra.estimate(model, runtime=other, strategy=row["strategy"], **wanted), other)
    if command_line(["export", str(written), "--to", job.target, "--out", str(folder / "run"), "--json"]):
        return row | {"error": "it could not be exported"}
    return row | _run(folder, job, steps, python, seconds)


def _known(target: str) -> list[str]:
    """Those of the plain words that are a choice in the target's runtime."""
    can = runtime(target).can
    return [word for word in PLAIN if word.split("=")[1] in getattr(can, word.split("=")[0])]


def _told(estimate: Any, name: str) -> dict[str, Any]:
    return {
        "runtime": name,
        "step_s": estimate.step_s,
        "peak_allocated_bytes": round(estimate.peak_allocated_gib * GIB),
        "peak_reserved_bytes": round(estimate.peak_reserved_gib * GIB),
    }


def _run(folder: Path, job: Job, steps: int, python: str, seconds: float) -> dict[str, Any]:
    """Start the exported script as a user would, with a ``torchrun`` of this Python."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "torchrun").write_text(f'#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n', encoding="utf-8")
    (tools / "torchrun").chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    settings = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "MASTER_PORT": port,
        "MEGATRON_DIR": str(ROOT / "tools" / "exported"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    count = ["--train-iters" if job.target == "megatron" else "--steps", str(steps)]
    began = time.perf_counter()
    try:
        ended = subprocess.run(
            ["bash", str(folder / "run" / "launch.sh"), *count],
            capture_output=True, text=True, check=False, env=settings, cwd=folder, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {seconds:.0f} s"}
    wall_s = round(time.perf_counter() - began, 1)
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if "Error" in line and "ChildFailed" not in line]
        return {"error": " / ".join(said[-3:])[-1000:] or ended.stderr[-1000:], "wall_s": wall_s}
    return {"measured": read(ended.stdout), "wall_s": wall_s}


def read(text: str) -> dict[str, Any]:
    """Losses, the median step after the first few, and the peak, of what a job printed."""
    made = next((line for line in text.splitlines() if line.startswith('{"loss"')), None)
    if made is not None:
        found = json.loads(made)
    else:
        steps = [match.groups() for match in STEP.finditer(text)]
        found = {
            "loss": [float(loss) for _, loss, _, _ in steps],
            "step_s": [float(seconds) for _, _, seconds, _ in steps],
            "peak_allocated_bytes": max(round(float(peak) * GIB) for _, _, _, peak in steps),
        }
    every = found.pop("step_s")
    return {"step_s": statistics.median(every[WARM_UP:] or every), "steps_s": every, **found}


def line(row: dict[str, Any]) -> str:
    """One row, as it is shown."""
    name = f"{row['model']} by {row['target']}"
    if "error" in row:
        return f"{name}: {row['error']}"
    got = row["measured"]
    said = [f"{name} ({row['strategy']}): {got['step_s']:.3f} s, {got['peak_allocated_bytes'] / GIB:.2f} GiB"]
    for key in ("predicted", "plan"):
        if key in row:
            told = row[key]
            said += [f"{told['runtime']} {told['step_s']:.3f} s, {told['peak_allocated_bytes'] / GIB:.2f} GiB"]
    return "; ".join(said)


def header(python: str) -> dict[str, Any]:
    """What it ran on, as torch says."""
    asked = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'cpu')"
    asked += "; print(torch.__version__)"
    device, version = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )[:2]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    return {"what": "exported jobs", "date": date, "device": device, "torch": version, "astra": astra.__version__}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the JSON file to write")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", default="", help="MODEL or TARGET, comma-separated")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--seconds", type=float, default=240, help="a job may take")
    parser.add_argument("--dry", action="store_true", help="tiny models, to see that it runs")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    jobs = [
        job
        for job in (DRY if args.dry else JOBS)
        if job.target in runtime_names() and (not only or only & set(job[:2]))
    ]
    rows = []
    for job in jobs:
        with tempfile.TemporaryDirectory(prefix="astra-job-") as folder:
            rows.append(measure(job, Path(folder), args.steps, args.python, args.seconds))
        print(line(rows[-1]), flush=True)
        record = {**header(args.python), "rows": rows}
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
