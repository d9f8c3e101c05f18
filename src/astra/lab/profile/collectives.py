"""Measure collectives between GPUs: every process of ``torchrun`` runs this, rank 0 writes the rows.

``torchrun --nproc-per-node 8 -m astra.lab.profile.collectives --out FILE``. A group is ``ranks`` members that are
``stride`` apart; its siblings run at the same time, as they do in training, and the slowest rank's median counts. Sizes
are those of nccl-tests: the whole buffer of an all-reduce, of what is gathered or scattered, or one rank's of an
all-to-all, and one message of a send.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from astra.lab.profile.plan import Row, Store, row_key

OPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_BATCHES: Final = 5
_BATCH_S: Final = 0.01
_MOST_CALLS: Final = 200
_SMALLEST: Final = 2**10
_LARGEST: Final = {True: 2**28, False: 2**30}  # quick, full
_PATIENCE: Final = datetime.timedelta(minutes=30)
_ELEMENT_BYTES: Final = 2  # bf16, as gradients and activations travel


def groups(world: int, per_node: int) -> Iterator[tuple[int, int]]:
    """``(ranks, stride)``: neighbours in powers of two, a whole node, everyone; then one of each node."""
    sizes = {2**power for power in range(1, world.bit_length())} | {per_node, world}
    yield from ((size, 1) for size in sorted(sizes) if 1 < size <= world and world % size == 0)
    if per_node > 1 and world > per_node:
        yield world // per_node, per_node


def collective_rows(world: int, per_node: int, *, quick: bool, most_bytes: int | None = None) -> list[Row]:
    """The plan: every operation, group and size; small and large sizes by turns, so that a cut leaves a sketch."""
    octaves = 2 if quick else 1
    largest = most_bytes or _LARGEST[quick]
    sizes = [_SMALLEST * 2**power for power in range(0, 40, octaves) if _SMALLEST * 2**power <= largest]
    sizes = sizes[::2] + sizes[1::2]
    return [
        {"op": "collective", "collective": op, "ranks": ranks, "stride": stride, "bytes": size}
        for size in sizes
        for ranks, stride in groups(world, per_node)
        for op in OPS
    ]


def run_collectives(
    out: str | Path, *, quick: bool = False, backend: str = "", most_bytes: int | None = None
) -> Store | None:
    """Measure what ``out`` does not hold yet, with the other processes; the file on rank 0, None on the others."""
    import torch
    import torch.distributed as dist

    gpu = (backend or "nccl") == "nccl"
    if gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend or "nccl", timeout=_PATIENCE)
    try:
        return _Timer(torch, dist, gpu).run(out, quick, most_bytes)
    finally:
        dist.destroy_process_group()


class _Timer:
    """One process among several."""

    def __init__(self, torch: Any, dist: Any, gpu: bool) -> None:
        self.torch, self.dist, self.gpu = torch, dist, gpu
        self.device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.per_node = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world)))
        self.found: dict[tuple[int, int], tuple[Any, list[int]]] = {}

    def run(self, out: str | Path, quick: bool, most_bytes: int | None) -> Store | None:
        store = self._open(out) if self.rank == 0 else None
        rows = collective_rows(self.world, self.per_node, quick=quick, most_bytes=most_bytes)
        todo = [[row for row in rows if store is None or row_key(row) not in store]]
        self.dist.broadcast_object_list(todo, src=0, device=self.device)
        for row in todo[0]:
            measured = self._one(row)
            if store is not None:
                store.add({"key": row_key(row), **measured})
        return store

    def _open(self, out: str | Path) -> Store:
        store = Store(out, key="key")
        header = {"world": self.world, "gpus_per_node": self.per_node, "backend": "nccl" if self.gpu else "gloo"}
        if self.gpu:
            header["nccl"] = ".".join(map(str, self.torch.cuda.nccl.version()))
        store.header["collectives"] = {**header, "torch": self.torch.__version__, "gpu": self._name()}
        store.header.setdefault("what", "profile")
        return store

    def _name(self) -> str:
        return str(self.torch.cuda.get_device_name(self.device)) if self.gpu else "cpu"

    def _one(self, row: Row) -> Row:
        """A row with its ``seconds``. What a backend refuses, it refuses on every rank, before anything is sent."""
        group, members = self._group(row["ranks"], row["stride"])
        try:
            call = self._call(row["collective"], row["bytes"], group, members)
            call()
        except (RuntimeError, NotImplementedError) as error:
            return {**row, "error": f"{type(error).__name__}: {error}"[:300]}
        call()
        # Every process must make as many calls: the slowest first guess decides.
        guess = self._slowest(self._batch(call, 1))
        count = max(1, min(_MOST_CALLS, round(_BATCH_S / max(guess, 1e-7))))
        seconds = self._slowest(statistics.median(self._batch(call, count) for _ in range(_BATCHES)))
        nodes = -(-row["ranks"] * row["stride"] // self.per_node)
        return {**row, "nodes": nodes, "calls": count * _BATCHES, "seconds": seconds}

    def _group(self, ranks: int, stride: int) -> tuple[Any, list[int]]:
        """Our group among its siblings; every process must make all of them, in one order."""
        if (ranks, stride) not in self.found:
            span = ranks * stride
            firsts = (block + place for block in range(0, self.world, span) for place in range(stride))
            for first in firsts:
                members = list(range(first, first + span, stride))
                group = self.dist.new_group(members)
                if self.rank in members:
                    self.found[ranks, stride] = (group, members)
        return self.found[ranks, stride]

    def _batch(self, call: Callable[[], None], count: int) -> float:
        """Seconds of one of ``count`` calls, all processes starting together."""
        self.dist.barrier()
        if not self.gpu:
            began = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - began) / count
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / count

    def _slowest(self, seconds: float) -> float:
        worst = self.torch.tensor([seconds], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(worst, op=self.dist.ReduceOp.MAX)
        return float(worst.item())

    def _call(self, op: str, nbytes: int, group: Any, members: list[int]) -> Callable[[], None]:
        """One collective on buffers of its own, with random data."""
        dist, ranks = self.dist, len(members)
        share = max(1, nbytes // _ELEMENT_BYTES // ranks)
        whole, other = self._new(share * ranks), self._new(share * ranks)
        part = self._new(share)
        if op == "send_recv":
            return self._exchange(whole, other, group, members)
        steady = dist.ReduceOp.AVG if self.gpu else dist.ReduceOp.MAX  # sums would grow from call to call
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        calls: dict[str, Callable[[], None]] = {
            "all_reduce": lambda: dist.all_reduce(whole, op=steady, group=group),
            "all_gather": lambda: gather(whole, part, group=group),
            "reduce_scatter": lambda: scatter(part, whole, group=group),
            "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        }
        return calls[op]

    def _new(self, elements: int) -> Any:
        return self.torch.randn(elements, dtype=self.torch.bfloat16, device=self.device)

    def _exchange(self, sent: Any, received: Any, group: Any, members: list[int]) -> Callable[[], None]:
        """A message to the next member and one from the last, at once."""
        dist, place = self.dist, members.index(self.rank)
        after, before = members[(place + 1) % len(members)], members[place - 1]

        def call() -> None:
            both = [dist.P2POp(dist.isend, sent, after, group), dist.P2POp(dist.irecv, received, before, group)]
            for work in dist.batch_isend_irecv(both):
                work.wait()

        return call


def run_here(out: str | Path, *, quick: bool) -> None:
    """Among the processes of torchrun, or among processes on the GPUs here; nothing where there is one GPU."""
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        run_collectives(out, quick=quick)
    elif torch.cuda.device_count() > 1:
        launch(torch.cuda.device_count(), out, quick=quick)


def launch(gpus: int, out: str | Path, *, quick: bool) -> None:
    """Run this module on every GPU of this machine, by torchrun; the file shows how far it came."""
    import subprocess

    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    command += ["-m", "astra.lab.profile.collectives", "--out", str(out)] + ["--quick"] * quick
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths})


def main(argv: list[str] | None = None) -> int:
    """What every process runs."""
    parser = argparse.ArgumentParser(prog="python -m astra.lab.profile.collectives", description=__doc__)
    parser.add_argument("--out", required=True, help="JSON file to write or continue, by rank 0")
    parser.add_argument("--quick", action="store_true", help="every second size, up to 256 MiB")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: a trial without GPUs")
    parser.add_argument("--most-bytes", type=int, help="the largest size (default: 1 GiB, quick 256 MiB)")
    args = parser.parse_args(argv)
    store = run_collectives(args.out, quick=args.quick, backend=args.backend, most_bytes=args.most_bytes)
    if store is not None:
        print(f"{sum(row['op'] == 'collective' for row in store.rows)} collectives in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
