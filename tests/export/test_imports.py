"""What is exported reads back as the same strategy, and what people really write is understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from astra.catalog.models import model as find_model
from astra.errors import InputError
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from astra.export.bash_values import whole_sum
from astra.export.import_megatron import layout_layers
from astra.export.import_megatron_model import pattern_shape
from astra.export.megatron import layout
from astra.export.megatron_model import expert_pattern
from astra.layers.kinds import modules_of
from astra.layers.weights import count
from astra.search.detail import legality
from astra.spec.job import Job
from astra.spec.model import MoE
from astra.spec.strategy import Strategy
from tests.export.launching import import_text, job_of, launched
from tests.tiers import drawn

FILES = {"megatron": "launch.sh", "torchtitan": "plan.py", "deepspeed": "ds_config.json"}
MODELS = (
    "llama-3.1-8b", "mixtral-8x7b", "deepseek-v2", "deepseek-v3", "glm-4.5", "qwen3-32b", "gpt-oss-20b", "gpt-3-175b",
    "qwen2.5-7b",
)  # fmt: skip
degrees = st.sampled_from([1, 2, 4, 8])


@st.composite
def launches(draw: Any, models: tuple[str, ...] = MODELS) -> Launch:
    """Legal strategies for a few models; every field is drawn."""
    job = job_of(
        draw(st.sampled_from(models)), "64xH100", seq=2048, batch=768, precision=draw(st.sampled_from(["bf16", "fp16"]))
    )
    tp, pp, cp = draw(degrees), draw(degrees), draw(st.sampled_from([1, 1, 2]))
    vp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    assume(tp * pp * cp <= 64)
    full = draw(st.booleans())
    moe = job.model.moe is not None
    overlap = draw(st.sets(st.sampled_from(["grad", "param", "tp"]))) | (
        {"p2p"} if vp > 1 and draw(st.booleans()) else set()
    )
    recompute: Any = "full" if full else draw(st.sampled_from(["none", "selective"]))
    method: Any = draw(st.sampled_from(["uniform", "block"])) if full else "uniform"
    offload: Any = draw(st.sampled_from(["none", "none", "optimizer"]))
    strategy = Strategy(
        tp=tp, pp=pp, vp=vp, cp=cp, dp=64 // (tp * pp * cp), mbs=draw(st.sampled_from([1, 2, 3])),
        ep=draw(degrees) if moe else 1, etp=draw(st.sampled_from([1, 1, 2])) if moe else 1,
        sp=tp > 1 and (moe or draw(st.booleans())), zero=draw(st.integers(0, 3)), recompute=recompute, method=method,
        recompute_layers=draw(st.integers(1, 2)) if full else 1, offload=offload, overlap=tuple(overlap),
        flash=cp > 1 or draw(st.booleans()), schedule="interleaved" if vp > 1 else "1f1b", **words(draw, job),
    )  # fmt: skip
    assume(not legality(job, strategy))
    launch = launched(job, strategy)
    if draw(st.booleans()) and strategy.pp > 1 and launch.layers[0] > 1:
        uneven = (launch.layers[0] - 1, *launch.layers[1:-1], launch.layers[-1] + 1)
        launch = launched(job, replace(strategy, layers=uneven))
    return launch


def words(draw: Any, job: Job) -> dict[str, Any]:
    """Dispatcher, graphs, modules, widths, offload and shards."""
    modules = draw(st.sets(st.sampled_from(modules_of(job.model)), min_size=1))
    return {
        "dispatch": draw(st.sampled_from(["alltoall", "alltoall", "deepep", "hybridep"])),
        "graphs": draw(st.sampled_from(["none", "none", "partial", "full"])),
        "moments": draw(st.sampled_from(["fp32", "bf16"])),
        "grads": draw(st.sampled_from(["fp32", "bf16"])),
        "modules": tuple(modules),
        "shard": draw(st.sampled_from([0, 0, 2])),
        "offload_layers": draw(st.sampled_from([0, 0, 0, 2])),
    }


def settled(strategy: Strategy, layers: tuple[int, ...]) -> Strategy:
    """A strategy with its layers written out where they are uneven only; one group of all replicas is no group."""
    shard = 0 if strategy.shard == strategy.dp else strategy.shard
    return replace(strategy, layers=() if len(set(layers)) == 1 else layers, shard=shard)


def back(target: str, launch: Launch) -> Any:
    text = EXPORTERS[target].files(launch)[FILES[target]]
    return import_text(text, name=FILES[target])


@drawn(150, few=50, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(launches())
def test_megatron_reads_back(launch: Launch) -> None:
    assume(not refusals(EXPORTERS["megatron"], launch))
    found = back("megatron", launch)
    assert found.strategy == settled(launch.strategy, launch.layers)
    assert found.gpus == launch.gpus
    assert (found.global_batch, found.seq) == (launch.workload.global_batch, launch.workload.seq)
    assert (found.precision, found.optimizer) == (launch.workload.precision, launch.workload.optimizer)
    # A command line says nothing of the model's name, nor of layers it does not train.
    told = {name: getattr(launch.model, name) for name in ("name", "aliases", "source", "date", "mtp_layers")}
    assert replace(found.model, **told) == launch.model


@drawn(60, few=25, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(launches(("llama-3.1-8b", "qwen3-32b", "deepseek-v3")), st.sampled_from(["torchtitan", "deepspeed"]))
def test_others_read_back(launch: Launch, target: str) -> None:
    launch = near(launch, target)
    assume(not refusals(EXPORTERS[target], launch))
    found = back(target, launch)
    assert found.strategy == settled(launch.strategy, launch.layers)
    assert found.gpus == launch.gpus
    assert found.global_batch == launch.workload.global_batch


def near(launch: Launch, target: str) -> Launch:
    """The drawn strategy with what the target fixes anyway, so that most draws are of use."""
    strategy = launch.strategy
    if target == "torchtitan":
        zero, kept = 3 if strategy.zero else 0, "never" if strategy.zero == 2 else "always"
        recompute: Any = "full" if strategy.recompute == "full" else "none"
        overlap = ("grad", *(("param",) if zero >= 2 else ()), *(("p2p",) if strategy.vp > 1 else ()))
        strategy = replace(
            strategy, zero=zero, recompute=recompute, method="uniform", recompute_layers=1, overlap=overlap, flash=True,
            offload="none", etp=1, reshard=kept, dispatch="alltoall", graphs="none", moments="fp32", grads="fp32",
            shard=strategy.shard if zero else 0,
        )  # fmt: skip
        return launch._replace(strategy=strategy, workload=replace(launch.workload, precision="bf16"))
    gpus = launch.gpus // strategy.tp
    full: Any = "full" if strategy.recompute == "full" else "none"
    overlap = ("grad", *(("param",) if strategy.zero == 3 else ()))
    strategy = Strategy(
        tp=strategy.tp, dp=gpus, mbs=1, zero=strategy.zero, recompute=full, overlap=overlap,
        offload=strategy.offload if strategy.zero else "none", grads="bf16",
    )  # fmt: skip
    return launch._replace(strategy=strategy, layers=(launch.model.layers,))


@given(st.lists(st.integers(0, 12), min_size=2, max_size=40))
def test_layouts_read_back(layers: list[int]) -> None:
    assert layout_layers(layout(tuple(layers))) == tuple(layers)


@given(st.integers(1, 90), st.integers(0, 5), st.integers(1, 4))
def test_expert_patterns_read_back(layers: int, first: int, every: int) -> None:
    assume(layers - first >= 2 * every)
    moe = MoE(experts=8, topk=2, ffn=64, first_dense=first, every=every)
    shape = pattern_shape(expert_pattern(layers, moe))
    again = MoE(experts=8, topk=2, ffn=64, first_dense=shape[0], every=shape[1])
    kinds = [
        [int(i >= m.first_dense and (i - m.first_dense + 1) % m.every == 0) for i in range(layers)]
        for m in (moe, again)
    ]
    assert kinds[0] == kinds[1]


SCRIPT = """\
#!/bin/bash
# a script as people write them
GPUS_PER_NODE=8
NUM_NODES=${NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=4; PP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # one per GPU
    --nnodes $NUM_NODES
)
GPT_MODEL_ARGS="
    --num-layers 32 --hidden-size 4096 \\
    --ffn-hidden-size 11008 --num-attention-heads 32
    --seq-length 4096 --max-position-embeddings 4096 --swiglu --disable-bias-linear
    --normalization RMSNorm --untie-embeddings-and-output-weights --position-embedding-type rope
