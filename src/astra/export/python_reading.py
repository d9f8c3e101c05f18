"""Values in a Python file that is read and never run."""

from __future__ import annotations

import ast
from typing import Any


def plain_value(node: ast.AST) -> Any:
    """The value of an expression of plain values; its source where it is anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError):
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = plain_value(node.left), plain_value(node.right)
        if isinstance(left, int) and isinstance(right, int) and max(abs(left), abs(right)) < 2**40:
            return left * right
    try:
        return ast.unparse(node)[:80]
    except (ValueError, RecursionError, MemoryError):
        return "?"
