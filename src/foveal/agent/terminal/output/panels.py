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
    Style,
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
from foveal.core.wire.safe_print import counted, unhidden

# ── Scrolled rows ────────────────────────────────────────────────────────────────────────────────────
# 1. Each row is wrapped at the last column and at no other place, so no character is left out, and each character
#    that cannot be seen is shown by its code. A bar stands before each line, and a broken bar before the rest of a
#    wrapped one: no text can pass for a line of its own, nor for the question below the area.
# 2. `window` returns the lines that fit, and how many do not. At first these are the first and the last lines, so
#    that a long command cannot hide its end; scrolling reads what is between.

LINE_MARK: Final = "│ "
WRAPPED_MARK: Final = "┊ "
MIN_TEXT_COLUMNS: Final = 10
SCROLL_KEYS: Final = frozenset({"up", "down", "pageup", "pagedown", "home", "end"})


class ScrolledRows:
    """Rows of which a part is visible; `press` scrolls."""

    def __init__(self, rows: Sequence[Row], *, after: Sequence[Row] = (), shows_end: bool = False) -> None:
        """With `shows_end`, the first and the last lines of `rows` are visible at first; `after` follows them."""
        self._rows, self._after = rows, after
        self._lines: list[Row] = []
        self._end = 0
        """Number of the lines of `rows`."""
        self._width = 0
        self._top = 0
        self._is_folded = shows_end
        """Whether the first and the last lines are visible, and not those between."""
        self._height = 1
        """Lines that the last window showed; of a folded one, those at its beginning."""

    def lines(self, width: int) -> list[Row]:
        """Return all lines, wrapped to `width` columns."""
        if width != self._width:
            self._width = width
            lines = [line for parts in self._rows for line in wrap_exactly(parts, width)]
            self._end = len(lines)
            self._lines = lines + [line for parts in self._after for line in wrap_exactly(parts, width)]
        return self._lines

    def window(self, *, width: int, height: int) -> list[Row]:
        """Return at most `height` rows: lines, and how many more there are."""
        lines = self.lines(width)
        if len(lines) <= height:
            self._top, self._height = 0, max(1, len(lines))
            return lines
        if self._is_folded:
            return self._folded(width, height)
        self._height = max(1, height - 2)
        self._top = max(0, min(self._top, len(lines) - self._height))
        below = len(lines) - self._top - self._height
        shown = lines[self._top : self._top + self._height]
        above = cut_row(_hidden("↑", self._top, "above"), width)
        return [above, *shown, cut_row(_hidden("↓", below, "below"), width)]

    def _folded(self, width: int, height: int) -> list[Row]:
        """Return the first lines, the last ones of `rows`, and between them how many are hidden; what comes after
        `rows` too, if it is short."""
        room = max(2, height - 1)
        after = self._lines[self._end :]
        if len(after) > room // 3:
            after = []
        room -= len(after)
        self._height = min(room - room // 2, self._end)
        tail = min(room // 2, self._end - self._height)
        between = self._end - self._height - tail
        below = len(self._lines) - self._end - len(after)
        counts = [counted(between, "more line") + " between"] if between else []
        counts += [f"{below:,} below"] if below else []
        fold = cut_row(row(Span(f"  ↓ {', '.join(counts)}", "fair")), width)
        return [*self._lines[: self._height], fold, *self._lines[self._end - tail : self._end], *after]

    def press(self, key: str) -> bool:
        """Scroll with a key; return whether the key scrolls."""
        if key not in SCROLL_KEYS:
            return False
        if self._is_folded and key in ("up", "pageup", "home"):
            return True
        page = max(1, self._height if self._is_folded else self._height - 1)
        self._is_folded = False
        steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page, "home": -self._top}
        self._top = max(0, self._top + steps.get(key, len(self._lines)))
        return True


def _hidden(arrow: str, count: int, where: str) -> Row:
    """Return the row that counts hidden lines; an end that is visible is named as such."""
    if count == 0:
        return row(dim(f"  {'the beginning' if where == 'above' else 'the end'}"))
    return row(Span(f"  {arrow} {counted(count, 'more line')} {where}", "fair"))


def wrap_exactly(parts: Row, width: int) -> Iterator[Row]:
    """Yield a row in lines of `width` columns, without leaving out a space."""
    room = max(MIN_TEXT_COLUMNS, width - len(LINE_MARK))
    line: list[Span] = []
    left, mark = room, LINE_MARK
    for span in parts:
        for piece, ends_line in _pieces(_exact(span.text), left, room):
            if ends_line:
                yield (dim(mark), *line)
                left, line, mark = room, [], WRAPPED_MARK
            if piece:
                line.append(Span(piece, span.style))
                left -= cell_width(piece)
    yield (dim(mark), *line)


def _exact(text: str) -> str:
    """Return a text on one line with every character visible, tabs too."""
    return single_line(unhidden(text).replace("\t", "␉"))


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
CONFIRM_KEY: Final = "y"
"""The second key of an answer that lasts."""
EARLY_HINT: Final = "one moment: keys still go to the input line"
MIN_DETAIL_COLUMNS: Final = 8
"""A detail that would get fewer columns is left out."""


class Panel(Protocol):
    """What the screen needs of a panel."""

    is_open: bool
    is_ready: bool
    """Whether keys reach the panel; set before each drawing."""
    takes_text: bool
    """Whether typed characters belong to the panel instead of the input line."""
    view: FullView | None
    """The view over the whole screen, while it is open."""

    @property
    def is_confirming(self) -> bool:
        """Whether an answer that lasts was chosen and waits for `CONFIRM_KEY`."""
        ...

    def cancel_confirmation(self) -> None:
        """Return to the step before."""
        ...

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
    """A question that one key answers, two keys if the answer lasts, or a line if it does not wait."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.answer: str = ""
        self.is_open: bool = True
        self.is_ready = True
        self.takes_text = False
        self.view: FullView | None = None
        self.has_typed_text = False
        """The input line has text, so characters are text and not answers."""
        self._chosen: Choice | None = None
        """The permanent answer that waits for the second key."""
        self._body = ScrolledRows(question.details)
        self._body_size = (0, 0)
        """The width, and the rows of each pinned text, for which the body was made."""

    @property
    def is_confirming(self) -> bool:
        return self._chosen is not None

    def rows(self, *, width: int, height: int) -> list[Row]:
        most = MAX_PINNED_ROWS
        pinned = self._pinned(width, most)
        if len(pinned) + MIN_BODY_ROWS > height:
            most = 1
            pinned = self._pinned(width, most)
        if (width, most) != self._body_size:  # what is pinned in part depends on them
            self._body_size = (width, most)
            asked, choices = self._texts(width, most)
            self._body = ScrolledRows(asked, after=choices, shows_end=True)
        room = height - len(pinned)
        hint = [row(dim(cut(SCROLL_HINT, width)))]
        if len(self._body.lines(width)) <= room:
            hint = []
        body_height = max(MIN_BODY_ROWS, room - len(hint))
        body = self._body.window(width=width, height=body_height)
        return [*body, *(hint if len(body) < room else []), *pinned]

    def press(self, key: str) -> bool:
        if self._chosen is not None:
            return self._confirm(key)
        if key == "v" and self.question.waits and self._choice("v") is None:
            asked, choices = self._texts(self._body_size[0] or 80, MAX_PINNED_ROWS)
            self.view = FullView(self.question.text, (*asked, *choices))
        elif key in ("enter", "escape"):
            self._close("n")
        elif (choice := self._choice(key.casefold())) is not None:
            if choice.lasts:
                self._chosen = choice
            else:
                self._close(choice.key)
        else:
            return self._body.press(key)
        return True

    def cancel_confirmation(self) -> None:
        """Return to the question."""
        self._chosen = None

    def _confirm(self, key: str) -> bool:
        """Give the chosen answer, or return to the question; a character that confirms nothing is text."""
        if self._chosen is not None and key.casefold() == CONFIRM_KEY:
            self._close(self._chosen.key)
        elif len(key) == 1:
            return False
        self.cancel_confirmation()
        return True

    def _close(self, answer: str) -> None:
        self.answer, self.is_open = answer, False

    def answer_in(self, line: str) -> str | None:
        """Return the key of the answer that a line gives, or None if the line is not an answer."""
        word = line.strip().casefold()
        key = {"": "n", "no": "n", "yes": "y"}.get(word, word)
        return key if self._choice(key) is not None else None

    def can_become_answer(self, text: str) -> bool:
        """Return whether a line that begins with this text can be an answer."""
        words = ("yes", "no", *(choice.key for choice in self.question.choices))
        return any(word.startswith(text.strip().casefold()) for word in words)

    def _choice(self, key: str) -> Choice | None:
        return next((choice for choice in self.question.choices if choice.key == key), None)

    def _texts(self, width: int, most: int) -> tuple[list[Row], list[Row]]:
        """Return what is asked about, and remarks and choices; in full where only `most` rows are pinned."""
        asked = text_rows(self.question.text) if len(_lines(self.question.text, width)) > most else []
        texts = [self._choice_text(choice) for choice in self.question.choices]
        long = [text for text in texts if len(_lines(text, width - len(CHOICE_INDENT))) > most]
        after = (line for text in long for line in text_rows(text))
        return [*asked, *self.question.details], [*self.question.remarks, *after]

    def _pinned(self, width: int, most: int) -> list[Row]:
        """Return the question, its choices and what keys do now, with at most `most` rows for each text."""
        rows = [row(bold(line)) for line in _head(self.question.text, width, most)]
        for choice in self.question.choices:
            first, *rest = _head(self._choice_text(choice), width - len(CHOICE_INDENT), most)
            is_live = self.is_ready and self._chosen in (None, choice)
            style: Style = "" if is_live else "dim"
            rows += [
                row(Span(f"  {first[:1]}", "accent" if is_live else "dim"), Span(first[1:], style)),
                *(row(Span(f"{CHOICE_INDENT}{line}", style)) for line in rest),
            ]
        return [*rows, self._foot(width)]

    def _choice_text(self, choice: Choice) -> str:
        if choice.key != "n" or self.is_confirming:
            return f"{choice.key}  {choice.label}"
        return f"{choice.key}  {choice.label} ({'or Enter, Esc' if self.is_ready else 'Esc'})"

    def _foot(self, width: int) -> Row:
        """Return what keys do now."""
        if self._chosen is not None:
            others = ", other keys are text" * self.is_ready
            text = _confirm_hint(
                f"confirms your answer, which lasts · Esc goes back{others}", is_ready=self.is_ready
            )
            return row(Span(cut(f"  {text}", width), "fair"))
        if not self.question.waits:
            return row(
                dim(cut(f"  {LINE_HINT if self.is_ready else f'one moment, then {LINE_HINT}'}", width))
            )
        if self.has_typed_text:
            return row(Span(cut("  Your text is no answer. Tab keeps it for later.", width), "fair"))
        return row(dim(cut(f"  {READY_HINT if self.is_ready else EARLY_HINT}", width)))


CHOICE_INDENT: Final = " " * 5
"""Before the rows of a choice after the first."""
MORE_MARK: Final = "… (in full above)"
READY_HINT: Final = "press one of these keys"
LINE_HINT: Final = "y or n and Enter · any other text is your next message"
SCROLL_HINT: Final = "  ↑ ↓ PgUp PgDn Home End scroll · v shows all"


def _confirm_hint(what: str, *, is_ready: bool) -> str:
    """Return what the second key does."""
    return f"{'' if is_ready else 'one moment, then '}{CONFIRM_KEY} {what}"


def _head(text: str, width: int, most: int) -> list[str]:
    """Return the first lines of a text, at most `most`, with a mark where it goes on."""
    lines = _lines(text, width)
    if len(lines) <= most:
        return lines
    last = cut(lines[most - 1], width - len(MORE_MARK)).removesuffix("…")
    return [*lines[: most - 1], cut(last + MORE_MARK, width)]


def _lines(text: str, width: int) -> list[str]:
    return wrap(_exact(text), width)


def _first_rows(lines: list[str], most: int, width: int) -> list[str]:
    """Return at most this many lines, the last with a mark if there are more."""
    return lines if len(lines) <= most else [*lines[: most - 1], cut(f"{lines[most - 1]} …", width)]


# ── Menus ────────────────────────────────────────────────────────────────────────────────────────────────


class _Menu:
    """The part that both menus share: a cursor over items."""

    takes_text = True

    def __init__(self, title: str, items: Sequence[MenuItem], hint: str) -> None:
        self.is_open: bool = True
        self.is_confirming: bool = False
        self.is_ready = True
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
        style: Style = "fair" if self.is_confirming else "dim"
        foot = [row(Span(line, style)) for line in wrap(self._foot(), width)]
        foot += [row(dim(line)) for line in wrap(self._hint, width)] if self._hint else []
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

    def _foot(self) -> str:
        return self._keys() if self.is_ready else EARLY_HINT

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

    def cancel_confirmation(self) -> None:
        self.is_confirming = False

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
    """A menu of switches, all off at first; what is on is confirmed with a second key, as the answer lasts."""

    def __init__(self, title: str, items: Sequence[MenuItem], hint: str = "") -> None:
        super().__init__(title, items, hint)
        self.chosen: frozenset[str] | None = None
        self._on: frozenset[str] = frozenset()

    def press(self, key: str) -> bool:
        if not self.is_confirming:
            return super().press(key)
        self.cancel_confirmation()
        if key.casefold() == CONFIRM_KEY:
            self._close()
        return True

    def _close(self) -> None:
        self.chosen, self.is_open = self._on, False

    def _switch(self, item: MenuItem) -> str:
        return "[x] " if item.key in self._on else "[ ] "

    def _foot(self) -> str:
        if self.is_confirming:
            are = "the item that is on" if len(self._on) == 1 else f"the {len(self._on):,} items that are on"
            others = "any other key goes back" if self.is_ready else "Esc goes back"
            return _confirm_hint(f"allows {are} · {others}", is_ready=self.is_ready)
        return super()._foot()

    def _keys(self) -> str:
        return f"↑ ↓ move · Space switches · v shows all of it · Enter confirms ({len(self._on)} on) · Esc leaves"

    def _press_other(self, key: str) -> None:
        item = self._current
        if key == "enter":
            self.is_confirming = bool(self._on)
            if not self._on:
                self._close()
        elif key == " " and item is not None and item.needs_view and item.key not in self._viewed:
            self._open_view()
        elif key == " " and item is not None:
            self._on ^= {item.key}
        elif key == "v":
            self._open_view()
