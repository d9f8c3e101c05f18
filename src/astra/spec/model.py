"""A model's shape: enough to count its parameters exactly and to list the operators of each layer."""

from typing import Final, Literal

from astra.spec.names import Amount, Count, Line, Name, Positive, Size, check_fields
from astra.spec.record import Spec, check

# Far above any real model: a slip of the keyboard is caught before a column overflows.
_MOST_LAYERS: Final = 10_000
_MOST_PIXELS: Final = 1_000_000
_MOST_TOKENS: Final = 1_000_000_000
_MOST_PARAMETERS: Final = 10**17
# What a forward pass may do besides; none has parameters or takes noticeable time.
Quirk = Literal[
    "alibi",  # positions are told by a slope on the logits
    "attention_softcap",
    "deepnorm",
    "logit_softcap",
    "parallel_block",  # attention and feed-forward read the same input
    "per_kind_rotary",  # windowed layers turn with another base
    "post_norm",  # norms after each block rather than before
    "query_scale",  # logits are not divided by the root of the head's width
    "residual_scale",
    "scaled_embedding",
    "scaled_logits",
    "unrotated_layers",  # some layers have no positions
    "zero_centered_norm",  # weights are stored less one
]


class MoE(Spec, frozen=True, kw_only=True):
    """Mixture-of-experts feed-forward layers."""

    experts: Size  # routed experts per MoE layer
    topk: Size  # experts each token visits
    ffn: Size  # intermediate size of one expert
    shared_ffn: Count = 0  # total intermediate size of the always-on experts
    first_dense: Count = 0  # leading layers with a dense feed-forward
    every: Size = 1  # after those, one layer in `every` is MoE (the last of each group)
    router_bias: bool = False  # a bias per expert that is a parameter
    expert_bias: bool = False  # biases in the experts' two projections
    shared_gate: bool = False  # a learned gate of size hidden on the shared expert
    score: Literal["softmax", "sigmoid", "other"] = "softmax"  # of the router's logits
    normalized: bool = True  # the weights of the chosen experts sum to one
    weight_scale: Positive = 1.0  # the chosen experts' weights are multiplied by it
    groups: Size = 1  # experts are first chosen by group: this many groups,
    groups_kept: Size = 1  # of which a token keeps so many
    balance_bias: bool = False  # a bias per expert steers the choice, updated outside the gradient (DeepSeek-V3)

    def __post_init__(self) -> None:
        check_fields("moe", self)
        check(self.groups_kept <= self.groups, "moe.groups_kept", self.groups_kept, f"at most groups={self.groups}")
        check(self.topk <= self.experts, "moe.topk", self.topk, f"at most the {self.experts} experts")


class MLA(Spec, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2): low-rank queries and keys/values."""

    q_lora_rank: Size | None = None  # None: full-rank queries
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size

    def __post_init__(self) -> None:
        check_fields("mla", self)


class StateSpace(Spec, frozen=True, kw_only=True):
    """State-space layers (Mamba-2) of a hybrid, whose layers have one block and one norm each."""

    pattern: Name  # a letter a layer, as Megatron writes it: M state space, * attention, - feed-forward, E experts
    heads: Size
    head_dim: Size
    states: Size  # per channel of a head
    groups: Size = 8  # of heads that share input and output projections of their states
    conv: Size = 4  # taps of the convolution
    conv_bias: bool = True
    chunk: Size = 128  # tokens the scan takes at once

    def __post_init__(self) -> None:
        check_fields("state_space", self)
        check(self.heads % self.groups == 0, "state_space.groups", self.groups, f"a divisor of heads={self.heads}")
        letters = "a letter a layer: M state space, * attention, - feed-forward, E experts"
        check(set(self.pattern) <= set("M*-E"), "state_space.pattern", self.pattern, letters)
        check("M" in self.pattern, "state_space.pattern", self.pattern, "at least one M")

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels that pass the convolution: those of the heads, and both projections of each group's states."""
        return self.inner + 2 * self.groups * self.states


