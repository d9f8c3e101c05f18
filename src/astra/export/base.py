"""What an exporter is: a target's files for a plan, and what that target cannot express.

What a framework can do is the table of its runtime (``astra.rules.can``). An exporter lists only the limits of its
files: each names the field at fault, says a sentence, and knows when it is broken. A plan that breaks either is
refused: nothing else is ever exported in its place unless the nearest plan is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from astra.catalog import runtimes
from astra.errors import AstraError, visible
from astra.export.quoting import comment, markdown
from astra.files import own_text
from astra.rules.can import Reason, may
from astra.spec.cluster import Pool
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload


class PlanFigures(NamedTuple):
    """PlanFigures and words of a plan's estimate; None or empty where it has none."""

    step_low_s: float | None = None
    step_high_s: float | None = None
    peak_gib: float | None = None
    peak_low_gib: float | None = None
    peak_high_gib: float | None = None
    limit_gib: float | None = None
    days: float | None = None
    market: str = ""
    provider: str = ""
    region: str = ""
    save_every_s: float | None = None  # the interval of checkpoints that the expected bill counts with


# Where each is in an estimate, or else.
_PLACES: Final = {
    "step_low_s": ("step_s_range.low",), "step_high_s": ("step_s_range.high",), "peak_gib": ("peak_reserved_gib",),
    "peak_low_gib": ("peak_gib_range.low",), "peak_high_gib": ("peak_gib_range.high",),
    "limit_gib": ("memory_limit_gib",), "days": ("cost.expected.days", "cost.days"), "market": ("cost.price.market",),
    "provider": ("cost.price.provider",), "region": ("cost.price.region",),
    "save_every_s": ("cost.expected.checkpoint_interval_s",),
}  # fmt: skip
_BILLED: Final = ("days", "market", "provider", "region", "save_every_s")


def figures_of(estimate: Mapping[str, Any]) -> PlanFigures:
    """What an estimate tells, as far as it is well formed; it decides nothing."""
    found: dict[str, Any] = {}
    for name, places in _PLACES.items():
        for place in places:
            value: Any = estimate
            for part in place.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if PlanFigures._field_defaults[name] == "":
                found.setdefault(name, visible(value) if isinstance(value, str) else "")
            elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
                found.setdefault(name, float(value))
    return PlanFigures(**found)


def estimated_anew(figures: PlanFigures, estimate: Mapping[str, Any]) -> PlanFigures:
    """The same bill with the time and memory of another estimate."""
    return figures_of(estimate)._replace(**{name: getattr(figures, name) for name in _BILLED})


class CannotExport(AstraError):
    """The target cannot express the plan; says every reason."""

    exit_code = 2

    def __init__(self, target: str | None, reasons: list[str], *, near: bool = True) -> None:
        self.where, self.reasons = f"--to {target}" if target else "--rank", reasons
        nearest = f"Use --nearest for the closest plan it can express, or {'another target' if target else 'a --rank'}."
        self.fix = nearest if near else "No other strategy would help: choose another target."
        who = f"{target} cannot" if target else "no target can"
        super().__init__(f"{who} express this plan: {'; '.join(reasons)}. {self.fix}")


class Mesh(NamedTuple):
    """A run of pipeline stages on one pool, in pipeline order. A plan on one GPU type has one mesh."""

    pool: Pool
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    etp: int = 1
    recompute: str = "none"

    @property
    def gpus(self) -> int:
        """GPUs of the mesh."""
        return self.tp * self.cp * self.dp * self.pp


