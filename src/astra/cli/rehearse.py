"""``astra rehearse``: a rank of a plan run for real on the one GPU here, or its memory counted without one."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from astra.cli import options
from astra.cli.output import VerbAnswer, answer
from astra.errors import visible

if TYPE_CHECKING:
    from astra.export.base import Launch
    from astra.lab.rehearse.case import Case
    from astra.lab.rehearse.compare import Figures, Rehearsal, RehearsedStage
    from astra.spec.job import Job

HELP: Final = "run one rank of a plan on the GPU here, before paying for all of them"
DESCRIPTION: Final = (
    "Play single ranks of a plan made by astra plan --out PLAN.json with the real framework (megatron-core, torch's "
    "FSDP2, or plain torch) and no network: true peak memory and compute time, beside what was predicted. Without a "
    "GPU, memory is counted from the framework's own tensors. Needs torch and megatron-core (pip install "
    "'astra-planner[rehearse]'); for plans of torchtitan and FSDP torch alone."
)
EPILOG: Final = """\
Plans for Megatron run in megatron-core without TransformerEngine (runtime megatron-local), plans for torchtitan and
FSDP under torch's fully_shard (torchtitan-local, fsdp-local). The plan's strategy is predicted once more for that
runtime and the GPU here: that is what the measurement is compared with. What cannot run is counted, and the answer
says why.
docs/rehearsal.md says what is real, what stands in, and what cannot be rehearsed.

examples:
  astra plan llama-3.1-70b --gpus 64xH100 --out plan.json
  astra rehearse plan.json                    first, middle and last stage of the best plan
  astra rehearse plan.json --stage 0 --plan 2 --out rehearsal.json
  astra plan llama-3.1-70b --gpus 64xH100 --max vp=1 --out flat.json
  astra rehearse flat.json --framework torch  plain torch layers, without virtual stages; no megatron-core needed
"""
_FRAMEWORKS: Final = ("auto", "megatron", "torch", "fsdp2", "transformers", "torchtitan")
_HEAD: Final = ("stage", "layers", "", "peak GiB", "reserved", "compute", "optimizer")
_FIELDS: Final = ("peak_allocated_gib", "peak_reserved_gib", "compute_s", "optimizer_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan written by astra plan --out")
    parser.add_argument("--stage", metavar="I", action="append", default=[],
                        help="pipeline stage from 0, repeatable; all (default): first, middle and last")  # fmt: skip
    parser.add_argument("--plan", metavar="K", dest="rank", type=options.whole("--plan", at_most=1000), default=1,
                        help="which plan of the file (default 1, the best)")  # fmt: skip
    parser.add_argument("--framework", choices=_FRAMEWORKS, default="auto",
                        help="what builds and runs the rank (default: transformers for plans of FSDP, fsdp2 for those "
                             "of torchtitan, else megatron)")  # fmt: skip
    options.add_output(parser, detail=False)


def _plan(path: str, place: int) -> tuple[Launch, Job | None]:
    """The plan asked for; an error names this verb's flag."""
    from astra.errors import InputError  # noqa: PLC0415
    from astra.export.reading import read_plan  # noqa: PLC0415

    try:
        return read_plan(path, place)
    except InputError as error:
        if error.where == "--rank":
            raise InputError("--plan", place, want=error.want, fix=error.fix) from None
        raise


def run(args: argparse.Namespace) -> VerbAnswer:
    """Rehearse, and keep the comparison ready to be drawn."""
    from astra.lab.rehearse import compare, here, plan  # noqa: PLC0415

    launch, job, stages, ranks = chosen(args)
    framework = ranks[0].framework
    counted = plan.counted_only(launch.strategy, job.workload)
    present = here.gpu_here(framework)
    gpu = None if counted else present
    several = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
    _say(f"rehearsing {several} {f'on {gpu}' if gpu else 'without a GPU: memory only'}")
    if framework != "megatron":
        rows = here.run_in_torch(ranks, framework, gpu=gpu is not None)
    else:
        rows = here.run_on_gpu(ranks, _say) if gpu else here.run_without_gpu(ranks)
    found = compare.compare(
        job,
        launch.strategy,
        rows,
        how="gpu" if gpu else "fake",
        gpu=gpu,
        notes=[*counted, *plan.caveats(job.model, launch.strategy, job.workload, framework)],
        framework=framework,
    )
    return answer(found, args)


