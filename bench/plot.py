"""Lines on logarithmic axes as SVG: just enough for the figures of the documentation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 330
_HEIGHT: Final = 260
_LEFT: Final = 62
_GAP: Final = 44
_TOP: Final = 92
_BOTTOM: Final = 74
_RIGHT: Final = 26
_INK: Final = "#1f2933"
_SOFT: Final = "#66727f"
_GRID: Final = "#e4e8ec"
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together, and the colour and the name they have in the legend."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    label: str
    """Of the horizontal axis."""
    lines: Sequence[Line]


def draw(title: str, subtitle: str, y_label: str, panels: Sequence[Panel]) -> str:
    """Panels side by side on one vertical scale, both axes logarithmic."""
    heights = [y for panel in panels for line in panel.lines for _, y in line.points]
    vertical = _Axis(heights, _TOP + _HEIGHT, _TOP)
    width = _LEFT + len(panels) * _WIDTH + (len(panels) - 1) * _GAP + _RIGHT
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{_FONT}" font-size="12" fill="{_INK}" role="img" '
        f'aria-label="{escape(title)}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(_LEFT, 30, title, size=17, weight=600),
        _text(_LEFT, 49, subtitle, fill=_SOFT),
        _text(18, _TOP + _HEIGHT / 2, y_label, fill=_SOFT, anchor="middle", turned=True),
    ]
    for number, panel in enumerate(panels):
        left = _LEFT + number * (_WIDTH + _GAP)
        parts += _panel(panel, left, vertical, labelled=number == 0)
    parts += _legend([line for panel in panels for line in panel.lines], height - 14)
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Numbers to places, from the decade below the least to the decade above the greatest."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low = math.floor(math.log10(min(values)) + 1e-9)
        self._high = max(math.ceil(math.log10(max(values)) - 1e-9), self._low + 1)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    @property
    def decades(self) -> list[float]:
        return [10.0**n for n in range(self._low, self._high + 1)]

    @property
    def between(self) -> list[float]:
        return [k * decade for decade in self.decades[:-1] for k in range(2, 10)]


def _panel(panel: Panel, left: float, vertical: _Axis, *, labelled: bool) -> list[str]:
    bottom, right = _TOP + _HEIGHT, left + _WIDTH
    across = _Axis([x for line in panel.lines for x, _ in line.points], left, right)
    parts = [_text(left, _TOP - 12, panel.title, weight=600)]
    for value in vertical.decades:
        y = vertical.place(value)
        parts.append(_rule(left, y, right, y, _GRID))
        if labelled:
            parts.append(_text(left - 8, y + 4, _short(value), fill=_SOFT, anchor="end"))
    for value in across.decades:
        x = across.place(value)
        parts.append(_rule(x, _TOP, x, bottom, _GRID))
        parts.append(_text(x, bottom + 17, _short(value), fill=_SOFT, anchor="middle"))
    for value in across.between:
        x = across.place(value)
        parts.append(_rule(x, bottom, x, bottom + 3, _SOFT))
    parts.append(_rule(left, bottom, right, bottom, _SOFT))
    parts.append(_text((left + right) / 2, bottom + 35, panel.label, fill=_SOFT, anchor="middle"))
    for line in panel.lines:
        places = [(across.place(x), vertical.place(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2" '
            f'stroke-linejoin="round"{dashes}/>'
        )
        for (x, y), (value, height) in zip(places, line.points, strict=True):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="#ffffff" stroke="{line.colour}" '
                f'stroke-width="2"><title>{escape(line.name)}: {_short(value)}, {height:.3g}</title></circle>'
            )
        (x, y), (_, last) = places[-1], line.points[-1]
        parts.append(_text(x - 6, y - 9, f"{last:,.3g}", fill=line.colour, anchor="end", weight=600))
    return parts


def _legend(lines: Sequence[Line], y: float) -> list[str]:
    parts: list[str] = []
    x = float(_LEFT)
    seen = set()
    for line in lines:
        if line.name in seen:
            continue
        seen.add(line.name)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        parts.append(
            f'<line x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x + 24:.1f}" y2="{y - 4:.1f}" '
            f'stroke="{line.colour}" stroke-width="2"{dashes}/>'
        )
        parts.append(_text(x + 31, y, line.name))
        x += 31 + 6.3 * len(line.name) + 26
    return parts


def _text(
    x: float,
    y: float,
    text: str,
    *,
    fill: str = _INK,
    anchor: str = "start",
    size: int = 12,
    weight: int = 400,
    turned: bool = False,
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}"{turn}>{escape(text)}</text>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _short(value: float) -> str:
    """1 K, 10 M, 0.1."""
    for unit, name in ((1e6, " M"), (1e3, " K")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
