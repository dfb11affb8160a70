"""Finds the conversation that a request continues, among those of its tenant.

1. The conversation with the longest known history wins; of several sessions with it, one that ends there.
2. A client that names its session gets that one: what differs is rewound, and nothing is forked.
3. A request with a summary that the provider has made of a conversation continues that one, whatever of it the
   request leaves out: what it leaves out is rewound, so the log has it.
4. A request that names a user continues no conversation of another user that is found, and one with a token of a
   user none without a user. A session that the client names is refused if the request has such a token or shows a
   memory. The user is recorded with the session before any text.
5. A request whose beginning is being answered for another request, by this server or another one, gets a fork; one
   that continues after a reply that is just being recorded waits for the recording.
6. A conversation that its client has compacted by itself is reduced only if a request would not fit otherwise.
7. No lock is held while upstream answers, and nothing is lost when a conversation is closed: it is loaded again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from secrets import token_hex
from time import monotonic
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from foveal.core.log.events import ModelSaid, Opened
from foveal.core.models.model import Model
from foveal.core.view.fold import reductions_for_fork
from foveal.core.wire import MessageChunk
from foveal.errors import SessionExists, StoreError, UnknownSession
from foveal.memory.attached import obeyed_notes
from foveal.server.auth_tokens import MemoryChoice
from foveal.server.proxy.client_compaction import ClientSummaries, only_when_forced
from foveal.server.proxy.conversation import (
    COMPACTS_KEY,
    ProxiedConversation,
    instruction_versions_until,
    is_message,
)
from foveal.server.proxy.digest_index import DigestIndex, KnownSession, ProxyRetention
from foveal.server.proxy.exchange import Exchange, ExchangeClaim, ExchangeServices, RequestCheck
from foveal.server.proxy.upstream_summariser import SendUpstream, UpstreamSummariser
from foveal.server.recently_used import RecentlyUsed
from foveal.server.runtime import Runtime
from foveal.server.service import MAX_IDLE_TENANTS, Service
from foveal.server.tenants import PROXY_ORIGIN, Tenant, check_session_id
from foveal.sessions.session import Session
from foveal.stores.session_locks import FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S, HeldLock
from foveal.transport.client_request import ClientRequest
from foveal.transport.digests import count_up_to, is_from_model, summary_digest
from foveal.transport.recognised_messages import IndexedMessage

MAX_IDLE_CONVERSATIONS: Final = 256
"""Conversations that stay open while they are not used: of one tenant, and about as many of all others."""
MAX_KNOWN_SETTINGS: Final = 64
"""Models whose settings are kept: reading them from the configuration takes longer than opening a session."""
MAX_INHERITED_EVENTS: Final = 2_000
"""Events after the place of a fork that are read for reductions."""
MAX_RECORDING_WAIT_S: Final = 30.0
"""Seconds to wait for a reply that is being recorded."""
MAX_REMOTE_RECORDING_WAIT_S: Final = 2.0
"""Seconds to wait for another server that may be recording the reply which a request has already, or has recorded
it and not released the session yet. The request may also be that of another conversation, so it does not wait
long."""
MAX_REMOTE_END_WAIT_S: Final = 0.1
"""Seconds to wait for another server that answers a request of the session, and may be about to end."""
_CLAIM_PREFIX: Final = "exchange/"
"""Of the name of a session's claim; no session id has a slash."""


# ── What the index does not contain yet ───────────────────────────────────────────────────────────
# A new conversation is written to the index at once, because the next request may reach another process. Further
# messages are written later: after the reply, or before the index is searched. If such a write is lost, the next
# request causes a rewind.


