"""One module per parallel dimension. AXES is the one list of those that speak inside layers.

The pipeline and data parallel dimensions speak between stages and between steps: see ``cost.between``.
"""

from __future__ import annotations

from typing import Final

from astra.axes.base import Axis
from astra.axes.cp import CP
from astra.axes.ep import EP
from astra.axes.tp import TP
from astra.layers.block import Send

AXES: Final[tuple[Axis, ...]] = (TP, CP, EP)

__all__ = ["AXES", "Axis", "Send"]
