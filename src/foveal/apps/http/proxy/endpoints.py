"""From a client to its upstream and back: what it asks is fitted, what comes back passes unchanged.

1. Nothing goes upstream that was not taken in first; what cannot be taken in (no history, a store that cannot be
   written) goes on as it came, and a header says that it is not managed.
2. When upstream says that a request was too large, it is made smaller and sent again; any other error passes.
3. A stream passes as it comes. Its bytes are kept beside, and read when all has been said.
4. A client that hangs up does not end the answer: it is read to its end and recorded, within bounds.
"""

from __future__ import annotations

import asyncio
import re
import time
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.http import request_body
from foveal.apps.http.http_errors import HttpError
from foveal.apps.http.proxy import forwarded_headers
from foveal.apps.http.proxy.response_stream import ResponseStream, StreamSummary, streams
from foveal.apps.http.proxy.upstreams import Upstreams, UpstreamTarget, unreachable
from foveal.config import Config
from foveal.core.log.events import Dialect
from foveal.core.models.model import Model
from foveal.errors import ContextOverflow, MalformedMessage, SessionExists, StoreError, UnknownSession
from foveal.server.proxy import upstream_reply
from foveal.server.proxy.client_request import ClientRequest
from foveal.server.proxy.exchange import Exchange
from foveal.server.runtime import Runtime

# ── prelude ───────────────────────────────────────────────────────────────────────────────────────
# How a stream begins: held back until it says something, because it may say that the request was too large.
#
# Some providers accept a request, begin a stream, and tell of an overflow in its first event. Nothing of that has
# reached the client by then, so it can be recovered like any other. Nobody has to wait for long: whoever refuses a
# request does so at once.

Json = dict[str, Any]

PATIENCE: Final = 2.0
"""Seconds that a beginning is held back at the most."""
MAX_FIRST_EVENT_BYTES: Final = 1 << 16
"""Bytes, likewise."""
_WAITING: Final = frozenset({"response.created", "response.queued", "response.in_progress", "ping"})
"""Events that say nothing yet."""
_FAILED: Final = frozenset({"error", "response.failed"})


class FirstEvent(NamedTuple):
    begun: bytes = b""
    """What has come so far."""
    error: object = None
    """What the stream says went wrong, if that is all that it says."""


async def first_event(response: aiohttp.ClientResponse) -> FirstEvent:
    """Read a stream up to its first event, if that comes soon; raises what the library raises."""
    begun = b""
    try:
        async with asyncio.timeout(PATIENCE) as patience:
            async for chunk in response.content.iter_any():
                begun += chunk
                said = _said(begun)
                if said is not None or len(begun) > MAX_FIRST_EVENT_BYTES:
                    return FirstEvent(begun, _error(said or {}))
    except TimeoutError:
        if not patience.expired():
            raise
    return FirstEvent(begun)


def _said(begun: bytes) -> Json | None:
    """The first event that says something, {} for what is none; None when there is not even that."""
    whole, _, _ = begun.replace(b"\r\n", b"\n").rpartition(b"\n\n")
    try:
        return next(
            (event for event in upstream_reply.events(whole) if event.get("type") not in _WAITING), None
        )
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        return {}


def _error(event: Json) -> object:
    """What went wrong, as `overflow.recognise` reads it; None when nothing did."""
    if event.get("error") or event.get("type") in _FAILED:
        return {"status_code": 400, "body": event}
    return None


# ── relay ─────────────────────────────────────────────────────────────────────────────────────────

TRIES: Final = 4
"""Requests that are made for one of the client's, at the most."""
LARGEST_ERROR: Final = 1 << 20
TOO_LARGE: Final = frozenset({400, 413, 422})
SUMMARY: Final = 120.0
"""Seconds for a summary."""


