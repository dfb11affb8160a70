"""Routes of the drop-in endpoints; other paths are forwarded unchanged and never fitted.

1. A path of `OPENAI_RESOURCES` or `ANTHROPIC_RESOURCES` is forwarded, to the upstream of that API only. A name that
   both have goes where the client's headers say.
2. What a provider stores belongs to its key. A client with a Foveal token reaches it with a key of its own only:
   that of the server is shared by all tenants.
3. If `server.models` allows some models only, a request that may run another one is refused.
4. Where a hard budget applies, the server's key pays for nothing that is not counted once the budget is used up,
   and for no completions at all.
5. Bodies are streamed in both directions. A request for a websocket gets 426, after which Codex uses HTTP at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote, unquote

import aiohttp
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from foveal.core.log.events import Dialect
from foveal.errors import FovealError
from foveal.server.budgets import Spender
from foveal.server.proxy import headers as proxy_headers
from foveal.server.proxy.endpoints import PassthroughEndpoints, ProxyEndpoints, RequestLimits
from foveal.server.proxy.upstreams import Upstreams, UpstreamTarget, client_key, dialect_of_headers
from foveal.server.runtime import Runtime
from foveal.server.service import Service
from foveal.transport.client_request import ClientRequest
from foveal.web import request_body
from foveal.web.http_errors import HttpError
from foveal.web.http_headers import Headers, header_value

FORWARD_SETTING: Final = "server.forward_other_paths"
FORWARDED_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

# ── Paths ────────────────────────────────────────────────────────────────────────────────────────────────

OPENAI_RESOURCES: Final = frozenset(
    {
        "agents", "assistants", "audio", "batches", "chat", "chatkit", "completions", "containers",
        "content_provenance_checks", "conversations", "decisions", "embeddings", "evals", "files", "fine_tuning",
        "images", "live", "models", "moderations", "realtime", "responses", "safety", "skills", "threads",
        "uploads", "vaults", "vector_stores", "videos",
    }
)  # fmt: skip
"""First parts of the paths of OpenAI's API, without those that administer an account."""
ANTHROPIC_RESOURCES: Final = frozenset(
    {
        "agents", "deployment_runs", "deployments", "dreams", "environments", "files", "memory_stores", "messages",
        "models", "sessions", "skills", "user_profiles", "vaults",
    }
)  # fmt: skip
"""First parts of the paths of Anthropic's API, without those that administer an account."""
_FITTED: Final = frozenset({"chat/completions", "messages", "responses"})
"""Paths whose POST requests are fitted."""
_SECOND_PARTS: Final = {"chat": ("completions",), "messages": ("", "batches", "count_tokens")}
"""What may follow a first part, where only some do."""
_STATELESS: Final = re.compile(
    r"(?:audio/(?:speech|transcriptions|translations)|completions|embeddings|images/(?:edits|generations|variations)"
    r"|moderations|responses/(?:compact|input_tokens))$"
)
"""Paths that compute an answer from the request, and neither store nor read anything at the provider."""
_WITHOUT_MODELS: Final = re.compile(
    r"(?:chat|containers|conversations|files|memory_stores|responses/(?!compact|input_tokens)[^/]+|skills|uploads"
    r"|user_profiles|vaults|vector_stores)(?:/|$)"
)
"""Paths that run no model."""
_FREE: Final = re.compile(rf"{_WITHOUT_MODELS.pattern}|moderations$|responses/input_tokens$")
"""Paths that providers do not charge by the request."""
_READING_METHODS: Final = ("GET", "HEAD", "DELETE")
"""Methods of requests that run no model."""
_SEGMENT: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")
_NOT_IN_SEGMENT: Final = re.compile(r"[/\\%\x00-\x1f\x7f]|^\.{1,2}$")
"""What an upstream could read as a step to another path, even if it decodes a segment twice."""


