"""Property tests draw the same examples on every run; ``make explore`` draws new ones."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, database=None)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("explore" if os.environ.get("ASTRA_EXPLORE") else "fixed")
