"""The context card of `/context`: what fills the window, as grid, legend and tables.

The grid has 200 cells. The legend adds up to the window, the table of files to the category `instructions`, the
tool definitions to `tools`, and the tools' results to `results`; masked results are in `placeholders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from foveal.agent.terminal.output.styled_text import (
    STATE_STYLES,
    Row,
    Span,
    Style,
    bold,
    dim,
    row,
    table_lines,
)
from foveal.core.engine.overflow import LEARNED_FROM_REFUSAL, LEARNED_FROM_USAGE
from foveal.core.engine.report import Report, breaks_text, priorities_line, reduced_texts, tools_line
from foveal.core.engine.user_statements import statement_lines
from foveal.core.log.events import Event, Instructed, ToolReturned, Used, UserSaid, parse_handle
from foveal.core.models.budget import apportion
from foveal.core.models.cost import usage_cost
from foveal.core.models.model import Model
from foveal.core.policies.presets import Policy
from foveal.core.view.fold import effective_events
from foveal.sessions.session import Session

MAX_LISTED_STATEMENTS: Final = 12
"""Statements of the user that the card lists."""

# ── Tokens by file, tool and turn ────────────────────────────────────────────────────────────────────────


class CategoryPart(NamedTuple):
    """A file or tool in a table below the grid."""

    name: str
    tokens: int
    extra: str = ""
    """A second figure; for a tool, the tokens of its results in view."""


async def tokens_by_file(session: Session, report: Report) -> list[CategoryPart]:
    """Return the tokens of each instruction file; they add up to the category `instructions`."""
    shown = {
        line.handle: line.tokens for line in report.events if line.kind == "instructed" and line.level != "-"
    }
    events = await session.pick([seq for name in shown if (seq := parse_handle(name)) is not None])
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, Instructed) and event.fact.source:
            sizes[event.fact.source] = sizes.get(event.fact.source, 0) + shown[event.handle]
    exact = apportion(sizes, report.totals.get("instructions", 0))
    return [CategoryPart(name, tokens) for name, tokens in exact.items()]


async def tokens_by_tool(session: Session, report: Report) -> list[CategoryPart]:
    """Return the tokens of each tool's definition that requests have, which add up to `tools`, and of its results
    that are not masked, which add up to `results`."""
    sizes = {tool.name: tool.tokens for tool in report.tools if not tool.deferred}
    results = await _result_tokens(session, report)
    return [
        CategoryPart(name, sizes.get(name, 0), f"{results.get(name, 0):,}" if results.get(name) else "–")
        for name in dict.fromkeys((*sizes, *results))
    ]


async def _result_tokens(session: Session, report: Report) -> dict[str, int]:
    shown = {
        line.handle: line.tokens
        for line in report.events
        if line.kind == "tool_returned" and line.level != "masked" and line.tokens
    }
    events = await session.pick([seq for name in shown if (seq := parse_handle(name)) is not None])
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, ToolReturned):
            name = event.fact.name or "?"
            sizes[name] = sizes.get(name, 0) + shown[event.handle]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


class TurnUsage(msgspec.Struct, kw_only=True):
    """Usage of one turn, as the provider reported it."""

    calls: int = 0
    input: int = 0
    """Input tokens of all calls, cached ones included."""
    cached: int = 0
    output: int = 0
    cost: float | None = 0.0
    size: int = 0
    """Tokens of the last request."""
    grown: int = 0
    """Growth since the last request of the previous turn."""


def turn_usages(events: Iterable[Event], model: Model) -> list[TurnUsage]:
    """Return the turns in effect that have reported usage, oldest first."""
    turns: list[TurnUsage] = []
    for event in effective_events(list(events)):
        if isinstance(event.fact, UserSaid):
            turns.append(TurnUsage())
        elif isinstance(event.fact, Used) and turns:
            _add_usage(turns[-1], event.fact, model)
    turns = [turn for turn in turns if turn.calls]
    for before, turn in zip([TurnUsage(), *turns], turns, strict=False):
        turn.grown = turn.size - before.size
    return turns


def _add_usage(turn: TurnUsage, used: Used, model: Model) -> None:
    turn.calls += 1
    turn.input += used.prompt
    turn.cached += used.cache_read
    turn.output += used.output
    turn.size = used.prompt
    cost = usage_cost(used, model)
    turn.cost = None if cost is None or turn.cost is None else turn.cost + cost


# ── The card ─────────────────────────────────────────────────────────────────────────────────────────────

GRID_COLUMNS: Final = 20
GRID_LINES: Final = 10
MIN_SIDE_BY_SIDE_COLUMNS: Final = 76
"""Columns that grid and legend need side by side."""


class CategoryStyle(NamedTuple):
    """The colour and cell of a category, and its letter for terminals without colours or symbols."""

    style: Style
    letter: str
    cell: str = "■"


CATEGORY_STYLES: Final[dict[str, CategoryStyle]] = {
    "system": CategoryStyle("magenta", "s"),
    "instructions": CategoryStyle("magenta", "i", "▣"),
    "tools": CategoryStyle("blue", "t"),
    "pinned": CategoryStyle("fair", "p"),
    "summaries": CategoryStyle("accent", "z"),
    "user": CategoryStyle("good", "u"),
    "assistant": CategoryStyle("accent", "a", "▣"),
    "results": CategoryStyle("fair", "r", "▣"),
    "placeholders": CategoryStyle("dim", "h"),
    "overhead": CategoryStyle("dim", "o", "▣"),
    "reserve": CategoryStyle("dim", "=", "□"),
    "margin": CategoryStyle("dim", "-", "▫"),
    "free": CategoryStyle("dim", "·", "·"),
    "over": CategoryStyle("bad", "!"),
}
UNKNOWN_CATEGORY: Final = CategoryStyle("", "?")


def context_card(
    report: Report,
    *,
    files: Sequence[CategoryPart] = (),
    tools: Sequence[CategoryPart] = (),
    letters: bool = False,
    width: int = 80,
) -> list[Row]:
    """Return the card as rows; with `letters`, categories differ without colours and symbols."""
    grid, legend = _grid(report, letters=letters), _legend(report, letters=letters)
    return [
        row(bold("context "), dim(f"{report.model} · window {report.window:,} ({window_source(report)})")),
        row(),
        *(_side_by_side(grid, legend) if width >= MIN_SIDE_BY_SIDE_COLUMNS else [*grid, row(), *legend]),
        row(),
        *_thresholds(report),
        *_part_rows("instructions, by file", files),
        *_part_rows(f"{tools_line(report)}: definition · results in view", tools),
        *_statement_rows(report),
        *_note_rows(report),
    ]


def window_source(report: Report) -> str:
    """Return in words where the size of the window comes from."""
    if report.model.startswith("local/"):
        return "set for the local server"
    words = {
        "yours": "set by you",
        "learned": "learned from the provider",
        "default": "unknown model: a guess",
        LEARNED_FROM_REFUSAL: LEARNED_FROM_REFUSAL,
        LEARNED_FROM_USAGE: LEARNED_FROM_USAGE,
    }
    return words.get(report.window_source, f"from the {report.window_source or 'provider'}")


# ── Grid and legend ──────────────────────────────────────────────────────────────────────────────────────


def _grid(report: Report, *, letters: bool) -> list[Row]:
    amounts = {name: max(0, tokens) for name, tokens in report.totals.items()}
    cells = apportion(amounts, GRID_COLUMNS * GRID_LINES)
    spans = [_category_mark(name, letters=letters) for name, count in cells.items() for _ in range(count)]
    spans += [Span(" ")] * (GRID_COLUMNS * GRID_LINES - len(spans))
    lines = (spans[start : start + GRID_COLUMNS] for start in range(0, len(spans), GRID_COLUMNS))
    return [tuple(Span(span.text + " ", span.style) for span in line) for line in lines]


def _category_mark(name: str, *, letters: bool) -> Span:
    style = CATEGORY_STYLES.get(name, UNKNOWN_CATEGORY)
    return Span(style.letter if letters else style.cell, style.style)


def _legend(report: Report, *, letters: bool) -> list[Row]:
    lines = [
        row(
            _category_mark(name, letters=letters),
            f" {name:<13}{tokens:>10,} {report.percent(tokens):>8}",
        )
        for name, tokens in report.shown_totals
    ]
    total = report.percent(report.window)
    return [*lines, row(dim(f"  {'window':<13}{report.window:>10,} {total:>8}"))]


def _side_by_side(left: list[Row], right: list[Row]) -> list[Row]:
    empty = row(" " * GRID_COLUMNS * 2)
    height = max(len(left), len(right))
    left, right = [*left, *[empty] * (height - len(left))], [*right, *[row()] * (height - len(right))]
    return [(*first, Span("  "), *second) for first, second in zip(left, right, strict=True)]


# ── Below the grid ───────────────────────────────────────────────────────────────────────────────────────


def _thresholds(report: Report) -> list[Row]:
    """Return what is used and the thresholds, all in percent of the window."""
    used = f"used {report.used:,} tokens, {report.percent(report.used)} of the window"
    return [
        row(Span(used, STATE_STYLES[report.state]), dim(f" ({report.accuracy})")),
        row(dim(thresholds_line(report))),
    ]


def thresholds_line(report: Report) -> str:
    """Return where the context is reduced, where it warns before that, and where it ends."""
    warns = f"warns at {report.percent(report.warn)} · " if report.warn < report.act else ""
    verb = "asks" if report.mode == "confirm" else "acts"
    acts = f"{verb} at {report.percent(report.act)} ({report.act:,})"
    return f"{warns}{acts} · at most {report.percent(report.limit)} ({report.limit:,})"


def acts_text(report: Report, policy: Policy) -> str:
    """Return from where on a policy reduces the context."""
    cuts_early = policy.ladder == "economy" and policy.compact and policy.mode == "auto"
    early = ", or earlier when a cut costs little" if cuts_early else ""
    return f"{report.percent(report.act)} of the window ({report.act:,} tokens){early}"


def _part_rows(title: str, parts: Sequence[CategoryPart]) -> list[Row]:
    if not parts:
        return []
    table = [(f"  {part.name}", f"{part.tokens:,}", part.extra) for part in parts]
    return [row(), row(bold(title)), *(row(line) for line in table_lines(table, right=(1, 2)))]


def _statement_rows(report: Report) -> list[Row]:
    first, *listed = statement_lines(report.statements, most=MAX_LISTED_STATEMENTS) or [""]
    warnings = [row(Span(warning, "fair")) for warning in report.warnings]
    return [row(), row(bold(first)), *map(row, listed), *warnings] if first else warnings


def _note_rows(report: Report) -> list[Row]:
    notes = list(filter(None, (*reduced_texts(report), priorities_line(report))))
    if report.breaks:
        notes.append(breaks_text(report))
    return [row(), row(dim(" · ".join(notes)))] if notes else []
