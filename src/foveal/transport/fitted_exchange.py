"""One request of a client that goes through a transport, and its reply.

1. `body` is what goes to the provider: the client's own bytes if nothing was reduced. Otherwise every message that
   is shown whole is the client's own.
2. If the provider refuses the request as too large, `retry_smaller` replaces `body` by a smaller one.
3. `add` sees the bytes of the response as they pass and reads the usage at the end of the reply.
4. A request that asks the provider to compact the conversation is recorded, and goes out as it is.
5. What cannot be read, or cannot be reduced far enough, goes to the provider as it is; a log line says so.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from msgspec import Raw

from foveal.core.engine.origins import Origin
from foveal.core.log.events import ForeignSummary
from foveal.core.wire.bedrock import mark_bytes
from foveal.core.wire.cache_marks import strip_cache_marks
from foveal.core.wire.common import Json
from foveal.errors import BudgetExceeded, ContextOverflow, ConversationIdMissing, FovealError
from foveal.transport.client_request import ClientRequest, with_cache_marks
from foveal.transport.conversation_pool import Continued, ConversationPool
from foveal.transport.digests import summary_digest
from foveal.transport.upstream_reply import ReplyCopy

LOG: Final = logging.getLogger("foveal.transport")
MAX_RESERVE_SHARE: Final = 2
"""A client's limit for the answer takes at most the window divided by this."""


def begin_exchange(
    conversations: ConversationPool, request: ClientRequest, *, name: str = "", is_retry: bool = False
) -> FittedExchange | None:
    """Return the exchange of a request; None, with a line in the log, if it cannot be managed. Raises
    `ConversationIdMissing` if the pool refuses requests without a name, and `BudgetExceeded`."""
    if request.problem:
        LOG.warning("a request is sent as it is: %s", request.problem)
        return None
    try:
        return FittedExchange(conversations, request, name=name, is_retry=is_retry)
    except (ConversationIdMissing, BudgetExceeded):
        raise
    except ContextOverflow as overflow:
        LOG.warning("a request is sent as it is, because it cannot be made to fit: %s", overflow)
    except FovealError as problem:
        LOG.warning("a request is sent as it is: %s", problem)
    return None


