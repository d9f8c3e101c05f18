"""Megatron-LM arguments as a strategy, a workload and a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

from astra.errors import InputError
from astra.export.base import template
from astra.export.import_megatron_model import (
    FP8_SCALED,
    flash,
    has_experts,
    model_of,
    old,
    other_modules,
    precision,
    recompute,
    words,
    zero,
)
from astra.export.imported import Arguments, ImportAsked, ImportedLaunch
from astra.files import load_toml
from astra.spec.strategy import MAX_STAGES, Strategy


@cache
def _sorted() -> dict[str, Any]:
    return load_toml(template("megatron_flags.toml").encode())


@cache
def shape_flags() -> frozenset[str]:
    """What fixes the model: read, or of no use without the rest of it."""
    return frozenset(f"--{name}" for name in _sorted()["shape"])


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of flags that change nothing of a step, and of those that do."""
    return re.compile(f"--(?:{'|'.join(_sorted()['harmless'])})"), re.compile("|".join(_sorted()["costly"]))


def unread(flags: Mapping[str, Sequence[str]], read: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags nobody read: those that decide speed or memory, with their values, and those that are not known."""
    harmless, costs = _patterns()
    costly: list[str] = []
    unknown: list[str] = []
    for flag in sorted(set(flags) - set(read)):
        said = " ".join(flags[flag])
        shown = f"{flag} {said}".strip()
        if said in _sorted()["usual"].get(flag.removeprefix("--"), ()) or harmless.fullmatch(flag):
            continue
        (costly if costs.search(flag) else unknown).append(shown)
    return tuple(costly), tuple(unknown)


_REPEATED: Final = (re.compile(r"\(([^()]*)\)\*([0-9]{1,4})"), re.compile(r"([A-Za-z|])\*([0-9]{1,4})"))


def from_words(
    words: list[str], variables: Mapping[str, str], asked: ImportAsked, *, files: Mapping[str, str] | None = None
) -> ImportedLaunch:
    """What a command line would train, and how; ``files`` are those that the script itself writes."""
    name = asked.name
    launcher, args = split(words, name)
    _check_degrees(args, name)
    if args.has("--yaml-cfg"):
        fix = "Give a script with the same settings as flags."
        raise InputError(
            f"{name}: --yaml-cfg", args.text("--yaml-cfg"), want="settings as flags, not in a YAML", fix=fix
        )
    tp = args.count("--tensor-model-parallel-size", args.count("--model-parallel-size", 1))
    pp, cp = args.count("--pipeline-model-parallel-size", 1), args.count("--context-parallel-size", 1)
    if args.has("--no-pipeline-parallel"):
        pp = 1
    world = asked.gpus or world_of(launcher, variables, words)
    if world is None:
        fix = "Give --gpus; the script does not say how many it starts (--nnodes and --nproc-per-node of torchrun)."
        raise InputError(name, None, want="the number of GPUs", fix=fix)
    if world % (tp * pp * cp):
        want = f"a number of GPUs that tp*pp*cp = {tp * pp * cp} divides"
        raise InputError(name, world, want=want, fix="Give --gpus if the script starts on more nodes than it says.")
    layers, vp = _pipeline(args, pp, name)
    other = next((word for word in words if _OTHER_MODEL.search(word)), None)
    model = None if other else model_of(args, name, asked.vocab)
    lacks_vocab = model is None and other is None and model_of(args, name, 1024) is not None
    if args.has("--deepspeed") and not args.has("--zero-stage"):
        _written_stage(args, files or {}, asked)
    strategy = _strategy(args, (tp, pp, vp, cp, world // (tp * pp * cp)), layers, name)
    batch = args.maybe("--global-batch-size") or strategy.mbs * strategy.dp * (
        args.maybe("--num-micro-batches-in-minibatch") or args.maybe("--gradient-accumulation-steps") or 1
    )
    chosen = "sgd" if args.text("--optimizer") == "sgd" else "adam"
    seq, width = args.maybe("--seq-length") or args.maybe("--encoder-seq-length"), precision(args)
    if other and args.has("--decoder-seq-length"):
        seq = None  # two lengths, of two models
    mtp = args.maybe("--mtp-num-layers") or None
    named = (*_unused(args), *([f"{other}, whose model is not a plain decoder"] if other else []))
    pattern = {"--hybrid-layer-pattern"} if model is None or model.state_space is None else set()
    costly, unknown = unread(args.flags, (args.read | shape_flags()) - pattern)
    return ImportedLaunch(
        framework="deepspeed" if args.has("--deepspeed") else "megatron-apex" if old(args) else "megatron",
        strategy=strategy,
        gpus=world,
        global_batch=batch,
        seq=seq,
        precision=width,
        optimizer=chosen,
        model=model,
        ignored=(*costly, *named),
        unknown=unknown,
        mtp=mtp,
        lacks_vocab=lacks_vocab,
    )


# Other ways of splitting work than those a strategy has words for, under names of their own.
_DEGREE: Final = re.compile(
    r"--(?:[a-z]+-)*(?:(?:tp|pp|dp|cp|ep|sp)(?:-size)?|(?:parallel|sharding)-(?:size|degree)s?)$"
)
# The beginning of a degree's name: Megatron-LM does not take it for the whole.
_CUT_SHORT: Final = re.compile(r"--(?:tensor|pipeline|context|expert|data)-(?:model-)?parallel(?:-s[a-z]*)?")
_KNOWN_DEGREES: Final = frozenset(
    ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
     "--model-parallel-size", "--expert-model-parallel-size", "--expert-tensor-parallel-size",
     "--moe-expert-parallel-size", "--tp", "--pp")
)  # fmt: skip


def _check_degrees(args: Arguments, name: str) -> None:
    """A degree that is not understood would make every other one wrong."""
    for flag, values in args.flags.items():
        named = _DEGREE.fullmatch(flag) or _CUT_SHORT.fullmatch(flag)
        if named and flag not in _KNOWN_DEGREES and values and values[0] not in ("0", "1", "None"):
            want = "a way of splitting that has a word in a strategy"
            raise InputError(f"{name}: {flag}", " ".join(values), want=want, fix="Set it to 1 to read the rest.")


_STAGE: Final = re.compile(r"""["']stage["']\s*:\s*([0-3])\b""")


def _written_stage(args: Arguments, files: Mapping[str, str], asked: ImportAsked) -> None:
    """The ZeRO stage of a configuration that the script writes itself, or that lies beside it."""
    named = args.text("--deepspeed_config") or args.text("--deepspeed-config")
    found = asked.file_named(named)
    text = files.get(named, "") or (found[1] if found else "")
    stages = set(_STAGE.findall(text))
    if len(stages) == 1:
        args.flags["--zero-stage"] = [stages.pop()]
    elif text and not stages and "zero_optimization" not in text and "$" not in text:
        args.flags["--zero-stage"] = ["0"]


def _unused(args: Arguments) -> tuple[str, ...]:
    """What is read and taken for something else."""
    named = other_modules(args)
    optimizer = args.text("--optimizer", "adam")
    if optimizer not in ("adam", "sgd"):
        named.append(f"--optimizer {optimizer}, taken as adam")
    if args.has("--use-torch-fsdp2"):
        named.append("--use-torch-fsdp2, taken as Megatron-FSDP")
    scaling = args.text("--fp8-recipe")
    if scaling and scaling not in FP8_SCALED:
        named.append(f"--fp8-recipe {scaling}, taken as the usual one of the GPU")
    if scaling == "delayed":
        named.append("--fp8-recipe delayed, taken as tensorwise")
    fraction = args.text("--optimizer-offload-fraction", "1.0")
    if fraction not in ("1.0", "1"):
        named.append(f"--optimizer-offload-fraction {fraction}, taken as 1.0")
    if args.text("--moe-flex-dispatcher-backend") == "ncclep":
        named.append("--moe-flex-dispatcher-backend ncclep, taken as deepep")
    return tuple(named)


def split(words: list[str], name: str) -> tuple[Arguments, Arguments]:
    """The launcher's flags (torchrun, srun, deepspeed) and the program's."""
    place = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
    if place is None:
        both = Arguments(words, name)
        return both, both
    return Arguments(words[:place], name), Arguments(words[place + 1 :], name)


_OTHER_MODEL: Final = re.compile(
    r"(?:bert|_t5|ict|vision|vlm|retro|mimo|multimodal|clip|dino|llava)[^/]*\.py$|(?:multimodal|mimo)/[^/]*\.py$"
)
_NODES: Final = ("--nnodes", "--num_nodes", "--num-nodes", "--nodes")
_EACH: Final = ("--nproc-per-node", "--nproc_per_node", "--num_gpus", "--ntasks-per-node", "--gpus-per-node")
_NODE_NAMES: Final = ("NNODES", "NUM_NODES", "SLURM_NNODES", "NODES", "WORKER_NUM")
_EACH_NAMES: Final = ("GPUS_PER_NODE", "NPROC_PER_NODE", "SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE", "NUM_GPUS")


_TORCHRUN: Final = re.compile(r"(?:^|/)torchrun$|^torch\.distributed\.(?:run|launch)$")
_SHORT: Final = {"-np": "tasks", "-n": "tasks", "-N": "nodes", "--np": "tasks"}


def world_of(launcher: Arguments, variables: Mapping[str, str], words: Sequence[str] = ()) -> int | None:
    """Ranks that the launcher starts; else what the usual variables say."""
    for flag in (*_NODES, *_EACH):
        if launcher.has(flag) and not re.match(r"[1-9]", launcher.text(flag)):
            return None  # a variable of the surroundings
    short = {_SHORT[word]: after for word, after in pairwise(words) if word in _SHORT}
    alone = any(_TORCHRUN.search(word) for word in words)  # it starts on one node unless it is told of more
    around = () if alone else (variables.get(name, "") for name in _NODE_NAMES)
    nodes = _first_number(*map(launcher.text, _NODES), "" if alone else short.get("nodes", ""), *around)
    each = _first_number(*map(launcher.text, _EACH), *(variables.get(name, "") for name in _EACH_NAMES))
    if words and words[0] in ("mpirun", "mpiexec", "srun", "aprun") and not any(map(launcher.has, _EACH)):
        tasks = _first_number(short.get("tasks", ""), launcher.text("--ntasks"))
        if tasks is not None:
            return tasks
    if each is None and launcher.has("--include"):  # deepspeed: node:0,1@other:0,1
        listed = re.findall(r":([0-9,]+)", launcher.text("--include"))
        return sum(len(places.split(",")) for places in listed) or None
    if each is not None:
        return each * (nodes or 1)
    return _first_number(variables.get("WORLD_SIZE", ""), variables.get("SLURM_NTASKS", ""))


def _first_number(*texts: str) -> int | None:
    return next((int(text) for text in texts if re.fullmatch(r"[1-9][0-9]{0,8}", text)), None)


def _strategy(args: Arguments, degrees: tuple[int, ...], layers: tuple[int, ...], name: str) -> Strategy:
    tp, pp, vp, cp, dp = degrees
    # A checkpoint may say the experts, the command line only how they are spread.
    experts = has_experts(args) or not args.has("--num-experts")
    overlaps = {
        "grad": args.has("--overlap-grad-reduce"),
        "param": args.has("--overlap-param-gather"),
        "tp": args.has("--tp-comm-overlap"),
        "p2p": vp > 1 and not args.has("--no-overlap-p2p-communication"),
        "ep": args.has("--overlap-moe-expert-parallel-comm"),
    }
    ep, etp = _expert_degrees(args, tp) if experts else (1, 1)
    fields: dict[str, Any] = words(args, name, dp, ep) | recompute(args, name)
    return Strategy(
        tp=tp,
        pp=pp,
        vp=vp,
        cp=cp,
        ep=ep,
        etp=etp,
        dp=dp,
        mbs=args.maybe("--micro-batch-size") or args.maybe("--batch-size") or 1,
        sp=args.has("--sequence-parallel") and tp > 1,
        zero=zero(args, name),
        overlap=tuple(word for word, on in overlaps.items() if on),
        flash=flash(args),
        schedule="interleaved" if vp > 1 else "1f1b",
        layers=layers,
        **fields,
    )


def _expert_degrees(args: Arguments, tp: int) -> tuple[int, int]:
    """Megatron-DeepSpeed has a flag of its own, and experts that are not split."""
    degrees = {args.text(flag, "1") for flag in ("--expert-model-parallel-size", "--expert-tensor-parallel-size")}
    if not has_experts(args) and degrees == {"1"}:
        return 1, 1
    if args.has("--moe-expert-parallel-size"):
        return args.count("--moe-expert-parallel-size"), tp if args.has("--enable-expert-tensor-parallelism") else 1
    return args.count("--expert-model-parallel-size", 1), args.count("--expert-tensor-parallel-size", tp)


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
    depth, vp = args.whole("--num-layers", 0), args.maybe("--num-virtual-stages-per-pipeline-rank") or 1
    if pp == 1 or depth == 0:
        return (), vp if pp > 1 else 1
    first, last = args.maybe("--decoder-first-pipeline-num-layers"), args.maybe("--decoder-last-pipeline-num-layers")
    _check_stages(pp, name)
    ends = args.has("--account-for-embedding-in-pipeline-split"), args.has("--account-for-loss-in-pipeline-split")
    ranks = _ranks(depth, pp, first, last, ends)
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
    plain = text[: MAX_STAGES + 1].replace(",", "").replace(" ", "").replace("\\", "")
    for pattern in _REPEATED:
        repeats = [(match.end(1) - match.start(1)) * int(match.group(2)) for match in pattern.finditer(plain)]
        if len(plain) + sum(repeats) > MAX_STAGES:
            raise InputError(where, None, want="a layout of fewer layers")
        plain = pattern.sub(lambda match: match.group(1) * int(match.group(2)), plain)
    if not plain or set(plain) - set("EtmL|"):
        raise InputError(where, text, want="letters E, t, m, L and bars, such as Et*3|t*4|t*3L")
    return tuple(stage.count("t") for stage in plain.split("|"))