def forwarded_path(scope: Scope) -> str:
    """Return the path after `/v1/` as the client wrote it; raises `HttpError` if it is no path of the two APIs."""
    sent: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = sent.decode("latin-1").removeprefix("/v1/")
    segments = path.split("/")
    first, second = (*segments, "")[:2]
    is_known = first in OPENAI_RESOURCES | ANTHROPIC_RESOURCES
    if first in _SECOND_PARTS:
        is_known = second in _SECOND_PARTS[first]
    if not is_known or not all(map(_is_plain, segments)):
        detail = (
            "there is nothing at this path: under /v1, this server has chat/completions, responses and messages, "
            "and the other paths of OpenAI's and Anthropic's APIs"
        )
        raise HttpError(404, detail, code="not_found")
    return path


def _is_plain(segment: str) -> bool:
    return bool(_SEGMENT.fullmatch(segment)) and not _NOT_IN_SEGMENT.search(unquote(segment))


def dialect_of_path(path: str, headers: Headers) -> Dialect:
    """Return the API of a path; the headers decide for a name that both APIs have."""
    name = path.partition("/")[0]
    if name in OPENAI_RESOURCES & ANTHROPIC_RESOURCES:
        return dialect_of_headers(headers)
    if name in ANTHROPIC_RESOURCES:
        return "anthropic"
    return "openai_responses" if name in ("conversations", "responses") else "openai_chat"


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────


class OtherPaths:
    """The endpoint for everything under `/v1` that has no endpoint of its own."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams) -> None:
        self._runtime, self._upstreams = runtime, upstreams

    @property
    def _limits(self) -> RequestLimits:
        return RequestLimits.of(self._runtime.config)

    async def forward(self, request: Request) -> Response:
        """Return the upstream's response to a request that is forwarded unchanged."""
        headers: Headers = request.scope["headers"]
        if header_value(headers, b"upgrade").lower() == b"websocket":
            detail = "this server has no websockets: send the request over HTTP"
            raise HttpError(426, detail, code="websocket_not_supported")
        path = forwarded_path(request.scope)
        self._check_method(request.method, path)
        if not self._runtime.config.get(FORWARD_SETTING):
            detail = f"this server does not forward this path: `{FORWARD_SETTING}` is off"
            raise HttpError(404, detail, code="not_forwarded")
        dialect = dialect_of_path(path, headers)
        self._check_key(request, path)
        body = await self._body(request, dialect, path)
        query = request.scope["query_string"].decode("latin-1")
        target = await self._upstreams.target(dialect, headers, path=f"/{path}", query=query)
        if target.secret and request.method not in _READING_METHODS and not _FREE.match(path):
            await self._check_budgets(request, path)
        response = await self._send(request.method, target, body)
        return ForwardedResponse(request, response, target, silence_s=self._upstreams.silence_s)

    def _check_method(self, method: str, path: str) -> None:
        listed = path == "chat/completions" and method in ("GET", "HEAD")
        if path in _FITTED and not listed:
            raise HttpError(405, "this path does not allow that method", headers={"Allow": "POST"})

    def _check_key(self, request: Request, path: str) -> None:
        """Refuse what the provider stores to a tenant that sends no key of its own."""
        is_shared = request.state.caller.token_id and not client_key(request.scope["headers"]).is_plausible
        if is_shared and not _STATELESS.match(path):
            detail = (
                "what the provider stores under the server's key belongs to all tenants: send your own key for "
                "this path, and the Foveal token as X-Foveal-Token"
            )
            raise HttpError(403, detail, code="own_key_needed")

    async def _check_budgets(self, request: Request, path: str) -> None:
        """Refuse what the server's key would pay for beyond a hard budget; these paths are not counted."""
        budgets, caller = self._runtime.budgets, request.state.caller
        if path == "completions" and budgets.limit_hard(Spender(caller.tenant, user=caller.user or "any")):
            detail = (
                "this path is not counted, and a budget applies: use chat/completions, or a key of your own"
            )
            raise HttpError(403, detail, code="not_counted")
        try:
            await budgets.check_uncounted(Spender(caller.tenant, user=caller.user))
        except FovealError as problem:
            raise proxy_headers.budget_error(problem) from None

    async def _body(self, request: Request, dialect: Dialect, path: str) -> bytes | ClientBody | None:
        """Return the body to send; raises `HttpError` if it may run a model that is not allowed."""
        reads_only = request.method in _READING_METHODS
        if self._limits.models and not reads_only and not _WITHOUT_MODELS.match(path):
            media = header_value(request.scope["headers"], b"content-type").lower()
            if not media.startswith(b"application/json"):
                detail = (
                    "this server allows some models only (`server.models`), and this request may use others"
                )
                raise HttpError(403, detail, code="model_not_allowed")
            data = await request_body.read_bytes(request)
            self._limits.check(ClientRequest(dialect, data))
            return data
        return ClientBody(request) if ClientBody.is_sent(request.scope["headers"]) else None

    async def _send(
        self, method: str, target: UpstreamTarget, body: bytes | ClientBody | None
    ) -> aiohttp.ClientResponse:
        if not isinstance(body, ClientBody):
            return await self._upstreams.send(method, target, body)
        target = target._replace(headers=[*target.headers, *body.length_header()])
        try:
            return await self._upstreams.send(method, target, body.chunks())
        except HttpError:
            if body.problem is not None:  # the upstream is not at fault
                raise body.problem from None
            raise


