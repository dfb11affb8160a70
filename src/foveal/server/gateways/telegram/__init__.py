"""The Telegram gateway: runs the bot of `TELEGRAM_BOT_TOKEN`.

    async with telegram(service, pairing, config, environment) as bot:
        ...                        # it listens until the block ends, or `bot.stop_listening()`

It uses long polling, so the server needs no public address.

1. An update is acknowledged to Telegram after its message is stored, together with the other pieces of a text that
   a client has split. An update that Telegram sends again runs once.
2. Answers are delivered in order, until Telegram has accepted them (`Delivery`).
3. No error here stops the server or the bot: it retries with growing pauses, also when Telegram refuses the token.
4. A webhook that is set elsewhere is deleted only if `telegram.webhook` is `delete`; without that, the bot waits
   until it is gone.
5. Of several servers on one folder one listens, and another takes over when it has delivered its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from telegram import BotCommand
from telegram.error import Conflict, InvalidToken, TelegramError

from foveal.config import Config
from foveal.errors import FovealError, PicklableError
from foveal.server.gateways import texts
from foveal.server.gateways.chat_sessions import ChatSessions
from foveal.server.gateways.delivery import Delivery, Sleep
from foveal.server.gateways.gateway import (
    CLOSE_GRACE_S,
    MAX_REFUSED_PAUSE_S,
    ConnectionState,
    GatewayHealth,
    base_url,
    gateway_health,
    listener_lock,
    observed_turns,
    open_chats,
    require_token,
)
from foveal.server.gateways.incoming import MAX_UNKNOWN_USER_REPLIES_PER_MINUTE, IncomingMessage
from foveal.server.gateways.place_intake import PIECE_WAIT_S, MessagePiece, PlaceIntake
from foveal.server.gateways.telegram.send import (
    LOG,
    LONG_POLL_S,
    TELEGRAM_TYPING_INTERVAL_S,
    BotApiClient,
    TelegramSender,
    format_markdown,
)
from foveal.server.gateways.telegram.updates import ButtonPressed, GroupMoved, ParsedUpdate
from foveal.server.live_session import LiveSession
from foveal.server.pairing import Pairing
from foveal.server.rate_limit import RateLimiter
from foveal.server.service import Service
from foveal.server.turns import Turn
from foveal.stores.session_locks import HeldLock, Locks

T = TypeVar("T")
MAX_WEBHOOK_CHECK_S: Final = 5.0
"""Time that the question for a webhook may take before the bot starts."""
FIRST_RECONNECT_PAUSE_S: Final = 1.0
MAX_RECONNECT_PAUSE_S: Final = 60.0
"""The pause between two attempts to reach Telegram doubles up to this."""
PENDING_POLL_S: Final = 0.25
"""How often new updates are asked for while an earlier one is not stored yet."""


class WebhookSet(PicklableError, Exception):
    """Telegram sends the bot's messages to a webhook that another program has set."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"sends the bot's messages to a webhook at {host} "
            '(telegram.webhook = "delete" lets the bot delete it)'
        )


