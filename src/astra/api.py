"""The public functions: ``plan``, ``estimate`` and ``describe_model``. Each takes a request, by fields or whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from astra.answer import Estimate, ModelReport, PlanSet
from astra.catalog.models import model as find_model
from astra.errors import InputError, NoCoverage
from astra.layers import weights as weights_of
from astra.search.ledger import no_coverage
from astra.search.one_pool import estimate_pool, plan_pool
from astra.search.world import World, seq_of
from astra.spec.job import Job
from astra.spec.mixed_text import is_mixed
from astra.spec.record import check
from astra.spec.request import FIELDS, PlanRequest, requested

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from astra.options import Asked, EstimateOptions, ModelLike, PlanOptions, Whole

_EXAMPLE: Final = "Such as tp8 pp4 dp2 mbs1 sp zero1 recompute=selective."


def plan(model: Asked, *, progress: Callable[[float], None] | None = None, **asked: Unpack[PlanOptions]) -> PlanSet:
    """The best strategies for a model on some GPUs, and why the others lost.

    Objectives other than ``fastest`` may leave some of the GPUs unused, in whole nodes. With several pools the answer
    is a ``MixedPlanSet``: ``counts`` says whether all GPUs must be used (``exact``), ``launchable`` keeps to what the
    runtime can run as it is. ``model`` may be a whole ``PlanRequest``; docs/requests.md lists the fields.
    """
    check(progress is None or callable(progress), "progress", progress, "a function of the fraction that is done")
    world = World.of(requested("plan", model, asked))
    for name in () if world.several else ("by_runtime", "worth", "time_budget", "local_steps"):
        if value := getattr(world.request, name):
            raise InputError(name, value, want="several pools", fix="One pool is planned in full, for --runtime NAME.")
    answer = _planned(world, progress)
    if world.request.node_lost:
        from astra.search.lost import losses  # noqa: PLC0415 - only where it is asked

        answer = msgspec.structs.replace(answer, lost=losses(world, answer, _plan_of))
    if world.request.by_runtime:
        from astra.search.fleet.runtimes import by_runtime  # noqa: PLC0415 - only where it is asked

        answer = msgspec.structs.replace(answer, by_runtime=tuple(by_runtime(world.request, _plan_of)))
    return answer


def _plan_of(request: PlanRequest) -> PlanSet:
    return _planned(World.of(request))


def _planned(world: World, progress: Callable[[float], None] | None = None) -> PlanSet:
    if not world.several:
        return plan_pool(world, progress)
    from astra.search.fleet.plan import plan_fleet  # noqa: PLC0415 - one pool does without all of it

    return plan_fleet(world, progress)


def estimate(model: Asked, **asked: Unpack[EstimateOptions]) -> Estimate:
    """How a given strategy would do, legal or not; one in brackets is over several pools (docs/mixed.md)."""
    request = requested("estimate", model, asked)
    if request.strategy is None:
        raise InputError("strategy", None, want="the strategy to estimate", fix=_EXAMPLE)
    world = World.of(request)
    if not world.several and not is_mixed(request.strategy):
        result = estimate_pool(world, request.strategy)
    else:
        from astra.search.fleet.plan import estimate_fleet  # noqa: PLC0415 - one pool does without all of it

        result = estimate_fleet(world, request.strategy)
    if request.strict and result.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(result))
    return result


def make_job(model: Asked, **asked: Unpack[PlanOptions]) -> Job:
    """The job that ``plan`` searches, on one pool."""
    return World.of(requested("plan", model, asked)).job


def describe_model(model: ModelLike, *, seq: Whole | None = None) -> ModelReport:
    """Shape, parameters and FLOPs of a model."""
    spec = find_model(FIELDS["model"].read(model, "model"))
    length = seq_of(spec, FIELDS["seq"].read(seq, "seq"))
    counts = weights_of.count(spec)
    forward = weights_of.forward_flops_per_token(spec, length)
    named = ("name", "family", "source", "date", "aliases")
    return ModelReport(
        name=spec.name,
        family=spec.family,
        shape={name: value for name, value in msgspec.to_builtins(spec).items() if name not in named},
        parameters={name: getattr(counts, name) for name in ("total", "active", "embedding", "expert", "mtp")},
        flops_per_token={
            "seq": float(length),
            "forward": forward,
            "attention": weights_of.attention_flops_per_token(spec, length),
            "training": 3 * forward,
        },
        source=spec.source,
        date=spec.date,
    )
