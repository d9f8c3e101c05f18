"""What a budget buys, against plain arithmetic over every offer and count; and the rules it is told by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from astra.catalog.models import model
from astra.errors import InputError, NoFeasiblePlan
from astra.renting import afford as module
from astra.renting.afford import afford, loss
from astra.spec.money import Money
from tests.renting.test_terms import BATCH, MODEL, MOST, SEQ, Row, markets, sizes, tokens_per_s, useful, written


def asked(folder: Path, offers: list[Row], budget: float, deadline: float | None) -> Any:
    names = tuple(f"Acme {index}" for index in range(len(offers)))
    money = Money(prices=written(folder, offers), providers=names, market="any")
    gpus = ",".join({row.gpu for row in offers})
    return afford(MODEL, budget=budget, deadline=deadline, batch=BATCH, seq=SEQ, gpus=gpus, max_gpus=MOST, money=money)


def most_tokens(offers: list[Row], budget: float, limit_s: float) -> float:
    """Every offer in every count until the money or the time is gone, by hand."""
    found = [0.0]
    for row in offers:
        for gpus in sizes(row):
            from_nodes = 900 + 120 * math.log2(gpus // 8)
            start = from_nodes if row.startup_s is None else row.startup_s
            least = max(row.minimum_s or 0, (row.term_days or 0) * 86400 if row.market == "reserved" else 0)
            paid = budget / (gpus * row.usd / 3600)
            paid = math.floor(paid / row.step_s + 1e-9) * row.step_s if row.step_s else paid
            train = max(min(paid, limit_s) - start, 0) if paid >= least else 0
            found.append(train * useful(gpus, row.market == "spot") * tokens_per_s(row.gpu, gpus))
    return max(found)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(offers=markets, budget=st.sampled_from([50.0, 2_000.0, 60_000.0]), days=st.sampled_from([0.5, 30.0]))
def test_the_most_tokens_are_those_of_plain_arithmetic(
    tmp_path: Path, offers: list[Row], budget: float, days: float
) -> None:
    wanted = most_tokens(offers, budget, days * 86400)
    assume(wanted > 1e6)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_near", lambda size: [])
        (row,) = asked(tmp_path, offers, budget, days).rows
    assert row.tokens_range.low == pytest.approx(wanted, rel=1e-6)
    assert row.usd <= budget * (1 + 1e-9)
    assert row.days <= days * (1 + 1e-9)
    assert row.tokens_range.low < row.tokens < row.tokens_range.high


def test_the_law_has_its_optimum_where_chinchilla_says() -> None:
    flops = 6 * 70e9 * 1.4e12
    best = min((loss(size, flops / (6 * size)), size) for size in [1e9 * 1.05**step for step in range(160)])[1]
    assert 10 < flops / (6 * best) / best < 40, "about 20 tokens for each parameter, as the paper says"


def test_the_rule_and_what_cannot_be(tmp_path: Path) -> None:
    offers = [Row("H100", "on-demand", 3.0, True)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "SIZES", (0.5, 2.0))
        patched.setattr(module, "MOST_BETWEEN", 0)
        report = asked(tmp_path, offers, 3_000.0, None)
    by_name = {row.model: row for row in report.rows}
    assert report.most == MODEL
    assert (
        report.largest
        == max((row for row in report.rows if row.tokens_per_parameter >= 20), key=lambda row: row.parameters).model
    )
    assert by_name[report.best].loss == min(row.loss for row in report.rows)
    assert any("Chinchilla" in note for note in report.notes)
    assert str(report).startswith("What $3,000 within a year buys"), "no deadline was given"
    long = any(row.days > 30 for row in report.rows)
    assert any("--deadline says what less time buys" in note for note in report.notes) == long
    assert "Most tokens for" in str(report)
    with pytest.raises(NoFeasiblePlan):
        asked(tmp_path, [Row("H100", "reserved", 3.0, False, term_days=7.0)], 5.0, None)
    with pytest.raises(InputError, match="tokens"):
        afford(MODEL, budget=5.0, tokens=1e9)


def test_models_that_cannot_be_trained_so_are_passed_over() -> None:
    """A model whose positions end before the sequence is no answer, and no error of the others."""
    report = afford("llama-3.2-1b", budget=60, gpus="H100", max_gpus=8, batch=64, seq=4096)
    assert report.most == "llama-3.2-1b"
    assert not any(row.model.startswith("gpt-2") for row in report.rows)


def test_what_is_supposed_and_not_known_is_said() -> None:
    report = afford(
        "llama-3.2-1b", budget=500, gpus="H100", max_gpus=8, batch=256, seq=2048, money=Money(providers=("Lambda",))
    )
    notes = " ".join(report.notes)
    assert "A step is 256 samples of 2,048 tokens" in notes
    for said in ("how many GPUs its provider has free", "Nobody says what joins", "Start-up is assumed: 15 minutes"):
        assert said in notes
    told = afford(
        "llama-3.2-1b", budget=500, gpus="H100", max_gpus=8, batch=256, seq=2048, money=Money(startup_s=300.0)
    )
    assert not any("Start-up is assumed" in note for note in told.notes)


def test_a_row_shows_all_it_is_the_best_in() -> None:
    report = afford("llama-3.2-1b", budget=500, gpus="H100", max_gpus=8, batch=256, seq=2048, ratio=1.0)
    both = msgspec.structs.replace(report, most=report.largest, best=report.largest)
    (line,) = [line for line in str(both).splitlines() if line.startswith("*LM")]
    assert report.largest in line


def test_models_of_which_only_a_paper_exists_are_not_what_a_budget_buys() -> None:
    """Whoever follows the answer needs a configuration to begin with; a paper's model comes where it is named."""
    report = afford(budget="2M", deadline="30d", gpus="H100", max_gpus=1024)
    assert len(report.rows) > 3
    for row in report.rows:
        assert any("/" in alias for alias in model(row.model).aliases), row.model
    assert not any("--deadline says" in note for note in report.notes), "it was given"
    named = afford("megatron-22b", budget=2_000, gpus="H100", max_gpus=64, batch=256, seq=2048)
    assert named.most == "megatron-22b"


def test_models_beside_one_with_experts_are_of_the_size_that_its_work_suggests() -> None:
    """A token visits a few experts: by all parameters no model beside it would be small enough for the rule."""
    report = afford("qwen3-30b-a3b", budget="20k", gpus="H100", max_gpus=64, batch=256, seq=2048)
    dense = [row for row in report.rows if row.model != report.most]
    assert report.largest in {row.model for row in dense}
    assert min(row.tokens_per_parameter for row in dense) < 20 < max(row.tokens_per_parameter for row in dense)


def test_money_that_no_gpus_are_left_for_and_too_few_steps_are_said() -> None:
    tight: dict[str, Any] = {"gpus": "H100", "max_gpus": 8, "seq": 2048}
    left = afford("llama-3.2-1b", budget=5_000, deadline="1d", batch=64, **tight)
    assert left.rows[0].usd < 5_000 / 2
    assert any("the time ends before the money on up to 8 GPUs" in note for note in left.notes)
    spent = afford("llama-3.2-1b", budget=20, deadline="3d", batch=16384, **tight)
    assert not any("before the money" in note for note in spent.notes)
    (few,) = [note for note in spent.notes if "few for any training" in note]
    tokens = {row.model: row.tokens for row in spent.rows}
    assert {name for name in tokens if name in few} == {
        name for name, many in tokens.items() if many < 100 * 16384 * 2048
    }
