"""Checks of a report that hold for every conversation."""

from __future__ import annotations

from foveal import Context, Report
from foveal.core.engine.report import CATEGORIES, report


def figures(ctx: Context) -> Report:
    """Return the report of a conversation without the lists of its events, statements and tools, which take long to
    write for a long log."""
    return report(ctx._engine, fitted=0, breaks=(), with_events=False)


def adds_up(report: Report) -> None:
    """The parts are the total, and the total is the window."""
    parts = {name: report.totals[name] for name in CATEGORIES}
    assert sum(parts.values()) == report.window
    apart = parts["reserve"] + parts["margin"] + parts["free"]
    assert report.used == report.window - apart
    assert all(tokens >= 0 for name, tokens in parts.items() if name != "free")
    assert report.warn <= report.act <= report.limit
    if report.measured:  # tokens are rounded units then, and the marks may fall together
        return
    over, act, warn = (report.used > mark for mark in (report.limit, report.act, report.warn))
    assert report.act < report.limit
    assert report.state == ("over" if over else "act" if act else "warn" if warn else "ok")
