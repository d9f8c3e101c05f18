"""A network of one: torch's fake process group, with received data that looks like data.

The fake group answers at once and leaves gathered and received buffers as they were. Stale or zero
operands let a GPU run faster than it would in training (lower power), so gathered buffers are filled from
the local shard and received ones with random numbers. Each fill is logged, and its time subtracted.
Buffers that alias their own shard (Megatron's parameter and gradient buffers) already hold real data.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import torch.distributed as dist

from astra.lab.profile.ops import gpu_seconds, own_stream

FILL_KINDS: Final = ("copy", "normal", "spread")
_SPREAD: Final = 64  # copies of one shard, when the cost of spreading is measured


class Fabric:
    """What the patched collectives share: where we are in the step, and the fills made there."""

    def __init__(self) -> None:
        self.phase = "other"
        self.fills: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.real_new_group: Any = None

    def note(self, kind: str, nbytes: int) -> None:
        """Log one fill of ``nbytes`` written."""
        self.fills[self.phase].append((kind, nbytes))


FABRIC: Final = Fabric()


class Done:
    """A collective that has already happened."""

    def wait(self, *_: Any, **__: Any) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True


def same_storage(a: Any, b: Any) -> bool:
    """Whether two tensors share their memory."""
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def _copy(into: Any, source: Any) -> None:
    into.copy_(source)
    FABRIC.note("copy", into.numel() * into.element_size())


def _all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False, **_: Any
) -> Any:
    if not same_storage(output_tensor, input_tensor) and output_tensor.numel():
        _copy(output_tensor.detach().view(-1, input_tensor.numel()), input_tensor.detach().reshape(1, -1))
    return Done() if async_op else None


def _all_gather(outputs: list[Any], shard: Any, group: Any = None, async_op: bool = False, **_: Any) -> Any:
    for output in outputs:
        _fill_cyclic(output, shard)
    return Done() if async_op else None


def _reduce_scatter_tensor(output: Any, input: Any, *_: Any, async_op: bool = False, **__: Any) -> Any:
    if not same_storage(output, input) and output.numel():
        _copy(output.detach().view(-1), input.detach().reshape(-1)[: output.numel()])
    return Done() if async_op else None


def _reduce_scatter(output: Any, parts: list[Any], *_: Any, async_op: bool = False, **__: Any) -> Any:
    _fill_cyclic(output, parts[0])
    return Done() if async_op else None


def _all_to_all_single(output: Any, sent: Any, *_: Any, async_op: bool = False, **__: Any) -> Any:
    _fill_cyclic(output, sent)
    return Done() if async_op else None


def _fill_cyclic(output: Any, source: Any) -> None:
    """Write ``source`` over ``output`` as often as it takes."""
    into, data = output.detach().view(-1), source.detach().reshape(-1)
    if not data.numel():
        return
    for start in range(0, into.numel(), data.numel()):
        piece = into[start : start + data.numel()]
        _copy(piece, data[: piece.numel()])


def irecv(tensor: Any, *_: Any, **__: Any) -> Done:
    """Receive random numbers."""
    tensor.detach().normal_()
    FABRIC.note("normal", tensor.numel() * tensor.element_size())
    return Done()


class _P2POp:
    """Stands in for torch's, which insists on its own isend and irecv."""

    def __init__(self, op: Any, tensor: Any, *_: Any, **__: Any) -> None:
        self.op, self.tensor = op, tensor


def _all_gather_object(objects: list[Any], mine: Any, group: Any = None) -> None:
    objects[:] = [mine] * len(objects)


@contextlib.contextmanager
def _coalescing_manager(*_: Any, **__: Any) -> Iterator[Done]:
    yield Done()


def _new_group(ranks: Any = None, *rest: Any, **options: Any) -> Any:
    """Skip the groups we are not in: a job of thousands of ranks has thousands of them."""
    if ranks is not None and dist.get_rank() not in ranks:
        return dist.GroupMember.NON_GROUP_MEMBER
    return FABRIC.real_new_group(ranks, *rest, **options)


_PATCHES: Final[dict[str, Any]] = {
    "all_gather_into_tensor": _all_gather_into_tensor,
    "_all_gather_base": _all_gather_into_tensor,
    "all_gather": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "_reduce_scatter_base": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "all_to_all_single": _all_to_all_single,
    "irecv": irecv,
    "isend": lambda *_, **__: Done(),
    "P2POp": _P2POp,
    "batch_isend_irecv": lambda ops: [op.op(op.tensor) for op in ops],
    "all_gather_object": _all_gather_object,
    "_coalescing_manager": _coalescing_manager,
    "new_group": _new_group,
}


def install() -> None:
    """Replace torch.distributed's collectives. Must run before megatron is imported: it keeps references."""
    if FABRIC.real_new_group is not None:
        return
    FABRIC.real_new_group = dist.new_group
    for name, replacement in _PATCHES.items():
        setattr(dist, name, replacement)
        if hasattr(dist.distributed_c10d, name) and name != "new_group":
            setattr(dist.distributed_c10d, name, replacement)


def join(rank: int, world: int) -> None:
    """Become one rank of a job of ``world`` ranks."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def leave() -> None:
    """Leave the job; the next case joins another."""
    if dist.is_initialized():
        dist.destroy_process_group()


def measure_fills(torch: Any) -> dict[str, tuple[float, float]]:
    """GPU cost of a fill by kind: ``(seconds, seconds per byte written)``, from a small and a large buffer."""
    costs = {}
    with own_stream(torch):
        for kind in FILL_KINDS:
            points = [(size, _time_fill(torch, kind, size)) for size in (1 << 16, 1 << 27)]
            (small, small_s), (large, large_s) = points
            slope = max(large_s - small_s, 0.0) / (large - small)
            costs[kind] = (max(small_s - slope * small, 0.0), slope)
    return costs


def _time_fill(torch: Any, kind: str, nbytes: int) -> float:
    into, source = (torch.randn(nbytes // 2, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    shard = source[: source.numel() // _SPREAD].view(1, -1)
    call = {
        "copy": functools.partial(into.copy_, source),
        "normal": into.normal_,
        "spread": functools.partial(into.view(_SPREAD, -1).copy_, shard),
    }[kind]
    try:
        return gpu_seconds(torch, [call])
    except RuntimeError:  # a torch that cannot capture random numbers
        torch.cuda.synchronize()
        return gpu_seconds(torch, [call], graph=False)
