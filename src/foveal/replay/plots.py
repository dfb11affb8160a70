"""SVG plots: cost against recall and surprise, and the sizes of a conversation's requests."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from foveal.core.wire.safe_print import counted, one_line, visible
from foveal.replay.play import EVERYTHING_LABEL, Trace
from foveal.replay.statistics import PolicyStatistics
from foveal.replay.upper_bound import is_bound, short_policy_name

# ── SVG elements ──────────────────────────────────────────────────────────────────────────────────
# Everything that comes from a recording passes through `escape_text`; nothing else writes text into the page.

COLOUR_COUNT: Final = 8


def escape_text(text: str) -> str:
    """Return a text that is safe anywhere in the page: no markup, no control characters, valid UTF-8."""
    return escape(visible(text), quote=True).encode("utf-8", "replace").decode()


def shorten_escaped(text: str, width: int) -> str:
    """Return at most `width` characters on one line, escaped."""
    line = " ".join(text.split())
    return escape_text(line if len(line) <= width else line[: width - 1] + "…")


def colour(policy: str, policies: Sequence[str]) -> str:
    """Return the colour of a policy: grey for the baseline and the bounds, else by its position."""
    if policy == EVERYTHING_LABEL:
        return "var(--all)"
    if is_bound(policy):
        return "var(--bound)"
    real = [name for name in policies if name != EVERYTHING_LABEL and not is_bound(name)]
    return f"var(--c{real.index(policy) % COLOUR_COUNT})"


def svg(width: int, height: int, parts: Sequence[str], *, label: str) -> str:
    """Return an SVG element with these parts."""
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape_text(label)}">'
    return "\n".join([head, *parts, "</svg>"])


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str = "", stroke: str = "") -> str:
    """Return a straight line with a CSS class."""
    paint = f' stroke="{stroke}"' if stroke else ""
    return f'<line class="{kind}"{paint} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, content: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return an escaped text with a CSS class."""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape_text(content)}</text>'
    )


def path(points: Sequence[tuple[float, float]], *, stroke: str, kind: str = "series") -> str:
    """Return a line through points with a CSS class."""
    steps = " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(points))
    return f'<path class="{kind}" stroke="{stroke}" d="{steps}"/>'


