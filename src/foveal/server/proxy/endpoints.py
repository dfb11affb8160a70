"""Drop-in endpoints: fit a client's request, send it upstream, return the response.

1. A request is recorded before it goes upstream. One that cannot be recorded (no history, or a store that cannot be
   written) is forwarded unchanged, and a response header says that it is not managed.
2. `transport.attempts` decides whether a smaller request is sent after a refusal. The beginning of a stream is
   held back for it at most `FIRST_EVENT_TIMEOUT_S` seconds.
3. A retry of a request in flight joins it and gets the same response.
4. The list of models and the token counts are only passed through; models that `server.models` does not allow are
   removed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Hashable
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.config import Config
from foveal.core.log.events import Dialect
from foveal.core.models.cost import UsageTotals
from foveal.core.models.model import Model
from foveal.core.models.spending import SpentAmount, estimate_request
from foveal.core.wire.bound_thinking import BINDING_BETA
from foveal.core.wire.overflow_errors import recognise_overflow, refused_output, refuses_controls
from foveal.errors import FovealError, MalformedMessage, SessionExists, StoreError, UnknownSession
from foveal.server.auth_tokens import REQUEST_USER, MemoryChoice, is_user_id
from foveal.server.budgets import NOTHING_SPENT, Reservation, Spender, spent_amount
from foveal.server.proxy import headers as proxy_headers
from foveal.server.proxy.conversation import BYTES_PER_TOKEN
from foveal.server.proxy.exchange import Exchange
from foveal.server.proxy.find_conversation import SessionOfAnotherUser
from foveal.server.proxy.response_stream import (
    IDEMPOTENCY_HEADER,
    JoinedResponse,
    ProxyRequest,
    ResponseStream,
    SharedResponse,
)
from foveal.server.proxy.upstreams import (
    LimitKind,
    Upstreams,
    UpstreamTarget,
    dialect_of_headers,
    unreachable_error,
)
from foveal.server.runtime import Runtime
from foveal.transport.attempts import (
    MAX_ERROR_BYTES,
    FirstEvent,
    StreamBeginning,
    UpstreamHead,
    send_until_accepted,
)
from foveal.transport.client_request import COMPACTED_BY_PROVIDER, ClientRequest
from foveal.web import request_body
from foveal.web.http_errors import HttpError

# ── Beginning of a stream ────────────────────────────────────────────────────────────────────────────────

FIRST_EVENT_TIMEOUT_S: Final = 2.0


async def read_first_event(response: aiohttp.ClientResponse) -> FirstEvent:
    """Read a stream up to its first meaningful event; raises the errors of aiohttp."""
    beginning = StreamBeginning()
    try:
        async with asyncio.timeout(FIRST_EVENT_TIMEOUT_S) as timeout:
            async for chunk in response.content.iter_any():
                if (event := beginning.add(chunk)) is not None:
                    return event
    except TimeoutError:
        if not timeout.expired():
            raise
    return FirstEvent(beginning.data)


# ── Proxied requests ─────────────────────────────────────────────────────────────────────────────────────

MEMORY_HEADER: Final = "x-foveal-memory"
"""Header with which a client asks for the memory of a user; behind `; hears`, "remember that …" is obeyed."""
NO_MEMORY: Final = "-"
"""Value of this header with which a client asks for none, although its token names one."""
HASHED_BODY_BYTES: Final = 1_024
"""Bytes at the end of a body that make up its hash."""
SUMMARY_TIMEOUT_S: Final = 120.0


class ProxyEndpoints:
    """Endpoints whose requests are fitted to the model's context window."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams) -> None:
        self._runtime = runtime
        self._upstreams = upstreams

    @property
    def _limits(self) -> RequestLimits:
        return RequestLimits.of(self._runtime.config)

    async def compact(self, request: Request) -> Response:
        """Return the client's conversation as the upstream compacts it: unreduced."""
        return await self._forward(request, "openai_responses", path="/responses/compact")

    async def chat(self, request: Request) -> Response:
        return await self._forward(request, "openai_chat")

    async def responses(self, request: Request) -> Response:
        return await self._forward(request, "openai_responses")

    async def messages(self, request: Request) -> Response:
        return await self._forward(request, "anthropic")

    async def _forward(self, request: Request, dialect: Dialect, *, path: str = "") -> Response:
        """Answer a request; one with a `path` of its own goes to an endpoint that compacts."""
        began = time.perf_counter()
        body = await request_body.read_unchecked(request)
        max_depth: int = request.state.max_depth
        client_request = ClientRequest(
            dialect,
            body,
            self._upstreams.request_cache,
            asks_for_compaction=bool(path),
            owner=request.state.caller.tenant,
            check_values=request_body.check_values,
            check_depth=lambda text, inside: request_body.check_depth(text, max_depth, inside=inside),
        )
        self._limits.check(client_request)
        query = request.scope["query_string"].decode("latin-1")
        headers = request.scope["headers"]
        target = await self._upstreams.target(dialect, headers, path=path, query=query)
        memory = asked_memory(request, client_request)
        key = _retry_key(request, target, body, memory)
        earlier = await self._upstreams.in_flight.find(key, request)
        if earlier is not None:
            return await _join(earlier)
        shared = self._upstreams.in_flight.begin(key, request)
        try:
            return await self._answer(request, client_request, target, shared, memory=memory, began=began)
        except BaseException as error:
            shared.end(error=error)
            raise

    async def _answer(
        self,
        request: Request,
        client_request: ClientRequest,
        target: UpstreamTarget,
        shared: SharedResponse,
        *,
        memory: MemoryChoice | None,
        began: float,
    ) -> Response:
        """Record a request that is no retry, send it upstream, and return the response."""
        if target.model_id and client_request.model:
            client_request.set_model(target.model_id)
        if not self._upstreams.allows_binding_controls(target):
            client_request.refuse_binding_controls()
        model = await self._limited_model(client_request, target)
        spender = Spender(request.state.caller.tenant, user=spending_user(request, client_request, memory))
        exchange, problem = await self._start_exchange(
            request, client_request, model, target, memory, spender
        )
        proxy_request = ProxyRequest(
            runtime=self._runtime,
            tenant=request.state.caller.tenant,
            client_request=client_request,
            model=model.name,
            exchange=exchange,
            problem=problem,
            secret=target.secret,
            began=began,
            shared=shared,
        )
        try:
            proxy_request.reservation = await self._reserve(spender, model, client_request, exchange)
            return await self._send(request, proxy_request, target)
        except BaseException as error:
            proxy_request.end(error=error if isinstance(error, HttpError) else None)
            raise

    async def _limited_model(self, client_request: ClientRequest, target: UpstreamTarget) -> Model:
        """Return the model with the window that its upstream has stated, and limit the answer of the request."""
        model, limits = (
            target.model or self._upstreams.model(client_request.model or "unknown"),
            self._upstreams.limits,
        )
        await limits.refresh()
        at = target.limited(model.name)
        client_request.limit_output(limits.max_output(at))
        return limits.limited(model, at)

    async def _reserve(
        self, spender: Spender, model: Model, client_request: ClientRequest, exchange: Exchange | None
    ) -> Reservation | None:
        """Reserve what a request will probably use; raises `HttpError` if that exceeds a budget."""
        if exchange is not None:
            spender = spender._replace(conversation=exchange.session_id)
        budgets = self._runtime.budgets
        if not budgets.apply_to(spender):
            return None
        if not client_request.model:
            detail = f"{client_request.problem}: a request that a budget limits must name its model"
            raise HttpError(400, detail, code="no_model")
        tokens, usage = len(client_request.body) // BYTES_PER_TOKEN, UsageTotals()
        try:
            if exchange is not None:
                tokens, usage = exchange.tokens, await exchange.conversation.session.usage()
            reserve = client_request.max_tokens or model.max_output
            estimate = estimate_request(model, tokens, usage, reserve=reserve, answers=client_request.answers)
            return await budgets.reserve(spender, model, estimate)
        except FovealError as problem:
            raise proxy_headers.budget_error(problem) from None

    async def _send_summary(
        self, target: UpstreamTarget, body: bytes, spender: Spender, model: Model
    ) -> tuple[int, bytes]:
        """Send a request for a summary, which counts as any other request; raises `BudgetExceeded`."""
        tokens = len(body) // BYTES_PER_TOKEN
        estimate = estimate_request(model, tokens, UsageTotals(), reserve=model.max_output)
        reservation = await self._runtime.budgets.reserve(spender, model, estimate)
        used: SpentAmount | None = NOTHING_SPENT
        try:
            status, data = await self._upstreams.send_and_read(target, body, timeout_s=SUMMARY_TIMEOUT_S)
            if status == 200 and reservation is not None:
                used = spent_amount(msgspec.json.decode(data), model)
            return status, data
        finally:
            if reservation is not None:
                self._runtime.budgets.settle_soon(reservation, used)

    async def _start_exchange(
        self,
        request: Request,
        client_request: ClientRequest,
        model: Model,
        target: UpstreamTarget,
        memory: MemoryChoice | None,
        spender: Spender,
    ) -> tuple[Exchange | None, str]:
        """Record and fit the request; return None and the reason if it cannot be recorded."""
        if client_request.problem:
            return None, client_request.problem

        async def summarise(dialect: Dialect, body: bytes, beta: str) -> tuple[int, bytes]:
            to = target.with_beta(beta) if beta else target
            return await self._send_summary(to, body, spender, model)

        tenant = request.state.caller.tenant
        session_id = request.headers.get("x-foveal-session", "").strip()
        try:
            conversations = self._upstreams.conversations.tenant(tenant)
            exchange = await conversations.start_exchange(
                client_request,
                model,
                summarise,
                session_id=session_id,
                memory=memory,
                user=spender.user,
                is_bound=bool(request.state.caller.user),
            )
        except MalformedMessage as malformed:
            return None, f"{malformed}"
        except UnknownSession as unknown:
            detail = f"the session {unknown.session!r} was erased: use another id"
            raise HttpError(409, detail, code="gone") from None
        except SessionExists as existing:
            detail = (
                f"the session {existing.session!r} belongs to /api/sessions: use it there, or use another id"
            )
            raise HttpError(409, detail, code="session_exists") from None
        except SessionOfAnotherUser:
            detail = f"the session {session_id!r} is of another user, or of none: use another id"
            raise HttpError(403, detail, code="other_user") from None
        except StoreError as failure:
            self._runtime.store_failed(tenant, failure)
            return None, "the store cannot be used now"
        spender = spender._replace(conversation=exchange.session_id)  # for summaries from here on
        return exchange, _unchanged_because(exchange) if client_request.asks_for_compaction else ""

    async def _send(self, request: Request, proxy_request: ProxyRequest, target: UpstreamTarget) -> Response:
        """Send the request, and smaller ones while the upstream refuses it as too large; return the response."""
        call = _ProxyCall(self._upstreams, proxy_request, target)
        if proxy_request.exchange is None:
            await call.send()
            return self._stream(request, call.response, proxy_request)
        outcome = await send_until_accepted(call)
        if outcome.is_error:
            return proxy_request.error_response(call.response, outcome.data)
        return self._stream(request, call.response, proxy_request, outcome.data)

    def _stream(
        self,
        request: Request,
        response: aiohttp.ClientResponse,
        proxy_request: ProxyRequest,
        already_read: bytes = b"",
    ) -> ResponseStream:
        return ResponseStream(
            request,
            response,
            proxy_request,
            already_read,
            silence_s=self._upstreams.silence_s,
            pauses=self._upstreams.pauses_on_disconnect,
        )


