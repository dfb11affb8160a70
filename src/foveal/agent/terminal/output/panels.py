"""Panels above the input line: a question, a menu, switches, and the view of a long text.

1. A panel draws itself into a given height and reacts to named keys; it knows no terminal.
2. The question and its choices are always visible. The text above them scrolls, and a row counts what is hidden.
3. A text that is too long to stay below the scrolled rows is added to them, so that all of it can be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from foveal.agent.terminal.output.styled_text import (
    Row,
    Span,
    bold,
    cell_width,
    cut,
    cut_row,
    dim,
    fitting,
    row,
    single_line,
    text_rows,
    wrap,
)
from foveal.agent.terminal.user_interface import Choice, MenuItem, Question
from foveal.core.wire.safe_print import visible

# ── Scrolled rows ────────────────────────────────────────────────────────────────────────────────────
# 1. Each row is wrapped at the last column and at no other place, so no character is left out, and each character
#    that cannot be seen is shown by its code. A bar stands before each line, and a broken bar before the rest of a
#    wrapped one: no text can pass for a line of its own, nor for the question below the area.
# 2. `window` returns the lines that fit, and above and below them how many do not.

LINE_MARK: Final = "│ "
WRAPPED_MARK: Final = "┊ "
MIN_TEXT_COLUMNS: Final = 10
SCROLL_KEYS: Final = frozenset({"up", "down", "pageup", "pagedown", "home", "end"})


class ScrolledRows:
    """Rows of which a part is visible; `press` scrolls."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._lines: list[Row] = []
        self._width = 0
        self._top = 0
        self._height = 1
        """Lines that the last window showed."""

    def lines(self, width: int) -> list[Row]:
        """Return all lines, wrapped to `width` columns."""
        if width != self._width:
            self._width = width
            self._lines = [line for parts in self._rows for line in wrap_exactly(parts, width)]
        return self._lines

    def window(self, *, width: int, height: int) -> list[Row]:
        """Return at most `height` rows: lines, and a count of those above and below where there are more."""
        lines = self.lines(width)
        if len(lines) <= height:
            self._top, self._height = 0, max(1, len(lines))
            return lines
        self._height = max(1, height - 2)
        self._top = max(0, min(self._top, len(lines) - self._height))
        below = len(lines) - self._top - self._height
        shown = lines[self._top : self._top + self._height]
        above = cut_row(_hidden("↑", self._top, "above"), width)
        return [above, *shown, cut_row(_hidden("↓", below, "below"), width)]

    def press(self, key: str) -> bool:
        """Scroll with a key; return whether the key scrolls."""
        if key not in SCROLL_KEYS:
            return False
        page = max(1, self._height - 1)
        steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page, "home": -self._top}
        self._top = max(0, self._top + steps.get(key, len(self._lines)))
        return True


def _hidden(arrow: str, count: int, where: str) -> Row:
    """Return the row that counts hidden lines; an end that is visible is named as such."""
    if count == 0:
        return row(dim(f"  {'the beginning' if where == 'above' else 'the end'}"))
    return row(Span(f"  {arrow} {count:,} more line{'s' * (count != 1)} {where}", "fair"))


def wrap_exactly(parts: Row, width: int) -> Iterator[Row]:
    """Yield a row in lines of `width` columns, without leaving out a space."""
    room = max(MIN_TEXT_COLUMNS, width - len(LINE_MARK))
    line: list[Span] = []
    left, mark = room, LINE_MARK
    for span in parts:
        for piece, ends_line in _pieces(single_line(visible(span.text)), left, room):
            if ends_line:
                yield (dim(mark), *line)
                left, line, mark = room, [], WRAPPED_MARK
            if piece:
                line.append(Span(piece, span.style))
                left -= cell_width(piece)
    yield (dim(mark), *line)