class TelegramGateway:
    """Runs one bot: polling, answers, buttons."""

    def __init__(
        self,
        chats: ChatSessions,
        client: BotApiClient,
        locks: Locks,
        *,
        deletes_webhook: bool = False,
        sleep: Sleep = asyncio.sleep,
        piece_wait_s: float = PIECE_WAIT_S,
    ) -> None:
        self._deletes_webhook = deletes_webhook
        self._chats = chats
        self._client = client
        self._locks = locks
        self._sleep = sleep
        self._lock: HeldLock | None = None
        """Held while this server listens, and until it has delivered its answers."""
        self._has_listened = False
        self._polling: asyncio.Task[None] | None = None
        self._delivery = Delivery(
            chats,
            TelegramSender(client, on_moved=self._begin_move),
            typing_interval_s=TELEGRAM_TYPING_INTERVAL_S,
            may_retry=lambda: self._lock is not None,
            sleep=sleep,
        )
        self._tasks = self._delivery.tasks
        self.connection: ConnectionState = ConnectionState(
            "Telegram", clock=chats.now, on_listening=self._delivery.retry_now
        )
        self._unknown_users = RateLimiter(MAX_UNKNOWN_USER_REPLIES_PER_MINUTE)
        self._intake = PlaceIntake(self._accept_message, chats.join_keys, wait_s=piece_wait_s)
        self._unacknowledged: dict[int, asyncio.Future[None]] = {}
        """Updates that Telegram still keeps; a future is done when its update is stored."""
        self._moving: set[asyncio.Task[None]] = set()
        """Tasks that record the new ids of groups: messages wait for them, because they may come from there."""

    def start(self) -> None:
        """Start to listen."""
        self._polling = asyncio.create_task(self._run())

    async def count_users(self) -> int:
        return await self._chats.count_users()

    def health(self) -> GatewayHealth:
        return gateway_health("telegram", self.connection, self._delivery)

    async def stop_listening(self) -> None:
        """Take no more updates: Telegram keeps them for the next reader. Answers are still sent."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        await self._intake.close(drops_waiting=True)

    async def close(self, *, grace_s: float) -> None:
        """Finish the answers that are being sent, within this time; the others stay undelivered."""
        try:
            await self.stop_listening()
            await self._delivery.close(seconds=grace_s)
            with suppress(TelegramError):
                await self._client.shutdown()
        finally:
            self._release_lock()

    async def turn_ended(self, session: LiveSession, turn: Turn) -> None:
        """Send the answer of a turn for which no reply is waiting, such as the turn of a schedule."""
        answer = await self._chats.unrequested_answer(session, turn)
        if answer is not None:
            self._delivery.start_recorded(answer)

    # ── Listening ────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Listen until cancelled; an unexpected error starts it again after a pause."""
        pause = FIRST_RECONNECT_PAUSE_S
        while True:
            try:
                await self._retry(self._set_up)
                self._has_listened = True
                await self._delivery.deliver_all()
                await self._poll()
            except Exception as problem:  # noqa: BLE001  (no error here stops the bot)
                LOG.debug("the traceback", exc_info=problem)
                self.connection.change("unreachable", f"cannot be polled ({type(problem).__name__})")
            await self._sleep(pause)
            pause = min(pause * 2, MAX_RECONNECT_PAUSE_S)

    async def _hold_lock(self) -> None:
        if self._lock is None:
            self._lock = await listener_lock(self._locks, "telegram", self.connection, sleep=self._sleep)

    def _release_lock(self) -> None:
        """Let another server listen."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def _set_up(self) -> None:
        await self._client.initialize()
        await self._check_webhook()
        listed = [BotCommand(name, about) for name, about in texts.BOT_COMMANDS.items()]
        await self._client.set_my_commands(listed)

    async def _check_webhook(self) -> None:
        """Delete a webhook if the operator agreed to that. Raises `WebhookSet` if not."""
        host = await self._client.webhook_host()
        if host and not self._deletes_webhook:
            raise WebhookSet(host)
        if host:
            LOG.warning("the bot's webhook at %s is deleted, as telegram.webhook says", host)
            await self._client.delete_webhook()

    async def _poll(self) -> None:
        offset: int | None = None
        while True:
            updates = await self._retry(lambda: self._updates(offset))  # noqa: B023
            offset = await self._accept_batch(updates) or offset

    async def _updates(self, offset: int | None) -> list[dict[str, Any]]:
        """Return the next updates. Raises `WebhookSet` if another program has set a webhook meanwhile."""
        # After a failure the first request does not wait for updates: it shows that Telegram can be reached again.
        wait_s = LONG_POLL_S if self.connection.status == "listening" else 0
        try:
            return await self._client.raw_updates(offset=offset, wait_s=wait_s)
        except Conflict as problem:
            if "webhook" in problem.message.casefold():
                await self._check_webhook()
            raise

    async def _retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request to Telegram until it succeeds."""
        pause, longest = FIRST_RECONNECT_PAUSE_S, MAX_RECONNECT_PAUSE_S
        while True:
            await self._hold_lock()
            try:
                result = await request()
            except (InvalidToken, WebhookSet) as problem:
                longest = MAX_REFUSED_PAUSE_S
                text = str(problem) if isinstance(problem, WebhookSet) else self._client.problem_text(problem)
                self.connection.change("refused", text)
                if not self._has_listened:  # another server may have a token that works
                    self._release_lock()
            except TelegramError as problem:
                longest = MAX_RECONNECT_PAUSE_S
                self.connection.change("unreachable", self._client.problem_text(problem))
            else:
                self.connection.change("listening")
                return result
            await self._sleep(pause)
            pause = min(pause * 2, longest)

    async def _accept_batch(self, updates: list[dict[str, Any]]) -> int | None:
        """Accept updates and return the offset of the next ones; None if there are none.

        Updates from the first one that is not stored on are sent again, and are known then.
        """
        new = [raw for raw in updates if raw["update_id"] not in self._unacknowledged]
        parsed = [(raw["update_id"], self._client.parse(raw)) for raw in new]
        # A message may come from the new group before Telegram says that it is new.
        for id, update in sorted(parsed, key=lambda one: not isinstance(one[1], GroupMoved)):
            self.connection.record_update()
            self._unacknowledged[id] = self._accept(update)
        if not self._unacknowledged:
            return None
        await asyncio.wait(self._unacknowledged.values(), timeout=PENDING_POLL_S)
        ids = sorted(self._unacknowledged)
        offset = next((id for id in ids if not self._unacknowledged[id].done()), ids[-1] + 1)
        self._unacknowledged = {id: self._unacknowledged[id] for id in ids if id >= offset}
        return offset

    def _accept(self, update: ParsedUpdate) -> asyncio.Future[None]:
        """Begin to accept an update; the future is done when its message is stored."""
        if isinstance(update, MessagePiece):
            return self._intake.put(update)
        if isinstance(update, GroupMoved):
            return self._begin_move(update)
        if isinstance(update, ButtonPressed):
            self._tasks.spawn(self._press(update))
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        accepted.set_result(None)
        return accepted

    def _begin_move(self, moved: GroupMoved) -> asyncio.Task[None]:
        task = self._tasks.spawn(self._record_move(moved))
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)
        return task

    async def _record_move(self, moved: GroupMoved) -> None:
        """Record the new id of a group; Telegram keeps the update until that works."""
        while True:
            try:
                return await self._chats.record_move(old=moved.old, new=moved.new)
            except FovealError as problem:
                LOG.warning("the new id of a group was not stored: %s", type(problem).__name__)
            await self._sleep(MAX_RECONNECT_PAUSE_S)

    async def _accept_message(self, message: IncomingMessage) -> None:
        if self._moving:
            await asyncio.wait(self._moving)
        if await self._gets_reply(message.user):
            answer = await self._chats.accept(message, fetch=self._client.fetch_file)
            self._delivery.start(answer, place=message.place, reply_to=message.reply_to)

    async def _gets_reply(self, user: int) -> bool:
        """Return whether to answer a user; users without access get a few replies per minute."""
        try:
            if await self._chats.is_allowed(user):
                return True
        except FovealError:  # the reply reports the error
            return True
        return not self._unknown_users.take(str(user), now=asyncio.get_running_loop().time())

    # ── Buttons ──────────────────────────────────────────────────────────────────────────────────────

    async def _press(self, press: ButtonPressed) -> None:
        """Run the action of a button and remove the button."""

        async def is_admin() -> bool:
            return press.place is not None and await self._client.is_admin(press.place.chat, press.user)

        refusal = await self._chats.refusal(press.user, press.action, is_admin=is_admin)
        with suppress(TelegramError):  # Telegram accepts the answer to a press only for a short time
            told = format_markdown(refusal).text or (None if press.place else texts.OLD_BUTTON)
            await self._client.answer_callback_query(press.query, told)
        if press.place is None or refusal:
            return
        if press.message:
            with suppress(TelegramError):
                await self._client.edit_message_reply_markup(press.place.chat, press.message)
        answer = await self._chats.press_button(
            place=press.place, user=press.user, action=press.action, is_admin=is_admin
        )
        self._delivery.start(answer, place=press.place)


