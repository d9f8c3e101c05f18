"""Charts: every curve has its name, words stay inside the picture, small differences can be seen."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from astra.report.charts import ChartCurve, Dot, Panel, charts

SVG = "{http://www.w3.org/2000/svg}"


def drawn(curves: int, *, zero: bool = True, ticks: tuple[str, ...] = ("8", "16")) -> ET.Element:
    named = [
        ChartCurve(
            f"a job of some name on pool {number}",
            [Dot(float(x), 2.6 + 0.01 * number + 0.1 * x, 2.6, 2.8, "") for x in (0, 1)],
        )
        for number in range(curves)
    ]
    places = [(float(place), words) for place, words in enumerate(ticks)]
    return ET.fromstring(charts("Title", [Panel("loss", named, places, str, zero=zero)], "GPUs"))


def words(svg: ET.Element) -> dict[str, tuple[float, float]]:
    return {text.text or "": (float(text.get("x", 0)), float(text.get("y", 0))) for text in svg.iter(f"{SVG}text")}


@pytest.mark.parametrize("curves", [2, 5, 9])
def test_every_curve_has_its_name_inside_the_picture(curves: int) -> None:
    svg = drawn(curves)
    wide, high = float(svg.get("width", 0)), float(svg.get("height", 0))
    places = [place for text, place in words(svg).items() if text.startswith("a job")]
    assert len(places) == curves
    assert len(set(places)) == curves, "no name on another"
    letters = 6.0 * len("a job of some name on pool 0")
    assert all(x + letters <= wide and y < high for x, y in places)
    first = min(float(circle.get("cy", 0)) for circle in svg.iter(f"{SVG}circle"))
    shift = float(re.findall(r"translate\(0,([\d.]+)\)", ET.tostring(svg, encoding="unicode"))[0])
    assert max(y for _, y in places) < first + shift, "names are above the curves"


def test_words_of_the_axis_stay_inside() -> None:
    svg = drawn(1, ticks=("llama-3.2-1b", "a-model-of-a-long-name"))
    x, _ = words(svg)["a-model-of-a-long-name"]
    assert x + 3.0 * len("a-model-of-a-long-name") <= float(svg.get("width", 0))


def test_an_axis_that_does_not_begin_at_zero_shows_small_differences() -> None:
    heights = {}
    for zero in (True, False):
        dots = [float(circle.get("cy", 0)) for circle in drawn(1, zero=zero).iter(f"{SVG}circle")]
        heights[zero] = max(dots) - min(dots)
    assert heights[False] > 5 * heights[True]
