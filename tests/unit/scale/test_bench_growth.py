"""The growth plot: its sizes, and a picture that says what was measured."""

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import growth, harness
from bench.growth import Point
from bench.plot import Line, Panel, draw

SVG = "{http://www.w3.org/2000/svg}"
POINTS = [
    Point(10_000, 1_000, 50.0, 2.0, 1.0),
    Point(100_000, 1_000, 400.0, 3.0, 1.1, ((10, 0.9), (1_000, 30.0))),
    Point(100_000, 10_000, 900.0, 9.0, 1.2),
]


def circles(svg: str) -> list[tuple[float, float]]:
    found = ET.fromstring(svg).iter(f"{SVG}circle")
    return [(float(circle.attrib["cx"]), float(circle.attrib["cy"])) for circle in found]


def test_both_series_run_over_all_sizes_and_through_one_fleet() -> None:
    found = growth.sizes(5_000_000, 50_000, (500_000, 5_000))
    by_machines = [machines for machines, needs in found if needs == 5_000]
    by_needs = [needs for machines, needs in found if machines == 500_000]

    assert (by_machines[0], by_machines[-1]) == (10_000, 5_000_000)
    assert (by_needs[0], by_needs[-1]) == (1_000, 50_000)
    assert 500_000 in by_machines
    assert 5_000 in by_needs


def test_limits_leave_larger_fleets_out() -> None:
    assert growth.sizes(30_000, 1_000, (30_000, 1_000)) == [(10_000, 1_000), (30_000, 1_000)]


def test_axes_are_logarithmic() -> None:
    svg = draw("t", "s", "ms", [Panel("p", "x", [Line("l", "#000", [(1, 1), (10, 10), (100, 100)])])])
    (x1, y1), (x2, y2), (x3, y3) = circles(svg)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert x1 < x2
    assert y1 > y2


def test_every_figure_is_in_the_picture() -> None:
    svg = growth.picture(POINTS)
    # Two fleets in each series with three lines each, and two rates of change beside the full pass.
    assert len(circles(svg)) == 2 * 2 * 3 + 2 * 2
    texts = {element.text for element in ET.fromstring(svg).iter(f"{SVG}text")}  # our own picture
    assert {"1,000 Needs", "100,000 machines", "machines", "Needs", "milliseconds"} <= texts


def test_the_last_figures_can_be_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "HERE", tmp_path)
    picture = tmp_path / "picture.svg"
    assert growth.main(["--draw", "--out", str(picture)]) == 1
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "growth.json").write_text(json.dumps([asdict(point) for point in POINTS]))
    assert growth.main(["--draw", "--out", str(picture)]) == 0
    assert picture.read_text() == growth.picture(POINTS)
