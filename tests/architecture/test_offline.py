"""The core opens no socket, resolves no name and starts no program: nothing is fetched, nothing is told to anybody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import astra
from tests.validate.test_runs import ROW

# An audit hook sees every socket, whoever makes it, also inside of C; it cannot be taken away again.
PROGRAM = """
import contextlib, io, json, sys

seen = []
watched = ("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "subprocess.", "os.system", "os.exec", "os.posix")

def hook(event, args):
    if event.startswith(watched):
        seen.append(event)
        raise PermissionError(event)

sys.addaudithook(hook)
from astra.cli import main
codes = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        codes.append([words[0], main(words), said.getvalue()[-300:]])
import socket
try:
    socket.socket()
except PermissionError:
    seen.remove("socket.__new__")  # this one was ours: the hook works
json.dump({"codes": codes, "seen": seen}, sys.stdout)
"""
ASKED = ("llama-2-7b", "--gpus", "16xH100", "--batch", "64", "--seq", "2048")
SCRIPT = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu --vocab-size 32000 --seq-length 2048 --micro-batch-size 1 \\
  --global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --bf16
"""
VERBS: tuple[tuple[str, ...], ...] = (
    ("plan", *ASKED, "--tokens", "1T", "--out", "plan.json", "--report", "plan.html"),
    ("plan", "llama-2-7b", "--gpus", "8xH100", "--gpus", "8xA100", "--batch", "64", "--seq", "2048"),
    ("estimate", *ASKED, "--strategy", "tp2 dp8 mbs1 sp zero1"),
    ("rent", "llama-3-8b", "--tokens", "1B", "--gpus", "H100", "--max-gpus", "8", "--batch", "64", "--seq", "2048"),
    ("afford", "llama-3.2-1b", "--budget", "100", "--gpus", "H100", "--max-gpus", "8"),
    ("export", "plan.json", "--to", "megatron", "--out", "launch", "--nearest"),
    ("import", "train.sh"),
    ("explain", "plan.json", "--seconds", "0"),
    ("compare", "plan.json", "tp2 dp8 mbs1 sp zero1"),
    ("sweep", "plan.json", "--over", "gpus=16"),
    ("trace", "plan.json", "--out", "step.svg"),
    ("model", "llama-2-7b"),
    ("catalog", "gpus"),
    ("catalog", "prices"),
    ("prices", "check"),
    ("validate", "runs.csv", "-q"),
    ("completion", "bash"),
)


def test_no_verb_of_the_core_opens_a_socket_or_starts_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "runs.csv").write_text(f"{','.join(ROW)}\n{','.join(ROW.values())}\n", encoding="utf-8")
    source = str(Path(astra.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(VERBS), capture_output=True, text=True, check=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": source}, timeout=900,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["seen"] == []
    assert [row for row in found["codes"] if row[1] != 0] == []
