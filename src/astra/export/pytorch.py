"""Plain PyTorch: ``train.py``, one readable file with the plan's values as constants at its top, for torchrun."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from astra.export.base import WHOLE_NODES, Exporter, Launch, Left, Limit, header, joined, template
from astra.export.launch_script import HERE, RENDEZVOUS, host_order, node_sizes, torchrun
from astra.export.quoting import python
from astra.spec.mixed import pool_word
from astra.spec.model import ModelSpec, Rotary

BEGIN: Final = "# --- The plan ---"
END: Final = "# --- End of the plan ---"
_CONSTANT: Final = re.compile(r"([A-Z_]+)(: [^=]+)? = .*?(  # .*)?")


def _uneven_groups(launch: Launch) -> bool:
    parts = launch.groups or (launch,)
    return any(len({(mesh.tp, mesh.cp, mesh.ep, mesh.recompute) for mesh in part.meshes}) > 1 for part in parts)


def _files(launch: Launch) -> dict[str, str]:
    return {
        "train.py": program(launch),
        "launch.sh": _script(launch),
    }


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
        Limit("zero", "all groups of replicas share their state alike",
              lambda it: len({(one.strategy.zero, one.strategy.shard, one.strategy.reshard) for one in it.groups}) > 1),
        Limit("tp", "groups that share one state have one GPU for each replica",
              lambda it: bool(it.shares) and any(one.strategy.tp > 1 for one in it.groups)),
        WHOLE_NODES,
    ),
    made=_files,
    left=_left,
)  # fmt: skip


def program(launch: Launch) -> str:
    """The trainer with the plan's values in the place of the template's."""
    start, plan, rest = _template()
    values = constants(launch)
    lines = [_filled(line, values) for line in plan]
    # Python takes the encoding of a file from a comment in its first two lines: a name there could choose it.
    head = ["# -*- coding: utf-8 -*-", *header(launch, PYTORCH.verified)]
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
    strategy, workload = launch.strategy, launch.workload
    tokens = workload.tokens
    return {
        **_of_group(launch),
        "ZERO": strategy.zero,
        "SHARD": strategy.shard,
        "RESHARD": strategy.reshard,
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
        "STEPS": max(1, round(tokens / workload.tokens_per_step)) if tokens is not None else 1000,
        "SAVE_EVERY": launch.save_interval,
        **_shape(launch.model),
    }


def _of_group(launch: Launch) -> dict[str, Any]:
    """What a group of replicas decides."""
    strategy = launch.strategy
    return {
        "TP": strategy.tp,
        "SP": strategy.sp,
        "PP": strategy.pp,
        "SCHEDULE": strategy.schedule,
        "LAYERS": launch.layers,
        "DP": strategy.dp,
        "RECOMPUTE": strategy.recompute,
        "MICRO_BATCH": strategy.mbs,
    }


def _shape(model: ModelSpec) -> dict[str, Any]:
    """The model; what is not known of it is what is usual."""
    return {
        "HIDDEN": model.hidden,
        "FFN": model.ffn,
        "HEADS": model.heads,
        "KV_HEADS": model.kv_heads,
        "HEAD_DIM": model.head_dim,
        "VOCAB": model.vocab,
        "GATED": model.gated_mlp,
        "ACTIVATION": model.activation or ("silu" if model.gated_mlp else "gelu"),
        "NORM": model.norm,
        "NORM_BIAS": model.norm_bias,
        "NORM_EPSILON": model.norm_epsilon or 1e-5,
        "QK_NORM": model.qk_norm == "per_head",
        "QKV_BIAS": model.qkv_bias,
        "OUT_BIAS": model.out_bias,
        "MLP_BIAS": model.mlp_bias,
        "HEAD_BIAS": model.head_bias,
        "TIED": model.tied_embeddings,
        "POSITIONS": model.learned_positions,
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
