"""The live area above the input line: growing answer, activity, queue, open question."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from foveal.apps.cli.chat.output.styled_text import Row, Span, bold, dim, row, wrap
from foveal.apps.cli.chat.user_interface import Question
from foveal.core.wire.safe_print import one_line

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

    def rows(self, *, width: int) -> list[Row]:
        """Return the rows below the growing answer."""
        rows: list[Row] = []
        if self._stage:
            detail = f" · {self._stage_detail}" if self._stage_detail else ""
            rows.append(
                row(Span(f"{_spinner()} {self._stage}{detail}", "accent"), dim(_elapsed(self._stage_since)))
            )
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
