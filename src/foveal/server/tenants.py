"""A tenant: sessions that only this tenant uses.

A session that is used anywhere in this process is found here. One that is not used stays open while it is among the
most recently used ones of all tenants; then it is opened again on its next use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any, Final, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from msgspec.structs import replace

from foveal.agent.log_recall import branch_tools, managing_tools, memory_tools, recall_tools
from foveal.agent.loop import Agent
from foveal.agent.tool import Tool, Toolbox
from foveal.config import Config
from foveal.config.keys import denied_tools
from foveal.core.compaction.summariser import Summariser
from foveal.core.engine.reviews import ReductionHook
from foveal.core.engine.settings import resolve_settings
from foveal.core.log.events import MEMORY_LOG_PREFIX, AnyFact, Event, Instructed, Opened, UserSaid
from foveal.core.models.model import Model
from foveal.core.policies import Policy
from foveal.core.reduction.truncation import Limits
from foveal.errors import (
    AgentRemoved,
    AnsweredElsewhere,
    BadSetting,
    FovealError,
    ProviderError,
    SessionExists,
    UnknownSession,
)
from foveal.memory.fold import MemoryEntry
from foveal.memory.memory import Memory
from foveal.ports import Provider, SessionEnd, SessionInfo, Store
from foveal.providers.ollama_window import ensure_ollama_window
from foveal.providers.summariser import native_summariser_for, summariser_for
from foveal.server.budgets import BudgetedProvider, Spender
from foveal.server.chat_markers import OwnMessages, author_of, with_own_words
from foveal.server.chat_questions import MAX_QUESTION_CHARS
from foveal.server.chat_records import Chats, find_place
from foveal.server.inbox import CONFIGURED_SETUP, InboxEntry, SessionSetup
from foveal.server.live_session import LiveSession, TurnListener
from foveal.server.recently_used import RecentlyUsed
from foveal.server.runtime import LOG, EventsStored, Runtime, UnavailableProvider
from foveal.sessions.continuation import Carry, carried_facts
from foveal.sessions.event_writer import SessionOptions
from foveal.sessions.log_reader import last_opened, read_slices
from foveal.sessions.session import Session
from foveal.stores import check_tenant_name

MAX_SESSION_ID_CHARS: Final = 200
SESSIONS_PER_READ: Final = 1_000
"""Sessions that are read at once where those of one user are looked for."""
MAX_IDLE_MEMORIES: Final = 256
"""Memories of a tenant's users that stay in memory while they are not used."""
MAX_CHAT_RESULT_TOKENS: Final = 8_000
"""Tokens of a tool's result that the model sees in a chat, if they are less than this share of the window."""
MAX_CHAT_RESULT_SHARE: Final = 0.1
PROXY_ORIGIN: Final = "drop-in"
"""Origin of sessions that the proxy opened for clients which resend their whole history; stored in logs."""
DEFAULT_SYSTEM_PROMPT: Final = files("foveal.server").joinpath("system.md").read_text("utf-8").strip()
CHAT_NOTICE: Final = files("foveal.server").joinpath("chat_notice.md").read_text("utf-8").strip()
CHAT_SYSTEM_PROMPT: Final = f"{DEFAULT_SYSTEM_PROMPT}\n\n{CHAT_NOTICE}"
"""For sessions of the chat gateways: it explains the lines that a gateway adds to a message."""

CHAT_DENIAL: Final = (
    "This call was not run: the owner of the bot did not allow it or did not answer in time, or its arguments have "
    f"more than {MAX_QUESTION_CHARS:,} characters. Say so, and do not try the same in another way."
)


class _Answering(NamedTuple):
    """What answers in a session."""

    agent: str
    """The agent of the configuration; "" for the server's own settings."""
    config: Config
    provider: Provider


class ErasedUser(NamedTuple):
    """What was erased of a user beside the memory, and what was not."""

    sessions: list[str]
    """The ids of the erased sessions."""
    kept: dict[str, int]
    """Messages of the user that stay, by the id of the session."""


