"""Megatron-core on a machine without a GPU: what it asks of CUDA is answered by stand-ins.

The process is changed for good, so this is for a child process of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

_TYPES: Final = {"float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long"}


class _Stand:
    """Anything that may be called, entered, waited for or asked for an attribute, and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class _StandIn(types.ModuleType):
    """Stands in for triton, whose kernels are not run here."""

    __version__ = "3.6.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stand()


def pretend_gpu() -> None:
    """Answer for CUDA and triton. Call before megatron is imported."""
    if not hasattr(typing, "override"):  # before Python 3.12
        typing.override = lambda method: method  # type: ignore[attr-defined]
    import torch
    import torch._dynamo  # before triton is hidden from megatron

    _hide_triton()
    cuda: Any = torch.cuda
    stream = _Stand()
    for name in ("Stream", "Event"):
        setattr(cuda, name, _Stand)
    for name in ("synchronize", "set_device", "empty_cache", "manual_seed", "set_rng_state", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.current_stream = cuda.default_stream = lambda *_: stream
    cuda.stream = lambda *_: contextlib.nullcontext()
    cuda.current_device = lambda: torch.device("cpu")
    cuda.device_count = lambda: 1
    cuda.get_rng_state = lambda *_, **__: torch.empty(16, dtype=torch.uint8)
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    cuda.is_current_stream_capturing = lambda: False
    cuda.nvtx = _Stand()
    torch.Tensor.record_stream = lambda *_: None
    torch.nn.Module.cuda = torch.nn.Module.to = lambda module, *_, **__: module
    torch.nn.Module.bfloat16 = _to_bfloat16


def _to_bfloat16(module: Any) -> Any:
    """Tensors without data cannot change type in place, so parameters are replaced, marks and all."""
    import torch

    for part in module.modules():
        for name, old in part._parameters.items():
            if old is not None and old.dtype == torch.float32:
                new = torch.nn.Parameter(old.detach().to(torch.bfloat16), requires_grad=old.requires_grad)
                new.__dict__.update(old.__dict__)
                part._parameters[name] = new
    return module


def _hide_triton() -> None:
    """Megatron's own modules see a stand-in; torch must see that there is none."""
    real, triton = builtins.__import__, _StandIn("triton")

    def import_(name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.partition(".")[0] == "triton" and str((scope or {}).get("__name__", "")).startswith("megatron"):
            return _StandIn(name) if fromlist else triton
        return real(name, scope, local, fromlist, level)

    setattr(builtins, "__import__", import_)  # noqa: B010 - the types of builtins are stricter than Python


def without_random_states() -> None:
    """Megatron keeps generator states of the GPU; without numbers there is nothing to draw. Call after its import."""
    import sys

    class Tracker(_Stand):
        @contextlib.contextmanager
        def fork(self, *_: Any, **__: Any) -> Iterator[None]:
            yield

        def get_states(self) -> dict[str, Any]:
            return {}

        def is_initialized(self) -> bool:
            return True

    tracker = Tracker()
    stands: dict[str, Any] = {
        "get_cuda_rng_tracker": lambda *_, **__: tracker,
        "_get_all_rng_states": lambda *_: (None, None, None),
        "_set_all_rng_states": lambda *_: None,
        "model_parallel_cuda_manual_seed": lambda *_, **__: None,
    }
    for name, module in list(sys.modules.items()):  # each has imported these functions by name
        if name.startswith("megatron."):
            for function in stands.keys() & vars(module).keys():
                setattr(module, function, stands[function])


def redirect() -> Any:
    """A mode that makes tensors asked for on a GPU here, and lets those here pass for tensors on one."""
    import torch
    from torch.overrides import TorchFunctionMode

    def here(place: Any) -> Any:
        remote = isinstance(place, int) and not isinstance(place, bool)
        if remote or (isinstance(place, str | torch.device) and torch.device(place).type == "cuda"):
            return torch.device("cpu")
        return place

    def is_place(value: Any) -> bool:
        return isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))

    class Redirect(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if func is torch.device and args and str(args[0]).startswith("cuda"):
                return torch.device("cpu")
            if "device" in options:
                options["device"] = here(options["device"])
            if func is torch.Tensor.type and len(args) == 1 and not options:
                return f"torch.cuda.{_TYPES.get(str(args[0].dtype).partition('.')[2], 'Other')}Tensor"
            if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return args[0]
            if func is torch.Tensor.to:
                args = tuple(here(value) if is_place(value) else value for value in args)
            options.pop("pin_memory", None)
            return func(*args, **options)

    return Redirect()


def fused(count_only_results: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in for torch.compile: the function runs as it is, through ``count_only_results``."""

    def compile_(function: Any = None, **_: Any) -> Any:
        if function is None:
            return compile_

        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            return count_only_results(function, *arguments, **options)

        return run

    return compile_
