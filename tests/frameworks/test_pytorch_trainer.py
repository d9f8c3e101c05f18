"""The exported PyTorch trainer is run by torchrun on CPU processes: every plan loses exactly what one process loses."""

from __future__ import annotations

import array
import ast
import math
import os
import re
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from astra.spec.model import ModelSpec, Rotary
from astra.spec.strategy import parse_strategy
from tests.export.launching import job_of, launched, write
from tests.frameworks.install import python_of, ready
from tests.frameworks.ranks import free_port

TRAINER = EXPORTERS["pytorch"]
PATIENCE_S = 900  # a busy machine is no mistake of the trainer
LLAMA = ModelSpec(
    name="tiny", layers=4, hidden=64, ffn=128, heads=4, kv_heads=2, head_dim=16, vocab=96, max_seq=32,
    activation="silu", rotary=Rotary(base=500.0, scaling="llama3", factor=4.0, original_positions=16),
)  # fmt: skip
# Every part by which models differ, and a vocabulary that no degree divides.
GPT = replace(
    LLAMA, kv_heads=4, vocab=97, gated_mlp=False, activation="gelu", norm="layernorm", qkv_bias=True, out_bias=True,
    mlp_bias=True, tied_embeddings=True, learned_positions=40, rotary=None,
)  # fmt: skip
QWEN = replace(
    LLAMA, qk_norm="per_head", qkv_bias=True, head_bias=True, activation="relu2",
    rotary=Rotary(fraction=0.5, scaling="linear", factor=1.5),
)  # fmt: skip
STRATEGIES = [
    "tp2 mbs4 sp zero0 overlap=grad",
    "tp2 mbs2 zero0 overlap=grad recompute=full",
    "pp2 mbs2 zero0 overlap=grad layers=1,3",
    "pp2 mbs4 zero0 overlap=grad schedule=gpipe",
    "pp2 vp2 mbs2 zero0 overlap=grad,p2p layers=1,2,1,0",
    "dp2 mbs2 zero3 reshard=always overlap=grad,param",
    "dp2 mbs2 zero3 reshard=never overlap=grad,param recompute=full",
    "dp2 mbs2 zero0 overlap=grad",
    "dp4 mbs2 zero3 shard2 reshard=always overlap=grad,param",
    "tp2 pp2 mbs2 sp zero0 overlap=grad layers=3,1",
    "tp2 dp2 mbs2 sp zero3 reshard=always overlap=grad,param",
    "pp2 dp2 mbs1 zero3 reshard=never overlap=grad,param layers=1,3",
]
ALONE = "mbs2 zero0 overlap=grad"
# Groups with their samples of the batch of 16: other degrees, stages, micro-batches and numbers of them.
GROUPS = [
    {"dp2 mbs2 zero0 overlap=grad": 12, "mbs1 zero0 overlap=grad": 4},
    {"tp2 mbs3 sp zero0 overlap=grad": 12, "pp2 mbs1 zero0 overlap=grad layers=1,3": 4},
    {"tp2 pp2 mbs2 zero0 overlap=grad layers=3,1": 10, "dp2 mbs1 zero0 overlap=grad recompute=full": 6},
    {"dp2 mbs1 zero3 reshard=always overlap=grad,param": 10, "tp2 mbs3 zero3 reshard=always overlap=grad,param": 6},
    {"tp2 dp2 mbs1 sp zero3 reshard=never overlap=grad,param": 8, "pp2 vp2 mbs2 zero3 overlap=grad,param,p2p": 8},
    {"dp2 mbs2 zero3 reshard=never overlap=grad,param": 12, "mbs4 zero0 overlap=grad": 4},
    {"mbs4 zero0 overlap=grad": 8, "mbs1 zero0 overlap=grad": 3, "dp1 mbs5 zero0 overlap=grad": 5},
]  # fmt: skip

SHARDED = "zero3 reshard=always overlap=grad,param"
# Groups whose replicas share one state, with their parts of it: some hold little or nothing, some compute again.
SHARED = [
    ({f"dp2 mbs1 {SHARDED}": 4, f"dp1 mbs6 {SHARDED}": 12}, (1, 3)),
    ({f"mbs1 recompute=full {SHARDED}": 4, f"mbs3 {SHARDED}": 12}, (0, 1)),
    ({f"mbs1 {SHARDED}": 2, f"mbs3 recompute=full {SHARDED}": 6, f"dp2 mbs2 {SHARDED}": 8}, (1, 17, 3)),
]  # fmt: skip


