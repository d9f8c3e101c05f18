"""The requests of the gate, as command lines: flags stay where the Python names may move.

Names are spelled out here, not read from a catalog, so that both sides are asked the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product
from typing import NamedTuple


class Request(NamedTuple):
    """One command, under a name that stays."""

    name: str
    argv: list[str]


# Every model of the catalog, with GPUs enough for most; some do not fit, which is an answer too.
SMALL = (
    "gpt-2 gpt-2-medium gpt-2-large gpt-2-xl qwen2.5-0.5b qwen2.5-1.5b llama-3.2-1b llama-3.2-3b megatron-1.7b "
    "megatron-3.6b t5-3b vit-h-14 vit-l-16"
)
MIDDLE = (
    "llama-2-7b llama-2-13b llama-3-8b llama-3.1-8b mistral-7b-v0.1 mistral-7b-v0.3 mistral-nemo-12b mpt-7b mpt-30b "
    "phi-4 qwen2.5-7b qwen2.5-14b qwen2.5-32b qwen3-8b qwen3-14b qwen3-32b gemma-2-9b gemma-2-27b gemma-3-27b "
    "internlm-7b megatron-7.5b megatron-18.4b megatron-22b yi-34b flan-t5-xxl t5-11b gpt-oss-20b deepseek-v2-lite "
    "qwen3-30b-a3b falcon-40b megatron-39.1b mixtral-8x7b"
)
LARGE = (
    "llama-2-70b llama-3-70b llama-3.1-70b llama-3.3-70b qwen2.5-72b megatron-76.1b mixtral-8x22b falcon-180b glm-130b "
    "gpt-3-175b opt-175b bloom-176b megatron-145.6b megatron-175b deepseek-v2 gpt-oss-120b glm-4.5-air llama-4-scout "
    "qwen3-235b-a22b"
)
HUGE = "llama-3.1-405b megatron-310.1b megatron-530b megatron-1t grok-1 glm-4.5 llama-4-maverick deepseek-v3 kimi-k2"
GPUS = "H100 A100-80 H200 B200 A100-40 MI300X H20 GH200 L40S GB200 A800 H800 B300 MI355X RTX4090 GB300"
RUNTIMES = (
    "megatron megatron-apex megatron-bridge megatron-local nemo nanotron torchtitan deepspeed fsdp-eager internevo"
)
KINDS = ("llama-3-8b", "llama-2-70b", "mixtral-8x7b", "deepseek-v2-lite", "t5-3b", "gemma-2-9b", "vit-h-14")


def requests() -> list[Request]:
    """All of them, in the order in which they are asked."""
    found = [
        Request(f"{group}: {' '.join(words)}", [*words, *([] if "--json" in words else ["--json"])])
        for group, commands in GROUPS.items()
        for words in map(_words, commands())
    ]
    assert len({request.name for request in found}) == len(found), "two requests have one name"
    return found


def _words(command: str) -> list[str]:
    """Words at spaces; a bar stands for a space inside a word."""
    return [word.replace("|", " ") for word in command.split()]


def _every_model() -> Iterator[str]:
    sizes = ((SMALL, (8, 16)), (MIDDLE, (32, 64)), (LARGE, (256, 512)), (HUGE, (1024, 2048)))
    gpu = cycle(GPUS.split())
    for models, counts in sizes:
        for model, count in zip(models.split(), cycle(counts), strict=False):
            yield f"plan {model} --gpus {count}x{next(gpu)} --top 3"


def _every_runtime() -> Iterator[str]:
    for runtime, model in product(RUNTIMES.split(), KINDS[:5]):
        yield f"plan {model} --gpus 64xH100 --batch 512 --runtime {runtime} --top 3"


def _tasks() -> Iterator[str]:
    for task, model in product(("finetune", "lora"), ("llama-3-8b", "llama-2-70b", "mixtral-8x7b", "gemma-2-9b")):
        yield f"plan {model} --gpus 16xH100 --batch 128 --task {task} --top 2"
    for runtime in ("torchtitan", "fsdp-eager", "deepspeed", "nemo"):
        yield f"plan llama-3-8b --gpus 8xA100-80 --batch 64 --task lora --lora-rank 64 --runtime {runtime} --top 2"
        yield f"plan qwen3-8b --gpus 8xA100-80 --batch 64 --task finetune --runtime {runtime} --top 2"


def _long_context() -> Iterator[str]:
    for model, seq in product(("llama-3.1-8b", "qwen3-30b-a3b"), (32768, 131072, 1048576)):
        yield f"plan {model} --gpus 64xH100 --batch 64 --seq {seq} --top 2"
    yield "plan gemma-3-27b --gpus 64xB200 --batch 64 --seq 131072 --top 2"
    yield "plan deepseek-v3 --gpus 1024xH800 --batch 960 --seq 32768 --top 2"
    yield "plan llama-4-scout --gpus 256xH200 --batch 128 --seq 65536 --top 2"


def _counts() -> Iterator[str]:
    for count in (1, 2, 3, 5, 6, 7, 8, 12, 24, 40, 56, 72, 96, 120, 1000, 1536, 16384):
        yield f"plan llama-2-7b --gpus {count}xH100 --batch 960 --top 2"
    for batch in (7, 36, 100, 1000):
        yield f"plan llama-2-13b --gpus 24xA100-80 --batch {batch} --top 2"
    for count in (36, 144):
        yield f"plan llama-2-70b --gpus {count}xGB200 --batch 1152 --top 2"
    yield "plan mixtral-8x7b --gpus 48xH100 --batch 384 --top 2"


def _number_formats() -> Iterator[str]:
    for precision, gpus in (("fp8", "64xH100"), ("fp8", "64xB200"), ("fp8", "64xA100-80"), ("fp16", "64xV100-32")):
        yield f"plan llama-2-13b --gpus {gpus} --batch 512 --precision {precision} --top 2"
    yield "plan deepseek-v3 --gpus 512xB200 --batch 1024 --precision fp8 --top 2"
    yield "plan gpt-2-xl --gpus 16xA100-40 --batch 256 --seq 1024 --precision tf32 --top 2"
    yield "plan gpt-2-xl --gpus 16xA100-40 --batch 256 --seq 1024 --optimizer sgd --top 2"
    yield "plan llama-2-7b --gpus 16xT4 --batch 256 --precision fp16 --top 2"


def _nodes() -> Iterator[str]:
    for node in ("aws-p5.48xlarge", "meta-roce-h100", "gcp-a3-highgpu-8g", "runpod-cluster-h100", "lambda-1cc-h100"):
        yield f"plan llama-3-70b --gpus 128xH100@{node} --batch 512 --top 2"
    yield "plan llama-3-8b --gpus 32xA100-80 --node aws-p4de.24xlarge --batch 256 --top 2"
    yield "plan llama-2-70b --gpus 64xMI250X --node olcf-frontier --batch 256 --top 2"
    yield "plan llama-2-7b --gpus 16xV100-32 --node dgx-2 --batch 256 --precision fp16 --top 2"


def _clusters() -> Iterator[str]:
    for cluster, model in product(("two-racks", "three-tiers", "east-west"), ("llama-2-13b", "llama-2-70b")):
        yield f"plan {model} --cluster {cluster}.toml --batch 384 --top 2"
    yield "plan mixtral-8x7b --cluster three-tiers.toml --batch 512 --tokens 100B --top 2"
    yield "plan config.json --cluster two-racks.toml --batch 384 --top 2"
    yield "plan tiny.toml --gpus 16xH100 --batch 256 --top 2"
    yield "estimate llama-2-13b --cluster two-racks.toml --batch 384 --strategy tp2|pp2|dp12|mbs1|sp|zero1"


def _pools() -> Iterator[str]:
    pairs = (
        "16xH100 --gpus 32xA100-80", "64xH100 --gpus 64xH20", "128xA100-40 --gpus 128xV100-16 --precision fp16",
        "32xB200 --gpus 32xH100 --precision fp8", "8xH100 --gpus 8xA100-80 --exact",
        "16xMI300X --gpus 16xH100", "24xH100 --gpus 40xA100-80",
    )  # fmt: skip
    for gpus, model in product(pairs, ("llama-2-7b", "gpt-2-xl")):
        yield f"plan {model} --gpus {gpus} --batch 512ktok --seq 2048 --top 3"
    yield "plan llama-2-70b --gpus 256xH100 --gpus 512xA100-80 --batch 1024 --tokens 1T"
    yield "plan llama-2-70b --gpus 64xH100+64xA100-80 --batch 512 --exact --top 2"
    yield "plan llama-2-70b --gpus 64xH100 --gpus 64xA100-80 --gpus 64xH20 --batch 768"
    yield "plan mixtral-8x7b --gpus 32xH100 --gpus 32xA100-80 --batch 512 --top 2"
    yield "plan llama-3-8b --gpus 16xH100 --gpus 16xA100-80 --batch 256 --fix recompute=full --max tp=4 --top 2"
    yield "plan llama-3-8b --gpus 16xH100 --gpus 16xA100-80 --batch 256 --rules site.rules --top 2"
    yield "plan llama-3-8b --gpus 16xH100 --gpus 16xA100-80 --batch 256 --rules stages.rules --top 2"
    yield "plan llama-3-8b --gpus 16xH100 --gpus 16xA100-80 --batch 256 --task lora --top 2"
    for runtime in ("megatron", "torchtitan", "nemo", "deepspeed"):
        yield f"plan llama-2-13b --gpus 16xH100 --gpus 32xA100-80 --batch 256 --runtime {runtime} --top 2"
    group = "zero1|overlap=grad,param,tp|[dp16|mbs1|m38:|H100-SXM5-80GB|tp1|pp1|layers=32|recompute=none]"
    other = "[dp16|mbs1|m26:|A100-SXM4-80GB|tp1|pp2|layers=16*2|recompute=none]"
    yield f"estimate llama-2-7b --gpus 16xH100 --gpus 32xA100-80 --strategy {group}|{other}"
    yield (
        "estimate llama-2-7b --gpus 16xH100 --gpus 32xA100-80 --strategy "
        "zero1|[dp8|mbs1|m128:|H100-SXM5-80GB|tp2|pp1|layers=20|recompute=none|+|A100-SXM4-80GB|tp2|pp2|layers=6,6]"
    )


def _rent() -> Iterator[str]:
    job = "rent llama-3-8b --tokens 300B --batch 1024 --seq 8192"
    yield f"{job} --gpus H100,A100-80 --max-gpus 256"
    yield f"{job} --gpus any --max-gpus 128 --mixes none"
    yield f"{job} --gpus H100,H200,B200 --max-gpus 256 --market spot --goodput expected"
    yield f"{job} --gpus H100 --max-gpus 512 --market reserved --known-nodes"
    yield f"{job} --gpus H100,H200 --max-gpus 256 --budget 60k --mixes none"
    yield f"{job} --gpus H100,H200 --max-gpus 256 --deadline 10d --mixes none"
    yield f"{job} --gpus H100 --max-gpus 64 --deadline 1h"
    yield f"{job} --gpus H100,A100-80 --max-gpus 128 --prices offers.csv --objective cheapest"
    yield f"{job} --gpus H100 --max-gpus 128 --idle 24h --storage 50@23 --egress 2@90"
    yield "rent llama-3-70b --tokens 1T --batch 1024 --seq 8192 --gpus H100,H200 --max-gpus 512 --mixes none"
    yield "rent mixtral-8x7b --tokens 200B --batch 1024 --seq 4096 --gpus H100,A100-80 --max-gpus 128 --mixes none"
    yield "rent qwen3-8b --tokens 1B --batch 64 --task lora --gpus L40S,RTX4090,A100-40 --max-gpus 32"


def _money() -> Iterator[str]:
    job = "plan llama-3-8b --gpus 128xH100 --batch 1024 --tokens 500B --top 3"
    for goal in ("fastest", "cheapest", "dollars-per-token", "pareto"):
        yield f"{job} --objective {goal}"
    for more in (
        "--budget 90k", "--budget 10", "--deadline 20d", "--deadline 1m", "--budget 90k --deadline 30d",
        "--usd-per-gpu-h 2.5", "--market spot --goodput expected", "--market reserved --providers AWS,Lambda",
        "--prices offers.csv", "--usd-per-kwh 0.12 --pue 1.3 --usd-per-gpu 30000 --lifetime-years 5",
        "--idle 36h --storage 50@23 --egress 2@90", "--mtbf-gpu-h 20000 --restart-min 30 --write-mb-s 200",
        "--baseline tp8|pp2|dp8|mbs1|sp|zero1|recompute=full", "--goodput off",
    ):  # fmt: skip
        yield f"{job} {more}"
    yield "plan llama-2-70b --gpus 64xH100 --baseline train.sh --tokens 10B --top 2"


def _estimates() -> Iterator[str]:
    dense = (
        "tp8|pp4|dp2|mbs1|sp|zero1|recompute=selective", "tp8|pp4|vp5|dp2|mbs1|sp|zero1|recompute=none",
        "tp4|pp8|dp2|mbs2|zero0|recompute=full", "tp8|pp1|dp8|mbs1|sp|zero3|recompute=full",
        "tp2|cp4|pp8|dp1|mbs1|sp|recompute=selective", "tp8|pp4|dp2|mbs1|flash=off|recompute=selective",
        "tp8|pp4|dp2|mbs1|sp|zero1|overlap=grad,param", "tp8|pp8|mbs4|sp|zero1|offload=optimizer",
        "tp3|pp4|dp5|mbs1", "tp64|mbs1|sp", "tp8|pp4|vp3|dp2|mbs1|sp|zero1", "tp1|pp1|dp64|mbs1|zero3",
    )  # fmt: skip
    for strategy in dense:
        yield f"estimate llama-2-70b --gpus 64xH100 --batch 1024 --seq 4096 --strategy {strategy}"
    for runtime in RUNTIMES.split():
        job = f"estimate llama-2-13b --gpus 32xA100-80 --batch 512 --runtime {runtime}"
        yield f"{job} --strategy tp4|pp2|dp4|mbs1|zero1"
    experts = (
        "tp2|ep8|pp2|dp16|mbs1|sp|zero1",
        "tp1|ep8|pp4|dp16|mbs2|zero1|recompute=full",
        "tp4|ep4|etp2|pp1|dp16|sp",
    )
    for model, strategy in product(("mixtral-8x7b", "deepseek-v2-lite"), experts):
        yield f"estimate {model} --gpus 64xH100 --batch 512 --strategy {strategy}"
    for model in ("t5-11b", "vit-l-16", "gemma-2-27b", "gpt-oss-20b"):
        yield f"estimate {model} --gpus 16xH100 --batch 256 --strategy tp2|pp1|dp8|mbs1|sp|zero1"
    job = "estimate llama-2-70b --gpus 64xH100 --batch 512 --runtime torchtitan"
    yield f"{job} --strategy tp8|pp4|dp2|mbs1|sp|zero3|schedule=zb"
    yield "estimate llama-2-70b --gpus 8xH100 --batch 64 --task lora --strategy tp8|pp1|dp1|mbs1|sp"
    yield "estimate --from train.sh --gpus 64xH100"
    yield "estimate llama-2-70b --gpus 64xH100 --strict --strategy tp8|pp4|dp2|mbs1|sp|zero1"


def _limits() -> Iterator[str]:
    job = "plan llama-2-70b --gpus 64xH100 --batch 1024 --top 3"
    for more in (
        "--fix tp=8", "--fix tp=2,4 --fix recompute=full", "--forbid cp --forbid recompute=none", "--max pp=4",
        "--min mbs=2", "--fix zero=3", "--fix flash=off", "--fix overlap=none", "--fix schedule=1f1b --max vp=1",
        "--forbid zero=0 --forbid offload", "--min pp=16 --fix tp=1", "--fix tp=5", "--headroom 0.3", "--headroom 0",
        "--rules site.rules", "--rules stages.rules", "--rules wrong.rules", "--strict", "--top 20",
    ):  # fmt: skip
        yield f"{job} {more}"
    yield "plan mixtral-8x7b --gpus 64xH100 --batch 512 --rules site.rules --fix ep=8 --top 2"


def _exports() -> Iterator[str]:
    for target in ("megatron", "megatron-bridge", "slurm", "skypilot", "kubernetes"):
        yield f"plan llama-3-8b --gpus 32xH100 --batch 256 --export {target} --export-out out"
    for target in ("torchtitan", "deepspeed", "accelerate"):
        yield f"plan llama-3-8b --gpus 32xH100 --batch 256 --export {target} --export-out out --nearest"
        yield f"plan llama-3-8b --gpus 32xH100 --batch 256 --export {target} --export-out out"
    yield "plan deepseek-v2-lite --gpus 32xH100 --batch 256 --export megatron --export-out out"
    yield "plan llama-3-8b --gpus 32xH100 --batch 256 --runtime torchtitan --export torchtitan --export-out out"
    yield "plan llama-2-7b --gpus 16xH100 --gpus 32xA100-80 --batch 256 --export flagscale --export-out out"
    yield "plan llama-2-7b --gpus 16xH100 --gpus 32xA100-80 --batch 256 --export megatron --export-out out"


def _wrong() -> Iterator[str]:
    yield from (
        "plan nosuch-model --gpus 8xH100", "plan llama-2-7b --gpus 8xH1000", "plan llama-2-7b --gpus 0xH100",
        "plan llama-2-7b --gpus -8xH100", "plan llama-2-7b", "plan llama-2-7b --gpus 8xH100 --batch 0",
        "plan llama-2-7b --gpus 8xH100 --seq 1000001", "plan llama-2-7b --gpus 8xH100 --fix nosuch=3",
        "plan llama-2-7b --gpus 8xH100 --budget 10", "plan llama-2-7b --gpus 8xH100 --runtime nosuch",
        "plan llama-2-7b --cluster unknown-key.toml", "plan llama-2-7b --cluster nosuch.toml",
        "plan llama-3.1-405b --gpus 8xH100", "plan llama-2-7b --gpus 8xT4", "plan llama-2-7b --gpus 8xH100 --nosuch",
        "plan llama-2-7b --gpus 8xH100 --precision fp4", "estimate llama-2-7b --gpus 8xH100 --strategy tp8|nosuch",
        "estimate llama-2-7b --gpus 8xH100", "estimate llama-2-7b --gpus 8xH100 --strategy tp16",
        "rent llama-2-7b --gpus H100", "rent llama-2-7b --tokens 1B --gpus nosuch",
        "plan llama-2-7b --gpus 8xH100 --export nosuch", "import config.json", "nosuch-verb",
    )  # fmt: skip


def _facts() -> Iterator[str]:
    for model in ("llama-2-70b", "mixtral-8x7b", "deepseek-v3", "t5-11b", "vit-h-14", "config.json", "tiny.toml"):
        yield f"model {model}"
    for kind in ("gpus", "nodes", "models", "runtimes"):
        yield f"catalog {kind}"
    yield "import train.sh"
    yield "rehearse nosuch-plan.json"


def _validate() -> Iterator[str]:
    yield "validate"


GROUPS = {
    "every model": _every_model,
    "every runtime": _every_runtime,
    "tasks": _tasks,
    "long context": _long_context,
    "counts": _counts,
    "number formats": _number_formats,
    "nodes": _nodes,
    "clusters": _clusters,
    "pools": _pools,
    "rent": _rent,
    "money": _money,
    "estimates": _estimates,
    "limits": _limits,
    "exports": _exports,
    "wrong": _wrong,
    "facts": _facts,
    "validate": _validate,
}
