"""What a Megatron-LM command line says beside its degrees: the model, recompute, dispatcher, widths, sharding."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from astra.errors import InputError
from astra.export.imported import Arguments
from astra.export.megatron_model import CAPTURED_EXPERTS, DELTA_NET, LATENT, STATE_SPACE, YARN, flag_of
from astra.files import whole_number
from astra.spec.model import MLA, DeltaNet, ModelSpec, MoE, Rotary, StateSpace
from astra.spec.names import as_line, as_name
from astra.spec.strategy_fields import MODULES

STAGES: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
GRAPHS: Final = {"none": "none", "local": "partial", "transformer_engine": "partial", "full_iteration": "full"}


def old(args: Arguments) -> bool:
    """Whether the words are those of Megatron-LM before 2023: no TransformerEngine, attention not fused."""
    names = ("--checkpoint-activations", "--activations-checkpoint-method", "--DDP-impl", "--model-parallel-size")
    return bool({name for name in names if args.has(name)})


def recompute(args: Arguments, name: str) -> dict[str, Any]:
    """Recompute as fields of a strategy, in today's words and in those of older versions."""
    kind: Any = args.text("--recompute-granularity", "selective" if args.has("--recompute-activations") else "none")
    method = args.text("--recompute-method") or args.text("--activations-checkpoint-method")
    number = args.maybe("--recompute-num-layers") or args.maybe("--activations-checkpoint-num-layers")
    whole = [args.has(flag) for flag in ("--checkpoint-activations", "--deepspeed-activation-checkpointing")]
    if any(whole):
        kind, number = "full", number or args.maybe("--checkpoint-num-layers")
    elif kind == "none" and args.text("--activations-checkpoint-method"):
        kind = "full"
    if kind not in ("none", "selective", "full"):
        raise InputError(f"{name}: --recompute-granularity", kind, want="selective or full")
    if kind == "full":
        return {"recompute": kind, "method": method or "uniform", "recompute_layers": number or 1}
    if kind == "none":
        return {"recompute": kind}
    modules = tuple(args.texts("--recompute-modules")) or ("core_attn",)
    known = tuple(module for module in modules if module in MODULES)
    if not known:
        raise InputError(f"{name}: --recompute-modules", " ".join(modules), want=f"some of {', '.join(MODULES)}")
    return {"recompute": kind, "modules": known}


def other_modules(args: Arguments) -> list[str]:
    """Recomputed modules that a strategy has no word for."""
    modules = [word for word in args.texts("--recompute-modules") if word not in MODULES]
    return [f"--recompute-modules {' '.join(modules)}"] if modules else []


def zero(args: Arguments, name: str) -> int:
    """The ZeRO stage."""
    if args.has("--deepspeed"):
        stage = args.text("--zero-stage")
        if not re.fullmatch(r"[0-3](\.0)?", stage):
            fix = "Add it to the command, or import the DeepSpeed JSON itself."
            raise InputError(f"{name}: --zero-stage", stage or None, want="the ZeRO stage, 0 to 3", fix=fix)
        return int(stage[0])
    sharded = args.has("--use-distributed-optimizer")
    if args.has("--use-torch-fsdp2"):
        return 3
    if args.has("--use-megatron-fsdp") or args.has("--use-custom-fsdp"):
        word = args.text("--data-parallel-sharding-strategy", "no_shard")
        if word not in STAGES:
            want = f"one of {', '.join(STAGES)}"
            raise InputError(f"{name}: --data-parallel-sharding-strategy", word, want=want)
        return STAGES[word]
    return int(sharded)


