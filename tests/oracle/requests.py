"""Small random requests: a few GPUs, a few layers, every kind of model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astra.catalog import runtimes
from astra.rules.restrictions import Restrictions, parse_restrictions
from astra.spec.blocks import MEANINGS
from astra.spec.cluster import Device, Link, NodeType, Pool
from astra.spec.job import Job
from astra.spec.model import MLA, Encoder, ModelSpec, MoE, Vision
from astra.spec.runtime import Runtime, Usual, changed
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS, Workload

RULES = (
    'recompute == "full" and zero == 3',
    'recompute == "none" and tp > 1',
    'recompute == "none" and zero < 2',
    "tp > gpus_per_node",
    "zero >= 2 and pp > 1",
    "overlap_tp and tp > 2",
    "not overlap_grad and dp > 1",
    "flash and cp == 1 and tp == 2",
    "mbs * seq > 512",
    'offload == "optimizer" and microbatches < 4',
)
LIMITS: tuple[dict[str, tuple[str, ...]], ...] = (
    {},
    {},
    {},
    {"fix": ("tp=1,2",)},
    {"forbid": ("cp",)},
    {"maximum": ("pp=2",)},
    {"minimum": ("pp=2",)},
    {"fix": ("recompute=full",)},
    {"forbid": ("recompute=none",)},
    {"fix": ("recompute=full", "method=uniform"), "minimum": ("recompute_layers=2",)},
    {"forbid": ("zero=0", "offload")},
    {"fix": ("zero=3",)},
    {"fix": ("flash=off",)},
    {"fix": ("overlap=none",)},
    {"fix": ("overlap=grad,tp", "sp=on")},
    {"fix": ("mbs=1", "vp=1")},
    {"fix": ("offload_layers=1",)},
)


class Request(NamedTuple):
    """What ``search`` is asked."""

    job: Job
    limits: Restrictions
    rules: str  # a rules file, or nothing
    every_switch: bool  # small enough to try every switch


def device(rng: random.Random | None = None, **changes: Any) -> Device:
    """A GPU slow enough for tiny models to keep it busy, or a fast one that waits for its host."""
    speed = rng.choice((1e11, 1e12, 1e14)) if rng else 1e12
    fields: dict[str, Any] = {
        "name": "toy",
        "vendor": "NVIDIA",
        "arch": "hopper",
        "flops_per_s": {"bf16": speed, "fp16": speed, "fp8": 2 * speed, "tf32": speed / 2},
        "memory_bytes": 80e9,
        "memory_bytes_per_s": speed / 50,
        "sms": 100,
        "power_w": 700.0,
        "host_bytes_per_s": 5e10,
        "source": "made up",
        "date": "2026-01-01",
    }
    return Device(**{**fields, **changes})


def pool(gpus: int, node_gpus: int = 4, gpu: Device | None = None, scale: float = 1.0) -> Pool:
    """GPUs in servers of ``node_gpus``; ``scale`` multiplies all links."""
    links = [
        Link(reach=10_000_000, kind="infiniband", bytes_per_s=5e10 * scale, latency_s=5e-6, source="made up"),
    ]
    if node_gpus > 1:
        links.insert(
            0, Link(reach=node_gpus, kind="nvswitch", bytes_per_s=4.5e11 * scale, latency_s=2e-6, source="made up")
        )
    node = NodeType(
        name="box", provider="toy", gpu="toy", gpus=node_gpus, links=tuple(links), source="made up", date="2026-01-01"
    )
    return Pool(device=gpu or device(), node=node, gpus=gpus)


def model(kind: str = "dense", **changes: Any) -> ModelSpec:
    """A tiny model of a kind."""
    fields: dict[str, Any] = {
        "name": f"tiny-{kind}",
        "layers": 4,
        "hidden": 256,
        "ffn": 512,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 64,
        "vocab": 1000,
        "max_seq": 4096,
    }
    kinds: dict[str, dict[str, Any]] = {
        "dense": {},
        "gpt": {"gated_mlp": False, "norm": "layernorm", "learned_positions": 512, "qkv_bias": True, "mlp_bias": True},
        "gqa": {"kv_heads": 2, "qk_norm": "per_head"},
        "tied": {"tied_embeddings": True, "vocab": 8000},
        "window": {"window": 64, "full_attention_every": 2},
        "chunked": {"window": 32, "full_attention_every": 2, "chunked": True},
        "mla": {
            "mla": MLA(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32),
            "moe": MoE(experts=4, topk=2, ffn=128, shared_ffn=256, first_dense=1),
        },
        "moe": {"moe": MoE(experts=4, topk=2, ffn=128, expert_bias=True)},
        "moe_every": {"moe": MoE(experts=8, topk=1, ffn=256, every=2), "kv_heads": 2, "norms_per_layer": 4},
        "encdec": {"encoder": Encoder(layers=2), "relative_buckets": 32, "gated_mlp": False},
        "vision": {"vocab": 0, "vision": Vision(image=64, patch=8), "causal": False, "gated_mlp": False},
    }
    return ModelSpec(**{**fields, **kinds[kind], **changes})


KINDS = ("dense", "dense", "gpt", "gqa", "tied", "window", "chunked", "mla", "moe", "moe_every", "encdec", "vision")


# What nanotron does and Megatron does not, in sizes that tell on tiny models.
UNLIKE_MEGATRON: dict[str, Any] = {
    "fresh_gradient_bytes": 2.0,
    "bucket_bytes": 1e5,
    "zero_reduces_whole": True,
    "gather_host_s": 1e-6,
    "launches_ahead": True,
    "pipelined_collective_s": 3e-6,
    "keeps_activation": True,
    "queued_activations": 2.5,
}

# Every kind of tiny model and workload; the degrees, schedules and switches stay the frameworks' own.
ANY_MODEL: dict[str, Any] = {
    "blocks": tuple(MEANINGS), "recipes": {}, "precision": PRECISIONS, "dispatch_fp8": True, "optimizers": OPTIMIZERS,
    "tasks": TASKS,
}  # fmt: skip


def runtime(rng: random.Random | None = None) -> Runtime:
    """Megatron's profile, at times with a free host, another framework's rules, another's habits or a limited clock."""
    found = runtimes.runtime("megatron")
    if rng is None:
        return found
    found = msgspec.structs.replace(found, can=msgspec.structs.replace(found.can, **ANY_MODEL))
    kind = rng.random()
    if kind < 0.2:
        able = msgspec.structs.replace(found.can, schedules=("1f1b", "interleaved", "gpipe", "zb", "zbv"))
        found = msgspec.structs.replace(found, name="torchtitan", framework="torchtitan", can=able)
    elif kind < 0.35:  # few axes, weights prefetched at some ZeRO stages alone, layers recomputed one by one
        able = runtimes.runtime("deepspeed").can if kind < 0.3 else runtimes.runtime("fsdp-eager").can
        few = {"degrees": (*able.degrees, "pp", "vp"), "schedules": ("1f1b", "interleaved")}
        able = msgspec.structs.replace(able, **few, **ANY_MODEL)
        found = msgspec.structs.replace(found, name="zero", framework="deepspeed", can=able)
    if rng.random() < 0.3:
        found = changed(found, **UNLIKE_MEGATRON)
    if rng.random() < 0.3:
        found = changed(found, clock=1.2, clock_follows_power=True, collective_launches=0.5)
    apart = random.Random(f"{rng.random()}")
    found = changed(found, gathers_fp8=apart.random() < 0.5, experts_together=apart.random() < 0.3)
    words = {name: apart.choice(getattr(found.can, name)) for name in ("dispatch", "params", "graphs", "grads")}
    words["dispatch_fp8"] = words["dispatch"] != "alltoall" and apart.random() < 0.3
    words["overlap_ep"] = "ep" in found.can.overlap and apart.random() < 0.5
    found = msgspec.structs.replace(found, usual=Usual(words=words))
    return changed(found, launch_s=rng.choice((0.0, 5e-6)), backward_s=4e-6, step_s=1e-4)


