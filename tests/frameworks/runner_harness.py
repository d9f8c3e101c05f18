"""Train a tiny model as a plan says, with plain PyTorch on CPU processes. Runs in ``.venvs/torch``.

Reads one plan as JSON from the first argument: degrees, layers of each virtual stage, micro-batches and schedule are
the plan's own. Tensor parallelism splits attention heads and the feed-forward, pipelines are torch's own schedules,
replicas average their gradients. Weights are seeded by name, so that every split starts from the same model. Prints the
losses of a few steps.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
import zlib
from typing import Any

import torch
import torch.distributed as dist
from ranks import free_port
from torch import multiprocessing, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional

STEPS = 3


def weight(name: str, rows: int, columns: int) -> torch.Tensor:
    """A whole weight, always the same for a name."""
    source = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(rows, columns, generator=source) * columns**-0.5


class _Spread(torch.autograd.Function):
    """Into a split region: nothing forward, the sum of the gradients backward."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        return value

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


class _Gather(torch.autograd.Function):
    """Out of a split region: the sum forward, nothing backward."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        value = value.contiguous()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Split:
    """The tensor-parallel group of a rank."""

    def __init__(self, size: int, rank: int, group: Any) -> None:
        self.size, self.rank, self.group = size, rank, group

    def rows(self, whole: torch.Tensor) -> nn.Parameter:
        """The rank's part of the output features."""
        return nn.Parameter(whole.chunk(self.size, 0)[self.rank].clone())

    def columns(self, whole: torch.Tensor) -> nn.Parameter:
        """The rank's part of the input features."""
        return nn.Parameter(whole.chunk(self.size, 1)[self.rank].clone())

    def into(self, value: torch.Tensor) -> torch.Tensor:
        return _Spread.apply(value, self.group) if self.size > 1 else value

    def out(self, value: torch.Tensor) -> torch.Tensor:
        return _Gather.apply(value, self.group) if self.size > 1 else value


class Layer(nn.Module):
    """One decoder layer: grouped-query attention and a gated feed-forward."""

    def __init__(self, shape: dict[str, int], index: int, split: Split) -> None:
        super().__init__()
        h, f, d = shape["hidden"], shape["ffn"], shape["head_dim"]
        self.split, self.d = split, d
        self.heads, self.kv_heads = shape["heads"] // split.size, shape["kv_heads"] // split.size
        name = f"layers.{index}"
        self.q = split.rows(weight(f"{name}.q", shape["heads"] * d, h))
        self.k = split.rows(weight(f"{name}.k", shape["kv_heads"] * d, h))
        self.v = split.rows(weight(f"{name}.v", shape["kv_heads"] * d, h))
        self.o = split.columns(weight(f"{name}.o", h, shape["heads"] * d))
        self.gate = split.rows(weight(f"{name}.gate", f, h))
        self.up = split.rows(weight(f"{name}.up", f, h))
        self.down = split.columns(weight(f"{name}.down", h, f))
        self.norm1, self.norm2 = nn.RMSNorm(h), nn.RMSNorm(h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.split.into(self.norm1(x))
        b, s, _ = y.shape
        q = functional.linear(y, self.q).view(b, s, self.heads, self.d).transpose(1, 2)
        k = functional.linear(y, self.k).view(b, s, self.kv_heads, self.d).transpose(1, 2)
        v = functional.linear(y, self.v).view(b, s, self.kv_heads, self.d).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.split.out(functional.linear(mixed.transpose(1, 2).reshape(b, s, -1), self.o))
        y = self.split.into(self.norm2(x))
        y = functional.silu(functional.linear(y, self.gate)) * functional.linear(y, self.up)
        return x + self.split.out(functional.linear(y, self.down))


class Stage(nn.Module):
    """Some layers, with the embedding before the first and the head after the last."""

    def __init__(self, shape: dict[str, int], layers: range, ends: tuple[bool, bool], split: Split) -> None:
        super().__init__()
        h, vocab = shape["hidden"], shape["vocab"]
        self.layers = nn.ModuleList(Layer(shape, index, split) for index in layers)
        self.embedding = nn.Parameter(weight("embedding", vocab, h)) if ends[0] else None
        self.head = nn.Parameter(weight("head", vocab, h)) if ends[1] else None
        self.norm = nn.RMSNorm(h) if ends[1] else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = functional.embedding(x, self.embedding)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.head) if self.norm is not None else x


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of a micro-batch."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def groups(plan: dict[str, Any], rank: int) -> dict[str, tuple[Any, int]]:
    """The process group of each axis and the rank's place in it; ranks are numbered tp first, then dp, then pp."""
    tp, dp, pp = plan["tp"], plan["dp"], plan["pp"]
    place = {"tp": rank % tp, "dp": rank // tp % dp, "pp": rank // (tp * dp)}
    found: dict[str, tuple[Any, int]] = {}
    for axis, size, step in (("tp", tp, 1), ("dp", dp, tp), ("pp", pp, tp * dp)):
        for start in range(tp * dp * pp):
            if start // step % size == 0:
                ranks = [start + index * step for index in range(size)]
                made = dist.new_group(ranks)
                if rank in ranks:
                    found[axis] = (made, place[axis])
    return found


def schedule(plan: dict[str, Any], stages: list[PipelineStage]) -> Any:
    """Torch's schedule of the plan's name."""
    kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}[plan["schedule"]]
    several = plan["schedule"] == "interleaved"
    return kind(stages if several else stages[0], n_microbatches=plan["microbatches"], loss_fn=loss_of)


