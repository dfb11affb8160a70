"""The figures as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from foveal.core.wire.safe_print import one_line
from foveal.replay.statistics import HiddenResult, PolicyStatistics, worst

Column = tuple[str, Callable[[PolicyStatistics], str]]


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f}"


def pair(near: float | None, far: float | None) -> str:
    return f"{percent(near)} / {percent(far)}"


def _bill(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def short(count: int) -> str:
    """A number of tokens as people say it."""
    if count >= 1_000_000:
        return f"{count / 1_000_000:,.1f}M"
    return f"{count / 1_000:,.1f}k" if count >= 1_000 else str(count)


COST: Final[tuple[Column, ...]] = (
    ("bill", lambda row: _bill(row.bill)),
    ("own prices", lambda row: _bill(row.bill_model)),
    ("cached", lambda row: _bill(row.cached)),
    ("breaks/100", lambda row: "–" if row.breaks is None else f"{row.breaks:.1f}"),
    ("over", lambda row: f"{row.over:,}"),
    ("peak", lambda row: short(row.peak)),
    ("ident / far", lambda row: pair(row.ident, row.ident_far)),
    ("line / far", lambda row: pair(row.line, row.line_far)),
    ("task", lambda row: percent(row.task)),
    ("latest", lambda row: percent(row.latest)),
)
MORE: Final[tuple[Column, ...]] = (
    ("calls", lambda row: f"{row.calls:,}"),
    ("input", lambda row: short(row.tokens)),
    ("dollars", lambda row: "–" if row.dollars is None else f"{row.dollars:,.2f}"),
    ("mean bill", lambda row: _bill(row.bill_mean)),
    ("mean ident / far", lambda row: pair(row.ident_mean, row.ident_far_mean)),
    ("mean line / far", lambda row: pair(row.line_mean, row.line_far_mean)),
    ("own ms p50 / p99", lambda row: f"{row.own_median:.2f} / {row.own_p99:.2f}"),
    ("reductions", lambda row: ", ".join(f"{n:,} {kind}" for kind, n in row.reductions.items()) or "–"),
)


def table(rows: Sequence[PolicyStatistics], *, losses: int = 5) -> str:
    """Two tables and the worst losses, in plain text."""
    if not rows:
        return "nothing was replayed"
    parts = [_drawn(rows, COST), _drawn(rows, MORE), NOTE, *_losses(worst(rows, most=losses))]
    return "\n".join(parts)


NOTE: Final = """\
bill: against sending everything with an ideal cache, at read 0.1 and write 1.0, and at the model's own prices
ident, line: the share of what calls quoted from earlier results that still stood in their requests, in percent
over: calls that did not fit the window; task, latest: requests with the first and the latest user message"""


def _drawn(rows: Sequence[PolicyStatistics], columns: Sequence[Column]) -> str:
    header = ["policy", *(name for name, _ in columns)]
    cells = [header, *([one_line(row.policy, width=60), *(show(row) for _, show in columns)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:], ""])


def _losses(found: Sequence[HiddenResult]) -> list[str]:
    lines: list[str] = []
    before = ""
    for one in found:
        if one.policy != before:
            lines.append(f"\nworst losses of {one_line(one.policy, width=60)}:")
            before = one.policy
        lines.append(_lost(one))
    return lines


def _lost(one: HiddenResult) -> str:
    where = f"{one_line(one.conversation, width=50)} {one.handle} {one_line(one.tool, width=20)}".rstrip()
    needs = f"{one.needs} need{'s' if one.needs != 1 else ''} from call {one.calls[0]} on"
    how = f"{one.level} by {one.by or 'nothing'}, rule {one.rule or '–'}"
    return f"  {where}: {needs}, {how}\n      {one_line(one.examples[0], width=100)}"


def as_json(rows: Sequence[PolicyStatistics], *, losses: int = 20) -> str:
    """Everything but the series of the single calls."""
    value = {
        "policies": [row.values() for row in rows],
        "losses": [msgspec.to_builtins(one) for one in worst(rows, most=losses)],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
