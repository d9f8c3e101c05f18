"""Read the PyTorch trainer that Astra exports: the plan is the constants at its top. The file is never run."""

from __future__ import annotations

import ast
import operator
from typing import Any

from astra.errors import InputError
from astra.export.imported import ImportedLaunch
from astra.export.pytorch import template_names
from astra.spec.mixed import Group, MixedStrategy, Segment, plain_group
from astra.spec.model import ModelSpec
from astra.spec.names import as_name
from astra.spec.record import decode
from astra.spec.strategy import Strategy, replace
from astra.spec.workload import Workload


def read_constants(tree: ast.Module, name: str) -> ImportedLaunch | None:
    """The plan of a trainer; None if the file is none."""
    found = _constants(tree)
    if not {"TP", "PP", "DP", "LAYERS", "MICRO_BATCH"} <= set(found):
        return None
    for missing in (one for one in template_names() if one not in found):
        raise InputError(name, None, want=f"the constant {missing}, as astra export --to pytorch writes it")
    strategy: Strategy = decode(Strategy, _strategy(found, name), where=name)
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
        model=decode(ModelSpec, _model(found, name), where=name),
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


def _strategy(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The trainer hides gradients and weights wherever it reduces and gathers them."""
    layers, pp = found["LAYERS"], found["PP"]
    whole = isinstance(layers, tuple) and bool(layers) and all(type(count) is int for count in layers)
    if not whole or type(pp) is not int or pp < 1 or len(layers) % pp:
        raise InputError(f"{name}: LAYERS", layers, want="as many layers of each stage as there are stages")
    vp = len(layers) // pp
    hidden = ("grad", *(["param"] if found["ZERO"] == 3 else []), *(["p2p"] if vp > 1 else []))
    words = {"TP": "tp", "SP": "sp", "DP": "dp", "ZERO": "zero", "SHARD": "shard", "RESHARD": "reshard"}
    words |= {"RECOMPUTE": "recompute", "SCHEDULE": "schedule", "MICRO_BATCH": "mbs"}
    uneven = layers if len(set(layers)) > 1 else ()
    said = {word: found[constant] for constant, word in words.items()}
    return said | {"pp": pp, "vp": vp, "overlap": hidden, "layers": uneven}


def _mixed(found: dict[str, Any], strategy: Strategy, name: str) -> MixedStrategy:
    """Groups of replicas, each on the pools it was planned for."""
    where = f"{name}: GROUPS"
    try:
        said = [(each, decode(Strategy, _strategy(found | each, name), where=where)) for each in found["GROUPS"]]
        groups = tuple(_group(each, one, each["LAYERS"], tuple(each["POOLS"])) for each, one in said)
        shares = tuple(operator.index(share) for share in found["SHARES"])
    except (TypeError, KeyError, ValueError):
        raise InputError(where, None, want="groups as astra export --to pytorch writes them") from None
    return MixedStrategy(groups=groups, zero=min(strategy.zero, 1), overlap=("grad", "param"), shares=shares)


def _group(said: dict[str, Any], one: Strategy, layers: tuple[int, ...], pools: tuple[tuple[str, int], ...]) -> Group:
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


def _model(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Everything but the model's name and the longest sequence it was made for."""
    words = {"HIDDEN": "hidden", "FFN": "ffn", "HEADS": "heads", "KV_HEADS": "kv_heads", "HEAD_DIM": "head_dim"}
    words |= {"VOCAB": "vocab", "GATED": "gated_mlp", "ACTIVATION": "activation", "NORM": "norm"}
    words |= {"NORM_BIAS": "norm_bias", "NORM_EPSILON": "norm_epsilon", "QKV_BIAS": "qkv_bias", "OUT_BIAS": "out_bias"}
    words |= {"MLP_BIAS": "mlp_bias", "HEAD_BIAS": "head_bias", "TIED": "tied_embeddings"}
    words |= {"POSITIONS": "learned_positions", "ROTARY": "rotary"}
    said = {word: found[constant] for constant, word in words.items()}
    said |= {"name": as_name(f"the model of {name}"), "layers": sum(found["LAYERS"])}
    return said | {"max_seq": found["POSITIONS"] or found["SEQ"], "qk_norm": "per_head" if found["QK_NORM"] else "none"}
