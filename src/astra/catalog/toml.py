"""The one TOML reader."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


def load_toml(raw: bytes) -> dict[str, Any]:
    """Parse TOML bytes; raises UnicodeDecodeError or tomllib.TOMLDecodeError (both are ValueErrors)."""
    return tomllib.loads(raw.decode("utf-8"))
