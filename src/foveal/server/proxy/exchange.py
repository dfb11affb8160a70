"""One proxied request and its reply.

1. `Exchange.body` is what goes upstream: the client's own body if nothing was reduced. Otherwise every message that
   is shown whole is the client's own version, since the log may differ from it: secrets are redacted, and a client
   may send an old message in another form.
2. If upstream rejects the request as too large, `retry_smaller` replaces `body` by a smaller one.
3. A request that asks the provider to compact the conversation goes out unchanged, unless upstream has rejected it
   as too large. It is recorded, and so is the summary that the provider returns.
4. The session lock is held while messages are appended and fitted, never while upstream answers. If another request
   changed the session meanwhile, the reply is stored as a note: it no longer answers the newest message.
5. From the request until its reply is recorded and indexed, an exchange holds the claim of its session, a lock in
   the storage that all servers share. Another request with the same beginning gets a fork, on whichever server.

Checks of the requests that the proxy writes itself, reported as service events.

This server writes reduced requests and requests for summaries, so their faults are faults of the server. A request
that is forwarded as it arrived is the client's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, NamedTuple

import msgspec

from foveal.core import wire
from foveal.core.log.events import Dialect, Noted, Rewound
from foveal.core.view.request import Fitted, ReducedCounts
from foveal.core.wire.bound_thinking import ThinkingCheck
from foveal.core.wire.cache_marks import count_cache_marks_in_json
from foveal.core.wire.common import Json
from foveal.core.wire.legality import request_faults
from foveal.core.wire.overflow_errors import recognise_overflow
from foveal.core.wire.usage import read_usage
from foveal.errors import BadSetting, ContextOverflow, StoreError
from foveal.server.proxy.client_compaction import asks_for_summary
from foveal.server.proxy.conversation import ProxiedConversation, is_message, restore_client_facts
from foveal.server.runtime import (
    IllegalRequestMade,
    ServiceEvent,
    SummaryRequestEnded,
    UsageNotUnderstood,
)
from foveal.stores.session_locks import HeldLock
from foveal.transport.client_request import ClientRequest, with_cache_marks
from foveal.transport.digests import empty_history_digest, extend_digests
from foveal.transport.recognised_messages import IndexedMessage
from foveal.transport.upstream_reply import UpstreamReply

MAX_REPORTED_FAULTS: Final = 3


class RequestCheck:
    """Checks the requests of one tenant."""

    def __init__(self, tenant: str, emit: Callable[[ServiceEvent], None]) -> None:
        self._tenant = tenant
        self._emit = emit

    def reduced_request(
        self,
        session: str,
        request: ClientRequest,
        messages: Sequence[Json],
        thinking: ThinkingCheck | None = None,
    ) -> None:
        """Report the faults of a reduced request, unless the client's own request has faults as well. With
        `thinking`, the model binds it to what comes before it."""
        beside = request.system, request.tools
        faults = _faults(request.dialect, messages, *beside, thinking)
        if faults and (thinking is not None or not _faults(request.dialect, request.messages, *beside)):
            self._report(session, request.dialect, "reduced", faults)

    def summary_request(
        self,
        session: str,
        dialect: Dialect,
        messages: Sequence[Json],
        fields: Mapping[str, Any],
        thinking: ThinkingCheck | None = None,
    ) -> None:
        """Report the faults of a request for a summary; `fields` are those beside its messages. With `thinking`,
        the model binds it to what comes before it."""
        system, tools = (bytes(fields.get(name, b"")) for name in ("system", "tools"))
        if faults := _faults(dialect, messages, system, tools, thinking):
            self._report(session, dialect, "summary", faults)

    def summary_ended(self, session: str, dialect: Dialect, status: int) -> None:
        """Report how upstream answered a request for a summary."""
        self._emit(SummaryRequestEnded(tenant=self._tenant, session=session, dialect=dialect, status=status))

    def usage_not_understood(self, session: str, dialect: Dialect, fields: str) -> None:
        """Report that upstream's usage was ignored; `fields` names what it had."""
        self._emit(UsageNotUnderstood(tenant=self._tenant, session=session, dialect=dialect, fields=fields))

    def _report(
        self, session: str, dialect: Dialect, origin: Literal["reduced", "summary"], faults: list[str]
    ) -> None:
        self._emit(
            IllegalRequestMade(
                tenant=self._tenant,
                session=session,
                dialect=dialect,
                origin=origin,
                faults=tuple(faults[:MAX_REPORTED_FAULTS]),
            )
        )


def _faults(
    dialect: Dialect,
    messages: Sequence[Json],
    system: bytes,
    tools: bytes,
    thinking: ThinkingCheck | None = None,
) -> list[str]:
    read = _marked if thinking is None else _decoded
    return request_faults(dialect, messages, system=read(system), tools=read(tools), thinking=thinking)


def _marked(field: bytes) -> Any:
    """Return the value of a field that has cache marks; None for any other, which need not be decoded."""
    return _decoded(field) if count_cache_marks_in_json(field) else None


def _decoded(field: bytes) -> Any:
    return msgspec.json.decode(field) if field else None