class Tenant:
    def __init__(self, runtime: Runtime, name: str) -> None:
        self.name: str = check_tenant_name(name)
        self.store: Store = runtime.storage.open_store(name)
        self.fast_store: Store = runtime.storage.open_store(name, durable=False)
        """The same sessions. For those of proxy clients appending does not wait for the disk, because these clients
        hold their history themselves."""
        self.runtime: Runtime = runtime
        self.turn_listeners: list[TurnListener] = []
        self._live_sessions: WeakValueDictionary[str, LiveSession] = WeakValueDictionary()
        self._memories: WeakValueDictionary[str, Memory] = WeakValueDictionary()
        self._recent_memories: RecentlyUsed[str, Memory] = RecentlyUsed(MAX_IDLE_MEMORIES)

    # ── Sessions ─────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        id: str = "",
        setup: SessionSetup = CONFIGURED_SETUP,
        *,
        title: str = "",
        system: str = "",
        continue_from: str = "",
        carry: Carry = "record",
    ) -> LiveSession:
        """Create a session; raises `SessionExists`. It takes over a record of session `continue_from`, if given;
        raises `BadSetting` if that one has words of another user."""
        id = check_session_id(id or new_session_id())
        setup = self._complete_setup(id, setup)
        begin: list[AnyFact] = [Instructed(content=system or self._system_prompt(id, setup))]
        if continue_from:
            begin += await self._carried_facts(continue_from, carry, setup, begin)
        async with self.runtime.locks.lock(self.name, id):
            if await self._end(id) is not None:
                raise SessionExists(id)
            if continue_from:
                await self.runtime.inbox.copy_session_users(self.name, continue_from, id)
            return await self._create(id, setup, title=title, begin=begin, origin=continue_from)

    async def session(self, id: str) -> LiveSession:
        """Return an existing session; raises `UnknownSession`."""
        end = await self._end(id)
        if end is None or end.erased:
            self._drop(id)  # another process may have erased it
            raise UnknownSession(id)
        return self._known(id) or self._keep(await self._open(id))

    async def find_message(self, id: str, *, key: str) -> InboxEntry | None:
        """Return the message of a session with a key, answered or not; None if it was not stored."""
        return await self.runtime.inbox.find(self.name, id, key=self.runtime.storable_key(key))

    async def ensure(self, id: str, *, title: str = "", agent: str = "", user: str = "") -> LiveSession:
        """Return the session, created on first use with this agent and user; raises `UnknownSession` if
        it was erased."""
        if self._known(id) is not None:
            return await self.session(id)
        async with self.runtime.locks.lock(self.name, check_session_id(id)):
            end = await self._end(id)
            if end is None:
                setup = self._complete_setup(id, SessionSetup(agent=agent, user=user))
                begin = [Instructed(content=self._system_prompt(id, setup))]
                return await self._create(id, setup, title=title, begin=begin)
        return await self.session(id)

    async def model(self, id: str) -> Model:
        """Return the model that answers in a session, or would if the session existed, with the configured window;
        raises `ProviderError`."""
        answering = await self._answering(id)
        window = answering.config.get("window")
        return replace(answering.provider.model, window=window or answering.provider.model.window)

    async def agents(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the agents of those of these sessions that have one."""
        return await self.runtime.inbox.session_agents(self.name, ids)

    async def is_erased(self, id: str) -> bool:
        """Return whether the session existed and was erased."""
        end = await self._end(id)
        return end is not None and end.erased

    async def sessions(
        self, *, limit: int | None = None, before: tuple[float, str] | None = None, user: str = ""
    ) -> list[SessionInfo]:
        """Return a page of sessions that are not erased, the most recently active first; see `Store.sessions`. With
        `user`, only those whose only user this is."""
        if not user:
            return await self.store.sessions(limit=limit, before=before, with_erased=False)
        own = set(await self.runtime.inbox.sessions_of(self.name, user, alone=True))
        found: list[SessionInfo] = []
        while len(found) < (len(own) if limit is None else min(limit, len(own))):
            page = await self.store.sessions(limit=SESSIONS_PER_READ, before=before, with_erased=False)
            found += [info for info in page if info.id in own]
            if len(page) < SESSIONS_PER_READ:
                break
            before = page[-1].active, page[-1].id
        return found[:limit]

    async def fork(self, id: str, new: str = "", *, at: int | None = None) -> LiveSession:
        """Create a session from another's events up to `at`, or all of them."""
        live, new = await self.session(id), check_session_id(new or new_session_id())
        async with self.runtime.locks.lock(self.name, new):
            if await self._end(new) is not None:
                raise SessionExists(new)
            await live.session.fork(new, at=at)
            setup = await self.runtime.inbox.session_setup(self.name, id) or CONFIGURED_SETUP
            await self.runtime.inbox.set_session_setup(self.name, new, setup)
            await self.runtime.inbox.copy_session_users(self.name, id, new)
            return self._keep(await self._open(new))

    async def delete(self, id: str) -> None:
        """Stop the running turn and erase the session's text permanently; its id cannot be used again."""
        live = await self.session(id)
        with live.deleting():
            await self.runtime.run_delete_hooks(self.name, id)
            async with self.runtime.locks.lock(self.name, id):
                await live.session.delete()
                await self.runtime.inbox.delete_session(self.name, id)
                if find_place(self.name, id) is not None:
                    await Chats(self.runtime.database).forget_session(self.name, id)
        self._drop(id)
        await live.close()

    async def close(self) -> None:
        for live in list(self._live_sessions.values()):
            await live.close()
        await self.store.close()
        await self.fast_store.close()

    @property
    def live_sessions(self) -> list[LiveSession]:
        """The sessions that are open in this process."""
        return list(self._live_sessions.values())

    def add_turn_listener(self, listener: TurnListener) -> None:
        """Call `listener` after each turn that this process runs, in any session of the tenant."""
        self.turn_listeners.append(listener)

    def remove_turn_listener(self, listener: TurnListener) -> None:
        self.turn_listeners.remove(listener)

    # ── Users ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def has_memories(self) -> bool:
        """Whether the server remembers what users ask to be remembered."""
        return bool(self.runtime.config.get("server.memory"))

    def memory(self, user: str) -> Memory:
        """Return the memory of a user of this tenant. It hears nothing itself: a turn passes the words of its user
        to it, without the quotes of others."""
        memory = self._memories.get(user)
        if memory is None:
            budget: int = self.runtime.config.get("server.memory_budget")
            memory = Memory(user, store=self.store, budget=budget, hears=False, clock=self.runtime.clock)
            self._memories[user] = memory
        self._recent_memories.add(user, memory)
        return memory

    async def propose(self, live: LiveSession) -> list[MemoryEntry]:
        """Propose what the user of a session stated in it, and return the new proposals; none if several people
        speak there."""
        if not live.user or not self.has_memories:
            return []
        behind = await live.session.left_behind()
        events = [with_own_words(event) for event in await live.events() if event.seq not in behind]
        return await self.memory(live.user).propose(events, session=live.id)

    async def erase_user(self, user: str, *, keeps_shared: bool = False) -> ErasedUser:
        """Erase the user's memory, the sessions that were created for the user, those in which drop-in clients have
        named the user, and the chats in which only this user spoke. A log cannot lose single messages, so those in
        chats with other people stay; with `keeps_shared`, also those in sessions for which a client has named
        others as well."""
        groups, inbox = await self._groups_of(user), self.runtime.inbox
        kept = {id: count for id, (count, is_alone) in groups.items() if not is_alone}
        named = await inbox.sessions_of(self.name, user)
        if keeps_shared:
            for id in set(named) - set(groups):
                if await inbox.users_of(self.name, id) != {user}:
                    written = await self._count_by_author(id, end=(await self.store.end(id)).next_seq)
                    kept[id] = written[user] + written[""]
        sessions = {*named, *groups} - {*kept}
        for id in sorted(sessions):
            with suppress(UnknownSession):  # another process has erased it
                await self.delete(id)
        await self.memory(user).erase()
        await self.runtime.usage.forget_user(self.name, user)
        await self.runtime.budgets.forget_user(self.name, user)
        return ErasedUser(sorted(sessions), kept)

    async def _groups_of(self, user: str) -> dict[str, tuple[int, bool]]:
        """Return the sessions of groups in which a user wrote messages: their number, and whether all messages are
        the user's. The logs name the authors."""
        found: dict[str, tuple[int, bool]] = {}
        for info in await self.sessions():
            if find_place(self.name, info.id) is None:
                continue
            written = await self._count_by_author(info.id, end=info.events)
            if user in written:
                found[info.id] = written[user], len(written) == 1
        return found

    async def _count_by_author(self, id: str, *, end: int) -> Counter[str]:
        """Return how many messages of users a session has, by their authors; those that name none count as ""."""
        written: Counter[str] = Counter()
        async for events in read_slices(self.store, id, first=0, end=end):
            written.update(author_of(e.fact.content) for e in events if isinstance(e.fact, UserSaid))
        return written

    async def _check_same_user(self, origin: str, user: str, *, end: int) -> None:
        """Raise `BadSetting` if a session has words or the memory of another user: they must not reach this one.
        Without a user, or from a session without one, it is not known whose words they are, and the caller
        decides."""
        if not user:
            return
        users = await self.runtime.inbox.users_of(self.name, origin)
        if find_place(self.name, origin) is not None:
            users |= (await self._count_by_author(origin, end=end)).keys() - {""}
        if not users <= {user}:
            raise BadSetting("continue_from", origin, "this session has words or the memory of another user")

    async def _author_of(self, entry: InboxEntry, *, user: str) -> str:
        """Return the user who wrote a message: that of the session, or in a chat the author, because several people
        may speak there; "" if that is not known."""
        if user or find_place(self.name, entry.session) is None:
            return user
        message = await Chats(self.runtime.database).find_message(self.name, entry.key)
        is_written = message is not None and message.author and message.session == entry.session
        return str(message.author) if message is not None and is_written else ""

    # ── Opening ──────────────────────────────────────────────────────────────────────────────────────

    def reduction_hook(self, id: str) -> ReductionHook | None:
        """Return what asks the operator's webhook before each cut of a session; None without a webhook."""
        webhook = self.runtime.webhook
        return None if webhook is None else partial(webhook.ask, tenant=self.name, session=id)

    def session_options(
        self, id: str, *, prepares_summaries: Callable[[], bool] = lambda: True
    ) -> SessionOptions:
        """Return the options of this tenant's sessions: redaction, and reporting of stored events."""

        def watch(events: Sequence[Event]) -> None:
            self.runtime.emit(EventsStored(tenant=self.name, session=id, events=tuple(events)))

        return SessionOptions(
            redact=self.runtime.redact, on_stored=watch, prepares_summaries=prepares_summaries
        )

    def _complete_setup(self, id: str, setup: SessionSetup = CONFIGURED_SETUP) -> SessionSetup:
        """Return what a new session is created with: the agent of a chat's is the bot's, if none is named."""
        if setup.agent or find_place(self.name, id) is None:
            return setup
        return setup._replace(agent=self.runtime.config.bot_agent(self.name))

    def _system_prompt(self, id: str, setup: SessionSetup) -> str:
        """Return the system prompt of a new session: that of a chat is the same whatever creates it."""
        default = DEFAULT_SYSTEM_PROMPT if find_place(self.name, id) is None else CHAT_SYSTEM_PROMPT
        return self.runtime.config_of(setup.agent).system_text(default)

    async def _end(self, id: str) -> SessionEnd | None:
        try:
            return await self.store.end(id)
        except UnknownSession:
            return None

    async def _carried_facts(
        self, origin: str, carry: Carry, setup: SessionSetup, begin: Sequence[AnyFact]
    ) -> list[AnyFact]:
        """Return what a new session takes over from another; raises `UnknownSession` also for an erased one, and
        `BadSetting` for one of another user."""
        end = await self._end(origin)
        if end is None or end.erased:
            raise UnknownSession(origin)
        await self._check_same_user(origin, setup.user, end=end.next_seq)
        provider = self.runtime.provider(setup.model, agent=setup.agent)
        await ensure_ollama_window(provider)
        known = provider.model
        settings = self.runtime.config_of(setup.agent).session(known)
        settings.pop("prompt", None)
        return await carried_facts(
            self.store, origin, resolve_settings(known, **settings), carry=carry, begin=begin
        )

    async def _create(
        self, id: str, setup: SessionSetup, *, title: str, begin: Sequence[AnyFact], origin: str = ""
    ) -> LiveSession:
        self.runtime.provider(setup.model, agent=setup.agent)  # raises before anything is stored
        await self.runtime.inbox.set_session_setup(self.name, id, setup)
        live = await self._open(id, begin=begin, origin=origin)
        if title:
            await live.rename(title)
        return self._keep(live)

    async def _open(self, id: str, *, begin: Sequence[AnyFact] = (), origin: str = "") -> LiveSession:
        runtime = self.runtime
        agent_name, config, provider = await self._answering(id)
        setup = await runtime.inbox.session_setup(self.name, id) or SessionSetup()
        spender = Spender(self.name, user=setup.user, conversation=id, agent=agent_name)

        async def memory_of(entry: InboxEntry) -> Memory | None:
            """Let the author of a message spend, and return the author's memory."""
            nonlocal spender
            author = await self._author_of(entry, user=setup.user)
            spender = spender._replace(user=author)
            return self.memory(author) if author and self.has_memories else None

        def budgeted(provider: Provider) -> Provider:
            if isinstance(provider, UnavailableProvider) or not runtime.budgets.limit_tenant(self.name):
                return provider
            return BudgetedProvider(provider, runtime.budgets, lambda: spender)

        provider = budgeted(provider)
        memories = [self.memory(setup.user)] if setup.user and self.has_memories else []
        own = runtime.chat_tools.get(self.name, ()) if find_place(self.name, id) is not None else ()
        session = await Session.open(
            self.store,
            id,
            model=provider.model,
            memory=memories,
            origin=origin,
            summarise=[
                *([native_summariser_for(provider)] if config.summarises_natively else []),
                *self.summarisers(agent_name if agent_name in runtime.config.agents else "", budgeted),
                summariser_for(provider),
            ],
            on_reduction=self.reduction_hook(id),
            clock=runtime.clock,
            options=self.session_options(id, prepares_summaries=lambda: runtime.request_summary is None),
            begin=begin,
            **_session_settings(config, provider.model, own),
        )
        learning = self._learning_tools(session, setup, memories)
        if config.get("tools.branches"):
            own = [*own, *branch_tools(session)]
        managing = managing_tools(session) if config.get("context.model_cuts") else []
        tools = [
            *own,
            *learning,
            *managing,
            *recall_tools(session, counting=session.counter, memories=memories),
        ]
        denied = denied_tools([tool.name for tool in tools], config.get("tools.deny"))
        offered = Toolbox([tool for tool in tools if tool.name not in denied])
        agent = Agent(
            session,
            provider,
            offered
            if learning or own or managing
            else Toolbox(()),  # beside other tools, those of recall move no prefix later
            recall_tools=offered,
            max_tool_iterations=config.get("max_tool_iterations"),
            denied_result=CHAT_DENIAL,
            hooks=[provider.tell_model] if isinstance(provider, BudgetedProvider) else [],
        )
        return LiveSession(
            self,
            agent,
            agent_name=agent_name,
            user=setup.user,
            memories=memories,
            memory_of=memory_of,
            pauses_on_disconnect=config.get("on_disconnect") == "pause",
        )

    def _learning_tools(
        self, session: Session, setup: SessionSetup, memories: Sequence[Memory]
    ) -> list[Tool]:
        """Return the tools `remember` and `forget`, if it is known who speaks in the session and they are on."""
        is_chat = find_place(self.name, session.id) is not None
        if not self.has_memories or not self.runtime.config.get("server.memory_tools"):
            return []
        own = OwnMessages(session, memories, is_group=not setup.user)
        return memory_tools(memories, own) if setup.user or is_chat else []

    async def _answering(self, id: str) -> _Answering:
        """Return what answers in a session. A provider that is unavailable raises its error only when a turn asks
        it, and so does one of an agent that the configuration no longer has."""
        runtime = self.runtime
        setup = await runtime.inbox.session_setup(self.name, id)
        if setup is None and (model := await self._proxied_model(id)):
            text = f"session {id!r} belongs to a proxy client, which resends its history: continue in a fork of it"
            return self._unavailable(model, AnsweredElsewhere(text))
        setup = setup or self._complete_setup(id)
        if setup.agent and setup.agent not in runtime.config.agents:
            opened = None if await self._end(id) is None else await last_opened(self.store, id)
            problem = AgentRemoved(id, agent=setup.agent, known=runtime.config.agents)
            return self._unavailable(opened.model if opened else setup.model, problem, agent=setup.agent)
        config = runtime.config_of(setup.agent)
        try:
            provider = runtime.provider(setup.model, agent=setup.agent)
            await ensure_ollama_window(provider)
        except ProviderError as problem:
            provider = UnavailableProvider(
                setup.model or config.model, str(problem), window=config.get("window"), code=problem.code
            )
        return _Answering(setup.agent, config, provider)

    def _unavailable(self, model: str, refusal: FovealError, *, agent: str = "") -> _Answering:
        """Return what refuses all messages of a session."""
        config = self.runtime.config
        provider = UnavailableProvider(model, window=config.get("window"), refusal=refusal)
        return _Answering(agent, config, provider)

    async def _proxied_model(self, id: str) -> str:
        """Return the model that a proxy client uses in a session; "" for a session of the server itself."""
        if await self._end(id) is None:
            return ""
        first = (await self.store.read(id, first=0, last=0))[0].fact
        if not isinstance(first, Opened) or first.origin != PROXY_ORIGIN:
            return ""
        newest = await last_opened(self.store, id)
        return (newest or first).model

    def summarisers(
        self, agent: str = "", budgeted: Callable[[Provider], Provider] = lambda provider: provider
    ) -> list[Summariser]:
        """Return the configured summariser if it is available; the session's own model is tried after it.
        `budgeted` has its requests counted."""
        other = self.runtime.config_of(agent).summariser
        try:
            return [summariser_for(budgeted(self.runtime.provider(other, agent=agent)))] if other else []
        except ProviderError as problem:
            LOG.error("compaction.model is unavailable: %s", problem.code)
            return []

    def _known(self, id: str) -> LiveSession | None:
        known = self._live_sessions.get(id)
        return known if known is None else self._keep(known)

    def _drop(self, id: str) -> None:
        self._live_sessions.pop(id, None)
        self.runtime.recent_sessions.discard((self.name, id))

    def _keep(self, live: LiveSession) -> LiveSession:
        live = self._live_sessions.setdefault(live.id, live)
        self.runtime.recent_sessions.add((self.name, live.id), live)
        return live


def _session_settings(config: Config, model: Model, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the settings of a session. Of a result of these tools the model sees a part, and can look up the rest,
    unless the configuration has another limit or a policy that shows new results whole."""
    settings = config.session(model)
    policy: Policy = settings["policy"]
    is_set = config.get("context.max_tool_result_tokens") is not None
    if is_set or policy.asks or policy.ladder == "off":
        return settings
    room = int((config.get("window") or model.window) * MAX_CHAT_RESULT_SHARE)
    limits = replace(policy.clip or Limits(), tokens=min(MAX_CHAT_RESULT_TOKENS, room))
    own = {tool.name: limits for tool in tools}
    return settings | {"policy": replace(policy, clip_tools=own | dict(policy.clip_tools))}


def new_session_id() -> str:
    return uuid4().hex


def check_session_id(id: str) -> str:
    """Return a valid session id; raises `BadSetting`."""
    if (
        not 0 < len(id) <= MAX_SESSION_ID_CHARS
        or not id.isprintable()
        or set(id) & set("/\\")
        or id.strip(". ") != id
        or id.startswith(MEMORY_LOG_PREFIX)
    ):
        allowed = (
            f"1 to {MAX_SESSION_ID_CHARS} printable characters without slashes, no space or dot at either end,"
            f" and not {MEMORY_LOG_PREFIX} at the beginning"
        )
        raise BadSetting("id", id[:MAX_SESSION_ID_CHARS], allowed)
    return id
