"""Every row of a plan's table, copied as it is drawn, gives ``estimate`` the same strategy and the same number."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

import pytest

import astra
from astra.answer import PlanSet
from astra.report.explain import show_step
from astra.search.fleet.records import MixedPlanSet
from astra.spec.mixed_text import short_form
from tests.tiers import sampled

RUNTIMES = (
    "megatron",
    "torchtitan",
    "deepspeed",
    "nanotron",
    "fsdp-eager",
    "internevo",
    "nemo",
    "megatron-apex",
    "megatron-local",
)
POOLS = ("16xH100", "8xA100", "8xL40S", "8xH200", "4xGH200", "16xB200", "16xMI300X", "8xRTX6000-Ada")
WIDTHS = (60, 70, 80, 100, 140)
WORK: tuple[dict[str, Any], ...] = (
    {"batch": 32, "seq": 1024},
    {"batch": 24, "seq": 2048, "task": "lora"},
    {"batch": 64, "seq": 1024, "fix": ["zero=1"], "forbid": ["recompute=selective"]},
    {"batch": 16, "seq": 4096, "forbid": ["overlap=tp"]},
    {"batch": 48, "seq": 1024, "fix": ["recompute=full", "method=block"]},
    {"batch": 32, "seq": 1024, "fix": ["flash=off"]},
    {"batch": 32, "seq": 1024, "minimum": ["pp=2"]},
)
MODELS = ("llama-2-7b", "mixtral-8x7b", "gpt2-xl", "t5-3b", "deepseek-v2-lite", "qwen2.5-1.5b", "llama-3.2-1b")
CASES = list(islice(zip(cycle(MODELS), cycle(POOLS), cycle(RUNTIMES), cycle(WORK), cycle(WIDTHS), strict=False), 44))
FLEETS = (
    ("llama-2-7b", ("16xH100", "8xA100"), "megatron", 80),
    ("mixtral-8x7b", ("8xH100", "8xA100"), "megatron", 140),
    ("llama-3-8b", ("4xL40S", "4xA100"), "torchtitan", 100),
    ("qwen2.5-7b", ("8xMI300X", "8xH100"), "megatron", 80),
    ("gpt2-xl", ("2xH100", "2xA100", "2xL40S"), "megatron", 100),
)
STEP = re.compile(r"(?P<time>[0-9][0-9.,]* (?:s|ms|min|h))\b")


def rows(drawn: str) -> list[tuple[str, str]]:
    """Strategy and step time of every row of the first table of a page, the strategy as one would copy it."""
    lines = drawn.split("\n")
    first = next(number for number, line in enumerate(lines) if "strategy" in line and "step time" in line) + 2
    found: list[list[str]] = []
    for line in lines[first : lines.index("", first)]:
        step = STEP.search(line)
        if step is None:
            found[-1][0] += "\n" + line
            continue
        place, text = line[: step.start()].strip().split(" ", 1)
        assert int(place) == len(found) + 1
        found.append([re.sub(r"  +[0-9+]+$", "", text), step.group("time")])
    return [(text, time) for text, time in found]


def pasted(text: str, model: str, **asked: Any) -> astra.Estimate:
    known = ("gpus", "batch", "seq", "task", "runtime", "node")
    return astra.estimate(model, strategy=text, **{name: asked[name] for name in known if name in asked})


def check(answer: PlanSet, drawn: str, model: str, **asked: Any) -> None:
    shown = rows(drawn)
    assert len(shown) == len(answer.plans) > 0
    for plan, (text, time) in zip(answer.plans, shown, strict=True):
        again = pasted(text, model, **asked)
        assert again.strategy == plan.strategy
        assert again.step_s == pytest.approx(plan.estimate.step_s, rel=1e-12)
        assert show_step(again.step_s) == time
    assert pasted(answer.best.strategy, model, **asked).step_s == pasted(shown[0][0], model, **asked).step_s


@pytest.mark.parametrize(("model", "gpus", "runtime", "work", "width"), sampled(CASES, every=3, rows=True))
def test_rows_of_a_plan(model: str, gpus: str, runtime: str, work: dict[str, Any], width: int) -> None:
    answer, asked = planned(model, gpus, {"runtime": runtime, **work})
    check(answer, answer.draw(width=width, brief=True), model, gpus=gpus, **asked)


def planned(model: str, gpus: str, asked: dict[str, Any]) -> tuple[PlanSet, dict[str, Any]]:
    """A plan as asked; a runtime that cannot do this with this model stands back for the next one that can."""
    for other in (asked, *({"runtime": name, "batch": 32, "seq": 1024} for name in RUNTIMES)):
        with suppress(astra.InputError, astra.NoFeasiblePlan):
            return astra.plan(model, top=3, gpus=gpus, **other), other
    return pytest.fail("no runtime plans it")


@pytest.mark.parametrize(("model", "gpus", "runtime", "width"), sampled(FLEETS, every=3, rows=True))
def test_rows_of_a_plan_over_several_pools(model: str, gpus: tuple[str, ...], runtime: str, width: int) -> None:
    asked: dict[str, Any] = {"gpus": gpus, "runtime": runtime, "batch": 64, "seq": 1024}
    answer = astra.plan(model, top=5, **asked)
    assert isinstance(answer, MixedPlanSet)
    check(answer, answer.draw(width=width, brief=True), model, **asked)


def test_rows_of_a_rent_report() -> None:
    report = astra.rent("llama-3-8b", gpus="H100,A100", tokens=1e10, batch=256, seq=2048, max_gpus=64)
    drawn = report.draw(width=160, brief=True)
    lines = drawn[drawn.index("strategy\n") :].split("\n")[2:]
    at = next(line.index("tp") for line in lines if " tp" in line)
    cells = "\n".join(line[at:] for line in lines[: lines.index("")])
    texts = re.findall(r"(?:\[|(?:[A-Z][^\s:]*: )?tp)(?:.|\n)*?(?=\ntp|\n\[|\n[A-Z][^\s:]*: tp|$)", cells)
    assert len(report.front) > 3
    for choice in report.front:
        gpus = [f"{part.gpus}x{part.gpu}" for part in choice.parts]
        node = choice.parts[0].node if len(choice.parts) == 1 else None
        text = " ".join(short_form(choice.strategy, choice.as_usual))
        assert text.split() in [found.split() for found in texts]
        again = pasted(text, "llama-3-8b", gpus=gpus, node=node, batch=256, seq=2048)
        assert again.strategy == choice.strategy
        assert again.step_s == pytest.approx(choice.step_s, rel=1e-12)
