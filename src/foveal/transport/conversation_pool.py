"""The conversations of a transport, in memory: which one a request continues.

1. The conversation with the longest known history wins (`transport.digests`). Each has a `Context` of its own.
2. A client that names its conversation gets that one: what differs is rewound, and nothing is forked. With
   `strict_ids`, a request without a name is refused.
3. A request without a name continues a conversation only if its history begins with all of it, or is the same
   again. One that differs anywhere, or whose conversation waits for an answer, begins another: it may be that of
   another user who has begun in the same way. A retry of the client library is the same request.
4. A request with a summary that the provider has made of a conversation continues that one, if nothing else has
   since: what the request leaves out is rewound, so the log has it.
5. The conversations that were not used for longest are forgotten above `limit`. Their clients hold the history: the
   next request begins a new one.

Everything here can be used from any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, Final, NamedTuple, Unpack

from foveal.context import Context
from foveal.core.engine.context_arguments import ContextArguments, check_arguments, check_flag
from foveal.core.models.budget import check_whole_number
from foveal.core.models.model import Model, model
from foveal.errors import BadSetting, ConversationIdMissing
from foveal.transport.client_request import ClientRequest, RequestCache
from foveal.transport.digests import begins_turn, is_from_model, summary_digest
from foveal.transport.recognised_messages import SYSTEM_KEY, RecognisedMessages

SESSION_HEADER: Final = "x-foveal-session"
"""Names the conversation of a request; it is not sent on."""
_HOW: Final = (
    "send the header `X-Foveal-Session`, in boto3 `requestMetadata` with this key; its value is the name of the "
    "conversation"
)
MAX_CONVERSATIONS: Final = 256
"""Default for the conversations that are kept."""
MAX_BUSY_RATIO: Final = 2
"""Times the limit that conversations are kept if they wait for an answer."""
MAX_KNOWN_MODELS: Final = 64
"""Models whose window and prices are kept."""


class FittedConversation(RecognisedMessages):
    """One conversation: its context, and the digests of the messages that the context has seen."""

    def __init__(self, context: Context, *, name: str = "") -> None:
        super().__init__()
        self.context = context
        self.name = name
        """The name that the client gave it; "" for one that is recognised by content."""
        self.lock: Lock = Lock()
        """Held while messages are added and fitted, never while the provider answers."""
        self.exchange: object = None
        """The newest exchange while it waits for a reply, or None."""
        self.last_sent: list[dict[str, Any]] = []
        """The unmarked messages of the previous reduced request: cache marks depend on them."""
        self.request_length: int = 0
        """Messages of the newest request, including those that do not count for its digests."""
        self._model_name = ""
        self._started = 0
        self._fitted = 0
        """Number of the newest request that was started, and of the one that the context has seen last."""

    @property
    def is_up_to_date(self) -> bool:
        """Whether the context has seen exactly the messages whose digests are here."""
        return self._started == self._fitted

    def begin_exchange(self, exchange: object) -> int:
        """Begin an exchange, and return its number."""
        self.exchange = exchange
        self._started += 1
        return self._started

    @property
    def newest_number(self) -> int:
        """The number of the newest exchange."""
        return self._started

    def is_newest(self, number: int) -> bool:
        """Return whether no other exchange has begun since the one with this number."""
        return number == self._started

    def mark_fitted(self, number: int) -> None:
        """Note that the context has seen all messages of an exchange."""
        self._fitted = number

    def use(self, model: Model, *, reserve: int | None) -> None:
        """Set the model and the room for the answer of the next request."""
        if self._model_name not in ("", model.name):
            self.context.use(model)
        self._model_name = model.name
        self.context.set_reserve(reserve)

    def end_exchange(self, exchange: object) -> None:
        """Free the conversation, unless a newer exchange has begun."""
        if self.exchange is exchange:
            self.exchange = None

    def remember_sent(self, messages: list[dict[str, Any]]) -> None:
        self.last_sent = messages

    def is_free_for(self, request: ClientRequest, known: int) -> bool:
        """Return whether no other request waits for an answer here. A client that sends an answer back has
        received it, even if it never closed the response."""
        has_answer = known < len(request.messages) and is_from_model(request.messages[known])
        return self.exchange is None or has_answer

    def add_messages(self, request: ClientRequest, known: int) -> None:
        """Add the digests of all messages after the first `known`, and those of edited instructions."""
        self.request_length = len(request.messages)
        self.has_changed(SYSTEM_KEY, request.system)
        for at in list(self.edited_instructions(request, known)):
            self.set_text_digest(request.digests[at], request.instructions[at])
        for at in range(known, len(request.messages)):
            digest = request.digests[at]
            if self.last_message is None or self.last_message.digest != digest:
                self.add_message(
                    digest,
                    begins_turn=begins_turn(request.messages[at]),
                    text_digest=request.instructions.get(at),
                )


class Continued(NamedTuple):
    """A conversation, and what of a request is new to its context."""

    conversation: FittedConversation
    new_from: int | None
    """Position of the first new message; None if the context has to compare the whole history."""
    number: int = 0
    """Number of the exchange in the conversation."""


class ConversationPool:
    """The conversations of one or more transports, in memory.

    It can be used from any thread.

    Args:
        model: Replaces the name of the model in the requests, for a provider whose names say nothing about the
            model. None uses the names in the requests.
        max_conversations: Conversations that are kept; above it, those that were not used for longest are
            forgotten.
        strict_ids: Whether a request that names no conversation is refused with status 400 and is not sent. By
            default it is recognised by its messages. A service sets it.
        **settings: The settings of `Context`: `window`, `policy`, `summarise` and others, as in
            `ContextArguments`.

    Raises:
        BadSetting: A setting is unknown or outside its range.

    Examples:
        ```python
        import foveal

        pool = foveal.transport.ConversationPool(window=32_000, max_conversations=64)
        with foveal.transport.httpx(pool) as http:
            assert pool.contexts == []
        ```
    """

    def __init__(
        self,
        *,
        model: str | Model | None = None,
        max_conversations: int = MAX_CONVERSATIONS,
        strict_ids: bool = False,
        **settings: Unpack[ContextArguments],
    ) -> None:
        check_arguments(model, settings)
        self.request_cache: RequestCache = RequestCache()
        self._model = model
        self._max_conversations = check_whole_number("max_conversations", max_conversations, least=1)
        self._strict_ids = check_flag("strict_ids", strict_ids)
        settings.pop("dialect", None)  # that of the request
        self._settings = settings
        self._lock = Lock()
        self._open: OrderedDict[int, FittedConversation] = OrderedDict()
        self._named: dict[str, FittedConversation] = {}
        self._owners: dict[bytes, dict[int, FittedConversation]] = {}
        """The conversations that contain the history with a digest."""
        self._summarised: dict[bytes, tuple[FittedConversation, int]] = {}
        """By the digests of summaries that the provider made: the conversation, and its newest exchange then."""
        self._models: dict[str, Model] = {}
        self._without_binding_controls: set[str] = set()
        """Hosts that refuse the field `block_binding`."""

    def allows_binding_controls(self, host: str) -> bool:
        """Return whether a host is not known to refuse the field `block_binding`.

        Args:
            host: The name of the host.
        """
        return host not in self._without_binding_controls

    def note_refused_controls(self, host: str) -> None:
        """Note that a host has refused the field `block_binding`.

        Args:
            host: The name of the host.
        """
        self._without_binding_controls.add(host)

    @property
    def writes_summaries(self) -> bool:
        """Whether fitting a request may wait for a model."""
        return self._settings.get("summarise") is not None

    # ── For the application ──────────────────────────────────────────────────────────────────────────

    @property
    def contexts(self) -> list[Context]:
        """The contexts of all conversations; the most recently used one is the last."""
        with self._lock:
            return [conversation.context for conversation in self._open.values()]

    def context(self, name: str) -> Context | None:
        """Return the context of the conversation with a name.

        Args:
            name: The name that the client sends in the header `X-Foveal-Session`.

        Returns:
            The context; None if no conversation has this name.
        """
        with self._lock:
            found = self._named.get(name)
            return None if found is None else found.context

    def add(self, name: str, context: Context) -> None:
        """Let requests with a name continue a context.

        Args:
            name: The name of the conversation; one that has it before is forgotten.
            context: The context, for example one that `Context.load` returned.

        Examples:
            ```python
            import foveal

            pool = foveal.transport.ConversationPool()
            pool.add("ci", foveal.Context("gpt-4.1"))
            assert pool.context("ci") is not None
            ```
        """
        with self._lock:
            before = self._named.get(name)
            if before is not None:
                self._forget(before)
            self._keep(FittedConversation(context, name=name))

    # ── For the exchanges ────────────────────────────────────────────────────────────────────────────

    def model_for(self, request: ClientRequest) -> Model:
        """Return the model of a request, with the configured window."""
        if isinstance(self._model, Model):
            return self._model
        name = self._model or request.model
        if name not in self._models:
            if len(self._models) >= MAX_KNOWN_MODELS:
                self._models.clear()
            binds = self._settings.get("binds_thinking")
            self._models[name] = model(name, window=self._settings.get("window"), binds_thinking=binds)
        return self._models[name]

    @property
    def reserve(self) -> int | None:
        """The configured reserve for answers."""
        return self._settings.get("reserve")

    def start(self, request: ClientRequest, exchange: object, *, name: str, is_retry: bool) -> Continued:
        """Return the conversation that a request continues, which is then busy with `exchange`. Raises
        `ConversationIdMissing` for a request without a name if the pool has `strict_ids`."""
        if self._strict_ids and not name:
            raise ConversationIdMissing(_HOW)
        with self._lock:
            found = (
                self._continue_named(name, request) if name else self._continue(request, is_retry=is_retry)
            )
            self._open.move_to_end(id(found.conversation))
            return found._replace(number=found.conversation.begin_exchange(exchange))

    def _continue_named(self, name: str, request: ClientRequest) -> Continued:
        conversation = self._named.get(name)
        if conversation is None:
            conversation = self._keep(FittedConversation(self._new_context(request), name=name))
        known = conversation.count_known(request.digests)
        return self._record(conversation, request, known)

    def _continue(self, request: ClientRequest, *, is_retry: bool) -> Continued:
        known, owners = self._find(request)
        if (summarised := self._find_summarised(request, known)) is not None:
            return self._record(summarised, request, summarised.count_known(request.digests))
        for conversation in owners:
            is_same = is_retry and conversation.has(request.digests[-1])
            if not is_same and not conversation.is_free_for(request, known):
                continue
            continuation = conversation.continuation_after(request, request.digests[known - 1])
            if continuation == "append":
                return self._record(conversation, request, known)
        return self._record(self._keep(FittedConversation(self._new_context(request))), request, 0)

    def note_summary(self, conversation: FittedConversation, digest: bytes) -> None:
        """Note that the provider has made a summary of a conversation.

        Args:
            conversation: The conversation.
            digest: The digest of the summary.
        """
        with self._lock:
            if id(conversation) in self._open:
                self._summarised[digest] = conversation, conversation.newest_number

    def _find_summarised(self, request: ClientRequest, known: int) -> FittedConversation | None:
        """Return the conversation that the newest summary in a request was made of, if it is no part of the first
        `known` messages, and if no other request has continued the conversation."""
        summary = request.newest_summary(known) if self._summarised else None
        found = None if summary is None else self._summarised.get(summary_digest(summary))
        if found is None:
            return None
        conversation, number = found
        return conversation if conversation.is_newest(number) and conversation.exchange is None else None

    def _find(self, request: ClientRequest) -> tuple[int, list[FittedConversation]]:
        """Return the number of messages of the longest known beginning with a user message, and the conversations
        that have it, the newest first."""
        for at in range(len(request.digests) - 1, -1, -1):
            digest = request.digests[at]
            owners = [c for c in self._owners.get(digest, {}).values() if c.find(digest).turn and not c.name]
            if owners:
                return request.digests.index(digest) + 1, owners[::-1]
        return 0, []

    def _record(self, conversation: FittedConversation, request: ClientRequest, known: int) -> Continued:
        """Make the digests of a conversation those of the request, of which `known` messages are in it."""
        count = conversation.count_up_to(request.digests[known - 1]) if known else 0
        edited = next(conversation.edited_instructions(request, known), None) is not None
        is_append = bool(known) and count == len(conversation.messages) and not edited
        # A client may leave out reasoning items that it sent before. The places of all messages differ then.
        is_append = is_append and conversation.is_up_to_date and known == conversation.request_length
        self._disown(conversation, count)
        conversation.truncate(count)
        conversation.add_messages(request, known)
        for message in conversation.messages[count:]:
            self._owners.setdefault(message.digest, {})[id(conversation)] = conversation
        return Continued(conversation, new_from=known if is_append else None)

    # ── Keeping ──────────────────────────────────────────────────────────────────────────────────────

    def _new_context(self, request: ClientRequest) -> Context:
        settings: ContextArguments = {**self._settings, "dialect": request.dialect}
        return Context(self.model_for(request), **settings)

    def _keep(self, conversation: FittedConversation) -> FittedConversation:
        """Keep a conversation, and forget the least recently used ones above the limit."""
        self._open[id(conversation)] = conversation
        if conversation.name:
            self._named[conversation.name] = conversation
        others = [c for c in self._open.values() if c is not conversation]
        idle = [c for c in others if c.exchange is None]
        for oldest in idle[: max(0, len(self._open) - self._max_conversations)]:
            self._forget(oldest)
        if (
            len(self._open) > MAX_BUSY_RATIO * self._max_conversations
        ):  # a client has dropped responses without closing them
            self._forget(others[0])
        return conversation

    def _forget(self, conversation: FittedConversation) -> None:
        self._disown(conversation, 0)
        self._open.pop(id(conversation), None)
        self._summarised = {d: (c, n) for d, (c, n) in self._summarised.items() if c is not conversation}
        if self._named.get(conversation.name) is conversation:
            del self._named[conversation.name]

    def _disown(self, conversation: FittedConversation, count: int) -> None:
        """Remove the messages of a conversation after the first `count` from the index."""
        for message in conversation.messages[count:]:
            owners = self._owners.get(message.digest, {})
            owners.pop(id(conversation), None)
            if not owners:
                self._owners.pop(message.digest, None)


def checked_pool(given: ConversationPool | None) -> ConversationPool:
    """Return the pool of a transport, a new one for None; raises `BadSetting` for anything else."""
    if given is None:
        return ConversationPool()
    if not isinstance(given, ConversationPool):
        raise BadSetting(
            "conversations", given, "a `ConversationPool(model=…, window=…)`, which has the settings"
        )
    return given