class LastDigests:
    """The digest of each open conversation's whole history."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, str] = {}
        self._digests: dict[str, bytes] = {}

    def find(self, digest: bytes) -> str:
        """Return the session that ends with this digest, or ""."""
        return self._sessions.get(digest, "")

    def add(self, digest: bytes, session: str) -> None:
        self._sessions[digest], self._digests[session] = session, digest

    def remove(self, session: str) -> None:
        digest = self._digests.pop(session, None)
        if digest is not None and self._sessions.get(digest) == session:
            del self._sessions[digest]


class _Unwritten(NamedTuple):
    conversation: ProxiedConversation
    messages: list[IndexedMessage]
    rewound: int | None


class PendingIndex:
    """Writes to the digest index that one tenant has not made yet."""

    def __init__(self, tenant: str, index: DigestIndex, on_failure: Callable[[StoreError], None]) -> None:
        self._tenant, self._index, self._on_failure = tenant, index, on_failure
        self._unwritten: dict[str, _Unwritten] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writes: set[asyncio.Task[Any]] = set()
        """Those of the tasks that write to the index."""

    def add(
        self, conversation: ProxiedConversation, messages: Sequence[IndexedMessage], *, rewound: int | None
    ) -> None:
        """Add new messages of a conversation; `rewound` is the event it was rewound to before, if any."""
        before = self._unwritten.get(conversation.id)
        if before is not None:
            messages, rewound = [*before.messages, *messages], before.rewound if rewound is None else rewound
        self._unwritten[conversation.id] = _Unwritten(conversation, list(messages), rewound)

    def schedule_write(self, session: str) -> asyncio.Task[bool] | None:
        """Start `write` in the background, and return its task; None if there is nothing to write."""
        if session not in self._unwritten:
            return None
        task = self.start(self.write(session))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return task

    async def discard(self, session: str) -> None:
        """Write no more messages of a session: those that are being written are there when this returns."""
        self._unwritten.pop(session, None)
        if self._writes:
            await asyncio.wait(set(self._writes))

    async def write(self, session: str) -> bool:
        """Write the messages of a session, and return whether this has written any. A failed write is reported and
        dropped: the index is only a cache."""
        unwritten = self._unwritten.pop(session, None)
        if unwritten is None:
            return False
        try:
            await self._index.add(
                self._tenant,
                session,
                unwritten.messages,
                side_state=unwritten.conversation.unindexed_side_state(),
                rewound=unwritten.rewound,
                summaries=unwritten.conversation.take_new_summaries(),
            )
        except StoreError as problem:
            unwritten.conversation.forget_indexed_side_state()
            self._on_failure(problem)
            return False
        return True

    async def write_all(self) -> None:
        for session in list(self._unwritten):
            await self.write(session)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` in the background; `close` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        await self.write_all()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


# ── Conversations of one tenant ───────────────────────────────────────────────────────────────────


class SessionGone(Exception):
    """The session was erased, or its file was replaced by another one."""


class SessionOfAnotherUser(Exception):
    """A client names a session that is of another user, or with a token of a user one of no user."""


class _Incoming(NamedTuple):
    """A request, the model it asks for, how to send requests upstream with its key, its memory, and whose it is."""

    request: ClientRequest
    model: Model
    send: SendUpstream
    memory: MemoryChoice | None = None
    user: str = ""
    """The user whom its token, its header or its body names; that of its memory, if it has one."""
    is_bound: bool = False
    """Whether its token names the user, and so reaches nothing of others."""


class TenantConversations:
    def __init__(
        self,
        runtime: Runtime,
        tenant: Tenant,
        index: DigestIndex,
        *,
        predecessor: asyncio.Task[None] | None = None,
    ) -> None:
        """`predecessor`: a task that still writes to the index what this object will look for there."""
        self._runtime, self._tenant, self._index = runtime, tenant, index
        self._predecessor = predecessor
        self._open: OrderedDict[str, tuple[ProxiedConversation, UpstreamSummariser]] = OrderedDict()
        self._exchanges: dict[bytes, Exchange] = {}
        """Exchanges that wait for a reply, by the digest of their request."""
        self._claims: dict[str, ExchangeClaim] = {}
        """By session, those of exchanges that have ended: each is held until the reply is in the index, or the next
        exchange takes it over."""
        self._starting = 0
        """Requests that are being recorded."""
        self._known_settings: dict[str, tuple[Model, dict[str, Any]]] = {}
        self._settings_of = runtime.config
        """The configuration that the known settings are those of."""
        self._last_digests = LastDigests()
        self._client_summaries = ClientSummaries()
        self._pending = PendingIndex(tenant.name, index, partial(runtime.store_failed, tenant.name))
        self._check = RequestCheck(tenant.name, runtime.emit)
        self._exchange_services = ExchangeServices(
            self._lock, self._check, self._add_to_index, self._exchange_ended
        )

    async def start_exchange(
        self,
        request: ClientRequest,
        model: Model,
        send: SendUpstream,
        *,
        session_id: str = "",
        memory: MemoryChoice | None = None,
        user: str = "",
        is_bound: bool = False,
    ) -> Exchange:
        """Record a request and return its exchange, which shows the memory if one is asked for. `user` is recorded
        with the session; `is_bound` says that the token of the request names this user. Raises
        `MalformedMessage`, `BadSetting` for an invalid session id, `SessionExists` for a session that the proxy did
        not open, `SessionOfAnotherUser`, and `StoreError`."""
        self._starting += 1
        try:
            return await self._start(_Incoming(request, model, send, memory, user, is_bound), session_id)
        finally:
            self._starting -= 1

    async def _start(self, incoming: _Incoming, session_id: str) -> Exchange:
        request = incoming.request
        if self._predecessor is not None:
            await asyncio.wait([self._predecessor])
            self._predecessor = None
        await self._wait_for_recording(request.digests)
        if session_id:
            return await self._continue_named(check_session_id(session_id), incoming)
        sessions = await self._find_recorded(incoming)
        for made in await self._find_summarised(request, sessions):
            exchange = await self._continue_summarised(made, incoming)
            if exchange is not None:
                return exchange
        for found in sessions:
            exchange = await self._continue(found, incoming, has_equals=len(sessions) > 1)
            if exchange is not None:
                return exchange
        chunks = request.chunks(0)
        return await self._begin_new(incoming, chunks)

    async def close(self) -> None:
        await self._pending.close()
        while self._open:
            _, (conversation, _) = self._open.popitem()
            await conversation.session.close()

    @property
    def tenant_name(self) -> str:
        return self._tenant.name

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being recorded or answered."""
        return bool(self._starting or self._exchanges)

    # ── Finding the conversation ─────────────────────────────────────────────────────────────────────

    async def _wait_for_recording(self, digests: Sequence[bytes]) -> None:
        """Wait until replies to earlier requests of this history are recorded: a client that has its reply may send
        the next request before that."""
        if self._exchanges:
            before = [self._exchanges[digest] for digest in digests[:-1] if digest in self._exchanges]
            for exchange in before:
                if exchange.is_ending:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(exchange.recorded.wait(), MAX_RECORDING_WAIT_S)

    async def _find_recorded(self, incoming: _Incoming) -> list[KnownSession]:
        """Return what `_find` does. If the request has a reply that the index does not contain, this waits a little
        for other servers that may be recording it."""
        until, delay = monotonic() + MAX_REMOTE_RECORDING_WAIT_S, FIRST_RETRY_DELAY_S
        while True:
            sessions = await self._find(incoming)
            if not sessions or not _has_unknown_reply(incoming.request, sessions[0]):
                return sessions
            own = {exchange.session_id for exchange in self._exchanges.values()}
            names = [
                (self._tenant.name, _CLAIM_PREFIX + found.session)
                for found in sessions
                if found.session not in own
            ]
            if not names or monotonic() > until:
                return sessions
            if len(await self._runtime.locks.unlocked(names)) == len(names):
                return await self._find(incoming)  # what they recorded is in the index before they release
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_RETRY_DELAY_S)

    async def _find(self, incoming: _Incoming) -> list[KnownSession]:
        """Return the sessions that contain the longest beginning of a history."""
        request = incoming.request
        for at in range(len(request.digests) - 1, -1, -1):
            conversation, _ = self._open.get(self._last_digests.find(request.digests[at]), (None, None))
            last = None if conversation is None else conversation.last_message
            if conversation is not None and last is not None and last.digest == request.digests[at]:
                if await self._is_of_another_user(conversation.id, incoming):
                    break  # the user may have an equal one
                return [KnownSession(conversation.id, last)]
            if is_from_model(request.messages[at]):
                break  # another session may contain this model message: search the index
        await self._pending.write_all()
        return await self._index.find(self._tenant.name, list(dict.fromkeys(request.digests)))

    async def _is_of_another_user(self, id: str, incoming: _Incoming) -> bool:
        """Return whether a session has words or the memory of another user than this request names; with a token of
        a user, also whether it is of no user. The answer stays the same while the session is locked."""
        if not incoming.user:
            return False
        conversation, _ = self._open.get(id, (None, None))
        if conversation is not None and conversation.users == {incoming.user}:
            return False
        users = await self._runtime.inbox.users_of(self._tenant.name, id)
        return users != {incoming.user} if incoming.is_bound else not users <= {incoming.user}

    async def _find_summarised(
        self, request: ClientRequest, sessions: Sequence[KnownSession]
    ) -> list[KnownSession]:
        """Return the sessions that the newest summary in a request was made of, if it is no part of the history
        that these `sessions` contain."""
        known = count_up_to(request.digests, sessions[0].end.digest) if sessions else 0
        summary = request.newest_summary(known)
        if summary is None:
            return []
        await self._pending.write_all()
        return await self._index.find(self._tenant.name, [summary_digest(summary)])

    async def _continue_summarised(self, made: KnownSession, incoming: _Incoming) -> Exchange | None:
        """Continue a session after a summary that the provider made of it, or a fork if it has gone on since; None
        if the session is gone, or of another user."""
        request = incoming.request
        try:
            with await self._claim(made.session, made) as claim:
                async with self._lock(made.session):
                    if await self._is_of_another_user(made.session, incoming):
                        return None
                    await self._ask_again(made.session, claim)
                    conversation = await self._current(made.session, incoming)
                    last, is_free = conversation.last_message, conversation.exchange is None and claim.is_held
                    if last is not None and last.seq == made.end.seq and is_free:
                        known = conversation.count_known(request.digests)
                        count = conversation.count_up_to(request.digests[known - 1]) if known else 0
                        chunks = request.chunks(known)
                        return await self._record(
                            conversation, incoming, known, chunks, claim, rewind_to=count
                        )
            return await self._fork(made, 0, incoming, (), is_summary=True)
        except (SessionGone, UnknownSession):
            await self.delete_session(made.session)
            return None

    async def _continue(
        self, found: KnownSession, incoming: _Incoming, *, has_equals: bool
    ) -> Exchange | None:
        """Continue a session or a fork of it; None if the session is gone, or of another user.
        If other sessions begin equally, a reply that differs is not taken for another form of this session's; and
        nothing is rewound that another exchange may have stored while this request waited for the session."""
        request = incoming.request
        known = count_up_to(request.digests, found.end.digest)
        chunks = request.chunks(known)
        try:
            with await self._claim(found.session, found) as claim:
                async with self._lock(found.session):
                    if await self._is_of_another_user(found.session, incoming):
                        return None
                    was_late = await self._ask_again(found.session, claim)
                    conversation = await self._current(found.session, incoming)
                    count = conversation.count_known(request.digests)
                    if count >= known:  # the conversation may have grown since it was found
                        found = KnownSession(found.session, conversation.find(request.digests[count - 1]))
                        known, chunks = count, request.chunks(count)
                    continuation = conversation.continuation(request, found) if claim.is_held else "fork"
                    is_of_equal = has_equals and _has_unknown_reply(request, found)
                    if continuation == "rewind" and (was_late or is_of_equal):
                        continuation = "fork"
                    forks_instead = continuation == "rewind" and conversation.is_mostly_rewound
                    if continuation != "fork" and not forks_instead:
                        rewind_to = (
                            None if continuation == "append" else conversation.count_up_to(found.end.digest)
                        )
                        return await self._record(
                            conversation, incoming, known, chunks, claim, rewind_to=rewind_to
                        )
            exchange = await self._fork(found, known, incoming, chunks)
            if forks_instead:  # from now on the fork is found instead of the session it was forked from
                await self._index.deprioritise(self._tenant.name, found)
            return exchange
        except (SessionGone, UnknownSession):
            await self.delete_session(found.session)
            return None

    async def _continue_named(self, id: str, incoming: _Incoming) -> Exchange:
        """Continue the session that the client names, also while another request of it is being answered; raises
        `SessionOfAnotherUser`."""
        try:
            with await self._claim(id) as claim:
                async with self._lock(id):
                    return await self._record_named(id, incoming, claim)
        except SessionGone:
            raise UnknownSession(id) from None

    async def _record_named(self, id: str, incoming: _Incoming, claim: ExchangeClaim) -> Exchange:
        request = incoming.request
        if id not in self._open:
            await self._create_named(id, incoming)
        # Several users whom only bodies name may speak in a session that their client has named.
        shows_memory = incoming.memory is not None and self._tenant.has_memories
        if (incoming.is_bound or shows_memory) and await self._is_of_another_user(id, incoming):
            raise SessionOfAnotherUser
        conversation = await self._current(id, incoming)
        known = conversation.count_known(request.digests)
        chunks = request.chunks(known)
        count = conversation.count_up_to(request.digests[known - 1]) if known else 0
        differs = count < len(conversation.messages) or conversation.has_unindexed_messages
        return await self._record(
            conversation, incoming, known, chunks, claim, rewind_to=count if differs else None
        )

    async def _create_named(self, id: str, incoming: _Incoming) -> None:
        """Create the session unless it exists; raises `SessionExists` if the proxy did not open it."""
        try:
            first = (await self._tenant.fast_store.read(id, first=0, last=0))[0].fact
        except UnknownSession:
            await self._add_user(await self._open_conversation(id, incoming, origin=PROXY_ORIGIN), incoming)
            return
        if isinstance(first, Opened) and first.origin != PROXY_ORIGIN:
            raise SessionExists(id)

    async def _begin_new(self, incoming: _Incoming, chunks: Sequence[MessageChunk]) -> Exchange:
        id = _new_session_id()
        with await self._claim(id) as claim:
            async with self._lock(id):
                conversation = await self._open_conversation(id, incoming, origin=PROXY_ORIGIN, is_new=True)
                return await self._record(conversation, incoming, 0, chunks, claim)

    async def _fork(
        self,
        found: KnownSession,
        known: int,
        incoming: _Incoming,
        chunks: Sequence[MessageChunk],
        *,
        is_summary: bool = False,
    ) -> Exchange:
        """Fork a session after the first `known` messages of a request; with `is_summary`, after a summary in the
        request, and rewind it to what the request has of the messages before that."""
        id, tenant, seq = _new_session_id(), self._tenant.name, found.end.seq
        request = incoming.request
        digests = list(dict.fromkeys(request.digests if is_summary else request.digests[:known]))
        await self._pending.write_all()
        messages = await self._index.find_in_session(tenant, found.session, digests)
        if is_summary:
            messages = [message for message in messages if message.seq < seq]
            known = count_up_to(request.digests, messages[-1].digest) if messages else 0
            chunks = request.chunks(known)
        _, side_state = await self._index.load(tenant, found.session)
        with await self._claim(id) as claim:
            async with self._lock(id):
                await self._runtime.inbox.copy_session_users(tenant, found.session, id)
                await self._tenant.fast_store.fork(found.session, id, at=seq)
                conversation = await self._open_conversation(id, incoming, origin=f"{found.session}@{seq}")
                # The texts of instructions at that event are not known: an empty digest makes them count as edited.
                inherited = [
                    message._replace(text_digest=message.text_digest and b"") for message in messages
                ]
                conversation.load(inherited, instruction_versions_until(side_state, seq), ())
                await self._inherit_reductions(conversation, found)
                rewind_to = len(inherited) if is_summary else None
                return await self._record(
                    conversation, incoming, known, chunks, claim, rewind_to=rewind_to, inherited=inherited
                )

    async def _inherit_reductions(self, conversation: ProxiedConversation, found: KnownSession) -> None:
        """Take over what the session did after the fork to the messages before it."""
        end = await self._tenant.fast_store.end(found.session)
        if end.next_seq - found.end.seq > MAX_INHERITED_EVENTS:
            return
        later = await self._tenant.fast_store.read(found.session, first=found.end.seq + 1)
        turn = found.end.turn
        latest_user = next((message.seq for message in conversation.messages if message.turn == turn), -1)
        facts = reductions_for_fork(later, at=found.end.seq, latest_user=latest_user)
        if facts:
            await conversation.session.append(*facts)

    # ── Recording ────────────────────────────────────────────────────────────────────────────────────

    async def _record(
        self,
        conversation: ProxiedConversation,
        incoming: _Incoming,
        known: int,
        chunks: Sequence[MessageChunk],
        claim: ExchangeClaim,
        *,
        rewind_to: int | None = None,
        inherited: Sequence[IndexedMessage] = (),
    ) -> Exchange:
        """Append what is new, after a rewind to the first `rewind_to` messages if given, and fit. The caller holds
        the session lock."""
        request, is_new = incoming.request, conversation.last_message is None
        await self._add_user(conversation, incoming)
        if (is_new or rewind_to is not None) and self._client_summaries.begin(chunks):
            conversation.mark_client_compacts()
        try:
            rewound = None if rewind_to is None else await conversation.rewind(rewind_to)
            messages = await conversation.append_new(request, known, chunks)
        except BaseException:
            self._drop(conversation.id)  # the next request loads what was stored
            raise
        self._add_to_index(conversation, [*inherited, *messages], rewound=rewound)
        if is_new or inherited:  # from here on, other processes must find it
            await self._pending.write(conversation.id)
        try:
            await self._use_memory(conversation, incoming.memory, has_news=bool(chunks))
            fitted = await conversation.fit(request)
        except BaseException:
            self._pending.schedule_write(conversation.id)
            raise
        exchange = Exchange(conversation, request, fitted, self._exchange_services, claim)
        self._exchanges[exchange.request_digest] = exchange
        return exchange

    async def _add_user(self, conversation: ProxiedConversation, incoming: _Incoming) -> None:
        """Record whose session it is, before any text is: erasing the user must find it."""
        if incoming.user and incoming.user not in conversation.users:
            inbox, place = self._runtime.inbox, (self._tenant.name, conversation.id)
            await inbox.add_session_user(*place, incoming.user)
            conversation.users = await inbox.users_of(*place)

    async def _use_memory(
        self, conversation: ProxiedConversation, asked: MemoryChoice | None, *, has_news: bool
    ) -> None:
        """Show the memory of this request, and obey what its newest message says about remembering. Older messages
        are not heard: a client resends them all, also after an entry was forgotten."""
        session, last = conversation.session, conversation.last_message
        if asked is None or not self._tenant.has_memories:
            session.memories = ()
            return
        memory = self._tenant.memory(asked.user)
        session.memories = (memory,)
        if asked.hears and has_news and last is not None:
            newest = await session.event(last.seq)
            if notes := await obeyed_notes(memory, [newest], session=session.id):
                await session.append(*notes)

    def _exchange_ended(self, exchange: Exchange) -> None:
        self._client_summaries.add(exchange.client_summary)
        if self._exchanges.get(exchange.request_digest) is exchange:
            del self._exchanges[exchange.request_digest]
        id, claim = exchange.session_id, exchange.claim
        writing = self._pending.schedule_write(id)
        if writing is None or not claim.is_held:
            claim.release()
        else:
            self._claims[id] = claim

        def written(task: asyncio.Task[bool]) -> None:
            if self._claims.get(id) is claim:
                del self._claims[id]
                claim.release()
            if exchange.is_stored and not task.cancelled() and task.result():
                self._runtime.store_recovered(self._tenant.name)

        if writing is not None:
            writing.add_done_callback(written)

    def _add_to_index(
        self,
        conversation: ProxiedConversation,
        messages: Sequence[IndexedMessage],
        rewound: int | None = None,
    ) -> None:
        self._update_last_digest(conversation)
        self._pending.add(conversation, messages, rewound=rewound)

    def _update_last_digest(self, conversation: ProxiedConversation) -> None:
        """Let `_find` find an open conversation by its last digest, without a search of the index."""
        self._last_digests.remove(conversation.id)
        if conversation.last_message is not None and conversation.id in self._open:
            self._last_digests.add(conversation.last_message.digest, conversation.id)

    # ── Opening and closing ──────────────────────────────────────────────────────────────────────────

    def _lock(self, id: str) -> AbstractAsyncContextManager[None]:
        return self._runtime.locks.lock(self._tenant.name, id)

    async def _claim(self, id: str, found: KnownSession | None = None) -> ExchangeClaim:
        """Return the claim of a session, which is not held if another exchange has it. It is taken before the
        session lock, which an exchange needs to end. `found` is what the index has of the session: one that ends
        with a reply is not being answered, so another server is about to release it, or has just claimed it."""
        began, delay = monotonic(), FIRST_RETRY_DELAY_S
        while True:
            lock = await self._free_claim(id)
            waited = monotonic() - began
            if lock is not None or self._is_answering(id) or waited > MAX_REMOTE_RECORDING_WAIT_S:
                return ExchangeClaim(lock)
            if waited > MAX_REMOTE_END_WAIT_S and (found is None or not await self._ends_with_reply(found)):
                return ExchangeClaim(None)
            await asyncio.sleep(delay)
            delay = min(delay * 2, MAX_RETRY_DELAY_S)

    async def _ask_again(self, id: str, claim: ExchangeClaim) -> bool:
        """Ask again for a claim that is not held; return whether it is held now. A server that was killed may have
        had both this and the session lock."""
        if claim.is_held:
            return False
        claim.take(await self._free_claim(id))
        return claim.is_held

    async def _free_claim(self, id: str) -> HeldLock | None:
        """Return the lock of a session's claim; None if an exchange has it."""
        if (claim := self._claims.pop(id, None)) is not None:
            return claim.hand_over()
        if self._is_answering(id):
            return None
        return await self._runtime.locks.try_lock(self._tenant.name, _CLAIM_PREFIX + id)

    def _is_answering(self, id: str) -> bool:
        """Return whether this server answers a request of a session."""
        conversation, _ = self._open.get(id, (None, None))
        return conversation is not None and conversation.exchange is not None

    async def _ends_with_reply(self, found: KnownSession) -> bool:
        """Return whether the newest message of a session is a reply."""
        events, _ = await self._tenant.fast_store.read_new(found.session, first=found.end.seq)
        facts = (event.fact for event in reversed(events) if is_message(event.fact))
        return isinstance(next(facts, None), ModelSaid)

    async def _current(self, id: str, incoming: _Incoming) -> ProxiedConversation:
        """Return the conversation of a session, with what other processes have added; raises `SessionGone`."""
        conversation, summariser = self._open.get(id, (None, None))
        if (
            conversation is None
            or summariser is None
            or (conversation.exchange is None and not self._is_current(conversation, incoming.model))
        ):
            await self._pending.write(id)
            return await self._load(await self._open_conversation(id, incoming))
        summariser.use(incoming.send)
        self._open.move_to_end(id)
        newer, erased = await self._tenant.fast_store.read_new(id, first=conversation.session.last + 1)
        if erased:
            raise SessionGone
        return await self._load(conversation) if newer or conversation.is_outdated else conversation

    async def _load(self, conversation: ProxiedConversation) -> ProxiedConversation:
        await self._pending.write_all()
        messages, side_state = await self._index.load(self._tenant.name, conversation.id)
        first = messages[-1].seq + 1 if messages else 0
        end = await self._tenant.fast_store.end(conversation.id)
        if end.erased or first > end.next_seq:
            self._drop(conversation.id)
            raise SessionGone
        newer = await self._tenant.fast_store.read(conversation.id, first=first)
        conversation.load(messages, side_state, newer)
        self._update_last_digest(conversation)
        return conversation

    async def _open_conversation(
        self, id: str, incoming: _Incoming, *, origin: str = "", is_new: bool = False
    ) -> ProxiedConversation:
        model = incoming.model
        settings = self._settings(model)
        steps_back = not is_new and await self._index.has_side_state(self._tenant.name, id, COMPACTS_KEY)
        if steps_back:
            settings["policy"] = only_when_forced(settings["policy"])
        summariser = UpstreamSummariser(model.name, incoming.send, self._check, incoming.request.dialect)
        session = await Session.open(
            self._tenant.fast_store,
            id,
            model=model,
            origin=origin,
            summarise=[
                *([summariser.native] if self._runtime.config.summarises_natively else []),
                *self._tenant.summarisers(),
                summariser.summariser,
            ],
            on_reduction=self._tenant.reduction_hook(id),
            clock=self._runtime.clock,
            options=self._tenant.session_options(id),
            is_new=is_new,
            **settings,
        )
        conversation = ProxiedConversation(
            session, model, reserve=settings.get("reserve"), steps_back=steps_back
        )
        conversation.config = self._runtime.config
        summariser.connect(conversation)
        await self._keep_open(conversation, summariser)
        return conversation

    def _is_current(self, conversation: ProxiedConversation, model: Model) -> bool:
        """Return whether a conversation was opened with this model, the configuration of now, and the policy that
        its client needs."""
        return (
            conversation.model == model
            and conversation.config is self._runtime.config
            and conversation.steps_back is conversation.client_compacts
        )

    def _settings(self, model: Model) -> dict[str, Any]:
        """Return the configured settings of sessions with a model."""
        if self._runtime.config is not self._settings_of:
            self._settings_of = self._runtime.config
            self._known_settings.clear()
        if model.name not in self._known_settings or self._known_settings[model.name][0] != model:
            if len(self._known_settings) >= MAX_KNOWN_SETTINGS:
                self._known_settings.clear()
            settings = self._runtime.config.session(model)
            if settings.get("window"):  # its upstream may have stated a smaller one
                settings["window"] = min(settings["window"], model.window)
            if not (self._runtime.config.summarises_natively or self._tenant.summarisers()):
                # These summaries were not asked for: they must not cost more than they are worth.
                share = self._runtime.config.get("server.summary_cost_share")
                settings["policy"] = replace(settings["policy"], summary_cost_share=share)
            self._known_settings[model.name] = model, settings
        return dict(self._known_settings[model.name][1])

    async def _keep_open(self, conversation: ProxiedConversation, summariser: UpstreamSummariser) -> None:
        """Keep a conversation open, and close the least recently used ones above the limit."""
        old = self._open.pop(conversation.id, None)
        self._open[conversation.id] = (conversation, summariser)
        busy = len(self._exchanges) + self._starting - 1  # those of the other requests
        surplus = len(self._open) - busy - MAX_IDLE_CONVERSATIONS
        if surplus > 0:
            idle = [
                id
                for id, (other, _) in self._open.items()
                if other.exchange is None and other is not conversation
            ]
            for id in idle[:surplus]:
                self._drop(id)
        if old is not None:
            await old[0].session.close()

    def _drop(self, id: str) -> None:
        """Close a conversation in the background."""
        conversation, _ = self._open.pop(id, (None, None))
        self._last_digests.remove(id)
        if conversation is not None:
            self._pending.start(conversation.session.close())

    async def delete_session(self, id: str) -> None:
        """Forget a session that is or will be deleted."""
        self._drop(id)
        await self._pending.discard(id)
        await self._index.delete_session(self._tenant.name, id)


