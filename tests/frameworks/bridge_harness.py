"""Ask the real Megatron-Bridge, on a CPU, what a recipe with an exported plan on top is. Runs in ``.venvs/bridge``.

Reads one JSON case per line, ``{"files": {...}, "recipe": name or null, "config": {...}, "world": N, "env": {...}}``,
runs ``plan()`` of the exported ``train.py`` and what Megatron-Bridge does before it builds a model
(``runtime_config_update``), and answers with the values it will train with. ``recipe`` takes the place of the one the
file names; models are built from the given Hugging Face configuration, since nothing can be downloaded. Packages that
only run on a GPU are stand-ins: no kernel is called. ``{"list": [module, ...]}`` answers the recipes of those modules
and the models they ask for, ``{"names": [name, ...]}`` those of them that are no recipes of its package.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import importlib
import importlib.machinery
import io
import json
import logging
import os
import re
import sys
import tempfile
import types
import typing
import warnings
from pathlib import Path
from typing import Any

STAND_INS = frozenset(
    ("PIL", "causal_conv1d", "datasets", "diffusers", "google", "mamba_ssm", "modelopt", "multistorageclient",
     "nvidia_resiliency_ext", "tensorboard", "transformer_engine", "transformer_engine_torch", "triton", "wandb")
)  # fmt: skip
KEYS = re.compile(r"^([a-z_]+)\.([a-z0-9_]+)=", re.MULTILINE)


class _Kind(abc.ABCMeta):
    """A class of which nothing is known: it can be inherited from, decorate, and stand in annotations."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        decorates = len(given) == 1 and not named and isinstance(given[0], types.FunctionType)
        return given[0] if decorates else super().__call__(*given, **named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _kind(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:
        return Any

    __ror__ = __or__


class _Thing:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        return self


def _kind(name: str) -> Any:
    return _Kind(name, (_Thing,), {"__module__": "stand_in"})


class _Module(types.ModuleType):
    __version__ = "2.14.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _kind(name))
        return self.__dict__[name]


class _Finder:
    """Finds the stand-ins."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in STAND_INS or name.startswith("megatron.energon"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> Any:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        pass


def load() -> None:
    """Import Megatron-Bridge; torch first, which must not see the stand-ins."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override
    import torch
    import torch._dynamo
    import torch._inductor.compile_fx
    import transformers  # noqa: F401

    torch.cuda.get_device_capability = lambda *_: (9, 0)
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
    import megatron.bridge
    import megatron.bridge.perf_recipes
    import megatron.bridge.recipes
    import megatron.bridge.training.finetune
    import megatron.bridge.training.gpt_step
    import megatron.bridge.training.pretrain
    import megatron.bridge.training.utils.omegaconf_utils  # noqa: F401


class FusedAdam:
    """TransformerEngine's optimizer, whose parameters are looked at."""

    def __init__(
        self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
    ) -> None: ...


def pretend(arch: int) -> None:
    """A GPU of some generation."""
    import torch
    import transformer_engine.pytorch.optimizers

    transformer_engine.pytorch.optimizers.FusedAdam = FusedAdam
    torch.cuda.get_device_capability = lambda *_: (arch, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(
        major=arch, minor=0, multi_processor_count=132, name="B200" if arch == 10 else "H100", total_memory=8 << 34
    )


def bring(config: dict[str, Any] | None, asked: list[str]) -> None:
    """Answer every wish for a model on the hub with the given configuration."""
    import torch
    from megatron.bridge import AutoBridge
    from transformers import AutoConfig

    def from_hub(name: str, *_: Any, **__: Any) -> Any:
        asked.append(str(name))
        if config is None:
            raise LookupError(name)
        known = AutoConfig.for_model(config["model_type"], **{k: v for k, v in config.items() if k != "model_type"})
        known.dtype = torch.bfloat16
        return AutoBridge.from_hf_config(known)

    AutoBridge.from_hf_pretrained = from_hub


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """One recipe with one plan on top."""
    if "list" in case:
        return _listed(case["list"])
    if "names" in case:
        there = importlib.import_module("megatron.bridge.recipes")
        return {"absent": [name for name in case["names"] if not callable(getattr(there, name, None))]}
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case.get("env", {}))
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    pretend(case.get("arch", 9))
    bring(case["config"], [])
    try:
        return {"accepted": True, **_configure(case)}
    except (Exception, SystemExit) as error:
        return {"accepted": False, "error": f"{type(error).__name__}: {error}"[:900]}


def _configure(case: dict[str, Any]) -> dict[str, Any]:
    from megatron.bridge.training.config import runtime_config_update

    files = case["files"]
    text = files["train.py"]
    if case.get("recipe"):
        text = re.sub(
            r"from megatron\.bridge\.recipes import \w+", f"from {case['recipe'][0]} import {case['recipe'][1]}", text
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (files | {"train.py": text}).items():
            Path(folder, name).write_text(content, encoding="utf-8")
        scope: dict[str, Any] = {"__name__": "plan", "__file__": str(Path(folder, "train.py"))}
        sys.argv = ["train.py", *case.get("more", [])]
        exec(compile(text, "train.py", "exec"), scope)  # it is what the export starts
        config = scope["plan"]()
    runtime_config_update(config)
    found = {}
    for section, field in dict.fromkeys(KEYS.findall(files["overrides.txt"])):
        found[f"{section}.{field}"] = _plain(getattr(getattr(config, section), field))
    return {"values": found, **_derived(config)}


def _derived(config: Any) -> dict[str, Any]:
    """What the configuration comes to, beside what was set."""
    model = config.model
    return {
        "dp": config.data_parallel_size,
        "layers": model.num_layers,
        "vocab": model.vocab_size,
        "attention": str(model.attention_backend),
        "bf16": bool(model.bf16),
        "fp8": [model.fp8, model.fp8_recipe] if model.fp8 else None,
        "pipeline_dtype": str(model.pipeline_dtype),
        "peft": None if config.peft is None else type(config.peft).__name__,
        "pretrained": config.checkpoint.pretrained_checkpoint,
        "dataset": type(config.dataset).__name__,
        "chunks": _chunks(model),
    }


def _chunks(model: Any) -> list[list[int]]:
    """Layers of every chunk of every pipeline rank, as megatron-core reads the layout."""
    read, pp = model.pipeline_model_parallel_layout, model.pipeline_model_parallel_size
    vp = model.virtual_pipeline_model_parallel_size or 1
    if read is None:
        return [[model.num_layers // pp // vp] * vp for _ in range(pp)]
    return [[sum(unit.name == "decoder" for unit in stage) for stage in rank] for rank in read.layout]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return str(value)


def _listed(modules: list[str]) -> dict[str, Any]:
    """Recipes of modules, with the model each asks for first."""
    found = []
    for name in modules:
        module = importlib.import_module(name)
        for function in sorted(vars(module)):
            if function.startswith("_") or not function.endswith("_config") or not callable(vars(module)[function]):
                continue
            asked: list[str] = []
            bring(None, asked)
            with contextlib.suppress(Exception):
                vars(module)[function]()
            if asked:
                found.append([name, function, asked[0]])
    return {"recipes": found}


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a forked child: recipes and megatron-core keep global state."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        verdict: dict[str, Any] = {"accepted": False, "error": "the child died"}
        with contextlib.suppress(BaseException):
            verdict = judge(case)
        with os.fdopen(writer, "w") as pipe:
            json.dump(verdict, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text) if text else {"accepted": False, "error": "no answer"}
    return found


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    said = sys.stdout
    sys.stdout = sys.stderr  # importing may print
    load()
    logging.disable(logging.CRITICAL)
    import torch
    from megatron.bridge import __version__ as version
    from megatron.core import __version__

    torch.set_num_threads(1)
    versions = {"megatron-bridge": version, "megatron-core": __version__, "torch": torch.__version__}
    print(json.dumps(versions), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
