"""Drop-in endpoints: `/v1` of OpenAI and Anthropic in front of any upstream.

endpoints           fits a request, sends it, and sends a smaller one if it was too large
response_stream     the response on its way back to the client, and its recording
stream_relay        chunks of a stream, forwarded without waking a task
other_paths         the other paths of the two APIs, forwarded unchanged
upstreams           where a request goes, and with which key
forwarded_headers   which headers are forwarded
"""

from __future__ import annotations

from starlette.routing import Route

from foveal.apps.http.proxy.endpoints import PassthroughEndpoints, ProxyEndpoints
from foveal.apps.http.proxy.other_paths import FORWARDED_METHODS, OtherPaths
from foveal.apps.http.proxy.upstreams import Upstreams
from foveal.server.service import Service

__all__ = ["Upstreams", "routes"]


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
