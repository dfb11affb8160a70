"""The user's statements: what they said that still holds, and where the next request shows it.

A statement is a sentence of a user's message: a rule, a correction or a fact (`core.compaction.standing`). It is
shown in its message, in a record, or nowhere: then no model knows of it, and the report warns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal

import msgspec

from foveal.core.compaction.kept_messages import sentences_of
from foveal.core.compaction.ledger.allocation import USER_PREFIX
from foveal.core.compaction.ledger.pasted_text import is_harness_text
from foveal.core.compaction.standing.statements import (
    Sentence,
    Statement,
    StatementKind,
    find_replaced,
)
from foveal.core.log.events import Event, UserSaid, handle, text_of
from foveal.core.view.view import View
from foveal.core.wire.safe_print import one_line

ShownWhere = Literal["verbatim", "record", "nowhere"]
_PLACES: Final = {"verbatim": "in their messages", "record": "in a record", "nowhere": "shown nowhere"}
MAX_STATEMENT_WIDTH: Final = 80
"""Characters of a statement in a list."""
MAX_NAMED_STATEMENTS: Final = 12
"""Statements that a warning names by their handles."""


class UserStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence in which the user states a rule, a correction or a fact.

    Examples:
        ```python
        import foveal

        ctx = foveal.Context("gpt-4.1")
        ctx.fit([{"role": "user", "content": "Never push to main. Why is CI red?"}])
        (statement,) = ctx.statements()
        assert (statement.kind, statement.shown) == ("rule", "verbatim")
        ```
    """

    handle: str
    """The message in which the user said it."""
    text: str
    """The sentence."""
    kind: StatementKind
    """`rule`, `correction` or `fact`."""
    replaced_by: str
    """The handle of the later message that replaces it; "" while it holds."""
    shown: ShownWhere
    """Where the next request shows it: in its message (`verbatim`), in a record of what is hidden (`record`), or
    `nowhere`."""


def said_statements(
    events: Iterable[Event], find: Callable[[int, str], Iterable[Sentence]]
) -> list[Statement]:
    """Return the statements in the messages of the user; `find` returns the sentences of a message that hold."""
    said: list[Statement] = []
    for event in events:
        if isinstance(event.fact, UserSaid):
            text = text_of(event.fact.content)
            sentences = find(event.seq, text)
            if sentences and not is_harness_text(text):
                said += [
                    Statement(event.seq, one.start, text[one.start : one.end], one.kind) for one in sentences
                ]
    return said


def list_statements(events: Iterable[Event], view: View) -> tuple[UserStatement, ...]:
    """Return the statements in these effective events, oldest first."""
    said = said_statements(events, partial(sentences_of, view))
    replaced = find_replaced(said)
    record = _plain("\n".join(text_of(step.utterance.fact.content) for step in view.summaries))
    return tuple(
        UserStatement(
            handle=handle(one.seq),
            text=one.text.strip(),
            kind=one.kind,
            replaced_by=_handle_of(view.superseded.get(one.seq), replaced.get((one.seq, one.start))),
            shown=_shown(one, view, record),
        )
        for one in said
    )


def _handle_of(by_hand: int | None, found: tuple[int, int] | None) -> str:
    """Return the handle of the message that replaces a statement: what the user has set counts first."""
    if by_hand is not None:
        return handle(by_hand)
    return "" if found is None else handle(found[0])


def _shown(statement: Statement, view: View, record: str) -> ShownWhere:
    found = view.find(statement.seq)
    if found is not None and statement.text in text_of(found[1].as_shown().content):
        return "verbatim"
    return "record" if _plain(statement.text) in record else "nowhere"


def _plain(text: str) -> str:
    """Return a text without line breaks and the marks of quoted lines."""
    lines = (line.removeprefix(USER_PREFIX) for line in text.split("\n"))
    return " ".join(" ".join(lines).split())


def unseen(statements: Sequence[UserStatement]) -> list[UserStatement]:
    """Return those that hold and are shown nowhere."""
    return [one for one in statements if one.shown == "nowhere" and not one.replaced_by]


def unseen_warning(statements: Sequence[UserStatement]) -> str:
    """Return the warning about statements that are shown nowhere; "" if there are none."""
    lost = unseen(statements)
    if not lost:
        return ""
    handles = list(dict.fromkeys(one.handle for one in lost))
    more = f" and {len(handles) - MAX_NAMED_STATEMENTS} more" if len(handles) > MAX_NAMED_STATEMENTS else ""
    named = ", ".join(handles[-MAX_NAMED_STATEMENTS:])
    count = f"{len(lost)} statement{'s' * (len(lost) != 1)} of the user"
    verb = "are" if len(lost) != 1 else "is"
    return (
        f"{count} ({named}{more}) {verb} shown nowhere: the user's share of the room is used up "
        '(`retain_user_share`); `pin(event="eN")` keeps one in every request, `supersede("eN", by="eM")` says that '
        "it no longer holds"
    )


def statement_lines(statements: Sequence[UserStatement], *, most: int) -> list[str]:
    """Return what a person reads about the statements: how many there are, and the newest of those that hold, those
    that are shown nowhere first."""
    if not statements:
        return []
    holding = [one for one in statements if not one.replaced_by]
    counted = {place: sum(one.shown == where for one in holding) for where, place in _PLACES.items()}
    places = ", ".join(f"{count} {place}" for place, count in counted.items() if count)
    replaced = len(statements) - len(holding)
    verb = "holds" if len(holding) == 1 else "hold"
    lines = [
        f"the user's statements: {len(holding)} {verb}{f' ({places})' if places else ''}"
        f"{f'; {replaced} replaced' if replaced else ''}"
    ]
    lost = unseen(statements)[-most:]
    shown = [one for one in holding if one.shown != "nowhere"]
    listed = [*lost, *shown[max(0, len(shown) + len(lost) - most) :]]
    for one in listed:
        text = one_line(one.text, width=MAX_STATEMENT_WIDTH)
        lines.append(f"  {one.handle:<6} {one.kind:<10} {one.shown:<9} {text}")
    if len(holding) > len(listed):
        lines.append(f"  and {len(holding) - len(listed)} more: `statements()` lists all")
    return lines
