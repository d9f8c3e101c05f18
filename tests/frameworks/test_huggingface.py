"""The training script beside Accelerate's and DeepSpeed's files really trains: a tiny model, on a CPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from astra.export import EXPORTERS
from astra.export.base import refusals
from tests.export.launching import given, run_script, write
from tests.frameworks.install import python_of, ready

# Kernels of old CPUs: some machines say they have bf16 instructions and do not.
OLD_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"}
TINY = """\
from transformers import LlamaConfig, LlamaForCausalLM
shape = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
LlamaForCausalLM(shape).save_pretrained("tiny")
"""


def python(folder: Path, *arguments: str, **env: str) -> str:
    settings = {**os.environ, **OLD_CPU, "PYTHONPATH": "", **env}
    command = [str(python_of("huggingface")), *arguments]
    ran = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize(
    ("target", "runtime", "task"),
    [
        ("accelerate", "fsdp-eager", "pretrain"),
        ("accelerate", "fsdp-eager", "finetune"),
        ("accelerate", "fsdp-eager", "lora"),
        ("deepspeed", "deepspeed", "lora"),
    ],
)
def test_trains(tmp_path: Path, target: str, runtime: str, task: str) -> None:
    if not ready("huggingface"):
        pytest.skip(".venvs/huggingface could not be made (see make test-frameworks)")
    launch = given(
        "llama-2-7b", "8xH100", "dp8 mbs1 zero3 recompute=full", batch=16, seq=64, runtime=runtime, task=task
    )
    write(tmp_path, EXPORTERS[target].files(launch))
    python(tmp_path, "-c", TINY)
    started = run_script(tmp_path, MODEL=str(tmp_path / "tiny"))
    names = ("SEQ_LENGTH", "MICRO_BATCH_SIZE", "GRADIENT_ACCUMULATION_STEPS", "MODEL")
    env = {name: started.env[name] for name in names}
    said = python(tmp_path, "train.py", STEPS="2", SAMPLES="8", **env)
    assert "train_loss" in said


# No CPU multiplies torchao's operands: the products are done in fp32 here, and counted.
IN_FP8 = """\
import runpy, torch
calls = []
def product(a, b, *, scale_a, scale_b, bias=None, out_dtype=torch.bfloat16, **_):
    calls.append((a.dtype, scale_a.numel()))
    return ((a.float() * scale_a) @ (b.float() * scale_b)).to(out_dtype)
torch._scaled_mm = product
runpy.run_path("train.py", run_name="__main__")
print("products", len(calls), {str(kind) for kind, _ in calls}, {scales for _, scales in calls})
"""
SETTINGS = """\
import json, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
given = launch_command_parser().parse_args(["--config_file", "accelerate.yaml", "train.py"])
made = prepare_multi_gpu_env(_validate_launch_command(given)[0])
print(json.dumps({name: made[name] for name in made if name.startswith("ACCELERATE_") or name.startswith("FSDP_")}))
"""


def test_fp8_is_what_it_trains_in(tmp_path: Path) -> None:
    """As ``accelerate launch`` sets the script up: its linear layers multiply fp8 operands of one scale each."""
    if not (ready("huggingface") and ready("torchtitan")):
        pytest.skip(".venvs/huggingface or torchtitan could not be made (see make test-frameworks)")
    precision = "fp8-tensorwise"
    launch = given(
        "llama-2-7b", "8xH100", "dp8 mbs1 zero3", batch=16, seq=64, runtime="fsdp-eager", precision=precision
    )
    assert refusals(EXPORTERS["accelerate"], launch) == []
    write(tmp_path, EXPORTERS["accelerate"].files(launch))
    site = next((python_of("torchtitan").parents[1] / "lib").glob("python*/site-packages"))
    for found in site.glob("torchao*"):
        (tmp_path / "ao" / found.name).parent.mkdir(exist_ok=True)
        (tmp_path / "ao" / found.name).symlink_to(found)
    python(tmp_path, "-c", TINY)
    added = {"PYTHONPATH": str(tmp_path / "ao")}
    told = json.loads(python(tmp_path, "-c", SETTINGS, **added).splitlines()[-1])
    assert told["ACCELERATE_MIXED_PRECISION"] == "fp8"
    assert told["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"  # Accelerate refuses it beside torchao
    env = {name: value for name, value in told.items() if name.startswith(("ACCELERATE_FP8", "ACCELERATE_MIXED"))}
    env |= {"SEQ_LENGTH": "64", "MICRO_BATCH_SIZE": "1", "GRADIENT_ACCUMULATION_STEPS": "2", "MODEL": "tiny"}
    said = python(tmp_path, "-c", IN_FP8, STEPS="2", SAMPLES="8", **env, **added)
    assert "train_loss" in said
    assert re.search(r"products \d{2,} .*float8.* \{1\}", said), said[-300:]


def test_without_a_model_nothing_starts(tmp_path: Path) -> None:
    launch = given("llama-2-7b", "8xH100", "dp8 mbs1 zero3", batch=16, runtime="fsdp-eager", task="lora")
    write(tmp_path, EXPORTERS["accelerate"].files(launch))
    with pytest.raises(subprocess.CalledProcessError):
        run_script(tmp_path)
