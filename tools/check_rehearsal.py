"""Check the cost model against rehearsed ranks: ``python -m tools.check_rehearsal ROWS.json [--markdown] [--keep]``.

Every row of a rehearsal file is costed as it was run (same shape, strategy, micro-batches and stage, runtime
``megatron-local``; for FSDP2 ``fsdp-local`` or ``torchtitan-local``) and compared with what was measured. See
docs/rehearsal.md for the fields of a row.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from astra.catalog import hardware, runtimes
from astra.cost.layers import EMBEDDING, HEAD
from astra.cost.parts import forward_again
from astra.cost.stage import SHARD_COLUMNS, gather_parts, over_stages, stage_table
from astra.errors import AstraError, InputError
from astra.files import read_json
from astra.lab.rehearse.pace import waited
from astra.lab.rehearse.plan import FSDP2, RUNTIME, TRANSFORMERS
from astra.layers.block import LayerKind
from astra.layers.split import kinds
from astra.operators.basis import FULL_CLOCK
from astra.search.detail import as_row, estimate
from astra.spec.cluster import Device, Pool
from astra.spec.job import Job
from astra.spec.runtime import Runtime, changed
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload
from astra.units import GIB
from astra.validate.score import errors_of
from astra.validate.targets import REHEARSED
from tools.rehearsed_rows import case_of_row

GPU: Final = "H200-SXM5-141GB"  # of files that do not say
FUSED_LOGITS_BYTES: Final = 10.0  # per logit at the worst moment of the fused cross-entropy
# FSDP2 ranks of 2026-11-15, with FlashAttention-2, ran below the power limit: weights that repeat a shard draw less
FLASH: Final = {"attention": "flash2", "clock": FULL_CLOCK, "clock_follows_power": 0.0, "attention_rate": 0.97}
KINDS: Final = ("gemm", "attention", "rest")
_GEMMS: Final = ("gemm", "grouped_gemm")
_WORST_SHOWN: Final = 10
MEASURES: Final = {
    "memory": "Peak allocated memory",
    "compute": "Forward and backward of all micro-batches: compute_s less optimizer_s and zero_grad_s",
    "step": "The whole step of the rank: compute_s, with the optimizer",
    "gemm": "GEMM kernels",
    "attention": "Attention kernels",
    "rest": "Other kernels of GPU-bound rows, without fills, optimizer_s and zero_grad_s",
}


class Checked(NamedTuple):
    """One row: what was predicted and measured, in seconds and bytes, of all that can be compared."""

    id: str
    split: str
    moe: bool
    ran: bool
    host_bound: bool
    fits: bool  # in all of the GPU's memory
    recommended: bool  # with the usual headroom kept free
    predicted: dict[str, float]
    measured: dict[str, float]

    def error(self, measure: str) -> float | None:
        """Predicted over measured, less one."""
        if not self.measured.get(measure):
            return None
        return self.predicted[measure] / self.measured[measure] - 1


class Table(NamedTuple):
    """A titled table, ready to be written."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def read_rows(path: str | Path) -> tuple[list[dict[str, Any]], Device]:
    """The rows of a rehearsal file that ran or ran out of memory, and the GPU they ran on."""
    try:
        document = read_json(path, "rehearsal")
        rows = [row for row in document["rows"] if "error" not in row]
    except (KeyError, TypeError):
        raise InputError(str(path), None, want="a rehearsal file: JSON with rows") from None
    if not rows:
        raise InputError(str(path), None, want="at least one row that was measured")
    return rows, hardware.device(document.get("gpu", GPU))


def job_of(row: Mapping[str, Any], device: Device) -> tuple[Job, Strategy]:
    """The job a row was one rank of, with as many micro-batches as were rehearsed."""
    case = case_of_row(row)
    strategy, node = case.strategy, hardware.default_node(device)
    node = replace(node, gpus=math.gcd(strategy.gpus, node.gpus))  # a rehearsed world need not fill its nodes
    job = Job(
        model=case.model,
        pool=Pool(device=device, node=node, gpus=strategy.gpus),
        workload=Workload(
            global_batch=case.num_microbatches * strategy.dp * strategy.mbs, seq=case.seq, precision=case.precision
        ),
        runtime=runtime_of(row),
    )
    return job, strategy


def runtime_of(row: Mapping[str, Any]) -> Runtime:
    """The rehearsed runtime, with the variants a row asks for."""
    framework = row.get("framework", "megatron")
    if framework == "transformers":
        return runtimes.runtime(TRANSFORMERS)
    if framework in ("fsdp2", "torchtitan"):
        chosen = runtimes.runtime(FSDP2[row["compiled"]])
        return changed(chosen, **FLASH) if framework == "fsdp2" and row["attention"] == "flash" else chosen
    chosen = runtimes.runtime(RUNTIME)
    if row["fused_cross_entropy"]:
        chosen = changed(chosen, logits_peak_bytes=FUSED_LOGITS_BYTES)
    if row["attention"] == "cudnn":
        chosen = changed(chosen, attention="cudnn")
    return chosen


