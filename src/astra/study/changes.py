"""What a single change of a request would bring: each is planned for real, one after another, until time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from astra import api
from astra.answer import Estimate, PlanSet
from astra.catalog import hardware
from astra.errors import AstraError
from astra.search.world import World
from astra.spec.cluster import Device
from astra.spec.job import fp8_attention, sends_once_within
from astra.spec.request import PlanRequest
from astra.study.hardware import Where, has_links, on, with_device, with_gpus, with_links, with_memory
from astra.study.records import Changed

MORE_MEMORY: Final = 1.1
FASTER: Final = 2.0
_WORDS: Final = ("dispatch", "graphs")  # of a strategy, that are a matter of speed and room alone
# Of a strategy, that change the numbers a model is trained with, so that no plan has them unless recipes do.
_WIDTHS: Final = ("grads", "moments", "attention")
_LIMITS: Final = ("fix", "forbid", "maximum", "minimum", "rules")


class Change(NamedTuple):
    """A request with one thing changed."""

    key: str
    words: str
    request: PlanRequest


def changes(world: World) -> Iterator[Change]:
    """Every change that could be asked about, what is easiest to change first."""
    request, cluster, job = replace(world.request, top=1, baseline=None), world.cluster, world.job
    limits = [name for name in _LIMITS if getattr(request, name)]
    if limits:
        free = replace(request, fix=(), forbid=(), maximum=(), minimum=(), rules=None)
        yield Change("restrictions", "without the restrictions of the request", free)
    yield Change("memory", "10% more memory per GPU", on(request, with_memory(cluster, MORE_MEMORY)))
    yield Change("batch", "twice the batch", replace(request, batch=2 * world.workload.global_batch))
    links: tuple[tuple[Where, str], ...] = (("cluster", "between"), ("node", "inside"))
    for where, which in links:
        if has_links(cluster, where):
            faster = on(request, with_links(cluster, FASTER, where))
            yield Change(f"{where}-links", f"links {which} servers twice as fast", faster)
    if not world.several:
        for name in better_gpus(job.pool.device):
            with suppress(AstraError):  # they may come in servers of another size
                yield Change("gpu", f"{job.pool.gpus} {name} instead", on(request, with_device(cluster, name)))
    device = job.pool.device
    if request.precision == "bf16" and device.computes("fp8") and "fp8" in world.runtime.can.precision:
        yield Change("precision", "matrix products in fp8", replace(request, precision="fp8"))
    if not limits and not world.several:
        yield from _of_words(world, request)


def _of_words(world: World, request: PlanRequest) -> Iterator[Change]:
    """Other words of a strategy than recipes have."""
    job, can = world.job, world.runtime.can
    usual, within = job.recipe(), sends_once_within(job.pool)
    fitting = {
        "dispatch": [word for word in can.dispatch if within.get(word, 2) > 1] if world.model.moe else [],
        "graphs": can.graphs, "grads": can.grads, "moments": can.moments if job.workload.optimizer == "adam" else (),
        "attention": can.attention if fp8_attention(world.model, job.pool.device, job.workload) else (),
    }  # fmt: skip
    for name in (*_WORDS, *_WIDTHS):
        for word in (word for word in fitting[name] if word != usual[name]):
            more = " (other numbers: yours to judge)" if name in _WIDTHS else ""
            yield Change(name, f"{name}={word}{more}", replace(request, fix=(f"{name}={word}",)))


def better_gpus(device: Device) -> list[str]:
    """GPUs of the same maker that were measured: with the same peak and more memory, and with the next higher peak."""

    def peak(one: Device) -> float:
        return one.flops_per_s.get("bf16") or one.flops_per_s.get("fp16", 0.0)  # before Ampere there is no bf16

    known = [hardware.device(name) for name in hardware.measured()]
    known = [one for one in known if one.vendor == device.vendor and one.name != device.name]
    like = [one for one in known if abs(peak(one) - peak(device)) < 0.05 * peak(device)]
    roomier = [one for one in like if one.memory_bytes > device.memory_bytes]
    faster = [one for one in known if peak(one) > 1.05 * peak(device) and one.memory_bytes >= device.memory_bytes]
    found = [min(roomier, key=lambda one: one.memory_bytes)] if roomier else []
    found += [min(faster, key=peak)] if faster else []
    return [one.name for one in found]


def tried(
    world: World, base: Estimate, *, seconds: float, progress: Callable[[float], None] | None = None
) -> tuple[list[Changed], list[str]]:
    """Each change planned, what brings most first, and the words of those that there was no time for.

    A goal of money is left aside: changes are of the fastest plan on the GPUs that ``base`` uses.
    """
    world = on_its_gpus(world, base)
    all_changes, found, skipped = list(changes(world)), list[Changed](), list[str]()
    began = time.monotonic()
    for number, change in enumerate(all_changes):
        if progress is not None:
            progress(number / len(all_changes))
        if time.monotonic() - began >= seconds:
            skipped.append(change.words)
            continue
        found.append(_planned(change, base))
    return sorted(found, key=lambda one: -(one.gain if one.gain is not None else -2.0)), skipped


def on_its_gpus(world: World, base: Estimate) -> World:
    """The same request for the fastest plan on as many GPUs as a plan uses; a goal may leave some out."""
    used, asked = round(base.tokens_per_s / base.tokens_per_s_per_gpu), world.request
    if world.several or (used == world.cluster.gpus and asked.objective is None):
        return world
    free = replace(asked, objective=None, budget=None, deadline=None)
    return World.of(free if used == world.cluster.gpus else on(free, with_gpus(world.cluster, used)))


def _planned(change: Change, base: Estimate) -> Changed:
    """The best plan after a change."""
    try:
        planset: PlanSet = api.plan(change.request)
    except AstraError as error:
        return Changed(key=change.key, change=change.words, why=str(error))
    best = planset.best.estimate
    return Changed(
        key=change.key, change=change.words, strategy=best.strategy, step_s=best.step_s,
        tokens_per_s=best.tokens_per_s, gain=best.tokens_per_s / base.tokens_per_s - 1,
        usd_per_billion_tokens=None if best.cost is None else best.cost.usd_per_billion_tokens,
        evidence=best.evidence,
    )  # fmt: skip