def _pieces(text: str, left: int, room: int) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a text, each with whether a new line begins before it; `left` columns are free."""
    begins_line = False
    while text:
        end = _fitting(text, left)
        if end == 0 and left < room:  # not even one character fits: it begins the next line
            begins_line, left = True, room
            continue
        yield text[: max(1, end)], begins_line
        text, begins_line, left = text[max(1, end) :], True, room


def _fitting(text: str, columns: int) -> int:
    """Return how many characters of a text fit into this many columns."""
    head = text[: max(0, columns)]
    return len(head) if head.isascii() else fitting(text, 0, columns)


# ── Panels ───────────────────────────────────────────────────────────────────────────────────────────

MIN_BODY_ROWS: Final = 3
MAX_PINNED_ROWS: Final = 2
"""Rows of the question, and of each choice, that stay below the scrolled rows."""

MAX_CURRENT_ITEM_ROWS: Final = 4
"""Rows of the item at the cursor of a menu."""
MIN_DETAIL_COLUMNS: Final = 8
"""A detail that would get fewer columns is left out."""


class Panel(Protocol):
    """What the screen needs of a panel."""

    is_open: bool
    takes_text: bool
    """Whether typed characters belong to the panel instead of the input line."""
    view: FullView | None
    """The view over the whole screen, while it is open."""

    def rows(self, *, width: int, height: int) -> list[Row]:
        """Return at most `height` rows of at most `width` columns."""
        ...

    def press(self, key: str) -> bool:
        """React to a character or a named key (`up`, `enter`, …); return whether the panel uses it."""
        ...


# ── View ─────────────────────────────────────────────────────────────────────────────────────────────────

VIEW_HINT: Final = "↑ ↓ PgUp PgDn Home End scroll · q or Esc returns"


class FullView:
    """A text over the whole screen."""

    def __init__(self, title: str, body: Sequence[Row]) -> None:
        self.is_open: bool = True
        self._title = title
        self._body = ScrolledRows(body)

    def rows(self, *, width: int, height: int) -> list[Row]:
        body = self._body.window(width=width, height=height - 2)
        empty = [row()] * (height - 2 - len(body))
        return [row(bold(cut(self._title, width))), *body, *empty, row(dim(cut(VIEW_HINT, width)))]

    def press(self, key: str) -> bool:
        if key in ("q", "v", "escape", "enter", "c-c"):
            self.is_open = False
        else:
            self._body.press({" ": "pagedown", "b": "pageup", "j": "down", "k": "up"}.get(key, key))
        return True


# ── Question ─────────────────────────────────────────────────────────────────────────────────────────────


class QuestionPanel:
    """A question that one key answers."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.answer: str = ""
        self.is_open: bool = True
        self.takes_text = False
        self.view: FullView | None = None
        self.has_typed_text = False
        """The input line has text, so characters are text and not answers."""
        self._body = ScrolledRows(question.details)
        self._body_width = 0

    def rows(self, *, width: int, height: int) -> list[Row]:
        self._fit_body(width)
        pinned = self._pinned(width)
        body_height = max(MIN_BODY_ROWS, height - len(pinned) - 1)
        body = self._body.window(width=width, height=body_height)
        is_scrolled = len(self._body.lines(width)) > body_height
        return [*body, *([row(dim(cut(SCROLL_HINT, width)))] if is_scrolled else []), *pinned]

    def press(self, key: str) -> bool:
        if key == "v" and self.question.waits and not self._is_choice("v"):
            self.view = FullView(self.question.text, self._all_details(self._body_width or 80))
        elif key in ("enter", "escape"):
            self._close("n")
        elif self._is_choice(key.casefold()):
            self._close(key.casefold())
        else:
            return self._body.press(key)
        return True

    def _close(self, answer: str) -> None:
        self.answer, self.is_open = answer, False

    def _is_choice(self, key: str) -> bool:
        return any(choice.key == key for choice in self.question.choices)

    def _fit_body(self, width: int) -> None:
        if width != self._body_width:  # what is pinned in part depends on the width
            self._body_width = width
            self._body = ScrolledRows(self._all_details(width))

    def _all_details(self, width: int) -> tuple[Row, ...]:
        """Return the details, and in full the texts that are pinned in part."""
        choices, room = map(_choice_text, self.question.choices), width - len(CHOICE_INDENT)
        texts = [(self.question.text, width), *((choice, room) for choice in choices)]
        long = [text for text, columns in texts if len(_lines(text, columns)) > MAX_PINNED_ROWS]
        return (*self.question.details, *(line for text in long for line in text_rows(text)))

    def _pinned(self, width: int) -> list[Row]:
        """Return the question and its choices."""
        rows = [row(bold(line)) for line in _head(self.question.text, width)]
        for choice in self.question.choices:
            first, *rest = _head(_choice_text(choice), width - len(CHOICE_INDENT))
            rows += [
                row(Span(f"  {first[:1]}", "accent"), first[1:]),
                *(row(f"{CHOICE_INDENT}{line}") for line in rest),
            ]
        if self.has_typed_text:
            rows.append(
                row(
                    Span(
                        cut("  Your text is no answer. Tab keeps it for later.", width),
                        "fair",
                    )
                )
            )
        return rows


