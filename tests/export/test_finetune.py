"""A plan that fine-tunes never starts from random weights, wherever it goes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from astra.catalog import runtimes
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from tests.export.launching import given, run_script, write

# What names the weights, and the file that cannot do without it; the script of launchers is the framework's own.
WEIGHTS = {
    "megatron": ("PRETRAINED_CHECKPOINT", "launch.sh"),
    "megatron-bridge": ("PRETRAINED_CHECKPOINT", "launch.sh"),
    "torchtitan": ("PRETRAINED_CHECKPOINT", "launch.sh"),
    "deepspeed": ("MODEL", "launch.sh"),
    "accelerate": ("MODEL", "launch.sh"),
    "flagscale": ("PRETRAINED_CHECKPOINT", "train.yaml"),
    "slurm": ("PRETRAINED_CHECKPOINT", "launch.sh"),
    "skypilot": ("PRETRAINED_CHECKPOINT", "launch.sh"),
    "kubernetes": ("PRETRAINED_CHECKPOINT", "launch.sh"),
}
STRATEGY = {"torchtitan": "dp16 mbs1 zero3", "accelerate": "dp16 mbs1 zero3"}


def tuned(target: str) -> Launch:
    runtime = EXPORTERS[target].runtime or "megatron"
    return given("llama-3.1-8b", "16xH100", STRATEGY.get(target, "dp16 mbs1 zero1"), batch=64, seq=4096,
                 runtime=runtime, task="finetune")  # fmt: skip


@pytest.mark.parametrize("target", sorted(EXPORTERS))
def test_weights_are_asked_for_or_the_plan_is_refused(target: str, tmp_path: Path) -> None:
    launch = tuned(target)
    if target not in WEIGHTS:
        assert any("does not fine-tune here" in reason for reason in refusals(EXPORTERS[target], launch))
        return
    assert refusals(EXPORTERS[target], launch) == []
    name, file = WEIGHTS[target]
    files = EXPORTERS[target].files(launch)
    assert f"`{name}`" in files["README.md"]
    if file == "train.yaml":
        assert f'pretrained_checkpoint: "${{oc.env:{name}}}"' in files[file]
        return
    folder = write(tmp_path, files)
    with pytest.raises(subprocess.CalledProcessError) as stopped:
        run_script(folder)
    assert name in stopped.value.stderr
    started = run_script(folder, **{name: "/weights"})
    assert started.env[name] == "/weights" or "/weights" in started.argv


def test_every_runtime_that_fine_tunes_is_looked_at() -> None:
    able = [runtimes.runtime(name) for name in runtimes.runtime_names()]
    targets = {one.exports_to for one in able if "finetune" in one.can.tasks and one.exports_to}
    assert targets <= set(WEIGHTS)


def test_samples_that_a_plan_counts_on_as_packed_are_left_to_the_user() -> None:
    whole, packed = (
        given("llama-3.1-8b", "16xH100", "dp16 mbs1 zero1", batch=64, seq=4096, task="finetune", packed=tokens)
        for tokens in (0, 1024)
    )
    readme = EXPORTERS["megatron"].files(packed)["README.md"]
    assert "packed of samples of 1,024 tokens that do not see each other" in readme
    assert "packed" not in EXPORTERS["megatron"].files(whole)["README.md"]
