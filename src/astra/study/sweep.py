"""How the best plan moves with a number: every point is planned for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from astra import api
from astra.answer import Estimate
from astra.errors import AstraError, InputError, UnknownName
from astra.files import whole_number
from astra.search.world import World
from astra.spec.request import FIELDS, PlanRequest
from astra.study.hardware import on, with_gpus, with_links, with_memory
from astra.study.records import Sweep, SweepPoint
from astra.units import parse_count

MOST_POINTS: Final = 200
A_BILLION: Final = 1e9
_DOUBLED: Final = ("gpus", "batch", "seq")  # whose ranges a..b double
Changer = Callable[[World, str, str], PlanRequest]  # world, value, where -> the request at that value


class SweptAxis(NamedTuple):
    """What is swept, and its values as they were written."""

    name: str
    values: tuple[str, ...]


def _field(name: str) -> Changer:
    """A field of the request."""
    return lambda world, value, where: replace(world.request, **{name: FIELDS[name].read(value, where)})


def _times(value: str, where: str) -> float:
    number = parse_count(value.removesuffix("x")) if value[:1].isdigit() else None
    if number is None or not 0.01 <= number <= 100:
        raise InputError(where, value, want="times what there is, between 0.01 and 100, such as 0.5 or 2")
    return number


def _gpus(world: World, value: str, where: str) -> PlanRequest:
    count = whole_number(value, 8)
    if count is None or count < 1:
        raise InputError(where, value, want="numbers of GPUs, such as 64,128,256")
    try:
        return on(world.request, with_gpus(world.cluster, count))
    except InputError as error:
        raise InputError(where, f"gpus={value}", want=error.want, fix=error.fix) from None


def _price(world: World, value: str, where: str) -> PlanRequest:
    number = parse_count(value)
    if number is None or number < 0:
        raise InputError(where, value, want="dollars per GPU and hour, such as 2.5")
    return replace(world.request, money=replace(world.money, usd_per_gpu_h=number))


CHANGERS: Final[dict[str, Changer]] = {
    "gpus": _gpus,
    "batch": _field("batch"),
    "seq": _field("seq"),
    "precision": _field("precision"),
    "link": lambda world, value, where: on(world.request, with_links(world.cluster, _times(value, where), "cluster")),
    "memory": lambda world, value, where: on(world.request, with_memory(world.cluster, _times(value, where))),
    "price": _price,
}


def read_axes(texts: Sequence[str], where: str = "--over") -> list[SweptAxis]:
    """``gpus=64,128`` or ``gpus=64..1024``, which doubles; one or two of them."""
    axes = [_axis(text, where) for text in texts]
    if not 1 <= len(axes) <= 2:
        fix = "Such as --over gpus=64..1024."
        raise InputError(where, len(axes) or None, want="one or two things to sweep", fix=fix)
    if len({axis.name for axis in axes}) < len(axes):
        raise InputError(where, axes[0].name, want="two different things to sweep")
    points = prod(len(axis.values) for axis in axes)
    if points > MOST_POINTS:
        raise InputError(where, f"{points} points", want=f"at most {MOST_POINTS}")
    return axes


def _axis(text: str, where: str) -> SweptAxis:
    name, equals, written = text.partition("=")
    name = name.strip().lower()
    if name not in CHANGERS:
        raise UnknownName(where, name, CHANGERS, fix=f"What can be swept: {', '.join(CHANGERS)}.")
    first, dots, last = written.partition("..")
    values = _doubling(name, first, last, where) if dots else [value.strip() for value in written.split(",")]
    if not equals or not all(values):
        raise InputError(where, text, want="values, such as gpus=64,128,256 or gpus=64..1024")
    return SweptAxis(name, tuple(dict.fromkeys(values)))


def _doubling(name: str, first: str, last: str, where: str) -> list[str]:
    low, high = whole_number(first.strip(), 12), whole_number(last.strip(), 12)
    if name not in _DOUBLED or low is None or high is None or not 1 <= low <= high:
        want = f"a range a..b of whole numbers for {', '.join(_DOUBLED)}, or values between commas"
        raise InputError(where, f"{name}={first}..{last}", want=want)
    values = [low]
    while 2 * values[-1] <= high:
        values.append(2 * values[-1])
    return [str(value) for value in values]


def swept(request: PlanRequest, axes: Sequence[SweptAxis], progress: Callable[[float], None] | None = None) -> Sweep:
    """The best plan at every point; the last axis changes slowest, so that curves of the first are in order."""
    base = World.of(replace(request, top=1, baseline=None, tokens=request.tokens or A_BILLION))
    inner, outer = axes[0], axes[1] if len(axes) > 1 else None
    places = [(value, other) for other in (outer.values if outer else ("",)) for value in inner.values]
    points: list[SweepPoint] = []
    for number, (value, other) in enumerate(places):
        if progress is not None:
            progress(number / len(places))
        before = points[-1] if points and value != inner.values[0] else None
        at = {inner.name: value} | ({outer.name: other} if outer else {})
        points.append(_point(base, at, before))
    if all(point.strategy is None for point in points):
        raise InputError("--over", None, want="at least one point with a plan", fix=points[0].why)
    resolved: dict[str, Any] = base.resolved.plain("plan")
    return Sweep(
        model=base.model.name,
        gpus=_shown(base, counted=all(axis.name != "gpus" for axis in axes)),
        over=[axis.name for axis in axes],
        points=points,
        request=resolved,
        notes=[] if request.tokens else ["no --tokens: dollars are per billion tokens alone"],
    )


def _shown(base: World, *, counted: bool) -> str:
    """The GPUs of all points; without their number where that is swept."""
    pools = base.cluster.pools
    return " + ".join(f"{pool.gpus}x{pool.device.name}" for pool in pools) if counted else pools[0].device.name


def _point(base: World, at: dict[str, str], before: SweepPoint | None) -> SweepPoint:
    request = base.request
    for name, value in at.items():
        request = CHANGERS[name](base._replace(request=request, cluster=World.of(request).cluster), value, "--over")
    try:
        best: Estimate = api.plan(request).best.estimate
    except AstraError as error:
        return SweepPoint(at=at, why=str(error))
    return SweepPoint(
        at=at,
        strategy=best.strategy,
        gpus=round(best.tokens_per_s / best.tokens_per_s_per_gpu),
        step_s=best.step_s,
        step_s_range=best.step_s_range,
        tokens_per_s=best.tokens_per_s,
        mfu=best.mfu,
        peak_reserved_gib=best.peak_reserved_gib,
        usd_per_billion_tokens=None if best.cost is None else best.cost.usd_per_billion_tokens,
        new_strategy=before is not None and shape(best.strategy) != shape(before.strategy),
    )


def shape(strategy: str | None) -> tuple[str, ...]:
    """What makes a strategy another one on a curve: all but the replicas, which grow with the GPUs, and the layers."""
    if strategy is None:
        return ()
    return tuple(word for word in strategy.split() if not word.startswith(("dp", "layers=")))
