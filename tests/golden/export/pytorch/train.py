# -*- coding: utf-8 -*-
# Plan of Astra 0.0: qwen3-8b on 16xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp2 pp2 dp4 mbs1 sp zero3 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32 reshard=never layers=17,19
# Verified with torch 2.13.0: run by torchrun on 1 to 4 CPU processes, the losses those of one.
"""Train a decoder as planned: PyTorch alone, one process for each GPU, started by torchrun.

Tensor parallelism is DTensor's, pipelines are torch.distributed.pipelining's, replicas share state by fully_shard.
Groups of replicas may differ in all of these and in their share of the batch: their gradients meet, weighed by it.
Or replicas of all groups share one state, and each holds as much of it as its GPU has room for. Or groups train by
themselves for some steps before their weights meet (DiLoCo).
Tokens are random unless --data names a file of them. Every plan of a model begins with the same weights and reads
the same samples: its losses are those of one GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard, parallel
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# --- The plan ---
TP = 2  # tensor-parallel ranks
SP = True  # whether they share the sequence between products
PP = 2  # pipeline ranks
SCHEDULE = '1f1b'  # or gpipe, interleaved
LAYERS = (17, 19)  # of each stage; stages go round the pipeline ranks
DP = 4  # replicas
RECOMPUTE = 'none'  # full: every layer is computed again in backward
MICRO_BATCH = 1  # samples at a time
ZERO = 3  # 3: they share weights, gradients and optimizer; 0: each has all of them
SHARD = 0  # as many replicas share; 0: all
RESHARD = 'never'  # never: gathered weights stay until the step's end
GLOBAL_BATCH = 1024  # samples of a step
SEQ = 4096  # tokens of a sample
PRECISION = 'bf16'  # products; weights, their gradients and the optimizer are fp32. Or tf32: all of it
# Groups of replicas in the order of their ranks, each with its own of the first eleven constants, its samples of a step
# and the GPUs it is meant for (names and pipeline ranks). The first has those above. Empty: all replicas are alike.
GROUPS: tuple[dict[str, Any], ...] = ()
SHARES = ()  # of the groups in one state that all replicas share; empty: every group has its own
LOCAL = 1  # steps that groups take by themselves before their weights meet; 1: their gradients meet at every step
STEPS = 238419
SAVE_EVERY = 1000  # steps between checkpoints
# The model
HIDDEN = 4096
FFN = 12288
HEADS = 32
KV_HEADS = 8
HEAD_DIM = 128
VOCAB = 151936
GATED = True  # the feed-forward has a gate
ACTIVATION = 'silu'
NORM = 'rmsnorm'  # or layernorm
NORM_BIAS = True  # of a layernorm
NORM_EPSILON = 1e-06
QK_NORM = True  # norms of every head's queries and keys
QKV_BIAS = False
OUT_BIAS = False
MLP_BIAS = False
HEAD_BIAS = False
TIED = False  # the embedding gives the logits too
POSITIONS = 0  # rows of learned positions
ROTARY: dict[str, Any] | None = {'base': 1000000.0, 'fraction': 1.0, 'scaling': 'none'}
# --- End of the plan ---

Turn = tuple[torch.Tensor, torch.Tensor] | None  # cosines and sines of rotary positions
SIZES = [one["TP"] * one["PP"] * one["DP"] for one in GROUPS] or [TP * PP * DP]
WORLD, FIRSTS = sum(SIZES), [sum(SIZES[:place]) for place in range(len(SIZES))]
JOB = int(os.environ["BRIDGE_JOB"]) if "BRIDGE_JOB" in os.environ else None  # the group that these processes are alone
RANK = int(os.environ.get("RANK", "0")) + (0 if JOB is None else FIRSTS[JOB])
GROUP = sum(first <= RANK for first in FIRSTS) - 1  # of this process; from here on the constants are those of its group
SAMPLES = GLOBAL_BATCH
globals().update(GROUPS[GROUP] if GROUPS else {})
MICRO_BATCHES = SAMPLES // (DP * MICRO_BATCH)
SHARDS = (SHARD or DP) if ZERO == 3 else 1  # ranks that weights, gradients and optimizer are divided among
REPLICAS = DP // SHARDS
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if CUDA else torch.device("cpu")
ACROSS = DEVICE if JOB is None else torch.device("cpu")  # where groups meet: jobs have no GPU library in common
COMPUTE = torch.bfloat16 if PRECISION == "bf16" else torch.float32
ALONG = Shard(1) if SP else Replicate()  # how tensor-parallel ranks hold what is between products
DECAY = 0.1  # of weights
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of the step that weights take where they meet (Douillard et al. 2023)
UNITS: list[Unit] = []  # of a state that all groups share


def norm(width: int) -> nn.Module:
    """A norm of the model's kind."""
    if NORM == "rmsnorm":
        return nn.RMSNorm(width, eps=NORM_EPSILON)
    return nn.LayerNorm(width, eps=NORM_EPSILON, bias=NORM_BIAS)


