"""Plan to files for a framework or a launcher, and back. Each exporter knows what it cannot express."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from astra.export.bridge import BRIDGE
from astra.export.flagscale import FLAGSCALE
from astra.export.huggingface import ACCELERATE, DEEPSPEED
from astra.export.launchers import KUBERNETES, SKYPILOT, SLURM
from astra.export.megatron import MEGATRON
from astra.export.pytorch import PYTORCH
from astra.export.torchtitan import TORCHTITAN
from astra.spec.names import by_name

EXPORTERS: Final = by_name(
    MEGATRON,
    BRIDGE,
    TORCHTITAN,
    PYTORCH,
    DEEPSPEED,
    ACCELERATE,
    FLAGSCALE,
    SLURM,
    SKYPILOT,
    KUBERNETES,
)


class _Callable(ModuleType):
    """``astra.export(plans, "megatron")`` beside ``astra.export.reading``: the package is the function too."""

    def __call__(self, *given: Any, **named: Any) -> dict[str, Any]:
        """Write the files that start a plan; see ``astra.export.python.export``."""
        from astra.export.python import export  # noqa: PLC0415

        return export(*given, **named)


sys.modules[__name__].__class__ = _Callable