"
TRAINING_ARGS=(--micro-batch-size 2 --global-batch-size=256 --bf16 --recompute-activations)
PARALLEL=(--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size "$PP" --sequence-parallel
  --num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer --overlap-grad-reduce)
if [ "$1" = x ]; then echo "--not-an-argument"; fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    $GPT_MODEL_ARGS "${TRAINING_ARGS[@]}" ${PARALLEL[@]} --vocab-size 32000 --save $(touch PWNED)
"""


def test_a_script_as_people_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = import_text(SCRIPT, name="train.sh")
    wanted = "tp4 pp2 vp4 dp4 mbs2 sp zero1 recompute=selective overlap=grad,p2p"
    assert str(found.strategy) == f"{wanted} graphs=none params=bf16 grads=fp32"
    assert (found.gpus, found.global_batch, found.seq) == (32, 256, 4096)
    assert found.model is not None
    assert count(found.model).total == count(find_model("llama-2-7b")).total
    assert not list(tmp_path.iterdir())


def test_uneven_ends() -> None:
    text = "torchrun --nproc-per-node 8 p.py --num-layers 30 --pipeline-model-parallel-size 4 --micro-batch-size 1"
    ends = f"{text} --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert import_text(ends, name="x.sh").strategy.layers == (7, 8, 8, 7)
    first = f"{text} --decoder-first-pipeline-num-layers 6"
    assert import_text(first, name="x.sh").strategy.layers == (6, 8, 8, 8)


def test_what_is_not_used_is_told() -> None:
    text = (
        "torchrun --nproc-per-node 8 p.py --micro-batch-size 1 --recompute-granularity selective"
        " --recompute-modules mlp gdn_norm_out --moe-token-dispatcher-type alltoall --cp-comm-type a2a --optimizer muon"
        " --lr 1e-4 --log-interval 1 --my-own-flag 3"
    )
    found = import_text(text, name="x.sh")
    assert found.strategy.modules == ("mlp",)
    assert found.ignored == (
        "--cp-comm-type a2a",
        "--recompute-modules gdn_norm_out",
        "--optimizer muon, taken as adam",
    )
    assert found.unknown == ("--my-own-flag 3",)


def test_words_of_older_versions() -> None:
    text = "torchrun --nproc-per-node 8 p.py --model-parallel-size 4 --batch-size 2 --checkpoint-activations"
    found = import_text(f"{text} --checkpoint-num-layers 2 --num-layers 24 --fp16 --DDP-impl local", name="x.sh")
    assert (found.strategy.tp, found.strategy.dp, found.strategy.mbs) == (4, 2, 2)
    assert (found.strategy.recompute, found.strategy.recompute_layers) == ("full", 2)
    assert not found.strategy.flash
    assert (found.framework, found.precision) == ("megatron-apex", "fp16")


@pytest.mark.parametrize(
    ("flags", "reduced"),
    [
        ("--bf16", "fp32"),  # arguments.py sets --accumulate-allreduce-grads-in-fp32 then
        ("--bf16 --grad-reduce-in-bf16", "bf16"),
        ("--fp16", "bf16"),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32"),
        ("--fp16 --fp32-allreduce --DDP-impl local", "fp32"),  # before April 2021
        ("--fp16 --deepspeed --zero-stage 0", "fp32"),
    ],
)
def test_width_in_which_megatron_reduces(flags: str, reduced: str) -> None:
    text = f"torchrun --nproc-per-node 8 p.py --micro-batch-size 2 --num-layers 24 {flags}"
    assert import_text(text, name="x.sh", gpus=8).strategy.grads == reduced


@pytest.mark.parametrize("grads", ["fp32", "bf16"])
def test_gradients_in_fp16_are_reduced_as_the_plan_says(grads: str) -> None:
    job = job_of("gpt-2-xl", "8xA100-80", precision="fp16", batch=8)
    script = EXPORTERS["megatron"].files(launched(job, job.strategy(f"dp8 mbs1 grads={grads}")))["launch.sh"]
    assert ("--accumulate-allreduce-grads-in-fp32" in script) is (grads == "fp32")


def test_megatron_deepspeed() -> None:
    text = (
        "deepspeed pretrain_gpt.py --micro-batch-size 1 --num-layers 24 --num-experts 64 --moe-expert-parallel-size 16"
        " --tensor-model-parallel-size 2 --deepspeed --deepspeed_config ds.json --no-pipeline-parallel"
    )
    with pytest.raises(InputError, match="--zero-stage"):
        import_text(text, name="x.sh", gpus=32)
    found = import_text(f"{text} --zero-stage 2 --deepspeed-activation-checkpointing", name="x.sh", gpus=32)
    strategy = found.strategy
    assert (strategy.ep, strategy.etp, strategy.zero, strategy.recompute) == (16, 1, 2, "full")
    assert found.framework == "deepspeed"


def test_a_hybrid_model_is_not_taken_for_a_transformer() -> None:
    text = SCRIPT.replace("--vocab-size 32000", "--vocab-size 32000 --hybrid-layer-pattern M*M*")
    assert import_text(SCRIPT, name="x.sh").model is not None
    found = import_text(text, name="x.sh")
    assert found.model is None
    assert found.ignored[0].startswith("--hybrid-layer-pattern M*M*")


def test_flags_in_a_yaml_are_not_guessed() -> None:
    with pytest.raises(InputError, match="--yaml-cfg"):
        import_text("torchrun --nproc-per-node 8 p.py --micro-batch-size 1 --yaml-cfg conf.yaml", name="x.sh")


AUTO = """\
{"bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto", "train_batch_size": "auto",
 "train_micro_batch_size_per_gpu": "auto",
 "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": "auto"}}
