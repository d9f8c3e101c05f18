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
from astra.spec.job import fp8_attention, sends_once_within
from astra.spec.model import ModelSpec
from astra.spec.runtime import FRAMEWORKS
from astra.spec.strategy_fields import INTEGERS, STRATEGY_FIELDS
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS, Workload
from astra.units import GIB

Kind = Literal["number", "switch", "choice", "text"]


_KINDS: Final[Mapping[str, Kind]] = {"degree": "number", "number": "number", "switch": "switch", "choice": "choice"}


class RuleName(NamedTuple):
    """One name of the vocabulary."""

    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()  # of a choice or a text


def _numbers(**meanings: str) -> dict[str, RuleName]:
    return {name: RuleName("number", meaning) for name, meaning in meanings.items()}


def _switches(**meanings: str) -> dict[str, RuleName]:
    return {name: RuleName("switch", meaning) for name, meaning in meanings.items()}


NAMES: Final[Mapping[str, RuleName]] = {
    **{field.name: RuleName(_KINDS[field.kind], field.meaning, field.choices) for field in STRATEGY_FIELDS},
    "flash_attention": RuleName("switch", "the same as flash"),
    **_numbers(
        microbatches="micro-batches per pipeline and step, batch / (dp * mbs)",
        layers_per_stage="layers of the fullest stage, layers / pp rounded up",
        layers_per_chunk="layers of the fullest chunk, layers / (pp * vp) rounded up",
        gpus="GPUs of the job",
        gpus_per_node="GPUs in one server",
        scaleup_gpus="GPUs joined by the innermost links",
        deepep_gpus="GPUs that DeepEP reaches on such nodes, 0 where it does not run",
        hybridep_gpus="GPUs that HybridEP reaches on such nodes, 0 where it does not run",
        memory_gib="memory of one GPU, GiB",
        batch="samples per optimizer step",
        seq="tokens per sample",
        layers="transformer layers, encoder included",
        hidden="hidden size",
        ffn="intermediate size of a dense layer",
        heads="attention heads",
        kv_heads="key/value heads",
        head_dim="size of one head",
        vocab="vocabulary size",
        experts="routed experts per MoE layer, 0 for a dense model",
        topk="experts each token visits",
        moe_ffn="intermediate size of one expert",
        shared_ffn="intermediate size of the shared experts",
        mtp="layers of multi-token prediction that are trained",
        state_heads="heads of a state-space layer",
        state_groups="groups of heads of a state-space layer",
        delta_heads="heads of keys of a gated delta net",
    ),
    **_switches(
        moe="the model has experts",
        dense_ffn="some layer has a dense feed-forward",
        expert_bias="the experts' projections have biases",
        mla="multi-head latent attention",
        tied="input and output embeddings share weights",
        blackwell="the GPU is a Blackwell",
        fp8_attention="attention of the model can be trained in fp8 on the GPU, in the precision",
    ),
    "task": RuleName("text", "kind of training", TASKS),
    "precision": RuleName("text", "compute precision", PRECISIONS),
    "optimizer": RuleName("text", "optimizer", OPTIMIZERS),
    "runtime": RuleName("text", "training framework", FRAMEWORKS),
}

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
    moe, hybrid, delta = model.moe, model.state_space, model.delta_net
    return {
        **({} if pool is None else _pool_facts(pool)),
        **({} if pool is None else {"fp8_attention": fp8_attention(model, pool.device, workload)}),
        **({} if pool is None else _dispatch_facts(pool if moe else None)),
        "batch": workload.global_batch,
        "seq": workload.seq,
        "task": workload.task,
        "precision": workload.precision,
        "optimizer": workload.optimizer,
        "mtp": workload.mtp,
        "runtime": runtime,
        "layers": model.layers + (model.encoder.layers if model.encoder else 0),
        "hidden": model.hidden,
        "ffn": model.ffn,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab": model.vocab,
        "experts": moe.experts if moe else 0,
        "topk": moe.topk if moe else 0,
        "moe_ffn": moe.ffn if moe else 0,
        "shared_ffn": moe.shared_ffn if moe else 0,
        "expert_bias": bool(moe and moe.expert_bias),
        "moe": moe is not None,
        "dense_ffn": has_dense(model),
        "state_heads": hybrid.heads if hybrid else 0,
        "state_groups": hybrid.groups if hybrid else 0,
        "delta_heads": delta.key_heads if delta else 0,
        "mla": model.mla is not None,
        "tied": model.tied_embeddings,
    }


def _pool_facts(pool: Pool) -> dict[str, Any]:
    links = pool.node.links
    return {
        "gpus": pool.gpus,
        "gpus_per_node": pool.gpus_per_node,
        "scaleup_gpus": min(links[0].reach, pool.gpus) if links else 1,
        "memory_gib": pool.device.memory_bytes / GIB,
        "blackwell": pool.device.generation == "blackwell",
    }


def _dispatch_facts(pool: Pool | None) -> dict[str, int]:
    """What dispatchers reach; nothing where there is nothing to send, so that jobs without experts are alike."""
    within = {} if pool is None else sends_once_within(pool)
    return {f"{name}_gpus": within.get(name, 0) for name in ("deepep", "hybridep")}


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
