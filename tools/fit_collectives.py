"""Make ``network/data/collectives.json`` from public sweeps, and print how well it predicts what it has not seen.

    python -m tools.fit_collectives --aiconfigurator FILE.csv --nccl FILE.csv --out collectives.json

``--aiconfigurator`` has columns system, op, ngpu, bytes, us (ai-dynamo/aiconfigurator, nccl-tests in one server);
``--nccl`` has gpu, nodes, gpus, collective, bytes, busbw, latency_us, source (logs gathered from public repositories).
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from astra.network.collectives import OPS as ALL_OPS
from astra.network.collectives import across_s
from astra.network.curves import (
    FIRST_KNOT_BYTES,
    KNOT_COUNT,
    KNOT_OCTAVES,
    LAST_KNOT_BYTES,
    CollectiveCurve,
    CurveRules,
    Fit,
    GroupShape,
    inside_s,
    ramped,
    tabulate,
    wire_factor,
)
from astra.provenance import Floats
from astra.units import US
from tools.collectives_data import BORROWED, GPUS, RELATIVES, SOURCES, Point, Run, read_points, read_runs

MADE: Final = "2026-11-15"
OPS: Final = ALL_OPS[:4]  # sends have no public sweep
START: Final = CurveRules(
    ring_base_us=8.4,
    ring_step=0.7,
    ring_ramp=0.1,
    tree_step=1.8,
    tree_ramp=0.4,
    link_fraction={"infiniband": 0.93, "roce": 0.93, "efa": 0.93, "tcp": 0.8, "pcie": 0.39}
    | dict.fromkeys(("nvswitch", "rack", "nvlink-mesh", "xgmi"), 0.8),
    step_scale={"efa": 2.0},
    all_to_all_base_us=60.0,
    all_to_all_step=1.0,
    all_to_all_fraction=0.9,
    all_to_all_ramp=0.3,
    mesh_base_us=7.0,
    mesh_step_us=1.0,
    mesh_fraction=0.72,
    mesh_ramp=0.45,
    send_fraction={"nvswitch": 0.84, "rack": 0.84, "nvlink-mesh": 0.84, "xgmi": 0.75, "pcie": 0.6}
    | dict.fromkeys(("infiniband", "roce", "efa", "tcp"), 0.8),
    send_ramp_near=0.2,
    send_ramp_far=0.5,
    busy_sms={"node": 20.0, "cluster": 3.0},
    host_fraction=0.88,
    coherent_host_fraction=0.8,
)
# What each family of networks decides; a later one keeps what an earlier one found.
STAGES: Final = (
    (("infiniband", "roce"), ("ring_step", "ring_ramp", "tree_step", "tree_ramp", "link_fraction:infiniband,roce")),
    (
        ("infiniband", "roce"),
        ("all_to_all_base_us", "all_to_all_step", "all_to_all_fraction", "all_to_all_ramp"),
    ),
    (("efa",), ("step_scale:efa",)),
)
_AT_MOST_ONE: Final = ("ramp", "fraction")
_METAS: Final = {gpu.name: gpu for gpu in GPUS.values()}
_Key = tuple[str, str, int]
_Form = tuple[float, float, float]


def form_s(form: _Form, x: Floats) -> Floats:
    """Seconds for bytes on the wire: ``form`` is A, seconds per byte and ramp."""
    return ramped(np.full_like(x, form[0]), x * form[1], form[2])


def fit_form(x: Floats, seconds: Floats) -> _Form:
    """The form with the least mean absolute relative error (reweighted least squares, nothing below zero)."""
    columns = np.stack([np.ones_like(x), x, np.sqrt(x)], axis=1)
    keep = [0, 1, 2]
    while True:
        weight = 1 / seconds
        for _ in range(30):
            found = np.linalg.lstsq(columns[:, keep] * weight[:, None], seconds * weight, rcond=None)[0]
            off = np.abs(columns[:, keep] @ found / seconds - 1)
            weight = 1 / seconds / np.sqrt(np.maximum(off, 1e-3))
        below = {column for column, value in zip(keep, found, strict=True) if value <= 0}
        drop = 2 if 2 in keep and below & {1, 2} else 0 if 0 in below else None
        if drop is None:
            break
        keep.remove(drop)
    values = dict(zip(keep, found.tolist(), strict=True))
    fixed, per_byte = values.get(0, 1e-7), max(values[1], 1e-18)
    return fixed, per_byte, values.get(2, 0.0) / (2 * math.sqrt(fixed * per_byte))


def _hats(nbytes: Floats) -> Floats:
    """Weights of the knots at each size: linear interpolation in log size."""
    place = np.log2(nbytes / FIRST_KNOT_BYTES) / KNOT_OCTAVES
    weights: Floats = np.maximum(1 - np.abs(place[:, None] - np.arange(KNOT_COUNT)), 0.0)
    return weights


def _smoothed(residuals: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Knot values that best explain what the forms leave, drawn a little to zero where no size was measured."""
    sizes, left = (np.concatenate(column) for column in zip(*residuals, strict=True))
    hats, weight = _hats(sizes), np.ones_like(left)
    for _ in range(8):  # reweighted to the mean absolute error: sweeps have stray points
        scaled = hats * weight[:, None]
        knots: Floats = np.linalg.solve(scaled.T @ hats + 0.05 * np.eye(KNOT_COUNT), scaled.T @ left)
        weight = 1 / np.maximum(np.abs(hats @ knots - left) / 0.03, 1.0)
    return knots


