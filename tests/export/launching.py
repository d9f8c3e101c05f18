"""What the tests of exports share: plans to export, and a look at what a script would really start."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import astra
from astra import api
from astra.export.base import Launch
from astra.export.imported import ImportAsked, ImportedLaunch
from astra.export.imports import read
from astra.export.reading import from_record, launch_of
from astra.search.detail import layers_of
from astra.spec.job import Job
from astra.spec.strategy import Strategy

# Prints the command and the environment it was called with, in place of the real one.
_STAND_IN = """\
#!{python}
import json, os, sys
seen = {{"command": os.path.basename(sys.argv[0]), "argv": sys.argv[1:], "env": dict(os.environ)}}
with open(os.environ["STAND_IN_LOG"], "w") as log:
    json.dump(seen, log)
"""


def import_text(
    text: str, *, name: str, gpus: int | None = None, parameters: Sequence[str] = (), pick: str | None = None,
    vocab: int | None = None,
) -> ImportedLaunch:  # fmt: skip
    """What the content of a file runs, understood by its name's ending."""
    return read(text, ImportAsked(name, gpus, tuple(parameters), pick, vocab))


class Started(NamedTuple):
    """What a script started."""

    command: str
    argv: list[str]
    env: dict[str, str]

    def after(self, ending: str) -> list[str]:
        """The arguments behind the program whose name ends so."""
        place = next(index for index, word in enumerate(self.argv) if word.endswith(ending))
        return self.argv[place + 1 :]


def run_script(folder: Path, name: str = "launch.sh", **env: str) -> Started:
    """Run an exported script with stand-ins for the programs it starts."""
    tools = folder / "stand-ins"
    tools.mkdir(exist_ok=True)
    for tool in ("torchrun", "deepspeed", "accelerate", "srun", "scontrol"):
        path = tools / tool
        path.write_text(_STAND_IN.format(python=sys.executable), encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    log = folder / "stand-ins" / "log.json"
    settings = {"PATH": f"{tools}:{os.environ['PATH']}", "STAND_IN_LOG": str(log), "HOME": str(folder), **env}
    subprocess.run(["bash", str(folder / name)], check=True, capture_output=True, text=True, env=settings, timeout=300)
    seen = json.loads(log.read_text(encoding="utf-8"))
    return Started(seen["command"], seen["argv"], seen["env"])


def write(folder: Path, files: dict[str, str]) -> Path:
    """Put an export on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def planned(model: str, gpus: str, **request: Any) -> tuple[Launch, Job]:
    """The best plan, as read back from its JSON."""
    record = json.loads(astra.plan(model, gpus=gpus, top=1, **request).to_json())
    launch, job = from_record(record)
    assert job is not None
    return launch, job


def given(model: str, gpus: str, strategy: str, **request: Any) -> Launch:
    """A strategy of our own, ready to be exported; nothing is searched."""
    job = job_of(model, gpus, **request)
    return launched(job, job.strategy(strategy))


def job_of(model: str, gpus: str, **request: Any) -> Job:
    """A job on catalog GPUs."""
    names: dict[str, Any] = {"cluster": None, "node": None, "batch": 1024, "seq": None, "tokens": None}
    names |= {"precision": "bf16", "optimizer": "adam", "task": "pretrain", "lora_rank": 16, "runtime": "megatron"}
    return api.make_job(model, gpus=gpus, **(names | {"headroom": 0.08} | request))


def launched(job: Job, strategy: Strategy) -> Launch:
    """A strategy of a job, ready to be exported."""
    return launch_of(job, strategy, layers_of(job, strategy), "0.0", 1.0)