CHOICE_INDENT: Final = " " * 5
"""Before the rows of a choice after the first."""
MORE_MARK: Final = "… (in full above)"
SCROLL_HINT: Final = "  ↑ ↓ PgUp PgDn Home End scroll · v shows all"


def _choice_text(choice: Choice) -> str:
    return f"{choice.key}  {choice.label}{' (or Enter, Esc)' if choice.key == 'n' else ''}"


def _head(text: str, width: int) -> list[str]:
    """Return the first lines of a text, with a mark where it goes on."""
    lines = _lines(text, width)
    if len(lines) <= MAX_PINNED_ROWS:
        return lines
    last = cut(lines[MAX_PINNED_ROWS - 1], width - len(MORE_MARK)).removesuffix("…")
    return [*lines[: MAX_PINNED_ROWS - 1], cut(last + MORE_MARK, width)]


def _lines(text: str, width: int) -> list[str]:
    return wrap(visible(text), width)


def _first_rows(lines: list[str], most: int, width: int) -> list[str]:
    """Return at most this many lines, the last with a mark if there are more."""
    return lines if len(lines) <= most else [*lines[: most - 1], cut(f"{lines[most - 1]} …", width)]


# ── Menus ────────────────────────────────────────────────────────────────────────────────────────────────


class _Menu:
    """The part that both menus share: a cursor over items."""

    takes_text = True

    def __init__(self, title: str, items: Sequence[MenuItem], hint: str) -> None:
        self.is_open: bool = True
        self.view: FullView | None = None
        self._title, self._items, self._hint = title, tuple(items), hint
        self._viewed: set[str] = set()
        """Keys of items whose body was shown."""
        self._cursor = 0
        self._top = 0
        self._page = 1

    @property
    def _shown(self) -> Sequence[MenuItem]:
        return self._items

    @property
    def _current(self) -> MenuItem | None:
        return self._shown[self._cursor] if self._cursor < len(self._shown) else None

    def rows(self, *, width: int, height: int) -> list[Row]:
        head = [row(bold(line)) for line in wrap(self._title, width)[:MAX_PINNED_ROWS]]
        foot = [row(dim(line)) for text in (self._keys(), self._hint) if text for line in wrap(text, width)]
        search = self._search_rows(width)
        self._page = max(1, height - len(head) - len(foot) - len(search) - MAX_CURRENT_ITEM_ROWS)
        self._top = max(self._cursor - self._page + 1, min(self._top, self._cursor), 0)
        shown = self._shown[self._top : self._top + self._page]
        lines = [
            line
            for place, item in enumerate(shown, start=self._top)
            for line in (
                self._current_lines(item, width) if place == self._cursor else [self._line(item, width)]
            )
        ]
        hidden = len(self._shown) - len(shown)
        more = [row(dim(f"  {len(self._shown):,} in all"))] if hidden > 0 else []
        return [*head, *search, *lines, *more, *foot]

    def _line(self, item: MenuItem, width: int) -> Row:
        title = cut(f"{self._switch(item)}{item.title}", width - 2)
        left = width - 4 - cell_width(title)
        detail = cut(item.detail, left) if item.detail and left >= MIN_DETAIL_COLUMNS else ""
        return row("  ", title, dim(f"  {detail}" if detail else ""))

    def _current_lines(self, item: MenuItem, width: int) -> list[Row]:
        """Return the item at the cursor, with more of its text than the others."""
        indent = " " * (2 + len(self._switch(item)))
        first, *rest = _first_rows(
            wrap(item.title, width - len(indent)), MAX_PINNED_ROWS, width - len(indent)
        )
        lines = [
            row(Span("› ", "accent"), bold(f"{self._switch(item)}{first}")),
            *(row(indent, bold(line)) for line in rest),
        ]
        left = MAX_CURRENT_ITEM_ROWS - len(lines)
        details = wrap(item.detail, width - len(indent)) if item.detail else []
        if not rest and len(details) == 1 and cell_width(indent + first + details[0]) + 2 <= width:
            return [(*lines[0], dim(f"  {details[0]}"))]
        return [
            *lines,
            *(row(dim(f"{indent}{line}")) for line in _first_rows(details, left, width - len(indent))),
        ]

    def press(self, key: str) -> bool:
        last = max(0, len(self._shown) - 1)
        steps = {
            "up": -1,
            "down": 1,
            "pageup": -self._page,
            "pagedown": self._page,
            "home": -last,
            "end": last,
        }
        if key in steps:
            self._cursor = max(0, min(last, self._cursor + steps[key]))
        elif key in ("escape", "c-c"):
            self.is_open = False
        else:
            self._press_other(key)
        return True

    def _open_view(self) -> None:
        if (item := self._current) is not None:
            self._viewed.add(item.key)
            about = (*text_rows(item.title), *(text_rows(item.detail) if item.detail else ()))
            self.view = FullView(item.title, (*about, *item.body))

    def _switch(self, item: MenuItem) -> str:
        return ""

    def _search_rows(self, width: int) -> list[Row]:
        return []

    def _keys(self) -> str:
        raise NotImplementedError

    def _press_other(self, key: str) -> None:
        raise NotImplementedError