def _unchanged_because(exchange: Exchange) -> str:
    """Return why a request that asks for a compaction is forwarded unchanged, and whether it seems too large."""
    tokens, window = exchange.tokens, exchange.conversation.model.window
    if tokens <= window:
        return COMPACTED_BY_PROVIDER
    return f"{COMPACTED_BY_PROVIDER}, and about {tokens:,} tokens do not fit into its window of {window:,}"


class _ProxyCall:
    """An `UpstreamCall` for a proxied request."""

    response: aiohttp.ClientResponse

    def __init__(self, upstreams: Upstreams, proxy_request: ProxyRequest, target: UpstreamTarget) -> None:
        self._upstreams, self._proxy_request, self._target = upstreams, proxy_request, target

    async def send(self) -> UpstreamHead:
        self._proxy_request.mark_sending()
        exchange, target = self._proxy_request.exchange, self._target
        if exchange is not None and exchange.sends_binding_controls:
            target = target.with_beta(BINDING_BETA)
        self.response = await self._upstreams.send("POST", target, self._proxy_request.body)
        self._proxy_request.mark_response(self.response.status)
        return UpstreamHead(self.response.status, self.response.headers.get("content-type", ""))

    async def read_error(self) -> bytes | None:
        return await _read_error(self.response)

    async def read_first_event(self) -> FirstEvent:
        try:
            return await read_first_event(self.response)
        except (aiohttp.ClientError, OSError) as problem:
            self.response.close()
            silence_s = self._upstreams.silence_s
            raise unreachable_error(self._target, problem, silence_s=silence_s) from None

    async def shrink(self, error: object) -> bool:
        exchange = self._proxy_request.exchange
        if exchange is not None and exchange.sends_binding_controls and refuses_controls(error):
            self._upstreams.note_refused_controls(self._target)
            exchange.drop_binding_controls()
            return True
        if exchange is None:
            return False
        allowed = refused_output(error)
        if allowed and exchange.limit_output(allowed):
            await self._note_limit("output", allowed, exchange)
            return True
        if not await exchange.retry_smaller(error):
            return False
        stated = recognise_overflow(error)
        if stated is not None and stated.states_window:
            await self._note_limit("window", stated.limit, exchange)
        return True

    async def _note_limit(self, kind: LimitKind, tokens: int, exchange: Exchange) -> None:
        """Share a limit that the upstream has stated."""
        at = self._target.limited(self._proxy_request.model)
        session = f"{self._proxy_request.tenant}/{exchange.session_id}"
        await self._upstreams.limits.note(at, kind, tokens, session=session)

    async def discard(self) -> None:
        self.response.close()


