"""From a plan to the ranks that are rehearsed, and what keeps a plan from being rehearsed. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from astra.catalog import runtimes
from astra.errors import AstraError, InputError
from astra.lab.rehearse.case import Case, fewest_microbatches
from astra.rules.can import may
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy, replace
from astra.spec.workload import Workload

RUNTIME: Final = "megatron-local"  # what is rehearsed
# Plain torch layers play less than megatron-core's.
_TORCH: Final[tuple[tuple[str, Callable[[ModelSpec, Strategy], bool]], ...]] = (
    ("plain torch has no experts", lambda model, strategy: model.moe is not None),
    ("plain torch has no virtual stages (vp)", lambda model, strategy: strategy.vp > 1),
)


class CannotRehearse(AstraError):
    """The rehearsed runtime cannot play this plan; says every reason."""

    exit_code = 2

    def __init__(self, reasons: list[str]) -> None:
        self.where, self.reasons = "PLAN", reasons
        self.fix = "Plan without it (--forbid, --max or --fix), or take another plan of the file with --plan."
        super().__init__(f"this plan cannot be rehearsed: {'; '.join(reasons)}. {self.fix}")


def refusals(model: ModelSpec, strategy: Strategy, workload: Workload, framework: str = "megatron") -> list[str]:
    """Everything about a plan that the rehearsal does not know: what its runtime cannot do."""
    found = [sentence for sentence, breaks in _TORCH if framework == "torch" and breaks(model, strategy)]
    reasons = may(runtimes.runtime(RUNTIME), strategy, model, workload)
    return [*found, *(reason.sentence for reason in reasons)]


def caveats(model: ModelSpec, strategy: Strategy, framework: str = "megatron") -> list[str]:
    """What is rehearsed in another way than it was planned, in sentences."""
    found = []
    if framework == "torch":
        found.append(
            "Plain torch layers are predicted as megatron-local: weights, gradients, optimizer state, matrix products "
            "and attention are the same; activation, rotary and loss run unfused here and keep more."
        )
    if model.window is not None:
        found.append("Attention windows are rehearsed as full causal attention: its time is too long, memory is right.")
    if "tp" in strategy.overlap:
        found.append("Tensor-parallel overlap needs TransformerEngine: the rehearsal runs the plain kernels.")
    return found


def case_of(
    model: ModelSpec,
    strategy: Strategy,
    workload: Workload,
    *,
    layers: tuple[int, ...] = (),
    stage: int = 0,
    framework: str = "megatron",
) -> Case:
    """One rank of a planned job, with as few micro-batches as show its fullest moment."""
    reasons = refusals(model, strategy, workload, framework)
    if reasons:
        raise CannotRehearse(reasons)
    if not 0 <= stage < strategy.pp:
        raise InputError("--stage", stage, want=f"a pipeline stage of the plan, 0 to {strategy.pp - 1}, or all")
    planned = workload.global_batch // (strategy.dp * strategy.mbs)
    overlap = ("grad", "param") if strategy.dp > 1 and "grad" in strategy.overlap else ()
    uneven = layers if len(set(layers)) > 1 else ()
    return Case(
        model=model,
        strategy=replace(strategy, overlap=overlap, layers=uneven),
        seq=workload.seq,
        stage=stage,
        microbatches=min(planned, fewest_microbatches(strategy.pp, strategy.vp, stage)),
    )


def stages_of(words: list[str], pp: int) -> list[int]:
    """The stages asked for: numbers, or ``all`` for the first, a middle and the last one."""
    found: list[int] = []
    for word in words or ["all"]:
        if word == "all":
            found += [0, pp // 2, pp - 1]
        elif word.isascii() and word.isdigit() and int(word) < pp:
            found.append(int(word))
        else:
            raise InputError("--stage", word, want=f"a pipeline stage of the plan, 0 to {pp - 1}, or all")
    return sorted(set(found))
