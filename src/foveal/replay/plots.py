"""The two kinds of plots: cost against recall, and the size of one conversation's requests call by call."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from foveal.core.wire.safe_print import visible
from foveal.replay.play import EVERYTHING, Trace
from foveal.replay.statistics import PolicyStatistics
from foveal.replay.upper_bound import ORACLE, ORACLE_ARGUMENTS

# ── drawing ───────────────────────────────────────────────────────────────────────────────────────
# Small pieces of a page: escaped text, colours, and SVG elements.
#
# Everything that comes from a recording passes through `escaped`; nothing else writes text into the page.

COLOURS: Final = 8


def escaped(text: str) -> str:
    """A text that can stand anywhere in the page: no markup, no control characters, valid UTF-8."""
    return escape(visible(text), quote=True).encode("utf-8", "replace").decode()


def shortened(text: str, width: int) -> str:
    """At most so many characters on one line, escaped."""
    line = " ".join(text.split())
    return escaped(line if len(line) <= width else line[: width - 1] + "…")


def colour(policy: str, policies: Sequence[str]) -> str:
    """The colour of a policy: grey for what is no policy, else by its place."""
    if policy == EVERYTHING:
        return "var(--all)"
    if is_bound(policy):
        return "var(--bound)"
    real = [one for one in policies if one != EVERYTHING and not is_bound(one)]
    return f"var(--c{real.index(policy) % COLOURS})"


def is_bound(policy: str) -> bool:
    return policy in (ORACLE, ORACLE_ARGUMENTS)


def svg(width: int, height: int, parts: Sequence[str], *, label: str) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escaped(label)}">'
    return "\n".join([head, *parts, "</svg>"])


def line(x1: float, y1: float, x2: float, y2: float, *, kind: str = "", stroke: str = "") -> str:
    paint = f' stroke="{stroke}"' if stroke else ""
    return f'<line class="{kind}"{paint} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(words)}</text>'


def path(points: Sequence[tuple[float, float]], *, stroke: str, kind: str = "series") -> str:
    steps = " ".join(f"{'L' if n else 'M'}{x:.1f} {y:.1f}" for n, (x, y) in enumerate(points))
    return f'<path class="{kind}" stroke="{stroke}" d="{steps}"/>'


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    span = max(high - low, 1e-9)
    step = next(
        (s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1_000) if span / s <= about), span / about
    )
    first = int(low // step) * step
    return [first + n * step for n in range(int(span / step) + 2) if low <= first + n * step <= high]


# ── plots ─────────────────────────────────────────────────────────────────────────────────────────

WIDE, HIGH = 560, 380
LEFT, RIGHT, TOP, BOTTOM = 40, 18, 24, 42
ROW: Final = 14
"""Pixels that a label takes."""


class Point(NamedTuple):
    policy: str
    bill: float
    near: float
    far: float


def points(rows: Sequence[PolicyStatistics], kind: str) -> list[Point]:
    """Where each policy stands, in percent; those without needs of this kind are left out."""
    found = []
    for row in rows:
        near, far = getattr(row, kind), getattr(row, f"{kind}_far")
        if row.bill is not None and near is not None:
            found.append(Point(row.policy, 100 * row.bill, 100 * near, 100 * (near if far is None else far)))
    return found


class _Frame:
    """Bills to the right, recall upwards."""

    def __init__(self, found: Sequence[Point]) -> None:
        bills = [point.bill for point in found] or [100.0]
        lows = [min(point.near, point.far) for point in found] or [100.0]
        self.left, self.right = max(0.0, min(bills) - 8), max(bills) + 8
        self.low = max(0.0, min(min(lows) - 2, 96.0))

    def x(self, bill: float) -> float:
        return LEFT + (bill - self.left) / (self.right - self.left) * (WIDE - LEFT - RIGHT)

    def y(self, recall: float) -> float:
        return TOP + (100 - recall) / (100 - self.low) * (HIGH - TOP - BOTTOM)

    def drawn(self) -> list[str]:
        floor = HIGH - BOTTOM
        parts = []
        for tick in ticks(self.low, 100):
            parts.append(line(LEFT, self.y(tick), WIDE - RIGHT, self.y(tick), kind="grid"))
            parts.append(text(LEFT - 8, self.y(tick) + 4, f"{tick:g}", anchor="end"))
        for tick in ticks(self.left, self.right, about=8):
            parts.append(line(self.x(tick), TOP, self.x(tick), floor, kind="grid"))
            parts.append(text(self.x(tick), floor + 16, f"{tick:g} %", anchor="middle"))
        parts.append(line(LEFT, floor, WIDE - RIGHT, floor, kind="axis"))
        middle = (LEFT + WIDE - RIGHT) / 2
        parts.append(text(middle, HIGH - 6, "bill against sending everything", anchor="middle"))
        return parts


def cost_recall(rows: Sequence[PolicyStatistics], kind: str) -> str:
    """All policies: a filled dot for far needs, a ring for all of them."""
    found = points(rows, kind)
    frame = _Frame(found)
    policies = [row.policy for row in rows]
    parts = frame.drawn()
    for point in found:
        parts += _mark(frame, point, colour(point.policy, policies))
    parts += _labels(frame, found)
    return svg(WIDE, HIGH, parts, label=f"bill and recall of {kind} needs")


def _mark(frame: _Frame, point: Point, paint: str) -> list[str]:
    x, near, far = frame.x(point.bill), frame.y(point.near), frame.y(point.far)
    title = escaped(
        f"{point.policy}: bill {point.bill:.1f} %, recall {point.near:.1f}, of far needs {point.far:.1f}"
    )
    shape = (
        f'<rect x="{x - 4.5:.1f}" y="{far - 4.5:.1f}" width="9" height="9" fill="{paint}" '
        f'transform="rotate(45 {x:.1f} {far:.1f})"><title>{title}</title></rect>'
        if is_bound(point.policy)
        else f'<circle cx="{x:.1f}" cy="{far:.1f}" r="5.5" fill="{paint}"><title>{title}</title></circle>'
    )
    if is_bound(point.policy) or point.policy == EVERYTHING:
        return [shape]
    ring = (
        f'<circle cx="{x:.1f}" cy="{near:.1f}" r="4" fill="var(--card)" stroke="{paint}" stroke-width="1.8"/>'
    )
    return [line(x, near, x, far, kind="link", stroke=paint), ring, shape]


def _labels(frame: _Frame, found: Sequence[Point]) -> list[str]:
    """Each name beside its dot, moved down where another name already stands."""
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []
    for point in sorted(found, key=lambda point: frame.y(point.far)):
        name = _named(point.policy)
        x, y, width = frame.x(point.bill), frame.y(point.far) + 4, 6.4 * len(name)
        left = x + 11 + width > WIDE - RIGHT
        start = x - 11 - width if left else x + 11
        while any(
            abs(y - other) < ROW and start < end and begin < start + width for begin, end, other in taken
        ):
            y += ROW
        taken.append((start, start + width, y))
        parts.append(
            text(x - 11 if left else x + 11, y, name, anchor="end" if left else "start", kind="name")
        )
    return parts


def _named(policy: str) -> str:
    name = {ORACLE: "oracle", ORACLE_ARGUMENTS: "oracle, arguments too"}.get(policy, policy)
    return name if len(name) <= 34 else name[:33] + "…"


# ── one conversation ─────────────────────────────────────────────────────────────────────────────────────

SMALL_WIDE, SMALL_HIGH = 280, 124
EDGE, FLOOR, ROOF = 36, 104, 14
MOST: Final = 140
"""Points of one line: of more calls, the largest of each stretch is drawn."""


def sizes(traces: Sequence[Trace], *, window: float, policies: Sequence[str]) -> str:
    """Tokens of each request under each policy, the window, and a tick below for each prefix break."""
    drawn = [trace for trace in traces if not is_bound(trace.policy)]
    calls = max(len(trace.sizes) for trace in drawn)
    real = [trace for trace in drawn if trace.policy != EVERYTHING] or drawn
    whole = max(max(trace.sizes, default=1) for trace in drawn)
    top = min(whole, max(window, max(max(trace.sizes, default=1) for trace in real))) * 1.1
    parts = [line(EDGE, FLOOR, SMALL_WIDE - 4, FLOOR, kind="axis")]
    parts.append(text(EDGE - 5, FLOOR, "0", anchor="end"))
    parts.append(text(EDGE - 5, ROOF + 10, _rough(top / 1.1), anchor="end"))
    parts.append(text(SMALL_WIDE - 4, ROOF - 3, f"{calls} calls", anchor="end"))
    if window <= top:
        y = _height(window, top)
        parts.append(line(EDGE, y, SMALL_WIDE - 4, y, kind="limit"))
    for trace in drawn:
        parts += _series(trace, calls, top, colour(trace.policy, policies))
    for row, trace in enumerate(real):
        parts += _breaks(trace, calls, row, colour(trace.policy, policies))
    return svg(SMALL_WIDE, SMALL_HIGH, parts, label="tokens of each request")


def _across(call: int, calls: int) -> float:
    return EDGE + (call - 1) / max(1, calls - 1) * (SMALL_WIDE - EDGE - 4)


def _height(tokens: float, top: float) -> float:
    return FLOOR - min(1.0, tokens / top) * (FLOOR - ROOF)


def _series(trace: Trace, calls: int, top: float, paint: str) -> list[str]:
    step = -(-len(trace.sizes) // MOST) or 1
    line_points = []
    for first in range(0, len(trace.sizes), step):
        size, call = max(
            (size, call) for call, size in enumerate(trace.sizes[first : first + step], first + 1)
        )
        line_points.append((_across(call, calls), _height(size, top)))
        if trace.policy == EVERYTHING and size > top:  # it leaves the picture here
            break
    kind = "series faint" if trace.policy == EVERYTHING else "series"
    return [path(line_points, stroke=paint, kind=kind)] if line_points else []


def _breaks(trace: Trace, calls: int, row: int, paint: str) -> list[str]:
    y = FLOOR + 3 + 4 * (row % 4)
    return [
        line(x, y, x, y + 3, kind="break", stroke=paint)
        for x in (_across(call, calls) for call in trace.breaks)
    ]


def _rough(tokens: float) -> str:
    return f"{tokens / 1_000:.0f}k" if tokens >= 1_000 else f"{tokens:.0f}"