class ProxyEndpoints:
    def __init__(self, ground: Runtime, upstreams: Upstreams) -> None:
        self._ground = ground
        self._upstreams = upstreams
        self._limits = RequestLimits.of(ground.config)

    async def chat(self, request: Request) -> Response:
        return await self._relayed(request, "openai_chat")

    async def responses(self, request: Request) -> Response:
        return await self._relayed(request, "openai_responses")

    async def messages(self, request: Request) -> Response:
        return await self._relayed(request, "anthropic")

    async def _relayed(self, request: Request, dialect: Dialect) -> Response:
        began = time.perf_counter()
        asked = ClientRequest(dialect, await request_body.read(request), self._upstreams.memory)
        self._limits.check(asked)
        target = await self._upstreams.target(dialect, request.scope["headers"], query=request.url.query)
        if target.served and asked.model:
            asked.rename(target.served)
        model = target.model or self._upstreams.model(asked.model or "unknown")
        exchange, problem = await self._begun(request, asked, model, target)
        told = StreamSummary(
            ground=self._ground,
            tenant=request.state.caller.tenant,
            asked=asked,
            model=model.name,
            exchange=exchange,
            problem=problem,
            secret=target.secret,
            began=began,
        )
        try:
            return await self._sent(request, told, target)
        except BaseException as error:
            told.end(status=error.status if isinstance(error, HttpError) else 0)
            raise

    async def _begun(
        self, request: Request, asked: ClientRequest, model: Model, target: UpstreamTarget
    ) -> tuple[Exchange | None, str]:
        """What was taken in, or why nothing was."""
        if asked.problem:
            return None, asked.problem

        async def ask(dialect: Dialect, body: bytes) -> tuple[int, bytes]:
            return await self._upstreams.ask(target, body, patience=SUMMARY)

        conversations = self._upstreams.registry.of(request.state.caller.tenant)
        named = request.headers.get("x-foveal-session", "").strip()
        try:
            return await conversations.begin(asked, model, ask, named=named), ""
        except MalformedMessage as malformed:
            return None, f"{malformed}"
        except ContextOverflow as overflow:
            raise too_long(asked.dialect, overflow) from None
        except UnknownSession as gone:
            raise HttpError(
                409, f"the session {gone.session!r} was erased: use another id", code="gone"
            ) from None
        except SessionExists as taken:
            told = f"the session {taken.session!r} is kept by this server: use another id, or /api/sessions"
            raise HttpError(409, told, code="session_exists") from None
        except StoreError:
            return None, "the store cannot be used now"

    async def _sent(self, request: Request, told: StreamSummary, target: UpstreamTarget) -> Response:
        """Send a request, smaller ones if it is too large, and give back whatever the answer is."""
        for attempt in range(TRIES):
            told.sending()
            response = await self._upstreams.send("POST", target, told.body)
            told.arrived(response.status)
            last = told.exchange is None or attempt == TRIES - 1
            if response.status in TOO_LARGE and told.exchange is not None:
                error = await _error_body(response)
                if error is None or last or not await told.exchange.refused(_error_object(response, error)):
                    return told.failed(response, error)
            else:
                begun = await self._begins(response, target) if told.exchange is not None else FirstEvent()
                if begun.error is None or last or not await _again(told, begun):
                    return ResponseStream(
                        request, response, told, begun.begun, silence=self._upstreams.silence
                    )
            response.close()
        raise AssertionError("the last attempt has an answer")

    async def _begins(self, response: aiohttp.ClientResponse, target: UpstreamTarget) -> FirstEvent:
        """How a stream begins; nothing, for what is none."""
        if response.status != 200 or not streams(response):
            return FirstEvent()
        try:
            return await first_event(response)
        except (aiohttp.ClientError, OSError) as problem:
            response.close()
            raise unreachable(target, problem, silence=self._upstreams.silence) from None


async def _again(told: StreamSummary, begun: FirstEvent) -> bool:
    return told.exchange is not None and await told.exchange.refused(begun.error)


class RequestLimits(NamedTuple):
    """What this server takes."""

    models: tuple[str, ...]
    messages: int

    @classmethod
    def of(cls, config: Config) -> RequestLimits:
        return cls(tuple(config.get("server.models")), config.get("server.max_messages"))

    def allow(self, model: str) -> bool:
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check(self, asked: ClientRequest) -> None:
        """Raises `Refusal`."""
        if not self.allow(asked.model):
            told = f"the model {asked.model[:100]!r} is not one of those that this server allows"
            raise HttpError(403, f"{told} (`server.models`)", code="model_not_allowed")
        if len(asked.messages) > self.messages:
            told = f"the request has {len(asked.messages):,} messages, and {self.messages:,} are allowed"
            raise HttpError(413, f"{told} (`server.max_messages`)", code="too_many_messages")


