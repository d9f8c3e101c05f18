"""Products with fp8 operands scaled as a whole, by row and by blocks of 128: how much longer the finer ways take.

Run on a GPU of Hopper or newer: ``python benchmarks/quantised.py quantised.json``. Shapes are those of linear layers of
transformers (tokens, inputs, outputs). Each way is timed in turns with the others for long enough that the clock has
settled, on random normal numbers; the figure is the median of the turns. Needs torch, nothing of Astra.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

if __name__ == "__main__":  # --help answers where there is no torch
    PARSER = argparse.ArgumentParser(description=__doc__)
    PARSER.add_argument("out", help="file to write")
    ASKED = PARSER.parse_args()

import torch

TURNS, CALLS, BLOCK = 15, 20, 128
SHAPES = (
    (8192, 4096, 6144),
    (8192, 4096, 28672),
    (8192, 14336, 4096),
    (8192, 8192, 10240),
    (8192, 8192, 57344),
    (8192, 28672, 8192),
    (4096, 7168, 4096),
    (4096, 2048, 7168),
    (2048, 8192, 8192),
)


class Way(NamedTuple):
    """One way to scale operands, ready to multiply."""

    name: str
    call: Callable[[], Any]


def ways(m: int, k: int, n: int) -> list[Way]:
    """Every way this torch and GPU have for one shape."""
    left, right = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    a, b = (each.to(torch.float8_e4m3fn) for each in (left, right))

    def scaled(rows: tuple[int, int], columns: tuple[int, int]) -> Callable[[], Any]:
        """Scales are ones: they take as long as others. Finer ones than a row lie with their long side together."""
        first = torch.ones(rows, device="cuda") if rows[1] == 1 else torch.ones(rows[::-1], device="cuda").t()
        second = torch.ones(columns, device="cuda") if columns[0] == 1 else torch.ones(columns[::-1], device="cuda").t()
        return lambda: torch._scaled_mm(a, b.t(), scale_a=first, scale_b=second, out_dtype=torch.bfloat16)

    one = torch.ones((), device="cuda")
    found = [
        Way("bf16", lambda: left @ right.t()),
        Way("tensorwise", lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)),
        Way("rowwise", scaled((m, 1), (1, n))),
        Way("blockwise", scaled((m, k // BLOCK), (k // BLOCK, n // BLOCK))),
    ]
    return [way for way in found if works(way)]


def works(way: Way) -> bool:
    """Whether this torch has it; what it says is printed."""
    try:
        way.call()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError) as error:
        print(f"{way.name}: {str(error).splitlines()[0][:200]}")
        return False
    return True


def seconds(call: Callable[[], Any]) -> float:
    """Of one call, among several."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(CALLS):
        call()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3 / CALLS


def measure() -> list[dict[str, Any]]:
    """Every shape and way, in turns."""
    rows = []
    for m, k, n in SHAPES:
        some = ways(m, k, n)
        turns: dict[str, list[float]] = {way.name: [] for way in some}
        for _ in range(TURNS):
            for way in some:
                turns[way.name].append(seconds(way.call))
        for name, found in turns.items():
            time_s = statistics.median(found[TURNS // 3 :])
            rows.append(
                {"m": m, "k": k, "n": n, "way": name, "seconds": time_s, "tflops": 2 * m * k * n / time_s / 1e12}
            )
            print(rows[-1])
    return rows


def slower(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Median over shapes of the time over that of whole operands scaled."""
    whole = {(row["m"], row["k"], row["n"]): row["seconds"] for row in rows if row["way"] == "tensorwise"}
    names = {row["way"] for row in rows}
    return {
        name: statistics.median(
            row["seconds"] / whole[row["m"], row["k"], row["n"]] for row in rows if row["way"] == name
        )
        for name in sorted(names)
    }


if __name__ == "__main__":
    measured = measure()
    record = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "slower": slower(measured),
        "rows": measured,
    }
    print(json.dumps(record["slower"], indent=2))
    with open(ASKED.out, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
