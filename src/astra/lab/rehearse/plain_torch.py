"""Rehearse one rank in plain torch: linear shards, SDPA and torch norms, in the stage's own 1F1B order.

``python -m astra.lab.rehearse.plain_torch`` reads one JSON list of cases and writes one JSON list of rows: run on the
GPU of this machine, or counted over FakeTensors without one. Weights are bf16, gradients are added up in fp32, AdamW
holds fp32 weights and two moments of the rank's share. See docs/rehearsal.md for what can be compared.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from astra.lab.rehearse import torch_run
from astra.lab.rehearse.case import Case
from astra.lab.rehearse.layers import StageModule, received

_CLIP: Final = 1.0


class PlainRank(torch_run.TorchRank):
    """A stage with its gradients and optimizer, and the micro-batches whose backward is still to come."""

    def __init__(self, case: Case, device: str) -> None:
        self.torch, self.case, self.device, self.gpu = torch, case, device, device == "cuda"
        self.stage = StageModule(case, self.device)
        self.parameters = list(self.stage.parameters())
        shards = case.strategy.dp if case.strategy.zero else 1
        for parameter in self.parameters:
            parameter.main_grad = torch.zeros(parameter.shape, dtype=torch.float32, device=self.device)
            parameter.register_post_accumulate_grad_hook(_accumulate)
        self.shares = [-(-parameter.numel() // shards) for parameter in self.parameters]
        self.masters = [
            parameter.detach().reshape(-1)[:share].float()
            for parameter, share in zip(self.parameters, self.shares, strict=True)
        ]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, weight_decay=0.1, fused=self.gpu or None)
        self.params = sum(parameter.numel() for parameter in self.parameters)
        own, size = case.model.vocab // case.strategy.tp, (case.seq, case.strategy.mbs)
        self.tokens, self.labels = (torch.randint(own, size, device=self.device) for _ in range(2))

    def forward(self) -> Any:
        """What backward starts from: the loss, or the edge of an output that has been sent and is not kept."""
        case = self.case
        entered = self.tokens if case.stage == 0 else received(case, self.device).requires_grad_()
        out = self.stage(entered, self.labels)
        return out if case.stage == case.strategy.pp - 1 else self.torch.autograd.graph.get_gradient_edge(out)

    def backward(self, from_here: Any, *, last: bool) -> None:
        """Of one micro-batch; gradients stay here, the last one's too."""
        del last
        end = self.case.stage == self.case.strategy.pp - 1
        self.torch.autograd.backward([from_here], None if end else [received(self.case, self.device)])

    def zero_grad(self) -> None:
        """Gradients are added up in buffers that stay."""
        for parameter in self.parameters:
            parameter.main_grad.zero_()

    def update(self) -> float:
        """Clip, step and write the bf16 weights of this rank's share; never the peak, so not counted without a GPU."""
        torch = self.torch
        if not self.gpu:
            return 0.0
        for master, parameter, share in zip(self.masters, self.parameters, self.shares, strict=True):
            master.grad = parameter.main_grad.view(-1)[:share]
        norm = torch.nn.utils.clip_grad_norm_(self.masters, _CLIP)
        self.optimizer.step()
        for master, parameter, share in zip(self.masters, self.parameters, self.shares, strict=True):
            parameter.detach().view(-1)[:share].copy_(master)
            master.grad = None
        return float(norm)

    def held(self) -> list[Any]:
        """The fp32 weights of this rank's share."""
        return self.masters


def _accumulate(parameter: Any) -> None:
    parameter.main_grad.add_(parameter.grad)
    parameter.grad = None


def main() -> int:
    """Answer the cases on standard input."""
    return torch_run.answer(PlainRank, lambda case: case.strategy.gpus)


if __name__ == "__main__":
    sys.exit(main())
