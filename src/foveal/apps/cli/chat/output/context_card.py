"""What fills the window, drawn: a grid of two hundred cells, a legend that adds up, and what is in the parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from foveal.apps.cli.chat.output.live_area import bar, share, turns
from foveal.apps.cli.chat.output.styled_text import STATES, Row, Span, Style, bold, columns, dim, row
from foveal.core.engine.report import Report
from foveal.core.log.events import Event, Instructed, ToolReturned, Used, UserSaid, parse_handle
from foveal.core.models.model import Model
from foveal.core.tokens.counter import counter
from foveal.core.view.fold import effective
from foveal.sessions.session import Session

# ── figures ───────────────────────────────────────────────────────────────────────────────────────
# Numbers behind the cards, read from the log: what each file, tool and turn takes.


async def by_file(session: Session, report: Report) -> list[CategoryPart]:
    """What each file of instructions takes; the parts add up to `instructions`."""
    shown = {
        line.handle: line.tokens for line in report.events if line.kind == "instructed" and line.level != "-"
    }
    events = await session.pick([seq for name in shown if (seq := parse_handle(name)) is not None])
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, Instructed) and event.fact.source:
            sizes[event.fact.source] = sizes.get(event.fact.source, 0) + shown[event.handle]
    exact = shared(sizes, report.totals.get("instructions", 0))
    return [CategoryPart(name, tokens) for name, tokens in exact.items()]


async def by_tool(session: Session, report: Report, offered: Sequence[dict[str, Any]]) -> list[CategoryPart]:
    """What the definition of each tool takes, which add up to `tools`, and what is shown of its results."""
    count = counter("auto", model=report.model).count
    sizes = {tool["name"]: count(json.dumps(tool)) for tool in offered}
    exact = shared(sizes, report.totals.get("tools", 0))
    results = await _results(session, report)
    return [
        CategoryPart(name, exact.get(name, 0), f"{results.get(name, 0):,}" if results.get(name) else "–")
        for name in dict.fromkeys((*sizes, *results))
    ]


async def _results(session: Session, report: Report) -> dict[str, int]:
    shown = {
        line.handle: line.tokens for line in report.events if line.kind == "tool_returned" and line.tokens
    }
    events = await session.pick([seq for name in shown if (seq := parse_handle(name)) is not None])
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event.fact, ToolReturned):
            name = event.fact.name or "?"
            sizes[name] = sizes.get(name, 0) + shown[event.handle]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


class TurnUsage(msgspec.Struct, kw_only=True):
    """What one turn has used, as the provider reported it."""

    calls: int = 0
    input: int = 0
    """Tokens read, cached ones included, over all calls."""
    cached: int = 0
    output: int = 0
    cost: float | None = 0.0
    size: int = 0
    """Tokens of the last request."""
    grown: int = 0
    """By how much that was larger than the last one of the turn before."""


def turn_usages(events: Iterable[Event], model: Model) -> list[TurnUsage]:
    """The turns that count, oldest first; those that no provider reported on are left out."""
    made: list[TurnUsage] = []
    for event in effective(list(events)):
        if isinstance(event.fact, UserSaid):
            made.append(TurnUsage())
        elif isinstance(event.fact, Used) and made:
            _add(made[-1], event.fact, model)
    made = [turn for turn in made if turn.calls]
    for before, turn in zip([TurnUsage(), *made], made, strict=False):
        turn.grown = turn.size - before.size
    return made


def _add(turn: TurnUsage, used: Used, model: Model) -> None:
    turn.calls += 1
    turn.input += used.prompt
    turn.cached += used.cache_read
    turn.output += used.output
    turn.size = used.prompt
    cost = model.cost(
        input=used.input, cache_read=used.cache_read, cache_write=used.cache_write, output=used.output
    )
    turn.cost = None if cost is None or turn.cost is None else turn.cost + cost


# ── cards ─────────────────────────────────────────────────────────────────────────────────────────

COLUMNS: Final = 20
LINES: Final = 10
WIDE: Final = 76
"""Columns that grid and legend need beside each other."""


class CategoryStyle(NamedTuple):
    """How a category looks: by colour, and by a letter where there are none."""

    style: Style
    letter: str
    cell: str = "■"


LOOKS: Final[dict[str, CategoryStyle]] = {
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
}
UNKNOWN: Final = CategoryStyle("", "?")


class CategoryPart(NamedTuple):
    """One thing of which a category is made."""

    name: str
    tokens: int
    beside: str = ""


def context_card(
    report: Report,
    *,
    files: Sequence[CategoryPart] = (),
    tools: Sequence[CategoryPart] = (),
    colours: bool = True,
    width: int = 80,
) -> list[Row]:
    grid, legend = _grid(report, colours=colours), _legend(report, colours=colours)
    return [
        row(bold("context "), dim(f"{report.model} · window {report.window:,} ({source(report)})")),
        row(),
        *(_beside(grid, legend) if width >= WIDE else [*grid, row(), *legend]),
        row(),
        _thresholds(report),
        *_made_of("instructions, by file", files),
        *_made_of("tools: definition · results in view", tools),
        *_remarks(report),
    ]


def source(report: Report) -> str:
    """Where the window is known from."""
    if report.model.startswith("local/"):
        return "as the local server is started"
    words = {"yours": "given by you", "learned": "learned from the provider", "default": "a guess: not known"}
    return words.get(report.window_source, f"from the {report.window_source or 'provider'}")


# ── the grid ─────────────────────────────────────────────────────────────────────────────────────────────


def shared(amounts: Mapping[str, int], total: int) -> dict[str, int]:
    """A whole number for each part, in proportion, that add up to the total; what is there has at least one while
    there are enough."""
    whole = sum(amounts.values())
    if whole <= 0 or total <= 0:
        return dict.fromkeys(amounts, 0)
    exact = {name: amount * total / whole for name, amount in amounts.items()}
    cells = {name: max(int(amount), 1 if amount else 0) for name, amount in exact.items()}
    while (rest := total - sum(cells.values())) > 0:
        name = max(cells, key=lambda name: exact[name] - cells[name])
        cells[name] += 1 if exact[name] else rest
    while sum(cells.values()) > total:
        name = max(cells, key=lambda name: (cells[name] > 1, cells[name] - exact[name]))
        cells[name] -= 1
    return cells


def _grid(report: Report, *, colours: bool) -> list[Row]:
    amounts = {name: max(0, tokens) for name, tokens in report.totals.items()}
    cells = shared(amounts, COLUMNS * LINES)
    spans = [_mark(name, colours=colours) for name, count in cells.items() for _ in range(count)]
    spans += [Span(" ")] * (COLUMNS * LINES - len(spans))
    lines = (spans[start : start + COLUMNS] for start in range(0, len(spans), COLUMNS))
    return [tuple(Span(span.text + " ", span.style) for span in line) for line in lines]


def _mark(name: str, *, colours: bool) -> Span:
    look = LOOKS.get(name, UNKNOWN)
    return Span(look.cell, look.style) if colours else Span(look.letter)


def _legend(report: Report, *, colours: bool) -> list[Row]:
    shown = [(name, tokens) for name, tokens in report.totals.items() if tokens]
    window = max(1, report.window)
    lines = [
        row(
            _mark(name, colours=colours),
            f" {name:<13}{tokens:>10,} {tokens / window:>7.1%}".replace("%", " %"),
        )
        for name, tokens in shown
    ]
    total = sum(tokens for _, tokens in shown)
    return [*lines, row(dim(f"  {'window':<13}{total:>10,} {total / window:>7.1%}".replace("%", " %")))]


def _beside(left: list[Row], right: list[Row]) -> list[Row]:
    empty = row(" " * COLUMNS * 2)
    height = max(len(left), len(right))
    left, right = [*left, *[empty] * (height - len(left))], [*right, *[row()] * (height - len(right))]
    return [(*one, Span("  "), *other) for one, other in zip(left, right, strict=True)]


# ── what stands below it ─────────────────────────────────────────────────────────────────────────────────


def _thresholds(report: Report) -> Row:
    used = Span(f"used {report.used:,}", STATES[report.state])
    how = "measured" if report.measured else "estimated"
    marks = f" ({how}) · warns at {report.warn:,} · acts at {report.act:,} · at most {report.limit:,}"
    return row(used, dim(marks))


def _made_of(title: str, parts: Sequence[CategoryPart]) -> list[Row]:
    if not parts:
        return []
    table = [(f"  {part.name}", f"{part.tokens:,}", part.beside) for part in parts]
    return [row(), row(bold(title)), *(row(line) for line in columns(table, right=(1, 2)))]


def _remarks(report: Report) -> list[Row]:
    levels: dict[str, int] = {}
    for event in report.events:
        if event.level not in ("-", "full"):
            levels[event.level] = levels.get(event.level, 0) + 1
    told = [f"{count:,} {level}" for level, count in levels.items()]
    if report.breaks:
        last = report.breaks[-1]
        told.append(f"{len(report.breaks)} prefix breaks in {report.calls} calls, the last by {last.cause}")
    return [row(), row(dim(" · ".join(told)))] if told else []


def usage(report: Report) -> Row:
    """One line: how full it is."""
    left = f" · {turns(report.turns_left)}" if report.turns_left is not None else ""
    text = f"ctx {report.used:,}/{report.window:,} {share(report) * 100:.1f} % {bar(report)}"
    return row(Span(text, STATES[report.state]), dim(left))
