"""Plain PyTorch: `train.py`, one readable file with the plan as constants at its top, for torchrun; and read back.

It is never run: the constants are taken from its text.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from astra.errors import InputError
from astra.export.base import WHOLE_NODES, Exporter, Launch, Left, Limit, header, joined, python_header, template
from astra.export.imported import ImportedLaunch
from astra.export.launch_script import HERE, RENDEZVOUS, host_order, node_sizes, run, torchrun
from astra.export.quoting import comment, python
from astra.spec.mixed import Group, MixedStrategy, Segment, plain_group, pool_word
from astra.spec.model import ModelSpec, Rotary
from astra.spec.names import as_name
from astra.spec.record import decode
from astra.spec.strategy import Strategy, replace
from astra.spec.workload import Workload

BEGIN: Final = "# --- The plan ---"
END: Final = "# --- End of the plan ---"
_CONSTANT: Final = re.compile(r"([A-Z_]+)(: [^=]+)? = .*?(  # .*)?")


def _uneven_groups(launch: Launch) -> bool:
    parts = launch.groups or (launch,)
    return any(len({(mesh.tp, mesh.cp, mesh.ep, mesh.recompute) for mesh in part.meshes}) > 1 for part in parts)


def _files(launch: Launch) -> dict[str, str]:
    together = {} if launch.several_vendors else {"launch.sh": _script(launch)}
    apart = {"job.sh": _job(launch)} if able_apart(launch) else {}
    return {"train.py": program(launch), **together, **apart}


def _notes(launch: Launch) -> str:
    return template("pytorch_notes.md") + template("pytorch_jobs.md") * able_apart(launch)


def _left(launch: Launch) -> list[Left]:
    every = f"`--save DIR` writes one every {launch.save_interval} steps"
    return [
        Left("`--data`", "a file of tokens, each a little-endian number of 16 or 32 bits; random tokens without it"),
        Left("`--lr`, `--steps`", "the learning rate, and the steps where the plan has no number of tokens"),
        Left("checkpoints", f"{every}, `--load DIR/step-N` goes on from one; none without it"),
    ]


PYTORCH: Final = Exporter(
    name="pytorch",
    title="a plain PyTorch trainer",
    verified="torch 2.13.0: run by torchrun on 1 to 4 CPU processes, the losses those of one",
    runtime="pytorch",
    takes_groups=True,
    limits=(
        Limit("tp", "a group of replicas has one tp and recompute setting for every stage", _uneven_groups),
        Limit("tp", "groups that share one state have one GPU for each replica",
              lambda it: bool(it.shares) and any(one.strategy.tp > 1 for one in it.groups)),
        Limit("cluster", "GPUs of several vendors are joined only where each group of replicas is a job of its own",
              lambda it: it.several_vendors and not able_apart(it)),
        WHOLE_NODES,
    ),
    made=_files,
    left=_left,
    notes=_notes,
)  # fmt: skip


def able_apart(launch: Launch) -> bool:
    """Whether each group can be a job of its own."""
    return bool(launch.groups) and not launch.shares and all(len(part.meshes) == 1 for part in launch.groups)


def program(launch: Launch) -> str:
    """The trainer with the plan's values in the place of the template's."""
    start, plan, rest = _template()
    values = constants(launch)
    lines = [_filled(line, values) for line in plan]
    head = python_header(launch, PYTORCH.verified)
    return joined([*head, *start, BEGIN, *lines, END, *rest])


@cache
def _template() -> tuple[list[str], list[str], list[str]]:
    """The lines before the plan without the template's own comments, those of the plan, and those behind it."""
    lines = template("train.py.in").splitlines()
    first, last = lines.index(BEGIN), lines.index(END)
    begins = next(place for place, line in enumerate(lines) if not line.startswith("#"))
    return lines[begins:first], lines[first + 1 : last], lines[last + 1 :]


def template_names() -> tuple[str, ...]:
    """The constants of a plan, in order."""
    found = (_CONSTANT.fullmatch(line) for line in _template()[1])
    return tuple(match[1] for match in found if match is not None)


def _filled(line: str, values: dict[str, Any]) -> str:
    """A line of the template's plan with the value of this plan."""
    found = _CONSTANT.fullmatch(line)
    if found is None:
        return line
    name, kind, remark = found.groups(default="")
    return f"{name}{kind} = {python(values[name])}{remark}"


