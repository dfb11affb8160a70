"""The line at the bottom: how full the window is, by the numbers that also trigger reductions."""

from __future__ import annotations

from typing import Final

from foveal.apps.cli.chat.rows import STATES, Row, Span, cells, dim, row
from foveal.report import Report

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
