"""Plan to files for a framework or a launcher, and back. Each exporter knows what it cannot express."""

from __future__ import annotations

from typing import Final

from astra.export.base import Exporter, by_name
from astra.export.megatron import Megatron

EXPORTERS: Final[dict[str, Exporter]] = by_name(Megatron())