def constants(launch: Launch) -> dict[str, Any]:
    """Everything the plan decides, by the trainer's names."""
    workload, tokens = launch.workload, launch.workload.tokens
    return {
        **_of_group(launch),
        "GLOBAL_BATCH": workload.global_batch,
        "SEQ": workload.seq,
        "PRECISION": workload.precision,
        "GROUPS": tuple(
            _of_group(part)
            | {"SAMPLES": part.workload.global_batch}
            | {"POOLS": tuple((pool_word(mesh.pool.name or mesh.pool.device.name), mesh.pp) for mesh in part.meshes)}
            for part in launch.groups
        ),
        "SHARES": launch.shares,
        "LOCAL": launch.local,
        "STEPS": max(1, round(tokens / workload.tokens_per_step)) if tokens is not None else 1000,
        "SAVE_EVERY": launch.save_interval,
        **_shape(launch.model),
    }


# The trainer's constants that are fields of the strategy and of the model: written and read by these.
_OF_GROUP: Final = {
    "TP": "tp", "SP": "sp", "PP": "pp", "SCHEDULE": "schedule", "LAYERS": "layers", "DP": "dp",
    "RECOMPUTE": "recompute", "MICRO_BATCH": "mbs", "ZERO": "zero", "SHARD": "shard", "RESHARD": "reshard",
}  # fmt: skip
_OF_MODEL: Final = {
    "HIDDEN": "hidden", "FFN": "ffn", "HEADS": "heads", "KV_HEADS": "kv_heads", "HEAD_DIM": "head_dim",
    "VOCAB": "vocab", "GATED": "gated_mlp", "ACTIVATION": "activation", "NORM": "norm", "NORM_BIAS": "norm_bias",
    "NORM_EPSILON": "norm_epsilon", "QK_NORM": "qk_norm", "QKV_BIAS": "qkv_bias", "OUT_BIAS": "out_bias",
    "MLP_BIAS": "mlp_bias", "HEAD_BIAS": "head_bias", "TIED": "tied_embeddings", "POSITIONS": "learned_positions",
    "ROTARY": "rotary",
}  # fmt: skip


def _fields(record: object, table: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(record, field) for name, field in table.items()}


def _of_group(launch: Launch) -> dict[str, Any]:
    """What a group of replicas decides."""
    return _fields(launch.strategy, _OF_GROUP) | {"LAYERS": launch.layers}


def _shape(model: ModelSpec) -> dict[str, Any]:
    """The model; what is not known of it is what is usual."""
    return _fields(model, _OF_MODEL) | {
        "ACTIVATION": model.activation or ("silu" if model.gated_mlp else "gelu"),
        "NORM_EPSILON": model.norm_epsilon or 1e-5,
        "QK_NORM": model.qk_norm == "per_head",
        "ROTARY": None if model.learned_positions else rotary(model.rotary or Rotary()),
    }


def rotary(turning: Rotary) -> dict[str, Any]:
    """Rotary positions, with the numbers that their stretching takes."""
    fields: dict[str, Any] = {"base": turning.base, "fraction": turning.fraction, "scaling": turning.scaling}
    if turning.scaling != "none":
        fields["factor"] = turning.factor
    if turning.scaling == "llama3":
        fields |= {"low_frequency": turning.low_frequency, "high_frequency": turning.high_frequency}
        fields |= {"original_positions": turning.original_positions}
    return fields


def _script(launch: Launch) -> str:
    lines = ["#!/usr/bin/env bash", *header(launch, PYTORCH.verified), *host_order(launch), "set -euo pipefail", ""]
    lines += [RENDEZVOUS, *node_sizes(launch), HERE, ""]
    return joined([*lines, torchrun(launch, '"$HERE/train.py"', '"$@"')])


def read_constants(tree: ast.Module, name: str) -> ImportedLaunch | None:
    """The plan of a trainer; None if the file is none."""
    found = _constants(tree)
    if not {"TP", "PP", "DP", "LAYERS", "MICRO_BATCH"} <= set(found):
        return None
    found.setdefault("LOCAL", 1)  # trainers written before there were local steps
    for missing in (one for one in template_names() if one not in found):
        raise InputError(name, None, want=f"the constant {missing}, as astra export --to pytorch writes it")
    strategy: Strategy = decode(Strategy, _strategy_said(found, name), where=name)
    said = {"global_batch": found["GLOBAL_BATCH"], "seq": found["SEQ"], "precision": found["PRECISION"]}
    workload: Workload = decode(Workload, said, where=name)
    mixed = _mixed(found, strategy, name) if found["GROUPS"] else None
    return ImportedLaunch(
        framework="pytorch",
        strategy=strategy,
        mixed=mixed,
        gpus=strategy.gpus if mixed is None else mixed.gpus,
        global_batch=workload.global_batch,
        seq=workload.seq,
        precision=workload.precision,
        model=decode(ModelSpec, _model_said(found, name), where=name),
    )


