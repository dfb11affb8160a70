"""Results of a replay as a self-contained HTML page.

The page has no scripts, loads nothing and has a light and a dark style.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Final, NamedTuple

from foveal.core.wire.safe_print import counted, one_line, visible
from foveal.replay.choice import SourceValidation, leave_one_source_out
from foveal.replay.conclusion import Conclusion, conclude, conclusion_sentences
from foveal.replay.play import EVERYTHING_LABEL, ReplaySetting, Trace
from foveal.replay.statistics import (
    HiddenResult,
    PolicyStatistics,
    SurprisingCall,
    most_surprising_calls,
    worst_losses,
)
from foveal.replay.strata import GroupStatistics
from foveal.replay.table import (
    COST_COLUMNS,
    DETAIL_COLUMNS,
    GROUP_COLUMNS,
    NOTHING_GONE,
    Column,
    GroupColumn,
    GroupTable,
    bits_per_byte,
    group_tables,
    hidden_by,
    short_count,
)
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


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────

MAX_DRAWN_CONVERSATIONS: Final = 48
"""Most conversations that are drawn: those with the largest requests."""
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing."""

GROUP_NOTES: Final = {
    "pressure": "Pressure is the largest request if everything is sent, relative to window − reserve. The worst "
    "tenth are the conversations with the highest bill or surprise, or the lowest recall. Bills and recall are in "
    "percent, surprise is in bits per byte, breaks are per 100 calls.",
    "window": "The same by window.",
    "source": "The same by data set, or by format.",
}
"""What the tables of groups show, by their title."""


def html_page(
    rows: Sequence[PolicyStatistics], *, setting: ReplaySetting, losses: int = 15, sources: bool = False
) -> str:
    """Return the results as a self-contained HTML document.

    Args:
        rows: The rows that `run` returned.
        setting: The settings of the replay, for the heading and the conclusion. The windows are those of the rows.
        losses: Losses, and surprising calls, that are listed for each policy.
        sources: Whether there are tables by source.

    Examples:
        ```python
        from foveal import ModelSaid, UserSaid, replay
        from foveal.transcripts import Transcript

        facts = ((UserSaid(content="Find the part."), None), (ModelSaid(content="In drawer 7."), None))
        recording = Transcript(id="demo", source="mine", facts=facts)
        rows = replay.run([recording], ["economy"], window=32_000)
        page = replay.html_page(rows, setting=replay.ReplaySetting(window=32_000))
        ```
    """
    css = files("foveal.replay").joinpath("page.css").read_text("utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">',
        f"<title>Foveal replay</title><style>{css}</style></head><body>",
        *_heading(rows, setting),
        *_conclusion(conclude(rows, setting=setting)),
        *_recall_plots(rows),
        *_surprise_plot(rows),
        *_tables(rows),
        *(part for each in group_tables(rows, sources=sources) for part in _groups(rows, each)),
        *(_left_out(leave_one_source_out(rows, setting=setting), rows) if sources else ()),
        *_conversations(rows),
        *_losses(worst_losses(rows, limit=losses), [row.policy for row in rows]),
        *_surprising_calls(most_surprising_calls(rows, limit=losses), [row.policy for row in rows]),
        "</body></html>",
    ]
    return "\n".join(parts)


def _heading(rows: Sequence[PolicyStatistics], setting: ReplaySetting) -> Iterator[str]:
    counts = (
        f"{counted(rows[0].conversations, 'conversation')}, {counted(rows[0].calls, 'call')}"
        if rows
        else "nothing"
    )
    yield f"<h1>Replay of {counts}</h1>"
    windows = dict.fromkeys((trace.window, trace.limit) for row in rows for trace in row.traces)
    texts = [f"window {window:,} tokens, {limit:,} of them for input" for window, limit in windows]
    model_text = f"Model {'; '.join([setting.model, *texts])}."
    rest = "No model was called: each request is what the policy would have sent."
    yield f'<p class="soft">{escape_text(model_text)} {rest}</p>'


def _conclusion(found: Conclusion) -> Iterator[str]:
    yield "<h2>Conclusion</h2>"
    first, *rest = conclusion_sentences(found)
    yield f'<div class="card"><p><b>{escape_text(first)}</b></p>'
    yield from (f"<p>{escape_text(sentence)}</p>" for sentence in rest)
    if found.config:
        yield f"<p>Lines for <code>foveal.toml</code>:</p><pre>{escape_text(found.config)}</pre>"
    yield "</div>"


