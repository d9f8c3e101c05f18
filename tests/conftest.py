"""Property tests draw the same examples on every run; ``make explore`` draws new ones. None fails for taking long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # as Hypothesis itself has for CI

settings.register_profile("fixed", BUSY, derandomize=True, database=None)
settings.register_profile("explore", BUSY, derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("ASTRA_EXPLORE") else "fixed")
