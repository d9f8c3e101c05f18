"""From what was rented to the files that start it: the same GPUs, strategy, market and place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.cli import main
from astra.errors import InputError
from astra.export.reading import from_record, plan_of_choice, read_rented

HEADER = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
ROW = "AWS,p5.48xlarge,H100,8,us-east-1,spot,2.5,USD,2026-11-01,mine,\n"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("rent") / "prices.csv"
    path.write_text(HEADER + ROW)
    money = {"prices": str(path), "providers": ("AWS",), "market": "spot"}
    return astra.rent("qwen2.5-1.5b", tokens="10B", batch=48, seq=2048, gpus="H100", max_gpus=24, mixes="none",
                      money=money).to_dict()  # fmt: skip


def test_every_choice_is_a_launch_of_its_own_gpus_and_strategy(answer: dict[str, Any]) -> None:
    for number, choice in enumerate(answer["front"], start=1):
        launch, job = from_record(plan_of_choice(answer, number, "rent"), 1, where="rent")
        assert job is not None
        assert (launch.gpus, str(launch.strategy)) == (choice["gpus"], choice["strategy"])
        assert launch.pool.node.name == choice["node"]
        assert launch.step_s == choice["step_s"]
        figures, price = launch.figures, choice["cost"]["price"]
        assert (figures.market, figures.provider, figures.region) == ("spot", "AWS", price["region"])
        assert figures.days == pytest.approx(choice["cost"]["expected"]["days"])


def test_what_was_chosen_is_written_without_a_number(answer: dict[str, Any]) -> None:
    plans = plan_of_choice(answer, None, "rent")
    knee = next(choice for choice in answer["front"] if "knee" in choice["roles"])
    assert plans["plans"][0]["estimate"]["name"] == knee["name"]
    with pytest.raises(InputError, match="a row of the front"):
        plan_of_choice(answer, len(answer["front"]) + 1, "rent")


def test_the_job_asks_for_the_offer(answer: dict[str, Any], tmp_path: Path) -> None:
    saved, out = tmp_path / "rent.json", tmp_path / "run"
    saved.write_text(json.dumps(answer))
    assert read_rented(saved) is not None
    assert main(["export", str(saved), "--to", "skypilot", "--out", str(out), "--rank", "1"]) == 0
    task = (out / "task.yaml").read_text()
    assert "use_spot: true" in task
    assert "aws/us-east-1" in task
    assert "p5.48xlarge" in task
    assert f"num_nodes: {answer['front'][0]['nodes']}" in task
    assert "sky jobs launch" in (out / "README.md").read_text(), "which starts anew where machines are taken away"


@pytest.mark.parametrize(
    "edited", [{"gpu": None}, {"parts": [1, 2]}, {"parts": [{"gpus": 8}] * 2}, {"gpus": "8"}, {"roles": 7, "node": []}]
)
def test_a_choice_that_was_edited_is_refused(answer: dict[str, Any], edited: dict[str, Any]) -> None:
    choice = {name: value for name, value in (answer["front"][0] | edited).items() if value is not None}
    with pytest.raises(InputError, match="an answer of astra rent, whole"):
        plan_of_choice(answer | {"front": [choice], "chosen": []}, None, "rent.json")


def test_a_choice_without_roles_is_one_all_the_same(answer: dict[str, Any]) -> None:
    edited = answer | {"front": [choice | {"roles": 7} for choice in answer["front"]], "objective": "pareto"}
    assert plan_of_choice(edited, None, "rent.json")["plans"][0]["estimate"]["name"] == answer["front"][0]["name"]