def too_long(dialect: Dialect, overflow: ContextOverflow) -> HttpError:
    """What the provider would say, with our numbers."""
    if dialect == "anthropic":
        told = f"prompt is too long: {overflow.needed} tokens > {overflow.available} maximum. {overflow}"
    else:
        told = (
            f"This model's maximum context length is {overflow.window} tokens. However, your messages resulted "
            f"in {overflow.needed} tokens. {overflow}"
        )
    return HttpError(400, told, code="context_length_exceeded")


async def _error_body(response: aiohttp.ClientResponse) -> bytes | None:
    """The body of an error; None when it is larger than any is, or does not come."""
    try:
        data = await response.content.read(LARGEST_ERROR)
        while len(data) < LARGEST_ERROR and not response.content.at_eof():
            data += await response.content.read(LARGEST_ERROR - len(data))
    except (aiohttp.ClientError, OSError):
        data = b""
    return data if response.content.at_eof() else None


def _error_object(response: aiohttp.ClientResponse, error: bytes) -> object:
    """An error as `overflow.recognise` reads it."""
    try:
        return {"status_code": response.status, "body": msgspec.json.decode(error)}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {"status_code": response.status, "body": error.decode("utf-8", "replace")}


# ── plain ─────────────────────────────────────────────────────────────────────────────────────────
# What only passes: which models there are, and how many tokens a request has.
#
# Where a list of allowed models is set (`server.models`), others are not shown.

MAX_PASSTHROUGH_BYTES: Final = 16 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_:@+~-][A-Za-z0-9_:@+~./-]{0,199}")


class PassthroughEndpoints:
    def __init__(self, ground: Runtime, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._limits = RequestLimits.of(ground.config)

    async def count(self, request: Request) -> Response:
        """How many tokens upstream counts in a request as the client has it."""
        data = await request_body.read(request)
        self._limits.check(ClientRequest("anthropic", data))
        return await self._passed(request, "anthropic", "/messages/count_tokens", data)

    async def models(self, request: Request) -> Response:
        answer = await self._passed(request, _dialect(request), "/models", None)
        return _only(answer, self._limits) if self._limits.models and answer.status_code == 200 else answer

    async def model(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        if not self._limits.allow(name) or not _NAME.fullmatch(name) or ".." in name:
            raise HttpError(404, f"there is no model {name[:100]!r}", code="model_not_found")
        return await self._passed(request, _dialect(request), f"/models/{name}", None)

    async def _passed(self, request: Request, dialect: Dialect, path: str, body: bytes | None) -> Response:
        target = await self._upstreams.target(
            dialect, request.scope["headers"], path=path, query=request.url.query
        )
        response = await self._upstreams.send(request.method, target, body)
        try:
            async with response:
                data = await response.content.read(MAX_PASSTHROUGH_BYTES)
                while not response.content.at_eof():
                    if len(data) >= MAX_PASSTHROUGH_BYTES:
                        raise HttpError(502, "the provider's answer is too large", code="upstream_broken")
                    data += await response.content.read(MAX_PASSTHROUGH_BYTES - len(data))
        except (aiohttp.ClientError, OSError) as problem:
            raise unreachable(target, problem, silence=self._upstreams.silence) from None
        headers = forwarded_headers.back(response.raw_headers, target.secret)
        return _answer(forwarded_headers.without(target.secret, data), response.status, headers)


def _answer(data: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> Response:
    made = Response(data, status_code=status)
    made.raw_headers = [*headers, (b"content-length", str(len(data)).encode())]
    return made


def _dialect(request: Request) -> Dialect:
    """Whose list a client wants: Anthropic's always say which version they speak."""
    return "anthropic" if "anthropic-version" in request.headers else "openai_chat"


def _only(answer: Response, limits: RequestLimits) -> Response:
    """The list without models that are not allowed."""
    try:
        listed: Any = msgspec.json.decode(bytes(answer.body))
        kept = [one for one in listed["data"] if limits.allow(one["id"])]
    except (msgspec.DecodeError, LookupError, TypeError):
        raise HttpError(502, "the provider's list of models cannot be read", code="upstream_broken") from None
    headers = [(name, value) for name, value in answer.raw_headers if name != b"content-length"]
    return _answer(msgspec.json.encode({**listed, "data": kept}), answer.status_code, headers)
