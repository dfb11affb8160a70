"""The status line, and the live area above the input line.

The live area shows the growing answer, the current activity with the last output of a command, queued messages, and
the to-do list that the model keeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from foveal.agent.terminal.output.styled_text import (
    STATE_STYLES,
    Row,
    Span,
    cell_width,
    cut,
    dim,
    row,
)
from foveal.agent.tools.todo import TodoItem, TodoState, todo_count
from foveal.core.engine.report import Report, turns_text
from foveal.core.models.cost import dollars
from foveal.core.wire.safe_print import one_line

# ── Status line ────────────────────────────────────────────────────────────────────────────────────────
# How full the window is, cache share, turns left, cost: the numbers that also trigger reductions.

STATUS_BAR_CELLS: Final = 10


def status_row(report: Report, *, width: int = 200, sandbox: str | None = None, warning: str = "") -> Row:
    """Return the line in at most `width` columns; the parts at its end are left out first, and the bar and the
    numbers before a word about the sandbox or the model.

    `sandbox` names the sandbox of commands, "" if they run without one; None if there are no commands. `warning`
    says what the model cannot do.
    """
    parts = [dim(f" {sandbox}") if sandbox else Span(" no sandbox", "bad")] if sandbox is not None else []
    parts += [Span(f" {warning}", "fair")] if warning else []
    usage, bar = _usage_text(report), usage_bar(report)
    room = width - sum(cell_width(span.text) for span in parts)
    heads = (f" {usage} {bar}", f" {usage}", f" ctx {report.percent(report.used)}")
    text = next((head for head in heads if cell_width(head) <= room), heads[-1])
    head = row(Span(text, STATE_STYLES[report.state]))
    for text in _status_parts(report):
        parts.append(dim(f"{' ·' if parts else ''} {text}"))
    while len(parts) > 0 and sum(cell_width(span.text) for span in (*head, *parts)) > width:
        parts.pop()
    return (*head, *parts)


def usage_row(report: Report) -> Row:
    """Return the usage and the turns left, as commands print them."""
    left = f" · {turns_text(report)}" if report.turns_left is not None else ""
    text = f"{_usage_text(report)} {usage_bar(report)}"
    return row(Span(text, STATE_STYLES[report.state]), dim(left))


def _usage_text(report: Report) -> str:
    return f"ctx {report.used:,}/{report.window:,} {report.percent(report.used)}"


def _status_parts(report: Report) -> list[str]:
    parts = []
    if report.cached_share is not None:
        parts.append(f"cache {report.cached_share * 100:.0f} %")
    if report.turns_left is not None:
        parts.append(turns_text(report))
    if report.spent:
        parts.append(f"{'≥ ' * bool(report.unknown_calls)}{dollars(report.spent)}")
    return parts


def usage_bar(report: Report) -> str:
    """Return the used share as a bar; at least one cell is filled if anything is used."""
    filled = min(STATUS_BAR_CELLS, max(round(report.used_share * STATUS_BAR_CELLS), 1 if report.used else 0))
    return f"▕{'█' * filled}{'·' * (STATUS_BAR_CELLS - filled)}▏"


# ── Live area ──────────────────────────────────────────────────────────────────────────────────────────

SPINNER_FRAMES: Final = "◐◓◑◒"
MAX_QUEUED_ROWS: Final = 3
MAX_OUTPUT_LINES: Final = 5
"""Lines of a running command that are shown."""
MAX_TODO_ROWS: Final = 6
"""Rows of the to-do list above the input line."""
MIN_ROWS_FOR_TODO: Final = 20
"""On a terminal with fewer rows, the to-do list takes one."""
TODO_MARKS: Final[dict[TodoState, str]] = {"pending": "□", "active": "›", "done": "■"}


class LiveArea:
    """State of the live area; `rows` draws it."""

    def __init__(self) -> None:
        self.answer: str = ""
        """The unfinished block of the answer, drawn."""
        self.activity: str = ""
        """What the turn is doing; "" when no turn runs."""
        self.queued: Sequence[str] = ()
        self.todo: Sequence[TodoItem] = ()
        """The list that the model keeps."""
        self._output: Sequence[str] = ()
        """The last lines that the running command has printed."""
        self._activity_since = 0.0
        self._stage = ""
        """What runs beside the turn: a summary, or the download of a model."""
        self._stage_detail = ""
        self._stage_since = 0.0

    @property
    def is_animated(self) -> bool:
        """Whether the area has a spinner."""
        return bool(self.activity or self._stage)

    def start(self, activity: str, *, wait_s: float = 0.0) -> None:
        """Show an activity and count its seconds; the first `wait_s` seconds are counted down."""
        self.activity, self._activity_since, self._output = activity, time.monotonic() + wait_s, ()

    def describe(self, activity: str) -> None:
        """Change the text of the activity, and keep counting its seconds."""
        self.activity = activity

    def restart(self) -> None:
        """Count the seconds of the activity from now on."""
        self._activity_since = time.monotonic()

    def set_output(self, lines: Sequence[str], *, seconds: float) -> None:
        """Show the last output of a command that has run for this long."""
        self._output, self._activity_since = lines[-MAX_OUTPUT_LINES:], time.monotonic() - seconds

    def stop(self) -> None:
        """Show no activity."""
        self.activity, self._output = "", ()

    def set_answer(self, drawn: str) -> None:
        self.answer = drawn

    def set_queued(self, texts: Sequence[str]) -> None:
        self.queued = texts

    def set_todo(self, items: Sequence[TodoItem]) -> None:
        self.todo = items

    def set_stage(self, stage: str, detail: str) -> None:
        if stage != self._stage:
            self._stage_since = time.monotonic()
        self._stage, self._stage_detail = stage, detail

    def rows(
        self, *, width: int, height: int = 24, can_stop: bool = False, is_asking: bool = False
    ) -> list[Row]:
        """Return the rows below the growing answer, on a terminal with `height` rows; `can_stop` says that Ctrl-C
        would stop a turn or command, and `is_asking` that the turn waits for the user."""
        rows: list[Row] = []
        if self._stage:
            detail = f" · {self._stage_detail}" if self._stage_detail else ""
            stage, elapsed = f"{_spinner()} {self._stage}{detail}", _elapsed(self._stage_since)
            rows.append(row(Span(stage, "accent"), dim(f"{elapsed} · Ctrl-C stops" if can_stop else elapsed)))
        elif self.activity and not is_asking:
            elapsed = _elapsed(self._activity_since)
            rows += [row(dim(f"  │ {line}")) for line in self._output]
            rows.append(
                row(dim(f"{_spinner()} {cut(self.activity, max(20, width - 26))}{elapsed} · Ctrl-C stops"))
            )
        rows += [row(dim(f"  queued: {one_line(text, width=70)}")) for text in self.queued[:MAX_QUEUED_ROWS]]
        if len(self.queued) > MAX_QUEUED_ROWS:
            rows.append(row(dim(f"  … and {len(self.queued) - MAX_QUEUED_ROWS} more")))
        if not is_asking and any(item.state != "done" for item in self.todo):
            rows += _todo_rows(
                self.todo, width=width, most=MAX_TODO_ROWS if height >= MIN_ROWS_FOR_TODO else 1
            )
        return rows


def _todo_rows(items: Sequence[TodoItem], *, width: int, most: int) -> list[Row]:
    """Return how far the list is and the steps that are not done, in at most this many rows."""
    left = sorted((item for item in items if item.state != "done"), key=lambda item: item.state != "active")
    head = f"to-do {todo_count(items)}"
    if most == 1:
        return [row(dim(cut(f"{head} · {left[0].text}", width)))]
    fits = len(left) < most
    rows = [todo_row(item, width=width) for item in (left if fits else left[: most - 2])]
    rest = [] if fits else [row(dim(f"  … {len(left) - len(rows)} more · /todo"))]
    return [row(dim(head)), *rows, *rest]


def todo_row(item: TodoItem, *, width: int) -> Row:
    """Return one step of the list on one line."""
    text = cut(f"  {TODO_MARKS[item.state]} {item.text}", width)
    return row(Span(text, "accent") if item.state == "active" else dim(text))


def _spinner() -> str:
    return SPINNER_FRAMES[int(time.monotonic() * 4) % len(SPINNER_FRAMES)]


def _elapsed(since: float) -> str:
    seconds = time.monotonic() - since
    if seconds < 0:
        return f" in {math.ceil(-seconds)} s"
    return f" · {int(seconds)} s" if seconds >= 1 else ""
