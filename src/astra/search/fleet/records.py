"""Answers about several pools: the usual records with what mixing adds. Written by ``--json`` like all others."""

from __future__ import annotations

from typing import ClassVar, Final

from astra.answer import Estimate, Plan, PlanSet, Result, StageEstimate

CADENCES: Final = (30, 50, 100, 250, 500)  # inner steps of published runs
_PENALTIES: Final = ((2, "below 1%"), (4, "up to 2%"), (8, "up to 4%"))  # of the evaluation loss, by workers
SOURCE: Final = (
    "Charles et al. 2025, arXiv 2503.09799, 35M to 2.4B parameters, 30 inner steps, equal workers; "
    "Douillard et al. 2023, arXiv 2311.08105, 500 inner steps, up to 400M"
)
RUN_BY: Final = "torchft or OpenDiLoCo"  # torchft.local_sgd.DiLoCo; arXiv 2407.07852
BRIDGE: Final = "jobs with a gradient bridge"


class MixedStage(StageEstimate, frozen=True, kw_only=True):
    """A stage and the pool it lives on."""

    group: int  # which group of pipelines
    pool: str
    tp: int
    recompute: str
    microbatch_s: float  # forward and backward of one micro-batch with what is not hidden, without transfers
    transfer_s: float  # of one micro-batch to its neighbours
    memory_limit_gib: float

    @property
    def place(self) -> str:
        """Its pool."""
        return self.pool

    @property
    def own_limit_gib(self) -> float | None:
        """Of its pool's GPU."""
        return self.memory_limit_gib


class GroupEstimate(Result, frozen=True, kw_only=True):
    """Equal pipelines of one shape."""

    index: int
    text: str
    dp: int
    mbs: int
    microbatches: int  # per pipeline
    samples: int  # of the global batch
    gpus: dict[str, int]  # by pool
    pipeline_s: float  # simulated
    closed_form_s: float  # what the optimiser minimised, for comparison
    waits_s: float  # for the slowest group
    state_share: float | None = None  # of one state that all groups share; None: the group has its own


class MixedEstimate(Estimate, frozen=True, kw_only=True):
    """How fast a strategy over several pools runs, and whether it fits."""

    drawn_by: ClassVar[str] = "report.mixed.estimate_parts"
    groups: list[GroupEstimate]
    used: dict[str, int]  # GPUs by pool
    idle: dict[str, int]
    precision: dict[str, str]  # by pool: a GPU without fp8 computes in bf16
    runs_on: list[str]  # runtimes that can execute it as it is
    needs: dict[str, str]  # other runtimes: what they lack


class Alternative(Result, frozen=True, kw_only=True):
    """The best plan with one pool alone, or without it."""

    pool: str
    strategy: str | None  # None: nothing fits
    step_s: float | None
    times: float | None  # speed of the best plan over this one
    why: str = ""


class Marginal(Result, frozen=True, kw_only=True):
    """What one more node of a pool would bring."""

    pool: str
    gpus: int  # in that node
    step_s: float
    gain: float  # fraction more tokens per second
    strategy: str


class PoolChoice(Result, frozen=True, kw_only=True):
    """The pool to return first, or a node to rent next: what changes most for its money."""

    pool: str
    gpus: int
    change: float  # share of the tokens per second that is lost with these GPUs, or gained
    usd_per_h: float | None  # of these GPUs; None: not all pools have a price, pools are judged by GPUs


class RuntimePlan(Result, frozen=True, kw_only=True):
    """The best plan that a runtime can run as it is."""

    runs_on: str
    runtime: str  # the profile it is timed by
    target: str | None  # of astra export, which starts it; None: nothing does
    strategy: str | None  # None: none was found
    step_s: float | None
    times: float | None  # its step over that of the fastest of them
    why: str = ""  # there is none, or nothing starts it


class LineRemark(Result, frozen=True, kw_only=True):
    """A line between two sites, and the width from which a plan over it is the fastest."""

    ends: list[str]
    bytes_per_s: float  # as it is, of all GPUs together
    pays_from_bytes_per_s: float | None  # None: no width makes a plan over it the fastest


class LocalSteps(Result, frozen=True, kw_only=True):
    """Groups that train by themselves for some steps before their weights meet (DiLoCo): another training."""

    inner_steps: int
    workers: int
    strategy: str
    step_s: float
    times: float  # speed over the best plan
    penalty: str  # in evaluation loss, as published
    source: str


class MixedPlanSet(PlanSet, frozen=True, kw_only=True):
    """The ranked answer for several pools."""

    drawn_by: ClassVar[str] = "report.mixed.plans_parts"
    alone: list[Alternative]
    without: list[Alternative]
    marginal: list[Marginal]
    launchable: Plan | None  # the best that the chosen runtime can run as it is
    conceivable: Plan  # the best of all
    left_out: dict[str, str]  # pools that no plan can use, and why
    lines: tuple[LineRemark, ...] = ()  # between sites
    by_runtime: tuple[RuntimePlan, ...] = ()  # where that was asked
    return_first: PoolChoice | None = None  # where the worth of pools was asked
    rent_next: PoolChoice | None = None  # the same; None too where no node of these pools makes it faster
    local_steps: LocalSteps | None = None  # offered where they would be faster, or as they were asked for


def penalty(workers: int) -> str:
    """What published runs lost in evaluation loss against ordinary training on as many tokens."""
    return next((text for most, text in _PENALTIES if workers <= most), "an amount nobody has published")


def warning(workers: int, steps: int) -> str:
    """What is said of every plan with local steps."""
    return (
        f"local steps are another training: weights meet every {steps} steps, and published runs with {workers} "
        f"workers lost {penalty(workers)} in loss ({SOURCE}); "
        "each group also keeps two more copies of its weights on the host"
    )
