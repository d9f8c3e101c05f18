"""Layers that stand in for TransformerEngine's inside megatron-core."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


def without_fp8() -> None:
    """Recomputing a module asks TransformerEngine whether it is in fp8, even where there is none."""
    from megatron.core.tensor_parallel import random

    if random.HAVE_TE:
        return

    class NoFp8:
        @staticmethod
        def is_fp8_enabled() -> bool:
            return False

    random.FP8GlobalStateManager = NoFp8
    random.activation_recompute_forward = random.fp8_autocast = lambda **_: contextlib.nullcontext()


@contextlib.contextmanager
def fused_adam() -> Iterator[None]:
    """Torch's default Adam makes a temporary as large as the parameters; production runtimes use a fused one."""
    import torch

    plain = torch.optim.AdamW
    torch.optim.AdamW = functools.partial(plain, fused=True)
    try:
        yield
    finally:
        torch.optim.AdamW = plain


def with_torch_parts(layer: Any, core_attention: Any, *, grouped: bool) -> Any:
    """A local layer spec with torch's norms, this core attention (None: its own) and, if wanted, grouped experts."""
    from megatron.core.transformer.identity_op import IdentityOp

    parts = layer.submodules
    for owner, name in (
        (parts, "input_layernorm"), (parts, "pre_mlp_layernorm"), (parts.self_attention.submodules, "q_layernorm"),
        (parts.self_attention.submodules, "k_layernorm"), (parts.self_attention.submodules, "kv_layernorm"),
    ):  # fmt: skip
        if getattr(owner, name, None) not in (None, IdentityOp):
            setattr(owner, name, torch_norm)
    if core_attention is not None:
        parts.self_attention.submodules.core_attention = core_attention
    experts: Any = getattr(parts.mlp, "keywords", {}).get("submodules")
    if grouped and hasattr(experts, "experts") and grouped_mm() is not None:
        experts.experts = grouped_experts()
    return layer


def torch_norm(*, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """Torch's norm; its weights are marked so that sequence parallelism reduces their gradients."""
    import torch

    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


@functools.cache
def sdpa_attention(kernel: str) -> Any:
    """A core-attention class for the layer spec: causal SDPA with grouped queries, by one named kernel."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = SDPBackend.CUDNN_ATTENTION if kernel == "cudnn" else SDPBackend.FLASH_ATTENTION

    class SdpaAttention(torch.nn.Module):
        """Takes [s, b, heads, head dim], gives [s, b, hidden]."""

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()
            self.config = config

        def forward(self, query: Any, key: Any, value: Any, attention_mask: Any = None, **_: Any) -> Any:
            grouped = query.shape[2] != key.shape[2]
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            latent = query.shape[3] != value.shape[3]  # heads of different sizes: cuDNN alone has them
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if latent else backend):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
            return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)

    return SdpaAttention


def grouped_mm() -> Any:
    """Torch's grouped matrix product, or None where this torch has none."""
    import torch

    return getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


@functools.cache
def grouped_experts() -> Any:
    """An experts class for the MoE spec: all local experts in two grouped products."""
    import torch
    from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
    from megatron.core.transformer.module import MegatronModule

    product = grouped_mm()

    class GroupedExperts(MegatronModule):
        """Gated experts; weights are [experts, in, out]."""

        def __init__(self, num_local_experts: int, config: Any, **_: Any) -> None:
            super().__init__(config=config)
            hidden, ffn = config.hidden_size, config.moe_ffn_hidden_size
            self.again = config.recompute_granularity == "selective" and "moe_act" in config.recompute_modules
            self.fc1 = self._weight(num_local_experts, hidden, 2 * ffn)
            self.fc2 = self._weight(num_local_experts, ffn, hidden)

        def _weight(self, *size: int) -> Any:
            device = torch.cuda.current_device()
            weight = torch.nn.Parameter(torch.empty(size, dtype=self.config.params_dtype, device=device))
            torch.nn.init.normal_(weight, std=0.02)
            weight.allreduce = self.config.expert_model_parallel_size == 1
            return weight

        def forward(self, tokens: Any, tokens_per_expert: Any, probs: Any) -> Any:
            ends = tokens_per_expert.cumsum(0).to(device=tokens.device, dtype=torch.int32, non_blocking=True)
            inner = product(tokens, self.fc1, offs=ends)
            if not self.again:
                inner = weighted_bias_swiglu_impl(inner, None, probs.unsqueeze(-1))
                return product(inner, self.fc2, offs=ends), None
            activation = CheckpointWithoutOutput()
            inner = activation.checkpoint(weighted_bias_swiglu_impl, inner, None, probs.unsqueeze(-1))
            out = product(inner, self.fc2, offs=ends)
            activation.discard_output_and_register_recompute(out)
            return out, None

        def backward_dw(self) -> None:
            """Nothing is delayed."""

    return GroupedExperts
