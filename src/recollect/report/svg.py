"""Charts as SVG text: curves with their intervals, and figures by age as a heat map.

Without a script they stand for themselves; page.js moves the paths when another horizontal axis is
chosen, by the same rules. A heat map is a small image, which is a hundredth of as many rectangles.
"""

import base64
import dataclasses
import html
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np

LEFT = 52
RIGHT = 14
TOP = 10
BOTTOM = 30
"""Margins of a chart, in its own units; page.js knows them too."""
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Colours of a heat map from 0 to 1: even steps of lightness, safe for colour blindness."""


@dataclasses.dataclass(frozen=True)
class Series:
    """One run's curve in a chart."""

    run: int
    """Which one of the page."""
    colour: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chart:
    """Curves of the same figure."""

    key: str
    title: str
    series: Sequence[Series]
    log: bool = False
    percent: bool = False
    levels: Sequence[tuple[float, str, int]] = ()
    """Horizontal lines: value, colour, and which run they belong to."""

    @property
    def range(self) -> tuple[float, float]:
        """Of the vertical axis: all of the means, intervals as far as they are not absurd."""
        means = np.concatenate([one.mean for one in self.series])
        bounds = np.concatenate([np.r_[one.low, one.high] for one in self.series])
        levels = [value for value, _, _ in self.levels]
        inside = means[np.isfinite(means)]
        if self.log:
            inside = inside[inside > 0]
        if not inside.size:
            return (0.1, 1.0) if self.log else (0.0, 1.0)
        if self.log:
            low, high = min(inside.min(), *levels, math.inf), max(inside.max(), *levels, -math.inf)
            return float(low / 1.3), float(high * 1.3)
        # The interval of few seeds may be many times the curve: a part of it has to do.
        room = 0.3 * float(np.ptp(inside))
        near = np.clip(bounds[np.isfinite(bounds)], inside.min() - room, inside.max() + room)
        every = np.concatenate([inside, near, levels])
        low = float(every.min())
        high = float(every.max())
        if self.percent:
            return 0.0, max(1.02, float(inside.max()))
        if inside.min() >= 0 and low < 0.4 * high:
            low = 0.0
        room = 0.05 * (high - low) or 0.05 * max(abs(high), 1.0)
        return (low if low == 0 else low - room), high + room


def line_chart(chart: Chart, x: Sequence[np.ndarray], width: int, height: int) -> str:
    """A chart as an SVG element.

    Args:
        chart: what is drawn.
        x: horizontal places of the points, for each run of the page.
        width, height: in units of the picture, about pixels.
    """
    low, high = chart.range
    right = max(
        (float(np.nanmax(x[one.run])) for one in chart.series if len(x[one.run])), default=1
    )
    across = lambda value: LEFT + (width - LEFT - RIGHT) * value / max(right, 1e-12)
    up = _vertical(low, high, chart.log, height)
    body = [_grid(chart, up, width), f'<g class="xticks">{_bottom(right, across, height)}</g>']
    for one in chart.series:
        px = across(np.asarray(x[one.run], dtype=float))
        body.append(
            f'<g class="series" data-run="{one.run}" style="--c:{paint(one.colour)}">'
            f'<path class="band" d="{_band(px, up(one.low), up(one.high))}"/>'
            f'<path class="line" d="{_line(px, up(one.mean))}"/></g>'
        )
    for value, colour, run in chart.levels:
        y = float(up(np.array([value]))[0])
        body.append(
            f'<g class="series" data-run="{run}" style="--c:{paint(colour)}">'
            f'<path class="level" d="M{LEFT} {y:.1f}H{width - RIGHT}"/></g>'
        )
    body.append(f'<path class="cursor" d="M0 {TOP}V{height - BOTTOM}"/>')
    return (
        f'<svg class="chart" id="{html.escape(chart.key)}" viewBox="0 0 {width} {height}" '
        f'role="img" tabindex="0" aria-label="{html.escape(chart.title)}">{"".join(body)}</svg>'
    )


def paint(colour: str) -> str:
    """A colour for both light and dark pages: black is the ink of either."""
    return "var(--ink)" if colour == "#000000" else colour


