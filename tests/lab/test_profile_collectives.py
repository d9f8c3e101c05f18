"""Collectives of a profile: the plan of groups, real processes where torch is here, and the way into the cost model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astra.catalog import clusters
from astra.catalog.clusters import read_cluster
from astra.errors import InputError
from astra.lab.profile.collectives import OPS, collective_rows, groups
from astra.lab.profile.plan import row_key
from astra.lab.rehearse.here import _there
from astra.network.collectives import collective
from astra.provenance import Source

ROOT = Path(__file__).parents[2]


def test_groups_divide_the_world_and_leave_the_server_once() -> None:
    assert list(groups(8, 8)) == [(2, 1), (4, 1), (8, 1)]
    assert list(groups(16, 8)) == [(2, 1), (4, 1), (8, 1), (16, 1), (2, 8)]
    assert list(groups(6, 6)) == [(2, 1), (6, 1)]
    assert list(groups(1, 1)) == []
    for world, per_node in ((16, 8), (24, 8), (4, 1)):
        assert all(world % (ranks * stride) == 0 for ranks, stride in groups(world, per_node))


def test_rows_are_distinct_and_a_quick_plan_is_part_of_the_full_one() -> None:
    quick, full = (collective_rows(8, 8, quick=quick) for quick in (True, False))
    keys = {row_key(row) for row in full}
    assert len(keys) == len(full)
    assert {row_key(row) for row in quick} < keys
    assert {row["collective"] for row in quick} == set(OPS)


def torch_python() -> str:
    """An interpreter with torch: this one, or that of the framework tests."""
    other = ROOT / ".venvs" / "torch" / "bin" / "python"
    if _there("torch"):
        return sys.executable
    if not other.exists():
        pytest.skip("torch is not installed: collectives between processes were not run")
    return str(other)


def measure(out: Path, processes: int, most_bytes: int) -> dict[str, Any]:
    """Profile collectives between real processes, by gloo."""
    paths = os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path)])
    command = [torch_python(), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m",
               "astra.lab.profile.collectives", "--backend", "gloo", "--quick", "--out", str(out),
               "--most-bytes", str(most_bytes)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    document: dict[str, Any] = json.loads(out.read_text())
    return document


@pytest.mark.exhaustive
def test_real_processes_measure_every_row_once_and_go_on(tmp_path: Path) -> None:
    first = measure(tmp_path / "p.json", 4, 2**12)
    assert first["collectives"]["world"] == 4
    assert len(first["rows"]) == len(collective_rows(4, 4, quick=True, most_bytes=2**12))
    assert all(row["seconds"] > 0 for row in first["rows"])
    second = measure(tmp_path / "p.json", 4, 2**14)
    assert second["rows"][: len(first["rows"])] == first["rows"]  # kept as they were
    assert len(second["rows"]) == len(collective_rows(4, 4, quick=True, most_bytes=2**14))


CLUSTER = """
[[pool]]
gpu = "H100"
node = "ours"
count = 64
[[node]]
name = "ours"
like = "dgx-h100"
profile = "p.json"
"""


def write_profile(
    folder: Path, *, gpu: str = "NVIDIA H100 80GB HBM3", backend: str = "nccl", times: float = 2.0
) -> Path:
    """A cluster whose collectives take ``times`` as long as the catalog says."""
    pool = clusters.parse_gpus("64xH100")
    rows = []
    for row in collective_rows(16, 8, quick=True):
        timed = collective(pool, row["collective"], nbytes=np.array([float(row["bytes"])]),
                           ranks=np.array([row["ranks"]]), stride=np.array([row["stride"]]))  # fmt: skip
        rows.append({"key": row_key(row), **row, "seconds": times * float(timed.seconds[0])})
    head = {"world": 16, "gpus_per_node": 8, "backend": backend, "gpu": gpu}
    (folder / "p.json").write_text(json.dumps({"what": "profile", "collectives": head, "rows": rows}))
    (folder / "c.toml").write_text(CLUSTER)
    return folder / "c.toml"


def test_a_cluster_takes_its_collectives_from_a_profile(tmp_path: Path) -> None:
    plain, pool = clusters.parse_gpus("64xH100"), read_cluster(write_profile(tmp_path)).pools[0]
    sizes = np.array([2.0**10, 3e5, 2.0**28])
    for op in OPS:
        for ranks, stride, source in (
            (8, 1, Source.MEASURED),
            (2, 8, Source.MEASURED),
            (3, 1, Source.INTERPOLATED),
            (64, 1, Source.TRANSFERRED),
        ):
            group = {"nbytes": sizes, "ranks": np.full(3, ranks), "stride": np.full(3, stride)}
            own, catalog = collective(pool, op, **group), collective(plain, op, **group)
            assert own.seconds == pytest.approx(2 * catalog.seconds, rel=1e-6)
            assert (own.source == source).all()
    alone = collective(pool, "all_reduce", nbytes=sizes, ranks=np.ones(3, int), stride=np.ones(3, int))
    assert (alone.seconds == 0).all()


def test_a_size_that_was_measured_takes_what_was_measured(tmp_path: Path) -> None:
    pool = read_cluster(write_profile(tmp_path, times=1.7)).pools[0]
    sweep = next(s for s in pool.node.measured if (s.op, s.ranks, s.stride) == ("all_gather", 4, 1))
    count = len(sweep.nbytes)
    ranks, stride = np.full(count, 4), np.full(count, 1)
    timed = collective(pool, "all_gather", nbytes=np.array(sweep.nbytes), ranks=ranks, stride=stride)
    assert timed.seconds == pytest.approx(sweep.seconds)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, "measured between H100"),
        ({"backend": "gloo"}, "by gloo"),
    ],
)
def test_a_profile_of_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_cluster(write_profile(tmp_path, **changes))


def test_a_profile_of_one_gpu_or_none_at_all_is_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    (tmp_path / "p.json").write_text(json.dumps({"what": "profile", "rows": []}))
    with pytest.raises(InputError, match="one GPU has none"):
        read_cluster(path)
    (tmp_path / "p.json").write_text("not a profile")
    with pytest.raises(InputError, match=r"p\.json: wanted whole JSON"):
        read_cluster(path)
    (tmp_path / "p.json").unlink()
    with pytest.raises(InputError, match="no such file"):
        read_cluster(path)
