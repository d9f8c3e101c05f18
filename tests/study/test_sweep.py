"""Points of a sweep are plans; curves mark where the strategy becomes another one."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from functools import lru_cache

import pytest
from msgspec.structs import replace

import astra
from astra.errors import InputError
from astra.report.frames import records, written
from astra.report.sweep import strategy_numbers, sweep_page, sweep_svg
from astra.spec.request import PlanRequest
from astra.study.records import Sweep
from astra.study.sweep import read_axes, shape, swept

REQUEST = PlanRequest(model="llama-2-13b", gpus=("8xA100-80",), batch=64, seq=4096)


@lru_cache
def over(*texts: str) -> Sweep:
    return swept(REQUEST, read_axes(texts))


def test_points_are_plans() -> None:
    found = over("gpus=8..32")
    assert [point.at["gpus"] for point in found.points] == ["8", "16", "32"]
    for point in found.points:
        best = astra.plan(REQUEST, gpus=f"{point.at['gpus']}xA100-80", top=1).best.estimate
        assert point.strategy == best.strategy
        assert point.step_s == pytest.approx(best.step_s, rel=1e-12)
        assert point.gpus == int(point.at["gpus"])
    for before, after in zip(found.points, found.points[1:], strict=False):
        assert after.new_strategy == (shape(before.strategy) != shape(after.strategy))


def test_two_axes_make_curves() -> None:
    found = over("batch=32,64", "precision=bf16,fp16")
    assert [tuple(point.at.values()) for point in found.points] == [
        ("32", "bf16"), ("64", "bf16"), ("32", "fp16"), ("64", "fp16"),
    ]  # fmt: skip
    assert not found.points[2].new_strategy, "a curve begins here"


def test_dollars_follow_the_price_and_nothing_else_does() -> None:
    cheap, dear = over("price=2,4").points
    assert dear.usd_per_billion_tokens == pytest.approx(2 * (cheap.usd_per_billion_tokens or 0))
    assert dear.step_s == cheap.step_s


def test_more_memory_is_never_slower_by_the_expected_step() -> None:
    found = swept(replace(REQUEST, rank="expected"), read_axes(["memory=0.5,1,2"]))
    times = [point.step_s for point in found.points if point.step_s is not None]
    assert len(times) >= 2
    assert times == sorted(times, reverse=True)


def test_a_point_without_a_plan_says_why_and_the_others_stay() -> None:
    found = swept(PlanRequest(model="llama-2-70b", gpus=("8xA100-80",), batch=64), read_axes(["gpus=1,16"]))
    none, some = found.points
    assert none.strategy is None
    assert none.why
    assert some.strategy is not None
    assert none.why[:20] in found.draw(200)
    ET.fromstring(sweep_svg(found))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "one or two things"),
        (["gpus=8", "batch=8", "seq=128"], "one or two things"),
        (["gpus=8", "gpus=16"], "two different things"),
        (["gpu=8"], "Did you mean gpus"),
        (["gpus"], "values, such as"),
        (["gpus=8,,16"], "values, such as"),
        (["price=1..4"], "a range a..b"),
        (["gpus=16..8"], "a range a..b"),
        ([f"batch={','.join(map(str, range(1, 300)))}"], "at most 200"),
    ],
)
def test_what_cannot_be_swept_is_told(texts: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_axes(texts)


@pytest.mark.parametrize(
    ("text", "said"),
    [("gpus=12", "whole nodes"), ("gpus=x", "numbers of GPUs"), ("link=-1", "times what"),
     ("memory=1000", "times what"), ("price=x", "dollars per GPU"),
     ("precision=int3", "precision|bf16"), ("batch=0", "batch|samples")],
)  # fmt: skip
def test_values_that_cannot_be_are_told(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        swept(REQUEST, read_axes([text]))


def test_csv_has_every_point_and_no_formula() -> None:
    found = over("gpus=8..32")
    rows = list(csv.DictReader(io.StringIO(written(records(found)))))
    assert [float(row["step_s"]) for row in rows] == [point.step_s for point in found.points]
    hostile = replace(found, points=[replace(found.points[0], strategy="=cmd()", why="+1\x1b[")])
    row = next(csv.DictReader(io.StringIO(written(records(hostile)))))
    assert row["strategy"] == "'=cmd()"
    assert "\x1b" not in row["why"]


def test_the_chart_is_xml_with_a_mark_for_every_strategy() -> None:
    found = over("gpus=8..32")
    root = ET.fromstring(sweep_svg(found))
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"tokens per second", "MFU", "dollars per billion tokens"} <= words
    assert {f"{number}  {text}" for text, number in strategy_numbers(found).items()} <= words
    hostile = replace(found, model="<script>", points=[replace(p, strategy="<b>&") for p in found.points])
    for page in (sweep_svg(hostile), sweep_page(hostile)):
        assert "<script" not in page
        assert "<b>" not in page
