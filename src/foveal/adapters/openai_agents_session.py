"""A session of the OpenAI Agents SDK that keeps its items in a Foveal store.

    async with foveal.open_store("chats.db") as store:
        session = FovealSession("user-42", store)
        await Runner.run(agent, "…", session=session)

1. Items come back as they were added, also after a restart and in another process.
2. They are recorded as messages, so the session can be listed, searched and inspected like any other.
3. Items that the log cannot write again exactly (an unknown kind, reasoning without an answer) are recorded as they
   are beside their messages.
4. `pop_item` and `clear_session` record a rewind: the log keeps what they take back.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Raw

from foveal.core.engine.stored_messages import MESSAGE_FACTS
from foveal.core.log.events import AnyFact, Event, Opened, Rewound, SnapshotTaken, unraw
from foveal.core.view.fold import effective_events
from foveal.core.wire import MessageChunk, wire_for
from foveal.errors import Conflict, MalformedMessage, UnknownSession
from foveal.ports import Store
from foveal.sessions.event_writer import MAX_CONFLICTS

Item = Any
"""An input item of the SDK, in the form of OpenAI Responses."""
EXACT_ITEMS: Final = "openai-agents: exact items"
"""Label of the snapshot that holds items as they were added, in place of the messages before it."""
_WIRE: Final = wire_for("openai_responses")


class _Unit(NamedTuple):
    """Items that are taken back together."""

    before: int
    """The seq before their first event."""
    texts: tuple[str, ...]
    """Each item as JSON."""


class FovealSession:
    """Keeps the items of one conversation of the OpenAI Agents SDK in a store.

    Args:
        session_id: The id of the session in the store.
        store: The store.
        model: The name of the model, recorded in a new session for the programs that show it.
        clock: Returns the time in seconds since 1970.

    Examples:
        ```python
        import foveal
        from foveal.adapters.openai_agents import FovealSession

        async with foveal.open_store("chats.db") as store:
            session = FovealSession("user-42", store, model="gpt-4.1")
            await session.add_items([{"role": "user", "content": "Why is CI red?"}])
            assert len(await session.get_items()) == 1
        ```
    """

    def __init__(
        self, session_id: str, store: Store, *, model: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.session_id = session_id
        """The id of the session in the store."""
        self.session_settings: Any = None
        """The settings of the SDK; their `limit` applies to `get_items`."""
        self._store = store
        self._model = model
        self._clock = clock
        self._log: list[Event] = []
        self._lock = asyncio.Lock()

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the newest items, oldest first.

        Args:
            limit: Most items to return. None takes the limit of `session_settings`, or all.
        """
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        async with self._lock:
            await self._catch_up()
        texts = [text for unit in _units(self._log) for text in unit.texts]
        chosen = texts if limit is None else texts[len(texts) - max(0, min(limit, len(texts))) :]
        return [json.loads(text) for text in chosen]

    async def add_items(self, items: list[Item]) -> None:
        """Append items.

        Args:
            items: The items.

        Raises:
            Conflict: Other processes append to the same session all the time.
        """
        facts = list(_facts(items))
        if facts:
            await self._append(lambda: facts)

    async def pop_item(self) -> Item | None:
        """Take back the newest item and return it; None if there is none."""
        popped: list[str] = []

        def facts() -> list[AnyFact]:
            popped.clear()
            units = _units(self._log)
            if not units:
                return []
            *rest, last = units[-1].texts
            popped.append(last)
            return [Rewound(to=units[-1].before), *_facts([json.loads(text) for text in rest])]

        await self._append(facts)
        return json.loads(popped[0]) if popped else None

    async def clear_session(self) -> None:
        """Take back all items."""

        def facts() -> list[AnyFact]:
            units = _units(self._log)
            return [Rewound(to=units[0].before)] if units else []

        await self._append(facts)

    async def _append(self, decide: Callable[[], list[AnyFact]]) -> None:
        """Append the facts that `decide` returns for the log as it is; it is called again after a conflict."""
        async with self._lock:
            for attempt in range(MAX_CONFLICTS):
                await self._catch_up()
                if not (facts := decide()):
                    return
                if not self._log:
                    facts = [Opened(model=self._model), *facts]
                first, now = len(self._log), self._clock()
                events = [Event(first + place, fact, now) for place, fact in enumerate(facts)]
                try:
                    await self._store.append(self.session_id, events)
                except Conflict:
                    if attempt == MAX_CONFLICTS - 1:
                        raise
                else:
                    self._log += events
                    return

    async def _catch_up(self) -> None:
        """Read what other processes have appended."""
        try:
            new, erased = await self._store.read_new(self.session_id, first=len(self._log))
        except UnknownSession:
            return
        if erased:
            self._log = await self._store.read(self.session_id)
        else:
            self._log += new


def _facts(items: Sequence[Item]) -> Iterator[AnyFact]:
    """Yield the facts that record items."""
    try:
        chunks = list(_WIRE.read(items))
    except MalformedMessage:
        chunks = [MessageChunk(len(items), ())]
    start = 0
    for chunk in chunks:
        given = [_text(item) for item in items[start : start + chunk.messages]]
        start += chunk.messages
        yield from chunk.facts
        if given != [_text(item) for fact in chunk.facts for item in _WIRE.write(fact)]:
            data = json.dumps({"facts": len(chunk.facts), "items": [json.loads(text) for text in given]})
            yield SnapshotTaken(data=Raw(data.encode()), label=EXACT_ITEMS)


def _units(log: Sequence[Event]) -> list[_Unit]:
    """Return the items in a log."""
    units: list[_Unit] = []
    for event in effective_events(log):
        fact = event.fact
        if isinstance(fact, MESSAGE_FACTS):
            units.append(_Unit(event.seq - 1, tuple(map(_text, _WIRE.write(fact)))))
        elif isinstance(fact, SnapshotTaken) and fact.label == EXACT_ITEMS:
            exact = unraw(fact.data)
            replaced = units[len(units) - exact["facts"] :]
            del units[len(units) - exact["facts"] :]
            before = replaced[0].before if replaced else event.seq - 1
            units.append(_Unit(before, tuple(map(_text, exact["items"]))))
    return [unit for unit in units if unit.texts]


def _text(item: Item) -> str:
    return json.dumps(item, sort_keys=True)