def _recall_plots(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    yield "<h2>Cost and recall</h2>"
    yield (
        '<p class="soft">Up and to the left is better. A filled dot is the recall of far needs (six or more '
        "results back), the ring above it that of all needs (strings that calls quoted from results). A diamond is "
        "an upper bound that knows the future.</p>"
    )
    yield '<div class="pair">'
    for kind, words in (("ident", "names, paths and numbers"), ("line", "whole lines")):
        yield f'<figure class="card"><figcaption><b>{words}</b>, percent still in the request</figcaption>'
        yield f"{cost_recall(rows, kind)}</figure>"
    yield "</div>"


def _surprise_plot(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    if not any(row.samples for row in rows):
        return
    yield "<h2>Cost and surprise</h2>"
    yield (
        '<p class="soft">Down and to the left is better. Surprise is how many bits per byte more it takes to write '
        "the agent's recorded next step after the request than after the whole history, measured at "
        f"{rows[0].samples:,} calls. A diamond is an upper bound of recall; it does not aim at surprise.</p>"
    )
    yield '<div class="pair"><figure class="card"><figcaption><b>surprise</b>, bits per byte</figcaption>'
    yield f"{cost_surprise(rows)}</figure></div>"


def _tables(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    yield "<h2>Figures</h2>"
    yield (
        '<p class="soft">Bills are relative to sending everything with an ideal cache: at read 0.1 and write 1.0, '
        "and at the model's own prices. Recall is in percent, of all needs and of far ones.</p>"
    )
    for columns in (COST_COLUMNS, DETAIL_COLUMNS):
        yield from _table(rows, columns)


def _table(rows: Sequence[PolicyStatistics], columns: Sequence[Column]) -> Iterator[str]:
    kind = "wrap" if columns is DETAIL_COLUMNS else ""
    yield f'<div class="card scroll figures"><table class="{kind}"><tr><th>policy</th>'
    yield "".join(f"<th>{escape_text(name)}</th>" for name, _ in columns) + "</tr>"
    policies = [row.policy for row in rows]
    for row in rows:
        cells = "".join(f"<td>{escape_text(show(row))}</td>" for _, show in columns)
        yield f"<tr><td>{_dot(row.policy, policies)}{shorten_escaped(row.policy, 60)}</td>{cells}</tr>"
    yield "</table></div>"


def _groups(rows: Sequence[PolicyStatistics], table: GroupTable) -> Iterator[str]:
    """Yield one table with a section for each group."""
    yield f"<h2>By {table.title}</h2>"
    yield f'<p class="soft">{GROUP_NOTES[table.title]}</p>'
    yield from _group_head("policy")
    policies = [row.policy for row in rows]
    for heading, groups in table.sections(rows):
        yield f'<tr class="group"><th colspan="{1 + len(GROUP_COLUMNS)}">{escape_text(heading)}</th></tr>'
        yield from (
            _group_row(name, policies, shorten_escaped(short_policy_name(name), 60), group)
            for name, group in zip(policies, groups, strict=True)
        )
    yield "</table></div>"


def _left_out(found: SourceValidation | None, rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    if found is None:
        return
    yield "<h2>Leaving out one source</h2>"
    yield (
        '<p class="soft">Each source under the policy that was best on all others, chosen as the one of the '
        "conclusion.</p>"
    )
    yield from _group_head("source, and policy chosen without it")
    policies = [row.policy for row in rows]
    for each in found.sources:
        name = f"{shorten_escaped(each.source, 40)}: {shorten_escaped(each.policy, 60)}"
        yield _group_row(each.policy, policies, name, each.statistics)
    yield _group_row("", policies, "together", found.together)
    yield "</table></div>"


def _group_head(first: str) -> Iterator[str]:
    heads = [number for number, column in enumerate(GROUP_COLUMNS) if column.head]
    spans = [end - start for start, end in pairwise([*heads, len(GROUP_COLUMNS)])]
    yield '<div class="card scroll figures"><table class="groups"><tr><th></th>'
    for start, span in zip(heads, spans, strict=True):
        yield f'<th class="head" colspan="{span}">{escape_text(GROUP_COLUMNS[start].head)}</th>'
    yield f"</tr><tr><th>{escape_text(first)}</th>"
    yield "".join(f"<th{_starts(column)}>{escape_text(column.name)}</th>" for column in GROUP_COLUMNS)
    yield "</tr>"


def _group_row(policy: str, policies: Sequence[str], name: str, group: GroupStatistics) -> str:
    """Return the row of a group; `name` is already escaped, and `policy` gives the colour."""
    cells = "".join(
        f"<td{_starts(column)}>{escape_text(column.show(group))}</td>" for column in GROUP_COLUMNS
    )
    dot = _dot(policy, policies) if policy else ""
    return f"<tr><td>{dot}{name}</td>{cells}</tr>"


def _starts(column: GroupColumn) -> str:
    """Return the class of a column that begins a part of the table."""
    return ' class="start"' if column.head else ""


def _dot(policy: str, policies: Sequence[str]) -> str:
    return f'<span class="dot" style="background:{colour(policy, policies)}"></span>'


# ── Conversations ────────────────────────────────────────────────────────────────────────────────────────


def _conversations(rows: Sequence[PolicyStatistics]) -> Iterator[str]:
    if not rows:
        return
    policies = [row.policy for row in rows]
    by_conversation = list(zip(*(row.traces for row in rows), strict=True))
    largest = sorted(by_conversation, key=lambda traces: -max(traces[0].sizes, default=0))[
        :MAX_DRAWN_CONVERSATIONS
    ]
    yield "<h2>Call by call</h2>"
    which = (
        f"The {len(largest)} largest of {len(by_conversation)} conversations"
        if len(by_conversation) > MAX_DRAWN_CONVERSATIONS
        else "Each conversation"
    )
    yield (
        f'<p class="soft">{which}: tokens of each request, and below a tick for each prefix break, after which the '
        "provider had to read the prompt again. The dashed line is the window's limit for input.</p>"
    )
    shown = [policy for policy in policies if not is_bound(policy)]
    keys = (f"<span>{_dot(policy, policies)}{shorten_escaped(policy, 60)}</span>" for policy in shown)
    yield f'<div class="key">{"".join(keys)}</div><div class="many">'
    for traces in largest:
        yield _conversation(traces, policies, with_window=len(rows[0].windows) > 1)
    yield "</div>"


def _conversation(traces: Sequence[Trace], policies: Sequence[str], *, with_window: bool) -> str:
    first = traces[0]
    name = first.conversation.rstrip("/").rpartition("/")[2]
    over = ", ".join(
        f"{trace.policy} {len(trace.over)}"
        for trace in traces
        if trace.over and trace.policy != EVERYTHING_LABEL
    )
    title = escape_text(f"{first.conversation}{f'; over the window: {over}' if over else ''}")
    size = short_count(max(first.sizes, default=0))
    size += f" in {short_count(first.window)}" if with_window else ""
    return (
        f'<figure class="card" title="{title}"><figcaption><b>{shorten_escaped(name, 32)}</b> {size}</figcaption>'
        f"{sizes(traces, window=first.limit / first.ratio, policies=policies)}</figure>"
    )


# ── Losses ───────────────────────────────────────────────────────────────────────────────────────────────


def _losses(found: Sequence[HiddenResult], policies: Sequence[str]) -> Iterator[str]:
    yield "<h2>The worst losses</h2>"
    yield (
        '<p class="soft">Results that calls needed when their requests no longer contained them: where they '
        "are in the log, what was needed, and what hid them.</p>"
    )
    if not found:
        yield "<p>Nothing was lost.</p>"
    for policy in dict.fromkeys(hidden.policy for hidden in found):
        yield f"<h3>{_dot(policy, policies)}{shorten_escaped(policy, 60)}</h3>"
        yield '<div class="card scroll"><table class="losses"><tr><th class="number">needs</th>'
        yield "<th>where it was</th><th>hidden by</th><th>what was needed</th></tr>"
        yield from (_loss_row(hidden) for hidden in found if hidden.policy == policy)
        yield "</table></div>"


def _loss_row(hidden: HiddenResult) -> str:
    calls = ", ".join(map(str, hidden.calls[:6])) + (", …" if len(hidden.calls) > 6 else "")
    examples = "".join(f"<code>{shorten_escaped(example, 110)}</code>" for example in hidden.examples[:3])
    return (
        f'<tr><td class="number">{hidden.needs}</td>'
        f"<td><b>{escape_text(hidden.handle)}</b> {shorten_escaped(hidden.tool, 30)}<br>"
        f'<span class="soft">{shorten_escaped(hidden.conversation, 60)}</span></td>'
        f"<td>{escape_text(hidden.level)} by {escape_text(hidden.by or 'nothing')}<br>"
        f'<span class="soft">rule {escape_text(hidden.rule or "–")}; needed at call {calls}</span></td>'
        f"<td>{examples}</td></tr>"
    )


# ── Surprising calls ─────────────────────────────────────────────────────────────────────────────────────


def _surprising_calls(found: Sequence[SurprisingCall], policies: Sequence[str]) -> Iterator[str]:
    if not found:
        return
    yield "<h2>The most surprising calls</h2>"
    yield (
        '<p class="soft">Calls whose next step was hardest to predict from the request, compared with the whole '
        "history: what the step quotes from the history that was gone, and what hid it.</p>"
    )
    for policy in dict.fromkeys(call.policy for call in found):
        yield f"<h3>{_dot(policy, policies)}{shorten_escaped(policy, 60)}</h3>"
        yield '<div class="card scroll"><table class="losses"><tr><th class="number">surprise</th>'
        yield "<th>call</th><th>what was gone</th></tr>"
        yield from (_surprising_row(call) for call in found if call.policy == policy)
        yield "</table></div>"


def _surprising_row(call: SurprisingCall) -> str:
    gone = "".join(
        f'<code>{shorten_escaped(quote.text, 110)}</code><span class="soft">{escape_text(hidden_by(quote))}</span>'
        for quote in call.surprise.gone
    )
    return (
        f'<tr><td class="number">{bits_per_byte(call.surprise.bits)}</td>'
        f"<td><b>call {call.surprise.call}</b> in {short_count(call.window)}<br>"
        f'<span class="soft">{shorten_escaped(call.conversation, 60)}</span></td>'
        f"<td>{gone or NOTHING_GONE}</td></tr>"
    )
