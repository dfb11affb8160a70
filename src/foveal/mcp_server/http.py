"""The MCP server over HTTP on 127.0.0.1, with a bearer token."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
from hmac import compare_digest
from typing import Final

import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from foveal.errors import FovealError
from foveal.mcp_server.memory_access import MemoryAccess
from foveal.mcp_server.recall_server import recall_server
from foveal.recall.archive import Archive

MCP_HOST: Final = "127.0.0.1"
MCP_TOKEN_VARIABLE: Final = "FOVEAL_MCP_TOKEN"
_TOKEN_BYTES: Final = 24


class RequireBearerToken:
    """Refuses requests without the token, because other users and web pages can reach the port too."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not compare_digest(given, self._expected):
                advice = (
                    f"send the header Authorization: Bearer TOKEN, with the token of {MCP_TOKEN_VARIABLE}\n"
                )
                refusal = PlainTextResponse(advice, 401, headers={"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def serve_http(archive: Archive, port: int, memory: MemoryAccess | None = None) -> None:
    """Serve until the process is told to stop; the URL, and a new token, are printed to standard error."""
    given = os.environ.get(MCP_TOKEN_VARIABLE, "")
    token = given or secrets.token_urlsafe(_TOKEN_BYTES)
    app = recall_server(archive, memory).streamable_http_app(host=MCP_HOST)
    config = uvicorn.Config(RequireBearerToken(app, token), log_level="warning", access_log=False)
    with _listen(port) as listener:
        url = f"http://{MCP_HOST}:{listener.getsockname()[1]}/mcp"
        shown = f"the token in {MCP_TOKEN_VARIABLE}" if given else f"token {token}"
        print(f"foveal mcp: {url}, {shown}", file=sys.stderr, flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


def _listen(port: int) -> socket.socket:
    """Return a listening socket; raises `FovealError`."""
    try:
        return socket.create_server((MCP_HOST, port))
    except OSError as problem:
        in_use = problem.errno == errno.EADDRINUSE
        reason = "is used by another program" if in_use else f"cannot be used ({problem.strerror})"
        advice = "choose another with --http (0: any free one)"
        raise FovealError(f"port {port} of {MCP_HOST} {reason}: {advice}") from None
