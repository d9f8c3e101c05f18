"""Bytes of tensors that have sizes and no data, from the birth of each to its death."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

_GRAIN_BYTES: Final = 512  # torch's allocator rounds up to this


class Counter:
    """Bytes of live storages, and the most there ever were."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew; storages of earlier cases may die later, and are not ours any more."""
        self.live_bytes = self.peak_bytes = 0
        self._known: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._paused = False

    def see(self, storage: Any) -> None:
        """Count a storage once, until it dies."""
        key = storage._cdata
        if self._paused or key in self._known:
            return
        self._known[key] = weakref.ref(storage, functools.partial(self._gone, self._known, key))
        self._holds(key, storage.nbytes())

    def resized(self, storage: Any) -> None:
        """A storage that is known has another size now: FSDP gives memory of gathered weights back that way."""
        if storage._cdata in self._known:
            self._holds(storage._cdata, storage.nbytes())

    def _holds(self, key: int, nbytes: int) -> None:
        whole = -(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES
        self.live_bytes += whole - self._bytes.get(key, 0)
        self._bytes[key] = whole
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _gone(self, known: dict[int, Any], key: int, _: Any) -> None:
        if known is self._known:
            del known[key]
            self.live_bytes -= self._bytes.pop(key)

    def see_all(self, tensors: Any) -> None:
        """Count every tensor of a nest."""
        import torch
        from torch.utils._pytree import tree_leaves

        for given in tree_leaves(tensors):
            leaf = getattr(given, "_local_tensor", given)  # of a tensor spread over ranks, this rank's part
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":  # that has a size and takes no memory
                self.see(leaf.untyped_storage())

    def only_results(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a function that a compiler would fuse: what it allocates on the way is not there on a GPU."""
        outer, self._paused = self._paused, True
        try:
            results = function(*arguments, **options)
        finally:
            self._paused = outer
        self.see_all(results)
        return results

    def mode(self) -> Any:
        """A dispatch mode that counts what every operator returns."""
        from torch.utils._python_dispatch import TorchDispatchMode

        counter = self

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                results = func(*args, **(kwargs or {}))
                counter.see_all(results)
                return results

        return Counting()


COUNTER: Final = Counter()


def watch_resizes() -> None:
    """Tell the counter of every storage that is made larger or smaller."""
    import torch

    plain = torch.UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        found = plain(storage, size)
        COUNTER.resized(storage)
        return found

    torch.UntypedStorage.resize_ = resize_
