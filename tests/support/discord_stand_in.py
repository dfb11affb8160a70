"""A local stand-in of Discord: the parts of REST API and gateway that a text bot needs.

    async with DiscordApi() as discord:
        await discord.say("hello", user=7)                # a user sends a direct message
        await until(lambda: discord.said())               # wait for the answer of the bot

Like Discord it refuses a wrong token, empty or too long messages and long nonces, answers a repeated nonce with the
existing message, and echoes the bot's own messages through the gateway. It runs in the event loop of the test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

Json = dict[str, Any]

TOKEN = "MTAx.standin.not-a-real-token"
BOT = 900
APPLICATION = 901
GUILD = 5_000
CHANNEL = 5_001
"""A text channel of the guild."""
ROLE = 5_002
"""The role that Discord made for the bot."""
DM = 6_000
"""The direct channel of user 7; the channel of another user is `DM` + user id."""
OWNER = 7


async def until(condition: Callable[[], Any], *, seconds: float = 60.0) -> None:
    """Wait until a condition is true."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not become true in time"
        await asyncio.sleep(0.005)


@dataclass(frozen=True)
class Sent:
    """A message of the bot."""

    channel: int
    content: str
    body: Json
    id: int
    way: str = "channel"
    """`channel`, or `followup` to an interaction."""

    @property
    def buttons(self) -> list[Json]:
        return [item for row in self.body.get("components", []) for item in row["components"]]


