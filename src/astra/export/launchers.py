"""Launchers: who gets the nodes and starts the framework's own script on each. They export both."""

from __future__ import annotations

from typing import Any, Final

from astra.export.base import Exporter, Launch, Limit, header, joined, one_pool
from astra.export.deepspeed import DeepSpeed
from astra.export.megatron import Megatron
from astra.export.quoting import comment, directive, file_name, shell, yaml
from astra.export.readme import readme
from astra.export.torchtitan import TorchTitan

FRAMEWORKS: Final[tuple[Exporter, ...]] = (Megatron(), TorchTitan(), DeepSpeed())
DAYS_LIMIT: Final = "7-00:00:00"
SKYPILOT_CLOUDS: Final = {
    "AWS": "aws", "GCP": "gcp", "Azure": "azure", "OCI": "oci", "Lambda": "lambda", "RunPod": "runpod",
}  # fmt: skip
# SkyPilot's names of GPUs, by the longest beginning of ours.
SKYPILOT_GPUS: Final = {
    "A100-SXM4-80GB": "A100-80GB", "A100-PCIe-80GB": "A100-80GB", "A100": "A100", "A10G": "A10G", "A10": "A10",
    "H100": "H100", "H200": "H200", "GH200": "GH200", "B200": "B200", "B300": "B300", "GB200": "GB200",
    "GB300": "GB300", "L40S": "L40S", "L4": "L4", "T4": "T4", "V100-SXM2-32GB": "V100-32GB", "V100": "V100",
    "MI300X": "MI300X", "RTX4090": "RTX4090", "RTX3090": "RTX3090", "RTX5090": "RTX5090",
}  # fmt: skip


# What a bare machine or image lacks, in the verified versions.
CHECKOUT: Final = "git clone --depth 1 --branch core_v0.19.0 https://github.com/NVIDIA/Megatron-LM"
SETUP: Final = {
    "megatron": f"[ -d Megatron-LM ] || {CHECKOUT}\npip install megatron-core==0.19.2 'transformer-engine[pytorch]'\n",
    "torchtitan": "pip install torchtitan==0.3.0 torch==2.13.0\n",
    "deepspeed": "pip install deepspeed==0.19.8\n",
}
# What only the user knows and the script cannot do without.
NEEDED: Final = {"deepspeed": {"TRAIN_SCRIPT": "train.py"}}


def framework(launch: Launch) -> Exporter:
    """The framework the plan was made for: the first that its runtime names."""
    return next((exporter for exporter in FRAMEWORKS if launch.runtime.startswith(exporter.name)), FRAMEWORKS[0])


# A job that started another framework than the plan was made for would be another plan.
STARTED: Final = Limit(
    "runtime",
    "a job starts Megatron-LM, torchtitan or DeepSpeed, and the plan is for another runtime (plan with --runtime "
    "megatron, torchtitan or deepspeed)",
    lambda it: not any(it.runtime.startswith(exporter.name) for exporter in FRAMEWORKS),
)


class Slurm:
    """A batch script beside the framework's files."""

    name = "slurm"
    title = "Slurm batch script"
    verified = "bash -n and shellcheck 0.11.0; Slurm itself was not run"
    runtime: str | None = None
    limits: tuple[Limit, ...] = (STARTED,)
    starts = staticmethod(framework)

    def files(self, launch: Launch) -> dict[str, str]:
        """The framework's files and job.sbatch."""
        files = framework(launch).files(launch)
        return files | {"job.sbatch": batch_script(launch), "README.md": readme(launch, self, _SLURM_NOTES)}


_SLURM_NOTES: Final = """\
From this folder, on a file system all nodes see:

    sbatch job.sbatch

Add your partition and account on the command line or in the script. `launch.sh` is the framework's own script; the
job starts it once per node with its number and the first node's address. What it reads from its environment is passed
on: `DATA_PATH=/data/corpus_text_document MEGATRON_DIR=/opt/Megatron-LM sbatch job.sbatch`.
"""


