"""The one place that says what a framework can do: why a runtime cannot run a strategy of a model.

``[can]`` in a runtime's file lists what it has (``astra.spec.runtime.Can``). Read here as reasons: those of a model and
a workload, whatever the strategy (``unable``), and those of a strategy, as rules over columns for the search and its
ledger (``able_rules``). ``may`` is both for one strategy. What depends on the model and the strategy together is a rule
of the framework (``astra.rules.table``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from astra.catalog import models, runtimes
from astra.columns import from_strategy
from astra.rules.language import Condition, RuleText
from astra.rules.names import facts_of, names_of_one
from astra.rules.table import RULES, Rule, make_rule
from astra.spec.blocks import MEANINGS, blocks_of
from astra.spec.cluster import Pool
from astra.spec.model import ModelSpec
from astra.spec.runtime import AXES, Can, Runtime
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import (
    ACTIVATIONS,
    CHOICES,
    METHODS,
    MODULES,
    OVERLAPS,
    RECOMPUTES,
    RUNTIME_CHOICES,
    SCHEDULES,
    STRATEGY_FIELDS,
)
from astra.spec.workload import Workload

_TITLES: Final = {field.name: field.title for field in STRATEGY_FIELDS}
_REPORTED: Final = 2  # reasons, of many, why a runtime was not taken
_TASKS: Final = {"pretrain": "pretrain", "finetune": "fine-tune", "lora": "train LoRA adapters"}
# What may differ between a model and its recipe: labels, what is set beside the recipe, and layers that do not train.
_COMPANIONS: Final = (
    "name",
    "aliases",
    "source",
    "date",
    "max_seq",
    "rotary",
    "norm_epsilon",
    "mtp_layers",
    "activation",
)


class Reason(NamedTuple):
    """One thing a runtime cannot do."""

    field: str  # strategy, model or workload: what would have to change
    sentence: str


def may(
    runtime: Runtime,
    strategy: Strategy,
    model: ModelSpec,
    workload: Workload,
    pool: Pool | None = None,
    *,
    layers: Sequence[int] = (),
) -> list[Reason]:
    """Why this runtime cannot run this strategy of this model; empty if it can.

    ``pool`` is for rules that speak of the GPUs, ``layers`` are those of each chunk, where they were dealt already.
    """
    table = names_of_one(from_strategy(strategy), facts_of(model, pool, workload, runtime=runtime.framework))
    broken = [rule for rule in able_rules(runtime) if rule.needs <= table.known and rule.breaks(table)]
    found = [Reason("strategy", rule.broken_by(table)) for rule in broken]
    if not runtime.can.uneven and len(set(layers or strategy.layers)) > 1 and "uneven" not in {r.name for r in broken}:
        found.append(Reason("strategy", f"{runtime.name} {_UNEVEN}"))
    return [*unable(runtime, model, workload), *found]


def unable(runtime: Runtime, model: ModelSpec, workload: Workload) -> list[Reason]:
    """Why this runtime cannot train this model so at all, whatever the strategy."""
    can, who = runtime.can, runtime.name
    if can.recipes and recipe_of(runtime, model) is None:
        found = [Reason("model", f"{who} has no recipe of this shape")]
    else:
        found = [Reason("model", f"{who} has no {MEANINGS[word]}") for word in blocks_of(model)
                 if word not in can.blocks]  # fmt: skip
    if workload.task not in can.tasks:
        found.append(Reason("workload", f"{who} does not {_TASKS[workload.task]} here"))
    if workload.precision not in can.precision:
        offered = ", ".join(can.precision)
        found.append(Reason("workload", f"{who} does not train in {workload.precision} here (it has {offered})"))
    if workload.optimizer not in can.optimizers:
        found.append(Reason("workload", f"{who} does not train with {workload.optimizer} here"))
    if workload.mtp and not can.mtp:
        found.append(Reason("workload", f"{who} does not train multi-token prediction here"))
    if workload.mtp and (model.state_space or model.encoder or model.vision):
        found.append(Reason("workload", "multi-token prediction is of models of one kind of layer stack"))
    if 0 < model.learned_positions < workload.seq:
        found.append(Reason("workload", f"the model's learned positions end at {model.learned_positions:,} tokens, "
                                        f"before the sequence of {workload.seq:,}"))  # fmt: skip
    return found


def who_can(model: ModelSpec, workload: Workload) -> list[str]:
    """The runtimes that can train a model so and have files written for them."""
    offered = (runtimes.runtime(name) for name in runtimes.runtime_names())
    return [one.name for one in offered if one.exports_to and not unable(one, model, workload)]


def usual_runtime(model: ModelSpec, workload: Workload, *, several: bool = False) -> tuple[Runtime, str]:
    """The runtime that is taken where nobody names one, and why it is not the first choice, if it is not.

    ``several`` pools are joined by pipelines. The first choice also stands where no runtime can.
    """
    first, usual = runtimes.runtime(runtimes.DEFAULT), (runtimes.runtime(name) for name in runtimes.USUAL)
    joins = (one for one in usual if not several or "pp" in one.can.degrees)
    chosen = next((one for one in joins if not unable(one, model, workload)), first)
    if chosen is first:
        return chosen, ""
    reasons = unable(first, model, workload)
    named = [reason.sentence for reason in reasons[:_REPORTED]]
    more = [f"and {len(reasons) - _REPORTED} more reasons"] if len(reasons) > _REPORTED else []
    return chosen, f"Runtime {chosen.name}, because {'; '.join(named + more)}. --runtime names another."


def recipe_of(runtime: Runtime, model: ModelSpec) -> str | None:
    """The recipe that builds a model of this shape, by its name in the framework."""
    name = of_shape(model, runtime.can.recipes)
    return None if name is None else runtime.can.recipes[name]


def of_shape(model: ModelSpec, known: Iterable[str]) -> str | None:
    """The catalog model of the same shape, of those given; of several the one with the same rotary positions."""
    fitting = []
    for name in known:
        found = models.model(name)
        if replace(model, **{field: getattr(found, field) for field in _COMPANIONS}) == found:
            fitting.append((found.rotary != model.rotary, name))
    return min(fitting, key=lambda one: one[0], default=(False, None))[1]


def rules_of(runtime: Runtime) -> tuple[Rule, ...]:
    """Every rule that binds a runtime: the general ones, its framework's, and what its file lists."""
    return (*(rule for rule in RULES if not rule.frameworks), *able_rules(runtime))