def check(rows: Sequence[Mapping[str, Any]], device: Device) -> list[Checked]:
    """Every row, costed and compared."""
    return [_check(row, *job_of(row, device)) for row in rows]


def _check(row: Mapping[str, Any], job: Job, strategy: Strategy) -> Checked:
    stage = estimate(replace(job, headroom=0.0), [strategy])[0].stages[row["stage"]]
    ran = not row["oom"]
    host_bound = waited(row)
    predicted = {
        "memory": stage.peak_allocated_gib * GIB,
        "compute": stage.compute_s,
        "step": stage.compute_s + stage.optimizer_s,
        **kernel_seconds(job, strategy, row["stage"]),
    }
    measured = measured_of(row) if ran else {}
    if host_bound:
        measured.pop("rest")  # optimizer_s is then the host's time, not that of kernels
    return Checked(
        id=row["id"],
        split=row["split"],
        moe=row["shape"]["experts"] > 0,
        ran=ran,
        host_bound=host_bound,
        fits=stage.fits,
        recommended=stage.peak_reserved_gib * GIB <= job.limit_bytes,
        predicted=predicted,
        measured=measured,
    )


def measured_of(row: Mapping[str, Any]) -> dict[str, float]:
    """What a rank that ran took, in bytes and seconds."""
    busy = {kind: seconds for kind, (_, seconds) in row["busy_by_kind"].items()}
    gemm_s, attention_s = sum(busy.get(kind, 0.0) for kind in _GEMMS), busy.get("attention", 0.0)
    around_s = row["optimizer_s"] + row["zero_grad_s"]
    return {
        "memory": row["peak_allocated_bytes"],
        "compute": row["compute_s"] - around_s,
        "step": row["compute_s"],
        "gemm": gemm_s,
        "attention": attention_s,
        "rest": row["busy_s"] - gemm_s - attention_s - row["fill_s"] - around_s,
    }


def kernel_seconds(job: Job, strategy: Strategy, stage: int) -> dict[str, float]:
    """Predicted kernel time of one stage over a step, by kind, recomputation included."""
    row = as_row(job, strategy)
    gathered = gather_parts(job, {name: row.meshes.columns[name] for name in SHARD_COLUMNS})
    table = stage_table(job, row.meshes, every_rank=True)
    keys: tuple[LayerKind | str, ...] = (*kinds(job.model), EMBEDDING, HEAD)
    times = job.workload.global_batch // (strategy.dp * strategy.mbs)

    passes = {way: [getattr(gathered.parts[key], way) for key in keys] for way in ("forward", "backward")}
    passes["again"] = [forward_again(job.runtime, gathered.parts[key]) for key in keys[:-2]]

    def total(way: str, field: str) -> float:
        columns = [getattr(each, field)[gathered.place] for each in passes[way]]
        columns += [np.zeros_like(columns[0])] * (len(keys) - len(columns))
        return times * float(over_stages(table, columns)[0, stage])

    found = {}
    for kind, field in zip(KINDS, ("gemm_s", "attention_s", "stream_s"), strict=True):
        again_s = _recomputed(row.layout.layers, strategy, kind) * total("again", field)
        found[kind] = total("forward", field) + total("backward", field) + again_s
    return found


def _recomputed(layers: tuple[int, ...], strategy: Strategy, kind: str) -> float:
    """Share of the layers whose forward is run again."""
    if strategy.recompute == "full":
        most = strategy.recompute_layers if strategy.method == "block" else max(layers)
        return sum(min(most, count) for count in layers) / max(sum(layers), 1)
    return 1.0 if strategy.recompute == "selective" and kind == "attention" else 0.0


# Rows are grouped by family, and by what limits them.
_GROUPS: Final[dict[str, Callable[[Checked], bool]]] = {
    "all": lambda row: True,
    "dense": lambda row: not row.moe,
    "dense, GPU-bound": lambda row: not row.moe and not row.host_bound,
    "dense, host-bound": lambda row: not row.moe and row.host_bound,
    "MoE": lambda row: row.moe,
    "MoE, GPU-bound": lambda row: row.moe and not row.host_bound,
    "MoE, host-bound": lambda row: row.moe and row.host_bound,
}


def tables(checked: Sequence[Checked]) -> list[Table]:
    """Errors by measure, split and group; what fits; the worst rows."""
    found = [_errors(measure, title, checked) for measure, title in MEASURES.items()]
    found.append(_confusion(checked))
    found += [_worst(measure, title, checked) for measure, title in MEASURES.items() if measure not in KINDS]
    return found


