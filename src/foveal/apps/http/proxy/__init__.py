"""The drop-in endpoints: `/v1` of OpenAI and Anthropic, in front of any upstream of the same dialect.

relay.py      a request on its way: taken in, fitted, sent, sent again when it was too large
passage.py    the answer on its way back, and what is told of it
upstreams.py  where a request goes, with whose key; passing.py: which headers pass
plain.py      what only passes: the list of models, and counting
"""

from __future__ import annotations

from starlette.routing import Route

from foveal.apps.http.proxy.endpoints import PassthroughEndpoints, ProxyEndpoints
from foveal.apps.http.proxy.upstreams import Upstreams
from foveal.server.service import Service

__all__ = ["Upstreams", "routes"]


def routes(service: Service, upstreams: Upstreams) -> list[Route]:
    """All paths under `/v1`."""
    relay, plain = ProxyEndpoints(service.ground, upstreams), PassthroughEndpoints(service.ground, upstreams)
    return [
        Route("/v1/chat/completions", relay.chat, methods=["POST"]),
        Route("/v1/responses", relay.responses, methods=["POST"]),
        Route("/v1/messages", relay.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", plain.count, methods=["POST"]),
        Route("/v1/models", plain.models, methods=["GET"]),
        Route("/v1/models/{name:path}", plain.model, methods=["GET"]),
    ]
