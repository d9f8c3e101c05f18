"""FlagScale's training file: Megatron's arguments with underscores, in sections; and lists of Megatron's own flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.import_megatron import from_words
from astra.export.imported import ImportAsked, ImportedLaunch, section
from astra.spec.mixed import Group, MixedStrategy, Segment, pool_word

_SECTIONS: Final = ("system", "model", "data")
_OTHER_MODEL: Final = ("freeze_LM", "freeze_ViT", "vision_model_type", "img_h", "vision_pattern", "action_horizon")


def read_flagscale(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """The training file; that of the experiment, which names it, says the GPUs alone."""
    parts = {key: section(record, key, asked.name).values for key in _SECTIONS}
    if "num_layers" not in parts["model"] or "micro_batch_size" not in parts["model"]:
        want = "num_layers and micro_batch_size under model: another kind of model is not read"
        raise InputError(f"{asked.name}: model", None, want=want)
    words = ["train.py", *(word for part in parts.values() for word in flag_words(part))]
    hetero = parts["system"].get("hetero")
    meshes = _meshes(hetero)
    unlike = len({tuple(mesh[:4]) for mesh in meshes}) > 1
    if isinstance(hetero, Mapping):
        words += _first_mesh(hetero)
    words += _ffn(parts["model"])
    gpus = _as_the_first(meshes) if unlike else asked.gpus or _mesh_gpus(meshes)
    found = from_words(words, {}, asked._replace(gpus=gpus))
    if unlike and isinstance(hetero, Mapping):
        found = found._replace(mixed=_mixed(found, meshes, hetero, asked.name), gpus=_mesh_gpus(meshes) or found.gpus)
    vision = next((key for key in _OTHER_MODEL if key in parts["model"] or key in parts["data"]), None)
    if vision is not None:
        ignored = (*found.ignored, f"{vision}: a model that is not a plain decoder")
        found = found._replace(model=None, lacks_vocab=False, ignored=ignored)
    return found._replace(framework="flagscale")


def read_model_args(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """Megatron's flags under ``MODEL_ARGS``, as its own tests and its collection of MoE recipes write them."""
    flags = {str(key).lstrip("-"): value for key, value in section(record, "MODEL_ARGS", asked.name).values.items()}
    return from_words(["pretrain_gpt.py", *flag_words(flags)], {}, asked)


def flag_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the flags they stand for; what is switched off is left out."""
    words: list[str] = []
    for key, value in settings.items():
        flag = f"--{str(key).replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            words += [flag, *str(value).split()]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif isinstance(value, Mapping) and key != "hetero":
            words += flag_words(value)
    return words


def _ffn(model: Mapping[str, Any]) -> list[str]:
    """The width of an MLP that is said by a multiple and a factor."""
    each, factor, hidden = (model.get(key) for key in ("multiple_of", "hidden_dim_multiplier", "hidden_size"))
    if model.get("ffn_hidden_size") is not None or not isinstance(each, int) or not isinstance(hidden, int):
        return []
    width = 4 * hidden * 2 // 3
    if isinstance(factor, int | float) and 0 < factor < 1000:
        width = int(width * factor)
    return ["--ffn-hidden-size", str(-(-width // max(each, 1)) * each)]


def _meshes(hetero: object) -> list[list[int]]:
    flat = hetero.get("hetero_process_meshes") if isinstance(hetero, Mapping) else None
    if not isinstance(flat, list) or len(flat) % 5 or not all(isinstance(one, int) and one > 0 for one in flat):
        return []
    return [flat[at : at + 5] for at in range(0, len(flat), 5)]


def _mesh_gpus(meshes: list[list[int]]) -> int | None:
    return sum(tp * cp * dp * pp for tp, cp, _, dp, pp in meshes) or None


def _as_the_first(meshes: list[list[int]]) -> int:
    """GPUs of a pipeline as long, all of whose stages are like the first one."""
    tp, cp, _, dp, _ = meshes[0]
    return tp * cp * dp * sum(mesh[4] for mesh in meshes)


def _mixed(found: ImportedLaunch, meshes: list[list[int]], hetero: Mapping[str, Any], name: str) -> MixedStrategy:
    """One group of pipelines whose runs of stages have degrees of their own."""
    where, strategy = f"{name}: hetero_process_meshes", found.strategy
    if len({(mesh[1], mesh[3]) for mesh in meshes}) > 1:
        raise InputError(where, str(meshes)[:80], want="meshes with the same cp and dp: a pipeline has one of each")
    types, split = hetero.get("hetero_device_types"), hetero.get("hetero_pipeline_layer_split")
    if not isinstance(types, list) or len(types) != len(meshes):
        raise InputError(f"{name}: hetero_device_types", None, want="a GPU for each mesh")
    stages = sum(mesh[4] for mesh in meshes)
    if not isinstance(split, list) or len(split) != stages or not all(type(one) is int for one in split):
        raise InputError(f"{name}: hetero_pipeline_layer_split", None, want=f"layers of each of the {stages} stages")
    if found.global_batch is None:
        raise InputError(f"{name}: global_batch_size", None, want="the samples of a step")
    segments, first = [], 0
    for word, (tp, _, ep, _, pp) in zip(types, meshes, strict=True):
        layers = tuple(split[first : first + pp])
        segments.append(
            Segment(pool=pool_word(str(word)), tp=tp, pp=pp, ep=ep, layers=layers, recompute=strategy.recompute)
        )
        first += pp
    (_, cp, _, dp, _), mbs = meshes[0], strategy.mbs
    each, left = divmod(found.global_batch, dp * mbs)
    if left:
        raise InputError(f"{name}: global_batch_size", found.global_batch, want=f"a multiple of dp*mbs = {dp * mbs}")
    group = Group(dp=dp, mbs=mbs, cp=cp, microbatches=each, segments=tuple(segments))
    hidden = tuple(word for word in strategy.overlap if word != "p2p")
    return MixedStrategy(groups=(group,), zero=min(strategy.zero, 1), overlap=hidden)


def _first_mesh(hetero: Mapping[str, Any]) -> list[str]:
    """Degrees of the first mesh, over as many stages as all have."""
    meshes = _meshes(hetero)
    if not meshes:
        return []
    tp, cp, ep, _, _ = meshes[0]
    words = ["--tensor-model-parallel-size", str(tp), "--context-parallel-size", str(cp)]
    words += ["--pipeline-model-parallel-size", str(sum(mesh[4] for mesh in meshes))]
    words += ["--expert-model-parallel-size", str(ep)] if ep > 1 else []
    experts = hetero.get("expert_tensor_parallel_size_per_process_mesh")
    if isinstance(experts, list) and experts:
        words += ["--expert-tensor-parallel-size", str(experts[0])]
    split = hetero.get("hetero_pipeline_layer_split")
    if isinstance(split, list) and len(split) > 1 and all(isinstance(one, int) for one in split):
        words += ["--pipeline-model-parallel-layout", "E" + "|".join("t" * min(one, 9999) for one in split) + "L"]
    return words