class Step(NamedTuple):
    """What the trainer prints of a step."""

    loss: float
    norm: float


def launch_of(strategy: str, model: ModelSpec = LLAMA, **request: Any) -> Launch:
    """A plan of a tiny model, as the exporter takes it."""
    gpus = parse_strategy(strategy).gpus
    asked: dict[str, Any] = {"batch": 16, "seq": 32, "precision": "tf32", "runtime": "pytorch"} | request
    job = job_of("llama-3.1-8b", f"{gpus}xH100", **asked)
    job = replace(job, model=model)
    launch = launched(job, job.strategy(strategy))
    assert refusals(TRAINER, launch) == []
    return launch


SETTINGS = {
    **os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # some virtual machines announce bf16 units that they do not let run
}  # fmt: skip


# Threads of gloo abort a process that ends, once in many runs on a busy machine.
ABORTED = "terminate called without an active exception"


def torchrun(folder: Path, processes: int, *flags: str) -> subprocess.CompletedProcess[str]:
    """The exported file, by real processes that meet at a free port."""
    if not ready("torch"):
        pytest.skip(".venvs/torch could not be made (see make test-frameworks)")
    for _ in range(3):
        command = [str(python_of("torch")), "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        command += ["--master-port", str(free_port()), str(folder / "train.py"), *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=SETTINGS)
        if ABORTED not in ended.stderr:
            break
    return ended


def train(folder: Path, launch: Launch, *flags: str) -> list[Step]:
    """Losses and norms of the steps."""
    write(folder, TRAINER.files(launch))
    ended = torchrun(folder, launch.gpus, "--lr", "0.01", *(flags or ("--steps", "3")))
    assert ended.returncode == 0, ended.stderr[-3000:]
    return steps_of(ended.stdout)


def steps_of(printed: str) -> list[Step]:
    """What the trainer says of its steps."""
    found = re.findall(r"^step \d+ loss (\S+) norm (\S+) ", printed, re.MULTILINE)
    return [Step(float(loss), float(norm)) for loss, norm in found]


def same(found: list[Step], wanted: list[Step]) -> None:
    """Losses to the last printed digits, norms of gradients to those of theirs."""
    assert [step.loss for step in found] == pytest.approx([step.loss for step in wanted], rel=2e-6)
    assert [step.norm for step in found] == pytest.approx([step.norm for step in wanted], rel=5e-4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    steps = train(tmp_path_factory.mktemp("alone"), launch_of(ALONE))
    assert len(steps) == 3
    return steps


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_plan_trains_as_one_process_does(alone: list[Step], strategy: str, tmp_path: Path) -> None:
    same(train(tmp_path, launch_of(strategy)), alone)


def grouped(groups: dict[str, int], model: ModelSpec = LLAMA, shares: tuple[int, ...] = ()) -> Launch:
    """A plan of unlike groups, as it is read from a plan file."""
    launches = [launch_of(text, model, batch=samples) for text, samples in groups.items()]
    whole = replace(launches[0].workload, global_batch=sum(groups.values()))
    meshes = tuple(mesh for launch in launches for mesh in launch.meshes)
    return launches[0]._replace(workload=whole, meshes=meshes, groups=tuple(launches), shares=shares)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_unlike_groups_train_as_one_process_does(alone: list[Step], groups: dict[str, int], tmp_path: Path) -> None:
    same(train(tmp_path, grouped(groups)), alone)


def as_jobs(folder: Path, launch: Launch, steps: int) -> list[str]:
    """What each group prints as a job of its own."""
    if not ready("torch"):
        pytest.skip(".venvs/torch could not be made (see make test-frameworks)")
    write(folder, TRAINER.files(launch))
    path = f"{python_of('torch').parent}{os.pathsep}{os.environ['PATH']}"
    for _ in range(3):
        settings = SETTINGS | {"PATH": path, "BRIDGE_PORT": str(free_port())}
        jobs = [
            subprocess.Popen(
                ["bash", str(folder / "job.sh"), str(place), "--lr", "0.01", "--steps", str(steps)], text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=settings | {"MASTER_PORT": str(free_port())},
            )
            for place in range(len(launch.groups))
        ]  # fmt: skip
        ended = [(*job.communicate(timeout=PATIENCE_S), job.returncode) for job in jobs]
        if not any(ABORTED in err for _, err, _ in ended):
            break
    assert [code for *_, code in ended] == [0] * len(jobs), [err[-1500:] for _, err, _ in ended]
    return [out for out, *_ in ended]


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_groups_that_are_jobs_of_their_own_train_as_one_process_does(
    alone: list[Step], groups: dict[str, int], tmp_path: Path
) -> None:
    first, *others = as_jobs(tmp_path, grouped(groups), 3)
    same(steps_of(first), alone)
    assert not any(steps_of(out) for out in others)


# Two workers by themselves for three steps at a time: one process trains them in turn, and PyTorch's own Nesterov
# steps the weights that they began with. Arguments are the two trainers' folder, steps, and the workers' samples.
IN_TURN = """
import os, runpy, sys, torch
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": sys.argv[2]}
sys.argv = [sys.argv[1]]
trainer = runpy.run_path(sys.argv[0])
mesh, shares = trainer["meshes"]()[0], (12, 4)
workers = [trainer["Trainer"](mesh, None, 0.01, "none") for _ in shares]
weights = [dict(worker.stages[0].named_parameters()) for worker in workers]
met = {name: one.detach().to_local().clone() for name, one in weights[0].items()}
outer = torch.optim.SGD(met.values(), lr=0.7, momentum=0.9, nesterov=True)
samples = trainer["Samples"]("", "uint16", 0)
for step in range(8):
    for number, (worker, first, share) in enumerate(zip(workers, (0, shares[0]), shares)):
        rows = torch.stack([samples.sample(step * 16 + first + row) for row in range(share)])
        trainer["Trainer"].gradients.__globals__["MICRO_BATCHES"] = share // 2
        loss, norm = worker.step(rows[:, :-1], rows[:, 1:], trainer["rate_at"](step, 8, 0.01), 1.0)
        print(f"step {step + 1} group {number} loss {loss:.6f} norm {norm:.4f} ", flush=True)
    if step in (2, 5):
        for name, one in met.items():
            one.grad = sum(share / 16 * (one - part[name].detach().to_local()) for share, part in zip(shares, weights))
        outer.step()
        for part in weights:
            for name, one in met.items():
                part[name].detach().to_local().copy_(one)
"""
LOCAL_GROUPS = [
    {"dp2 mbs2 zero3 reshard=always overlap=grad,param": 12, "mbs2 zero0 overlap=grad": 4},
    {"tp2 mbs3 sp zero0 overlap=grad": 12, "pp2 mbs1 zero0 overlap=grad layers=1,3": 4},
    {"dp4 mbs1 zero3 shard2 reshard=always overlap=grad,param": 12, "mbs4 zero0 overlap=grad": 4},
]  # fmt: skip


def local_steps_of(printed: str) -> dict[tuple[int, int], Step]:
    """By step and group."""
    found = re.findall(r"^step (\d+) group (\d+) loss (\S+) norm (\S+) ", printed, re.MULTILINE)
    return {(int(step), int(group)): Step(float(loss), float(norm)) for step, group, loss, norm in found}


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Step]:
    folder = tmp_path_factory.mktemp("in-turn")
    write(folder, TRAINER.files(launch_of(ALONE)))
    if not ready("torch"):
        pytest.skip(".venvs/torch could not be made (see make test-frameworks)")
    command = [str(python_of("torch")), "-c", IN_TURN, str(folder / "train.py"), str(free_port())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=SETTINGS)
    found = local_steps_of(ended.stdout)
    assert len(found) == 16, ended.stderr[-3000:]
    return found


@pytest.mark.parametrize("groups", LOCAL_GROUPS, ids=str)
def test_groups_with_local_steps_train_as_workers_in_turn(
    in_turn: dict[tuple[int, int], Step], groups: dict[str, int], tmp_path: Path
) -> None:
    launch = grouped(groups)._replace(local=3)
    write(tmp_path, TRAINER.files(launch))
    ended = torchrun(tmp_path, launch.gpus, "--lr", "0.01", "--steps", "8")
    found = local_steps_of(ended.stdout)
    assert sorted(found) == sorted(in_turn), ended.stderr[-3000:]
    same([found[at] for at in sorted(found)], [in_turn[at] for at in sorted(found)])


def test_a_line_is_written_at_once_where_python_does_not_buffer(tmp_path: Path) -> None:
    """Or lines of groups run into each other. A datagram is what was written at a time."""
    if not ready("torch"):
        pytest.skip(".venvs/torch could not be made (see make test-frameworks)")
    write(tmp_path, TRAINER.files(launch_of(ALONE)))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    command = [str(python_of("torch")), "-u", str(tmp_path / "train.py"), "--steps", "2"]
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with here, there:
        ended = subprocess.run(
            command,
            env=SETTINGS | alone,
            timeout=PATIENCE_S,
            check=False,
            stdout=there.fileno(),
            stderr=subprocess.PIPE,
        )
        assert ended.returncode == 0 or ABORTED.encode() in ended.stderr, ended.stderr[-3000:]
        here.setblocking(False)  # all is there: nobody says of datagrams that no more will come
        written = list[str]()
        with suppress(BlockingIOError):
            while True:
                written.append(here.recv(4096).decode())
    assert all(re.fullmatch(r"step \d loss \S+ norm .* GiB\n", line) for line in written), written
    assert len(written) == 2


def test_jobs_with_local_steps_train_as_workers_in_turn(in_turn: dict[tuple[int, int], Step], tmp_path: Path) -> None:
    for place, out in enumerate(as_jobs(tmp_path, grouped(LOCAL_GROUPS[0])._replace(local=3), 8)):
        found = local_steps_of(out)
        same([found[step, place] for step in range(1, 9)], [in_turn[step, place] for step in range(1, 9)])


def test_local_steps_go_on_from_where_weights_met(in_turn: dict[tuple[int, int], Step], tmp_path: Path) -> None:
    launch = grouped(LOCAL_GROUPS[0])._replace(local=3)
    write(tmp_path, TRAINER.files(launch))
    flags, saved = ["--lr", "0.01", "--steps", "8"], tmp_path / "saved"
    torchrun(tmp_path, launch.gpus, *flags, "--save", str(saved), "--save-every", "5")
    assert [path.name for path in saved.iterdir()] == ["step-6"]  # the first meeting after five steps
    ended = torchrun(tmp_path, launch.gpus, *flags, "--load", str(saved / "step-6"))
    found = local_steps_of(ended.stdout)
    assert sorted(found) == [(7, 0), (7, 1), (8, 0), (8, 1)], ended.stderr[-3000:]
    same([found[7, 0], found[7, 1], found[8, 0]], [in_turn[7, 0], in_turn[7, 1], in_turn[8, 0]])


@pytest.mark.parametrize(("groups", "shares"), SHARED, ids=str)
def test_unequal_shares_of_one_state_train_as_one_process_does(
    alone: list[Step], groups: dict[str, int], shares: tuple[int, ...], tmp_path: Path
) -> None:
    same(train(tmp_path, grouped(groups, shares=shares)), alone)


def test_processes_hold_as_much_of_a_state_as_their_shares_say(tmp_path: Path) -> None:
    write(tmp_path, TRAINER.files(grouped({f"dp2 mbs1 {SHARDED}": 4, f"dp3 mbs4 {SHARDED}": 12}, shares=(1, 9))))
    code = "import runpy; print(runpy.run_path('train.py')['cuts'](60_000))"
    ended = subprocess.run(
        [str(python_of("torch")), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(ended.stdout) == [
        (0, 3000), (3000, 6000), (6000, 24_000), (24_000, 42_000), (42_000, 60_000),
    ]  # fmt: skip


def test_unequal_shares_of_a_tied_model_and_their_checkpoint(tmp_path: Path) -> None:
    """Written by unequal parts, read by others and by tensor-parallel ranks; matrices alone decay."""
    one, saved = train(tmp_path / "one", launch_of(ALONE, GPT)), tmp_path / "checkpoints"
    first = grouped({f"dp2 mbs1 {SHARDED}": 4, f"dp1 mbs6 {SHARDED}": 12}, GPT, (1, 3))
    every = train(tmp_path / "first", first, "--steps", "3", "--save", str(saved), "--save-every", "2")
    same(every, one)
    others = [
        grouped({f"mbs1 {SHARDED}": 4, f"mbs3 {SHARDED}": 12}, GPT, (0, 1)),
        launch_of("tp2 mbs4 sp zero0 overlap=grad", GPT),
    ]
    for number, then in enumerate(others):
        same(train(tmp_path / str(number), then, "--steps", "3", "--load", str(saved / "step-2")), one[2:])


def test_unequal_shares_compiled_have_the_same_gradients(alone: list[Step], tmp_path: Path) -> None:
    launch = grouped({f"mbs1 recompute=full {SHARDED}": 4, f"mbs3 {SHARDED}": 12}, shares=(1, 2))
    same(train(tmp_path, launch, "--steps", "3", "--compile", "aot_eager"), alone)


def test_unlike_groups_of_a_tied_model(tmp_path: Path) -> None:
    one = train(tmp_path / "one", launch_of(ALONE, GPT))
    groups = {"tp2 mbs3 sp zero0 overlap=grad": 9, "dp1 mbs7 zero0 overlap=grad": 7}
    same(train(tmp_path / "groups", grouped(groups, GPT)), one)


def test_a_checkpoint_of_groups_goes_on_in_others(alone: list[Step], tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints"
    first = grouped({"tp2 mbs3 sp zero0 overlap=grad": 12, "pp2 mbs1 zero0 overlap=grad layers=1,3": 4})
    train(tmp_path / "first", first, "--steps", "3", "--save", str(saved), "--save-every", "2")
    then = grouped({"dp2 mbs2 zero0 overlap=grad": 4, "mbs4 zero0 overlap=grad": 12})
    same(train(tmp_path / "then", then, "--steps", "3", "--load", str(saved / "step-2")), alone[2:])


@pytest.mark.parametrize("model", [GPT, QWEN], ids=["gpt", "qwen"])
def test_every_part_of_a_model_is_split_alike(model: ModelSpec, tmp_path: Path) -> None:
    one = train(tmp_path / "one", launch_of(ALONE, model))
    for number, strategy in enumerate(("tp2 mbs4 sp zero0 overlap=grad", "tp2 dp2 mbs2 zero3 overlap=grad,param")):
        same(train(tmp_path / str(number), launch_of(strategy, model)), one)


def test_compiled_layers_have_the_same_gradients(alone: list[Step], tmp_path: Path) -> None:
    strategy = "tp2 mbs4 sp zero0 overlap=grad recompute=full"
    same(train(tmp_path, launch_of(strategy), "--steps", "3", "--compile", "aot_eager"), alone)


def test_a_checkpoint_goes_on_under_another_plan(alone: list[Step], tmp_path: Path) -> None:
    """Written by a pipeline of tensor-parallel ranks, read by sharded replicas."""
    saved = tmp_path / "checkpoints"
    first = launch_of("tp2 pp2 mbs2 sp zero0 overlap=grad layers=3,1")
    train(tmp_path / "first", first, "--steps", "3", "--save", str(saved), "--save-every", "2")
    then = launch_of("dp2 mbs2 zero3 overlap=grad,param")
    same(train(tmp_path / "then", then, "--steps", "3", "--load", str(saved / "step-2")), alone[2:])


@pytest.mark.parametrize(("kind", "code"), [("uint16", "H"), ("uint32", "I")])
def test_it_learns_a_file_of_tokens_in_bf16(kind: str, code: str, tmp_path: Path) -> None:
    """Of three tokens that follow each other little is left to guess after a dozen steps."""
    path = tmp_path / "tokens.bin"
    path.write_bytes(array.array(code, [place % 3 for place in range(5000)]).tobytes())
    flags = ("--steps", "12", "--data", str(path), "--token-type", kind)
    steps = train(tmp_path, launch_of("dp2 mbs2 zero3 overlap=grad,param", precision="bf16"), *flags)
    assert steps[0].loss == pytest.approx(math.log(LLAMA.vocab), rel=0.05)
    assert steps[-1].loss < math.log(3)


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, TRAINER.files(launch_of("tp2 mbs4 sp zero0 overlap=grad")))
    ended = torchrun(tmp_path, 1)
    assert ended.returncode != 0
    assert "This plan is for 2 processes (tp 2 x pp 1 x dp 1), but 1 were started." in ended.stderr
