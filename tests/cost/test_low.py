"""Ways to scale quantised operands, against what a GPU was measured to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astra.cost.low import SCALINGS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("way", ["rowwise", "blockwise"])
def test_finer_scales_slow_a_product_as_they_were_measured_to(way: str) -> None:
    measured = json.loads(max(RESULTS.glob("*_quantised_h200.json")).read_text(encoding="utf-8"))["slower"]
    assert SCALINGS[f"fp8-{way}"].slower == pytest.approx(measured[way], rel=0.01)
    assert SCALINGS[f"fp8-{way}"].slower < measured["bf16"], "else nobody would quantise"
