"""One job: a model on one pool, a workload and a runtime. What every cost is computed for."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

from msgspec.structs import replace

from astra.spec.cluster import Device, Pool
from astra.spec.model import ModelSpec
from astra.spec.record import Spec, check
from astra.spec.runtime import Runtime
from astra.spec.strategy import Strategy, parse_strategy, usual_overlap
from astra.spec.workload import Workload

# Share of a step lost, per doubling of nodes, to waiting for the slowest. Fitted on dgxc; the same in every runtime.
STRAGGLING: Final = 0.0035


class Words(Spec, frozen=True, kw_only=True):
    """Fields of ``Strategy`` by their names; a search has one set of them, its plans say them."""

    dispatch: Literal["alltoall", "deepep", "hybridep"] = "alltoall"
    dispatch_fp8: bool = False
    graphs: Literal["none", "partial", "full"] = "none"
    params: Literal["bf16", "fp8"] = "bf16"
    grads: Literal["fp32", "bf16"] = "fp32"
    attention: Literal["bf16", "fp8"] = "bf16"
    shard: int = 0

    @classmethod
    def of(cls, strategy: Strategy) -> Words:
        """Those of a strategy."""
        return cls(**{name: getattr(strategy, name) for name in cls.__struct_fields__})

    @property
    def gradient_bytes(self) -> float:
        """Of a parameter's gradient, as accumulated and reduced."""
        return 4.0 if self.grads == "fp32" else 2.0

    @property
    def sends_once(self) -> bool:
        """Whether a token goes once to each rank or node that has an expert of its, not once to each expert."""
        return self.dispatch != "alltoall"


def fp8_attention(model: ModelSpec, device: Device, workload: Workload) -> bool:
    """Whether TransformerEngine can train a model's attention in fp8: by the GPU, the scaling and the width of heads.

    On Blackwell (sm100) for operands scaled by groups or as a whole, keys up to 192 and values up to 128 wide, in whole
    groups of 32. On Hopper only with delayed scaling, which no runtime here uses; with nvfp4 only by an environment
    variable (get_attention_backend and nvte_get_fused_attn_backend of 2.20).
    """
    mla = model.mla
    keys, values = (
        (model.head_dim, model.head_dim)
        if mla is None
        else (mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim)
    )
    fitting = keys <= 192 and values <= 128 and keys % 32 == values % 32 == 0
    return device.fp8_attention and fitting and workload.precision in ("fp8", "fp8-tensorwise", "mxfp8")


def scales_groups(device: Device, workload: Workload) -> bool:
    """Whether operands of products are scaled by small groups, as the tensor cores of Blackwell do."""
    precision = workload.precision
    return precision in ("mxfp8", "nvfp4") or (precision == "fp8" and device.fp8_recipe == "mxfp8")


def captures_experts(model: ModelSpec, device: Device, workload: Workload) -> bool:
    """Whether a graph of a whole step can hold a model's experts: as products that the host need not know the sizes of.

    Those are of operands scaled by groups, of gates with SiLU or clamped. All others ask the GPU for the tokens of each
    expert, which a capture refuses (TEGroupedMLP of megatron-core 0.19.2: _is_fused_impl_supported, forward). They have
    gates and values in turns, as trained weights do not.
    """
    gated = model.gated_mlp and model.activation in (None, "silu", "clamped_swiglu")
    return model.moe is not None and gated and scales_groups(device, workload) and workload.task == "pretrain"


def sends_once_within(pool: Pool) -> dict[str, int]:
    """Over how many GPUs dispatchers reach that send a token once to a rank or node; 0 where they do not run.

    Their kernels need GPUs joined by NVLink: DeepEP's of Ampere, Hopper and Blackwell (not of racks, whose trays have
    four), HybridEP's of Hopper and Blackwell. Between nodes they drive ConnectX cards, which are not behind EFA and
    plain Ethernet, and DeepEP's for Ampere stay inside a node (deepseek-ai/DeepEP issues 149, 162, 234, 369, 579 and
    its README of HybridEP; NVIDIA-NeMo/Megatron-Bridge issue 3343 and flex_dispatcher_backend.py).
    """
    near, *far = pool.node.links or (None,)
    generation = pool.device.generation
    if near is None or near.kind not in ("nvswitch", "nvlink-mesh", "rack"):
        return {"deepep": 0, "hybridep": 0}
    reach = pool.gpus if all(link.kind in ("infiniband", "roce") for link in far) else pool.scaleup_gpus
    deepep = {"ampere": pool.scaleup_gpus, "hopper": reach, "blackwell": reach}.get(generation, 0)
    hybridep = {"hopper": reach, "blackwell": reach}.get(generation, 0)
    return {"deepep": 0 if near.kind == "rack" else deepep, "hybridep": hybridep}


class OtherGroups(Spec, frozen=True, kw_only=True):
    """Groups of other pipelines that a job sums its gradients with, and the slowest wire between any of them."""

    groups: int  # with its own
    bytes_per_s: float  # of one GPU
    latency_s: float
    line_s: float = 0.0  # in which a line that has a total carries the gradients once