def fit_curves(points: Iterable[Point]) -> tuple[tuple[CollectiveCurve, ...], tuple[GroupShape, ...]]:
    """Curves per (GPU, op, ranks) and the protocol corrections their generation shares."""
    groups: dict[_Key, list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        groups[point.gpu, point.op, point.ranks].append((point.nbytes, point.seconds))
    measured = {key: np.array(sorted(found)) for key, found in groups.items()}
    swept = {key: rows[rows[:, 0] <= LAST_KNOT_BYTES] for key, rows in measured.items()}
    swept = {key: rows for key, rows in swept.items() if len(rows)}
    knots: dict[_Key, Floats] = {}
    forms: dict[_Key, _Form] = {}
    for _ in range(3):
        residuals: dict[_Key, list[tuple[Floats, Floats]]] = defaultdict(list)
        for key, rows in swept.items():
            kin = (_METAS[key[0]].generation, *key[1:])
            x = rows[:, 0] * wire_factor(key[1], key[2])
            forms[key] = fit_form(x, rows[:, 1] / np.exp(_hats(rows[:, 0]) @ knots.get(kin, np.zeros(KNOT_COUNT))))
            residuals[kin].append((rows[:, 0], np.log(rows[:, 1] / form_s(forms[key], x))))
        knots = {kin: _smoothed(found) for kin, found in residuals.items() if kin[0] != "volta"}
    shapes = tuple(GroupShape(*kin, tuple(round(float(v), 3) for v in values)) for kin, values in sorted(knots.items()))
    curves = _level_tails([_curve(key, forms[key], measured[key]) for key in swept])
    curves = _with_errors([*curves, *_taken_over(curves)], shapes, measured)
    return tuple(sorted(curves, key=lambda curve: (curve.gpu, curve.op, curve.ranks))), shapes


def _curve(key: _Key, form: _Form, rows: Floats) -> CollectiveCurve:
    gpu, op, ranks = key
    link = _METAS[gpu].link_bytes_per_s
    x = rows[:, 0] * wire_factor(op, ranks)
    inside = np.flatnonzero(rows[:, 0] <= LAST_KNOT_BYTES)
    # The rate beyond the knots is what the largest sizes add per byte; logs of the same GPU disagree by a few percent.
    first = inside[-1] if len(inside) < len(rows) else max(inside[-1] - 2, 0)
    later = [i for i in range(first + 1, len(rows)) if rows[i, 0] >= 2 * rows[first, 0]]
    slopes = [(x[i] - x[first]) / (rows[i, 1] - rows[first, 1]) for i in later if rows[i, 0] == rows[-1, 0]]
    tail = float(np.median(slopes)) / link
    wire = 1 / (form[1] * link)
    # Below the first size of a full sweep the time is flat: that is measured too.
    smallest = 0.0 if rows[0, 0] <= FIRST_KNOT_BYTES else float(rows[0, 0])
    base, ramp = _short(form[0] / US), _short(form[2])
    return CollectiveCurve(gpu, op, ranks, base, _short(wire), ramp, _short(tail), smallest, float(rows[-1, 0]))


def _level_tails(curves: Sequence[CollectiveCurve]) -> list[CollectiveCurve]:
    """One switch generation has one plateau: the best seen on any of its GPUs, as few were run beyond 512 MiB."""
    best: dict[_Key, float] = defaultdict(float)
    for curve in curves:
        kin = (_METAS[curve.gpu].generation, curve.op, curve.ranks)
        best[kin] = max(best[kin], curve.tail)
    switched = {gpu.name: gpu.generation for gpu in GPUS.values() if gpu.kind == "nvswitch"}
    return [
        msgspec.structs.replace(c, tail=best[switched[c.gpu], c.op, c.ranks]) if c.gpu in switched else c
        for c in curves
    ]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _taken_over(curves: Sequence[CollectiveCurve]) -> list[CollectiveCurve]:
    """Curves a GPU lacks: of a relative, or (V100: only all-reduce is public) of its own all-reduce."""
    by_key = {(c.gpu, c.op, c.ranks): c for c in curves}
    made = [
        msgspec.structs.replace(by_key[source, op, ranks], gpu=gpu, own=False)
        for (gpu, ranks), source in BORROWED.items()
        for op in OPS
        if (source, op, ranks) in by_key and any(c.gpu == gpu for c in curves)
    ]
    for curve in curves:
        if curve.gpu == "v100" and curve.op == "all_reduce":
            # Half the steps of an all-reduce at the same bus bandwidth.
            halved = _short(curve.base_us * 0.66)
            made += [msgspec.structs.replace(curve, op=op, base_us=halved, own=False) for op in OPS[1:]]
    return made


def _with_errors(
    curves: Sequence[CollectiveCurve], shapes: tuple[GroupShape, ...], measured: dict[_Key, Floats]
) -> list[CollectiveCurve]:
    fit = make_fit(tuple(curves), shapes)
    errors = {key: mean_error(fit, [Point(*key, *row) for row in rows]) for key, rows in measured.items()}
    return [msgspec.structs.replace(c, error=round(errors[c.gpu, c.op, c.ranks], 3)) if c.own else c for c in curves]


def make_fit(
    curves: tuple[CollectiveCurve, ...],
    shapes: tuple[GroupShape, ...],
    rules: CurveRules = START,
    held_out: dict[str, float] | None = None,
) -> Fit:
    """The record that is written to the data file."""
    gpus = tuple(gpu for gpu in GPUS.values() if any(curve.gpu == gpu.name for curve in curves))
    return Fit(MADE, SOURCES, gpus, RELATIVES, curves, shapes, rules, held_out or {})


def mean_error(fit: Fit, points: Sequence[Point], *, as_gpu: str = "") -> float:
    """Mean absolute relative error over the points the model covers."""
    tables: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        tables[as_gpu or point.gpu, point.op].append(point)
    off = []
    for (gpu, op), found in tables.items():
        table = tabulate(fit, gpu, op)
        if table is None:
            continue
        link = _METAS[found[0].gpu].link_bytes_per_s
        sizes, ranks = np.array([p.nbytes for p in found]), np.array([float(p.ranks) for p in found])
        off.append(np.abs(inside_s(table, sizes, ranks, link) / [p.seconds for p in found] - 1))
    return float(np.concatenate(off).mean()) if off else math.nan


def run_s(run: Run, fit: Fit, rules: CurveRules) -> Floats:
    """Seconds the rules give for a run over several servers."""
    near = near_rates(fit, run)
    ranks = np.full(run.nbytes.shape, float(run.ranks))
    return across_s(run.op, run.nbytes, ranks, np.ones_like(ranks), run.tiers, near, rules)


def near_rates(fit: Fit, run: Run) -> tuple[float, float]:
    """Ring and all-reduce rates inside a server of the run's link rate."""
    rate = run.tiers[0].bytes_per_s
    nearest = min((g for g in fit.gpus if g.kind == "nvswitch"), key=lambda g: abs(math.log(g.link_bytes_per_s / rate)))
    tails = {c.op: c.tail for c in fit.curves if c.gpu == nearest.name and c.ranks == 8}
    return tails["all_gather"] * rate, tails["all_reduce"] * rate


def run_error(runs: Sequence[Run], fit: Fit, rules: CurveRules) -> float:
    """Mean over systems of the mean absolute error of each, in log so that too fast and too slow weigh the same."""
    by_system: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        off = np.abs(np.log(run_s(run, fit, rules) / run.seconds))
        by_system[run.system, run.op].append(float(off.mean()))
    return float(np.mean([np.mean(found) for found in by_system.values()])) if by_system else 0.0


def fit_rules(runs: Sequence[Run], fit: Fit) -> CurveRules:
    """Constants of the multi-server rules: each in turn is moved up or down while that helps."""
    rules = START
    for kinds, names in STAGES:
        direct = names[0].startswith("all_to_all")
        used = [run for run in runs if run.tiers[1].kind in kinds and (run.op == "all_to_all") == direct]
        best, step = run_error(used, fit, rules), 0.3
        while step > 0.01:
            moved = False
            for name in names:
                for factor in (1 + step, 1 / (1 + step)):
                    trial = _moved(rules, name, factor)
                    error = run_error(used, fit, trial)
                    if error < best - 1e-6:
                        rules, best, moved = trial, error, True
            step = step if moved else step / 2
    return rules


def _moved(rules: CurveRules, name: str, factor: float) -> CurveRules:
    field, _, kinds = name.partition(":")
    limit = 1.0 if any(word in field for word in _AT_MOST_ONE) else math.inf
    value = getattr(rules, field)
    if kinds:
        new = value | {kind: _short(min(value[kind] * factor, limit)) for kind in kinds.split(",")}
    else:
        new = _short(min(value * factor, limit))
    return msgspec.structs.replace(rules, **{field: new})


def hold_out_sizes(points: Sequence[Point]) -> list[tuple[str, float]]:
    """Fit every other size of the sweeps, predict the rest."""
    sizes = sorted({p.nbytes for p in points if p.nbytes <= LAST_KNOT_BYTES})
    seen = {size: index % 2 == 0 for index, size in enumerate(sizes)}
    sweep = [p for p in points if p.nbytes in seen and p.gpu != "v100"]
    fit = make_fit(*fit_curves(p for p in sweep if seen[p.nbytes]))
    unseen = [p for p in sweep if not seen[p.nbytes]]
    rows = [
        (f"sizes, {gpu}", mean_error(fit, [p for p in unseen if p.gpu == gpu]))
        for gpu in sorted({p.gpu for p in sweep})
    ]
    rows += [(f"sizes, {op}", mean_error(fit, [p for p in unseen if p.op == op])) for op in OPS]
    return [*rows, ("sizes, all", mean_error(fit, unseen))]


def hold_out_ranks(points: Sequence[Point]) -> list[tuple[str, float]]:
    """Leave out a whole group size."""
    rows = []
    complete = {"a100", "h100", "h200", "b200", "b300", "rtxpro6000"}
    for ranks, word in ((4, "between 2 and 8"), (8, "beyond 2 and 4")):
        sweep = [p for p in points if p.gpu in complete and p.nbytes <= LAST_KNOT_BYTES]
        fit = make_fit(*fit_curves(p for p in sweep if p.ranks != ranks and p.ranks in (2, 4, 8)))
        rows.append((f"group of {ranks}, {word}", mean_error(fit, [p for p in sweep if p.ranks == ranks])))
    return rows


def hold_out_gpus(points: Sequence[Point]) -> list[tuple[str, float]]:
    """Leave out a GPU and predict it from a relative on its own link rate."""
    rows = []
    sibling = {"h100": "h200", "h200": "h100", "b200": "b300", "b300": "b200", "gb200": "b200", "gb300": "b300"}
    other = {"a100": "h100", "rtxpro6000": "l40s", "l40s": "rtxpro6000"}
    for gpu, source in (sibling | other).items():
        fit = make_fit(*fit_curves(p for p in points if p.gpu != gpu))
        known = {(c.op, c.ranks) for c in fit.curves if c.gpu == source and c.own}
        unseen = [p for p in points if p.gpu == gpu and (p.op, p.ranks) in known and p.nbytes <= LAST_KNOT_BYTES]
        rows.append((f"GPU {gpu} from {source}", mean_error(fit, unseen, as_gpu=source)))
    hopper = {"h100", "h200"}
    fit = make_fit(*fit_curves(p for p in points if p.gpu not in hopper))
    unseen = [p for p in points if p.gpu in hopper and p.nbytes <= LAST_KNOT_BYTES]
    return [*rows, ("generation hopper from b200", mean_error(fit, unseen, as_gpu="b200"))]


def hold_out_systems(runs: Sequence[Run], fit: Fit, rules: CurveRules) -> list[tuple[str, float]]:
    """Leave out a system, fit the rules to the others, predict it; what is never fitted is only predicted."""
    rows = []
    for system in dict.fromkeys(run.system for run in runs):
        own = [run for run in runs if run.system == system]
        others = [run for run in runs if run.fitted and run.system != system]
        alone = not any(run.op == own[0].op for run in others)
        fitted = own[0].fitted
        seen = fit_rules(others, fit) if fitted and not alone else rules
        how = " (fitted: the only one)" if fitted and alone else "" if fitted else " (never fitted)"
        for op in dict.fromkeys(run.op for run in own):
            ratio = np.concatenate([run_s(run, fit, seen) / run.seconds for run in own if run.op == op])
            rows.append((f"{system}, {op}{how}", float(np.abs(ratio - 1).mean())))
    return rows


def main(argv: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_collectives", description=__doc__)
    for name in ("--aiconfigurator", "--nccl", "--out"):
        parser.add_argument(name, required=True, metavar="FILE")
    options = parser.parse_args(argv)
    points, runs = read_points(options.aiconfigurator, options.nccl), read_runs(options.nccl)
    curves, shapes = fit_curves(points)
    fit = make_fit(curves, shapes)
    rules = fit_rules([run for run in runs if run.fitted], fit)
    rows = [
        *hold_out_sizes(points),
        *hold_out_ranks(points),
        *hold_out_gpus(points),
        *hold_out_systems(runs, fit, rules),
    ]
    rows = [(label, error) for label, error in rows if math.isfinite(error)]
    own = [curve for curve in curves if curve.own]
    say(f"{len(points)} points in one server, {len(own)} curves, fitted to {np.mean([c.error for c in own]):.1%}")
    say("\n| held out | mean absolute error |\n|---|---|")
    for label, error in rows:
        say(f"| {label} | {error:.1%} |")
    held_out = {label: round(error, 4) for label, error in rows}
    Path(options.out).write_bytes(encode(make_fit(curves, shapes, rules, held_out)))
    return 0


def encode(fit: Fit) -> bytes:
    """JSON with one record per line, so that a refit can be reviewed."""
    plain = msgspec.to_builtins(fit)
    lines = []
    for name, value in plain.items():
        if isinstance(value, (list, tuple)):
            body = ",\n".join("  " + msgspec.json.encode(entry).decode() for entry in value)
            lines.append(f'"{name}": [\n{body}\n]')
        else:
            lines.append(f'"{name}": {msgspec.json.encode(value).decode()}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


if __name__ == "__main__":
    raise SystemExit(main())