class DeltaNet(Spec, frozen=True, kw_only=True):
    """Layers with a gated delta net in the place of attention (Qwen3-Next)."""

    heads: Size  # of values
    head_dim: Size
    key_heads: Size  # of queries and keys; each serves as many heads of values
    key_dim: Size
    attention_every: int  # the last layer of each group of this many has attention
    conv: Size = 4  # taps of the convolution, which has no bias
    chunk: Size = 64  # tokens the rule takes at once

    def __post_init__(self) -> None:
        check_fields("delta_net", self)
        check(self.heads % self.key_heads == 0, "delta_net.key_heads", self.key_heads, f"a divisor of {self.heads}")
        every = self.attention_every
        check(every >= 2, "delta_net.attention_every", every, "2 or more: of each group the last layer has attention")

    @property
    def inner(self) -> int:
        """Channels of all values."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Channels of all keys."""
        return self.key_heads * self.key_dim

    @property
    def convolved(self) -> int:
        """Channels that pass the convolution: queries, keys and values."""
        return self.inner + 2 * self.keys


class Rotary(Spec, frozen=True, kw_only=True):
    """Rotary positions: they cost the same whatever these are, but a model trained with others is another model."""

    base: Positive = 10_000.0
    fraction: Positive = 1.0  # of each head that turns
    scaling: Literal["none", "linear", "llama3", "yarn", "other"] = "none"  # how it was stretched to longer contexts
    factor: Positive = 1.0
    original_positions: Count = 0  # positions before it was stretched
    low_frequency: Positive = 1.0  # llama3: turns slower than this are divided by the factor,
    high_frequency: Positive = 4.0  # faster than this are kept
    beta_fast: Positive = 32.0  # yarn
    beta_slow: Positive = 1.0
    mscale: Amount = 1.0
    mscale_all_dim: Amount = 0.0
    rounded: bool = True  # yarn: the range between the betas is rounded to whole dimensions

    def __post_init__(self) -> None:
        check_fields("rotary", self)
        check(self.fraction <= 1, "rotary.fraction", self.fraction, "at most 1")


class Encoder(Spec, frozen=True, kw_only=True):
    """The encoder half of an encoder-decoder model; widths are those of the decoder."""

    layers: Size

    def __post_init__(self) -> None:
        check_fields("encoder", self)
        check(self.layers <= _MOST_LAYERS, "encoder.layers", self.layers, f"at most {_MOST_LAYERS:,}")


