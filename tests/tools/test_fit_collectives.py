"""The fit finds what made the data, predicts what it did not see, and writes a file the model reads."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError
from astra.network.collectives import OPS
from astra.network.curves import LAST_KNOT_BYTES, CurveRules, Fit, wire_factor
from tools import fit_collectives as fitting
from tools.collectives_data import BROKEN, GPUS, PUBLISHED, Point, read_points, read_runs

SIZES = np.array([512.0 * 2**octave for octave in range(21)])
MADE_WITH = {"a100": (14e-6, 0.75, 0.4), "h100": (8e-6, 0.8, 0.3), "h200": (8e-6, 0.8, 0.3), "b200": (13e-6, 0.75, 0.3)}


def made_points(step: float = 1.0) -> list[Point]:
    """Sweeps from known constants; from 1 MiB up each takes ``step`` times as long, as if NCCL changed protocol."""
    links = {gpu.name: gpu.link_bytes_per_s for gpu in GPUS.values()}
    points = []
    for gpu, (base_s, wire, ramp) in MADE_WITH.items():
        for op in OPS[:4]:
            for ranks in (2, 4, 8):
                x = SIZES * wire_factor(op, ranks)
                form = (base_s * (1 + ranks / 8), 1 / (wire * links[gpu]), ramp)
                seconds = fitting.form_s(form, x) * np.where(SIZES >= 2**20, step, 1.0)
                points += [Point(gpu, op, ranks, *pair) for pair in zip(SIZES.tolist(), seconds.tolist(), strict=True)]
    return points


def write_csv(path: Path, header: str, rows: list[list[object]]) -> str:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header.split(","), *rows])
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("sweeps")
    systems = {gpu.name: system for system, gpu in GPUS.items()}
    sweep: list[list[object]] = [
        [systems[p.gpu], "alltoall" if p.op == "all_to_all" else p.op, p.ranks, p.nbytes, p.seconds * 1e6]
        for p in made_points()
    ]
    sweep.append(["l40s", "all_reduce", 8, 512.0, 1e9])
    logs: list[list[object]] = [
        ["H100-SXM5-80GB (DGX)", 1, 8, "all_reduce", 2**34, "", 360.0, "", "log"],
        ["H100-SXM5-80GB (DGX) NVLS off", 1, 8, "all_reduce", 2**34, "", 1.0, "", "log"],
        ["H100-SXM5-80GB (no size)", 1, 8, "all_reduce", "", "", 1.0, "", "log"],
        ["H100-SXM5-80GB (AWS p5, EFA 3200Gb/s)", 2, 16, "all_reduce", 2**28, "", 300.0, "", "log"],
        ["H100-SXM5-80GB (AWS p5, EFA 3200Gb/s)", 2, 16, "all_reduce", 8, "", 0.0, "", "log"],
        ["V100-SXM (single node)", 1, 8, "all_reduce", 2**20, "", 20.0, "", "log"],
        ["V100-SXM (single node)", 1, 8, "all_reduce", 2**24, "", 90.0, "", "log"],
        ["V100-SXM (single node)", 1, 8, "all_reduce", 2**28, "", 130.0, "", "log"],
    ]
    return (
        write_csv(folder / "sweep.csv", "system,op,ngpu,bytes,us", sweep),
        write_csv(folder / "logs.csv", "gpu,nodes,gpus,collective,bytes,algbw,busbw,latency_us,source", logs),
    )


@given(st.floats(1e-6, 1e-3), st.floats(1e-13, 1e-8), st.floats(0.05, 1.0))
def test_the_form_that_made_the_data_is_found(base_s: float, per_byte: float, ramp: float) -> None:
    x = SIZES * (1e-11 / per_byte)  # so that latency, ramp and rate are all seen
    form = fitting.fit_form(x, fitting.form_s((base_s, per_byte, ramp), x))
    np.testing.assert_allclose(fitting.form_s(form, x), fitting.form_s((base_s, per_byte, ramp), x), rtol=0.01)


@given(st.lists(st.floats(1e-6, 1.0), min_size=8, max_size=8))
def test_no_data_give_negative_constants(seconds: list[float]) -> None:
    rising = np.array(sorted(seconds)) * (1 + 0.1 * np.arange(8))
    base_s, per_byte, ramp = fitting.fit_form(SIZES[::2][:8], rising)
    assert base_s > 0
    assert per_byte > 0
    assert ramp >= 0


def test_protocol_changes_are_learnt_from_the_generation() -> None:
    points = made_points(step=1.3)
    fit = fitting.make_fit(*fitting.fit_curves(points))
    assert fitting.mean_error(fit, points) < 0.03
    bare = msgspec.structs.replace(fit, shapes=())
    assert fitting.mean_error(bare, points) > 1.5 * fitting.mean_error(fit, points)


def test_held_out_sizes_and_group_sizes_of_smooth_data_are_predicted() -> None:
    points = made_points()
    assert dict(fitting.hold_out_sizes(points))["sizes, all"] < 0.02
    assert dict(fitting.hold_out_ranks(points))["group of 4, between 2 and 8"] < 0.06


def test_a_gpu_is_predicted_from_a_relative_with_the_same_constants() -> None:
    errors = dict(fitting.hold_out_gpus(made_points()))
    assert errors["GPU h200 from h100"] < 0.02
    assert errors["GPU a100 from h100"] > 0.1


def test_readers_keep_what_is_sound(files: tuple[str, str]) -> None:
    points = read_points(*files)
    assert not any((p.gpu, p.ranks) in BROKEN for p in points)
    large = [p for p in points if p.nbytes > LAST_KNOT_BYTES]
    assert [(p.gpu, p.ranks) for p in large] == [("h100", 8)]
    assert large[0].seconds == pytest.approx(2**34 * 1.75 / 360e9)
    assert len([p for p in points if p.gpu == "v100"]) == 3
    logged = [run for run in read_runs(files[1]) if run.system.startswith("AWS p5 ")]
    assert [run.nbytes.tolist() for run in logged] == [[2**28]]


def test_published_systems_are_well_formed(files: tuple[str, str]) -> None:
    runs = read_runs(files[1])
    assert len(runs) == len(PUBLISHED.strip().splitlines()) + 1
    for run in runs:
        assert run.op in OPS
        assert run.ranks % run.tiers[0].reach == 0
        assert (np.diff(run.nbytes) > 0).all()
        rate = run.nbytes * wire_factor(run.op, run.ranks) / run.seconds
        assert (rate < 2.2 * run.tiers[0].reach * run.tiers[1].bytes_per_s).all()


def test_rules_are_recovered_from_runs_made_with_them(files: tuple[str, str]) -> None:
    fit = fitting.make_fit(*fitting.fit_curves(made_points()))
    truth = msgspec.structs.replace(fitting.START, ring_step=1.4, tree_step=3.0)
    runs = [run for run in read_runs(files[1]) if run.tiers[1].kind in ("infiniband", "roce")]
    made = [run._replace(seconds=fitting.run_s(run, fit, truth), fitted=True) for run in runs]
    found = fitting.fit_rules(made, fit)
    assert fitting.run_error(made, fit, found) < 0.02
    assert found.ring_step == pytest.approx(truth.ring_step, rel=0.1)
    assert found.tree_step == pytest.approx(truth.tree_step, rel=0.1)


def test_the_command_writes_what_the_model_reads(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "hold_out_systems", lambda runs, fit, rules: [("system", 0.2)])
    out = tmp_path / "out.json"
    said: list[str] = []
    argv = ["--aiconfigurator", files[0], "--nccl", files[1], "--out", str(out)]
    assert fitting.main(argv, say=said.append) == 0
    fit = msgspec.json.decode(out.read_bytes(), type=Fit)
    assert fit.held_out["system"] == 0.2
    assert isinstance(fit.rules, CurveRules)
    tails = {c.gpu: c.tail for c in fit.curves if c.op == "all_reduce" and c.ranks == 8}
    assert tails["h100"] == tails["h200"] == pytest.approx(0.8, rel=0.05)
    assert {c.op for c in fit.curves if c.gpu == "v100" and not c.own} == {"all_gather", "reduce_scatter", "all_to_all"}
    assert any("| sizes, all |" in line for line in said)


def test_a_missing_file_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a CSV file"):
        read_points(str(tmp_path / "absent.csv"), str(tmp_path / "absent.csv"))
    odd = write_csv(tmp_path / "odd.csv", "system,op,ngpu,bytes,us", [["h900", "all_reduce", 2, 512, 5]])
    with pytest.raises(InputError, match="h900"):
        read_points(odd, odd)
