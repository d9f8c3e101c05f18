"""Every command printed in the README, the docs and the help runs as it stands, in a folder with the files it names."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from astra.cli import main, parser, rehearse

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")))
NEEDS_A_GPU = ("profile",)  # read but not run, like a replay of all published runs, which has tests of its own
ROADMAP = 'models = ["llama-3-8b"]\nfleets = ["16xH100"]\n[request]\nbatch = 64\ntop = 1\n'
JOBS = '[pools]\nh100 = "16xH100"\n[jobs.small]\nmodel = "llama-3-8b"\ntokens = "1B"\n[request]\nbatch = 64\n'
SERVES = ("serve",)  # until it is interrupted; tests/serve starts it
NEEDS_TORCH = ("rehearse",)  # run as far as the rank that would be rehearsed
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # fmt: skip
PRICES = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\np5,H100,8,55.0,20.0,us-east-1\n"
RUN = {
    "id": "mine-1", "framework": "megatron", "model_name": "llama2-7b", "layers": 32, "hidden": 4096, "ffn": 11008,
    "heads": 32, "kv_heads": 32, "vocab": 32000, "seq_len": 4096, "gpu_type": "H100-SXM", "num_gpus": 16, "tp": 2,
    "pp": 2, "dp": 4, "mbs": 1, "gbs": 64, "measured_step_time_s": 3.5, "precision": "bf16",
}  # fmt: skip


def commands(text: str, start: str) -> Iterator[str]:
    """Lines that begin as a command, without what is said about them."""
    for line in text.splitlines():
        if re.match(rf"{start}astra [a-z]", line) and "..." not in line:
            for command in line.strip().split(" && "):
                yield re.split(r"\s+#|\s{3,}|(?<=json)\s{2,}|(?<=torch)\s{2,}", command)[0]


def printed() -> list[tuple[str, tuple[str, ...]]]:
    """What each page and each verb prints, in order."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        filled = [re.sub(r" \| first \d+$", "", line) for line in re.findall(r"<!-- run: (astra .*?) -->", text)]
        found.append((page, (*filled, *commands(blocks, ""), *commands(text, "    "))))
    verbs = next(action for action in parser.build()._actions if isinstance(action, argparse._SubParsersAction))
    for name, verb in verbs.choices.items():
        found.append((f"astra {name} --help", tuple(commands(verb.epilog or "", "  "))))
    return [(where, some) for where, some in found if some]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything the examples name; scripts are those Astra writes itself."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "my-model").mkdir()
    for place in (folder, folder / "my-model"):
        (place / "config.json").write_text(json.dumps(CONFIG))
    (folder / "my-cluster.toml").write_text('[[pool]]\ngpu = "H100"\ncount = 64\n')
    for name in ("my.rules", "house-rules.txt", "site.rules"):
        (folder / name).write_text("tp > 8\n")
    (folder / "aws.csv").write_text(PRICES)
    (folder / "roadmap.toml").write_text(ROADMAP)
    (folder / "jobs.toml").write_text(JOBS)
    (folder / "my_runs.csv").write_text(f"{','.join(RUN)}\n{','.join(map(str, RUN.values()))}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        small = ["plan", "llama-3-8b", "--gpus", "64xH100", "--fix", "zero=1", "--fix", "cp=1", "-q"]
        assert main([*small, "--out", "plan.json"]) == 0
        for target in ("megatron", "deepspeed"):
            assert main(["export", "plan.json", "--to", target, "--out", target, "--nearest"]) == 0
        next((folder / "megatron").glob("*.sh")).rename(folder / "train.sh")
        next((folder / "deepspeed").glob("*.json")).rename(folder / "ds_config.json")
    return folder


def runs_here(words: list[str]) -> bool:
    """Whether a command can run in a test."""
    elsewhere = words[0] in NEEDS_A_GPU + SERVES or "ray" in words
    return not elsewhere and (words[0] != "validate" or words[1:2] == ["my_runs.csv"])


def takes_long(words: list[str]) -> bool:
    """Whether a market is planned on, for no later command to read; ``tests/cli/test_rent.py`` has small ones."""
    return words[0] in ("rent", "afford") and "--out" not in words


def run_printed(where: str, command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] in NEEDS_TORCH:
        rehearse.chosen(parser.build().parse_args(words))
    else:
        assert main(words) == 0, f"{where}: {command}\n{capsys.readouterr().err}"


PRINTED = printed()


def cases() -> Iterator[Any]:
    """The quick commands of README and the help in the default run, everything in the other."""
    for where, some in PRINTED:
        if not where.startswith("docs/"):
            yield pytest.param(where, [one for one in some if not takes_long(shlex.split(one)[1:])], id=where)
        yield pytest.param(where, some, id=f"{where}, all", marks=pytest.mark.exhaustive)


def test_every_printed_command_has_flags_that_exist() -> None:
    """Those that need a GPU or a server too."""
    made = parser.build()
    for command in dict.fromkeys(command for _, some in PRINTED for command in some):
        made.parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize(("where", "some"), list(cases()))
def test_printed_commands_run(
    where: str,
    some: Sequence[str],
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "here"))
    for command in dict.fromkeys(some):
        words = shlex.split(command)[1:]
        if runs_here(words):
            run_printed(where, command, words, capsys)
