"""The PyTorch trainer as text: the plan is its first constants, and they read back. Running it is in frameworks."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from astra.catalog import runtimes
from astra.catalog.models import model, model_names
from astra.errors import InputError
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals, template
from astra.export.pytorch import constants, program, template_names
from astra.rules.can import unable
from astra.search.detail import legality
from astra.spec.strategy import Strategy
from tests.export.launching import given as planned
from tests.export.launching import import_text, job_of, launched
from tests.tiers import drawn

TRAINER = EXPORTERS["pytorch"]
MODELS = ("llama-3.1-8b", "llama-3.2-3b", "qwen3-8b", "qwen2.5-7b", "gpt-2-xl", "mpt-7b", "megatron-7.5b", "phi-4")
PLAN = "tp2 pp2 dp4 mbs1 sp zero3 overlap=grad,param reshard=never"
degrees = st.sampled_from([1, 2, 4])


@st.composite
def launches(draw: Any) -> Launch:
    """Legal plans of the trainer; every field it has is drawn."""
    precision: Any = draw(st.sampled_from(["bf16", "tf32"]))
    name = draw(st.sampled_from(MODELS))
    job = job_of(name, "64xH100", seq=1024, batch=768, precision=precision, runtime="pytorch")
    tp, pp = draw(degrees), draw(degrees)
    vp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    zero, recompute = draw(st.sampled_from([0, 3])), draw(st.sampled_from(["none", "full"]))
    overlap = ("grad", *(["param"] if zero else []), *(["p2p"] if vp > 1 else []))
    schedule: Any = "interleaved" if vp > 1 else draw(st.sampled_from(["1f1b", "gpipe"])) if pp > 1 else "1f1b"
    strategy = Strategy(
        tp=tp, pp=pp, vp=vp, dp=64 // (tp * pp), mbs=draw(st.sampled_from([1, 2, 3])), zero=zero, recompute=recompute,
        sp=tp > 1 and draw(st.booleans()), schedule=schedule, overlap=overlap,
        reshard=draw(st.sampled_from(["always", "never"])) if zero else "always",
        shard=draw(st.sampled_from([0, 0, 2])) if zero else 0,
    )  # fmt: skip
    assume(not legality(job, strategy))
    launch = launched(job, strategy)
    if pp > 1 and draw(st.booleans()):
        uneven = (launch.layers[0] - 1, *launch.layers[1:-1], launch.layers[-1] + 1)
        launch = launched(job, replace(strategy, layers=uneven))
    return launch


@drawn(60, few=25, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(launches())
def test_it_reads_back(launch: Launch) -> None:
    assume(not refusals(TRAINER, launch))
    found = import_text(program(launch), name="train.py")
    layers = () if len(set(launch.layers)) == 1 else launch.layers
    assert found.strategy == replace(launch.strategy, layers=layers)
    assert (found.gpus, found.global_batch, found.seq) == (64, 768, 1024)
    assert found.precision == launch.workload.precision
    assert found.model is not None
    beside = ("name", "aliases", "source", "date", "max_seq", "family")
    told: dict[str, Any] = {name: getattr(launch.model, name) for name in beside}
    assert replace(found.model, **told) == launch.model


def test_every_constant_is_of_the_plan_and_every_value_has_its_line() -> None:
    launch = planned("llama-3.1-8b", "16xH100", PLAN, batch=128, runtime="pytorch")
    assert list(constants(launch)) == list(template_names())
    assert "mypy" not in program(launch)


def test_the_program_is_the_same_for_every_plan() -> None:
    """Between plans only constants change."""
    one = planned("llama-3.1-8b", "16xH100", PLAN, batch=128, runtime="pytorch")
    other = planned("gpt-2-xl", "8xH100", "dp8 mbs2 zero0", batch=128, seq=512, runtime="pytorch")
    assert body(program(one)) == body(program(other))


def body(text: str) -> list[str]:
    names = set(template_names())
    nodes = ast.parse(text).body
    return [
        ast.dump(node)
        for node in nodes
        if not (isinstance(node, ast.Assign | ast.AnnAssign) and names & {ast.unparse(t) for t in targets(node)})
    ]


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def test_who_is_trained() -> None:
    """Dense decoders of the usual blocks; each model that is not is refused in a sentence."""
    runtime, able = runtimes.runtime("pytorch"), set()
    for name in model_names():
        shape = model(name)
        work = replace(job_of("llama-2-7b", "8xH100").workload, seq=min(512, shape.max_seq))
        if not unable(runtime, shape, work):
            able.add(name)
    assert {"llama-3.1-405b", "llama-3.2-1b", "qwen2.5-72b", "qwen3-32b", "phi-4", "gpt-2", "gpt-3-175b"} <= able
    assert not able & {
        "mixtral-8x7b",
        "deepseek-v3",
        "gemma-3-27b",
        "bert-base",
        "t5-11b",
        "mistral-7b-v0.1",
        "bloom-176b",
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("TP = 2", "TP = 'two'"),
        ("TP = 2", "TP = -2"),
        ("TP = 2", "TP = True"),
        ("ZERO = 3", "ZERO = 4"),
        ("LAYERS = (16, 16)", "LAYERS = (16, 16, 16)"),
        ("LAYERS = (16, 16)", "LAYERS = [16, '16']"),
        ("LAYERS = (16, 16)", "LAYERS = ()"),
        ("SCHEDULE = '1f1b'", "SCHEDULE = '1b1f'"),
        ("KV_HEADS = 8", "KV_HEADS = 5"),
        ("HIDDEN = 4096", "HIDDEN = None"),
        ("SEQ = 8192", "SEQ = 10**9"),
        ("PRECISION = 'bf16'", "PRECISION = 'int1'"),
        ("'base': 500000.0", "'basis': 500000.0"),
    ],
)
def test_a_changed_constant_is_refused_by_name(before: str, after: str) -> None:
    text = program(planned("llama-3.1-8b", "16xH100", PLAN, batch=128, seq=8192, runtime="pytorch"))
    assert before in text
    with pytest.raises(InputError, match=r"train\.py"):
        import_text(text.replace(before, after), name="train.py")


@pytest.mark.parametrize("asked", [["check"], ["format", "--check"]])
def test_the_template_is_linted_as_our_own_code_is(asked: list[str]) -> None:
    command = [sys.executable, "-m", "ruff", *asked, "--stdin-filename", "src/astra/export/data/train.py", "-"]
    found = subprocess.run(command, input=template("train.py.in"), text=True, capture_output=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
