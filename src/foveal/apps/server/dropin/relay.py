"""From a client to its upstream and back: what it asks is fitted, what comes back passes unchanged.

1. Nothing goes upstream that was not taken in first; what cannot be taken in (no history, a store that cannot be
   written) goes on as it came, and a header says that it is not managed.
2. When upstream says that a request was too large, it is made smaller and sent again; any other error passes.
3. A stream passes as it comes. Its bytes are kept beside, and read when all has been said.
4. A client that hangs up does not end the answer: it is read to its end and recorded, within bounds.
"""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.server import bodies
from foveal.apps.server.dropin.passage import Passage, Told, streams
from foveal.apps.server.dropin.prelude import Prelude, prelude
from foveal.apps.server.dropin.upstreams import Target, Upstreams, unreachable
from foveal.apps.server.refusals import Refusal
from foveal.config import Config
from foveal.errors import ContextOverflow, MalformedMessage, SessionExists, StoreError, UnknownSession
from foveal.events import Dialect
from foveal.models import Model
from foveal.service.dropin.exchange import Exchange
from foveal.service.dropin.requests import Asked
from foveal.service.ground import Ground

TRIES: Final = 4
"""Requests that are made for one of the client's, at the most."""
LARGEST_ERROR: Final = 1 << 20
TOO_LARGE: Final = frozenset({400, 413, 422})
SUMMARY: Final = 120.0
"""Seconds for a summary."""


class Relay:
    def __init__(self, ground: Ground, upstreams: Upstreams) -> None:
        self._ground = ground
        self._upstreams = upstreams
        self._limits = Limits.of(ground.config)

    async def chat(self, request: Request) -> Response:
        return await self._relayed(request, "openai_chat")

    async def responses(self, request: Request) -> Response:
        return await self._relayed(request, "openai_responses")

    async def messages(self, request: Request) -> Response:
        return await self._relayed(request, "anthropic")

    async def _relayed(self, request: Request, dialect: Dialect) -> Response:
        began = time.perf_counter()
        asked = Asked(dialect, await bodies.read(request), self._upstreams.memory)
        self._limits.check(asked)
        target = await self._upstreams.target(dialect, request.scope["headers"], query=request.url.query)
        if target.served and asked.model:
            asked.rename(target.served)
        model = target.model or self._upstreams.model(asked.model or "unknown")
        exchange, problem = await self._begun(request, asked, model, target)
        told = Told(
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
            told.end(status=error.status if isinstance(error, Refusal) else 0)
            raise

    async def _begun(
        self, request: Request, asked: Asked, model: Model, target: Target
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
            raise Refusal(
                409, f"the session {gone.session!r} was erased: use another id", code="gone"
            ) from None
        except SessionExists as taken:
            told = f"the session {taken.session!r} is kept by this server: use another id, or /api/sessions"
            raise Refusal(409, told, code="session_exists") from None
        except StoreError:
            return None, "the store cannot be used now"

    async def _sent(self, request: Request, told: Told, target: Target) -> Response:
        """Send a request, smaller ones if it is too large, and give back whatever the answer is."""
        for attempt in range(TRIES):
            told.sending()
            response = await self._upstreams.send("POST", target, told.body)
            told.arrived(response.status)
            last = told.exchange is None or attempt == TRIES - 1
            if response.status in TOO_LARGE and told.exchange is not None:
                error = await _error(response)
                if error is None or last or not await told.exchange.refused(_said(response, error)):
                    return told.failed(response, error)
            else:
                begun = await self._begins(response, target) if told.exchange is not None else Prelude()
                if begun.error is None or last or not await _again(told, begun):
                    return Passage(request, response, told, begun.begun, silence=self._upstreams.silence)
            response.close()
        raise AssertionError("the last attempt has an answer")

    async def _begins(self, response: aiohttp.ClientResponse, target: Target) -> Prelude:
        """How a stream begins; nothing, for what is none."""
        if response.status != 200 or not streams(response):
            return Prelude()
        try:
            return await prelude(response)
        except (aiohttp.ClientError, OSError) as problem:
            response.close()
            raise unreachable(target, problem, silence=self._upstreams.silence) from None


async def _again(told: Told, begun: Prelude) -> bool:
    return told.exchange is not None and await told.exchange.refused(begun.error)


class Limits(NamedTuple):
    """What this server takes."""

    models: tuple[str, ...]
    messages: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        return cls(tuple(config.get("server.models")), config.get("server.max_messages"))

    def allow(self, model: str) -> bool:
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check(self, asked: Asked) -> None:
        """Raises `Refusal`."""
        if not self.allow(asked.model):
            told = f"the model {asked.model[:100]!r} is not one of those that this server allows"
            raise Refusal(403, f"{told} (`server.models`)", code="model_not_allowed")
        if len(asked.messages) > self.messages:
            told = f"the request has {len(asked.messages):,} messages, and {self.messages:,} are allowed"
            raise Refusal(413, f"{told} (`server.max_messages`)", code="too_many_messages")


def too_long(dialect: Dialect, overflow: ContextOverflow) -> Refusal:
    """What the provider would say, with our numbers."""
    if dialect == "anthropic":
        told = f"prompt is too long: {overflow.needed} tokens > {overflow.available} maximum. {overflow}"
    else:
        told = (
            f"This model's maximum context length is {overflow.window} tokens. However, your messages resulted "
            f"in {overflow.needed} tokens. {overflow}"
        )
    return Refusal(400, told, code="context_length_exceeded")


async def _error(response: aiohttp.ClientResponse) -> bytes | None:
    """The body of an error; None when it is larger than any is, or does not come."""
    try:
        data = await response.content.read(LARGEST_ERROR)
        while len(data) < LARGEST_ERROR and not response.content.at_eof():
            data += await response.content.read(LARGEST_ERROR - len(data))
    except (aiohttp.ClientError, OSError):
        data = b""
    return data if response.content.at_eof() else None


def _said(response: aiohttp.ClientResponse, error: bytes) -> object:
    """An error as `overflow.recognise` reads it."""
    try:
        return {"status_code": response.status, "body": msgspec.json.decode(error)}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {"status_code": response.status, "body": error.decode("utf-8", "replace")}
