"""How many modules a plan touches, counted for real."""

from __future__ import annotations

import pytest

from tools.modules import FEWER, PLANS, counted


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_touches_few_modules(name: str) -> None:
    found = counted(PLANS[name])
    assert 50 < len(found["touched"]) < FEWER[name]
    assert set(found["touched"]) <= set(found["loaded"])
