"""What launchers start: their scripts are run with stand-ins for Slurm and torchrun, node by node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astra.export import EXPORTERS
from astra.export.base import Launch, Mesh, refusals, strategy_could_help
from astra.export.launchers import known, task, train_job
from tests.export.launching import given, job_of, write

# Appends the command and what the launcher told it, in place of the real one.
TORCHRUN = """\
#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
"""
# Runs the command once per node, as srun does with one task on each; a heterogeneous step counts through.
SRUN = """\
#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
for node in $(seq 0 $((NODES - 1))); do SLURM_NODEID=$node SLURM_PROCID=$node "$@" || exit 1; done
"""
SCONTROL = "#!/usr/bin/env bash\nprintf 'node%s\\n' 7 8 9\n"


def stand_ins(folder: Path) -> Path:
    tools = folder / "tools"
    log = str(folder / "log")
    texts = {"torchrun": TORCHRUN.format(python=sys.executable, log=log), "srun": SRUN, "scontrol": SCONTROL}
    for name, text in texts.items():
        write(tools, {name: text})
        (tools / name).chmod(0o755)
    write(tools, {"git": "#!/bin/sh\n"})
    (tools / "git").chmod(0o755)
    return tools


def started(folder: Path, command: list[str], **env: str) -> list[list[str]]:
    """The command lines torchrun was given, in order."""
    whole = {"PATH": f"{stand_ins(folder)}:{os.environ['PATH']}", "HOME": str(folder), **env}
    subprocess.run(command, check=True, cwd=folder, env=whole, timeout=300, capture_output=True)
    return [json.loads(line) for line in (folder / "log").read_text(encoding="utf-8").splitlines()]


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def dense() -> Launch:
    return given("llama-2-7b", "24xH100", "tp4 pp3 dp2 mbs1 sp zero1 layers=11,11,10", batch=128)


def test_slurm_starts_every_node(tmp_path: Path) -> None:
    launch = dense()
    write(tmp_path, EXPORTERS["slurm"].files(launch))
    env = {"NODES": "3", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node[7-9]"}
    lines = started(tmp_path, ["bash", "job.sbatch", "--exit-interval", "5"], **env)
    assert [value(argv, "--node-rank") for argv in lines] == ["0", "1", "2"]
    assert {value(argv, "--master-addr") for argv in lines} == {"node7"}
    assert all(argv[-2:] == ["--exit-interval", "5"] for argv in lines)
    assert value(lines[0], "--nnodes") == "3"


def test_slurm_numbers_a_mixed_job_through(tmp_path: Path) -> None:
    launch = given("llama-2-7b", "16xH100", "tp2 pp2 dp4 mbs1 sp zero1 layers=20,12", batch=128)
    pools = [job_of("llama-2-7b", pool).pool for pool in ("8xH100", "8xA100-80")]
    launch = launch._replace(meshes=tuple(Mesh(pool, 2, 1, 1, 4, 1) for pool in pools))
    write(tmp_path, EXPORTERS["slurm"].files(launch))
    env = {"NODES": "2", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST_HET_GROUP_0": "node7"}
    lines = started(tmp_path, ["bash", "job.sbatch"], **env)
    assert [value(argv, "--node-rank") for argv in lines] == ["0", "1"]
    assert value(lines[1], "--pipeline-model-parallel-layout") == "Et*20|t*12L"


def test_skypilot_starts_its_node(tmp_path: Path) -> None:
    launch = dense()
    write(tmp_path, EXPORTERS["skypilot"].files(launch))
    env = {"SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n10.0.0.9", "SKYPILOT_NODE_RANK": "2"}
    (argv,) = started(tmp_path, ["bash", "-c", task(launch)["run"]], **env)
    assert (value(argv, "--node-rank"), value(argv, "--master-addr")) == ("2", "10.0.0.7")


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed"])
def test_kubernetes_writes_the_files_and_starts_them(tmp_path: Path, runtime: str) -> None:
    launch = given("llama-2-7b", "16xH100", "dp16 mbs1 zero3", batch=128, runtime=runtime)
    files = EXPORTERS["kubernetes"].files(launch)
    trainer: dict[str, Any] = train_job(launch, {name: files[name] for name in files if name != "trainjob.yaml"})
    trainer = trainer["spec"]["trainer"]
    text = trainer["args"][0].replace("$$(", "$(").replace("/tmp/plan", str(tmp_path / "plan"))
    env = {each["name"]: each["value"] for each in trainer.get("env", [])}
    (argv,) = started(tmp_path, ["bash", "-c", text], PET_NODE_RANK="1", PET_MASTER_ADDR="first-0", **env)
    assert (value(argv, "--node-rank"), value(argv, "--master-addr")) == ("1", "first-0")
    assert (tmp_path / "plan" / "launch.sh").read_text(encoding="utf-8") == files["launch.sh"]


def test_setups_name_the_verified_versions() -> None:
    for name, text in known()["setup"].items():
        version = EXPORTERS[name].verified.partition(":")[0].split()[1]
        assert f"=={version}" in text


def test_a_launcher_gives_the_reasons_of_its_framework() -> None:
    launch = given("gemma-2-9b", "16xH100", "dp16 mbs1 zero3", batch=128)
    assert "megatron has no layers with more or fewer than two norms" in refusals(EXPORTERS["slurm"], launch)
    assert not strategy_could_help(EXPORTERS["slurm"], launch)
    other = given("llama-2-7b", "16xH100", "pp2 dp8 mbs1 zero1", batch=128)
    other = other._replace(strategy=other.strategy.__class__(pp=2, dp=8, zero=1, schedule="gpipe"))
    assert refusals(EXPORTERS["slurm"], other) == ["megatron has no such pipeline schedule (schedule=gpipe)"]
    assert strategy_could_help(EXPORTERS["slurm"], other)


def test_skypilot_asks_clouds_for_what_it_can_do_there() -> None:
    """SkyPilot refuses network tiers on Azure, images on OCI and several machines on RunPod."""
    given_: dict[str, Any] = {"batch": 128, "strategy": "dp16 mbs1 zero3"}
    azure = given("llama-2-7b", "16xH100", node="azure-nd96isr-h100-v5", **given_)
    assert "network_tier" not in task(azure)["resources"]
    oci = given("llama-2-7b", "16xH100", node="oci-bm.gpu.h100.8", runtime="pytorch", **given_)
    assert "image_id" not in task(oci)["resources"]
    assert refusals(EXPORTERS["skypilot"], oci) == []
    for node in ("oci-bm.gpu.h100.8", "runpod-pod-h100"):
        (reason,) = refusals(EXPORTERS["skypilot"], given("llama-2-7b", "16xH100", node=node, **given_))
        assert "on this cloud" in reason
    billed = given("llama-2-7b", "16xH100", **given_)
    billed = billed._replace(figures=billed.figures._replace(provider="RunPod", region="global"))
    assert refusals(EXPORTERS["skypilot"], billed) == []
    assert "infra" not in task(billed)["resources"]
    assert "the bill is that of RunPod" in EXPORTERS["skypilot"].files(billed)["README.md"]


def test_skypilot_asks_nebius_where_nebius_is_paid() -> None:
    """Of network tiers it knows there those of whole servers that InfiniBand joins."""
    joined = given("llama-2-7b", "16xH100", node="nebius-hgx-h100", batch=128, strategy="dp16 mbs1 zero3")
    assert task(joined)["resources"]["infra"] == "nebius"
    assert task(joined)["resources"]["network_tier"] == "best"
    alone = given("llama-2-7b", "4xL40S", batch=128, strategy="dp4 mbs1 zero3")
    billed = alone._replace(figures=alone.figures._replace(provider="Nebius", region="eu-north1"))
    assert task(billed)["resources"]["infra"] == "nebius/eu-north1"
    assert "network_tier" not in task(billed)["resources"]


def test_skypilot_is_given_the_region_of_the_bill_or_says_that_it_chooses_one() -> None:
    joined = given("llama-2-7b", "16xH100", node="nebius-hgx-h100", batch=128, strategy="dp16 mbs1 zero3")
    for region, infra, left in (
        ("eu-north1", "nebius/eu-north1", False),
        ("eu/us", "nebius", True),
        ("", "nebius", False),
    ):
        billed = joined._replace(figures=joined.figures._replace(provider="Nebius", region=region))
        assert task(billed)["resources"]["infra"] == infra
        assert (
            "the region: the bill is that of Nebius eu/us" in EXPORTERS["skypilot"].files(billed)["README.md"]
        ) is left


def test_pipelines_of_torchtitan_get_a_torch_that_runs_them() -> None:
    launch = given("llama-3.1-8b", "16xH100", "pp2 dp8 mbs1 zero3 reshard=never", batch=128, runtime="torchtitan")
    files = EXPORTERS["skypilot"].files(launch)
    assert "torch==2.14.1" in files["task.yaml"]
    assert 'if "arg_mbs" not in signature' in files["plan.py"]
    flat = given("llama-3.1-8b", "16xH100", "dp16 mbs1 zero3", batch=128, runtime="torchtitan")
    assert "arg_mbs" not in EXPORTERS["torchtitan"].files(flat)["plan.py"]
