"""Sessions of the chats of one chat app: messages, commands and buttons in, replies out.

    chats = ChatSessions(service, pairing, platform="telegram", allowed=frozenset({42}))
    message = IncomingMessage(key="telegram-1001", place=ChatPlace(42), user=42, text="Hello")
    async for reply in (await chats.accept(message)).replies:
        await send(reply)

1. A message is stored when `accept` returns, in the order of the calls. Its answer counts as delivered when the
   caller asks for another reply after the last one; until then it is undelivered, also after a crash.
2. A key runs once. A message that arrives again after it was answered gets no reply.
3. Every error becomes a reply, without its secrets.
4. What the model does not get of a message, its place is told (`message_notices`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from foveal.agent.events import (
    BudgetReached,
    ContextReduced,
    LimitReached,
    MemoryChanged,
    ModelAnswered,
    UserMessageStored,
)
from foveal.agent.tool import media_dialect
from foveal.core.engine.report import Report
from foveal.core.models.model import Model
from foveal.core.redaction.redact import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import ContextOverflow, FovealError, NothingToAsk, UnknownSession
from foveal.server.chat_records import CHAT_MESSAGE_TTL_S, ChatMessage, ChatPlace, Chats, find_place
from foveal.server.gateways import texts
from foveal.server.gateways.chat_commands import (
    MEMORY_COMMANDS,
    ChatCommands,
    MemoryCommands,
    RunningTurns,
    reduction_notes,
    turn_reductions,
)
from foveal.server.gateways.chat_files import Fetch, no_fetch, read_files, read_kinds
from foveal.server.gateways.incoming import AccessControl, IncomingMessage
from foveal.server.gateways.model_text import (
    NOTICE_INTERVAL_S,
    message_notices,
    model_text,
    notice_causes,
    with_notices,
)
from foveal.server.gateways.outgoing import (
    MEMORY_ACTION,
    REMOVE_ACTION,
    RETRY_ACTION,
    SHOW_KEPT_ACTION,
    Button,
    ChannelMessage,
    MessageComposer,
    Replies,
    errors_as_replies,
    no_replies,
    text_reply,
)
from foveal.server.gateways.tool_questions import IsAdmin, ToolQuestions, is_answer, never_admin
from foveal.server.inbox import schedule_of_key
from foveal.server.live_session import LiveSession
from foveal.server.pairing import ChatPlatform, Pairing
from foveal.server.service import Service
from foveal.server.turns import Turn

LOG: Final = logging.getLogger("foveal.gateways")
MAX_CHAT_TITLE_CHARS: Final = 60
KEPT_NOTICE: Final = "kept answers"
"""Name under which it is recorded that kept answers were offered."""
_COMMAND: Final = re.compile(r"/([a-zA-Z]+)(?:\s+(.*))?", re.DOTALL)


class PendingAnswer(NamedTuple):
    """Replies that are to be delivered."""

    replies: Replies
    message: ChatMessage | None = None
    """The recorded message that they answer; None for a command, whose output is sent once and not kept."""
    user: int = 0
    """Who wrote it; 0 if that is not known."""


class ChatSessions:
    """The sessions of one chat app; each place has one current session."""

    def __init__(
        self,
        service: Service,
        pairing: Pairing,
        *,
        platform: ChatPlatform,
        allowed: Collection[int],
        footer: bool = True,
        asks_admins: bool = False,
    ) -> None:
        """`asks_admins`: the administrators of a group may allow the calls of tools there."""
        self.platform = platform
        self.owners: tuple[int, ...] = tuple(allowed)
        """The users of the allow-list, who are told what the bot cannot deliver; in the configured order."""
        self._service = service
        self._tenant = service.tenant(platform)
        self._chats = Chats(service.runtime.database)
        self._access = AccessControl(
            pairing, service.runtime.audit, platform=platform, allowed=tuple(allowed)
        )
        self.questions: ToolQuestions = ToolQuestions(
            service.runtime, self._chats, self._access, platform=platform, asks_admins=asks_admins
        )
        """Whether tools may run."""
        self._composer = MessageComposer(footer=footer)
        self._turns = RunningTurns()
        self._commands = ChatCommands(
            self._tenant,
            self._chats,
            platform=platform,
            agents=service.runtime.config.agents,
            composer=self._composer,
            turns=self._turns,
        )
        self._memory_commands = MemoryCommands(self._tenant, storable_text=service.runtime.storable_text)
        self._postponed: set[str] = set()
        """Keys of messages whose chats got an error, or the reply that the answer comes later."""
        self._unrecorded: set[str] = set()
        """Keys of messages whose answers were delivered, which could not be recorded."""
        self._delivering: set[str] = set()
        """Keys of messages whose answers this process is delivering."""

    async def is_allowed(self, user: int) -> bool:
        return await self._access.is_allowed(user)

    async def count_users(self) -> int:
        """Return how many users have access."""
        return await self._access.count_users()

    async def users_to_tell(self, author: int) -> list[int]:
        """Return who may be told what the bot cannot deliver to the author of a message, in the order of trials: an
        author of the allow-list before its other users, and one with a code after them."""
        if author in self.owners:
            return list(dict.fromkeys([author, *self.owners]))
        return [*self.owners, *([author] if await self.is_allowed(author) else [])]

    # ── Input ────────────────────────────────────────────────────────────────────────────────────────

    async def accept(self, message: IncomingMessage, *, fetch: Fetch = no_fetch) -> PendingAnswer:
        """Store a message or command and return its replies, which may take a while to arrive.

        `fetch` returns the files of the message.
        """
        try:
            return await self._accept(message, fetch)
        except FovealError as problem:
            return PendingAnswer(text_reply(texts.not_stored(problem)))
        except Exception as problem:  # noqa: BLE001  (a failure becomes a reply)
            LOG.error("a message of %s was not stored: %s", self.platform, type(problem).__name__)
            return PendingAnswer(text_reply(f"{texts.NOT_STORED}."))

    async def join_keys(self, place: ChatPlace, keys: Sequence[str]) -> list[str]:
        """Return which messages are pieces of one message; see `Chats.join_pieces`."""
        try:
            return await self._chats.join_pieces(self.platform, keys, place=place, now=self.now())
        except FovealError:  # the message cannot be stored either, and its user is told
            return list(keys)

    async def record_move(self, *, old: int, new: int) -> None:
        """Record that a group has a new id; its conversation continues there."""
        await self._chats.record_move(self.platform, old=old, new=new)

    async def _accept(self, message: IncomingMessage, fetch: Fetch) -> PendingAnswer:
        """Store a message or command; its replies begin with the offer of answers that were kept, if there are."""
        answer = await self._accept_input(message, fetch)
        with suppress(FovealError):  # the message is stored; the next one tries again
            offer = await self._kept_offer(message)
            return answer if offer is None else answer._replace(replies=_after(offer, answer.replies))
        return answer

    async def _kept_offer(self, message: IncomingMessage) -> ChannelMessage | None:
        """Return the offer of answers that were kept while the user had blocked the bot; None if there are none, or
        they were offered lately."""
        kept = await self._chats.kept_answers(self.platform, message.place, now=self.now())
        if not kept or not await self.is_allowed(message.user):
            return None
        if not await self.untold_notices(message.place, [KEPT_NOTICE], interval_s=NOTICE_INTERVAL_S):
            return None
        button = Button("Show them" if len(kept) > 1 else "Show it", SHOW_KEPT_ACTION)
        return ChannelMessage(text=texts.kept_answers(len(kept)), buttons=(button,), is_last=False)

    async def _accept_input(self, message: IncomingMessage, fetch: Fetch) -> PendingAnswer:
        text = message.text.strip()
        found = _COMMAND.fullmatch(text)
        name, argument = (found[1].lower(), (found[2] or "").strip()) if found else ("", "")
        if name == "pair":
            return PendingAnswer(text_reply(await self._access.pair(message.user, argument, now=self.now())))
        if not await self.is_allowed(message.user):
            return PendingAnswer(text_reply(texts.no_access(self.platform, message.user)))
        if name in texts.BOT_COMMANDS or name == "start" or (name and "\n" not in text):
            place = message.place
            if not await self._chats.record_command(self.platform, message.key, place=place, now=self.now()):
                return PendingAnswer(no_replies())
            if name in MEMORY_COMMANDS:
                replies = _one_reply(self._memory_commands.run(name, argument, user=message.user))
            else:
                replies = await self._commands.run(name, argument, place=place)
            return PendingAnswer(errors_as_replies(replies), user=message.user)
        if not message.files:
            return await self._answer_message(message)
        with self._turns.fetching(message.place):
            known = await self._chats.find_message(self.platform, message.key)
            is_stored = known is not None and (
                known.is_done or await self._tenant.find_message(known.session, key=message.key) is not None
            )
            message = replace(message, files=()) if is_stored else await self._read_files(message, fetch)
            return await self._answer_message(message)

    async def _answer_message(self, message: IncomingMessage) -> PendingAnswer:
        """Store a message whose files are read, and return its answer and what the model does not get of it."""
        notices = await self._notices(message)
        if not message.has_content:
            replies = text_reply("\n".join(notices)) if notices else no_replies()
            return PendingAnswer(replies, user=message.user)
        answer = await self._submit(message)
        return answer._replace(replies=with_notices(answer.replies, notices)) if notices else answer

    async def _read_files(self, message: IncomingMessage, fetch: Fetch) -> IncomingMessage:
        """Return the message with its files, as far as the model of its session reads them."""
        model = await self._model(message.place)
        files = await read_files(message.files, model, fetch=fetch)
        return replace(message, files=files)

    async def _notices(self, message: IncomingMessage) -> list[str]:
        """Return what the model does not get of a message, in words."""
        read = read_kinds(await self._model(message.place)) if message.unread else []
        causes = notice_causes(message)
        new = await self.untold_notices(message.place, causes, interval_s=NOTICE_INTERVAL_S)
        return message_notices(message, new=new, read=read)

    async def untold_notices(
        self, place: ChatPlace, notices: Iterable[str], *, interval_s: float
    ) -> list[str]:
        """Return the notices that a place has not got within this time; they count as told from now on."""
        now = self.now()
        return await self._chats.untold_notices(self.platform, place, notices, now=now, interval_s=interval_s)

    async def forget_notice(self, place: ChatPlace, notice: str) -> None:
        """Let a place get a notice again."""
        await self._chats.forget_notice(self.platform, place, notice)

    async def _model(self, place: ChatPlace) -> Model:
        """Return the model that answers in a place."""
        return await self._tenant.model(await self._chats.session(self.platform, place))

    async def _submit(self, message: IncomingMessage) -> PendingAnswer:
        content = model_text(message)
        title = one_line(scrub(message.title), width=MAX_CHAT_TITLE_CHARS)
        user = str(message.user) if message.speaker is None else ""  # in a group several people speak

        async def open_session() -> LiveSession:
            session = await self._chats.session(self.platform, message.place)
            try:
                return await self._tenant.ensure(session, title=title, user=user)
            except UnknownSession:  # it was deleted, and its id stays in use
                session = await self._chats.start_next_session(self.platform, message.place, session=session)
                return await self._tenant.ensure(session, title=title, user=user)

        async def submit(live: LiveSession) -> Turn:
            # A message that arrives again may differ: its author has another name, a file is gone.
            dialect = media_dialect(content)
            return await live.submit(content, key=message.key, dialect=dialect, checks_text=False)

        recorded = ChatMessage(
            key=message.key,
            place=message.place,
            session="",
            reply_to=message.reply_to,
            author=message.user,
            place_name=one_line(scrub(message.place_name), width=MAX_CHAT_TITLE_CHARS),
        )
        answer = await self._start_once(recorded, open_session, submit)
        return answer or PendingAnswer(no_replies())

    async def _start_once(
        self,
        new: ChatMessage,
        open_session: Callable[[], Awaitable[LiveSession]],
        start: Callable[[LiveSession], Awaitable[Turn]],
    ) -> PendingAnswer | None:
        """Start the turn of a message, in the session where it started before, if it did.

        The message is recorded before the turn starts: a crash in between leaves a record without a turn, which is
        dropped, and never a turn whose answer is not delivered. Return None if it was answered, or its answer is
        being delivered.
        """
        key = new.key
        if key in self._delivering:
            return None
        self._delivering.add(key)
        turn = None
        try:
            known = await self._chats.find_message(self.platform, key)
            if known is not None and known.is_done:
                return None
            live = await self._recorded_session(known) or await open_session()
            now = self.now()
            message = known or replace(new, session=live.id, at=now)
            await self._chats.record_message(self.platform, message, now=now)
            turn = await start(live)
        finally:
            if turn is None:
                self._delivering.discard(key)
        self._turns.add(new.place, turn)
        return PendingAnswer(errors_as_replies(self._answer(turn, key=key)), message, message.author)

    async def _recorded_session(self, message: ChatMessage | None) -> LiveSession | None:
        """Return the session of a recorded message, unless it was deleted."""
        with suppress(UnknownSession):
            return await self._tenant.session(message.session) if message is not None else None
        return None

    async def refusal(self, user: int, action: str, *, is_admin: IsAdmin = never_admin) -> str:
        """Return why a user may not press a button, which then stays for others; "" if that is allowed."""
        if not await self.is_allowed(user):
            return texts.no_access(self.platform, user)
        return await self.questions.refusal(user, is_admin=is_admin) if is_answer(action) else ""

    async def press_button(
        self, *, place: ChatPlace, user: int, action: str, is_admin: IsAdmin = never_admin
    ) -> PendingAnswer:
        """Run the action of a button, which may be an old one."""
        if refusal := await self.refusal(user, action, is_admin=is_admin):
            return PendingAnswer(text_reply(refusal))
        if is_answer(action):
            reply = _one_reply(self.questions.answer(action))
            return PendingAnswer(errors_as_replies(reply), user=user)
        if action.startswith(MEMORY_ACTION):
            reply = _one_reply(self._memory_commands.press(action, user=user))
            return PendingAnswer(errors_as_replies(reply), user=user)
        if action == SHOW_KEPT_ACTION:
            return PendingAnswer(errors_as_replies(self._show_kept(place)), user=user)
        if not action.startswith(RETRY_ACTION):
            return PendingAnswer(errors_as_replies(self._commands.press(action, place=place)), user=user)
        try:
            return await self._retry(action.removeprefix(RETRY_ACTION), place=place, user=user)
        except UnknownSession:
            return PendingAnswer(text_reply(texts.NO_MESSAGES))
        except FovealError as problem:
            return PendingAnswer(text_reply(texts.error(problem)))

    async def _retry(self, failed: str, *, place: ChatPlace, user: int) -> PendingAnswer:
        """Ask the model again, once for each failed turn."""
        session = await self._chats.session(self.platform, place)
        key = f"{self.platform}-again-{session}-{failed}"
        old = PendingAnswer(text_reply(texts.OLD_BUTTON))

        async def open_session() -> LiveSession:
            return await self._tenant.session(session)

        async def start(live: LiveSession) -> Turn:
            return await live.retry(key=key)

        try:
            message = ChatMessage(key=key, place=place, session="", author=user)
            return await self._start_once(message, open_session, start) or old
        except NothingToAsk:  # the last turn did not fail
            return old

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────────

    async def undelivered(self, *, min_age_s: float = 0.0) -> list[PendingAnswer]:
        """Return the answers of this age that were not delivered, such as after a crash, and are not being sent."""
        now, owed = self.now(), list[ChatMessage]()
        for message in await self._chats.undelivered(self.platform, now=now):
            if message.key in self._delivering | self._unrecorded or now - message.at < min_age_s:
                continue
            entry = await self._tenant.find_message(message.session, key=message.key)
            if entry is None:  # a crash came first: the chat app may send the message again
                await self._chats.forget_message(self.platform, message.key)
            elif entry.state == "done" or message.key not in self._postponed:
                owed.append(message)
        owed = [message for message in owed if message.key not in self._delivering]
        keys = {message.key for message in owed}
        self._delivering |= keys
        self._postponed -= keys  # another server has answered them
        return [
            PendingAnswer(errors_as_replies(self._late_answer(message)), message, message.author)
            for message in owed
        ]

    async def _late_answer(self, message: ChatMessage) -> Replies:
        live = await self._recorded_session(message)
        turn = None if live is None else await live.find_turn_of(message.key)
        if turn is None:  # the session was deleted meanwhile
            self._delivering.discard(message.key)
            await self._chats.mark_done(self.platform, message.key, now=self.now())
            return
        async with aclosing(self._answer(turn, key=message.key)) as replies:
            async for reply in replies:
                yield reply

    async def keep_answer(self, message: ChatMessage) -> None:
        """Keep an answer whose user has blocked the bot, to be offered with the next message of the user."""
        await self._chats.keep_answer(self.platform, message)
        await self.forget_notice(message.place, KEPT_NOTICE)

    async def _show_kept(self, place: ChatPlace) -> Replies:
        """Yield the answers that were kept for a place; each is kept until it is delivered."""
        kept = await self._chats.kept_answers(self.platform, place, now=self.now())
        if not kept:
            yield ChannelMessage(text=texts.NOTHING_KEPT)
        for message in kept:
            async with aclosing(self._late_answer(message)) as replies:
                async for reply in replies:
                    yield reply

    async def unrequested_answer(self, live: LiveSession, turn: Turn) -> PendingAnswer | None:
        """Return the answer of a turn that has ended and for which no reply is waiting, or None.

        Such a turn belongs to a schedule, or was postponed. Its answer is recorded like any other, so that it is
        delivered later if it cannot be delivered now.
        """
        place = find_place(self.platform, live.id)
        is_from_chat = turn.key.startswith(f"{self.platform}-")
        if place is None or (is_from_chat and turn.key not in self._postponed):
            return None
        self._postponed.discard(turn.key)
        now = self.now()
        message = ChatMessage(key=turn.key, place=place, session=live.id, at=now)
        await self._chats.record_message(self.platform, message, now=now)
        self._delivering.add(turn.key)
        return PendingAnswer(errors_as_replies(self._answer(turn, key=turn.key)), message)

    async def record_parts(self, message: ChatMessage, parts: int) -> None:
        """Record how many parts of an answer were delivered, so that a restart continues after them."""
        await self._chats.record_parts(self.platform, message.key, parts=parts)

    def is_expired(self, message: ChatMessage) -> bool:
        """Return whether the time for delivering the answer to a message is over."""
        return self.now() - message.at > CHAT_MESSAGE_TTL_S

    async def give_up_expired(self) -> int:
        """Give up the answers whose time for delivery is over; return their number."""
        return await self._chats.give_up_expired(self.platform, now=self.now())

    async def _answer(self, turn: Turn, *, key: str = "") -> Replies:
        first_message, is_limit_told, told = "", False, list[str]()
        limit: LimitReached | None = None
        try:
            async for event in turn.events():
                if isinstance(event, UserMessageStored | ModelAnswered):
                    first_message = first_message or event.handle
                elif isinstance(event, MemoryChanged):
                    told.append(texts.memory_note(event.text))
                elif isinstance(event, BudgetReached):
                    told.append(texts.budget_note(event.text))
                elif isinstance(event, LimitReached):
                    limit = event
                elif isinstance(event, ContextReduced) and limit is not None and not is_limit_told:
                    is_limit_told = True  # not earlier: whatever is reduced, the request may not fit
                    text = texts.limit_reached(limit.needed, limit.available)
                    yield ChannelMessage(text=text, is_last=False)
            outcome, buttons = await turn.outcome(), tuple[Button, ...]()
            if outcome.code == ContextOverflow.__name__:
                problem, buttons = await self._overflow_problem(turn, outcome.problem)
                outcome = replace(outcome, problem=problem)
            if outcome.is_pending:  # before the yield: the answer may arrive while this reply is sent
                self._postponed.add(key)
            notes = await self._reduction_notes(turn, first_message, outcome.report)
            composed = self._composer.answer(turn, outcome, notes=[*told, *notes])
            yield replace(
                composed,
                text=texts.scheduled(composed.text, name=schedule_of_key(turn.key)),
                buttons=(*composed.buttons, *buttons),
                is_answer=not outcome.is_pending,
            )
            if key and not outcome.is_pending:
                await self._mark_done(key)
        except Exception:  # the chat gets an error, which is not repeated while this process runs
            self._postponed.add(key)
            raise
        finally:
            self._delivering.discard(key)

    async def _mark_done(self, key: str) -> None:
        """Record that an answer was delivered. If that fails, the next start finds which parts were delivered."""
        try:
            await self._chats.mark_done(self.platform, key, now=self.now())
        except FovealError as problem:  # the chat has its answer, so this is no error for its user
            self._unrecorded.add(key)
            LOG.warning("a delivered answer was not recorded: %s", type(problem).__name__)

    async def _reduction_notes(self, turn: Turn, first_message: str, report: Report | None) -> list[str]:
        """Return what was reduced for an answer, in words; on an error nothing, so that the answer is sent."""
        with suppress(FovealError):
            live = await self._tenant.session(turn.session)
            tool_tokens = report.totals["tools"] if report is not None else 0
            return reduction_notes(await turn_reductions(live, first_message), tool_tokens=tool_tokens)
        return []

    async def _overflow_problem(self, turn: Turn, problem: str) -> tuple[str, tuple[Button, ...]]:
        """Return why a request does not fit, in words for users of a chat, and the button that takes out a message
        which is too large; on an error, the words of the library."""
        with suppress(FovealError):
            report = await (await self._tenant.session(turn.session)).report()
            message = texts.oversized_message(report)
            if message is None:
                return texts.CONTEXT_TOO_LARGE, ()
            button = Button("Take it out", f"{REMOVE_ACTION}{message.handle}")
            return texts.message_too_large(message.tokens, report), (button,)
        return problem, ()

    def now(self) -> float:
        """Return the time of the service's clock."""
        return self._service.runtime.clock()


async def _after(first: ChannelMessage, replies: Replies) -> Replies:
    """Yield a message, and then the replies."""
    async with aclosing(replies):
        yield first
        async for reply in replies:
            yield reply


async def _one_reply(command: Awaitable[ChannelMessage]) -> Replies:
    yield await command
