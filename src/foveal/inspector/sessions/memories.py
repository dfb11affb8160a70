"""The memories in the inspector's places: what they hold, and the changes that their owner makes.

Reading opens nothing for writing. A change opens the store for that change only, as actions on sessions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from foveal.config.memory_file import PROJECT_OWNER_PREFIX
from foveal.core.log.events import MEMORY_LOG_PREFIX
from foveal.errors import FovealError
from foveal.inspector.sessions.source import (
    MemoryChange,
    MemoryList,
    NotWritable,
    OwnedMemory,
    SessionMissing,
)
from foveal.memory import Memory
from foveal.memory.files import FILES_LOG_SUFFIX
from foveal.memory.fold import fold_memory
from foveal.recall.archive import ArchiveSource, PostgresSource, SqliteSource, StoreSource
from foveal.recall.archive.source import session_handle


async def list_memories(
    sources: Iterable[ArchiveSource], refusal: Callable[[ArchiveSource], str]
) -> MemoryList:
    """Return the memories that have entries, the last changed first in each place."""
    found, problems = list[OwnedMemory](), list[str]()
    for source in sources:
        if isinstance(source, SqliteSource | StoreSource | PostgresSource):
            try:
                found += await _memories_of(source, refusal(source))
            except (FovealError, OSError) as problem:
                problems.append(str(problem))
    return MemoryList(tuple(found), tuple(problems))


async def _memories_of(
    source: SqliteSource | StoreSource | PostgresSource, refusal: str
) -> list[OwnedMemory]:
    stored = await source.opened() if isinstance(source, PostgresSource) else source
    found: list[OwnedMemory] = []
    for info in await stored.memories():
        owner = info.id.removeprefix(MEMORY_LOG_PREFIX)
        if owner.endswith(FILES_LOG_SUFFIX):
            continue
        state = fold_memory(await stored.pick(info.id, range(info.events)), letter_of(owner))
        if state.entries:
            key = session_handle(stored.name, info.id)
            found.append(OwnedMemory(key, owner, stored.name, tuple(state.entries.values()), refusal))
    return found


async def change_memory(
    sources: Iterable[ArchiveSource], change: MemoryChange, refusal: Callable[[ArchiveSource], str]
) -> None:
    """Carry out a change of a memory; raises `SessionMissing`, `NotWritable` or `NotRemembered`."""
    from foveal.inspector.sessions.actions import opened_store  # loads the engine

    for source in sources:
        listed = await list_memories([source], refusal)
        for found in listed.memories:
            if found.key == change.memory:
                if found.refusal:
                    raise NotWritable(found.refusal)
                async with opened_store(source) as store:
                    memory = Memory(found.owner, store=store, letter=letter_of(found.owner))
                    await _carry_out(memory, change)
                return
    raise SessionMissing("there is no such memory here, or it was erased")


async def _carry_out(memory: Memory, change: MemoryChange) -> None:
    match change.action:
        case "forget":
            await memory.forget(change.id)
        case "undo":
            await memory.undo(change.id or None)
        case "accept":
            await memory.accept(change.id)
        case "reject":
            await memory.reject(change.id)


def letter_of(owner: str) -> str:
    """Return the letter with which the ids of an owner's entries begin."""
    return "p" if owner.startswith(PROJECT_OWNER_PREFIX) else "m"
