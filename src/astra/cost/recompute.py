"""Ways to keep fewer activations, and the time they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from astra.columns import code
from astra.cost.layers import modules_in
from astra.provenance import Bools, Floats, Ints
from astra.spec.job import Job

FULL: Final = code("recompute", "full")
SELECTIVE: Final = code("recompute", "selective")
BLOCK: Final = code("method", "block")
INSIDE: Final = {"moe": ("moe_act", "shared_experts")}  # modules that another one has in it


class Recomputes(NamedTuple):
    """Ways to keep fewer activations, as columns."""

    recompute: Ints
    method: Ints
    layers: Ints
    modules: Ints  # of selective recompute, as bits of the model's modules
    offload_layers: Ints  # of a stage: their activations wait in host memory

    def __len__(self) -> int:
        return len(self.recompute)

    def take(self, rows: slice | Bools | Ints) -> Recomputes:
        """Some of them."""
        return Recomputes(*(column[rows] for column in self))

    def up_to(self, layers: int) -> Recomputes:
        """Those that ask for at most so many layers; the first one always."""
        return self.take((self.layers <= layers) | (np.arange(len(self.layers)) == 0))

    def along(self, axes: int, at: int) -> Recomputes:
        """The columns in one of so many axes, to broadcast."""
        shape = tuple(-1 if place == at else 1 for place in range(axes))
        return Recomputes(*(column.reshape(shape) for column in self))


_NONE: Final = np.zeros(1, np.int64)
UNSAVED: Final = Recomputes(_NONE, _NONE, np.ones(1, np.int64), _NONE, _NONE)  # nothing recomputed


def module_bits(job: Job, names: Iterable[str]) -> int:
    """Modules as a number; what a module has inside another that is named is run again with that one."""
    chosen = set(names)
    chosen -= {inner for outer in chosen for inner in INSIDE.get(outer, ())}
    return sum(1 << place for place, name in enumerate(modules_in(job)) if name in chosen)


def module_names(job: Job, bits: int) -> tuple[str, ...]:
    """The modules of such a number."""
    return tuple(name for place, name in enumerate(modules_in(job)) if bits >> place & 1)


def module_sets(recomputes: Recomputes, by_module: Floats) -> Iterator[tuple[Bools, Floats]]:
    """Which recomputes repeat each set of modules there is, and the sum of ``by_module`` [..., module] over the set."""
    for bits in sorted({*recomputes.modules[recomputes.recompute == SELECTIVE].tolist()}):
        places = [place for place in range(by_module.shape[-1]) if bits >> place & 1]
        chosen = (recomputes.recompute == SELECTIVE) & (recomputes.modules == bits)
        yield chosen, by_module[..., places].sum(axis=-1)


def recompute_s(all_layers_s: Floats, modules_s: Floats, layers: Floats | Ints, recomputes: Recomputes) -> Floats:
    """Time to run layers' forward again, [mesh, recompute, stage]; ``layers`` are those of one chunk.

    ``modules_s`` [mesh, 1, rank, module] is that of single modules.
    """
    return repeated_s(all_layers_s, modules_s, layers, recomputes.along(3, 1))


def repeated_s(all_layers_s: Floats, modules_s: Floats, layers: Floats | Ints, recomputes: Recomputes) -> Floats:
    """The same where everything broadcasts, but for the modules, which are the last axis of ``modules_s``."""
    full = recomputes.recompute == FULL
    block = full & (recomputes.method == BLOCK)
    fraction = np.where(block, np.minimum(recomputes.layers / np.maximum(layers, 1), 1.0), 1.0)
    again_s = np.where(full, fraction * all_layers_s, 0.0)
    for chosen, seconds in module_sets(recomputes, modules_s):
        again_s = np.where(chosen, seconds, again_s)
    return again_s


class KeptActivations(NamedTuple):
    """Activations of one micro-batch on a rank or stage, and the time beside which some of them may be moved."""

    whole: Floats
    modules: Floats  # [..., module]
    checkpoint: Floats
    forward_s: Floats
    backward_s: Floats


def offloaded_s(
    kept: KeptActivations, rank_layers: Floats, s_per_byte: Floats | float, recomputes: Recomputes
) -> Floats:
    """What shows of activations on their way to host memory in forward, and back in backward, beside the compute.

    Everything broadcasts. In the steady state of a pipeline both ways are in use at a time.
    """
    nbytes = np.where(recomputes.recompute == FULL, kept.checkpoint, kept.whole)
    for chosen, saved in module_sets(recomputes, kept.modules):
        nbytes = np.where(chosen, kept.whole - saved, nbytes)
    moved_s = s_per_byte * nbytes * offloaded_share(rank_layers, recomputes)
    return np.maximum(moved_s - kept.forward_s, 0.0) + np.maximum(moved_s - kept.backward_s, 0.0)


def offloaded_share(layers: Floats, recomputes: Recomputes) -> Floats:
    """The share of a rank's activations that waits in host memory; everything broadcasts."""
    return np.minimum(recomputes.offload_layers / np.maximum(layers, 1), 1.0)
