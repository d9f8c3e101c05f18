"""Ask the real Megatron-LM, on a CPU, what it thinks of command lines. Runs in ``.venvs/megatron``.

Reads one JSON case per line, ``{"argv": [...], "env": {...}, "world": N, "ranks": [r, ...], "arch": 9}``, and answers
each with one line: the values Megatron derived, and the parameters of each rank it built on the meta device, or the
stage that refused and its words. Each case runs in a forked child, because Megatron's state is global.
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

NOTHING = {"accepted": False, "stage": "harness", "error": "the child died"}


class _Dummy(types.ModuleType):
    """Stands in for triton, which Megatron imports for kernels that are not run here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel()


class _Kernel:
    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: Any) -> Any:
        return self


def load() -> None:
    """Import Megatron; only its own modules see the stand-in for triton."""
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
        if name.partition(".")[0] == "triton" and str((scope or {}).get("__name__", "")).startswith("megatron"):
            return getattr(triton, name.partition(".")[2], triton) if fromlist else triton
        return real(name, scope, local, fromlist, level)

    builtins.__import__ = import_
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.models.gpt.gpt_model
    import megatron.training.arguments
    import megatron.training.training  # noqa: F401


def pretend(arch: int) -> None:
    """A GPU of some generation, with TransformerEngine installed."""
    import torch
    from megatron.core import utils
    from packaging.version import Version

    torch.cuda.get_device_capability = lambda *_: (arch, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=arch, minor=0)
    torch.cuda.current_device = lambda: torch.device("meta")
    torch.cuda.is_available = lambda: False
    torch.cuda.Stream = lambda *_, **__: None
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    utils._te_version = Version("2.14.0")
    make = torch.tensor

    def tensor(*data: Any, pin_memory: bool = False, **options: Any) -> Any:
        del pin_memory  # there is no device to pin for
        return make(*data, **options)

    torch.tensor = tensor
    _widen_attention()
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils

    def unused(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fused kernel was called")

    rope_utils.fused_apply_rotary_pos_emb = unused
    _bring_fused_adam()
    for name in vars(moe_utils).copy():
        if name.startswith("fused_") and vars(moe_utils)[name] is None:
            setattr(moe_utils, name, unused)


def _bring_fused_adam() -> None:
    """TransformerEngine's optimizer, which is looked for and not used."""
    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers")
    for name in names:
        sys.modules.setdefault(name, types.ModuleType(name))

    class FusedAdam:
        def __init__(
            self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
        ) -> None: ...

    sys.modules[names[-1]].FusedAdam = FusedAdam


def _widen_attention() -> None:
    """Latent attention gives its core the widths of keys and values, which the unfused core has no weights for."""
    from megatron.core.transformer.dot_product_attention import (
        DotProductAttention,
    )

    real = DotProductAttention.__init__

    def narrow(self: Any, *arguments: Any, k_channels: Any = None, v_channels: Any = None, **options: Any) -> None:
        real(self, *arguments, **options)

    DotProductAttention.__init__ = narrow


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """Take one command line through every check, up to the model of each rank asked for."""
    os.environ.update(case.get("env", {}))
    os.environ.update(WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *case["argv"]]
    pretend(case.get("arch", 9))
    stage = ["parse_args"]
    try:
        return {"accepted": True, **_check(case, stage)}
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {error}" if not isinstance(error, SystemExit) else _last_words()
        return {"accepted": False, "stage": stage[0], "error": words[:600]}


def _last_words() -> str:
    text = sys.stderr.getvalue() if isinstance(sys.stderr, io.StringIO) else ""
    return text.strip().splitlines()[-1] if text.strip() else "exit"


def _check(case: dict[str, Any], stage: list[str]) -> dict[str, Any]:
    from megatron.core.num_microbatches_calculator import (
        get_num_microbatches,
        init_num_microbatches_calculator,
    )
    from megatron.training.arguments import (
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )
    from megatron.training.training import get_megatron_optimizer_config

    args = parse_args()
    stage[0] = "validate_args"
    args = validate_args(args, {"tokenizer_type": "NullTokenizer"}) or args
    stage[0] = "transformer_config"
    config = core_transformer_config_from_args(args)
    stage[0] = "optimizer_config"
    optimizer = get_megatron_optimizer_config(args)[0]
    stage[0] = "microbatches"
    init_num_microbatches_calculator(
        0, args.rampup_batch_size, args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False
    )
    microbatches = get_num_microbatches()
    stage[0] = "schedule"
    _check_schedule(config, microbatches)
    ranks = {}
    for rank in case.get("ranks") or [0]:
        stage[0] = "process_groups"
        _join(args, rank, case["world"])
        stage[0] = "model"
        if case.get("ranks"):
            ranks[str(rank)] = _build(args, config)
    return {
        "dp": args.data_parallel_size,
        "vpp": args.virtual_pipeline_model_parallel_size or 1,
        "microbatches": microbatches,
        "optimizer": args.optimizer,
        "distributed_optimizer": bool(args.use_distributed_optimizer),
        "ranks": ranks,
        "forward": _forward(args, config),
        "words": _words(args, config, optimizer),
    }


def _words(args: Any, config: Any, optimizer: Any) -> dict[str, Any]:
    """What became of dispatcher, graphs, widths and offload."""
    return {
        "dispatch": config.moe_token_dispatcher_type if args.num_experts else None,
        "backend": config.moe_flex_dispatcher_backend if config.moe_token_dispatcher_type == "flex" else None,
        "overlap_ep": config.overlap_moe_expert_parallel_comm,
        "graphs": config.cuda_graph_impl,
        "captured": [module.name for module in config.cuda_graph_modules],
        "modules": config.recompute_modules if config.recompute_granularity == "selective" else [],
        "moments": str(optimizer.exp_avg_dtype).removeprefix("torch."),
        "aware": optimizer.use_precision_aware_optimizer,
        "offload_layers": config.cpu_offloading_num_layers if config.cpu_offloading else 0,
        "fp8": [config.fp8, config.fp8_recipe] if config.fp8 else None,
        "fp4": [config.fp4, config.fp4_recipe] if config.fp4 else None,
        "params": bool(config.fp8_param),
        "grads": "bf16" if args.grad_reduce_in_bf16 else "fp32",
        "instances": args.num_distributed_optimizer_instances,
        "mtp": config.mtp_num_layers,
        "meta": config.init_model_with_meta_device,
        "experts_room": config.moe_expert_rank_capacity_factor,
        "experts_fused": config.use_transformer_engine_op_fuser and config.moe_paged_stash,
    }


def _forward(args: Any, config: Any) -> dict[str, Any]:
    """What Megatron will do beyond the shape, from the configuration it made itself."""
    latent = args.multi_latent_attention
    yarn = {
        "factor": config.rotary_scaling_factor if latent else getattr(config, "yarn_rotary_scaling_factor", 1.0),
        "mscale_all_dim": config.mscale_all_dim if latent else getattr(config, "yarn_mscale_all_dim", 0.0),
        "beta_fast": config.beta_fast if latent else getattr(config, "yarn_beta_fast", 32.0),
    }
    experts = {
        "score": config.moe_router_score_function,
        "pre_softmax": config.moe_router_pre_softmax,
        "weight_scale": config.moe_router_topk_scaling_factor or 1.0,
        "groups": config.moe_router_num_groups or 1,
        "groups_kept": config.moe_router_group_topk or 1,
        "balance_bias": config.moe_router_enable_expert_bias,
    }
    return {
        "positions": args.position_embedding_type,
        "base": args.rotary_base,
        "fraction": args.rotary_percent,
        "llama3": args.use_rope_scaling,
        "yarn": yarn,
        "epsilon": config.layernorm_epsilon,
        "activation": config.activation_func.__name__,
        "gated": config.gated_linear_unit,
        "clamp": config.activation_func_clamp_value,
        "experts": experts if args.num_experts else None,
    }


def _check_schedule(config: Any, microbatches: int) -> None:
    """What ``forward_backward_pipelining_with_interleaving`` checks of its group size before the first step."""
    pp, vpp = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size
    if pp > 1 and vpp is not None:
        group = config.microbatch_group_size_per_vp_stage
        if not pp <= group <= microbatches:
            raise ValueError(f"group size {group} must lie between pp={pp} and {microbatches} micro-batches")
        if microbatches % group and microbatches % group < pp:
            raise ValueError(f"{microbatches} micro-batches leave a group shorter than pp={pp}")


def _join(args: Any, rank: int, world: int) -> None:
    import torch
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        args.virtual_pipeline_model_parallel_size,
        use_sharp=args.use_sharp,
        context_parallel_size=args.context_parallel_size,
        hierarchical_context_parallel_sizes=args.hierarchical_context_parallel_sizes,
        expert_model_parallel_size=args.expert_model_parallel_size,
        num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        order="tp-cp-ep-dp-pp" if not args.use_tp_pp_dp_mapping else "tp-cp-ep-pp-dp",
        create_gloo_process_groups=False,
    )


