"""Lower bounds of cores, the widest part of a search: their parts are timed only where they may matter.

Few strategies gain from splitting an expert beyond a node or further than the other layers, but there are many of them.
They are bounded by the core that differs in ``etp = 1`` alone: splitting an expert sends more and repeats nothing less,
so that at most the matrix products can be quicker, and those no quicker than the GPU's peak.
"""

from __future__ import annotations

import numpy as np

from astra.columns import keys
from astra.cost import effects, step
from astra.cost.parts import Part
from astra.cost.stage import Gathered, gather_parts, least_s, over_model
from astra.layers import weights as weights_of
from astra.provenance import Floats, Ints
from astra.search.space import Space
from astra.spec.job import Job

_ALIKE = ("tp", "cp", "pp", "dp", "ep", "sp", "mbs")


def usual_cores(job: Job, space: Space) -> Ints:
    """Cores whose experts are split within a node and no further than the other layers; all if bounds need them."""
    if effects.clock_follows_power(job.runtime):  # the clock ties the products' time to all others
        return np.arange(len(space.strategies))
    return np.flatnonzero(space.cores["etp"] <= np.minimum(space.cores["tp"], space.facts["scaleup_gpus"]))


def gather_cores(job: Job, space: Space, rows: Ints) -> Gathered:
    """The parts of some cores: of all with flash attention (if that may be on), then of all without."""
    settings, cores = space.flash_settings, len(space.strategies)
    columns = {name: np.tile(column[rows], len(settings)) for name, column in space.cores.items()}
    found = gather_parts(job, columns | {"flash": np.repeat(settings, len(rows))})
    place = np.full((len(settings), cores), -1)
    place[:, rows] = found.place.reshape(len(settings), len(rows))
    return found._replace(place=place.ravel())


def core_bound_s(job: Job, space: Space, gathered: Gathered, rows: Ints) -> Floats:
    """Compute and exposed communication of all micro-batches, spread evenly over the stages.

    Flash attention, which comes first where it may be on, is never slower than none.
    """
    whole_s = over_model(job, gathered.take(rows), least_s)
    return step.least_seconds(job, _rounds(job, space, rows) * whole_s)


def sibling_bound_s(job: Job, space: Space, gathered: Gathered, rows: Ints) -> Floats:
    """The same for cores without parts, from those with whole experts; the products alone where there is none."""
    products_floor_s = float(products_s(job, np.asarray(job.pool.gpus)))
    bound_s = np.full(len(rows), products_floor_s)
    whole = np.flatnonzero((space.cores["etp"] == 1) & (gathered.place[: len(space.strategies)] >= 0))
    if len(whole) and len(rows):
        own, rounds = gathered.take(whole), _rounds(job, space, whole)
        spared_s = np.maximum(rounds * over_model(job, own, _products_s) - products_floor_s, 0.0)
        known_s = rounds * over_model(job, own, least_s) - spared_s
        kind, _ = keys(*(space.cores[name] for name in _ALIKE))
        order = np.argsort(kind[whole])
        at = np.minimum(np.searchsorted(kind[whole], kind[rows], sorter=order), len(whole) - 1)
        sibling = order[at]
        bound_s = np.where(kind[whole][sibling] == kind[rows], known_s[sibling], bound_s)
    return step.least_seconds(job, bound_s)


def products_s(job: Job, gpus: Ints) -> Floats:
    """Every matrix product of a step at the GPU's peak, on so many GPUs."""
    model, work = job.model, job.workload
    forward = weights_of.forward_flops_per_token(model, work.seq) - weights_of.attention_flops_per_token(
        model, work.seq
    )
    passes = 2 if work.task == "lora" else 3  # the weights of a LoRA run have no gradients of their own
    device = job.pool.device
    peak = max(device.peak(name) for name in {work.precision, "bf16"} if device.computes(name))
    flops = passes * forward * work.global_batch * work.seq
    return np.asarray(flops / (gpus * peak * effects.clock(job.runtime)))


def _products_s(part: Part) -> Floats:
    return part.forward.gemm_s + part.backward.gemm_s


def _rounds(job: Job, space: Space, rows: Ints) -> Floats:
    """Micro-batches over stages."""
    cores = {name: column[rows] for name, column in space.cores.items()}
    return np.asarray(job.workload.global_batch // (cores["dp"] * cores["mbs"]) / cores["pp"])
