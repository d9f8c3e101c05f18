"""The short README beside every export."""

from __future__ import annotations

from astra.export.base import Exporter, Launch, Left
from astra.export.quoting import markdown


def readme(launch: Launch, exporter: Exporter, notes: str) -> str:
    """What was exported, how to start it, and how it was checked."""
    gpus = " + ".join(f"{mesh.gpus}x {markdown(mesh.pool.device.name)}" for mesh in launch.meshes)
    workload = launch.workload
    step = f"about {launch.step_s:.3g} s" if launch.step_s is not None else "not estimated"
    figures = launch.figures
    if figures.step_low_s is not None and figures.step_high_s is not None:
        step += f", four in five times from {figures.step_low_s:.3g} to {figures.step_high_s:.3g} s"
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
{_memory(launch)}\
| made by | Astra {markdown(launch.version)} |
| verified with | {exporter.verified} |

{notes.strip()}
{_left(exporter.left(launch))}"""


def _memory(launch: Launch) -> str:
    figures = launch.figures
    if figures.peak_gib is None or figures.limit_gib is None:
        return ""
    between = ""
    if figures.peak_low_gib is not None and figures.peak_high_gib is not None:
        between = f" ({figures.peak_low_gib:.1f} to {figures.peak_high_gib:.1f})"
    return f"| memory per GPU | {figures.peak_gib:.1f} GiB{between} of {figures.limit_gib:.1f} GiB |\n"


def _left(left: list[Left]) -> str:
    if not left:
        return ""
    rows = "\n".join(f"| {one.name} | {one.meaning} |" for one in left)
    return f"\n## Left to you\n\n| | |\n|---|---|\n{rows}\n"


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
