"""Megatron-LM arguments as a strategy, a workload and a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.imported import Imported
from astra.spec.model import MLA, ModelSpec, MoE
from astra.spec.strategy import Strategy

# Arguments that change speed or memory but have no place in a strategy.
_TOLD: Final = frozenset(
    (
        "--cuda-graph-impl",
        "--cpu-offloading-num-layers",
        "--delay-wgrad-compute",
        "--fine-grained-activation-offloading",
        "--fp4-format",
        "--hybrid-layer-pattern",
        "--microbatch-group-size-per-virtual-pipeline-stage",
        "--mtp-num-layers",
        "--num-distributed-optimizer-instances",
        "--overlap-moe-expert-parallel-comm",
        "--rampup-batch-size",
        "--tensor-parallel-num-weight-shards",
        "--use-torch-fsdp2",
    )
)
_LAYOUT_LIMIT: Final = 100_000


class Arguments:
    """Flags of a command line; the last of a repeated one counts."""

    def __init__(self, words: list[str], name: str) -> None:
        self._name = name
        self.flags: dict[str, list[str]] = {}
        current: list[str] | None = None
        for word in words:
            if word.startswith("--") and len(word) > 2:
                flag, equals, value = word.partition("=")
                current = self.flags[flag] = [value] if equals else []
            elif current is not None:
                current.append(word)

    def has(self, flag: str) -> bool:
        """Whether a switch is given."""
        return flag in self.flags

    def text(self, flag: str, default: str = "") -> str:
        """The value of a flag."""
        values = self.flags.get(flag)
        return values[0] if values else default

    def whole(self, flag: str, default: int | None = None) -> int:
        """The value of a flag that is a whole number."""
        text = self.text(flag)
        if not text and default is not None:
            return default
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise InputError(f"{self._name}: {flag}", text or None, want="a whole number")
        return int(text)

    def maybe(self, flag: str) -> int | None:
        """The value of a flag that may be absent."""
        return self.whole(flag) if self.has(flag) else None


def from_words(words: list[str], variables: Mapping[str, str], *, name: str, gpus: int | None = None) -> Imported:
    """What a command line would train, and how."""
    args = Arguments(words, name)
    tp, pp = args.whole("--tensor-model-parallel-size", 1), args.whole("--pipeline-model-parallel-size", 1)
    cp = args.whole("--context-parallel-size", 1)
    world = gpus or _world(args, variables)
    if world is None:
        fix = "Give --gpus; the script does not say how many it starts (--nnodes and --nproc-per-node of torchrun)."
        raise InputError(name, None, want="the number of GPUs", fix=fix)
    if world % (tp * pp * cp):
        raise InputError(name, world, want=f"a number of GPUs that tp*pp*cp = {tp * pp * cp} divides")
    layers, vp = _pipeline(args, pp, name)
    strategy = _strategy(args, tp, pp, cp, world // (tp * pp * cp), vp, layers)
    return Imported(
        framework="megatron",
        strategy=strategy,
        gpus=world,
        global_batch=args.maybe("--global-batch-size") or strategy.mbs * strategy.dp,
        seq=args.maybe("--seq-length") or args.maybe("--encoder-seq-length"),
        precision="fp8" if args.has("--fp8-format") else "fp16" if args.has("--fp16") else "bf16",
        optimizer="sgd" if args.text("--optimizer") == "sgd" else "adam",
        model=_model(args, name),
        recipe=None,
        ignored=tuple(sorted(flag for flag in args.flags if flag in _TOLD)),
    )


def _world(args: Arguments, variables: Mapping[str, str]) -> int | None:
    """Ranks that torchrun starts; else what the usual variables say."""
    nodes = _first_number(args.text("--nnodes"), variables.get("NNODES", ""), variables.get("NUM_NODES", ""))
    each = _first_number(
        args.text("--nproc-per-node"), args.text("--nproc_per_node"), variables.get("GPUS_PER_NODE", "")
    )
    if each is not None:
        return each * (nodes or 1)
    return _first_number(variables.get("WORLD_SIZE", ""))


def _first_number(*texts: str) -> int | None:
    return next((int(text) for text in texts if re.fullmatch(r"[1-9][0-9]{0,8}", text)), None)


def _strategy(args: Arguments, tp: int, pp: int, cp: int, dp: int, vp: int, layers: tuple[int, ...]) -> Strategy:
    experts = args.has("--num-experts")
    recompute: Any = args.text(
        "--recompute-granularity", "selective" if args.has("--recompute-activations") else "none"
    )
    full = recompute == "full"
    method: Any = args.text("--recompute-method", "uniform") if full else "uniform"
    overlaps = {
        "grad": args.has("--overlap-grad-reduce"),
        "param": args.has("--overlap-param-gather"),
        "tp": args.has("--tp-comm-overlap"),
        "p2p": vp > 1 and not args.has("--no-overlap-p2p-communication"),
    }
    return Strategy(
        tp=tp,
        pp=pp,
        vp=vp,
        cp=cp,
        ep=args.whole("--expert-model-parallel-size", 1) if experts else 1,
        etp=args.whole("--expert-tensor-parallel-size", tp) if experts else 1,
        dp=dp,
        mbs=args.whole("--micro-batch-size", 1),
        sp=args.has("--sequence-parallel") and tp > 1,
        zero=_zero(args),
        recompute=recompute,
        method=method,
        recompute_layers=args.whole("--recompute-num-layers", 1) if full else 1,
        offload="optimizer" if args.has("--optimizer-cpu-offload") else "none",
        overlap=tuple(name for name, on in overlaps.items() if on),
        flash=args.text("--attention-backend", "auto") not in ("unfused", "local"),
        schedule="interleaved" if vp > 1 else "1f1b",
        layers=layers,
    )


def _zero(args: Arguments) -> int:
    if args.has("--use-torch-fsdp2"):
        return 3
    if args.has("--use-megatron-fsdp") or args.has("--use-custom-fsdp"):
        stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
        return stages.get(args.text("--data-parallel-sharding-strategy", "no_shard"), 0)
    return int(args.has("--use-distributed-optimizer"))


def _pipeline(args: Arguments, pp: int, name: str) -> tuple[tuple[int, ...], int]:
    """Layers of each virtual stage (empty if even) and chunks per rank."""
    if args.has("--pipeline-model-parallel-layout"):
        layers = layout_layers(args.text("--pipeline-model-parallel-layout"), name)
        if len(layers) % pp:
            raise InputError(
                f"{name}: --pipeline-model-parallel-layout", len(layers), want=f"a multiple of pp={pp} stages"
            )
        return (layers if len(set(layers)) > 1 else ()), len(layers) // pp
    depth = args.whole("--num-layers", 0)
    if pp == 1 or depth == 0:
        return (), 1
    first, last = args.maybe("--decoder-first-pipeline-num-layers"), args.maybe("--decoder-last-pipeline-num-layers")
    ends = args.has("--account-for-embedding-in-pipeline-split"), args.has("--account-for-loss-in-pipeline-split")
    ranks = _ranks(depth, pp, first, last, ends)
    vp = args.maybe("--num-virtual-stages-per-pipeline-rank") or 1
    each = args.maybe("--num-layers-per-virtual-pipeline-stage")
    if each:
        vp = max((depth + sum(ends)) // pp // each, 1)
    layers = tuple(count // vp for _ in range(vp) for count in ranks)
    if any(ends) and vp > 1:
        layers = _with_ends(depth, pp * vp, ends)
    return (layers if len(set(layers)) > 1 else ()), vp


def _ranks(depth: int, pp: int, first: int | None, last: int | None, ends: tuple[bool, bool]) -> tuple[int, ...]:
    if any(ends):
        return _with_ends(depth, pp, ends)
    middle = pp - (first is not None) - (last is not None)
    each = (depth - (first or 0) - (last or 0)) // max(middle, 1)
    return (*((first,) if first is not None else ()), *(each,) * middle, *((last,) if last is not None else ()))


def _with_ends(depth: int, stages: int, ends: tuple[bool, bool]) -> tuple[int, ...]:
    """Embedding and loss each take the place of a layer."""
    each = (depth + sum(ends)) // stages
    return (each - ends[0], *(each,) * (stages - 2), each - ends[1])


def layout_layers(text: str, name: str = "layout") -> tuple[int, ...]:
    """Layers of each virtual stage of a pipeline layout such as ``Et*3|(tt|)*29t*2L``."""
    where = f"{name}: --pipeline-model-parallel-layout"
    plain = text.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]*)\)\*([0-9]{1,4})", r"([A-Za-z|])\*([0-9]{1,4})"):
        plain = re.sub(pattern, lambda match: match.group(1) * int(match.group(2)), plain)
        if len(plain) > _LAYOUT_LIMIT:
            raise InputError(where, None, want="a layout of fewer layers")
    if not plain or set(plain) - set("EtmL|"):
        raise InputError(where, text, want="letters E, t, m, L and bars, such as Et*3|t*4|t*3L")
    return tuple(stage.count("t") for stage in plain.split("|"))


def _model(args: Arguments, name: str) -> ModelSpec | None:
    """The model, where its whole shape is on the command line."""
    vocab = args.maybe("--vocab-size") or args.maybe("--padded-vocab-size")
    if vocab is None or not args.has("--num-layers") or not args.has("--hidden-size"):
        return None
    hidden, heads = args.whole("--hidden-size"), args.whole("--num-attention-heads")
    gated = args.has("--swiglu")
    biased = not args.has("--disable-bias-linear")
    learned = args.text("--position-embedding-type", "learned_absolute") == "learned_absolute"
    positions = args.whole("--max-position-embeddings", args.whole("--seq-length", 4096))
    norm: Any = "rmsnorm" if args.text("--normalization", "LayerNorm") == "RMSNorm" else "layernorm"
    mla, window = _mla(args), args.text("--window-size")
    return ModelSpec(
        name=f"the model of {name}",
        layers=args.whole("--num-layers"),
        hidden=hidden,
        ffn=args.whole("--ffn-hidden-size", (hidden * 8 // 3) // 64 * 64 if gated else 4 * hidden),
        heads=heads,
        kv_heads=args.whole("--num-query-groups", heads) if args.has("--group-query-attention") else heads,
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else args.whole("--kv-channels", hidden // heads),
        vocab=vocab,
        max_seq=positions,
        gated_mlp=gated,
        tied_embeddings=not args.has("--untie-embeddings-and-output-weights"),
        norm=norm,
        qk_norm="per_head" if args.has("--qk-layernorm") and mla is None else "none",
        qkv_bias=biased or args.has("--add-qkv-bias"),
        out_bias=biased,
        mlp_bias=biased and not _all_experts(args),
        learned_positions=positions if learned else 0,
        attention_sinks=args.text("--softmax-type") == "learnable",
        window=_window(window, name),
        full_attention_every=args.whole("--window-attn-skip-freq", 0) if window else 1,
        mla=mla,
        moe=_moe(args, biased, name),
        source=f"read from {name}",
    )


def _window(text: str, name: str) -> int | None:
    if not text:
        return None
    left = text.strip("()").partition(",")[0]
    if not left.isdigit():
        raise InputError(f"{name}: --window-size", text, want="two whole numbers, such as 127,0")
    return int(left) + 1


def _mla(args: Arguments) -> MLA | None:
    if not args.has("--multi-latent-attention"):
        return None
    return MLA(
        q_lora_rank=args.maybe("--q-lora-rank"),
        kv_lora_rank=args.whole("--kv-lora-rank", 32),
        qk_nope_head_dim=args.whole("--qk-head-dim", 128),
        qk_rope_head_dim=args.whole("--qk-pos-emb-head-dim", 64),
        v_head_dim=args.whole("--v-head-dim", 128),
    )


def _all_experts(args: Arguments) -> bool:
    return args.has("--num-experts") and not args.has("--moe-layer-freq")


def _moe(args: Arguments, biased: bool, name: str) -> MoE | None:
    if not args.has("--num-experts"):
        return None
    first, every = pattern_shape(args.text("--moe-layer-freq", "1"), name)
    return MoE(
        experts=args.whole("--num-experts"),
        topk=args.whole("--moe-router-topk", 2),
        ffn=args.whole("--moe-ffn-hidden-size", args.whole("--ffn-hidden-size", 4 * args.whole("--hidden-size"))),
        shared_ffn=args.whole("--moe-shared-expert-intermediate-size", 0),
        first_dense=first,
        every=every,
        router_bias=biased,
        expert_bias=biased,
        shared_gate=args.has("--moe-shared-expert-gate"),
    )


def pattern_shape(text: str, name: str = "pattern") -> tuple[int, int]:
    """First dense layers and the period of the expert layers after them, of Megatron's list language."""
    where = f"{name}: --moe-layer-freq"
    if text.isdigit():
        return (0, max(int(text), 1))
    flags = _pattern(text, where)
    if 1 not in flags:
        raise InputError(where, text, want="a pattern with an expert layer")
    places = [index for index, flag in enumerate(flags) if flag]
    every = places[1] - places[0] if len(places) > 1 else 1
    first = places[0] - every + 1
    made = [int(index >= first and (index - first + 1) % every == 0) for index in range(len(flags))]
    if first < 0 or made != flags:
        raise InputError(where, text, want="dense layers first, then experts in every layer or every n-th")
    return first, every


