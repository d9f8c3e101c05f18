"""Property tests draw the same examples on every run; ``make explore`` draws new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, of the test nothing.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", PATIENT, derandomize=True, database=None)
settings.register_profile("explore", PATIENT, derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("ASTRA_EXPLORE") else "fixed")