"""


def test_deepspeed_autos_are_told() -> None:
    with pytest.raises(InputError, match="the number of GPUs"):
        import_text(AUTO, name="ds.json")
    found = import_text(AUTO, name="ds.json", gpus=16)
    assert (found.strategy.dp, found.strategy.zero, found.global_batch) == (16, 3, None)
    assert found.ignored == (
        "train_micro_batch_size_per_gpu auto, taken as 1",
        "gradient_accumulation_steps auto, taken as 1",
        "zero_optimization.offload_param",
    )


TOML = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""


def test_torchtitan_toml() -> None:
    found = import_text(TOML, name="train.toml", gpus=16)
    assert str(found.strategy) == (
        "tp2 pp1 dp8 mbs2 sp zero3 recompute=full method=uniform recompute_layers=1 overlap=grad,param"
        " graphs=none params=bf16 grads=fp32 reshard=always"
    )
    assert found.recipe == "llama-3.1-8b"
    assert found.global_batch == 16
    with pytest.raises(InputError, match="number of GPUs"):
        import_text(TOML, name="train.toml")
    other = TOML.replace('"full"', '"selective"').replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
    other = other.replace(
        "[parallelism]", '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBV"'
    )
    found = import_text(other, name="train.toml", gpus=16)
    assert found.precision == "fp8"
    assert found.ignored == (
        "pipeline_parallel_schedule ZBV, taken as 1F1B",
        "activation_checkpoint.mode selective, which keeps other tensors here",
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "train.sh"),
        ("echo hello", "train.sh"),
        ("{", "ds.json"),
        ("[]", "ds.json"),
        ('{"zero_optimization": 3}', "ds.json"),
        ('{"zero_optimization": {"stage": 9}, "train_micro_batch_size_per_gpu": 1}', "ds.json"),
        ('{"train_micro_batch_size_per_gpu": "many"}', "ds.json"),
        ("a = [", "t.toml"),
        ("parallelism = 3", "t.toml"),
        ("x = 1", "plan.py"),
        ("def (", "plan.py"),
        ("p.py --micro-batch-size x --num-layers 3 --nproc-per-node 8", "train.sh"),
        ("torchrun --nproc-per-node 8 p.py --micro-batch-size 1 --tensor-model-parallel-size 3", "train.sh"),
        ("p.py --micro-batch-size 1 --num-layers 4", "train.sh"),
        ("torchrun --nproc-per-node 8 p.py --micro-batch-size 1 --pipeline-model-parallel-layout Q", "train.sh"),
        ("A=a\n" + "".join(f'{chr(66 + i)}="{8 * f"${chr(65 + i)}"}"\n' for i in range(24)), "train.sh"),
    ],
)  # fmt: skip
def test_bad_files_get_one_paragraph(text: str, name: str) -> None:
    with pytest.raises(InputError):
        import_text(text, name=name)


@given(st.integers(0, 999), st.integers(1, 99), st.integers(0, 999))
def test_sums(a: int, b: int, c: int) -> None:
    assert whole_sum(f"{a}*{b}+{c}") == str(a * b + c)
    assert whole_sum("__import__('os')") == ""