class Vision(Spec, frozen=True, kw_only=True):
    """Patch embedding and classifier of a vision transformer."""

    image: Size
    patch: Size
    channels: Size = 3
    classes: Size = 1000

    def __post_init__(self) -> None:
        check_fields("vision", self)
        for name in ("image", "channels", "classes"):
            check(getattr(self, name) <= 1_000_000, f"vision.{name}", getattr(self, name), "at most 1,000,000")
        check(self.image % self.patch == 0, "vision.patch", self.patch, f"a divisor of image={self.image}")

    @property
    def tokens(self) -> int:
        """Sequence length: one token per patch and one for the class."""
        return (self.image // self.patch) ** 2 + 1


class Tower(Spec, frozen=True, kw_only=True):
    """A vision transformer and the connector that turns its patches into tokens of the language model.

    How many of a sample's tokens are of images is a matter of the data; ``share`` says what is assumed of them.
    """

    layers: Size
    hidden: Size
    ffn: Size
    heads: Size
    patch: Size  # pixels on a side
    image: Size  # pixels on a side: patches of one image attend to each other
    merge: Size  # patches on a side of the square that becomes one token
    connector: tuple[int, ...]  # widths of the projection to tokens, one after another; the last is the model's
    connectors: Size = 1  # several, where layers of the model take up the output of several layers of the encoder
    connector_bias: bool = True
    share: float = 0.5  # of a sample's tokens that are of images
    channels: Size = 3
    frames: Size = 1  # of a film that one patch spans; an image is repeated
    gated_mlp: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    patch_bias: bool = True
    positions: Count = 0  # rows of a learned table
    class_token: bool = False
    outer_norms: Count = 0  # weights of the norms outside its layers
    window: Size | None = None  # patches that see each other in the layers that do not see all
    full_layers: Count = 0  # layers that see the whole image, where there is a window

    def __post_init__(self) -> None:
        check_fields("tower", self)
        check(self.layers <= _MOST_LAYERS, "tower.layers", self.layers, f"at most {_MOST_LAYERS:,}")
        check(self.image <= _MOST_PIXELS, "tower.image", self.image, f"at most {_MOST_PIXELS:,}")
        check(self.hidden % self.heads == 0, "tower.heads", self.heads, f"a divisor of hidden={self.hidden}")
        square = self.patch * self.merge
        check(self.image % square == 0, "tower.image", self.image, f"a multiple of patch * merge = {square}")
        check(0 <= self.share <= 1, "tower.share", self.share, "a fraction of a sample's tokens, from 0 to 1")
        check(len(self.connector) >= 2, "tower.connector", self.connector, "two widths or more")
        check(all(width > 0 for width in self.connector), "tower.connector", self.connector, "widths of 1 or more")
        check(self.full_layers <= self.layers, "tower.full_layers", self.full_layers, f"at most {self.layers}")

    def roughly(self) -> int:
        """The count of its parameters to within a small factor."""
        tables = self.hidden * (self.positions + self.pixels) + self.outer_norms
        connectors = self.connectors * max(self.connector) ** 2
        return self.layers * self.hidden * (self.hidden + self.ffn) + connectors + tables

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image // self.patch) ** 2

    @property
    def pixels(self) -> int:
        """Numbers of one patch."""
        return self.channels * self.frames * self.patch**2


class ModelSpec(Spec, frozen=True, kw_only=True):
    """A transformer's shape. Letters: h hidden, f ffn, a heads, g kv_heads, d head_dim, V vocab, L layers."""

    name: Name
    family: Name = "decoder"
    layers: Size
    hidden: Size
    ffn: Size  # of the dense layers
    heads: Size
    kv_heads: Size
    head_dim: Size
    vocab: Count  # 0 for a vision model
    max_seq: Size  # positions the model is made for
    gated_mlp: bool = True  # SwiGLU/GeGLU (two input projections) rather than GELU
    tied_embeddings: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: bool = True  # of a layernorm: MPT's has none
    norms_per_layer: Size = 2
    final_norm: bool = True
    embedding_norm: bool = False  # BLOOM normalises the embedding
    qk_norm: Literal["none", "per_head", "full"] = "none"  # weights of size d, or of the whole projection
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    head_transform: bool = False  # a projection, an activation and a norm before that of the vocabulary (BERT)
    embedding_dim: Size | None = None  # width of the vocabulary's tables, where it is not hidden (OPT-350M)
    segments: Count = 0  # rows of a learned table of segments (BERT)
    learned_positions: Count = 0  # rows of a learned position table; 0 for rotary or ALiBi
    relative_buckets: Count = 0  # T5: relative-position buckets, one table per stack
    attention_gate: bool = False  # queries bring a gate on the attention's output (Qwen3-Next)
    attention_sinks: bool = False  # one learned logit per head (GPT-OSS)
    causal: bool = True
    window: Size | None = None  # sliding or chunked attention span, in tokens
    full_attention_every: Count = 1  # the last layer of each group of this many sees everything; 0: none does
    chunked: bool = False  # the window is a block of a cut sequence (Llama 4), not a span that slides
    rotary: Rotary | None = None  # None: there is none, or it is not known
    activation: Literal["silu", "gelu", "relu", "relu2", "clamped_swiglu"] | None = None  # None: not known
    norm_epsilon: Positive | None = None  # None: not known
    quirks: tuple[Quirk, ...] = ()
    mla: MLA | None = None
    moe: MoE | None = None
    state_space: StateSpace | None = None
    delta_net: DeltaNet | None = None
    mtp_layers: Count = 0  # multi-token-prediction layers, in the checkpoint but not trained by default
    encoder: Encoder | None = None
    vision: Vision | None = None
    tower: Tower | None = None  # the image encoder of a vision-language model
    aliases: tuple[Name, ...] = ()
    source: Line = "given by the user"
    date: Name = ""

    def __post_init__(self) -> None:
        check_fields("model", self)
        check(self.layers <= _MOST_LAYERS, "model.layers", self.layers, f"at most {_MOST_LAYERS:,}")
        check(self.max_seq <= _MOST_TOKENS, "model.max_seq", self.max_seq, f"at most {_MOST_TOKENS:,}")
        check(self._roughly() <= _MOST_PARAMETERS, "model", self.name, f"at most {_MOST_PARAMETERS:,} parameters")
        shared = self.mla is not None or (self.kv_heads <= self.heads and self.heads % self.kv_heads == 0)
        check(shared, "model.kv_heads", self.kv_heads, f"a divisor of heads={self.heads}")
        check(self.vocab > 0 or self.vision is not None, "model.vocab", self.vocab, "1 or more for a language model")
        every, fix = self.full_attention_every, "0: every layer is windowed; 2: every second layer sees everything."
        want = "1 without a window, and something else with one"
        check((self.window is None) == (every == 1), "model.full_attention_every", every, want, fix)
        if self.tower is not None:
            want = f"a projection to hidden={self.hidden} beside a language model"
            check(self.tower.connector[-1] == self.hidden and self.vocab > 0, "model.tower", self.tower.connector, want)
        if self.state_space is not None:
            self._check_hybrid(self.state_space.pattern)
        if self.delta_net is not None:
            plain = self.encoder is None and self.vision is None and self.window is None and self.state_space is None
            want = "a decoder without windows and state-space layers"
            check(plain and self.causal, "model.delta_net", self.delta_net.attention_every, want)

    @property
    def table_dim(self) -> int:
        """Width of the vocabulary's tables."""
        return self.embedding_dim or self.hidden

    def attends(self, layer: int) -> bool:
        """Whether a layer has attention, rather than a delta net in its place."""
        return self.delta_net is None or (layer + 1) % self.delta_net.attention_every == 0

    def _check_hybrid(self, pattern: str) -> None:
        """A pattern says all about a layer: whatever else would is refused."""
        where = "model.state_space.pattern"
        check(len(pattern) == self.layers, where, pattern, f"a letter for each of the {self.layers} layers")
        experts = ("E" in pattern) == (self.moe is not None)
        check(experts, where, pattern, "an E where there are experts, and only there")
        check(self.norms_per_layer == 1, "model.norms_per_layer", self.norms_per_layer, "1 in a hybrid")
        plain = self.mla is None and self.encoder is None and self.vision is None and self.window is None
        check(plain and self.causal, "model.state_space", pattern, "a decoder without latent or windowed attention")

    def _roughly(self) -> int:
        """The count of parameters to within a small factor."""
        moe, mla = self.moe, self.mla
        wide = self.ffn + (moe.experts * moe.ffn + moe.shared_ffn if moe else 0)
        head = self.head_dim if mla is None else mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
        low = 0 if mla is None else mla.kv_lora_rank + (mla.q_lora_rank or 0)
        per_layer = (self.hidden + low) * (self.heads * head + low) + self.hidden * wide
        if self.state_space is not None:
            per_layer += self.hidden * (2 * self.state_space.inner + self.state_space.convolved)
        if self.delta_net is not None:
            per_layer += self.hidden * (2 * self.delta_net.inner + self.delta_net.convolved)
        tower = 0 if self.tower is None else self.tower.roughly()
        return tower + self.layers * per_layer + self.hidden * (self.vocab + self.learned_positions)