def train(rank: int, plan: dict[str, Any], results: Any) -> None:
    """One process of the job."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(plan["port"]))
    dist.init_process_group("gloo", rank=rank, world_size=plan["tp"] * plan["dp"] * plan["pp"])
    at = groups(plan, rank)
    split = Split(plan["tp"], at["tp"][1], at["tp"][0])
    parts, pp, place = plan["layers"], plan["pp"], at["pp"][1]
    starts = [sum(parts[:index]) for index in range(len(parts))]
    mine = [index for index in range(len(parts)) if index % pp == place]
    models = [
        Stage(
            plan["shape"],
            range(starts[index], starts[index] + parts[index]),
            (index == 0, index == len(parts) - 1),
            split,
        )
        for index in mine
    ]
    optimizer = torch.optim.AdamW([p for model in models for p in model.parameters()], lr=1e-2)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run_step(plan, models, mine, at, step)
        for model in models:
            for parameter in model.parameters():
                if plan["dp"] > 1 and parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=at["dp"][0])
                    parameter.grad /= plan["dp"]
        optimizer.step()
        losses.append(whole_loss(plan, loss, at))
    if rank == 0:
        results.put(losses)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that outlive the interpreter abort now and then


def run_step(plan: dict[str, Any], models: list[Stage], mine: list[int], at: Any, step: int) -> torch.Tensor:
    """Forward and backward of every micro-batch of a replica; the mean loss on the last stage, zero elsewhere."""
    shape, samples = plan["shape"], plan["mbs"] * plan["microbatches"]
    source = torch.Generator().manual_seed(step)
    tokens = torch.randint(shape["vocab"], (samples * plan["dp"], plan["seq"] + 1), generator=source)
    tokens = tokens[at["dp"][1] * samples : (at["dp"][1] + 1) * samples]
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if plan["pp"] == 1:
        total = torch.zeros(())
        for x, y in zip(inputs.split(plan["mbs"]), labels.split(plan["mbs"]), strict=True):
            loss = loss_of(models[0](x), y) / plan["microbatches"]
            loss.backward()
            total += loss.detach()
        return total
    count = len(plan["layers"])
    stages = [
        PipelineStage(model, index, count, torch.device("cpu"), group=at["pp"][0])
        for model, index in zip(models, mine, strict=True)
    ]
    kept: list[torch.Tensor] = []
    first, last = 0 in mine, count - 1 in mine
    schedule(plan, stages).step(*([inputs] if first else []), **({"target": labels, "losses": kept} if last else {}))
    return torch.stack(kept).mean().detach() if kept else torch.zeros(())


def whole_loss(plan: dict[str, Any], loss: torch.Tensor, at: Any) -> float:
    """The loss of the whole batch, known to every rank."""
    if plan["pp"] > 1:
        dist.all_reduce(loss, group=at["pp"][0])
    if plan["dp"] > 1:
        dist.all_reduce(loss, group=at["dp"][0])
    return float(loss) / plan["dp"]


def main() -> int:
    """Run the plan and print its losses."""
    plan = json.loads(sys.argv[1])
    plan["port"] = free_port()
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    world = plan["tp"] * plan["dp"] * plan["pp"]
    running = multiprocessing.spawn(train, args=(plan, results), nprocs=world, join=False)
    while not running.join():  # raises if a process failed, and ends the others
        pass
    losses = results.get()
    print(json.dumps({"torch": torch.__version__, "losses": losses}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
