"""Train as exported scripts say, in CPU processes, through the real Megatron-LM. Runs in ``.venvs/megatron``.

Reads one JSON case per line, ``{"argv": [...], "env": {...}, "world": N}``, and answers each with the losses of its
steps. Megatron is imported once; the ranks of a case are forked from here and meet as torchrun's do. Every rank starts
from the same weights: each is drawn whole by its name and place in the whole model, which Megatron's own checkpoints
know, and cut as the rank holds it. Weights are fp32, so that losses can be compared to the last digits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "exported"), str(ROOT / "src")]

import pretrain_gpt  # noqa: E402
from ranks import run_ranks  # noqa: E402


def same_weights(chunks: list[Any]) -> None:
    """Fill what a rank holds from whole weights that depend on their names alone."""
    import torch
    from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    def fill(entry: Any) -> Any:
        if isinstance(entry, ShardedTensor):
            source = torch.Generator().manual_seed(zlib.crc32(entry.key.encode()))
            whole = torch.randn(entry.global_shape, generator=source)
            matrix = entry.data.dim() > 1
            whole = whole * (0.5 * entry.global_shape[-1] ** -0.5) if matrix else 1 + 0.1 * whole
            entry.data.copy_(whole[entry.global_slice()].reshape(entry.data.shape))
        return entry

    for chunk in chunks:
        with torch.no_grad():
            state = chunk.sharded_state_dict()
            apply_factories(state)
            dict_list_map_inplace(fill, state)


def rank(case: dict[str, Any]) -> dict[str, Any] | None:
    """One rank of a case."""
    os.environ.update(case.get("env", {}))
    argv = [word for word in case["argv"] if word not in ("--bf16", "--init-model-with-meta-device")]
    return pretrain_gpt.main(argv, gpu=False, prepare=same_weights)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks of a case to their end; the losses, or what the first that failed said."""
    return next(one for one in run_ranks(lambda: rank(case), case["world"]) if one)


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    said = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        pretrain_gpt.load()
    import torch
    from megatron.core import __version__

    print(json.dumps({"megatron-core": __version__, "torch": torch.__version__}), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
