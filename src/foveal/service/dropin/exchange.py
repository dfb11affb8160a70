"""One request and its answer: what goes upstream, what to send when that was too large, and what came back.

The session is held while something is appended and fitted, never while upstream answers. Somebody else may have
spoken meanwhile; then the answer is kept as a note, because it is no longer an answer to what was said last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from foveal import wire
from foveal.errors import ContextOverflow, StoreError
from foveal.events import Noted, Rewound
from foveal.fitted import Fitted, Reduced
from foveal.service.dropin import chain
from foveal.service.dropin.answers import Answer
from foveal.service.dropin.conversation import Conversation, said
from foveal.service.dropin.heads import Head
from foveal.service.dropin.marking import marked
from foveal.service.dropin.own_words import own_words
from foveal.service.dropin.requests import Asked
from foveal.usage import used

TOPIC: Final = "answer"
ABSURD: Final = 8
"""A count that is so many times what was expected is not this request's."""

Keep = Callable[[Conversation, list[Head]], None]
Hold = Callable[[str], AbstractAsyncContextManager[None]]


class Exchange:
    def __init__(
        self,
        conversation: Conversation,
        asked: Asked,
        fitted: Fitted,
        *,
        hold: Hold,
        keep: Keep,
        landed: Callable[[Exchange], None],
    ) -> None:
        self.conversation = conversation
        self.asked = asked
        self.recovered = 0
        """How often upstream has said that it was too large."""
        self.ending = False
        """Upstream has said all that it will say: it is being recorded."""
        self.settled = asyncio.Event()
        """It has been recorded, or never will be."""
        self.body = b""
        self._hold, self._keep, self._landed = hold, keep, landed
        self._before = conversation.sent
        self._tip = conversation.tip
        self._send(fitted)
        conversation.flight = self

    @property
    def session(self) -> str:
        return self.conversation.id

    @property
    def tip(self) -> bytes:
        """The digest of what was asked."""
        return self.asked.digests[-1]

    def _send(self, fitted: Fitted, *, max_tokens: int = 0) -> None:
        self.tokens = fitted.tokens
        self.whole = max(fitted.whole, fitted.tokens) if fitted.reduced else fitted.tokens
        self.reduced: Reduced = fitted.reduced
        messages = None if fitted.intact else self._written(fitted)
        self.body = self.asked.written(messages, max_tokens=max_tokens)

    def _written(self, fitted: Fitted) -> list[dict[str, Any]]:
        writer = wire.wire(self.asked.dialect)
        facts = own_words(fitted, self.conversation, self.asked)
        messages = writer.join([writer.write(fact) for fact in facts])
        if self.asked.dialect == "anthropic":
            messages, self.conversation.sent = marked(messages, self.asked, self._before), messages
        return messages

    async def refused(self, error: object) -> bool:
        """Whether upstream's error means that the request was too large, and `body` is now a smaller one."""
        session, before = self.conversation.session, self.body
        async with self._hold(self.session):
            try:
                if await self._moved() or not await session.overflowed(error):
                    return False
                fitted = await session.fit()
                limit = await session.max_tokens()
            except (ContextOverflow, StoreError):  # the client is told what upstream said
                return False
            wanted = self.asked.max_tokens
            self._send(fitted, max_tokens=limit if limit < wanted else 0)
        self.recovered += 1
        return self.body != before

    async def answered(self, answer: Answer | None) -> None:
        """Record what upstream has said, if it has said anything whole; nobody waits here any more."""
        self.ending = True
        try:
            if answer is not None:
                async with self._hold(self.session):
                    await self._record(answer)
        finally:
            self.end()

    def end(self) -> None:
        """There is no answer, or it was recorded."""
        if self.conversation.flight is self:
            self.conversation.flight = None
        if not self.settled.is_set():
            self.settled.set()
            self._landed(self)

    async def _record(self, answer: Answer) -> None:
        conversation, session = self.conversation, self.conversation.session
        if await self._moved():
            conversation.outdated = True
            if not (await session.info()).erased:
                await session.append(Noted(text=answer.text, topic=TOPIC))
            return
        events = await session.append(*answer.facts)
        await self._observe(answer.usage)
        last = conversation.tip.digest if conversation.tip else chain.start(self.asked.dialect)
        digest = chain.extended(last, answer.messages, self.asked.dialect)[-1]
        self._keep(conversation, [conversation.add(digest, events[-1].seq, answer.facts)])

    async def _moved(self) -> bool:
        """Somebody else has spoken here, or the session is gone."""
        conversation, session = self.conversation, self.conversation.session
        newer, erased = await session.store.news(session.id, first=session.last + 1)
        spoken = any(said(event.fact) or isinstance(event.fact, Rewound) for event in newer)
        return erased or spoken or conversation.flight is not self or conversation.tip != self._tip

    async def _observe(self, usage: Any) -> None:
        """Learn from what upstream counted, unless it cannot be true."""
        fact = used(usage) if isinstance(usage, dict) else None
        if fact is not None and fact.prompt <= ABSURD * max(self.tokens, 1_000):
            await self.conversation.session.observe(usage)
