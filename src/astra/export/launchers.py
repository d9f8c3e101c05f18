"""Launchers: who gets the nodes and starts the framework's own script on each. They export both."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from astra.catalog import runtimes
from astra.export.base import Exporter, Launch, Left, Limit, header, joined, one_pool, template
from astra.export.huggingface import DEEPSPEED
from astra.export.megatron import MEGATRON
from astra.export.pytorch import PYTORCH
from astra.export.quoting import comment, directive, file_name, markdown, shell, yaml
from astra.export.torchtitan import TORCHTITAN
from astra.files import load_toml
from astra.spec.names import by_name

FRAMEWORKS: Final = by_name(MEGATRON, TORCHTITAN, PYTORCH, DEEPSPEED)
DAYS_LIMIT: Final = "7-00:00:00"
_REGION: Final = re.compile(r"[a-z]{2,}[a-z0-9-]*[0-9][a-z]?")  # one region, as clouds name them


@cache
def known() -> dict[str, Any]:
    """What launchers and images have (``data/launchers.toml``)."""
    found = load_toml(template("launchers.toml").encode())
    found["setup"] = {name: text.replace("@CHECKOUT", found["checkout"]) for name, text in found["setup"].items()}
    return found


def framework(launch: Launch) -> Exporter:
    """The framework the plan was made for."""
    return FRAMEWORKS.get(_target(launch)) or FRAMEWORKS["megatron"]


def _target(launch: Launch) -> str:
    """The target that starts the plan's runtime; empty if there is no such runtime."""
    return runtimes.runtime(launch.runtime).exports_to if launch.runtime in runtimes.runtime_names() else ""


# A job that started another framework than the plan was made for would be another plan.
STARTED: Final = Limit(
    "runtime",
    "a job starts Megatron-LM, torchtitan, PyTorch or DeepSpeed, and the plan is for another runtime (plan with "
    "--runtime megatron, torchtitan, pytorch or deepspeed)",
    lambda it: _target(it) not in FRAMEWORKS,
)


def _launcher(
    name: str, title: str, verified: str, own: Callable[[Launch, dict[str, str]], dict[str, Any]],
    left: Callable[[Launch], list[Left]], *limits: Limit, notes: Callable[[Launch], str] | None = None,
) -> Exporter:  # fmt: skip
    """A target whose ``own`` file, a text or a record for YAML, starts those of the framework beside it."""

    def made(launch: Launch) -> dict[str, str]:
        files = framework(launch).files(launch)
        head = joined(header(launch, verified))
        mine = own(launch, files).items()
        return files | {file: text if isinstance(text, str) else head + yaml(text) for file, text in mine}

    def both(launch: Launch) -> list[Left]:
        return [*left(launch), *framework(launch).left(launch)]

    return Exporter(name, title, verified, runtime=None, limits=(STARTED, *limits), starts=framework, made=made,
                    left=both, notes=notes)  # fmt: skip


SLURM: Final = _launcher(
    "slurm",
    "Slurm batch script",
    "bash -n and shellcheck 0.11.0; Slurm itself was not run",
    lambda launch, files: {"job.sbatch": batch_script(launch)},
    lambda launch: [Left("`--partition`, `--account`, `--time`", "yours, on the command line or in `job.sbatch`")],
)


