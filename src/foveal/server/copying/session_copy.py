"""Copy of one tenant's sessions from a store to another, compared event by event.

1. A session that the target lacks, or has in part, is appended to. Events that are there are compared first.
2. A session that was erased in the source since an earlier run is erased in the target too, if it has the same
   events apart from their text.
3. Title and times become those of the source.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import msgspec

from foveal.core.log.codec import encode
from foveal.core.log.events import Erased, Event, kind
from foveal.core.wire.safe_print import counted
from foveal.errors import Conflict, StoreError, StoreUnusable, UnknownSession
from foveal.ports import Checkpoint, SessionInfo
from foveal.server.copying.progress import CopyProgress, PageSize, fitting_items

SESSIONS_PER_PAGE: Final = 200


class CopiedStore(Protocol):
    """The part of a store that a copy reads."""

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]: ...

    async def stored_bytes(self, session: str, *, first: int, last: int) -> list[int]:
        """Return the bytes that each event of a range takes in the store."""
        ...

    async def checkpoint(self, session: str) -> Checkpoint | None: ...

    async def sessions(
        self,
        *,
        limit: int | None = None,
        before: tuple[float, str] | None = None,
        with_erased: bool = True,
        memories: bool = False,
    ) -> list[SessionInfo]: ...

    async def close(self) -> None: ...


class SessionTarget(Protocol):
    """The part of a store that a copy writes, and reads back."""

    async def read(self, session: str, *, first: int = 0, last: int | None = None) -> list[Event]: ...

    async def checkpoint(self, session: str) -> Checkpoint | None: ...

    async def append(self, session: str, events: Sequence[Event]) -> None: ...

    async def info(self, session: str) -> SessionInfo: ...

    async def restore_info(self, info: SessionInfo) -> None:
        """Set the title, the times and the erasure of a session."""
        ...

    async def keep_checkpoint(self, session: str, checkpoint: Checkpoint) -> None: ...

    async def erase(self, session: str) -> None: ...

    async def close(self) -> None: ...


async def copy_sessions(
    source: CopiedStore, target: SessionTarget, target_name: str, progress: CopyProgress
) -> None:
    """Copy and compare all sessions and memories of a tenant; raises `StoreError` at the first difference."""
    size = PageSize()
    for memories in (False, True):
        before: tuple[float, str] | None = None
        while page := await source.sessions(limit=SESSIONS_PER_PAGE, before=before, memories=memories):
            for info in page:
                await _SessionCopy(source, target, target_name, info, size, progress).run()
                progress.sessions += not memories
            before = page[-1].active, page[-1].id


class _SessionCopy:
    def __init__(
        self,
        source: CopiedStore,
        target: SessionTarget,
        target_name: str,
        info: SessionInfo,
        size: PageSize,
        progress: CopyProgress,
    ) -> None:
        self._source = source
        self._target = target
        self._target_name = target_name
        self._info = info
        self._size = size
        self._progress = progress

    async def run(self) -> None:
        existing = await self._existing()
        present = existing.events if existing else 0
        if present > self._info.events:
            raise self._difference(f"it has {counted(present, 'event')}, the source {self._info.events:,}")
        if existing and self._info.erased and not existing.erased:
            await self._erase(present)
        async for events in self._source_pages(self._info.events):
            await self._copy_page(events, present)
        await self._copy_info()
        await self._copy_checkpoint()

    async def _copy_page(self, events: Sequence[Event], present: int) -> None:
        id, first, last = self._info.id, events[0].seq, events[-1].seq
        new = [event for event in events if event.seq >= present]
        if first < present:  # compared before anything is appended to a session with other content
            there = await self._target.read(id, first=first, last=min(last, present - 1))
            self._compare(events[: len(events) - len(new)], there)
        if new:
            try:
                await self._target.append(id, new)
            except Conflict as problem:
                raise StoreError(
                    f"{self._place} is written by another process ({problem}): end it and run the copy again"
                ) from problem
            self._compare(new, await self._target.read(id, first=new[0].seq, last=last))
        self._progress.count_events(len(events), len(new))

    async def _erase(self, present: int) -> None:
        """Erase the target's session if it has the source's events, of which the source has erased the text."""
        async for events in self._source_pages(present):
            there = await self._target.read(self._info.id, first=events[0].seq, last=events[-1].seq)
            self._compare(events, [Event(event.seq, _erased(event), event.at) for event in there])
        await self._target.erase(self._info.id)

    async def _source_pages(self, end: int) -> AsyncIterator[list[Event]]:
        start = 0
        while start < end:
            last = min(start + self._size.items, end) - 1
            sizes = await self._source.stored_bytes(self._info.id, first=start, last=last)
            last = min(last, start + fitting_items(sizes) - 1)
            events = await self._source.read(self._info.id, first=start, last=last)
            if [event.seq for event in events] != list(range(start, last + 1)):
                raise StoreUnusable(
                    f"session {self._info.id!r} of the source has {counted(self._info.events, 'event')}, but not"
                    f" all of {start} to {last} can be read: it is damaged; restore a backup"
                )
            yield events
            self._size.adapt(len(events), sum(len(encode(event)) for event in events))
            start = last + 1

    def _compare(self, expected: Sequence[Event], found: Sequence[Event]) -> None:
        if len(expected) != len(found):
            raise self._difference(
                f"{len(found):,} of {counted(len(expected), 'event')} were read from event {expected[0].seq} on"
            )
        for one, other in zip(expected, found, strict=True):
            if encode(one) != encode(other):
                raise self._difference(f"event {one.seq} is another than that of the source")

    async def _copy_info(self) -> None:
        wanted = msgspec.structs.replace(self._info, bytes=0)
        if await self._target_info() != wanted:
            await self._target.restore_info(self._info)
            if (found := await self._target_info()) != wanted:
                raise self._difference(f"title, times, length or erasure are {found} instead of {wanted}")

    async def _copy_checkpoint(self) -> None:
        id = self._info.id
        kept = await self._source.checkpoint(id)
        # A checkpoint that was written after the list of sessions was read may include later events.
        if kept is not None and kept.seq < self._info.events and kept != await self._target.checkpoint(id):
            await self._target.keep_checkpoint(id, kept)
            if kept != await self._target.checkpoint(id):
                raise self._difference("its checkpoint is another than that of the source")

    async def _existing(self) -> SessionInfo | None:
        try:
            return await self._target.info(self._info.id)
        except UnknownSession:
            return None

    async def _target_info(self) -> SessionInfo:
        """Return what the target knows of the session, without its size, which depends on the store."""
        return msgspec.structs.replace(await self._target.info(self._info.id), bytes=0)

    @property
    def _place(self) -> str:
        return f"session {self._info.id!r} in {self._target_name}"

    def _difference(self, what: str) -> StoreError:
        return StoreError(
            f"{self._place} differs from the source: {what}. What it has was left as it is: copy to an empty target"
        )


def _erased(event: Event) -> Erased:
    return event.fact if isinstance(event.fact, Erased) else Erased(was=kind(event.fact))