def _pattern(text: str, where: str) -> list[int]:
    """Sums and multiples of lists of 0 and 1, without evaluating anything."""
    if len(text) > 2000 or text.count("(") > 50 or set(text) - set("01[]()+*,23456789 "):
        raise InputError(where, text, want="a pattern such as ([0]*3+[1]*58)")
    tokens = re.findall(r"\[[01, ]*\]|[0-9]+|[()+*]", text)
    flags, rest = _sum_of_lists(tokens, where, text)
    if rest:
        raise InputError(where, text, want="a pattern such as ([0]*3+[1]*58)")
    return flags


def _sum_of_lists(tokens: list[str], where: str, text: str) -> tuple[list[int], list[str]]:
    total: list[int] = []
    while True:
        if tokens and tokens[0] == "(":
            part, tokens = _sum_of_lists(tokens[1:], where, text)
            tokens = tokens[1:]
        elif tokens and tokens[0].startswith("["):
            part, tokens = [int(flag) for flag in re.findall(r"[01]", tokens[0])], tokens[1:]
        else:
            raise InputError(where, text, want="a pattern such as ([0]*3+[1]*58)")
        while len(tokens) > 1 and tokens[0] == "*" and tokens[1].isdigit():
            part, tokens = part * min(int(tokens[1]), 10_000), tokens[2:]
        total += part
        if len(total) > 10_000:
            raise InputError(where, None, want="a pattern of at most 10,000 layers")
        if not tokens or tokens[0] != "+":
            return total, tokens
        tokens = tokens[1:]
