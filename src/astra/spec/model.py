"""A model's shape: enough to count its parameters exactly and to list the operators of each layer."""

from typing import Final, Literal

from astra.spec.names import Line, Name, check_names
from astra.spec.record import Spec, check, check_not_negative, check_positive

# Far above any real model: a slip of the keyboard is caught before a column overflows.
_MOST_LAYERS: Final = 10_000
_MOST_PIXELS: Final = 1_000_000
_MOST_TOKENS: Final = 1_000_000_000
_MOST_PARAMETERS: Final = 10**17


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
    score: Literal["softmax", "sigmoid", "other"] = "softmax"  # of the router's logits
    normalized: bool = True  # the weights of the chosen experts sum to one
    weight_scale: float = 1.0  # the chosen experts' weights are multiplied by it
    groups: int = 1  # experts are first chosen by group: this many groups,
    groups_kept: int = 1  # of which a token keeps so many
    balance_bias: bool = False  # a bias per expert steers the choice, updated outside the gradient (DeepSeek-V3)

    def __post_init__(self) -> None:
        check_positive("moe", experts=self.experts, topk=self.topk, ffn=self.ffn, every=self.every)
        check_positive("moe", weight_scale=self.weight_scale, groups=self.groups, groups_kept=self.groups_kept)
        check(self.groups_kept <= self.groups, "moe.groups_kept", self.groups_kept, f"at most groups={self.groups}")
        check_not_negative("moe", shared_ffn=self.shared_ffn, first_dense=self.first_dense)
        check(self.topk <= self.experts, "moe.topk", self.topk, f"at most the {self.experts} experts")