def batch_script(launch: Launch) -> str:
    """The batch script; one component of a heterogeneous job per GPU type."""
    lines = ["#!/usr/bin/env bash"]
    name = file_name(launch.model.name)
    for index, mesh in enumerate(launch.meshes):
        if index:
            lines += ["#SBATCH hetjob"]
        per_node = mesh.pool.gpus_per_node
        if launch.mixed:
            told = f"Component {index}: {mesh.pool.device.name}; add your --partition or --constraint for it."
            lines += [comment(told)]
        lines += [
            directive("job-name", name),
            directive("nodes", -(-mesh.gpus // per_node)),
            directive("ntasks-per-node", 1),
            directive("gpus-per-node", per_node),
            directive("exclusive"),
            directive("time", DAYS_LIMIT),
        ]
    groups = f" --het-group={','.join(map(str, range(len(launch.meshes))))}" if launch.mixed else ""
    nodes = '"$SLURM_JOB_NODELIST"' if not launch.mixed else '"$SLURM_JOB_NODELIST_HET_GROUP_0"'
    # In a heterogeneous job every component counts its nodes from zero; the offset of the component comes first.
    rank = "$SLURM_NODEID" if not launch.mixed else "$SLURM_PROCID"
    lines += [*header(launch, Slurm.verified), "set -euo pipefail", ""]
    lines += ['cd "$SLURM_SUBMIT_DIR"', f"HEAD=$(scontrol show hostnames {nodes} | sed -n 1p)"]
    lines += ['export MASTER_ADDR="$HEAD" MASTER_PORT="${MASTER_PORT:-29500}"']
    lines += ["# shellcheck disable=SC2016  # every node reads its own number"]
    lines += [f'srun{groups} bash -c \'NODE_RANK="{rank}" exec bash launch.sh "$@"\' launch "$@"']
    return joined(lines)


class SkyPilot:
    """A SkyPilot task beside the framework's files."""

    name = "skypilot"
    title = "SkyPilot task"
    verified = "SkyPilot 0.14.1: its own task schema and Task.from_yaml"
    runtime: str | None = None
    limits = (
        STARTED,
        one_pool("SkyPilot"),
        Limit("cluster", "SkyPilot has no name for this GPU", lambda it: sky_gpu(it) is None),
    )
    starts = staticmethod(framework)

    def files(self, launch: Launch) -> dict[str, str]:
        """The framework's files and task.yaml."""
        files = framework(launch).files(launch)
        text = joined(header(launch, self.verified)) + yaml(task(launch))
        return files | {"task.yaml": text, "README.md": readme(launch, self, _SKY_NOTES)}


_SKY_NOTES: Final = """\
From this folder:

    sky launch -c train task.yaml

The task asks for the plan's instance type and number of nodes, copies this folder to every node and starts
`launch.sh` there. `setup` is a start: put your own image or installation in it. What the script reads from its
environment is given with `--env`, such as `--env DATA_PATH=/data/corpus_text_document`, or under `envs` in the file.
"""


def sky_gpu(launch: Launch) -> str | None:
    """SkyPilot's name of the GPU."""
    name = launch.pool.device.name
    fitting = [ours for ours in SKYPILOT_GPUS if name == ours or name.startswith(f"{ours}-")]
    return SKYPILOT_GPUS[max(fitting, key=len)] if fitting else None


def task(launch: Launch) -> dict[str, Any]:
    """The task: a catalog node of a cloud pins the instance type, any other node only the GPUs."""
    node = launch.pool.node
    resources: dict[str, Any] = {"accelerators": f"{sky_gpu(launch)}:{launch.gpus_per_node}"}
    cloud = SKYPILOT_CLOUDS.get(node.provider)
    if cloud is not None:
        resources["infra"] = cloud
    if cloud in ("aws", "gcp") and node.name.startswith(f"{cloud}-"):
        resources["instance_type"] = node.name.removeprefix(f"{cloud}-")
    resources |= {"network_tier": "best", "use_spot": False}
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
        "setup": f"set -e\n{SETUP[framework(launch).name]}",
        "run": run,
        **({"envs": NEEDED[framework(launch).name]} if framework(launch).name in NEEDED else {}),
    }


class Kubernetes:
    """A Kubeflow training job that carries the framework's script."""

    name = "kubernetes"
    title = "Kubernetes (Kubeflow Trainer) job"
    verified = "kubeflow-trainer-api 2.3.0: its own TrainJob model, read and written back unchanged"
    runtime: str | None = None
    limits = (STARTED, one_pool("A Kubeflow TrainJob"))
    starts = staticmethod(framework)

    def files(self, launch: Launch) -> dict[str, str]:
        """The framework's files and trainjob.yaml."""
        files = framework(launch).files(launch)
        text = joined(header(launch, self.verified)) + yaml(train_job(launch, files))
        return files | {"trainjob.yaml": text, "README.md": readme(launch, self, _KUBE_NOTES)}


_KUBE_NOTES: Final = """\
With Kubeflow Trainer v2 and its `torch-distributed` runtime installed:

    kubectl apply -f trainjob.yaml

The job carries the framework's files as text and writes them in each pod before it starts them. Change `image` to one
that has the framework and your data; what a script reads from its environment (`DATA_PATH`, `TOKENIZER_MODEL`, `SAVE`,
`MEGATRON_DIR`, or `TRAIN_SCRIPT` for DeepSpeed) goes under `spec.trainer.env`. Without data it trains on mock data
where the framework can.
"""
# Megatron-LM's own installation guide names the first; the others are their projects' images.
IMAGE: Final = {
    "megatron": "nvcr.io/nvidia/pytorch:26.01-py3",
    "torchtitan": "pytorch/pytorch:latest",
    "deepspeed": "deepspeed/deepspeed:latest",
}


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
        lines += [f'[ -n "${{MEGATRON_DIR:-}}" ] || [ -d Megatron-LM ] || {CHECKOUT}']
    lines += ["exec bash launch.sh"]
    needed = NEEDED.get(framework(launch).name, {})
    gpu = "nvidia.com/gpu" if launch.pool.device.vendor == "NVIDIA" else "amd.com/gpu"
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": file_name(launch.model.name)},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE[framework(launch).name],
                "command": ["bash", "-c"],
                "args": [joined(lines).replace("$(", "$$(")],
                **({"env": [{"name": name, "value": value} for name, value in needed.items()]} if needed else {}),
                "numNodes": launch.nodes,
                "numProcPerNode": launch.gpus_per_node,
                "resourcesPerNode": {"limits": {gpu: str(launch.gpus_per_node)}},
            },
        },
    }


def _unused_word(text: str, index: int) -> str:
    """A word that ends a here-document and is no line of it."""
    word = f"END_OF_FILE_{index}"
    while word in text:
        word += "_"
    return word