class ClientBody:
    """The body of a request, read while it is sent on."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.problem: HttpError | None = None
        """Why reading ended before the body did."""

    @staticmethod
    def is_sent(headers: Headers) -> bool:
        """Return whether a request has a body."""
        return header_value(headers, b"content-length") not in (b"", b"0") or bool(
            header_value(headers, b"transfer-encoding")
        )

    def length_header(self) -> list[tuple[str, str]]:
        """Return the header with the length, if the client knows it; some upstreams refuse a body without it."""
        length = header_value(self._request.scope["headers"], b"content-length")
        return [("content-length", length.decode("latin-1"))] if length else []

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        try:
            async for chunk in self._request.stream():
                if chunk:
                    yield chunk
        except HttpError as error:
            self.problem = error
            raise
        except ClientDisconnect:
            self.problem = HttpError(400, "the connection ended before the body did", code="incomplete")
            raise


class ForwardedResponse(Response):
    """Forwards the upstream's response chunk by chunk."""

    def __init__(
        self,
        request: Request,
        response: aiohttp.ClientResponse,
        target: UpstreamTarget,
        *,
        silence_s: float,
    ) -> None:
        super().__init__(status_code=response.status)
        self._request, self._response, self._secret = request, response, target.secret
        self._silence_s = silence_s
        self.raw_headers: list[tuple[bytes, bytes]] = proxy_headers.to_client(
            response.raw_headers, target.secret
        )
        length = response.headers.get("content-length")
        if length is not None and (not target.secret or request.method == "HEAD"):
            self.raw_headers.append((b"content-length", length.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._response:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            try:
                await self._forward_body(send)
            except (aiohttp.ClientError, OSError):
                self._response.close()  # the client's connection breaks off, as the upstream's did

    async def _forward_body(self, send: Send) -> None:
        held = b""
        async for chunk in self._response.content.iter_any():
            visible, held = proxy_headers.split_before_secret(self._secret, held + chunk)
            if await self._request.is_disconnected():
                self._response.close()
                return
            async with asyncio.timeout(self._silence_s):
                await send({"type": "http.response.body", "body": visible, "more_body": True})
        await send({"type": "http.response.body", "body": held, "more_body": False})


def routes(service: Service, upstreams: Upstreams) -> list[Route]:
    """Return all routes under `/v1`."""
    proxied = ProxyEndpoints(service.runtime, upstreams)
    passthrough = PassthroughEndpoints(service.runtime, upstreams)
    others = OtherPaths(service.runtime, upstreams)
    return [
        Route("/v1/chat/completions", proxied.chat, methods=["POST"]),
        Route("/v1/responses", proxied.responses, methods=["POST"]),
        Route("/v1/messages", proxied.messages, methods=["POST"]),
        Route("/v1/responses/compact", proxied.compact, methods=["POST"]),
        Route("/v1/messages/count_tokens", passthrough.count_tokens, methods=["POST"]),
        Route("/v1/models", passthrough.list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", passthrough.get_model, methods=["GET"]),
        Route("/v1/{path:path}", others.forward, methods=FORWARDED_METHODS),
    ]
