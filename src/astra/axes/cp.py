"""Context parallelism: the sequence split over c ranks; keys and values travel round a ring beside attention."""

from __future__ import annotations

from astra.axes.base import Axis, of_blocks

CP = Axis(name="cp", title="context parallel", layer_sends=of_blocks("cp"))
