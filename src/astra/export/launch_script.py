"""What every export has beside its own files: the README, and the part that launch scripts share."""

from __future__ import annotations

from typing import Final

from astra.export.base import Launch, header
from astra.export.quoting import comment


def adapter_notes(launch: Launch) -> str:
    """What a training script of the user's must do for LoRA."""
    if launch.workload.task != "lora":
        return ""
    targets = {"all": "every projection", "attention": "attention's projections", "qkv": "queries, keys and values"}
    adapted = targets[launch.workload.lora_targets]
    return f"""
The plan freezes the model and trains LoRA adapters of {adapted}: the script adds them (in Hugging Face: PEFT's
`LoraConfig`), of the rank it finds in `LORA_RANK`.
"""


# A launcher (Slurm, SkyPilot, Kubernetes) or a person sets these on every node.
RENDEZVOUS: Final = """\
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"\
"""


def preamble(launch: Launch, verified: str) -> list[str]:
    """How a launch script begins that finds files beside itself."""
    return ["#!/usr/bin/env bash", *header(launch, verified), "set -euo pipefail", "", RENDEZVOUS, HERE]


def node_sizes(launch: Launch) -> list[str]:
    """Where nodes differ in GPUs, each starts as many ranks as it has."""
    if len({mesh.pool.gpus_per_node for mesh in launch.meshes}) == 1:
        return []
    lines, first = [], 0
    for mesh in launch.meshes:
        lines.append(f'if [ "$NODE_RANK" -ge {first} ]; then GPUS_PER_NODE={mesh.pool.gpus_per_node}; fi')
        first += mesh.gpus // mesh.pool.gpus_per_node
    return lines


def torchrun(launch: Launch, program: str, arguments: str) -> str:
    """The last command of a script; ``program`` and ``arguments`` are shell text."""
    sizes = {mesh.pool.gpus_per_node for mesh in launch.meshes}
    each = str(launch.gpus_per_node) if len(sizes) == 1 else '"$GPUS_PER_NODE"'
    return run(str(launch.nodes), each, program, arguments)


def run(nodes: str, each: str, program: str, arguments: str) -> str:
    """So many nodes with so many processes each."""
    return (
        f"exec torchrun --nnodes {nodes} --nproc-per-node {each} \\\n"
        '  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\\n'
        f"  {program} {arguments}"
    )


HERE: Final = 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'


def adapters(launch: Launch) -> list[str]:
    """The rank of LoRA adapters, for a training script of the user's."""
    return [f"export LORA_RANK={launch.workload.lora_rank}"] if launch.workload.task == "lora" else []


def host_order(launch: Launch) -> list[str]:
    """For mixed GPUs: ranks are numbered by node, so nodes must be started in the order of the plan."""
    if not launch.mixed:
        return []
    lines, first = ["# Node order (NODE_RANK) decides which GPUs hold which stages:"], 0
    for mesh in launch.meshes:
        nodes = -(-mesh.gpus // mesh.pool.gpus_per_node)
        figures = f"  nodes {first} to {first + nodes - 1}: {mesh.pool.device.name}, {mesh.pool.gpus_per_node} each"
        lines.append(comment(figures))
        first += nodes
    return lines
