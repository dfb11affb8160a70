"""Where a client's request goes: whose address, with whose key.

1. `server.openai_url` or `server.anthropic_url`, else OPENAI_BASE_URL or ANTHROPIC_BASE_URL;
2. the provider's own address, if the client brings a key or the environment has one;
3. where the configured model is, if it speaks the dialect: this is how the local model is reached.

A key that the client brings goes on; one of ours is used only where it brings none. Redirects are not followed, and
nothing is unpacked on the way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from foveal.apps.http.http_errors import HttpError
from foveal.apps.http.http_headers import Headers, first, is_loopback
from foveal.apps.http.proxy import forwarded_headers
from foveal.core.log.events import Dialect
from foveal.core.models import model as models
from foveal.core.models.model import Model
from foveal.errors import ProviderError
from foveal.providers.base import BaseProvider
from foveal.providers.local.local_model import LocalModel
from foveal.providers.selection import SERVICES
from foveal.server.proxy import upstream_reply
from foveal.server.proxy.new_messages import RequestCache
from foveal.server.proxy.tenant_conversations import ProxyConversations
from foveal.server.service import Service

CONNECT: Final = 15.0
"""Seconds until a connection must stand."""
KNOWN: Final = 1_000
"""Models whose facts are remembered."""
PATHS: Final[Mapping[Dialect, str]] = {
    "openai_chat": "/chat/completions",
    "openai_responses": "/responses",
    "anthropic": "/messages",
}


class UpstreamTarget(NamedTuple):
    """Where a request goes, and as what."""

    url: str
    headers: list[tuple[str, str]]
    served: str = ""
    """What the server there calls its model, if it has only one."""
    model: Model | None = None
    """That model."""
    secret: str = ""
    """The server's own key, if it goes along: no client may ever see it."""

    @property
    def host(self) -> str:
        """The part of the address that may be told."""
        return urlsplit(self.url).hostname or ""


