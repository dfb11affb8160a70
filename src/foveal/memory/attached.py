"""Memories that are attached to a conversation: what its requests show, and what is heard in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from foveal.core.log.events import Event, Noted, UserSaid
from foveal.errors import BadSetting, StoreError
from foveal.memory.memory import Memory

MEMORY_NOTE_TOPIC: Final = "memory"
"""The topic of the notes in a session's log that say what was remembered and forgotten."""


def checked_memories(given: object) -> tuple[Memory, ...]:
    """Return the memories of an argument `memory`; raises `BadSetting` for anything else."""
    if given is None:
        return ()
    memories = (given,) if isinstance(given, Memory) else given
    if not isinstance(memories, list | tuple) or not all(isinstance(one, Memory) for one in memories):
        raise BadSetting("memory", given, "a `foveal.Memory`, a list of them, or None")
    if len({one.letter for one in memories}) < len(memories):
        raise BadSetting("memory", given, "memories with different letters, so that each id names one entry")
    return tuple(memories)


async def current_text(memories: Iterable[Memory]) -> str:
    """Return the text that requests show of these memories now; "" if they have no entries."""
    texts = []
    for memory in memories:
        await memory.refresh()
        texts.append(memory.text)
    return "\n\n".join(filter(None, texts))


async def heard_notes(memories: Sequence[Memory], events: Iterable[Event], *, session: str) -> list[Noted]:
    """Obey what the user says about remembering, with the first memory that hears, and return notes about it."""
    hearing = next((memory for memory in memories if memory.hears), None)
    said = [event for event in events if isinstance(event.fact, UserSaid)]
    return await obeyed_notes(hearing, said, session=session) if hearing is not None and said else []


async def obeyed_notes(memory: Memory, said: Iterable[Event], *, session: str) -> list[Noted]:
    """Obey what the user says about remembering in these messages, and return notes about it.

    What the user said is stored already, so a store that cannot write is a note, and no error."""
    try:
        notes = [note.text for note in await memory.hear(said, session=session)]
    except StoreError as problem:
        notes = [f"This could not be remembered: {problem}"]
    return [Noted(text=note, topic=MEMORY_NOTE_TOPIC) for note in notes]
