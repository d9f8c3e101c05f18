"""What an exporter is: a target's files for a plan, and what that target cannot express.

An exporter lists its limits; each names the field at fault, says a sentence, and knows when it is broken. A plan that
breaks one is refused: nothing else is ever exported in its place unless the nearest plan is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from astra.errors import AstraError
from astra.export.quoting import comment
from astra.spec.cluster import Pool
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import STRATEGY_FIELDS
from astra.spec.workload import Workload


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
    meshes: tuple[Mesh, ...]  # in pipeline order
    runtime: str = "megatron"
    version: str = ""  # of Astra
    step_s: float | None = None  # as estimated

    @property
    def pool(self) -> Pool:
        """The pool of the first stages: the only one, unless the plan is mixed."""
        return self.meshes[0].pool

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
        return all("blackwell" in mesh.pool.device.arch.lower() for mesh in self.meshes)

    @property
    def microbatches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.workload.global_batch // (self.strategy.dp * self.strategy.mbs)

    @property
    def even(self) -> bool:
        """Whether every virtual stage has the same layers."""
        return len(set(self.layers)) == 1


class Limit(NamedTuple):
    """One thing a target cannot express."""

    field: str  # of the strategy, or model, workload, cluster
    sentence: str
    breaks: Callable[[Launch], bool]


class Exporter(Protocol):
    """A target of ``astra export``."""

    @property
    def name(self) -> str:
        """As given to ``--to``."""

    @property
    def title(self) -> str:
        """What is written, in one line."""

    @property
    def verified(self) -> str:
        """The version whose own parser accepted these files in tests."""

    @property
    def runtime(self) -> str | None:
        """The runtime profile that models the target; None to keep the plan's own."""

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What it cannot express."""

    def files(self, launch: Launch) -> dict[str, str]:
        """Name and content of every file; the caller has checked the limits."""


def limits_of(exporter: Exporter, launch: Launch) -> tuple[Limit, ...]:
    """A target's own limits, and for a launcher those of the framework it starts."""
    starts = getattr(exporter, "starts", None)
    return (*exporter.limits, *(() if starts is None else starts(launch).limits), _FP32)


def refusals(exporter: Exporter, launch: Launch) -> list[str]:
    """A sentence for every limit the plan breaks."""
    return list(dict.fromkeys(limit.sentence for limit in limits_of(exporter, launch) if limit.breaks(launch)))


def strategy_could_help(exporter: Exporter, launch: Launch) -> bool:
    """Whether the limits a plan breaks are all of its strategy, not of the model, the workload, runtime or GPUs."""
    fields = {limit.field for limit in limits_of(exporter, launch) if limit.breaks(launch)}
    return not fields & {"model", "workload", "runtime", *(() if launch.mixed else ("cluster",))}


_FP32: Final = Limit(
    "workload", "training in fp32 (precision tf32) is not exported", lambda it: it.workload.precision == "tf32"
)


# Values of a strategy's fields that mean "not used".
UNUSED: Final[Mapping[str, Any]] = {field.name: field.plain for field in STRATEGY_FIELDS}
_TITLES: Final = {field.name: field.title for field in STRATEGY_FIELDS}


def unused(target: str, *fields: str) -> tuple[Limit, ...]:
    """Limits for fields a target has no word for."""

    def breaks(field: str) -> Callable[[Launch], bool]:
        return lambda launch: getattr(launch.strategy, field) != UNUSED[field]

    return tuple(Limit(field, f"{target} has no {_TITLES[field]} ({field})", breaks(field)) for field in fields)


def no_overlap(target: str, *names: str) -> tuple[Limit, ...]:
    """Limits for overlaps a target cannot switch on."""

    def breaks(name: str) -> Callable[[Launch], bool]:
        return lambda launch: name in launch.strategy.overlap

    return tuple(Limit("overlap", f"{target} cannot overlap {name} communication", breaks(name)) for name in names)


# Ranks are numbered by node, so that a stage of one GPU type must not begin in the middle of a node of another.
WHOLE_NODES: Final = Limit(
    "cluster",
    "each GPU type must fill its nodes where stages live on several",
    lambda launch: launch.mixed and any(mesh.gpus % mesh.pool.gpus_per_node for mesh in launch.meshes),
)


def one_pool(target: str) -> Limit:
    """The limit of a target that knows one GPU type."""
    return Limit("cluster", f"{target} takes one GPU type per job", lambda launch: launch.mixed)


E = TypeVar("E", bound=Exporter)


def by_name(*exporters: E) -> dict[str, E]:
    """A registry; two exporters of one name are refused."""
    found: dict[str, E] = {}
    for exporter in exporters:
        if exporter.name in found:
            raise ValueError(f"two exporters are called {exporter.name}")
        found[exporter.name] = exporter
    return found


def header(launch: Launch, verified: str) -> list[str]:
    """What every exported file says of itself, as comments."""
    timing = f", about {launch.step_s:.3g} s per step" if launch.step_s is not None else ""
    gpus = " + ".join(f"{mesh.gpus}x{mesh.pool.device.name}" for mesh in launch.meshes)
    lines = [
        f"Plan of Astra {launch.version}: {launch.model.name} on {gpus}{timing}.",
        f"Strategy: {launch.strategy}",
        f"Verified with {verified}.",
    ]
    return [comment(line) for line in lines]


def joined(lines: Iterable[str]) -> str:
    """Lines as a file."""
    return "\n".join(lines) + "\n"
