"""Megatron-LM arguments as a strategy, a workload and a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.import_megatron_model import Arguments, model_of
from astra.export.imported import Imported
from astra.spec.strategy import MAX_STAGES, Strategy

# Arguments that change speed or memory but have no place in a strategy; with a value, only where it is another one.
_TOLD: Final = {
    "--cuda-graph-impl": "none",
    "--cp-comm-type": "p2p",
    "--cpu-offloading-num-layers": "0",
    "--delay-wgrad-compute": "",
    "--fine-grained-activation-offloading": "",
    "--first-last-layers-bf16": "",
    "--fp4-format": "",
    "--fp8-param-gather": "",
    "--grad-reduce-in-bf16": "",
    "--hierarchical-context-parallel-sizes": "",
    "--hybrid-layer-pattern": "",
    "--microbatch-group-size-per-virtual-pipeline-stage": "",
    "--moe-expert-capacity-factor": "",
    "--moe-pad-expert-input-to-capacity": "",
    "--moe-shared-expert-overlap": "",
    "--moe-token-dispatcher-type": "alltoall",
    "--mtp-num-layers": "0",
    "--num-distributed-optimizer-instances": "1",
    "--optimizer-offload-fraction": "1.0",
    "--overlap-moe-expert-parallel-comm": "",
    "--rampup-batch-size": "",
    "--recompute-modules": "core_attn",
    "--tensor-parallel-num-weight-shards": "",
    "--transformer-impl": "transformer_engine",
    "--use-torch-fsdp2": "",
    "--use-tp-pp-dp-mapping": "",
}
_REPEATED: Final = (re.compile(r"\(([^()]*)\)\*([0-9]{1,4})"), re.compile(r"([A-Za-z|])\*([0-9]{1,4})"))


def from_words(words: list[str], variables: Mapping[str, str], *, name: str, gpus: int | None = None) -> Imported:
    """What a command line would train, and how."""
    args = Arguments(words, name)
    if args.has("--yaml-cfg"):
        fix = "Give a script with the same settings as flags."
        raise InputError(
            f"{name}: --yaml-cfg", args.text("--yaml-cfg"), want="settings as flags, not in a YAML", fix=fix
        )
    tp, pp = args.count("--tensor-model-parallel-size", 1), args.count("--pipeline-model-parallel-size", 1)
    cp = args.count("--context-parallel-size", 1)
    world = gpus or _world(args, variables)
    if world is None:
        fix = "Give --gpus; the script does not say how many it starts (--nnodes and --nproc-per-node of torchrun)."
        raise InputError(name, None, want="the number of GPUs", fix=fix)
    if world % (tp * pp * cp):
        want = f"a number of GPUs that tp*pp*cp = {tp * pp * cp} divides"
        raise InputError(name, world, want=want, fix="Give --gpus if the script starts on more nodes than it says.")
    layers, vp = _pipeline(args, pp, name)
    model = model_of(args, name)
    strategy = _strategy(args, tp, pp, cp, world // (tp * pp * cp), vp, layers)
    return Imported(
        framework="megatron",
        strategy=strategy,
        gpus=world,
        global_batch=args.maybe("--global-batch-size") or strategy.mbs * strategy.dp,
        seq=args.maybe("--seq-length") or args.maybe("--encoder-seq-length"),
        precision="fp8" if args.has("--fp8-format") else "fp16" if args.has("--fp16") else "bf16",
        optimizer="sgd" if args.text("--optimizer") == "sgd" else "adam",
        model=model,
        recipe=None,
        ignored=_unused(args, hybrid=model is not None and model.state_space is not None),
    )


def _unused(args: Arguments, *, hybrid: bool) -> tuple[str, ...]:
    """Flags that change what is trained and are not read; the pattern is, where the model is a known hybrid."""
    read = {"--hybrid-layer-pattern"} if hybrid else set()
    found = {flag: " ".join(args.flags[flag]) for flag in sorted(args.flags) if flag in _TOLD and flag not in read}
    told = [f"{flag} {value}".strip() for flag, value in found.items() if not value or value != _TOLD[flag]]
    optimizer = args.text("--optimizer", "adam")
    return (*told, *([f"--optimizer {optimizer}, taken as adam"] if optimizer not in ("adam", "sgd") else []))


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
    flag = "--pipeline-model-parallel-layout"
    layers: tuple[int, ...] = ()
    if args.has(flag):
        layers = layout_layers(args.text(flag), name)
    elif "|" in args.text("--hybrid-layer-pattern"):
        flag = "--hybrid-layer-pattern"
        layers = tuple(len(stage) for stage in args.text(flag).split("|"))
    if layers:
        _check_stages(len(layers), name)
        if len(layers) % pp:
            raise InputError(f"{name}: {flag}", len(layers), want=f"a multiple of pp={pp} stages")
        return (layers if len(set(layers)) > 1 else ()), len(layers) // pp
    depth = args.whole("--num-layers", 0)
    if pp == 1 or depth == 0:
        return (), 1
    first, last = args.maybe("--decoder-first-pipeline-num-layers"), args.maybe("--decoder-last-pipeline-num-layers")
    _check_stages(pp, name)
    ends = args.has("--account-for-embedding-in-pipeline-split"), args.has("--account-for-loss-in-pipeline-split")
    ranks = _ranks(depth, pp, first, last, ends)
    vp = args.maybe("--num-virtual-stages-per-pipeline-rank") or 1
    each = args.maybe("--num-layers-per-virtual-pipeline-stage")
    if each:
        vp = max((depth + sum(ends)) // pp // each, 1)
    _check_stages(pp * vp, name)
    layers = tuple(count // vp for _ in range(vp) for count in ranks)
    if any(ends) and vp > 1:
        layers = _with_ends(depth, pp * vp, ends)
    return (layers if len(set(layers)) > 1 else ()), vp


def _check_stages(stages: int, name: str) -> None:
    if stages > MAX_STAGES:
        raise InputError(f"{name}: pipeline", stages, want=f"at most {MAX_STAGES:,} stages")


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
    plain = text[: MAX_STAGES + 1].replace(",", "").replace(" ", "")
    for pattern in _REPEATED:
        repeats = [(match.end(1) - match.start(1)) * int(match.group(2)) for match in pattern.finditer(plain)]
        if len(plain) + sum(repeats) > MAX_STAGES:
            raise InputError(where, None, want="a layout of fewer layers")
        plain = pattern.sub(lambda match: match.group(1) * int(match.group(2)), plain)
    if not plain or set(plain) - set("EtmL|"):
        raise InputError(where, text, want="letters E, t, m, L and bars, such as Et*3|t*4|t*3L")
    return tuple(stage.count("t") for stage in plain.split("|"))
