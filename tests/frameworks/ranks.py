"""The ranks of a job, forked from a program that has imported its framework once. Needs only the standard library."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any


def free_port() -> int:
    """Nobody has it, and nobody is given it before the job is there: systems hand out higher ones, Ray lower ones."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free")


def meet(number: int, world: int, port: int) -> None:
    """What torchrun tells a rank."""
    os.environ.update(
        WORLD_SIZE=str(world), RANK=str(number), LOCAL_RANK=str(number), LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="localhost", MASTER_PORT=str(port),
    )  # fmt: skip


def _forked(rank: Callable[[], Any], number: int, world: int, port: int) -> Any:
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
        meet(number, world, port)
        found = rank()
    except BaseException:
        found = {"error": traceback.format_exc()[-3000:]}
    with os.fdopen(writer, "w") as pipe:
        json.dump(found, pipe)
    os._exit(0)


def run_ranks(rank: Callable[[], Any], world: int) -> list[Any]:
    """What each rank found, in their order; of a job that failed only what the first that failed said."""
    port = free_port()
    found = []
    for child, pipe in [_forked(rank, number, world, port) for number in range(world)]:
        with pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        found.append(json.loads(text) if text else {"error": "the process died"})
    errors = [one["error"] for one in found if one and "error" in one]
    # A rank that fails first takes the others with it: their complaint is of the lost connection.
    own = [error for error in errors if "onnection" not in error] or errors
    return [{"error": own[0]}] if own else found