def batch_script(launch: Launch) -> str:
    """The batch script; one component of a heterogeneous job per GPU type."""
    lines = ["#!/usr/bin/env bash"]
    name = file_name(launch.model.name)
    for index, mesh in enumerate(launch.meshes):
        if index:
            lines += ["#SBATCH hetjob"]
        per_node = mesh.pool.gpus_per_node
        if launch.mixed:
            figures = f"Component {index}: {mesh.pool.device.name}; add your --partition or --constraint for it."
            lines += [comment(figures)]
        lines += [
            directive("job-name", name),
            directive("nodes", -(-mesh.gpus // per_node)),
            directive("ntasks-per-node", 1),
            directive("gpus-per-node", per_node),
            directive("exclusive"),
            directive("mem", 0),  # all of the node's
            directive("time", DAYS_LIMIT),
        ]
    groups = f" --het-group={','.join(map(str, range(len(launch.meshes))))}" if launch.mixed else ""
    nodes = '"$SLURM_JOB_NODELIST"' if not launch.mixed else '"$SLURM_JOB_NODELIST_HET_GROUP_0"'
    # In a heterogeneous job every component counts its nodes from zero; the offset of the component comes first.
    rank = "$SLURM_NODEID" if not launch.mixed else "$SLURM_PROCID"
    lines += [*header(launch, SLURM.verified), "set -euo pipefail", ""]
    lines += ['cd "$SLURM_SUBMIT_DIR"', f"HEAD=$(scontrol show hostnames {nodes} | sed -n 1p)"]
    lines += ['export MASTER_ADDR="$HEAD" MASTER_PORT="${MASTER_PORT:-29500}"']
    lines += ["# shellcheck disable=SC2016  # every node reads its own number"]
    # One task per node starts all its ranks: it needs every core. Components of a job may have different numbers.
    grids = "" if launch.mixed else ' --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}"'
    lines += [f'srun{groups}{grids} bash -c \'NODE_RANK="{rank}" exec bash launch.sh "$@"\' launch "$@"']
    return joined(lines)


def _skypilot_left(launch: Launch) -> list[Left]:
    left = [Left("`file_mounts` in `task.yaml`", "a bucket with the data, and one for checkpoints")]
    cloud, region = task(launch)["resources"].get("infra"), launch.figures.region
    if cloud is None:
        left += [Left("`infra` in `task.yaml`", f"the cloud: {_billed(launch)}")]
    elif cloud == _paid(launch) and region not in ("", "all", "global"):  # of several regions SkyPilot takes any
        left += [Left("`infra` in `task.yaml`", f"the region: {_billed(launch)}")]
    return left


_SKY_START: Final = """\
From this folder:

    sky launch -c train task.yaml
"""
_SKY_SPOT: Final = """\
The plan was billed on spot machines: the task asks for those, and SkyPilot starts it anew where they are taken away.
From this folder:

    sky jobs launch task.yaml
"""


def _skypilot_notes(launch: Launch) -> str:
    start = _SKY_SPOT if launch.figures.market == "spot" else _SKY_START
    return template("skypilot_notes.md").format(start=start)


SKYPILOT: Final = _launcher(
    "skypilot",
    "SkyPilot task",
    "SkyPilot 0.14.1: its own task schema and Task.from_yaml",
    lambda launch, files: {"task.yaml": task(launch)},
    _skypilot_left,
    one_pool("SkyPilot"),
    Limit("cluster", "SkyPilot has no name for this GPU", lambda it: sky_gpu(it) is None),
    Limit(
        "cluster",
        "SkyPilot has no several machines, spot machines or images on this cloud, and the plan takes one of them",
        lambda it: bool(_lacking(it, known()["skypilot"]["clouds"].get(it.pool.node.provider))),
    ),
    notes=_skypilot_notes,
)


def _billed(launch: Launch) -> str:
    """Where the bill found its price."""
    place = " ".join(word for word in (launch.figures.provider, launch.figures.region) if word)
    return f"the bill is that of {markdown(place)}" if place else "any that has the GPUs until it is set"


def sky_gpu(launch: Launch) -> str | None:
    """SkyPilot's name of the GPU."""
    name = launch.pool.device.name
    gpus: dict[str, str] = known()["skypilot"]["gpus"]
    fitting = [ours for ours in gpus if name == ours or name.startswith(f"{ours}-")]
    return gpus[max(fitting, key=len)] if fitting else None


def _lacking(launch: Launch, cloud: str | None) -> set[str]:
    """What the job needs that SkyPilot does not do on a cloud; Megatron-LM is not installed without an image."""
    needs = {"several machines"} if launch.nodes > 1 else set()
    needs |= {"spot machines"} if launch.figures.market == "spot" else set()
    needs |= {"container images"} if framework(launch).name == "megatron" else set()
    return needs & _lacks(cloud)


def _lacks(cloud: str | None) -> set[str]:
    return set(known()["skypilot"]["lacks"].get(cloud, ()))


def _cloud(launch: Launch) -> str | None:
    """The cloud of the nodes; else that of the bill, where the job can run on it."""
    node, billed = known()["skypilot"]["clouds"].get(launch.pool.node.provider), _paid(launch)
    return node or (None if _lacking(launch, billed) else billed)


def _paid(launch: Launch) -> str | None:
    """The cloud of the bill."""
    cloud: str | None = known()["skypilot"]["clouds"].get(launch.figures.provider)
    return cloud


def task(launch: Launch) -> dict[str, Any]:
    """The task: a catalog node of a cloud pins the instance type, any other node only the GPUs."""
    node = launch.pool.node
    gpus = f"{sky_gpu(launch)}:{launch.gpus_per_node}"
    resources: dict[str, Any] = {"accelerators": gpus}
    cloud = _cloud(launch)
    plain = cloud == "nebius" and gpus not in known()["skypilot"]["infiniband_nebius"]
    lacks = {"network tiers"} if plain else _lacks(cloud)
    if cloud is not None:
        one = _REGION.fullmatch(launch.figures.region) and cloud == _paid(launch)
        resources["infra"] = f"{cloud}/{launch.figures.region}" if one else cloud
    if cloud in ("aws", "gcp") and node.name.startswith(f"{cloud}-"):
        resources["instance_type"] = node.name.removeprefix(f"{cloud}-")
    resources |= {} if "network tiers" in lacks else {"network_tier": "best"}
    resources["use_spot"] = launch.figures.market == "spot"
    if "container images" not in lacks:
        resources["image_id"] = f"docker:{known()['image'][framework(launch).name]}"
    run = (
        'HEAD=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)\n'
        'export MASTER_ADDR="$HEAD" MASTER_PORT=29500 NODE_RANK="$SKYPILOT_NODE_RANK"\n'
        "bash launch.sh\n"
    )
    return {
        "name": file_name(launch.model.name),
        "num_nodes": launch.nodes,
        "workdir": ".",
        "resources": resources,
        "setup": f"set -e\n{known()['setup'][framework(launch).name]}",
        "run": run,
        **({"envs": needed} if (needed := known()["needed"][framework(launch).name]) else {}),
    }


def _kubernetes_left(launch: Launch) -> list[Left]:
    left = [Left("`image`", "one of yours that has the framework and sees your data")]
    fabric = rdma(launch)
    if fabric:
        name = next(iter(fabric))
        left += [Left(f"`{name}`", "the network's devices, as your cluster calls them; without them NCCL is slow")]
    return left


KUBERNETES: Final = _launcher(
    "kubernetes",
    "Kubernetes (Kubeflow Trainer) job",
    "kubeflow-trainer-api 2.3.0: its own TrainJob model, read and written back unchanged",
    lambda launch, files: {"trainjob.yaml": train_job(launch, files)},
    _kubernetes_left,
    one_pool("A Kubeflow TrainJob"),
)


def train_job(launch: Launch, files: dict[str, str]) -> dict[str, Any]:
    """The TrainJob. Kubernetes expands ``$(NAME)`` in commands, so every such opening is doubled."""
    carried = {name: text for name, text in files.items() if name != "README.md"}
    lines = ["set -euo pipefail", "mkdir -p /tmp/plan", "cd /tmp/plan"]
    for index, (name, text) in enumerate(carried.items()):
        end = _unused_word(text, index)
        lines += [f"cat > {shell(name)} <<'{end}'", text.rstrip("\n"), end]
    lines += ['export NODE_RANK="${PET_NODE_RANK:-0}" MASTER_ADDR="${PET_MASTER_ADDR:-localhost}"']
    lines += ['export MASTER_PORT="${PET_MASTER_PORT:-29500}"']
    if framework(launch).name == "megatron":
        lines += [f'[ -n "${{MEGATRON_DIR:-}}" ] || [ -d Megatron-LM ] || {known()["checkout"]}']
    lines += ["exec bash launch.sh"]
    needed = known()["needed"][framework(launch).name]
    gpu = "nvidia.com/gpu" if launch.pool.device.vendor == "NVIDIA" else "amd.com/gpu"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": file_name(launch.model.name)},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": known()["image"][framework(launch).name],
                "command": ["bash", "-c"],
                "args": [joined(lines).replace("$(", "$$(")],
                **({"env": [{"name": name, "value": value} for name, value in needed.items()]} if needed else {}),
                "numNodes": launch.nodes,
                "numProcPerNode": launch.gpus_per_node,
                "resourcesPerNode": {"limits": {gpu: str(launch.gpus_per_node), **rdma(launch)}},
            },
            "runtimePatches": [{"manager": "astra.io/plan", "trainingRuntimeSpec": _pod(rdma(launch))}],
        },
    }


def rdma(launch: Launch) -> dict[str, str]:
    """The network's devices as resources of Kubernetes, under the names of their usual device plugins."""
    kind = launch.pool.node.links[-1].kind
    names = known()["rdma"]
    return {names[kind]: "1"} if launch.nodes > 1 and kind in names else {}


def _pod(fabric: dict[str, str]) -> dict[str, Any]:
    """Shared memory for data loaders and NCCL, and the right to pin memory where the network wants it pinned."""
    container: dict[str, Any] = {"name": "node", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    if fabric:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    spec = {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}], "containers": [container]}
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": spec}}}}]
    return {"template": {"spec": {"replicatedJobs": jobs}}}


def _unused_word(text: str, index: int) -> str:
    """A word that ends a here-document and is no line of it."""
    word = f"END_OF_FILE_{index}"
    while word in text:
        word += "_"
    return word
