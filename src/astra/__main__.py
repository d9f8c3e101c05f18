"""``python -m astra``."""

from __future__ import annotations

import sys

from astra.cli import program

sys.exit(program())
