"""Lower bounds of steps on many numbers of GPUs at once that need no table of parts."""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.cost import effects, step
from astra.layers import weights as weights_of
from astra.operators.attention import BACKWARD_FLOPS
from astra.provenance import Bools, Floats, Ints
from astra.rules.can import able_rules
from astra.schedule.registry import find
from astra.search.bounds import products_s
from astra.spec.job import STRAGGLING, Job

_LOOSE: Final = 1 - 1e-9


def least_passes(job: Job, microbatches: Ints, pp: Ints) -> Floats:
    """A pipeline takes at least so many times what one micro-batch takes over all its stages.

    Where stages are whole, one of them has to wait for the stages before it, to do its part of every micro-batch, and
    to see the last one back: if stage i takes t_i of the whole, t_1 + ... + t_(i-1) + m t_i is no more than the step T.
    So the share of T that is left after a stage is at least 1 - 1/m of what was left before it, which makes the whole
    no more than T (1 - (1 - 1/m)^p), however the layers are dealt.
    """
    m = np.asarray(microbatches, np.float64)
    with np.errstate(divide="ignore"):  # of one micro-batch nothing is left
        alone = -_LOOSE / np.expm1(pp * np.log1p(-1 / m))
    return np.where(_may_be_shared(job, microbatches, pp) | (pp == 1), m / pp, alone)


def _may_be_shared(job: Job, microbatches: Ints, pp: Ints) -> Bools:
    """Whether ranks may take turns within a micro-batch, by chunks or with weight gradients of their own.

    Some frameworks cut stages into chunks only where micro-batches come in whole rounds.
    """
    schedules = [find(name) for name in job.runtime.can.schedules]
    if any(schedule.splits_backward for schedule in schedules):
        return np.ones(pp.shape, bool)
    chunked = any(schedule.takes(2) for schedule in schedules)
    in_rounds = any(rule.name == "interleaved_batch" for rule in able_rules(job.runtime))
    return np.asarray(chunked & ((microbatches % pp == 0) | (not in_rounds)))


def flops_bound_s(job: Job, counts: Ints) -> Floats:
    """By count, a lower bound that needs no table: every product and attention at the GPU's peak, nothing else."""
    return step.least_seconds(job, products_s(job, counts) + attention_s(job, counts), waits_on(job, counts))


def waits_on(job: Job, counts: Ints) -> Floats:
    """By count, time with waiting for the slowest node over time without."""
    return np.asarray(1 + STRAGGLING * np.log2(np.maximum(counts / job.pool.gpus_per_node, 1.0)))


def attention_s(job: Job, gpus: Ints) -> Floats:
    """Attention of a step at the peak of the GPU, on so many GPUs: two products forward, five backward."""
    model, work, device = job.model, job.workload, job.pool.device
    peak = max(device.peak(name) for name in {work.precision, "bf16"} & set(device.flops_per_s))
    flops = weights_of.attention_flops_per_token(model, work.span) * work.global_batch * work.seq
    return effects.attention_rate(job.runtime, np.asarray((1 + BACKWARD_FLOPS) * flops / (gpus * peak), np.float64))
