"""From a plan to the ranks that are rehearsed, and what keeps a plan from being rehearsed. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from astra.catalog import runtimes
from astra.errors import AstraError, InputError
from astra.lab.rehearse.case import Case, Framework, fewest_microbatches
from astra.rules.can import may, unable
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime
from astra.spec.strategy import Strategy, replace
from astra.spec.workload import Workload

RUNTIME: Final = "megatron-local"  # what megatron-core and plain torch are compared with
FSDP2: Final = {False: "fsdp-local", True: "torchtitan-local"}  # the same of FSDP2, eager and compiled
TRANSFORMERS: Final = "transformers-local"
# Other frameworks play less than megatron-core does.
_IN_UNITS: Final = ("fsdp2", "transformers", "torchtitan")
_Breaks = Callable[[ModelSpec, Strategy], bool]
_WHOLE: Final[tuple[tuple[str, _Breaks], ...]] = (
    ("a framework's own models are rehearsed without pipelines (pp)", lambda model, strategy: strategy.pp > 1),
    ("a framework's own models are rehearsed where layers are of Llama's kind: RMS norms, a gate, rotary positions",
     lambda model, strategy: model.norm != "rmsnorm" or not model.gated_mlp or bool(model.learned_positions)),
)  # fmt: skip
_LACKS: Final[dict[str, tuple[tuple[str, _Breaks], ...]]] = {
    "torch": (
        ("plain torch has no experts", lambda model, strategy: model.moe is not None),
        ("plain torch has no virtual stages (vp)", lambda model, strategy: strategy.vp > 1),
        ("plain torch shards the optimizer alone (zero=0 or 1)", lambda model, strategy: strategy.zero > 1),
        ("plain torch has no latent attention", lambda model, strategy: model.mla is not None),
    ),
    "fsdp2": (
        ("FSDP2 ranks are rehearsed without tensor parallelism (tp)", lambda model, strategy: strategy.tp > 1),
        ("FSDP2 ranks are rehearsed without expert parallelism (ep)", lambda model, strategy: strategy.ep > 1),
        ("FSDP2 ranks are rehearsed without virtual stages (vp)", lambda model, strategy: strategy.vp > 1),
        ("FSDP2 shards gradients at least (zero=2 or 3)", lambda model, strategy: strategy.zero < 2),
        ("FSDP2 ranks are rehearsed without latent attention", lambda model, strategy: model.mla is not None),
        ("FSDP2 ranks are rehearsed with experts in every layer",
         lambda model, strategy: model.moe is not None and (model.moe.first_dense > 0 or model.moe.every > 1)),
        ("FSDP2 layers are kept whole or recomputed whole", lambda model, strategy: strategy.recompute == "selective"),
    ),
}  # fmt: skip
_LACKS["transformers"] = (*_LACKS["fsdp2"], *_WHOLE)
_LACKS["torchtitan"] = (
    *_LACKS["fsdp2"][1:],
    *_WHOLE,
    ("torchtitan's own models are rehearsed without experts", lambda model, strategy: model.moe is not None),
)


class CannotRehearse(AstraError):
    """The rehearsed runtime cannot play this plan; says every reason."""

    exit_code = 2

    def __init__(self, reasons: list[str]) -> None:
        self.where, self.reasons = "PLAN", reasons
        self.fix = "Plan without it (--forbid, --max or --fix), or take another plan of the file with --plan."
        super().__init__(f"this plan cannot be rehearsed: {'; '.join(reasons)}. {self.fix}")


def framework_of(runtime: Runtime) -> Framework:
    """What plays the ranks of a plan, unless another is named: the framework the plan is for."""
    if runtime.framework == "fsdp":
        return "transformers"
    return "fsdp2" if runtime.framework in ("torchtitan", "pytorch") else "megatron"


def compared_with(framework: str, runtime: Runtime) -> str:
    """The runtime that predicts what is played; FSDP2 is compiled where the plan's runtime is."""
    if framework == "transformers":
        return TRANSFORMERS
    return FSDP2[compiles(runtime)] if framework in _IN_UNITS else RUNTIME


def compiles(runtime: Runtime) -> bool:
    """Whether a plan's runtime compiles its layers."""
    return runtime.framework in ("torchtitan", "pytorch")