def rotary() -> Turn:
    """Cosines and sines [s, dim / 2] of every position."""
    if ROTARY is None:
        return None
    width = int(HEAD_DIM * ROTARY["fraction"])
    rates = ROTARY["base"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if ROTARY["scaling"] == "linear":
        rates = rates / ROTARY["factor"]
    if ROTARY["scaling"] == "llama3":  # slow turns are stretched, fast ones kept, those between in proportion
        low, high = ROTARY["low_frequency"], ROTARY["high_frequency"]
        turns = ROTARY["original_positions"] * rates / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        rates = kept * rates + (1 - kept) * rates / ROTARY["factor"]
    angles = torch.outer(torch.arange(SEQ, dtype=torch.float64), rates)
    return angles.cos().float().to(DEVICE), angles.sin().float().to(DEVICE)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads [b, a, s, d] with positions: the first numbers of each turn, in pairs of one half and the other."""
    half = cos.shape[-1]
    one, other, rest = x.float().split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin, rest), -1).type_as(x)


class Attention(nn.Module):
    """Causal attention, of grouped queries where there are fewer keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=QKV_BIAS)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=QKV_BIAS)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=QKV_BIAS)
        self.o = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=OUT_BIAS)
        if QK_NORM:
            self.q_norm, self.k_norm = norm(HEAD_DIM), norm(HEAD_DIM)

    def forward(self, x: torch.Tensor, turn: Turn) -> torch.Tensor:
        """Inputs and outputs are [b, s, h]."""
        q, k, v = (part(x).unflatten(-1, (-1, HEAD_DIM)) for part in (self.q, self.k, self.v))
        if QK_NORM:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if turn is not None:
            q, k = turned(q, *turn), turned(k, *turn)
        if PRECISION == "tf32":  # fused attention of fp32 knows no groups
            k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])
        return self.o(y.transpose(1, 2).flatten(2))


def activated(x: torch.Tensor) -> torch.Tensor:
    """The activation of the feed-forward."""
    if ACTIVATION == "gelu":
        return functional.gelu(x, approximate="tanh")
    return functional.silu(x) if ACTIVATION == "silu" else functional.relu(x).pow(2 if ACTIVATION == "relu2" else 1)


class FeedForward(nn.Module):
    """Two products, or three with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(HIDDEN, FFN, bias=MLP_BIAS)
        self.down = nn.Linear(FFN, HIDDEN, bias=MLP_BIAS)
        if GATED:
            self.gate = nn.Linear(HIDDEN, FFN, bias=MLP_BIAS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs and outputs are [b, s, h]."""
        return self.down(activated(self.gate(x)) * self.up(x) if GATED else activated(self.up(x)))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attention = norm(HIDDEN), Attention()
        self.norm_2, self.mlp = norm(HIDDEN), FeedForward()
        self.run, self.unit = self.compute, None

    def compute(self, x: torch.Tensor, turn: Turn) -> torch.Tensor:
        """The layer itself."""
        x = x + self.attention(self.norm_1(x), turn)
        return x + self.mlp(self.norm_2(x))

    def forward(self, x: torch.Tensor, turn: Turn) -> torch.Tensor:
        """The layer, computed again in backward if the plan says so."""
        again = RECOMPUTE == "full"  # with it weights are gathered again by themselves
        run = self.run if self.unit is None else partial(self.unit.call, self.run, not again)
        return checkpoint(run, x, turn, use_reentrant=False, preserve_rng_state=False) if again else run(x, turn)


class Embedding(nn.Module):
    """Tokens, and positions where they are learned, as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        if POSITIONS:
            self.positions = nn.Embedding(POSITIONS, HIDDEN)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of [b, s] to [b, s, h]."""
        x = self.tokens(tokens)
        if not POSITIONS:
            return x.clone()  # a view of DTensor's would lose its gradient in front of a compiled layer
        return x + self.positions(torch.arange(SEQ, device=tokens.device).expand_as(tokens))


class Head(nn.Module):
    """The last norm and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.logits = norm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=HEAD_BIAS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [b, s, h] to [b, s, vocabulary]."""
        return self.logits(self.norm(x))


class Stage(nn.Module):
    """Consecutive layers of the model, with the embedding if they are the first and the head if the last."""

    def __init__(self, index: int, mesh: DeviceMesh, turn: Turn) -> None:
        super().__init__()
        before, self.turn = sum(LAYERS[:index]), turn
        self.embedding = cut(Embedding(), "embedding", mesh) if index == 0 else None
        numbers = range(before, before + LAYERS[index])
        self.layers = nn.ModuleDict({str(n): shard(cut(Layer(), f"layers.{n}", mesh), mesh) for n in numbers})
        in_order(UNITS)
        self.head = cut(Head(), "head", mesh) if index == len(LAYERS) - 1 else None
        if TIED and self.embedding is not None and self.head is not None:
            self.head.logits.weight = self.embedding.tokens.weight
            shard([self.embedding, self.head], mesh, keep=True)
        elif self.embedding is not None:
            shard(self.embedding, mesh)
        if self.head is not None and not TIED:
            shard(self.head, mesh, keep=True)  # backward begins with it
        shard(self, mesh, keep=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens or the output of the stage before, to the input of the next or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.turn)
        return x if self.head is None else self.head(x)


