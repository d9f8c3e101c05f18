"""What every exporter promises: it maps a field or refuses it, quotes what users wrote, and says how to start."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from astra.catalog import runtimes
from astra.export import EXPORTERS
from astra.export.base import Launch, Mesh, limits_broken, refusals
from astra.rules.can import may
from astra.spec.model import Quirk, Rotary
from astra.spec.names import by_name
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import RUNTIME_CHOICES
from tests.export.launching import given, job_of, launched, run_script, write

TARGETS = sorted(EXPORTERS)
# A plan each target expresses, near enough to plain that one field at a time can be changed.
PLAIN = {
    "megatron": "tp2 pp2 dp4 mbs1 sp zero1",
    "megatron-bridge": "tp2 pp2 dp4 mbs1 sp zero1",
    "flagscale": "tp2 pp2 dp4 mbs1 sp zero1",
    "torchtitan": "tp2 pp2 dp4 mbs1 sp zero3 overlap=grad,param reshard=always",
    "pytorch": "tp2 dp8 mbs1 sp zero3 overlap=grad,param reshard=always",
    "deepspeed": "dp16 mbs1 zero3",
    "accelerate": "dp16 mbs1 zero3",
    "slurm": "tp2 pp2 dp4 mbs1 sp zero1",
    "skypilot": "tp2 pp2 dp4 mbs1 sp zero1",
    "kubernetes": "tp2 pp2 dp4 mbs1 sp zero1",
}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "tp": [{"tp": 4}],
    "pp": [{"pp": 4}],
    "vp": [{"vp": 2, "schedule": "interleaved", "overlap": ("grad", "param", "p2p")}],
    "cp": [{"cp": 2}],
    "dp": [{"dp": 2}],
    "mbs": [{"mbs": 2}],
    "sp": [{"sp": False}],
    "zero": [{"zero": value} for value in range(4)],
    "recompute": [{"recompute": "selective"}, {"recompute": "full"}],
    "method": [{"recompute": "full", "method": "block"}],
    "recompute_layers": [{"recompute": "full", "method": "block", "recompute_layers": 2}],
    "offload": [{"offload": "optimizer"}],
    "overlap": [{"overlap": ()}, {"overlap": ("grad",)}, {"overlap": ("grad", "param", "tp")}],
    "flash": [{"flash": False}],
    "schedule": [
        {"schedule": "gpipe"},
        {"schedule": "zb"},
        {"schedule": "zbv", "vp": 2, "overlap": ("grad", "param", "p2p")},
    ],
    "layers": [{"pp": 2, "layers": (15, 17)}],
    "modules": [{"recompute": "selective", "modules": ("mlp",)}],
    "offload_layers": [{"offload_layers": 4}],
    "graphs": [{"graphs": "partial"}, {"graphs": "full"}],
    "moments": [{"moments": "bf16"}],
    "params": [{"params": "fp8"}],
    "grads": [{"grads": "fp32"}, {"grads": "bf16"}],
    "attention": [{"attention": "fp8"}],
    "reshard": [{"zero": 3, "reshard": "never"}],
    "shard": [{"shard": 2}],
}
EXPERTS = {"ep": 2, "etp": 2, "dispatch": "deepep", "dispatch_fp8": True}


def plain(target: str, model: str = "llama-3.1-8b") -> Launch:
    return given(model, "16xH100", PLAIN[target], batch=128, seq=4096, runtime=EXPORTERS[target].runtime or "megatron")


def changed(launch: Launch, fields: dict[str, Any]) -> Launch:
    """The same launch with another strategy; the split follows its degrees."""
    strategy = replace(launch.strategy, **fields)
    stages = strategy.pp * strategy.vp
    layers = strategy.layers or (launch.model.layers // stages,) * stages
    mesh = launch.meshes[0]._replace(
        tp=strategy.tp, cp=strategy.cp, dp=strategy.dp, pp=strategy.pp, ep=strategy.ep, recompute=strategy.recompute
    )
    return launch._replace(strategy=strategy, layers=layers, meshes=(mesh,))


def settings(target: str, launch: Launch) -> dict[str, str]:
    """The files without what only speaks of the plan."""
    files = EXPORTERS[target].files(launch)
    return {
        name: "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        for name, text in files.items()
        if name != "README.md"
    }


def test_every_target_has_a_plain_plan() -> None:
    assert sorted(PLAIN) == TARGETS
    assert set(CHANGES) | set(EXPERTS) == set(Strategy.__struct_fields__)


@pytest.mark.parametrize("target", TARGETS)
def test_plain_plan_is_taken(target: str) -> None:
    assert refusals(EXPORTERS[target], plain(target)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_training_in_fp32_is_written_or_refused(target: str) -> None:
    launch = plain(target)
    wide = launch._replace(workload=replace(launch.workload, precision="tf32"))
    if target == "pytorch":
        assert "\nPRECISION = 'tf32'" in settings(target, wide)["train.py"]
        return
    (reason,) = refusals(EXPORTERS[target], wide)
    assert "does not train in tf32 here" in reason


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("name", [one.name for one in runtimes.runtimes() if one.exports_to])
def test_what_a_runtime_can_run_its_own_target_can_say(name: str, model: str) -> None:
    """Whatever is fixed: a plan keeps to what its runtime can, and the limits of files add nothing on one pool."""
    runtime, said = runtimes.runtime(name), 0
    job = job_of(model, "16xH100", batch=128, seq=4096, runtime=name)
    words = [f"{field}={word}" for field in RUNTIME_CHOICES for word in getattr(runtime.can, field)]
    grids = ["dp16", "tp2 sp dp8", "tp8 sp dp2", "pp2 dp8", "pp2 vp2 schedule=interleaved dp8", "dp16 ep8"]
    for text in (f"{grid} zero{zero} {word}" for grid in grids for zero in runtime.can.zero for word in ["", *words]):
        strategy = job.strategy(text)
        if not may(runtime, strategy, job.model, job.workload, job.pool):
            said += 1
            assert limits_broken(EXPORTERS[runtime.exports_to], launched(job, strategy)) == [], text
    assert said or may(runtime, job.strategy("dp16"), job.model, job.workload)[0].field == "model"


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_field_is_mapped_or_refused(target: str, field: str) -> None:
    before = plain(target)
    for fields in CHANGES[field]:
        after = changed(before, fields)
        if after.strategy == before.strategy or refusals(EXPORTERS[target], after):
            continue
        assert settings(target, after) != settings(target, before), fields


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("field", EXPERTS)
def test_expert_fields_are_mapped_or_refused(target: str, field: str) -> None:
    before = plain(target, "mixtral-8x7b")
    strategy = replace(before.strategy, **{field: EXPERTS[field]}, **({"ep": 2} if "dispatch" in field else {}))
    degrees: dict[str, Any] = {name: getattr(strategy, name) for name in ("ep", "etp")}
    after = before._replace(strategy=strategy, meshes=(before.meshes[0]._replace(**degrees),))
    if "dispatch" in field:
        before = before._replace(strategy=replace(before.strategy, ep=2), meshes=after.meshes)
    if not refusals(EXPORTERS[target], after) and not refusals(EXPORTERS[target], before):
        assert settings(target, after) != settings(target, before)


@pytest.mark.parametrize("target", TARGETS)
def test_says_how_to_start_and_what_was_verified(target: str) -> None:
    exporter, launch = EXPORTERS[target], plain(target)
    files = exporter.files(launch)
    assert exporter.verified in files["README.md"]
    assert str(launch.strategy) in files["README.md"]
    for name, text in files.items():
        if name.endswith((".sh", ".yaml", ".py", ".sbatch", ".txt")):
            assert "Verified with" in text, name
            assert str(launch.strategy) in text, name


@pytest.mark.parametrize("target", TARGETS)
def test_scripts_are_bash(target: str, tmp_path: Path) -> None:
    files = EXPORTERS[target].files(plain(target))
    write(tmp_path, files)
    scripts = [name for name, text in files.items() if text.startswith("#!")]
    assert scripts or target == "flagscale"
    for name in scripts:
        assert subprocess.run(["bash", "-n", str(tmp_path / name)], check=False).returncode == 0, name


@pytest.mark.parametrize("hostile", ["$(touch PWNED)", "a b; touch PWNED", "-x", "'\"`"])
def test_values_from_the_environment_stay_single_words(tmp_path: Path, hostile: str) -> None:
    folder = write(tmp_path / "a b $(touch PWNED)", EXPORTERS["megatron"].files(plain("megatron")))
    started = run_script(folder, DATA_PATH=hostile, MEGATRON_DIR=hostile, SAVE=hostile, TOKENIZER_MODEL=hostile)
    assert f"{hostile}/pretrain_gpt.py" in started.argv
    assert started.argv[started.argv.index("--data-path") + 1] == hostile
    assert not list(tmp_path.rglob("PWNED"))


def test_a_model_that_cannot_be_said_is_refused() -> None:
    """Nothing is trained in place of the model that was planned."""
    launch = plain("megatron")
    moe = given("mixtral-8x7b", "16xH100", PLAIN["megatron"], batch=128).model
    assert moe.moe is not None
    cases = {
        "rotary positions stretched in this way": replace(launch.model, rotary=Rotary(scaling="other")),
        "in Llama 3.1 but by other numbers": given("llama-3.2-3b", "16xH100", PLAIN["megatron"], batch=128).model,
        "not a whole number": replace(launch.model, rotary=Rotary(base=10_000.5)),
        "GeGLU": replace(launch.model, activation="gelu"),
        "router such as this": replace(moe, moe=replace(moe.moe, score="other")),
        "side by side": replace(launch.model, quirks=("parallel_block",)),
    }
    for sentence, model in cases.items():
        (reason,) = refusals(EXPORTERS["megatron"], launch._replace(model=model))
        assert sentence in reason
    titan = plain("torchtitan")
    for rotary in (Rotary(fraction=0.5), Rotary(scaling="linear", factor=2.0)):
        (reason,) = refusals(EXPORTERS["torchtitan"], titan._replace(model=replace(titan.model, rotary=rotary)))
        assert "rotary positions" in reason


def test_every_quirk_is_refused_by_megatron() -> None:
    launch = plain("megatron")
    for quirk in get_args(Quirk):
        odd = launch._replace(model=replace(launch.model, quirks=(quirk,)))
        written = (
            "--apply-layernorm-1p" in settings("megatron", odd)["launch.sh"]
        )  # it has a flag for norms of one plus
        assert written or refusals(EXPORTERS["megatron"], odd), quirk


def test_two_exporters_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two entries"):
        by_name(EXPORTERS["megatron"], EXPORTERS["megatron"])


def test_mixed_pools() -> None:
    """FlagScale runs stages of different shapes; Megatron only those of one shape, and needs the order of hosts."""
    first, second = (
        given("llama-3.1-8b", gpus, "tp2 dp4 mbs1 sp zero1", batch=128).pool for gpus in ("8xH100", "8xA100-80")
    )
    base = given("llama-3.1-8b", "16xH100", "tp2 pp2 dp4 mbs1 sp zero1 layers=20,12", batch=128)
    same = base._replace(meshes=(Mesh(first, 2, 1, 1, 4, 1), Mesh(second, 2, 1, 1, 4, 1)))
    script = EXPORTERS["megatron"].files(same)["launch.sh"]
    assert "nodes 0 to 0: H100-SXM5-80GB, 8 each" in script
    assert "nodes 1 to 1: A100-SXM4-80GB, 8 each" in script
    other = base._replace(meshes=(Mesh(first, 4, 1, 1, 2, 1), Mesh(second, 8, 1, 1, 1, 1)))
    assert refusals(EXPORTERS["megatron"], other) == [
        "Megatron-LM has one tp, cp, dp and recompute setting for every stage"
    ]
    assert refusals(EXPORTERS["flagscale"], other) == []
    text = EXPORTERS["flagscale"].files(other)["train.yaml"]
    assert "hetero_process_meshes: [4, 1, 1, 2, 1, 8, 1, 1, 1, 1]" in text
    assert "hetero_pipeline_layer_split: [20, 12]" in text
    assert EXPORTERS["flagscale"].files(other)["hostfile"].splitlines() == [
        "ADDRESS_0 slots=8 type=H100-SXM5-80GB",
        "ADDRESS_1 slots=8 type=A100-SXM4-80GB",
    ]
    assert "one GPU type" in " ".join(refusals(EXPORTERS["kubernetes"], same))


def test_a_graph_of_a_whole_step_has_room_for_experts() -> None:
    """Without it a capture stops at the first expert: its products would ask the GPU for their sizes."""
    launch = given(
        "qwen3-30b-a3b", "64xGB200", "ep32 dp64 mbs1 zero1 dispatch=hybridep graphs=full", batch=512,
        precision="mxfp8", runtime="megatron-bridge",
    )  # fmt: skip
    for target, capacity, fused in (
        ("megatron", "--moe-expert-rank-capacity-factor 1.5", "--use-transformer-engine-op-fuser"),
        ("megatron-bridge", "model.moe_expert_rank_capacity_factor=1.5", "model.use_transformer_engine_op_fuser=true"),
    ):
        text = "\n".join(EXPORTERS[target].files(launch).values())
        assert capacity in text
        assert fused in text
        for said in ("NVTE_CUTEDSL_FUSED_GROUPED_MLP=1", "NVLINK_DOMAIN_SIZE=72", "USE_MNNVL=1"):
            assert f"export {said}" in text, said
        assert "export NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=32" in text
    plain = launch._replace(strategy=replace(launch.strategy, graphs="none"))
    text = "\n".join(EXPORTERS["megatron-bridge"].files(plain).values())
    assert "model.moe_expert_rank_capacity_factor=null" in text
    assert "CUTEDSL" not in text