class Upstreams:
    """The way to all upstreams, and the conversations that go there."""

    def __init__(self, service: Service) -> None:
        self.registry = ProxyConversations(service)
        self.memory = RequestCache()
        self.via = secrets.token_hex(8)
        self._ground = service.ground
        self.silence: int = service.ground.config.get("server.silence")
        self._window: int | None = service.ground.config.get("window")
        self._addresses = {name: self._address(name) for name in ("openai", "anthropic")}
        self._clients: dict[bool, aiohttp.ClientSession] = {}
        self._models: dict[str, Model] = {}

    async def close(self) -> None:
        await self.registry.close()
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    def model(self, name: str) -> Model:
        """What is known of a model."""
        if name not in self._models:
            if len(self._models) >= KNOWN:
                self._models.clear()
            self._models[name] = models.model(name, window=self._window)
        return self._models[name]

    def own(self) -> str:
        """The local model, if that is who answers where nobody has a key; "" when it is not."""
        try:
            provider = self._ground.provider("")
        except ProviderError:
            return ""
        return provider.name if isinstance(provider, LocalModel) else ""

    # ── where to ─────────────────────────────────────────────────────────────────────────────────────

    async def target(
        self, dialect: Dialect, headers: Headers, *, path: str = "", query: str = ""
    ) -> UpstreamTarget:
        """Where a request of a dialect goes; raises `Refusal` when there is nowhere."""
        if first(headers, forwarded_headers.VIA) == self.via.encode():
            told = "the upstream address is this server itself: set server.openai_url or server.anthropic_url"
            raise HttpError(508, told, title="Loop", code="upstream_loop")
        service = "anthropic" if dialect == "anthropic" else "openai"
        key, given = forwarded_headers.key_of(headers), self._addresses[service]
        environment = self._ground.environment
        own = next(
            (environment[name] for name in SERVICES[service].keys if environment.get(name)), ""
        ).strip()
        sent = forwarded_headers.upstream(headers)
        if not given and not own and not key.real:
            return await self._configured(dialect, sent, path=path, query=query)
        base = (given or SERVICES[service].url).rstrip("/")
        if key.value and (key.real or given):
            sent.append((key.header.decode(), key.value.decode("latin-1")))
            own = ""
        elif own:
            sent.append(_with_key(dialect, own))
        return UpstreamTarget(_joined(base, dialect, path, query), self._ours(sent), secret=own)

    def _address(self, service: str) -> str:
        set_: str | None = self._ground.config.get(f"server.{service}_url")
        names = SERVICES[service].url_from
        return set_ or next((self._ground.environment.get(name, "") for name in names), "")

    async def _configured(
        self, dialect: Dialect, sent: list[tuple[str, str]], *, path: str, query: str
    ) -> UpstreamTarget:
        """The place of the configured model, if it speaks the dialect."""
        provider: Any = None
        try:
            provider = self._ground.provider("")
            if isinstance(provider, LocalModel) and dialect == "openai_chat":
                await provider.start()
        except ProviderError as problem:
            raise _nowhere(dialect, f" ({problem})") from None
        if isinstance(provider, LocalModel) and dialect == "openai_chat" and provider.engine is not None:
            url = _joined(provider.engine.url, dialect, path, query)
            return UpstreamTarget(url, self._ours(sent), served=provider.engine.served, model=provider.model)
        if isinstance(provider, BaseProvider) and provider.dialect == dialect:
            own = provider.place.key.reveal()
            if own:
                sent.append(_with_key(dialect, own))
            url = _joined(provider.place.url.rstrip("/"), dialect, path, query)
            return UpstreamTarget(url, self._ours(sent), secret=own)
        raise _nowhere(dialect)

    def _ours(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [*headers, ("accept-encoding", "identity"), (forwarded_headers.VIA.decode(), self.via)]

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────

    async def send(self, method: str, target: UpstreamTarget, body: bytes | None) -> aiohttp.ClientResponse:
        """The answer's head; raises `Refusal` when there is none."""
        client = self._client(near=is_loopback(target.host))
        for attempt in (1, 2):
            try:
                return await client.request(
                    method,
                    URL(target.url, encoded=True),
                    data=body,
                    headers=target.headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=self.silence),
                )
            except (aiohttp.ServerDisconnectedError, ConnectionResetError) as problem:
                if attempt == 2:  # the first time, a connection that was kept may have been closed meanwhile
                    raise unreachable(target, problem) from None
            except (aiohttp.ClientError, OSError, ValueError) as problem:  # a time-out is an OSError
                raise unreachable(target, problem, silence=self.silence) from None
        raise AssertionError("the second attempt answers or raises")

    async def ask(self, target: UpstreamTarget, body: bytes, *, patience: float) -> tuple[int, bytes]:
        """A whole answer: its status and its body."""
        async with asyncio.timeout(patience):
            response = await self.send("POST", target, body)
            async with response:
                said = bytearray()
                async for chunk in response.content.iter_any():
                    said += chunk
                    if len(said) > upstream_reply.LARGEST:
                        raise HttpError(502, "the provider's answer is too large", code="upstream_too_large")
                return response.status, bytes(said)

    def _client(self, *, near: bool) -> aiohttp.ClientSession:
        """A machine's own upstream is never asked through a proxy."""
        if near not in self._clients:
            self._clients[near] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=not near,
                skip_auto_headers=("User-Agent", "Content-Type"),
            )
        return self._clients[near]


def unreachable(target: UpstreamTarget, problem: Exception, *, silence: int = 0) -> HttpError:
    """That there is no answer, and why; without anything that the request carried."""
    if isinstance(problem, TimeoutError):
        told = f"the provider at {target.host} has not sent anything for {silence:,} s (`server.silence`)"
        return HttpError(504, told, code="upstream_silent")
    why = (
        "it does not accept connections"
        if isinstance(problem, aiohttp.ClientConnectorError)
        else "it hung up"
    )
    return HttpError(
        502, f"the provider at {target.host} cannot be reached: {why}", code="upstream_unreachable"
    )


def _with_key(dialect: Dialect, key: str) -> tuple[str, str]:
    return ("x-api-key", key) if dialect == "anthropic" else ("authorization", f"Bearer {key}")


def _joined(base: str, dialect: Dialect, path: str, query: str) -> str:
    """The whole address; Anthropic's own ends before the version."""
    base = base.rstrip("/")
    if dialect == "anthropic" and not base.endswith("/v1"):
        base = f"{base}/v1"
    return f"{base}{path or PATHS[dialect]}{'?' if query else ''}{query}"


def _nowhere(dialect: Dialect, why: str = "") -> HttpError:
    service = "anthropic" if dialect == "anthropic" else "openai"
    variable = SERVICES[service].keys[0]
    return HttpError(
        501,
        f"no provider is known for this{why}: send your own key, or start the server with {variable}, or with "
        f"`server.{service}_url` set to whoever speaks this dialect",
        code="no_upstream",
    )