class Job(Spec, frozen=True, kw_only=True):
    """A model, the GPUs, the work and who runs it."""

    model: ModelSpec
    pool: Pool
    workload: Workload
    runtime: Runtime
    headroom: float = 0.08  # fraction of usable memory a recommended plan leaves free
    settled: Words | None = None  # what all of its strategies say alike; None: as is usual
    repeats: tuple[str, ...] | None = None  # modules that its strategies may recompute; None: any
    other_groups: OtherGroups | None = None  # where its pipelines are one group of several that share a batch

    def __post_init__(self) -> None:
        check(0 <= self.headroom < 1, "headroom", self.headroom, "a fraction of memory between 0 and 1, such as 0.08")
        self.pool.device.peak(self.workload.precision)

    def on(self, gpus: int) -> Job:
        """The same job on another number of GPUs."""
        return replace(self, pool=replace(self.pool, gpus=gpus))

    @property
    def usable_bytes(self) -> float:
        """Device memory the allocator can take: all that is visible, less what the context holds."""
        return self.pool.device.memory_bytes - self.runtime.memory.context_bytes

    @property
    def straggling(self) -> float:
        """Share of a step lost to waiting for the slowest of all nodes."""
        return self.straggling_on(self.pool.gpus)

    def straggling_on(self, gpus: int) -> float:
        """The same on some of the GPUs."""
        return STRAGGLING * math.log2(max(gpus / self.pool.gpus_per_node, 1.0))

    @property
    def limit_bytes(self) -> float:
        """The most a recommended plan may reserve."""
        return self.usable_bytes * (1 - self.headroom)

    def overlapped(self, strategy: Strategy) -> tuple[str, ...]:
        """The communication a strategy of this job hides unless it says otherwise."""
        can = self.runtime.can
        known = tuple(name for name in can.overlap if name != "ep" or self._overlaps_experts(strategy))
        return usual_overlap(strategy, known=known, gathered=can.prefetch, tp_reach=self.pool.scaleup_gpus)

    def _overlaps_experts(self, strategy: Strategy) -> bool:
        """Whether its recipes run expert exchanges beside another micro-batch, where a strategy has one beside it."""
        several = self.workload.global_batch > strategy.dp * strategy.mbs
        paired = several and (strategy.pp == 1 or strategy.vp > 1)
        again = strategy.recompute == "full" or "moe" in strategy.modules
        return paired and not again and bool(self.recipe(pipelined=strategy.pp > 1)["overlap_ep"])

    def recipe(self, *, pipelined: bool = False) -> dict[str, str | bool]:
        """What the runtime's recipes choose for such a job, of what a strategy may leave out."""
        generation = self.pool.device.generation
        found = self.runtime.usual_words(generation, pipelined=pipelined, precision=self.workload.precision)
        whole = self.runtime.usual.on.get(generation, {}).get("graphs") == "full"  # said of recipes for experts
        if whole and not self.captures_steps:
            found |= {"graphs": "partial", "overlap_ep": False}
        if found["graphs"] != "full" or not self._attends_in_fp8:
            found["attention"] = "bf16"
        if sends_once_within(self.pool).get(str(found["dispatch"]), self.pool.gpus) < self.pool.gpus:
            found |= {"dispatch": "alltoall", "dispatch_fp8": False}
        return found if self.workload.low else found | {"params": "bf16", "dispatch_fp8": False}

    @property
    def scales_groups(self) -> bool:
        """Whether operands of products are scaled by small groups."""
        return scales_groups(self.pool.device, self.workload)

    @property
    def captures_steps(self) -> bool:
        """Whether recipes for experts capture whole steps: of what can be captured, no blocks that are many kernels.

        In nvfp4 those for Blackwell Ultra and Rubin, of experts without biases (2 of 14 such recipes of 0.6.2).
        """
        model, device = self.model, self.pool.device
        if model.moe is None or model.state_space is not None or model.delta_net is not None:
            return False
        if self.workload.precision == "nvfp4" and (device.arch == "Blackwell" or model.moe.expert_bias):
            return False
        return captures_experts(model, device, self.workload)

    @property
    def _attends_in_fp8(self) -> bool:
        """Whether recipes that capture whole steps run attention in fp8 too: in mxfp8.

        Of latent attention those on Blackwell Ultra alone (perf_recipes 0.5 and 0.6 of Megatron-Bridge).
        """
        device, work = self.pool.device, self.workload
        mixed = self.scales_groups and (self.model.mla is None or device.arch == "Blackwell Ultra")
        return mixed and work.seq % 128 == 0 and fp8_attention(self.model, device, work)

    def usual(self, strategy: Strategy) -> dict[str, Any]:
        """The words a strategy of this job takes unless it says otherwise, where it has a use for them."""
        words: dict[str, Any] = self.recipe(pipelined=strategy.pp > 1)
        del words["overlap_ep"]
        if strategy.ep == 1:
            words |= {"dispatch": "alltoall", "dispatch_fp8": False}
        if strategy.zero < 3:
            words["reshard"] = "always"
        if strategy.graphs != "full":
            words["attention"] = "bf16"
        return words | {"overlap": self.overlapped(strategy)}

    def chosen(self, strategy: Strategy) -> tuple[str, ...]:
        """The fields of a strategy that the job would choose so by itself: its short text leaves them out."""
        return tuple(name for name, value in self.usual(strategy).items() if getattr(strategy, name) == value)

    @property
    def words(self) -> Words:
        """What its strategies say alike."""
        if self.settled is not None:
            return self.settled
        usual: dict[str, Any] = self.recipe()
        return Words(**{name: usual[name] for name in Words.__struct_fields__ if name in usual})

    def saying(self, strategy: Strategy) -> Job:
        """The job with the words of a strategy, to cost it with: itself where it has them and what is recomputed."""
        words = Words.of(strategy)
        if self.settled == words and self.repeats is not None and {*strategy.modules} <= {*self.repeats}:
            return self
        return replace(self, settled=words, repeats=strategy.modules)

    def strategy(self, text: str) -> Strategy:
        """A strategy of this job from its text."""
        return parse_strategy(text, gpus=self.pool.gpus, usual=self.usual)
