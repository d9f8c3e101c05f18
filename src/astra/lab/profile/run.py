"""Profile a GPU: how fast it runs the operators of transformer training, as torch calls them.

``python -m astra.lab.profile.run --quick --out h200.json`` writes one resumable JSON document. See docs/profile.md.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from astra.lab.profile.collectives import collective_rows
from astra.lab.profile.gpu import ClockWatch, describe_gpu
from astra.lab.profile.ops import own_stream
from astra.lab.profile.plan import Store, all_rows, row_key

_SAVE_EVERY_S: Final = 1.0
OPS: Final = ("launch", "gemm", "streaming", "attention")


def run_profile(
    out: str | Path,
    *,
    quick: bool = False,
    seconds: float = float("inf"),
    sustain_s: float = 30.0,
    ops: tuple[str, ...] = OPS,
    progress: Callable[[float], None] | None = None,
) -> Store:
    """Measure what ``out`` does not hold yet, until ``seconds`` have passed; whatever ends it, finished rows stay."""
    import torch

    began = time.perf_counter()
    store = Store(out, key="key")
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    store.header.update(what="profile", date=date, quick=quick, **describe_gpu(torch))
    with ClockWatch() as watch, own_stream(torch):
        try:
            if sustain_s > 0 and "op=sustained" not in store:
                store.add(_sustained(torch, watch, sustain_s))
            rows = [row for row in all_rows(quick, present(store.header)) if row["op"] in ops]
            _measure_rows(torch, store, rows, began + seconds, progress)
        finally:
            store.header["clocks_seen"] = watch.summary()
            store.header["wall_s"] = round(store.header.get("wall_s", 0.0) + time.perf_counter() - began, 1)
            store.save()
    return store


def planned_rows(header: dict[str, Any], *, quick: bool) -> int:
    """Rows a whole profile has here: operators, collectives where there are several GPUs, the sustained load."""
    several = header.get("collectives")
    between = collective_rows(several["world"], several["gpus_per_node"], quick=quick) if several else []
    return len(all_rows(quick, present(header))) + len(between) + 1


def present(header: dict[str, Any]) -> tuple[str, ...]:
    """The packages of a profile's header that were there."""
    return tuple(name for name, version in header.get("packages", {}).items() if version)


def _measure_rows(
    torch: Any, store: Store, rows: list[dict[str, Any]], until: float, progress: Callable[[float], None] | None
) -> None:
    """Rows in order, until a time; the file is written about every second."""
    todo = [row for row in rows if row_key(row) not in store]
    saved = time.perf_counter()
    for done, row in enumerate(todo, start=len(rows) - len(todo)):
        now = time.perf_counter()
        if now > until:
            break
        if progress is not None:
            progress(done / len(rows))
        store.add(_one(torch, row), save=now - saved > _SAVE_EVERY_S)
        saved = now if now - saved > _SAVE_EVERY_S else saved


def _one(torch: Any, row: dict[str, Any]) -> dict[str, Any]:
    from astra.lab.profile.ops import measure

    try:
        done = measure(torch, row)
    except Exception as error:  # a shape that a kernel refuses is a finding
        torch.cuda.synchronize()
        return {"key": row_key(row), **row, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"key": row_key(row), **done}


def _sustained(torch: Any, watch: ClockWatch, duration_s: float) -> dict[str, Any]:
    """Throughput of one large product from a cool start to a steady state, in slices of about 0.2 s."""
    size = 8192
    operands = [torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
    out = torch.empty_like(operands[0])
    for _ in range(2):
        torch.mm(operands[0], operands[1], out=out)
    torch.cuda.synchronize()
    time.sleep(1.0)  # let the clocks settle at idle, so that the first slice is a burst
    slices, mark, began = [], watch.mark(), time.perf_counter()
    while time.perf_counter() - began < duration_s:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for index in range(128):
            torch.mm(operands[index % 3], operands[(index + 1) % 3], out=out)
        stop.record()
        stop.synchronize()
        slices.append(2.0 * size**3 * 128 / (start.elapsed_time(stop) / 1e3))
    tail = sorted(slices[len(slices) // 2 :])
    return {
        "key": "op=sustained",
        "op": "sustained",
        "m": size,
        "n": size,
        "k": size,
        "precision": "bf16",
        "burst_flops_per_s": slices[0],
        "sustained_flops_per_s": tail[len(tail) // 2],
        "duration_s": duration_s,
        "slices_flops_per_s": [round(value / 1e12, 1) * 1e12 for value in slices],
        "clocks": watch.summary(mark),
    }


def main(argv: list[str] | None = None) -> int:
    """Command line of the profiler."""
    parser = argparse.ArgumentParser(prog="python -m astra.lab.profile.run", description=__doc__)
    parser.add_argument("--out", required=True, help="JSON file to write or continue")
    parser.add_argument("--quick", action="store_true", help="a sample of the shapes, under two minutes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop starting rows after this long")
    parser.add_argument("--sustain", type=float, default=30.0, help="seconds of continuous load first (0: none)")
    parser.add_argument("--ops", default=",".join(OPS), help="which kinds of operator to measure")
    args = parser.parse_args(argv)
    ops = tuple(args.ops.split(","))
    unknown = [op for op in ops if op not in OPS]
    if unknown:
        parser.error(f"--ops: unknown {', '.join(unknown)}; there are {', '.join(OPS)}")
    store = run_profile(args.out, quick=args.quick, seconds=args.seconds, sustain_s=args.sustain, ops=ops)
    failed = sum("error" in row for row in store.rows)
    print(f"{len(store.rows)} rows in {args.out}, {failed} refused by their kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