def words(args: Arguments, name: str, dp: int, ep: int) -> dict[str, Any]:
    """Dispatcher, graphs, widths, offload and groups of shards as fields of a strategy."""
    kind = args.text("--moe-token-dispatcher-type", "alltoall" if ep > 1 else "allgather")
    backend = args.text("--moe-flex-dispatcher-backend", "deepep")
    flex = (kind == "flex" or args.has("--moe-enable-deepep")) and ep > 1
    graphs = args.text("--cuda-graph-impl", "none")
    if args.has("--enable-cuda-graph") or args.has("--external-cuda-graph"):
        graphs = "transformer_engine"
    for flag in ("--cuda-graph-modules", "--cuda-graph-scope"):
        if "full_iteration" in args.texts(flag):
            graphs = "full_iteration"
    narrow = args.has("--use-precision-aware-optimizer") and args.text("--exp-avg-dtype") in ("bf16", "fp16", "fp8")
    copies = args.maybe("--num-distributed-optimizer-instances") or 1
    if dp % copies:
        where = f"{name}: --num-distributed-optimizer-instances"
        raise InputError(where, copies, want=f"a number that the {dp} replicas divide by")
    args.text("--exp-avg-sq-dtype")
    if graphs == "full_iteration":
        for field in CAPTURED_EXPERTS:  # a graph of the whole step has them
            args.text(flag_of(field))
    return {
        "dispatch": ("hybridep" if backend == "hybridep" else "deepep") if flex else "alltoall",
        "graphs": GRAPHS.get(graphs, "partial"),
        "moments": "bf16" if narrow else "fp32",
        "params": "fp8" if args.has("--fp8-param-gather") or args.has("--fp8-param") else "bf16",
        "grads": _reduced(args),
        "offload": "optimizer" if args.has("--optimizer-cpu-offload") or args.has("--cpu-optimizer") else "none",
        "offload_layers": args.whole("--cpu-offloading-num-layers", 0),
        "shard": dp // copies if copies > 1 else 0,
    }


def _reduced(args: Arguments) -> str:
    """What gradients are reduced in: in bf16 Megatron-LM widens them by itself, in fp16 only where it is told to."""
    widened = args.has("--accumulate-allreduce-grads-in-fp32") or args.has("--fp32-allreduce")
    as_made = args.has("--fp16") and not args.has("--deepspeed") and not widened
    return "bf16" if args.has("--grad-reduce-in-bf16") or as_made else "fp32"


# How fp8 operands are scaled, where it is said; where it is not, as is usual on the GPU.
FP8_SCALED: Final = {
    "tensorwise": "fp8-tensorwise", "delayed": "fp8-tensorwise", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8",
}  # fmt: skip


def precision(args: Arguments) -> str:
    """The precision of a workload."""
    if args.has("--fp4-format"):
        return "nvfp4"
    if args.has("--fp8-format") or args.has("--fp8-hybrid") or args.has("--fp8-e4m3"):
        return FP8_SCALED.get(args.text("--fp8-recipe"), "fp8")
    return "fp16" if args.has("--fp16") else "bf16"


def flash(args: Arguments) -> bool:
    """Whether attention is fused."""
    if args.text("--attention-backend", "auto") in ("unfused", "local"):
        return False
    named = args.has("--use-flash-attn") or args.has("--use-flash-attn-v2") or args.has("--use-flash-attn-triton")
    bare = old(args) or args.text("--transformer-impl") == "local" or args.has("--deepspeed")
    return named or not bare


_MOST_LAYERS: Final = 10_000


