"""Words of a strategy that are the same in every row of a costing: dispatcher, graphs, widths, groups of shards."""

from __future__ import annotations

from typing import Literal

from astra.spec.record import Spec
from astra.spec.strategy import Strategy


class Words(Spec, frozen=True, kw_only=True):
    """Fields of ``Strategy`` by their names; a search has one set of them, its plans say them."""

    dispatch: Literal["alltoall", "deepep", "hybridep"] = "alltoall"
    dispatch_fp8: bool = False
    graphs: Literal["none", "partial", "full"] = "none"
    params: Literal["bf16", "fp8"] = "bf16"
    grads: Literal["fp32", "bf16"] = "fp32"
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
