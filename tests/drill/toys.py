"""The texts of the drill: one toy of each extension."""

from __future__ import annotations

GPU = """
name = "Toy9000"
vendor = "NVIDIA"
arch = "Hopper"
memory_bytes = 64e9
memory_bytes_per_s = 3e12
sms = 100
power_w = 500
host_bytes_per_s = 60e9
relative = "H100-SXM5-80GB"
aliases = ["T9"]
source = "a drill"
date = "2026-01-01"

[flops_per_s]
bf16 = 800e12
fp16 = 800e12
"""
NODE = """
name = "toybox"
provider = "on-prem"
gpu = "Toy9000"
gpus = 4
default_for = ["Toy9000"]
source = "a drill"
date = "2026-01-01"

[[links]]
reach = 4
kind = "nvswitch"
bytes_per_s = 300e9
latency_s = 5e-6
source = "a drill"

[[links]]
reach = "any"
kind = "infiniband"
bytes_per_s = 25e9
latency_s = 2e-5
source = "a drill"
"""
MODEL = """
layers = 12
hidden = 1024
ffn = 4096
heads = 16
kv_heads = 4
head_dim = 64
vocab = 32000
max_seq = 4096
source = "a drill"
date = "2026-01-01"
"""
SCHEDULE = '''
"""All forwards, then all backwards, as GPipe, under another name."""

from dataclasses import replace

from astra.schedule import gpipe

SCHEDULE = replace(gpipe.SCHEDULE, name="toy")
'''
AXIS_SENDS = '''def toy_sends(model, kind, shard):
    """Every layer tells the ranks of its context-parallel group something in forward."""
    return [Send("all_gather", 2.0 * shard.tokens * model.hidden, shard.cp, shard.tp, 1.0, 0.0)]


'''
AXIS = '    Axis(name="toy", title="a drill", degree="cp", layer_sends=toy_sends),\n'
EXPORTER = '''
"""A text that says how to start a plan."""

from astra.export.base import Exporter

TOY = Exporter(
    name="toy",
    title="a drill's launch text",
    verified="nothing",
    runtime="megatron",
    limits=(),
    made=lambda launch: {"launch.txt": f"train {launch.model.name} on {launch.gpus} GPUs"},
    notes=lambda _: "",
)
'''
BLOCK = '''
"""One more square product after each feed-forward, with a kernel of its own."""

import numpy as np

from astra.layers.block import Block
from astra.layers.block import column_then_row
from astra.layers.operators import BF16, Gemm, Kept, Layer, Stream
from astra.layers.block import matrix
from astra.spec.runtime import Kernel


def operators(model, kind, shard):
    hidden = np.full_like(shard.tokens, model.hidden)
    nbytes = BF16 * shard.tokens * model.hidden
    kept = Kept(whole=nbytes, selective=nbytes, checkpoint=0 * nbytes, working=nbytes)
    return Layer((Gemm("toy", shard.tokens, hidden / shard.tp, hidden),), (), (Stream("toy", nbytes / BF16),), kept)


BLOCK = Block(
    name="toy",
    has=lambda model, place: model.ffn == 4160,
    tensors=lambda model: [matrix("toy", model.hidden, model.hidden)],
    operators=operators,
    sends={"tp": column_then_row},
    kernels={"toy": Kernel(forward_bytes=4, backward_bytes=4)},
)
'''
OBJECTIVE = '    Objective("toy", ("usd", "time_s"), "least", "dollars", "the least money, by a drill"),\n'
EFFECT = """
def toy_s(runtime: Runtime) -> float:
    \"\"\"Time the drill takes of each step.\"\"\"
    return runtime.amount("toy_s")


""".lstrip()
