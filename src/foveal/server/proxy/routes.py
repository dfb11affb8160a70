"""Routes of the drop-in endpoints."""

from __future__ import annotations

from starlette.routing import Route

from foveal.server.proxy.endpoints import PassthroughEndpoints, ProxyEndpoints
from foveal.server.proxy.other_paths import FORWARDED_METHODS, OtherPaths
from foveal.server.proxy.upstreams import Upstreams
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
