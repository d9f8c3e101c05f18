"""What a matrix product loses where a size is not a multiple of what tensor cores load: 16 bytes of a row.

Run on a GPU: ``python benchmarks/alignment.py alignment.json``. Each product of a layer (forward, gradient of the
input, gradient of the weight; weights stored as torch stores them, outputs by inputs) is timed with one size made a
little larger, beside the even one, in turns, so that clocks drift for both alike. Needs torch alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

if __name__ == "__main__":  # --help answers where there is no torch
    PARSER = argparse.ArgumentParser(description=__doc__)
    PARSER.add_argument("out", help="file to write")
    ASKED = PARSER.parse_args()

import torch

MORE = (1, 2, 4, 8, 16, 32)  # added to the even size
LEAST_S = 4e-3  # of one timing
ROUNDS = 7
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}


class Product(NamedTuple):
    """``tokens`` rows through a weight of ``outputs`` by ``inputs``."""

    tokens: int
    outputs: int
    inputs: int


SHAPES = (
    Product(8192, 4096, 4096),
    Product(8192, 14336, 4096),
    Product(8192, 4096, 14336),
    Product(2048, 1024, 4096),
    Product(16384, 50176, 768),
    Product(8192, 50176, 1600),
    Product(4096, 32000, 4096),
)


def way(name: str, shape: Product, dtype: torch.dtype) -> Callable[[], Any]:
    """One of the three products of a linear layer."""
    tokens, outputs, inputs = shape
    x = torch.randn(tokens, inputs, device="cuda", dtype=dtype)
    dy = torch.randn(tokens, outputs, device="cuda", dtype=dtype)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=dtype)
    products: dict[str, Callable[[], Any]] = {
        "forward": lambda: x @ weight.t(),
        "input": lambda: dy @ weight,
        "weight": lambda: dy.t() @ x,
    }
    return products[name]


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Mean of some calls, by events on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / calls


def both(even: Callable[[], Any], odd: Callable[[], Any]) -> tuple[float, float]:
    """Medians of the two, taken in turns."""
    for call in (even, odd):
        call()
    calls = max(1, int(LEAST_S / max(seconds(even, 2), 1e-6)))
    turns = [(seconds(even, calls), seconds(odd, calls)) for _ in range(ROUNDS)]
    return statistics.median(turn[0] for turn in turns), statistics.median(turn[1] for turn in turns)


def rows() -> Iterator[dict[str, Any]]:
    """Every shape, precision, way and size made uneven."""
    for precision, dtype in DTYPES.items():
        for shape in SHAPES:
            for name in ("forward", "input", "weight"):
                even = way(name, shape, dtype)
                for size in Product._fields:
                    for more in MORE:
                        uneven = shape._replace(**{size: getattr(shape, size) + more})
                        even_s, odd_s = both(even, way(name, uneven, dtype))
                        work = (uneven.tokens * uneven.outputs * uneven.inputs) / (
                            shape.tokens * shape.outputs * shape.inputs
                        )
                        yield {
                            "precision": precision, **shape._asdict(), "way": name, "size": size, "more": more,
                            "even_s": even_s, "uneven_s": odd_s, "ratio": odd_s / even_s / work,
                        }  # fmt: skip


def main() -> None:
    """Measure and write."""
    torch.backends.cuda.matmul.allow_tf32 = True
    found = list(rows())
    written = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": found}
    with open(ASKED.out, "w", encoding="utf-8") as file:
        json.dump(written, file, indent=1)
    for precision in DTYPES:
        for size in Product._fields:
            for more in MORE:
                some = [
                    row["ratio"]
                    for row in found
                    if (row["precision"], row["size"], row["more"]) == (precision, size, more)
                ]
                print(precision, size, f"+{more}", " ".join(f"{ratio:.2f}" for ratio in some))


if __name__ == "__main__":
    main()
