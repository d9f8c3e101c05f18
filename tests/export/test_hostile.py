"""Names that no check has seen, in every field, for every target, on one pool and on two: they stay names."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest
from markdown_it import MarkdownIt

from astra.errors import visible
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from astra.export.flagscale import device_types
from astra.export.quoting import comment, directive, file_name, host_word, markdown, python, shell, yaml
from tests.export import block_yaml
from tests.export.hostile import EVERY_FIELD, HOSTILE, forged, two_pools
from tests.export.launching import given, write
from tests.export.test_contract import PLAIN
from tests.tiers import sampled

TARGETS: Final = sorted(EXPORTERS)
WORD: Final = "plainname"  # an ordinary name, in the places of the hostile ones
MARKDOWN: Final = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
SEVERAL: Final = ("flagscale", "megatron", "megatron-bridge", "slurm")


def launches(target: str) -> dict[str, Launch]:
    """The plans a target expresses."""
    found = {"one": given("llama-3.1-8b", "16xH100", PLAIN[target], batch=128, seq=4096)}
    if target in SEVERAL:
        found["several"] = two_pools()
    return found


def export(target: str, launch: Launch, places: tuple[tuple[str, str], ...], name: str) -> dict[str, str]:
    """The files, with a name that was not checked."""
    start = "H100-" if target == "skypilot" else ""  # it refuses GPUs it does not know
    made = forged(launch, *(place for place in places if place != ("device", "name")), name=name)
    if ("device", "name") in places:
        made = forged(made, ("device", "name"), name=start + name)
    return EXPORTERS[target].files(made)


def test_targets_for_several_pools_are_these() -> None:
    assert [target for target in TARGETS if refusals(EXPORTERS[target], two_pools()) == []] == list(SEVERAL)


@pytest.mark.parametrize("third", sampled(range(3), every=3))
@pytest.mark.parametrize("place", EVERY_FIELD, ids=".".join)
@pytest.mark.parametrize("target", TARGETS)
def test_a_name_changes_no_syntax(target: str, place: tuple[str, str], third: int) -> None:
    """A third of the names, other ones in the next field."""
    for launch in launches(target).values():
        usual = export(target, launch, (place,), WORD)
        for name in HOSTILE[(EVERY_FIELD.index(place) + third) % 3 :: 3]:
            files = export(target, launch, (place,), name)
            assert list(files) == list(usual)
            for file, text in files.items():
                if text != usual[file]:
                    same_but_for_the_name(file, text, usual[file], name)


def same_but_for_the_name(file: str, text: str, usual: str, name: str) -> None:
    """What a program reads of a file is what it reads of the one with an ordinary name."""
    assert text.encode("utf-8").decode("utf-8") == text
    assert text.replace("\n", "").isprintable(), file
    if file == "README.md":
        read_alike(text, usual, name)
    elif file.endswith(".yaml"):
        data_alike(read_yaml(text), usual_yaml(usual), name)
    elif file.endswith(".json"):
        assert json.loads(text) == json.loads(usual)
    elif file.endswith(".py"):
        assert compile(text.encode(), file, "exec") == usual_code(usual, file)
    elif file == "hostfile":
        lines, others = text.splitlines(), usual.splitlines()
        assert [line.split("type=")[0] for line in lines] == [line.split("type=")[0] for line in others]
        assert all(re.fullmatch(r"ADDRESS_\d+ slots=\d+ type=[\w.-]+", line, re.ASCII) for line in lines)
    else:
        assert commands(text) == commands(usual)
        directives = [line for line in text.split("\n") if line.startswith("#SBATCH")]
        assert all(re.fullmatch(r"#SBATCH (hetjob|--[a-z-]+(=[\w.:-]+)?)", line, re.ASCII) for line in directives)
        assert len(directives) == usual.count("\n#SBATCH")


def commands(script: str) -> list[str]:
    """The lines that are no comments."""
    return [line for line in script.split("\n") if not line.startswith("#")]


def read_yaml(text: str) -> Any:
    """The data of a YAML file, by PyYAML as well where it is installed."""
    found = block_yaml.read(text)
    if importlib.util.find_spec("yaml"):
        assert importlib.import_module("yaml").safe_load(text) == found
    return found


def data_alike(found: Any, usual: Any, name: str) -> None:
    """The same data, with the name where the other name was, whole or as the word that a target can read."""
    if isinstance(usual, dict):
        assert list(found) == list(usual)
        for key in usual:
            data_alike(found[key], usual[key], name)
    elif isinstance(usual, list):
        assert len(found) == len(usual)
        for one, other in zip(found, usual, strict=True):
            data_alike(one, other, name)
    elif isinstance(usual, str) and "\n" in usual:
        assert commands(re.sub("(END_OF_FILE_0)_+", r"\1", found)) == commands(usual)
    elif isinstance(usual, str) and WORD in usual:
        assert found in (
            file_name(name),
            *(usual.replace(WORD, said) for said in (name, visible(name), host_word(name))),
        )
    else:
        assert found == usual


def read_alike(text: str, usual: str, name: str) -> None:
    """A reader of Markdown sees the same page with another name."""
    tokens, others, shown = page(text), usual_page(usual), visible(name)
    assert [kind for kind, _ in tokens] == [kind for kind, _ in others]
    for (_, content), (_, other) in zip(tokens, others, strict=True):
        assert content.split() == other.replace(WORD, shown).split()


def page(text: str) -> list[tuple[str, str]]:
    """Every element of a page, with the text it shows."""

    def walk() -> Iterator[tuple[str, str]]:
        for token in MARKDOWN.parse(text):
            if token.type != "inline":
                yield token.type, token.content
                continue
            shown = ""
            for child in token.children or []:
                if child.type in ("text", "text_special"):
                    shown += child.content
                    continue
                yield "text", shown
                yield child.type, child.content
                shown = ""
            yield "text", shown

    return list(walk())


# The files with an ordinary name are compared with those of every hostile one, and read once.
usual_yaml, usual_page = cache(read_yaml), cache(page)


@cache
def usual_code(text: str, file: str) -> CodeType:
    """What Python makes of a file: names, constants and operations, by line."""
    return compile(text.encode(), file, "exec")


STUBS: Final = ("torchrun", "accelerate", "deepspeed", "srun", "scontrol", "git")


@pytest.mark.parametrize("target", TARGETS)
def test_a_real_shell_runs_nothing_of_a_name(target: str, tmp_path: Path) -> None:
    """All names are hostile at once; the scripts run with stand-ins for the programs they start."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in STUBS:
        (tools / tool).write_text('#!/bin/sh\necho "$0" >> started\n', encoding="utf-8")
        (tools / tool).chmod(0o755)
    scripts = []
    for count, launch in launches(target).items():
        for number, name in enumerate(HOSTILE):
            folder = write(tmp_path / f"{count}-{number}", export(target, launch, EVERY_FIELD, name))
            if (folder / "trainjob.yaml").exists():
                job = block_yaml.read((folder / "trainjob.yaml").read_text(encoding="utf-8"))
                carried = job["spec"]["trainer"]["args"][0].replace("$$(", "$(")
                (folder / "pod.sh").write_text(carried.replace("/tmp/plan", f"{folder}/pod"), encoding="utf-8")
            scripts += [folder / file for file in ("launch.sh", "job.sbatch", "pod.sh") if (folder / file).exists()]
    run_all(scripts, tools, tmp_path)
    assert not list(tmp_path.rglob("PWNED"))
    for script in scripts:
        assert list(script.parent.rglob("started"))
        if script.name == "pod.sh":
            assert (script.parent / "pod/launch.sh").read_bytes() == (script.parent / "launch.sh").read_bytes()


