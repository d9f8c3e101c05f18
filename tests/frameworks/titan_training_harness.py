"""Train as an exported ``plan.py`` says, in CPU processes, through the real torchtitan. Runs in ``.venvs/torchtitan``.

Reads one JSON case per line, ``{"folder": ..., "argv": [...], "world": N, "steps": N}``, and answers each with losses
and norms of its steps. The file goes through torchtitan's own manager into its own ``Trainer``, which joins the
processes (gloo), builds meshes, splits and shards the model, and trains. What is not as on GPUs: the widths of the
registered models and the samples, which are small and drawn from a seed; fp32 in place of bf16, so that losses can be
compared to the last digits; torch's attention in place of FlexAttention, which has no backward pass on CPUs; nothing
compiled or captured.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import time
import types
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ranks import run_ranks
from torchtitan_harness import load

VOCABULARY, WIDTH, HEAD = 96, 32, 8


def small() -> None:
    """Give the registered models small widths; their layers, by which plans split them, stay as many."""
    from torchtitan.models import llama3, qwen3

    shared: dict[str, Any] = {"dim": WIDTH, "n_heads": 4, "n_kv_heads": 2, "fuse_qkv": True}

    def parts(family: Any) -> dict[str, Any]:
        made = family.Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=WIDTH, param_init=family._EMBEDDING_INIT
        )
        head = family.Linear.Config(in_features=WIDTH, out_features=VOCABULARY, param_init=family._LINEAR_INIT)
        norm = family.RMSNorm.Config(normalized_shape=WIDTH, param_init=family._NORM_INIT)
        return {"dim": WIDTH, "vocab_size": VOCABULARY, "tok_embeddings": made, "lm_head": head, "norm": norm}

    def llama(attn_backend: str, **_: Any) -> Any:
        rope = llama3.ComplexRoPE.Config(dim=HEAD, max_seq_len=64, theta=500000, scaling="llama")
        layers = llama3._build_llama3_layers(n_layers=32, hidden_dim=64, rope=rope, attn_backend=attn_backend, **shared)
        return llama3.Llama3Model.Config(layers=layers, **parts(llama3))

    def routed(attn_backend: str, **_: Any) -> Any:
        rope = qwen3.CosSinRoPE.Config(dim=HEAD, max_seq_len=64, theta=1000000.0)
        layers = qwen3._build_qwen3_moe_layers(
            n_layers=48, head_dim=HEAD, moe_hidden_dim=16, num_experts=4, top_k=2, rope=rope,
            attn_backend=attn_backend, moe_comm_backend="standard", **shared,
        )  # fmt: skip
        return qwen3.Qwen3Model.Config(layers=layers, **parts(qwen3))

    llama3.llama3_configs["8B"] = llama
    qwen3.qwen3_configs["30B-A3B"] = routed


def on_cpu() -> None:
    """Lend the CPU what torchtitan asks a device, which is all about memory and names."""
    import torch

    device = torch.cpu
    device.get_device_name = lambda _=None: "CPU"
    device.get_device_properties = lambda _=None: types.SimpleNamespace(total_memory=1 << 34)
    device.memory_stats = lambda _=None: {}
    device.reset_peak_memory_stats = device.empty_cache = lambda: None
    from torchtitan import trainer
    from torchtitan.distributed import utils
    from torchtitan.models.common import moe

    utils.set_pg_timeouts = lambda **_: None  # gloo has no timeouts to set
    trainer.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)

    def products(_: Any, *, A: Any, B_t: Any, offs: Any) -> Any:  # torchtitan's names
        ends = [0, *offs.tolist()]
        each = [A[start:end].float() @ B_t[expert].float() for expert, (start, end) in enumerate(pairwise(ends))]
        return torch.cat([*each, A.new_zeros(len(A) - ends[-1], B_t.shape[-1], dtype=torch.float32)])

    moe.GroupedExperts._grouped_mm = products  # torch's takes bf16 alone, which not every CPU has


def prepared(config: Any, steps: int, dump: str) -> Any:
    """A configuration, for a few steps on a CPU and on samples of ours."""
    import torch
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention

    class Samples(BaseDataLoader):
        """The same samples in the same steps, however many replicas share them."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, *, dp_world_size: int, dp_rank: int, local_batch_size: int, seq_len: int,
                     **_: Any) -> None:  # fmt: skip
            self.replicas, self.replica, self.samples, self.seq = dp_world_size, dp_rank, local_batch_size, seq_len

        def __iter__(self) -> Iterator[Any]:
            number = self.replica * self.samples
            while True:
                rows = []
                for sample in range(number, number + self.samples):
                    source = torch.Generator().manual_seed(sample)
                    start = int(torch.randint(VOCABULARY, (1,), generator=source))
                    rows.append((start + 7 * torch.arange(self.seq + 1) ** 2 // 3) % VOCABULARY)
                tokens = torch.stack(rows)
                yield {"input": tokens[:, :-1]}, tokens[:, 1:].contiguous()
                number += self.samples * self.replicas

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            del state_dict

    class Nothing(BaseTokenizer):
        """No words: samples are numbers already."""

        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()

        encode = decode = get_vocab_size = lambda self, *_, **__: []

    config.dataloader, config.tokenizer = Samples.Config(), Nothing.Config()
    config.training.steps, config.dump_folder = steps, dump
    config.training.mixed_precision_param, config.training.disable_cuda_graphs = "float32", True
    config.compile.enable = config.checkpoint.enable = config.validator.enable = False
    config.profiler.enable_profiling = config.metrics.enable_tensorboard = False
    config.metrics.log_freq = 1
    config.lr_scheduler.warmup_steps = 0
    for layer in config.model_spec.model.layers:
        if isinstance(layer.attention.inner_attention, FlexAttention.Config):
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def same_weights(parts: list[Any]) -> None:
    """Fill what a rank holds from whole weights that depend on their names alone."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    for part in parts:
        for told, parameter in part.named_parameters():
            name = told.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
            source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            whole = torch.randn(parameter.shape, generator=source)
            whole = whole * (0.5 * parameter.shape[-1] ** -0.5) if parameter.dim() > 1 else 1 + 0.1 * whole
            if isinstance(parameter, DTensor):
                whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            with torch.no_grad():
                parameter.copy_(whole)


def rank(case: dict[str, Any]) -> dict[str, Any]:
    """One rank of a case."""
    import torch
    from torchtitan.config.manager import ConfigManager
    from torchtitan.trainer import Trainer

    sys.path.insert(0, case["folder"])
    with tempfile.TemporaryDirectory() as dump:
        config = prepared(ConfigManager().parse_args(case["argv"]), case["steps"], dump)
        trainer: Trainer = config.build()
        same_weights(trainer.model_parts)
        for part in trainer.model_parts:
            for module in part.modules():
                if hasattr(module, "set_force_sum_reduction_for_comms"):
                    module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
        steps: list[tuple[float, float]] = []
        trainer.metrics_processor.log = lambda _, loss, __, norm, **___: steps.append((float(loss), float(norm)))
        trainer.train()
        torch.distributed.barrier()
    parts = [len(part.layers) for part in trainer.model_parts]
    loss, norm = ([step[place] for step in steps] for place in (0, 1))
    return {"loss": loss, "norm": norm, "parts": parts, "accumulation": trainer.gradient_accumulation_steps}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Run the ranks of a case to their end; what the last said, which has the loss of a pipeline."""
    last: dict[str, Any] = run_ranks(lambda: rank(case), case["world"])[-1]
    return last


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    said = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        load()
        small()
        on_cpu()
    from importlib.metadata import version

    import torch

    torch.set_num_threads(1)
    print(json.dumps({"torchtitan": version("torchtitan"), "torch": torch.__version__}), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
