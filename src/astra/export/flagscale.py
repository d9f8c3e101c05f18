"""FlagScale's heterogeneous Megatron: pipelines whose stages live on different GPU types with their own degrees.

FlagScale is not on PyPI, so that its rules are restated, here and in its runtime's file (read in FlagScale @16a2dd5 and
run once).
"""

from __future__ import annotations

from typing import Any, Final

from astra.export.base import WHOLE_NODES, Exporter, Launch, Left, Limit, differ, header, joined
from astra.export.megatron import sections
from astra.export.megatron_model import Flag
from astra.export.quoting import host_word, yaml

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
