"""A planner that answers at once and remembers what it was asked, so that the command line is tested by itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import astra
from astra.answer import Estimate, ModelReport, PlanSet
from astra.cli import main
from astra.spec.request import FIELDS, PlanRequest, tokens_of
from tests.report import records


def given(request: PlanRequest) -> dict[str, Any]:
    """The fields of a request that are not the usual ones."""
    usual = PlanRequest(model="any")
    return {name: value for name in FIELDS if (value := getattr(request, name)) != getattr(usual, name)}


class FakePlanner(ModuleType):
    """Stands in for ``astra.api``."""

    def __init__(self) -> None:
        super().__init__("astra.api")
        self.asked: dict[str, Any] = {}
        self.planset: PlanSet = records.planset()
        self.error: BaseException | None = None
        self.default_seq = 2048

    def plan(self, request: PlanRequest, **_: Any) -> PlanSet:
        self.asked = given(request)
        if self.error is not None:
            raise self.error
        return self.planset

    def estimate(self, request: PlanRequest) -> Estimate:
        self.asked = given(request)
        if self.error is not None:
            raise self.error
        return self.planset.best.estimate

    def describe_model(self, model: str, seq: int | str | None = None) -> ModelReport:
        self.asked = {"model": model, "seq": seq}
        if self.error is not None:
            raise self.error
        flops = {"seq": float(tokens_of(seq or self.default_seq)), "forward": 1.4e10}
        counts = {"total": 7_000_000_000, "active": 7_000_000_000, "embedding": 1_000_000}
        return ModelReport(name=model, family="decoder", shape={"layers": 32}, parameters=counts, flops_per_token=flops,
                           source="test", date="")  # fmt: skip


class Shown(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The one JSON record on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> FakePlanner:
    fake = FakePlanner()
    monkeypatch.setitem(sys.modules, "astra.api", fake)
    monkeypatch.setattr(astra, "api", fake, raising=False)
    return fake


@pytest.fixture
def astra_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Shown]:
    def run(*arguments: str) -> Shown:
        code = main(arguments)
        out, err = capsys.readouterr()
        return Shown(code, out, err)

    return run
