"""A local stand-in of Discord: the parts of REST API and gateway that a text bot needs.

    async with DiscordApi() as discord:
        await discord.say("hello", user=7)                        # a user sends a direct message
        await until(lambda: discord.said())                       # wait for the answer of the bot
        thread = await discord.open_thread("Plans")
        await discord.say("hi", channel=thread, mentions=[mention_of_bot()])
        await discord.say("why?", reply_to=message)               # also `forward=message`
        await discord.say("read", attachments=[discord.attach("a.txt", b"text")])

1. Like Discord it refuses a wrong token, empty or too long messages and long nonces, messages to deleted channels
   (10003) and closed threads (50083), and responses to expired interactions (10062, 50027). It answers a repeated
   nonce with the existing message, and echoes the bot's own messages through the gateway.
2. Events that the bot missed are sent when it resumes its session; a new session begins without them.
3. `failures` are the next responses to new messages (`None`: success). `outage` makes all requests fail for a
   while.

It runs in the event loop of the test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import WSMsgType, web

from support.discord_objects import (
    APPLICATION,
    BOT,
    CHANNEL,
    DM,
    GUILD,
    OWNER,
    ROLE,
    Json,
    bot,
    channel_object,
    direct_channel,
    forward_fields,
    guild_object,
    member_object,
    mention_of_bot,
    message_object,
    reply_fields,
    thread_object,
    user_object,
)
from support.interrupted_server import InterruptedServer, cut_connection

__all__ = [
    "APPLICATION",
    "BOT",
    "CHANNEL",
    "DM",
    "GUILD",
    "OWNER",
    "ROLE",
    "TOKEN",
    "DiscordApi",
    "Json",
    "Sent",
    "bot",
    "mention_of_bot",
    "until",
]

TOKEN = "MTAx.standin.not-a-real-token"
MANAGE_GUILD = 1 << 5
"""Discord's number of the right to administer a server."""
DiscordOutage = Literal["refused", "hang", "unavailable", "lost replies"]
"""What happens to requests: no connection, no response, `503`, or a connection that closes after the request was
carried out. The gateway is disconnected in all cases but the last."""


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
    at: float = field(default_factory=time.monotonic)
    """When it was accepted, in the time of `time.monotonic`."""

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
    failures: list[tuple[int, Json | str, dict[str, str]] | None] = field(default_factory=list)
    """Status, body and headers of the next responses to new messages, instead of success."""
    refusal_code: int = 0
    """The code with which every IDENTIFY is refused."""
    refusals: list[int] = field(default_factory=list)
    """Codes with which the next IDENTIFYs are refused, such as 4004."""
    failing_logins: int = 0
    """Number of logins that fail."""
    refused_logins: int = 0
    """Number of logins that are answered with `401`."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of users that others see."""
    threads: dict[int, Json] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    """Channels and threads that no longer exist."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Data of attachments, by the path of their address."""
    files_ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: downloads of attachments wait."""
    delivered_at: dict[str, float] = field(default_factory=dict)
    """When each message was sent to the bot, by its text, in the time of `time.monotonic`."""
    lost_replies: list[int] = field(default_factory=list)
    """Ids of messages that were accepted although the bot got no answer."""
    admins: set[int] = field(default_factory=set)
    """Users who administer the server."""
    url: str = ""
    _ids: int = 1_000_000_000_000_000_000
    _events: list[Json] = field(default_factory=list)
    _socket: web.WebSocketResponse | None = None
    _nonces: dict[tuple[int, str], Json] = field(default_factory=dict)
    _interactions: dict[str, int] = field(default_factory=dict)
    """The channel of each interaction, by its token."""
    _expired: set[str] = field(default_factory=set)
    """Tokens of interactions to which the bot can no longer respond."""

    async def __aenter__(self) -> Self:
        self.files_ready.set()
        app = web.Application(middlewares=[self._guarded])
        app.add_routes(
            [
                web.get("/", self._gateway),
                web.get("/api/v10/users/@me", self._me),
                web.get("/api/v10/oauth2/applications/@me", self._application),
                web.post("/api/v10/users/@me/channels", self._open_direct_channel),
                web.put(f"/api/v10/applications/{APPLICATION}/commands", self._register),
                web.post("/api/v10/channels/{channel}/typing", self._typing),
                web.post("/api/v10/channels/{channel}/messages", self._message),
                web.post("/api/v10/interactions/{id}/{token}/callback", self._callback),
                web.post(f"/api/v10/webhooks/{APPLICATION}/{{token}}", self._followup),
                web.get("/attachments/{path:.*}", self._attachment),
            ]
        )
        self._server = InterruptedServer[DiscordOutage](app, self._disconnect)
        await self._server.start()
        self.url = self._server.url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drop()
        await self._server.stop()

    # ── users ────────────────────────────────────────────────────────────────────────────────────────

    async def say(
        self,
        text: str,
        *,
        user: int = OWNER,
        channel: int = 0,
        guild: bool = False,
        reply_to: Json | None = None,
        forward: Json | None = None,
        **more: Any,
    ) -> Json:
        """Send a message as a user; `more` are further fields of the message."""
        target = channel or (CHANNEL if guild else direct_channel(user))
        message = self.new_message(text, target, self.user(user))
        if guild or target in self.threads:
            message |= {"guild_id": str(GUILD), "member": member_object()}
        if reply_to is not None:
            message |= reply_fields(reply_to)
        if forward is not None:
            message |= forward_fields(forward)
        message |= more
        await self.dispatch("MESSAGE_CREATE", message)
        return message

    def user(self, id: int) -> Json:
        return user_object(id, bot=id == BOT, name=self.names.get(id, ""))

    def attach(
        self, name: str, data: bytes, *, content_type: str = "text/plain", size: int | None = None
    ) -> Json:
        """Return an attachment of a message; `size` is the reported size, if it is not that of the data."""
        id = self._next()
        path = f"{CHANNEL}/{id}/{name}"
        self.files[path] = data
        url = f"{self.url}/attachments/{path}"
        kind = {"content_type": content_type} if content_type else {}
        size = len(data) if size is None else size
        return {"id": str(id), "filename": name, "size": size, "url": url, "proxy_url": url} | kind

    async def open_thread(self, name: str = "Thread", *, id: int = 0) -> int:
        """Create a thread of the channel, or open it again, and return its id."""
        id = id or self._next()
        is_new = id not in self.threads
        self.threads[id] = thread_object(id, name)
        await self.dispatch("THREAD_CREATE" if is_new else "THREAD_UPDATE", self.threads[id])
        return id

    async def close_thread(self, id: int) -> None:
        """Archive and lock a thread: the bot can no longer write in it."""
        self.threads[id] = thread_object(id, self.threads[id]["name"], archived=True, locked=True)
        await self.dispatch("THREAD_UPDATE", self.threads[id])

    async def archive_thread(self, id: int) -> None:
        """Archive a thread; the next message opens it again."""
        self.threads[id] = thread_object(id, self.threads[id]["name"], archived=True)
        await self.dispatch("THREAD_UPDATE", self.threads[id])

    def expire_interactions(self) -> None:
        """Let the 15 minutes pass in which the bot can respond to the interactions so far."""
        self._expired |= self._interactions.keys()

    async def press(self, button: Json, *, user: int = OWNER, channel: int = 0, guild: bool = False) -> Json:
        """Press a button of a message of the bot as a user."""
        row = {"type": 1, "components": [{"type": 2, "style": 2, "label": "…"} | button]}
        target = channel or (CHANNEL if guild else direct_channel(user))
        message = self.new_message("…", target, user_object(BOT, bot=True)) | {"components": [row]}
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

    def outage(self, kind: DiscordOutage) -> AbstractAsyncContextManager[None]:
        """Let all requests fail while the block runs."""
        return self._server.outage(kind)

    async def _disconnect(self, outage: DiscordOutage) -> None:
        """Disconnect the gateway when an outage begins, apart from one that only loses replies."""
        if outage == "refused":
            self._socket = None
        elif outage != "lost replies":
            await self.drop()

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
        refusal = self.refusals.pop(0) if self.refusals else self.refusal_code
        if refusal or payload["token"] != self.token:
            await socket.close(code=refusal or 4004)
            return
        self._socket, self._events = socket, []
        ready = {
            "v": 10,
            "user": user_object(BOT, bot=True),
            "guilds": [{"id": str(GUILD), "unavailable": True}],
            "session_id": "standin",
            "resume_gateway_url": self.url.replace("http", "ws"),
            "application": {"id": str(APPLICATION), "flags": 0},
        }
        await self.dispatch("READY", ready)
        threads = [thread for thread in self.threads.values() if not thread["thread_metadata"]["archived"]]
        await self.dispatch("GUILD_CREATE", guild_object(threads))
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
                if event["t"] == "MESSAGE_CREATE":
                    self.delivered_at.setdefault(event["d"]["content"], time.monotonic())

    async def _interact(
        self, kind: int, data: Json, *, user: int, channel: int, guild: bool, **more: Any
    ) -> Json:
        id = self._next()
        target = channel or (CHANNEL if guild else direct_channel(user))
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
            "channel": self._channel_of(target, user=user, guild=guild),
        } | more
        if guild or target in self.threads:
            rights = {"permissions": str(MANAGE_GUILD if user in self.admins else 0)}
            member = member_object() | rights | {"user": self.user(user)}
            interaction |= {"guild_id": str(GUILD), "member": member}
        else:
            interaction["user"] = self.user(user)
        self._interactions[interaction["token"]] = target
        await self.dispatch("INTERACTION_CREATE", interaction)
        return interaction

    def _channel_of(self, id: int, *, user: int, guild: bool) -> Json:
        if id in self.threads:
            return self.threads[id]
        return channel_object() if guild else {"id": str(id), "type": 1, "recipients": [self.user(user)]}

    # ── REST API ─────────────────────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path
        if self._server.kind in ("hang", "refused"):
            if self._server.kind == "hang":
                await self._server.wait_for_end()
            return cut_connection(request)
        if self._server.kind == "unavailable":
            return _refused(503, 0, "unavailable")
        open_ = path == "/" or any(part in path for part in ("/webhooks/", "/interactions/", "/attachments/"))
        if not open_ and request.headers.get("Authorization") != f"Bot {self.token}":
            return _refused(401, 0, "401: Unauthorized")
        before = len(self.sent)
        response: web.StreamResponse = await handler(request)
        if self._server.kind == "lost replies" and request.method == "POST":
            self.lost_replies += [sent.id for sent in self.sent[before:]]
            return cut_connection(request)
        return response

    async def _me(self, request: web.Request) -> web.Response:
        if self.failing_logins:
            self.failing_logins -= 1
            return _refused(503, 0, "unavailable")
        if self.refused_logins:
            self.refused_logins -= 1
            return _refused(401, 0, "401: Unauthorized")
        self.logins += 1
        return _json(user_object(BOT, bot=True))

    async def _open_direct_channel(self, request: web.Request) -> web.Response:
        user = int((await request.json())["recipient_id"])
        return _json({"id": str(direct_channel(user)), "type": 1, "recipients": [self.user(user)]})

    async def _application(self, request: web.Request) -> web.Response:
        about = {
            "id": str(APPLICATION),
            "name": "standin",
            "description": "",
            "icon": None,
            "bot_public": False,
            "bot_require_code_grant": False,
            "owner": user_object(OWNER),
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
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            status, answer, headers = failure
            return _json(answer, status=status, headers=headers)
        return await self._posted(body, channel=int(request.match_info["channel"]), way="channel")

    async def _callback(self, request: web.Request) -> web.Response:
        token, body = request.match_info["token"], await request.json()
        if token in self._expired:
            return _refused(404, 10062, "Unknown interaction")
        self.callbacks.append(body)
        if body["type"] == 4:
            self._store(body["data"], channel=self._interactions[token], way="callback")
        answer = {"interaction": {"id": request.match_info["id"], "type": 2, "response_message_id": None}}
        return _json(answer)

    async def _followup(self, request: web.Request) -> web.Response:
        token = request.match_info["token"]
        if token not in self._interactions:
            return _refused(404, 10015, "Unknown Webhook")
        if token in self._expired:
            return _refused(401, 50027, "Invalid Webhook Token")
        return await self._posted(await request.json(), channel=self._interactions[token], way="followup")

    async def _attachment(self, request: web.Request) -> web.Response:
        await self.files_ready.wait()
        data = self.files.get(request.match_info["path"])
        return web.Response(status=404) if data is None else web.Response(body=data)

    async def _posted(self, body: Json, *, channel: int, way: str) -> web.Response:
        content, nonce = body.get("content") or "", str(body.get("nonce") or "")
        if channel in self.deleted:
            return _refused(404, 10003, "Unknown Channel")
        state = self.threads.get(channel, {}).get("thread_metadata", {})
        if state.get("locked"):
            return _refused(400, 50083, "Thread is archived")
        if not content.strip():
            return _refused(400, 50006, "Cannot send an empty message")
        if len(content) > 2_000 or len(nonce) > 25:
            return _refused(400, 50035, "Invalid Form Body")
        if nonce and body.get("enforce_nonce") and (channel, nonce) in self._nonces:
            return _json(self._nonces[channel, nonce])
        if state.get("archived"):  # a message opens a thread that is not locked
            await self.open_thread(self.threads[channel]["name"], id=channel)
        message = self._store(body, channel=channel, way=way)
        if nonce:
            self._nonces[channel, nonce] = message
        await self.dispatch("MESSAGE_CREATE", message)
        return _json(message)

    def _store(self, body: Json, *, channel: int, way: str) -> Json:
        message = self.new_message(body["content"], channel, user_object(BOT, bot=True))
        if channel == CHANNEL or channel in self.threads:
            message["guild_id"] = str(GUILD)
        kept = Sent(channel=channel, content=body["content"], body=body, id=int(message["id"]), way=way)
        self.sent.append(kept)
        return message

    def new_message(self, text: str, channel: int, author: Json) -> Json:
        return message_object(self._next(), text, channel, author)

    def _next(self) -> int:
        self._ids += 1
        return self._ids


def _json(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return JSON without a charset, as Discord does: discord.py compares the content type literally."""
    content = json.dumps(body).encode()
    return web.Response(
        body=content, status=status, headers={"Content-Type": "application/json"} | (headers or {})
    )


def _refused(status: int, code: int, message: str) -> web.Response:
    return _json({"code": code, "message": message}, status=status)