def _has_unknown_reply(request: ClientRequest, found: KnownSession) -> bool:
    """Return whether the message of a request after the known history is from a model."""
    known = count_up_to(request.digests, found.end.digest)
    return known < len(request.messages) and is_from_model(request.messages[known])


def _new_session_id() -> str:
    return f"d-{token_hex(16)}"


# ── All tenants ──────────────────────────────────────────────────────────────────────────────────────


class ProxyConversations:
    """The proxied conversations of all tenants. Those of tenants that are not used are closed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._index = DigestIndex(service.runtime.database)
        self._tenants: RecentlyUsed[str, TenantConversations] = RecentlyUsed(
            MAX_IDLE_TENANTS, is_busy=lambda conversations: conversations.is_busy
        )
        self._closing: dict[str, asyncio.Task[None]] = {}
        service.runtime.add_delete_hook(self._delete_session)
        days: int = service.runtime.config.get("server.proxy_retention_days")
        self.retention: ProxyRetention = ProxyRetention(service, self._index, days=days)
        self._sweeping = asyncio.create_task(self.retention.run()) if days else None

    def tenant(self, name: str) -> TenantConversations:
        """Return the conversations of a tenant."""
        known = self._tenants.get(name)
        if known is None:
            tenant = self._service.tenant(name)
            known = TenantConversations(
                self._service.runtime, tenant, self._index, predecessor=self._closing.get(name)
            )
        for idle in self._tenants.add(name, known):
            self._start_closing(idle)
        if self.open_count > MAX_IDLE_CONVERSATIONS and len(self._tenants) > 1:
            for idle in self._tenants.remove_oldest():
                self._start_closing(idle)
        return known

    @property
    def open_count(self) -> int:
        return sum(conversations.open_count for conversations in self._tenants.values())

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        for conversations in self._tenants.values():
            await conversations.close()
        if self._closing:
            await asyncio.wait(self._closing.values())

    def _start_closing(self, conversations: TenantConversations) -> None:
        name = conversations.tenant_name
        task = self._closing[name] = asyncio.create_task(conversations.close())

        def forget(ended: asyncio.Task[None]) -> None:
            if self._closing.get(name) is ended:
                del self._closing[name]

        task.add_done_callback(forget)

    async def _delete_session(self, tenant: str, session: str) -> None:
        await self.tenant(tenant).delete_session(session)
