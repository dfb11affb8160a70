"""The status line, and the live area above the input line.

The live area shows the growing answer, the current activity, queued messages and an open question.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from foveal.apps.cli.chat.output.styled_text import STATE_STYLES, Row, Span, bold, cell_width, dim, row, wrap
from foveal.apps.cli.chat.user_interface import Question
from foveal.core.engine.report import Report
from foveal.core.wire.safe_print import one_line

# ── Status line ────────────────────────────────────────────────────────────────────────────────────────
# How full the window is, cache share, turns left, cost: the numbers that also trigger reductions.

STATUS_BAR_CELLS: Final = 10


def status_row(report: Report, *, width: int = 200) -> Row:
    """Return the line in at most `width` columns; the parts at its end are left out first."""
    head = f" {_usage_text(report)} "
    parts = [usage_bar(report), *_status_parts(report)]
    while len(parts) > 1 and cell_width(head + _join(parts)) > width:
        parts.pop()
    return row(Span(head + parts[0], STATE_STYLES[report.state]), dim(_join(parts)[len(parts[0]) :]))


def usage_row(report: Report) -> Row:
    """Return the usage and the turns left, as commands print them."""
    left = f" · {turns_left(report.turns_left)}" if report.turns_left is not None else ""
    text = f"{_usage_text(report)} {usage_bar(report)}"
    return row(Span(text, STATE_STYLES[report.state]), dim(left))


def _usage_text(report: Report) -> str:
    return f"ctx {report.used:,}/{report.window:,} {report.percent(report.used)}"


def _join(parts: list[str]) -> str:
    return parts[0] + (" " + " · ".join(parts[1:]) if len(parts) > 1 else "")


def _status_parts(report: Report) -> list[str]:
    parts = []
    if report.cached_share is not None:
        parts.append(f"cache {report.cached_share * 100:.0f} %")
    if report.turns_left is not None:
        parts.append(turns_left(report.turns_left))
    if report.spent:
        parts.append(dollars(report.spent))
    return parts


def usage_bar(report: Report, *, size: int = STATUS_BAR_CELLS) -> str:
    """Return the used share as a bar; at least one cell is filled if anything is used."""
    filled = min(size, max(round(report.used_share * size), 1 if report.used else 0))
    return f"▕{'█' * filled}{'·' * (size - filled)}▏"


def turns_left(left: int) -> str:
    """Return in words how many turns fit before the next reduction."""
    if left == 0:
        return "next cut within a turn"
    return f"~{left:,} turn{'s' * (left != 1)} left"


def dollars(amount: float) -> str:
    """Return an amount with two digits, or four if it is less than a cent."""
    return f"${amount:.2f}" if amount >= 0.01 else f"${amount:.4f}"


# ── Live area ──────────────────────────────────────────────────────────────────────────────────────────

SPINNER_FRAMES: Final = "◐◓◑◒"
MAX_QUEUED_ROWS: Final = 3
MAX_DETAIL_ROWS: Final = 30
"""Rows that are shown with a question."""


class LiveArea:
    """State of the live area; `rows` draws it."""

    def __init__(self) -> None:
        self.answer = ""
        """The unfinished block of the answer, drawn."""
        self.activity = ""
        """What the turn is doing; "" when no turn runs."""
        self.question: Question | None = None
        self.queued: Sequence[str] = ()
        self._activity_since = 0.0
        self._stage = ""
        """What runs beside the turn: a summary, or the download of a model."""
        self._stage_detail = ""
        self._stage_since = 0.0

    @property
    def is_animated(self) -> bool:
        """Whether the area has a spinner."""
        return bool(self.activity or self._stage)

    def start(self, activity: str) -> None:
        """Show an activity and count its seconds."""
        self.activity, self._activity_since = activity, time.monotonic()

    def stop(self) -> None:
        """Show no activity."""
        self.activity = ""

    def set_answer(self, drawn: str) -> None:
        self.answer = drawn

    def set_question(self, question: Question | None) -> None:
        self.question = question

    def set_queued(self, texts: Sequence[str]) -> None:
        self.queued = texts

    def set_stage(self, stage: str, detail: str) -> None:
        if stage != self._stage:
            self._stage_since = time.monotonic()
        self._stage, self._stage_detail = stage, detail

    def rows(self, *, width: int, can_stop: bool = False) -> list[Row]:
        """Return the rows below the growing answer; `can_stop` says that Ctrl-C would stop a turn or command."""
        rows: list[Row] = []
        if self._stage:
            detail = f" · {self._stage_detail}" if self._stage_detail else ""
            stage, elapsed = f"{_spinner()} {self._stage}{detail}", _elapsed(self._stage_since)
            rows.append(row(Span(stage, "accent"), dim(f"{elapsed} · Ctrl-C stops" if can_stop else elapsed)))
        elif self.activity and self.question is None:
            elapsed = _elapsed(self._activity_since)
            rows.append(row(dim(f"{_spinner()} {self.activity}{elapsed} · Ctrl-C stops")))
        rows += [row(dim(f"  queued: {one_line(text, width=70)}")) for text in self.queued[:MAX_QUEUED_ROWS]]
        if len(self.queued) > MAX_QUEUED_ROWS:
            rows.append(row(dim(f"  … and {len(self.queued) - MAX_QUEUED_ROWS} more")))
        if self.question is not None:
            rows += question_rows(self.question, width=width)
        return rows


def question_rows(question: Question, *, width: int) -> list[Row]:
    """Return a question with its details; a long text is wrapped, never cut."""
    more = len(question.details) - MAX_DETAIL_ROWS
    rest = [row(dim(f"    … {more:,} more lines"))] if more > 0 else []
    text = [row(bold(line)) for line in wrap(question.text, width)]
    return [*question.details[:MAX_DETAIL_ROWS], *rest, *text]


def answer_choices(question: Question) -> str:
    """Return the possible answers, the default in upper case."""
    return f"[y/N/a = always {question.always}]" if question.always else "[y/N]"


def _spinner() -> str:
    return SPINNER_FRAMES[int(time.monotonic() * 4) % len(SPINNER_FRAMES)]


def _elapsed(since: float) -> str:
    seconds = int(time.monotonic() - since)
    return f" · {seconds} s" if seconds else ""
