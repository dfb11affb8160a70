"""What only passes: which models there are, and how many tokens a request has.

Where a list of allowed models is set (`server.models`), others are not shown.
"""

from __future__ import annotations

import re
from typing import Any, Final

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from foveal.apps.server import bodies
from foveal.apps.server.dropin import passing
from foveal.apps.server.dropin.relay import Limits
from foveal.apps.server.dropin.upstreams import Upstreams, unreachable
from foveal.apps.server.refusals import Refusal
from foveal.events import Dialect
from foveal.service.dropin.requests import Asked
from foveal.service.ground import Ground

LARGEST: Final = 16 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_:@+~-][A-Za-z0-9_:@+~./-]{0,199}")


class Plain:
    def __init__(self, ground: Ground, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self._limits = Limits.of(ground.config)

    async def count(self, request: Request) -> Response:
        """How many tokens upstream counts in a request as the client has it."""
        data = await bodies.read(request)
        self._limits.check(Asked("anthropic", data))
        return await self._passed(request, "anthropic", "/messages/count_tokens", data)

    async def models(self, request: Request) -> Response:
        answer = await self._passed(request, _dialect(request), "/models", None)
        return _only(answer, self._limits) if self._limits.models and answer.status_code == 200 else answer

    async def model(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        if not self._limits.allow(name) or not _NAME.fullmatch(name) or ".." in name:
            raise Refusal(404, f"there is no model {name[:100]!r}", code="model_not_found")
        return await self._passed(request, _dialect(request), f"/models/{name}", None)

    async def _passed(self, request: Request, dialect: Dialect, path: str, body: bytes | None) -> Response:
        target = await self._upstreams.target(
            dialect, request.scope["headers"], path=path, query=request.url.query
        )
        response = await self._upstreams.send(request.method, target, body)
        try:
            async with response:
                data = await response.content.read(LARGEST)
                while not response.content.at_eof():
                    if len(data) >= LARGEST:
                        raise Refusal(502, "the provider's answer is too large", code="upstream_broken")
                    data += await response.content.read(LARGEST - len(data))
        except (aiohttp.ClientError, OSError) as problem:
            raise unreachable(target, problem, silence=self._upstreams.silence) from None
        headers = passing.back(response.raw_headers, target.secret)
        return _answer(passing.without(target.secret, data), response.status, headers)


def _answer(data: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> Response:
    made = Response(data, status_code=status)
    made.raw_headers = [*headers, (b"content-length", str(len(data)).encode())]
    return made


def _dialect(request: Request) -> Dialect:
    """Whose list a client wants: Anthropic's always say which version they speak."""
    return "anthropic" if "anthropic-version" in request.headers else "openai_chat"


def _only(answer: Response, limits: Limits) -> Response:
    """The list without models that are not allowed."""
    try:
        listed: Any = msgspec.json.decode(bytes(answer.body))
        kept = [one for one in listed["data"] if limits.allow(one["id"])]
    except (msgspec.DecodeError, LookupError, TypeError):
        raise Refusal(502, "the provider's list of models cannot be read", code="upstream_broken") from None
    headers = [(name, value) for name, value in answer.raw_headers if name != b"content-length"]
    return _answer(msgspec.json.encode({**listed, "data": kept}), answer.status_code, headers)
