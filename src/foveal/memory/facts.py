"""Facts of a memory's log: what was remembered, changed and taken back.

1. A memory is a log of its own in a store, with these facts as its events. The store keeps them as facts of kinds
   that only a memory reads.
2. The number of an entry is the seq of the fact that brought it, so that two processes never give it twice.
3. Facts never change. What is forgotten or undone is a later fact.
4. Several processes append to the log (`append_decided`): one that was not first reads, and decides again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias, cast

import msgspec
from msgspec import Raw

from foveal.core.log.events import Erased, Event, Unknown
from foveal.errors import Conflict
from foveal.ports import Store

EntryKind: TypeAlias = Literal["preference", "fact", "rule", "procedure"]
"""What an entry says."""
EntrySource: TypeAlias = Literal["told", "file", "spoken", "quoted", "proposed", "imported"]
"""How an entry came: `told` by the owner to the memory itself, written into the `file`, `spoken` in a conversation,
`quoted` by the model, `proposed` from what the user said, or `imported`."""

CONFIDENCE: Final[Mapping[EntrySource, float]] = {
    "told": 1.0,
    "file": 1.0,
    "spoken": 0.9,
    "quoted": 0.8,
    "imported": 0.7,
    "proposed": 0.6,
}
"""How sure it is that the owner wants an entry to be kept, by its source."""


class EntryOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where an entry comes from.

    Examples:
        ```python
        from foveal.memory import EntryOrigin

        origin = EntryOrigin(source="spoken", session="monday", event="e12", quote="Remember that I use tabs.")
        assert origin.confidence == 0.9
        ```
    """

    source: EntrySource = "told"
    """How it came."""
    by: str = ""
    """Who said it, where several people speak; "" for the owner."""
    session: str = ""
    """The id of the session in which it was said; "" if it was said in none."""
    event: str = ""
    """The handle of the user's message."""
    quote: str = ""
    """The user's words."""

    @property
    def confidence(self) -> float:
        """How sure it is that the owner wants it to be kept, from 0 to 1."""
        return CONFIDENCE[self.source]


TOLD: Final = EntryOrigin()
"""The origin of what the owner tells the memory itself."""


class MemoryFact(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    gc=False,
):
    """Base class of the facts of a memory."""


class Remembered(MemoryFact, frozen=True, tag="remembered"):
    """The owner wants this to be kept."""

    text: str
    entry: EntryKind = "fact"
    origin: EntryOrigin = TOLD


class Proposed(MemoryFact, frozen=True, tag="proposed"):
    """This may be worth keeping; no request shows it before the owner says yes."""

    text: str
    entry: EntryKind = "fact"
    origin: EntryOrigin = TOLD


class Accepted(MemoryFact, frozen=True, tag="accepted"):
    """The owner said yes to a proposal."""

    target: int


class Rejected(MemoryFact, frozen=True, tag="rejected"):
    """The owner said no to a proposal."""

    target: int


class Forgotten(MemoryFact, frozen=True, tag="forgotten"):
    """An entry does not count any more."""

    target: int
    origin: EntryOrigin = TOLD


class Replaced(MemoryFact, frozen=True, tag="replaced"):
    """A later entry about the same subject counts instead of this one."""

    target: int
    by: int


class Edited(MemoryFact, frozen=True, tag="edited"):
    """The owner changed the text of an entry."""

    target: int
    text: str
    origin: EntryOrigin = TOLD


class Recalled(MemoryFact, frozen=True, tag="recalled"):
    """Entries were used: a search found them, or an answer quotes them."""

    targets: tuple[int, ...]


class FileTaken(MemoryFact, frozen=True, tag="file_taken"):
    """The owner edited the file of the memory: the facts before this, so many, are one change."""

    facts: int


class Undone(MemoryFact, frozen=True, tag="undone"):
    """An earlier fact is taken back."""

    target: int


class Cleared(MemoryFact, frozen=True, tag="cleared"):
    """Everything before this was erased."""


AnyMemoryFact: TypeAlias = (
    Remembered
    | Proposed
    | Accepted
    | Rejected
    | Forgotten
    | Replaced
    | Edited
    | Recalled
    | FileTaken
    | Undone
    | Cleared
)
_decoder: Final = msgspec.json.Decoder(AnyMemoryFact)


def to_event(seq: int, fact: MemoryFact, at: float) -> Event:
    """Return a fact as the event that a store keeps."""
    name = cast(str, type(fact).__struct_config__.tag)
    return Event(seq, Unknown(kind=name, raw=Raw(msgspec.json.encode(fact))), at)


def read_fact(event: Event) -> AnyMemoryFact | None:
    """Return the fact of a stored event; None for a kind of a later version."""
    if isinstance(event.fact, Erased):
        return Cleared()  # erasing takes all that came before with it
    if not isinstance(event.fact, Unknown):
        return None
    try:
        found: AnyMemoryFact = _decoder.decode(event.fact.raw)
    except msgspec.DecodeError:
        return None
    return found


MAX_APPEND_CONFLICTS: Final = 200
"""Conflicts in a row with other writers that are resolved by reading again."""


async def append_decided(
    store: Store, log: str, decide: Callable[[], list[Event]], refresh: Callable[[], Awaitable[None]]
) -> list[Event]:
    """Append the events that `decide` returns for the newest state, and return them.

    If another writer was first, `refresh` reads what it wrote, and `decide` decides again. Raises `Conflict` if
    that does not end."""
    await refresh()
    for attempt in range(MAX_APPEND_CONFLICTS):
        events = decide()
        if not events:
            return []
        try:
            await store.append(log, events)
        except Conflict:
            if attempt == MAX_APPEND_CONFLICTS - 1:
                raise
            await asyncio.sleep(random.uniform(0, min(0.05, 0.001 * 2**attempt)))
            await refresh()
            continue
        return events
    raise AssertionError("the last attempt returns or raises")
