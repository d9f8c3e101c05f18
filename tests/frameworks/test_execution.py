"""Plans are executed: two or four CPU processes train as the plan says, and lose exactly what one process loses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.export.reading import from_record, launch_of
from astra.search.detail import layers_of
from astra.spec.model import ModelSpec
from astra.spec.strategy import parse_strategy
from tests.frameworks.install import python_of, ready

TINY = ModelSpec(
    name="tiny", layers=4, hidden=64, ffn=128, heads=4, kv_heads=2, head_dim=16, vocab=96, max_seq=32
)  # fmt: skip
BATCH, SEQ = 16, 32
STRATEGIES = [
    "dp2 mbs2 zero0 overlap=grad",
    "tp2 mbs4 zero0 overlap=grad",
    "pp2 mbs2 zero0 overlap=grad layers=1,3",
    "pp2 vp2 mbs2 zero0 overlap=grad,p2p layers=1,2,1,0",
    "tp2 pp2 mbs2 zero0 overlap=grad layers=3,1",
    "pp2 dp2 mbs1 zero0 overlap=grad layers=1,3",
    "tp2 dp2 mbs2 zero0 overlap=grad",
    "pp4 mbs2 zero0 overlap=grad",
]


def execute(strategy_text: str) -> list[float]:
    """The losses of a plan, run with the degrees that its JSON states."""
    if not ready("torch"):
        pytest.skip(".venvs/torch could not be made (see make test-frameworks)")
    gpus = parse_strategy(strategy_text).gpus
    record = json.loads(astra.plan(TINY, gpus=f"{gpus}xH100", batch=BATCH, seq=SEQ, top=1, forbid=["cp"]).to_json())
    _, job = from_record(record)
    assert job is not None
    strategy = parse_strategy(strategy_text)
    launch = launch_of(job, strategy, layers_of(job, strategy), record["version"], None)
    return run(
        {
            "tp": strategy.tp, "pp": strategy.pp, "dp": strategy.dp, "mbs": strategy.mbs, "schedule": strategy.schedule,
            "layers": list(launch.layers), "microbatches": launch.microbatches, "seq": launch.workload.seq,
        }
    )  # fmt: skip


def run(plan: dict[str, Any]) -> list[float]:
    names = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
    plan |= {"shape": {name: getattr(TINY, name) for name in names}}
    program = Path(__file__).with_name("runner_harness.py")
    ended = subprocess.run(
        [str(python_of("torch")), str(program), json.dumps(plan)],
        capture_output=True, text=True, timeout=900, check=False, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: list[float] = json.loads(ended.stdout.splitlines()[-1])["losses"]
    return found


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return execute("mbs2 zero0 overlap=grad")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_loss(alone: list[float], strategy: str) -> None:
    assert execute(strategy) == pytest.approx(alone, rel=2e-5)


def test_it_learns(alone: list[float]) -> None:
    assert alone[-1] < alone[0]


def test_a_planned_strategy_runs(alone: list[float]) -> None:
    record = json.loads(
        astra.plan(TINY, gpus="4xH100", batch=BATCH, seq=SEQ, top=1, fix=["pp=2", "tp=2", "vp=1", "mbs=2"]).to_json()
    )
    launch, _ = from_record(record)
    strategy = launch.strategy
    losses = run(
        {
            "tp": strategy.tp, "pp": strategy.pp, "dp": strategy.dp, "mbs": strategy.mbs, "schedule": strategy.schedule,
            "layers": list(launch.layers), "microbatches": launch.microbatches, "seq": launch.workload.seq,
        }
    )  # fmt: skip
    assert losses == pytest.approx(alone, rel=2e-5)
