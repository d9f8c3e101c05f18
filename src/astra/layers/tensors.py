"""The words for weights: tensors with their size, how each is divided, and whether tokens are multiplied by it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from astra.spec.model import ModelSpec

Split = Literal["tp", "none", "expert"]


class Tensor(NamedTuple):
    """One weight: its size, how it is divided, and whether tokens are multiplied by it."""

    name: str
    parameters: int
    split: Split
    matmul: bool


def matrix(name: str, rows: int, columns: int, split: Split = "tp") -> Tensor:
    """A weight that multiplies tokens."""
    return Tensor(name, rows * columns, split, matmul=True)


def vector(name: str, size: int, split: Split = "none") -> Tensor:
    """A weight that is added, looked up or multiplied element by element."""
    return Tensor(name, size, split, matmul=False)


def norm(model: ModelSpec, name: str, size: int) -> Tensor:
    """The weight of a norm, and its bias if it has one."""
    has_bias = model.norm == "layernorm" and model.norm_bias
    return vector(name, size * (2 if has_bias else 1))