class Chosen(NamedTuple):
    """What was asked to be rehearsed."""

    launch: Launch
    job: Job
    stages: list[int]
    ranks: list[Case]


def chosen(args: argparse.Namespace) -> Chosen:
    """The ranks of a plan that are to be rehearsed; refused if they cannot be."""
    from astra.lab.rehearse import plan  # noqa: PLC0415

    launch, job = _plan(args.plan, args.rank)
    if job is None:
        raise plan.CannotRehearse(["plans on several GPU types"])
    stages = plan.stages_of(args.stage, launch.strategy.pp)
    framework = plan.framework_of(job.runtime) if args.framework == "auto" else args.framework
    ranks = [
        plan.case_of(
            job.model,
            launch.strategy,
            job.workload,
            layers=launch.layers,
            stage=stage,
            framework=framework,
            compiled=framework in ("fsdp2", "torchtitan") and plan.compiles(job.runtime),
        )
        for stage in stages
    ]
    return Chosen(launch, job, stages, ranks)


def _say(line: str) -> None:
    """Progress, for whoever is watching."""
    from astra.cli.progress import watched  # noqa: PLC0415

    if watched():
        print(visible(line), file=sys.stderr, flush=True)


def parts(found: Rehearsal, columns: int) -> list[Any]:
    """The record for people."""
    from astra.report import drawing  # noqa: PLC0415

    where = f"{found.framework}, run on {found.gpu}" if found.gpu else f"{found.framework}, tensors counted, no GPU"
    heads = ((name, "right" if name else "left") for name in _HEAD)
    table = drawing.table(*heads, rows=(row for stage in found.stages for row in _rows(stage, found)))
    return [
        drawing.heading(f"{found.model}, {found.gpus}", where),
        drawing.text(found.strategy),
        drawing.blank(),
        table,
        drawing.blank(),
        *(drawing.text(_verdict(stage, found)) for stage in found.stages),
        *([drawing.text(_host(found.host_speed))] if found.host_speed is not None else []),
        *(drawing.text(note) for note in found.notes),
        *(drawing.text(f"not checked: {what}") for what in found.not_checked),
    ]


def _rows(stage: RehearsedStage, found: Rehearsal) -> list[tuple[str, ...]]:
    how = "measured" if found.how == "gpu" else "counted"
    lines: list[tuple[str, ...]] = [(str(stage.stage), str(sum(stage.layers)), how, *_cells(stage.measured))]
    if stage.rehearsed_runtime is not None:
        lines.append(("", "", f"predicted, {found.compared_with}", *_cells(stage.rehearsed_runtime)))
        off = [stage.differences.get(name) for name in _FIELDS]
        lines.append(("", "", "difference", *("-" if value is None else f"{value:+.1%}" for value in off)))
    lines.append(("", "", f"plan, {found.runtime}", *_cells(stage.plan)))
    return lines


def _cells(figures: Figures) -> list[str]:
    def shown(name: str, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.2f}" if name.endswith("_gib") else f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.1f} ms"

    return [shown(name, getattr(figures, name)) for name in _FIELDS]


def _host(speed: float) -> str:
    return (
        f"the host here issues operators at {speed:.2f} times the speed that predictions assume: "
        f"host_speed = {speed:.2f} in the [[node]] of a cluster file"
    )


def _verdict(stage: RehearsedStage, found: Rehearsal) -> str:
    name = f"stage {stage.stage}"
    if stage.error is not None:
        return f"{name}: the framework refused it: {stage.error}"
    if stage.out_of_memory:
        reached = stage.row.get("allocated_at_oom_bytes", 0) / 2**30
        return f"{name}: ran out of memory on the GPU here, with {reached:.1f} GiB allocated"
    holds = stage.measured.peak_reserved_gib or stage.measured.peak_allocated_gib or 0.0
    kind = "reserved" if stage.measured.peak_reserved_gib is not None else "allocated"
    word = "within" if holds <= found.memory_limit_gib else "ABOVE"
    return f"{name}: {holds:.1f} GiB {kind}, {word} the {found.memory_limit_gib:.1f} GiB a rank of the plan may hold"