def able_rules(runtime: Runtime) -> tuple[Rule, ...]:
    """What a strategy must keep to for this runtime, beside the general rules."""
    key = msgspec.json.encode((runtime.framework, runtime.name, runtime.can))
    if key not in _ABLE:
        made = (
            make_rule(name, said, Condition(RuleText(where, f"rule {name}"))) for name, said, where in _listed(runtime)
        )
        _ABLE[key] = (*(rule for rule in RULES if runtime.framework in rule.frameworks), *made)
    return _ABLE[key]


_ABLE: Final[dict[bytes, tuple[Rule, ...]]] = {}  # by what they are made from


def _listed(runtime: Runtime) -> Iterator[tuple[str, str, str]]:
    """The lists of a runtime's file as rules: name, sentence, condition where it is broken."""
    can = runtime.can
    for lacks, name, sentence, condition in (*_strategies(can), *_words(can), *_overlaps(can)):
        if lacks:
            yield name, f"{runtime.name} {sentence}", condition


_Row = tuple[object, str, str, str]  # what is lacking, and the rule that says so


def _strategies(can: Can) -> Iterator[_Row]:
    """Degrees, schedules, sharding and recompute."""
    for axis in AXES:
        yield axis not in can.degrees, f"can_{axis}", f"has no {_TITLES[axis]}", "sp" if axis == "sp" else f"{axis} > 1"
    yield not can.uneven, "uneven", _UNEVEN, "layers % (pp * vp) != 0"
    lacks = [name for name in SCHEDULES if name not in can.schedules]
    yield lacks, "can_schedule", "has no such pipeline schedule", _one_of("schedule", lacks)
    stages = [stage for stage in range(4) if stage not in can.zero]
    yield stages, "can_zero", f"has zero {_listing(can.zero)} alone", _stages(stages)
    alone = [stage for stage in can.zero if stage not in can.zero_pipelined] if "pp" in can.degrees else []
    where = f"has zero {_listing(alone)} without a pipeline alone"
    yield alone, "can_zero_pipelined", where, f"pp > 1 and ({_stages(alone)})"
    lacks = [name for name in RECOMPUTES if name not in can.recompute]
    words = _listing([f"{name} recompute" if name != "none" else "none" for name in can.recompute])
    yield lacks, "can_recompute", f"has {words}, nothing else", _one_of("recompute", lacks)
    own = 'recompute == "full" and (method != "uniform" or recompute_layers != 1)'
    yield not can.methods, "can_method", "checkpoints every layer by itself under full recompute", own
    lacks = [name for name in METHODS if name not in can.methods] if can.methods else []
    yield lacks, "can_method", "has no such way to pick layers", _one_of("method", lacks)
    yield "optimizer" not in can.offload, "can_offload", "has no optimizer offload", 'offload == "optimizer"'
    yield ACTIVATIONS not in can.offload, "can_offload_layers", "has no activation offload", "offload_layers > 0"


