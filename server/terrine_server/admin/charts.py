"""Charts as SVG elements, drawn on the server. Colours are those of the stylesheet's classes.

Beside each one a page has a table of the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime

from markupsafe import Markup, escape

from terrine_protocol import Outcome
from terrine_server.ledger import ProjectPosition

WIDTH, HEIGHT = 440, 220
# Margins around the plot, for the numbers at its axes.
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 10, 34
# Width of a meter.
METER_WIDTH = 100
STACKED_OUTCOMES = (
    Outcome.ANSWERED,
    Outcome.REINFORCED,
    Outcome.ABSTAINED,
    Outcome.PUBLISHED,
    Outcome.RELEASED,
)


def draw_meter(title: str, **parts: float) -> Markup:
    """Draw a divided bar: each part's class and its share of the whole, 0 to 1."""
    x, shown = 0.0, []
    for kind, share in parts.items():
        width = min(max(share, 0.0), 1 - x / METER_WIDTH) * METER_WIDTH
        if width > 0:
            shown.append(f'<rect class="{kind}" x="{x:.2f}" width="{width:.2f}" height="8"/>')
        x += width
    return Markup(  # noqa: S704 - numbers, and a title that is escaped
        f'<svg class="meter" viewBox="0 0 {METER_WIDTH} 8" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}"><rect class="free" width="{METER_WIDTH}" height="8"/>'
        f"{''.join(shown)}</svg>"
    )


def draw_by_query(reached: Sequence[ProjectPosition], budget: int) -> Markup:
    """Draw the share of a budget that is left, over the number of its charges."""
    most = reached[-1].seq
    points = [(0.0, 1.0), *((r.seq / most, 1 - r.spent / budget) for r in reached)]
    ticks = [(at / most, _short(at)) for at in _round_ticks(most)]
    return _draw_line("Budget left, by number of charges", points, ticks, "charges")


def draw_by_time(reached: Sequence[ProjectPosition], budget: int, opened: datetime) -> Markup:
    """Draw the share of a budget that is left, over the time since its project was opened."""
    start, end = opened.timestamp(), max(reached[-1].at.timestamp(), opened.timestamp() + 1)
    points, left = [(0.0, 1.0)], 1.0
    for r in reached:
        x = max(0.0, (r.at.timestamp() - start) / (end - start))
        points += [(x, left), (x, left := 1 - r.spent / budget)]
    days = (end - start) / 86_400
    form = "%H:%M" if days < 1 else "%m-%d" if days < 300 else "%Y-%m"
    ticks = [
        (at, f"{datetime.fromtimestamp(start + at * (end - start), UTC):{form}}")
        for at in (0.0, 0.5, 1.0)
    ]
    return _draw_line("Budget left, over time", points, ticks, "UTC")


def draw_by_day(days: Mapping[date, Mapping[Outcome, int]]) -> Markup:
    """Draw how many charges each day has, by outcome."""
    first, last = min(days), max(days)
    count = (last - first).days + 1
    top = max(sum(outcomes.values()) for outcomes in days.values())
    width = (WIDTH - LEFT - RIGHT) / max(count, 7)
    bars = []
    for day, outcomes in days.items():
        x, reached = LEFT + (day - first).days * width, 0
        for outcome in STACKED_OUTCOMES:
            found = outcomes.get(outcome, 0)
            if not found:
                continue
            low, high = _y(reached / top), _y((reached + found) / top)
            bars.append(
                f'<rect class="{outcome}" x="{x:.1f}" y="{high:.1f}" '
                f'width="{max(width - 1, 0.5):.1f}" height="{low - high:.1f}"/>'
            )
            reached += found
    rows = [(at / top, _short(at)) for at in _round_ticks(top)]
    ends = [(0.5 * width, f"{first:%m-%d}")]
    if count > 1:
        ends.append(((count - 0.5) * width, f"{last:%m-%d}"))
    axis = "".join(_tick(LEFT + x, label) for x, label in ends)
    return _svg("Charges by day and outcome", f"{_grid(rows)}{''.join(bars)}{axis}")


def _draw_line(
    title: str,
    points: Sequence[tuple[float, float]],
    ticks: Sequence[tuple[float, str]],
    unit: str,
) -> Markup:
    """Draw a line over the unit square, filled below, with its two axes."""
    placed = [f"{_x(x):.1f},{_y(y):.1f}" for x, y in points]
    below = f"M{_x(0):.1f},{_y(0):.1f} L{' L'.join(placed)} L{_x(points[-1][0]):.1f},{_y(0):.1f} Z"
    rows = [(at / 4, f"{at * 25} %") for at in range(5)]
    axis = "".join(_tick(_x(at), label) for at, label in ticks)
    return _svg(
        title,
        f'{_grid(rows)}<path class="area" d="{below}"/>'
        f'<polyline class="line" points="{" ".join(placed)}"/>{axis}'
        f'<text class="unit" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{unit}</text>',
    )


def _svg(title: str, content: str) -> Markup:
    return Markup(  # noqa: S704 - numbers, our own words, and a title that is escaped
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{content}</svg>'
    )


def _grid(rows: Sequence[tuple[float, str]]) -> str:
    lines = (
        f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(at):.1f}" y2="{_y(at):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{_y(at) + 4:.1f}" text-anchor="end">{label}</text>'
        for at, label in rows
    )
    return "".join(lines)


def _tick(x: float, label: str) -> str:
    anchor = "start" if x < LEFT + 20 else "end" if x > WIDTH - RIGHT - 20 else "middle"
    return f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="{anchor}">{label}</text>'


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _round_ticks(most: int) -> Iterator[int]:
    """Yield 0 and round numbers up to `most`, at most five of them."""
    rough = max(most / 4, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough)
    yield from range(0, most + 1, int(step))


def _short(number: int) -> str:
    """Return a round number as it fits beside an axis, such as 40 k or 2.5 M."""
    for power, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= power:
            return f"{number / power:g} {unit}"
    return str(number)