def _retry_key(
    request: Request, target: UpstreamTarget, body: bytes, memory: MemoryChoice | None
) -> Hashable:
    """Return what a request has in common with its retries."""
    headers = request.headers
    names = ("authorization", "x-api-key", "x-foveal-session", IDEMPOTENCY_HEADER)
    given = (headers.get(name) for name in names)
    return request.state.caller, target.url, memory, *given, _RepeatedBody(body)


class _RepeatedBody:
    """A body in the key of a request. Its hash is that of its end: hashing megabytes takes milliseconds, and only
    the bodies of retries end alike."""

    __slots__ = ("_body", "_hash")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._hash = hash((len(body), body[-HASHED_BODY_BYTES:]))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RepeatedBody) and self._body == other._body


async def _join(shared: SharedResponse) -> Response:
    with shared.follow():
        return JoinedResponse(shared, await shared.head())


def asked_memory(request: Request, client_request: ClientRequest) -> MemoryChoice | None:
    """Return the memory that a request shows: that of its header, or else that of its token. The header of a token
    with a memory can only narrow it. Raises `HttpError` if the header names no user, or another one."""
    of_token: MemoryChoice | None = request.state.caller.memory
    allowed = None if of_token is None else _with_user(of_token, client_request)
    given = request.headers.getlist(MEMORY_HEADER)
    if not given:
        return allowed
    text = given[0].strip() if len(given) == 1 else ""
    if text == NO_MEMORY:
        return None
    asked = MemoryChoice.read(text)
    if asked is None or asked.user == REQUEST_USER:
        detail = f"{MEMORY_HEADER} must be the id of a user, this id and `; hears`, or `{NO_MEMORY}` for none"
        raise HttpError(400, detail, code="invalid_header")
    if of_token is None:
        return asked
    if allowed is None or allowed.user != asked.user:
        whose = "whom the request names" if of_token.user == REQUEST_USER else "of the token"
        detail = f"this token shows the memory of the user {whose} only, and {MEMORY_HEADER} names another"
        raise HttpError(403, detail, code="other_user")
    return asked._replace(hears=asked.hears and allowed.hears)


