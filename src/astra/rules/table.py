"""What makes a strategy legal: one table of sentences, each with a condition that is true where it is broken.

Conditions are written in the language users write their own rules in (``astra.rules.written``). Where a rule
restates a check of Megatron-LM (0.19.2) or torchtitan (0.3.0) the two must agree: a strategy refused here and
accepted there is a lost plan, the reverse a plan that does not start. What a runtime has at all is listed in its file
and read in ``astra.rules.can``; here is what must hold between a model and a strategy, for everybody or a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from astra.columns import Columns
from astra.provenance import Bools, Floats
from astra.rules.language import Condition, RuleText
from astra.rules.names import NAMES, Names, facts_of, names, shown

__all__ = [
    "ADVICE",
    "NAMES",
    "RULES",
    "Names",
    "Rule",
    "Verdict",
    "advice",
    "check",
    "facts_of",
    "names",
    "rules_markdown",
    "violations",
]

_BLOCK_ROWS: Final = 131_072  # columns of a block stay in the processor's cache


class Rule(NamedTuple):
    """One constraint."""

    name: str  # short, as counted in the ledger
    sentence: str  # for people: what must hold
    condition: str  # as text, true where the strategy is refused
    breaks: Callable[[Names], Any]  # names -> true where the strategy is refused
    needs: frozenset[str]  # names it reads
    origin: str = "built-in"  # or the file and line it was written in
    frameworks: tuple[str, ...] = ()  # whose rule it is; none: everybody's

    def broken_by(self, table: Names) -> str:
        """The sentence with the numbers of a one-row table that break it."""
        values = ", ".join(shown(name, table[name]) for name in NAMES if name in self.needs)
        return f"{self.sentence} ({values})" if values else self.sentence


def make_rule(name: str, sentence: str, condition: Condition, origin: str = "built-in") -> Rule:
    """A rule from a parsed condition."""
    return Rule(name, sentence, condition.text, condition, frozenset(condition.needs), origin)


def _rules(*rows: tuple[str, str, str] | tuple[str, str, str, tuple[str, ...]]) -> tuple[Rule, ...]:
    """Rules from their name, sentence, condition and, where it is theirs alone, frameworks."""
    made = {}
    for name, sentence, condition, *theirs in rows:
        frameworks = theirs[0] if theirs else ()
        whose = " or ".join(f'runtime == "{framework}"' for framework in frameworks)
        whose = f"({whose})" if len(frameworks) > 1 else whose
        whole = f"{whose} and ({condition})" if whose else condition
        rule = make_rule(name, sentence, Condition(RuleText(whole, f"rule {name}")))
        made[name] = rule._replace(frameworks=tuple(frameworks))
    if len(made) != len(rows):
        raise ValueError("two rules share a name")
    return tuple(made.values())


_IN_FULL: Final = 'precision == "bf16" or precision == "fp16" or precision == "tf32"'

RULES: Final = _rules(
    # degrees and the model's shape
    ("gpus", "tp * cp * pp * dp must be the number of GPUs", "tp * cp * pp * dp != gpus"),
    ("heads", "tp must divide the attention heads", "heads % tp != 0"),
    (
        "kv_heads",
        "tp must divide the key/value heads or be a multiple of them",
        "not mla and kv_heads % tp != 0 and tp % kv_heads != 0",
    ),
    (
        "kv_heads_whole",
        "torchtitan, FSDP and PyTorch need tp to divide the key/value heads",
        "not mla and kv_heads % tp != 0",
        ("torchtitan", "fsdp", "pytorch"),
    ),
    ("ffn", "tp must divide the feed-forward size", "dense_ffn and ffn % tp != 0"),
    ("shared_ffn", "tp must divide the size of the shared experts", "shared_ffn > 0 and shared_ffn % tp != 0"),
    ("state_groups", "tp must divide the groups of state-space layers", "state_groups % tp != 0"),
    ("state_heads", "tp * cp must divide the heads of state-space layers", "state_heads % (tp * cp) != 0"),
    ("delta_heads", "tp * cp must divide the key heads of gated delta nets", "delta_heads % (tp * cp) != 0"),
    ("dense_experts", "ep and etp need a model with experts", "not moe and (ep > 1 or etp > 1)"),
    ("experts", "ep must divide the experts", "moe and experts % ep != 0"),
    ("moe_ffn", "etp must divide the size of an expert", "moe and moe_ffn % etp != 0"),
    (
        "expert_ranks",
        "ep * etp must divide tp * cp * dp, the ranks of one pipeline stage",
        "moe and (tp * cp * dp) % (ep * etp) != 0",
    ),
    ("expert_bias", "experts with biases need etp = 1", "expert_bias and etp > 1"),
    (
        "experts_sharded",
        "torchtitan needs ep to divide cp and tp where dp does not shard weights (zero 0 or 1)",
        "moe and zero < 2 and (cp * tp) % ep != 0",
        ("torchtitan",),
    ),
    (
        "fp8_shape",
        "FP8 matrix products need a feed-forward slice that is a multiple of 16",
        f"not ({_IN_FULL}) and (dense_ffn and ffn % (16 * tp) != 0 or moe and moe_ffn % (16 * etp) != 0)",
    ),
    # sequence
    ("cp_seq", "2 * cp must divide the sequence, so that causal work is balanced", "cp > 1 and seq % (2 * cp) != 0"),
    ("cp_flash", "context parallelism needs fused attention", "cp > 1 and not flash"),
    ("sp_tp", "sequence parallelism needs tp above 1", "sp and tp == 1"),
    ("sp_seq", "under sequence parallelism tp * cp must divide the sequence", "sp and seq % (tp * cp) != 0"),
    ("moe_sp", "experts with tp above 1 need sequence parallelism", "moe and tp > 1 and not sp"),
    # batch and pipeline
    ("batch", "dp * mbs must divide the batch", "batch % (dp * mbs) != 0"),
    (
        "layers",
        "every chunk of the pipeline needs a layer, but for one of the embedding and one of the loss",
        "pp * vp > layers + 2 or (pp > layers and pp > 1)",
    ),
    ("single_stage", "one stage needs no pipeline schedule but 1f1b", 'pp == 1 and schedule != "1f1b"'),
    ("chunks", "vp above 1 belongs to interleaved and zbv", 'vp > 1 and schedule not in ("interleaved", "zbv")'),
    ("interleaved", "the interleaved schedule needs vp above 1", 'schedule == "interleaved" and vp == 1'),
    ("zbv", "the zbv schedule needs two chunks per stage (vp2)", 'schedule == "zbv" and vp != 2'),
    (
        "interleaved_batch",
        "the interleaved schedule needs micro-batches in whole groups of pp",
        "vp > 1 and (microbatches < pp or microbatches % pp != 0)",
        ("megatron", "internevo"),
    ),
    (
        "interleaved_rounds",
        "PyTorch's interleaved schedule needs rounds of equal length",
        'schedule == "interleaved" and microbatches >= pp and microbatches % (microbatches // pp) != 0',
        ("torchtitan", "pytorch"),
    ),
    (
        "interleaved_p2p",
        "two interleaved stages must overlap their traffic",
        "vp > 1 and pp == 2 and not overlap_p2p",
        ("megatron",),
    ),
    (
        "overlap_p2p",
        "only schedules of several chunks (vp above 1) overlap pipeline traffic",
        "overlap_p2p and vp == 1",
    ),
    ("stages_fed", "nanotron needs at least pp - 1 micro-batches", "microbatches < pp - 1", ("nanotron",)),
    (
        "tied_torchtitan",
        "torchtitan and the PyTorch trainer cannot split tied embeddings over stages",
        "tied and pp > 1",
        ("torchtitan", "pytorch"),
    ),
    (
        "pipeline_fed",
        "PyTorch's 1f1b schedule needs at least pp micro-batches",
        'schedule == "1f1b" and microbatches < pp',
        ("torchtitan", "pytorch"),
    ),
    # recompute
    (
        "recompute_options",
        "method and recompute_layers belong to full recompute",
        'recompute != "full" and (method != "uniform" or recompute_layers != 1)',
    ),
    (
        "recompute_layers",
        "recompute_layers must lie between 1 and the layers of a chunk",
        'recompute == "full" and (recompute_layers < 1 or recompute_layers > layers_per_chunk)',
    ),
    # data parallelism and overlap
    (
        "overlap_param",
        "overlapping the parameter gather needs gradient overlap and zero 1 or more",
        "overlap_param and (not overlap_grad or zero == 0)",
    ),
    ("overlap_tp", "overlapping tensor-parallel traffic needs sequence parallelism", "overlap_tp and not sp"),
    (
        "overlap_tp_reach",
        "overlapping tensor-parallel traffic needs tp within the fastest links",
        "overlap_tp and tp > scaleup_gpus",
    ),
    ("offload_zero", "optimizer offload needs zero 1 or more", 'offload == "optimizer" and zero == 0'),
    (
        "offload_fsdp",
        "Megatron's optimizer offload works with zero 1 only",
        'offload == "optimizer" and zero >= 2',
        ("megatron",),
    ),
    ("offload_adam", "optimizer offload needs Adam", 'optimizer != "adam" and offload == "optimizer"'),
    ("offload_layers", "a stage has fewer layers than are offloaded", "offload_layers > layers_per_stage"),
    (
        "offload_recompute",
        "Megatron offloads activations of layers that are not recomputed in full",
        'offload_layers > 0 and recompute == "full"',
        ("megatron",),
    ),
    (
        "moments",
        "moments in bf16 need Adam and zero 1 or more",
        'moments == "bf16" and (zero == 0 or optimizer != "adam")',
    ),
    ("params", "fp8 weights need an fp8 or fp4 precision", f'params == "fp8" and ({_IN_FULL})'),
    ("params_zero", "Megatron gathers fp8 weights with zero 1 or more", 'params == "fp8" and zero == 0', ("megatron",)),
    ("reshard", "reshard=never is of zero 3", 'reshard == "never" and zero != 3'),
    (
        "reshard_pipelined",
        "PyTorch's pipelines keep gathered weights until the step's end (reshard=never)",
        'reshard == "always" and zero == 3 and pp > 1',
        ("pytorch",),
    ),
    ("shard", "shard must divide dp", "shard > 0 and dp % shard != 0"),
    ("shard_zero", "shard needs zero 1 or more", "shard > 0 and zero == 0"),
    (
        "shard_experts",
        "ep * etp must divide tp * cp * shard, the ranks of one group of shards",
        "moe and shard > 0 and (tp * cp * shard) % (ep * etp) != 0",
    ),
    # experts' exchanges, graphs and modules
    ("dispatch", "deepep and hybridep need expert parallelism, ep above 1", 'dispatch != "alltoall" and ep == 1'),
    ("dispatch_fp8", "dispatch in fp8 needs deepep or hybridep", 'dispatch_fp8 and dispatch == "alltoall"'),
    (
        "overlap_ep",
        "hiding expert exchanges needs ep above 1 and a second micro-batch",
        "overlap_ep and (ep == 1 or microbatches < 2)",
    ),
    (
        "overlap_ep_pipeline",
        "Megatron hides expert exchanges without a pipeline or in an interleaved one",
        "overlap_ep and pp > 1 and vp == 1",
        ("megatron",),
    ),
    (
        "overlap_ep_recompute",
        "Megatron hides expert exchanges of layers that are not recomputed in full, nor their experts",
        'overlap_ep and (recompute == "full" or recompute_moe)',
        ("megatron",),
    ),
    (
        "graphs_experts",
        "a graph of the whole step needs experts that the host does not wait for: dispatch=hybridep",
        'graphs == "full" and ep > 1 and dispatch != "hybridep"',
        ("megatron",),
    ),
    (
        "graphs_recompute",
        "Megatron captures layers that are not recomputed in full, nor their experts",
        'graphs == "partial" and (recompute == "full" or recompute_moe)',
        ("megatron",),
    ),
    (
        "module_experts",
        "moe, moe_act and shared_experts are modules of models with such experts",
        "not moe and (recompute_moe or recompute_moe_act) or shared_ffn == 0 and recompute_shared_experts",
    ),
    ("module_latent", "mla_up_proj is a module of latent attention", "not mla and recompute_mla_up_proj"),
    ("module_dense", "mlp is a module of layers without experts", "not dense_ffn and recompute_mlp"),
)

ADVICE: Final = _rules(
    (
        "slow_tp",
        "tensor parallelism reaches beyond the fastest links: fix tp at scaleup_gpus or less",
        "tp > scaleup_gpus",
    ),
    (
        "copied_kv",
        "key/value heads are copied to every rank above their number: fix tp at kv_heads or less if memory is short",
        "not mla and tp > kv_heads",
    ),
    ("no_sp", "switch sp on: it saves activation memory at no extra traffic", "tp > 1 and not sp"),
    (
        "idle_pipeline",
        "fewer micro-batches than stages leave the pipeline idle: take a larger batch, a smaller mbs or fewer stages",
        "pp > 1 and microbatches < pp",
    ),
    (
        "whole_optimizer",
        "every replica keeps the whole optimizer state: zero1 shards it and takes no longer",
        "dp > 1 and zero == 0",
    ),
    (
        "shown_grad",
        "gradient reduction is not hidden behind the backward pass: add overlap=grad if the framework can",
        "dp > 1 and not overlap_grad",
    ),
    (
        "sharded_pipeline",
        "zero 2 and 3 send gradients or weights for every micro-batch of a pipeline: try 20 steps beside zero1 first",
        "pp > 1 and dp > 1 and zero >= 2",
    ),
    (
        "sharded_experts",
        "no published run checks experts that zero 2 or 3 shards and no expert parallelism spreads: try 20 steps "
        "beside a plan with ep",
        "moe and ep == 1 and dp > 1 and zero >= 2",
    ),
    (
        "fsdp_streams",
        "before Blackwell, Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS above 1, and tp or cp want 1: measure both "
        "settings",
        "not blackwell and zero >= 2 and (tp > 1 or cp > 1)",
        ("megatron",),
    ),
    (
        "twice_recomputed",
        "fused attention keeps no scores, so that recompute of attention alone saves little: leave it out",
        'flash and recompute == "selective" and recompute_core_attn',
    ),
    ("unfused", "attention that is not fused keeps the whole score matrix: switch flash on", "not flash"),
)


class Verdict(NamedTuple):
    """Which rows are legal and why the others are not."""

    ok: Bools  # one entry per row
    ledger: dict[str, int]  # rule -> rows refused; a row counts under the first rule it breaks
    remaining: tuple[str, ...]  # rules that could not be applied: a name they need is not in the table


def check(
    columns: Columns,
    facts: Mapping[str, Any],
    rules: Sequence[Rule] = RULES,
    user_rules: Sequence[Rule] = (),
    *,
    weights: Floats | None = None,
) -> Verdict:
    """Apply every rule whose names are present; the counts and the legal rows add up to all rows.

    ``weights`` says how many strategies each row stands for (one if not given).
    """
    table = names(columns, facts)
    usable = [rule for rule in (*rules, *user_rules) if rule.needs <= table.known]
    remaining = tuple(rule.name for rule in (*rules, *user_rules) if not rule.needs <= table.known)
    ledger: dict[str, int] = {}
    ok = np.ones(table.rows, dtype=np.bool_)
    start = 0
    for block in table.blocks(_BLOCK_ROWS):
        counted = None if weights is None else weights[start : start + block.rows]
        _refuse(block, ok[start : start + block.rows], usable, ledger, counted)
        start += block.rows
    return Verdict(ok, ledger, remaining)


def _refuse(block: Names, ok: Bools, rules: Sequence[Rule], ledger: dict[str, int], weights: Floats | None) -> None:
    """Take the rows that break a rule out of ``ok`` and count them."""
    for rule in rules:
        broken = rule.breaks(block)
        if np.size(broken) == 1 and not np.any(broken):
            continue
        newly = ok & broken
        rows = int(np.count_nonzero(newly))
        if rows:
            refused = rows if weights is None else round(float(weights[newly].sum()))
            ledger[rule.name] = ledger.get(rule.name, 0) + refused
            ok ^= newly


def violations(
    columns: Columns, facts: Mapping[str, Any], user_rules: Sequence[Rule] = (), *, rules: Sequence[Rule] = RULES
) -> list[str]:
    """Every sentence a one-row table breaks, with the numbers that break it."""
    return _broken(columns, facts, (*rules, *user_rules))


def advice(columns: Columns, facts: Mapping[str, Any]) -> list[str]:
    """What is legal but unwise in a one-row table."""
    return _broken(columns, facts, ADVICE)


def rules_markdown(rules: Sequence[Rule] = RULES) -> str:
    """The table of rules as in the documentation."""
    lines = ["| rule | what must hold | refused when |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {rule.name} | {rule.sentence} | `{rule.condition}` |" for rule in rules)])


def _broken(columns: Columns, facts: Mapping[str, Any], rules: Iterable[Rule]) -> list[str]:
    table = names(columns, facts)
    return [rule.broken_by(table) for rule in rules if rule.needs <= table.known and np.any(rule.breaks(table))]