def _words(can: Can) -> Iterator[_Row]:
    """Modules, dispatchers, graphs, widths and what else a runtime may have a word for."""
    for name in MODULES if "selective" in can.recompute else ():
        yield name not in can.modules, f"can_recompute_{name}", f"has no recompute of {name}", f"recompute_{name}"
    for field in RUNTIME_CHOICES:
        has = _listing(f"{field}={word}" for word in getattr(can, field))
        for word in CHOICES[field]:
            lacks, where = word not in getattr(can, field), f"has no {field}={word}, only {has}"
            yield lacks, f"can_{field}_{word}", where, f'{field} == "{word}"'
    yield not can.dispatch_fp8, "can_dispatch_fp8", "has no dispatch in fp8", "dispatch_fp8"
    yield not can.shard, "can_shard", "has no sharding inside groups of replicas", "shard > 0"
    yield not can.unfused, "can_flash", "has no switch for fused attention", "not flash"


def _overlaps(can: Can) -> Iterator[_Row]:
    for name in OVERLAPS:
        where = f"cannot overlap {name} communication"
        yield name not in can.overlap, f"can_overlap_{name}", where, f"overlap_{name}"
    yield "grad" in can.always, "always_grad", "always overlaps gradient reduction", "not overlap_grad"
    where = "always overlaps the traffic of an interleaved pipeline"
    yield "p2p" in can.always, "always_p2p", where, "vp > 1 and not overlap_p2p"
    where = f"prefetches weights exactly where they are sharded (zero {_listing(can.prefetch)})"
    never = [stage for stage in (1, 2, 3) if stage not in can.prefetch]
    known = "param" in can.overlap
    yield known and never, "prefetch", where, f"overlap_param and ({_stages(never)})"
    always = known and "param" in can.always
    yield always, "always_param", where, f"not overlap_param and ({_stages(can.prefetch)})"


_UNEVEN: Final = "gives every stage as many layers"


def _stages(stages: Iterable[int]) -> str:
    return " or ".join(f"zero == {stage}" for stage in stages)


def _one_of(field: str, words: Iterable[str]) -> str:
    return " or ".join(f'{field} == "{word}"' for word in words)


def _listing(words: Iterable[object]) -> str:
    """``0, 2 or 3``."""
    named = [str(word) for word in words]
    return " or ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else "".join(named)
