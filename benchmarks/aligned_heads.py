"""A vocabulary projection with its loss, forward and backward, of even and odd vocabularies: eager and compiled.

Run on a GPU: ``python benchmarks/aligned_heads.py heads.json``. Inductor may pad a product whose rows are not a
multiple of 16 bytes; this tells whether it does. Needs torch alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":  # --help answers where there is no torch
    PARSER = argparse.ArgumentParser(description=__doc__)
    PARSER.add_argument("out", help="file to write")
    ASKED = PARSER.parse_args()

import torch
from torch.nn import functional

TOKENS = 8192
HIDDEN = (768, 1600, 4096)
VOCABULARIES = (50304, 50257, 50258, 50260, 50264)
CALLS = 12


def head(hidden: int, vocab: int) -> tuple[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any], list[Any]]:
    """The loss of a projection, and its arguments."""
    x = torch.randn(TOKENS, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocab, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(vocab, (TOKENS,), device="cuda")

    def loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy((x @ weight.t()).float(), target)

    return loss, [x, weight, target]


def step_s(loss: Callable[..., Any], arguments: list[Any]) -> float:
    """Median seconds of forward and backward."""
    taken = []
    for _ in range(CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        loss(*arguments).backward()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) * 1e-3)
        for each in arguments[:2]:
            each.grad = None
    return statistics.median(taken[2:])


def main() -> None:
    """Measure, write and print."""
    rows = []
    for hidden in HIDDEN:
        for vocab in VOCABULARIES:
            loss, arguments = head(hidden, vocab)
            torch.compiler.reset()
            both = {"eager": step_s(loss, arguments), "compiled": step_s(torch.compile(loss), arguments)}
            rows.append({"tokens": TOKENS, "hidden": hidden, "vocab": vocab, **both})
            print(rows[-1], flush=True)
    written = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    with open(ASKED.out, "w", encoding="utf-8") as file:
        json.dump(written, file, indent=1)


if __name__ == "__main__":
    main()