class FittedExchange:
    def __init__(
        self, conversations: ConversationPool, request: ClientRequest, *, name: str, is_retry: bool
    ) -> None:
        """Raises `MalformedMessage`, `BadSetting` or `ContextOverflow` if the request cannot be fitted."""
        self.request = request
        self.body: bytes = b""
        self._conversations = conversations
        self._copy: ReplyCopy | None = ReplyCopy(request.dialect)
        self._streamed = request.is_streamed
        found = conversations.start(request, self, name=name, is_retry=is_retry)
        self._conversation, self._context = found.conversation, found.conversation.context
        try:
            with self._conversation.lock:
                self._fit(found)
        except BaseException:
            self.end()
            raise

    def _fit(self, found: Continued) -> None:
        conversation, model = found.conversation, self._conversations.model_for(self.request)
        wanted = min(self.request.max_tokens, model.window // MAX_RESERVE_SHARE)
        conversation.use(model, reserve=wanted or self._conversations.reserve)
        self._set_body(found.new_from if conversation.is_newest(found.number) else None)
        conversation.mark_fitted(found.number)

    # ── The request ──────────────────────────────────────────────────────────────────────────────────

    def _set_body(self, new_from: int | None = None, *, max_tokens: int = 0, is_known: bool = False) -> None:
        """Fit the conversation and encode it. The messages from `new_from` on are new; without it, the context
        compares the whole history, unless that `is_known`."""
        request, whole = self.request, None
        if new_from is not None:
            self._context.append(*map(strip_cache_marks, request.messages[new_from:]))
        elif not is_known:
            whole = [strip_cache_marks(message) for message in request.messages]
        fitted, origins = self._context.fit_with_origins(
            whole, tools=request.tool_list(), system=request.system_value()
        )
        is_intact = request.asks_for_compaction or _is_intact(origins, len(request.messages))
        self._sent = None if is_intact else self._messages(fitted, origins)
        self._max_tokens = max_tokens
        self._encode()

    def _encode(self) -> None:
        is_checked = self._sent is not None and self._conversations.model_for(self.request).binds_thinking
        thinking = self.request.dropped_blocks() if is_checked else None
        self.sends_binding_controls: bool = thinking is not None
        self.body = self.request.encode(self._sent, max_tokens=self._max_tokens, thinking=thinking)

    def _messages(self, fitted: list[Json], origins: list[Origin]) -> list[Json | Raw]:
        """Return the messages to send; those that are shown whole are the client's own."""
        request, own = self.request, self.request.messages
        pairs = list(zip(fitted, origins, strict=True))
        if request.dialect == "bedrock":
            pairs = [(mark_bytes(message), origin) for message, origin in pairs]
        if request.dialect != "anthropic":
            return [m if o.input is None else Raw(own.text(o.input)) for m, o in pairs]
        whole: list[Json] = [m if o.input is None else own[o.input] for m, o in pairs]
        marked = with_cache_marks(whole, request, self._conversation.last_sent)
        self._conversation.remember_sent([strip_cache_marks(message) for message in whole])
        return list(marked)

    def drop_binding_controls(self) -> None:
        """Send the request again without the field `block_binding`: the provider refuses it."""
        self.request.refuse_binding_controls()
        self._encode()

    def retry_smaller(self, error: object) -> bool:
        """Return True if the provider's error means that the request was too large and `body` is now smaller."""
        before, context = self.body, self._context
        with self._conversation.lock:
            # Another request may have changed the conversation; the provider must compact it whole.
            if self._conversation.exchange is not self or self.request.asks_for_compaction:
                return False
            try:
                if not context.overflowed(error):
                    return False
                limit = context.max_tokens
                self._set_body(is_known=True, max_tokens=limit if limit < self.request.max_tokens else 0)
            except FovealError:  # the client gets the provider's error
                return False
        return self.body != before

    # ── The reply ────────────────────────────────────────────────────────────────────────────────────

    def expect_reply(self, *, streamed: bool, is_readable: bool) -> None:
        """Say what kind of response follows; an error or a compressed one is not read."""
        self._streamed = streamed
        if not is_readable:
            self._copy = None

    def add(self, chunk: bytes) -> None:
        """See a chunk of the response on its way to the client."""
        copy = self._copy
        if copy is None:
            return
        ends = self._streamed and copy.ends(chunk)
        copy.add(chunk)
        if copy.is_too_large:
            self._copy = None
        elif ends and copy.may_read_early():
            self._read_reply(copy)

    def end(self) -> None:
        """End the exchange: the response has ended or was closed."""
        copy, self._copy = self._copy, None
        if copy is not None and copy.size:
            self._read_reply(copy)
        self._conversation.end_exchange(self)

    def _read_reply(self, copy: ReplyCopy) -> None:
        """Observe the usage, if the reply is complete and still the newest one."""
        reply = copy.read(streamed=self._streamed)
        if reply is None:
            return
        self._copy = None
        for fact in reply.facts:
            if isinstance(fact, ForeignSummary):
                self._conversations.note_summary(self._conversation, summary_digest(fact))
        if reply.usage and not self.request.asks_for_compaction:
            self.observe(reply.usage)
        self._conversation.end_exchange(self)

    def observe(self, usage: Any) -> None:
        """Learn from the usage of the reply, if no other request has been fitted since."""
        if self._conversation.exchange is not self:
            return
        with self._conversation.lock:
            try:
                self._context.observe(usage)
            except FovealError as problem:
                LOG.warning("the usage of a reply is ignored: %s", problem)


def _is_intact(origins: list[Origin], count: int) -> bool:
    """Return whether a request shows every message of the client, and nothing else."""
    return len(origins) == count and all(origin.input == at for at, origin in enumerate(origins))