@dataclass
class DiscordApi:
    """The server; the test acts as the users and as Discord."""

    token: str = TOKEN
    sent: list[Sent] = field(default_factory=list)
    commands: list[Json] = field(default_factory=list)
    """Application commands that the bot has registered."""
    callbacks: list[Json] = field(default_factory=list)
    """First responses to interactions."""
    typing: list[int] = field(default_factory=list)
    """Channels in which the bot was typing."""
    logins: int = 0
    identified: list[Json] = field(default_factory=list)
    resumed: int = 0
    failures: list[tuple[int, Json | str, dict[str, str]]] = field(default_factory=list)
    """Status, body and headers of the next responses to new messages, instead of success."""
    refusal_code: int = 0
    """The code with which every IDENTIFY is refused."""
    failing_logins: int = 0
    """Number of logins that fail."""
    url: str = ""
    _ids: int = 1_000_000_000_000_000_000
    _events: list[Json] = field(default_factory=list)
    _socket: web.WebSocketResponse | None = None
    _nonces: dict[tuple[int, str], Json] = field(default_factory=dict)
    _interactions: dict[str, int] = field(default_factory=dict)
    """The channel of each interaction, by its token."""

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guarded])
        app.add_routes(
            [
                web.get("/", self._gateway),
                web.get("/api/v10/users/@me", self._me),
                web.get("/api/v10/oauth2/applications/@me", self._application),
                web.put(f"/api/v10/applications/{APPLICATION}/commands", self._register),
                web.post("/api/v10/channels/{channel}/typing", self._typing),
                web.post("/api/v10/channels/{channel}/messages", self._message),
                web.post("/api/v10/interactions/{id}/{token}/callback", self._callback),
                web.post(f"/api/v10/webhooks/{APPLICATION}/{{token}}", self._followup),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drop()
        await self._runner.cleanup()

    # ── users ────────────────────────────────────────────────────────────────────────────────────────

    async def say(
        self, text: str, *, user: int = OWNER, channel: int = 0, guild: bool = False, **more: Any
    ) -> Json:
        """Send a message as a user; `more` are further fields of the message."""
        message = self.new_message(text, channel or (CHANNEL if guild else _dm(user)), _user(user))
        if guild:
            message["guild_id"] = str(GUILD)
            message["member"] = _member()
        message |= more
        await self.dispatch("MESSAGE_CREATE", message)
        return message

    async def press(self, button: Json, *, user: int = OWNER, channel: int = 0, guild: bool = False) -> Json:
        """Press a button of a message of the bot as a user."""
        row = {"type": 1, "components": [{"type": 2, "style": 2, "label": "…"} | button]}
        target = channel or (CHANNEL if guild else _dm(user))
        message = self.new_message("…", target, _user(BOT, bot=True)) | {"components": [row]}
        data = {"custom_id": button["custom_id"], "component_type": 2}
        return await self._interact(3, data, user=user, channel=channel, guild=guild, message=message)

    async def slash(
        self, command: str, *, user: int = OWNER, channel: int = 0, guild: bool = False, **options: str
    ) -> Json:
        """Use an application command as a user."""
        given = [{"name": key, "type": 3, "value": value} for key, value in options.items()]
        data = {"id": "77", "name": command, "type": 1, "options": given}
        return await self._interact(2, data, user=user, channel=channel, guild=guild)

    async def dispatch(self, event: str, data: Json) -> None:
        """Send an event now, or when the bot has reconnected."""
        self._events.append({"op": 0, "t": event, "s": len(self._events) + 1, "d": data})
        await self._send_event(self._events[-1])

    async def again(self, message: Json) -> None:
        """Send a message a second time, as a gateway may after a resumed session."""
        await self.dispatch("MESSAGE_CREATE", message)

    async def drop(self) -> None:
        """Break the connection, so that the bot resumes it."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close(code=4000)

    # ── the bot ──────────────────────────────────────────────────────────────────────────────────────

    def said(self, channel: int = DM) -> list[str]:
        return [sent.content for sent in self.sent if sent.channel == channel]

    @property
    def connected(self) -> bool:
        return self._socket is not None

    # ── gateway ──────────────────────────────────────────────────────────────────────────────────────

    async def _gateway(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"op": 10, "d": {"heartbeat_interval": 41_250}})
        async for frame in socket:
            if frame.type is not WSMsgType.TEXT:
                break
            payload = json.loads(frame.data)
            if payload["op"] == 1:
                await socket.send_json({"op": 11})
            elif payload["op"] == 2:
                await self._identify(socket, payload["d"])
            elif payload["op"] == 6:
                await self._resume(socket, payload["d"])
        if self._socket is socket:
            self._socket = None
        return socket

    async def _identify(self, socket: web.WebSocketResponse, payload: Json) -> None:
        if self.refusal_code or payload["token"] != self.token:
            await socket.close(code=self.refusal_code or 4004)
            return
        self._socket, self._events = socket, []
        ready = {
            "v": 10,
            "user": _user(BOT, bot=True),
            "guilds": [{"id": str(GUILD), "unavailable": True}],
            "session_id": "standin",
            "resume_gateway_url": self.url.replace("http", "ws"),
            "application": {"id": str(APPLICATION), "flags": 0},
        }
        await self.dispatch("READY", ready)
        await self.dispatch("GUILD_CREATE", _guild())
        self.identified.append(payload)

    async def _resume(self, socket: web.WebSocketResponse, payload: Json) -> None:
        self._socket = socket
        self.resumed += 1
        for event in [event for event in self._events if event["s"] > payload["seq"]]:
            await self._send_event(event)
        await self.dispatch("RESUMED", {})

    async def _send_event(self, event: Json) -> None:
        if self._socket is not None:
            with suppress(ConnectionError):
                await self._socket.send_json(event)

    async def _interact(
        self, kind: int, data: Json, *, user: int, channel: int, guild: bool, **more: Any
    ) -> Json:
        id = self._next()
        target = channel or (CHANNEL if guild else _dm(user))
        interaction: Json = {
            "id": str(id),
            "application_id": str(APPLICATION),
            "type": kind,
            "data": data,
            "token": f"interaction-{id}",
            "version": 1,
            "channel_id": str(target),
            "attachment_size_limit": 1,
            "entitlements": [],
            "authorizing_integration_owners": {},
            "channel": _channel() if guild else {"id": str(target), "type": 1, "recipients": [_user(user)]},
        } | more
        if guild:
            interaction |= {"guild_id": str(GUILD), "member": _member() | {"user": _user(user)}}
        else:
            interaction["user"] = _user(user)
        self._interactions[interaction["token"]] = target
        await self.dispatch("INTERACTION_CREATE", interaction)
        return interaction

    # ── REST API ─────────────────────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path
        open_ = path == "/" or "/webhooks/" in path or "/interactions/" in path
        if not open_ and request.headers.get("Authorization") != f"Bot {self.token}":
            return _refused(401, 0, "401: Unauthorized")
        return await handler(request)

    async def _me(self, request: web.Request) -> web.Response:
        if self.failing_logins:
            self.failing_logins -= 1
            return _refused(503, 0, "unavailable")
        self.logins += 1
        return _json(_user(BOT, bot=True))

    async def _application(self, request: web.Request) -> web.Response:
        about = {
            "id": str(APPLICATION),
            "name": "standin",
            "description": "",
            "icon": None,
            "bot_public": False,
            "bot_require_code_grant": False,
            "owner": _user(OWNER),
            "verify_key": "",
            "flags": 0,
        }
        return _json(about)

    async def _register(self, request: web.Request) -> web.Response:
        self.commands = [
            command
            | {"id": str(self._next()), "application_id": str(APPLICATION), "version": "1"}
            | {"default_member_permissions": None}
            for command in await request.json()
        ]
        return _json(self.commands)

    async def _typing(self, request: web.Request) -> web.Response:
        self.typing.append(int(request.match_info["channel"]))
        return web.Response(status=204)

    async def _message(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.failures:
            status, answer, headers = self.failures.pop(0)
            return _json(answer, status=status, headers=headers)
        return await self._posted(body, channel=int(request.match_info["channel"]), way="channel")

    async def _callback(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.callbacks.append(body)
        if body["type"] == 4:
            target = self._interactions[request.match_info["token"]]
            self._store(body["data"], channel=target, way="callback")
        answer = {"interaction": {"id": request.match_info["id"], "type": 2, "response_message_id": None}}
        return _json(answer)

    async def _followup(self, request: web.Request) -> web.Response:
        target = self._interactions.get(request.match_info["token"])
        if target is None:
            return _refused(404, 10015, "Unknown Webhook")
        return await self._posted(await request.json(), channel=target, way="followup")

    async def _posted(self, body: Json, *, channel: int, way: str) -> web.Response:
        content, nonce = body.get("content") or "", str(body.get("nonce") or "")
        if not content.strip():
            return _refused(400, 50006, "Cannot send an empty message")
        if len(content) > 2_000 or len(nonce) > 25:
            return _refused(400, 50035, "Invalid Form Body")
        if nonce and body.get("enforce_nonce") and (channel, nonce) in self._nonces:
            return _json(self._nonces[channel, nonce])
        message = self._store(body, channel=channel, way=way)
        if nonce:
            self._nonces[channel, nonce] = message
        await self.dispatch("MESSAGE_CREATE", message)
        return _json(message)

    def _store(self, body: Json, *, channel: int, way: str) -> Json:
        message = self.new_message(body["content"], channel, _user(BOT, bot=True))
        if channel == CHANNEL:
            message["guild_id"] = str(GUILD)
        kept = Sent(channel=channel, content=body["content"], body=body, id=int(message["id"]), way=way)
        self.sent.append(kept)
        return message

    def new_message(self, text: str, channel: int, author: Json) -> Json:
        return {
            "id": str(self._next()),
            "channel_id": str(channel),
            "author": author,
            "content": text,
            "timestamp": "2026-01-01T00:00:00+00:00",
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [],
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 0,
        }

    def _next(self) -> int:
        self._ids += 1
        return self._ids


def mention_of_bot() -> Json:
    return _user(BOT, bot=True) | {"member": _member()}


def bot() -> Json:
    return _user(BOT, bot=True)


def _dm(user: int) -> int:
    return DM if user == OWNER else DM + user


def _user(id: int, *, bot: bool = False) -> Json:
    name = f"user{id}"
    return {
        "id": str(id),
        "username": name,
        "discriminator": "0",
        "global_name": name,
        "avatar": None,
        "bot": bot,
    }


def _member() -> Json:
    return {"roles": [], "joined_at": "2026-01-01T00:00:00+00:00", "deaf": False, "mute": False, "flags": 0}


def _channel() -> Json:
    return {"id": str(CHANNEL), "type": 0, "name": "room", "position": 0, "permission_overwrites": []} | {
        "guild_id": str(GUILD),
        "parent_id": None,
        "nsfw": False,
    }


def _guild() -> Json:
    empty: Json = {name: [] for name in ("emojis", "stickers", "features", "voice_states", "presences")}
    role = {
        "id": str(GUILD),
        "name": "@everyone",
        "color": 0,
        "hoist": False,
        "position": 0,
        "permissions": "0",
        "managed": False,
        "mentionable": False,
        "flags": 0,
    }
    return empty | {
        "id": str(GUILD),
        "name": "guild",
        "owner_id": str(OWNER),
        "afk_timeout": 300,
        "verification_level": 0,
        "default_message_notifications": 0,
        "explicit_content_filter": 0,
        "mfa_level": 0,
        "nsfw_level": 0,
        "premium_tier": 0,
        "preferred_locale": "en-US",
        "member_count": 2,
        "system_channel_flags": 0,
        "roles": [role, role | {"id": str(ROLE), "name": "bot", "tags": {"bot_id": str(BOT)}}],
        "members": [],
        "channels": [_channel()],
        "threads": [],
        "large": False,
        "unavailable": False,
    }


def _json(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return JSON without a charset, as Discord does: discord.py compares the content type literally."""
    content = json.dumps(body).encode()
    return web.Response(
        body=content, status=status, headers={"Content-Type": "application/json"} | (headers or {})
    )


def _refused(status: int, code: int, message: str) -> web.Response:
    return _json({"code": code, "message": message}, status=status)
