"""Ask the real torchtitan, on a CPU, what it makes of an exported ``plan.py``. Runs in ``.venvs/torchtitan``.

Reads one JSON case per line, ``{"folder": ..., "argv": [...], "world": N, "ranks": [r, ...]}``: the configuration goes
through torchtitan's own manager, its parallel dimensions and its model, split and sharded on the meta device.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import logging
import os
import sys
import types
import typing
import warnings
from typing import Any


class _Anything:
    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (object,)


class _Dummy(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def load() -> None:
    """Import torchtitan on a CPU; only its own modules see the stand-in for triton."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override
    import torch
    import torch._dynamo

    real, triton = builtins.__import__, _Dummy("triton")
    triton.__version__ = "3.6.0"
    for part in ("language", "testing"):
        setattr(triton, part, _Dummy(f"triton.{part}"))

    def import_(name: str, scope: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.partition(".")[0] == "triton" and str((scope or {}).get("__name__", "")).startswith("torchtitan"):
            return getattr(triton, name.partition(".")[2], triton) if fromlist else triton
        return real(name, scope, local, fromlist, level)

    builtins.__import__ = import_
    torch._utils._get_available_device_type = lambda: "cpu"
    import torchtitan.trainer  # noqa: F401

    lend_micro_batches()


def lend_micro_batches() -> None:
    """Let pipelines be given their micro-batches one by one, as torch's can from 2.14 on and torchtitan 0.3 wants."""
    from inspect import signature

    from torch.distributed.pipelining import schedules

    if "arg_mbs" in signature(schedules.PipelineScheduleSingle.step).parameters:
        return

    def step(self: Any, *, arg_mbs: Any = None, kwarg_mbs: Any = None, target_mbs: Any = None, losses: Any = None,
             return_outputs: bool = True, loss_kwargs: Any = None) -> None:  # fmt: skip
        for stage in self._stages if hasattr(self, "_stages") else [self._stage]:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)

    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        kind.step = step


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """Take one configuration through every check."""
    stage = ["config"]
    os.environ.update(case.get("env", {}))
    from torchtitan.components.quantization import float8, mx

    arch = case.get("arch", 9)
    float8.has_cuda_capability = mx.has_cuda_capability = lambda major, minor: (arch, 0) >= (major, minor)
    try:
        sys.path.insert(0, case["folder"])
        return {"accepted": True, **_check(case, stage)}
    except (Exception, SystemExit) as error:
        return {"accepted": False, "stage": stage[0], "error": f"{type(error).__name__}: {error}"[:800]}


def _check(case: dict[str, Any], stage: list[str]) -> dict[str, Any]:
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims

    config = ConfigManager().parse_args(case["argv"])
    told, ranks = repr(config.model_spec.model), {}
    for rank in case["ranks"]:
        stage[0] = "parallel_dims"
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(case["world"]))
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=case["world"])
        dims = ParallelDims.from_config(config.parallelism, case["world"])
        dims.build_mesh()
        stage[0] = "model"
        ranks[str(rank)] = _build(config, dims)
    names = ("Float8Linear", "Float8Grouped", "MXFP8Linear", "MXFP8Grouped")
    quantised = {name: told.count(name) for name in names if name in told}
    kept = config.checkpoint
    batch = config.training.local_batch_size * dims.dp_replicate * dims.dp_shard
    if config.training.global_batch_size % batch:
        raise ValueError(f"global batch {config.training.global_batch_size} is no multiple of {batch}")
    return {
        "quantised": quantised,
        "dp": dims.dp_replicate * dims.dp_shard,
        "accumulation": config.training.global_batch_size // batch,
        "ranks": ranks,
        "rope": _rope(config),
        "starts_from": [kept.initial_load_path, kept.enable, kept.initial_load_in_hf],
    }


def _rope(config: Any) -> dict[str, Any]:
    """Rotary positions of every layer, which must agree."""
    each = [layer.attention.rope for layer in config.model_spec.model.layers]
    names = ("theta", "scaling", "scaling_factor", "rope_factor", "beta_fast", "truncate")
    found = [{name: getattr(rope, name) for name in names} for rope in each]
    if any(other != found[0] for other in found):
        raise ValueError("layers differ in their rotary positions")
    return found[0]


def _build(config: Any, dims: Any) -> dict[str, Any]:
    import torch

    model_config = config.model_spec.model
    if hasattr(model_config, "update_from_config"):
        model_config.update_from_config(config=config)
    with torch.device("meta"):
        model = model_config.build()
    whole = sum(parameter.numel() for parameter in model.parameters())
    shared = {
        "parallel_dims": dims,
        "training": config.training,
        "parallelism": config.parallelism,
        "compile_config": config.compile,
        "ac_config": config.activation_checkpoint,
        "dump_folder": config.dump_folder,
    }
    if dims.pp > 1:
        _, parts, _, _ = config.model_spec.pipelining_fn(
            model,
            device=torch.device("cpu"),
            model_config=model_config,
            parallelize_fn=config.model_spec.parallelize_fn,
            loss_fn=lambda *_: None,
            **shared,
        )
    else:
        parts = [config.model_spec.parallelize_fn(model, **shared)]
    return {
        "whole": whole,
        "layers": [len(part.layers) for part in parts],
        "parameters": sum(_local(parameter) for part in parts for parameter in part.parameters()),
    }


def _local(parameter: Any) -> int:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return int(local.numel())


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        verdict: dict[str, Any] = {"accepted": False, "stage": "harness", "error": "the child died"}
        with contextlib.suppress(BaseException):
            verdict = judge(case)
        with os.fdopen(writer, "w") as pipe:
            json.dump(verdict, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    said = sys.stdout
    sys.stdout = sys.stderr
    load()
    from importlib.metadata import version

    import torch

    torch.set_num_threads(1)
    print(json.dumps({"torchtitan": version("torchtitan"), "torch": torch.__version__}), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
