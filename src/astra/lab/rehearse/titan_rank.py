# Torchtitan is imported where it is used: only a measurement may need it.
# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Rehearse one rank of torchtitan's own models: its layers, tensor parallelism by DTensor, compilation and FSDP2.

Written for torchtitan 0.2.2, as run with torch 2.11; 0.3 was not tried. Model and wrapping are its own
(``parallelize_llama``, ``parallelize_qwen3``), so are the loss and the float8 products where a case asks for them. Its
data sets, tokenizers and loggers are never reached and need not be installed.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from astra.lab.rehearse import fabric, fsdp_rank, torch_run
from astra.lab.rehearse.case import Case
from astra.spec.model import ModelSpec

_THETA: Final = 500000.0
_REPLACED: Final[list[Any]] = []  # libraries of operators: torch takes their kernels back when they die
# Data, tokenizers and checks, which no rank here reaches, and what its command line is made of.
_UNUSED: Final = (
    "torchtitan.components.dataloader",
    "torchtitan.components.metrics",
    "torchtitan.components.tokenizer",
    "torchtitan.components.validate",
    "torchtitan.hf_datasets.text_datasets",
    "tyro",
)


class TitanRank(fsdp_rank.FsdpRank):
    """A whole model on the ranks of one tensor-parallel group, sharded over replicas."""

    def build(self) -> Any:
        """Torchtitan's own model of this shape, wrapped by torchtitan's own function."""
        from torchtitan.components.loss import build_cross_entropy_loss
        from torchtitan.distributed import parallel_dims

        parallel_dims.device_type = self.device
        torch, case, strategy = self.torch, self.case, self.case.strategy
        job, world = _job(case), strategy.tp * strategy.dp
        dims = parallel_dims.ParallelDims(
            dp_replicate=1, dp_shard=strategy.dp, cp=1, tp=strategy.tp, pp=1, ep=1, etp=1, world_size=world
        )
        with unset_fake_temporarily():  # a mesh is a tensor of numbers that are looked at
            dims.build_mesh()
        model_class, parallelize, arguments = _model(case.model, case.seq)
        with torch.device("meta"):
            model = model_class(arguments)
        self.params = sum(parameter.numel() for parameter in model.parameters()) // strategy.tp
        self.loss = build_cross_entropy_loss(job)
        if case.precision != "bf16":
            from torchtitan.components.quantization.float8 import Float8LinearConverter

            Float8LinearConverter(job, dims).convert(model)
        return parallelize(model, dims, job)

    def make_tables(self) -> None:
        """Rotary positions, which a meta device has left without values."""
        name = "freqs_cis" if hasattr(self.stage, "freqs_cis") else "rope_cache"
        make = getattr(self.stage, f"_precompute_{name}")
        setattr(self.stage, name, make().to(self.device))

    def forward(self) -> Any:
        """The loss, of logits that stay spread over the tensor-parallel ranks."""
        with self.spread():
            return self.loss(self.stage(self.tokens), self.labels) / self.tokens.numel()

    def backward(self, from_here: Any, *, last: bool) -> None:
        """Of one micro-batch."""
        with self.spread():
            from_here.backward()

    def spread(self) -> Any:
        """Torch's context for a loss of such logits."""
        from torch.distributed.tensor.parallel import loss_parallel

        return loss_parallel() if self.case.strategy.tp > 1 else contextlib.nullcontext()


def _job(case: Case) -> Any:
    from torchtitan.config import JobConfig

    job = JobConfig()
    job.training.seq_len, job.training.local_batch_size = case.seq, case.strategy.mbs
    job.compile.enable = case.compiled
    job.activation_checkpoint.mode = "full" if case.strategy.recompute == "full" else "none"
    if case.precision != "bf16":
        job.model.converters, job.quantize.linear.float8.recipe_name = ["float8"], "rowwise"
        job.quantize.linear.float8.filter_fqns = ["output"]
    again = case.strategy.zero == 3 and case.strategy.reshard == "always"
    job.parallelism.fsdp_reshard_after_forward = "always" if again else "never"
    return job


def _model(model: ModelSpec, seq: int) -> tuple[Any, Any, Any]:
    """Class, wrapping function and arguments of the family that has such layers."""
    shape = {"dim": model.hidden, "n_layers": model.layers, "n_heads": model.heads, "n_kv_heads": model.kv_heads,
             "vocab_size": model.vocab, "rope_theta": _THETA, "max_seq_len": seq}  # fmt: skip
    if model.qk_norm == "per_head":
        qwen3 = importlib.import_module("torchtitan.models.qwen3")
        args = importlib.import_module("torchtitan.models.qwen3.model.args")
        tied = {"enable_weight_tying": model.tied_embeddings}
        shape |= {"head_dim": model.head_dim, "hidden_dim": model.ffn, **tied}
        return qwen3.Qwen3Model, qwen3.parallelize_qwen3, args.Qwen3ModelArgs(**shape)
    llama3 = importlib.import_module("torchtitan.models.llama3")
    # its width is rounded up to a multiple of the one that is wanted
    shape |= {"multiple_of": model.ffn, "ffn_dim_multiplier": 0.1}
    return llama3.Transformer, llama3.parallelize_llama, llama3.TransformerModelArgs(**shape)


def install() -> None:
    """Stand-ins for what torchtitan imports and a rank never reaches, and collectives that DTensor issues."""
    for name in _UNUSED:
        sys.modules[name] = _Absent(name)
    _functional_collectives()


class _Whatever(type):
    """Has whatever is asked of it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return cls


class _Anything(metaclass=_Whatever):
    """Of a module that is not imported: a class, a function or a value."""


class _Absent(types.ModuleType):
    """A module that is not imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


def _functional_collectives() -> None:
    """What DTensor issues, with data that looks like data: see ``fabric``."""

    def gathered(x: Any, size: int, _: str) -> Any:
        whole = x.new_empty(x.shape[0] * size, *x.shape[1:])
        return _filled(whole, x.reshape(1, -1), (size, -1))

    def scattered(x: Any, op: str, size: int, _: str) -> Any:
        part = x.new_empty(x.shape[0] // size, *x.shape[1:])
        return _filled(part, x.reshape(-1)[: part.numel()], (-1,))

    def reduced(x: Any, *_: Any) -> Any:
        return _filled(torch.empty_like(x), x, x.shape)

    library = torch.library.Library("_c10d_functional", "IMPL")
    for key in ("CUDA", "CPU"):
        library.impl("all_gather_into_tensor", gathered, key)
        library.impl("reduce_scatter_tensor", scattered, key)
        library.impl("all_reduce", reduced, key)
    _REPLACED.append(library)


def _filled(into: Any, source: Any, shape: tuple[int, ...]) -> Any:
    into.view(shape).copy_(source)
    fabric.FABRIC.note("copy", into.numel() * into.element_size())
    return into


def world_of(case: Case) -> int:
    """Tensor-parallel ranks times those that shard a model."""
    return case.strategy.tp * case.strategy.dp


def main() -> int:
    """Answer the cases on standard input."""
    install()
    return torch_run.answer(TitanRank, world_of)


if __name__ == "__main__":
    sys.exit(main())
