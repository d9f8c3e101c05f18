"""Numbers of the cost model that are the same in every runtime."""

from __future__ import annotations

from typing import Final

# Of cuBLAS and other libraries inside the allocator. Assumed: a few of the 32 MiB that cuBLAS takes on Hopper.
WORKSPACE_BYTES: Final = 1.5e8
# What the caching allocator reserves beyond a share of what is allocated. Chosen with the runtimes' reserved ratios.
RESERVED_BYTES: Final = 5e8
