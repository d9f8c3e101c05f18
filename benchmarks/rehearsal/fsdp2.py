"""FSDP2 ranks on this machine's GPU: ``python benchmarks/rehearsal/fsdp2.py --out fsdp2.json --seconds 330``.

``--framework transformers`` runs models of Hugging Face as Accelerate shards them, ``--framework torchtitan`` those of
torchtitan 0.2.2 with its tensor parallelism and float8 products; each must be installed.

Llama shapes from 1B to 8B and a mixture of experts; several lengths and micro-batches; layers kept or recomputed,
eager and compiled, weights gathered again in backward or kept. Half of the rows are for finding causes and half for
scoring, by the hash that ``Case.split`` takes. Torch alone is needed. The file is rewritten after each row.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "src")]

from grid import MODELS, OTHERS  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from astra.lab.profile.gpu import ClockWatch, describe_gpu  # noqa: E402
from astra.lab.profile.plan import Store  # noqa: E402
from astra.lab.rehearse.case import Case  # noqa: E402
from astra.spec.model import ModelSpec, MoE  # noqa: E402
from astra.spec.strategy import parse_strategy  # noqa: E402

_LLAMA32 = {"vocab": 128256, "max_seq": 32768, "tied_embeddings": True}
SHAPES: Final[dict[str, ModelSpec]] = {
    "1b": MODELS["llama3.2-1b"],
    "3b": ModelSpec(name="llama3.2-3b", layers=28, hidden=3072, ffn=8192, heads=24, kv_heads=8, head_dim=128,
                    **_LLAMA32),
    "4b": ModelSpec(name="qwen3-4b", layers=36, hidden=2560, ffn=9728, heads=32, kv_heads=8, head_dim=128,
                    vocab=151936, max_seq=32768, tied_embeddings=True, qk_norm="per_head"),
    "8b": MODELS["llama3-8b"],
    "7b": MODELS["llama2-7b"],
    "moe": ModelSpec(name="moe-16x1b", layers=12, hidden=2048, ffn=4096, heads=16, kv_heads=8, head_dim=128,
                     vocab=32000, max_seq=32768, moe=MoE(experts=16, topk=2, ffn=4096)),
    "12b": OTHERS["mistral-nemo-12b"],
    "qwen8b": OTHERS["qwen3-8b"],
    "olmoe": OTHERS["olmoe-7b"],
    "34b": OTHERS["yi-34b"],
    "70b": MODELS["llama3-70b"],
}  # fmt: skip

UNFINISHED: Final = 75  # run again: the process had to end
# Shape, layers (0: all), tokens, strategy, compiled. Compiled cases of one shape, length and micro-batch stand
# together: the second takes its kernels from the cache. The most telling come first, in case time runs out.
GRID: Final = (
    ("8b", 16, 8192, "dp64 mbs1 zero3", False),
    ("8b", 16, 8192, "dp64 mbs1 zero3", True),
    ("8b", 16, 8192, "dp64 mbs1 zero2", True),
    ("8b", 16, 8192, "dp64 mbs1 zero2", False),
    ("8b", 0, 8192, "dp64 mbs1 zero3 recompute=full", False),
    ("8b", 0, 8192, "dp64 mbs1 zero3 recompute=full", True),
    ("1b", 0, 4096, "dp16 mbs4 zero3", False),
    ("1b", 0, 4096, "dp16 mbs4 zero3", True),
    ("1b", 0, 4096, "dp16 mbs1 zero3", False),
    ("1b", 0, 4096, "dp16 mbs1 zero3", True),
    ("3b", 0, 4096, "dp32 mbs2 zero3", False),
    ("3b", 0, 4096, "dp32 mbs2 zero3", True),
    ("3b", 0, 4096, "dp32 mbs2 zero2", False),
    ("3b", 0, 4096, "dp32 mbs2 zero2 recompute=full", True),
    ("7b", 0, 4096, "dp128 mbs1 zero3", False),
    ("7b", 0, 4096, "dp128 mbs1 zero3", True),
    ("7b", 0, 4096, "dp128 mbs1 zero2", True),
    ("7b", 0, 4096, "dp128 mbs4 zero3 recompute=full", False),
    ("moe", 0, 4096, "dp16 mbs2 zero3", False),
    ("moe", 0, 4096, "dp16 mbs2 zero3", True),
    ("8b", 8, 2048, "dp16 mbs1 zero3", False),
    ("8b", 8, 2048, "dp16 mbs1 zero3", True),
    ("8b", 8, 16384, "dp32 mbs1 zero3", False),
    ("8b", 8, 16384, "dp32 mbs1 zero3", True),
    ("8b", 8, 4096, "dp8 mbs4 zero3 recompute=full", False),
    ("1b", 0, 8192, "dp8 mbs2 zero2 recompute=full", False),
    ("1b", 0, 8192, "dp8 mbs2 zero2", True),
    ("moe", 0, 4096, "dp64 mbs2 zero3 recompute=full", False),
    ("4b", 0, 2048, "dp256 mbs2 zero3", False),
    ("4b", 0, 2048, "dp256 mbs2 zero3", True),
    ("7b", 0, 2048, "dp64 mbs2 zero2 recompute=full", False),
    ("8b", 16, 4096, "pp2 dp32 mbs1 zero2", False),
)
# Shapes, lengths and worlds that the cost model was not made with.
OTHER_GRID: Final = (
    ("qwen8b", 0, 4096, "dp64 mbs1 zero3", False),
    ("qwen8b", 0, 4096, "dp64 mbs1 zero3", True),
    ("qwen8b", 0, 6144, "dp128 mbs2 zero3 recompute=full", True),
    ("12b", 20, 8192, "dp256 mbs1 zero3", False),
    ("12b", 20, 8192, "dp256 mbs1 zero3", True),
    ("12b", 20, 3072, "dp32 mbs2 zero2", True),
    ("34b", 12, 4096, "dp128 mbs1 zero3", False),
    ("34b", 12, 4096, "dp128 mbs1 zero3", True),
    ("34b", 12, 4096, "dp512 mbs2 zero3 recompute=full", False),
    ("34b", 12, 8192, "dp64 mbs1 zero2 recompute=full", True),
    ("3b", 0, 8192, "dp8 mbs2 zero3", True),
    ("3b", 0, 2048, "dp24 mbs6 zero3", False),
    ("olmoe", 0, 4096, "dp64 mbs2 zero3", False),
    ("olmoe", 0, 4096, "dp64 mbs2 zero3 recompute=full", False),
    ("4b", 0, 4096, "dp48 mbs3 zero2", False),
    ("4b", 0, 4096, "dp48 mbs3 zero3", True),
    ("7b", 0, 8192, "dp16 mbs1 zero3 recompute=full", True),
    ("1b", 0, 32768, "dp8 mbs1 zero3", False),
    ("1b", 0, 32768, "dp8 mbs1 zero3", True),
    ("12b", 20, 4096, "pp2 dp64 mbs1 zero2", False),
)


TRANSFORMERS_GRID: Final = (
    ("8b", 16, 8192, "dp64 mbs1 zero3", False),
    ("8b", 16, 8192, "dp64 mbs1 zero2", False),
    ("8b", 0, 8192, "dp64 mbs1 zero3 recompute=full", False),
    ("1b", 0, 4096, "dp16 mbs4 zero3", False),
    ("1b", 0, 4096, "dp16 mbs1 zero3", False),
    ("3b", 0, 4096, "dp32 mbs2 zero3", False),
    ("qwen8b", 18, 4096, "dp64 mbs1 zero3", False),
    ("qwen8b", 18, 4096, "dp64 mbs2 zero3 recompute=full", False),
    ("7b", 16, 4096, "dp128 mbs1 zero3", False),
    ("7b", 0, 4096, "dp128 mbs4 zero3 recompute=full", False),
    ("moe", 0, 4096, "dp16 mbs2 zero3", False),
    ("moe", 0, 4096, "dp64 mbs2 zero3 recompute=full", False),
    ("olmoe", 8, 4096, "dp64 mbs2 zero3", False),
    ("12b", 10, 8192, "dp256 mbs1 zero3", False),
    ("34b", 8, 4096, "dp128 mbs1 zero3", False),
    ("4b", 18, 2048, "dp256 mbs2 zero3", False),
    ("8b", 8, 2048, "dp16 mbs1 zero3", False),
    ("1b", 0, 8192, "dp8 mbs2 zero2 recompute=full", False),
    ("3b", 14, 8192, "dp8 mbs2 zero3", False),
    ("8b", 8, 16384, "dp32 mbs1 zero3", False),
    # run after the runtimes of both frameworks were made: scored once
    ("12b", 16, 4096, "dp64 mbs2 zero3", False),
    ("34b", 10, 8192, "dp256 mbs1 zero3 recompute=full", False),
    ("70b", 4, 4096, "dp128 mbs1 zero3", False),
    ("70b", 8, 8192, "dp512 mbs1 zero3 recompute=full", False),
    ("qwen8b", 12, 8192, "dp32 mbs1 zero3", False),
    ("4b", 0, 4096, "dp16 mbs1 zero2", False),
    ("7b", 12, 2048, "dp64 mbs6 zero3", False),
    ("3b", 0, 2048, "dp24 mbs6 zero3", False),
    ("olmoe", 6, 2048, "dp32 mbs4 zero3", False),
    ("1b", 0, 16384, "dp8 mbs1 zero3", False),
)
TORCHTITAN_GRID: Final = (
    ("8b", 16, 8192, "tp2 sp dp32 mbs1 zero3", True),
    ("8b", 16, 8192, "tp2 sp dp32 mbs1 zero3", False),
    ("8b", 16, 8192, "dp64 mbs1 zero3", True),
    ("8b", 16, 8192, "dp64 mbs1 zero3", False),
    ("8b", 16, 8192, "dp64 mbs1 zero3", True, "fp8-rowwise"),
    ("8b", 0, 8192, "tp8 sp dp8 mbs2 zero3", True),
    ("70b", 8, 8192, "tp8 sp dp32 mbs1 zero3", True),
    ("70b", 8, 8192, "tp8 sp dp32 mbs1 zero3", False),
    ("70b", 8, 8192, "dp256 mbs1 zero3 recompute=full", True, "fp8-rowwise"),
    ("70b", 8, 8192, "dp256 mbs1 zero3 recompute=full", True),
    ("qwen8b", 18, 4096, "dp64 mbs1 zero3", True),
    ("qwen8b", 18, 4096, "tp2 sp dp64 mbs2 zero3", True),
    ("7b", 16, 4096, "tp2 sp dp64 mbs2 zero3", True),
    ("8b", 0, 8192, "tp8 sp dp8 mbs2 zero3 recompute=full", False),
    ("34b", 12, 4096, "tp4 sp dp32 mbs1 zero3", True),
    ("34b", 12, 4096, "tp4 sp dp32 mbs2 zero3 recompute=full", True),
    ("7b", 0, 4096, "dp128 mbs2 zero3 recompute=full", True),
    ("70b", 4, 4096, "dp128 mbs1 zero3", True, "fp8-rowwise"),
    ("70b", 16, 4096, "tp8 sp dp16 mbs2 zero3", True, "fp8-rowwise"),
    # run after the runtimes were made: scored once
    ("70b", 10, 4096, "tp4 sp dp64 mbs2 zero3", True),
    ("34b", 16, 8192, "tp8 sp dp32 mbs2 zero3 recompute=full", True),
    ("8b", 12, 4096, "tp2 sp dp16 mbs4 zero3", True),
    ("8b", 12, 16384, "tp4 sp dp16 mbs1 zero3", True),
    ("qwen8b", 12, 8192, "dp32 mbs1 zero3", True),
    ("7b", 16, 2048, "dp64 mbs4 zero3", True),
    ("34b", 8, 4096, "dp128 mbs2 zero3 recompute=full", True),
    ("70b", 6, 8192, "tp2 sp dp128 mbs1 zero3", True),
)
GRIDS: Final = {"fsdp2": GRID, "transformers": TRANSFORMERS_GRID, "torchtitan": TORCHTITAN_GRID}
ABOUT: Final = {
    "fsdp2": "torch fully_shard (FSDP2), layers after torchtitan 0.3's Llama",
    "transformers": "models of transformers under torch fully_shard, as accelerate wraps them",
    "torchtitan": "models and wrapping of torchtitan 0.2.2",
}
Row = tuple[str, int, int, str, bool] | tuple[str, int, int, str, bool, str]


def cases(grid: Sequence[Row] = GRID, framework: str = "fsdp2") -> list[Case]:
    """The cases of a grid, in order."""
    found = []
    for shape, layers, seq, words, compiled, *precision in grid:
        model = SHAPES[shape]
        strategy = parse_strategy(words)
        found.append(
            Case(
                model=replace(model, layers=layers or model.layers),
                strategy=strategy,
                seq=seq,
                stage=strategy.pp - 1,
                microbatches=4 if strategy.pp > 1 else 1,
                framework=framework,
                compiled=compiled,
                precision=precision[0] if precision else "bf16",
            )
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="measurement file to write or continue")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after this long")
    parser.add_argument("--only", default="", help="comma-separated places in the grid, for a trial")
    parser.add_argument("--others", action="store_true", help="the shapes that the cost model was not made with")
    parser.add_argument("--framework", choices=GRIDS, default="fsdp2", help="whose models and wrapping")
    parser.add_argument("--list", action="store_true", help="print the ids and stop")
    args = parser.parse_args()
    chosen = cases(OTHER_GRID if args.others else GRIDS[args.framework], args.framework)
    if args.only:
        chosen = [chosen[int(place)] for place in args.only.split(",")]
    if args.list:
        print("\n".join(f"{case.split} {case.id}" for case in chosen))
        return 0
    from astra.lab.rehearse import fsdp_rank, titan_rank, transformers_rank  # noqa: PLC0415 - listing needs no torch

    if args.framework == "torchtitan":
        titan_rank.install()
    ranks = {
        "fsdp2": fsdp_rank.FsdpRank,
        "transformers": transformers_rank.TransformersRank,
        "torchtitan": titan_rank.TitanRank,
    }
    return run(chosen, args.out, args.seconds, ranks[args.framework])


def run(chosen: list[Case], out: str, seconds: float, rank: Any) -> int:
    """Measure every case that is not in the file yet, until time is up."""
    from astra.lab.rehearse import titan_rank, torch_run  # noqa: PLC0415

    began = time.perf_counter()
    store = Store(out, key="id")
    died_on = store.crashed()
    if died_on is not None:
        store.add({"id": died_on, "oom": False, "error": "the process died while measuring this case"})
    costs = torch_run.prepare()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    about: dict[str, Any] = {"framework": ABOUT[chosen[0].framework]}
    store.header.update(what="rehearsal", date=date, runtime=about, fill_costs=costs)
    if costs is not None:
        import torch  # noqa: PLC0415 - listing the grid needs none

        store.header.update(describe_gpu(torch), launch_s=_launch_s(torch))
    with ClockWatch(period_ms=200) as watch:
        for case in (case for case in chosen if case.id not in store):
            if time.perf_counter() - began > seconds:
                print("time is up")
                break
            store.begin(case.id)
            row = torch_run.one(case, rank, costs, titan_rank.world_of(case), **_how(costs, watch))
            store.add(row)
            print(f"{time.perf_counter() - began:6.1f} s  {_line(row)}", flush=True)
            if "CUDA error" in row.get("error", ""):
                return UNFINISHED  # nothing works in this process any more
    return 0


def _launch_s(torch: Any, times: int = 2000) -> float:
    """What the host takes to issue one small operator."""
    small = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        small.add_(1.0)
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / times


def _how(costs: Any, watch: Any) -> dict[str, Any]:
    return {} if costs is None else {"watch": watch}


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"ERROR {row['id']}: {row['error'][:300]} {' | '.join(row.get('traceback', []))[-1500:]}"
    if row["oom"]:
        return f"OOM {row['id']} at {row['reached']}"
    peak = f"{row['peak_allocated_bytes'] / 2**30:.2f} GiB"
    if "fwd_s" not in row:
        return f"ok {row['id']}: {peak}, {row['wall_s']} s"
    times = f"fwd {row['fwd_s'] * 1e3:.1f} bwd {row['bwd_s'] * 1e3:.1f} opt {row['optimizer_s'] * 1e3:.1f} ms"
    kept = f"reserved {row['peak_reserved_bytes'] / 2**30:.2f}, left {row['before_bytes'] >> 20} MiB"
    return f"ok {row['id']}: {peak} ({kept}), {times}, busy {row['busy_s']:.3f} s, {row['wall_s']} s {row['finite']}"


if __name__ == "__main__":
    sys.exit(main())
