"""Expert parallelism: experts split over e ranks, tokens exchanged all-to-all; etp splits each expert again."""

from __future__ import annotations

from astra.axes.base import Axis, of_blocks

EP = Axis(name="ep", title="expert parallel", overlap="overlap_ep", behind_layer=True, layer_sends=of_blocks("ep"))
