"""The status line: how full the window is, cache share, turns left, cost.

It shows the numbers that also trigger reductions.
"""

from __future__ import annotations

from typing import Final

from foveal.apps.cli.chat.output.styled_text import STATE_STYLES, Row, Span, cell_width, dim, row
from foveal.core.engine.report import Report

STATUS_BAR_CELLS: Final = 10


def status_row(report: Report, *, width: int = 200) -> Row:
    """Return the line in at most `width` columns; the parts at its end are left out first."""
    head = f" {_usage_text(report)} "
    parts = [usage_bar(report), *_parts(report)]
    while len(parts) > 1 and cell_width(head + _join(parts)) > width:
        parts.pop()
    return row(Span(head + parts[0], STATE_STYLES[report.state]), dim(_join(parts)[len(parts[0]) :]))


def usage_row(report: Report) -> Row:
    """Return the usage and the turns left, as commands print them."""
    left = f" · {turns_left(report.turns_left)}" if report.turns_left is not None else ""
    text = f"{_usage_text(report)} {usage_bar(report)}"
    return row(Span(text, STATE_STYLES[report.state]), dim(left))


def _usage_text(report: Report) -> str:
    return f"ctx {report.used:,}/{report.window:,} {_used_share(report) * 100:.1f} %"


def _join(parts: list[str]) -> str:
    return parts[0] + (" " + " · ".join(parts[1:]) if len(parts) > 1 else "")


def _parts(report: Report) -> list[str]:
    parts = []
    if report.cached_share is not None:
        parts.append(f"cache {report.cached_share * 100:.0f} %")
    if report.turns_left is not None:
        parts.append(turns_left(report.turns_left))
    if report.spent:
        parts.append(dollars(report.spent))
    return parts


def _used_share(report: Report) -> float:
    return report.used / report.window if report.window else 1.0


def usage_bar(report: Report, *, size: int = STATUS_BAR_CELLS) -> str:
    """Return the used share as a bar; at least one cell is filled if anything is used."""
    filled = min(size, max(round(_used_share(report) * size), 1 if report.used else 0))
    return f"▕{'█' * filled}{'·' * (size - filled)}▏"


def turns_left(left: int) -> str:
    """Return in words how many turns fit before the next reduction."""
    if left == 0:
        return "next cut within a turn"
    return f"~{left:,} turn{'s' * (left != 1)} left"


def dollars(amount: float) -> str:
    """Return an amount with two digits, or four if it is less than a cent."""
    return f"${amount:.2f}" if amount >= 0.01 else f"${amount:.4f}"