def cut(module: nn.Module, name: str, mesh: DeviceMesh) -> nn.Module:
    """A part of the model with its first weights, of which each tensor-parallel rank keeps its share.

    Every parameter is drawn whole from a seed of its own: the weights are the same whatever the plan.
    """
    module = module.to(DEVICE)
    for key, parameter in module.named_parameters():
        if key.endswith("bias"):
            nn.init.zeros_(parameter)
        elif "norm" not in key:
            deep = key in ("attention.o.weight", "mlp.down.weight")
            seed = torch.Generator(DEVICE).manual_seed(zlib.crc32(f"{name}.{key}".encode()))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * sum(LAYERS) if deep else 1), generator=seed)
    if TP == 1:
        return module
    whole = Replicate()
    table = parallel.RowwiseParallel(input_layouts=whole, output_layouts=ALONG)
    by_head = parallel.SequenceParallel(sequence_dim=2, use_local_output=True)
    columns = ("attention.q", "attention.k", "attention.v", "mlp.up", "mlp.gate")
    styles: dict[str, Any] = {
        "tokens": table,
        "positions": table,
        "attention": parallel.PrepareModuleInput(input_layouts=(ALONG, None), desired_input_layouts=(whole, None)),
        "mlp": parallel.PrepareModuleInput(input_layouts=(ALONG,), desired_input_layouts=(whole,)),
        **dict.fromkeys(columns, parallel.ColwiseParallel()),
        **dict.fromkeys(("attention.q_norm", "attention.k_norm"), by_head),
        **dict.fromkeys(("attention.o", "mlp.down"), parallel.RowwiseParallel(output_layouts=ALONG)),
        **dict.fromkeys(("norm_1", "norm_2", "norm") if SP else (), parallel.SequenceParallel()),
        "logits": parallel.ColwiseParallel(input_layouts=ALONG, output_layouts=Shard(-1), use_local_output=False),
    }
    parts = dict(module.named_modules())
    styles = {key: style for key, style in styles.items() if key in parts}
    return parallel.parallelize_module(module, mesh["tp"], styles, src_data_rank=None)


class Unit:
    """Modules whose parameters are one flat tensor, of which this process holds a part as long as its share.

    The parts of all processes are gathered while the module before runs, and freed behind their own; backward gathers
    them again, but for those of the head, with which it begins. Collectives take equal parts: all are padded to the
    longest.
    """

    backward = False  # which way the step goes
    reducing: ClassVar[list[tuple[Unit, torch.Tensor, torch.Tensor, Any]]] = []  # gradients on their way

    def __init__(self, modules: list[nn.Module]) -> None:
        named = [(owner, key, value) for module in modules for owner in module.modules()
                 for key, value in owner.named_parameters(recurse=False)]  # fmt: skip
        values = list(dict.fromkeys(value for _, _, value in named))
        values.sort(key=lambda value: value.ndim == 1)  # matrices first: they alone decay
        self.shapes = [value.shape for value in values]
        self.decayed = sum(value.numel() for value in values if value.ndim > 1)
        place_of = {value: place for place, value in enumerate(values)}
        self.places = [(owner, key, place_of[value]) for owner, key, value in named]
        flat = torch.cat([value.detach().flatten() for value in values])
        self.cuts = cuts(len(flat))
        self.longest = max(end - start for start, end in self.cuts)
        self.start, self.end = self.cuts[RANK]
        self.own = nn.Parameter(flat[self.start : self.end].clone())
        self.again: torch.Tensor | None = None  # gathered for backward
        self.coming: tuple[torch.Tensor, torch.Tensor, Any] | None = None
        self.neighbours: list[Unit | None] = [None, None]  # what forward and backward take next
        for owner, key, _ in self.places:
            delattr(owner, key)
        for module in modules:
            if isinstance(module, Layer):
                module.unit = self
            else:
                module.forward = partial(self.call, module.forward, isinstance(module, Embedding))

    def call(self, run: Callable[..., torch.Tensor], free: bool, *inputs: Any) -> torch.Tensor:
        """A module with its gathered parameters; if they are freed behind it, backward gathers them again."""
        whole = Gathered.apply(self.own, self)
        parts = [part.view(shape) for part, shape in
                 zip(whole.split([shape.numel() for shape in self.shapes]), self.shapes, strict=True)]  # fmt: skip
        for owner, key, place in self.places:
            setattr(owner, key, parts[place])
        here = whole.untyped_storage().data_ptr()

        def pack(saved: torch.Tensor) -> Any:
            inside = saved.untyped_storage().data_ptr() == here
            return (saved.size(), saved.stride(), saved.storage_offset()) if inside else saved

        def unpack(kept: Any) -> torch.Tensor:
            if isinstance(kept, torch.Tensor):
                return kept
            if self.again is None:
                self.again = self.gathered()
            return self.again.as_strided(*kept)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack) if free else nullcontext():
            found = run(*inputs)
        for owner, key, _ in self.places:
            setattr(owner, key, None)
        return found

    def begin(self) -> None:
        """Gather the parameters, in the precision of products, while something else runs."""
        mine = functional.pad(self.own.detach().to(COMPUTE), (0, self.longest - len(self.own)))
        rows = mine.new_empty(WORLD, self.longest)
        self.coming = mine, rows, dist.all_gather_into_tensor(rows.view(-1), mine, async_op=True)

    def gathered(self) -> torch.Tensor:
        """All of them; those of the next module are on their way then."""
        if self.coming is None:
            self.begin()
        _, rows, work = self.coming
        work.wait()
        self.coming, following = None, self.neighbours[Unit.backward]
        if following is not None:
            following.begin()
        return self.joined(rows)

    def joined(self, rows: torch.Tensor) -> torch.Tensor:
        """Padded parts as one tensor."""
        return torch.cat([row[: end - start] for row, (start, end) in zip(rows, self.cuts, strict=True)])

    def reduce(self, whole: torch.Tensor) -> None:
        """Begin to sum the gradients of all processes, weighed by samples, where they are held."""
        Unit.settle()
        self.again, rows = None, torch.zeros(WORLD, self.longest, device=DEVICE)
        for row, (start, end) in zip(rows, self.cuts, strict=True):
            row[: end - start] = whole[start:end]
        rows.mul_(SAMPLES / DP / GLOBAL_BATCH)
        mine = rows.new_empty(self.longest)
        Unit.reducing.append((self, mine, rows, dist.reduce_scatter_tensor(mine, rows.view(-1), async_op=True)))

    @classmethod
    def settle(cls) -> None:
        """Wait for gradients that are on their way and add them up."""
        for unit, mine, _, work in cls.reducing:
            work.wait()
            own = mine[: len(unit.own)]
            unit.own.grad = own if unit.own.grad is None else unit.own.grad.add_(own)
        cls.reducing.clear()


