"""The words a rule may use: the strategy's columns and the facts of the request, with what each one means.

A rule sees one mapping. Strategy fields are columns (one entry per row, or one for all rows); facts are usually
scalars but may be columns too. Derived columns are computed when first asked for, once per table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from astra.columns import Columns
from astra.spec.blocks import has_dense
from astra.spec.cluster import Pool
from astra.spec.job import captures_experts, fp8_attention, sends_once_within
from astra.spec.model import ModelSpec
from astra.spec.runtime import FRAMEWORKS
from astra.spec.strategy_fields import INTEGERS, STRATEGY_FIELDS
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS, Workload
from astra.units import GIB

Kind = Literal["number", "switch", "choice", "text"]


_KINDS: Final[Mapping[str, Kind]] = {"degree": "number", "number": "number", "switch": "switch", "choice": "choice"}


class RuleSubject(NamedTuple):
    """What facts are taken from."""

    model: ModelSpec
    pool: Pool | None
    workload: Workload
    runtime: str  # the framework whose rules bind the runtime


class RuleName(NamedTuple):
    """One name of the vocabulary."""

    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()  # of a choice or a text
    of: Callable[[RuleSubject], Any] | None = None  # of a fact: its value


def _facts(kind: Kind, **rows: tuple[str, Callable[[Any], Any]]) -> dict[str, RuleName]:
    return {name: RuleName(kind, meaning, of=of) for name, (meaning, of) in rows.items()}


NAMES: Final[Mapping[str, RuleName]] = {
    **{field.name: RuleName(_KINDS[field.kind], field.meaning, field.choices) for field in STRATEGY_FIELDS},
    "flash_attention": RuleName("switch", "the same as flash"),
    "microbatches": RuleName("number", "micro-batches per pipeline and step, batch / (dp * mbs)"),
    "layers_per_stage": RuleName("number", "layers of the fullest stage, layers / pp rounded up"),
    "layers_per_chunk": RuleName("number", "layers of the fullest chunk, layers / (pp * vp) rounded up"),
    **_facts(
        "number",
        gpus=("GPUs of the job", lambda it: it.pool.gpus),
        gpus_per_node=("GPUs in one server", lambda it: it.pool.gpus_per_node),
        scaleup_gpus=("GPUs joined by the innermost links", lambda it: it.pool.scaleup_gpus),
        deepep_gpus=("GPUs that DeepEP reaches on such nodes, 0 where it does not run",
                     lambda it: _reached(it, "deepep")),
        hybridep_gpus=("GPUs that HybridEP reaches on such nodes, 0 where it does not run",
                       lambda it: _reached(it, "hybridep")),
        memory_gib=("memory of one GPU, GiB", lambda it: it.pool.device.memory_bytes / GIB),
        batch=("samples per optimizer step", lambda it: it.workload.global_batch),
        seq=("tokens per sample", lambda it: it.workload.seq),
        layers=("transformer layers, encoder included",
                lambda it: it.model.layers + (it.model.encoder.layers if it.model.encoder else 0)),
        hidden=("hidden size", lambda it: it.model.hidden),
        ffn=("intermediate size of a dense layer", lambda it: it.model.ffn),
        heads=("attention heads", lambda it: it.model.heads),
        kv_heads=("key/value heads", lambda it: it.model.kv_heads),
        head_dim=("size of one head", lambda it: it.model.head_dim),
        vocab=("vocabulary size", lambda it: it.model.vocab),
        experts=("routed experts per MoE layer, 0 for a dense model", lambda it: getattr(it.model.moe, "experts", 0)),
        topk=("experts each token visits", lambda it: getattr(it.model.moe, "topk", 0)),
        moe_ffn=("intermediate size of one expert", lambda it: getattr(it.model.moe, "ffn", 0)),
        shared_ffn=("intermediate size of the shared experts", lambda it: getattr(it.model.moe, "shared_ffn", 0)),
        mtp=("layers of multi-token prediction that are trained", lambda it: it.workload.mtp),
        state_heads=("heads of a state-space layer", lambda it: getattr(it.model.state_space, "heads", 0)),
        state_groups=("groups of heads of a state-space layer", lambda it: getattr(it.model.state_space, "groups", 0)),
        delta_heads=("heads of keys of a gated delta net", lambda it: getattr(it.model.delta_net, "key_heads", 0)),
    ),
    **_facts(
        "switch",
        moe=("the model has experts", lambda it: it.model.moe is not None),
        dense_ffn=("some layer has a dense feed-forward", lambda it: has_dense(it.model)),
        expert_bias=("the experts' projections have biases", lambda it: getattr(it.model.moe, "expert_bias", False)),
        mla=("multi-head latent attention", lambda it: it.model.mla is not None),
        tied=("input and output embeddings share weights", lambda it: it.model.tied_embeddings),
        blackwell=("the GPU is a Blackwell", lambda it: it.pool.device.generation == "blackwell"),
        captures_experts=("a graph of the whole step can hold the experts: gated, pre-trained in mxfp8 or nvfp4",
                          lambda it: captures_experts(it.model, it.pool.device, it.workload)),
        fp8_attention=("attention of the model can be trained in fp8 on the GPU, in the precision",
                       lambda it: fp8_attention(it.model, it.pool.device, it.workload)),
    ),
    "task": RuleName("text", "kind of training", TASKS, lambda it: it.workload.task),
    "precision": RuleName("text", "compute precision", PRECISIONS, lambda it: it.workload.precision),
    "optimizer": RuleName("text", "optimizer", OPTIMIZERS, lambda it: it.workload.optimizer),
    "runtime": RuleName("text", "training framework", FRAMEWORKS, lambda it: it.runtime),
}  # fmt: skip
_OF_POOL: Final = {
    "gpus",
    "gpus_per_node",
    "scaleup_gpus",
    "deepep_gpus",
    "hybridep_gpus",
    "memory_gib",
    "blackwell",
    "captures_experts",
    "fp8_attention",
}
_FACTS: Final = [(name, row.of) for name, row in NAMES.items() if row.of is not None]


def _reached(it: RuleSubject, dispatcher: str) -> int:
    """What a dispatcher reaches; nothing where there is nothing to send, so that jobs without experts are alike."""
    return sends_once_within(it.pool).get(dispatcher, 0) if it.model.moe and it.pool else 0


ALIASES: Final[Mapping[str, str]] = {"flash_attention": "flash"}


class Derived(NamedTuple):
    """A column computed from others."""

    inputs: tuple[str, ...]
    compute: Callable[..., Any]


DERIVED: Final[Mapping[str, Derived]] = {
    "microbatches": Derived(("batch", "dp", "mbs"), lambda batch, dp, mbs: batch // (dp * mbs)),
    "layers_per_stage": Derived(("layers", "pp"), lambda layers, pp: -(-layers // pp)),
    "layers_per_chunk": Derived(("layers", "pp", "vp"), lambda layers, pp, vp: -(-layers // (pp * vp))),
}


class Names(Mapping[str, Any]):
    """What a rule reads: name -> column or scalar."""

    def __init__(self, columns: Columns, facts: Mapping[str, Any]) -> None:
        lengths = [len(column) for column in columns.values()]
        self.rows = 0 if 0 in lengths else max(lengths, default=1)
        self.tables: dict[int, Any] = {}  # what conditions looked up once per value of a column
        self._facts = facts
        self._values: dict[str, Any] = {**facts, **columns}
        self._spans: dict[str, tuple[float, float]] = {}
        for alias, name in ALIASES.items():
            if name in self._values:
                self._values[alias] = self._values[name]
        derivable = [name for name, rule in DERIVED.items() if self._values.keys() >= set(rule.inputs)]
        self.known: frozenset[str] = frozenset(self._values) | frozenset(derivable)

    def __getitem__(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            if name not in self.known:
                raise KeyError(name)
            inputs, compute = DERIVED[name]
            value = self._values[name] = compute(*(self[key] for key in inputs))
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, name: object) -> bool:
        return name in self.known

    def span(self, name: str) -> tuple[float, float]:
        """The smallest and the largest value of a number."""
        if name not in self._spans:
            value = self[name]
            whole = isinstance(value, np.ndarray)
            empty = whole and value.size == 0
            self._spans[name] = (0, 0) if empty else (value.min(), value.max()) if whole else (value, value)
        return self._spans[name]

    def at(self, columns: Columns) -> Names:
        """The same facts with other columns."""
        return Names(columns, self._facts)

    def blocks(self, size: int) -> Iterator[Names]:
        """The table in blocks of rows, small enough to stay in the processor's cache."""
        if self.rows <= size:
            yield self
            return
        spans: dict[str, tuple[float, float]] = {name: self.span(name) for name in INTEGERS if name in self._values}
        for start in range(0, self.rows, size):
            rows = {
                name: value[start : start + size]
                for name, value in self._values.items()
                if isinstance(value, np.ndarray) and len(value) > 1
            }
            block = Names({}, {**self._values, **rows})
            block.rows, block.tables, block._spans = min(size, self.rows - start), self.tables, dict(spans)
            yield block


def names_of_one(columns: Columns, facts: Mapping[str, Any]) -> Names:
    """What rules read of a table of one row: plain numbers are quicker to compare than arrays of one."""
    return Names({}, {**facts, **{name: column.item() for name, column in columns.items()}})


def facts_of(model: ModelSpec, pool: Pool | None, workload: Workload, *, runtime: str = "megatron") -> dict[str, Any]:
    """The facts of a request on one pool, as scalars; ``runtime`` is the framework whose rules bind the runtime."""
    asked = RuleSubject(model, pool, workload, runtime)
    return {name: of(asked) for name, of in _FACTS if pool is not None or name not in _OF_POOL}


def shown(name: str, value: Any) -> str:
    """One name with its value for people: ``tp=3``, ``recompute=full``, ``sp=off``."""
    word = NAMES[name]
    cell = np.asarray(value).reshape(-1)[0]
    if word.kind == "choice":
        return f"{name}={word.choices[int(cell)]}"
    if word.kind == "switch":
        return f"{name}={'on' if cell else 'off'}"
    if word.kind == "number":
        return f"{name}={float(cell):.6g}" if isinstance(cell, np.floating) else f"{name}={int(cell)}"
    return f"{name}={cell}"