def heat_map(
    shares: np.ndarray, iterations: int, title: str, width: int, height: int, most: float = 1.0
) -> str:
    """Shares between 0 and 1 by age (upwards) and time (to the right) as an SVG element.

    Args:
        shares: time, then age; what is NaN stays empty.
        iterations: at the right end.
        title: for readers that cannot see it.
        width, height: in units of the picture.
        most: the share that has the strongest colour.
    """
    wide, tall = width - LEFT - RIGHT, height - TOP - BOTTOM
    image = base64.b64encode(png(_coloured(shares.T[::-1] / most))).decode()
    percents = np.where(np.isfinite(shares), np.clip(np.round(100 * shares), 0, 200), 255)
    values = base64.b64encode(percents.astype(np.uint8).tobytes()).decode()
    ages = shares.shape[1]
    marks = []
    for age in ticks(0, ages - 1, 4):
        if age == int(age):
            y = height - BOTTOM - tall * (age + 0.5) / ages
            marks.append(f'<text class="y" x="{LEFT - 6}" y="{y + 4:.1f}">{int(age)}</text>')
    across = lambda value: LEFT + wide * value / max(iterations, 1)
    return (
        f'<svg class="heat" viewBox="0 0 {width} {height}" role="img" tabindex="0" '
        f'aria-label="{html.escape(title)}" data-ages="{ages}" data-times="{len(shares)}" '
        f'data-iterations="{iterations}" data-values="{values}">'
        f'<image x="{LEFT}" y="{TOP}" width="{wide}" height="{tall}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{image}"/>{"".join(marks)}'
        f'{_bottom(iterations, across, height)}<rect class="cell"/></svg>'
    )


def png(pixels: np.ndarray) -> bytes:
    """Pixels (row, column, red-green-blue-alpha) as a PNG file.

    Example:
        >>> import numpy as np
        >>> from recollect.report.svg import png
        >>> png(np.zeros((2, 3, 4), np.uint8))[:4]
        b'\\x89PNG'
    """
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def ticks(low: float | int, high: float | int, most: int = 5) -> list[float]:
    """Round numbers between two, at most `most` + 1 of them.

    Example:
        >>> from recollect.report.svg import ticks
        >>> ticks(0, 60)
        [0.0, 20.0, 40.0, 60.0]
    """
    if not high > low:
        return [float(low)]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float | int) -> str:
    """A number in few characters.

    Example:
        >>> from recollect.report.svg import short
        >>> short(20_000), short(0.05), short(1_500_000), short(3)
        ('20k', '0.05', '1.5M', '3')
    """
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            unit = 1e3 if letter == "k" else limit
            return f"{value / unit:.4g}{letter}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def _vertical(low: float, high: float, log: bool, height: int):
    """The function from values to heights, NaN where a value has none."""

    def up(values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, dtype=float)
        bottom, top = low, high
        if log:
            values = np.where(values > 0, values, np.nan)
            values, bottom, top = np.log(values), math.log(low), math.log(high)
        share = np.clip((values - bottom) / (top - bottom), 0, 1)
        return height - BOTTOM - (height - BOTTOM - TOP) * share

    return up


def _grid(chart: Chart, up, width: int) -> str:
    low, high = chart.range
    if chart.log:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        step = max(1, math.ceil((last - first + 1) / 5))
        values = [10.0**k for k in range(first, last + 1, step)]
        if len(values) < 2:
            values = [value for value in ticks(low, high, 4) if value > 0]
    else:
        values = ticks(low, high, 4)
    lines = []
    for value, y in zip(values, up(np.array(values)), strict=True):
        text = f"{100 * value:.0f} %" if chart.percent else short(value)
        lines.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{width - RIGHT}"/>')
        lines.append(f'<text class="y" x="{LEFT - 6}" y="{y + 4:.1f}">{text}</text>')
    return "".join(lines)


def _bottom(right: float | int, across, height: int) -> str:
    texts = [
        f'<text class="x" x="{across(value):.1f}" y="{height - BOTTOM + 18}">{short(value)}</text>'
        for value in ticks(0, right, 5)
    ]
    return "".join(texts)


def _line(x: np.ndarray, y: np.ndarray) -> str:
    path = []
    pen = "M"
    for px, py in zip(x, y, strict=True):
        if np.isfinite(py) and np.isfinite(px):
            path.append(f"{pen}{px:.1f} {py:.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(path)


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """The area between two curves, in as many pieces as they have."""
    there = np.isfinite(low) & np.isfinite(high) & np.isfinite(x)
    edges = np.flatnonzero(np.diff(np.r_[False, there, False].astype(int)))
    pieces = []
    for start, end in edges.reshape(-1, 2):
        back = slice(end - 1, start - 1 if start else None, -1)
        outline = [*zip(x[start:end], high[start:end], strict=True)]
        outline += [*zip(x[back], low[back], strict=True)]
        pieces.append("M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in outline) + "Z")
    return "".join(pieces)


def _coloured(shares: np.ndarray) -> np.ndarray:
    """Pixels of shares between 0 and 1; transparent where there are none."""
    place = np.clip(np.nan_to_num(shares), 0, 1) * (len(RAMP) - 1)
    lower = np.minimum(place.astype(int), len(RAMP) - 2)
    ramp = np.array(RAMP, dtype=float)
    part = (place - lower)[..., None]
    colours = ramp[lower] * (1 - part) + ramp[lower + 1] * part
    alpha = np.where(np.isfinite(shares), 255, 0)[..., None]
    return np.concatenate([colours, alpha], axis=-1).round().astype(np.uint8)