class PickMenu(_Menu):
    """A menu of which one item is picked; typed characters search."""

    def __init__(self, title: str, items: Sequence[MenuItem], hint: str = "") -> None:
        super().__init__(title, items, hint)
        self.picked: str | None = None
        self._query = ""
        self._found: Sequence[MenuItem] = self._items

    @property
    def _shown(self) -> Sequence[MenuItem]:
        return self._found

    def _keys(self) -> str:
        view = "Tab shows all of it · " if any(item.body for item in self._items) else ""
        return f"↑ ↓ choose · type to search · {view}Enter takes · Esc leaves"

    def _search_rows(self, width: int) -> list[Row]:
        if not self._query:
            return []
        none = "" if self._found else "  nothing is found"
        return [row(Span("  search: ", "accent"), cut(self._query, max(10, width - 30)), dim(none))]

    def _press_other(self, key: str) -> None:
        if key == "enter" and (item := self._current) is not None:
            self.picked, self.is_open = item.key, False
        elif key == "tab":
            self._open_view()
        elif key == "backspace":
            self._search(self._query[:-1])
        elif len(key) == 1 and key.isprintable():
            self._search(self._query + key)

    def _search(self, query: str) -> None:
        """Keep the items that have every word of the query."""
        words = query.casefold().split()
        self._query, self._cursor, self._top = query, 0, 0
        self._found = [item for item in self._items if all(word in _searched(item) for word in words)]


def _searched(item: MenuItem) -> str:
    return f"{item.title} {item.detail}".casefold()


class SwitchMenu(_Menu):
    """A menu of switches, all off at first."""

    def __init__(self, title: str, items: Sequence[MenuItem], hint: str = "") -> None:
        super().__init__(title, items, hint)
        self.chosen: frozenset[str] | None = None
        self._on: frozenset[str] = frozenset()

    def _switch(self, item: MenuItem) -> str:
        return "[x] " if item.key in self._on else "[ ] "

    def _keys(self) -> str:
        return f"↑ ↓ move · Space switches · v shows all of it · Enter confirms ({len(self._on)} on) · Esc leaves"

    def _press_other(self, key: str) -> None:
        item = self._current
        if key == "enter":
            self.chosen, self.is_open = self._on, False
        elif key == " " and item is not None and item.needs_view and item.key not in self._viewed:
            self._open_view()
        elif key == " " and item is not None:
            self._on ^= {item.key}
        elif key == "v":
            self._open_view()
