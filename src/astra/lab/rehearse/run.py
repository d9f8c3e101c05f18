"""Rehearse one rank of a large job on one GPU: true peak memory and true compute time, no network.

The real framework (megatron-core) runs on torch's fake process group, so that collectives take no time while
kernels, schedules, optimizers and the allocator are the real ones. See docs/rehearsal.md.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from astra.errors import AstraError
from astra.files import read_text
from astra.lab.profile.gpu import ClockWatch, describe_gpu
from astra.lab.profile.plan import Store
from astra.lab.rehearse.case import Case, read_cases, refused

_MOST_LEFT_BYTES: Final = 2**29


def run_cases(cases: list[Case], out: str | Path, *, seconds: float = float("inf"), steps: int = 2) -> Store:
    """Rehearse every case not yet in ``out``, in order, until ``seconds`` have passed."""
    began = time.perf_counter()
    store = Store(out, key="id")
    died_on = store.crashed()
    if died_on is not None:
        store.add({"id": died_on, "oom": False, "error": "the process died while measuring this case"})
    todo = [case for case in cases if case.id not in store]
    if not todo:
        return store
    costs = _prepare(store)
    with ClockWatch(period_ms=200) as watch:
        for case in todo:
            if time.perf_counter() - began > seconds:
                break
            store.begin(case.id)
            row = _one(case, costs, steps, watch)
            if row.get("before_bytes", 0) > _MOST_LEFT_BYTES:
                store.forget()  # a failed case still holds memory: only a new process gives it back
                break
            store.add(row)
            print(_line(row), flush=True)
    return store


def _one(case: Case, costs: Any, steps: int, watch: ClockWatch) -> dict[str, Any]:
    from astra.lab.rehearse.measure import rehearse

    try:
        return rehearse(case, costs, steps=steps, watch=watch)
    except Exception as error:
        return refused(case, error)


def _prepare(store: Store) -> dict[str, tuple[float, float]]:
    """Load the runtime, warm the GPU up, measure the fills, and write the header."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as Megatron asks for under tensor parallelism
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    from astra.lab.rehearse.fabric import measure_fills
    from astra.lab.rehearse.megatron_rank import load_runtime

    load_runtime()
    logging.getLogger("megatron").setLevel(logging.ERROR)
    import megatron.core

    costs = measure_fills(torch)
    runtime = {
        "framework": f"megatron-core {megatron.core.__version__}, local layer spec, no TransformerEngine, no Apex",
        "attention": "torch SDPA",
        "adam": "torch AdamW fused",
        "fusions": "bias+activation and bias+dropout+add by torch.compile; rotary and cross-entropy unfused",
        "gradient_accumulation_fusion": False,
        "main_grads": "fp32",
    }
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    store.header.update(what="rehearsal", date=date, runtime=runtime, fill_costs=costs, **describe_gpu(torch))
    store.save()
    return costs


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"ERROR {row['id']}: {row['error'][:200]}"
    if row["oom"]:
        return f"OOM   {row['id']} at {row['reached']} ({row['wall_s']} s)"
    peak = row["peak_allocated_bytes"] / 2**30
    times = f"fwd {row['fwd_s'] * 1e3:.1f} bwd {row['bwd_s'] * 1e3:.1f} opt {row['optimizer_s'] * 1e3:.1f} ms"
    fine = "" if row["finite"] else " NOT FINITE"
    return f"ok    {row['id']}: {peak:.2f} GiB, {times}, {row['wall_s']} s{fine}"


def main(argv: list[str] | None = None) -> int:
    """``python -m astra.lab.rehearse.run --model llama-3-8b --strategy "tp8 pp4 dp4 sp" --out F``.

    ``--cases F.json`` takes whole cases instead: a list of the fields of ``Case``.
    """
    parser = argparse.ArgumentParser(prog="python -m astra.lab.rehearse.run", description=__doc__)
    parser.add_argument("--cases", help="JSON file with a list of cases, instead of the three below")
    parser.add_argument("--model", help="a catalog name, a Hugging Face config.json or a TOML file")
    parser.add_argument("--strategy", help='such as "tp8 pp4 dp16 mbs1 sp zero1 recompute=selective"')
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--stage", type=int, action="append", help="pipeline stage; may be repeated (default: 0)")
    parser.add_argument("--out", required=True, help="measurement file to write or continue")
    args = parser.parse_args(argv)
    if not args.cases and not (args.model and args.strategy):
        parser.error("give --cases, or --model and --strategy")
    try:
        cases = read_cases(read_text(args.cases, "rehearsal")) if args.cases else _cases_from(args)
    except AstraError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    store = run_cases(cases, args.out)
    return 0 if all("error" not in row for row in store.rows) else 1


def _cases_from(args: argparse.Namespace) -> list[Case]:
    from astra.catalog import models
    from astra.spec.strategy import parse_strategy

    model, strategy = models.model(args.model), parse_strategy(args.strategy)
    return [Case(model=model, strategy=strategy, seq=args.seq, stage=stage) for stage in args.stage or [0]]


if __name__ == "__main__":
    sys.exit(main())
