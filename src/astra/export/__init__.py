"""Plan to files for a framework or a launcher, and back. Each exporter knows what it cannot express."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from astra.export.accelerate import Accelerate
from astra.export.base import Exporter, by_name
from astra.export.bridge import Bridge
from astra.export.deepspeed import DeepSpeed
from astra.export.flagscale import FlagScale
from astra.export.launchers import Kubernetes, SkyPilot, Slurm
from astra.export.megatron import Megatron
from astra.export.pytorch import PyTorch
from astra.export.torchtitan import TorchTitan

EXPORTERS: Final[dict[str, Exporter]] = by_name(
    Megatron(),
    Bridge(),
    TorchTitan(),
    PyTorch(),
    DeepSpeed(),
    Accelerate(),
    FlagScale(),
    Slurm(),
    SkyPilot(),
    Kubernetes(),
)


class _Callable(ModuleType):
    """``astra.export(plans, "megatron")`` beside ``astra.export.reading``: the package is the function too."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, Any]:
        """Write the files that start a plan; see ``astra.export.python.export``."""
        from astra.export.python import export  # noqa: PLC0415

        return export(*given, **named)


sys.modules[__name__].__class__ = _Callable
