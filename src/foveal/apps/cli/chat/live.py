"""What is still moving, above the line where the user types: the answer as it grows, what is being waited for, the
messages that wait, and a question that is open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from foveal.apps.cli.chat.front import Question
from foveal.apps.cli.chat.rows import Row, Span, bold, dim, row, wrapped
from foveal.visible import one_line

WHEEL: Final = "◐◓◑◒"
QUEUED: Final = 3
DETAILS: Final = 30
"""Lines that are shown with a question."""


class Live:
    """The state, and how it looks now."""

    def __init__(self) -> None:
        self.answer = ""
        """The block that is growing, drawn."""
        self.doing = ""
        """What is being waited for; "" when nothing is."""
        self.since = 0.0
        self.stage = ""
        """A summary, or a model that is fetched: what and how far."""
        self.detail = ""
        self.stage_since = 0.0
        self.question: Question | None = None
        self.queued: Sequence[str] = ()

    @property
    def moving(self) -> bool:
        return bool(self.doing or self.stage)

    def begin(self, doing: str) -> None:
        self.doing, self.since = doing, time.monotonic()

    def wait_for(self, stage: str, detail: str) -> None:
        if stage != self.stage:
            self.stage_since = time.monotonic()
        self.stage, self.detail = stage, detail

    def rows(self, *, width: int) -> list[Row]:
        """What stands below the growing block."""
        rows: list[Row] = []
        if self.stage:
            detail = f" · {self.detail}" if self.detail else ""
            rows.append(
                row(Span(f"{_wheel()} {self.stage}{detail}", "accent"), dim(_seconds(self.stage_since)))
            )
        elif self.doing and self.question is None:
            rows.append(row(dim(f"{_wheel()} {self.doing}{_seconds(self.since)} · Ctrl-C stops")))
        rows += [row(dim(f"  waits: {one_line(text, width=70)}")) for text in self.queued[:QUEUED]]
        if len(self.queued) > QUEUED:
            rows.append(row(dim(f"  … and {len(self.queued) - QUEUED} more")))
        if self.question is not None:
            rows += asked(self.question, width=width)
        return rows


def asked(question: Question, *, width: int) -> list[Row]:
    """A question with what belongs to it; the end of a long text is never cut off."""
    more = len(question.details) - DETAILS
    rest = [row(dim(f"    … {more:,} more lines"))] if more > 0 else []
    return [*question.details[:DETAILS], *rest, *(row(bold(line)) for line in wrapped(question.text, width))]


def choices(question: Question) -> str:
    """What can be answered."""
    return f"[y/N/a = always {question.always}]" if question.always else "[y/N]"


def _wheel() -> str:
    return WHEEL[int(time.monotonic() * 4) % len(WHEEL)]


def _seconds(since: float) -> str:
    gone = int(time.monotonic() - since)
    return f" · {gone} s" if gone else ""
