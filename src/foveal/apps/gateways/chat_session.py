"""One conversation of one chat, whichever app it is in: what is heard, and what is said to it.

    talk = Talk(service, pairing, face="telegram", allowed=frozenset({42}))
    async for says in talk.heard(chat=42, user=42, key="telegram-1001", text="Hello"):
        await send(says)

1. Who may talk is decided by the numeric id that the app vouches for: on the list, or paired. Anybody else hears
   one sentence, and nothing of theirs is stored.
2. A message is stored when `take` returns, in the order of the calls. Its answer counts as delivered when whoever
   iterates asks for more after the last `Says`; until then it is `undelivered`, also after a crash.
3. The same key runs once. A message that comes again when it was answered says nothing.
4. Every failure becomes a `Says`, without its secrets.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from foveal.agent.agent_events import ModelAnswered, UserMessageHeard
from foveal.apps.gateways import texts
from foveal.apps.gateways.access import AccessControl
from foveal.apps.gateways.channel import (
    AGAIN,
    COMPACT,
    Button,
    Channel,
    ChannelMessage,
    guarded,
    nothing,
    saying,
)
from foveal.apps.gateways.texts import reductions
from foveal.core.redaction.redact import scrub
from foveal.core.wire.safe_print import one_line
from foveal.errors import Busy, FovealError, NothingToAsk, UnknownHandle, UnknownSession
from foveal.server.chats import ChatMessage, Chats, chat_of
from foveal.server.live_session import LiveSession
from foveal.server.pairing import Face, Pairing
from foveal.server.service import Service
from foveal.server.turns import Turn

# ── commands ──────────────────────────────────────────────────────────────────────────────────────
# Commands that a session answers: each returns what to say, and nothing of it enters the conversation.


async def compact(room: LiveSession, focus: str = "", *, voice: Channel) -> ChannelMessage:
    """Summarise old turns now."""
    made = await room.compact(focus)
    voice.calm(room.id)
    text = texts.compacted(made.event, before=made.before, after=made.after)
    return ChannelMessage(text=text, footer=voice.below(await room.report()))


async def compact_if_full(room: LiveSession, *, voice: Channel) -> ChannelMessage:
    """What the button below a warning does; it may be an old one."""
    report = await room.report()
    return (
        ChannelMessage(text=texts.unneeded(report))
        if report.state == "ok"
        else await compact(room, voice=voice)
    )


async def undo(room: LiveSession, name: str, *, voice: Channel) -> ChannelMessage:
    """Take back a reduction. What is then too large will be reduced again, and that is told at once."""
    try:
        event = await room.undo(name or None)
    except UnknownHandle:
        return ChannelMessage(text=texts.not_undone(name))
    voice.calm(room.id)
    return voice.card(texts.undone(event), await room.report(), session=room.id)


async def context(room: LiveSession) -> ChannelMessage:
    return ChannelMessage(text=texts.context(await room.report()))


async def tokens(room: LiveSession) -> ChannelMessage:
    return ChannelMessage(text=texts.tokens(await room.report(), await room.usage()))


# ── talk ──────────────────────────────────────────────────────────────────────────────────────────

__all__ = ["Button", "ChannelMessage", "ChatSessions"]

Saying = AsyncGenerator[ChannelMessage, None]
LOG: Final = logging.getLogger("foveal.gateways")
_COMMAND: Final = re.compile(r"/([a-zA-Z]+)(?:\s+(.*))?", re.DOTALL)


class ChatSessions:
    """The chats of one app."""

    def __init__(
        self, service: Service, pairing: Pairing, *, face: Face, allowed: frozenset[int], footer: bool = True
    ) -> None:
        self.face = face
        self._service = service
        self._tenant = service.tenant(face)
        self._chats = Chats(service.ground.database)
        self._door = AccessControl(pairing, face=face, allowed=allowed)
        self._voice = Channel(footer=footer)
        self._turns: dict[int, list[Turn]] = {}
        """The newest turns of each chat, oldest first; some may have ended."""
        self._put_off: set[str] = set()
        """Messages whose chats were told that the answer comes later."""
        self._delivering: set[str] = set()
        """The keys of messages whose answers somebody here is about to deliver."""

    async def may(self, user: int) -> bool:
        return await self._door.may(user)

    async def people(self) -> int:
        """How many may talk."""
        return await self._door.people()

    # ── what comes in ────────────────────────────────────────────────────────────────────────────────

    async def heard(self, *, chat: int, user: int, key: str, text: str) -> Saying:
        """Take a message or a command, and say what comes of it."""
        async with aclosing(await self.take(chat=chat, user=user, key=key, text=text)) as saying:
            async for says in saying:
                yield says

    async def take(self, *, chat: int, user: int, key: str, text: str) -> Saying:
        """Take a message or a command. The words are stored when this returns; what it returns says what comes of
        them, and may take its time."""
        try:
            return guarded(await self._take(chat=chat, user=user, key=key, text=text))
        except FovealError as problem:
            return saying(texts.not_stored(problem))
        except Exception as problem:  # noqa: BLE001  (a failure becomes a reply)
            LOG.error("a message of %s was not taken: %s", self.face, type(problem).__name__)
            return saying(f"{texts.NOT_STORED}.")

    async def _take(self, *, chat: int, user: int, key: str, text: str) -> Saying:
        found = _COMMAND.fullmatch(text.strip())
        name, argument = (found[1].lower(), (found[2] or "").strip()) if found else ("", "")
        if name == "pair":
            return saying(await self._door.knock(user, argument, now=self._now()))
        if not await self.may(user):
            return saying(texts.stranger(self.face, user))
        if name in texts.COMMANDS or name == "start" or (name and "\n" not in text.strip()):
            if not await self._chats.once(self.face, key, chat=chat, now=self._now()):
                return nothing()
            return await self._command(name, argument, chat=chat)
        return await self._message(chat=chat, key=key, text=text)

    async def _message(self, *, chat: int, key: str, text: str) -> Saying:
        async def said(session: str) -> Turn:
            session = session or await self._chats.session(self.face, chat)
            title = one_line(scrub(text), width=60)
            try:
                room = await self._tenant.ensure(session, title=title)
            except UnknownSession:  # it was deleted, and its id stays used
                session = await self._chats.leave(self.face, chat, session=session)
                room = await self._tenant.ensure(session, title=title)
            return await room.say(text, key=key)

        return await self._once(key, said, chat=chat) or nothing()

    async def _once(self, key: str, begin: Callable[[str], Awaitable[Turn]], *, chat: int) -> Saying | None:
        """Begin the turn of a key, in the session that it began in before if it did; None when it was answered, or
        somebody here is about to."""
        if key in self._delivering:
            return None
        self._delivering.add(key)
        owed = False
        try:
            known = await self._chats.message(self.face, key)
            if known is not None and known.done:
                return None
            turn = await begin(known.session if known is not None else "")
            message = ChatMessage(key=key, chat=chat, session=turn.session)
            await self._chats.begin(self.face, message, now=self._now())
            owed = True
        finally:
            if not owed:
                self._delivering.discard(key)
        self._turns[chat] = [*self._running(chat), turn]
        return self._answer(turn, key=key)

    async def wordless(self, *, user: int) -> Saying:
        """Something came that has no words, or is an edit."""
        yield ChannelMessage(
            text=texts.TEXT_ONLY if await self.may(user) else texts.stranger(self.face, user)
        )

    async def pressed(self, *, chat: int, user: int, action: str) -> Saying:
        """A button was pressed; it may be an old one."""
        async with aclosing(guarded(self._pressed(chat=chat, user=user, action=action))) as saying:
            async for says in saying:
                yield says

    async def _pressed(self, *, chat: int, user: int, action: str) -> Saying:
        if not await self.may(user):
            yield ChannelMessage(text=texts.stranger(self.face, user))
            return
        room = await self._room(chat)
        if action == COMPACT:
            async for says in self._asked(chat, lambda room: compact_if_full(room, voice=self._voice)):
                yield says
        elif action.startswith(AGAIN):
            async with aclosing(await self._again(room, action.removeprefix(AGAIN), chat=chat)) as answer:
                async for says in answer:
                    yield says
        else:
            yield ChannelMessage(text=texts.OLD)

    async def _again(self, room: LiveSession, failed: str, *, chat: int) -> Saying:
        """Ask the model once more, once for each turn that failed."""
        key = f"{self.face}-again-{room.id}-{failed}"
        try:
            return await self._once(key, lambda _: room.again(key=key), chat=chat) or saying(texts.OLD)
        except NothingToAsk:  # the last turn did not fail
            return saying(texts.OLD)

    async def undelivered(self) -> list[tuple[int, Saying]]:
        """Chats with the answers that were not delivered, because of a crash or else, and nobody is about to."""
        late = [
            message
            for message in await self._chats.open(self.face, now=self._now())
            if message.key not in self._delivering
        ]
        self._delivering |= {message.key for message in late}
        return [(message.chat, guarded(self._late(message))) for message in late]

    async def _late(self, message: ChatMessage) -> Saying:
        try:
            room = await self._tenant.room(message.session)
        except UnknownSession:  # it was deleted meanwhile, and the message with it
            await self._chats.end(self.face, message.key, now=self._now())
            return
        turn = await room.say("", key=message.key)  # the key is known: this finds the turn, and says nothing
        async for says in self._answer(turn, key=message.key):
            yield says

    async def unasked(self, room: LiveSession, turn: Turn) -> tuple[int, Saying] | None:
        """The chat that a turn belongs to which nobody in it waits for (a schedule's, or one that was put off), and
        what to say there. It is owed like any other answer."""
        chat = chat_of(self.face, room.id)
        asked_here = turn.key.startswith(f"{self.face}-")
        if chat is None or (asked_here and turn.key not in self._put_off):
            return None
        self._put_off.discard(turn.key)
        message = ChatMessage(key=turn.key, chat=chat, session=room.id)
        await self._chats.begin(self.face, message, now=self._now())
        self._delivering.add(turn.key)
        return chat, guarded(self._answer(turn, key=turn.key))

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self, turn: Turn, *, key: str = "") -> Saying:
        said = ""
        try:
            async for happening in turn.follow():
                if isinstance(happening, UserMessageHeard | ModelAnswered):
                    said = said or happening.handle
            outcome = await turn.outcome()
            if outcome.kept:  # its answer is still owed, and may come before this is said
                self._put_off.add(key)
            yield self._voice.said(turn, outcome, notes=await self._notes(turn, said))
            if key and not outcome.kept:
                await self._chats.end(self.face, key, now=self._now())
        finally:
            self._delivering.discard(key)

    async def _notes(self, turn: Turn, said: str) -> list[str]:
        """What to say below an answer of what was reduced; an answer must not fail because of it."""
        with suppress(FovealError):
            return texts.reduced(await reductions(await self._tenant.room(turn.session), said))
        return []

    def _running(self, chat: int) -> list[Turn]:
        """The turns of a chat that have not ended, oldest first."""
        turns = [turn for turn in self._turns.pop(chat, []) if turn.state != "ended"]
        if turns:
            self._turns[chat] = turns
        return turns

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────

    async def _command(self, name: str, argument: str, *, chat: int) -> Saying:
        """What changes the order of things is done at once; the rest when it is asked for."""
        match name:
            case "help" | "start":
                return saying(texts.welcome())
            case "new":
                return saying(await self._new(chat))
            case "stop":
                return saying(await self._stop(chat))
            case "compact":
                return self._asked(chat, lambda room: compact(room, argument, voice=self._voice))
            case "undo":
                return self._asked(chat, lambda room: undo(room, argument, voice=self._voice))
            case "context":
                return self._asked(chat, context)
            case "tokens":
                return self._asked(chat, tokens)
            case _:
                return saying(texts.unknown(f"/{name}"))

    async def _new(self, chat: int) -> str:
        session = await self._chats.session(self.face, chat)
        try:
            await self._tenant.room(session)
        except UnknownSession:
            return texts.EMPTY
        await self._chats.leave(self.face, chat, session=session)
        return "🆕 A new conversation begins. The one before is kept on the server."

    async def _stop(self, chat: int) -> str:
        """Stop the oldest turn of the chat; one that it did not ask for, if there is no other."""
        turns = self._running(chat)
        if turns:
            turns[0].stop()
        else:
            try:
                room = await self._room(chat)
            except UnknownSession:
                return texts.IDLE
            if not room.busy:
                return texts.IDLE
            room.stop()
        more = f" Messages that still wait for an answer: {len(turns) - 1}." if len(turns) > 1 else ""
        return f"Stopping.{more}"

    async def _asked(self, chat: int, ask: Callable[[LiveSession], Awaitable[ChannelMessage]]) -> Saying:
        """What a chat's session has to say to a command."""
        room = await self._room(chat)
        try:
            said = await ask(room)
        except Busy:
            if self._running(chat):
                said = ChannelMessage(text=texts.BUSY)
            else:  # an answer that was said a moment ago is still being put away
                await room.at_rest()
                said = await ask(room)
        yield said

    async def _room(self, chat: int) -> LiveSession:
        return await self._tenant.room(await self._chats.session(self.face, chat))

    def _now(self) -> float:
        return self._service.ground.clock()