def _with_user(choice: MemoryChoice, client_request: ClientRequest) -> MemoryChoice | None:
    """Return the memory of a token; None if its user is that of the request, and the request names none."""
    if choice.user != REQUEST_USER:
        return choice
    user = client_request.end_user
    return choice._replace(user=user) if is_user_id(user) else None


def spending_user(request: Request, client_request: ClientRequest, memory: MemoryChoice | None) -> str:
    """Return the user whose budget a request uses and whose session it is: that of its token, else the one whom
    its header or its body names; "" if none does."""
    of_token: MemoryChoice | None = request.state.caller.memory
    named = (None if of_token is None else _with_user(of_token, client_request)) or memory
    user = client_request.end_user if named is None else named.user
    return user if is_user_id(user) else ""


class RequestLimits(NamedTuple):
    """Models and number of messages that the server accepts."""

    models: tuple[str, ...]
    max_messages: int

    @classmethod
    def of(cls, config: Config) -> RequestLimits:
        """Return the configured limits."""
        return cls(tuple(config.get("server.models")), config.get("server.max_messages"))

    def allows(self, model: str) -> bool:
        """Return whether `server.models` allows a model; an empty list allows all."""
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check(self, request: ClientRequest) -> None:
        """Raise `HttpError` if the request exceeds the limits."""
        if not self.allows(request.model):
            detail = f"this server does not allow the model {request.model[:100]!r} (`server.models`)"
            raise HttpError(403, detail, code="model_not_allowed")
        count = len(request.messages)
        if count > self.max_messages:
            allowed = f"{self.max_messages:,} are allowed (`server.max_messages`)"
            raise HttpError(
                413, f"the request has {count:,} messages, and {allowed}", code="too_many_messages"
            )


