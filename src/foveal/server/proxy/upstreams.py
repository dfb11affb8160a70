"""Upstreams of the proxy: where a request goes, and with which key.

The address of a request is the first of these:

1. `server.openai_url` or `server.anthropic_url`, else OPENAI_BASE_URL or ANTHROPIC_BASE_URL;
2. the provider's own address, if the client sends a key or the environment has one;
3. the address of the configured model, if it uses the same dialect: requests reach the local model in this way.

A key that the client sends is forwarded; the server's own key is used only if the client sends none. Redirects
are not followed, and responses are not decompressed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import replace
from yarl import URL

from foveal.core.engine.overflow import LEARNED_FROM_REFUSAL
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model, model
from foveal.core.wire.bound_thinking import BETA_HEADER, with_beta
from foveal.errors import ProviderError, StoreError
from foveal.providers.base import BaseProvider
from foveal.providers.local.model import LocalModel
from foveal.providers.selection import SERVICES
from foveal.server.databases import Database, Transaction
from foveal.server.proxy import headers as proxy_headers
from foveal.server.proxy.find_conversation import ProxyConversations
from foveal.server.proxy.response_stream import InFlightRequests
from foveal.server.service import Service
from foveal.transport import upstream_reply
from foveal.transport.client_request import RequestCache
from foveal.web.http_errors import HttpError
from foveal.web.http_headers import TOKEN_PREFIX, Headers, header_value, is_loopback

# ── Limits that upstreams state ──────────────────────────────────────────────────────────────────────────

LimitKind = Literal["window", "output"]
MIN_SESSIONS: Final[dict[LimitKind, int]] = {"window": 2, "output": 1}
"""Sessions that must have been told a limit before it counts for all."""
MAX_LIMIT_AGE_S: Final = 24 * 3600.0
LIMITS_REFRESH_S: Final = 10.0
MIN_LIMIT_TOKENS: Final[dict[LimitKind, int]] = {"window": 1_000, "output": 1}
"""A smaller number is no limit of a model."""
_LIMITING_BETAS: Final = ("context-", "output-")
"""How the names of beta features begin that change the window or the limit for the answer."""


class LimitedModel(NamedTuple):
    """A model at an upstream, as one kind of request reaches it."""

    upstream: str
    """The URL without its query; it has no credentials."""
    model: str
    features: str = ""
    """The beta features that change limits."""


def limiting_features(headers: Iterable[tuple[str, str]]) -> str:
    """Return the beta features of a request that change limits."""
    given = ",".join(value for name, value in headers if name.lower() == BETA_HEADER)
    return ",".join(
        sorted({one.strip() for one in given.split(",") if one.strip().startswith(_LIMITING_BETAS)})
    )


class LearnedLimits:
    """Limits that upstreams state when they refuse a request, shared by all machines.

    1. A limit belongs to an upstream, a model, and the beta features of the request that change limits: the same
       name can mean different limits elsewhere.
    2. A limit for the answer (`max_tokens`) counts from its first refusal on. A window counts for other sessions
       when two sessions were told the same one: a single refusal may come from an odd route or another account. The
       session that was refused learns from its own log at once.
    3. Only numbers that an upstream states are shared, never guesses. A limit is forgotten `MAX_LIMIT_AGE_S` after
       it was last stated, so that a provider can raise it.
    4. Limits of other machines arrive within `LIMITS_REFRESH_S`. While the database is away, what is known counts,
       and what is stated is not stored: the next refusal states it again.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self._limits: dict[tuple[LimitedModel, LimitKind], int] = {}
        self._read_at = float("-inf")

    async def refresh(self) -> None:
        """Read what all machines have learned, unless that was done a moment ago."""
        now = self._clock()
        if not 0 <= now - self._read_at < LIMITS_REFRESH_S:
            self._read_at = now
            with suppress(StoreError):
                await self._read()

    def limited(self, model: Model, at: LimitedModel) -> Model:
        """Return a model with the window that its upstream has stated."""
        window = self._limits.get((at, "window"), model.window)
        if window >= model.window:
            return model
        sources = model.sources | {"window": LEARNED_FROM_REFUSAL}
        return replace(model, window=window, max_input=min(window, model.max_input), sources=sources)

    def max_output(self, at: LimitedModel) -> int:
        """Return the most output tokens that an upstream allows; 0 if it has stated none."""
        return self._limits.get((at, "output"), 0)

    async def note(self, at: LimitedModel, kind: LimitKind, tokens: int, *, session: str) -> None:
        """Store that an upstream has stated a limit to a session."""
        if tokens < MIN_LIMIT_TOKENS[kind]:
            return
        teller = sha256(session.encode("utf-8", "surrogateescape")).digest()[:16]

        now = self._clock()

        async def act(db: Transaction) -> None:
            await db.execute("DELETE FROM learned_limits WHERE at <= ?", now - MAX_LIMIT_AGE_S)
            await db.execute(
                """INSERT INTO learned_limits (upstream, model, features, kind, tokens, teller, at)
                    VALUES (?, ?, ?, ?, ?, ?, ?)
                    ON CONFLICT (upstream, model, features, kind, tokens, teller) DO UPDATE SET at = excluded.at""",
                *(*at, kind, tokens, teller, now),
            )

        with suppress(StoreError):
            await self._database.write(act, durable=False, repeatable=True)
            await self._read()

    async def _read(self) -> None:
        """Read the limits: of several that count, the one that was stated last."""
        oldest = self._clock() - MAX_LIMIT_AGE_S
        sql = """SELECT upstream, model, features, kind, tokens, count(*), max(at) FROM learned_limits
            WHERE at > ? GROUP BY upstream, model, features, kind, tokens ORDER BY max(at)"""
        rows = await self._database.read(lambda db: db.fetch(sql, oldest))
        self._limits = {
            (LimitedModel(upstream, model, features), kind): tokens
            for upstream, model, features, kind, tokens, tellers, _ in rows
            if tellers >= MIN_SESSIONS[kind]
        }


