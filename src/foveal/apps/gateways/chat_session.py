"""Sessions of the chats of one chat app: messages, commands and buttons in, replies out.

    chats = ChatSessions(service, pairing, platform="telegram", allowed=frozenset({42}))
    async for message in chats.handle(chat=42, user=42, key="telegram-1001", text="Hello"):
        await send(message)

1. Access is decided by the numeric user id that the chat app guarantees: in the allow-list, or paired. Other users
   get one sentence, and nothing of their messages is stored.
2. A message is stored when `accept` returns, in the order of the calls. Its answer counts as delivered when the
   caller asks for another reply after the last one; until then it is undelivered, also after a crash.
3. A key runs once. A message that arrives again after it was answered gets no reply.
4. Every error becomes a reply, without its secrets.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final, cast

from foveal.agent.agent_events import ModelAnswered, UserMessageStored
from foveal.apps.gateways import texts
from foveal.apps.gateways.channel import (
    COMPACT_ACTION,
    RETRY_ACTION,
    ChannelMessage,
    MessageComposer,
    Replies,
    errors_as_replies,
    no_replies,
    text_reply,
)
from foveal.apps.gateways.texts import turn_reductions
from foveal.core.redaction.redact import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import Busy, FovealError, NothingToAsk, UnknownHandle, UnknownSession
from foveal.server.chats import ChatMessage, Chats, find_chat
from foveal.server.live_session import LiveSession
from foveal.server.pairing import ChatPlatform, Pairing
from foveal.server.service import Service
from foveal.server.turns import Turn
from foveal.sessions.continuation import CARRY_CHOICES, Carry

# ── Access control ─────────────────────────────────────────────────────────────────────────────────────

MAX_UNKNOWN_USER_REPLIES_PER_MINUTE: Final = 6
"""Replies that a user without access gets, so that such users cannot keep the bot busy."""


class AccessControl:
    """Decides which users of one chat app have access, and pairs new ones."""

    def __init__(self, pairing: Pairing, *, platform: ChatPlatform, allowed: frozenset[int]) -> None:
        self._pairing = pairing
        self._platform = platform
        self._allowed = allowed

    async def is_allowed(self, user: int) -> bool:
        return user in self._allowed or await self._pairing.is_paired(self._platform, user)

    async def count_users(self) -> int:
        """Return how many users have access."""
        paired = {entry.user for entry in await self._pairing.list() if entry.platform == self._platform}
        return len(self._allowed | paired)

    async def pair(self, user: int, code: str, *, now: float) -> str:
        """Pair a user who sent a code, and return the reply."""
        if await self.is_allowed(user):
            return texts.PAIRED
        if not code:
            return texts.no_access(self._platform, user)
        if seconds := await self._pairing.retry_after(self._platform, user, now=now):
            return texts.locked_out(self._platform, user, seconds=seconds)
        claimed = await self._pairing.claim(self._platform, code, user, now=now)
        return texts.PAIRED if claimed else texts.NOT_PAIRED


# ── Chats ──────────────────────────────────────────────────────────────────────────────────────────────

LOG: Final = logging.getLogger("foveal.gateways")
MAX_CHAT_TITLE_CHARS: Final = 60
_COMMAND: Final = re.compile(r"/([a-zA-Z]+)(?:\s+(.*))?", re.DOTALL)


class ChatSessions:
    """The sessions of one chat app; each chat has one current session."""

    def __init__(
        self,
        service: Service,
        pairing: Pairing,
        *,
        platform: ChatPlatform,
        allowed: frozenset[int],
        footer: bool = True,
    ) -> None:
        self.platform = platform
        self._service = service
        self._tenant = service.tenant(platform)
        self._chats = Chats(service.runtime.database)
        self._access = AccessControl(pairing, platform=platform, allowed=allowed)
        self._composer = MessageComposer(footer=footer)
        self._turns: dict[int, list[Turn]] = {}
        """The newest turns of each chat, oldest first; some may have ended."""
        self._postponed: set[str] = set()
        """Keys of messages whose chats got the reply that the answer comes later."""
        self._delivering: set[str] = set()
        """Keys of messages whose answers this process is delivering."""

    async def is_allowed(self, user: int) -> bool:
        return await self._access.is_allowed(user)

    async def count_users(self) -> int:
        """Return how many users have access."""
        return await self._access.count_users()

    # ── Input ────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, *, chat: int, user: int, key: str, text: str) -> Replies:
        """Accept a message or command and yield the replies."""
        async with aclosing(await self.accept(chat=chat, user=user, key=key, text=text)) as replies:
            async for message in replies:
                yield message

    async def accept(self, *, chat: int, user: int, key: str, text: str) -> Replies:
        """Store a message or command and return its replies, which may take a while to arrive."""
        try:
            return errors_as_replies(await self._accept(chat=chat, user=user, key=key, text=text))
        except FovealError as problem:
            return text_reply(texts.not_stored(problem))
        except Exception as problem:  # noqa: BLE001  (a failure becomes a reply)
            LOG.error("a message of %s was not stored: %s", self.platform, type(problem).__name__)
            return text_reply(f"{texts.NOT_STORED}.")

    async def _accept(self, *, chat: int, user: int, key: str, text: str) -> Replies:
        found = _COMMAND.fullmatch(text.strip())
        name, argument = (found[1].lower(), (found[2] or "").strip()) if found else ("", "")
        if name == "pair":
            return text_reply(await self._access.pair(user, argument, now=self._now()))
        if not await self.is_allowed(user):
            return text_reply(texts.no_access(self.platform, user))
        if name in texts.BOT_COMMANDS or name == "start" or (name and "\n" not in text.strip()):
            if not await self._chats.record_command(self.platform, key, chat=chat, now=self._now()):
                return no_replies()
            return await self._command(name, argument, chat=chat)
        return await self._message(chat=chat, key=key, text=text)

    async def _message(self, *, chat: int, key: str, text: str) -> Replies:
        async def submit(session: str) -> Turn:
            session = session or await self._chats.session(self.platform, chat)
            title = one_line(scrub(text), width=MAX_CHAT_TITLE_CHARS)
            try:
                live = await self._tenant.ensure(session, title=title)
            except UnknownSession:  # it was deleted, and its id stays in use
                session = await self._chats.start_next_session(self.platform, chat, session=session)
                live = await self._tenant.ensure(session, title=title)
            return await live.submit(text, key=key)

        return await self._start_once(key, submit, chat=chat) or no_replies()

    async def _start_once(
        self, key: str, start: Callable[[str], Awaitable[Turn]], *, chat: int
    ) -> Replies | None:
        """Start the turn of a key, in the session where it started before, if it did.

        Return None if the key was answered, or its answer is being delivered.
        """
        if key in self._delivering:
            return None
        self._delivering.add(key)
        recorded = False
        try:
            known = await self._chats.find_message(self.platform, key)
            if known is not None and known.is_done:
                return None
            turn = await start(known.session if known is not None else "")
            message = ChatMessage(key=key, chat=chat, session=turn.session)
            await self._chats.record_message(self.platform, message, now=self._now())
            recorded = True
        finally:
            if not recorded:
                self._delivering.discard(key)
        self._turns[chat] = [*self._running_turns(chat), turn]
        return self._answer(turn, key=key)

    async def reply_to_non_text(self, *, user: int) -> Replies:
        """Reply to a message without text, or to an edit."""
        allowed = await self.is_allowed(user)
        yield ChannelMessage(text=texts.TEXT_ONLY if allowed else texts.no_access(self.platform, user))

    async def press_button(self, *, chat: int, user: int, action: str) -> Replies:
        """Run the action of a button, which may be an old one."""
        async with aclosing(errors_as_replies(self._press(chat=chat, user=user, action=action))) as replies:
            async for message in replies:
                yield message

    async def _press(self, *, chat: int, user: int, action: str) -> Replies:
        if not await self.is_allowed(user):
            yield ChannelMessage(text=texts.no_access(self.platform, user))
            return
        live = await self._live_session(chat)
        if action == COMPACT_ACTION:
            async for message in self._run_command(chat, self._compact_if_full):
                yield message
        elif action.startswith(RETRY_ACTION):
            async with aclosing(
                await self._retry(live, action.removeprefix(RETRY_ACTION), chat=chat)
            ) as replies:
                async for message in replies:
                    yield message
        else:
            yield ChannelMessage(text=texts.OLD_BUTTON)

    async def _retry(self, live: LiveSession, failed: str, *, chat: int) -> Replies:
        """Ask the model again, once for each failed turn."""
        key = f"{self.platform}-again-{live.id}-{failed}"
        try:
            replies = await self._start_once(key, lambda _: live.retry(key=key), chat=chat)
            return replies or text_reply(texts.OLD_BUTTON)
        except NothingToAsk:  # the last turn did not fail
            return text_reply(texts.OLD_BUTTON)

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────────

    async def undelivered(self) -> list[tuple[int, Replies]]:
        """Return the chats and answers that were not delivered, such as after a crash, and are not on their way."""
        messages = [
            message
            for message in await self._chats.undelivered(self.platform, now=self._now())
            if message.key not in self._delivering
        ]
        self._delivering |= {message.key for message in messages}
        return [(message.chat, errors_as_replies(self._late_answer(message))) for message in messages]

    async def _late_answer(self, message: ChatMessage) -> Replies:
        try:
            live = await self._tenant.session(message.session)
        except UnknownSession:  # it was deleted meanwhile, and the message with it
            await self._chats.mark_done(self.platform, message.key, now=self._now())
            return
        turn = await live.submit(
            "", key=message.key
        )  # the key is known: this finds the turn and adds no message
        async for reply in self._answer(turn, key=message.key):
            yield reply

    async def unrequested_answer(self, live: LiveSession, turn: Turn) -> tuple[int, Replies] | None:
        """Return the chat and the answer of a turn that has ended and for which no reply is waiting, or None.

        Such a turn belongs to a schedule, or was postponed. Its answer is recorded like any other, so that it is
        delivered later if it cannot be delivered now.
        """
        chat = find_chat(self.platform, live.id)
        is_from_chat = turn.key.startswith(f"{self.platform}-")
        if chat is None or (is_from_chat and turn.key not in self._postponed):
            return None
        self._postponed.discard(turn.key)
        message = ChatMessage(key=turn.key, chat=chat, session=live.id)
        await self._chats.record_message(self.platform, message, now=self._now())
        self._delivering.add(turn.key)
        return chat, errors_as_replies(self._answer(turn, key=turn.key))

    async def _answer(self, turn: Turn, *, key: str = "") -> Replies:
        first_message = ""
        try:
            async for event in turn.events():
                if isinstance(event, UserMessageStored | ModelAnswered):
                    first_message = first_message or event.handle
            outcome = await turn.outcome()
            if outcome.is_pending:  # before the yield: the answer may arrive while this reply is sent
                self._postponed.add(key)
            notes = await self._reduction_notes(turn, first_message)
            yield self._composer.answer(turn, outcome, notes=notes)
            if key and not outcome.is_pending:
                await self._chats.mark_done(self.platform, key, now=self._now())
        finally:
            self._delivering.discard(key)

    async def _reduction_notes(self, turn: Turn, first_message: str) -> list[str]:
        """Return what was reduced for an answer, in words; on an error nothing, so that the answer is sent."""
        with suppress(FovealError):
            live = await self._tenant.session(turn.session)
            return texts.reduction_notes(await turn_reductions(live, first_message))
        return []

    def _running_turns(self, chat: int) -> list[Turn]:
        """Return the turns of a chat that have not ended, oldest first."""
        turns = [turn for turn in self._turns.pop(chat, []) if turn.state != "ended"]
        if turns:
            self._turns[chat] = turns
        return turns

    # ── Commands ─────────────────────────────────────────────────────────────────────────────────────

    async def _command(self, name: str, argument: str, *, chat: int) -> Replies:
        """Run /new and /stop at once, because later messages depend on them; the others run with their reply.

        The output of a command does not enter the conversation.
        """
        match name:
            case "help" | "start":
                return text_reply(texts.help_text())
            case "new":
                return text_reply(await self._new(chat, argument.lower()))
            case "stop":
                return text_reply(await self._stop(chat))
            case "compact":
                return self._run_command(chat, lambda live: self._compact(live, argument))
            case "undo":
                return self._run_command(chat, lambda live: self._undo(live, argument))
            case "context":
                return self._run_command(chat, _context)
            case "tokens":
                return self._run_command(chat, _tokens)
            case _:
                return text_reply(texts.unknown_command(f"/{name}"))

    async def _run_command(
        self, chat: int, command: Callable[[LiveSession], Awaitable[ChannelMessage]]
    ) -> Replies:
        """Yield the output of a command on the chat's session."""
        live = await self._live_session(chat)
        try:
            message = await command(live)
        except Busy:
            if self._running_turns(chat):
                message = ChannelMessage(text=texts.BUSY)
            else:  # the turn has been answered, but the session is still finishing it
                await live.wait_idle()
                message = await command(live)
        yield message

    async def _new(self, chat: int, carry: str) -> str:
        """Move the chat to a new session; `carry` says what that takes over, by default nothing."""
        if carry and carry not in CARRY_CHOICES:
            return texts.BAD_CARRY
        session = await self._chats.session(self.platform, chat)
        try:
            live = await self._tenant.session(session)
        except UnknownSession:
            return texts.NO_MESSAGES
        new = await self._chats.start_next_session(self.platform, chat, session=session)
        if not carry:
            return texts.NEW_SESSION
        title = (await live.info()).title
        await self._tenant.create(new, title=title, continue_from=session, carry=cast(Carry, carry))
        return texts.CONTINUED_SESSION.format(carry=carry)

    async def _stop(self, chat: int) -> str:
        """Stop the oldest turn of the chat, or a turn of its session that another source started."""
        turns = self._running_turns(chat)
        if turns:
            turns[0].stop()
        else:
            try:
                live = await self._live_session(chat)
            except UnknownSession:
                return texts.IDLE
            if not live.is_busy:
                return texts.IDLE
            live.stop()
        return texts.stopping(len(turns) - 1)

    async def _compact(self, live: LiveSession, focus: str = "") -> ChannelMessage:
        result = await live.compact(focus)
        self._composer.reset_warning(live.id)
        text = texts.compacted(result.event, before=result.tokens_before, after=result.tokens_after)
        return ChannelMessage(text=text, footer=self._composer.footer(await live.report()))

    async def _compact_if_full(self, live: LiveSession) -> ChannelMessage:
        """Compact, unless the button is an old one and the window has space again."""
        report = await live.report()
        if report.state == "ok":
            return ChannelMessage(text=texts.compaction_not_needed(report))
        return await self._compact(live)

    async def _undo(self, live: LiveSession, handle: str) -> ChannelMessage:
        """Undo a reduction; if the window is too full then, the reply has the warning."""
        try:
            event = await live.undo(handle or None)
        except UnknownHandle:
            return ChannelMessage(text=texts.nothing_to_undo(handle))
        self._composer.reset_warning(live.id)
        return self._composer.card(texts.undone(event), await live.report(), session=live.id)

    async def _live_session(self, chat: int) -> LiveSession:
        return await self._tenant.session(await self._chats.session(self.platform, chat))

    def _now(self) -> float:
        return self._service.runtime.clock()


async def _context(live: LiveSession) -> ChannelMessage:
    return ChannelMessage(text=texts.context(await live.report()))


async def _tokens(live: LiveSession) -> ChannelMessage:
    return ChannelMessage(text=texts.tokens(await live.report(), await live.usage()))
