"""Files that are no files, without end, or that grow when they are read: a sentence each, soon and in little memory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.errors import InputError
from astra.export.bash_run import ways
from astra.export.import_megatron import layout_layers
from astra.export.import_megatron_model import pattern_shape
from astra.files import LIMITS, parse_json, parse_toml, read_text
from tests.files.odd import ESTIMATE, PRICES, plans

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes, devices and limits of memory are POSIX's")

CHILD = Path(__file__).with_name("child.py")
HEAD = "torchrun --nproc-per-node 8 p.py --micro-batch-size 1 --num-layers 32 "
SHAPE = HEAD + "--hidden-size 64 --num-attention-heads 2 --vocab-size 100 --num-experts 8 "
IMPORT = ("import", "FILE", "--gpus", "8")
ON = ("--gpus", "8xH100")
CLUSTER = (*ESTIMATE, "--cluster", "FILE")
MODEL = ("model", "FILE")
# Each: the file's name, its content, and the command that reads it.
ODD: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dotted keys": ("c.toml", "a." * 20_000 + "a = 1", CLUSTER),
    "dotted keys of a model": ("m.toml", "[" + '"a" . ' * 8_000 + "a]", MODEL),
    "dotted keys of torchtitan": ("t.toml", "a." * 20_000 + "a = 1", IMPORT),
    "brackets in a cluster": ("c.toml", "a = " + "[" * 40_000, CLUSTER),
    "brackets in torchtitan": ("t.toml", "a = " + "{a=" * 40_000, IMPORT),
    "brackets in DeepSpeed": ("d.json", "[" * 100_000, IMPORT),
    "brackets below the parser's own limit": ("m.json", '{"model_type": ' + "[" * 900 + "]" * 900 + "}", MODEL),
    "brackets in a plan": ("p.json", '{"a":' * 20_000, ("export", "FILE", "--to", "megatron")),
    "brackets in a rule": ("r.rules", "(" * 1_000 + "tp" + ")" * 1_000 + " > 1", (*ESTIMATE, *ON, "--rules", "FILE")),
    "brackets in Python": ("t.py", "config.activation_checkpoint = " + "-" * 5_000 + "1", IMPORT),
    "sums in Python": ("t.py", "config.activation_checkpoint = " + "f(1)." * 2_000 + "x", IMPORT),
    "a field beyond csv's limit": ("p.csv", "a" * 200_000, ("prices", "import", "FILE")),
    "a quoted field without end": ("p.csv", PRICES + '"' + "a,\n" * 100_000, ("prices", "import", "FILE")),
    "a list of GPUs nobody knows": (
        "vms.csv",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
        + "".join(f"i{number},Gpu{number}x,8,1.0,,r\n" for number in range(15_000)),
        ("prices", "import", "FILE"),
    ),
    "digits in DeepSpeed": ("d.json", '{"train_micro_batch_size_per_gpu": ' + "9" * 5_000 + "}", IMPORT),
    "digits in torchtitan": ("t.toml", f"[parallelism]\ntensor_parallel_degree = {'9' * 5_000}", IMPORT),
    "hexadecimal digits": ("t.toml", f"[parallelism]\ntensor_parallel_degree = 0x{'f' * 5_000}", IMPORT),
    "digits in Python": ("t.py", f"config.parallelism.tensor_parallel_degree = 0x{'f' * 9_999}", IMPORT),
    "digits in a pattern": ("x.sh", f"{SHAPE} --moe-layer-freq {'9' * 5_000}", IMPORT),
    "a power as a pattern": ("x.sh", f"{SHAPE} --moe-layer-freq ²", IMPORT),
    "a power as a window": ("x.sh", f"{SHAPE} --window-size ²,0", IMPORT),
    "a power as GPUs": ("x.sh", HEAD, ("import", "FILE", "--gpus", "²")),
    "digits as GPUs": ("x.sh", HEAD, ("import", "FILE", "--gpus", "9" * 5_000)),
    "patterns of patterns": ("x.sh", f"{SHAPE} --moe-layer-freq ([1]*9999)*9999*9999*9999", IMPORT),
    "a pipeline beyond memory": (
        "x.sh",
        f"{HEAD} --pipeline-model-parallel-size 999999999 --nnodes 999999999 --nproc-per-node 999999999",
        ("import", "FILE"),
    ),
    "chunks beyond memory": (
        "x.sh",
        f"{HEAD} --pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 999999999999",
        IMPORT,
    ),
    "no GPUs": ("x.sh", f"{HEAD} --tensor-model-parallel-size 0", IMPORT),
    "no heads": ("x.sh", SHAPE.replace("heads 2", "heads 0"), IMPORT),
    "nested defaults": ("x.sh", 'A="' + "${a:-" * 5_000 + "}" * 5_000 + '"\n' + HEAD, IMPORT),
    "nested defaults without end": ("x.sh", 'A="' + "${a:-" * 20_000 + '"\n' + HEAD, IMPORT),
    "a sum that grows": ("x.sh", "A=" + "1" * 50_000 + "\nB=$((" + "A " * 20_000 + "))\n", IMPORT),
    "a word that doubles": ("x.sh", "A=" + "a" * 50_000 + '\nB="' + "$A" * 30_000 + '"\n' + HEAD, IMPORT),
    "words that double": ("x.sh", 'A=("" "")\n' + 'A+=("${A[@]}")\n' * 60 + HEAD, IMPORT),
    "layouts that grow": ("x.sh", f"{HEAD} --pipeline-model-parallel-layout '({'t' * 9_000})*9999'", IMPORT),
    "a word of 600 kB": ("x.sh", "a" * 600_000, IMPORT),
    "a word as long as may be": ("x.sh", "a" * 130_000, IMPORT),
    "hashes": ("x.sh", "a#" * 65_000, IMPORT),
    "text where a table is meant": ("t.toml", 'model = "x"\n[parallelism]\ntensor_parallel_degree = 1', IMPORT),
    "a plan that is too large": ("p.json", " " * (9 * 2**20), ("export", "FILE", "--to", "megatron")),
    "a plan of empty lists": ("p.json", "[" + "[]," * 2_000_000, ("export", "FILE", "--to", "megatron")),
}  # fmt: skip
READERS = (
    ("import", "PLACE"),
    ("export", "PLACE", "--to", "megatron"),
    ("rehearse", "PLACE"),
    ("estimate", "llama-2-7b", "--from", "PLACE", *ON),
    (*ESTIMATE, "--cluster", "PLACE"),
    (*ESTIMATE, *ON, "--rules", "PLACE"),
    ("model", "PLACE"),
    ("prices", "check", "PLACE"),
    ("prices", "import", "PLACE"),
    ("validate", "PLACE"),
)


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """Paths that lead to no regular file; short ones, for the sake of the socket."""
    folder = Path(tempfile.mkdtemp())
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")
    found = {name: str(folder / name) for name in ("pipe", "folder", "dangling", "loop")}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    yield found | {"socket": str(folder / "socket"), "zero": "/dev/zero", "too long": "x/" * 3000}
    shutil.rmtree(folder)


def answers(commands: list[list[str]]) -> list[dict[str, Any]]:
    """What becomes of commands in a process with little memory."""
    source = Path(astra.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, str(CHILD)], input=json.dumps(commands), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(source), "OPENBLAS_NUM_THREADS": "1"}, timeout=900,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def faults(commands: dict[str, list[str]]) -> list[str]:
    """The commands that got no sentence of ours, or no answer in the seconds the child gives, or took 200 MB."""
    found = zip(commands, answers(list(commands.values())), strict=True)
    return [
        f"{name}: {answer}"
        for name, answer in found
        if answer["code"] not in (2, 0) or "internal" in answer["said"] or answer["mib"] > 200
    ]


def test_places_that_hold_no_file(places: dict[str, str]) -> None:
    commands = {
        f"{reader[0]} of {name}": [place if word == "PLACE" else word for word in reader]
        for name, place in places.items()
        for reader in READERS
    }
    assert faults(commands) == []


def test_content_that_grows(tmp_path: Path) -> None:
    commands = {}
    for number, (name, (file, content, command)) in enumerate(ODD.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / file).write_text(content, encoding="utf-8")
        commands[name] = [str(folder / file) if word == "FILE" else word for word in command]
    assert faults(commands) == []


def test_a_file_without_end_behind_a_regular_name(tmp_path: Path) -> None:
    sparse = tmp_path / "plan.json"
    with sparse.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(InputError, match="at most 8 MiB"):
        read_text(sparse, "plan")


@pytest.mark.parametrize("kind", LIMITS)
def test_each_kind_has_its_limit(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"#" * LIMITS[kind].most_bytes)
    assert len(read_text(path, kind)) == LIMITS[kind].most_bytes
    path.write_bytes(b"#" * (LIMITS[kind].most_bytes + 1))
    with pytest.raises(InputError, match=f"{LIMITS[kind].what} of at most"):
        read_text(path, kind)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read anything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(InputError, match="ermission denied"):
        read_text(path, "rules")


def test_the_place_of_a_fault_is_named() -> None:
    with pytest.raises(InputError, match=r"^x: a\[1\]: b: .*18 digits"):
        parse_json('{"a": [1, {"b": 99999999999999999999999}]}', "x")
    with pytest.raises(InputError, match="line 2, column 2"):
        parse_json('{"a": 1,\n }', "x")
    with pytest.raises(InputError, match="16 parts"):
        parse_toml("[" + ".".join("a" * 30) + "]", "x")


@pytest.mark.parametrize(
    "text",
    [
        "a = '''.....................'''",
        'a = "....................."  # ....................',
        "a = [[[1]]]\nb.c.d = 1.5",
    ],
)
def test_dots_and_brackets_in_text_are_no_nesting(text: str) -> None:
    assert "a" in parse_toml(text, "x")


def test_growth_is_counted_before_it_is_made() -> None:
    with pytest.raises(InputError, match="beyond reason"):
        ways("A=" + "a" * 1000 + '\nB="' + "$A" * 40_000 + '"')[0]
    with pytest.raises(InputError, match="inside each other"):
        ways("A=" + "${a:-" * 30 + "}" * 30)[0]
    with pytest.raises(InputError, match="fewer layers"):
        layout_layers("(t|)*9999" * 1000)
    with pytest.raises(InputError, match="10,000 layers"):
        pattern_shape("[1]*9999*9999*9999")


def test_an_edited_plan_of_several_pools_is_refused_with_a_sentence(tmp_path: Path) -> None:
    record = json.loads(plans()["several"])
    for number, edit in enumerate(
        ({"request": 5}, {"plans": [5, *record["plans"]]}, {"plans": [{}, *record["plans"]]})
    ):
        (tmp_path / f"{number}.json").write_text(json.dumps(record | edit), encoding="utf-8")
    commands = {
        str(number): [
            "export",
            str(tmp_path / f"{number}.json"),
            "--to",
            "deepspeed",
            "--nearest",
            "--out",
            str(tmp_path / "out"),
        ]
        for number in range(3)
    }
    assert faults(commands) == []