LATE_ANSWER_TOPIC: Final = "answer"
"""Topic of the note with a reply that came too late to be an answer."""
CHOICE_TOPIC: Final = "choice"
"""Topic of the notes with the second and further choices of a reply; if the client continues with one of them, the
session is rewound and the message is appended as the answer."""
BROKEN_OFF_TOPIC: Final = "broken off"
"""Topic of the note with what had arrived of a reply when the upstream broke it off."""
OUTPUT_TOPIC: Final = "max_tokens"
"""Topic of the note that a smaller limit for the answer was sent than the client's."""
MAX_USAGE_RATIO: Final = 8
"""A reported prompt this many times larger than expected is not trusted."""


class ExchangeClaim:
    """The right to answer a request of a session, which one exchange on all servers has at a time. A block releases
    it at its end, unless an exchange keeps it."""

    __slots__ = ("_is_kept", "_lock")

    def __init__(self, lock: HeldLock | None) -> None:
        self._lock = lock
        self._is_kept = False

    def __enter__(self) -> ExchangeClaim:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._is_kept:
            self.release()

    @property
    def is_held(self) -> bool:
        """Whether no other exchange has the claim."""
        return self._lock is not None

    def keep(self) -> None:
        """Hold the claim beyond the block, until `release`."""
        self._is_kept = True

    def take(self, lock: HeldLock | None) -> None:
        """Hold a lock that another exchange has released since; None if none has."""
        self._lock = lock

    def hand_over(self) -> HeldLock | None:
        """Return the lock to another claim of the session; this one does not hold it any more."""
        lock, self._lock = self._lock, None
        return lock

    def release(self) -> None:
        lock = self.hand_over()
        if lock is not None:
            lock.release()


class ExchangeServices(NamedTuple):
    """What all exchanges of a tenant use."""

    lock: Callable[[str], AbstractAsyncContextManager[None]]
    """Locks a session."""
    check: RequestCheck
    add_to_index: Callable[[ProxiedConversation, list[IndexedMessage]], None]
    on_end: Callable[[Exchange], None]
    """Releases the claim of an exchange that has ended."""