def _build(args: Any, config: Any) -> dict[str, Any]:
    """The chunks of the current rank. Layers are the unfused ones: same weights, no TransformerEngine needed."""
    import copy

    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
    )
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.training.vocab_utils import calculate_padded_vocab_size

    plain = copy.copy(config)
    plain.sequence_parallel, plain.context_parallel_size, plain.fp8, plain.tp_comm_overlap = False, 1, None, False
    plain.moe_token_dispatcher_type, plain.overlap_moe_expert_parallel_comm = "alltoall", False
    plain.cuda_graph_impl, plain.cpu_offloading, plain.fp4, plain.mtp_num_layers = "none", False, None, None
    plain.transformer_impl, plain.moe_grouped_gemm, plain.gradient_accumulation_fusion = "local", False, False
    plain.moe_permute_fusion, plain.persist_layer_norm, plain.perform_initialization = False, False, False
    plain.apply_rope_fusion, plain.use_cpu_initialization, plain.softmax_type = False, False, config.softmax_type
    vocab = calculate_padded_vocab_size(
        args.vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size, False
    )
    chunks = []
    pp, rank = args.pipeline_model_parallel_size, parallel_state.get_pipeline_model_parallel_rank()
    vpp = args.virtual_pipeline_model_parallel_size
    with torch.device("meta"):
        for chunk in range(vpp or 1):
            at = {"vp_stage": chunk if vpp else None}
            first, last = rank == 0 and chunk == 0, rank == pp - 1 and chunk == (vpp or 1) - 1
            spec = get_gpt_decoder_block_spec(
                plain, use_transformer_engine=False, normalization=plain.normalization, **at
            )
            model = GPTModel(
                config=plain,
                transformer_layer_spec=spec,
                vocab_size=vocab,
                max_sequence_length=args.max_position_embeddings,
                pre_process=first,
                post_process=last,
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                position_embedding_type=args.position_embedding_type,
                rotary_percent=args.rotary_percent,
                rotary_base=args.rotary_base,
                rope_scaling=args.use_rope_scaling,
                **at,
            )
            chunks.append(
                {
                    "layers": len(model.decoder.layers),
                    "parameters": _count(model, args.tensor_model_parallel_size),
                }
            )
    return {"pipeline_rank": rank, "chunks": chunks}


def _count(model: Any, tp: int) -> int:
    """Parameters of a chunk. TransformerEngine's layers keep the low-rank down-projections whole on every rank
    (``parallel_mode="duplicated"``), where the unfused ones built here split them.
    """
    return sum(parameter.numel() * (tp if "_down_proj." in name else 1) for name, parameter in model.named_parameters())


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        verdict = dict(NOTHING)
        with contextlib.suppress(BaseException):
            verdict = judge(case)
        with os.fdopen(writer, "w") as pipe:
            json.dump(verdict, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text) if text else dict(NOTHING)
    return found


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    said = sys.stdout
    sys.stdout = sys.stderr  # importing may print
    load()
    import torch
    from megatron.core import __version__

    torch.set_num_threads(1)
    print(json.dumps({"megatron-core": __version__, "torch": torch.__version__}), file=said, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