def _constants(tree: ast.Module) -> dict[str, Any]:
    """What the file sets at its top to plain data."""
    found: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            try:
                found.setdefault(target.id, ast.literal_eval(value))
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue
    return found


def _strategy_said(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The trainer hides gradients and weights wherever it reduces and gathers them."""
    layers, pp = found["LAYERS"], found["PP"]
    whole = isinstance(layers, tuple) and bool(layers) and all(type(count) is int for count in layers)
    if not whole or type(pp) is not int or pp < 1 or len(layers) % pp:
        raise InputError(f"{name}: LAYERS", layers, want="as many layers of each stage as there are stages")
    vp = len(layers) // pp
    hidden = ("grad", *(["param"] if found["ZERO"] == 3 else []), *(["p2p"] if vp > 1 else []))
    uneven = layers if len(set(layers)) > 1 else ()
    said = {word: found[constant] for constant, word in _OF_GROUP.items()}
    return said | {"vp": vp, "overlap": hidden, "layers": uneven}


def _mixed(found: dict[str, Any], strategy: Strategy, name: str) -> MixedStrategy:
    """Groups of replicas, each on the pools it was planned for."""
    where = f"{name}: GROUPS"
    try:
        said = [(each, decode(Strategy, _strategy_said(found | each, name), where=where)) for each in found["GROUPS"]]
        groups = tuple(_group_said(each, one, each["LAYERS"], tuple(each["POOLS"])) for each, one in said)
        shares = tuple(operator.index(share) for share in found["SHARES"])
        local = operator.index(found["LOCAL"])
    except (TypeError, KeyError, ValueError):
        raise InputError(where, None, want="groups as astra export --to pytorch writes them") from None
    return MixedStrategy(
        groups=groups, zero=min(strategy.zero, 1), overlap=("grad", "param"), shares=shares, local=local
    )


def _group_said(
    said: dict[str, Any], one: Strategy, layers: tuple[int, ...], pools: tuple[tuple[str, int], ...]
) -> Group:
    """The pipelines of a group; stages lie on its pools in turn."""
    m = said["SAMPLES"] // (one.dp * one.mbs)
    if one.zero > 1 and len(pools) == 1:
        return plain_group(pools[0][0], replace(one, layers=layers), m)
    segments, first = [], 0
    for pool, stages in pools:
        cut = [layers[chunk * one.pp + first : chunk * one.pp + first + stages] for chunk in range(one.vp)]
        own = tuple(count for part in cut for count in part)
        segments.append(Segment(pool=pool, tp=one.tp, pp=stages, layers=own, recompute=one.recompute))
        first += stages
    return Group(dp=one.dp, mbs=one.mbs, vp=one.vp, microbatches=m, segments=tuple(segments))


def _model_said(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Everything but the model's name and the longest sequence it was made for."""
    said = {word: found[constant] for constant, word in _OF_MODEL.items()}
    said |= {"name": as_name(f"the model of {name}"), "layers": sum(found["LAYERS"])}
    return said | {"max_seq": found["POSITIONS"] or found["SEQ"], "qk_norm": "per_head" if found["QK_NORM"] else "none"}


def _job(launch: Launch) -> str:
    """Starts one group as a job of its own."""
    lines = ["#!/usr/bin/env bash", *header(launch, PYTORCH.verified), "set -euo pipefail", "", 'case "${1-}" in']
    for place, part in enumerate(launch.groups):
        (mesh,) = part.meshes
        each = min(mesh.gpus, mesh.pool.gpus_per_node)
        lines += [f"  {place}) NODES={-(-mesh.gpus // each)} GPUS={each} ;;  {comment(mesh.pool.device.name)}"]
    last = len(launch.groups) - 1
    lines += [f'  *) echo "Usage: bash job.sh GROUP, 0 to {last}, and what train.py takes" >&2; exit 2 ;;', "esac"]
    lines += ['export BRIDGE_JOB="$1" BRIDGE_ADDR="${BRIDGE_ADDR:-localhost}" BRIDGE_PORT="${BRIDGE_PORT:-29400}"']
    lines += ['MASTER_PORT="${MASTER_PORT:-$((29500 + $1))}"', "shift", RENDEZVOUS, HERE, ""]
    start = run('"$NODES"', '"$GPUS"', '"$HERE/train.py"', '"$@"')
    return joined([*lines, start])