class Launch(NamedTuple):
    """A plan, resolved: all that is needed to start it."""

    model: ModelSpec
    workload: Workload
    strategy: Strategy
    layers: tuple[int, ...]  # of each virtual stage, in pipeline order; never empty
    meshes: tuple[Mesh, ...]  # in the order of their ranks: in pipeline order, group by group
    runtime: str = "megatron"
    version: str = ""  # of Astra
    step_s: float | None = None  # as estimated
    figures: PlanFigures = PlanFigures()
    warnings: tuple[str, ...] = ()  # about the plan
    groups: tuple[Launch, ...] = ()  # of unlike replicas, each with its share of the batch; the first is this one
    shares: tuple[int, ...] = ()  # of the groups in one state; empty: each has its own
    local: int = 1  # steps that groups take by themselves before their weights meet
    by_replica: bool = False  # pools hold replicas of the same stages, not stages of the same replicas

    @property
    def pool(self) -> Pool:
        """The pool of the first stages: the only one, unless the plan is mixed."""
        return self.meshes[0].pool

    @property
    def several_vendors(self) -> bool:
        """Whether no one library joins its GPUs."""
        return len({mesh.pool.device.vendor for mesh in self.meshes}) > 1

    @property
    def mixed(self) -> bool:
        """Whether stages live on different pools."""
        return len(self.meshes) > 1

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return sum(mesh.gpus for mesh in self.meshes)

    @property
    def gpus_per_node(self) -> int:
        """Processes to start on each server."""
        return self.pool.gpus_per_node

    @property
    def nodes(self) -> int:
        """Servers of the job."""
        return sum(-(-mesh.gpus // mesh.pool.gpus_per_node) for mesh in self.meshes)

    @property
    def blackwell(self) -> bool:
        """Whether every GPU is of that generation or a later one of its rules."""
        return all(mesh.pool.device.generation == "blackwell" for mesh in self.meshes)

    @property
    def fp8_recipe(self) -> str:
        """How FP8 products are scaled: the finest way that every GPU has."""
        return "mxfp8" if all(mesh.pool.device.fp8_recipe == "mxfp8" for mesh in self.meshes) else "tensorwise"

    @property
    def microbatches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.workload.global_batch // (self.strategy.dp * self.strategy.mbs)

    @property
    def save_interval(self) -> int:
        """Steps between checkpoints, as billed."""
        if self.figures.save_every_s is None or self.step_s is None:
            return 1000
        return max(1, round(self.figures.save_every_s / self.step_s))

    @property
    def even(self) -> bool:
        """Whether every virtual stage has the same layers."""
        return len(set(self.layers)) == 1


class Limit(NamedTuple):
    """One thing a target's files cannot express, whatever the framework can do."""

    field: str  # of the strategy, or runtime, cluster
    sentence: str
    breaks: Callable[[Launch], bool]


class Left(NamedTuple):
    """Something a plan does not know: a variable or a place in a file, and what belongs there."""

    name: str
    meaning: str


class Exporter(NamedTuple):
    """A target of ``astra export``."""

    name: str  # as given to --to
    title: str  # what is written, in one line
    verified: str  # the version whose own parser accepted these files in tests
    runtime: str | None  # the profile that models the target; None to keep the plan's own
    limits: tuple[Limit, ...]  # what its files cannot express
    made: Callable[[Launch], dict[str, str]]  # name and content of each file; the caller has checked the limits
    left: Callable[[Launch], list[Left]] = lambda _: []  # what the files leave to whoever starts them
    starts: Callable[[Launch], Exporter] | None = None  # of a launcher: the framework that it starts
    takes_groups: bool = False  # of unlike replicas
    notes: Callable[[Launch], str] | None = None  # how to start it; else those of its name in data

    def files(self, launch: Launch) -> dict[str, str]:
        """Name and content of every file, the README among them."""
        return self.made(launch) | {"README.md": _readme(launch, self)}


def framework_of(exporter: Exporter, launch: Launch) -> Exporter:
    """The target itself, or the framework that a launcher starts."""
    return exporter if exporter.starts is None else exporter.starts(launch)


def runtime_of(exporter: Exporter, launch: Launch) -> Runtime:
    """The runtime a target is held to: the plan's own where the target starts that, else the target's."""
    own, target = runtimes.runtime(launch.runtime), framework_of(exporter, launch)
    return own if own.exports_to == target.name or target.runtime is None else runtimes.runtime(target.runtime)


def limits_broken(exporter: Exporter, launch: Launch) -> list[Reason]:
    """Limits of the files themselves, and for a launcher of those of the framework it starts."""
    limits = dict.fromkeys((*exporter.limits, *framework_of(exporter, launch).limits))
    return [Reason(limit.field, limit.sentence) for limit in limits if limit.breaks(launch)]


_UNLIKE: Final = "its groups of pipelines take unequal shares of the batch"
_APART: Final = "its groups of pipelines are on GPUs of several vendors"
_SELDOM: Final = "its groups train by themselves for {} steps before their weights meet"
_TOGETHER: Final = "its groups of replicas share one state, of which they hold parts of their own size"


def reasons(exporter: Exporter, launch: Launch) -> list[Reason]:
    """Everything that keeps a target from expressing a plan."""
    runtime = runtime_of(exporter, launch)
    able = [
        reason
        for part in launch.groups or (launch,)
        for reason in may(runtime, part.strategy, part.model, part.workload, part.pool, layers=part.layers)
    ]
    if launch.groups and not exporter.takes_groups:
        every = _APART if launch.several_vendors else _UNLIKE
        unlike = _TOGETHER if launch.shares else every if launch.local == 1 else _SELDOM.format(launch.local)
        able.append(Reason("groups", unlike))
    return list(dict.fromkeys((*able, *limits_broken(exporter, launch))))


def refusals(exporter: Exporter, launch: Launch) -> list[str]:
    """The sentences of the reasons."""
    return list(dict.fromkeys(reason.sentence for reason in reasons(exporter, launch)))


def strategy_could_help(exporter: Exporter, launch: Launch) -> bool:
    """Whether the reasons are all of the strategy, not of the model, the workload, runtime or GPUs."""
    fields = {reason.field for reason in reasons(exporter, launch)}
    return not fields & {"model", "workload", "runtime", *(() if launch.mixed else ("cluster",))}


# Ranks are numbered by node, so that a stage of one GPU type must not begin in the middle of a node of another.
WHOLE_NODES: Final = Limit(
    "cluster",
    "each GPU type must fill its nodes where stages live on several",
    lambda launch: launch.mixed and any(mesh.gpus % mesh.pool.gpus_per_node for mesh in launch.meshes),
)


def one_pool(target: str) -> Limit:
    """The limit of a target that knows one GPU type."""
    return Limit("cluster", f"{target} takes one GPU type per job", lambda launch: launch.mixed)


def differ(of: Callable[[Mesh], object]) -> Callable[[Launch], bool]:
    """Whether the meshes of a launch have several values of something."""
    return lambda launch: len(set(map(of, launch.meshes))) > 1


def header(launch: Launch, verified: str) -> list[str]:
    """What every exported file says of itself, as comments."""
    timing = f", about {launch.step_s:.3g} s per step" if launch.step_s is not None else ""
    gpus = " + ".join(f"{mesh.gpus}x{mesh.pool.device.name}" for mesh in launch.meshes)
    lines = [
        f"Plan of Astra {launch.version}: {launch.model.name} on {gpus}{timing}.",
        *(f"Strategy: {part.strategy}" for part in launch.groups or (launch,)),
        f"Verified with {verified}.",
    ]
    return [comment(line) for line in lines]


def python_header(launch: Launch, verified: str) -> list[str]:
    """The same at the top of a Python file.

    Python takes the encoding of a file from a comment in its first two lines: a name there could choose it.
    """
    return ["# -*- coding: utf-8 -*-", *header(launch, verified)]


def template(name: str) -> str:
    """A text that comes with Astra, to be filled in."""
    return own_text(__file__, name)


def joined(lines: Iterable[str]) -> str:
    """Lines as a file."""
    return "\n".join(lines) + "\n"


def _readme(launch: Launch, exporter: Exporter) -> str:
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

{(exporter.notes(launch) if exporter.notes else template(f"{exporter.name}_notes.md")).strip()}
{_left_over([*exporter.left(launch), *_packing(workload)])}"""


def _memory(launch: Launch) -> str:
    figures = launch.figures
    if figures.peak_gib is None or figures.limit_gib is None:
        return ""
    between = ""
    if figures.peak_low_gib is not None and figures.peak_high_gib is not None:
        between = f" ({figures.peak_low_gib:.1f} to {figures.peak_high_gib:.1f})"
    return f"| memory per GPU | {figures.peak_gib:.1f} GiB{between} of {figures.limit_gib:.1f} GiB |\n"


def _packing(workload: Workload) -> list[Left]:
    """Files read sequences as the data has them; Megatron-Bridge alone packs, where micro-batches are one sequence."""
    if not workload.packed:
        return []
    counted = f"samples of {workload.packed:,} tokens that do not see each other"
    return [Left("your data", f"the step time counts on sequences packed of {counted}: see that yours are")]


def _left_over(left: list[Left]) -> str:
    if not left:
        return ""
    rows = "\n".join(f"| {one.name} | {one.meaning} |" for one in left)
    return f"\n## Left to you\n\n| | |\n|---|---|\n{rows}\n"
