# Torch and megatron are imported where they are used: this runs where they are, Astra itself does not need them.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""What an exported Megatron-LM script starts, without a checkout of Megatron-LM and without TransformerEngine.

The script says ``torchrun ... $MEGATRON_DIR/pretrain_gpt.py FLAGS``; with ``MEGATRON_DIR`` set to this folder it starts
this file. Flags are parsed and validated by megatron-core's own ``megatron.training``, which also builds the model,
wraps it, makes the optimizer and runs the training loop. Two things differ from Megatron-LM's file of the same name.
Layers are megatron-core's local ones with torch's norms and attention, as a rehearsal runs them
(``astra.lab.rehearse.megatron_config``); kernels of TransformerEngine alone (grouped experts, overlapped tensor
parallelism) are off. Tokens are random, drawn by the number of the sample in the batch: any split of a batch trains on
the same ones, and every step on the same batch, whose loss must fall.

On a machine without a GPU it runs on the CPU over gloo. The first rank of the last stage prints one line of JSON: the
loss of every step, its seconds, and the most memory that was held.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

SOURCES: Final = Path(__file__).resolve().parents[2] / "src"
if str(SOURCES) not in sys.path:
    sys.path.insert(0, str(SOURCES))

from astra.lab.rehearse import cpu, megatron_config  # noqa: E402

# Later words win; they come after those of the exported script.
WITHOUT_ENGINE: Final = (
    "--transformer-impl", "local", "--attention-backend", "unfused", "--no-rope-fusion", "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--cuda-graph-impl", "none",
)  # fmt: skip
WITHOUT_GPU: Final = (
    "--distributed-backend", "gloo", "--no-check-for-nan-in-loss-and-grad", "--no-gradient-reduce-div-fusion",
)  # fmt: skip
Prepare = Callable[[list[Any]], None]


def without_memory_figures() -> None:
    """Nothing is held on a GPU that is not there."""
    import torch

    cuda: Any = torch.cuda
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *_, **__: 0)
    cuda.memory_stats = lambda *_, **__: {}


def splits_as_numbers() -> None:
    """Token counts go to the host as numbers only from a GPU; collectives here want them so too. After the import."""
    from megatron.core.transformer.moe import token_dispatcher

    def moved(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
        return tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = moved


def load() -> bool:
    """Import megatron, with stand-ins for CUDA where there is none; whether there is a GPU."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # some virtual machines announce AMX and do not have it
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch
    import torch._dynamo

    gpu: bool = torch.cuda.is_available()
    plain = torch.compile
    if not gpu:
        torch.set_num_threads(1)
        cpu.pretend_gpu()
        without_memory_figures()
        torch.compile = cpu.fused(lambda function, *args, **options: function(*args, **options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import megatron.core.models.gpt.gpt_layer_specs
        import megatron.core.models.gpt.gpt_model
        import megatron.training.arguments
        import megatron.training.initialize
        import megatron.training.training  # noqa: F401
    if not gpu:
        torch.compile = plain
        cpu.without_random_states()
        splits_as_numbers()
    megatron_config.without_fp8()
    return gpu


def main(argv: list[str], *, gpu: bool, prepare: Prepare | None = None) -> dict[str, Any] | None:
    """Train as the flags say; what was measured, on the rank that has the loss. ``prepare`` sees the bare model."""
    import contextlib

    sys.argv = ["pretrain_gpt.py", *argv, *WITHOUT_ENGINE, *(() if gpu else WITHOUT_GPU)]
    with contextlib.nullcontext() if gpu else cpu.redirect():
        return _train(gpu, prepare)


def _train(gpu: bool, prepare: Prepare | None) -> dict[str, Any] | None:
    import torch
    from megatron.core.enums import ModelType
    from megatron.core.utils import get_model_config
    from megatron.training import initialize, training
    from megatron.training.arguments import parse_args, validate_args
    from megatron.training.global_vars import set_global_variables
    from megatron.training.vocab_utils import calculate_padded_vocab_size

    args = parse_args()
    args = validate_args(args, {"tokenizer_type": "NullTokenizer"}) or args
    args.moe_grouped_gemm = args.moe_permute_fusion = args.tp_comm_overlap = False  # kernels of TransformerEngine
    args.use_cpu_initialization = not gpu
    args.padded_vocab_size = calculate_padded_vocab_size(
        args.vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size, False
    )
    set_global_variables(args, build_tokenizer=False)
    initialize._compile_dependencies = lambda: None  # of the real datasets
    initialize.initialize_megatron(allow_no_cuda=not gpu)
    kind = ModelType.encoder_or_decoder
    real = training.get_model
    training.get_model = _prepared(real, prepare) if prepare else real
    with megatron_config.fused_adam():
        model, optimizer, scheduler = training.setup_model_and_optimizer(kind, _provider(args, gpu))
    steps: list[tuple[float, float | None]] = []
    training.train_step = _recorded(training.train_step, steps, torch)
    training.train(
        forward_step, model, optimizer, scheduler, _batches(args, len(model)), None, None,
        get_model_config(model[0]), {}, None,
    )  # fmt: skip
    return _measured(args, steps, torch)


def _prepared(real: Callable[..., Any], prepare: Prepare) -> Callable[..., Any]:
    """``get_model`` that shows the chunks as they are, before they are wrapped: buffers copy their weights."""

    def get_model(provider: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        def provide(*arguments: Any, **words: Any) -> Any:
            chunk = provider(*arguments, **words)
            prepare([chunk])
            return chunk

        return real(provide, *rest, **options)

    return get_model


def _provider(args: Any, gpu: bool) -> Callable[..., Any]:
    """Megatron's ``model_provider``: a chunk of the model with local layers."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.training.arguments import core_transformer_config_from_args

    made = core_transformer_config_from_args(args)

    def provide(
        pre_process: bool = True, post_process: bool = True, vp_stage: int | None = None, config: Any = None, **_: Any
    ) -> Any:
        config = config or made
        block = get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
        )
        for layer in block.layer_specs:
            core = megatron_config.sdpa_attention("flash") if gpu else None
            megatron_config.with_torch_parts(layer, core, grouped=gpu)
        block.layer_norm = megatron_config.torch_norm
        return GPTModel(
            config=config,
            transformer_layer_spec=block,
            vocab_size=args.padded_vocab_size,
            max_sequence_length=args.max_position_embeddings,
            pre_process=pre_process,
            post_process=post_process,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type,
            rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base,
            rope_scaling=args.use_rope_scaling,
            vp_stage=vp_stage,
        )

    return provide


