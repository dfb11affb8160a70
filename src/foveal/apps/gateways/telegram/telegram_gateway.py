"""The Telegram bot: reads updates in order and delivers the answers.

1. An update is acknowledged to Telegram after its message is stored. An update that Telegram sends again runs once.
2. An answer that could not be delivered is delivered later: after growing pauses, or after a restart.
3. No error here stops the server.
4. Of several servers on one folder one listens, and another takes over when it has delivered its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from telegram import BotCommand
from telegram.error import InvalidToken, TelegramError

from foveal.apps.gateways import texts
from foveal.apps.gateways.channel import Replies, Undelivered
from foveal.apps.gateways.chat_session import MAX_UNKNOWN_USER_REPLIES_PER_MINUTE, ChatSessions
from foveal.apps.gateways.delivery import DeliveryTasks, Sleep, UndeliveredAnswers
from foveal.apps.gateways.gateway import ConnectionState, listener_lock
from foveal.apps.gateways.telegram.entities import format_markdown
from foveal.apps.gateways.telegram.telegram_send import LOG, BotApiClient, ChatGone, TelegramSender
from foveal.apps.gateways.telegram.updates import ButtonPressed, ChatLocation, NonTextMessage, TextMessage
from foveal.errors import FovealError
from foveal.server.live_session import LiveSession
from foveal.server.rate_limit import RateLimiter
from foveal.server.turns import Turn
from foveal.stores.session_locks import HeldLock, Locks

T = TypeVar("T")
FIRST_RECONNECT_PAUSE_S: Final = 1.0
MAX_RECONNECT_PAUSE_S: Final = 60.0
"""The pause between two attempts to reach Telegram doubles up to this."""


class TelegramGateway:
    """Runs one bot: polling, answers, buttons."""

    def __init__(
        self, chats: ChatSessions, client: BotApiClient, locks: Locks, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.connection = ConnectionState("Telegram")
        self._chats = chats
        self._client = client
        self._locks = locks
        self._sleep = sleep
        self._lock: HeldLock | None = None
        """Held while this server listens, and until it has delivered its answers."""
        self._polling: asyncio.Task[None] | None = None
        self._sender = TelegramSender(client, sleep=sleep)
        self._undelivered = UndeliveredAnswers(chats, self._start_delivery, sleep=sleep)
        self._tasks = DeliveryTasks(on_failure=self._undelivered.retry_later)
        self._unknown_users = RateLimiter(MAX_UNKNOWN_USER_REPLIES_PER_MINUTE)

    def start(self) -> None:
        """Start to listen."""
        self._polling = asyncio.create_task(self._run())

    async def count_users(self) -> int:
        return await self._chats.count_users()

    async def stop_listening(self) -> None:
        """Take no more updates: Telegram keeps them for the next reader. Answers are still sent."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def close(self, *, grace_s: float) -> None:
        """Finish the answers that are being sent, within this time; the others stay undelivered."""
        try:
            await self.stop_listening()
            await self._undelivered.close()
            await self._tasks.finish(seconds=grace_s)
            with suppress(TelegramError):
                await self._client.shutdown()
        finally:
            self._release_lock()

    async def turn_ended(self, session: LiveSession, turn: Turn) -> None:
        """Send the answer of a turn for which no reply is waiting, such as the turn of a schedule."""
        answer = await self._chats.unrequested_answer(session, turn)
        if answer is not None:
            self._start_delivery(*answer)

    # ── Listening ────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Run until cancelled, or until Telegram refuses the token."""
        try:
            self._lock = await listener_lock(self._locks, "telegram", self.connection, sleep=self._sleep)
            await self._retry(self._set_up)
            await self._undelivered.deliver_all()
            await self._poll()
        except InvalidToken:
            self.connection.change("refused", "does not accept TELEGRAM_BOT_TOKEN")
            self._release_lock()
        except Exception as problem:  # noqa: BLE001  (no error here stops the server)
            self.connection.change("refused", f"is no longer polled ({type(problem).__name__})")
            self._release_lock()

    def _release_lock(self) -> None:
        """Let another server listen."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def _set_up(self) -> None:
        await self._client.initialize()
        await self._client.delete_webhook()
        listed = [BotCommand(name, about) for name, about in texts.BOT_COMMANDS.items()]
        await self._client.set_my_commands(listed)

    async def _poll(self) -> None:
        offset: int | None = None
        while True:
            for raw in await self._retry(lambda: self._client.raw_updates(offset=offset)):  # noqa: B023
                # Shielded: when polling is cancelled, the update that was begun is still stored.
                await asyncio.shield(self._tasks.spawn(self._accept(raw)))
                offset = raw["update_id"] + 1

    async def _retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request to Telegram until it succeeds."""
        pause = FIRST_RECONNECT_PAUSE_S
        while True:
            try:
                result = await request()
            except InvalidToken:
                raise
            except TelegramError as problem:
                self.connection.change("unreachable", self._client.problem_text(problem))
            else:
                self.connection.change("listening")
                return result
            await self._sleep(pause)
            pause = min(pause * 2, MAX_RECONNECT_PAUSE_S)

    async def _accept(self, raw: dict[str, Any]) -> None:
        """Accept one update; its message is stored when this returns."""
        update = self._client.parse(raw)
        if isinstance(update, TextMessage | NonTextMessage) and not await self._gets_reply(update.user):
            return
        match update:
            case TextMessage():
                location = update.location
                replies = await self._chats.accept(
                    chat=location.chat, user=update.user, key=f"telegram-{raw['update_id']}", text=update.text
                )
                self._tasks.spawn(self._deliver(replies, location))
            case NonTextMessage():
                replies = self._chats.reply_to_non_text(user=update.user)
                self._tasks.spawn(self._deliver(replies, update.location))
            case ButtonPressed():
                self._tasks.spawn(self._press(update))
            case None:
                pass

    async def _gets_reply(self, user: int) -> bool:
        """Return whether to answer a user; users without access get a few replies per minute."""
        try:
            if await self._chats.is_allowed(user):
                return True
        except FovealError:  # the reply reports the error
            return True
        return not self._unknown_users.take(str(user), now=asyncio.get_running_loop().time())

    # ── Answering ────────────────────────────────────────────────────────────────────────────────────

    def _start_delivery(self, chat: int, replies: Replies) -> None:
        self._tasks.spawn(self._deliver(replies, ChatLocation(chat=chat)))

    async def _deliver(self, replies: Replies, location: ChatLocation) -> None:
        try:
            async with aclosing(replies):
                await self._send_all(replies, location)
        except Undelivered as problem:
            LOG.warning("an answer could not be delivered and is kept: %s", problem)
            self._undelivered.retry_later()
        else:
            self._undelivered.reset_pauses()

    async def _send_all(self, replies: Replies, location: ChatLocation) -> None:
        is_gone = False
        while True:
            async with self._sender.typing(location):
                message = await anext(replies, None)
            if message is None:
                return
            if not is_gone:
                try:
                    await self._sender.send(message, location)
                except ChatGone:
                    LOG.info("a chat is gone: its answers stay on the server")
                    is_gone = True

    async def _press(self, press: ButtonPressed) -> None:
        """Run the action of a button and remove the button."""
        allowed = await self._chats.is_allowed(press.user)
        refusal = None if allowed else format_markdown(texts.no_access("telegram", press.user)).text
        with suppress(TelegramError):  # Telegram accepts the answer to a press only for a short time
            await self._client.answer_callback_query(
                press.query, refusal or (None if press.location else texts.OLD_BUTTON)
            )
        if press.location is None or not allowed:
            return
        if press.message:
            with suppress(TelegramError):
                await self._client.edit_message_reply_markup(press.location.chat, press.message)
        replies = self._chats.press_button(chat=press.location.chat, user=press.user, action=press.action)
        await self._deliver(replies, press.location)
