"""The tool `todo`: a list of steps that the model keeps, read back from the log.

1. Each call replaces the whole list, so the newest call says all; an empty list removes it.
2. The list is not stored anywhere else: a rewind takes it back, and every record of a cut quotes it
   (`core.compaction.ledger.ledger`).
3. A list is short, so that it fits into each record and above the input line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal

import msgspec

from foveal.agent.tool import Arguments, InvalidArguments, Tool, ToolOutput, parse_arguments
from foveal.core.log.events import Call, Event, ModelSaid, ToolReturned, calls_of
from foveal.core.wire.safe_print import one_line
from foveal.sessions.session import Session

TODO_TOOL: Final = "todo"
MAX_TODO_ITEMS: Final = 20
MAX_TODO_CHARS: Final = 110
"""Characters of one item."""
MAX_EVENTS_BACK: Final = 5_000
"""Newest events of a session among which the list is looked for."""
_EVENTS_AT_ONCE: Final = 500
_DESCRIPTION: Final = (
    "Keep the list of steps of a longer task, which the user sees. Send the whole list each time: when you plan, "
    "when a step begins (one is active) and when it is done. An empty list removes it. Not for one or two steps."
)

TodoState = Literal["pending", "active", "done"]


class TodoItem(msgspec.Struct, frozen=True):
    """One step of the list."""

    text: str
    state: TodoState = "pending"


TodoList = tuple[TodoItem, ...]


def todo_tool() -> Tool:
    """Return the tool. It only answers: the call in the log is the list."""
    item = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "maxLength": MAX_TODO_CHARS},
            "state": {"type": "string", "enum": ["pending", "active", "done"]},
        },
        "required": ["text", "state"],
        "additionalProperties": False,
    }
    return Tool(
        name=TODO_TOOL,
        description=_DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {"items": {"type": "array", "items": item}},
            "required": ["items"],
            "additionalProperties": False,
        },
        run=_keep,
        describe=_describe,
    )


async def _keep(given: Arguments) -> ToolOutput:
    count = len(given["items"])
    if count > MAX_TODO_ITEMS:
        raise InvalidArguments(
            f"The list was not changed: it may have {MAX_TODO_ITEMS} items, not {count:,}. Join the small ones."
        )
    return ToolOutput(content=f"Kept: {todo_count(read_items(given))}." if count else "The list is removed.")


def _describe(given: Arguments) -> str:
    items = read_items(given)
    active = next((f": {one_line(item.text)}" for item in items if item.state == "active"), "")
    return f"{TODO_TOOL} {todo_count(items)}{active}" if items else f"{TODO_TOOL}: remove the list"


def todo_count(items: Sequence[TodoItem]) -> str:
    """Return how far a list is, such as `2 of 5 done`."""
    return f"{sum(item.state == 'done' for item in items)} of {len(items)} done"


def read_items(given: Any) -> TodoList:
    """Return the list in the arguments of a call; an empty one if they are none."""
    try:
        return tuple(msgspec.convert(given["items"], list[TodoItem]))
    except (msgspec.ValidationError, KeyError, TypeError):
        return ()


def items_of(call: Call) -> TodoList:
    """Return the list of a call that has succeeded."""
    try:
        return read_items(parse_arguments(call.arguments))
    except InvalidArguments:
        return ()


async def current_todo(session: Session) -> TodoList:
    """Return the list as the newest successful call of the conversation left it."""
    succeeded: set[str] = set()
    async for event in newest_events(session):
        if isinstance(event.fact, ToolReturned) and event.fact.name == TODO_TOOL and not event.fact.error:
            succeeded.add(event.fact.call_id)
        elif isinstance(event.fact, ModelSaid):
            called = [call for _, call in calls_of(event.fact.content) if call.name == TODO_TOOL]
            kept = [call for call in called if call.id in succeeded]
            if kept:
                return items_of(kept[-1])
    return ()


async def newest_events(session: Session, *, with_rewound: bool = False) -> AsyncIterator[Event]:
    """Yield the newest events of the conversation, the last one first, up to `MAX_EVENTS_BACK` of the log; with
    `with_rewound`, also those that a rewind has taken back."""
    await (
        session.usage()
    )  # waits for a running append: until it is confirmed, the end of the log is not known
    first = session.last + 1
    gone = await session.left_behind() if first and not with_rewound else frozenset()
    oldest = max(0, first - MAX_EVENTS_BACK)
    while first > oldest:
        first, last = max(oldest, first - _EVENTS_AT_ONCE), first - 1
        for event in reversed(await session.events(first=first, last=last)):
            if event.seq not in gone:
                yield event
