"""The part every launch script shares: where the nodes meet, and torchrun."""

from __future__ import annotations

from typing import Final

from astra.export.base import Launch

# A launcher (Slurm, SkyPilot, Kubernetes) or a person sets these on every node.
RENDEZVOUS: Final = """\
NODE_RANK="${NODE_RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-localhost}"
MASTER_PORT="${MASTER_PORT:-29500}"\
"""


def torchrun(launch: Launch, program: str, arguments: str) -> str:
    """The last command of a script; ``program`` and ``arguments`` are shell text."""
    return (
        f"exec torchrun --nnodes {launch.nodes} --nproc-per-node {launch.gpus_per_node} \\\n"
        '  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\\n'
        f"  {program} {arguments}"
    )


HERE: Final = 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"'
