"""A local stand-in of Telegram's Bot API over real HTTP.

    async with BotApi() as api:
        api.hear("Hello", user=42)                 # the id of a private chat is the id of its user
        said = await api.said(1)                   # waits for the first message of the bot

1. As at Telegram, updates are sent again until the bot asks for later ones.
2. As at Telegram, these are refused: wrong tokens, empty and too long texts, entities outside the text, buttons
   with too much data.
3. `fail` makes the next calls of a method fail in a given way.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Self

from aiohttp import web

from foveal.ports import Reply, ReplyPiece
from foveal.testing import Scripted

TOKEN: Final = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
NAME: Final = "foveal_bot"
ME: Final = {"id": 110201543, "is_bot": True, "first_name": "Foveal", "username": NAME}
MAX_WAIT_S: Final = 60.0
"""Time after which a test fails."""

Json = dict[str, Any]


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


class BotApi:
    """The server; the test acts as the users and as Telegram."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Json]] = []
        """Calls of the bot, without `getUpdates`, `getMe`, `sendMessage` and typing."""
        self.messages: list[Json] = []
        """Messages of the bot that were accepted."""
        self.typed = 0
        self.updates: list[Json] = []
        """Updates that the bot has not acknowledged."""
        self.asked: list[int | None] = []
        """Offsets of the calls of `getUpdates`."""
        self._faults: dict[str, list[Exception]] = {}
        self._next = 1_000
        self._news = asyncio.Condition()
        self._closing = False

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/bot{token}/{method}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        await self._notify()
        await self._runner.cleanup()

    # ── users ───────────────────────────────────────────────────────────────────────────────────────

    def hear(self, text: str | None, *, user: int, chat: int | None = None, **fields: Any) -> Json:
        """Send a message as a user and return the update; a chat below 0 is a group."""
        chat = user if chat is None else chat
        self._next += 1
        kind = "private" if chat > 0 else "supergroup"
        message: Json = {
            "message_id": self._next,
            "date": 1_760_000_000,
            "chat": {"id": chat, "type": kind, **({"title": "Group"} if chat < 0 else {"first_name": "A"})},
            "from": {"id": user, "is_bot": False, "first_name": "A"},
            **({} if text is None else {"text": text}),
            **fields,
        }
        return self.give({"message": message})

    def press(self, data: str, *, user: int, message: Json | None) -> Json:
        """Press a button of a message of the bot as a user."""
        query: Json = {"from": {"id": user, "is_bot": False, "first_name": "A"}, "chat_instance": "1"}
        query |= {"id": f"q{self._next}", "data": data}
        if message is not None:
            query["message"] = message
        return self.give({"callback_query": query})

    def give(self, update: Json) -> Json:
        """Queue an update, with the next number if it has none; an update can be queued twice."""
        if "update_id" not in update:
            self._next += 1
            update = {"update_id": self._next, **update}
        self.updates.append(update)
        self._wake()
        return update

    def fail(self, method: str, *faults: Exception) -> None:
        """Let the next calls of a method fail, one per fault."""
        self._faults.setdefault(method, []).extend(faults)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(MAX_WAIT_S), self._news:
            await self._news.wait_for(true)

    async def said(self, count: int) -> list[Json]:
        """Wait for this many messages and return all so far."""
        await self.until(lambda: len(self.messages) >= count)
        return list(self.messages)

    async def taken(self) -> None:
        """Wait until the bot has acknowledged every update and asks for more."""
        await self.until(lambda: not self.updates and bool(self.asked))

    # ── methods of the API ───────────────────────────────────────────────────────────────────────────

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        parameters = {name: _value(name, value) for name, value in (await request.post()).items()}
        try:
            if request.match_info["token"] != TOKEN:
                raise Fault(401, "Unauthorized")
            if self._faults.get(method):
                raise self._faults[method].pop(0)
            result = await getattr(self, f"_{method}", self._other_method)(method, parameters)
        except Fault as fault:
            return web.json_response(fault.body, status=fault.status)
        except HangUp:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        finally:
            await self._notify()
        return web.json_response({"ok": True, "result": result})

    async def _other_method(self, method: str, parameters: Json) -> bool:
        self.calls.append((method, parameters))
        return True

    async def _getMe(self, method: str, parameters: Json) -> Json:
        return ME

    async def _getUpdates(self, method: str, parameters: Json) -> list[Json]:
        offset = parameters.get("offset")
        self.asked.append(offset)
        if offset is not None:
            self.updates = [update for update in self.updates if update["update_id"] >= offset]
        await self._notify()
        async with self._news:
            await self._news.wait_for(lambda: bool(self.updates) or self._closing)
        return self.updates[: parameters.get("limit", 100)]

    async def _sendChatAction(self, method: str, parameters: Json) -> bool:
        assert parameters["action"] == "typing"
        self.typed += 1
        return True

    async def _sendMessage(self, method: str, parameters: Json) -> Json:
        text = parameters["text"]
        if not isinstance(text, str) or not text.strip():
            raise Fault(400, "Bad Request: message text is empty")
        units = len(text.encode("utf-16-le")) // 2
        if units > 4096:
            raise Fault(400, "Bad Request: message is too long")
        for entity in parameters.get("entities", []):
            if entity["offset"] < 0 or entity["length"] < 1 or entity["offset"] + entity["length"] > units:
                raise Fault(400, "Bad Request: entity is outside the text")
        for row in parameters.get("reply_markup", {}).get("inline_keyboard", []):
            if any(not 0 < len(button["callback_data"].encode()) <= 64 for button in row):
                raise Fault(400, "Bad Request: BUTTON_DATA_INVALID")
        self._next += 1
        chat = {"id": parameters["chat_id"], "type": "private" if parameters["chat_id"] > 0 else "supergroup"}
        message = {"message_id": self._next, "date": 1_760_000_000, "chat": chat, "from": ME, **parameters}
        self.messages.append(message)
        del message["chat_id"]
        return {
            name: value for name, value in message.items() if name in ("message_id", "date", "chat", "text")
        }

    def _wake(self) -> None:
        """Notify waiting tasks without blocking."""
        task = asyncio.get_running_loop().create_task(self._notify())
        self._waking = task

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()


def _value(name: str, parameters: Any) -> Any:
    """Decode a parameter: the library sends everything except texts as JSON."""
    return parameters if name in ("text", "action", "callback_query_id") else json.loads(parameters)


class KillingProvider(Scripted):
    """A provider whose first request kills the server process."""

    async def send(self, request: Any, *, max_tokens: int) -> AsyncIterator[ReplyPiece | Reply]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield ReplyPiece(text="")


def killing_provider(name: str | None, **_: Any) -> Scripted:
    """Create the provider, for `FOVEAL_PROVIDER`."""
    return KillingProvider()
