"""Rehearse one FSDP2 rank: torch's ``fully_shard`` over a fake world, each layer compiled or not.

``python -m astra.lab.rehearse.fsdp_rank`` reads one JSON list of cases and writes one JSON list of rows: run on the
GPU of this machine, or counted over FakeTensors without one. Wrapping follows torchtitan 0.3: the embedding, each
layer, and norm with output are units; weights are fp32 shards gathered in bf16; gradients are reduced in fp32. ZeRO-3
gathers weights again in backward; ZeRO-2 keeps them from forward to backward.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from astra.lab.rehearse import decoder, fabric, stand_ins, torch_run
from astra.lab.rehearse.case import Case

_CLIP: Final = 1.0
_STD: Final = 0.02
plain_gated: Final = decoder.gated


class FsdpRank(torch_run.TorchRank):
    """A sharded stage with its optimizer, and the micro-batches whose backward is still to come."""

    def __init__(self, case: Case, device: str) -> None:
        self.torch, self.case, self.device, self.gpu = torch, case, device, device == "cuda"
        install_collectives()
        self.stage = self.build()
        self.stage.to_empty(device=device)
        self.parameters = list(self.stage.parameters())
        for parameter in self.parameters:
            local = parameter.to_local()
            torch.nn.init.ones_(local) if local.ndim == 1 else torch.nn.init.normal_(local, std=_STD)
        self.make_tables()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=0.1, fused=self.gpu or None)
        size = (case.strategy.mbs, case.seq)
        known = case.model.vocab // case.strategy.tp  # words of this rank: of others it would receive zeros alone
        self.tokens, self.labels = (torch.randint(known, size, device=device) for _ in range(2))

    def build(self) -> Any:
        """The stage, sharded, without memory yet; how many parameters it has is noted on the way."""
        torch, case = self.torch, self.case
        fused = case.compiled and not self.gpu  # without a GPU, kernels a compiler would fuse are stood in for
        decoder.gated, loss = (stand_ins.gated, stand_ins.loss_of) if fused else (plain_gated, decoder.loss_of)
        compiles = case.compiled and not fused
        self.loss = torch.compile(loss, dynamic=False) if compiles else loss
        with torch.device("meta"):
            stage = decoder.Decoder(case)
        self.params = sum(parameter.numel() for parameter in stage.parameters())
        _shard(case, stage, self.device, compiles=compiles)
        return stage

    def make_tables(self) -> None:
        """What is no parameter: the table of rotary positions."""
        if not self.case.model.learned_positions:
            self.stage.table = decoder.rotary_table(self.case, self.device)

    def forward(self) -> Any:
        """What backward starts from: the loss, or the edge of an output that has been sent and is not kept."""
        entered = self.tokens if self.case.stage == 0 else self.received().requires_grad_()
        out = self.stage(entered)
        if self.case.stage == self.case.strategy.pp - 1:
            return self.loss(out, self.labels)
        return self.torch.autograd.graph.get_gradient_edge(out)

    def backward(self, from_here: Any, *, last: bool) -> None:
        """Of one micro-batch. In a pipeline, gradients are reduced and weights given back after the last alone."""
        if self.case.strategy.pp > 1:
            self.stage.set_requires_gradient_sync(last)
            self.stage.set_reshard_after_backward(last)
            self.stage.set_is_last_backward(last)
        end = self.case.stage == self.case.strategy.pp - 1
        self.torch.autograd.backward([from_here], None if end else [self.received()])

    def received(self) -> Any:
        """An activation, or its gradient, from the next rank."""
        size = (self.case.strategy.mbs, self.case.seq, self.case.model.hidden)
        tensor = self.torch.empty(size, dtype=self.torch.bfloat16, device=self.device)
        fabric.irecv(tensor)
        return tensor

    def zero_grad(self) -> None:
        """Give them back: FSDP2 makes new ones."""
        self.optimizer.zero_grad()

    def update(self) -> float:
        """Clip and step; never the peak, so not counted without a GPU."""
        if not self.gpu:
            return 0.0
        norm = self.torch.nn.utils.clip_grad_norm_(self.parameters, _CLIP, foreach=True)
        self.optimizer.step()
        return float(norm.full_tensor())

    def held(self) -> list[Any]:
        """The fp32 shards of the weights."""
        return [parameter.to_local() for parameter in self.parameters]


def _shard(case: Case, stage: Any, device: str, *, compiles: bool) -> None:
    """Checkpoint, compile and shard each unit, in torchtitan's order."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = mesh_of(device, case.strategy.dp)
    options = {"mesh": mesh, "mp_policy": policy}
    again = case.strategy.zero == 3 and case.strategy.reshard == "always"
    ends = [module for module in (stage.norm, stage.head) if module is not None]
    if case.model.tied_embeddings and ends and stage.embedding is not None:
        fully_shard([stage.embedding, *ends], **options, reshard_after_forward=False)
    else:
        if stage.embedding is not None:
            fully_shard(stage.embedding, **options, reshard_after_forward=again)
        if ends:  # gathered for backward as soon as forward is over: kept
            fully_shard(ends, **options, reshard_after_forward=False)
    for place, layer in enumerate(stage.layers):
        block = layer
        if case.strategy.recompute == "full":
            block = checkpoint_wrapper(block, preserve_rng_state=False)
        if compiles:
            block = torch.compile(block, fullgraph=True, dynamic=False)
        placed = _by_columns(layer) if case.experts and case.strategy.dp > case.experts else None
        stage.layers[place] = fully_shard(block, **options, reshard_after_forward=again, shard_placement_fn=placed)
    fully_shard(stage, **options, reshard_after_forward=False)


