# Transformers is imported where it is used: only a measurement may need it.
# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Rehearse one rank of a Hugging Face model under FSDP2, as Accelerate shards it.

``python -m astra.lab.rehearse.transformers_rank`` reads one JSON list of cases and writes one JSON list of rows, as
``fsdp_rank`` does. The model is transformers' own, eager, with torch's fused attention. As Accelerate 1.15 wraps it:
the input embedding, each layer, and the last norm with the output are units; weights are fp32 shards gathered in bf16;
gradients are reduced in bf16; forward runs under autocast, and what it returns is turned to fp32.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import torch

from astra.lab.rehearse import fsdp_rank, stand_ins, torch_run
from astra.lab.rehearse.case import Case
from astra.spec.model import ModelSpec

_THETA: Final = 500000.0


class TransformersRank(fsdp_rank.FsdpRank):
    """A whole model: Accelerate's FSDP has no pipeline."""

    def build(self) -> Any:
        """Transformers' own model of this shape, checkpointed and sharded."""
        import transformers

        if not self.gpu:
            self.torch.nn.functional.scaled_dot_product_attention = _attend
        config = config_of(self.case.model, self.case.seq)
        with self.torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        self.params = sum(parameter.numel() for parameter in model.parameters())
        _shard(self.case, model, self.device)
        return model.train()

    def make_tables(self) -> None:
        """Rates of rotary positions, which a meta device has left without values."""
        inner = self.stage.base_model
        if hasattr(inner, "rotary_emb"):
            inner.rotary_emb = type(inner.rotary_emb)(self.stage.config).to(self.device)

    def forward(self) -> Any:
        """The loss. Logits in fp32, which Accelerate returns beside it, are dropped as a trainer drops them."""
        with self.torch.autocast(self.device, dtype=self.torch.bfloat16):
            out = self.stage(input_ids=self.tokens, labels=self.labels, use_cache=False)
        out.logits.float()
        return out.loss.float()


def config_of(model: ModelSpec, seq: int) -> Any:
    """The configuration of the family that has such layers."""
    import transformers

    family, special = _family(model)
    wide = 0 if model.moe is None else model.moe.ffn
    common = {
        "hidden_size": model.hidden,
        "intermediate_size": wide or model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": seq,
        "rope_parameters": {"rope_type": "default", "rope_theta": _THETA},
        "pad_token_id": None,
    }
    return transformers.AutoConfig.for_model(family, **(common | special))


def _family(model: ModelSpec) -> tuple[str, dict[str, Any]]:
    """Its name in transformers, and the words that it alone has."""
    if model.moe is None:
        if model.qk_norm == "per_head":
            return "qwen3", {}
        return ("qwen2", {}) if model.qkv_bias else ("llama", {})
    experts = {"num_experts_per_tok": model.moe.topk, "output_router_logits": False}
    if model.qk_norm == "per_head":
        special = {"num_experts": model.moe.experts, "moe_intermediate_size": model.moe.ffn, "mlp_only_layers": []}
        return "qwen3_moe", experts | special | {"norm_topk_prob": True, "decoder_sparse_step": 1}
    return "mixtral", experts | {"num_local_experts": model.moe.experts, "sliding_window": None}


def _shard(case: Case, model: Any, device: str) -> None:
    """Checkpoint and shard in Accelerate's order: layers, the input embedding, norm with output, the rest."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=half)
    options = {"mesh": fsdp_rank.mesh_of(device, case.strategy.dp), "mp_policy": policy}
    again = case.strategy.zero == 3 and case.strategy.reshard == "always"
    layers, inner = model.base_model.layers, model.base_model
    for place, layer in enumerate(layers):
        if case.strategy.recompute == "full":
            layers[place] = checkpoint_wrapper(layer, preserve_rng_state=False)
        fully_shard(layers[place], **options, reshard_after_forward=again)
    ends = [inner.norm, model.lm_head]
    if case.model.tied_embeddings:
        ends.insert(1, inner.embed_tokens)
    else:
        fully_shard(inner.embed_tokens, **options, reshard_after_forward=again)
    fully_shard(ends, **options, reshard_after_forward=False)
    fully_shard(model, **options)


@functools.wraps(stand_ins.attend)
def _attend(query: Any, key: Any, value: Any, **_: Any) -> Any:
    return stand_ins.attend("flash", query, key, value)


def main() -> int:
    """Answer the cases on standard input."""
    return torch_run.answer(TransformersRank, fsdp_rank.world_of)


if __name__ == "__main__":
    sys.exit(main())
