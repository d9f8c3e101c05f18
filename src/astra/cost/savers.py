"""Ways to keep fewer activations, and the time they take."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.columns import code
from astra.provenance import Bools, Floats, Ints

FULL: Final = code("recompute", "full")
SELECTIVE: Final = code("recompute", "selective")
BLOCK: Final = code("method", "block")


class Savers(NamedTuple):
    """Ways to keep fewer activations, as columns."""

    recompute: Ints
    method: Ints
    layers: Ints

    def __len__(self) -> int:
        return len(self.recompute)

    def take(self, rows: slice | Bools) -> Savers:
        """Some of them."""
        return Savers(self.recompute[rows], self.method[rows], self.layers[rows])

    def up_to(self, layers: int) -> Savers:
        """Those that ask for at most so many layers; the first one always."""
        return self.take((self.layers <= layers) | (np.arange(len(self.layers)) == 0))


def recompute_s(all_layers_s: Floats, attention_s: Floats, layers: Floats | Ints, savers: Savers) -> Floats:
    """Time to run layers' forward again, [mesh, saver, sort]; ``layers`` are those of one chunk."""
    return repeated_s(all_layers_s, attention_s, layers, Savers(*(column[None, :, None] for column in savers)))


def repeated_s(all_layers_s: Floats, attention_s: Floats, layers: Floats | Ints, savers: Savers) -> Floats:
    """The same where everything broadcasts."""
    full, selective = savers.recompute == FULL, savers.recompute == SELECTIVE
    block = full & (savers.method == BLOCK)
    fraction = np.where(block, np.minimum(savers.layers / np.maximum(layers, 1), 1.0), 1.0)
    return np.where(full, fraction * all_layers_s, 0.0) + np.where(selective, attention_s, 0.0)
