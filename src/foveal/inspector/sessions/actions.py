"""Actions of the inspector: undo, expand, pin, supersede, drop and compact, through the operations of a `Session`.

1. An action records the same event as the same operation from a chat, the API or your own code.
2. A store is opened for the action only, so that no reader holds a file that another process writes.
3. The session is opened as it was last opened: an action changes neither its model nor its policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, Unpack, cast

from msgspec.structs import replace

from foveal.core.compaction.summariser import Summarise
from foveal.core.engine.settings import SettingArguments, recorded_window
from foveal.core.log.events import Event, Opened, handle
from foveal.core.policies import Policy
from foveal.core.policies.presets import PRESETS, PresetName
from foveal.errors import UnknownHandle
from foveal.inspector.sessions.source import (
    ActionResult,
    NotWritable,
    OfferedWriter,
    SessionAction,
    store_refusal,
)
from foveal.inspector.timeline.event_sentences import event_sentence
from foveal.ports import Store
from foveal.recall.archive import ArchiveSource, PostgresSource, SqliteSource, StoreSource
from foveal.sessions.log_reader import last_opened
from foveal.sessions.session import Session
from foveal.stores import open_store


class SessionActor(Protocol):
    """Carries out the actions on the sessions of all sources."""

    def refusal(self, source: ArchiveSource) -> str:
        """Return why the sessions of a source cannot be changed; "" if they can."""
        ...

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        """Carry out an action on the session with this id."""
        ...

    async def writers(self) -> tuple[OfferedWriter, ...]:
        """Return what can write the summary of `compact`; empty if there is no choice."""
        ...


class StoreActor:
    """Acts on the sessions of stores."""

    def __init__(
        self,
        *,
        summarise: Summarise | Sequence[Summarise] | None = None,
        **settings: Unpack[SettingArguments],
    ) -> None:
        """`summarise` writes the summaries of `compact`; without it, the ledger does. `settings` are those of the
        sessions that their logs do not record, such as `window`."""
        self._summarise = summarise
        self._settings = settings

    def refusal(self, source: ArchiveSource) -> str:
        return store_refusal(source)

    async def writers(self) -> tuple[OfferedWriter, ...]:
        return ()

    async def act(self, source: ArchiveSource, session: str, action: SessionAction) -> ActionResult:
        async with _opened_store(source) as store:
            opened = await last_opened(store, session)
            if opened is None or not opened.model:
                raise NotWritable(
                    f"session {session!r} does not say which model answers it: continue it in a chat first"
                )
            recorded = SettingArguments(policy=recorded_policy(opened), window=recorded_window(opened))
            settings = recorded | self._settings
            live = await Session.open(
                store, session, model=opened.model, summarise=self._summarise, **settings
            )
            try:
                return await perform(live, action)
            finally:
                await live.close()


def recorded_policy(opened: Opened) -> Policy:
    """Return the policy that the session was opened with; one of the application's own is replaced by the default
    one under the same name, so that no change of policy is recorded."""
    return PRESETS.get(cast(PresetName, opened.policy)) or replace(PRESETS["economy"], name=opened.policy)


@asynccontextmanager
async def _opened_store(source: ArchiveSource) -> AsyncIterator[Store]:
    refusal = store_refusal(source)
    if refusal:
        raise NotWritable(refusal)
    match source:
        case SqliteSource():
            async with open_store(source.name) as store:
                yield store
        case PostgresSource():
            yield (await source.opened()).store
        case StoreSource():
            yield source.store


async def perform(session: Session, action: SessionAction) -> ActionResult:
    """Carry out an action on an open session; raises `FovealError` if it cannot be done."""
    name = action.event.strip()
    match action.action:
        case "undo":
            return undo_result(session, await session.event(await session.undo(name or None)))
        case "expand":
            recorded = await session.expand(_named(action))
            text = f"{name} is shown in full until the next user message"
        case "pin":
            recorded = await (session.pin(event=name) if name else session.pin(action.text))
            text = f"{name} stays in every request" if name else "the rule is in every request"
        case "supersede":
            recorded = await session.supersede(_named(action), by=action.by.strip())
            text = f"{name} is replaced by {action.by.strip()}; undo {recorded} takes that back"
        case "drop":
            recorded = await session.drop(_named(action))
            text = f"{name} is not shown any more; undo {recorded} brings it back"
        case "compact":
            recorded = await session.compact(action.focus)
            text = event_sentence((await session.event(recorded)).fact)
    return ActionResult(event=recorded, text=text)


def undo_result(session: Session, undone: Event) -> ActionResult:
    """Return the result of an undo, which is the newest event of the session."""
    text = f"{undone.handle} is taken back: {event_sentence(undone.fact)}"
    return ActionResult(event=handle(session.last), text=text)


def _named(action: SessionAction) -> str:
    name = action.event.strip()
    if not name:
        raise UnknownHandle(f"{action.action} needs the handle of an event, such as e12")
    return name