TICK_STEPS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1_000,
)  # fmt: skip


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Return about `about` round numbers from `low` to `high`."""
    span = max(high - low, 1e-9)
    step = next((step for step in TICK_STEPS if span / step <= about), span / about)
    first = int(low // step) * step
    return [first + n * step for n in range(int(span / step) + 2) if low <= first + n * step <= high]


# ── Cost against recall and surprise ──────────────────────────────────────────────────────────────

# Pixels of the plot and its margins.
PLOT_WIDTH, PLOT_HEIGHT = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 40, 18, 24, 42
LABEL_HEIGHT_PX: Final = 14
"""Pixels."""


class Point(NamedTuple):
    """Position of a policy, in percent."""

    policy: str
    bill: float
    recall: float
    far_recall: float


def points(rows: Sequence[PolicyStatistics], kind: str) -> list[Point]:
    """Return the position of each policy; policies without needs of this kind are left out."""
    found = []
    for row in rows:
        recall, far = getattr(row, kind), getattr(row, f"{kind}_far")
        if row.bill is not None and recall is not None:
            far = recall if far is None else far
            found.append(Point(row.policy, 100 * row.bill, 100 * recall, 100 * far))
    return found


class _Frame:
    """Axes of a plot: bills to the right, another figure upwards."""

    def __init__(self, bills: Sequence[float], *, low: float, high: float) -> None:
        self.left, self.right = max(0.0, min(bills, default=100.0) - 8), max(bills, default=100.0) + 8
        self.low, self.high = low, high

    def x(self, bill: float) -> float:
        return LEFT + (bill - self.left) / (self.right - self.left) * (PLOT_WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (self.high - value) / (self.high - self.low) * (PLOT_HEIGHT - TOP - BOTTOM)

    def draw(self) -> list[str]:
        """Return the grid, the axis and their labels."""
        floor = PLOT_HEIGHT - BOTTOM
        parts = []
        for tick in ticks(self.low, self.high):
            parts.append(line(LEFT, self.y(tick), PLOT_WIDTH - RIGHT, self.y(tick), kind="grid"))
            parts.append(text(LEFT - 8, self.y(tick) + 4, f"{tick:g}", anchor="end"))
        for tick in ticks(self.left, self.right, about=8):
            parts.append(line(self.x(tick), TOP, self.x(tick), floor, kind="grid"))
            parts.append(text(self.x(tick), floor + 16, f"{tick:g} %", anchor="middle"))
        parts.append(line(LEFT, floor, PLOT_WIDTH - RIGHT, floor, kind="axis"))
        middle = (LEFT + PLOT_WIDTH - RIGHT) / 2
        parts.append(text(middle, PLOT_HEIGHT - 6, "bill relative to sending everything", anchor="middle"))
        return parts


class _PolicyMark(NamedTuple):
    """The mark of a policy, in pixels."""

    policy: str
    x: float
    y: float


def cost_recall(rows: Sequence[PolicyStatistics], kind: str) -> str:
    """Plot all policies: a filled dot for the recall of far needs, a ring for that of all needs."""
    found = points(rows, kind)
    lowest = min((min(point.recall, point.far_recall) for point in found), default=100.0)
    frame = _Frame([point.bill for point in found], low=max(0.0, min(lowest - 2, 96.0)), high=100.0)
    policies = [row.policy for row in rows]
    parts = frame.draw()
    for point in found:
        parts += _recall_marks(frame, point, colour(point.policy, policies))
    parts += _labels(
        [_PolicyMark(point.policy, frame.x(point.bill), frame.y(point.far_recall)) for point in found]
    )
    return svg(PLOT_WIDTH, PLOT_HEIGHT, parts, label=f"bill and recall of {kind} needs")


def _recall_marks(frame: _Frame, point: Point, paint: str) -> list[str]:
    x, near, far = frame.x(point.bill), frame.y(point.recall), frame.y(point.far_recall)
    figures = f"bill {point.bill:.1f} %, recall {point.recall:.1f}, of far needs {point.far_recall:.1f}"
    shape = _shape(_PolicyMark(point.policy, x, far), paint, figures)
    if is_bound(point.policy) or point.policy == EVERYTHING_LABEL:
        return [shape]
    ring = (
        f'<circle cx="{x:.1f}" cy="{near:.1f}" r="4" fill="var(--card)" stroke="{paint}" stroke-width="1.8"/>'
    )
    return [line(x, near, x, far, kind="link", stroke=paint), ring, shape]


def cost_surprise(rows: Sequence[PolicyStatistics]) -> str:
    """Plot the bill and the mean surprise of all policies at whose calls surprise was measured."""
    found = [
        (row.policy, 100 * row.bill, row.surprise)
        for row in rows
        if row.bill is not None and row.surprise is not None
    ]
    surprises = [surprise for _, _, surprise in found]
    low, high = min(surprises, default=0.0), max(surprises, default=0.0)
    margin = max(0.05 * (high - low), 0.002)
    frame = _Frame([bill for _, bill, _ in found], low=min(low, 0.0) - margin, high=high + margin)
    policies = [row.policy for row in rows]
    parts, marks = frame.draw(), []
    for policy, bill, surprise in found:
        marks.append(_PolicyMark(policy, frame.x(bill), frame.y(surprise)))
        figures = f"bill {bill:.1f} %, surprise {surprise:.3f} bits per byte"
        parts.append(_shape(marks[-1], colour(policy, policies), figures))
    return svg(PLOT_WIDTH, PLOT_HEIGHT, [*parts, *_labels(marks)], label="bill and surprise")


def _shape(mark: _PolicyMark, paint: str, figures: str) -> str:
    """Return a dot, or a diamond for an upper bound, with the figures that the page shows on hover."""
    policy, x, y = mark
    title = f"<title>{escape_text(f'{policy}: {figures}')}</title>"
    if is_bound(policy):
        return (
            f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" fill="{paint}" '
            f'transform="rotate(45 {x:.1f} {y:.1f})">{title}</rect>'
        )
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{paint}">{title}</circle>'


def _labels(marks: Sequence[_PolicyMark]) -> list[str]:
    """Return each name beside its mark, moved down where it would overlap another name."""
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []
    for mark in sorted(marks, key=lambda mark: mark.y):
        name = one_line(short_policy_name(mark.policy), width=34)
        x, y, width = mark.x, mark.y + 4, 6.4 * len(name)
        is_left = x + 11 + width > PLOT_WIDTH - RIGHT
        start = x - 11 - width if is_left else x + 11
        while any(
            abs(y - other) < LABEL_HEIGHT_PX and start < end and begin < start + width
            for begin, end, other in taken
        ):
            y += LABEL_HEIGHT_PX
        taken.append((start, start + width, y))
        parts.append(
            text(x - 11 if is_left else x + 11, y, name, anchor="end" if is_left else "start", kind="name")
        )
    return parts


# ── Sizes of requests ─────────────────────────────────────────────────────────────────────────────

# Pixels of the plot, and of its left, bottom and top axes.
SMALL_PLOT_WIDTH, SMALL_PLOT_HEIGHT = 280, 124
AXIS_X, AXIS_Y, TOP_Y = 36, 104, 14
MAX_SERIES_POINTS: Final = 140
"""Most points of a line; of more calls, the largest request of each stretch is drawn."""


def sizes(traces: Sequence[Trace], *, window: float, policies: Sequence[str]) -> str:
    """Plot the tokens of each request under each policy, the window, and a tick for each prefix break."""
    drawn = [trace for trace in traces if not is_bound(trace.policy)]
    calls = max(len(trace.sizes) for trace in drawn)
    real = [trace for trace in drawn if trace.policy != EVERYTHING_LABEL] or drawn
    whole = max(max(trace.sizes, default=1) for trace in drawn)
    top = min(whole, max(window, max(max(trace.sizes, default=1) for trace in real))) * 1.1
    parts = [line(AXIS_X, AXIS_Y, SMALL_PLOT_WIDTH - 4, AXIS_Y, kind="axis")]
    parts.append(text(AXIS_X - 5, AXIS_Y, "0", anchor="end"))
    parts.append(text(AXIS_X - 5, TOP_Y + 10, _rough_tokens(top / 1.1), anchor="end"))
    parts.append(text(SMALL_PLOT_WIDTH - 4, TOP_Y - 3, counted(calls, "call"), anchor="end"))
    if window <= top:
        y = _tokens_y(window, top)
        parts.append(line(AXIS_X, y, SMALL_PLOT_WIDTH - 4, y, kind="limit"))
    for trace in drawn:
        parts += _series(trace, calls, top, colour(trace.policy, policies))
    for row, trace in enumerate(real):
        parts += _break_ticks(trace, calls, row, colour(trace.policy, policies))
    return svg(SMALL_PLOT_WIDTH, SMALL_PLOT_HEIGHT, parts, label="tokens of each request")


def _call_x(call: int, calls: int) -> float:
    return AXIS_X + (call - 1) / max(1, calls - 1) * (SMALL_PLOT_WIDTH - AXIS_X - 4)


def _tokens_y(tokens: float, top: float) -> float:
    return AXIS_Y - min(1.0, tokens / top) * (AXIS_Y - TOP_Y)


def _series(trace: Trace, calls: int, top: float, paint: str) -> list[str]:
    step = -(-len(trace.sizes) // MAX_SERIES_POINTS) or 1
    line_points = []
    for first in range(0, len(trace.sizes), step):
        size, call = max(
            (size, call) for call, size in enumerate(trace.sizes[first : first + step], first + 1)
        )
        line_points.append((_call_x(call, calls), _tokens_y(size, top)))
        if trace.policy == EVERYTHING_LABEL and size > top:  # the line leaves the plot here
            break
    kind = "series faint" if trace.policy == EVERYTHING_LABEL else "series"
    return [path(line_points, stroke=paint, kind=kind)] if line_points else []


def _break_ticks(trace: Trace, calls: int, row: int, paint: str) -> list[str]:
    y = AXIS_Y + 3 + 4 * (row % 4)
    return [
        line(x, y, x, y + 3, kind="break", stroke=paint)
        for x in (_call_x(call, calls) for call in trace.breaks)
    ]


def _rough_tokens(tokens: float) -> str:
    return f"{tokens / 1_000:.0f}k" if tokens >= 1_000 else f"{tokens:.0f}"