def model_of(args: Arguments, name: str, vocab: int | None = None) -> ModelSpec | None:
    """The model, where its whole shape is on the command line; ``vocab`` where that does not say it."""
    said = (args.maybe(flag) for flag in ("--vocab-size", "--padded-vocab-size", "--pad-vocab-size-to"))
    vocab = next((number for number in said if number), vocab)
    needed = ("--num-layers", "--hidden-size", "--num-attention-heads")
    if vocab is None or not all(map(args.has, needed)):
        return None
    hybrid = _state_space(args)
    if args.has("--hybrid-layer-pattern") and hybrid is None:
        return None  # not a stack of equal transformer layers
    hidden, heads = args.count("--hidden-size"), args.count("--num-attention-heads")
    gated = args.has("--swiglu") or args.has("--quick-geglu")
    biased = not args.has("--disable-bias-linear")
    learned = args.text("--position-embedding-type", _positions(args)) == "learned_absolute"
    positions = args.whole("--max-position-embeddings", args.whole("--seq-length", 4096))
    norm: Any = "rmsnorm" if args.text("--normalization", "LayerNorm") == "RMSNorm" else "layernorm"
    mla, window = _mla(args), args.text("--window-size")
    return ModelSpec(
        name=as_name(f"the model of {name}"),
        layers=args.whole("--num-layers"),
        hidden=hidden,
        ffn=args.whole("--ffn-hidden-size", (hidden * 8 // 3) // 64 * 64 if gated else 4 * hidden),
        heads=heads,
        kv_heads=_kv_heads(args, heads),
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else args.whole("--kv-channels", hidden // heads),
        vocab=vocab,
        max_seq=positions,
        gated_mlp=gated,
        tied_embeddings=not args.has("--untie-embeddings-and-output-weights"),
        norm=norm,
        norms_per_layer=1 if hybrid else 2,
        qk_norm="per_head" if args.has("--qk-layernorm") and mla is None else "none",
        qkv_bias=biased or args.has("--add-qkv-bias"),
        out_bias=biased,
        mlp_bias=biased and not (has_experts(args) and not args.has("--moe-layer-freq")),
        learned_positions=positions if learned else 0,
        attention_gate=args.has("--attention-output-gate"),
        attention_sinks=args.text("--softmax-type") == "learnable",
        window=_window(window, name),
        full_attention_every=args.whole("--window-attn-skip-freq", 0) if window else 1,
        rotary=None if learned else _rotary(args, mla is not None),
        activation=_activation(args),
        norm_epsilon=args.number("--norm-epsilon", 1e-5),
        mla=mla,
        moe=_moe(args, biased, name),
        state_space=hybrid,
        delta_net=_delta_net(args, name),
        quirks=("zero_centered_norm",) if args.has("--apply-layernorm-1p") else (),
        source=as_line(f"read from {name}"),
    )


def _positions(args: Arguments) -> str:
    """The kind of positions that flags of older versions say."""
    if args.has("--use-rotary-position-embeddings"):
        return "rope"
    return "alibi" if args.has("--use-alibi-position-embeddings") else "learned_absolute"


def _kv_heads(args: Arguments, heads: int) -> int:
    """Groups of queries; Megatron-DeepSpeed has a flag of its own."""
    if args.text("--attention-head-type") == "multiquery":
        return 1
    if args.has("--num-key-value-heads"):
        return args.count("--num-key-value-heads")
    return args.whole("--num-query-groups", heads) if args.has("--group-query-attention") else heads


def _state_space(args: Arguments) -> StateSpace | None:
    """A hybrid of the blocks known here that says its sizes; others are not read."""
    pattern = args.text("--hybrid-layer-pattern").replace("|", "")
    if not args.has("--mamba-num-heads") or "M" not in pattern or set(pattern) - set("M*-E"):
        return None
    if len(pattern) != args.whole("--num-layers") or ("E" in pattern) != args.has("--num-experts"):
        return None
    return StateSpace(pattern=pattern, **_sizes(args, STATE_SPACE))


def _sizes(args: Arguments, flags: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """Fields of a record by the flags of a table: whole numbers above zero where their usual values are whole."""
    return {
        field: args.count(flag, usual) if isinstance(usual, int) else args.number(flag, usual)
        for field, (flag, usual) in flags.items()
    }


def _delta_net(args: Arguments, name: str) -> DeltaNet | None:
    """Delta nets in all layers but the last of each group; sizes that are not said are Megatron's own."""
    if args.text("--experimental-attention-variant") != "gated_delta_net":
        return None
    flag = DELTA_NET["attention_every"][0]
    if whole_number(args.text(flag)) is None:
        raise InputError(f"{name}: {flag}", args.text(flag), want="a whole number: one layer in so many attends")
    return DeltaNet(**_sizes(args, DELTA_NET))


def _activation(args: Arguments) -> Any:
    if args.has("--quick-geglu"):
        return "clamped_swiglu" if args.number("--activation-func-clamp-value", 0.0) else None
    return "silu" if args.has("--swiglu") else "relu2" if args.has("--squared-relu") else "gelu"


def _rotary(args: Arguments, latent: bool) -> Rotary | None:
    kind = args.text("--position-embedding-type", _positions(args))
    if kind not in ("rope", "yarn"):
        return None
    plain = Rotary(base=args.number("--rotary-base", 10_000.0), fraction=args.number("--rotary-percent", 1.0))
    fields: dict[str, Any] = {}
    stretch = args.number("--rotary-scaling-factor", 1.0)
    if (latent and stretch != 1) or kind == "yarn":
        rounded = not args.has("--no-yarn-correction-range-round-to-int")
        fields = {"scaling": "yarn", **_sizes(args, YARN), "rounded": rounded}
    elif args.has("--use-rope-scaling"):
        # The script's own constants: it does not hand --rope-scaling-factor on.
        fields = {"scaling": "llama3", "factor": 8.0, "original_positions": 8192}
    elif args.has("--rotary-seq-len-interpolation-factor"):
        fields = {"scaling": "linear", "factor": args.number("--rotary-seq-len-interpolation-factor", 1.0)}
    return replace(plain, **fields)


def _window(text: str, name: str) -> int | None:
    if not text:
        return None
    left = whole_number(text.strip("()").partition(",")[0])
    if left is None:
        raise InputError(f"{name}: --window-size", text, want="two whole numbers, such as 127,0")
    return left + 1


def _mla(args: Arguments) -> MLA | None:
    if not args.has("--multi-latent-attention"):
        return None
    return MLA(q_lora_rank=args.maybe("--q-lora-rank"), **_sizes(args, LATENT))


def has_experts(args: Arguments) -> bool:
    """Whether there are experts to choose from: Megatron-DeepSpeed calls a dense model one of a single expert."""
    return args.text("--num-experts") not in ("", "1", "None")


def _moe(args: Arguments, biased: bool, name: str) -> MoE | None:
    if not has_experts(args):
        return None
    first, every = pattern_shape(args.text("--moe-layer-freq", "1"), name)
    score: Any = args.text("--moe-router-score-function", "softmax")
    groups = args.whole("--moe-router-num-groups", 1)
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
        score=score,
        normalized=score == "sigmoid" or not args.has("--moe-router-pre-softmax"),
        weight_scale=args.number("--moe-router-topk-scaling-factor", 1.0),
        groups=groups,
        groups_kept=min(args.whole("--moe-router-group-topk", 1), groups),
        balance_bias=args.has("--moe-router-enable-expert-bias"),
    )


def pattern_shape(text: str, name: str = "pattern") -> tuple[int, int]:
    """First dense layers and the period of the expert layers after them, of Megatron's list language."""
    where = f"{name}: --moe-layer-freq"
    period = whole_number(text)
    if period is not None:
        return (0, max(period, 1))
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
    want = "a pattern such as ([0]*3+[1]*58)"
    if len(text) > 2000 or text.count("(") > 50 or set(text) - set("01[]()+*,23456789 "):
        raise InputError(where, text, want=want)
    try:
        return _listed(ast.parse(text.strip(), mode="eval").body)
    except OverflowError:
        raise InputError(where, None, want=f"a pattern of at most {_MOST_LAYERS:,} layers") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(where, text, want=want) from None


def _listed(node: ast.AST) -> list[int]:
    """The list of an expression; an OverflowError where it is too long."""
    if isinstance(node, ast.List):
        flags = [int(ast.literal_eval(item)) for item in node.elts]
        if set(flags) - {0, 1}:
            raise ValueError
        return flags
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add | ast.Mult):
        raise ValueError
    first, times = _listed(node.left), 1
    if isinstance(node.op, ast.Mult):
        times, other = int(ast.unparse(node.right)), []
    else:
        other = _listed(node.right)
    if len(first) * times + len(other) > _MOST_LAYERS:
        raise OverflowError
    return first * times + other