@asynccontextmanager
async def telegram(
    service: Service,
    pairing: Pairing,
    config: Config,
    environment: Mapping[str, str],
    *,
    deletes_webhook: bool = False,
    sleep: Sleep = asyncio.sleep,
    grace_s: float = CLOSE_GRACE_S,
    piece_wait_s: float = PIECE_WAIT_S,
) -> AsyncIterator[TelegramGateway]:
    """Listen to Telegram while the block runs; `connection` of the bot says whether Telegram can be reached.

    `deletes_webhook`: the operator agreed that a webhook which another program has set is deleted.
    `piece_wait_s`: how long the next piece of a long text is waited for.
    """
    client = _client(config, environment, sleep=sleep)
    chats = open_chats(service, pairing, config, "telegram")
    deletes_webhook = deletes_webhook or config.get("telegram.webhook") == "delete"
    gateway = TelegramGateway(
        chats,
        client,
        service.runtime.locks,
        deletes_webhook=deletes_webhook,
        sleep=sleep,
        piece_wait_s=piece_wait_s,
    )
    async with observed_turns(service, "telegram", gateway, grace_s=grace_s):
        gateway.start()
        yield gateway


async def webhook_host(config: Config, environment: Mapping[str, str]) -> str:
    """Return the host of a webhook that another program has set; "" if there is none or Telegram does not say."""
    client = _client(config, environment)
    try:
        async with asyncio.timeout(MAX_WEBHOOK_CHECK_S), client:
            return await client.webhook_host()
    except (TelegramError, TimeoutError):
        return ""


def _client(config: Config, environment: Mapping[str, str], *, sleep: Sleep = asyncio.sleep) -> BotApiClient:
    token = require_token(environment, "TELEGRAM_BOT_TOKEN", "the token that @BotFather gave you")
    return BotApiClient(token, base_url=base_url(config, "telegram"), sleep=sleep)
