"""What tables of runs leave out and recipes choose: filled by kind of model, GPU generation, precision and release.

Dispatcher, graphs and widths are what the runtime's own recipes use on the GPU (``[usual]`` of its file), and what they
used before, counted over all recipes for experts of Megatron-Bridge 0.2 to 0.6, whatever the model. Where NVLink ends
with the node, most took the plain all-to-all until the NeMo container 26.02.01; those of them with an interleaved
pipeline hide it (24 of 33). Recipes for experts in mxfp8, or in nvfp4 on Blackwell Ultra and without biases, capture
whole iterations and hide expert exchanges since 26.06, and of those in mxfp8 all but those for latent attention on
B200 and GB200 run attention in fp8; before, in other precisions, and in models with state spaces or delta nets, parts
at most. Recompute that is not stated is the least with which the run fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from astra.search.detail import estimate
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace
from astra.spec.strategy_fields import RUNTIME_WORDS

_WHOLE_GRAPHS_SINCE: Final = (26, 6, 0)
_SENT_ONCE_SINCE: Final = (26, 2, 1)  # between the GPUs of a node; in racks always
_HIDDEN_SINCE: Final = (25, 9, 0)  # the first release that can
_FINE: Final = ("mxfp8", "nvfp4")  # precisions whose recipes capture whole iterations
_OFFLOADED: Final = 5  # layers more, from one trial to the next


def recipe_words(job: Job, strategy: Strategy, stated: str, version: str, filled: list[str]) -> Strategy:
    """The strategy with the words that its framework's recipes choose for such a job; ``stated`` is its precision."""
    usual, release = job.usual(strategy), _release(version)
    words: dict[str, Any] = {name: usual[name] for name in RUNTIME_WORDS}
    overlap, experts = strategy.overlap, job.model.moe is not None and strategy.ep > 1
    if experts and release < _SENT_ONCE_SINCE and not _in_racks(job):
        words["dispatch"] = "alltoall"
        if strategy.vp > 1 and release >= _HIDDEN_SINCE and "ep" in job.runtime.can.overlap:
            overlap = (*overlap, "ep")
    if words["graphs"] == "full" and experts and stated in _FINE and release >= _WHOLE_GRAPHS_SINCE:
        overlap = (*overlap, "ep")
        words["attention"] = job.recipe()["attention"]
    elif words["graphs"] == "full":
        words["graphs"] = "partial"
    plain = Strategy()
    said = [f"{name}={value}" for name, value in words.items() if value != getattr(plain, name)]
    if said:
        since = f" of release {version}" if experts else ""
        filled.append(f"as in {job.runtime.name}'s recipes{since}: {', '.join(map(str, said))}")
    return replace(strategy, **words, overlap=tuple(dict.fromkeys(overlap)))


def _in_racks(job: Job) -> bool:
    """Whether NVLink joins more than a node."""
    node = job.pool.node
    return bool(node.links) and node.links[0].reach > node.gpus


def _release(version: str) -> tuple[int, int, int]:
    """Year, month and patch of a NeMo container; the newest where a table does not say."""
    found = re.search(r"(\d\d)\.(\d\d)(?:\.(\d\d))?", version)
    return (int(found.group(1)), int(found.group(2)), int(found.group(3) or 0)) if found else (99, 0, 0)


def least_recompute(world: World, strategy: Strategy, filled: list[str]) -> Strategy:
    """The strategy with the least recompute, or offload to a near host, with which it fits."""
    if world.several:
        filled.append("recompute not stated: taken as none")
        return strategy
    # What a micro-batch holds behind which expert exchanges hide is not known well enough to decide on recompute.
    tried = [strategy, *_recomputes(world.job, strategy)]
    shown = [replace(one, overlap=tuple(name for name in one.overlap if name != "ep")) for one in tried]
    fitting = [one for one, found in zip(tried, estimate(world.job, shown), strict=True) if found.fits]
    chosen = fitting[0] if fitting else strategy
    more = _in_words(chosen) if chosen is not strategy else "none"
    filled.append(
        f"recompute not stated: {more}, the least that fits" if fitting else "recompute not stated: none fits"
    )
    return chosen


def _recomputes(job: Job, strategy: Strategy) -> Iterator[Strategy]:
    """From the cheapest on: parts of a layer, activations in host memory, then whole layers."""
    can, model = job.runtime.can, job.model
    # What a latent's projections write takes most and is made again by one product; recipes begin with it.
    wanted = ["mla_up_proj"] if model.mla else []
    wanted += ["moe_act", "layernorm"] if model.moe else []
    wanted += ["mlp", "shared_experts"] if model.moe and model.mla else []
    modules: list[str] = []
    for name in wanted:
        if name in can.modules:
            modules.append(name)
            yield replace(strategy, recompute="selective", modules=tuple(modules))
    depth = -(-model.layers // strategy.pp)
    if "activations" in can.offload and strategy.zero == 3 and job.pool.device.near_host:
        for layers in range(_OFFLOADED, depth + 1, _OFFLOADED):
            yield replace(strategy, offload_layers=layers)
    if "block" in can.methods:
        chunk = -(-model.layers // (strategy.pp * strategy.vp))
        for layers in range(1, chunk + 1):
            yield replace(strategy, recompute="full", method="block", recompute_layers=layers)
    elif "full" in can.recompute:
        yield replace(strategy, recompute="full")


def _in_words(strategy: Strategy) -> str:
    if strategy.offload_layers:
        return f"activations of {strategy.offload_layers} layers in host memory"
    if strategy.recompute == "selective":
        return f"selective of {', '.join(strategy.modules)}"
    return f"full of {strategy.recompute_layers} layers" if strategy.method == "block" else "full"