def refusals(model: ModelSpec, strategy: Strategy, workload: Workload, framework: Framework = "megatron") -> list[str]:
    """Everything about a plan that the rehearsal does not know, not even its memory."""
    found = [sentence for sentence, breaks in _LACKS.get(framework, ()) if breaks(model, strategy)]
    played = runtimes.runtime(RUNTIME)
    # Ranks that share a sequence are played as replicas: each has as many micro-batches as planned.
    work = structs.replace(workload, precision="bf16", global_batch=workload.global_batch * strategy.cp)
    if framework in _IN_UNITS:  # the plan's own runtime has looked at its strategy
        return [*found, *(reason.sentence for reason in unable(played, model, work))]
    return [*found, *(reason.sentence for reason in may(played, _playable(strategy), model, work))]


def _playable(strategy: Strategy) -> Strategy:
    """The strategy as a rank can be played here: what is said to be left out by ``counted_only`` and ``caveats``."""
    alone = {"dispatch": "alltoall", "dispatch_fp8": False, "graphs": "none", "params": "bf16", "attention": "bf16"}
    return replace(strategy, cp=1, dp=strategy.dp * strategy.cp, **alone)


def counted_only(strategy: Strategy, workload: Workload) -> list[str]:
    """Why a plan's ranks cannot run on a GPU here, in sentences: their memory is counted without one."""
    found = []
    if strategy.cp > 1:
        found.append(
            f"Context parallelism needs TransformerEngine: the rank is counted with 1/{strategy.cp} of the sequence, "
            "without what the ring of keys and values holds."
        )
    if strategy.offload == "optimizer":
        found.append("Optimizer offload needs TransformerEngine's Adam: the rank is counted without optimizer state.")
    if strategy.moments != "fp32":
        found.append("Moments in bf16 need TransformerEngine's Adam: the rank is counted with moments of that width.")
    if "ep" in strategy.overlap:
        found.append("Hidden expert exchanges have nothing to hide here, where they take no time: the rank is counted.")
    if workload.precision != "bf16":
        found.append(f"{workload.precision} needs TransformerEngine: the rank is counted in bf16.")
    return found


def caveats(model: ModelSpec, strategy: Strategy, workload: Workload, framework: Framework = "megatron") -> list[str]:
    """What is rehearsed in another way than it was planned, in sentences."""
    found = []
    if framework == "torch":
        found.append(
            "Plain torch layers are predicted as megatron-local: weights, gradients, optimizer state, matrix products "
            "and attention are the same; activation, rotary and loss run unfused here and keep more."
        )
    if framework in ("transformers", "torchtitan"):
        found.append(f"Models and layers are {framework}'s own; gathers and reductions take no time.")
    elif framework == "fsdp2":
        found.append("Layers are torchtitan's Llama, written anew; gathers and reductions take no time.")
    elif strategy.zero > 1:
        found.append("ZeRO-2 and 3 are Megatron-FSDP's, with a mesh of the ranks that shard one stage.")
        if strategy.pp > 1:
            found.append("Megatron-FSDP of megatron-core 0.19 makes no mesh in a pipeline: played as if it did.")
    if strategy.dispatch != "alltoall":
        found.append("Experts are reached by all-to-all here: other dispatchers need their own libraries.")
    if strategy.graphs != "none":
        found.append("CUDA graphs are not rehearsed: the host's time is that of single launches.")
    if model.window is not None:
        found.append("Attention windows are rehearsed as full causal attention: its time is too long, memory is right.")
    if workload.packed:
        found.append("Sequences are rehearsed and predicted as one sample each, not as packed.")
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
    framework: Framework = "megatron",
    compiled: bool = False,
) -> Case:
    """One rank of a planned job, with as few micro-batches as show its fullest moment."""
    reasons = refusals(model, strategy, workload, framework)
    if reasons:
        raise CannotRehearse(reasons)
    if not 0 <= stage < strategy.pp:
        raise InputError("--stage", stage, want=f"a pipeline stage of the plan, 0 to {strategy.pp - 1}, or all")
    planned = workload.global_batch // (strategy.dp * strategy.mbs)
    uneven = layers if len(set(layers)) > 1 else ()
    played = _playable(strategy)
    overlap: tuple[str, ...] = ("grad", "param") if played.dp > 1 and "grad" in strategy.overlap else ()
    overlap += ("ep",) * ("ep" in strategy.overlap)
    return Case(
        model=model,
        strategy=replace(played, overlap=overlap, layers=uneven),
        seq=workload.seq // strategy.cp,
        stage=stage,
        microbatches=min(planned, fewest_microbatches(strategy.pp, strategy.vp, stage)),
        framework=framework,
        compiled=compiled,
        attention="sdpa" if framework in _IN_UNITS else "flash",  # as frameworks leave it to torch
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
