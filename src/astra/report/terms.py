"""The words for each term of a step and each kind of memory, and what makes a term smaller."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Group = Literal["compute", "communication", "idle", "other"]
_SYNONYMS: Final = {
    "pipeline bubble": "bubble",
    "pipeline bubble and p2p": "bubble",
    "p2p": "pp",
    "data parallel": "dp",
    "tensor parallel": "tp",
    "context parallel": "cp",
    "expert parallel": "ep",
}
# The operators whose provenance a compute term of the step inherits.
OPERATORS: Final = ("gemm", "attention", "streaming")
MEMORY_LABELS: Final[dict[str, str]] = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer": "optim.",
    "activations": "activ.",
    "buffers": "buffers",
}


class TermWords(NamedTuple):
    """How a step-time term is named, what it is, and what a user can do about it."""

    label: str
    group: Group
    advice: tuple[str, ...] = ()


_WORDS: Final[dict[str, TermWords]] = {
    "compute": TermWords("compute", "compute"),
    "forward": TermWords("forward compute", "compute"),
    "backward": TermWords("backward compute", "compute"),
    "recompute": TermWords("recomputed forward", "compute", ("GPUs with more memory", "a smaller micro-batch")),
    "embedding": TermWords("embedding", "compute"),
    "head": TermWords("output head and loss", "compute"),
    "gemm": TermWords("matrix products", "compute"),
    "attention": TermWords("attention", "compute"),
    "streaming": TermWords("memory-bound kernels", "compute"),
    "host": TermWords("host work", "idle"),
    "stragglers": TermWords("slowest node", "idle"),
    "launch": TermWords("kernel launch", "idle", ("a smaller tp", "a larger micro-batch", "CUDA graphs")),
    "slowdown": TermWords("compute slowed by overlap", "communication", ("less communication beside compute",)),
    "bubble": TermWords("pipeline bubble", "idle", ("a larger batch", "more virtual stages (vp)", "fewer stages (pp)")),
    "imbalance": TermWords("unequal stages", "idle", ("layers that divide evenly over the stages",)),
    "tp": TermWords("tensor-parallel comm.", "communication", ("a smaller tp", "overlap=tp where the runtime has it")),
    "cp": TermWords("context-parallel comm.", "communication", ("a smaller cp",)),
    "ep": TermWords("expert all-to-all", "communication", ("a smaller ep", "an ep that stays inside a node")),
    "pp": TermWords("pipeline transfers", "communication", ("fewer stages (pp)", "overlap=p2p with vp")),
    "dp": TermWords("data-parallel comm.", "communication", ("a larger batch", "overlap=grad,param", "faster links")),
    "local": TermWords("meeting after local steps", "communication", ("more local steps", "a wider line")),
    "optimizer": TermWords("optimizer step", "other", ("a distributed optimizer (zero1) over more ranks",)),
    "offload": TermWords("optimizer offload", "communication", ("keeping the optimizer on the GPU if it fits",)),
    "other": TermWords("everything else", "other"),
}  # fmt: skip


def words(term: str) -> TermWords:
    """The words of a term; a term nobody described is shown under its own name."""
    key = canonical(term)
    return _WORDS.get(key) or TermWords(key.replace("_", " "), "other")


def canonical(term: str) -> str:
    """One key for the spellings of a term: ``tp communication`` and ``tp`` are the same."""
    key = term.removesuffix("_s").removeprefix("exposed_").removesuffix(" communication")
    return _SYNONYMS.get(key, key)
