"""FlagScale's heterogeneous Megatron: pipelines whose stages live on different GPU types with their own degrees.

FlagScale is not on PyPI, so that its rules are restated, here and in its runtime's file (read in FlagScale @16a2dd5 and
run once).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astra.catalog import hardware
from astra.errors import InputError
from astra.export.base import WHOLE_NODES, Exporter, Launch, Left, Limit, differ, header, joined
from astra.export.import_megatron import from_words
from astra.export.imported import ImportAsked, ImportedLaunch, section
from astra.export.megatron import sections
from astra.export.megatron_model import Flag
from astra.export.quoting import host_word, yaml
from astra.spec.mixed import Group, MixedStrategy, Segment, pool_word

# Set per mesh, or not known to the Megatron that FlagScale is built on.
_LEFT_OUT: Final = frozenset(
    ("pipeline_model_parallel_layout", "expert_model_parallel_size", "expert_tensor_parallel_size")
)


def _uneven_batch(launch: Launch) -> bool:
    first = launch.meshes[0].dp * launch.strategy.mbs
    return any(first % mesh.dp for mesh in launch.meshes)


def _files(launch: Launch) -> dict[str, str]:
    top = joined(header(launch, FLAGSCALE.verified))
    return {
        "train.yaml": top + yaml(training(launch)),
        "experiment.yaml": top + yaml(experiment(launch)),
        "hostfile": joined(hosts(launch)),
    }


def _left(launch: Launch) -> list[Left]:
    tuned = Left("`PRETRAINED_CHECKPOINT`", "the checkpoint to start from; without it nothing is started")
    return [
        Left("`ADDRESS_0`, ... in `hostfile`", "the addresses of the nodes, in the order of the pipeline"),
        Left("`data` in `train.yaml`", "the data and its tokenizer; mock until they are set"),
        *([tuned] if launch.workload.task == "finetune" else []),
    ]


FLAGSCALE: Final = Exporter(
    name="flagscale",
    title="FlagScale heterogeneous Megatron configuration",
    verified="FlagScale @16a2dd5, its rules restated here; the model flags by megatron-core 0.19.2",
    runtime="flagscale",
    limits=(
        Limit("cp", "every mesh must have the same cp", differ(lambda mesh: mesh.cp)),
        Limit("dp", "dp of the first mesh times mbs must be a multiple of every mesh's dp", _uneven_batch),
        Limit("tp", "tied embeddings need the same tp on the first and last mesh",
              lambda it: it.model.tied_embeddings and it.meshes[0].tp != it.meshes[-1].tp),
        Limit("layers", "there must be one layer count per stage",
              lambda it: len(it.layers) != it.strategy.vp * sum(mesh.pp for mesh in it.meshes)),
        Limit("recompute", "recompute must be the same in every mesh", differ(lambda mesh: mesh.recompute)),
        Limit("dp", "a mesh holds stages of every replica", lambda it: it.by_replica),
        WHOLE_NODES,
    ),
    made=_files,
    left=_left,
)  # fmt: skip


def meshes(launch: Launch) -> list[int]:
    """The flat list FlagScale reads: tp, cp, ep, dp, pp of each mesh in pipeline order."""
    return [degree for mesh in launch.meshes for degree in (mesh.tp, mesh.cp, mesh.ep, mesh.dp, mesh.pp)]


def device_types(launch: Launch) -> list[str]:
    """The GPU of each mesh as one word, the same in the host file: different GPUs have different words."""
    words: dict[str, str] = {}
    for mesh in launch.meshes:
        name, number = mesh.pool.device.name, 2
        word = host_word(name)
        while word in words.values() and name not in words:
            word, number = f"{host_word(name)}-{number}", number + 1
        words.setdefault(name, word)
    return [words[mesh.pool.device.name] for mesh in launch.meshes]


def training(launch: Launch) -> dict[str, Any]:
    """The training file: FlagScale's keys are Megatron's arguments with underscores."""
    parts = sections(launch)
    stages = sum(mesh.pp for mesh in launch.meshes)
    system = _keys(parts["PARALLEL_ARGS"] + parts["PRECISION_ARGS"] + parts["MEMORY_ARGS"] + parts["OVERLAP_ARGS"])
    system["pipeline_model_parallel_size"] = stages
    system["tensor_model_parallel_size"] = launch.meshes[0].tp
    hetero: dict[str, Any] = {
        "enable_hetero": True,
        "hetero_use_cpu_communication": False,
        "hetero_device_types": device_types(launch),
        "hetero_process_meshes": meshes(launch),
        "hetero_pipeline_layer_split": list(launch.layers),
    }
    if launch.model.moe is not None:
        hetero["expert_tensor_parallel_size_per_process_mesh"] = [mesh.etp for mesh in launch.meshes]
    if launch.model.tied_embeddings:
        hetero["use_partial_reduce_for_shared_embedding"] = True
    # OmegaConf, which reads the file, stops where the variable is not set.
    start = {"pretrained_checkpoint": "${oc.env:PRETRAINED_CHECKPOINT}"} if launch.workload.task == "finetune" else {}
    return {
        "system": system | {"hetero": hetero} | ({"checkpoint": start} if start else {}),
        "model": _keys(parts["MODEL_ARGS"] + parts["BATCH_ARGS"]),
        "data": {"mock_data": True, "tokenizer": {"tokenizer_type": "NullTokenizer", "vocab_size": launch.model.vocab}},
    }


def _keys(flags: list[Flag]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for flag in flags:
        name = flag[0].removeprefix("--").replace("-", "_")
        if name not in _LEFT_OUT and name != "vocab_size":
            found[name] = True if len(flag) == 1 else _value(flag[1])
    return found


def _value(text: str) -> object:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def experiment(launch: Launch) -> dict[str, Any]:
    """The experiment file: who runs where."""
    sizes = {mesh.pool.gpus_per_node for mesh in launch.meshes}
    return {
        "defaults": ["_self_", {"train": "train"}],
        "experiment": {
            "exp_name": "astra",
            "exp_dir": "./outputs",
            "task": {"type": "train", "backend": "megatron", "entrypoint": "flagscale/train/train_gpt.py"},
            "runner": {
                "type": "ssh",
                "backend": "torchrun",
                "nnodes": launch.nodes,
                # Without it every host starts as many ranks as it has slots.
                **({"nproc_per_node": launch.gpus_per_node} if len(sizes) == 1 else {}),
                "rdzv_backend": "static",
                "hostfile": "hostfile",
            },
            "envs": {"CUDA_DEVICE_MAX_CONNECTIONS": 1},
        },
        "action": "run",
    }


def hosts(launch: Launch) -> list[str]:
    """One line per node, in pipeline order."""
    lines: list[str] = []
    for mesh, gpu in zip(launch.meshes, device_types(launch), strict=True):
        per_node = mesh.pool.gpus_per_node
        for _ in range(-(-mesh.gpus // per_node)):
            lines.append(f"ADDRESS_{len(lines)} slots={per_node} type={gpu}")
    return lines


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
    meshes = _meshes_said(hetero)
    unlike = len({tuple(mesh[:4]) for mesh in meshes}) > 1 or _on_several_pools(hetero, meshes)
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


def _meshes_said(hetero: object) -> list[list[int]]:
    flat = hetero.get("hetero_process_meshes") if isinstance(hetero, Mapping) else None
    if not isinstance(flat, list) or len(flat) % 5 or not all(isinstance(one, int) and one > 0 for one in flat):
        return []
    return [flat[at : at + 5] for at in range(0, len(flat), 5)]


def _on_several_pools(hetero: object, meshes: list[list[int]]) -> bool:
    """Whether meshes alike are told on GPUs of the catalog that differ: their order is that of the pipeline."""
    types = hetero.get("hetero_device_types") if isinstance(hetero, Mapping) else None
    if not isinstance(types, list) or len(types) != len(meshes) or len({mesh[3] for mesh in meshes}) > 1:
        return False
    return len({*map(str, types)}) > 1 and all(hardware.has("devices", str(each)) for each in types)


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
    meshes = _meshes_said(hetero)
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
