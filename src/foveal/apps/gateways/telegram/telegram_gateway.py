"""Telegram's chats: updates are taken in order, and each is answered when its answer is there.

1. Telegram is told that an update was taken only when its words are stored. What it sends again runs once.
2. An answer that could not be delivered is delivered later: after longer and longer pauses, or a restart.
3. Nothing that happens here ends the server.
4. Of several servers on one folder one listens, and another takes over when it has said what it had to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from telegram import BotCommand
from telegram.error import InvalidToken, TelegramError

from foveal.apps.gateways import texts
from foveal.apps.gateways.chat_session import ChannelMessage, ChatSessions
from foveal.apps.gateways.gateway import ConnectionState
from foveal.apps.gateways.telegram.entities import marked
from foveal.apps.gateways.telegram.telegram_send import (
    LOG,
    BotApiClient,
    ChatGone,
    Sleep,
    TelegramSender,
    TelegramUndelivered,
)
from foveal.apps.gateways.telegram.updates import ButtonPressed, ChatLocation, NonTextMessage, TextMessage
from foveal.errors import FovealError
from foveal.server.auth_tokens import RateLimiter
from foveal.server.live_session import LiveSession
from foveal.server.locks import SessionLock, SessionLocks
from foveal.server.turns import Turn

T = TypeVar("T")
Saying = AsyncGenerator[ChannelMessage, None]
FIRST: Final = 1.0
LONGEST: Final = 60.0
"""Seconds between two attempts to reach Telegram."""
LOOK: Final = 5.0
"""Seconds after which a server looks again whether the one that listens is gone."""
ROUNDS: Final = 6
"""How often undelivered answers are taken up again before a restart."""
STRANGERS: Final = 6
"""Answers that a stranger gets in a minute."""
PAUSE: Final = 60.0
"""Seconds before the first of these; twice as long before each further one."""


class TelegramGateway:
    def __init__(
        self,
        talk: ChatSessions,
        client: BotApiClient,
        turnstile: SessionLocks,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.standing = ConnectionState("Telegram")
        self._talk = talk
        self._client = client
        self._turnstile = turnstile
        self._sleep = sleep
        self._hold: SessionLock | None = None
        """Held while this server is the one that listens, and until it has said its last."""
        self._listening: asyncio.Task[None] | None = None
        self._sender = TelegramSender(client, sleep=sleep)
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: asyncio.Task[None] | None = None
        """Delivers what could not be delivered, after a pause."""
        self._rounds = 0
        self._strangers = RateLimiter(STRANGERS)

    def begin(self) -> None:
        """Listen from now on."""
        self._listening = asyncio.create_task(self._run())

    async def people(self) -> int:
        return await self._talk.people()

    async def stop_listening(self) -> None:
        """Take no more updates: Telegram keeps them for whoever listens next. Answers are still said."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def close(self, *, settle: float) -> None:
        """Let what is being said be said, for so many seconds; the rest is owed."""
        try:
            await self.stop_listening()
            await self._finish(settle)
        finally:
            self._let_go()

    async def _finish(self, settle: float) -> None:
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=settle)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with suppress(TelegramError):
            await self._client.shutdown()

    async def unasked(self, room: LiveSession, turn: Turn) -> None:
        """A turn of this tenant ended; if nobody in its chat asked for it, it is told there."""
        told = await self._talk.unasked(room, turn)
        if told is not None:
            chat, saying = told
            self._do(self._deliver(saying, ChatLocation(chat=chat)))

    # ── listening ────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Until it is cancelled, or Telegram does not accept the token."""
        try:
            await self._have_turn()
            await self._patiently(self._introduce)
            await self._settle()
            await self._listen()
        except InvalidToken:
            self.standing.become("refused", "does not accept TELEGRAM_BOT_TOKEN")
            self._let_go()
        except Exception as problem:  # noqa: BLE001  (nothing that happens here ends the server)
            self.standing.become("refused", f"is not listened to any more ({type(problem).__name__})")
            self._let_go()

    async def _have_turn(self) -> None:
        """Telegram tells each message to one reader only, so there is only one."""
        while (hold := await self._turnstile.try_hold("", "telegram")) is None:
            self.standing.become("waiting")
            await self._sleep(LOOK)
        self._hold = hold

    def _let_go(self) -> None:
        """Let another server listen."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    async def _introduce(self) -> None:
        await self._client.initialize()
        await self._client.delete_webhook()
        listed = [BotCommand(name, about) for name, about in texts.COMMANDS.items()]
        await self._client.set_my_commands(listed)

    async def _listen(self) -> None:
        offset: int | None = None
        while True:
            for raw in await self._patiently(lambda: self._client.raw_updates(offset=offset)):  # noqa: B023
                await asyncio.shield(self._do(self._take(raw)))  # what was begun is stored to its end
                offset = raw["update_id"] + 1

    async def _patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something that needs Telegram, again and again until it could be done."""
        wait = FIRST
        while True:
            try:
                done = await act()
            except InvalidToken:
                raise
            except TelegramError as problem:
                self.standing.become("away", self._client.trouble(problem))
            else:
                self.standing.become("listening")
                return done
            await self._sleep(wait)
            wait = min(wait * 2, LONGEST)

    async def _take(self, raw: dict[str, Any]) -> None:
        """Take one update; its words are stored when this returns."""
        meant = self._client.meaning(raw)
        if isinstance(meant, TextMessage | NonTextMessage) and not await self._welcome(meant.user):
            return
        match meant:
            case TextMessage():
                key = f"telegram-{raw['update_id']}"
                place = meant.place
                saying = await self._talk.take(chat=place.chat, user=meant.user, key=key, text=meant.text)
                self._do(self._deliver(saying, place))
            case NonTextMessage():
                self._do(self._deliver(self._talk.wordless(user=meant.user), meant.place))
            case ButtonPressed():
                self._do(self._press(meant))
            case None:
                pass

    async def _welcome(self, user: int) -> bool:
        """Whether somebody is answered: strangers only a few times in a minute, so that they stop nobody else."""
        try:
            if await self._talk.may(user):
                return True
        except FovealError:  # the answer will say so
            return True
        return not self._strangers.wait(str(user), now=asyncio.get_running_loop().time())

    # ── answering ────────────────────────────────────────────────────────────────────────────────────

    async def _settle(self) -> None:
        """Deliver what was not delivered."""
        try:
            for chat, saying in await self._talk.undelivered():
                self._do(self._deliver(saying, ChatLocation(chat=chat)))
        except FovealError as problem:
            LOG.warning("what is undelivered is not known: %s", type(problem).__name__)
            self._owe()

    async def _settle_after(self, pause: float) -> None:
        await self._sleep(pause)
        self._later = None
        self._do(self._settle())

    def _owe(self) -> None:
        """Something was not delivered: try again later."""
        if self._later is None and self._rounds < ROUNDS:
            pause = PAUSE * 2**self._rounds
            self._rounds += 1
            self._later = asyncio.create_task(self._settle_after(pause))

    async def _deliver(self, saying: Saying, place: ChatLocation) -> None:
        try:
            async with aclosing(saying):
                await self._say_all(saying, place)
        except TelegramUndelivered as problem:
            LOG.warning("an answer could not be delivered, and is kept: %s", problem)
            self._owe()
        else:
            self._rounds = 0

    async def _say_all(self, saying: Saying, place: ChatLocation) -> None:
        gone = False
        while True:
            async with self._sender.typing(place):
                says = await anext(saying, None)
            if says is None:
                return
            if not gone:
                try:
                    await self._sender.say(says, place)
                except ChatGone:
                    LOG.info("a chat is gone: its answers stay on the server")
                    gone = True

    async def _press(self, press: ButtonPressed) -> None:
        """A button: what it does, and no more of it."""
        allowed = await self._talk.may(press.user)
        refusal = None if allowed else marked(texts.stranger("telegram", press.user)).text
        with suppress(TelegramError):  # Telegram forgets soon which button was pressed
            await self._client.answer_callback_query(
                press.query, refusal or (None if press.place else texts.OLD)
            )
        if press.place is None or not allowed:
            return
        if press.message:
            with suppress(TelegramError):
                await self._client.edit_message_reply_markup(press.place.chat, press.message)
        saying = self._talk.pressed(chat=press.place.chat, user=press.user, action=press.action)
        await self._deliver(saying, press.place)

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            LOG.error("an answer was not delivered, and is kept: %s", type(problem).__name__)
            self._owe()
