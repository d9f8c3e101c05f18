"""The training script beside Accelerate's and DeepSpeed's files really trains: a tiny model, on a CPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from astra.export import EXPORTERS
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
    ran = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=300)
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


def test_without_a_model_nothing_starts(tmp_path: Path) -> None:
    launch = given("llama-2-7b", "8xH100", "dp8 mbs1 zero3", batch=16, runtime="fsdp-eager", task="lora")
    write(tmp_path, EXPORTERS["accelerate"].files(launch))
    with pytest.raises(subprocess.CalledProcessError):
        run_script(tmp_path)
