"""Plans over several pools, from the search to the files of a target."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

import astra
from astra.catalog.clusters import parse_gpus
from astra.errors import InputError
from astra.export import EXPORTERS
from astra.export.base import CannotExport, Mesh, refusals
from astra.export.nearest import nearest_of_file
from astra.export.reading import from_record
from astra.spec.mixed import MixedStrategy
from astra.spec.mixed_text import parse_mixed
from tests.export.launching import given, import_text, job_of, run_script, write

MEGATRON, FLAGSCALE = EXPORTERS["megatron"], EXPORTERS["flagscale"]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """As ``astra plan llama-2-7b --gpus 8xH100 --gpus 8xA100-80 --out`` writes it."""
    found: dict[str, Any] = json.loads(
        astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], batch=128, seq=4096, top=12).to_json()
    )
    return found


def with_strategy(record: dict[str, Any], text: str) -> dict[str, Any]:
    """The record with another strategy in first place, as if it had been found and estimated."""
    changed = copy.deepcopy(record)
    changed["plans"][0]["strategy"] = changed["plans"][0]["estimate"]["strategy"] = text
    return changed


PIPE = (
    "zero1 overlap=grad,param [dp{dp} mbs1 m{m}: H100-SXM5-80GB tp{a} pp1 layers=20 recompute=none"
    " + A100-SXM4-80GB tp{b} pp1 layers=12 recompute=none]"
)


def test_every_plan_of_the_search_is_written_or_refused(record: dict[str, Any]) -> None:
    written = 0
    for plan in record["plans"]:
        try:
            launch, job = from_record(record, plan["rank"])
        except CannotExport as error:
            assert "unequal shares" in str(error)  # noqa: PT017  # not every plan has to be refused
            continue
        assert sum(launch.layers) == 32
        if job is None:
            assert launch.workload.global_batch == 128
        for exporter in (MEGATRON, FLAGSCALE):
            if not refusals(exporter, launch):
                written += bool(exporter.files(launch))
    assert written


def test_megatron_starts_the_same_plan(record: dict[str, Any], tmp_path: Any) -> None:
    launch, _ = from_record(with_strategy(record, PIPE.format(dp=4, m=32, a=2, b=2)))
    assert refusals(MEGATRON, launch) == []
    files = MEGATRON.files(launch)
    started = run_script(write(tmp_path, files), NODE_RANK="1")
    assert started.argv[started.argv.index("--pipeline-model-parallel-layout") + 1] == "Et*20|t*12L"
    assert "nodes 1 to 1: A100-SXM4-80GB, 8 each" in files["launch.sh"]
    found = import_text(files["launch.sh"], name="launch.sh")
    assert (found.strategy, found.gpus, found.global_batch) == (launch.strategy, 16, 128)


def test_own_degrees_are_for_flagscale(record: dict[str, Any]) -> None:
    launch, _ = from_record(with_strategy(record, PIPE.format(dp=2, m=64, a=4, b=2)).copy())
    assert "Megatron-LM has one tp, cp, dp and recompute setting for every stage" in refusals(MEGATRON, launch)
    whole, _ = from_record(with_strategy(record, PIPE.format(dp=1, m=128, a=8, b=8)))
    assert refusals(FLAGSCALE, whole) == []
    assert "hetero_process_meshes: [8, 1, 1, 1, 1, 8, 1, 1, 1, 1]" in FLAGSCALE.files(whole)["train.yaml"]


OWN = (
    "zero1 overlap=grad,param,tp [dp2 mbs1 m64: H100-SXM5-80GB tp4 pp1 layers=20 recompute=none"
    " + A100-SXM4-80GB tp2 pp2 layers=7,5 recompute=none]"
)


def test_flagscale_reads_back(record: dict[str, Any]) -> None:
    """Meshes with degrees of their own are the strategy they were made of."""
    launch, _ = from_record(with_strategy(record, OWN))
    assert refusals(FLAGSCALE, launch) == []
    found = import_text(FLAGSCALE.files(launch)["train.yaml"], name="train.yaml")
    assert str(found.words) == OWN
    assert (found.gpus, found.global_batch, found.seq) == (16, 128, 4096)
    again = astra.estimate("llama-2-7b", gpus=["8xH100", "8xA100-80"], batch=128, seq=4096, strategy=found.words)
    assert again.fits


def test_like_meshes_on_two_types_keep_their_order(record: dict[str, Any]) -> None:
    like = OWN.replace("tp4 pp1 layers=20", "tp2 pp2 layers=12,8")
    launch, _ = from_record(with_strategy(record, like))
    found = import_text(FLAGSCALE.files(launch)["train.yaml"], name="train.yaml")
    assert str(found.words) == like
    either = (["8xH100", "8xA100-80"], ["8xA100-80", "8xH100"])
    steps = [
        astra.estimate("llama-2-7b", gpus=gpus, batch=128, seq=4096, strategy=found.words).step_s for gpus in either
    ]
    assert steps[0] == pytest.approx(steps[1])


TRAINER = EXPORTERS["pytorch"]
UNLIKE = (
    "zero0 overlap=grad,param [dp4 mbs2 m12: H100-SXM5-80GB tp2 pp1 layers=32 recompute=none]"
    " [dp4 mbs1 m8: A100-SXM4-80GB tp1 pp2 layers=15,17 recompute=none]"
)


def test_unlike_groups_are_for_the_trainer(record: dict[str, Any]) -> None:
    launch, _ = from_record(with_strategy(record, UNLIKE))
    assert refusals(TRAINER, launch) == []
    for exporter in (MEGATRON, FLAGSCALE):
        assert "its groups of pipelines take unequal shares of the batch" in refusals(exporter, launch)
    found = import_text(TRAINER.files(launch)["train.py"], name="train.py")
    assert str(found.words) == UNLIKE
    assert (found.gpus, found.global_batch) == (16, 128)


SHARDED = (
    "[m6: H100-SXM5-80GB tp1 pp2 dp4 mbs4 zero3 recompute=full overlap=grad,param reshard=never layers=15,17]"
    " [m4: A100-SXM4-80GB tp2 pp1 dp4 mbs2 sp zero3 recompute=none overlap=grad,param reshard=never layers=32]"
)


def test_sharded_groups_are_read_back_from_the_trainer() -> None:
    asked: dict[str, Any] = {"gpus": ["8xH100", "8xA100-80"], "batch": 128, "seq": 4096, "runtime": "pytorch"}
    found = json.loads(astra.plan("llama-2-7b", **asked).to_json())
    launch, _ = from_record(with_strategy(found, SHARDED))
    assert refusals(TRAINER, launch) == []
    back = import_text(TRAINER.files(launch)["train.py"], name="train.py").words
    wanted = parse_mixed(SHARDED)
    assert isinstance(back, MixedStrategy)
    for one, other in zip(back.groups, wanted.groups, strict=True):
        assert one.plain is not None
        assert (one.segments, one.dp, one.mbs, one.microbatches) == (
            other.segments, other.dp, other.mbs, other.microbatches,
        )  # fmt: skip
        assert (one.plain.zero, one.plain.reshard) == (3, "never")


TOGETHER = (
    "shares=3,1 [m4: H100-SXM5-80GB tp1 pp1 dp8 mbs3 zero3 recompute=none overlap=grad,param graphs=none params=bf16"
    " grads=fp32 reshard=always layers=32] [m4: A100-SXM4-80GB tp1 pp1 dp8 mbs1 zero3 recompute=full method=uniform"
    " recompute_layers=1 overlap=grad,param graphs=none params=bf16 grads=fp32 reshard=always layers=32]"
)


def test_a_shared_state_is_for_the_trainer_and_read_back_from_it(record: dict[str, Any]) -> None:
    launch, _ = from_record(with_strategy(record, TOGETHER))
    assert refusals(TRAINER, launch) == []
    for exporter in (MEGATRON, FLAGSCALE):
        assert any("share one state" in sentence for sentence in refusals(exporter, launch))
    text = TRAINER.files(launch)["train.py"]
    found = import_text(text, name="train.py")
    assert str(found.words) == TOGETHER
    for odd in ("(3,)", "(3, -1)", "('3', 1)", "3"):
        with pytest.raises(InputError):
            import_text(text.replace("SHARES = (3, 1)", f"SHARES = {odd}"), name="train.py")
    wide = TOGETHER.replace("tp1 pp1 dp8", "tp2 pp1 dp4").replace("m4", "m8")
    launch, _ = from_record(with_strategy(record, wide))
    assert "groups that share one state have one GPU for each replica" in refusals(TRAINER, launch)


def test_local_steps_are_for_the_trainer_and_read_back_from_it(record: dict[str, Any]) -> None:
    like = UNLIKE.replace("mbs2 m12: H100-SXM5-80GB tp2 pp1 layers=32", "mbs1 m24: H100-SXM5-80GB tp1 pp2 layers=15,17")
    for text in (UNLIKE, like):  # groups of one shape that seldom meet are no data parallelism either
        launch, _ = from_record(with_strategy(record, f"local=500 {text}"))
        assert (refusals(TRAINER, launch), len(launch.groups)) == ([], 2)
        for exporter in (MEGATRON, FLAGSCALE):
            assert any("by themselves for 500 steps" in sentence for sentence in refusals(exporter, launch))
        files = TRAINER.files(launch)
        assert "job.sh" in files
        back = import_text(files["train.py"], name="train.py").words
        assert (str(back), back) == (str(parse_mixed(f"local=500 {text}")), parse_mixed(f"local=500 {text}"))
        old = "\n".join(line for line in files["train.py"].splitlines() if not line.startswith("LOCAL = "))
        assert str(import_text(old, name="train.py").words) == text.replace("local=500 ", "")


def test_like_groups_that_share_a_state_are_groups(record: dict[str, Any]) -> None:
    """They are no plain data parallelism: their parts of the state differ."""
    like = (
        TOGETHER.replace("mbs3", "mbs1")
        .replace("m4", "m8")
        .replace("recompute=full method=uniform recompute_layers=1", "recompute=none")
    )
    launch, _ = from_record(with_strategy(record, like))
    assert [one.strategy.dp for one in launch.groups] == [8, 8]
    assert launch.shares == (3, 1)


def test_like_groups_are_plain_data_parallelism(record: dict[str, Any], tmp_path: Any) -> None:
    """Stage by stage: the replicas of one pool, then those of the other."""
    each = "[dp2 mbs1 m32: {} tp2 pp2 layers=16*2 recompute=none]"
    text = f"zero1 overlap=grad,param {each.format('H100-SXM5-80GB')} {each.format('A100-SXM4-80GB')}"
    cluster = ["8xH100", "8xA100-80"]
    estimate = astra.estimate("llama-2-7b", gpus=cluster, batch=128, seq=4096, strategy=text)
    assert "Megatron-LM" in estimate.runs_on  # type: ignore[attr-defined]
    launch, _ = from_record(with_strategy(record, text))
    assert (launch.strategy.dp, launch.strategy.pp, launch.gpus) == (4, 2, 16)
    names = [mesh.pool.device.name for mesh in launch.meshes]
    assert names == ["H100-SXM5-80GB", "A100-SXM4-80GB"] * 2
    wide = "[dp8 mbs1 m8: {} tp1 pp1 layers=32 recompute=full]"
    text = f"zero1 overlap=grad,param {wide.format('H100-SXM5-80GB')} {wide.format('A100-SXM4-80GB')}"
    launch, _ = from_record(with_strategy(record, text))
    assert refusals(MEGATRON, launch) == []
    files = MEGATRON.files(launch)
    started = run_script(write(tmp_path, files), NODE_RANK="1")
    assert started.argv[started.argv.index("--nnodes") + 1] == "2"
    assert import_text(files["launch.sh"], name="launch.sh").strategy.dp == 16
    assert refusals(FLAGSCALE, launch)


def test_like_groups_of_several_vendors_are_jobs_of_their_own() -> None:
    """No library moves what GPUs of both have, so that they are not plain data parallelism either."""
    text = " ".join(f"[m1: {pool} tp1 pp1 dp8 mbs8 zero3 layers=32]" for pool in ("H100-SXM5-80GB", "MI300X"))
    planned = astra.plan("llama-2-7b", gpus=["8xH100", "8xMI300X"], batch=128, seq=1024)
    launch, _ = from_record(with_strategy(json.loads(planned.to_json()), text))
    assert [[mesh.pool.device.vendor for mesh in part.meshes] for part in launch.groups] == [["NVIDIA"], ["AMD"]]
    assert not refusals(EXPORTERS["pytorch"], launch)
    assert "its groups of pipelines are on GPUs of several vendors" in refusals(MEGATRON, launch)


def test_half_a_node_is_refused(record: dict[str, Any]) -> None:
    launch, _ = from_record(with_strategy(record, PIPE.format(dp=2, m=64, a=4, b=2)))
    for exporter in (MEGATRON, FLAGSCALE):
        assert "each GPU type must fill its nodes where stages live on several" in refusals(exporter, launch)


def test_nodes_of_different_sizes_start_what_they_have(tmp_path: Any) -> None:
    launch = given("llama-2-7b", "16xH100", "tp2 pp3 dp4 mbs1 sp zero1 layers=14,8,10", batch=128)
    small, large = (job_of("llama-2-7b", pool).pool for pool in ("8xH100", "16xA100-40"))
    node = parse_gpus("16xA100-40", node="gcp-a2-megagpu-16g").node
    large = msgspec.structs.replace(large, node=node)
    launch = launch._replace(meshes=(Mesh(small, 2, 1, 1, 4, 1), Mesh(large, 2, 1, 1, 4, 2)))
    folder = write(tmp_path, MEGATRON.files(launch))
    each = []
    for rank in ("0", "1"):
        argv = run_script(folder, NODE_RANK=rank).argv
        each.append(argv[argv.index("--nproc-per-node") + 1])
    assert each == ["8", "16"]


def test_pools_written_out_win_over_names(record: dict[str, Any]) -> None:
    """A plan that carries its pools is exported without the catalog."""
    carried = with_strategy(record, PIPE.format(dp=4, m=32, a=2, b=2))
    pools = [msgspec.to_builtins(parse_gpus(text)) | {"zone": "own"} for text in carried["asked"]["gpus"]]
    for pool in pools:
        pool["name"], pool["device"]["name"] = pool["device"]["name"], "of nobody's catalog"
    carried["asked"] |= {"gpus": [], "cluster": {"pools": pools}}
    launch, _ = from_record(carried)
    assert [mesh.pool.zone for mesh in launch.meshes] == ["own", "own"]
    pools[0]["gpus"] = "many"
    with pytest.raises(InputError, match=r"asked.cluster: pools\[0\].gpus"):
        from_record(carried)


def test_one_pool_alone(record: dict[str, Any]) -> None:
    launch, job = from_record(with_strategy(record, "H100-SXM5-80GB: tp2 pp1 dp4 mbs1 sp zero1"))
    assert job is not None
    assert (launch.gpus, launch.mixed, launch.pool.device.name) == (8, False, "H100-SXM5-80GB")
    with pytest.raises(InputError, match="a pool of the request"):
        from_record(with_strategy(record, "B200: tp2 pp1 dp4 mbs1 sp zero1"))


def test_nearest_is_the_best_other_plan_of_the_file(record: dict[str, Any]) -> None:
    asked = with_strategy(record, PIPE.format(dp=2, m=64, a=4, b=2))
    rank, difference = nearest_of_file(asked, 1, MEGATRON, where="plan.json")
    launch, _ = from_record(asked, rank)
    assert rank > 1
    assert refusals(MEGATRON, launch) == []
    assert difference is not None
    assert difference["exported_step_s"] == asked["plans"][rank - 1]["estimate"]["step_s"]
    assert difference["changed"]["rank"] == [1, rank]
    again = nearest_of_file(with_strategy(record, PIPE.format(dp=4, m=32, a=2, b=2)), 1, MEGATRON, where="plan.json")
    assert again == (1, None)
    with pytest.raises(CannotExport, match="nor any other of the"):
        nearest_of_file({**asked, "plans": asked["plans"][:1]}, 1, MEGATRON, where="plan.json")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (PIPE.format(dp=4, m=31, a=2, b=2), "a batch of 128"),
        (PIPE.format(dp=4, m=32, a=2, b=2).replace("layers=20", "layers=19"), "32 layers"),
        (PIPE.format(dp=4, m=32, a=2, b=2).replace("A100-SXM4", "T4"), "a pool of the request"),
    ],
)
def test_edited_plans_are_named(record: dict[str, Any], text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        from_record(with_strategy(record, text))