def run_all(scripts: list[Path], tools: Path, home: Path) -> None:
    """Run each script in its folder; one shell starts them all."""
    each = 'for s; do cd "${s%/*}" && SLURM_SUBMIT_DIR="$PWD" bash "$s" || exit 1; done'
    told = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(home), "MEGATRON_DIR": "m", "SLURM_JOB_NODELIST": "n"}
    told |= {"SLURM_JOB_NODELIST_HET_GROUP_0": "n", "TRAIN_SCRIPT": "train.py", "RUN_RECIPE": "run.py"}
    ended = subprocess.run(
        ["bash", "-c", each, "run", *map(str, scripts)],
        env=told,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-500:]


def test_different_gpus_have_different_words() -> None:
    launch = two_pools()
    first, second = launch.meshes
    names = ("模", "型")
    meshes = []
    for mesh, name in zip((first, second, first), (*names, names[0]), strict=True):
        meshes.append(forged(launch._replace(meshes=(mesh,)), ("device", "name"), name=name).meshes[0])
    assert device_types(launch._replace(meshes=tuple(meshes))) == ["gpu", "gpu-2", "gpu"]


def test_bash_reads_back_every_word() -> None:
    names = [name for name in HOSTILE if "\0" not in name and name != "\ud800"]
    script = "printf '%s\\0' " + " ".join(shell(name) for name in names)
    assert "\n" not in script
    ended = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=300)
    assert ended.stdout.decode("utf-8").split("\0")[:-1] == names


@pytest.mark.parametrize("name", HOSTILE)
def test_each_language_reads_back_the_name(name: str) -> None:
    assert ast.literal_eval(python(name)) == name
    assert ast.literal_eval(python([name, {name: 1}])) == [name, {name: 1}]
    value = {"a": name, name: [1, name, {"c": [name]}], "text": f"x {name}\ny\n", "empty": [], "none": None, "on": True}
    if name != "\ud800":  # no character of YAML
        assert read_yaml(yaml(value)) == value
    assert comment(name).split("\n") == [f"# {visible(name)}"]
    assert re.fullmatch(r"#SBATCH --x=[\w.:-]+", directive("x", name), re.ASCII)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", host_word(name))
    shown = page(f"# {markdown(name)} end\n")
    assert [kind for kind, _ in shown] == ["heading_open", "text", "heading_close"]
    assert shown[1][1].split() == f"{visible(name)} end".split()
