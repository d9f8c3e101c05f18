"""The short README beside every export."""

from __future__ import annotations

from astra.export.base import Exporter, Launch
from astra.export.quoting import markdown


def readme(launch: Launch, exporter: Exporter, notes: str) -> str:
    """What was exported, how to start it, and how it was checked."""
    gpus = " + ".join(f"{mesh.gpus}x {markdown(mesh.pool.device.name)}" for mesh in launch.meshes)
    workload = launch.workload
    step = f"about {launch.step_s:.3g} s" if launch.step_s is not None else "not estimated"
    warned = "".join(f"\n> {markdown(warning)}\n" for warning in launch.warnings)
    return f"""\
# {markdown(launch.model.name)} with {exporter.title}
{warned}
| | |
|---|---|
| GPUs | {gpus}: {launch.nodes} nodes of {launch.gpus_per_node} |
| strategy | `{launch.strategy}` |
| layers per virtual stage | {", ".join(map(str, launch.layers))} |
| batch | {workload.global_batch} samples of {workload.seq} tokens |
| micro-batches | {launch.microbatches} of {launch.strategy.mbs} on each of {launch.strategy.dp} replicas |
| precision, optimizer | {markdown(workload.precision)}, {markdown(workload.optimizer)} |
| step time | {step} |
| made by | Astra {markdown(launch.version)} |
| verified with | {exporter.verified} |

{notes.strip()}
"""


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
