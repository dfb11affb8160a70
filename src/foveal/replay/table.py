"""Results of a replay as text tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from foveal.core.wire.safe_print import one_line
from foveal.replay.statistics import HiddenResult, PolicyStatistics, worst_losses

Column = tuple[str, Callable[[PolicyStatistics], str]]


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def recall_pair(all_needs: float | None, far: float | None) -> str:
    """Return the recall of all needs and of far ones."""
    return f"{percent(all_needs)} / {percent(far)}"


def _bill(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def short_count(count: int) -> str:
    """Return a number of tokens, rounded."""
    if count >= 1_000_000:
        return f"{count / 1_000_000:,.1f}M"
    return f"{count / 1_000:,.1f}k" if count >= 1_000 else str(count)


COST_COLUMNS: Final[tuple[Column, ...]] = (
    ("bill", lambda row: _bill(row.bill)),
    ("own prices", lambda row: _bill(row.bill_model)),
    ("cached", lambda row: _bill(row.cached)),
    ("breaks/100", lambda row: "–" if row.breaks is None else f"{row.breaks:.1f}"),
    ("over", lambda row: f"{row.over:,}"),
    ("peak", lambda row: short_count(row.peak)),
    ("ident / far", lambda row: recall_pair(row.ident, row.ident_far)),
    ("line / far", lambda row: recall_pair(row.line, row.line_far)),
    ("task", lambda row: percent(row.task)),
    ("latest", lambda row: percent(row.latest)),
)
DETAIL_COLUMNS: Final[tuple[Column, ...]] = (
    ("calls", lambda row: f"{row.calls:,}"),
    ("input", lambda row: short_count(row.tokens)),
    ("dollars", lambda row: "–" if row.dollars is None else f"{row.dollars:,.2f}"),
    ("mean bill", lambda row: _bill(row.bill_mean)),
    ("mean ident / far", lambda row: recall_pair(row.ident_mean, row.ident_far_mean)),
    ("mean line / far", lambda row: recall_pair(row.line_mean, row.line_far_mean)),
    ("own ms p50 / p99", lambda row: f"{row.own_median:.2f} / {row.own_p99:.2f}"),
    ("reductions", lambda row: ", ".join(f"{n:,} {kind}" for kind, n in row.reductions.items()) or "–"),
)


def table(rows: Sequence[PolicyStatistics], *, losses: int = 5) -> str:
    """Return two tables and the worst losses as plain text."""
    if not rows:
        return "nothing was replayed"
    parts = [
        _draw_table(rows, COST_COLUMNS),
        _draw_table(rows, DETAIL_COLUMNS),
        LEGEND,
        *_losses(worst_losses(rows, limit=losses)),
    ]
    return "\n".join(parts)


LEGEND: Final = """\
bill: relative to sending everything with an ideal cache, at read 0.1 and write 1.0, and at the model's own prices
ident, line: the share of what calls quoted from earlier results that was still in their requests, in percent
over: calls that did not fit the window; task, latest: requests with the first and the latest user message"""


def _draw_table(rows: Sequence[PolicyStatistics], columns: Sequence[Column]) -> str:
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
    policy = ""
    for hidden in found:
        if hidden.policy != policy:
            policy = hidden.policy
            lines.append(f"\nworst losses of {one_line(policy, width=60)}:")
        lines.append(_loss_lines_of(hidden))
    return lines


def _loss_lines_of(hidden: HiddenResult) -> str:
    where = f"{one_line(hidden.conversation, width=50)} {hidden.handle} {one_line(hidden.tool, width=20)}".rstrip()
    needs = f"{hidden.needs} need{'s' if hidden.needs != 1 else ''} from call {hidden.calls[0]} on"
    cause = f"{hidden.level} by {hidden.by or 'nothing'}, rule {hidden.rule or '–'}"
    return f"  {where}: {needs}, {cause}\n      {one_line(hidden.examples[0], width=100)}"


def as_json(rows: Sequence[PolicyStatistics], *, losses: int = 20) -> str:
    """Return all results except those of the single calls."""
    value = {
        "policies": [row.values() for row in rows],
        "losses": [msgspec.to_builtins(hidden) for hidden in worst_losses(rows, limit=losses)],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
