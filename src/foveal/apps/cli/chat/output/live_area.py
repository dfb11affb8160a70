"""What is still moving, above the line where the user types: the answer as it grows, what is being waited for, the
messages that wait, and a question that is open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from foveal.apps.cli.chat.output.styled_text import STATES, Row, Span, bold, cells, dim, row, wrapped
from foveal.apps.cli.chat.user_interface import Question
from foveal.core.engine.report import Report
from foveal.core.wire.safe_print import one_line

# ── status ────────────────────────────────────────────────────────────────────────────────────────
# The line at the bottom: how full the window is, by the numbers that also trigger reductions.

BAR: Final = 10


def status(report: Report, *, width: int = 200) -> Row:
    """The line in so many columns: what matters least is left out first."""
    head = f" ctx {report.used:,}/{report.window:,} {share(report) * 100:.1f} % "
    parts = [bar(report), *_parts(report)]
    while len(parts) > 1 and cells(head + _joined(parts)) > width:
        parts.pop()
    return row(Span(head + parts[0], STATES[report.state]), dim(_joined(parts)[len(parts[0]) :]))


def _joined(parts: list[str]) -> str:
    return parts[0] + (" " + " · ".join(parts[1:]) if len(parts) > 1 else "")


def _parts(report: Report) -> list[str]:
    parts = []
    if report.cached_share is not None:
        parts.append(f"cache {report.cached_share * 100:.0f} %")
    if report.turns_left is not None:
        parts.append(turns(report.turns_left))
    if report.spent:
        parts.append(dollars(report.spent))
    return parts


def share(report: Report) -> float:
    return report.used / report.window if report.window else 1.0


def bar(report: Report, *, size: int = BAR) -> str:
    """The used part of the window; something is visible as soon as there is something."""
    filled = min(size, max(round(share(report) * size), 1 if report.used else 0))
    return f"▕{'█' * filled}{'·' * (size - filled)}▏"


def turns(left: int) -> str:
    if left == 0:
        return "next cut within a turn"
    return f"~{left:,} turn{'s' * (left != 1)} left"


def dollars(amount: float) -> str:
    """Cents, and as many digits as it takes to see something."""
    return f"${amount:.2f}" if amount >= 0.01 else f"${amount:.4f}"


# ── live ──────────────────────────────────────────────────────────────────────────────────────────

WHEEL: Final = "◐◓◑◒"
QUEUED: Final = 3
DETAILS: Final = 30
"""Lines that are shown with a question."""


class LiveArea:
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