def mesh_of(device: str, ranks: int) -> Any:
    """The ranks that shard a stage, in one row."""
    from torch.distributed.device_mesh import init_device_mesh

    with unset_fake_temporarily():  # a mesh is a tensor of numbers that are looked at
        return init_device_mesh(device, (ranks,))


def _by_columns(layer: Any) -> Any:
    """Experts that are fewer than the ranks are cut inside: by whole experts most ranks would hold padding."""
    from torch.distributed.tensor import Shard

    experts = {id(parameter) for parameter in layer.feed_forward.parameters(recurse=False)}
    return lambda parameter: Shard(1) if id(parameter) in experts else None


def install_collectives() -> None:
    """Gathered weights are copies of the local shard, so that the GPU works on numbers; see ``fabric``.

    FSDP2 gathers in place: its shard is a part of the gathered tensor, which ``fabric`` takes for filled already.
    """
    for name in ("all_gather_into_tensor", "all_gather_single"):
        setattr(dist, name, _gather)
    for name in ("reduce_scatter_tensor", "reduce_scatter_single"):
        setattr(dist, name, _scatter)


def _gather(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    """Fill on the stream that computes, so that the time of a fill adds to the step and can be taken off."""
    whole, size = output_tensor.view(-1), input_tensor.numel()
    if not size:
        return fabric.Done() if async_op else None
    if not whole.is_cuda:
        _fill(whole, size)
        return fabric.Done() if async_op else None
    compute = torch.cuda.default_stream()
    compute.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(compute):
        _fill(whole, size)
    return fabric.Done() if async_op else None


def _fill(whole: Any, size: int) -> None:
    """The first rank's part, over those of all others."""
    others = whole[size:].view(-1, size)
    if others.numel():
        others.copy_(whole[:size].view(1, size))
        fabric.FABRIC.note("spread", others.numel() * others.element_size())


def _scatter(output: Any = None, input: Any = None, op: Any = None, group: Any = None, **options: Any) -> Any:
    """This rank's part of its own gradients."""
    part = options.get("output_tensor", output)
    part.view(-1).copy_(options.get("input_tensor", input).view(-1)[: part.numel()])
    fabric.FABRIC.note("copy", part.numel() * part.element_size())
    return fabric.Done() if options.get("async_op") else None


def world_of(case: Case) -> int:
    """Ranks that shard a stage: the others are never spoken to."""
    return case.strategy.dp


def main() -> int:
    """Answer the cases on standard input."""
    return torch_run.answer(FsdpRank, world_of)


if __name__ == "__main__":
    sys.exit(main())
