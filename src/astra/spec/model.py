"""A model's shape: enough to count its parameters exactly and to list the operators of each layer."""

from __future__ import annotations

from typing import Literal

from astra.spec._base import Spec, check, check_not_negative, check_positive


class MoE(Spec, frozen=True, kw_only=True):
    """Mixture-of-experts feed-forward layers."""

    experts: int  # routed experts per MoE layer
    topk: int  # experts each token visits
    ffn: int  # intermediate size of one expert
    shared_ffn: int = 0  # total intermediate size of the always-on experts
    first_dense: int = 0  # leading layers with a dense feed-forward
    every: int = 1  # after those, one layer in `every` is MoE (the last of each group)
    router_bias: bool = False  # a bias per expert that is a parameter
    expert_bias: bool = False  # biases in the experts' two projections
    shared_gate: bool = False  # a learned gate of size hidden on the shared expert

    def __post_init__(self) -> None:
        check_positive("moe", experts=self.experts, topk=self.topk, ffn=self.ffn, every=self.every)
        check_not_negative("moe", shared_ffn=self.shared_ffn, first_dense=self.first_dense)
        check(self.topk <= self.experts, "moe.topk", self.topk, f"at most the {self.experts} experts")


class MLA(Spec, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2): low-rank queries and keys/values."""

    q_lora_rank: int | None  # None: full-rank queries
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        check_positive(
            "mla",
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
        )


class Encoder(Spec, frozen=True, kw_only=True):
    """The encoder half of an encoder-decoder model; widths are those of the decoder."""

    layers: int

    def __post_init__(self) -> None:
        check_positive("encoder", layers=self.layers)


class Vision(Spec, frozen=True, kw_only=True):
    """Patch embedding and classifier of a vision transformer."""

    image: int
    patch: int
    channels: int = 3
    classes: int = 1000

    def __post_init__(self) -> None:
        check_positive("vision", image=self.image, patch=self.patch, channels=self.channels, classes=self.classes)
        check(self.image % self.patch == 0, "vision.patch", self.patch, f"a divisor of image={self.image}")

    @property
    def tokens(self) -> int:
        """Sequence length: one token per patch and one for the class."""
        return (self.image // self.patch) ** 2 + 1


class ModelSpec(Spec, frozen=True, kw_only=True):
    """A transformer's shape. Letters: h hidden, f ffn, a heads, g kv_heads, d head_dim, V vocab, L layers."""

    name: str
    family: str = "decoder"  # a key of families.FAMILIES
    layers: int
    hidden: int
    ffn: int  # of the dense layers
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # 0 for a vision model
    max_seq: int  # positions the model is made for
    gated_mlp: bool = True  # SwiGLU/GeGLU (two input projections) rather than GELU
    tied_embeddings: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False  # BLOOM normalises the embedding
    qk_norm: Literal["none", "per_head", "full"] = "none"  # weights of size d, or of the whole projection
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    learned_positions: int = 0  # rows of a learned position table; 0 for rotary or ALiBi
    relative_buckets: int = 0  # T5: relative-position buckets, one table per stack
    attention_sinks: bool = False  # one learned logit per head (GPT-OSS)
    causal: bool = True
    window: int | None = None  # sliding or chunked attention span, in tokens
    full_attention_every: int = 1  # 1 layer in this many sees everything; 0: none does (only with window)
    mla: MLA | None = None
    moe: MoE | None = None
    mtp_layers: int = 0  # multi-token-prediction layers, in the checkpoint but not trained by default
    encoder: Encoder | None = None
    vision: Vision | None = None
    source: str = "given by the user"
    date: str = ""

    def __post_init__(self) -> None:
        check_positive("model", layers=self.layers, hidden=self.hidden, ffn=self.ffn, heads=self.heads)
        check_positive("model", kv_heads=self.kv_heads, head_dim=self.head_dim, max_seq=self.max_seq)
        check_positive("model", window=self.window, norms_per_layer=self.norms_per_layer)
        check_not_negative("model", vocab=self.vocab, mtp_layers=self.mtp_layers, every=self.full_attention_every)
        check(
            self.mla is not None or (self.kv_heads <= self.heads and self.heads % self.kv_heads == 0),
            "model.kv_heads",
            self.kv_heads,
            f"a divisor of heads={self.heads}",
        )
        check(self.vocab > 0 or self.vision is not None, "model.vocab", self.vocab, "1 or more for a language model")
