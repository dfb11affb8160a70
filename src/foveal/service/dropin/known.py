"""What is known of conversations and not yet written down.

A new conversation is written down at once, because another process may be asked next. Nobody waits for the rest: it
is written when an answer has come, or when somebody must look for what is written. What is lost costs a rewind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from foveal.errors import StoreError
from foveal.service.dropin.conversation import Conversation
from foveal.service.dropin.heads import Head, Heads


class Tips:
    """Where the open conversations end: one digest for each."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, str] = {}
        self._digests: dict[str, bytes] = {}

    def find(self, digest: bytes) -> str:
        """The session that ends with this digest; "" when none is known to."""
        return self._sessions.get(digest, "")

    def keep(self, digest: bytes, session: str) -> None:
        self._sessions[digest], self._digests[session] = session, digest

    def forget(self, session: str) -> None:
        digest = self._digests.pop(session, None)
        if digest is not None and self._sessions.get(digest) == session:
            del self._sessions[digest]


class _Unwritten(NamedTuple):
    conversation: Conversation
    heads: list[Head]
    rewound: int | None


class Known:
    """That of one tenant."""

    def __init__(self, tenant: str, heads: Heads) -> None:
        self._tenant, self._heads = tenant, heads
        self._unwritten: dict[str, _Unwritten] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, conversation: Conversation, heads: Sequence[Head], *, rewound: int | None) -> None:
        """New heads of a conversation, after a rewind to the event `rewound` if there was one."""
        before = self._unwritten.get(conversation.id)
        if before is not None:
            heads, rewound = [*before.heads, *heads], before.rewound if rewound is None else rewound
        self._unwritten[conversation.id] = _Unwritten(conversation, list(heads), rewound)

    def write_down(self, session: str) -> None:
        """What is known of a session, soon."""
        if session in self._unwritten:
            self.start(self.written_down(session))

    async def all_written_down(self) -> None:
        for session in list(self._unwritten):
            await self.written_down(session)

    async def close(self) -> None:
        await self.all_written_down()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for before the end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def written_down(self, session: str) -> None:
        """The same, now."""
        known = self._unwritten.pop(session, None)
        if known is not None:
            beside = known.conversation.beside
            with suppress(StoreError):
                await self._heads.keep(
                    self._tenant, session, known.heads, beside=beside, rewound=known.rewound
                )