# ── Upstreams ────────────────────────────────────────────────────────────────────────────────────────────

CONNECT_TIMEOUT_S: Final = 15.0
MAX_CACHED_MODELS: Final = 1_000
MAX_BYTES_AT_ONCE: Final = 1 << 20
"""A larger body is sent in parts, so that the event loop can do other work in between."""
DIALECT_PATHS: Final[Mapping[Dialect, str]] = {
    "openai_chat": "/chat/completions",
    "openai_responses": "/responses",
    "anthropic": "/messages",
}


class UpstreamTarget(NamedTuple):
    """The URL and headers of a request to an upstream."""

    url: str
    headers: list[tuple[str, str]]
    model_id: str = ""
    """The upstream's name of its model, if it serves only one."""
    model: Model | None = None
    """That model."""
    secret: str = ""
    """The server's own key, if the request carries it; no client may see it."""

    @property
    def host(self) -> str:
        """The host name, for messages: the rest of the URL may contain credentials."""
        return urlsplit(self.url).hostname or ""

    def limited(self, model: str) -> LimitedModel:
        """Return the model that a request reaches here, as limits are known of it."""
        scheme, _, rest = self.url.partition("?")[0].partition("://")
        for path in DIALECT_PATHS.values():
            rest = rest.removesuffix(path)
        upstream = f"{scheme}://{rest.rpartition('@')[2]}"
        return LimitedModel(upstream, self.model_id or model, limiting_features(self.headers))

    def with_beta(self, beta: str) -> UpstreamTarget:
        """Return the target with one more value of the header `anthropic-beta`."""
        given = [value for name, value in self.headers if name.lower() == BETA_HEADER]
        others = [(name, value) for name, value in self.headers if name.lower() != BETA_HEADER]
        return self._replace(headers=[*others, (BETA_HEADER, with_beta(",".join(given), beta))])