def random_request(seed: int, relative: str = "") -> Request:
    """Request number ``seed``, on a GPU that borrows the measurements of a relative."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    experts = kind.startswith(("moe", "mla"))
    gpus = rng.choice((1, 2, 3, 4, 4, 6, 8) if experts else (1, 2, 4, 4, 6, 8, 12, 16))
    node_gpus = rng.choice([n for n in (1, 2, 4, 8) if gpus % n == 0 or gpus < n])
    layers = rng.choice((2, 3, 4, 5, 6, 8) if gpus <= 8 else (2, 4, 5))
    spec = model(kind, layers=layers, hidden=rng.choice((128, 256)), ffn=rng.choice((256, 512)))
    seq = spec.vision.tokens if spec.vision else rng.choice((64, 128, 192, 512))
    work = Workload(
        global_batch=rng.choice((1, 2, 3, 4, 6, 8, 16)),
        seq=seq,
        precision=rng.choice(("bf16", "bf16", "fp8", "fp16", "tf32")),
        optimizer=rng.choice(("adam", "adam", "sgd")),
        task=rng.choice(("pretrain", "pretrain", "finetune", "lora")),
        lora_rank=8,
        lora_targets=rng.choice(("all", "attention", "qkv")),
        imbalance=rng.choice((1.0, 1.0, 1.3)),
        packed=0 if spec.vision else rng.choice((0, 0, seq // 4)),
    )
    job = Job(
        model=spec,
        pool=pool(gpus, node_gpus, device(rng, relative=relative)),
        workload=work,
        runtime=runtime(rng),
        headroom=0.1,
    )
    limits = rng.choice(LIMITS)
    if "offload_layers=1" in limits.get("fix", ()) and "activations" not in job.runtime.can.offload:
        limits = {}
    rules = "\n".join(rng.sample(RULES, rng.randint(1, 2))) if rng.random() < 0.4 else ""
    return Request(job, parse_restrictions(**limits), rules, every_switch=gpus <= 4 and layers <= 4 and not experts)


def with_memory(job: Job, memory_bytes: float) -> Job:
    """The same job on GPUs of another size."""
    replace = msgspec.structs.replace
    return replace(job, pool=replace(job.pool, device=replace(job.pool.device, memory_bytes=memory_bytes)))


def rules_file(text: str, folder: Path) -> Path:
    """A rules file."""
    path = folder / "rules.txt"
    path.write_text(text + "\n", encoding="utf-8")
    return path
