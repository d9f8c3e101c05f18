"""Studies on a real Ray, with a worker killed; tables read by pandas, polars and DuckDB."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.install import python_of, ready

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")

STUDY = """\
title = "ray"
models = ["llama-2-7b", "llama-3-70b", "mixtral-8x7b"]
fleets = ["16xH100", ["8xH100", "8xA100-80"], "1xL40S"]
[workloads]
short = { batch = 64, seq = 4096 }
long = { batch = 8, seq = "32k" }
[request]
tokens = "10B"
top = 3
"""
READERS = """
import json, sys, duckdb, pandas, polars
questions, plans = (f"{sys.argv[1]}/{name}.parquet" for name in ("questions", "plans"))
frame, table = pandas.read_parquet(plans), polars.read_parquet(plans)
said = duckdb.sql(f"select count(*), sum(step_s), max(mfu) from '{plans}' where rank = 1").fetchall()[0]
each = f"select unnest(breakdown) as t from '{plans}' where rank = 1"
terms = duckdb.sql(f"select sum(t.seconds) from ({each})").fetchall()[0]
one = frame[frame["rank"] == 1]
two = table.filter(polars.col("rank") == 1)
exploded = two.explode("breakdown").unnest("breakdown")["seconds"].sum()
both = f"'{questions}' q left join '{plans}' p using (question)"
joined = duckdb.sql(f"select count(*) from {both} where p.rank = 1").fetchall()[0]
print(json.dumps({
    "pandas": [len(one), float(one["step_s"].sum()), float(one["mfu"].max())],
    "polars": [len(two), two["step_s"].sum(), two["mfu"].max()],
    "duckdb": list(said), "terms": [terms[0], exploded], "joined": joined[0],
    "questions": [len(pandas.read_parquet(questions)), len(polars.read_parquet(questions))],
}))
"""
CLUSTER = """
import os, sys
said = os.dup(1)
from astra.questions.on_ray import OnRay
import ray
engine = OnRay(2, None)
os.write(said, f"{ray.get_runtime_context().gcs_address}\\n".encode())
sys.stdin.read()
engine.close()
"""
# Clusters ask for a token: this one is ours, for the cluster that a test starts.
SETTINGS = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


@pytest.fixture(scope="module")
def python() -> str:
    if not ready("ray"):
        pytest.skip(".venvs/ray could not be made (see make test-frameworks)")
    return str(python_of("ray"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    (folder / "s.toml").write_text(STUDY)
    return folder


def words(python: str, folder: Path, out: str, *more: str) -> list[str]:
    return [python, "-m", "astra", "study", str(folder / "s.toml"), "--out", str(folder / out), "--json", *more]


def report_of(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800, env=SETTINGS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tables(folder: Path, out: str) -> list[bytes]:
    return [(folder / out / name).read_bytes() for name in ("questions.parquet", "plans.parquet")]


@pytest.fixture(scope="module")
def local(python: str, folder: Path) -> list[bytes]:
    """What processes of this machine answer."""
    report = report_of(words(python, folder, "local", "--workers", "2"))
    assert report["statuses"]["planned"] >= 8
    assert report["statuses"]["no plan"] >= 1
    return tables(folder, "local")


def at_a_question(parent: int) -> list[int]:
    """Workers of Ray that are answering right now, of those that a process started."""
    found, below = [], {parent}
    stats = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stats[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    for _ in range(6):
        below |= {process for process, above in stats.items() if above in below}
    for process in below - {parent}:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::answered"):
                found.append(process)
    return found


def test_ray_answers_the_same_though_a_worker_is_killed(python: str, folder: Path, local: list[bytes]) -> None:
    child = subprocess.Popen(words(python, folder, "ray", "--engine", "ray", "--workers", "2"),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    while not (busy := at_a_question(child.pid)):
        assert child.poll() is None, child.communicate()[1]
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(busy[0], signal.SIGKILL)
    out, err = child.communicate(timeout=1800)
    assert child.returncode == 0, err
    report = json.loads(out)
    assert (report["engine"], report["statuses"]["failed"]) == ("ray", 0)
    assert tables(folder, "ray") == local


@pytest.fixture
def address(python: str) -> Iterator[str]:
    """A cluster that somebody else started."""
    command = [python, "-c", CLUSTER]
    cluster = subprocess.Popen(command, text=True, env=SETTINGS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert cluster.stdout is not None
    yield cluster.stdout.readline().strip()
    cluster.communicate("", timeout=600)


def test_a_study_that_was_killed_goes_on_on_a_cluster_at_an_address(
    python: str, folder: Path, local: list[bytes], address: str
) -> None:
    first = report_of(words(python, folder, "both", "--workers", "2", "--most", "7"))
    assert first["answered"] == 7
    second = report_of(words(python, folder, "both", "--engine", "ray", "--address", address))
    assert (second["before"], second["answered"], second["workers"]) == (7, first["questions"], 2)
    assert tables(folder, "both") == local


def test_three_programs_read_the_same_tables(python: str, folder: Path, local: list[bytes]) -> None:
    done = subprocess.run([python, "-c", READERS, str(folder / "local")], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["pandas"] == pytest.approx(found["polars"], rel=1e-12)
    assert found["pandas"] == pytest.approx(found["duckdb"], rel=1e-12)
    assert found["terms"] == pytest.approx([found["pandas"][1]] * 2, rel=1e-9), "terms add up to the steps"
    assert found["joined"] == found["pandas"][0]
    assert found["questions"] == [18, 18]