class Upstreams:
    """Connections to all upstreams, and the conversations that go through them."""

    def __init__(self, service: Service) -> None:
        self.conversations: ProxyConversations = ProxyConversations(service)
        self.request_cache: RequestCache = RequestCache()
        self.in_flight: InFlightRequests = InFlightRequests()
        self.limits: LearnedLimits = LearnedLimits(service.runtime.database, clock=service.runtime.clock)
        self._id = secrets.token_hex(8)
        self._runtime = service.runtime
        self._clients: dict[bool, aiohttp.ClientSession] = {}
        self._models: dict[str, Model] = {}
        self._read_settings()
        self._without_binding_controls: set[str] = set()
        """Hosts that refuse the field `block_binding`."""

    def _read_settings(self) -> None:
        self._config = config = self._runtime.config
        self.silence_s: int = config.get("server.silence")
        """Time that an upstream may send nothing."""
        self.pauses_on_disconnect: bool = config.get("on_disconnect") == "pause"
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self.silence_s
        )
        self._window: int | None = config.get("window")
        self._addresses = {name: self._configured_address(name) for name in ("openai", "anthropic")}
        self._models.clear()

    def allows_binding_controls(self, target: UpstreamTarget) -> bool:
        """Return whether an upstream is not known to refuse the field `block_binding`."""
        return target.host not in self._without_binding_controls

    def note_refused_controls(self, target: UpstreamTarget) -> None:
        """Note that an upstream has refused the field `block_binding`."""
        self._without_binding_controls.add(target.host)

    async def close(self) -> None:
        """End all conversations and close the connections."""
        await self.conversations.close()
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    def model(self, name: str) -> Model:
        """Return window and prices of a model."""
        if name not in self._models:
            if len(self._models) >= MAX_CACHED_MODELS:
                self._models.clear()
            self._models[name] = model(name, window=self._window)
        return self._models[name]

    def addresses(self) -> dict[str, str]:
        """Return the base URL of each service, without credentials and query."""
        if self._runtime.config is not self._config:
            self._read_settings()
        urls = {name: urlsplit(url or SERVICES[name].url) for name, url in self._addresses.items()}
        return {
            name: f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}".rstrip("/")
            for name, url in urls.items()
        }

    def local_model_name(self) -> str:
        """Return the name of the local model if it answers requests without a key; otherwise ""."""
        try:
            provider = self._runtime.provider("")
        except ProviderError:
            return ""
        return provider.name if isinstance(provider, LocalModel) else ""

    # ── Target of a request ──────────────────────────────────────────────────────────────────────────

    async def target(
        self, dialect: Dialect, headers: Headers, *, path: str = "", query: str = ""
    ) -> UpstreamTarget:
        """Return where a client's request goes; raises `HttpError` if there is no upstream for it."""
        if self._runtime.config is not self._config:
            self._read_settings()
        if header_value(headers, proxy_headers.VIA_HEADER) == self._id.encode():
            detail = (
                "the upstream address is this server itself: set server.openai_url or server.anthropic_url"
            )
            raise HttpError(508, detail, title="Loop", code="upstream_loop")
        service = "anthropic" if dialect == "anthropic" else "openai"
        key, address = client_key(headers), self._addresses[service]
        own_key = self._own_key(service)
        forwarded = proxy_headers.to_upstream(headers)
        if not address and not own_key and not key.is_plausible:
            return await self._configured_model_target(dialect, forwarded, path=path, query=query)
        base = (address or SERVICES[service].url).rstrip("/")
        if key.value and (key.is_plausible or address):
            forwarded.append((key.header.decode(), key.value.decode("latin-1")))
            own_key = ""
        elif own_key:
            forwarded.append(_key_header(dialect, own_key))
        url = _upstream_url(base, dialect, path, query)
        return UpstreamTarget(url, self._with_own_headers(forwarded), secret=own_key)

    def _configured_address(self, service: str) -> str:
        setting: str | None = self._runtime.config.get(f"server.{service}_url")
        names = SERVICES[service].url_variables
        return setting or next((self._runtime.environment.get(name, "") for name in names), "")

    def _own_key(self, service: str) -> str:
        environment, names = self._runtime.environment, SERVICES[service].key_variables
        return next((environment[name] for name in names if environment.get(name)), "").strip()

    async def _configured_model_target(
        self, dialect: Dialect, headers: list[tuple[str, str]], *, path: str, query: str
    ) -> UpstreamTarget:
        """Return the address of the configured model; raises `HttpError` if it uses another dialect."""
        provider: Any = None
        try:
            provider = self._runtime.provider("")
            if isinstance(provider, LocalModel) and dialect == "openai_chat":
                await provider.start()
        except ProviderError as problem:
            raise _no_upstream_error(dialect, f" ({problem})") from None
        if isinstance(provider, LocalModel) and dialect == "openai_chat" and provider.server is not None:
            url = _upstream_url(provider.server.url, dialect, path, query)
            own_headers = self._with_own_headers(headers)
            return UpstreamTarget(url, own_headers, model_id=provider.server.model_id, model=provider.model)
        if isinstance(provider, BaseProvider) and provider.dialect == dialect:
            own_key = provider.endpoint.key.reveal()
            if own_key:
                headers.append(_key_header(dialect, own_key))
            url = _upstream_url(provider.endpoint.url.rstrip("/"), dialect, path, query)
            return UpstreamTarget(url, self._with_own_headers(headers), secret=own_key)
        raise _no_upstream_error(dialect)

    def _with_own_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        via = proxy_headers.VIA_HEADER.decode(), self._id
        return [*headers, ("accept-encoding", "identity"), via]

    # ── Sending ──────────────────────────────────────────────────────────────────────────────────────

    async def send(
        self, method: str, target: UpstreamTarget, body: bytes | AsyncIterator[bytes] | None
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response before its body is read; raises `HttpError`."""
        client = self._client(is_local=is_loopback(target.host))
        for attempt in (1, 2) if body is None or isinstance(body, bytes) else (2,):  # a stream is read once
            try:
                return await client.request(
                    method,
                    URL(target.url, encoded=True),
                    data=_payload(body),
                    headers=target.headers,
                    allow_redirects=False,
                    timeout=self._timeout,
                )
            except (aiohttp.ServerDisconnectedError, ConnectionResetError) as problem:
                if attempt == 2:  # the first time, the upstream may just have closed an idle connection
                    raise unreachable_error(target, problem) from None
            except (aiohttp.ClientError, OSError, ValueError) as problem:  # a time-out is an OSError
                raise unreachable_error(target, problem, silence_s=self.silence_s) from None
        raise AssertionError("the second attempt returns or raises")

    async def send_and_read(
        self, target: UpstreamTarget, body: bytes, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """Send a request and return status and body of the response."""
        async with asyncio.timeout(timeout_s):
            response = await self.send("POST", target, body)
            async with response:
                data = bytearray()
                async for chunk in response.content.iter_any():
                    data += chunk
                    if len(data) > upstream_reply.MAX_RECORDED_REPLY_BYTES:
                        raise HttpError(
                            502, "the provider's response is too large", code="upstream_too_large"
                        )
                return response.status, bytes(data)

    def _client(self, *, is_local: bool) -> aiohttp.ClientSession:
        """Return the HTTP client; only requests to other machines use the proxy of the environment."""
        if is_local not in self._clients:
            self._clients[is_local] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=not is_local,
                skip_auto_headers=("User-Agent", "Content-Type"),
            )
        return self._clients[is_local]


def _payload(body: bytes | AsyncIterator[bytes] | None) -> bytes | BytesIO | AsyncIterator[bytes] | None:
    """Return a body in the form in which aiohttp sends it in parts, if it is large; it warns of large bytes."""
    return BytesIO(body) if isinstance(body, bytes) and len(body) > MAX_BYTES_AT_ONCE else body


def unreachable_error(target: UpstreamTarget, problem: Exception, *, silence_s: int = 0) -> HttpError:
    """Return the error for a missing response; it contains nothing of the request but the host."""
    if isinstance(problem, TimeoutError):
        detail = f"the provider at {target.host} has not sent anything for {silence_s:,} s (`server.silence`)"
        return HttpError(504, detail, code="upstream_silent")
    refused = isinstance(problem, aiohttp.ClientConnectorError)
    why = "it does not accept connections" if refused else "it closed the connection"
    detail = f"the provider at {target.host} cannot be reached: {why}"
    return HttpError(502, detail, code="upstream_unreachable")


def _key_header(dialect: Dialect, key: str) -> tuple[str, str]:
    return ("x-api-key", key) if dialect == "anthropic" else ("authorization", f"Bearer {key}")


def _upstream_url(base: str, dialect: Dialect, path: str, query: str) -> str:
    """Return the whole URL; base URLs of Anthropic end before the version, those of OpenAI after it."""
    base = base.rstrip("/")
    if dialect == "anthropic" and not base.endswith("/v1"):
        base = f"{base}/v1"
    return f"{base}{path or DIALECT_PATHS[dialect]}{'?' if query else ''}{query}"


def _no_upstream_error(dialect: Dialect, why: str = "") -> HttpError:
    service = "anthropic" if dialect == "anthropic" else "openai"
    variable = SERVICES[service].key_variables[0]
    return HttpError(
        501,
        f"no provider is configured for this request{why}: send your own key, or start the server with {variable}, "
        f"or with `server.{service}_url` set to an upstream of this dialect",
        code="no_upstream",
    )


MIN_CLIENT_KEY_CHARS: Final = 8
_DUMMY_KEYS: Final = frozenset({"none", "empty", "local", "dummy", "unused", "sk-no-key-required", "no-key"})
"""Placeholders that users write because client libraries insist on a key."""


class ClientKey(NamedTuple):
    """The provider's key that a client sends, and the header that it is in."""

    header: bytes = b""
    value: bytes = b""

    @property
    def is_plausible(self) -> bool:
        """Whether the value can be a key: it is long enough and no known placeholder."""
        secret = self.value.decode("latin-1").rpartition(" ")[2].strip()
        return len(secret) >= MIN_CLIENT_KEY_CHARS and secret.lower() not in _DUMMY_KEYS


def client_key(headers: Headers) -> ClientKey:
    """Return the client's key; a Foveal token does not count as one."""
    for name in (b"authorization", b"x-api-key"):
        value = header_value(headers, name)
        secret = value.decode("latin-1").strip().rpartition(" ")[2]
        if secret and not secret.startswith(TOKEN_PREFIX):
            return ClientKey(name, value)
    return ClientKey()


def dialect_of_headers(headers: Headers) -> Dialect:
    """Return the API whose client sends these headers, for paths that both APIs have. Clients of Anthropic send
    `anthropic-version`; a key in `x-api-key` alone is Anthropic's too."""
    is_anthropic = header_value(headers, b"anthropic-version") or (
        header_value(headers, b"x-api-key") and not header_value(headers, b"authorization")
    )
    return "anthropic" if is_anthropic else "openai_chat"