def _errors(measure: str, title: str, checked: Sequence[Checked]) -> Table:
    rows = []
    for split in dict.fromkeys(sorted(row.split for row in checked)):
        for name, belongs in _GROUPS.items():
            if measure == "memory" and "bound" in name:
                continue
            errors = [error for row in checked if row.split == split and belongs(row)
                      if (error := row.error(measure)) is not None]  # fmt: skip
            if errors:
                rows.append((f"{split}: {name}", str(len(errors)), *_statistics(errors)))
    return Table(title, ("", "rows", "mean", "median", "worst", "bias"), rows)


def _statistics(errors: Sequence[float]) -> tuple[str, ...]:
    """Mean, median and worst absolute error, and the median of the signed ones."""
    sizes = np.abs(errors)
    return (*(f"{value:.1%}" for value in (sizes.mean(), np.median(sizes), sizes.max())), f"{np.median(errors):+.1%}")


def _confusion(checked: Sequence[Checked]) -> Table:
    rows = []
    for split in dict.fromkeys(sorted(row.split for row in checked)):
        chosen = [row for row in checked if row.split == split]
        counts = [sum(row.fits is fits and row.ran is ran for row in chosen)
                  for fits, ran in ((True, True), (True, False), (False, True), (False, False))]  # fmt: skip
        right = (counts[0] + counts[3]) / max(len(chosen), 1)
        recommended = sum(row.recommended and not row.ran for row in chosen)
        if chosen:
            rows.append((split, str(len(chosen)), f"{right:.1%}", *map(str, counts), str(recommended)))
    head = ("", "rows", "right", "fits, ran", "fits, failed", "refused, ran", "refused, failed", "recommended, failed")
    return Table("Fits in the GPU (recommended: with the usual headroom kept free)", head, rows)


def _worst(measure: str, title: str, checked: Sequence[Checked]) -> Table:
    scored = [(error, row) for row in checked if (error := row.error(measure)) is not None]
    scored.sort(key=lambda pair: -abs(pair[0]))
    unit, scale = ("GiB", GIB) if measure == "memory" else ("ms", 1e-3)
    rows = [
        (row.id, row.split, f"{row.predicted[measure] / scale:.2f}", f"{row.measured[measure] / scale:.2f}",
         f"{error:+.1%}", "host" if row.host_bound else "GPU")
        for error, row in scored[:_WORST_SHOWN]
    ]  # fmt: skip
    head = ("row", "split", f"predicted {unit}", f"measured {unit}", "error", "bound by")
    return Table(f"The worst: {title[0].lower()}{title[1:]}", head, rows)


def text(found: Sequence[Table]) -> str:
    """The tables for a terminal."""
    return "\n\n".join(f"{table.title}\n{_columns(table)}" for table in found) + "\n"


def _columns(table: Table) -> str:
    lines = [table.head, *table.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )  # fmt: skip


def markdown(found: Sequence[Table]) -> str:
    """The tables for the documentation."""
    parts = []
    for table in found:
        rule = "|" + "|".join(" --- " for _ in table.head) + "|"
        lines = ["| " + " | ".join(line) + " |" for line in (table.head, *table.rows)]
        parts.append("\n".join([f"### {table.title}", "", lines[0], rule, *lines[1:]]))
    return "\n\n".join(parts) + "\n"


def kept(checked: Sequence[Checked]) -> str:
    """The errors of whole ranks that ``astra validate`` shows, as its data file."""
    lines = ["measure,runs,mean,worst"]
    for measure in ("compute", "memory"):
        errors = errors_of(row.error(measure) for row in checked)
        assert errors is not None
        lines.append(f"{measure},{errors.runs},{errors.mean:.4f},{errors.worst:.4f}")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Command line of the check."""
    parser = argparse.ArgumentParser(prog="python -m tools.check_rehearsal", description=__doc__)
    parser.add_argument("file", metavar="ROWS.json", help="rehearsed rows, such as benchmarks/results/*rehearsal*.json")
    parser.add_argument("--together", metavar="NAME", help="count all rows as one set of this name")
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    parser.add_argument("--keep", action="store_true", help="keep the errors of whole ranks for astra validate")
    args = parser.parse_args(argv)
    try:
        rows, device = read_rows(args.file)
        checked = check([row | {"split": args.together or row["split"]} for row in rows], device)
    except AstraError as error:
        print(f"check_rehearsal: {error}", file=sys.stderr)
        return error.exit_code
    found = tables(checked)
    sys.stdout.write(markdown(found) if args.markdown else text(found))
    if args.keep:
        (Path(str(files("astra.validate"))) / "data" / REHEARSED).write_text(kept(checked), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
