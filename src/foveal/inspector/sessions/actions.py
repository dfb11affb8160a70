"""Actions of the inspector: the operations of `OPERATIONS` on a `Session`.

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
from foveal.core.engine.operations import OPERATIONS
from foveal.core.engine.settings import SettingArguments, recorded_reserve, recorded_window
from foveal.core.log.events import Opened
from foveal.core.policies import Policy
from foveal.core.policies.presets import PRESETS, PresetName
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
from foveal.sessions.perform import Performed, perform
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
        async with opened_store(source) as store:
            opened = await last_opened(store, session)
            if opened is None or not opened.model:
                raise NotWritable(
                    f"session {session!r} does not say which model answers it: continue it in a chat first"
                )
            recorded = SettingArguments(
                policy=recorded_policy(opened),
                window=recorded_window(opened),
                reserve=recorded_reserve(opened),
            )
            settings = recorded | self._settings
            live = await Session.open(
                store, session, model=opened.model, summarise=self._summarise, **settings
            )
            try:
                return await action_result(live, action, await perform(live, action))
            finally:
                await live.close()


def recorded_policy(opened: Opened) -> Policy:
    """Return the policy that the session was opened with; one of the application's own is replaced by the default
    one under the same name, so that no change of policy is recorded."""
    return PRESETS.get(cast(PresetName, opened.policy)) or replace(PRESETS["economy"], name=opened.policy)


@asynccontextmanager
async def opened_store(source: ArchiveSource) -> AsyncIterator[Store]:
    """Open the store of a source for writing; raises `NotWritable`."""
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


async def action_result(session: Session, action: SessionAction, done: Performed) -> ActionResult:
    """Return what an action did."""
    about = event_sentence((await session.event(done.named)).fact)
    sentences = OPERATIONS[action.operation].sentences(action, **done._asdict(), about=about)
    text = f"{sentences.page}. {done.warning}" if done.warning else sentences.page
    return ActionResult(event=done.recorded, text=text)
