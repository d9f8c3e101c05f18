"""``astra.export``, ``astra.import_`` and ``astra.load``: what is written is read back, and wrong types are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import astra
import astra.export.reading  # the package of that name is there too
from astra.errors import InputError

WORK: dict[str, Any] = {"batch": 64, "seq": 2048}


def test_a_plan_is_exported_imported_and_loaded(tmp_path: Path) -> None:
    plans = astra.plan("llama-2-7b", gpus="16xH100", **WORK)
    told = astra.export(plans, "megatron", folder=tmp_path / "run", rank=2)
    assert told["strategy"] == plans.plans[1].strategy
    read = astra.import_(tmp_path / "run" / "launch.sh")
    assert str(read.strategy) == plans.plans[1].strategy
    assert (read.global_batch, read.seq, read.gpus) == (64, 2048, 16)
    saved = tmp_path / "plan.json"
    saved.write_text(plans.to_json())
    again = astra.load(saved)
    assert isinstance(again, astra.PlanSet)
    assert again.to_json() == plans.to_json()
    told = astra.export(saved, "slurm", folder=tmp_path / "run", rank=2, overwrite=True)
    assert any(name.endswith(".sbatch") for name in told["files"])


def test_every_answer_is_loaded_as_what_it_was(tmp_path: Path) -> None:
    rented = astra.rent("llama-2-7b", tokens=1e10, gpus="H100", max_gpus=16, **WORK)
    answers: list[Any] = [
        rented,
        astra.estimate("llama-2-7b", gpus="8xH100", strategy="tp2 dp4 mbs1 zero1", **WORK),
        astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], **WORK),
        astra.afford("llama-3.2-1b", budget=20, gpus="H100", max_gpus=8),
        astra.describe_model("llama-2-7b"),
    ]
    for answer in answers:
        path = tmp_path / "answer.json"
        path.write_text(answer.to_json())
        again = astra.load(path)
        assert type(again) is type(answer)
        assert again.to_json() == answer.to_json()
    told = astra.export(rented, "skypilot", folder=tmp_path / "sky")
    assert told["strategy"] in {choice.strategy for choice in rented.front}


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda: astra.export(3, "megatron"), "plan"),  # type: ignore[arg-type]
        (lambda: astra.export("p.json", 3), "to"),  # type: ignore[arg-type]
        (lambda: astra.export("p.json", "megatron", rank="x"), "rank"),  # type: ignore[arg-type]
        (lambda: astra.load(3), "path"),  # type: ignore[arg-type]
        (lambda: astra.import_(3), "file"),  # type: ignore[arg-type]
        (lambda: astra.import_("x.sh", parameters="7b"), "parameters"),
        (lambda: astra.plan("llama-2-7b", gpus=8), "gpus"),  # type: ignore[arg-type]
        (lambda: astra.afford("llama-2-7b", budget=5, progress=3), "progress"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_types_are_named(call: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.where == where