class Exchange:
    def __init__(
        self,
        conversation: ProxiedConversation,
        request: ClientRequest,
        fitted: Fitted,
        services: ExchangeServices,
        claim: ExchangeClaim,
    ) -> None:
        self.conversation = conversation
        self.request = request
        self.overflow_retries: int = 0
        """How often upstream rejected the request as too large."""
        self.is_ending: bool = False
        """The upstream's reply is complete and is being recorded."""
        self.recorded: asyncio.Event = asyncio.Event()
        """Set when the reply is recorded or never will be."""
        self.is_stored: bool = False
        """The reply is in the log."""
        self.is_counted: bool = False
        """Whether the usage of the reply is in the log."""
        self.body: bytes = b""
        self.client_summary: str = ""
        """The answer, if the client asked for a summary with which it compacts its history."""
        self._services = services
        self.claim: ExchangeClaim = claim
        self._previous_messages = conversation.last_sent_messages
        self._last_message = conversation.last_message
        self._set_body(fitted)
        conversation.begin_exchange(self)
        claim.keep()

    @property
    def session_id(self) -> str:
        return self.conversation.id

    @property
    def request_digest(self) -> bytes:
        """The digest of the whole request."""
        return self.request.digests[-1]

    def _set_body(self, fitted: Fitted, *, max_tokens: int = 0) -> None:
        self.tokens: int = fitted.tokens
        self.unreduced_tokens: int = max(fitted.whole, fitted.tokens) if fitted.reduced else fitted.tokens
        self.reductions: ReducedCounts = fitted.reduced
        self._binds_thinking = fitted.binds_thinking
        self._messages = None if fitted.intact else self._write(fitted)
        self._max_tokens = max_tokens
        self._encode()
        if self._messages is not None:
            thinking = self.conversation.thinking_check if fitted.binds_thinking else None
            self._services.check.reduced_request(self.session_id, self.request, self._messages, thinking)

    def _encode(self) -> None:
        is_checked = self._binds_thinking and self._messages is not None
        thinking = self.request.dropped_blocks() if is_checked else None
        self.sends_binding_controls: bool = thinking is not None
        self.body = self.request.encode(self._messages, max_tokens=self._max_tokens, thinking=thinking)

    def _write(self, fitted: Fitted) -> list[dict[str, Any]]:
        request = self.request
        writer = wire.wire_for(request.dialect).for_thinking(is_bound=fitted.binds_thinking)
        facts = restore_client_facts(fitted, self.conversation, request)
        messages = writer.join([writer.write(fact) for fact in facts])
        if request.dialect != "anthropic":
            return messages
        if fitted.binds_thinking:
            # The requests before may have been the client's own bytes, with messages that are joined here.
            system, tools = request.system_value(), request.tool_list()
            check = self.conversation.thinking_check
            messages = check.without_refused(request.dialect, messages, system=system, tools=tools)
        self.conversation.remember_sent(messages)
        return with_cache_marks(messages, request, self._previous_messages)

    def drop_binding_controls(self) -> None:
        """Send the request again without the field `block_binding`: the upstream refuses it."""
        self.request.refuse_binding_controls()
        self._encode()

    def limit_output(self, tokens: int) -> bool:
        """Send the request again with a smaller limit for the answer; return False if its limit is not larger."""
        if not self.request.limit_output(tokens):
            return False
        self._encode()
        return True

    async def retry_smaller(self, error: object) -> bool:
        """Return True if upstream's error means that the request was too large and `body` is now a smaller one."""
        session, before = self.conversation.session, self.body
        async with self._services.lock(self.session_id):
            try:
                if await self._has_changed() or not await self._is_too_large(error):
                    return False
                fitted = await session.fit()
                limit = await session.max_tokens()
            except (ContextOverflow, StoreError):  # the client gets the upstream's error
                return False
            self._set_body(fitted, max_tokens=limit if limit < self.request.max_tokens else 0)
        self.overflow_retries += 1
        return self.body != before

    async def _is_too_large(self, error: object) -> bool:
        if self.request.asks_for_compaction:  # it was not the session's view, which learns nothing from it
            return recognise_overflow(error) is not None
        return await self.conversation.session.overflowed(error)

    async def record_reply(self, reply: UpstreamReply | None) -> None:
        """Record a complete reply, if there is one, and end the exchange."""
        self.mark_ending()
        try:
            if reply is not None:
                async with self._services.lock(self.session_id):
                    await self._record(reply)
                self.is_stored = True
        finally:
            self.end()

    async def record_broken_off(self, text: str) -> None:
        """Note what had arrived of a reply that the upstream broke off, and end the exchange."""
        session = self.conversation.session
        try:
            async with self._services.lock(self.session_id):
                if text and not (await session.end()).erased:
                    await session.append(Noted(text=text, topic=BROKEN_OFF_TOPIC))
        finally:
            self.end()

    def mark_ending(self) -> None:
        """Make later requests of the conversation wait until the reply is recorded."""
        self.is_ending = True

    def end(self) -> None:
        """End the exchange: its reply is recorded, or there is none."""
        self.conversation.end_exchange(self)
        if not self.recorded.is_set():
            self.recorded.set()
            self._services.on_end(self)

    async def _record(self, reply: UpstreamReply) -> None:
        conversation, session = self.conversation, self.conversation.session
        if await self._has_changed():
            conversation.mark_outdated()
            if reply.facts and not (await session.end()).erased:
                await session.append(Noted(text=reply.text, topic=LATE_ANSWER_TOPIC))
            return
        if not reply.facts:  # the request only filled the provider's cache
            await self._observe(reply.usage)
            return
        notes = (_choice_note(number, message) for number, message in enumerate(reply.other_choices, 2))
        if self._binds_thinking:
            request = self.request
            conversation.thinking_check.remember(
                request.dialect,
                request.messages if self._messages is None else self._messages,
                reply.messages,
                system=request.system_value(),
                tools=request.tool_list(),
            )
        events = await session.append(*self._output_notes(), *notes, *reply.facts)
        if asks_for_summary(self.request):
            self.client_summary = reply.text
        if not self.request.asks_for_compaction:  # its size says nothing about that of the view
            await self._observe(reply.usage)
        last = (
            conversation.last_message.digest
            if conversation.last_message
            else empty_history_digest(self.request.dialect)
        )
        digest = extend_digests(last, reply.messages, self.request.dialect)[-1]
        message = conversation.add_recorded(digest, events[-1].seq, reply.facts)
        self._services.add_to_index(conversation, [message])

    def _output_notes(self) -> list[Noted]:
        """Return the note that a smaller limit for the answer was sent than the client's, unless the newest note of
        the conversation says the same."""
        asked, sent = self.request.asked_max_tokens, self.request.max_tokens
        if not asked or self.conversation.noted_output == (asked, sent):
            return []
        self.conversation.noted_output = asked, sent
        text = (
            f"the client asked for up to {asked:,} output tokens; the model allows {sent:,}, which was sent"
        )
        return [Noted(text=text, topic=OUTPUT_TOPIC)]

    async def _has_changed(self) -> bool:
        """Return whether another request changed the session, or the session was erased."""
        conversation, session = self.conversation, self.conversation.session
        newer, erased = await session.store.read_new(session.id, first=session.last + 1)
        has_news = any(is_message(event.fact) or isinstance(event.fact, Rewound) for event in newer)
        is_own = conversation.exchange is self and conversation.last_message == self._last_message
        return erased or has_news or not is_own

    async def _observe(self, usage: Any) -> None:
        """Record the usage that upstream reported, unless it is implausible."""
        session = self.conversation.session
        try:
            fact = read_usage(usage) if isinstance(usage, dict) else None
        except BadSetting as problem:
            self._services.check.usage_not_understood(session.id, self.request.dialect, str(problem.value))
            return
        if fact is not None and fact.prompt <= MAX_USAGE_RATIO * max(self.tokens, 1_000):
            await session.observe(usage)
            self.is_counted = True


def _choice_note(number: int, message: Json) -> Noted:
    return Noted(text=msgspec.json.encode(message).decode(), topic=f"{CHOICE_TOPIC} {number}")
