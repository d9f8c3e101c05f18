"""Train as exported scripts say, in CPU processes, through the real Megatron-LM. Runs in ``.venvs/megatron``.

Reads one JSON case per line, ``{"argv": [...], "env": {...}, "world": N}``, and answers each with the losses of its
steps. Megatron is imported once; the ranks of a case are forked from here and meet as torchrun's do. Every rank starts
from the same weights: each is drawn whole by its name and place in the whole model, which Megatron's own checkpoints
know, and cut as the rank holds it. Weights are fp32, so that losses can be compared to the last digits.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import socket
import sys
import traceback
import warnings
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "exported"), str(ROOT / "src")]

import pretrain_gpt  # noqa: E402


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


def rank(case: dict[str, Any], number: int, port: int) -> dict[str, Any] | None:
    """One rank of a case."""
    os.environ.update(case.get("env", {}))
    os.environ.update(
        WORLD_SIZE=str(case["world"]), RANK=str(number), LOCAL_RANK=str(number), LOCAL_WORLD_SIZE=str(case["world"]),
        MASTER_ADDR="localhost", MASTER_PORT=str(port),
    )  # fmt: skip
    argv = [word for word in case["argv"] if word not in ("--bf16", "--init-model-with-meta-device")]
    return pretrain_gpt.main(argv, gpu=False, prepare=same_weights)


def _forked(case: dict[str, Any], number: int, port: int) -> Any:
    """Start a rank; where it will write what it found."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, os.fdopen(reader)
    os.close(reader)
    sys.stdout = sys.stderr = io.StringIO()
    found: Any = {"error": "it ended"}
    try:
        found = rank(case, number, port)
    except BaseException:
        found = {"error": traceback.format_exc()[-3000:]}
    with os.fdopen(writer, "w") as pipe:
        json.dump(found, pipe)
    os._exit(0)


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks of a case to their end; the losses, or what the first that failed said."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    ranks = [_forked(case, number, port) for number in range(case["world"])]
    found = []
    for child, pipe in ranks:
        with pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        found.append(json.loads(text) if text else {"error": "the process died"})
    errors = [one["error"] for one in found if one and "error" in one]
    # A rank that fails first takes the others with it: their complaint is of the lost connection.
    own = [error for error in errors if "onnection" not in error] or errors
    return {"error": own[0]} if own else next(one for one in found if one)


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