class Gathered(torch.autograd.Function):
    """The parameters of a unit, whose gradients go to those who hold them."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, unit: Unit) -> torch.Tensor:
        """All of them."""
        ctx.unit = unit
        return unit.gathered()

    @staticmethod
    def backward(ctx: Any, whole: torch.Tensor) -> Any:
        """They are added up when they have come."""
        ctx.unit.reduce(whole)
        return None, None


def whole_of(unit: Unit, part: torch.Tensor) -> torch.Tensor:
    """What processes hold parts of, in host memory."""
    mine = functional.pad(part, (0, unit.longest - len(part)))
    rows = mine.new_empty(WORLD, unit.longest)
    dist.all_gather_into_tensor(rows.view(-1), mine)
    return unit.joined(rows).cpu()


def in_order(units: list[Unit]) -> None:
    """Tell units of layers, in their order, which is next; the embedding and the head are gathered as they come."""
    for before, after in pairwise(units):
        before.neighbours[0], after.neighbours[1] = after, before


def cuts(length: int) -> list[tuple[int, int]]:
    """Where the part of every process begins and ends: replicas of a group have its share in equal parts."""
    ends = [0]
    for place, one in enumerate(GROUPS):
        before = sum(SHARES[:place])
        ends += [length * (before * one["DP"] + SHARES[place] * number) // (sum(SHARES) * one["DP"])
                 for number in range(1, one["DP"] + 1)]  # fmt: skip
    return list(pairwise(ends))


def shard(module: Any, mesh: DeviceMesh, keep: bool = False) -> Any:
    """A unit of fully_shard: gathered before it runs and, unless it is kept, freed behind it."""
    if SHARES:
        if not isinstance(module, Stage):
            UNITS.append(Unit(module if isinstance(module, list) else [module]))
        return module
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE, reduce_dtype=torch.float32, cast_forward_inputs=False)
    over = mesh["replicate", "shard"] if REPLICAS > 1 else mesh["shard"]
    again = not keep and ZERO == 3 and RESHARD == "always"
    return fully_shard(module, mesh=over, mp_policy=policy, reshard_after_forward=again)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The part of one micro-batch in the mean loss of the replica."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / MICRO_BATCHES


class Samples:
    """The samples of a replica: of a file of tokens, one after another, or random ones."""

    def __init__(self, path: str, kind: str, replica: int) -> None:
        before = sum(one["SAMPLES"] for one in GROUPS[:GROUP])
        self.first, self.tokens = before + replica * (SAMPLES // DP), None
        if path:
            dtype = getattr(torch, kind)
            self.tokens = torch.from_file(path, size=os.path.getsize(path) // dtype.itemsize, dtype=dtype)
            if len(self.tokens) <= SEQ:
                sys.exit(f"{path} has {len(self.tokens)} tokens; a sample takes {SEQ + 1}.")

    def sample(self, number: int) -> torch.Tensor:
        """A sample and the token behind it."""
        if self.tokens is None:
            return torch.randint(VOCAB, (SEQ + 1,), generator=torch.Generator().manual_seed(number))
        start = number % ((len(self.tokens) - 1) // SEQ) * SEQ
        return self.tokens[start : start + SEQ + 1].long()

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a step."""
        start = step * GLOBAL_BATCH + self.first
        rows = torch.stack([self.sample(start + row) for row in range(SAMPLES // DP)]).to(DEVICE)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Bridge:
    """Where gradients of groups meet: ranks of unlike groups that hold the same part of the model, one of each.

    A gradient is gathered inside its group and cut into lanes, one for each such set of ranks; every lane sums its cut,
    and shares it with the ranks of its own stage. Groups that are jobs of their own meet by gloo, over the hosts.
    """

    def __init__(self) -> None:
        parts = ["embedding", *(f"layers.{number}" for number in range(sum(LAYERS))), "head"]
        self.holders = {part: tuple(holder(one, part) for one in GROUPS) for part in parts}
        widths = [one["TP"] * one["DP"] for one in GROUPS]
        self.stages = {(place, stage): dist.new_group(self.ranks(place, stage))
                       for place, one in enumerate(GROUPS) for stage in range(one["PP"])}  # fmt: skip
        self.lanes = {stages: [dist.new_group([self.ranks(place, stage)[lane] for place, stage in enumerate(stages)])
                               for lane in range(min(widths))]
                      for stages in sorted(set(self.holders.values()))}  # fmt: skip

    def ranks(self, place: int, stage: int) -> list[int]:
        """Of a stage of a group."""
        width = GROUPS[place]["TP"] * GROUPS[place]["DP"]
        return [FIRSTS[place] + stage * width + number for number in range(width)]

    def meet(self, stages: list[Stage], rank: int) -> None:
        """Gradients of this process become those of the whole batch."""
        here = self.ranks(GROUP, rank)
        held = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
        for part, holders in self.holders.items():
            lanes = self.lanes[holders]
            for name in sorted(name for name in held if name.startswith(f"{part}.")):
                whole = held[name].grad.full_tensor().mul_(SAMPLES / GLOBAL_BATCH)
                cuts = list(whole.view(-1).tensor_split(len(lanes)))
                mine = here.index(RANK)
                if mine < len(lanes):
                    dist.all_reduce(summed := cuts[mine].to(ACROSS), group=lanes[mine])
                    cuts[mine].copy_(summed)
                for lane, cut_of in enumerate(cuts):
                    dist.broadcast(cut_of, here[lane], group=self.stages[GROUP, rank])
                held[name].grad.to_local().copy_(own(whole, held[name]))


class Outer:
    """What weights were when they last met, on the host, and their own step there: Nesterov's momentum.

    Its gradient is how far the weights went since, the mean of all groups, weighed by their share of the batch.
    """

    def __init__(self, stages: list[Stage]) -> None:
        self.stages = stages
        self.held = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
        self.met = {name: local(one).cpu().clone() for name, one in self.held.items()}
        self.optimizer = torch.optim.SGD(self.met.values(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)

    def meet(self, bridge: Bridge, rank: int) -> None:
        """Weights of all groups become the same."""
        for name, parameter in self.held.items():
            parameter.grad = with_own(parameter, self.met[name].to(DEVICE) - local(parameter))
        bridge.meet(self.stages, rank)
        for name, parameter in self.held.items():
            self.met[name].grad, parameter.grad = local(parameter.grad).cpu(), None
        self.optimizer.step()
        for name, parameter in self.held.items():
            local(parameter).copy_(self.met[name])

    def state(self) -> dict[str, torch.Tensor]:
        """The momentum, cut as the weights are."""
        found = {name: self.optimizer.state[met].get("momentum_buffer") for name, met in self.met.items()}
        zero = {name: torch.zeros_like(met) for name, met in self.met.items() if found[name] is None}
        return {f"outer.{name}": with_own(one, (found | zero)[name].to(DEVICE)) for name, one in self.held.items()}

    def go_on(self, found: dict[str, torch.Tensor]) -> None:
        """From the weights as they are now and the momentum that was read; none was if they never met."""
        for name, met in self.met.items():
            met.copy_(local(self.held[name]))
            if f"outer.{name}" in found:
                self.optimizer.state[met]["momentum_buffer"] = local(found[f"outer.{name}"]).cpu()


def local(whole: Any) -> torch.Tensor:
    """What this process holds."""
    return whole.detach().to_local()


def with_own(like: Any, own: torch.Tensor) -> Any:
    """Something cut as another is, of which this process holds so much."""
    made = like.detach().clone()
    made.to_local().copy_(own)
    return made


def holder(group: dict[str, Any], part: str) -> int:
    """The pipeline rank of a group that holds a part of the model."""
    if part in ("embedding", "head"):
        return 0 if part == "embedding" else group["PP"] - 1
    number, layers = int(part.removeprefix("layers.")), group["LAYERS"]
    stage = sum(sum(layers[: place + 1]) <= number for place in range(len(layers)))
    return stage % group["PP"]


def own(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    """What this process has of a parameter, of the whole: first tensor parallelism divides it, then its shards."""
    mesh = parameter.device_mesh
    places = dict(zip(mesh.mesh_dim_names, parameter.placements, strict=True))
    for name, place in ((name, places[name]) for name in ("tp", "shard") if name in places):
        if not place.is_replicate():
            cuts, rank = whole.chunk(mesh[name].size(), place.dim), mesh[name].get_local_rank()
            whole = cuts[rank] if rank < len(cuts) else whole.narrow(place.dim, 0, 0)
    return whole


class Trainer:
    """The stages of this process, their optimizers and what runs a step."""

    def __init__(self, mesh: DeviceMesh, group: Any, rate: float, compiler: str) -> None:
        self.rank, self.group, turn = mesh["pp"].get_local_rank(), group, rotary()
        self.bridge = Bridge() if GROUPS and not SHARES else None
        indices = range(self.rank, len(LAYERS), PP)  # with several chunks a rank every PP-th is its own
        self.stages = [Stage(index, mesh, turn) for index in indices]
        self.optimizers = [optimizer_of(stage, rate) for stage in self.stages]
        self.outer = Outer(self.stages) if LOCAL > 1 else None
        self.loss, self.schedule = loss_of, None
        if compiler != "none":
            self.loss = torch.compile(loss_of, backend=compiler)
            for layer in (layer for stage in self.stages for layer in stage.layers.values()):
                layer.run = torch.compile(layer.compute, backend=compiler)
        if PP > 1:
            pairs, group = zip(self.stages, indices, strict=True), mesh["pp"].get_group()
            parts = [PipelineStage(stage, index, len(LAYERS), DEVICE, group=group) for stage, index in pairs]
            kinds = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
            mine = parts if SCHEDULE == "interleaved" else parts[0]
            self.schedule = kinds[SCHEDULE](mine, MICRO_BATCHES, loss_fn=self.loss, scale_grads=False)

    def gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Forward and backward of every micro-batch; the mean loss of the replica, on its last stage."""
        losses: list[torch.Tensor] = []
        if self.schedule is None:
            for place, (x, y) in enumerate(zip(inputs.split(MICRO_BATCH), targets.split(MICRO_BATCH), strict=True)):
                last, stage = place == MICRO_BATCHES - 1, self.stages[0]
                if not SHARES:
                    stage.set_requires_gradient_sync(last or SHARDS > 1)  # whole gradients are added up first
                    stage.set_requires_all_reduce(last)
                    stage.set_reshard_after_backward(last or (ZERO == 3 and RESHARD == "always"))
                Unit.backward = False
                losses.append(self.loss(stage(x), y))
                Unit.backward = True
                losses[-1].backward()
            Unit.settle()
        else:
            first, last = self.rank == 0, self.rank == PP - 1
            wanted: dict[str, Any] = {"target": targets, "losses": losses} if last else {}
            self.schedule.step(*([inputs] if first else []), **wanted, return_outputs=False)
        found = sum((loss.detach() for loss in losses), torch.zeros((), device=DEVICE))
        return found.full_tensor() if hasattr(found, "full_tensor") else found

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, rate: float, most: float) -> tuple[float, float]:
        """One step of the optimizer; mean loss and norm of the gradients of the batch, or of the group alone."""
        with parallel.loss_parallel() if TP > 1 else torch.enable_grad():
            loss = self.gradients(inputs, targets)
        if self.bridge is not None and self.outer is None:
            self.bridge.meet(self.stages, self.rank)
        grads = [(p.grad.to_local(), copies(p)) for stage in self.stages for p in stage.parameters()]
        grads += [(unit.own.grad, 1) for unit in UNITS]
        square = sum(grad.float().square().sum() / count for grad, count in grads)
        groups, share = (len(SIZES), SAMPLES / GLOBAL_BATCH) if self.outer is None else (1, 1.0)
        same = 1 if SHARES else REPLICAS * groups  # processes that hold the same of a tensor-parallel part
        sums = torch.stack((loss / (TP * DP) * share, square / same)).to(ACROSS)
        dist.all_reduce(sums, group=self.group)
        sums = sums.to(DEVICE)
        norm = sums[1].sqrt()
        torch._foreach_mul_([grad for grad, _ in grads], (most / (norm + 1e-6)).clamp(max=1.0))
        for unit in UNITS:
            unit.own.detach()[: max(0, unit.decayed - unit.start)].mul_(1 - DECAY * rate)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        return float(sums[0]), float(norm)

    def meet(self) -> None:
        """After so many steps by themselves the weights of groups meet."""
        if self.outer is not None:
            self.outer.meet(self.bridge, self.rank)

    def save(self, folder: str, group: Any) -> None:
        """A checkpoint: of several groups that have the same state the first writes it."""
        if SHARES:
            found = self.whole_state()
            if RANK == 0:
                dcp.save(found, checkpoint_id=folder, no_dist=True)
        elif GROUP == 0:
            dcp.save(self.state(), checkpoint_id=folder, process_group=group)

    def load(self, folder: str, group: Any) -> None:
        """Go on from a checkpoint; parts of a shared state are taken from one whole tensor after another."""
        if not SHARES:
            known = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
            found = {name: one for name, one in self.state().items() if name in known or not name.startswith("outer.")}
            dcp.load(found, checkpoint_id=folder, process_group=group)
            if self.outer is not None:
                self.outer.go_on(found)
        for unit, (name, *_), start, shape in self.tensors():
            step = {f"state.{name}.step": torch.zeros(())}
            dcp.load(step, checkpoint_id=folder, no_dist=True)
            for key, part in self.parts(unit, next(iter(step.values()))).items():
                whole = torch.empty(shape)
                dcp.load({key.format(name): whole}, checkpoint_id=folder, no_dist=True)
                low, high = max(start, unit.start), min(start + shape.numel(), unit.end)
                if low < high:
                    part[low - unit.start : high - unit.start] = whole.view(-1)[low - start : high - start]

    def tensors(self) -> list[tuple[Unit, list[str], int, torch.Size]]:
        """The parameters of units: all names of each, where it begins in its unit, its shape."""
        paths = {owner: path for stage in self.stages for path, owner in stage.named_modules()}
        found = []
        for unit in UNITS:
            for place, shape in enumerate(unit.shapes):
                names = [f"{paths[owner]}.{key}" for owner, key, which in unit.places if which == place]
                found.append((unit, names, sum(one.numel() for one in unit.shapes[:place]), shape))
        return found

    def parts(self, unit: Unit, step: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """What this process holds of a unit and of its optimizer's state, made anew if a step is given."""
        own, state = unit.own.detach(), self.optimizers[0].state[unit.own]
        if step is not None and not state:
            state |= {"step": step.to(DEVICE), "exp_avg": torch.zeros_like(own), "exp_avg_sq": torch.zeros_like(own)}
        return {"{}": own, "state.{}.exp_avg": state["exp_avg"], "state.{}.exp_avg_sq": state["exp_avg_sq"]}

    def whole_state(self) -> dict[str, Any]:
        """The same as ``state`` of units whose parts are unequal, in the first process's memory; all must call it."""
        found, last = {}, None
        settings = {key: value for key, value in self.optimizers[0].param_groups[0].items() if key != "params"}
        for unit, names, start, shape in self.tensors():
            if unit is not last:
                wholes, last = {key: whole_of(unit, part) for key, part in self.parts(unit).items()}, unit
            if RANK == 0:
                cut_out = {key: whole[start : start + shape.numel()].view(shape) for key, whole in wholes.items()}
                found |= {key.format(names[0]): part for key, part in cut_out.items()}
                found |= dict.fromkeys(names, cut_out["{}"])  # a tied weight has two names, and one state
                found[f"state.{names[0]}.step"] = self.optimizers[0].state[unit.own]["step"].cpu()
                decay = {"weight_decay": DECAY if len(shape) > 1 else 0.0}
                found |= {f"param_groups.{names[0]}.{key}": value for key, value in (settings | decay).items()}
        return found

    def state(self) -> dict[str, Any]:
        """Weights and optimizer by name, to be written or overwritten; any plan of the model has the same names."""
        found: dict[str, Any] = {}
        for stage, optimizer in zip(self.stages, self.optimizers, strict=True):
            for part in get_state_dict(stage, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True)):
                found |= part
        return found if self.outer is None else found | self.outer.state()


def optimizer_of(stage: Stage, rate: float) -> torch.optim.Optimizer:
    """AdamW; parameters of different meshes, and those without weight decay, are groups of their own."""
    groups: dict[Any, dict[str, Any]] = {}
    if SHARES:  # matrices and vectors are in one tensor: what decays is said there
        return torch.optim.AdamW([unit.own for unit in UNITS], lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for parameter in stage.parameters():
        decay = DECAY if parameter.ndim > 1 else 0.0
        one = groups.setdefault((parameter.device_mesh, decay), {"params": [], "weight_decay": decay})
        one["params"].append(parameter)
    return torch.optim.AdamW(list(groups.values()), lr=rate, betas=(0.9, 0.95), fused=True)


def copies(parameter: Any) -> int:
    """How many tensor-parallel ranks hold the same numbers of a parameter."""
    names = parameter.device_mesh.mesh_dim_names
    return 1 if "tp" in names and parameter.placements[names.index("tp")].is_shard() else TP


def rate_at(step: int, steps: int, most: float) -> float:
    """A linear beginning, then half a cosine down to a tenth."""
    begins = max(1, min(2000, steps // 50))
    if step < begins:
        return most * (step + 1) / begins
    return most * (0.55 + 0.45 * math.cos(math.pi * (step - begins) / max(1, steps - begins)))


def degrees() -> list[tuple[int, int, int]]:
    """Of tensor parallelism, pipelines and replicas in each group."""
    return [(one["TP"], one["PP"], one["DP"]) for one in GROUPS] or [(TP, PP, DP)]


def meshes() -> list[DeviceMesh]:
    """The ranks of each group; every process makes all of them, as process groups must be."""
    names, found = ("pp", "replicate", "shard", "tp"), []
    if not GROUPS:
        return [init_device_mesh(DEVICE.type, (PP, REPLICAS, SHARDS, TP), mesh_dim_names=names)]
    join()
    for first, size, one, (tp, pp, dp) in zip(FIRSTS, SIZES, GROUPS, degrees(), strict=True):
        shards = (one["SHARD"] or dp) if one["ZERO"] == 3 else 1
        ranks = torch.arange(first, first + size).view(pp, dp // shards, shards, tp)
        found.append(DeviceMesh(DEVICE.type, ranks, mesh_dim_names=names))
    return found


def join() -> None:
    """Meet the processes of all groups, which torchrun started together or each group as a job."""
    if JOB is None:
        dist.init_process_group("nccl" if CUDA else "gloo")
        return
    store = dist.TCPStore(os.environ["BRIDGE_ADDR"], int(os.environ["BRIDGE_PORT"]), WORLD, is_master=RANK == 0)
    dist.init_process_group("cpu:gloo,cuda:nccl" if CUDA else "gloo", store=store, rank=RANK, world_size=WORLD)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="a file of tokens and nothing else (default: random tokens)")
    parser.add_argument("--token-type", default="uint16" if VOCAB <= 65536 else "uint32", choices=("uint16", "uint32"))
    parser.add_argument("--steps", type=int, default=STEPS, help="in all (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-4, help="the highest learning rate")
    parser.add_argument("--clip", type=float, default=1.0, help="the highest norm of the gradients")
    parser.add_argument("--compile", default="inductor" if CUDA else "none", help="torch.compile's backend, or none")
    parser.add_argument("--save", default="", help="a folder for checkpoints (default: none are written)")
    parser.add_argument("--save-every", type=int, default=SAVE_EVERY, help="steps (default: %(default)s)")
    parser.add_argument("--load", default="", help="the folder of one checkpoint, to go on from")
    return parser.parse_args()


def main() -> None:
    """Train."""
    given, started = arguments(), int(os.environ.get("WORLD_SIZE", "1"))
    wanted, named = (WORLD, "plan") if JOB is None else (SIZES[JOB], "job")
    if started != wanted:
        some = degrees() if JOB is None else [degrees()[JOB]]
        made = " + ".join(f"tp {tp} x pp {pp} x dp {dp}" for tp, pp, dp in some)
        sys.exit(f"This {named} is for {wanted} processes ({made}), but {started} were started.")
    if JOB is not None and (SHARES or not GROUPS):
        sys.exit("Only groups that each have a state of their own can be jobs of their own.")
    if CUDA:
        torch.cuda.set_device(DEVICE)
        torch.set_float32_matmul_precision("high")  # TF32
    mesh = meshes()[GROUP]
    replica = mesh["replicate"].get_local_rank() * SHARDS + mesh["shard"].get_local_rank()
    first, due = 0, False
    group = [dist.new_group(list(range(at, at + size))) for at, size in zip(FIRSTS, SIZES, strict=True)][GROUP]
    together, alone = (None, "") if LOCAL == 1 else (group, f" group {GROUP}")
    trainer, samples = Trainer(mesh, together, given.lr, given.compile), Samples(given.data, given.token_type, replica)
    if given.load:
        trainer.load(given.load, group)
        first = int(os.path.basename(os.path.normpath(given.load)).removeprefix("step-"))
    for step in range(first, given.steps):
        began = time.perf_counter()
        loss, norm = trainer.step(*samples.batch(step), rate_at(step, given.steps, given.lr), given.clip)
        meets, due = (step + 1) % LOCAL == 0 or step + 1 == given.steps, due or (step + 1) % given.save_every == 0
        if meets:
            trainer.meet()
        took = time.perf_counter() - began
        peak = torch.tensor(torch.cuda.max_memory_allocated() if CUDA else 0, device=ACROSS)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=together)
        if dist.get_rank(together) == 0:
            speed = (GLOBAL_BATCH if LOCAL == 1 else SAMPLES) * SEQ / took
            told = f"step {step + 1}{alone} loss {loss:.6f} norm {norm:.4f} {took:.3f} s {speed:,.0f} tokens/s"
            # Written at once: lines of groups that print to one place do not run into each other.
            sys.stdout.write(f"{told} peak {peak.item() / 2**30:.2f} GiB\n")
            sys.stdout.flush()
        if given.save and due and meets:
            due = False
            trainer.save(os.path.join(given.save, f"step-{step + 1}"), group)
    dist.all_reduce(torch.zeros((), device=ACROSS))  # nobody leaves while another still listens
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