async def _read_error(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the body of an error; None if it exceeds `MAX_ERROR_BYTES` or does not arrive."""
    try:
        data = await response.content.read(MAX_ERROR_BYTES)
        while len(data) < MAX_ERROR_BYTES and not response.content.at_eof():
            data += await response.content.read(MAX_ERROR_BYTES - len(data))
    except (aiohttp.ClientError, OSError):
        data = b""
    return data if response.content.at_eof() else None


# ── Requests that are only passed through ────────────────────────────────────────────────────────────────

MAX_PASSTHROUGH_BYTES: Final = 16 << 20
_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9_:@+~-][A-Za-z0-9_:@+~./-]{0,199}")


class PassthroughEndpoints:
    """Endpoints for the list of models and for counting tokens."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams) -> None:
        self._runtime, self._upstreams = runtime, upstreams

    @property
    def _limits(self) -> RequestLimits:
        return RequestLimits.of(self._runtime.config)

    async def count_tokens(self, request: Request) -> Response:
        """Return how many tokens the upstream counts in the client's unreduced request."""
        data = await request_body.read_bytes(request)
        self._limits.check(ClientRequest("anthropic", data))
        return await self._pass_through(request, "anthropic", "/messages/count_tokens", data)

    async def list_models(self, request: Request) -> Response:
        """Return the upstream's models that `server.models` allows."""
        response = await self._pass_through(
            request, dialect_of_headers(request.scope["headers"]), "/models", None
        )
        if self._limits.models and response.status_code == 200 and request.method == "GET":
            return _only_allowed_models(response, self._limits)
        return response

    async def get_model(self, request: Request) -> Response:
        """Return the upstream's description of a model, if `server.models` allows it."""
        name: str = request.path_params["name"]
        if not self._limits.allows(name) or not _MODEL_NAME.fullmatch(name) or ".." in name:
            raise HttpError(404, f"there is no model {name[:100]!r}", code="model_not_found")
        return await self._pass_through(
            request, dialect_of_headers(request.scope["headers"]), f"/models/{name}", None
        )

    async def _pass_through(
        self, request: Request, dialect: Dialect, path: str, body: bytes | None
    ) -> Response:
        target = await self._upstreams.target(
            dialect, request.scope["headers"], path=path, query=request.url.query
        )
        response = await self._upstreams.send(request.method, target, body)
        try:
            async with response:
                data = await response.content.read(MAX_PASSTHROUGH_BYTES)
                while not response.content.at_eof():
                    if len(data) >= MAX_PASSTHROUGH_BYTES:
                        raise HttpError(502, "the provider's response is too large", code="upstream_broken")
                    data += await response.content.read(MAX_PASSTHROUGH_BYTES - len(data))
        except (aiohttp.ClientError, OSError) as problem:
            raise unreachable_error(target, problem, silence_s=self._upstreams.silence_s) from None
        headers = proxy_headers.to_client(response.raw_headers, target.secret)
        data = proxy_headers.without_secret(target.secret, data)
        if request.method == "HEAD":  # the length of what GET would return
            return _response(data, response.status, headers, response.headers.get("content-length", "0"))
        return _response(data, response.status, headers)


def _response(data: bytes, status: int, headers: list[tuple[bytes, bytes]], length: str = "") -> Response:
    response = Response(data, status_code=status)
    response.raw_headers = [*headers, (b"content-length", (length or str(len(data))).encode())]
    return response


def _only_allowed_models(response: Response, limits: RequestLimits) -> Response:
    try:
        listed: Any = msgspec.json.decode(bytes(response.body))
        allowed = [model for model in listed["data"] if limits.allows(model["id"])]
    except (msgspec.DecodeError, LookupError, TypeError):
        raise HttpError(502, "the provider's list of models cannot be read", code="upstream_broken") from None
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    return _response(msgspec.json.encode({**listed, "data": allowed}), response.status_code, headers)
