"""A local stand-in of Telegram's Bot API over real HTTP.

    async with BotApi() as api:
        api.hear("Hello", user=42)                 # see `telegram_users` for all that users can send
        said = await api.said(1)                   # waits for the first message of the bot

1. As at Telegram, updates are sent again until the bot asks for later ones; their ids have gaps. A second request
   for updates ends the first one with `409`, as does a webhook (`webhook`).
2. As at Telegram, these are refused: wrong tokens, empty and too long texts (in UTF-16 units), entities outside the
   text, buttons with too much data, closed and missing topics, expired callback queries, files over 20 MB. Entities
   after the first 100 are ignored. A reply without a topic goes to the topic of the answered message.
3. `fail` makes the next calls of a method fail: with an error response (`Fault`), a closed connection (`HangUp`),
   no response (`Hang`), or a connection that closes after the call was carried out (`LostReply`).
4. `outage` makes all calls fail for a while; with `rate_limited`, messages that follow too fast get a `429`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Literal, Self

from aiohttp import web

from foveal.ports import Reply, ReplyPiece
from foveal.testing import Scripted
from support.interrupted_server import InterruptedServer, cut_connection
from support.telegram_users import GENERAL, ME, MESSAGE_UNITS, NAME, Json, TelegramUsers, units

__all__ = ["ME", "NAME", "TOKEN", "BotApi", "Fault", "Hang", "HangUp", "Json", "LostReply"]

TOKEN: Final = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
MAX_WAIT_S: Final = 60.0
"""Time after which a test fails."""
MAX_ENTITIES: Final = 100
MAX_FILE_BYTES: Final = 20_000_000
CHAT_BURST: Final = 3
"""Messages that a chat takes at once; then it takes one per second."""
GROUP_MESSAGES_PER_MINUTE: Final = 20
FILTERED_KINDS: Final = frozenset(("message", "edited_message", "callback_query", "my_chat_member"))
"""Kinds of updates that `allowed_updates` filters here. A test may give updates of unknown kinds."""
_TEXT_PARAMETERS: Final = ("text", "action", "callback_query_id", "file_id", "url", "caption")

OutageKind = Literal["refused", "hang", "bad gateway", "unauthorised", "rate limit", "lost replies"]
"""What happens to calls: no connection, no response, `502` with a page, `401`, `429`, or a connection that closes
after the call was carried out."""


class Fault(Exception):
    """An error response."""

    def __init__(self, status: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.status = status
        self.body = {"ok": False, "error_code": status, "description": description}
        if parameters:
            self.body["parameters"] = parameters


class HangUp(Exception):
    """The connection ends without an answer."""


class LostReply(HangUp):
    """The call is carried out, and the connection ends without an answer."""


class Hang(Exception):
    """The connection stays open without an answer, until the stand-in ends."""


class BotApi(TelegramUsers):
    """The server; the test acts as the users and as Telegram."""

    def __init__(self, *, rate_limited: bool = False) -> None:
        super().__init__()
        self.calls: list[tuple[str, Json]] = []
        """Calls of the bot, without `getUpdates`, `getMe`, `sendMessage` and typing."""
        self.messages: list[Json] = []
        """Messages of the bot that were accepted."""
        self.lost_replies: list[int] = []
        """Ids of messages that were accepted although the bot got no answer."""
        self.accepted_at: dict[int, float] = {}
        """When each message was accepted, in the time of `time.monotonic`."""
        self.blocking: set[int] = set()
        """Users who have blocked the bot."""
        self.admins: set[int] = set()
        """Users who administer every group."""
        self.typed = 0
        self.updates: list[Json] = []
        """Updates that the bot has not acknowledged."""
        self.asked: list[int | None] = []
        """Offsets of the calls of `getUpdates`."""
        self._webhook = ""
        self.rate_limited = rate_limited
        self.update_id = 1_000
        """The newest id of an update."""
        self._faults: dict[str, list[Exception]] = {}
        self._allowed_updates: frozenset[str] | None = None
        self._polls = 0
        self._sent_at: dict[int, list[float]] = {}
        self._threads: dict[tuple[int, int], int | None] = {}
        """The topic of each message, by chat and message."""
        self._news = asyncio.Condition()
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/bot{token}/{method}", self._serve)
        app.router.add_get("/file/bot{token}/{path:.*}", self._serve_file)
        self._server = InterruptedServer[OutageKind](app, lambda _: self._notify())
        await self._server.start()
        self.url = self._server.url
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._notify()
        await self._server.stop()

    @property
    def webhook(self) -> str:
        """The address to which Telegram sends updates instead; `deleteWebhook` removes it."""
        return self._webhook

    @webhook.setter
    def webhook(self, address: str) -> None:
        """As at Telegram, setting it ends a request that waits for updates."""
        self._webhook = address
        self._wake()

    # ── Telegram ─────────────────────────────────────────────────────────────────────────────────────

    def give(self, update: Json) -> Json:
        """Queue an update, with the next number if it has none; an update can be queued twice."""
        if "update_id" not in update:
            self.update_id += 2  # ids increase, with gaps
            update = {"update_id": self.update_id, **update}
        message = update.get("message", {})
        if "message_id" in message:
            thread = message.get("message_thread_id") if message.get("is_topic_message") else None
            self._threads[message["chat"]["id"], message["message_id"]] = thread
        if self._is_allowed(update):
            self.updates.append(update)
            self._wake()
        return update

    def fail(self, method: str, *faults: Exception) -> None:
        """Let the next calls of a method fail, one per fault."""
        self._faults.setdefault(method, []).extend(faults)

    def outage(self, kind: OutageKind) -> AbstractAsyncContextManager[None]:
        """Let all calls fail while the block runs, those that wait for updates too."""
        return self._server.outage(kind)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────

    async def until(self, true: Callable[[], bool], *, seconds: float = MAX_WAIT_S) -> None:
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(true)

    async def said(self, count: int) -> list[Json]:
        """Wait for this many messages and return all so far."""
        await self.until(lambda: len(self.messages) >= count)
        return list(self.messages)

    async def taken(self) -> None:
        """Wait until the bot has acknowledged every update and asks for more."""
        await self.until(lambda: not self.updates and bool(self.asked))

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        try:
            parameters = {name: _value(name, value) for name, value in (await request.post()).items()}
            return await self._respond(request, method, parameters)
        except Fault as fault:
            return web.json_response(fault.body, status=fault.status)
        except (HangUp, ConnectionResetError):  # or the client has closed the connection
            return cut_connection(request)
        finally:
            await self._notify()

    async def _respond(self, request: web.Request, method: str, parameters: Json) -> web.Response:
        if request.match_info["token"] != TOKEN:
            raise Fault(401, "Unauthorized")
        if self._server.kind == "bad gateway":  # the page of a server before the API, which is not JSON
            return web.Response(
                status=502, text="<html><h1>502 Bad Gateway</h1></html>", content_type="text/html"
            )
        fault = await self._next_fault(method)
        call: Callable[[str, Json], Awaitable[Any]] = getattr(self, f"_{method}", self._other_method)
        result = await call(method, parameters)
        is_closed = request.transport is None or request.transport.is_closing()
        if isinstance(fault, LostReply) or is_closed:
            if method == "sendMessage":
                self.lost_replies.append(result["message_id"])
            raise LostReply
        return web.json_response({"ok": True, "result": result})

    async def _next_fault(self, method: str) -> LostReply | None:
        """Raise what happens to a call instead of being carried out; return what happens afterwards."""
        fault: Exception | None = self._faults[method].pop(0) if self._faults.get(method) else None
        match self._server.kind:
            case "refused":  # a request on a connection that was not yet closed
                fault = HangUp()
            case "hang":
                await self._server.wait_for_end()
                fault = HangUp()
            case "unauthorised":
                fault = Fault(401, "Unauthorized")
            case "rate limit":
                fault = _too_many_requests(1)
            case "lost replies":
                fault = LostReply()
        if isinstance(fault, Hang):
            await self._closing.wait()
            raise HangUp
        if fault is not None and not isinstance(fault, LostReply):
            raise fault
        return fault

    async def _serve_file(self, request: web.Request) -> web.StreamResponse:
        """Return the data of a file whose path `getFile` has returned."""
        try:
            await self._next_fault("download")
        except Fault as fault:
            return web.json_response(fault.body, status=fault.status)
        except HangUp:
            return cut_connection(request)
        found = [file for file in self.files.values() if file.path == request.match_info["path"]]
        if request.match_info["token"] != TOKEN or not found:
            return web.json_response(Fault(404, "Not Found").body, status=404)
        return web.Response(body=found[0].data, content_type="application/octet-stream")

    # ── methods of the API ───────────────────────────────────────────────────────────────────────────

    async def _other_method(self, method: str, parameters: Json) -> bool:
        self.calls.append((method, parameters))
        return True

    async def _getMe(self, method: str, parameters: Json) -> Json:
        return ME

    async def _getWebhookInfo(self, method: str, parameters: Json) -> Json:
        waiting = len(self.updates)
        return {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": waiting}

    async def _deleteWebhook(self, method: str, parameters: Json) -> bool:
        self.webhook = ""
        if parameters.get("drop_pending_updates"):
            self.updates.clear()
        return await self._other_method(method, parameters)

    async def _getUpdates(self, method: str, parameters: Json) -> list[Json]:
        if self.webhook:
            raise Fault(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook "
                        "to delete the webhook first")  # fmt: skip
        self._polls += 1
        poll, offset = self._polls, parameters.get("offset")
        self.asked.append(offset)
        if "allowed_updates" in parameters:
            self._allowed_updates = frozenset(parameters["allowed_updates"]) or None
        self._acknowledge(offset)
        await self._notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(parameters.get("timeout", 0)), self._news:
                await self._news.wait_for(lambda: self.updates or self._is_interrupted(poll))
        if self.webhook:
            raise Fault(409, "Conflict: terminated by setWebhook request")
        if poll != self._polls:
            raise Fault(409, "Conflict: terminated by other getUpdates request; make sure that only one bot "
                        "instance is running")  # fmt: skip
        if self._server.kind:
            await self._next_fault(method)
            raise HangUp
        return self.updates[: parameters.get("limit", 100)]

    def _acknowledge(self, offset: int | None) -> None:
        """Forget updates before the offset; a negative one counts from the end."""
        if offset is not None and offset < 0:
            self.updates = self.updates[offset:]
        elif offset is not None:
            self.updates = [update for update in self.updates if update["update_id"] >= offset]

    def _is_interrupted(self, poll: int) -> bool:
        is_replaced = poll != self._polls or bool(self.webhook)
        return self._closing.is_set() or is_replaced or self._server.kind is not None

    async def _getFile(self, method: str, parameters: Json) -> Json:
        self.calls.append((method, parameters))
        name = parameters["file_id"]
        if name not in self.files:
            raise Fault(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        file = self.files[name]
        if file.size > MAX_FILE_BYTES:
            raise Fault(400, "Bad Request: file is too big")
        about = {"file_id": name, "file_unique_id": f"u{name}", "file_size": file.size}
        return about | {"file_path": file.path}

    async def _getChatAdministrators(self, method: str, parameters: Json) -> list[Json]:
        self.calls.append((method, parameters))
        shape = {"status": "creator", "is_anonymous": False}
        return [shape | {"user": self.user_of(user)} for user in sorted(self.admins)]

    async def _answerCallbackQuery(self, method: str, parameters: Json) -> bool:
        self.calls.append((method, parameters))
        query = parameters["callback_query_id"]
        if query not in self._queries:
            raise Fault(
                400, "Bad Request: query is too old and response timeout expired or query ID is invalid"
            )
        return True

    async def _sendChatAction(self, method: str, parameters: Json) -> bool:
        assert parameters["action"] == "typing"
        self.typed += 1
        return True

    async def _sendMessage(self, method: str, parameters: Json) -> Json:
        chat = parameters["chat_id"]
        if chat in self.blocking:
            raise Fault(403, "Forbidden: bot was blocked by the user")
        _check_text(parameters)
        thread = self._thread(chat, parameters)
        if self.rate_limited:
            self._check_rate(chat)
        message: Json = {
            "message_id": self._new_message_id(),
            "date": self.now,
            "chat": self.chat_of(chat),
            "from": ME,
            **parameters,
        }
        del message["chat_id"]
        if thread is not None:
            message |= {"message_thread_id": thread, "is_topic_message": True}
        if "entities" in message:
            message["entities"] = message["entities"][:MAX_ENTITIES]
        self._threads[chat, message["message_id"]] = thread
        self.messages.append(message)
        self.accepted_at[message["message_id"]] = time.monotonic()
        returned = ("message_id", "date", "chat", "text", "message_thread_id", "is_topic_message")
        return {name: value for name, value in message.items() if name in returned}

    def _thread(self, chat: int, parameters: Json) -> int | None:
        """Return the topic to which a message goes; None for chats without topics and the topic General."""
        thread = parameters.get("message_thread_id")
        topics = self.topics.get(chat, {})
        reply = parameters.get("reply_parameters", {})
        if (
            reply
            and not reply.get("allow_sending_without_reply")
            and (chat, reply["message_id"]) not in self._threads
        ):
            raise Fault(400, "Bad Request: message to be replied not found")
        if thread is None and reply:
            thread = self._threads.get((chat, reply["message_id"]))
        if thread is not None and (thread == GENERAL or thread not in topics):
            raise Fault(400, "Bad Request: message thread not found")
        topic = topics.get(GENERAL if thread is None else thread)
        if topic is not None and topic.is_closed:
            raise Fault(400, "Bad Request: TOPIC_CLOSED")
        return thread

    def _check_rate(self, chat: int) -> None:
        now = asyncio.get_running_loop().time()
        sent = self._sent_at.setdefault(chat, [])
        waits = [sent[-CHAT_BURST] + CHAT_BURST - now] if len(sent) >= CHAT_BURST else []
        if chat < 0 and len(sent) >= GROUP_MESSAGES_PER_MINUTE:
            waits.append(sent[-GROUP_MESSAGES_PER_MINUTE] + 60 - now)
        if waits and max(waits) > 0:
            raise _too_many_requests(math.ceil(max(waits)))
        sent.append(now)

    def _is_allowed(self, update: Json) -> bool:
        kinds = FILTERED_KINDS & update.keys()
        return self._allowed_updates is None or not kinds or bool(kinds & self._allowed_updates)

    def _wake(self) -> None:
        """Notify waiting tasks without blocking."""
        task = asyncio.get_running_loop().create_task(self._notify())
        self._waking = task

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


def _check_text(parameters: Json) -> None:
    """Refuse a message that Telegram refuses."""
    text = parameters["text"]
    if not isinstance(text, str) or not text.strip():
        raise Fault(400, "Bad Request: message text is empty")
    if units(text) > MESSAGE_UNITS:
        raise Fault(400, "Bad Request: message is too long")
    for entity in parameters.get("entities", []):
        if entity["offset"] < 0 or entity["length"] < 1 or entity["offset"] + entity["length"] > units(text):
            raise Fault(400, "Bad Request: entity is outside the text")
    for row in parameters.get("reply_markup", {}).get("inline_keyboard", []):
        if any(not 0 < len(button["callback_data"].encode()) <= 64 for button in row):
            raise Fault(400, "Bad Request: BUTTON_DATA_INVALID")


def _too_many_requests(seconds: int) -> Fault:
    return Fault(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)


def _value(name: str, value: Any) -> Any:
    """Decode a parameter: the library sends everything except texts as JSON."""
    if name in _TEXT_PARAMETERS:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


class KillingProvider(Scripted):
    """A provider whose first request kills the server process."""

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield ReplyPiece(text="")


def killing_provider(name: str | None, **_: Any) -> Scripted:
    """Create the provider, for `FOVEAL_PROVIDER`."""
    return KillingProvider()