class MLA(Spec, frozen=True, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2): low-rank queries and keys/values."""

    q_lora_rank: int | None = None  # None: full-rank queries
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


class StateSpace(Spec, frozen=True, kw_only=True):
    """State-space layers (Mamba-2) of a hybrid, whose layers have one block and one norm each."""

    pattern: Name  # a letter a layer, as Megatron writes it: M state space, * attention, - feed-forward, E experts
    heads: int
    head_dim: int
    states: int  # per channel of a head
    groups: int = 8  # of heads that share input and output projections of their states
    conv: int = 4  # taps of the convolution
    conv_bias: bool = True
    chunk: int = 128  # tokens the scan takes at once

    def __post_init__(self) -> None:
        check_names("state_space", self)
        check_positive("state_space", heads=self.heads, head_dim=self.head_dim, states=self.states)
        check_positive("state_space", groups=self.groups, conv=self.conv, chunk=self.chunk)
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

    heads: int  # of values
    head_dim: int
    key_heads: int  # of queries and keys; each serves as many heads of values
    key_dim: int
    attention_every: int  # the last layer of each group of this many has attention
    conv: int = 4  # taps of the convolution, which has no bias
    chunk: int = 64  # tokens the rule takes at once

    def __post_init__(self) -> None:
        check_positive("delta_net", heads=self.heads, head_dim=self.head_dim, key_dim=self.key_dim, conv=self.conv)
        check_positive("delta_net", key_heads=self.key_heads, chunk=self.chunk)
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

    base: float = 10_000.0
    fraction: float = 1.0  # of each head that turns
    scaling: Literal["none", "linear", "llama3", "yarn", "other"] = "none"  # how it was stretched to longer contexts
    factor: float = 1.0
    original_positions: int = 0  # positions before it was stretched
    low_frequency: float = 1.0  # llama3: turns slower than this are divided by the factor,
    high_frequency: float = 4.0  # faster than this are kept
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    rounded: bool = True  # yarn: the range between the betas is rounded to whole dimensions

    def __post_init__(self) -> None:
        check_positive("rotary", base=self.base, fraction=self.fraction, factor=self.factor)
        check_positive("rotary", low_frequency=self.low_frequency, high_frequency=self.high_frequency)
        check_positive("rotary", beta_fast=self.beta_fast, beta_slow=self.beta_slow)
        check_not_negative("rotary", mscale=self.mscale, mscale_all_dim=self.mscale_all_dim)
        check_not_negative("rotary", original_positions=self.original_positions)
        check(self.fraction <= 1, "rotary.fraction", self.fraction, "at most 1")


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


class Encoder(Spec, frozen=True, kw_only=True):
    """The encoder half of an encoder-decoder model; widths are those of the decoder."""

    layers: int

    def __post_init__(self) -> None:
        check_positive("encoder", layers=self.layers)
        check(self.layers <= _MOST_LAYERS, "encoder.layers", self.layers, f"at most {_MOST_LAYERS:,}")


class Vision(Spec, frozen=True, kw_only=True):
    """Patch embedding and classifier of a vision transformer."""

    image: int
    patch: int
    channels: int = 3
    classes: int = 1000

    def __post_init__(self) -> None:
        check_positive("vision", image=self.image, patch=self.patch, channels=self.channels, classes=self.classes)
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

    layers: int
    hidden: int
    ffn: int
    heads: int
    patch: int  # pixels on a side
    image: int  # pixels on a side: patches of one image attend to each other
    merge: int  # patches on a side of the square that becomes one token
    connector: tuple[int, ...]  # widths of the projection to tokens, one after another; the last is the model's
    connectors: int = 1  # several, where layers of the model take up the output of several layers of the encoder
    connector_bias: bool = True
    share: float = 0.5  # of a sample's tokens that are of images
    channels: int = 3
    frames: int = 1  # of a film that one patch spans; an image is repeated
    gated_mlp: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "layernorm"
    patch_bias: bool = True
    positions: int = 0  # rows of a learned table
    class_token: bool = False
    outer_norms: int = 0  # weights of the norms outside its layers
    window: int | None = None  # patches that see each other in the layers that do not see all
    full_layers: int = 0  # layers that see the whole image, where there is a window

    def __post_init__(self) -> None:
        check_positive("tower", layers=self.layers, hidden=self.hidden, ffn=self.ffn, heads=self.heads)
        check_positive("tower", patch=self.patch, image=self.image, merge=self.merge, channels=self.channels)
        check_positive("tower", frames=self.frames, connectors=self.connectors, window=self.window)
        check(self.layers <= _MOST_LAYERS, "tower.layers", self.layers, f"at most {_MOST_LAYERS:,}")
        check(self.image <= _MOST_PIXELS, "tower.image", self.image, f"at most {_MOST_PIXELS:,}")
        check_not_negative("tower", positions=self.positions, outer_norms=self.outer_norms, full=self.full_layers)
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
        return (
            self.layers * self.hidden * (self.hidden + self.ffn) + self.connectors * max(self.connector) ** 2 + tables
        )

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
    norm_bias: bool = True  # of a layernorm: MPT's has none
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False  # BLOOM normalises the embedding
    qk_norm: Literal["none", "per_head", "full"] = "none"  # weights of size d, or of the whole projection
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    head_transform: bool = False  # a projection, an activation and a norm before that of the vocabulary (BERT)
    embedding_dim: int | None = None  # width of the vocabulary's tables, where it is not hidden (OPT-350M)
    segments: int = 0  # rows of a learned table of segments (BERT)
    learned_positions: int = 0  # rows of a learned position table; 0 for rotary or ALiBi
    relative_buckets: int = 0  # T5: relative-position buckets, one table per stack
    attention_gate: bool = False  # queries bring a gate on the attention's output (Qwen3-Next)
    attention_sinks: bool = False  # one learned logit per head (GPT-OSS)
    causal: bool = True
    window: int | None = None  # sliding or chunked attention span, in tokens
    full_attention_every: int = 1  # the last layer of each group of this many sees everything; 0: none does
    chunked: bool = False  # the window is a block of a cut sequence (Llama 4), not a span that slides
    rotary: Rotary | None = None  # None: there is none, or it is not known
    activation: Literal["silu", "gelu", "relu", "relu2", "clamped_swiglu"] | None = None  # None: not known
    norm_epsilon: float | None = None  # None: not known
    quirks: tuple[Quirk, ...] = ()
    mla: MLA | None = None
    moe: MoE | None = None
    state_space: StateSpace | None = None
    delta_net: DeltaNet | None = None
    mtp_layers: int = 0  # multi-token-prediction layers, in the checkpoint but not trained by default
    encoder: Encoder | None = None
    vision: Vision | None = None
    tower: Tower | None = None  # the image encoder of a vision-language model
    aliases: tuple[Name, ...] = ()
    source: Line = "given by the user"
    date: Name = ""

    def __post_init__(self) -> None:
        check_names("model", self)
        self._check_sizes()
        check(
            self.mla is not None or (self.kv_heads <= self.heads and self.heads % self.kv_heads == 0),
            "model.kv_heads",
            self.kv_heads,
            f"a divisor of heads={self.heads}",
        )
        check(self.vocab > 0 or self.vision is not None, "model.vocab", self.vocab, "1 or more for a language model")
        check(
            (self.window is None) == (self.full_attention_every == 1),
            "model.full_attention_every",
            self.full_attention_every,
            "1 without a window, and something else with one",
            "0: every layer is windowed; 2: every second layer sees everything.",
        )
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
        check(
            ("E" in pattern) == (self.moe is not None), where, pattern, "an E where there are experts, and only there"
        )
        check(self.norms_per_layer == 1, "model.norms_per_layer", self.norms_per_layer, "1 in a hybrid")
        plain = self.mla is None and self.encoder is None and self.vision is None and self.window is None
        check(plain and self.causal, "model.state_space", pattern, "a decoder without latent or windowed attention")

    def _check_sizes(self) -> None:
        check_positive("model", norm_epsilon=self.norm_epsilon)
        check_positive("model", layers=self.layers, hidden=self.hidden, ffn=self.ffn, heads=self.heads)
        check_positive("model", kv_heads=self.kv_heads, head_dim=self.head_dim, max_seq=self.max_seq)
        check_positive("model", window=self.window, norms_per_layer=self.norms_per_layer)
        check_not_negative("model", vocab=self.vocab, mtp_layers=self.mtp_layers, every=self.full_attention_every)
        check_not_negative("model", learned_positions=self.learned_positions, relative_buckets=self.relative_buckets)
        check_positive("model", embedding_dim=self.embedding_dim)
        check_not_negative("model", segments=self.segments)
        check(self.layers <= _MOST_LAYERS, "model.layers", self.layers, f"at most {_MOST_LAYERS:,}")
        check(self.max_seq <= _MOST_TOKENS, "model.max_seq", self.max_seq, f"at most {_MOST_TOKENS:,}")
        check(self._roughly() <= _MOST_PARAMETERS, "model", self.name, f"at most {_MOST_PARAMETERS:,} parameters")

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