def _batches(args: Any, chunks: int) -> Any:
    """One iterator for each chunk; samples go to replicas in the order of Megatron's own sampler."""
    from megatron.core import parallel_state
    from megatron.core.rerun_state_machine import RerunDataIterator
    from megatron.training.datasets.data_samplers import MegatronPretrainingSampler

    def samples() -> Iterator[Any]:
        sampler = MegatronPretrainingSampler(
            total_samples=args.train_iters * args.global_batch_size,
            consumed_samples=0,
            micro_batch_size=args.micro_batch_size,
            data_parallel_rank=parallel_state.get_data_parallel_rank(),
            data_parallel_size=parallel_state.get_data_parallel_world_size(),
        )
        for numbers in sampler:
            yield _tokens([n % args.global_batch_size for n in numbers], args.seq_length, args.vocab_size)

    every = [RerunDataIterator(samples()) for _ in range(chunks)]
    return every if chunks > 1 else every[0]


def _tokens(numbers: list[int], seq: int, vocab: int) -> Any:
    """Tokens of the samples of these numbers, one more than are read: the last is a label."""
    import torch

    rows = []
    for number in numbers:
        source = torch.Generator().manual_seed(number)
        rows.append(torch.randint(vocab, (seq + 1,), generator=source))
    return torch.stack(rows)


def forward_step(batches: Iterator[Any], model: Any, *_: Any) -> tuple[Any, Callable[..., Any]]:
    """Megatron's ``forward_step_func``."""
    import torch

    tokens = next(batches).to("cuda")
    positions = torch.arange(tokens.shape[1] - 1, device=tokens.device).unsqueeze(0).expand(tokens.shape[0], -1)
    losses = model(tokens[:, :-1].contiguous(), positions, None, labels=tokens[:, 1:].contiguous())

    def loss(output: Any) -> Any:
        total, count = output.float().sum(), torch.tensor(output.numel(), dtype=torch.int, device=output.device)
        return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}

    return losses, loss


def _recorded(real: Callable[..., Any], steps: list[tuple[float, float | None]], torch: Any) -> Callable[..., Any]:
    """``train_step`` that notes seconds and loss."""

    def train_step(*arguments: Any, **options: Any) -> Any:
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = real(*arguments, **options)
        torch.cuda.synchronize()
        loss = found[0].get("lm loss")
        steps.append((time.perf_counter() - began, None if loss is None else float(loss)))
        return found

    return train_step


def _measured(args: Any, steps: list[tuple[float, float | None]], torch: Any) -> dict[str, Any] | None:
    from megatron.core import parallel_state

    here = parallel_state.get_data_parallel_rank() == parallel_state.get_tensor_model_parallel_rank() == 0
    if not here or steps[-1][1] is None:
        return None
    return {
        "loss": [loss for _, loss in steps],
        "step_s": [seconds for seconds, _ in steps],
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "world": args.world_size,
        "microbatches": args.global_batch_size // args.micro_batch_size // args.data_parallel_size,
    }


if __name__ == "__main__":
    measured = main(sys.argv[1:], gpu=load())
    if measured is not None:
        print(json.dumps(measured), flush=True)
    sys.stderr.flush()
    os._exit(0)  # threads of gloo that outlive the interpreter abort now and then
