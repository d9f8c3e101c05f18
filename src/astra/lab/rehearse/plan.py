"""From a plan to the ranks that are rehearsed, and what keeps a plan from being rehearsed. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from astra.errors import AstraError, InputError
from astra.lab.rehearse.case import Case, fewest_microbatches
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy, replace
from astra.spec.workload import Workload

_MODEL: Final[tuple[tuple[str, Callable[[ModelSpec], bool]], ...]] = (
    ("latent attention (MLA)", lambda model: model.mla is not None),
    ("an encoder", lambda model: model.encoder is not None),
    ("a vision model", lambda model: model.vision is not None),
    ("attention without a causal mask", lambda model: not model.causal),
    ("dense layers among MoE layers", lambda model: bool(model.moe and (model.moe.first_dense or model.moe.every > 1))),
    ("experts without a gated activation", lambda model: model.moe is not None and not model.gated_mlp),
    ("more or fewer than two norms in a layer", lambda model: model.norms_per_layer != 2),
    ("a norm over the whole query and key projections", lambda model: model.qk_norm == "full"),
)
_STRATEGY: Final[tuple[tuple[str, Callable[[Strategy], bool]], ...]] = (
    ("context parallelism (cp)", lambda strategy: strategy.cp > 1),
    ("ZeRO 2 and 3 (zero2, zero3)", lambda strategy: strategy.zero > 1),
    ("tensor parallelism inside experts (etp)", lambda strategy: strategy.etp > 1),
    ("optimizer offload", lambda strategy: strategy.offload != "none"),
    ("attention that is not fused (flash=off)", lambda strategy: not strategy.flash),
    ("schedules other than 1F1B and interleaved", lambda strategy: strategy.schedule not in ("1f1b", "interleaved")),
)
_TORCH: Final[tuple[tuple[str, Callable[[ModelSpec, Strategy], bool]], ...]] = (
    ("experts in plain torch", lambda model, strategy: model.moe is not None),
    ("virtual stages (vp) in plain torch", lambda model, strategy: strategy.vp > 1),
)
_WORKLOAD: Final[tuple[tuple[str, Callable[[Workload], bool]], ...]] = (
    ("precisions other than bf16", lambda workload: workload.precision != "bf16"),
    ("optimizers other than Adam", lambda workload: workload.optimizer != "adam"),
    ("LoRA", lambda workload: workload.task == "lora"),
)


class CannotRehearse(AstraError):
    """The rehearsed runtime cannot play this plan; says every reason."""

    exit_code = 2

    def __init__(self, reasons: list[str]) -> None:
        self.where, self.reasons = "PLAN", reasons
        self.fix = "Plan without it (--forbid, --max or --fix), or take another plan of the file with --plan."
        super().__init__(f"this plan cannot be rehearsed: there is no rehearsal of {'; of '.join(reasons)}. {self.fix}")


def refusals(model: ModelSpec, strategy: Strategy, workload: Workload, framework: str = "megatron") -> list[str]:
    """Everything about a plan that the rehearsal does not know."""
    found = [words for words, breaks in _TORCH if framework == "torch" and breaks(model, strategy)]
    found += [words for words, breaks in _MODEL if breaks(model)]
    found += [words for words, breaks in _STRATEGY if breaks(strategy)]
    return found + [words for words, breaks in _WORKLOAD if breaks(workload)]


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
