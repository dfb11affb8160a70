"""Summaries of a proxied conversation, written by the client's own model and key.

A request of the `shared` form begins like the conversation itself, with the client's system text and tools, so that
the upstream's prompt cache is used. The key stays in memory while the conversation is open and is never stored.
Old messages keep the cache marks that they had when they were new. A provider refuses more than four, so a request
for a summary has only the newest ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from foveal.core import wire
from foveal.core.compaction.summariser import Summariser, SummaryRequest
from foveal.core.log.events import Dialect, UserSaid
from foveal.core.wire.cache_marks import MAX_CACHE_MARKS, count_cache_marks_in_json, limit_cache_marks
from foveal.core.wire.native_compaction import (
    COMPACTION_BETA,
    COMPACTION_FIELD,
    COMPACTION_TRIGGER,
    compaction_field,
)
from foveal.errors import ProviderError
from foveal.server.proxy.conversation import ProxiedConversation, restore_client_facts
from foveal.server.proxy.exchange import RequestCheck
from foveal.transport.client_request import RequestTemplate

SendUpstream = Callable[[Dialect, bytes, str], Awaitable[tuple[int, bytes]]]
"""Sends a body upstream, with a value for the header `anthropic-beta` unless it is "", and returns the status and
the body of the response."""
MAX_ERROR_BODY_BYTES: Final = 20_000
_SYSTEM_FIELDS: Final = frozenset({"system", "instructions"})


class SummaryRefused(ProviderError):
    """Upstream did not write a summary."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"upstream answered {status}", code="refused")
        self.status_code = status
        self.body: bytes = body[:MAX_ERROR_BODY_BYTES]


class UpstreamSummariser:
    """Writes the summaries of one conversation.

    A session needs its summariser when it is opened, and a conversation needs its session: so `connect` sets the
    conversation afterwards.
    """

    def __init__(self, name: str, send: SendUpstream, check: RequestCheck, dialect: Dialect) -> None:
        self.summariser: Summariser = Summariser(self._write, name=name)
        """Writes summaries as texts."""
        self.native: Summariser = Summariser(self._write, name=name, native=True, dialect=dialect)
        """Has the provider compact the conversation with its own API."""
        self._send = send
        self._check = check
        self._conversation: ProxiedConversation | None = None

    def connect(self, conversation: ProxiedConversation) -> None:
        self._conversation = conversation

    def use(self, send: SendUpstream) -> None:
        """Send further requests with the key and address of the newest client request."""
        self._send = send

    async def _write(self, request: SummaryRequest) -> Any:
        if self._conversation is None or self._conversation.last_request is None:
            raise ProviderError("the conversation has no request yet", code="refused")
        template, is_shared = self._conversation.last_request, request.form != "cold"
        if request.form == "native" and template.dialect != request.dialect:
            raise ProviderError("the conversation has changed its API", code="refused")
        messages = self._client_messages(request, template) or _messages(request, template)
        system: Mapping[str, Any] = {"system": request.system} if request.system else {}
        if is_shared and template.dialect == "anthropic":
            messages = limit_cache_marks(messages, MAX_CACHE_MARKS - _marks_beside(template))
        fields: Mapping[str, Any] = template.fields if is_shared else system
        beta = ""
        if request.form == "native" and template.dialect == "anthropic":
            fields, beta = (
                {**fields, COMPACTION_FIELD: compaction_field(request.instruction)},
                COMPACTION_BETA,
            )
        beside = template.fields if is_shared else {}
        thinking = None
        if request.prefix is not None and request.prefix.binds_thinking:
            thinking = self._conversation.thinking_check
            # The conversation's requests may have been the client's own bytes, with messages that are joined here.
            decoded = {name: template.decoded(name) for name in ("system", "tools")}
            messages = thinking.without_refused(template.dialect, messages, **decoded)
        body = template.encode(messages, max_tokens=request.max_tokens, more=fields)
        self._check.summary_request(self._conversation.id, template.dialect, messages, beside, thinking)
        status, response = await self._send(template.dialect, body, beta)
        self._check.summary_ended(self._conversation.id, template.dialect, status)
        if status != 200:
            raise SummaryRefused(status, response)
        return msgspec.json.decode(response)

    def _client_messages(self, request: SummaryRequest, template: RequestTemplate) -> list[dict[str, Any]]:
        """Return the messages of a `shared` request in the client's versions; none if they are not at hand. Of
        Anthropic's messages the log knows cache marks that the newest client request no longer has."""
        conversation = self._conversation
        if request.prefix is None or conversation is None or conversation.current_request is None:
            return []
        current = conversation.current_request
        if request.dialect != current.dialect or request.dialect == "anthropic":
            return []
        if request.prefix.aside and not _has_system_field(template):
            return []
        facts = restore_client_facts(request.prefix, conversation, current)
        writer = wire.wire_for(request.dialect)
        if request.form == "native":
            return [*writer.join([writer.write(fact) for fact in facts]), COMPACTION_TRIGGER]
        return writer.join([writer.write(fact) for fact in (*facts, UserSaid(content=request.instruction))])


def _has_system_field(template: RequestTemplate) -> bool:
    """Return whether the client's request has its system text in a field beside the messages."""
    return not _SYSTEM_FIELDS.isdisjoint(template.fields)


def _marks_beside(template: RequestTemplate) -> int:
    """Return the number of cache marks in the fields that come before the messages."""
    return sum(count_cache_marks_in_json(bytes(value)) for value in template.fields.values())


def _messages(request: SummaryRequest, template: RequestTemplate) -> list[dict[str, Any]]:
    """Return the messages in the conversation's dialect; plain texts can be written in any. The first message, the
    system text, is left out if the client's request has it in a field of its own."""
    messages, dialect = request.messages, template.dialect
    if request.form != "cold" and request.dialect != "anthropic" and _has_system_field(template):
        messages = messages[1:]
    if request.dialect == dialect:
        return messages
    writer = wire.wire_for(dialect)
    facts = [fact for chunk in wire.wire_for(request.dialect).read(messages) for fact in chunk.facts]
    return writer.join([writer.write(fact) for fact in facts])
